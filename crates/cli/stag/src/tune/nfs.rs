//! `stag tune nfs://…`: the path to a file of an NFS server. An NFS call takes one round trip, for
//! reads and writes alike. So the only choice is the bytes in flight: twice the bandwidth-delay
//! product, as calls of a length, within the server's slots.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi_client::tune::plan::RoundTrips;
use nfs_client::{Client, Error, File, FileType, SetAttributes, Status, Url};
use runtime::{Chain, SystemLimits};
use serde_json::{Value, json};

use super::{Rates, TuneError, mb, ms, quoted, round, say, us};
use crate::args::Tune;
use crate::client::nfs;

/// Version of the format: increases when a field changes its meaning or is removed.
const FORMAT: u32 = 1;
/// Initial load of `stag cp`: bytes of a call, and calls in flight.
const USUAL: (u64, u64) = (256 << 10, 16);
/// Calls in flight that fill nearly any path, to find its throughput.
const PLENTY: u64 = 64;
/// Preferred number of calls that the bytes in flight are divided into.
const SPREAD: u64 = 16;
/// The shortest call that is chosen, and the length of the lone call that is timed.
const SHORTEST: u64 = 64 << 10;
/// Lengths for which the report gives the calls in flight.
const LENGTHS: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Most connections of Linux's client (`nconnect`).
const MOST_CONNECTIONS: u64 = 16;
/// Linux's default number of slots of a session (`nfs.max_session_slots`).
const LINUX_SLOTS: u64 = 64;
/// Mode of a new file.
const MODE: u32 = 0o644;
/// Smallest usable file, bytes.
const LEAST: u64 = 1 << 20;

/// Measurements of the path.
#[derive(Clone, Copy)]
struct Measured {
    rtt: RoundTrips,
    /// A lone READ of 64 KiB.
    alone: Duration,
    read: f64,
    write: Option<f64>,
}

/// Limits of the server and this machine.
#[derive(Clone, Copy)]
struct Allowed {
    /// Bytes of one READ and of one WRITE.
    sizes: (u32, u32),
    /// Calls in flight.
    calls: u64,
    /// Largest window to which a connection grows by itself, bytes: half of the buffer.
    window: u64,
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// The bandwidth-delay product, and the bytes to have in flight.
    holds: u64,
    in_flight: u64,
    /// Bytes of a call, and calls in flight.
    block: u64,
    depth: u64,
    /// Connections of a kernel's mount.
    connections: u64,
}

impl Plan {
    fn new(measured: &Measured, allowed: &Allowed) -> Self {
        let rate = measured.read.max(measured.write.unwrap_or(0.0));
        let holds = (rate * measured.rtt.least.as_secs_f64()) as u64;
        // A slow medium has the same effect as a long path.
        let in_flight = (2.0 * rate * measured.alone.max(measured.rtt.p50).as_secs_f64()) as u64;
        let longest = u64::from(allowed.sizes.0.min(allowed.sizes.1)).max(4096);
        let longest = 1 << longest.ilog2();
        let block = (in_flight / SPREAD).next_power_of_two().max(SHORTEST).min(longest);
        let depth = Self::calls(in_flight, block, allowed);
        let connections = holds.div_ceil(allowed.window.max(1)).clamp(1, MOST_CONNECTIONS);
        Self { holds, in_flight, block, depth, connections }
    }

    /// Calls of a length that keep so many bytes in flight, and one more.
    fn calls(in_flight: u64, block: u64, allowed: &Allowed) -> u64 {
        (in_flight.div_ceil(block) + 1).min(allowed.calls).max(1)
    }

    /// Calls in flight of another length.
    fn shape(&self, block: u64, allowed: &Allowed) -> u64 {
        Self::calls(self.in_flight, block, allowed)
    }
}

/// Everything.
pub struct Report {
    url: Url,
    version: String,
    bytes: u64,
    measured: Measured,
    allowed: Allowed,
    plan: Plan,
    before: Rates,
    after: Rates,
}

