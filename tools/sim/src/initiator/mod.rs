//! An initiator: logs in, keeps its session alive, does its workload, and tells the oracle.
//!
//! As a library of its kind does, it makes a lost session anew by itself, and sends again what may be repeated.

mod ending;
mod link;
mod mend;
mod payload;
mod reach;
mod sessions;
mod tap;
mod traffic;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use iscsi::initiator::{Place, Session, SessionConfig, TaskKey};

use crate::clock::{Clock, Micros, SECOND};
use crate::network::{LinkId, Network, Quality};
use crate::oracle::{OpId, Oracle};
use crate::plan::InitiatorPlan;
use crate::random::Rng;
use crate::trace::Trace;
use crate::workload::{Excuses, Scsi, Workload};
use link::{Link, Phase, Protocol};
use mend::{Broken, Mending};
use reach::Reach;
use tap::Tap;

/// Silence before a ping.
const PING_AFTER: Micros = 4 * SECOND;
/// Silence after a ping that ends the session.
const PING_TIME: Micros = 6 * SECOND;
/// The same over iSER, where the answer itself is awaited: the ping may lie behind all of a write's data, which the target
/// fetches at once and without a word.
const ANSWER_TIME: Micros = 60 * SECOND;
/// Time for a command, when others may end it without a word.
const COMMAND_TIME: Micros = 30 * SECOND;
/// Time for a login.
const LOGIN_TIME: Micros = 20 * SECOND;
/// Between two looks after what may be lost.
const TICK: Micros = SECOND / 2;
/// Bytes queued on a link beyond which no more is put there.
const BATCH: usize = 64 << 10;

/// What the world lends to all initiators.
#[derive(Clone)]
pub struct Shared {
    /// The time.
    pub clock: Rc<Clock>,
    /// The record.
    pub trace: Rc<Trace>,
    /// The links.
    pub network: Rc<RefCell<Network>>,
    /// What the links are like.
    pub quality: Quality,
    /// The books.
    pub oracle: Rc<RefCell<Oracle>>,
    /// The number of the last command.
    pub last_op: Rc<Cell<OpId>>,
    /// What may fail.
    pub excuses: Rc<Cell<Excuses>>,
    /// Lives of the target that have ended.
    pub incarnation: Rc<Cell<u64>>,
    /// CHAP user and secret.
    pub chap: Option<(String, String)>,
    /// The answer to SendTargets.
    pub text: Rc<Vec<u8>>,
    /// Depth of the target's window.
    pub queue_depth: u32,
    /// Initiators end each other's commands.
    pub resets_by_others: bool,
}

/// What the session keeps with each task.
#[derive(Debug)]
pub(crate) struct Token {
    op: OpId,
    data: Vec<u8>,
    /// The STags of what the target may write and read.
    reach: Reach,
}

impl Place<&[u8]> for Token {
    fn place(&mut self, offset: usize, data: &[u8]) {
        self.data.place(offset, data);
    }
}

/// What a task is for.
#[derive(Debug)]
enum Purpose {
    Scsi(Box<Scsi>),
    /// ABORT TASK of that one.
    Abort(OpId, TaskKey),
    /// A function that ends all of these.
    Manage(Vec<(OpId, TaskKey)>),
    Ping(LinkId),
    Text,
    Logout,
}

/// A task under way.
#[derive(Debug)]
struct Op {
    purpose: Purpose,
    key: TaskKey,
    /// It was given back to the session to be sent again.
    replayed: bool,
    since: Micros,
    /// ABORT TASK was sent for it.
    aborting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No session; one is tried for then.
    Down(Micros),
    /// The leading login, until then.
    Connecting(Micros),
    Up,
    /// Waits for the answer to a logout.
    LoggingOut,
    Over,
}

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The workload.
    Work,
    /// It is done; the world will say how it goes on.
    Waiting,
    /// Reading everything, from that block on.
    Reading(u64),
    /// Logging out for good.
    Leaving,
}

/// One initiator.
pub struct Initiator {
    number: usize,
    plan: InitiatorPlan,
    shared: Shared,
    workload: Workload,
    rng: Rng,
    protocol: Protocol,
    state: State,
    stage: Stage,
    links: Vec<Link>,
    tsih: u16,
    /// The login under way must fail.
    wrong_secret: bool,
    /// Logins that failed as they had to.
    refused_logins: u64,
    /// The life of the target that the session belongs to.
    incarnation: u64,
    next_cid: u16,
    /// A further connection that is not up yet; it is given up then.
    joining: Option<Micros>,
    /// No further connection is tried for before that.
    next_join: Micros,
    /// Connections that were lost while the session goes on.
    broken: Vec<Broken>,
    mending: Mending,
    ops: BTreeMap<OpId, Op>,
    /// Writes lost with their session: they may still happen until the next login.
    lost: Vec<OpId>,
    /// Commands that were answered.
    answered: BTreeSet<OpId>,
    /// Commands that met a unit attention and are submitted again.
    again: Vec<Scsi>,
    submitted: u64,
    next_command: Micros,
    next_question: Micros,
    next_tick: Micros,
    deaf_until: Micros,
    tap: Tap,
    blocks: u64,
    most_blocks: u64,
    /// Sessions that were lost.
    losses: u64,
    /// Logins that failed.
    failed_logins: u64,
    /// Commands that ended.
    ended: u64,
}

