//! One run: its threads, what they do together and when, and the progress line.
//!
//! Every thread logs in its sessions, fills if that is wanted, and reports ready. When all are
//! ready, the load begins for all at the same moment. Then the threads verify the written data, log
//! out, and hand over their counts.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use load::Window;
use load::random::mix;
use runtime::JoinHandle;

use super::BenchError;
use super::directory::Directory;
use super::drive::{Driver, Outcome, Phase, Shared};
use super::file::File;
use super::generations::BYTES_OF_PLACE;
use super::medium::{Lost, Medium};
use super::plan::{self, Part, Run, Seat, Source};
use super::report::Report;
use super::series::{Series, Slice};
use super::tally::Tally;
use super::unit::Unit;
use super::verify::Verifier;
use crate::args::{Bench, Receive, Remote};

/// Busy polling before sleep while hardly anything is in flight: longer than a local target takes
/// to answer. µs.
const LONE_SPIN_US: u32 = 50;
/// Interval at which threads check whether the load has begun.
const START_POLL: Duration = Duration::from_micros(500);
/// Interval of the progress line.
const REDRAW: Duration = Duration::from_millis(200);

/// State that all threads of a run share.
struct Common {
    args: Bench,
    run: Run,
    target: Option<u32>,
    seats: Vec<Seat>,
    /// Names this run in stamps.
    stamp: u64,
    window: OnceLock<Window>,
    errors: Arc<AtomicU64>,
    progress: Vec<Arc<AtomicU64>>,
    /// With --interval: where each thread counts for it.
    slices: Vec<Slice>,
}

/// A run that is over.
pub struct Ran {
    pub report: Report,
    /// The latencies of its I/Os.
    pub latency: load::Latency,
    /// Texts of its first errors.
    pub messages: Vec<String>,
}

/// A thread's message to the run.
enum Message {
    Ready,
    Ended(Result<Box<(Tally, Outcome)>, BenchError>),
}

/// Runs one run.
pub fn run(args: &Bench, run: &Run, target: Option<u32>, quiet: bool) -> Result<Ran, BenchError> {
    let seats = plan::seats(args);
    let threads = usize::from(args.limits.threads).min(seats.len());
    let sessions = seats.len();
    let errors = Arc::<AtomicU64>::default();
    let bs = if run.pattern.is_metadata() { 0 } else { run.bs };
    let series = args.limits.interval.map(|every| Series::new(every, bs, threads, errors.clone()));
    let common = Arc::new(Common {
        args: args.clone(),
        run: run.clone(),
        target,
        seats,
        stamp: stamp(args),
        window: OnceLock::new(),
        errors,
        progress: (0..threads).map(|_| Arc::default()).collect(),
        slices: series.iter().flat_map(|series| (0..threads).filter_map(|n| series.slice(n))).collect(),
    });
    let (sender, receiver) = channel();
    let mut handles = Vec::new();
    for index in 0..threads {
        let (common, sender) = (common.clone(), sender.clone());
        let thread = thread::Builder::new().name(format!("bench-{index}"));
        let handle = thread.spawn(move || work(&common, index, threads, &sender));
        handles.push(handle.map_err(|error| BenchError::System(format!("a thread: {error}")))?);
    }
    drop(sender);
    let (tally, outcome, series) = gather(&common, &receiver, threads, quiet, series)?;
    for handle in handles {
        // A panicked thread has sent no result, which `gather` has noticed.
        let _ = handle.join();
    }
    let intervals = series.map(|series| series.finish(outcome.seconds));
    let report = Report::new(args, run, sessions, &tally, &outcome, intervals);
    Ok(Ran { report, latency: tally.latency, messages: tally.messages })
}

/// A number that no other run has.
fn stamp(args: &Bench) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    mix(now.as_nanos() as u64 ^ mix(args.load.seed ^ u64::from(std::process::id())))
}

