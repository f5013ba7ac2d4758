//! A world of task attributes and limits of service. Initiators send SIMPLE, ORDERED and HEAD OF
//! QUEUE commands over one to three connections each, an administrator changes the unit's limits
//! meanwhile, links break and commands come twice.
//!
//! At the medium, an ORDERED command begins when all commands that its session sent before have
//! ended. Those sent after it, except HEAD OF QUEUE, begin when it has ended (SAM-5 §8.6). Commands
//! of sessions whose connections broke have no order. No command is executed twice, and no limit
//! admits more than its value.

use std::rc::Rc;
use std::time::{Duration, Instant};

use disk::unit::DiskOptions;
use iscsi_client::{Command, Lun, Options, Session, TaskAttribute, Transport, Url};
use runtime::sim;
use scsi::cdb::build::{Flags, read10, test_unit_ready, write10};
use server_core::qos::{QosLimits, Rates};

use crate::daemon::{self, NAME};
use crate::executions::{Access, Executions};
use crate::host::{Host, Medium};
use crate::oracle::{Content, OpId, Oracle};
use crate::plan::{Losses, Plan};
use crate::random::Rng;
use crate::run::{Failure, Report, in_world};
use crate::verdict::Verdict;
use crate::wire::Wire;

/// Commands of a session. Each has a block of its own, of 512 bytes.
const COMMANDS: usize = 48;
const BLOCK: u64 = 512;
const TRIES: u32 = 100;
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// Runs a seed.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, loud: bool) -> Result<Report, Box<Failure>> {
    let config = sim::Config { time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--tasks", seed, config, move || whole(seed, true, loud))
}

/// Runs a seed that sends every command as SIMPLE, and judges it by its intended attribute: a fault
/// that must be found.
pub fn run_without_order(seed: u64) -> Result<Report, Box<Failure>> {
    let config = sim::Config { time_limit: TIME_LIMIT, ..sim::Config::new(seed) };
    in_world("--tasks", seed, config, move || whole(seed, false, false))
}

/// A command, in the order of submission.
#[derive(Clone, Copy, Debug)]
struct Sent {
    op: OpId,
    attribute: TaskAttribute,
    when: Instant,
    good: bool,
}

/// The limits of the unit, and the time since which they are in force.
struct Limited {
    from: Instant,
    until: Option<Instant>,
    limits: QosLimits,
}

fn limits(rng: &mut Rng) -> QosLimits {
    let some = |rng: &mut Rng, choices: &[u64]| rng.chance(600).then(|| rng.pick(choices));
    QosLimits {
        iops: Rates { total: some(rng, &[50, 200, 1000]), write: some(rng, &[50, 500]), ..Rates::default() },
        bandwidth: Rates { total: some(rng, &[50_000, 400_000]), ..Rates::default() },
        burst: Duration::from_millis(rng.pick(&[1, 20, 100])),
    }
}

