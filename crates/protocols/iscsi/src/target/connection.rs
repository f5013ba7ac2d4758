//! Handles the PDUs that arrive at a target on one connection in full-feature phase.
//!
//! [`super::respond`] has the other direction: the PDUs that the target sends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::events::{
    Abort, Completion, Config, Event, Fatal, LogoutRequest, ScsiCommand, TaskManagement, TextExchange,
};
use super::inbound::{InboundError, Read, WriteLimits};
use super::payload::{Data, Payload, Sink};
use super::recovery::{History, Recovered, Recovery};
use super::respond::fresh_tag;
use super::tasks::{Task, TaskKey, TaskTable};
use super::window::{Admission, Cid, Window};
use crate::pdu::{self, Bhs, LogoutReason, Lun, PduRef, RESERVED_TAG, RejectReason};
use crate::sn;

/// A numbered PDU that waits for its turn.
#[derive(Debug)]
pub(super) enum Work<P> {
    Event(Event),
    /// Refused at arrival: its response waits for the command's turn.
    Refuse(TaskKey, Completion),
    Ping(pdu::NopOut, P),
    /// The initiator's text is incomplete, or it requests more of ours.
    MoreText(u32, Lun),
    Reject(RejectReason, Bhs),
    /// It was sent after the initiator's logout.
    Late(Bhs),
}

/// Why a SCSI command is not run.
enum Unfit {
    /// There is no task for it.
    Reject(RejectReason, Bhs),
    /// It has a task, which ends with this completion.
    Refuse(TaskKey, Completion),
}

impl<P> From<Unfit> for Work<P> {
    #[cold]
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Reject(reason, bhs) => Self::Reject(reason, bhs),
            Unfit::Refuse(task, completion) => Self::Refuse(task, completion),
        }
    }
}

/// Appends the rest of a CDB to its first 16 bytes, using the memory `spare`. Returns the
/// Bidirectional Read Expected Data Transfer Length (RFC 7143 §11.2.2), 0 if absent. `None`: an AHS
/// that is invalid for a command.
#[cold]
fn more_of_command(ahs: &[u8], cdb: &mut SmallVec<[u8; 16]>, spare: &mut SmallVec<[u8; 16]>) -> Option<u32> {
    let mut read_len = 0;
    for header in pdu::ahs::iter(ahs) {
        match header {
            Ok(pdu::ahs::Ahs::ExtendedCdb(rest)) if cdb.len() == 16 => {
                let mut whole = std::mem::take(spare);
                whole.clear();
                whole.extend_from_slice(cdb);
                whole.extend_from_slice(rest);
                *cdb = whole;
            }
            Ok(pdu::ahs::Ahs::BidiReadLength(len)) => read_len = len,
            _ => return None,
        }
    }
    Some(read_len)
}

/// A text exchange over several PDUs, in either direction.
#[derive(Debug, Default)]
pub(super) struct TextState {
    /// The Target Transfer Tag that continues it.
    pub tag: Option<u32>,
    /// Nothing of the exchange has been answered so far.
    pub begins: bool,
    /// The initiator's text received so far.
    pub request: Vec<u8>,
    /// The text still to be sent.
    pub reply: Vec<u8>,
}

/// The number of rejected PDUs after which a connection is dropped.
const MAX_REJECTS: u32 = 256;
/// The maximum number of unfinished immediate commands, in addition to the window's.
const MAX_IMMEDIATE: usize = 16;
/// The maximum data segment that every initiator receives, bytes. With iSER it is less than the 512
/// of RFC 7143 §13.12, since Linux's initiator has no room for more, whatever it declares.
const LEAST_SEGMENT: u32 = 128;
/// The maximum data segment to send if the peer receives `bytes`. It is a multiple of 4 bytes, as
/// required for data that continues in another PDU (RFC 7143 §11.7).
fn whole_words(bytes: u32) -> u32 {
    bytes.max(LEAST_SEGMENT) & !3
}

/// The maximum text of one exchange, bytes.
const MAX_TEXT: usize = 64 << 10;