/// Starts the load when all threads are ready, shows progress, and adds up their counts.
fn gather(
    common: &Common,
    receiver: &Receiver<Message>,
    threads: usize,
    quiet: bool,
    mut series: Option<Series>,
) -> Result<(Tally, Outcome, Option<Series>), BenchError> {
    let bar = progress_line(quiet);
    let (mut ready, mut ended) = (0, 0);
    let (mut tally, mut outcome) = (Tally::default(), Outcome::default());
    let mut error = None;
    let mut before = (Instant::now(), 0);
    while ended < threads {
        let mut patience = REDRAW;
        if let (Some(series), Some(window)) = (&mut series, common.window.get()) {
            let now = Instant::now();
            series.look(*window, now);
            // After the window there is no next interval to wait for.
            let left = series.next(*window).checked_duration_since(now);
            patience = left.filter(|left| !left.is_zero()).map_or(REDRAW, |left| left.min(REDRAW));
        }
        match receiver.recv_timeout(patience) {
            Ok(Message::Ready) => {
                ready += 1;
                if ready == threads {
                    // If a thread has failed, the window is set already and the load ends at once.
                    let _ = common.window.set(plan::window(Instant::now(), &common.args));
                }
            }
            Ok(Message::Ended(Ok(parts))) => {
                let (part, its) = *parts;
                ended += 1;
                tally.add(&part);
                outcome.seconds = outcome.seconds.max(its.seconds);
                outcome.cpu = outcome.cpu.or(its.cpu);
                outcome.copies += its.copies;
            }
            Ok(Message::Ended(Err(its))) => {
                ended += 1;
                ready += 1;
                // Ends the load of the other threads.
                common.errors.fetch_add(common.args.limits.max_errors, Ordering::Relaxed);
                let _ = common.window.set(plan::window(Instant::now(), &common.args));
                error = error.or(Some(its));
            }
            Err(RecvTimeoutError::Timeout) => {
                let ios = common.progress.iter().map(|n| n.load(Ordering::Relaxed)).sum();
                bar.set_message(show(common, &mut before, ios));
                bar.tick();
            }
            Err(RecvTimeoutError::Disconnected) => {
                error = error.or(Some(BenchError::System("a thread ended too early".into())));
                break;
            }
        }
    }
    bar.finish_and_clear();
    match error {
        Some(error) => Err(error),
        None => Ok((tally, outcome, series)),
    }
}

fn progress_line(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn show(common: &Common, before: &mut (Instant, u64), ios: u64) -> String {
    let now = Instant::now();
    let seconds = now.saturating_duration_since(before.0).as_secs_f64().max(1e-3);
    let rate = ios.saturating_sub(before.1) as f64 / seconds;
    *before = (now, ios);
    let run = &common.run;
    let what = format!("{} {} bytes, depth {}", run.pattern.name(), run.bs, run.depth);
    let state = match common.window.get() {
        None => "preparing".to_owned(),
        Some(window) if now < window.start => "warming up".to_owned(),
        Some(Window { end: Some(end), .. }) if now >= *end => "ending".to_owned(),
        Some(window) => {
            let gone = now.saturating_duration_since(window.start).as_secs();
            let of = match (window.end, common.args.limits.count) {
                (Some(end), _) => format!(" of {} s", end.saturating_duration_since(window.start).as_secs()),
                (None, Some(count)) => format!(" s, {ios} of {count} I/Os"),
                (None, None) => " s".to_owned(),
            };
            let mb = rate * f64::from(run.bs) / 1e6;
            format!("{gone}{of}, {rate:.0} IOPS, {mb:.1} MB/s")
        }
    };
    let errors = match common.errors.load(Ordering::Relaxed) {
        0 => String::new(),
        n => format!(", {n} errors"),
    };
    format!("{what}: {state}{errors}")
}

fn work(common: &Arc<Common>, index: usize, threads: usize, sender: &Sender<Message>) {
    let mine: Vec<Seat> = common.seats.iter().skip(index).step_by(threads).copied().collect();
    let result = runtime(common, index, mine.len()).and_then(|runtime| {
        // At a fixed rate, late timers make late I/Os. If the kernel refuses, they are up to 50 µs
        // late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        match common.args.urls.first() {
            Some(Remote::File(_)) if common.run.pattern.is_metadata() => {
                runtime.block_on(sessions::<Directory>(common, index, &mine, sender))
            }
            Some(Remote::File(_)) => runtime.block_on(sessions::<File>(common, index, &mine, sender)),
            _ => runtime.block_on(sessions::<Unit>(common, index, &mine, sender)),
        }
    });
    // The receiver is gone if another thread's error has ended the run.
    let _ = sender.send(Message::Ended(result.map(Box::new)));
}

