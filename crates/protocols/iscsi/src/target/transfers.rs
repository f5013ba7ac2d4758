//! The tasks of a connection with their data in both directions: Data-In and R2Ts that it sends,
//! Data-Out that it takes in, RDMA, and the end of each task with its response.
//!
//! The last piece of a read's data is held until the status is known, so that both are sent in one
//! PDU (RFC 7143 §11.7.2). [`Numbering`] gives each PDU its numbers.

use invariant::broken;

use super::events::{Abort, Completion, Event};
use super::inbound::{Read, WriteLimits};
use super::numbering::Numbering;
use super::payload::{Data, Payload, Sink};
use super::recovery::{Status, StatusData};
use super::respond::{Residuals, aborted_command, refusal, scsi_response, to_descriptor_format};
use super::tasks::{Task, TaskKey, TaskTable};
use crate::pdu::{self, Bhs, RESERVED_TAG, Residual, ResponseCode};

/// The tasks of one connection, and the limits of their data.
#[derive(Debug)]
pub(super) struct Transfers<P> {
    pub tasks: TaskTable<P>,
    pub limits: WriteLimits,
    /// iSER: data moves by RDMA.
    pub rdma: bool,
}

impl<P: Payload> Transfers<P> {
    /// Put_Data: sends the next bytes of a task's data-in. Drops bytes beyond the expected length.
    pub fn put_data(
        &mut self,
        key: TaskKey,
        mut data: P,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("data-in of a task that has ended");
            return;
        };
        if task.aborted || data.is_empty() {
            return;
        }
        let room = (task.expected_in - task.put) as usize;
        if data.len() > room {
            data = data.split_to(room);
        }
        if data.is_empty() {
            return;
        }
        task.put += data.len() as u32;
        let earlier = task.tail.replace(data);
        if let Some(earlier) = earlier {
            self.send_data(key, earlier, None, numbering, sink);
        }
    }

    /// Ends a task after its logical unit has finished: sends the response at once, or after the
    /// outstanding data-out has arrived.
    #[inline]
    pub fn finish(
        &mut self,
        key: TaskKey,
        completion: Completion,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("a task that ends twice");
            return;
        };
        if task.aborted && !task.inbound.is_reading() {
            self.drop_task(key, numbering);
            return;
        }
        task.inbound.discard();
        if task.inbound.owed() {
            task.finished = Some(completion);
            return;
        }
        let plain = completion.sense.is_none() && task.refused.is_none() && !task.bidirectional;
        if plain && numbering.recovery.is_none() {
            return self.answer_plainly(key, &completion, numbering, sink);
        }
        self.answer(key, completion, numbering, sink);
    }

    /// Ends a task with at most one direction and a status without sense data, at
    /// ErrorRecoveryLevel 0.
    fn answer_plainly(
        &mut self,
        key: TaskKey,
        completion: &Completion,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an answer to a task that has ended");
            return;
        };
        let residual = Residuals::of(task, completion).main;
        let (itt, next_data_sn) = (task.itt, task.next_data_sn());
        let (immediate, cmd_sn) = (task.immediate, task.cmd_sn);
        let (mut sent, mut data_sn) = (task.sent, task.data_sn);
        let tail = task.tail.take();
        self.tasks.close(key);
        // The task's place in the window is freed before its status is sent, so that the status
        // advances MaxCmdSN.
        numbering.end_count(immediate, cmd_sn);
        let numbers = numbering.numbers();
        let stat_sn = numbering.output.next_stat_sn();
        let Some(mut data) = tail else {
            let mut response = pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, completion.status);
            response.exp_data_sn.set(next_data_sn);
            response.set_residual(residual);
            number!(response, numbers, stat_sn);
            sink.ends(key);
            return numbering.output.send_small(response.into(), &[], sink);
        };
        let (max_burst, max_segment) = (self.limits.max_burst, numbering.output.max_segment());
        loop {
            let len = data.len().min(max_segment as usize);
            // Data that ends within one burst needs no check for the burst's end.
            let in_burst = if sent == 0 { max_burst } else { max_burst - sent % max_burst };
            let len = len.min(in_burst as usize);
            let mut header = pdu::DataIn::new(itt, data_sn, sent);
            number!(header, numbers);
            if len == data.len() {
                header.set_status(completion.status, residual);
                header.stat_sn.set(stat_sn);
                return numbering.output.send(header.into(), data, sink);
            }
            header.set_final(len == in_burst as usize);
            data_sn = data_sn.wrapping_add(1);
            sent += len as u32;
            numbering.output.send(header.into(), data.split_to(len), sink);
        }
    }

    /// Sends the response of a task whose outstanding data has arrived.
    pub fn settle(&mut self, key: TaskKey, numbering: &mut Numbering<P>, sink: &mut impl Sink<P>) {
        if self.is_aborted(key) {
            self.drop_task(key, numbering);
            return;
        }
        if let Some(completion) = self.tasks.get_mut(key).and_then(|task| task.finished.take()) {
            self.answer(key, completion, numbering, sink);
        }
    }

    fn answer(
        &mut self,
        key: TaskKey,
        completion: Completion,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an answer to a task that has ended");
            return;
        };
        let mut completion = task.refused.take().unwrap_or(completion);
        if completion.sense.is_some() && sink.descriptor_sense(task.lun) {
            to_descriptor_format(&mut completion);
        }
        let residuals = Residuals::of(task, &completion);
        // After an R-Data SNACK the status is sent in a SCSI Response with the SNACK's tag
        // (§11.16.3).
        let asked_again = task.history.as_ref().is_some_and(|history| history.snack_tag != 0);
        let collapsed = completion.sense.is_none() && !task.bidirectional && !asked_again;
        if let Some(tail) = task.tail.take() {
            let status = collapsed.then_some((&completion, residuals.main));
            self.send_data(key, tail, Some(status), numbering, sink);
            if collapsed {
                return;
            }
        }
        let Some(task) = self.forget(key, numbering) else {
            broken!("a task that ended with its last data");
            return;
        };
        let stat_sn = numbering.output.next_stat_sn();
        let numbers = numbering.numbers();
        let (mut response, segment) = scsi_response(&task, &completion, numbering.output.max_segment());
        number!(response, numbers, stat_sn);
        sink.ends(key);
        let bhs = Bhs::from(response);
        numbering.output.send_small(bhs, &segment, sink);
        if numbering.recovery.is_some() {
            let ended = Some(Box::new((task, completion)));
            numbering.keep_status(Status {
                stat_sn,
                bhs,
                data: StatusData::Small(segment),
                ended,
                resent: 0,
            });
        }
    }

    /// Sends part of a task's data-in. `end` is `None` while more follows; at the end it may
    /// contain the status.
    fn send_data(
        &mut self,
        key: TaskKey,
        mut data: P,
        end: Option<Option<(&Completion, Residual)>>,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let collapse = matches!(end, Some(Some(_)));
        // The task's place in the window is freed before its status is sent, so that the status
        // advances MaxCmdSN.
        let mut ended = None;
        if collapse {
            ended = self.forget(key, numbering);
        }
        let numbers = numbering.numbers();
        let stat_sn = if collapse { numbering.output.next_stat_sn() } else { 0 };
        let (max_burst, max_segment) = (self.limits.max_burst, numbering.output.max_segment());
        let mut kept = None;
        while !data.is_empty() {
            let Some(task) = ended.as_mut().or_else(|| self.tasks.get_mut(key)) else {
                broken!("data-in of a task that has ended");
                return;
            };
            let in_burst = max_burst - task.sent % max_burst;
            let len = data.len().min(max_segment as usize).min(in_burst as usize);
            let mut piece = data.split_to(len);
            let last = data.is_empty() && end.is_some();
            // A logical unit may send pieces of odd lengths. Such a piece ends its sequence, so
            // that padding occurs at a sequence's end only.
            let is_final = last || len == in_burst as usize || len % 4 != 0;
            let mut header = pdu::DataIn::new(task.itt, task.data_sn, task.sent);
            header.set_final(is_final);
            task.data_sn = task.data_sn.wrapping_add(1);
            task.sent += len as u32;
            number!(header, numbers);
            if last && let Some(Some((completion, residual))) = end {
                header.set_status(completion.status, residual);
                header.stat_sn.set(stat_sn);
            }
            if let (Some(recovery), Some(history)) = (&mut numbering.recovery, &mut task.history) {
                if is_final && !last {
                    // At the end of a sequence, usually every MaxBurstLength bytes, the PDU
                    // requests an acknowledgement (§11.7.2).
                    let tag = *history.ack_tag.get_or_insert_with(|| numbering.output.tag());
                    header.set_wants_ack(true);
                    header.ttt.set(tag);
                    header.lun = task.lun_field;
                }
                piece = piece.stable();
                recovery.keep_data(history, header, piece.clone(), numbering.keepalive.last_heard());
                kept = Some((header, piece.clone()));
            }
            numbering.output.send(header.into(), piece, sink);
        }
        if let (Some(task), Some((header, piece)), Some(Some((completion, _)))) = (ended, kept, end) {
            let (bhs, data) = (header.into(), StatusData::Payload(piece));
            let ended = Some(Box::new((task, completion.clone())));
            numbering.keep_status(Status { stat_sn, bhs, data, ended, resent: 0 });
        }
    }

    /// Sends a task's due R2Ts.
    pub fn solicit(
        &mut self,
        key: TaskKey,
        limits: &WriteLimits,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) {
        let rdma = self.rdma;
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("R2Ts for a task that has ended");
            return;
        };
        if task.aborted || rdma {
            return;
        }
        let (itt, lun) = (task.itt, task.lun_field);
        loop {
            let Some(task) = self.tasks.get_mut(key) else {
                broken!("a task that ended with its R2T");
                return;
            };
            let Some(mut r2t) = task.inbound.next_r2t(limits) else { return };
            if task.bidirectional {
                r2t.r2t_sn = task.data_sn;
                task.data_sn = task.data_sn.wrapping_add(1);
            }
            let mut tag = key.tag();
            if let Some(history) = &mut task.history {
                tag = numbering.output.tag();
                task.inbound.label(tag);
                history.asked(tag, r2t, task.inbound.outstanding());
                history.heard = None;
            }
            let numbers = numbering.numbers();
            let mut header = pdu::ReadyToTransfer::new(itt, tag, lun, r2t.r2t_sn, r2t.offset, r2t.len);
            // An R2T has the next StatSN without advancing it (RFC 7143 §11.8.3).
            number!(header, numbers, numbering.output.stat_sn());
            numbering.output.send_small(header.into(), &[], sink);
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

    /// Takes in a Data-Out at ErrorRecoveryLevel 0.
    pub fn data_out(
        &mut self,
        out: &pdu::DataOut,
        data: impl Data<P>,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) -> Option<Event> {
        let solicited = out.ttt.get() != RESERVED_TAG;
        let key = match solicited {
            true => Some(TaskKey::from_tag(out.ttt.get())),
            false => self.tasks.find(out.itt.get()),
        };
        let Some((key, task)) = key.and_then(|key| Some((key, self.tasks.get_mut(key)?))) else {
            // The task has ended or never existed: the data is dropped.
            return None;
        };
        if task.itt != out.itt.get() {
            return None;
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
        self.data_came(key, numbering, sink)
    }

    /// Continues a task after more of its data arrived, or failed. If the logical unit has finished
    /// and no data is outstanding, sends the response; otherwise sends due R2Ts and informs the
    /// unit.
    pub fn data_came(
        &mut self,
        key: TaskKey,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) -> Option<Event> {
        let limits = self.limits;
        let task = self.tasks.get(key)?;
        if task.finished.is_some() {
            if !task.inbound.owed() {
                self.settle(key, numbering, sink);
            }
            return None;
        }
        self.solicit(key, &limits, numbering, sink);
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
    pub fn want_data(
        &mut self,
        key: TaskKey,
        len: usize,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) -> Option<usize> {
        let limits = self.limits;
        let task = self.tasks.get_mut(key).filter(|task| !task.aborted && !task.inbound.failed())?;
        let len = task.inbound.want(len);
        self.solicit(key, &limits, numbering, sink);
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

    /// The next RDMA Read, of at most `max` bytes, for data that the logical unit
    /// [requested](Self::want_data). The driver posts it, and passes its data to
    /// [`Self::read_done`].
    pub fn next_read(&mut self, key: TaskKey, max: u32) -> Option<Read> {
        let task = self.tasks.get_mut(key).filter(|task| !task.aborted && !task.inbound.failed())?;
        task.inbound.next_read(max)
    }

    /// Handles a completed RDMA Read of a task. Returns true if the task waited only for it and has
    /// now ended.
    pub fn read_done(
        &mut self,
        key: TaskKey,
        data: impl Data<P>,
        numbering: &mut Numbering<P>,
        sink: &mut impl Sink<P>,
    ) -> bool {
        let Some(task) = self.tasks.get_mut(key) else {
            broken!("an RDMA Read of a task that has ended");
            return false;
        };
        data.give(|piece| task.inbound.placed(piece));
        if task.finished.is_none() || task.inbound.owed() {
            return false;
        }
        self.settle(key, numbering, sink);
        true
    }

    /// Whether, as far as known now, the task's logical unit will receive the data of its
    /// outstanding RDMA Reads. Always false at ErrorRecoveryLevel 1 and 2.
    pub fn awaits_reads(&self, key: TaskKey) -> bool {
        let wanted = |task: &Task<P>| !task.aborted && task.finished.is_none() && task.inbound.awaits_reads();
        self.tasks.get(key).is_some_and(wanted)
    }

    /// Handles the loss of the connection: outstanding RDMA Reads will not complete.
    pub fn forget_reads(&mut self) {
        self.tasks.iter_mut().for_each(|(_, task)| task.inbound.forget_reads());
    }

    /// Whether the task is aborted or does not exist.
    pub fn is_aborted(&self, key: TaskKey) -> bool {
        self.tasks.get(key).is_none_or(|task| task.aborted)
    }

    /// Aborts a task: it ends without a response.
    pub fn abort(&mut self, key: TaskKey, numbering: &mut Numbering<P>) -> Abort {
        let Some(task) = self.tasks.get_mut(key) else { return Abort::Gone };
        let cmd_sn = task.cmd_sn;
        if !task.immediate && numbering.order.give_up(cmd_sn) {
            self.tasks.remove(key);
            return Abort::Ended;
        }
        if task.finished.is_none() || task.inbound.is_reading() {
            task.aborted = true;
            return Abort::Running;
        }
        self.drop_task(key, numbering);
        Abort::Ended
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

    /// Removes a task with its tags and counts.
    pub fn forget(&mut self, key: TaskKey, numbering: &mut Numbering<P>) -> Option<Task<P>> {
        let task = self.tasks.remove(key)?;
        numbering.end_count(task.immediate, task.cmd_sn);
        Some(task)
    }

    /// Removes a task without retransmission state.
    pub fn drop_task(&mut self, key: TaskKey, numbering: &mut Numbering<P>) {
        let Some(mut task) = self.forget(key, numbering) else {
            broken!("a task that ends twice");
            return;
        };
        if let (Some(recovery), Some(history)) = (&mut numbering.recovery, &mut task.history) {
            recovery.release(history);
        }
        numbering.give_owed_places();
    }
}
