//! The state that a session's handles, connections and supervisor share. Everything runs on one
//! thread, and no borrow is held across an await.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use invariant::broken;
use iscsi::initiator::{
    Completion, ConnectionId, Place, Recoveries, Session as Protocol, SessionConfig, TaskKey,
};
use iscsi::keys::Params;
use iscsi::login::initiator::Chap;
use iscsi::pdu::{Isid, LogoutResult, ResponseCode};
use rdma::QueuePair;
use runtime::{JoinHandle, TcpStream};
use slab::Slab;

use super::Response;
use super::queued::{Completed, Queued};
use super::reach::Reach;
use crate::bell::{Bell, Room};
use crate::dial::Portal;
use crate::error::Error;
use crate::options::Options;
use crate::payload::{Data, Destination};
use crate::tune::Tuning;

/// The owner of a task of the protocol.
#[derive(Debug)]
pub(super) enum Task {
    /// A command with this slot, whose ticket waits or was dropped.
    Waited { slot: usize, buffers: Buffers },
    /// A queue's command, at this index of [`Core::queued`].
    Queued { slot: usize, buffers: Buffers },
    /// The supervisor's ping, or a text without a waiting task.
    Ping,
    /// The logout requested by the target.
    Leave,
}

/// A command's memory.
#[derive(Debug)]
pub(super) struct Buffers {
    pub destination: Destination,
    /// The part of it that the target may access now.
    pub reach: Reach,
    /// Bytes that the command writes.
    pub write_len: usize,
}

impl From<Destination> for Buffers {
    fn from(destination: Destination) -> Self {
        Buffers { destination, reach: Reach::default(), write_len: 0 }
    }
}

impl Buffers {
    /// Memory for a command's read, and the length of its write.
    pub fn new(destination: Destination, write_len: usize) -> Self {
        Buffers { write_len, ..Self::from(destination) }
    }
}

impl Task {
    /// Whether its read data is dropped.
    pub fn discards(&self) -> bool {
        matches!(self, Task::Queued { buffers: Buffers { destination: Destination::Discard, .. }, .. })
    }

    /// A command's memory.
    pub fn buffers_mut(&mut self) -> Option<&mut Buffers> {
        match self {
            Task::Waited { buffers, .. } | Task::Queued { buffers, .. } => Some(buffers),
            Task::Ping | Task::Leave => None,
        }
    }
}

impl Place<&[u8]> for Task {
    fn place(&mut self, offset: usize, data: &[u8]) {
        if let Some(buffers) = self.buffers_mut() {
            buffers.destination.place(offset, data);
        }
    }
}

/// The place for a command's answer.
#[derive(Debug)]
pub(super) struct Slot {
    pub key: TaskKey,
    pub answer: Option<Result<Response, Error>>,
    pub waiter: Option<Waker>,
    /// The ticket was dropped.
    pub abandoned: bool,
    /// Time of its last send, or of its submission.
    pub since: Instant,
    pub replays: u8,
}

/// A connection.
pub(super) struct Link {
    pub on: ConnectionId,
    pub cid: u16,
    /// Its serial number, never reused: a late report about an old connection must not affect a new
    /// one.
    pub serial: u64,
    pub bell: Rc<Bell>,
    /// The queue pair, over iSER.
    pub pair: Option<QueuePair>,
    /// The socket, over TCP, which its tasks own.
    pub stream: Weak<TcpStream>,
    pub tasks: [JoinHandle<()>; 2],
    pub last_heard: Instant,
    /// Over iSER: the queue pair's number of receives at the last check.
    pub receives: u64,
    /// Time of the unanswered ping.
    pub pinged: Option<Instant>,
}

impl Link {
    /// Checks whether data has arrived over iSER since the last check. The target's RDMA Writes and
    /// RDMA Reads also show that it is alive, although no message reports them. On a slow path the
    /// answer to a ping waits behind all earlier data.
    pub fn listen(&mut self, now: Instant) {
        let Some(pair) = &self.pair else { return };
        let receives = pair.counters().receives;
        if std::mem::replace(&mut self.receives, receives) != receives {
            self.last_heard = now;
        }
    }
}