async fn whole(seed: u64, ordered: bool, loud: bool) -> Result<Report, String> {
    let mut rng = Rng::new(seed ^ 0x5441_534b);
    let verdict = Rc::new(Verdict::new(loud));
    let mut settings = Plan::new(seed).target;
    (settings.chap, settings.queue_depth) = (None, 64);
    let iser = settings.iser.is_some();
    settings.level = if iser { 0 } else { rng.pick(&[0, 0, 1, 2]) };
    settings.connections = if iser { 1 } else { 3 };
    (settings.time2wait, settings.time2retain) = (0, 60);
    let level = settings.level;
    let losses = Losses { repeated: if level > 0 { rng.pick(&[0, 100]) } else { 0 }, ..Losses::default() };
    let wire = (!iser).then(|| Wire::install(losses, rng.fork(), 64, loud));
    let sessions = 1 + rng.index(2);
    let blocks = sessions * COMMANDS + 1;
    let medium = Medium::new(blocks, DiskOptions::default(), (0, 0));
    let cores = daemon::cores(1 + rng.index(3));
    let mut host = Host::new(cores, daemon::config(&settings), vec![medium], rng.pick(&[1, 1000, 20_000]));
    let executions = Executions::default();
    host.executions = Some(executions.clone());
    host.start()?;
    let mut running = Vec::new();
    for number in 0..sessions {
        let first = (number * COMMANDS) as OpId + 1;
        let connections = if iser { 1 } else { rng.pick(&[1, 2, 3]) };
        let (rng, verdict) = (rng.fork(), verdict.clone());
        let initiator = Initiator { number, first, connections, level, iser, ordered, rng, verdict };
        running.push(runtime::spawn(initiator.run()));
    }
    let mut limited: Vec<Limited> = Vec::new();
    let cuts = if level == 2 { rng.below(4) } else { 0 };
    for change in 0..rng.below(6).max(cuts) {
        runtime::sleep(Duration::from_micros(rng.below(200_000))).await;
        if change < cuts {
            let links = sim::links();
            if !links.is_empty() {
                sim::reset(links[rng.index(links.len())]);
            }
        }
        let new = limits(&mut rng);
        verdict.note(format_args!("{new:?}"));
        limited.iter_mut().for_each(|before| _ = before.until.get_or_insert(runtime::clock()));
        host.limit(new).await?;
        limited.push(Limited { from: runtime::clock(), until: None, limits: new });
    }
    // Time for the commands that a strict limit holds back.
    runtime::sleep(Duration::from_secs(rng.below(2))).await;
    limited.iter_mut().for_each(|before| _ = before.until.get_or_insert(runtime::clock()));
    host.limit(QosLimits::default()).await?;
    let mut report = Report::default();
    let mut all = Vec::new();
    for initiator in running {
        let ended = initiator.await.map_err(|error| format!("an initiator: {error:?}"))??;
        report.commands += ended.sent.len() as u64;
        (report.reconnects, report.recovered) =
            (report.reconnects + ended.reconnects, report.recovered + ended.recovered);
        all.push(ended);
    }
    if let Some(what) = wire.as_ref().and_then(Wire::wrong) {
        return Err(what);
    }
    report.touched = wire.as_ref().map_or(0, Wire::touched);
    let accesses = executions.accesses();
    for ended in &all {
        if ended.reconnects + ended.recovered == 0 {
            in_order(&ended.sent, &accesses)?;
        }
    }
    let sent: Vec<Sent> = all.iter().flat_map(|ended| ended.sent.iter().copied()).collect();
    once(&sent, &executions, &accesses)?;
    within_limits(&sent, &limited, &accesses)?;
    host.kill().await;
    Ok(report)
}

/// An initiator, and its part of the disk.
struct Initiator {
    number: usize,
    /// Its first command.
    first: OpId,
    connections: u16,
    level: u8,
    iser: bool,
    /// Whether commands are sent with their attributes.
    ordered: bool,
    rng: Rng,
    verdict: Rc<Verdict>,
}

struct Ended {
    sent: Vec<Sent>,
    reconnects: u64,
    recovered: u64,
}

impl Initiator {
    async fn log_in(&self) -> Result<Session, String> {
        let transport = if self.iser { Transport::Iser } else { Transport::Tcp };
        let url = Url { transport, ..Url::portal("10.0.0.200", 3260).with_unit(NAME, 0) };
        let options = Options {
            initiator: format!("iqn.2026-01.example.sim:initiator-{}", self.number),
            connections: self.connections,
            error_recovery_level: self.level,
            queue_depth: COMMANDS,
            command_timeout: Duration::from_secs(600),
            ..Options::default()
        };
        let mut connected = Session::connect(&url, options.clone()).await;
        for _ in 1..TRIES {
            if connected.is_ok() {
                break;
            }
            // Its link was cut meanwhile.
            connected = Session::connect(&url, options.clone()).await;
        }
        let session = connected.map_err(|error| format!("no login: {error}"))?;
        // A new nexus first gets a unit attention.
        for _ in 0..TRIES {
            let look = session.execute(Command::new(Lun::ZERO, &test_unit_ready())).await;
            if look.is_ok_and(|response| response.status == 0) {
                return Ok(session);
            }
        }
        Err("the unit does not become ready".into())
    }