fn runtime(common: &Common, index: usize, sessions: usize) -> Result<runtime::Runtime, BenchError> {
    let (args, run) = (&common.args, &common.run);
    let lone = sessions * usize::from(run.depth) <= 2;
    let cpus = &args.limits.cpus;
    let links = sessions * usize::from(args.connect.connections);
    // Each I/O whose data are delivered or verified has a buffer. Receives and the data of writes
    // need buffers too. So do all that are longer: their parts are in flight together.
    let delivers = args.load.received() == Receive::Deliver;
    let each = delivers || run.bs as usize > runtime::pool::MAX_ALLOC;
    let buffers = if each { sessions * usize::from(run.depth) + 1 } else { sessions + 1 };
    let config = runtime::Config {
        spin_us: args.limits.spin.unwrap_or(if lone { LONE_SPIN_US } else { 0 }),
        core: (!cpus.is_empty()).then(|| usize::from(cpus[index % cpus.len()])),
        pool_bytes: buffers * (run.bs as usize).next_power_of_two().max(4096) * 2 + (128 << 20),
        // Few buffers stay warm in the cache; each connection may hold one.
        recv_buffers: u16::try_from(links.next_power_of_two().clamp(2, 64)).unwrap_or(64),
        ..runtime::Config::default()
    };
    runtime::Runtime::new(config).map_err(|error| match config_cpu(cpus, index) {
        Some(cpu) => BenchError::System(format!("no io_uring on processor {cpu}: {error}")),
        None => BenchError::System(format!("no io_uring: {error}")),
    })
}

fn config_cpu(cpus: &[u16], index: usize) -> Option<u16> {
    cpus.get(index % cpus.len().max(1)).copied()
}

/// Runs the sessions of one thread.
async fn sessions<M: Medium>(
    common: &Arc<Common>,
    index: usize,
    seats: &[Seat],
    sender: &Sender<Message>,
) -> Result<(Tally, Outcome), BenchError> {
    let shared = Rc::new(Shared {
        tally: RefCell::new(Tally::default()),
        max_errors: common.args.limits.max_errors,
        progress: common.progress[index].clone(),
        errors: common.errors.clone(),
        slice: common.slices.get(index).cloned(),
    });
    let mut drivers = Vec::new();
    for seat in seats {
        drivers.push((*seat, open::<M>(common, seat, &shared).await?));
    }
    if common.args.load.fill {
        drivers = each(drivers, |mut driver, _| async move {
            let result = driver.pass(Phase::Fill).await;
            (driver, result)
        })
        .await?
        .0;
    }
    let _ = sender.send(Message::Ready);
    let window = loop {
        match common.window.get() {
            Some(window) => break *window,
            None => runtime::sleep(START_POLL).await,
        }
    };
    let begun = Instant::now();
    let before = runtime::copies();
    let (mut drivers, outcomes) = each(drivers, |mut driver, seat| {
        let common = common.clone();
        async move {
            let all = common.seats.len();
            let pace = plan::pace(&common.args, &seat, all, begun);
            let share = common.args.limits.count.map(|count| plan::share(count, seat.number, all as u64));
            // One session measures for all.
            let target = (seat.number == 0).then_some(common.target);
            let result = driver.load(window, pace, share, target).await;
            (driver, result)
        }
    })
    .await?;
    let mut outcome = Outcome { copies: runtime::copies() - before, ..Outcome::default() };
    if common.args.load.verify {
        drivers = each(drivers, |mut driver, _| async move {
            let result = driver.pass(Phase::Check).await;
            (driver, result)
        })
        .await?
        .0;
    }
    for its in outcomes {
        outcome.seconds = outcome.seconds.max(its.seconds);
        outcome.cpu = outcome.cpu.or(its.cpu);
    }
    for (_, driver) in drivers {
        let mut tally = shared.tally.take();
        driver.medium.close(&mut tally, &driver.url).await;
        shared.tally.replace(tally);
    }
    let tally = shared.tally.take();
    Ok((tally, outcome))
}