/// One connection in full-feature phase. `P` is the driver's payload buffer.
#[derive(Debug)]
pub struct Connection<P> {
    pub(super) cid: Cid,
    pub(super) window: Window,
    pub(super) stat_sn: u32,
    pub(super) tasks: TaskTable<P>,
    pub(super) limits: WriteLimits,
    pub(super) peer_max_data_segment: u32,
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    discovery: bool,
    pub(super) rdma: bool,
    /// Memory for the next CDB of more than 16 bytes.
    spare_cdb: SmallVec<[u8; 16]>,
    /// The task of a begun command whose immediate data is incomplete.
    arriving: Option<TaskKey>,
    pub(super) held: BTreeMap<u32, Work<P>>,
    pub(super) immediate: usize,
    /// The number of unfinished immediate task management requests and logouts.
    pub(super) managing: usize,
    /// The limit of `managing`: the maximum number of commands to abort.
    max_managing: usize,
    pub(super) text: TextState,
    pub(super) next_tag: u32,
    rejects: u32,
    /// The state for retransmission; `None` at ErrorRecoveryLevel 0.
    pub(super) recovery: Option<Box<Recovery<P>>>,
    /// The recovery actions so far.
    pub(super) recovered: Recovered,
    pub(super) last_heard: Instant,
    pub(super) ping: Option<(u32, Instant)>,
    nop_interval: Duration,
    nop_timeout: Duration,
    /// Time2Wait and Time2Retain of logout responses, seconds.
    pub(super) times: (u16, u16),
    /// A logout is in progress: requests from this CmdSN on are late.
    pub(super) leaving: Option<u32>,
    /// The late requests received. They are rejected if the logout fails; else the connection's end
    /// answers them. At most [`MAX_REJECTS`].
    pub(super) late: Vec<Bhs>,
}

impl<P: Payload> Connection<P> {
    /// A connection that has just completed its login.
    pub fn new(config: Config, now: Instant) -> Self {
        let max = config.queue_depth as usize + MAX_IMMEDIATE;
        Self {
            cid: config.cid,
            window: config.window,
            stat_sn: config.stat_sn,
            tasks: TaskTable::new(max),
            limits: config.write,
            peer_max_data_segment: whole_words(config.peer_max_data_segment),
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            discovery: config.discovery,
            rdma: config.rdma,
            spare_cdb: SmallVec::new(),
            arriving: None,
            held: BTreeMap::new(),
            immediate: 0,
            managing: 0,
            max_managing: max,
            text: TextState::default(),
            next_tag: 0,
            rejects: 0,
            recovered: Recovered::default(),
            recovery: config.recovery.map(|limits| Box::new(Recovery::new(limits, now))),
            last_heard: now,
            ping: None,
            nop_interval: config.nop_interval,
            nop_timeout: config.nop_timeout,
            times: (2, 0),
            leaving: None,
            late: Vec::new(),
        }
    }

    /// Provides memory for the next CDB of more than 16 bytes. The command carries it back to the
    /// driver. Without it, the memory is allocated.
    pub fn lend_for_cdb(&mut self, memory: SmallVec<[u8; 16]>) {
        self.spare_cdb = memory;
    }

    /// Sets Time2Wait and Time2Retain of logout responses, seconds (RFC 7143 §11.15.3, §11.15.4).
    /// They are the wait before a new login, and the time after it for which tasks are retained. By
    /// default 2 and 0.
    pub fn set_logout_times(&mut self, time2wait_s: u16, time2retain_s: u16) {
        self.times = (time2wait_s, time2retain_s);
    }

    /// The StatSN of the next PDU that advances it.
    pub fn stat_sn(&self) -> u32 {
        self.stat_sn
    }

