//! The one trait of every kind of logical unit.

use std::sync::Arc;

use runtime::Pooled;

use crate::mover::DataMover;
use crate::{Command, ItlNexus, NexusId, Outcome};

/// The progress of a command when [`LogicalUnit::execute`] returns.
pub enum Execution<M> {
    /// The command is complete; the mover is returned. The unit did not need to wait.
    Done(M, Outcome),
    /// The command continues: the server drives the future on this core. The future returns the
    /// mover when it ends. The server never drops it to abort the task: it makes the mover return
    /// [`crate::Lost`] and waits for the end. So an aborted task no longer touches the medium when
    /// its abort is answered (SAM-5 §7.2).
    Running(Pooled<(M, Outcome)>),
}

/// The kind of reset (SAM-5 §6.3); it determines the unit attention for the nexuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetKind {
    /// LOGICAL UNIT RESET: BUS DEVICE RESET FUNCTION OCCURRED for every nexus.
    LogicalUnit,
    /// TARGET WARM RESET: a reset of all units, saved mode pages kept.
    TargetWarm,
    /// TARGET COLD RESET: as after power on.
    TargetCold,
}

/// A SCSI logical unit: runs commands, keeps reservations and unit attentions. All cores share it.
/// The core that owns the command's connection calls `execute`, which uses that core's ring.
///
/// The server answers REPORT LUNS itself, answers for LUNs without a unit, orders tasks by their
/// attributes and runs task management. The unit does everything else, including the checks for
/// unit attentions and reservations.
pub trait LogicalUnit: Send + Sync + 'static {
    /// Starts `command`. `M` is the server's mover. The trait is not object safe: servers hold
    /// their kinds of units in an enum, so that the data path has no virtual call and no boxed
    /// mover.
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mover: M) -> Execution<M>;

    /// PERIPHERAL DEVICE TYPE (SPC-4 table 139): 00h disk, 11h OSD.
    fn device_type(&self) -> u8;

    /// Attaches a session: its first unit attention is POWER ON, RESET, OR BUS DEVICE RESET
    /// OCCURRED.
    fn attach(&self, nexus: &Arc<ItlNexus>);

    /// Detaches a session: its RESERVE(6) reservations end and its state is dropped; persistent
    /// reservations stay.
    fn detach(&self, nexus: NexusId);

    /// Resets the unit, requested by `by` or by the unit itself. Running tasks have ended before
    /// this call. It flushes nothing, though mode parameters return to their defaults.
    fn reset(&self, kind: ResetKind, by: Option<NexusId>);
}