/// Runs something on all drivers side by side. The first error counts.
async fn each<M: Medium, T: 'static, F>(
    drivers: Vec<(Seat, Driver<M>)>,
    mut work: impl FnMut(Driver<M>, Seat) -> F,
) -> Result<(Vec<(Seat, Driver<M>)>, Vec<T>), BenchError>
where
    F: Future<Output = (Driver<M>, Result<T, Lost>)> + 'static,
{
    let running: Vec<(Seat, JoinHandle<_>)> =
        drivers.into_iter().map(|(seat, driver)| (seat, runtime::spawn(work(driver, seat)))).collect();
    let (mut drivers, mut results, mut failed) = (Vec::new(), Vec::new(), None);
    for (seat, handle) in running {
        let Ok((driver, result)) = handle.await else {
            return Err(BenchError::System("a session's task was aborted".into()));
        };
        match result {
            Ok(result) => results.push(result),
            Err(error) => {
                driver.shared.errors.fetch_add(driver.shared.max_errors, Ordering::Relaxed);
                failed = failed.or(Some(error.of(&driver.url)));
            }
        }
        drivers.push((seat, driver));
    }
    match failed {
        Some(error) => Err(error),
        None => Ok((drivers, results)),
    }
}

/// Opens a session's unit, file or directory, and plans its load.
async fn open<M: Medium>(common: &Common, seat: &Seat, shared: &Rc<Shared>) -> Result<Driver<M>, BenchError> {
    let (args, run) = (&common.args, &common.run);
    let url = &args.urls[seat.unit];
    let name = url.to_string();
    let medium = M::open(url, args, run, seat).await?;
    let misfit = |what: String| BenchError::Usage(format!("{name}: {what}"));
    let (block, bs) = (medium.block_len(), run.bs);
    if bs % block != 0 {
        return Err(misfit(format!("{bs} bytes are no whole number of its blocks of {block} bytes")));
    }
    if u64::from(bs) > medium.most() {
        let most = medium.most();
        return Err(misfit(format!("it takes {most} bytes in one command and not {bs}")));
    }
    let bytes = args.load.span.unwrap_or(u64::MAX).min(medium.len());
    let mut places = bytes / u64::from(bs);
    if args.load.verify {
        let known = args.load.verify_memory / BYTES_OF_PLACE / args.urls.len() as u64;
        if places > known && seat.index == 0 {
            say!(
                "stag: {name}: only the first {} bytes are used: --verify-memory holds no more generations",
                known * u64::from(bs)
            );
        }
        places = places.min(known);
    }
    let part = Part::new(places, seat, args.load.verify);
    if part.places == 0 {
        return Err(misfit(format!("it has no room for an I/O of {bs} bytes for each session")));
    }
    let verifier = match (args.load.verify, usize::try_from(part.places)) {
        (true, Ok(places)) => Some(Verifier::new(common.stamp, block, places)),
        (true, Err(_)) => return Err(misfit("it has more places than memory".into())),
        (false, _) => None,
    };
    // Sessions that fill share the work; without --verify every session has all places.
    let source = Source::new(run, part, args.load.zipf, args.load.seed, seat);
    let driver = Driver::new(medium, name.clone(), run, (part, source), verifier, shared.clone());
    driver.map_err(|lost| lost.of(&name))
}
