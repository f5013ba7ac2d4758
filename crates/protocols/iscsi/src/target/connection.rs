//! A target's connection in full-feature phase: it composes what has state of its own, and hands
//! each PDU and each call of the driver to its part.
//!
//! [`Requests`] understands what arrives, [`Transfers`] has the tasks and their data, and
//! [`Numbering`] has the numbers of all PDUs. Nothing here keeps state of theirs.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::early::Early;
use super::events::{
    Abort, Completion, Config, Event, Fatal, LogoutRequest, ScsiCommand, TaskManagement, TextExchange,
};
use super::inbound::Read;
use super::numbering::Numbering;
use super::order::{HELD_BESIDES, MAX_IMMEDIATE, Work};
use super::payload::{Data, Due, Payload, Sink};
use super::recovery::{Allegiance, Loss, Moved, Recovered, Released, Resend, allegiant};
use super::requests::{Parts, Request, Requests};
use super::tasks::{Task, TaskKey, TaskTable};
use super::transfers::Transfers;
use super::window::{Admission, Cid};
use crate::pdu::{
    AsyncEvent, Bhs, LogoutResult, Lun, PduRef, RESERVED_TAG, RejectReason, TaskAttribute,
    TaskManagementResult,
};

/// One connection in full-feature phase. `P` is the driver's payload buffer.
#[derive(Debug)]
pub struct Connection<P> {
    pub(super) numbering: Numbering<P>,
    transfers: Transfers<P>,
    requests: Requests,
    early: Early,
    /// Time2Wait and Time2Retain of logout responses, seconds.
    times: (u16, u16),
}

impl<P: Payload> Connection<P> {
    /// A connection that has just completed its login.
    pub fn new(config: Config, now: Instant) -> Self {
        let max = config.queue_depth as usize + MAX_IMMEDIATE;
        let early = config.recovery.is_none() && !config.data_digest && !config.discovery && !config.rdma;
        Self {
            requests: Requests::new(config.discovery),
            early: Early::new(early),
            transfers: Transfers { tasks: TaskTable::new(max), limits: config.write, rdma: config.rdma },
            times: (2, 0),
            numbering: Numbering::new(config, max, now),
        }
    }

    /// Provides memory for the next CDB of more than 16 bytes. The command carries it back to the
    /// driver. Without it, the memory is allocated.
    pub fn lend_for_cdb(&mut self, memory: SmallVec<[u8; 16]>) {
        self.requests.lend_for_cdb(memory);
    }

    /// Sets Time2Wait and Time2Retain of logout responses, seconds (RFC 7143 §11.15.3, §11.15.4).
    /// They are the wait before a new login, and the time after it for which tasks are retained. By
    /// default 2 and 0.
    pub fn set_logout_times(&mut self, time2wait_s: u16, time2retain_s: u16) {
        self.times = (time2wait_s, time2retain_s);
    }

    /// The StatSN of the next PDU that advances it.
    pub fn stat_sn(&self) -> u32 {
        self.numbering.output.stat_sn()
    }

    /// ExpStatSN of the initiator's last PDU.
    #[inline]
    pub fn exp_stat_sn(&self) -> u32 {
        self.numbering.output.exp_stat_sn()
    }

    /// Whether the initiator has acknowledged all PDUs before this StatSN.
    pub fn is_acknowledged(&self, stat_sn: u32) -> bool {
        self.numbering.output.is_acknowledged(stat_sn)
    }

