//! Reads and writes: the server and the client in one simulated world, several cores, a failing
//! disk.
//!
//! `iscsi-server` listens on the simulated network, `iscsi-client` logs in, loses connections,
//! reconnects and repeats commands. The disk unit lies on a model of a medium that loses data not
//! synced. The [`Oracle`] judges every answer.

use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{self, Network};

use crate::books::Books;
use crate::client::Client;
use crate::daemon::{DEEPEST, Daemon};
use crate::plan::{Change, MS, Plan, Sabotage, Trouble};
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::wire::Wire;

/// Virtual time within which a run must end.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Bytes after which a connection has finished its login. Digests, which detect a flipped bit, are
/// in use from then on.
const LOGIN: u64 = 8 << 10;

/// Runs a seed. `loud` prints each command and fault.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    run_plan("", seed, Plan::new(seed), None, loud)
}

/// Runs a seed whose disk lies on a file of the world.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run_on_files(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    run_plan("--files", seed, Plan::on_files(seed), None, loud)
}

/// Runs a plan of a seed, quietly.
pub fn run_as(seed: u64, plan: Plan) -> Result<Report, Box<Failure>> {
    run_plan("", seed, plan, None, false)
}

/// Runs a plan of a seed with a planted fault.
pub fn run_sabotaged(seed: u64, plan: Plan, sabotage: Sabotage) -> Result<Report, Box<Failure>> {
    run_plan("", seed, plan, Some(sabotage), false)
}

fn run_plan(
    world: &'static str,
    seed: u64,
    plan: Plan,
    sabotage: Option<Sabotage>,
    loud: bool,
) -> Result<Report, Box<Failure>> {
    let quality = plan.quality;
    let network = Network {
        latency: Duration::from_micros(quality.latency.0),
        jitter: Duration::from_micros(quality.latency.1 - quality.latency.0),
        lost_per_million: quality.stalls * 1000,
        retransmission: Duration::from_micros(quality.stall),
        window: quality.window.max(4096),
        segment: quality.segment,
        ..Network::default()
    };
    let config = sim::Config { network, time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world(world, seed, config, move || whole(seed, plan, sabotage, loud))
}

async fn whole(seed: u64, plan: Plan, sabotage: Option<Sabotage>, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5348_4950);
    let books = Rc::new(Books::new(plan, loud));
    if loud {
        let plan = &books.plan;
        eprintln!("{:?}\n{:?}\n{:?}", plan.troubles, plan.target.level, plan.target.iser.is_some());
        plan.initiators
            .iter()
            .for_each(|i| eprintln!("{} connections, depth {}, {:?}", i.connections, i.depth, i.offer));
    }
    let wire = books
        .plan
        .target
        .iser
        .is_none()
        .then(|| Wire::install(books.plan.losses, rng.fork(), books.plan.target.queue_depth, loud));
    let mut daemon = Daemon::new(&books.plan, &books.executions, &mut rng)?;
    match (sabotage, &wire) {
        (Some(Sabotage::DamagedData), Some(wire)) => wire.damage(5),
        (Some(sabotage), _) => daemon.sabotage(sabotage),
        (None, _) => {}
    }
    daemon.start().await?;
    let clients: Vec<_> = (0..books.plan.initiators.len())
        .map(|number| Client::new(number, books.clone(), daemon.url(number), rng.fork()))
        .collect();
    let running: Vec<_> = clients.into_iter().map(|client| runtime::spawn(client.run())).collect();
    let restarts = troubles(&books, &mut daemon, &running, wire.as_ref(), &mut rng).await?;
    let mut report = Report { restarts, ..Report::default() };
    for client in running {
        let ended = client.await.map_err(|error| format!("a client: {error:?}"))?;
        report.commands += ended.commands;
        report.reconnects += ended.reconnects;
        report.recovered += ended.recovered;
        report.aborted += ended.aborted;
    }
    if let Some(what) = books.verdict.wrong().or(wire.as_ref().and_then(Wire::wrong)) {
        return Err(what);
    }
    let once = |op| report.reconnects == 0 || books.once.borrow().contains(&op);
    if let Some(what) = books.executions.repeated(once) {
        return Err(what);
    }
    report.touched = wire.as_ref().map_or(0, Wire::touched);
    if books.is_calm() && report.reconnects + report.recovered > 0 {
        return Err(format!(
            "{} sessions and {} connections were lost for no reason",
            report.reconnects, report.recovered
        ));
    }
    daemon.stop().await?;
    // Acknowledged and flushed data must be on the medium.
    daemon.medium.cut_power(rng.bits());
    let mut oracle = books.oracle.borrow_mut();
    oracle.power_cut();
    oracle
        .saw(u64::MAX, 0, &daemon.content(), false, |_| false)
        .map_err(|what| format!("on the medium at the end: {what}"))?;
    Ok(report)
}

