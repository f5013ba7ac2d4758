//! The shipped server and the shipped client in one simulated world: several cores, real sessions, a failing disk.
//!
//! `iscsi-server` listens on the simulated network, `iscsi-client` logs in, loses connections, reconnects and repeats
//! commands. The disk unit lies on a model of a medium that loses data not synced. The [`Oracle`] judges every answer.

pub mod aborts;
mod client;
pub mod copies;
mod daemon;
mod host;
pub mod replacement;
pub mod reservations;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use iscsi::initiator::ProtocolError;
use iscsi_client::Error;
use runtime::Notify;
use runtime::sim::{self, Network};

use crate::clock::{MS, Micros};
use crate::oracle::{OpId, Oracle, SECTOR};
use crate::plan::{Plan, Trouble};
use crate::random::Rng;
use crate::workload::Excuses;
use crate::world::Sabotage;
use client::Client;
use daemon::{Change, Daemon};

/// Virtual time in which a run must come to its end.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Bytes after which a connection has finished its login. Digests, which find a flipped bit, are in use from then on.
const LOGIN: u64 = 8 << 10;

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Commands that ended.
    pub commands: u64,
    /// Reconnects of sessions.
    pub reconnects: u64,
    /// Connections that were lost while their session went on.
    pub recovered: u64,
    /// Kills and power cuts of the server.
    pub restarts: u64,
    /// Commands that task management ended.
    pub aborted: u64,
    /// Commands that were refused as they had to be: by a reservation, or because a unit was out of
    /// their session's reach.
    pub refused: u64,
    /// A digest of everything that happened.
    pub trace: u64,
    /// How long it took, in simulated time, µs.
    pub time: Micros,
    /// Turns handed out to threads.
    pub turns: u64,
}

/// A run that found a defect.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule that was broken, and how.
    pub what: String,
    /// The option of `sim` that runs this kind of world.
    pub world: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {}\nagain: cargo run -p sim -- {} --seed {}",
            self.seed, self.what, self.world, self.seed
        )
    }
}

/// The state that all parts of a run share.
pub(crate) struct Books {
    pub(crate) plan: Plan,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) excuses: Cell<Excuses>,
    /// Power cuts so far.
    pub(crate) cuts: Cell<u64>,
    /// Commands submitted so far.
    pub(crate) submitted: Cell<u64>,
    /// An initiator or an administrator ends sessions, or commands of others.
    pub(crate) disturbed: Cell<bool>,
    news: Notify,
    last_op: Cell<OpId>,
    wrong: RefCell<Option<String>>,
    loud: bool,
}

impl Books {
    pub(crate) fn next_op(&self) -> OpId {
        self.last_op.set(self.last_op.get() + 1);
        self.last_op.get()
    }

    /// Records a defect. The first one is reported.
    pub(crate) fn fail(&self, what: String) {
        self.note(format_args!("WRONG: {what}"));
        self.wrong.borrow_mut().get_or_insert(what);
    }

    /// Counts submitted commands and wakes the loop of faults.
    pub(crate) fn news(&self, submitted: u64) {
        self.submitted.set(self.submitted.get() + submitted);
        self.news.notify();
    }

    /// Waits until fault number `next` is due, at most 20 ms.
    async fn wait_for_news(&self, next: usize) {
        let due = self.plan.troubles.get(next).map(|(at, _)| *at);
        let news = self.news.until(|| due.is_some_and(|due| due <= self.submitted.get()).then_some(()));
        // A power cut after a number of operations is not announced, so look again soon.
        let _ = runtime::timeout(Duration::from_millis(20), news).await;
    }

    /// Whether the plan's faults can end a command with `error`. Only a flipped bit makes the server seem to break the protocol.
    fn may_lose(&self, error: &Error) -> bool {
        match error {
            Error::Lost(_) | Error::TimedOut(_) | Error::Login(_) | Error::Connect { .. } => true,
            // A task moved too often, or its new connection has no room: the session starts anew.
            Error::Protocol(ProtocolError::NoReassignment) => true,
            Error::Protocol(_) => self.plan.flips(),
            _ => false,
        }
    }

    /// Whether nothing disturbs sessions and commands.
    pub(crate) fn is_calm(&self) -> bool {
        self.plan.troubles.is_empty() && !self.disturbed.get()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// A line of the record.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) {
        if self.loud {
            // A closed stderr is not an error.
            let _ = writeln!(std::io::stderr(), "{:?} {line}", runtime::clock());
        }
    }

