//! The session: its window of CmdSNs, the commands that wait for it, and what each connection has to send.

use std::collections::VecDeque;

use crate::frame::Digests;
use crate::keys::{Digest, Params};
use crate::login::initiator::Established;
use crate::pdu::{
    Bhs, LogoutReason, LogoutRequest, Lun, NopOut, RESERVED_TAG, SnackRequest, SnackType, TaskAttribute,
    TaskManagementFunction, TaskManagementRequest, TextRequest, ahs,
};
use crate::sn;
use crate::target::{Payload, Sink};
use crate::text::Assembler;

use super::MAX_TEXT_RESPONSE;
use super::emit::{self, Datamover, Emit, Messages, Room, Stream};
use super::recovery::{Failed, Recoveries, Status};
use super::tasks::{Kind, Scsi, TaskKey, Tasks};

/// A connection of a session, by its place in the session. Not the CID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

/// What a session is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfig {
    /// Tasks at once, waiting ones included, 1 to 65535.
    pub max_tasks: usize,
    /// CmdSN of the first command: what the leading login carried.
    pub first_cmd_sn: u32,
}

/// Which connection of several the next command goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// The one with the fewest tasks under way.
    #[default]
    LeastOutstanding,
    /// One after the other.
    RoundRobin,
}

/// A SCSI command to submit.
#[derive(Debug, Clone)]
pub struct Command<'a, P> {
    /// The logical unit.
    pub lun: Lun,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// 6 to 260 bytes.
    pub cdb: &'a [u8],
    /// What the command writes.
    pub write: Option<P>,
    /// Bytes that the command reads at most; `None` if it reads nothing.
    pub read_len: Option<u32>,
    /// Whether the command may be sent again after a lost connection, not knowing whether it ran.
    pub may_repeat: bool,
}

/// Something to be sent.
#[derive(Debug)]
pub(super) enum Out<P> {
    /// A SCSI command, with its immediate and unsolicited data.
    Command(TaskKey),
    /// Data that an R2T asked for.
    Solicited { key: TaskKey, ttt: u32, offset: u32, len: u32 },
    /// A PDU whose header lacks numbers only.
    Ready { header: Box<Bhs>, data: Option<P> },
}

/// A SNACK to be sent; the LUN is a DataACK's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snack {
    pub kind: SnackType,
    pub itt: u32,
    pub tag: u32,
    pub from: u32,
    pub lun: Lun,
}

#[derive(Debug)]
pub(super) struct Connection<P> {
    pub cid: u16,
    digests: Digests,
    room: Room,
    /// Data come and go by RDMA: no Data-In and no R2T (RFC 7145 §7.3).
    pub rdma: bool,
    pub exp_stat_sn: u32,
    /// Statuses that were seen to be missing.
    pub status: Status,
    /// Counts changes of the longest data segment that we take.
    pub segment_epoch: u16,
    /// They go before everything else: somebody waits for what they ask for.
    pub snacks: VecDeque<Snack>,
    pub out: VecDeque<Out<P>>,
    /// How many of them are [`Out::Ready`].
    pub ready: usize,
    /// Tasks sent here that have not ended.
    pub outstanding: usize,
}

/// A session of one or more connections. `P` is a payload, `T` what the owner keeps with each task.
#[derive(Debug)]
pub struct Session<P, T> {
    pub(super) params: Params,
    pub(super) tasks: Tasks<P, T>,
    /// Tasks that wait for the window or a connection, in order.
    pub(super) waiting: VecDeque<TaskKey>,
    pub(super) connections: Vec<Option<Connection<P>>>,
    /// Lost connections whose tasks wait to be reassigned.
    pub(super) failed: Vec<Failed>,
    /// The next login leads a session, and brings its parameters.
    fresh: bool,
    spread: Spread,
    /// Where the next command goes, or behind it, by [`Spread::RoundRobin`].
    next_connection: usize,
    pub(super) recoveries: Recoveries,
    /// Immediate requests that are under way, as they were sent last: kept where they may have to be sent again.
    pub(super) requests: Vec<(TaskKey, Bhs, Option<P>)>,
    /// TASK REASSIGNs under way.
    pub(super) reassigning: usize,
    /// The last R-Data SNACK's.
    pub(super) snack_tag: u32,
    /// Waiting commands stay where they are.
    held: bool,
    /// The next command's.
    pub(super) cmd_sn: u32,
    pub(super) exp_cmd_sn: u32,
    max_cmd_sn: u32,
    /// Over RDMA, the longest write of which anything is sent unasked, bytes.
    unsolicited: u32,
    /// Commands that the target is given at a time, whatever its window.
    limit: usize,
    /// Commands have waited for that.
    limited: bool,
}