    /// Handles one PDU: its header, AHS and data segment, with verified digests. Afterwards the
    /// caller must call [`Self::next_held`] until it returns `None`.
    pub fn handle(
        &mut self,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<P>,
        now: Instant,
        sink: &mut impl Sink<P>,
    ) -> Result<Option<Event>, Fatal> {
        self.last_heard = now;
        let Some(view) = bhs.view() else {
            return self.reject(RejectReason::CommandNotSupported, bhs, sink).map(|()| None);
        };
        if self.recovery.is_some() {
            self.check_overrun()?;
            if let PduRef::SnackRequest(request) = view {
                // The same PDU must not acknowledge the PDUs that it requests.
                let result = self.snack(request, bhs, sink).map(|()| None);
                self.acknowledge(request.exp_stat_sn.get(), now);
                return result;
            }
            self.acknowledge(bhs.exp_stat_sn().unwrap_or(self.stat_sn), now);
        }
        match view {
            PduRef::DataOut(out) if self.recovery.is_some() => {
                return Ok(self.data_out_recoverable(out, data, now, sink));
            }
            PduRef::DataOut(out) => return self.data_out(out, data, sink),
            PduRef::SnackRequest(_) => {
                // ErrorRecoveryLevel 0 has no SNACK (RFC 7143 §11.16).
                return self.reject(RejectReason::SnackReject, bhs, sink).map(|()| None);
            }
            PduRef::NopOut(_) if bhs.itt() == RESERVED_TAG && !bhs.immediate() => {
                // It has no CmdSN of its own (§11.18.1), and must not consume that of a command.
                return self.reject(RejectReason::ProtocolError, bhs, sink).map(|()| None);
            }
            PduRef::NopOut(nop) if bhs.itt() == RESERVED_TAG => {
                // The answer to our ping; it is not ordered among the commands (§11.18).
                if self.ping.is_some_and(|(tag, _)| tag == nop.ttt.get()) {
                    self.ping = None;
                }
                return Ok(None);
            }
            _ => {}
        }
        let Some(cmd_sn) = bhs.cmd_sn() else { return Err(Fatal::Opcode(bhs.opcode_code())) };
        if bhs.immediate() {
            let work = self.interpret(view, bhs, ahs, data, cmd_sn);
            return self.deliver(work, true, sink);
        }
        let cid = self.cid;
        match self.window.receive(cmd_sn, cid) {
            Admission::Deliver => {
                if let PduRef::ScsiCommand(command) = view
                    && !self.discovery
                    && self.leaving.is_none()
                {
                    return match self.scsi_command(command, bhs, ahs, data, cmd_sn) {
                        Ok(command) => Ok(Some(Event::Command(command))),
                        Err(unfit) => self.deliver(unfit.into(), false, sink),
                    };
                }
                let work = self.interpret(view, bhs, ahs, data, cmd_sn);
                self.deliver(work, false, sink)
            }
            Admission::Hold => {
                let work = self.interpret(view, bhs, ahs, data, cmd_sn);
                self.held.insert(cmd_sn, work);
                Ok(None)
            }
            Admission::Ignore => Ok(None),
        }
    }