    fn excuse(&self, change: impl FnOnce(&mut Excuses)) {
        let mut excuses = self.excuses.get();
        change(&mut excuses);
        self.excuses.set(excuses);
    }
}

/// Runs a seed. `loud` prints each command and fault.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    run_plan(seed, Plan::new(seed), None, loud)
}

/// Runs a seed with a planted fault of the store.
///
/// # Errors
/// As [`run`].
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Result<Report, Box<Failure>> {
    run_plan(seed, Plan::new(seed), Some(sabotage), false)
}

fn run_plan(seed: u64, plan: Plan, sabotage: Option<Sabotage>, loud: bool) -> Result<Report, Box<Failure>> {
    let quality = plan.quality;
    let network = Network {
        latency: Duration::from_micros(quality.latency.0),
        jitter: Duration::from_micros(quality.latency.1 - quality.latency.0),
        lost_per_million: quality.stalls * 1000,
        retransmission: Duration::from_micros(quality.stall),
        window: quality.window.max(4096),
        segment: quality.segment.1,
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--shipped", seed, config, move || whole(seed, plan, sabotage, loud))
}

/// Runs `main` in a world. A panic in it is a failure too.
fn in_world<F>(
    world: &'static str,
    seed: u64,
    config: sim::Config,
    main: impl FnOnce() -> F + Send + 'static,
) -> Result<Report, Box<Failure>>
where
    F: Future<Output = Result<Report, String>> + 'static,
{
    let failure = |what| Box::new(Failure { seed, what, world });
    match std::panic::catch_unwind(AssertUnwindSafe(|| sim::run(config, main))) {
        Ok(sim::Ran { output, elapsed, turns, trace }) => {
            let report = output.map_err(failure)?;
            Ok(Report { trace, turns, time: elapsed.as_micros() as Micros, ..report })
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(failure(text.unwrap_or_else(|| "a panic".to_owned())))
        }
    }
}

async fn whole(seed: u64, plan: Plan, sabotage: Option<Sabotage>, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5348_4950);
    let sectors = (plan.blocks * u64::from(plan.block)) as usize / SECTOR;
    let books = Rc::new(Books {
        oracle: RefCell::new(Oracle::new(sectors, plan.block as usize / SECTOR)),
        excuses: Cell::default(),
        cuts: Cell::new(0),
        submitted: Cell::new(0),
        disturbed: Cell::new(false),
        news: Notify::default(),
        last_op: Cell::new(0),
        wrong: RefCell::default(),
        loud,
        plan,
    });
    if loud {
        let plan = &books.plan;
        eprintln!("{:?}\n{:?}\n{:?}", plan.troubles, plan.target.level, plan.target.iser.is_some());
        plan.initiators
            .iter()
            .for_each(|i| eprintln!("{} connections, depth {}, {:?}", i.connections, i.depth, i.offer));
    }
    let mut daemon = Daemon::new(&books.plan, &mut rng)?;
    sabotage.into_iter().for_each(|sabotage| daemon.sabotage(sabotage));
    daemon.start().await?;
    let clients: Vec<_> = (0..books.plan.initiators.len())
        .map(|number| Client::new(number, books.clone(), daemon.url(number), rng.fork()))
        .collect();
    let running: Vec<_> = clients.into_iter().map(|client| runtime::spawn(client.run())).collect();
    let restarts = troubles(&books, &mut daemon, &running, &mut rng).await?;
    let mut report = Report { restarts, ..Report::default() };
    for client in running {
        let ended = client.await.map_err(|error| format!("a client: {error:?}"))?;
        report.commands += ended.commands;
        report.reconnects += ended.reconnects;
        report.recovered += ended.recovered;
        report.aborted += ended.aborted;
    }
    if let Some(what) = books.wrong.borrow_mut().take() {
        return Err(what);
    }
    if books.is_calm() && report.reconnects + report.recovered > 0 {
        return Err(format!(
            "{} sessions and {} connections were lost for no reason",
            report.reconnects, report.recovered
        ));
    }
    daemon.stop().await?;
    // Acknowledged and flushed data must be on the medium.
    daemon.cut_power(rng.bits());
    let mut oracle = books.oracle.borrow_mut();
    oracle.power_cut();
    oracle
        .saw(u64::MAX, 0, &daemon.medium(), false)
        .map_err(|what| format!("on the medium at the end: {what}"))?;
    Ok(report)
}