/// A connection lost while its session continues.
#[derive(Debug, Clone)]
pub(super) struct Broken {
    pub cid: u16,
    pub since: Instant,
    pub error: Error,
    /// Its tasks have been reassigned; only the connection itself must be restored.
    pub adopted: bool,
}

/// The target's answer to the removal of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal {
    pub cid: u16,
    pub result: Option<LogoutResult>,
    /// Time to wait before reassigning tasks.
    pub time2wait: Duration,
}

/// The state of the session.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Logged in, or logging in for the first time.
    Up,
    /// Lost; the supervisor reconnects.
    Down(Error),
    /// Logging out: no new commands, and a loss ends the session.
    Closing,
    /// Ended for this reason.
    Over(Error),
}

/// The state of a session after a logout request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    /// Deadline for the logout.
    pub until: Instant,
    /// Whether the logout was sent.
    pub begun: bool,
    /// Whether the logout was answered.
    pub done: bool,
}

pub(super) struct Core {
    pub protocol: Protocol<Data, Task>,
    pub slots: Slab<Slot>,
    /// Outstanding commands of the queue.
    pub queued: Slab<Queued>,
    /// Ended commands of the queue, not yet collected.
    pub ended: Vec<Completed>,
    pub has_queue: bool,
    pub links: Vec<Link>,
    /// Connections to restore, in the order of their loss.
    pub broken: Vec<Broken>,
    pub removal: Option<Removal>,
    /// Set after a logout request of the target.
    pub leaving: Option<Leaving>,
    /// Serials of links that the target drops.
    pub doomed: Vec<u64>,
    /// The target accepts no login before this time.
    pub not_before: Option<Instant>,
    /// Portal to connect to: the original one, until a permanent redirection.
    pub home: Portal,
    mender: Option<JoinHandle<()>>,
    /// Number of links ever created.
    pub serials: u64,
    /// Identifier of the session at the target.
    pub tsih: u16,
    pub state: State,
    /// Counts the logins: a late report about an old connection must not affect a new session.
    pub generation: u64,
    pub portal: Portal,
    /// The target's portal group tag.
    pub portal_group: Option<u16>,
    pub alias: Option<String>,
    pub reconnects: u64,
    /// Start of the newest session.
    pub up_since: Option<Instant>,
    supervisor: Option<JoinHandle<()>>,
    /// Bytes transferred by ended commands, and their number; both only grow.
    pub moved: (u64, u64),
    /// The state of the automatic tuning.
    pub tuning: Option<Tuning>,
    pilot: Option<JoinHandle<()>>,
}

pub(super) struct Inner {
    pub options: Options,
    pub chap: Option<Chap>,
    /// The original portal; redirections start here again.
    pub home: Portal,
    pub target: String,
    pub isid: Isid,
    pub core: RefCell<Core>,
    pub room: Room,
    /// Rung when commands of the queue have ended, and when the session ends.
    pub queue_bell: Bell,
    pub supervisor_bell: Bell,
    /// Rung when a removal is answered, and when a connection is lost.
    pub mender_bell: Bell,
    /// Begins to restore lost connections of the session with this generation.
    mend: fn(Rc<Inner>, u64) -> JoinHandle<()>,
}

/// CmdSN of the first command of every session.
pub(super) const FIRST_CMD_SN: u32 = 1;

fn depth(options: &Options) -> usize {
    options.queue_depth.clamp(1, 32_768)
}