    async fn run(mut self) -> Result<Ended, String> {
        let session = self.log_in().await?;
        let oracle = Oracle::new(0, 1);
        let mut running = Vec::new();
        for op in self.first..self.first + COMMANDS as OpId {
            if self.rng.chance(200) {
                runtime::sleep(Duration::from_micros(self.rng.below(20_000))).await;
            }
            let attribute = self.rng.pick(&[
                TaskAttribute::Simple,
                TaskAttribute::Simple,
                TaskAttribute::Simple,
                TaskAttribute::Ordered,
                TaskAttribute::HeadOfQueue,
            ]);
            let block = op as u32;
            let mut command = if self.rng.chance(300) {
                Command::new(Lun::ZERO, &read10(block, 1, Flags::default())).reading(BLOCK as u32)
            } else {
                let bytes = oracle.bytes(Content::Stamp(op), block as usize).to_vec();
                let write = Command::new(Lun::ZERO, &write10(block, 1, Flags::default()));
                write.writing(runtime::Buf::from(bytes))
            };
            command.attribute = if self.ordered { attribute } else { TaskAttribute::Simple };
            let when = runtime::clock();
            self.verdict.note(format_args!("initiator {}: op {op}, {attribute:?}", self.number));
            let ticket = session.start(command.once()).await.map_err(|error| format!("op {op}: {error}"))?;
            running.push((op, attribute, when, ticket));
        }
        let mut sent = Vec::new();
        for (op, attribute, when, ticket) in running {
            let good = match ticket.await {
                Ok(response) if response.status == 0 => true,
                // A command that its session lost with a link may have been executed.
                Err(error) if session.reconnects() > 0 => {
                    self.verdict.note(format_args!("op {op}: {error}"));
                    false
                }
                Ok(response) => return Err(format!("op {op}: status {:#04x}", response.status)),
                Err(error) => return Err(format!("op {op}: {error}")),
            };
            sent.push(Sent { op, attribute, when, good });
        }
        let (reconnects, recovered) = (session.reconnects(), session.recoveries().connections);
        drop(session.close().await);
        Ok(Ended { sent, reconnects, recovered })
    }
}

/// A command at the medium: its beginning and its end, in the order of all of them, and the time of
/// its beginning. A read that finds its data changing reads again.
#[derive(Clone, Copy, Debug)]
struct Span {
    begun: u64,
    ended: u64,
    when: Instant,
}

fn span(accesses: &[Access], op: OpId) -> Option<Span> {
    let its = || accesses.iter().filter(|access| access.range.contains(&(op * BLOCK)));
    let first = its().min_by_key(|access| access.begun)?;
    let ended = its().map(|access| access.ended.unwrap_or(u64::MAX)).max()?;
    Some(Span { begun: first.begun, ended, when: first.when })
}

fn in_order(sent: &[Sent], accesses: &[Access]) -> Result<(), String> {
    for (place, one) in sent.iter().enumerate().filter(|(_, one)| one.attribute == TaskAttribute::Ordered) {
        let Some(this) = span(accesses, one.op) else { continue };
        for (other, command) in sent.iter().enumerate() {
            let Some(its) = span(accesses, command.op) else { continue };
            let wrong = match other.cmp(&place) {
                std::cmp::Ordering::Less => its.ended > this.begun,
                std::cmp::Ordering::Greater => {
                    command.attribute != TaskAttribute::HeadOfQueue && its.begun < this.ended
                }
                std::cmp::Ordering::Equal => false,
            };
            if wrong {
                return Err(format!(
                    "{one:?} is ORDERED, and not in order with {command:?}: {this:?}, {its:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Each command that ended with GOOD was executed once, all others at most once.
fn once(sent: &[Sent], executions: &Executions, accesses: &[Access]) -> Result<(), String> {
    if let Some(what) = executions.repeated(|_| true) {
        return Err(what);
    }
    for command in sent {
        if command.good && span(accesses, command.op).is_none() {
            return Err(format!("{command:?} was not executed"));
        }
    }
    Ok(())
}

/// Under each limit no more commands are executed than it admits.
fn within_limits(sent: &[Sent], limited: &[Limited], accesses: &[Access]) -> Result<(), String> {
    for Limited { from, until, limits } in limited {
        let Some(rate) = limits.iops.total else { continue };
        let until = until.unwrap_or(*from);
        let executed = sent
            .iter()
            .filter(|command| command.when >= *from)
            .filter_map(|command| span(accesses, command.op));
        let executed = executed.filter(|span| span.when < until).count() as f64;
        let time = until.saturating_duration_since(*from) + limits.burst;
        let most = 1.0 + rate as f64 * time.as_secs_f64();
        if executed > most.ceil() {
            return Err(format!("{executed} commands in {time:?} with its burst, of {rate} a second"));
        }
    }
    Ok(())
}