/// Executes the plan's faults, each at its number of submitted commands, until all clients have ended. Returns how often
/// the server was started again.
async fn troubles<T>(
    books: &Books,
    daemon: &mut Daemon,
    running: &[runtime::JoinHandle<T>],
    rng: &mut Rng,
) -> Result<u64, String> {
    let mut restarts = 0;
    let mut next = 0;
    let mut sync_failed = false;
    let commands: u64 = books.plan.initiators.iter().map(|initiator| initiator.commands).sum();
    let count = rng.pick(&[0, 0, 1, 2, 4]);
    let mut changes: Vec<_> = (0..count)
        .map(|_| (rng.below(commands), rng.pick(&[Change::Apply, Change::Drain, Change::TakeOver])))
        .collect();
    let disturbs = |(_, change): &(u64, Change)| *change != Change::Apply;
    if changes.iter().any(disturbs) {
        books.disturbed.set(true);
    }
    changes.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    while !running.iter().all(runtime::JoinHandle::is_finished) {
        books.wait_for_news(next).await;
        let mut kill = None;
        while let Some((at, trouble)) = books.plan.troubles.get(next).copied() {
            if at > books.submitted.get() || books.has_failed() {
                break;
            }
            next += 1;
            books.note(format_args!("{trouble:?}"));
            let links = sim::links();
            let link = (!links.is_empty()).then(|| links[rng.index(links.len())]);
            match trouble {
                Trouble::Cut => link.into_iter().for_each(sim::reset),
                Trouble::Vanish => {
                    link.into_iter().for_each(|link| sim::stall(link, Duration::from_secs(120)))
                }
                Trouble::Deaf(time) => {
                    link.into_iter().for_each(|link| sim::stall(link, Duration::from_micros(time)));
                }
                Trouble::FlipUp | Trouble::FlipDown => {
                    let full = links.iter().filter(|link| link.received > LOGIN);
                    full.take(1).for_each(|link| sim::flip_a_bit(*link, trouble == Trouble::FlipUp));
                }
                Trouble::Kill { down, .. } => kill = Some(down),
                Trouble::PowerCut { down, after, .. } => {
                    books.excuse(|excuses| (excuses.reads, excuses.writes) = (true, true));
                    let seed = rng.bits();
                    if after > 0 {
                        daemon.cut_power_after(after, seed);
                    } else {
                        daemon.cut_power(seed);
                        kill = Some(down);
                    }
                }
                Trouble::ReadErrors(times) => {
                    books.excuse(|excuses| excuses.reads = true);
                    daemon.fail_reads(times);
                }
                Trouble::WriteErrors(times) => {
                    books.excuse(|excuses| excuses.writes = true);
                    daemon.fail_writes(times);
                }
                Trouble::SyncError => {
                    books.excuse(|excuses| excuses.writes = true);
                    daemon.fail_next_sync();
                    sync_failed = true;
                }
                Trouble::Space(bytes) => {
                    books.excuse(|excuses| excuses.space = true);
                    daemon.limit_space(Some(bytes));
                }
                Trouble::SpaceAgain => daemon.limit_space(None),
            }
        }
        if let Some((_, change)) = changes.pop_if(|(at, _)| *at <= books.submitted.get()) {
            books.note(format_args!("{change:?}"));
            daemon.change(change, rng).await?;
            books.note(format_args!("{change:?}: done"));
        }
        if !daemon.is_powered() && kill.is_none() {
            // The machine runs a moment longer without its medium.
            kill = Some(50 * MS);
        }
        if let Some(down) = kill {
            daemon.kill().await;
            if !daemon.is_powered() {
                books.cuts.set(books.cuts.get() + 1);
                books.oracle.borrow_mut().power_cut();
            } else if sync_failed {
                books.oracle.borrow_mut().reopened_after_failed_sync();
            }
            sync_failed = false;
            books.note(format_args!("the server is down"));
            runtime::sleep(Duration::from_micros(down.max(1))).await;
            daemon.start().await?;
            restarts += 1;
            books.note(format_args!("the server is up again"));
        }
    }
    Ok(restarts)
}
