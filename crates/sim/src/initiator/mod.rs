//! An initiator: logs in, keeps its session alive, does its workload, and tells the oracle.
//!
//! As a library of its kind does, it makes a lost session anew by itself, and sends again what may be repeated.

mod ending;
mod link;
mod payload;
mod tap;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use iscsi::chap::{Credential, Secret};
use iscsi::frame::{Cut, Cutter, padding_len};
use iscsi::initiator::{Command, ConnectionId, Place, Session, SessionConfig, TaskKey};
use iscsi::login::initiator::{Chap, Config, InitiatorLogin, InitiatorLoginError, Request, Step};
use iscsi::pdu::{Bhs, LoginStatus, LogoutReason, Lun, Opcode, TaskAttribute, TaskManagementFunction};
use iscsi::text::LOGIN_SEGMENT_LEN;

use crate::clock::{Clock, MS, Micros, SECOND};
use crate::network::{LinkId, Network, Quality, Received, Side};
use crate::oracle::{OpId, Oracle};
use crate::plan::InitiatorPlan;
use crate::random::Rng;
use crate::target::{NAME, TARGET_SECRET};
use crate::trace::{Trace, note};
use crate::workload::{Action, Excuses, Kind, Scsi, Workload};
use link::{Link, Phase, Protocol, Reader, Unreadable};
use tap::Tap;

/// Silence before a ping.
const PING_AFTER: Micros = 4 * SECOND;
/// Silence after a ping that ends the session.
const PING_TIME: Micros = 6 * SECOND;
/// Time for a command, when others may end it without a word.
const COMMAND_TIME: Micros = 30 * SECOND;
/// Time for a login.
const LOGIN_TIME: Micros = 20 * SECOND;
/// Bytes queued on a link beyond which no more is put there.
const BATCH: usize = 64 << 10;

