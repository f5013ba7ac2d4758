//! Commands begun with their header, before their immediate data has arrived, and the destination
//! of data whose header has arrived. A driver needs both to receive long data directly into its
//! destination.

use std::time::Instant;

use super::{Connection, Task, TaskKey};
use crate::pdu::{Bhs, PduRef, RESERVED_TAG};
use crate::target::events::{Event, Fatal};
use crate::target::payload::{Data, Due, Payload, Sink};

impl<P: Payload> Connection<P> {
    /// Whether [`Self::begin`] may be called for the PDU with this header: a SCSI Command that
    /// writes and does not read. Never at ErrorRecoveryLevel 1 and 2, where a whole PDU may be
    /// lost, nor with data digests, which can fail after the data.
    pub fn is_begun_early(&self, bhs: &Bhs) -> bool {
        let plain = self.recovery.is_none() && !self.output.digests().data && !self.discovery && !self.rdma;
        plain
            && matches!(bhs.view(), Some(PduRef::ScsiCommand(command)) if command.write() && !command.read())
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
        self.arriving = None;
        self.handle(bhs, ahs, Due(len), now, sink)
    }

    /// Completes the immediate data of the command that was [begun](Self::begin).
    pub fn rest(&mut self, data: impl Data<P>, sink: &mut impl Sink<P>) -> Option<Event> {
        let key = self.arriving.take()?;
        if !self.tasks.get_mut(key)?.inbound.rest(data) {
            return None;
        }
        self.data_came(key, sink)
    }

    /// The task and the offset in its data-out for the data segment of a PDU whose header has
    /// arrived. `None` unless, as far as known now, the task's logical unit will receive the whole
    /// segment. Always `None` at ErrorRecoveryLevel 1 and 2.
    pub fn awaits(&self, bhs: &Bhs) -> Option<(TaskKey, u32)> {
        if self.recovery.is_some() {
            return None;
        }
        let PduRef::DataOut(out) = bhs.view()? else {
            let key = self.arriving?;
            let task = self.tasks.get(key).filter(|task| task.itt == bhs.itt())?;
            let wanted = !task.aborted && task.finished.is_none() && task.inbound.awaits_immediate();
            return wanted.then_some((key, 0));
        };
        let solicited = out.ttt.get() != RESERVED_TAG;
        let key = match solicited {
            true => TaskKey::from_tag(out.ttt.get()),
            false => self.tasks.find(out.itt.get())?,
        };
        let task = self.tasks.get(key).filter(|task| task.itt == out.itt.get())?;
        let (offset, data_sn, len) =
            (out.buffer_offset.get(), out.data_sn.get(), bhs.data_segment_len() as usize);
        let wanted = !task.aborted
            && task.finished.is_none()
            && task.inbound.awaits(offset, data_sn, len, out.is_final(), solicited);
        wanted.then_some((key, offset))
    }

    /// Whether, as far as known now, the task's logical unit will receive the data of its
    /// outstanding RDMA Reads. Always false at ErrorRecoveryLevel 1 and 2.
    pub fn awaits_reads(&self, key: TaskKey) -> bool {
        let wanted = |task: &Task<P>| !task.aborted && task.finished.is_none() && task.inbound.awaits_reads();
        self.recovery.is_none() && self.tasks.get(key).is_some_and(wanted)
    }
}