    /// The next command that waited for its turn and has it now.
    pub fn next_held(&mut self, sink: &mut impl Sink<P>) -> Result<Option<Event>, Fatal> {
        while !self.held.is_empty() {
            let exp = self.window.numbers().0;
            // Serial numbers wrap: the oldest is the farthest behind ExpCmdSN.
            let oldest = self.held.keys().copied().filter(|cmd_sn| sn::lt(*cmd_sn, exp));
            let Some(cmd_sn) = oldest.reduce(|a, b| if sn::lt(b, a) { b } else { a }) else { break };
            let Some(work) = self.held.remove(&cmd_sn) else { break };
            let event = self.deliver(work, false, sink)?;
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Whether [`Self::next_held`] and [`Self::take_released`] would return nothing: no command
    /// waits for its turn here, and none was released on another connection.
    #[inline]
    pub fn is_in_order(&self) -> bool {
        self.held.is_empty() && !self.window.has_released()
    }

    /// Takes the connections of this session, including others than this one, that hold commands
    /// whose turn has come.
    pub fn take_released(&mut self) -> Vec<Cid> {
        self.window.take_released()
    }

    fn interpret(
        &mut self,
        view: PduRef<'_>,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<P>,
        cmd_sn: u32,
    ) -> Work<P> {
        let immediate = bhs.immediate();
        if self.leaving.is_some_and(|from| sn::le(from, cmd_sn)) {
            // After its logout an initiator must send no request (RFC 7143 §11.14). Such a request
            // is not executed, but consumes its CmdSN. Otherwise later commands, after a failed
            // logout or on another connection, would wait for it forever.
            return Work::Late(*bhs);
        }
        match view {
            PduRef::ScsiCommand(command) if !self.discovery => {
                match self.scsi_command(command, bhs, ahs, data, cmd_sn) {
                    Ok(command) => Work::Event(Event::Command(command)),
                    Err(unfit) => unfit.into(),
                }
            }
            PduRef::TaskManagementRequest(_) | PduRef::LogoutRequest(_)
                if immediate && self.managing >= self.max_managing =>
            {
                Work::Reject(RejectReason::ImmediateCommandReject, *bhs)
            }
            PduRef::TaskManagementRequest(request) if !self.discovery => {
                self.managing += usize::from(immediate);
                Work::Event(Event::TaskManagement(TaskManagement {
                    itt: bhs.itt(),
                    function: request.function_code(),
                    lun: bhs.lun(),
                    referenced: request.referenced_task_tag.get(),
                    ref_cmd_sn: request.ref_cmd_sn.get(),
                    cmd_sn,
                    immediate,
                    exp_data_sn: request.exp_data_sn.get(),
                }))
            }
            PduRef::NopOut(nop) => Work::Ping(*nop, data.join()),
            PduRef::TextRequest(request) => self.text_request(request, bhs, &data, immediate),
            PduRef::LogoutRequest(request) => {
                self.managing += usize::from(immediate);
                if request.reason() == Some(LogoutReason::CloseSession) || request.cid.get() == self.cid {
                    self.leaving = Some(if immediate { cmd_sn } else { cmd_sn.wrapping_add(1) });
                }
                Work::Event(Event::Logout(LogoutRequest {
                    itt: bhs.itt(),
                    reason: request.reason_code(),
                    cid: request.cid.get(),
                    immediate,
                }))
            }
            _ => Work::Reject(RejectReason::ProtocolError, *bhs),
        }
    }

    #[inline]
    fn scsi_command(
        &mut self,
        command: &pdu::ScsiCommand,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<P>,
        cmd_sn: u32,
    ) -> Result<ScsiCommand, Unfit> {
        let immediate = bhs.immediate();
        if bhs.itt() == RESERVED_TAG {
            return Err(Unfit::Reject(RejectReason::InvalidPduField, *bhs));
        }
        if self.tasks.find(bhs.itt()).is_some() {
            return Err(Unfit::Reject(RejectReason::TaskInProgress, *bhs));
        }
        if immediate && self.immediate >= MAX_IMMEDIATE {
            return Err(Unfit::Reject(RejectReason::ImmediateCommandReject, *bhs));
        }
        let (read, write) = (command.read(), command.write());
        let edtl = command.edtl.get();
        let mut cdb = SmallVec::from_buf(command.cdb);
        let mut read_len = 0;
        if !ahs.is_empty() {
            let Some(len) = more_of_command(ahs, &mut cdb, &mut self.spare_cdb) else {
                return Err(Unfit::Reject(RejectReason::InvalidPduField, *bhs));
            };
            read_len = len;
        }
        let (expected_in, expected_out) = match (read, write) {
            (true, true) => (read_len, edtl),
            (true, false) => (edtl, 0),
            (false, true) => (0, edtl),
            (false, false) => (0, 0),
        };
        let history = self.recovery.is_some().then(|| Box::new(History::new(self.last_heard)));
        let Some((key, task)) = self.tasks.open(bhs.itt()) else {
            return Err(Unfit::Reject(RejectReason::LongOperationReject, *bhs));
        };
        (task.lun, task.cmd_sn, task.immediate) = (bhs.lun(), cmd_sn, immediate);
        (task.expected_in, task.expected_out) = (expected_in, expected_out);
        task.bidirectional = read && write;
        if history.is_some() {
            task.history = history;
        }
        self.immediate += usize::from(immediate);
        if data.due() > 0 {
            self.arriving = Some(key);
        }
        if write || !data.is_empty() {
            let is_final = command.is_final() || !write;
            if let Err(error) = task.inbound.begin(expected_out, data, is_final, &self.limits) {
                return Err(Unfit::Refuse(key, refusal(error)));
            }
            if !is_final && self.rdma {
                task.inbound.allow_short_burst();
            }
        }
        Ok(ScsiCommand {
            task: key,
            itt: bhs.itt(),
            lun: bhs.lun(),
            cdb,
            attribute: command.flags & 0x07,
            cmd_sn,
            expected_in,
            expected_out,
        })
    }

    fn text_request(
        &mut self,
        request: &pdu::TextRequest,
        bhs: &Bhs,
        data: &impl Data<P>,
        immediate: bool,
    ) -> Work<P> {
        let (is_final, more) = (request.is_final(), request.continues());
        if is_final && more {
            return Work::Reject(RejectReason::InvalidPduField, *bhs);
        }
        if request.ttt.get() == RESERVED_TAG {
            // A new exchange discards the remainder of an earlier one (RFC 7143 §11.10.4).
            self.text = TextState { begins: true, ..TextState::default() };
        } else if self.text.tag != Some(request.ttt.get()) {
            return Work::Reject(RejectReason::InvalidPduField, *bhs);
        }
        if self.text.request.len() + data.len() > MAX_TEXT {
            self.text = TextState::default();
            return Work::Reject(RejectReason::LongOperationReject, *bhs);
        }
        self.text.request.extend_from_slice(&data.to_vec());
        if more || !self.text.reply.is_empty() {
            return Work::MoreText(bhs.itt(), bhs.lun());
        }
        let text = std::mem::take(&mut self.text.request);
        let begins = std::mem::take(&mut self.text.begins);
        Work::Event(Event::Text(TextExchange {
            header: *bhs,
            itt: bhs.itt(),
            lun: bhs.lun(),
            text,
            begins,
            is_final,
            immediate,
        }))
    }

    /// Executes a PDU whose turn it is.
    fn deliver(
        &mut self,
        work: Work<P>,
        immediate: bool,
        sink: &mut impl Sink<P>,
    ) -> Result<Option<Event>, Fatal> {
        match work {
            Work::Event(event) => Ok(Some(event)),
            Work::Refuse(task, completion) => {
                self.finish(task, completion, sink);
                Ok(None)
            }
            Work::Ping(nop, data) => {
                self.pong(&nop, data, immediate, sink);
                Ok(None)
            }
            Work::MoreText(itt, lun) => {
                self.continue_text(itt, lun, immediate, sink);
                Ok(None)
            }
            Work::Reject(reason, bhs) => {
                if !immediate {
                    self.give_place();
                }
                self.reject(reason, &bhs, sink).map(|()| None)
            }
            Work::Late(bhs) => {
                if !immediate {
                    self.give_place();
                }
                if self.leaving.is_none() {
                    // The logout has failed while this request waited for its turn.
                    return self.reject(RejectReason::ProtocolError, &bhs, sink).map(|()| None);
                }
                self.count_reject()?;
                self.late.push(bhs);
                Ok(None)
            }
        }
    }

    fn data_out(
        &mut self,
        out: &pdu::DataOut,
        data: impl Data<P>,
        sink: &mut impl Sink<P>,
    ) -> Result<Option<Event>, Fatal> {
        let solicited = out.ttt.get() != RESERVED_TAG;
        let key = match solicited {
            true => Some(TaskKey::from_tag(out.ttt.get())),
            false => self.tasks.find(out.itt.get()),
        };
        let Some((key, task)) = key.and_then(|key| Some((key, self.tasks.get_mut(key)?))) else {
            // The task has ended or never existed: the data is dropped.
            return Ok(None);
        };
        if task.itt != out.itt.get() {
            return Ok(None);
        }
        let is_final = out.is_final();
        let taken = match task.inbound.failed() {
            true => None,
            false => {
                let (offset, data_sn) = (out.buffer_offset.get(), out.data_sn.get());
                task.inbound.data_out(offset, data_sn, data, is_final, solicited).err()
            }
        };
        if let Some(error) = taken {
            // The data that the logical unit waits for will not arrive, and this response replaces
            // the unit's own. The connection continues: tags identify the rest of the sequence.
            task.inbound.fail();
            task.refused = Some(refusal(error));
        }
        if task.inbound.failed() {
            task.inbound.pass(is_final, solicited);
        }
        Ok(self.data_came(key, sink))
    }

    /// Continues a task after more of its data arrived, or failed. If the logical unit has finished
    /// and no data is outstanding, sends the response; otherwise sends due R2Ts and informs the
    /// unit.
    pub(super) fn data_came(&mut self, key: TaskKey, sink: &mut impl Sink<P>) -> Option<Event> {
        let limits = self.limits;
        let task = self.tasks.get(key)?;
        if task.finished.is_some() {
            if !task.inbound.owed() {
                self.settle(key, sink);
            }
            return None;
        }
        self.solicit(key, &limits, sink);
        Some(Event::Data(key))
    }

    /// Bytes of a task's data-out that have arrived and were not taken.
    pub fn data_available(&self, key: TaskKey) -> usize {
        self.tasks.get(key).map_or(0, |task| task.inbound.available())
    }

    /// Bytes of a task's data-out that were not taken, whether or not they have arrived.
    pub fn data_left(&self, key: TaskKey) -> usize {
        self.tasks.get(key).map_or(0, |task| task.inbound.left())
    }

    /// Get_Data: the logical unit requests the task's next `len` bytes. Sends the R2Ts for them.
    /// Returns the number of bytes that will arrive (fewer at the end of the transfer). `None`: the
    /// task is aborted, its data has failed, or it does not exist.
    pub fn want_data(&mut self, key: TaskKey, len: usize, sink: &mut impl Sink<P>) -> Option<usize> {
        let limits = self.limits;
        let task = self.tasks.get_mut(key).filter(|task| !task.aborted && !task.inbound.failed())?;
        let len = task.inbound.want(len);
        self.solicit(key, &limits, sink);
        Some(len)
    }

    /// Whether a task's next `len` bytes are incomplete and can still arrive. A driver checks it
    /// before it calls [`Self::want_data`], which sends R2Ts for them.
    pub fn is_short_of_data(&self, key: TaskKey, len: usize) -> bool {
        let task = self.tasks.get(key).filter(|task| !task.aborted && !task.inbound.failed());
        task.is_some_and(|task| task.inbound.is_short(len))
    }

    /// Takes `len` available bytes of a task's data-out.
    pub fn take_data(&mut self, key: TaskKey, len: usize, give: impl FnMut(P)) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.inbound.take(len, give);
        }
    }

