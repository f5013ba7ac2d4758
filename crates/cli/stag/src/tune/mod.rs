//! `stag tune`: measures a path, chooses settings, measures their gain, and reports it.
//! [`iscsi_client::tune::plan`] chooses; here are the sessions that measure, and the output.

mod apply;
mod nfs;
mod report;
mod words;

use std::time::Duration;

use iscsi_client::tune::measure::{self, Load, Moved};
use iscsi_client::tune::plan::{self, Allowed, Measured, Plan, RoundTrips};
use iscsi_client::tune::{Settings, Tune as Tuned};
use iscsi_client::{Disk, Error, Options, Session, Url};
use runtime::SystemLimits;

use crate::args::{Remote, Tune};
use crate::client::connect::{self, ConnectError};
use crate::exit::Exit;
use crate::out::{self, OutError};
use report::Report;

/// Default load of most initiators: bytes of a command, and open-iscsi's queue depth.
const USUAL: (u32, usize) = (64 << 10, 32);
/// Load that fills nearly any path, to find its throughput: bytes of a command, and queue depth.
const PLENTY: (u32, usize) = (256 << 10, 64);
/// Connections of that load, since a single one may be the bottleneck.
const PLENTY_CONNECTIONS: u16 = 4;
/// Load for the measurement of packet loss, as a fraction of the bandwidth-delay product: no queue
/// builds up on the path then.
const QUIET: f64 = 0.75;
/// Retransmissions that are ignored: a last segment whose acknowledgement was late is retransmitted
/// too.
const CHANCE: u64 = 2;
/// Memory of the pool: all writes send the same data, and data that is read is dropped.
const POOL: usize = 128 << 20;

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
enum TuneError {
    /// A session could not be opened, or has failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The NFS server could not be reached, or refused.
    #[error(transparent)]
    Files(#[from] nfs_client::Error),
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(&'static str),
    /// The file to change cannot be read or written.
    #[error(transparent)]
    Apply(#[from] apply::ApplyError),
    #[error("{0}")]
    System(String),
    /// stdout is closed or full.
    #[error(transparent)]
    Output(#[from] OutError),
}

impl From<Error> for TuneError {
    fn from(error: Error) -> Self {
        Self::Connect(error.into())
    }
}

impl TuneError {
    fn exit(&self) -> Exit {
        match self {
            Self::Connect(ConnectError::Session(error)) if error.is_unreachable() => Exit::Unreachable,
            Self::Files(error) if error.is_unreachable() => Exit::Unreachable,
            Self::Usage(_) => Exit::Usage,
            Self::Apply(apply::ApplyError::Config(_)) => Exit::Config,
            _ => Exit::Failed,
        }
    }
}

pub fn tune(args: &Tune) -> Exit {
    match run(args) {
        Ok(()) => Exit::Done,
        Err(TuneError::Output(error)) => error.show(),
        Err(error) => {
            match &error {
                TuneError::Connect(_) | TuneError::Files(_) => say!("stag: {}: {error}", args.url),
                _ => say!("stag: {error}"),
            }
            error.exit()
        }
    }
}

fn run(args: &Tune) -> Result<(), TuneError> {
    if let Some(path) = &args.apply_to {
        if matches!(args.url, Remote::File(_)) {
            return Err(TuneError::Usage(
                "--apply-to is of units: what is chosen of NFS are options of a mount",
            ));
        }
        // Checked before the measurement.
        apply::readable(path)?;
    }
    let config = runtime::Config { pool_bytes: POOL, ..runtime::Config::default() };
    let runtime =
        runtime::Runtime::new(config).map_err(|error| TuneError::System(format!("no io_uring: {error}")))?;
    let url = match &args.url {
        Remote::Unit(url) => url,
        Remote::File(url) => {
            let report = runtime.block_on(nfs::find_out(args, url))?;
            return Ok(out::write(if args.json { report.json() } else { report.text() }.as_bytes())?);
        }
    };
    let report = runtime.block_on(find_out(args, url))?;
    let text = if args.json { report.json() } else { report.text() };
    out::write(text.as_bytes())?;
    if let Some(path) = &args.apply_to {
        let applied = apply::apply(path, &report)?;
        say!("stag: {}: {applied}", path.display());
    }
    Ok(())
}

/// Throughput, bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    read: f64,
    write: Option<f64>,
}

async fn find_out(args: &Tune, asked: &Url) -> Result<Report, TuneError> {
    let system = SystemLimits::read();
    let base = connect::options(asked, &args.connect)?;
    // The session must not tune itself during the measurement.
    let reconnect_timeout = args.connect.reconnect_or(Duration::ZERO);
    let base = Options { tune: Tuned::Off, reconnect_timeout, ..asked.settings.applied(base) };
    // The options have the URL's settings from here on.
    let url = Url { settings: Settings::default(), ..connect::place(asked) };

    let as_it_is = Options { queue_depth: USUAL.1, ..base.clone() };
    let (session, disk) = open(&url, as_it_is).await?;
    let result = first_look(args, &session, &disk).await;
    let (rtt, alone, before) = closing(&session, result).await?;

    say(args, "what goes through at most, and what the target allows");
    let offered = Options {
        queue_depth: PLENTY.1,
        connections: base.connections.max(PLENTY_CONNECTIONS),
        allow_connections: 64,
        max_burst_length: 0xff_ffff,
        first_burst_length: 0xff_ffff,
        max_outstanding_r2t: u16::MAX,
        initial_r2t: false,
        immediate_data: true,
        iser_reads: 16_383,
        ..base.clone()
    };
    let (session, disk) = open(&url, offered).await?;
    let result = most(args, &session, &disk, &rtt, url.transport).await;
    let (allowed, rates, loss) = closing(&session, result).await?;
    let about = (disk.len(), disk.block_len());

    let measured = Measured {
        rtt,
        alone,
        read: rates.read.max(before.read),
        write: rates.write.map(|rate| rate.max(before.write.unwrap_or(0.0))),
        loss,
    };
    let plan = plan::plan(&measured, &allowed, &system);
    say(args, "what was chosen");
    let after = with_plan(args, &url, &base, &plan, &rtt).await?;
    Ok(Report { url: asked.clone(), about, measured, allowed, system, plan, before, after, options: base })
}

/// Logs in and opens the unit.
async fn open(url: &Url, options: Options) -> Result<(Session, Disk), TuneError> {
    let session = Session::connect(url, options).await?;
    match Disk::open(&session, url.lun.unwrap_or(0)).await {
        Ok(disk) => Ok((session, disk)),
        Err(error) => {
            // The first error is the one to report.
            let _ = session.close().await;
            Err(error.into())
        }
    }
}

/// Logs out, whatever came before.
async fn closing<T>(session: &Session, result: Result<T, Error>) -> Result<T, TuneError> {
    if let Err(error) = session.close().await {
        tracing::debug!(%error, "no answer to the logout");
    }
    Ok(result?)
}

/// A load within the limits of the command line.
fn bounded(args: &Tune, write: bool, (io, depth): (u32, usize), rtt: &RoundTrips) -> Load {
    // Congestion control needs some round trips to find the path's capacity.
    let warmup = (rtt.p50 * 30).clamp(Duration::from_millis(100), Duration::from_secs(3));
    let time = Duration::from_secs_f64(args.time);
    Load { write, io, depth, warmup, time, most_bytes: args.most, span: args.span }
}

/// Throughput of reads, and of writes if the command line permits them.
async fn both(
    args: &Tune,
    session: &Session,
    disk: &Disk,
    shape: (u32, usize),
    rtt: &RoundTrips,
) -> Result<Rates, Error> {
    let mut queue = session.queue()?;
    let read = measure::load(disk, &mut queue, &bounded(args, false, shape, rtt)).await?.rate();
    let write = match args.destroy {
        true => Some(measure::load(disk, &mut queue, &bounded(args, true, shape, rtt)).await?.rate()),
        false => None,
    };
    Ok(Rates { read, write })
}

async fn first_look(
    args: &Tune,
    session: &Session,
    disk: &Disk,
) -> Result<(RoundTrips, Duration, Rates), Error> {
    say(args, "round trips");
    // The first round trip may have to wake an idle path.
    session.ping().await?;
    let rtt = measure::round_trips(session, args.pings.into(), Duration::from_secs(5)).await?;
    let alone = {
        let mut queue = session.queue()?;
        let time = (rtt.p50 * 10).clamp(Duration::from_millis(50), Duration::from_secs(2));
        let load = Load { warmup: Duration::ZERO, time, ..bounded(args, false, (USUAL.0, 1), &rtt) };
        let Moved { p50, .. } = measure::load(disk, &mut queue, &load).await?;
        p50.max(rtt.p50)
    };
    say(args, "what goes through as it is");
    let rates = both(args, session, disk, USUAL, &rtt).await?;
    Ok((rtt, alone, rates))
}

async fn most(
    args: &Tune,
    session: &Session,
    disk: &Disk,
    rtt: &RoundTrips,
    transport: iscsi_client::Transport,
) -> Result<(Allowed, Rates, f64), Error> {
    let allowed = measure::allowed(session, disk, transport);
    let rates = both(args, session, disk, PLENTY, rtt).await?;
    // The window may have grown since the login.
    let allowed = Allowed { window: allowed.window.max(session.window()), ..allowed };
    say(args, "packet loss");
    let loss = loss(args, session, disk, rtt, &rates).await?;
    Ok((allowed, rates, loss))
}

/// The share of segments that this side retransmits while fewer bytes are in flight than the path
/// holds. With more in flight a queue on the path overflows, and that loss is not the path's own.
async fn loss(
    args: &Tune,
    session: &Session,
    disk: &Disk,
    rtt: &RoundTrips,
    rates: &Rates,
) -> Result<f64, Error> {
    let sent = || {
        session.paths().iter().fold((0u64, 0u64), |(again, sent), path| {
            (again + u64::from(path.retransmitted), sent + u64::from(path.sent))
        })
    };
    let holds = rates.write.unwrap_or(rates.read) * rtt.least.as_secs_f64();
    // A float becomes the nearest number that there is.
    let depth = ((holds * QUIET / f64::from(USUAL.0)) as usize).clamp(1, PLENTY.1);
    let mut queue = session.queue()?;
    let load = bounded(args, rates.write.is_some(), (USUAL.0, depth), rtt);
    let load = Load { warmup: (rtt.p50 * 2).min(load.warmup), ..load };
    let before = sent();
    measure::load(disk, &mut queue, &load).await?;
    let after = sent();
    Ok(share(after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)))
}

/// The share that was retransmitted; 0 if chance explains it.
fn share(again: u64, sent: u64) -> f64 {
    if again <= CHANCE || sent == 0 { 0.0 } else { again as f64 / sent as f64 }
}

/// The loads again, with the plan's settings.
async fn with_plan(
    args: &Tune,
    url: &Url,
    base: &Options,
    plan: &Plan,
    rtt: &RoundTrips,
) -> Result<Rates, TuneError> {
    let depth = usize::from(plan.depth);
    let options = plan.settings.applied(Options { queue_depth: depth, ..base.clone() });
    let options = Options { queue_depth: options.queue_depth.max(depth), ..options };
    let mut sessions = Vec::new();
    for _ in 0..plan.sessions.max(1) {
        sessions.push(open(url, options.clone()).await?);
    }
    let running: Vec<_> = sessions
        .iter()
        .map(|(session, disk)| {
            let (session, disk, args, rtt) = (session.clone(), disk.clone(), args.clone(), *rtt);
            let shape = (plan.io, depth);
            runtime::spawn(async move { both(&args, &session, &disk, shape, &rtt).await })
        })
        .collect();
    let (mut rates, mut failed) = (Rates { read: 0.0, write: args.destroy.then_some(0.0) }, None);
    for task in running {
        match task.await {
            Ok(Ok(one)) => {
                rates.read += one.read;
                rates.write = rates.write.zip(one.write).map(|(all, one)| all + one);
            }
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Err(_) => failed = failed.or(Some(Error::Closed)),
        }
    }
    for (session, _) in &sessions {
        if let Err(error) = session.close().await {
            tracing::debug!(%error, "no answer to the logout");
        }
    }
    match failed {
        None => Ok(rates),
        Some(error) => Err(error.into()),
    }
}

fn say(args: &Tune, what: &str) {
    if !args.quiet {
        say!("stag: measuring {what}");
    }
}

/// A word, quoted for a shell if needed.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn us(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e6)
}

fn mb(rate: f64) -> f64 {
    round(rate / 1e6)
}

/// Rounds to three decimals.
fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_or_two_that_are_sent_again_are_no_loss_of_the_path() {
        assert_eq!((share(0, 0), share(2, 1000), share(3, 0)), (0.0, 0.0, 0.0));
        assert!((share(8, 80_000) - 1e-4).abs() < 1e-12);
    }
}