/// Executes the plan's faults, each at its number of submitted commands, until all clients have
/// ended. Returns the number of restarts of the server.
async fn troubles<T>(
    books: &Books,
    daemon: &mut Daemon,
    running: &[runtime::JoinHandle<T>],
    wire: Option<&Wire>,
    rng: &mut Rng,
) -> Result<u64, String> {
    let mut restarts = 0;
    let mut next = 0;
    let mut sync_failed = false;
    let mut changes = books.plan.changes.clone();
    changes.reverse();
    if let (Some(wire), Some(_)) = (wire, changes.iter().find(|(_, change)| *change == Change::Apply)) {
        wire.deepen(DEEPEST);
    }
    changes.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    while !running.iter().all(runtime::JoinHandle::is_finished) {
        books.wait_for_news(next).await;
        if let Some(what) = books.verdict.wrong().or(wire.and_then(Wire::wrong)) {
            return Err(what);
        }
        let mut kill = None;
        while let Some((at, trouble)) = books.plan.troubles.get(next).copied() {
            if at > books.submitted.get() {
                break;
            }
            next += 1;
            books.verdict.note(format_args!("{trouble:?}"));
            let links = sim::links();
            let link = (!links.is_empty()).then(|| links[rng.index(links.len())]);
            match trouble {
                Trouble::Cut => link.into_iter().for_each(sim::reset),
                Trouble::Vanish => {
                    link.into_iter().for_each(|link| sim::stall(link, Duration::from_secs(120)))
                }
                Trouble::Deaf(time) => {
                    link.into_iter().for_each(|link| sim::deafen(link, Duration::from_micros(time)));
                }
                Trouble::FlipUp | Trouble::FlipDown => {
                    let full = links.iter().filter(|link| link.received > LOGIN);
                    full.take(1).for_each(|link| sim::flip_a_bit(*link, trouble == Trouble::FlipUp));
                }
                Trouble::Kill { silent, down } => {
                    vanish(silent);
                    kill = Some(down);
                }
                Trouble::PowerCut { silent, down, after } => {
                    books.excuse(|excuses| (excuses.reads, excuses.writes) = (true, true));
                    let seed = rng.bits();
                    if after > 0 {
                        daemon.medium.cut_power_after(after, seed);
                    } else {
                        vanish(silent);
                        daemon.medium.cut_power(seed);
                        kill = Some(down);
                    }
                }
                Trouble::ReadErrors(times) => {
                    books.excuse(|excuses| excuses.reads = true);
                    daemon.medium.fail_reads(times);
                }
                Trouble::WriteErrors(times) => {
                    books.excuse(|excuses| excuses.writes = true);
                    daemon.medium.fail_writes(times);
                }
                Trouble::SyncError => {
                    books.excuse(|excuses| excuses.writes = true);
                    daemon.medium.fail_next_sync();
                    sync_failed = true;
                }
                Trouble::Space(bytes) => {
                    books.excuse(|excuses| excuses.space = true);
                    daemon.medium.limit_space(Some(bytes));
                }
                Trouble::SpaceAgain => daemon.medium.limit_space(None),
                Trouble::Acknowledge => {
                    // From the first moment at which flushes may succeed again, to the last at
                    // which one may have failed.
                    books.oracle.borrow_mut().failed_flush_forgiven();
                    daemon.acknowledge().await;
                    books.oracle.borrow_mut().failed_flush_forgiven();
                }
            }
        }
        if let Some((_, change)) = changes.pop_if(|(at, _)| *at <= books.submitted.get()) {
            books.verdict.note(format_args!("{change:?}"));
            daemon.change(change, rng).await?;
            books.verdict.note(format_args!("{change:?}: done"));
        }
        if !daemon.medium.is_powered() && kill.is_none() {
            // The machine runs a moment longer without its medium.
            kill = Some(50 * MS);
        }
        if let Some(down) = kill {
            daemon.kill().await;
            let remembered = daemon.medium.remembers_failures();
            if !daemon.medium.is_powered() {
                books.cuts.set(books.cuts.get() + 1);
                books.oracle.borrow_mut().power_cut();
            } else if sync_failed && !remembered {
                books.oracle.borrow_mut().failed_flush_forgiven();
            } else if rng.chance(500) && daemon.medium.drop_caches()? {
                books.oracle.borrow_mut().cache_dropped();
            }
            sync_failed = false;
            books.verdict.note(format_args!("the server is down"));
            runtime::sleep(Duration::from_micros(down.max(1))).await;
            while let Err(what) = daemon.start().await {
                if daemon.medium.is_powered() {
                    return Err(what);
                }
                // The power has gone again.
                books.cuts.set(books.cuts.get() + 1);
                books.oracle.borrow_mut().power_cut();
            }
            restarts += 1;
            books.verdict.note(format_args!("the server is up again"));
        }
    }
    Ok(restarts)
}

/// The links of a machine that goes silent, or of one that resets them when it is killed.
fn vanish(silent: bool) {
    for link in sim::links().into_iter().filter(|_| silent) {
        sim::stall(link, Duration::from_secs(120));
    }
}