    /// Put_Data over iSER: the logical unit has `len` more bytes of a task's data-in. Returns their
    /// offset in the initiator's buffer and their number; bytes beyond the expected length are
    /// dropped. `None` if none remain.
    pub fn put(&mut self, key: TaskKey, len: usize) -> Option<(u32, usize)> {
        let task = self.tasks.get_mut(key).filter(|task| !task.aborted)?;
        let offset = task.put;
        let len = len.min((task.expected_in - offset) as usize);
        task.put += len as u32;
        (len > 0).then_some((offset, len))
    }

    /// Handles data-in that cannot be sent, because its initiator advertised no memory for it (RFC
    /// 7145 §7.3.1). The task ends with ABORTED COMMAND, DATA PHASE ERROR, whatever the logical
    /// unit's status.
    pub fn refuse_data_in(&mut self, key: TaskKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.put = 0;
            task.refused.get_or_insert_with(|| aborted_command((0x4b, 0x00)));
        }
    }

    /// The next RDMA Read, of at most `max` bytes, for data that the logical unit
    /// [requested](Self::want_data). The driver posts it, and passes its data to
    /// [`Self::read_done`].
    pub fn next_read(&mut self, key: TaskKey, max: u32) -> Option<Read> {
        let task = self.tasks.get_mut(key).filter(|task| !task.aborted && !task.inbound.failed())?;
        task.inbound.next_read(max)
    }

    /// Handles a completed RDMA Read of a task. Returns true if the task waited only for it and has
    /// now ended.
    pub fn read_done(&mut self, key: TaskKey, data: impl Data<P>, sink: &mut impl Sink<P>) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return false };
        data.give(|piece| task.inbound.placed(piece));
        if task.finished.is_none() || task.inbound.owed() {
            return false;
        }
        self.settle(key, sink);
        true
    }

    /// Handles the loss of the connection: outstanding RDMA Reads will not complete.
    pub fn forget_reads(&mut self) {
        self.tasks.iter_mut().for_each(|(_, task)| task.inbound.forget_reads());
    }

    /// The task with Initiator Task Tag `itt`, if this connection has it.
    pub fn find(&self, itt: u32) -> Option<TaskKey> {
        self.tasks.find(itt)
    }

    /// All tasks.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskKey, &Task<P>)> {
        self.tasks.iter()
    }

    /// Whether the task exists.
    pub fn has(&self, key: TaskKey) -> bool {
        self.tasks.get(key).is_some()
    }

    /// Whether there are no tasks.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether `len` bytes of data-in, put as one payload, are sent in one PDU.
    #[inline]
    pub fn fits_one_pdu(&self, len: usize) -> bool {
        len <= self.peer_max_data_segment.min(self.limits.max_burst) as usize
    }

    /// Sets the initiator's new MaxRecvDataSegmentLength, bytes, for PDUs sent from now on.
    pub fn set_peer_max_data_segment(&mut self, bytes: u32) {
        self.peer_max_data_segment = whole_words(bytes);
    }

    /// Whether the task is aborted or does not exist.
    pub fn is_aborted(&self, key: TaskKey) -> bool {
        self.tasks.get(key).is_none_or(|task| task.aborted)
    }

    /// Aborts a task: it ends without a response.
    pub fn abort(&mut self, key: TaskKey) -> Abort {
        let Some(task) = self.tasks.get_mut(key) else { return Abort::Gone };
        let cmd_sn = task.cmd_sn;
        if !task.immediate && self.held.remove(&cmd_sn).is_some() {
            self.tasks.remove(key);
            self.window.give_up(cmd_sn);
            return Abort::Ended;
        }
        if task.finished.is_none() || task.inbound.is_reading() {
            task.aborted = true;
            return Abort::Running;
        }
        self.drop_task(key);
        Abort::Ended
    }

    /// Ends held commands, at their turn, with the completion that `end` returns for their LUN, if
    /// any: no logical unit receives them.
    pub fn refuse_held(&mut self, end: impl Fn(Lun) -> Option<Completion>) {
        for work in self.held.values_mut() {
            if let Work::Event(Event::Command(command)) = work
                && let Some(completion) = end(command.lun)
            {
                *work = Work::Refuse(command.task, completion);
            }
        }
    }

    /// Ends a task with `completion` if some of its data-out is still outstanding: the logical unit
    /// receives no more of it. The driver must wake the unit.
    pub fn cut_off(&mut self, key: TaskKey, completion: Completion) {
        let waits = |task: &&mut Task<P>| {
            !task.aborted && task.finished.is_none() && task.inbound.received() < task.inbound.expected()
        };
        if let Some(task) = self.tasks.get_mut(key).filter(waits) {
            task.inbound.fail();
            task.refused.get_or_insert(completion);
        }
    }

    /// Skips the command numbered `cmd_sn` when it arrives: ABORT TASK arrived first. Returns true
    /// if it had not arrived.
    pub fn skip(&mut self, cmd_sn: u32) -> bool {
        self.window.skip(cmd_sn)
    }

    /// Skips all commands numbered before `cmd_sn` that have not arrived. Afterwards the caller
    /// must call [`Self::next_held`].
    pub fn skip_before(&mut self, cmd_sn: u32) {
        // At most the window's depth.
        let (mut next, max) = self.window.numbers();
        while sn::lt(next, cmd_sn) && sn::le(next, max) {
            self.window.skip(next);
            next = next.wrapping_add(1);
        }
    }

    /// ExpCmdSN of the session.
    pub fn exp_cmd_sn(&mut self) -> u32 {
        self.window.numbers().0
    }

    /// Handles the end of the connection: skips its held commands, so that the session's other
    /// connections continue.
    pub fn release_held(&mut self) {
        for cmd_sn in std::mem::take(&mut self.held).into_keys() {
            self.window.give_up(cmd_sn);
        }
    }

    /// Counts and sends a Reject (RFC 7143 §11.17).
    pub fn reject(&mut self, reason: RejectReason, bhs: &Bhs, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.reject_with(reason, bhs, 0, sink)
    }

    pub(super) fn reject_with(
        &mut self,
        reason: RejectReason,
        bhs: &Bhs,
        data_sn: u32,
        sink: &mut impl Sink<P>,
    ) -> Result<(), Fatal> {
        self.count_reject()?;
        self.send_reject_with(reason, bhs, data_sn, sink);
        Ok(())
    }

    fn count_reject(&mut self) -> Result<(), Fatal> {
        self.rejects += 1;
        if self.rejects > MAX_REJECTS { Err(Fatal::TooManyRejects) } else { Ok(()) }
    }

    /// Records a sign of life other than a whole PDU: the initiator sent or accepted some bytes. On
    /// a slow connection PDUs may be far apart in either direction.
    pub fn heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// The time at which [`Self::handle_timeout`] should be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.ping {
            Some((_, sent)) => Some(sent + self.nop_timeout),
            None if self.nop_interval.is_zero() => None,
            None => Some(self.last_heard + self.nop_interval),
        }
    }

    /// The silence after which [`Self::handle_timeout`] pings; zero means never.
    pub fn nop_interval(&self) -> Duration {
        self.nop_interval
    }

    /// Whether a ping is unanswered: [`Self::poll_timeout`] then returns the time at which the
    /// connection is given up.
    pub fn is_pinged(&self) -> bool {
        self.ping.is_some()
    }

    /// Pings a silent initiator, and gives up the connection if it stays silent.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        match self.ping {
            // Any input since the ping proves that the peer lives, even if it never answers pings.
            Some((_, sent)) if self.last_heard > sent => {
                self.ping = None;
                Ok(())
            }
            Some((_, sent)) if now >= sent + self.nop_timeout => Err(Fatal::Silent),
            Some(_) => Ok(()),
            None if self.nop_interval.is_zero() || now < self.last_heard + self.nop_interval => Ok(()),
            None => {
                let tag = self.tag();
                self.send_ping(tag, sink);
                self.ping = Some((tag, now));
                Ok(())
            }
        }
    }

    /// A new Target Transfer Tag that belongs to no task.
    pub(super) fn tag(&mut self) -> u32 {
        fresh_tag(&mut self.next_tag)
    }

    /// Removes a task with its tags and counts.
    pub(super) fn forget(&mut self, key: TaskKey) -> Option<Task<P>> {
        let task = self.tasks.remove(key)?;
        self.end_count(task.immediate);
        Some(task)
    }

    /// Updates the counts at a task's end: its immediate count, or its place in the window.
    #[inline]
    pub(super) fn end_count(&mut self, immediate: bool) {
        match immediate {
            true => self.immediate -= 1,
            false => self.give_place(),
        }
    }

    /// Removes a task without retransmission state.
    pub(super) fn drop_task(&mut self, key: TaskKey) {
        let Some(mut task) = self.forget(key) else { return };
        if let (Some(recovery), Some(history)) = (&mut self.recovery, &mut task.history) {
            recovery.release(history);
        }
        self.give_owed_places();
    }
}