impl<P: Payload, T> Session<P, T> {
    /// A session without connections: nothing is sent until [`Session::connect`].
    pub fn new(config: SessionConfig) -> Self {
        Session {
            params: Params::default(),
            tasks: Tasks::new(config.max_tasks),
            waiting: VecDeque::new(),
            held: false,
            connections: Vec::new(),
            failed: Vec::new(),
            fresh: true,
            spread: Spread::default(),
            next_connection: 0,
            recoveries: Recoveries::default(),
            requests: Vec::new(),
            reassigning: 0,
            snack_tag: 0,
            cmd_sn: config.first_cmd_sn,
            exp_cmd_sn: config.first_cmd_sn,
            max_cmd_sn: config.first_cmd_sn.wrapping_sub(1),
            unsolicited: u32::MAX,
            limit: usize::MAX,
            limited: false,
        }
    }

    /// Gives the target at most so many commands at a time from now on, at least one, though its window is wider; the others wait
    /// here. Those that it has go on.
    pub fn limit_outstanding(&mut self, commands: usize) {
        self.limit = commands.max(1);
    }

    /// Whether commands have waited because of [`Session::limit_outstanding`] since this was asked last.
    pub fn take_limited(&mut self) -> bool {
        std::mem::take(&mut self.limited)
    }

