//! Commands begun with their header, before their immediate data has arrived, and the destination
//! of data whose header has arrived. A driver needs both to receive long data directly into its
//! destination.

use super::payload::Payload;
use super::tasks::TaskKey;
use super::transfers::Transfers;
use crate::pdu::{Bhs, PduRef, RESERVED_TAG};

/// The command whose immediate data is incomplete.
#[derive(Debug)]
pub(super) struct Early {
    /// Whether commands may begin so. Never at ErrorRecoveryLevel 1 and 2, where a whole PDU may be
    /// lost, nor with data digests, which can fail after the data.
    allowed: bool,
    /// Its task.
    arriving: Option<TaskKey>,
}

impl Early {
    pub fn new(allowed: bool) -> Self {
        Self { allowed, arriving: None }
    }

    /// Whether the PDU with this header may begin so: a SCSI Command that writes and does not read.
    pub fn begins(&self, bhs: &Bhs) -> bool {
        self.allowed
            && matches!(bhs.view(), Some(PduRef::ScsiCommand(command)) if command.write() && !command.read())
    }

    /// A command has begun, and its data is to come.
    pub fn begin(&mut self, task: TaskKey) {
        self.arriving = Some(task);
    }

    /// Takes the command that has begun.
    pub fn take(&mut self) -> Option<TaskKey> {
        self.arriving.take()
    }

    /// The task and the offset in its data-out for the data segment of a PDU whose header has
    /// arrived. `None` unless, as far as known now, the task's logical unit will receive the whole
    /// segment.
    pub fn awaits<P: Payload>(&self, bhs: &Bhs, transfers: &Transfers<P>) -> Option<(TaskKey, u32)> {
        let tasks = &transfers.tasks;
        let PduRef::DataOut(out) = bhs.view()? else {
            let key = self.arriving?;
            let task = tasks.get(key).filter(|task| task.itt == bhs.itt())?;
            let wanted = !task.aborted && task.finished.is_none() && task.inbound.awaits_immediate();
            return wanted.then_some((key, 0));
        };
        let solicited = out.ttt.get() != RESERVED_TAG;
        let key = match solicited {
            true => TaskKey::from_tag(out.ttt.get()),
            false => tasks.find(out.itt.get())?,
        };
        let task = tasks.get(key).filter(|task| task.itt == out.itt.get())?;
        let (offset, data_sn, len) =
            (out.buffer_offset.get(), out.data_sn.get(), bhs.data_segment_len() as usize);
        let wanted = !task.aborted
            && task.finished.is_none()
            && task.inbound.awaits(offset, data_sn, len, out.is_final(), solicited);
        wanted.then_some((key, offset))
    }
}