const LOGIN_CUTTER: Cutter = Cutter {
    header_digest: false,
    data_digest: false,
    max_data_segment: LOGIN_SEGMENT_LEN as u32,
    max_ahs: 0,
};

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
            ops: BTreeMap::new(),
            lost: Vec::new(),
            answered: BTreeSet::new(),
            again: Vec::new(),
            submitted: 0,
            next_command: 0,
            next_question: 0,
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
        let links = self
            .links
            .iter()
            .filter(|link| matches!(link.phase, Phase::Full(..)))
            .map(|link| link.pinged.map_or(link.last_heard + PING_AFTER, |pinged| pinged + PING_TIME));
        let more = self.stage == Stage::Work && self.submitted < self.plan.commands;
        let work = (more && self.state == State::Up).then_some(self.next_command);
        let question = (self.shared.resets_by_others && !self.ops.is_empty()).then_some(self.next_question);
        let deaf = (self.deaf_until > now).then_some(self.deaf_until);
        links
            .chain(state)
            .chain(self.joining)
            .chain(work)
            .chain(deaf)
            .chain(question)
            .filter(|at| *at > now)
            .min()
    }

    /// Makes a link and begins its login.
    fn dial(&mut self) {
        let now = self.now();
        let id = self.shared.network.borrow_mut().connect(now, self.shared.quality);
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        self.wrong_secret =
            self.plan.wrong_secret && self.shared.chap.is_some() && id.0 < 3 && self.tsih == 0;
        let (wrong, mutual) = (self.wrong_secret, self.plan.mutual_chap);
        let chap = self.shared.chap.as_ref().map(|(name, secret)| {
            let secret = if wrong { "not the secret of it" } else { secret };
            let target = Credential { name: String::new(), secret: Secret::new(TARGET_SECRET) };
            Chap {
                credential: Credential { name: name.clone(), secret: Secret::new(secret) },
                target: mutual.then_some(target),
                hashes: Vec::new(),
            }
        });
        let mut login = InitiatorLogin::new(Config {
            initiator: self.plan.name.clone(),
            alias: None,
            target: Some(NAME.to_owned()),
            isid: self.plan.isid,
            tsih: self.tsih,
            cid,
            cmd_sn: self.protocol.cmd_sn(),
            itt: self.rng.below(1 << 31) as u32,
            chap,
            offer: self.plan.offer.clone(),
            session: (self.tsih != 0).then(|| self.protocol.params().clone()),
            skip_security: self.plan.skip_security,
        });
        note!(self.shared.trace, "initiator {}: dials link {} (cid {cid})", self.number, id.0);
        let mut output = Vec::new();
        emit(login.start(), &mut output);
        self.links.push(Link {
            id,
            cid,
            phase: Phase::Login(Box::new(login)),
            input: Vec::new(),
            output,
            last_heard: now,
            pinged: None,
        });
    }

    /// Keeps links alive, and makes more of them.
    fn supervise(&mut self) {
        let now = self.now();
        let mut silent = false;
        for at in 0..self.links.len() {
            let link = &self.links[at];
            let Phase::Full(on, _) = &link.phase else { continue };
            let (on, id) = (*on, link.id);
            match link.pinged {
                Some(pinged) if link.last_heard > pinged => self.links[at].pinged = None,
                Some(pinged) => silent |= now >= pinged + PING_TIME,
                None if now >= link.last_heard + PING_AFTER => {
                    self.links[at].pinged = Some(now);
                    self.ping(on, id);
                }
                None => {}
            }
        }
        if silent {
            return self.lose("the target is silent");
        }
        if self.shared.resets_by_others && self.state == State::Up && now >= self.next_question {
            self.next_question = now + COMMAND_TIME / 2;
            self.ask_after(now.saturating_sub(COMMAND_TIME));
        }
        if self.joining.is_some_and(|until| until <= now) {
            return self.lose("a further login took too long");
        }
        let wanted = self.plan.connections.min(usize::from(self.protocol.params().max_connections));
        if self.state == State::Up && self.joining.is_none() && self.links.len() < wanted {
            self.joining = Some(now + LOGIN_TIME);
            self.dial();
        }
    }

    /// The session is lost: what may be repeated waits for the next one, the fate of the rest is unknown.
    fn lose(&mut self, why: &str) {
        if matches!(self.state, State::Down(_) | State::Over) {
            return;
        }
        note!(self.shared.trace, "initiator {}: loses its session: {why}", self.number);
        let now = self.now();
        match self.state {
            State::Connecting(_) => self.failed_logins += 1,
            _ => self.losses += 1,
        }
        // Its host may have died, too: then the target hears nothing, and meets the next login with the old session alive.
        if self.rng.chance(300) {
            let mut network = self.shared.network.borrow_mut();
            self.links.iter().for_each(|link| network.vanish(link.id));
        }
        self.drop_links();
        for (_, token) in self.protocol.disconnect(self.plan.first_cmd_sn) {
            self.give_up(token.op);
        }
        self.ops.values_mut().for_each(|op| op.replayed = true);
        let pause = self.rng.between(MS, 300 * MS);
        self.state = State::Down(now + pause);
    }

    fn drop_links(&mut self) {
        let now = self.now();
        for link in self.links.drain(..) {
            self.shared.network.borrow_mut().abandon(now, link.id, Side::Initiator);
        }
        self.joining = None;
        self.tap.forget();
    }

    /// A task ends without its answer.
    fn give_up(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        self.ended += 1;
        if let Purpose::Scsi(scsi) = op.purpose {
            let mut oracle = self.shared.oracle.borrow_mut();
            oracle.end_look(id);
            oracle.end_sync(id, false);
            if !scsi.writes.is_empty() {
                self.lost.push(id);
            }
        }
    }

    fn new_op(&mut self) -> OpId {
        self.shared.last_op.set(self.shared.last_op.get() + 1);
        self.shared.last_op.get()
    }

    fn token(op: OpId) -> Token {
        Token { op, data: Vec::new() }
    }

    fn track(&mut self, op: OpId, key: Result<TaskKey, Token>, purpose: Purpose) {
        if let Ok(key) = key {
            self.ops.insert(op, Op { purpose, key, replayed: false, since: self.now(), aborting: false });
        }
    }

    fn ping(&mut self, on: ConnectionId, id: LinkId) {
        let op = self.new_op();
        let key = self.protocol.ping(on, Self::token(op));
        self.track(op, key, Purpose::Ping(id));
    }

    /// A connection in full-feature phase, chosen by chance.
    fn any_connection(&mut self) -> Option<(ConnectionId, LinkId)> {
        let full: Vec<_> = self
            .links
            .iter()
            .filter_map(|link| match &link.phase {
                Phase::Full(on, _) => Some((*on, link.id)),
                Phase::Login(_) => None,
            })
            .collect();
        if full.is_empty() { None } else { Some(self.rng.pick(&full)) }
    }

    /// Submits what is next.
    fn work(&mut self) -> Result<bool, String> {
        if self.state != State::Up {
            return Ok(false);
        }
        let now = self.now();
        let mut any = false;
        while self.ops.len() < self.plan.depth && self.state == State::Up {
            if let Some(scsi) = self.again.pop() {
                self.submit(scsi)?;
                any = true;
                continue;
            }
            match self.stage {
                Stage::Work if self.submitted < self.plan.commands => {
                    if now < self.next_command {
                        break;
                    }
                    self.next_command = now + self.rng.below(self.plan.pause + 1);
                    self.submitted += 1;
                    self.act()?;
                }
                Stage::Work if self.ops.is_empty() => self.stage = Stage::Waiting,
                Stage::Work | Stage::Waiting => break,
                Stage::Reading(lba) if lba < self.blocks => {
                    let blocks = (self.blocks - lba).min(self.most_blocks);
                    self.stage = Stage::Reading(lba + blocks);
                    self.submit(self.workload.read_of(lba, blocks, false))?;
                }
                Stage::Reading(_) if self.ops.is_empty() => {
                    self.stage = Stage::Leaving;
                    self.submit(self.workload.sync())?;
                }
                Stage::Leaving if self.ops.is_empty() => self.log_out(),
                Stage::Reading(_) | Stage::Leaving => break,
            }
            any = true;
        }
        Ok(any)
    }

    fn act(&mut self) -> Result<(), String> {
        let next = self.shared.last_op.get() + 1;
        let action = {
            let oracle = self.shared.oracle.borrow();
            self.workload.next(&mut self.rng, &oracle, next)
        };
        let Some((on, link)) = self.any_connection() else { return Ok(()) };
        match action {
            Action::Scsi(scsi) => return self.submit(*scsi),
            Action::Ping => self.ping(on, link),
            // One text at a time (RFC 7143 §11.10).
            Action::Text if self.ops.values().any(|op| matches!(op.purpose, Purpose::Text)) => {}
            Action::Text => {
                let op = self.new_op();
                let text = b"SendTargets=\0".to_vec().into();
                let key = self.protocol.text(on, text, Self::token(op));
                self.track(op, key, Purpose::Text);
            }
            Action::Abort => self.abort(),
            Action::Manage(function) => {
                let op = self.new_op();
                let victims = self.ops.iter().filter(|(_, op)| matches!(op.purpose, Purpose::Scsi(_)));
                // What waits for the window has no CmdSN yet and comes after the function.
                let victims = victims.filter(|(_, op)| self.protocol.connection_of(op.key).is_some());
                let victims = victims.map(|(id, op)| (*id, op.key)).collect();
                note!(self.shared.trace, "initiator {}: op {op} {function}", self.number);
                let key = self.protocol.task_management(on, function, Lun::ZERO, None, Self::token(op));
                self.track(op, key, Purpose::Manage(victims));
            }
            Action::Logout => self.log_out(),
        }
        Ok(())
    }

    fn abort(&mut self) {
        let sent: Vec<(OpId, TaskKey)> = self
            .ops
            .iter()
            .filter(|(_, op)| matches!(op.purpose, Purpose::Scsi(_)))
            .filter(|(_, op)| self.protocol.connection_of(op.key).is_some())
            .map(|(id, op)| (*id, op.key))
            .collect();
        if sent.is_empty() {
            return;
        }
        let (victim, key) = self.rng.pick(&sent);
        self.abort_op(victim, key);
    }

    fn abort_op(&mut self, victim: OpId, key: TaskKey) {
        // It goes where the command went (RFC 7143 §11.5.1).
        let Some(on) = self.protocol.connection_of(key) else { return };
        let op = self.new_op();
        note!(self.shared.trace, "initiator {}: op {op} ABORT TASK of op {victim}", self.number);
        let function = TaskManagementFunction::AbortTask;
        let task = self.protocol.task_management(on, function, Lun::ZERO, Some(key), Self::token(op));
        self.track(op, task, Purpose::Abort(victim, key));
        if let Some(op) = self.ops.get_mut(&victim) {
            op.aborting = true;
        }
    }

    /// Others may have ended commands of ours without a word: asks after those that were sent before then.
    fn ask_after(&mut self, before: Micros) {
        let silent = self.ops.iter().filter(|(_, op)| {
            matches!(op.purpose, Purpose::Scsi(_))
                && !op.aborting
                && op.since <= before
                && self.protocol.connection_of(op.key).is_some()
        });
        let silent: Vec<(OpId, TaskKey)> = silent.map(|(id, op)| (*id, op.key)).collect();
        silent.into_iter().for_each(|(id, key)| self.abort_op(id, key));
    }

    fn log_out(&mut self) {
        let Some((on, _)) = self.any_connection() else { return };
        let op = self.new_op();
        note!(self.shared.trace, "initiator {}: op {op} logs out", self.number);
        let key = self.protocol.logout(on, LogoutReason::CloseSession, Self::token(op));
        self.track(op, key, Purpose::Logout);
        self.state = State::LoggingOut;
    }

    fn submit(&mut self, scsi: Scsi) -> Result<(), String> {
        let op = self.new_op();
        note!(
            self.shared.trace,
            "initiator {}: op {op} {} {:?}, looks from {}, out {:?}, in {:?}{}",
            self.number,
            scsi.name,
            scsi.writes,
            scsi.first,
            scsi.data_out.as_ref().map(Vec::len),
            scsi.read_len,
            if scsi.durable { ", durable" } else { "" },
        );
        let scsi = self.restamp(scsi, op);
        {
            let mut oracle = self.shared.oracle.borrow_mut();
            if !scsi.writes.is_empty() {
                oracle.submit_write(op, scsi.writes.clone(), scsi.content);
            }
            match scsi.kind {
                Kind::Read | Kind::CompareAndWrite(_) | Kind::Verify(_) => oracle.submit_look(op),
                _ => {}
            }
            if !scsi.syncs.is_empty() {
                oracle.submit_sync(op, scsi.syncs.clone());
            }
        }
        let command = Command {
            lun: Lun::new(scsi.lun).unwrap_or_default(),
            attribute: TaskAttribute::Simple,
            cdb: &scsi.cdb,
            write: scsi.data_out.clone().map(Into::into),
            read_len: scsi.read_len,
            may_repeat: scsi.may_repeat,
        };
        let key = self.protocol.submit(command, Self::token(op));
        let key = key.map_err(|_| "the session takes no command though there is room".to_owned())?;
        self.ops.insert(
            op,
            Op {
                purpose: Purpose::Scsi(Box::new(scsi)),
                key,
                replayed: false,
                since: self.now(),
                aborting: false,
            },
        );
        Ok(())
    }

    /// A command that is submitted a second time carries its own number, and is a command of its own.
    fn restamp(&self, mut scsi: Scsi, op: OpId) -> Scsi {
        use crate::oracle::Content;
        let oracle = self.shared.oracle.borrow();
        let content = match scsi.content {
            Content::Zeros => return scsi,
            Content::Stamp(_) => Content::Stamp(op),
            Content::Repeated(_) => Content::Repeated(op),
        };
        if content == scsi.content {
            return scsi;
        }
        scsi.content = content;
        let Some(data) = &mut scsi.data_out else { return scsi };
        let Some(sectors) = scsi.writes.first().cloned() else { return scsi };
        let skip = if let Kind::CompareAndWrite(guess) = &scsi.kind { guess.len() } else { 0 };
        for (piece, sector) in data[skip..].chunks_exact_mut(crate::oracle::SECTOR).zip(sectors) {
            piece.copy_from_slice(&oracle.bytes(content, sector));
        }
        scsi
    }

    /// Reads what has arrived.
    fn receive(&mut self) -> Result<bool, String> {
        if self.now() < self.deaf_until {
            return Ok(false);
        }
        let mut any = false;
        let mut at = 0;
        while at < self.links.len() {
            let id = self.links[at].id;
            let now = self.now();
            let received = self.shared.network.borrow_mut().receive(now, id, Side::Initiator);
            match received {
                Received::Nothing => {
                    at += 1;
                    continue;
                }
                Received::Bytes(bytes) => {
                    let link = &mut self.links[at];
                    link.last_heard = now;
                    link.input.extend(bytes);
                    self.read(at)?;
                }
                // A target that logs a session out closes its other connections before it answers.
                Received::Closed if self.state == State::LoggingOut && self.links.len() > 1 => {
                    self.links.remove(at);
                }
                Received::Closed | Received::Reset => {
                    self.lose(if received == Received::Closed { "closed by the target" } else { "reset" });
                }
            }
            any = true;
            // The links may be others now.
            if self.links.get(at).is_none_or(|link| link.id != id) {
                at = 0;
            }
        }
        Ok(any)
    }

    /// Handles the PDUs that are whole.
    fn read(&mut self, at: usize) -> Result<(), String> {
        let id = self.links[at].id;
        loop {
            // Whatever a PDU led to, go on only with the same link.
            let Some(link) = self.links.get_mut(at).filter(|link| link.id == id) else { return Ok(()) };
            let (on, read) = match &mut link.phase {
                Phase::Login(_) => {
                    if !self.login_pdu(at)? {
                        return Ok(());
                    }
                    continue;
                }
                Phase::Full(on, reader) => (*on, reader.next(&mut self.protocol, *on, &mut link.input)),
            };
            match read {
                Ok(None) => return Ok(()),
                Ok(Some((bhs, event))) => {
                    note!(self.shared.trace, "initiator {} <- {bhs}", self.number);
                    self.tap.see(on, &bhs, self.protocol.params())?;
                    if let Some(event) = event {
                        self.on_event(event)?;
                    }
                }
                Err(error) => {
                    let corrupted = self.shared.network.borrow().corrupted(id, Side::Initiator);
                    if !corrupted || matches!(error, Unreadable::Protocol(_)) {
                        return Err(format!("initiator {}: link {}: {error:?}", self.number, id.0));
                    }
                    self.lose("what arrived is broken");
                    return Ok(());
                }
            }
        }
    }

    /// Handles a Login Response; false when it is not whole.
    fn login_pdu(&mut self, at: usize) -> Result<bool, String> {
        let number = self.number;
        let link = &mut self.links[at];
        let Phase::Login(login) = &mut link.phase else { return Ok(false) };
        let cut = LOGIN_CUTTER.cut(&link.input).map_err(|e| format!("initiator {number}: login: {e}"))?;
        let Cut::Pdu { bhs, data, consumed, .. } = cut else { return Ok(false) };
        if bhs.opcode() != Some(Opcode::LoginResponse) {
            return Err(format!("initiator {number}: {bhs} during login"));
        }
        let rng = &mut self.rng;
        let mut random = |buf: &mut [u8]| {
            buf.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
            Ok(())
        };
        let step = login.handle_with(bhs.as_login_response(), &link.input[data], &mut random);
        link.input.drain(..consumed);
        match step {
            Ok(Step::Send(request)) => emit(request, &mut link.output),
            Ok(Step::Done(_)) if self.wrong_secret => {
                return Err(format!("initiator {number}: a login with a wrong secret"));
            }
            Ok(Step::Done(established)) => {
                let on = self.protocol.connect(link.cid, &established);
                let reader = Reader::new(&established.params, self.plan.piecewise);
                link.phase = Phase::Full(on, reader);
                self.tap.connected(on, established.exp_cmd_sn, established.max_cmd_sn);
                note!(self.shared.trace, "initiator {number}: logged in on link {}", link.id.0);
                if self.tsih == 0 {
                    self.tsih = established.tsih;
                    self.state = State::Up;
                    // The target has ended what was left of the old session.
                    for op in std::mem::take(&mut self.lost) {
                        self.shared.oracle.borrow_mut().end_write(op, crate::oracle::Ending::Unknown);
                    }
                } else {
                    self.joining = None;
                }
            }
            Ok(Step::Moved { .. }) => return Err(format!("initiator {number}: the target has moved")),
            Err(error) if self.state == State::LoggingOut => {
                // A connection that wanted to join a session which is going.
                note!(self.shared.trace, "initiator {number}: login: {error}");
                let link = self.links.remove(at);
                let now = self.now();
                self.shared.network.borrow_mut().abandon(now, link.id, Side::Initiator);
                return Ok(false);
            }
            Err(error) => {
                note!(self.shared.trace, "initiator {number}: login: {error}");
                let refused = InitiatorLoginError::Status(LoginStatus::AuthenticationFailure);
                if self.wrong_secret && error == refused {
                    self.refused_logins += 1;
                }
                self.lose("the login failed");
            }
        }
        Ok(true)
    }

    /// Sends what the session has to say.
    fn transmit(&mut self) -> bool {
        let now = self.now();
        let mut any = false;
        for link in &mut self.links {
            loop {
                if let Phase::Full(on, _) = &link.phase
                    && link.output.len() < BATCH
                {
                    self.protocol.transmit(*on, BATCH, &mut link.output);
                }
                if link.output.is_empty() {
                    break;
                }
                let sent = self.shared.network.borrow_mut().send(now, link.id, Side::Initiator, &link.output);
                link.output.drain(..sent);
                any |= sent > 0;
                if sent == 0 {
                    break;
                }
            }
        }
        any
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

fn emit(request: Request, output: &mut Vec<u8>) {
    let bhs: Bhs = request.header.into();
    output.extend_from_slice(bhs.bytes());
    output.extend_from_slice(&request.data);
    output.extend_from_slice(&[0; 3][..padding_len(request.data.len())]);
}
