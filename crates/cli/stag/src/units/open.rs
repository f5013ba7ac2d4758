//! An open unit: what it is, who it is, and where it is served.

use std::sync::Arc;

use backing::spec::Opened;
use disk::unit::DiskUnit;
use objects::unit::OsdUnit;

use crate::identity::Settled;
use crate::unit::UnitSpec;

/// Where a unit is served: its target's name, in lower case, and its number.
pub type Place = (String, u16);

/// A unit's place.
pub fn place(iqn: &str, lun: u16) -> Place {
    (iqn.to_ascii_lowercase(), lun)
}

/// An open unit.
#[derive(Clone)]
pub struct OpenUnit {
    /// As it was asked for.
    pub spec: UnitSpec,
    /// What it is.
    pub kind: OpenKind,
    /// Who it is.
    pub settled: Settled,
}

/// What an open unit is.
#[derive(Clone)]
pub enum OpenKind {
    /// A disk.
    Disk(OpenDisk),
    /// Objects.
    Objects(Arc<OsdUnit>),
}

/// An open disk.
#[derive(Clone)]
pub struct OpenDisk {
    /// Its store, and what was found out about it.
    pub opened: Opened,
    /// The unit.
    pub unit: Arc<DiskUnit>,
}

impl OpenUnit {
    /// The disk that it is, if it is one.
    pub fn disk(&self) -> Option<&OpenDisk> {
        match &self.kind {
            OpenKind::Disk(disk) => Some(disk),
            OpenKind::Objects(_) => None,
        }
    }

    /// Its NAA designator.
    pub fn naa(&self) -> &[u8] {
        match &self.kind {
            OpenKind::Disk(disk) => &disk.unit.options().identity.naa,
            OpenKind::Objects(unit) => &unit.options().identity.naa,
        }
    }

    /// As a server takes it.
    pub fn served(&self) -> iscsi_server::Unit {
        match &self.kind {
            OpenKind::Disk(disk) => iscsi_server::Unit::Disk(disk.unit.clone()),
            OpenKind::Objects(unit) => iscsi_server::Unit::Objects(unit.clone()),
        }
    }
}
