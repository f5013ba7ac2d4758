//! The session: it composes what is exchanged with the target and what recovery remembers, and is
//! the driver's way to both.

use std::collections::VecDeque;

use invariant::broken;

use crate::keys::Params;
use crate::login::initiator::Established;
use crate::pdu::{
    Bhs, LogoutReason, LogoutRequest, Lun, NopOut, RESERVED_TAG, TaskAttribute, TaskManagementFunction,
    TaskManagementRequest, TextRequest, ahs,
};
use crate::target::{Payload, Sink};
use crate::text::Assembler;

use super::emit::{Datamover, Messages, Room, Stream};
use super::event::{Event, ProtocolError};
use super::exchange::{Arrival, Exchange, in_order};
use super::ids::{ConnectionId, TaskKey};
use super::inbound::{Inbound, Segment};
use super::links::{Connection, Spread};
use super::recovery::{GivenUp, Recovery};
use super::tasks::{Aborted, Kind, Scope, Scsi};
use super::trouble::{Recoveries, Status};
use super::{MAX_TEXT_RESPONSE, Place};

/// The configuration of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfig {
    /// The maximum number of tasks, including waiting ones, 1 to 65535.
    pub max_tasks: usize,
    /// CmdSN of the first command: that of the leading login.
    pub first_cmd_sn: u32,
}

/// A SCSI command to submit.
#[derive(Debug, Clone)]
pub struct Command<'a, P> {
    /// The logical unit.
    pub lun: Lun,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The CDB, 6 to 260 bytes.
    pub cdb: &'a [u8],
    /// The data to write.
    pub write: Option<P>,
    /// The maximum number of bytes to read; `None` if the command reads nothing.
    pub read_len: Option<u32>,
    /// Whether the command may be repeated after a lost connection, without knowing whether it ran.
    pub may_repeat: bool,
}

/// A session of one or more connections. `P` is a payload, `T` the owner's token of each task.
#[derive(Debug)]
pub struct Session<P, T> {
    pub(super) exchange: Exchange<P, T>,
    recovery: Recovery,
    /// The next login is a leading one, and sets the session's parameters.
    fresh: bool,
    /// Over RDMA, the maximum length of a write with unsolicited data, bytes.
    unsolicited: u32,
}

impl<P: Payload, T> Session<P, T> {
    /// A session without connections: nothing is sent until [`Session::connect`].
    pub fn new(config: SessionConfig) -> Self {
        let (exchange, recovery) = (Exchange::new(config), Recovery::default());
        Session { exchange, recovery, fresh: true, unsolicited: u32::MAX }
    }

    /// Limits the outstanding commands to `commands`, at least one, even if the target's window is
    /// wider. Further commands wait in the session. Commands already outstanding continue.
    pub fn limit_outstanding(&mut self, commands: usize) {
        self.exchange.window.limit(commands);
    }

    /// Whether commands have waited because of [`Session::limit_outstanding`] since the last call.
    pub fn take_limited(&mut self) -> bool {
        self.exchange.window.take_limited()
    }

    /// The width of the target's command window in its last PDU (MaxCmdSN and ExpCmdSN, RFC 7143
    /// §4.2.2.1).
    pub fn window(&self) -> u32 {
        self.exchange.window.width()
    }

    /// Over RDMA, sends no unsolicited data of writes longer than `bytes`. The target fetches all
    /// their data by RDMA Read, which costs a round trip and saves the target a copy. Applies to
    /// new connections. Otherwise, and always over TCP, as much unsolicited data is sent as
    /// negotiated.
    pub fn limit_unsolicited(&mut self, bytes: u32) {
        self.unsolicited = bytes;
    }

    /// As [`Session::limit_unsolicited`], and for existing connections too, from their next command
    /// on.
    pub fn change_unsolicited(&mut self, bytes: u32) {
        self.unsolicited = bytes;
        for connection in self.exchange.links.iter_mut().filter(|connection| connection.rdma) {
            connection.room.unsolicited = bytes;
        }
    }

    /// Sets how commands are spread over connections.
    pub fn set_spread(&mut self, spread: Spread) {
        self.exchange.links.set_spread(spread);
    }