impl Initiator {
    /// An initiator that is about to log in.
    pub fn new(
        number: usize,
        plan: InitiatorPlan,
        workload: Workload,
        (blocks, most_blocks): (u64, u64),
        shared: Shared,
        rng: Rng,
    ) -> Self {
        let config = SessionConfig { max_tasks: 2 * plan.depth + 16, first_cmd_sn: plan.first_cmd_sn };
        Self {
            number,
            workload,
            rng,
            protocol: Session::new(config),
            state: State::Down(0),
            stage: Stage::Work,
            links: Vec::new(),
            tsih: 0,
            wrong_secret: false,
            refused_logins: 0,
            incarnation: 0,
            next_cid: 0,
            joining: None,
            next_join: 0,
            broken: Vec::new(),
            mending: Mending::Idle(0),
            ops: BTreeMap::new(),
            lost: Vec::new(),
            answered: BTreeSet::new(),
            again: Vec::new(),
            submitted: 0,
            next_command: 0,
            next_question: 0,
            next_tick: 0,
            deaf_until: 0,
            tap: Tap::new(shared.queue_depth),
            blocks,
            most_blocks,
            losses: 0,
            failed_logins: 0,
            ended: 0,
            plan,
            shared,
        }
    }

    /// Commands submitted.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Tasks that ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Sessions lost, and logins that failed and did not have to.
    pub fn mishaps(&self) -> (u64, u64) {
        (self.losses, self.failed_logins - self.refused_logins)
    }

    /// Whether its workload is done.
    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// Whether it has gone.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Its links at the moment.
    pub fn links(&self) -> Vec<LinkId> {
        self.links.iter().map(|link| link.id).collect()
    }

    /// Links in full-feature phase.
    pub fn full_links(&self) -> Vec<LinkId> {
        let full = self.links.iter().filter(|link| matches!(link.phase, Phase::Full(..)));
        full.map(|link| link.id).collect()
    }

    /// It does not read until then.
    pub fn deafen(&mut self, until: Micros) {
        self.deaf_until = until;
    }

    /// The workload of all is done: reads the whole disk if `read`, and leaves.
    pub fn finish(&mut self, read: bool) {
        self.stage = if read { Stage::Reading(0) } else { Stage::Leaving };
    }

    fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    /// Takes what has come, does what it has in mind, sends what can be sent. Answers whether there was anything.
    ///
    /// # Errors
    /// What must never happen, and did.
    pub fn pump(&mut self) -> Result<bool, String> {
        let now = self.now();
        let mut moved = false;
        match self.state {
            State::Over => return Ok(false),
            State::Down(at) if at <= now => {
                self.state = State::Connecting(now + LOGIN_TIME);
                (self.tsih, self.next_cid) = (0, self.rng.below(1000) as u16);
                self.incarnation = self.shared.incarnation.get();
                self.dial();
                moved = true;
            }
            State::Connecting(until) if until <= now => {
                self.lose("the login took too long");
                moved = true;
            }
            _ => {}
        }
        self.supervise();
        moved |= self.receive()?;
        moved |= self.work()?;
        moved |= self.transmit();
        Ok(moved)
    }

    /// When [`Self::pump`] has something to do though nothing came.
    pub fn next_event(&self) -> Option<Micros> {
        let now = self.now();
        let state = match self.state {
            State::Down(at) | State::Connecting(at) => Some(at),
            _ => None,
        };
        let links =
            self.links.iter().filter(|link| matches!(link.phase, Phase::Full(..))).map(|link| {
                link.pinged.map_or(link.last_heard + PING_AFTER, |pinged| pinged + link.patience())
            });
        let more = self.stage == Stage::Work && self.submitted < self.plan.commands;
        let work = (more && self.state == State::Up).then_some(self.next_command);
        let question = (self.shared.resets_by_others && !self.ops.is_empty()).then_some(self.next_question);
        let deaf = (self.deaf_until > now).then_some(self.deaf_until);
        let recovers = self.state == State::Up && self.protocol.params().error_recovery_level > 0;
        let tick = (recovers && !self.ops.is_empty()).then_some(self.next_tick);
        links
            .chain(state)
            .chain(self.joining)
            .chain(work)
            .chain(deaf)
            .chain(question)
            .chain(tick)
            .chain(self.next_mending())
            .chain((self.state == State::Up).then_some(self.next_join))
            .filter(|at| *at > now)
            .min()
    }

    /// Where it stands, for a report.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "initiator {}: {:?} {:?}, {} of {} submitted, {} losses, {} failed logins",
            self.number,
            self.state,
            self.stage,
            self.submitted,
            self.plan.commands,
            self.losses,
            self.failed_logins
        )];
        if !self.broken.is_empty() {
            lines.push(format!("  broken {:?}, {:?}", self.broken, self.mending));
        }
        for (id, op) in &self.ops {
            let what = match &op.purpose {
                Purpose::Scsi(scsi) => scsi.name.to_owned(),
                other => format!("{other:?}"),
            };
            let on = self.protocol.connection_of(op.key);
            lines.push(format!("  op {id} itt {:#x}: {what} on {on:?}", op.key.itt()));
        }
        for link in &self.links {
            lines.push(format!(
                "  link {} cid {}: input {} bytes, output {} bytes, heard at {}",
                link.id.0,
                link.cid,
                link.input.len(),
                link.output.len(),
                link.last_heard
            ));
        }
        lines
    }
}
