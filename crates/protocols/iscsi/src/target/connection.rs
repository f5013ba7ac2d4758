//! Handles the PDUs that arrive at a target on one connection in full-feature phase.
//!
//! [`super::respond`] has the other direction: the PDUs that the target sends.

use std::time::{Duration, Instant};

use invariant::broken;
use smallvec::SmallVec;

use super::events::{
    Abort, Completion, Config, Event, Fatal, LogoutRequest, ScsiCommand, TaskManagement, TextExchange,
};
use super::inbound::{InboundError, Read, WriteLimits};
use super::keepalive::Keepalive;
use super::order::{MAX_IMMEDIATE, Order, Work};
use super::output::Output;
use super::payload::{Data, Payload, Sink};
use super::recovery::{History, Recovered, Recovery};
use super::tasks::{Task, TaskKey, TaskTable};
use super::text::Text;
use super::window::{Admission, Cid};
use crate::frame::Digests;
use crate::pdu::{self, Bhs, LogoutReason, Lun, PduRef, RESERVED_TAG, RejectReason};

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

/// One connection in full-feature phase. `P` is the driver's payload buffer.
#[derive(Debug)]
pub struct Connection<P> {
    pub(super) order: Order<P>,
    pub(super) output: Output,
    pub(super) keepalive: Keepalive,
    pub(super) text: Text,
    pub(super) tasks: TaskTable<P>,
    /// The state for retransmission; `None` at ErrorRecoveryLevel 0.
    pub(super) recovery: Option<Box<Recovery<P>>>,
    /// The recovery actions so far.
    pub(super) recovered: Recovered,
    pub(super) limits: WriteLimits,
    discovery: bool,
    pub(super) rdma: bool,
    /// Memory for the next CDB of more than 16 bytes.
    spare_cdb: SmallVec<[u8; 16]>,
    /// The task of a begun command whose immediate data is incomplete.
    arriving: Option<TaskKey>,
    /// Time2Wait and Time2Retain of logout responses, seconds.
    pub(super) times: (u16, u16),
}