    /// Adds a connection after its login. The first one of a session sets its parameters. A
    /// connection with the CID of a lost one replaces it; [`Session::adopt`] then takes over its
    /// tasks.
    pub fn connect(&mut self, cid: u16, login: &Established) -> ConnectionId {
        if std::mem::replace(&mut self.fresh, false) {
            self.exchange.params = login.params.clone();
            self.exchange.window.open_at(login.exp_cmd_sn);
            self.exchange.links.clear();
            self.exchange.aborted = Aborted::default();
        }
        self.exchange.window.update(login.exp_cmd_sn, login.max_cmd_sn);
        let rdma = login.params.rdma_extensions;
        let segment = if rdma {
            login.params.target_recv_data_segment_length
        } else {
            login.params.peer_max_recv_data_segment_length
        };
        self.exchange.links.add(Connection {
            cid,
            rdma,
            room: Room {
                // A multiple of four bytes (RFC 7143 §11.7).
                segment: segment.max(512) & !3,
                unsolicited: if rdma { self.unsolicited } else { u32::MAX },
            },
            digests: login.params.digests(),
            exp_stat_sn: login.stat_sn.wrapping_add(1),
            status: Status::default(),
            segment_epoch: 0,
            snacks: VecDeque::new(),
            out: VecDeque::new(),
            ready: 0,
            outstanding: 0,
        })
    }

    /// Whether the session has no connection.
    pub fn is_disconnected(&self) -> bool {
        self.exchange.links.is_empty()
    }

    /// The CmdSN of the next command, which the login of a further connection carries too.
    pub fn cmd_sn(&self) -> u32 {
        self.exchange.window.cmd_sn()
    }

    /// The parameters that the leading login negotiated for the session.
    pub fn params(&self) -> &Params {
        &self.exchange.params
    }

    /// The number of tasks that have not ended, including waiting ones.
    pub fn len(&self) -> usize {
        self.exchange.tasks.len()
    }

    /// The number of SCSI commands that have not ended, including waiting ones. Excludes pings,
    /// texts and other requests.
    pub fn commands(&self) -> usize {
        self.exchange.tasks.commands()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.exchange.tasks.len() == 0
    }

    /// Queues a command. It is sent when the target's window permits.
    ///
    /// # Errors
    /// Returns the token if the maximum number of tasks is reached, or if the command does not fit
    /// a PDU. The latter holds for a CDB that is empty or longer than 260 bytes, and for a write
    /// longer than 4 GiB.
    pub fn submit(&mut self, command: Command<'_, P>, token: T) -> Result<TaskKey, T> {
        let write_len = command.write.as_ref().map_or(0, Payload::len);
        let (Ok(write_len), 1..=ahs::MAX_CDB_LEN) = (u32::try_from(write_len), command.cdb.len()) else {
            return Err(token);
        };
        let mut cdb = [0; 16];
        let head = command.cdb.len().min(16);
        cdb[..head].copy_from_slice(&command.cdb[..head]);
        let scsi = Scsi {
            lun: command.lun,
            attribute: command.attribute,
            cdb,
            cdb_rest: command.cdb.get(16..).filter(|r| !r.is_empty()).map(Into::into),
            write: command.write,
            write_len,
            read_len: command.read_len,
            may_repeat: command.may_repeat,
            received: 0,
            data_sn: 0,
            r2t_sn: 0,
            r2ts_open: 0,
            solicited: 0,
            restart_data: false,
            restart_r2t: false,
            segment_epoch: 0,
            trouble: None,
        };
        let key = self.exchange.tasks.insert(token, Kind::Scsi(scsi), 0, None)?;
        self.exchange.waiting.push_back(key);
        Ok(key)
    }

    /// Pings the target (immediate delivery): [`super::Event::Pong`] follows.
    ///
    /// # Errors
    /// Returns the token if the connection is gone or there are too many tasks.
    pub fn ping(&mut self, on: ConnectionId, token: T) -> Result<TaskKey, T> {
        let key = self.exchange.begin(on, Kind::Ping, token)?;
        let mut pdu = NopOut::ping(key.0);
        pdu.cmd_sn.set(self.exchange.window.cmd_sn());
        self.exchange.put(on, pdu.into(), true, None);
        Ok(key)
    }