/// Measures, chooses, and measures again.
///
/// # Errors
/// The server's errors.
pub async fn find_out(args: &Tune, url: &Url) -> Result<Report, TuneError> {
    let client = nfs::connect(url, &args.connect).await?;
    let found = with(args, url, &client).await;
    client.close().await;
    found
}

async fn with(args: &Tune, url: &Url, client: &Client) -> Result<Report, TuneError> {
    let (file, bytes) = opened(args, url, client).await?;
    let file = Rc::new(file);
    say(args, "round trips");
    // The first round trip may have to wake an idle path.
    file.attributes().await?;
    let mut times = Vec::new();
    for _ in 0..args.pings {
        let begun = Instant::now();
        file.attributes().await?;
        times.push(begun.elapsed());
    }
    let rtt = RoundTrips::of(&mut times).unwrap_or_default();
    let mut times = Vec::new();
    for _ in 0..args.pings.min(20) {
        let begun = Instant::now();
        file.read(0, SHORTEST.min(bytes) as usize).await?;
        times.push(begun.elapsed());
    }
    let alone = RoundTrips::of(&mut times).unwrap_or_default().p50;
    let loads = |shape| both(args, &file, bytes, shape, &rtt);
    say(args, "what goes through as it is");
    let before = loads(USUAL).await?;
    say(args, "what goes through at most");
    let sizes = client.sizes();
    let system = SystemLimits::read();
    let window = system.send_auto.min(system.recv_auto) as u64 / 2;
    let allowed = Allowed { sizes, calls: client.window().into(), window };
    let most = loads((u64::from(sizes.0.min(sizes.1)), PLENTY)).await?;
    let measured = Measured {
        rtt,
        alone,
        read: most.read.max(before.read),
        write: most.write.zip(before.write).map(|(most, before)| most.max(before)),
    };
    let plan = Plan::new(&measured, &allowed);
    say(args, "what was chosen");
    let after = loads((plan.block, plan.depth)).await?;
    file.close().await?;
    let version = client.version().to_string();
    Ok(Report { url: url.clone(), version, bytes, measured, allowed, plan, before, after })
}

/// The file, and its length in bytes. With --destroy it is created, and made --span long.
async fn opened(args: &Tune, url: &Url, client: &Client) -> Result<(File, u64), TuneError> {
    let (file, size) = match client.find(url, true).await {
        Ok((_, of)) if of.kind == FileType::Directory => return Err(Error::Status(Status::IsDir).into()),
        Ok((_, of)) if of.kind != FileType::Regular => return Err(Error::Status(Status::Inval).into()),
        Ok((handle, of)) => (client.open(&handle, args.destroy).await?, of.size),
        Err(Error::Status(Status::NoEnt)) if args.destroy => {
            let (directory, name) = nfs::parent(client, url).await?;
            let set = SetAttributes { mode: Some(MODE), ..SetAttributes::default() };
            (client.create(&directory, &name, &set).await?, 0)
        }
        Err(error) => return Err(error.into()),
    };
    if args.destroy && size < args.span {
        file.set_size(args.span).await?;
    }
    let bytes = if args.destroy { args.span } else { size.min(args.span) };
    if bytes < LEAST {
        return Err(TuneError::Usage(
            "the file has less than 1 MiB: name a longer one, or let --destroy make one",
        ));
    }
    Ok((file, bytes))
}

async fn both(
    args: &Tune,
    file: &Rc<File>,
    bytes: u64,
    shape: (u64, u64),
    rtt: &RoundTrips,
) -> Result<Rates, Error> {
    let read = load(args, file, bytes, shape, rtt, false).await?;
    let write = if args.destroy { Some(load(args, file, bytes, shape, rtt, true).await?) } else { None };
    Ok(Rates { read, write })
}

