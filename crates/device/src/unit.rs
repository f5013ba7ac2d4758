//! The one trait behind which every kind of logical unit stands.

use std::sync::Arc;

use ring::Pooled;

use crate::mover::DataMover;
use crate::{Command, ItlNexus, NexusId, Outcome};

/// How far a unit got with a command when [`LogicalUnit::execute`] returned.
pub enum Execution<M> {
    /// It is finished, and the mover comes back: nothing had to be waited for.
    Done(M, Outcome),
    /// It runs on: the server drives the future on this core. The future gives the mover back when it ends. The server
    /// does not drop it to abort the task: it makes the mover return [`crate::Lost`] and waits for the end, so that an
    /// aborted task has really stopped touching the medium when its abort is answered (SAM-5 §7.2).
    Running(Pooled<(M, Outcome)>),
}

/// Which reset a unit goes through (SAM-5 §6.3); it decides the unit attention that nexuses get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetKind {
    /// LOGICAL UNIT RESET: BUS DEVICE RESET FUNCTION OCCURRED for every nexus.
    LogicalUnit,
    /// TARGET WARM RESET: a reset of all units, saved mode pages kept.
    TargetWarm,
    /// TARGET COLD RESET: as after power on.
    TargetCold,
}

/// A SCSI logical unit: runs commands, keeps reservations and unit attentions. Shared by all cores; `execute` is called
/// on the core that owns the command's connection and uses that core's ring.
///
/// The server answers REPORT LUNS itself, answers for LUNs that do not exist, orders tasks by their attributes and runs
/// task management; everything else goes to the unit, checks for unit attentions and reservations included.
pub trait LogicalUnit: Send + Sync + 'static {
    /// Starts `command`. `M` is the server's mover. (Not object safe by itself: servers hold [`crate::LogicalUnit`]
    /// kinds in an enum of theirs, so that the data path has no virtual call and no boxed mover.)
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mover: M) -> Execution<M>;

    /// PERIPHERAL DEVICE TYPE (SPC-4 table 139): 00h disk, 11h OSD.
    fn device_type(&self) -> u8;

    /// A session reached the unit: it gets POWER ON, RESET, OR BUS DEVICE RESET OCCURRED as its first unit attention.
    fn attach(&self, nexus: &Arc<ItlNexus>);

    /// A session is gone: RESERVE(6) reservations of it end, what it held is forgotten; persistent reservations stay.
    fn detach(&self, nexus: NexusId);

    /// The unit was reset by `by` (or by itself). Running tasks have ended before this is called.
    fn reset(&self, kind: ResetKind, by: Option<NexusId>);
}
