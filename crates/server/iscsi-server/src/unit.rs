//! The kinds of logical units that a target can hold.

use std::sync::Arc;

use device::{
    AbortTasks, Command, DataMover, Execution, ItlNexus, LogicalUnit, Nexus, NexusId, Nexuses, Principal,
    ResetKind,
};
use disk::unit::DiskUnit;
use objects::store::Scope;
use objects::unit::OsdUnit;
use peer_units::GroupUnit;
use scsi::UnitAttention;

/// A logical unit of any kind. An enum, not a trait object, so that the data path makes no virtual
/// call.
#[derive(Clone)]
pub enum Unit {
    /// A SCSI disk.
    Disk(Arc<DiskUnit>),
    /// An object-based storage device.
    Objects(Arc<OsdUnit>),
    /// A disk of a group of gateways: one of them owns it.
    Group(Arc<GroupUnit>),
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disk(_) => f.write_str("Disk"),
            Self::Objects(_) => f.write_str("Objects"),
            Self::Group(_) => f.write_str("Group"),
        }
    }
}

impl Unit {
    /// See [`LogicalUnit::execute`].
    #[inline]
    pub fn execute<M: DataMover + 'static>(&self, command: Command, mover: M) -> Execution<M> {
        match self {
            Self::Disk(unit) => unit.execute(command, mover),
            Self::Objects(unit) => unit.execute(command, mover),
            Self::Group(unit) => unit.execute(command, mover),
        }
    }

    /// See [`DiskUnit::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self, cdb: &[u8; 16]) {
        if let Self::Disk(unit) = self {
            unit.prefetch(cdb);
        }
    }

    /// Whether the data of a command with this CDB may be placed directly ([`device::Land`]).
    pub(crate) fn lands(&self, cdb: &[u8]) -> bool {
        match self {
            Self::Disk(unit) => unit.lands(cdb),
            Self::Objects(_) | Self::Group(_) => false,
        }
    }

    /// See [`LogicalUnit::device_type`].
    pub fn device_type(&self) -> u8 {
        match self {
            Self::Disk(unit) => unit.device_type(),
            Self::Objects(unit) => unit.device_type(),
            Self::Group(unit) => unit.device_type(),
        }
    }

    /// See [`LogicalUnit::attach`].
    pub fn attach(&self, nexus: &Arc<ItlNexus>) {
        match self {
            Self::Disk(unit) => unit.attach(nexus),
            Self::Objects(unit) => unit.attach(nexus),
            Self::Group(unit) => unit.attach(nexus),
        }
    }

    /// See [`LogicalUnit::detach`].
    pub fn detach(&self, nexus: NexusId) {
        match self {
            Self::Disk(unit) => unit.detach(nexus),
            Self::Objects(unit) => unit.detach(nexus),
            Self::Group(unit) => unit.detach(nexus),
        }
    }

    /// See [`LogicalUnit::reset`]. The tasks of all sessions of this gateway have ended; this waits
    /// for those of other gateways. False: the owner of a remote unit could not be asked in time, or
    /// a disk whose write cache the reset turned off could not be flushed.
    pub(crate) async fn reset(&self, kind: ResetKind, by: NexusId) -> bool {
        if let Self::Group(unit) = self {
            return unit.have_reset(kind, by).await;
        }
        self.nexuses().abort_of_peers(None).await;
        match self {
            Self::Disk(unit) => return unit.reset_durably(kind, Some(by)).await.is_ok(),
            Self::Objects(unit) => unit.reset(kind, Some(by)),
            Self::Group(_) => {}
        }
        true
    }

    /// Ends the tasks of other gateways' sessions, for CLEAR TASK SET. See [`Self::reset`].
    pub(crate) async fn clear_task_set(&self, by: NexusId) -> bool {
        if let Self::Group(unit) = self {
            return unit.clear_task_set(by).await;
        }
        self.nexuses().abort_of_peers(Some(UnitAttention::CommandsClearedByAnotherInitiator)).await;
        true
    }

    /// Whether `other` is this very unit.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Disk(a), Self::Disk(b)) => Arc::ptr_eq(a, b),
            (Self::Objects(a), Self::Objects(b)) => Arc::ptr_eq(a, b),
            (Self::Group(a), Self::Group(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Whether both keep their data on the same medium.
    pub(crate) fn shares_medium(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Disk(a), Self::Disk(b)) => Arc::ptr_eq(a.store(), b.store()),
            (Self::Objects(a), Self::Objects(b)) => Arc::ptr_eq(a.store(), b.store()),
            (Self::Group(a), Self::Group(b)) => a.is_same_unit(b),
            _ => false,
        }
    }

    /// Its address in memory, unique among the units that exist at the same time.
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Disk(unit) => Arc::as_ptr(unit).addr(),
            Self::Objects(unit) => Arc::as_ptr(unit).addr(),
            Self::Group(unit) => Arc::as_ptr(unit).addr(),
        }
    }

    /// Nexuses that reach the unit, and their reservations.
    pub(crate) fn nexuses(&self) -> &Nexuses {
        match self {
            Self::Disk(unit) => unit.nexuses(),
            Self::Objects(unit) => unit.nexuses(),
            Self::Group(unit) => unit.nexuses(),
        }
    }

    /// The owner of the registration that `nexus` would use, as far as this daemon knows.
    pub(crate) fn owner(&self, nexus: &Nexus) -> Option<Principal> {
        match self {
            Self::Group(unit) => unit.owner(nexus),
            _ => self.nexuses().owner(nexus),
        }
    }

    /// A nexus of a session with the unit.
    pub(crate) fn nexus(&self, nexus: Arc<Nexus>, read_only: bool) -> ItlNexus {
        match self {
            Self::Group(unit) => ItlNexus::with_ports(nexus, read_only, Some(unit.ports().clone())),
            _ => ItlNexus::new(nexus, read_only),
        }
    }

    /// Tells the unit its aborter of tasks, and the target ports that reach it.
    pub(crate) fn connect(&self, aborter: Arc<dyn AbortTasks>, ports: &[u16]) {
        if let Self::Group(unit) = self {
            return unit.connect(aborter);
        }
        self.nexuses().set_aborter(aborter);
        self.nexuses().set_target_ports(ports);
    }

    /// The bytes of a block and the number of blocks, of a disk as far as it is known. 0 of a unit
    /// of objects.
    pub(crate) fn medium(&self) -> (u32, u64) {
        match self {
            Self::Disk(unit) => (unit.options().block_size, unit.blocks()),
            Self::Objects(_) => (0, 0),
            Self::Group(unit) => {
                let block = unit.block_size();
                (block, unit.size().checked_div(block.into()).unwrap_or(0))
            }
        }
    }

    /// Whether sense data goes out in descriptor format (D_SENSE of the Control mode page).
    pub fn descriptor_sense(&self) -> bool {
        match self {
            Self::Disk(unit) => unit.descriptor_sense(),
            Self::Objects(unit) => unit.descriptor_sense(),
            Self::Group(unit) => unit.descriptor_sense(),
        }
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// The medium's.
    pub async fn flush(&self) -> std::io::Result<()> {
        match self {
            Self::Disk(unit) => unit.store().sync().await.map_err(std::io::Error::other),
            Self::Objects(unit) => unit.store().sync(Scope::All).await.map_err(std::io::Error::other),
            // A write to an image is on all replicas before it is answered, by whatever owner.
            Self::Group(_) => Ok(()),
        }
    }
}
