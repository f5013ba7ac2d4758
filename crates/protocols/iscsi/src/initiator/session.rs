//! The session: it composes the command window, the connections and the tasks, and queues what
//! waits for them.

use std::collections::VecDeque;

use invariant::{broken, invariant};

use crate::keys::Params;
use crate::login::initiator::Established;
use crate::pdu::{
    Bhs, LogoutReason, LogoutRequest, Lun, NopOut, RESERVED_TAG, SnackRequest, SnackType, TaskAttribute,
    TextRequest, ahs,
};
use crate::sn;
use crate::target::{Payload, Sink};
use crate::text::Assembler;

use super::MAX_TEXT_RESPONSE;
use super::emit::{self, Datamover, Emit, Messages, Room, Stream};
use super::ids::{ConnectionId, TaskKey};
use super::links::{Connection, Links, Out, Snack, Spread};
use super::tasks::{Aborted, Kind, Scsi, Tasks};
use super::trouble::{Failed, Recoveries, Status};
use super::window::Window;

/// The maximum number of PDUs that the target's requests may queue.
pub(super) const MAX_READY: usize = 256;

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
    pub(super) params: Params,
    pub(super) tasks: Tasks<P, T>,
    /// Tasks that wait for the window or a connection, in order.
    pub(super) waiting: VecDeque<TaskKey>,
    pub(super) links: Links<P>,
    pub(super) window: Window,
    /// Lost connections whose tasks wait to be reassigned.
    pub(super) failed: Vec<Failed>,
    /// The next login is a leading one, and sets the session's parameters.
    fresh: bool,
    pub(super) recoveries: Recoveries,
    /// Aborted tasks of which PDUs may still arrive.
    pub(super) aborted: Aborted,
    /// Outstanding immediate requests as last sent; kept for retransmission.
    pub(super) requests: Vec<(TaskKey, Bhs, Option<P>)>,
    /// The number of outstanding TASK REASSIGNs.
    pub(super) reassigning: usize,
    /// The SNACK Tag of the last R-Data SNACK.
    pub(super) snack_tag: u32,
    /// Over RDMA, the maximum length of a write with unsolicited data, bytes.
    unsolicited: u32,
}

impl<P: Payload, T> Session<P, T> {
    /// A session without connections: nothing is sent until [`Session::connect`].
    pub fn new(config: SessionConfig) -> Self {
        Session {
            params: Params::default(),
            tasks: Tasks::new(config.max_tasks),
            waiting: VecDeque::new(),
            links: Links::new(),
            window: Window::new(config.first_cmd_sn),
            failed: Vec::new(),
            fresh: true,
            recoveries: Recoveries::default(),
            aborted: Aborted::default(),
            requests: Vec::new(),
            reassigning: 0,
            snack_tag: 0,
            unsolicited: u32::MAX,
        }
    }

    /// Limits the outstanding commands to `commands`, at least one, even if the target's window is
    /// wider. Further commands wait in the session. Commands already outstanding continue.
    pub fn limit_outstanding(&mut self, commands: usize) {
        self.window.limit(commands);
    }

    /// Whether commands have waited because of [`Session::limit_outstanding`] since the last call.
    pub fn take_limited(&mut self) -> bool {
        self.window.take_limited()
    }

    /// The width of the target's command window in its last PDU (MaxCmdSN and ExpCmdSN, RFC 7143
    /// §4.2.2.1).
    pub fn window(&self) -> u32 {
        self.window.width()
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
        for connection in self.links.iter_mut().filter(|connection| connection.rdma) {
            connection.room.unsolicited = bytes;
        }
    }

    /// Sets how commands are spread over connections.
    pub fn set_spread(&mut self, spread: Spread) {
        self.links.set_spread(spread);
    }