    /// Sends a text (immediate delivery), which must fit one PDU.
    ///
    /// # Errors
    /// As [`Session::ping`].
    pub fn text(&mut self, on: ConnectionId, text: P, token: T) -> Result<TaskKey, T> {
        let key = self.exchange.begin(on, Kind::Text(Assembler::new(MAX_TEXT_RESPONSE)), token)?;
        let mut pdu = TextRequest::new(key.0, RESERVED_TAG);
        pdu.cmd_sn.set(self.exchange.window.cmd_sn());
        self.exchange.request(on, key, pdu.into(), Some(text));
        Ok(key)
    }

    /// Sends a logout (immediate delivery): [`super::Event::LoggedOut`] follows.
    ///
    /// # Errors
    /// As [`Session::ping`].
    pub fn logout(&mut self, on: ConnectionId, reason: LogoutReason, token: T) -> Result<TaskKey, T> {
        let Some(cid) = self.exchange.links.get(on).map(|c| c.cid) else { return Err(token) };
        let key = self.exchange.begin(on, Kind::Logout, token)?;
        let mut pdu = LogoutRequest::new(key.0, reason, cid);
        pdu.cmd_sn.set(self.exchange.window.cmd_sn());
        self.exchange.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Sends a task management function at once (immediate delivery). `task` is the task of ABORT
    /// TASK. [`Event::TaskManagement`] follows, with the tasks that the function has ended.
    ///
    /// # Errors
    /// Returns the token if the connection is gone or there are too many tasks.
    pub fn task_management(
        &mut self,
        on: ConnectionId,
        function: TaskManagementFunction,
        lun: Lun,
        task: Option<TaskKey>,
        token: T,
    ) -> Result<TaskKey, T> {
        let referenced = task.and_then(|key| Some((key, self.exchange.tasks.get(key)?.cmd_sn)));
        let key = self.exchange.begin(on, Kind::TaskManagement(Scope::of(function, lun, task)), token)?;
        let mut pdu = TaskManagementRequest::new(key.0, function, lun);
        pdu.cmd_sn.set(self.exchange.window.cmd_sn());
        if let Some((task, cmd_sn)) = referenced {
            pdu.referenced_task_tag.set(task.0);
            pdu.ref_cmd_sn.set(cmd_sn);
        }
        self.exchange.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Forgets a task: a waiting one, or one that the target will not answer.
    pub fn forget(&mut self, key: TaskKey) -> Option<T> {
        self.recovery.take_task(&mut self.exchange, key).map(|(token, _)| token)
    }

    /// The connection that a task was sent on. ABORT TASK for it must use the same connection (RFC
    /// 7143 §11.5.1). `None` while the task waits for the window, and after its end.
    pub fn connection_of(&self, key: TaskKey) -> Option<ConnectionId> {
        self.exchange.tasks.get(key)?.connection
    }

    /// Whether a task waits to be sent: the target does not know it.
    pub fn is_waiting(&self, key: TaskKey) -> bool {
        self.exchange.tasks.get(key).is_some_and(|task| task.connection.is_none() && task.orphan.is_none())
    }

    /// The logical unit of a SCSI command.
    pub fn lun_of(&self, key: TaskKey) -> Option<Lun> {
        match &self.exchange.tasks.get(key)?.kind {
            Kind::Scsi(scsi) => Some(scsi.lun),
            _ => None,
        }
    }

    /// The owner's token of a task.
    pub fn token_mut(&mut self, key: TaskKey) -> Option<&mut T> {
        self.exchange.tasks.get_mut(key)?.token.as_mut()
    }

    /// The owner's token of each task, in no order.
    pub fn tokens_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut T)> {
        self.exchange.tasks.iter_mut().filter_map(|(key, task)| Some((key, task.token.as_mut()?)))
    }

    /// Drops all connections. Repeatable commands, and those never sent, wait for the next session
    /// in their old order; the other tasks are returned. `first_cmd_sn` is the next login's CmdSN.
    pub fn disconnect(&mut self, first_cmd_sn: u32) -> Vec<(TaskKey, T)> {
        self.exchange.links.clear();
        self.recovery.forget();
        self.fresh = true;
        self.exchange.window.restart(first_cmd_sn);
        let mut again: Vec<(u32, TaskKey)> = Vec::new();
        let mut lost = Vec::new();
        for (key, task) in self.exchange.tasks.iter() {
            match &task.kind {
                _ if task.connection.is_none() && task.orphan.is_none() => {}
                Kind::Scsi(scsi) if scsi.may_repeat || !task.sent => again.push((task.cmd_sn, key)),
                _ => lost.push(key),
            }
        }
        in_order(&mut again);
        for (_, key) in again.into_iter().rev() {
            let Some(task) = self.exchange.tasks.get_mut(key) else {
                broken!("a command that ended with its connection");
                continue;
            };
            task.begin_again();
            self.exchange.waiting.push_front(key);
        }
        lost.into_iter().filter_map(|key| Some((key, self.exchange.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Ends the session: returns every task, in no order.
    pub fn abandon(&mut self) -> Vec<(TaskKey, T)> {
        self.exchange.links.clear();
        self.recovery.forget();
        self.exchange.waiting.clear();
        self.fresh = true;
        let keys: Vec<_> = self.exchange.tasks.iter().map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| Some((key, self.exchange.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Holds waiting commands back, or releases them; commands that have a CmdSN continue.
    pub fn hold(&mut self, held: bool) {
        self.exchange.window.hold(held);
    }

    /// The number of tasks sent to the target that have not ended.
    pub fn outstanding(&self) -> usize {
        self.exchange.links.outstanding()
    }

    /// Sets the target's new MaxRecvDataSegmentLength for a connection (RFC 7143 §13.12), bytes.
    /// Ignored over RDMA, where login fixes it.
    pub fn set_segment(&mut self, on: ConnectionId, bytes: u32) {
        if let Some(connection) = self.exchange.links.get_mut(on).filter(|c| !c.rdma) {
            connection.room.segment = bytes.clamp(512, 0xff_ffff) & !3;
        }
    }

    /// Assigns a CmdSN and a connection to waiting commands, as far as the window permits. Returns
    /// whether `on` has output; other connections may have some too.
    pub fn schedule(&mut self, on: ConnectionId) -> bool {
        self.exchange.schedule(on)
    }

    /// Whether a connection has output.
    pub fn has_output(&self, on: ConnectionId) -> bool {
        self.exchange.has_output(on)
    }

    /// Writes PDUs of a connection to `sink`, in order, until `max_bytes` are reached or nothing is
    /// left. Returns the number of bytes written.
    pub fn transmit(&mut self, on: ConnectionId, max_bytes: usize, sink: &mut impl Sink<P>) -> usize {
        self.exchange.schedule(on);
        let Some(connection) = self.exchange.links.get(on) else { return 0 };
        let (digests, exp_stat_sn) = (connection.digests, connection.exp_stat_sn);
        self.exchange.emit(on, max_bytes, &mut Stream { digests, exp_stat_sn, written: 0, sink })
    }

    /// As [`Session::transmit`] for a connection that negotiated RDMAExtensions=Yes: passes PDUs to
    /// its datamover one by one.
    pub fn transmit_messages(
        &mut self,
        on: ConnectionId,
        max_bytes: usize,
        mover: &mut impl Datamover<P, T>,
    ) -> usize {
        self.exchange.schedule(on);
        let Some(connection) = self.exchange.links.get(on) else { return 0 };
        let exp_stat_sn = connection.exp_stat_sn;
        self.exchange.emit(on, max_bytes, &mut Messages { exp_stat_sn, written: 0, mover })
    }

    fn inbound(&mut self) -> Inbound<'_, P, T> {
        Inbound { exchange: &mut self.exchange, recovery: &mut self.recovery }
    }

    /// Checks the header of a Data-In whose data segment is still incomplete. Returns the data's
    /// task and offset; `None` for data to be dropped. The driver then calls [`Session::place`]
    /// with each piece. At the end it calls [`Session::handle`] with [`super::Segment::Placed`], or
    /// [`Session::bad_data_digest`].
    ///
    /// # Errors
    /// As [`Session::handle`].
    pub fn expect_data(&self, on: ConnectionId, bhs: &Bhs) -> Result<Option<(TaskKey, u32)>, ProtocolError> {
        Ok(match self.exchange.judge_data(on, bhs)? {
            Arrival::Next(key, offset) => Some((key, offset)),
            Arrival::Old(_) | Arrival::Early(_) | Arrival::Stray => None,
        })
    }

    /// Passes a piece of a read's data to its task. Returns false if the task has ended.
    pub fn place<D>(&mut self, key: TaskKey, offset: usize, data: D) -> bool
    where
        T: Place<D>,
    {
        self.inbound().place(key, offset, data)
    }

    /// Handles a PDU with verified digests.
    ///
    /// # Errors
    /// Any [`ProtocolError`], after which no more PDUs of the connection may be handled.
    pub fn handle<D>(
        &mut self,
        on: ConnectionId,
        bhs: &Bhs,
        data: Segment<D>,
    ) -> Result<Option<Event<T>>, ProtocolError>
    where
        D: AsRef<[u8]>,
        T: Place<D>,
    {
        self.inbound().handle(on, bhs, data)
    }

    /// The recovery actions so far.
    pub fn recoveries(&self) -> Recoveries {
        self.exchange.recoveries
    }

    /// Records a PDU with a valid header and a wrong data digest (RFC 7143 §7.8). The PDU is
    /// dropped, and its content is requested again.
    ///
    /// # Errors
    /// [`ProtocolError::DataDigest`] at error recovery level 0; else as [`Session::handle`].
    pub fn bad_data_digest(&mut self, on: ConnectionId, bhs: &Bhs) -> Result<(), ProtocolError> {
        self.recovery.bad_data_digest(&mut self.exchange, on, bhs)
    }

    /// Records a PDU that was dropped for a wrong header digest (RFC 7143 §7.7). The loss shows in
    /// the numbers of later PDUs, or by silence ([`Self::tick`]).
    pub fn bad_header_digest(&mut self) {
        self.exchange.recoveries.digest_errors += 1;
    }

    /// Records a new MaxRecvDataSegmentLength of ours on a connection. Data sent before the change
    /// can only be requested by R-Data SNACK (RFC 7143 §11.16.1).
    pub fn segment_length_changed(&mut self, on: ConnectionId) {
        if let Some(connection) = self.exchange.links.get_mut(on) {
            connection.segment_epoch = connection.segment_epoch.wrapping_add(1);
        }
    }

    /// Examines silent tasks and missing PDUs. The driver must call it at regular intervals; a task
    /// is examined after a few of them without a PDU for it. Does nothing at error recovery level
    /// 0.
    ///
    /// Returns the connection that must be given up, if any, or the session.
    pub fn tick(&mut self) -> Option<GivenUp> {
        self.recovery.tick(&mut self.exchange)
    }

    /// Handles the loss of a connection at error recovery level 2. Commands sent on it wait to be
    /// moved to another connection ([`Session::adopt`]). Tasks that cannot be moved (pings, texts,
    /// functions, logouts) are returned.
    pub fn lose_connection(&mut self, on: ConnectionId) -> Vec<(TaskKey, T)> {
        self.recovery.lose_connection(&mut self.exchange, on)
    }

    /// The number of commands that wait to be moved to another connection.
    pub fn orphans(&self) -> usize {
        self.recovery.orphans(&self.exchange)
    }

    /// Sends a logout on connection `on` that removes a lost connection for recovery (RFC 7143
    /// §11.14.1); [`Event::Removed`] follows. Returns false if there is no connection `on`.
    pub fn remove_for_recovery(&mut self, on: ConnectionId, cid: u16) -> bool {
        self.recovery.remove_for_recovery(&mut self.exchange, on, cid)
    }

    /// Moves the tasks of a lost connection to the existing ones, now that the target has removed
    /// it. Call it after the response to [`Session::remove_for_recovery`], or when a new connection
    /// has the same CID.
    ///
    /// # Errors
    /// [`ProtocolError::NoReassignment`] if a task has moved too often: a new session is required.
    pub fn adopt(&mut self, cid: u16) -> Result<(), ProtocolError> {
        self.recovery.adopt(&mut self.exchange, cid)
    }
}