impl<P: Payload> Connection<P> {
    /// A connection that has just completed its login.
    pub fn new(config: Config, now: Instant) -> Self {
        let max = config.queue_depth as usize + MAX_IMMEDIATE;
        let digests = Digests { header: config.header_digest, data: config.data_digest };
        Self {
            order: Order::new(config.cid, config.window, max),
            output: Output::new(config.stat_sn, config.peer_max_data_segment, digests),
            keepalive: Keepalive::new(config.nop_interval, config.nop_timeout, now),
            text: Text::default(),
            tasks: TaskTable::new(max),
            recovery: config.recovery.map(|limits| Box::new(Recovery::new(limits, now))),
            recovered: Recovered::default(),
            limits: config.write,
            discovery: config.discovery,
            rdma: config.rdma,
            spare_cdb: SmallVec::new(),
            arriving: None,
            times: (2, 0),
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
        self.output.stat_sn()
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
        self.keepalive.heard(now);
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
            self.acknowledge(bhs.exp_stat_sn().unwrap_or(self.output.stat_sn()), now);
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
                self.keepalive.answered(nop.ttt.get());
                return Ok(None);
            }
            _ => {}
        }
        let Some(cmd_sn) = bhs.cmd_sn() else { return Err(Fatal::Opcode(bhs.opcode_code())) };
        if bhs.immediate() {
            let work = self.interpret(view, bhs, ahs, data, cmd_sn);
            return self.deliver(work, true, sink);
        }
        match self.order.receive(cmd_sn) {
            Admission::Deliver => {
                if let PduRef::ScsiCommand(command) = view
                    && !self.discovery
                    && !self.order.is_leaving()
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
                self.order.hold(cmd_sn, work);
                Ok(None)
            }
            Admission::Ignore => Ok(None),
        }
    }

    /// The next command that waited for its turn and has it now.
    pub fn next_held(&mut self, sink: &mut impl Sink<P>) -> Result<Option<Event>, Fatal> {
        while let Some(work) = self.order.next_due() {
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
        self.order.is_in_order()
    }

    /// Takes the connections of this session, including others than this one, that hold commands
    /// whose turn has come.
    pub fn take_released(&mut self) -> Vec<Cid> {
        self.order.take_released()
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
        if self.order.is_late(cmd_sn) {
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
                if immediate && !self.order.has_managing_room() =>
            {
                Work::Reject(RejectReason::ImmediateCommandReject, *bhs)
            }
            PduRef::TaskManagementRequest(request) if !self.discovery => {
                self.order.begin_managing(immediate);
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
            PduRef::TextRequest(request) => match self.text.request(request, &data.to_vec()) {
                Ok(Some((text, begins))) => Work::Event(Event::Text(TextExchange {
                    header: *bhs,
                    itt: bhs.itt(),
                    lun: bhs.lun(),
                    text,
                    begins,
                    is_final: request.is_final(),
                    immediate,
                })),
                Ok(None) => Work::MoreText(bhs.itt(), bhs.lun()),
                Err(reason) => Work::Reject(reason, *bhs),
            },
            PduRef::LogoutRequest(request) => {
                self.order.begin_managing(immediate);
                if request.reason() == Some(LogoutReason::CloseSession)
                    || request.cid.get() == self.order.cid()
                {
                    self.order.leave(cmd_sn, immediate);
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
        if immediate && !self.order.has_immediate_room() {
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
        let history = self.recovery.is_some().then(|| Box::new(History::new(self.keepalive.last_heard())));
        let Some((key, task)) = self.tasks.open(bhs.itt()) else {
            return Err(Unfit::Reject(RejectReason::LongOperationReject, *bhs));
        };
        (task.lun, task.cmd_sn, task.immediate) = (bhs.lun(), cmd_sn, immediate);
        (task.expected_in, task.expected_out) = (expected_in, expected_out);
        task.bidirectional = read && write;
        if history.is_some() {
            task.history = history;
        }
        self.order.begin(immediate);
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
                if !self.order.is_leaving() {
                    // The logout has failed while this request waited for its turn.
                    return self.reject(RejectReason::ProtocolError, &bhs, sink).map(|()| None);
                }
                self.order.keep_late(bhs).map(|()| None)
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
        match self.tasks.get_mut(key) {
            Some(task) => task.inbound.take(len, give),
            None => broken!("{len} bytes of data-out for a task that has ended"),
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
        match self.tasks.get_mut(key) {
            Some(task) => {
                task.put = 0;
                task.refused.get_or_insert_with(|| aborted_command((0x4b, 0x00)));
            }
            None => broken!("data-in of a task that has ended"),
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
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an RDMA Read of a task that has ended");
            return false;
        };
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
        len <= self.output.max_segment().min(self.limits.max_burst) as usize
    }

    /// Sets the initiator's new MaxRecvDataSegmentLength, bytes, for PDUs sent from now on.
    pub fn set_peer_max_data_segment(&mut self, bytes: u32) {
        self.output.set_max_segment(bytes);
    }

    /// Whether the task is aborted or does not exist.
    pub fn is_aborted(&self, key: TaskKey) -> bool {
        self.tasks.get(key).is_none_or(|task| task.aborted)
    }

    /// Aborts a task: it ends without a response.
    pub fn abort(&mut self, key: TaskKey) -> Abort {
        let Some(task) = self.tasks.get_mut(key) else { return Abort::Gone };
        let cmd_sn = task.cmd_sn;
        if !task.immediate && self.order.give_up(cmd_sn) {
            self.tasks.remove(key);
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
        self.order.refuse_held(end);
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
        self.order.skip(cmd_sn)
    }

    /// Skips all commands numbered before `cmd_sn` that have not arrived. Afterwards the caller
    /// must call [`Self::next_held`].
    pub fn skip_before(&mut self, cmd_sn: u32) {
        self.order.skip_before(cmd_sn);
    }

    /// ExpCmdSN of the session.
    pub fn exp_cmd_sn(&mut self) -> u32 {
        self.order.numbers().0
    }

    /// Handles the end of the connection: skips its held commands, so that the session's other
    /// connections continue.
    pub fn release_held(&mut self) {
        self.order.give_up_all();
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
        self.order.count_reject()?;
        self.send_reject_with(reason, bhs, data_sn, sink);
        Ok(())
    }

    /// Records a sign of life other than a whole PDU: the initiator sent or accepted some bytes. On
    /// a slow connection PDUs may be far apart in either direction.
    pub fn heard(&mut self, now: Instant) {
        self.keepalive.heard(now);
    }

    /// The time at which [`Self::handle_timeout`] should be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.keepalive.deadline()
    }

    /// The silence after which [`Self::handle_timeout`] pings; zero means never.
    pub fn nop_interval(&self) -> Duration {
        self.keepalive.interval()
    }

    /// Whether a ping is unanswered: [`Self::poll_timeout`] then returns the time at which the
    /// connection is given up.
    pub fn is_pinged(&self) -> bool {
        self.keepalive.is_pinged()
    }

    /// Pings a silent initiator, and gives up the connection if it stays silent.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        if self.keepalive.is_due(now)? {
            let tag = self.output.tag();
            self.send_ping(tag, sink);
            self.keepalive.pinged(tag, now);
        }
        Ok(())
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
            true => self.order.end_immediate(),
            false => self.give_place(),
        }
    }

    /// Removes a task without retransmission state.
    pub(super) fn drop_task(&mut self, key: TaskKey) {
        let Some(mut task) = self.forget(key) else {
            broken!("a task that ends twice");
            return;
        };
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