/// Counts of a load.
struct Tally {
    /// Start and end of the measured window.
    from: Instant,
    until: Instant,
    next: Cell<u64>,
    /// Bytes of calls that were begun, and of those that ended in the window.
    begun: Cell<u64>,
    moved: Cell<u64>,
}

/// Keeps so many calls of a length in flight, sequentially through the file, over and over. Returns
/// bytes a second.
async fn load(
    args: &Tune,
    file: &Rc<File>,
    bytes: u64,
    (block, depth): (u64, u64),
    rtt: &RoundTrips,
    write: bool,
) -> Result<f64, Error> {
    let block = block.min(bytes);
    // Congestion control needs some round trips to find the path's capacity.
    let warmup = (rtt.p50 * 30).clamp(Duration::from_millis(100), Duration::from_secs(3));
    let from = Instant::now() + warmup;
    let until = from + Duration::from_secs_f64(args.time);
    let (next, begun, moved) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let tally = Rc::new(Tally { from, until, next, begun, moved });
    let data = Chain::from(vec![0x5a; block as usize]);
    let (most, blocks) = (args.most, bytes / block);
    let worker = || {
        let (tally, file, data) = (tally.clone(), file.clone(), data.clone());
        async move {
            while Instant::now() < tally.until && tally.begun.get() < most {
                let at = tally.next.replace(tally.next.get() + 1) % blocks * block;
                tally.begun.set(tally.begun.get() + block);
                if write {
                    // FILE_SYNC: unstable data could be sent again and overwrite a later write.
                    file.write_stable(at, data.clone()).await?;
                } else {
                    file.read(at, block as usize).await?;
                }
                let now = Instant::now();
                if (tally.from..tally.until).contains(&now) {
                    tally.moved.set(tally.moved.get() + block);
                }
            }
            Ok::<(), Error>(())
        }
    };
    let started = Instant::now();
    let workers: Vec<_> = (0..depth).map(|_| runtime::spawn(worker())).collect();
    let mut failed = None;
    for worker in workers {
        match worker.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Err(_) => failed = failed.or(Some(Error::Nonsense("a load was aborted"))),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let now = Instant::now();
    // --most ended it before the window: everything counts.
    if tally.moved.get() == 0 {
        return Ok(tally.begun.get() as f64 / started.elapsed().as_secs_f64());
    }
    Ok(tally.moved.get() as f64 / now.min(until).saturating_duration_since(from).as_secs_f64())
}

impl Report {
    fn gain(&self) -> (f64, Option<f64>) {
        let times = |after: f64, before: f64| if before > 0.0 { after / before } else { 0.0 };
        let write = self.after.write.zip(self.before.write).map(|(after, before)| times(after, before));
        (times(self.after.read, self.before.read), write)
    }

    fn bench(&self) -> Vec<String> {
        ["--bs", &self.plan.block.to_string(), "--depth", &self.plan.depth.to_string()]
            .map(str::to_owned)
            .to_vec()
    }

    fn copy(&self) -> Vec<String> {
        ["--block", &self.plan.block.to_string(), "--depth", &self.plan.depth.to_string()]
            .map(str::to_owned)
            .to_vec()
    }

    /// Options of Linux's mount.
    fn mount(&self) -> String {
        let (read, write) = self.allowed.sizes;
        let connections = match self.plan.connections {
            1 => String::new(),
            more => format!(",nconnect={more}"),
        };
        format!("vers={},rsize={read},wsize={write}{connections}", self.version)
    }

    /// Readahead for Linux's client, KiB: /sys/class/bdi/MAJOR:MINOR/read_ahead_kb of the mount.
    fn read_ahead_kib(&self) -> u64 {
        (self.plan.in_flight >> 10).next_power_of_two().max(128)
    }

    /// Advice beyond the settings of a mount.
    fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if self.plan.connections > 1 {
            let bytes = (2 * self.plan.holds).next_power_of_two();
            let kib = self.allowed.window >> 10;
            advice.push(format!(
                "a connection's window grows to {kib} KiB and the path holds {}: stag's client has one connection; raise the \
                 third number of net.ipv4.tcp_rmem and tcp_wmem to {bytes} at both ends",
                self.plan.holds
            ));
        }
        let wanted = self.plan.in_flight.div_ceil(u64::from(self.allowed.sizes.0.max(1)));
        if wanted > LINUX_SLOTS {
            advice.push(format!("Linux: options nfs max_session_slots={wanted} in /etc/modprobe.d"));
        }
        // With less than a quarter more than the bandwidth-delay product, a late call leaves the
        // path idle.
        if SHORTEST * self.allowed.calls < self.plan.holds * 5 / 4 {
            advice.push(format!(
                "{} calls may be in flight: calls of 64 KiB do not fill the path, those of {} KiB do",
                self.allowed.calls,
                self.plan.block >> 10
            ));
        }
        advice
    }

    /// The report as JSON. Scripts read the fields, so their names are stable.
    pub fn json(&self) -> String {
        let (measured, allowed, plan) = (&self.measured, &self.allowed, &self.plan);
        let (read_gain, write_gain) = self.gain();
        let rates = |rates: &Rates| json!({ "read_mb_s": mb(rates.read), "write_mb_s": rates.write.map(mb) });
        let loads: Vec<Value> =
            LENGTHS.iter().map(|bs| json!({ "bs": bs, "depth": plan.shape(*bs, allowed) })).collect();
        let document = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url.to_string(),
            "file": { "bytes": self.bytes, "nfs": self.version },
            "measured": {
                "rtt_us": {
                    "least": us(measured.rtt.least), "p50": us(measured.rtt.p50),
                    "p90": us(measured.rtt.p90), "most": us(measured.rtt.most),
                },
                "lone_64k_us": us(measured.alone),
                "read_mb_s": mb(measured.read),
                "write_mb_s": measured.write.map(mb),
            },
            "allowed": {
                "read_bytes": allowed.sizes.0, "write_bytes": allowed.sizes.1,
                "calls": allowed.calls, "window_bytes": allowed.window,
            },
            "chosen": {
                "bs": plan.block, "depth": plan.depth, "holds_bytes": plan.holds,
                "under_way_bytes": plan.in_flight, "nconnect": plan.connections,
            },
            "loads": loads,
            "before": rates(&self.before),
            "after": rates(&self.after),
            "gain": { "read": round(read_gain), "write": write_gain.map(round) },
            "arguments": self.copy(),
            "bench_arguments": self.bench(),
            "words": { "mount": self.mount(), "read_ahead_kb": self.read_ahead_kib() },
            "advice": self.advice(),
        });
        // Numbers, strings and lists of them: nothing that JSON does not have.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let (measured, allowed, plan) = (&self.measured, &self.allowed, &self.plan);
        writeln!(out, "{}", self.url)?;
        writeln!(out, "\nMeasured")?;
        writeln!(
            out,
            "  round trip           {:.3} ms (least {:.3}, p90 {:.3}, most {:.3})",
            ms(measured.rtt.p50),
            ms(measured.rtt.least),
            ms(measured.rtt.p90),
            ms(measured.rtt.most)
        )?;
        writeln!(out, "  a lone 64 KiB read   {:.3} ms", ms(measured.alone))?;
        writeln!(out, "  reads, at most       {:.1} MB/s", measured.read / 1e6)?;
        match measured.write {
            Some(rate) => writeln!(out, "  writes, at most      {:.1} MB/s", rate / 1e6)?,
            None => {
                writeln!(out, "  writes               not tried: they destroy what is there (--destroy)")?
            }
        }
        writeln!(out, "\nChosen")?;
        let mut line = |what: &str, value: String, why: &str| writeln!(out, "  {what:<22} {value:<14} {why}");
        line(
            "in flight",
            format!("{} KiB", plan.in_flight >> 10),
            "twice the rate × what a lone read takes",
        )?;
        line(
            "bytes of a call",
            format!("{} KiB", plan.block >> 10),
            "spread over 16 calls, as long as the server takes",
        )?;
        line(
            "calls in flight",
            plan.depth.to_string(),
            &format!("of {} that the session allows", allowed.calls),
        )?;
        line(
            "connections",
            plan.connections.to_string(),
            "the path's bytes by what a socket's window grows to",
        )?;
        writeln!(out, "\nCalls in flight, by their length")?;
        for block in LENGTHS {
            writeln!(out, "  {:>5} KiB {:>8}", block >> 10, plan.shape(block, allowed))?;
        }
        writeln!(out, "\nGained")?;
        let (read_gain, write_gain) = self.gain();
        let was = format!("{} KiB × {}", USUAL.0 >> 10, USUAL.1);
        let is = format!("{} KiB × {}", plan.block >> 10, plan.depth);
        writeln!(out, "  {:<8} {was:>14} {is:>16}", "")?;
        let mut line = |what: &str, before: f64, after: f64, gain: f64| {
            writeln!(out, "  {what:<8} {:>9.1} MB/s {:>11.1} MB/s   × {gain:.2}", before / 1e6, after / 1e6)
        };
        line("reads", self.before.read, self.after.read, read_gain)?;
        if let (Some(before), Some(after), Some(gain)) = (self.before.write, self.after.write, write_gain) {
            line("writes", before, after, gain)?;
        }
        writeln!(out, "\nWords")?;
        let url = quoted(&self.url.to_string());
        writeln!(out, "  stag bench {url} {}", self.bench().join(" "))?;
        writeln!(out, "  stag cp {} {url} FILE", self.copy().join(" "))?;
        writeln!(out, "  # Linux's client")?;
        writeln!(out, "  mount -t nfs -o {}", self.mount())?;
        writeln!(out, "  echo {} > /sys/class/bdi/MAJOR:MINOR/read_ahead_kb", self.read_ahead_kib())?;
        let advice = self.advice();
        if !advice.is_empty() {
            writeln!(out, "\nBeyond what a mount can do")?;
            for advice in &advice {
                writeln!(out, "  {advice}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Allowed = Allowed { sizes: (1 << 20, 1 << 20), calls: 64, window: 3 << 20 };

    fn plan(rate: f64, rtt_us: u64, allowed: &Allowed) -> Plan {
        let rtt = Duration::from_micros(rtt_us);
        let rtt = RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt };
        let alone = rtt.p50 + Duration::from_secs_f64(65_536.0 / rate);
        Plan::new(&Measured { rtt, alone, read: rate, write: None }, allowed)
    }

    #[test]
    fn what_is_in_flight_fills_the_path_and_never_exceeds_the_slots() {
        for rtt_us in [50, 500, 3_400, 23_000, 140_000] {
            for rate in [12.5e6, 125e6, 1.25e9] {
                let plan = plan(rate, rtt_us, &ALLOWED);
                assert!(
                    plan.depth <= 64 && plan.block.is_power_of_two() && plan.block <= 1 << 20,
                    "{plan:?}"
                );
                let fills = (plan.depth * plan.block) as f64 >= 1.5 * rate * rtt_us as f64 * 1e-6;
                assert!(
                    fills || plan.depth == 64 && plan.block == 1 << 20,
                    "{rate} B/s, {rtt_us} us: {plan:?}"
                );
            }
        }
    }

    #[test]
    fn a_server_that_takes_short_calls_gets_more_of_them() {
        let short = Allowed { sizes: (65_536, 32_768), ..ALLOWED };
        let plan = plan(125e6, 10_000, &short);
        assert_eq!((plan.block, plan.depth), (32_768, 64));
    }
}