/// CHECK CONDITION, ABORTED COMMAND for data that violates the rules (RFC 7143 §11.4.7.2).
pub(super) fn refusal(error: InboundError) -> Completion {
    aborted_command(match error {
        InboundError::UnexpectedUnsolicited => (0x0c, 0x0c), // UNEXPECTED UNSOLICITED DATA
        InboundError::TooMuch | InboundError::Incorrect => (0x0c, 0x0d), // INCORRECT AMOUNT OF DATA
        // A Data-Out dropped for its digest leaves such a gap (§7.8): PROTOCOL SERVICE CRC ERROR.
        InboundError::OutOfOrder | InboundError::DataSn => (0x47, 0x05),
    })
}

/// CHECK CONDITION, ABORTED COMMAND for data-in that was requested again and is no longer retained
/// (RFC 7143 §11.4.7.2).
pub(super) fn snack_rejected() -> Completion {
    aborted_command((0x11, 0x13)) // READ ERROR - FAILED RETRANSMISSION REQUEST
}

fn aborted_command((asc, ascq): (u8, u8)) -> Completion {
    let mut sense = [0; 18];
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, 0x0b, 10, asc, ascq);
    Completion { status: 0x02, sense: Some(Box::new(sense)), ..Completion::default() }
}

mod early;
#[cfg(test)]
pub(super) mod tests;
