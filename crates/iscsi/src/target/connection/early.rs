//! Commands that are begun with their header, before their immediate data has come, and where data belongs whose header has: what a
//! driver needs that receives long data straight to its place.

use std::time::Instant;

use super::{Connection, Task, TaskKey};
use crate::pdu::{Bhs, PduRef, RESERVED_TAG};
use crate::target::events::{Event, Fatal};
use crate::target::payload::{Data, Due, Payload, Sink};

impl<P: Payload> Connection<P> {
    /// Whether [`Self::begin`] may be called for the PDU with this header: a SCSI Command that writes and does not read. Not at
    /// ErrorRecoveryLevel 1 and 2, where a PDU may be lost as a whole, and not with data digests, of which that may turn out afterwards.
    pub fn is_begun_early(&self, bhs: &Bhs) -> bool {
        let plain = self.recovery.is_none() && !self.data_digest && !self.discovery && !self.rdma;
        plain
            && matches!(bhs.view(), Some(PduRef::ScsiCommand(command)) if command.write() && !command.read())
    }

    /// Takes in a command whose immediate data, of `len` bytes, has not come in full, as [`Self::handle`] does with whole ones: so that
    /// whoever runs it can say where the data belongs. No other PDU may be taken in before [`Self::rest`] has brought the data.
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

    /// The immediate data of the command that was [begun](Self::begin) has come, all of it.
    pub fn rest(&mut self, data: impl Data<P>, sink: &mut impl Sink<P>) -> Option<Event> {
        let key = self.arriving.take()?;
        if !self.tasks.get_mut(key)?.inbound.rest(data) {
            return None;
        }
        self.data_came(key, sink)
    }

    /// Where in its task's data-out the data segment of a PDU belongs whose header has come: its task, and the offset of its first byte.
    /// `None` unless the task's unit will get all of it once it has come, as far as that can be said now. At ErrorRecoveryLevel 1 and 2
    /// always `None`.
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

    /// Whether the task's unit will get what its RDMA Reads under way bring, as far as that can be said now. At ErrorRecoveryLevel 1 and 2
    /// never.
    pub fn awaits_reads(&self, key: TaskKey) -> bool {
        let wanted = |task: &Task<P>| !task.aborted && task.finished.is_none() && task.inbound.awaits_reads();
        self.recovery.is_none() && self.tasks.get(key).is_some_and(wanted)
    }
}