    /// Asks for an acknowledgement at once, by a NOP-In (RFC 7143 §4.2.3.3).
    pub fn ping_at_once(&mut self, sink: &mut impl Sink<P>) {
        let tag = self.numbering.output.tag();
        self.numbering.send_ping(tag, sink);
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
        self.numbering.keepalive.heard(now);
        let Some(view) = bhs.view() else {
            return self.reject(RejectReason::CommandNotSupported, bhs, sink).map(|()| None);
        };
        let exp_stat_sn = bhs.exp_stat_sn().unwrap_or(self.numbering.output.stat_sn());
        self.numbering.output.expects(exp_stat_sn);
        if self.numbering.recovery.is_some() {
            self.numbering.check_overrun()?;
            if let PduRef::SnackRequest(request) = view {
                // The same PDU must not acknowledge the PDUs that it requests.
                let result = self.resend().answer(request, bhs, sink).map(|()| None);
                self.numbering.acknowledge(exp_stat_sn, now);
                return result;
            }
            self.numbering.acknowledge(exp_stat_sn, now);
        }
        match view {
            PduRef::DataOut(out) if self.numbering.recovery.is_some() => {
                return Ok(self.loss().data_out(out, data, now, sink));
            }
            PduRef::DataOut(out) => return Ok(self.transfers.data_out(out, data, &mut self.numbering, sink)),
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
                self.numbering.keepalive.answered(nop.ttt.get());
                return Ok(None);
            }
            _ => {}
        }
        let Some(cmd_sn) = bhs.cmd_sn() else { return Err(Fatal::Opcode(bhs.opcode_code())) };
        let request = Request { bhs, ahs, cmd_sn };
        let (requests, to) = self.parts();
        if bhs.immediate() {
            let work = requests.interpret(view, request, data, to);
            return self.deliver(work, true, sink);
        }
        let ordered = matches!(view, PduRef::ScsiCommand(command)
            if command.attribute() == Some(TaskAttribute::Ordered));
        match to.numbering.order.receive(cmd_sn, ordered.then(|| bhs.lun().canonical())) {
            Admission::Deliver => {
                if let PduRef::ScsiCommand(command) = view
                    && !requests.is_discovery()
                    && !to.numbering.order.is_leaving()
                {
                    return match requests.scsi_command(command, request, data, to) {
                        Ok(command) => Ok(Some(Event::Command(command))),
                        Err(unfit) => self.deliver(unfit.into(), false, sink),
                    };
                }
                let work = requests.interpret(view, request, data, to);
                self.deliver(work, false, sink)
            }
            Admission::Hold => {
                let most = to.transfers.limits.first_burst as usize + HELD_BESIDES;
                let is_plain = matches!(view, PduRef::NopOut(_) | PduRef::TextRequest(_));
                let work = match is_plain && data.len() > most {
                    true => Work::Reject(RejectReason::LongOperationReject, *bhs),
                    false => requests.interpret(view, request, data, to),
                };
                self.numbering.order.hold(cmd_sn, work);
                Ok(None)
            }
            Admission::Ignore => Ok(None),
        }
    }

    /// The next command that waited for its turn and has it now.
    pub fn next_held(&mut self, sink: &mut impl Sink<P>) -> Result<Option<Event>, Fatal> {
        while let Some(work) = self.numbering.order.next_due() {
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
        self.numbering.order.is_in_order()
    }

    /// Takes the connections of this session, including others than this one, that hold commands
    /// whose turn has come.
    pub fn take_released(&mut self) -> Vec<Cid> {
        self.numbering.order.take_released()
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
                self.transfers.finish(task, completion, &mut self.numbering, sink);
                Ok(None)
            }
            Work::Ping(nop, data) => {
                self.numbering.pong(&nop, data, immediate, sink);
                Ok(None)
            }
            Work::MoreText(itt, lun) => {
                self.send_text(itt, lun, immediate, true, sink);
                Ok(None)
            }
            Work::Reject(reason, bhs) => {
                if !immediate {
                    self.numbering.refuse(&bhs);
                }
                self.reject(reason, &bhs, sink).map(|()| None)
            }
            Work::Late(bhs) => {
                if !immediate {
                    self.numbering.refuse(&bhs);
                }
                if !self.numbering.order.is_leaving() {
                    // The logout has failed while this request waited for its turn.
                    return self.reject(RejectReason::ProtocolError, &bhs, sink).map(|()| None);
                }
                self.numbering.order.keep_late(bhs).map(|()| None)
            }
        }
    }

    fn parts(&mut self) -> (&mut Requests, Parts<'_, P>) {
        let Self { requests, numbering, transfers, early, .. } = self;
        (requests, Parts { numbering, transfers, early })
    }

    fn loss(&mut self) -> Loss<'_, P> {
        Loss { transfers: &mut self.transfers, numbering: &mut self.numbering }
    }

    fn resend(&mut self) -> Resend<'_, P> {
        let Transfers { tasks, limits, .. } = &mut self.transfers;
        Resend { tasks, numbering: &mut self.numbering, max_burst: limits.max_burst }
    }

    fn allegiance(&mut self) -> Allegiance<'_, P> {
        Allegiance { tasks: &mut self.transfers.tasks, numbering: &mut self.numbering }
    }

    /// Whether [`Self::begin`] may be called for the PDU with this header: a SCSI Command that
    /// writes and does not read. Never at ErrorRecoveryLevel 1 and 2, nor with data digests.
    pub fn is_begun_early(&self, bhs: &Bhs) -> bool {
        self.early.begins(bhs)
    }

    /// Handles a command whose immediate data, of `len` bytes, is incomplete, as [`Self::handle`]
    /// does with whole ones. The logical unit can then name the data's destination. No other PDU
    /// may be handled before [`Self::rest`].
    pub fn begin(
        &mut self,
        bhs: &Bhs,
        ahs: &[u8],
        len: usize,
        now: Instant,
        sink: &mut impl Sink<P>,
    ) -> Result<Option<Event>, Fatal> {
        self.early.take();
        self.handle(bhs, ahs, Due(len), now, sink)
    }

    /// Completes the immediate data of the command that was [begun](Self::begin).
    pub fn rest(&mut self, data: impl Data<P>, sink: &mut impl Sink<P>) -> Option<Event> {
        let key = self.early.take()?;
        if !self.transfers.tasks.get_mut(key)?.inbound.rest(data) {
            return None;
        }
        self.transfers.data_came(key, &mut self.numbering, sink)
    }

    /// The task and the offset in its data-out for the data segment of a PDU whose header has
    /// arrived. `None` unless, as far as known now, the task's logical unit will receive the whole
    /// segment. Always `None` at ErrorRecoveryLevel 1 and 2.
    pub fn awaits(&self, bhs: &Bhs) -> Option<(TaskKey, u32)> {
        match self.numbering.recovery {
            Some(_) => None,
            None => self.early.awaits(bhs, &self.transfers),
        }
    }

    /// Whether, as far as known now, the task's logical unit will receive the data of its
    /// outstanding RDMA Reads. Always false at ErrorRecoveryLevel 1 and 2.
    pub fn awaits_reads(&self, key: TaskKey) -> bool {
        self.numbering.recovery.is_none() && self.transfers.awaits_reads(key)
    }

    /// Put_Data: sends the next bytes of a task's data-in. Drops bytes beyond the expected length.
    pub fn put_data(&mut self, key: TaskKey, data: P, sink: &mut impl Sink<P>) {
        self.transfers.put_data(key, data, &mut self.numbering, sink);
    }

    /// Ends a task after its logical unit has finished: sends the response at once, or after the
    /// outstanding data-out has arrived.
    #[inline]
    pub fn finish(&mut self, key: TaskKey, completion: Completion, sink: &mut impl Sink<P>) {
        self.transfers.finish(key, completion, &mut self.numbering, sink);
    }

    /// Put_Data over iSER: the logical unit has `len` more bytes of a task's data-in. Returns their
    /// offset in the initiator's buffer and their number; bytes beyond the expected length are
    /// dropped. `None` if none remain.
    pub fn put(&mut self, key: TaskKey, len: usize) -> Option<(u32, usize)> {
        self.transfers.put(key, len)
    }

    /// Handles data-in that cannot be sent, because its initiator advertised no memory for it (RFC
    /// 7145 §7.3.1). The task ends with ABORTED COMMAND, DATA PHASE ERROR, whatever the logical
    /// unit's status.
    pub fn refuse_data_in(&mut self, key: TaskKey) {
        self.transfers.refuse_data_in(key);
    }

    /// Bytes of a task's data-out that have arrived and were not taken.
    pub fn data_available(&self, key: TaskKey) -> usize {
        self.transfers.data_available(key)
    }

    /// Bytes of a task's data-out that were not taken, whether or not they have arrived.
    pub fn data_left(&self, key: TaskKey) -> usize {
        self.transfers.data_left(key)
    }

    /// Get_Data: the logical unit requests the task's next `len` bytes. Sends the R2Ts for them.
    /// Returns the number of bytes that will arrive (fewer at the end of the transfer). `None`: the
    /// task is aborted, its data has failed, or it does not exist.
    pub fn want_data(&mut self, key: TaskKey, len: usize, sink: &mut impl Sink<P>) -> Option<usize> {
        self.transfers.want_data(key, len, &mut self.numbering, sink)
    }

    /// Whether a task's next `len` bytes are incomplete and can still arrive. A driver checks it
    /// before it calls [`Self::want_data`], which sends R2Ts for them.
    pub fn is_short_of_data(&self, key: TaskKey, len: usize) -> bool {
        self.transfers.is_short_of_data(key, len)
    }

    /// Takes `len` available bytes of a task's data-out.
    pub fn take_data(&mut self, key: TaskKey, len: usize, give: impl FnMut(P)) {
        self.transfers.take_data(key, len, give);
    }

    /// The next RDMA Read, of at most `max` bytes, for data that the logical unit
    /// [requested](Self::want_data). The driver posts it, and passes its data to
    /// [`Self::read_done`].
    pub fn next_read(&mut self, key: TaskKey, max: u32) -> Option<Read> {
        self.transfers.next_read(key, max)
    }

    /// Handles a completed RDMA Read of a task. Returns true if the task waited only for it and has
    /// now ended.
    pub fn read_done(&mut self, key: TaskKey, data: impl Data<P>, sink: &mut impl Sink<P>) -> bool {
        self.transfers.read_done(key, data, &mut self.numbering, sink)
    }

    /// Handles the loss of the connection: outstanding RDMA Reads will not complete.
    pub fn forget_reads(&mut self) {
        self.transfers.forget_reads();
    }

    /// The task with Initiator Task Tag `itt`, if this connection has it.
    pub fn find(&self, itt: u32) -> Option<TaskKey> {
        self.transfers.tasks.find(itt)
    }

    /// All tasks.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskKey, &Task<P>)> {
        self.transfers.tasks.iter()
    }

    /// Whether the task exists.
    pub fn has(&self, key: TaskKey) -> bool {
        self.transfers.tasks.get(key).is_some()
    }

    /// Whether there are no tasks.
    pub fn is_idle(&self) -> bool {
        self.transfers.tasks.is_empty()
    }

    /// Whether `len` bytes of data-in, put as one payload, are sent in one PDU.
    #[inline]
    pub fn fits_one_pdu(&self, len: usize) -> bool {
        len <= self.numbering.output.max_segment().min(self.transfers.limits.max_burst) as usize
    }

    /// Sets the initiator's new MaxRecvDataSegmentLength, bytes, for PDUs sent from now on.
    pub fn set_peer_max_data_segment(&mut self, bytes: u32) {
        self.numbering.output.set_max_segment(bytes);
    }

    /// Whether the task is aborted or does not exist.
    pub fn is_aborted(&self, key: TaskKey) -> bool {
        self.transfers.is_aborted(key)
    }

    /// Aborts a task: it ends without a response.
    pub fn abort(&mut self, key: TaskKey) -> Abort {
        self.transfers.abort(key, &mut self.numbering)
    }

    /// Ends held commands, at their turn, with the completion that `end` returns for their LUN, if
    /// any: no logical unit receives them.
    pub fn refuse_held(&mut self, end: impl Fn(Lun) -> Option<Completion>) {
        self.numbering.order.refuse_held(end);
    }

    /// Ends a task with `completion` if some of its data-out is still outstanding: the logical unit
    /// receives no more of it. The driver must wake the unit.
    pub fn cut_off(&mut self, key: TaskKey, completion: Completion) {
        self.transfers.cut_off(key, completion);
    }

    /// Skips the command numbered `cmd_sn` when it arrives: ABORT TASK arrived first. Returns true
    /// if it had not arrived.
    pub fn skip(&mut self, cmd_sn: u32) -> bool {
        self.numbering.order.skip(cmd_sn)
    }

    /// Skips all commands numbered before `cmd_sn` that have not arrived. Afterwards the caller
    /// must call [`Self::next_held`].
    pub fn skip_before(&mut self, cmd_sn: u32) {
        self.numbering.order.skip_before(cmd_sn);
    }

    /// ExpCmdSN of the session.
    pub fn exp_cmd_sn(&mut self) -> u32 {
        self.numbering.order.numbers().0
    }

    /// Handles the end of the connection: skips its held commands, so that the session's other
    /// connections continue.
    pub fn release_held(&mut self) {
        self.numbering.order.give_up_all();
    }

    /// Counts and sends a Reject (RFC 7143 §11.17).
    pub fn reject(&mut self, reason: RejectReason, bhs: &Bhs, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.numbering.reject(reason, bhs, sink)
    }

    /// Answers a task management request (RFC 7143 §11.6.1).
    pub fn task_management_response(
        &mut self,
        request: &TaskManagement,
        result: TaskManagementResult,
        sink: &mut impl Sink<P>,
    ) {
        self.numbering.task_management_response(request, result, sink);
    }

    /// Answers a text request with `keys`, in as many PDUs as the initiator's
    /// MaxRecvDataSegmentLength requires.
    pub fn text_response(&mut self, exchange: &TextExchange, keys: Vec<u8>, sink: &mut impl Sink<P>) {
        self.requests.text.reply(keys);
        self.send_text(exchange.itt, exchange.lun, exchange.immediate, exchange.is_final, sink);
    }

    /// Rejects a text request; its exchange ends without effect (RFC 7143 §6.4, §7.12).
    pub fn text_reject(&mut self, exchange: &TextExchange, reason: RejectReason, sink: &mut impl Sink<P>) {
        self.numbering.done_with(exchange.immediate);
        self.requests.text.end();
        self.numbering.send_reject(reason, &exchange.header, sink);
    }

    fn send_text(&mut self, itt: u32, lun: Lun, immediate: bool, is_final: bool, sink: &mut impl Sink<P>) {
        let output = &mut self.numbering.output;
        let segment = self.requests.text.next(output.max_segment(), is_final, || output.tag());
        self.numbering.send_text((itt, lun), immediate, &segment, sink);
    }

    /// Answers a logout request (RFC 7143 §11.15). After it is sent, the driver closes the
    /// connection or session. If the logout fails, later requests are rejected.
    pub fn logout_response(
        &mut self,
        request: &LogoutRequest,
        result: LogoutResult,
        sink: &mut impl Sink<P>,
    ) {
        self.numbering.logout_response(request, result, self.times, sink);
    }

    /// Sends an Asynchronous Message (RFC 7143 §11.9): a logout request of the target, or the
    /// announcement of a dropped connection or session. `parameters` are Parameter1 to 3 of the
    /// event.
    pub fn async_message(&mut self, event: AsyncEvent, parameters: [u16; 3], sink: &mut impl Sink<P>) {
        self.numbering.async_message(event, parameters, sink);
    }

    /// Records a sign of life other than a whole PDU: the initiator sent or accepted some bytes. On
    /// a slow connection PDUs may be far apart in either direction.
    pub fn heard(&mut self, now: Instant) {
        self.numbering.keepalive.heard(now);
    }

    /// The time at which [`Self::handle_timeout`] should be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.numbering.keepalive.deadline()
    }

    /// The silence after which [`Self::handle_timeout`] pings; zero means never.
    pub fn nop_interval(&self) -> Duration {
        self.numbering.keepalive.interval()
    }

    /// Whether a ping is unanswered: [`Self::poll_timeout`] then returns the time at which the
    /// connection is given up.
    pub fn is_pinged(&self) -> bool {
        self.numbering.keepalive.is_pinged()
    }

    /// Pings a silent initiator, and gives up the connection if it stays silent.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.numbering.handle_timeout(now, sink)
    }

    /// The connection's ErrorRecoveryLevel.
    pub fn error_recovery_level(&self) -> u8 {
        self.numbering.error_recovery_level()
    }

    /// Whether the initiator has answered a ping that was sent at most `most` ago. Pings before
    /// that time is over, unless a ping is unanswered.
    pub fn is_fresh(&mut self, most: Duration, now: Instant, sink: &mut impl Sink<P>) -> bool {
        let age = now.saturating_duration_since(self.numbering.keepalive.proved());
        if age > most / 2 && !self.is_pinged() {
            self.numbering.ping(now, sink);
        }
        age <= most
    }

    /// Handles a PDU with a valid header and a wrong data digest: drops it and sends a Reject (RFC
    /// 7143 §7.8). Lost Data-Out is requested again by R2T; the initiator resends other PDUs
    /// itself. At ErrorRecoveryLevel 0 a write with lost data fails.
    pub fn damaged(&mut self, bhs: &Bhs, now: Instant, sink: &mut impl Sink<P>) -> Result<(), Fatal> {
        self.loss().damaged(bhs, now, sink)
    }

    /// Records a PDU that was dropped for a wrong header digest.
    pub fn damaged_header(&mut self) {
        self.numbering.recovered.digest_errors += 1;
    }

    /// The recovery actions on this connection.
    pub fn recovered(&self) -> Recovered {
        self.numbering.recovered
    }

    /// The interval between calls of [`Self::recover`] while [`Self::is_pending`].
    pub fn recovery_interval(&self) -> Duration {
        self.numbering.recovery_interval()
    }

    /// Whether anything can be lost: there are tasks, or unacknowledged statuses. Always false at
    /// ErrorRecoveryLevel 0.
    pub fn is_pending(&self) -> bool {
        let Numbering { recovery, .. } = &self.numbering;
        recovery.as_ref().is_some_and(|recovery| recovery.is_pending() || !self.is_idle())
    }

    /// Handles timeouts: stopped sequences, and missing acknowledgements of a silent initiator.
    /// Returns the tasks with a timed-out sequence, whose logical units may continue.
    pub fn recover(&mut self, now: Instant, sink: &mut impl Sink<P>) -> Vec<TaskKey> {
        self.loss().recover(now, sink)
    }

    /// Whether a logical unit may send more of a task's data-in. False while too much data is
    /// unacknowledged. In that case the initiator was pinged, and [`Self::take_made_room`] tells
    /// when to call this again.
    pub fn may_put(&mut self, key: TaskKey, now: Instant, sink: &mut impl Sink<P>) -> bool {
        self.loss().may_put(key, now, sink)
    }

    /// Whether a read may begin. False while too much data is unacknowledged, as in
    /// [`Self::may_put`].
    pub fn may_begin(&mut self, now: Instant, sink: &mut impl Sink<P>) -> bool {
        self.numbering.may_begin(now, sink)
    }

    /// Whether data was acknowledged since the last call, so that waiting tasks may continue.
    pub fn take_made_room(&mut self) -> bool {
        self.numbering.take_made_room()
    }

    /// Bytes retained until the initiator acknowledges them.
    pub fn kept_bytes(&self) -> usize {
        self.numbering.kept_bytes()
    }

    /// The time since which none of them has been acknowledged.
    pub fn kept_since(&self) -> Instant {
        self.numbering.kept_since()
    }

    /// Sets the driver's limit for retained bytes, up to that of the configuration. Bytes already
    /// retained stay.
    pub fn set_keep_room(&mut self, bytes: usize) {
        self.numbering.set_keep_room(bytes);
    }

    /// Whether a task or a status waits for room.
    pub fn wants_keep_room(&self) -> bool {
        self.numbering.wants_keep_room()
    }

    /// Records additional room, so that [`Self::take_made_room`] returns true.
    pub fn more_keep_room(&mut self) {
        self.numbering.more_keep_room();
    }

    /// Discards all retained data-in: a SNACK for it will be rejected, and its command will end
    /// with an error (RFC 7143 §11.4.7.2). Returns false if there was none. The remaining ping data
    /// and text can only be discarded by ending the connection.
    pub fn give_up_data(&mut self, now: Instant) -> bool {
        self.loss().give_up_data(now)
    }

    /// The LUN and the CmdSN of the task with Initiator Task Tag `itt`, if this connection has the
    /// task or its unacknowledged status.
    pub fn allegiant(&self, itt: u32) -> Option<(Lun, u32)> {
        allegiant(itt, &self.transfers.tasks, &self.numbering)
    }

    /// Releases the task with Initiator Task Tag `itt`, for another connection to
    /// [adopt](Self::adopt). `exp_data_sn` is the initiator's ExpDataSN: Data-In PDUs or R2Ts
    /// before it have arrived; an impossible number is ignored (RFC 7143 §11.5.6). This connection
    /// is gone.
    pub fn release(&mut self, itt: u32, exp_data_sn: u32) -> Option<Released<P>> {
        self.allegiance().release(itt, exp_data_sn)
    }

    /// Holds a command of an adopted task until its turn. The caller must call [`Self::next_held`]
    /// afterwards: the turn may have come.
    pub fn hold(&mut self, command: ScsiCommand) {
        self.numbering.order.adopt(command);
    }

    /// Whether this connection, which is gone, has no state for another one.
    pub fn has_nothing_left(&self) -> bool {
        let Numbering { order, recovery, .. } = &self.numbering;
        self.is_idle() && order.is_empty() && !recovery.as_ref().is_some_and(|it| it.keeps_ended())
    }

    /// Adopts a task that another connection has released. `data_out` is the data of its command,
    /// if no logical unit has received the command. `None`: the task table is full.
    pub fn adopt(&mut self, moved: &Moved, data_out: Vec<P>) -> Option<TaskKey> {
        self.allegiance().adopt(moved, data_out)
    }

    /// Handles the final end of the connection: discards unacknowledged PDUs and returns their
    /// places in the command window.
    pub fn forget_unacknowledged(&mut self) {
        self.numbering.forget_unacknowledged();
    }
}

#[cfg(test)]
pub(super) mod tests;