impl Inner {
    pub fn new(
        options: Options,
        chap: Option<Chap>,
        portal: Portal,
        target: String,
        isid: Isid,
        mend: fn(Rc<Self>, u64) -> JoinHandle<()>,
    ) -> Self {
        // More tags than commands: also for a ping of each connection, task management, text and
        // logout.
        let max_tasks = depth(&options) + usize::from(u8::MAX);
        let mut protocol = Protocol::new(SessionConfig { max_tasks, first_cmd_sn: FIRST_CMD_SN });
        protocol.set_spread(options.spread);
        let core = Core {
            protocol,
            slots: Slab::new(),
            queued: Slab::new(),
            ended: Vec::new(),
            has_queue: false,
            links: Vec::new(),
            broken: Vec::new(),
            removal: None,
            leaving: None,
            doomed: Vec::new(),
            not_before: None,
            home: portal.clone(),
            mender: None,
            serials: 0,
            tsih: 0,
            state: State::Up,
            generation: 0,
            portal: portal.clone(),
            portal_group: None,
            alias: None,
            reconnects: 0,
            up_since: None,
            supervisor: None,
            moved: (0, 0),
            tuning: None,
            pilot: None,
        };
        Inner {
            options,
            chap,
            home: portal,
            target,
            isid,
            core: RefCell::new(core),
            room: Room::default(),
            queue_bell: Bell::default(),
            supervisor_bell: Bell::default(),
            mender_bell: Bell::default(),
            mend,
        }
    }

    /// Whether a command may be submitted, or would fail permanently.
    pub fn has_room(&self) -> bool {
        let core = self.core.borrow();
        !matches!(core.state, State::Up | State::Down(_)) || core.protocol.commands() < self.queue_depth()
    }

    /// Maximum commands outstanding or waiting.
    pub fn queue_depth(&self) -> usize {
        depth(&self.options)
    }

    /// Whether commands are accepted.
    pub fn check_open(&self) -> Result<(), Error> {
        match &self.core.borrow().state {
            State::Up | State::Down(_) => Ok(()),
            State::Closing => Err(Error::Closed),
            State::Over(error) => Err(error.clone()),
        }
    }