    /// Commands that the target takes at a time, as its last PDU said (MaxCmdSN and ExpCmdSN, RFC 7143 §4.2.2.1).
    pub fn window(&self) -> u32 {
        // It may have been closed: MaxCmdSN is ExpCmdSN-1 then.
        self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1)
    }

    /// Over RDMA, sends nothing unasked of writes longer than `bytes`: the target fetches them whole by RDMA Read, which
    /// costs a round trip and spares the target a copy. For connections that are made from now on; all of what the target
    /// allows is sent otherwise, and over TCP in any case.
    pub fn limit_unsolicited(&mut self, bytes: u32) {
        self.unsolicited = bytes;
    }

    /// As [`Session::limit_unsolicited`], for the connections that there are too, from their next command on.
    pub fn change_unsolicited(&mut self, bytes: u32) {
        self.unsolicited = bytes;
        for connection in self.connections.iter_mut().flatten().filter(|connection| connection.rdma) {
            connection.room.unsolicited = bytes;
        }
    }

    /// Says how commands are spread over connections from now on.
    pub fn set_spread(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// Adds a connection whose login is done. The first one of a session brings its parameters. One with the CID of a
    /// lost connection takes its place; [`Session::adopt`] then takes over its tasks.
    pub fn connect(&mut self, cid: u16, login: &Established) -> ConnectionId {
        if std::mem::replace(&mut self.fresh, false) {
            self.params = login.params.clone();
            self.exp_cmd_sn = login.exp_cmd_sn;
            self.max_cmd_sn = login.exp_cmd_sn.wrapping_sub(1);
            self.connections.clear();
        }
        self.update_window(login.exp_cmd_sn, login.max_cmd_sn);
        let rdma = login.params.rdma_extensions;
        let segment = if rdma {
            login.params.target_recv_data_segment_length
        } else {
            login.params.peer_max_recv_data_segment_length
        };
        let connection = Connection {
            cid,
            rdma,
            room: Room {
                segment: segment.max(512),
                unsolicited: if rdma { self.unsolicited } else { u32::MAX },
            },
            digests: Digests {
                header: login.params.header_digest == Digest::Crc32c,
                data: login.params.data_digest == Digest::Crc32c,
            },
            exp_stat_sn: login.stat_sn.wrapping_add(1),
            status: Status::default(),
            segment_epoch: 0,
            snacks: VecDeque::new(),
            out: VecDeque::new(),
            ready: 0,
            outstanding: 0,
        };
        let index = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(connection);
        ConnectionId(index)
    }

    /// Whether the session has no connection.
    pub fn is_disconnected(&self) -> bool {
        self.connections.iter().all(Option::is_none)
    }

    /// The CmdSN that the next command, and the login of a further connection, carries.
    pub fn cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// What the leading login negotiated for the session.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Tasks that have not ended, waiting ones included.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// SCSI commands that have not ended, waiting ones included: pings, texts and the like are none.
    pub fn commands(&self) -> usize {
        self.tasks.commands()
    }

    /// Whether no task is under way.
    pub fn is_empty(&self) -> bool {
        self.tasks.len() == 0
    }

    /// Whether [`Session::submit`] would give a command back.
    pub fn is_full(&self) -> bool {
        self.tasks.is_full()
    }

    /// Queues a command. It is sent when the target's window lets it.
    ///
    /// # Errors
    /// The token comes back if there are as many tasks as the limit, or the command cannot be put into a PDU: a CDB that
    /// is empty or longer than 260 bytes, or a write longer than 4 GiB.
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

    /// Sends a task management function at once (immediate delivery). `task` is the one that ABORT TASK means.
    ///
    /// # Errors
    /// The token comes back if the connection is gone or there are too many tasks.
    pub fn task_management(
        &mut self,
        on: ConnectionId,
        function: TaskManagementFunction,
        lun: Lun,
        task: Option<TaskKey>,
        token: T,
    ) -> Result<TaskKey, T> {
        let referenced = task.and_then(|key| Some((key, self.tasks.get(key)?.cmd_sn)));
        let key = self.begin(on, Kind::TaskManagement, token)?;
        let mut pdu = TaskManagementRequest::new(key.0, function, lun);
        pdu.cmd_sn.set(self.cmd_sn);
        if let Some((task, cmd_sn)) = referenced {
            pdu.referenced_task_tag.set(task.0);
            pdu.ref_cmd_sn.set(cmd_sn);
        }
        self.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Pings the target (immediate delivery): [`super::Event::Pong`] follows.
    ///
    /// # Errors
    /// As [`Session::task_management`].
    pub fn ping(&mut self, on: ConnectionId, token: T) -> Result<TaskKey, T> {
        let key = self.begin(on, Kind::Ping, token)?;
        let mut pdu = NopOut::ping(key.0);
        pdu.cmd_sn.set(self.cmd_sn);
        self.put(on, pdu.into(), true, None);
        Ok(key)
    }

    /// Sends a text (immediate delivery), which must fit one PDU.
    ///
    /// # Errors
    /// As [`Session::task_management`].
    pub fn text(&mut self, on: ConnectionId, text: P, token: T) -> Result<TaskKey, T> {
        let key = self.begin(on, Kind::Text(Assembler::new(MAX_TEXT_RESPONSE)), token)?;
        let mut pdu = TextRequest::new(key.0, RESERVED_TAG);
        pdu.cmd_sn.set(self.cmd_sn);
        self.request(on, key, pdu.into(), Some(text));
        Ok(key)
    }

    /// Asks to log out (immediate delivery): [`super::Event::LoggedOut`] follows.
    ///
    /// # Errors
    /// As [`Session::task_management`].
    pub fn logout(&mut self, on: ConnectionId, reason: LogoutReason, token: T) -> Result<TaskKey, T> {
        let Some(cid) = self.connection(on).map(|c| c.cid) else { return Err(token) };
        let key = self.begin(on, Kind::Logout, token)?;
        let mut pdu = LogoutRequest::new(key.0, reason, cid);
        pdu.cmd_sn.set(self.cmd_sn);
        self.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Forgets a task that the target will not answer any more, such as one that was aborted.
    pub fn forget(&mut self, key: TaskKey) -> Option<T> {
        self.take_task(key).map(|(token, _)| token)
    }

    /// The connection that a task was sent on, where ABORT TASK for it belongs (RFC 7143 §11.5.1). `None` while it waits for
    /// the window, and when it has ended.
    pub fn connection_of(&self, key: TaskKey) -> Option<ConnectionId> {
        self.tasks.get(key)?.connection
    }

    /// What the owner keeps with a task.
    pub fn token_mut(&mut self, key: TaskKey) -> Option<&mut T> {
        self.tasks.get_mut(key)?.token.as_mut()
    }

    /// What the owner keeps with each task, in no order.
    pub fn tokens_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut T)> {
        self.tasks.iter_mut().filter_map(|(key, task)| Some((key, task.token.as_mut()?)))
    }

    /// Drops all connections. Commands that may be repeated, and those that were never sent, wait for the next
    /// session in their old order; the others come back. `first_cmd_sn` is the next login's CmdSN.
    pub fn disconnect(&mut self, first_cmd_sn: u32) -> Vec<(TaskKey, T)> {
        self.connections.clear();
        self.failed.clear();
        self.reassigning = 0;
        self.fresh = true;
        self.cmd_sn = first_cmd_sn;
        self.exp_cmd_sn = first_cmd_sn;
        self.max_cmd_sn = first_cmd_sn.wrapping_sub(1);
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
            let Some(task) = self.tasks.get_mut(key) else { continue };
            task.begin_again();
            self.waiting.push_front(key);
        }
        lost.into_iter().filter_map(|key| Some((key, self.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Ends the session: every task comes back, in no order.
    pub fn abandon(&mut self) -> Vec<(TaskKey, T)> {
        self.connections.clear();
        self.failed.clear();
        self.reassigning = 0;
        self.waiting.clear();
        self.fresh = true;
        let keys: Vec<_> = self.tasks.iter().map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| Some((key, self.tasks.remove(key, |_| ())?.0))).collect()
    }

    /// Gives no waiting command to the target any more, or again; those that have their numbers go on.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Tasks that were given to the target and have not ended.
    pub fn outstanding(&self) -> usize {
        self.connections.iter().flatten().map(|connection| connection.outstanding).sum()
    }

    /// The target declared another MaxRecvDataSegmentLength for a connection (RFC 7143 §13.12), bytes. Over RDMA, login has decided it.
    pub fn set_segment(&mut self, on: ConnectionId, bytes: u32) {
        if let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut).filter(|c| !c.rdma)
        {
            connection.room.segment = bytes.clamp(512, 0xff_ffff);
        }
    }

    /// Gives waiting commands their CmdSN and connection, as far as the window reaches. Answers whether `on` has
    /// something to send; other connections may have, too.
    pub fn schedule(&mut self, on: ConnectionId) -> bool {
        let mut outstanding = if self.limit == usize::MAX { 0 } else { self.outstanding() };
        while let Some(&key) = self.waiting.front() {
            if self.held || !sn::le(self.cmd_sn, self.max_cmd_sn) {
                break;
            }
            if outstanding >= self.limit {
                self.limited = true;
                break;
            }
            let Some(ConnectionId(index)) = self.choose() else { break };
            self.waiting.pop_front();
            let Some(task) = self.tasks.get_mut(key) else { continue };
            task.cmd_sn = self.cmd_sn;
            task.connection = Some(ConnectionId(index));
            outstanding += 1;
            self.cmd_sn = sn::next(self.cmd_sn);
            if let Some(connection) = &mut self.connections[index] {
                connection.outstanding += 1;
                connection.out.push_back(Out::Command(key));
            }
        }
        self.has_output(on)
    }

    /// The connection for the next command.
    pub(super) fn choose(&mut self) -> Option<ConnectionId> {
        let open = self.connections.iter().enumerate();
        let index = match self.spread {
            Spread::LeastOutstanding => open.filter_map(|(i, c)| Some((c.as_ref()?.outstanding, i))).min()?.1,
            Spread::RoundRobin => {
                let (next, count) = (self.next_connection, self.connections.len());
                let all = (0..count).map(|n| (next + n) % count);
                let index = { all }.find(|i| self.connections.get(*i).is_some_and(Option::is_some))?;
                self.next_connection = index + 1;
                index
            }
        };
        Some(ConnectionId(index))
    }

    /// Whether a connection has something to send.
    pub fn has_output(&self, on: ConnectionId) -> bool {
        self.connection(on).is_some_and(|c| !c.out.is_empty() || !c.snacks.is_empty())
    }

    /// Writes PDUs of a connection to `sink`, in order, until it has `max_bytes` or nothing is left. Answers how many
    /// bytes it wrote.
    pub fn transmit(&mut self, on: ConnectionId, max_bytes: usize, sink: &mut impl Sink<P>) -> usize {
        self.schedule(on);
        let Some(connection) = self.connection(on) else { return 0 };
        let (digests, exp_stat_sn) = (connection.digests, connection.exp_stat_sn);
        self.emit(on, max_bytes, &mut Stream { digests, exp_stat_sn, written: 0, sink })
    }

    /// As [`Session::transmit`] for a connection whose login agreed on RDMAExtensions=Yes: hands PDUs to its datamover one
    /// by one.
    pub fn transmit_messages(
        &mut self,
        on: ConnectionId,
        max_bytes: usize,
        mover: &mut impl Datamover<P, T>,
    ) -> usize {
        self.schedule(on);
        let Some(connection) = self.connection(on) else { return 0 };
        let exp_stat_sn = connection.exp_stat_sn;
        self.emit(on, max_bytes, &mut Messages { exp_stat_sn, written: 0, mover })
    }

    fn emit(&mut self, on: ConnectionId, max_bytes: usize, writer: &mut impl Emit<P, T>) -> usize {
        while writer.written() < max_bytes {
            let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut) else { break };
            if let Some(Snack { kind, itt, tag, from, lun }) = connection.snacks.pop_front() {
                // What came since it was queued is acknowledged by now, and must not be asked for (§11.16.1).
                if let Some(from) = self.still_missing(on, kind, TaskKey(itt), from) {
                    // The Target Transfer Tag alone says whose data a DataACK means (§11.16.2).
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
                    connection.ready = connection.ready.saturating_sub(1);
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
                    // The task may have ended meanwhile; then nobody waits for its data.
                    if let Some(Kind::Scsi(scsi)) = self.tasks.get_mut(key).map(|t| &mut t.kind) {
                        scsi.r2ts_open = scsi.r2ts_open.saturating_sub(1);
                        emit::data_out(writer, key, scsi, ttt, offset, len, room);
                    }
                }
            }
        }
        writer.written()
    }

    /// Puts a task that is sent at once.
    pub(super) fn begin(&mut self, on: ConnectionId, kind: Kind<P>, token: T) -> Result<TaskKey, T> {
        let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut) else {
            return Err(token);
        };
        let key = self.tasks.insert(token, kind, self.cmd_sn, Some(on))?;
        connection.outstanding += 1;
        Ok(key)
    }

    pub(super) fn put(&mut self, on: ConnectionId, mut header: Bhs, immediate: bool, data: Option<P>) {
        header.set_immediate(immediate);
        if let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut) {
            connection.ready += 1;
            connection.out.push_back(Out::Ready { header: Box::new(header), data });
        }
    }

    pub(super) fn put_solicited(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, offset: u32, len: u32) {
        if let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut) {
            connection.out.push_back(Out::Solicited { key, ttt, offset, len });
        }
    }

    /// Answers the target's ping.
    pub(super) fn answer_ping(&mut self, on: ConnectionId, ttt: u32, lun: Lun) {
        let mut pdu = NopOut::answer(ttt, lun);
        pdu.cmd_sn.set(self.cmd_sn);
        self.put(on, pdu.into(), true, None);
    }

    /// Asks for the rest of a text.
    pub(super) fn continue_text(&mut self, on: ConnectionId, key: TaskKey, ttt: u32, lun: Lun) {
        let mut pdu = TextRequest::new(key.0, ttt);
        pdu.cmd_sn.set(self.cmd_sn);
        pdu.lun = lun;
        self.request(on, key, pdu.into(), None);
    }

    /// [`Self::put`] of an immediate request that a task stands for, and may have to be sent again.
    pub(super) fn request(&mut self, on: ConnectionId, key: TaskKey, header: Bhs, data: Option<P>) {
        if self.recovers() {
            let tasks = &self.tasks;
            self.requests.retain(|(other, ..)| *other != key && tasks.get(*other).is_some());
            self.requests.push((key, header, data.clone()));
        }
        self.put(on, header, true, data);
    }

    pub(super) fn connection(&self, on: ConnectionId) -> Option<&Connection<P>> {
        self.connections.get(on.0)?.as_ref()
    }

    /// Ends a task: its token, and how many bytes of a read were placed.
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
                if let Some(connection) = self.connections.get_mut(on.0).and_then(Option::as_mut) {
                    connection.outstanding = connection.outstanding.saturating_sub(1);
                    if connection.status.held == Some(key) {
                        self.release_status(on);
                    }
                }
            }
            None => self.waiting.retain(|waiting| *waiting != key),
        }
        Some((token, received))
    }

    /// Takes ExpCmdSN and MaxCmdSN of a PDU (RFC 7143 §4.2.2.1): older ones, and a pair that contradicts itself, say
    /// nothing.
    pub(super) fn update_window(&mut self, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if sn::lt(max_cmd_sn, exp_cmd_sn.wrapping_sub(1)) {
            return;
        }
        if sn::gt(max_cmd_sn, self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        if sn::gt(exp_cmd_sn, self.exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
    }
}

/// Puts commands in the order of their CmdSNs: those under way span far less than half the numbers.
pub(super) fn in_order<T>(commands: &mut [(u32, T)]) {
    commands.sort_by(
        |(a, _), (b, _)| if sn::lt(*a, *b) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater },
    );
}