    /// Adds a connection after its login. The first one of a session sets its parameters. A
    /// connection with the CID of a lost one replaces it; [`Session::adopt`] then takes over its
    /// tasks.
    pub fn connect(&mut self, cid: u16, login: &Established) -> ConnectionId {
        if std::mem::replace(&mut self.fresh, false) {
            self.params = login.params.clone();
            self.window.open_at(login.exp_cmd_sn);
            self.links.clear();
            self.aborted = Aborted::default();
        }
        self.window.update(login.exp_cmd_sn, login.max_cmd_sn);
        let rdma = login.params.rdma_extensions;
        let segment = if rdma {
            login.params.target_recv_data_segment_length
        } else {
            login.params.peer_max_recv_data_segment_length
        };
        self.links.add(Connection {
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
        self.links.is_empty()
    }

    /// The CmdSN of the next command, which the login of a further connection carries too.
    pub fn cmd_sn(&self) -> u32 {
        self.window.cmd_sn()
    }

    /// The parameters that the leading login negotiated for the session.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The number of tasks that have not ended, including waiting ones.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The number of SCSI commands that have not ended, including waiting ones. Excludes pings,
    /// texts and other requests.
    pub fn commands(&self) -> usize {
        self.tasks.commands()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.tasks.len() == 0
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
        let key = self.tasks.insert(token, Kind::Scsi(scsi), 0, None)?;
        self.waiting.push_back(key);
        Ok(key)
    }

    /// Pings the target (immediate delivery): [`super::Event::Pong`] follows.
    ///
    /// # Errors
    /// Returns the token if the connection is gone or there are too many tasks.
    pub fn ping(&mut self, on: ConnectionId, token: T) -> Result<TaskKey, T> {
        let key = self.begin(on, Kind::Ping, token)?;
        let mut pdu = NopOut::ping(key.0);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.put(on, pdu.into(), true, None);
        Ok(key)
    }

    /// Sends a text (immediate delivery), which must fit one PDU.
    ///
    /// # Errors
    /// As [`Session::ping`].
    pub fn text(&mut self, on: ConnectionId, text: P, token: T) -> Result<TaskKey, T> {
        let key = self.begin(on, Kind::Text(Assembler::new(MAX_TEXT_RESPONSE)), token)?;
        let mut pdu = TextRequest::new(key.0, RESERVED_TAG);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.request(on, key, pdu.into(), Some(text));
        Ok(key)
    }

    /// Sends a logout (immediate delivery): [`super::Event::LoggedOut`] follows.
    ///
    /// # Errors
    /// As [`Session::ping`].
    pub fn logout(&mut self, on: ConnectionId, reason: LogoutReason, token: T) -> Result<TaskKey, T> {
        let Some(cid) = self.links.get(on).map(|c| c.cid) else { return Err(token) };
        let key = self.begin(on, Kind::Logout, token)?;
        let mut pdu = LogoutRequest::new(key.0, reason, cid);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Forgets a task: a waiting one, or one that the target will not answer.
    pub fn forget(&mut self, key: TaskKey) -> Option<T> {
        self.take_task(key).map(|(token, _)| token)
    }

    /// The connection that a task was sent on. ABORT TASK for it must use the same connection (RFC
    /// 7143 §11.5.1). `None` while the task waits for the window, and after its end.
    pub fn connection_of(&self, key: TaskKey) -> Option<ConnectionId> {
        self.tasks.get(key)?.connection
    }

    /// Whether a task waits to be sent: the target does not know it.
    pub fn is_waiting(&self, key: TaskKey) -> bool {
        self.tasks.get(key).is_some_and(|task| task.connection.is_none() && task.orphan.is_none())
    }

    /// The logical unit of a SCSI command.
    pub fn lun_of(&self, key: TaskKey) -> Option<Lun> {
        match &self.tasks.get(key)?.kind {
            Kind::Scsi(scsi) => Some(scsi.lun),
            _ => None,
        }
    }

    /// The owner's token of a task.
    pub fn token_mut(&mut self, key: TaskKey) -> Option<&mut T> {
        self.tasks.get_mut(key)?.token.as_mut()
    }

    /// The owner's token of each task, in no order.
    pub fn tokens_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut T)> {
        self.tasks.iter_mut().filter_map(|(key, task)| Some((key, task.token.as_mut()?)))
    }

    /// Drops all connections. Repeatable commands, and those never sent, wait for the next session
    /// in their old order; the other tasks are returned. `first_cmd_sn` is the next login's CmdSN.
    pub fn disconnect(&mut self, first_cmd_sn: u32) -> Vec<(TaskKey, T)> {
        self.links.clear();
        self.failed.clear();
        self.reassigning = 0;
        self.fresh = true;
        self.window.restart(first_cmd_sn);
        let mut again: Vec<(u32, TaskKey)> = Vec::new();
        let mut lost = Vec::new();
        for (key, task) in self.tasks.iter() {
            match &task.kind {
                _ if task.connection.is_none() && task.orphan.is_none() => {}
                Kind::Scsi(scsi) if scsi.may_repeat || !task.sent => again.push((task.cmd_sn, key)),
                _ => lost.push(key),
            }
        }
        in_order(&mut again);
        for (_, key) in again.into_iter().rev() {
            let Some(task) = self.tasks.get_mut(key) else {
                broken!("a command that ended with its connection");
                continue;
            };
            task.begin_again();
            self.waiting.push_front(key);
        }
        lost.into_iter().filter_map(|key| Some((key, self.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Ends the session: returns every task, in no order.
    pub fn abandon(&mut self) -> Vec<(TaskKey, T)> {
        self.links.clear();
        self.failed.clear();
        self.reassigning = 0;
        self.waiting.clear();
        self.fresh = true;
        let keys: Vec<_> = self.tasks.iter().map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| Some((key, self.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Holds waiting commands back, or releases them; commands that have a CmdSN continue.
    pub fn hold(&mut self, held: bool) {
        self.window.hold(held);
    }

    /// The number of tasks sent to the target that have not ended.
    pub fn outstanding(&self) -> usize {
        self.links.outstanding()
    }

    /// Sets the target's new MaxRecvDataSegmentLength for a connection (RFC 7143 §13.12), bytes.
    /// Ignored over RDMA, where login fixes it.
    pub fn set_segment(&mut self, on: ConnectionId, bytes: u32) {
        if let Some(connection) = self.links.get_mut(on).filter(|c| !c.rdma) {
            connection.room.segment = bytes.clamp(512, 0xff_ffff) & !3;
        }
    }

    /// Assigns a CmdSN and a connection to waiting commands, as far as the window permits. Returns
    /// whether `on` has output; other connections may have some too.
    pub fn schedule(&mut self, on: ConnectionId) -> bool {
        let mut outstanding = if self.window.is_limited() { self.links.outstanding() } else { 0 };
        while let Some(&key) = self.waiting.front() {
            if !self.window.admits(outstanding) {
                break;
            }
            let Some(chosen) = self.links.choose() else { break };
            self.waiting.pop_front();
            let Some(task) = self.tasks.get_mut(key) else {
                broken!("a command that waits and has ended");
                continue;
            };
            task.cmd_sn = self.window.take();
            task.connection = Some(chosen);
            outstanding += 1;
            if let Some(connection) = self.links.get_mut(chosen) {
                connection.outstanding += 1;
                connection.out.push_back(Out::Command(key));
            }
        }
        self.has_output(on)
    }

    /// Whether a connection has output.
    pub fn has_output(&self, on: ConnectionId) -> bool {
        self.links.get(on).is_some_and(Connection::has_output)
    }

    /// Writes PDUs of a connection to `sink`, in order, until `max_bytes` are reached or nothing is
    /// left. Returns the number of bytes written.
    pub fn transmit(&mut self, on: ConnectionId, max_bytes: usize, sink: &mut impl Sink<P>) -> usize {
        self.schedule(on);
        let Some(connection) = self.links.get(on) else { return 0 };
        let (digests, exp_stat_sn) = (connection.digests, connection.exp_stat_sn);
        self.emit(on, max_bytes, &mut Stream { digests, exp_stat_sn, written: 0, sink })
    }

    /// As [`Session::transmit`] for a connection that negotiated RDMAExtensions=Yes: passes PDUs to
    /// its datamover one by one.
    pub fn transmit_messages(
        &mut self,
        on: ConnectionId,
        max_bytes: usize,
        mover: &mut impl Datamover<P, T>,
    ) -> usize {
        self.schedule(on);
        let Some(connection) = self.links.get(on) else { return 0 };
        let exp_stat_sn = connection.exp_stat_sn;
        self.emit(on, max_bytes, &mut Messages { exp_stat_sn, written: 0, mover })
    }

    fn emit(&mut self, on: ConnectionId, max_bytes: usize, writer: &mut impl Emit<P, T>) -> usize {
        while writer.written() < max_bytes {
            let Some(connection) = self.links.get_mut(on) else {
                broken!("a connection lost while it sends");
                break;
            };
            if let Some(Snack { kind, itt, tag, from, lun }) = connection.snacks.pop_front() {
                // PDUs that arrived since the SNACK was queued are acknowledged now, and must not
                // be requested (§11.16.1).
                if let Some(from) = self.still_missing(on, kind, TaskKey(itt), from) {
                    // The Target Transfer Tag alone identifies the task of a DataACK (§11.16.2).
                    let itt = if kind == SnackType::DataAck { RESERVED_TAG } else { itt };
                    let mut pdu = SnackRequest::new(kind, itt, tag, from, 0);
                    pdu.lun = lun;
                    writer.pdu(&mut pdu.into(), &[], None);
                }
                continue;
            }
            let Some(out) = connection.out.pop_front() else { break };
            let (room, epoch) = (connection.room, connection.segment_epoch);
            match out {
                Out::Ready { mut header, data } => {
                    if invariant!(connection.ready > 0, "more PDUs sent than were queued") {
                        connection.ready -= 1;
                    }
                    writer.pdu(&mut header, &[], data);
                }
                Out::Command(key) => {
                    if let Some(task) = self.tasks.get_mut(key).filter(|task| task.connection == Some(on)) {
                        (task.sent, task.idle) = (true, 0);
                        if let Kind::Scsi(scsi) = &mut task.kind {
                            scsi.segment_epoch = epoch;
                        }
                        emit::command(writer, key, task, &self.params, room);
                    }
                }
                Out::Solicited { key, ttt, offset, len } => {
                    // The task may have ended meanwhile; its data is then not needed.
                    if let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) {
                        scsi.r2ts_open = scsi.r2ts_open.saturating_sub(1);
                        emit::data_out(writer, key, scsi, ttt, offset, len, room);
                    }
                }
            }
        }
        writer.written()
    }

    /// Creates a task that is sent at once.
    pub(super) fn begin(&mut self, on: ConnectionId, kind: Kind<P>, token: T) -> Result<TaskKey, T> {
        let Some(connection) = self.links.get_mut(on) else {
            return Err(token);
        };
        let key = self.tasks.insert(token, kind, self.window.cmd_sn(), Some(on))?;
        connection.outstanding += 1;
        Ok(key)
    }

    pub(super) fn put(&mut self, on: ConnectionId, mut header: Bhs, immediate: bool, data: Option<P>) {
        header.set_immediate(immediate);
        match self.links.get_mut(on) {
            Some(connection) => connection.put(header, data),
            None => broken!("a PDU for a lost connection"),
        }
    }

    pub(super) fn put_solicited(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, offset: u32, len: u32) {
        match self.links.get_mut(on) {
            Some(connection) => connection.out.push_back(Out::Solicited { key, ttt, offset, len }),
            None => broken!("data-out for a lost connection"),
        }
    }

    /// Answers the target's ping.
    pub(super) fn answer_ping(&mut self, on: ConnectionId, ttt: u32, lun: Lun) {
        let mut pdu = NopOut::answer(ttt, lun);
        pdu.cmd_sn.set(self.window.cmd_sn());
        self.put(on, pdu.into(), true, None);
    }

    /// Requests the rest of a text.
    pub(super) fn continue_text(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, lun: Lun) {
        let mut pdu = TextRequest::new(key.0, ttt);
        pdu.cmd_sn.set(self.window.cmd_sn());
        pdu.lun = lun;
        self.request(on, key, pdu.into(), None);
    }

    /// As [`Self::put`], for an immediate request of a task, which may have to be resent.
    pub(super) fn request(&mut self, on: ConnectionId, key: TaskKey, header: Bhs, data: Option<P>) {
        if self.recovers() {
            let tasks = &self.tasks;
            self.requests.retain(|(other, ..)| *other != key && tasks.get(*other).is_some());
            self.requests.push((key, header, data.clone()));
        }
        self.put(on, header, true, data);
    }

    /// Ends a task. Returns its token, and the number of a read's bytes placed.
    pub(super) fn take_task(&mut self, key: TaskKey) -> Option<(T, u32)> {
        if self.tasks.get(key)?.token.is_none() {
            self.end_internal(key);
            return None;
        }
        let (token, (connection, received)) = self.tasks.remove(key, |task| {
            let received = if let Kind::Scsi(scsi) = &task.kind { scsi.received } else { 0 };
            (task.connection, received)
        })?;
        match connection {
            Some(on) => {
                if let Some(connection) = self.links.get_mut(on) {
                    connection.task_ended();
                    if connection.status.held == Some(key) {
                        self.release_status(on);
                    }
                }
            }
            None => self.waiting.retain(|waiting| *waiting != key),
        }
        Some((token, received))
    }
}

/// Sorts commands by CmdSN. Outstanding commands span far less than half of the number space.
pub(super) fn in_order<T>(commands: &mut [(u32, T)]) {
    commands.sort_by(
        |(a, _), (b, _)| if sn::lt(*a, *b) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater },
    );
}