    /// Passes a task to the protocol and wakes its sender. Returns the slot of its answer.
    pub fn submit(
        &self,
        destination: Destination,
        write_len: usize,
        submit: impl FnOnce(&mut Protocol<Data, Task>, Task) -> Result<TaskKey, Task>,
    ) -> Result<usize, Error> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        if let State::Over(error) = &core.state {
            return Err(error.clone());
        }
        let entry = core.slots.vacant_entry();
        let slot = entry.key();
        let buffers = Buffers::new(destination, write_len);
        let key = submit(&mut core.protocol, Task::Waited { slot, buffers });
        let key = key.map_err(|_| Error::Argument("the command fits no PDU, or too many are under way"))?;
        let since = runtime::now();
        entry.insert(Slot { key, answer: None, waiter: None, abandoned: false, since, replays: 0 });
        core.ring_links();
        Ok(slot)
    }

    /// Completes a command.
    pub fn complete(&self, core: &mut Core, task: Task, completion: Completion) {
        let (slot, destination) = match task {
            Task::Waited { slot, buffers } => {
                core.count(&buffers, &completion);
                (slot, buffers.destination)
            }
            Task::Queued { slot, buffers } => {
                core.count(&buffers, &completion);
                return core.end_queued(slot, buffers.destination, &completion);
            }
            Task::Ping | Task::Leave => return,
        };
        let answer = if completion.response == ResponseCode::CommandCompleted {
            Ok(Response {
                status: completion.status,
                sense: completion.sense,
                data: destination.into_chain(completion.received as usize),
                residual: completion.residual,
                read_residual: completion.read_residual,
            })
        } else {
            Err(Error::TargetFailure)
        };
        self.answer(core, slot, answer);
    }

    /// Completes a task without data successfully with `status`.
    pub fn complete_plain(&self, core: &mut Core, task: &Task, status: u8) {
        if let Task::Waited { slot, .. } = task {
            let answer = Response {
                status,
                sense: Vec::new(),
                data: runtime::Chain::new(),
                residual: Default::default(),
                read_residual: Default::default(),
            };
            self.answer(core, *slot, Ok(answer));
        }
    }

    /// Completes a text with its answer.
    pub fn complete_text(&self, core: &mut Core, task: &Task, text: Vec<u8>) {
        if let Task::Waited { slot, .. } = task {
            let answer = Response {
                status: 0,
                sense: Vec::new(),
                data: runtime::Buf::from(text).into(),
                residual: Default::default(),
                read_residual: Default::default(),
            };
            self.answer(core, *slot, Ok(answer));
        }
    }

    /// Completes a task that was not answered.
    pub fn fail_task(&self, core: &mut Core, task: &Task, error: Error) {
        match task {
            Task::Waited { slot, .. } => self.answer(core, *slot, Err(error)),
            Task::Queued { slot, .. } => {
                core.fail_queued(*slot, error);
                self.queue_bell.ring();
            }
            Task::Ping | Task::Leave => {}
        }
    }

    fn answer(&self, core: &mut Core, slot: usize, answer: Result<Response, Error>) {
        match core.slots.get_mut(slot) {
            Some(entry) if entry.abandoned => drop(core.slots.remove(slot)),
            Some(entry) => {
                entry.answer = Some(answer);
                if let Some(waiter) = entry.waiter.take() {
                    waiter.wake();
                }
            }
            None => broken!("a command without a slot is answered"),
        }
        self.room.wake_one();
    }

    /// Handles a lost connection. At error recovery level 2 the session continues, and the tasks
    /// wait for reassignment to another connection. Otherwise the session is lost. Does nothing if
    /// the connection is already gone.
    pub fn lose_link(self: &Rc<Self>, serial: u64, error: Error) {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let Some(at) = core.links.iter().position(|link| link.serial == serial) else { return };
        let recovers = core.protocol.params().error_recovery_level == 2
            && matches!(core.state, State::Up)
            && !self.options.reconnect_timeout.is_zero()
            && !matches!(&error, Error::Protocol(fault) if fault.ends_session());
        if !recovers {
            return self.lose_session(core, error);
        }
        let link = core.links.remove(at);
        tracing::info!(target = %self.target, cid = link.cid, %error, "connection lost");
        link.tasks.iter().for_each(JoinHandle::abort);
        for (_, task) in core.protocol.lose_connection(link.on) {
            self.fail_task(core, &task, error.clone());
        }
        core.broken.push(Broken { cid: link.cid, since: runtime::now(), error, adopted: false });
        if core.mender.as_ref().is_none_or(JoinHandle::is_finished) {
            core.mender = Some((self.mend)(self.clone(), core.generation));
        }
        self.mender_bell.ring();
        core.ring_links();
    }

    /// Handles a lost session: ends its connections, keeps repeatable commands for the next login,
    /// and fails the others. Does nothing if this session is not the newest.
    pub fn lose(&self, generation: u64, error: Error) {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        if core.generation == generation {
            self.lose_session(core, error);
        }
    }

    /// [`Self::lose`] with the core already borrowed.
    pub fn lose_now(&self, core: &mut Core, generation: u64, error: Error) {
        if core.generation == generation {
            self.lose_session(core, error);
        }
    }

    fn lose_session(&self, core: &mut Core, error: Error) {
        match core.state {
            State::Up if !self.options.reconnect_timeout.is_zero() => {
                tracing::warn!(target = %self.target, %error, "session lost");
                core.state = State::Down(error.clone());
                core.drop_links();
                for (_, task) in core.protocol.disconnect(FIRST_CMD_SN) {
                    self.fail_task(core, &task, error.clone());
                }
                self.count_replays(core, &error);
                self.supervisor_bell.ring();
            }
            State::Up => self.end(core, error),
            State::Closing => self.end(core, Error::Closed),
            State::Down(_) | State::Over(_) => {}
        }
    }

    /// Fails commands that were resent too often.
    fn count_replays(&self, core: &mut Core, error: &Error) {
        let mut tired = Vec::new();
        for (index, slot) in &mut core.slots {
            if slot.answer.is_none() {
                slot.replays = slot.replays.saturating_add(1);
                if slot.replays > self.options.max_replays {
                    tired.push((index, slot.key));
                }
            }
        }
        for (index, key) in tired {
            if core.protocol.forget(key).is_some() {
                self.answer(core, index, Err(error.clone()));
            }
        }
        let mut tired = Vec::new();
        for (index, queued) in &mut core.queued {
            queued.replays = queued.replays.saturating_add(1);
            if queued.replays > self.options.max_replays {
                tired.push((index, queued.key));
            }
        }
        for (index, key) in tired {
            if core.protocol.forget(key).is_some() {
                core.fail_queued(index, error.clone());
            }
        }
        self.queue_bell.ring();
    }

    /// Ends the session permanently.
    pub fn shut(&self, error: Error) {
        let mut core = self.core.borrow_mut();
        self.end(&mut core, error);
        // Not within `end`: the supervisor itself calls that, and then ends. Dropping the tasks
        // accesses the core.
        let tasks = [core.supervisor.take(), core.pilot.take()];
        drop(core);
        tasks.iter().flatten().for_each(JoinHandle::abort);
    }

    pub fn end(&self, core: &mut Core, error: Error) {
        if matches!(core.state, State::Over(_)) {
            return;
        }
        core.state = State::Over(error.clone());
        core.drop_links();
        for (_, task) in core.protocol.abandon() {
            self.fail_task(core, &task, error.clone());
        }
        self.room.wake_all();
        self.queue_bell.ring();
        self.supervisor_bell.ring();
        self.mender_bell.ring();
    }

    pub fn begin_closing(&self) {
        let mut core = self.core.borrow_mut();
        if matches!(core.state, State::Up) {
            core.state = State::Closing;
        }
        drop(core);
        self.room.wake_all();
    }

    pub fn keep_supervisor(&self, supervisor: JoinHandle<()>) {
        self.core.borrow_mut().supervisor = Some(supervisor);
    }

    pub fn keep_pilot(&self, pilot: JoinHandle<()>) {
        self.core.borrow_mut().pilot = Some(pilot);
    }

    pub fn first_link(&self) -> Option<ConnectionId> {
        self.core.borrow().links.first().map(|l| l.on)
    }

    pub fn link_count(&self) -> usize {
        self.core.borrow().links.len()
    }

    pub fn params(&self) -> Params {
        self.core.borrow().protocol.params().clone()
    }

    pub fn portal(&self) -> Portal {
        self.core.borrow().portal.clone()
    }

    /// The portal of the connection with this CID.
    pub fn portal_of(&self, cid: u16) -> Portal {
        let own = self.portal();
        let others = &self.options.portals;
        let turn = usize::from(cid) % (others.len() + 1);
        match turn.checked_sub(1).and_then(|at| others.get(at)) {
            Some((host, port)) => Portal { transport: own.transport, host: host.clone(), port: *port },
            None => own,
        }
    }

    pub fn recoveries(&self) -> Recoveries {
        self.core.borrow().protocol.recoveries()
    }

    pub fn reconnects(&self) -> u64 {
        self.core.borrow().reconnects
    }

    pub fn target_alias(&self) -> Option<String> {
        self.core.borrow().alias.clone()
    }
}

impl Core {
    /// Counts the transferred data.
    fn count(&mut self, buffers: &Buffers, completion: &Completion) {
        let bytes = u64::from(completion.received) + buffers.write_len as u64;
        self.moved = (self.moved.0 + bytes, self.moved.1 + 1);
    }

    /// Withdraws all memory from the targets.
    fn withdraw_all(&mut self) {
        let Core { protocol, links, .. } = self;
        if links.iter().all(|link| link.pair.is_none()) {
            return;
        }
        protocol.tokens_mut().for_each(|(_, task)| withdraw(links, task));
    }

    /// Withdraws a task's memory from the target.
    pub fn withdraw(&self, task: &mut Task) {
        withdraw(&self.links, task);
    }

    /// Wakes the senders of all connections that have something to send.
    pub fn ring_links(&mut self) {
        if let Some(first) = self.links.first() {
            self.protocol.schedule(first.on);
        }
        for link in &self.links {
            if self.protocol.has_output(link.on) {
                link.bell.ring();
            }
        }
    }

    /// Ends all connections. A task that ends itself this way stops at its next await.
    fn drop_links(&mut self) {
        self.generation += 1;
        self.broken.clear();
        self.removal = None;
        self.withdraw_all();
        for link in self.links.drain(..) {
            link.tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

fn withdraw(links: &[Link], task: &mut Task) {
    let Some(buffers) = task.buffers_mut() else { return };
    let link = links.iter().find(|link| Some(link.on) == buffers.reach.on);
    if let Some(pair) = link.and_then(|link| link.pair.as_ref()) {
        buffers.reach.withdraw(pair, &mut buffers.destination);
    }
}
