//! An open unit: what it is, who it is, and where it is served.

use std::sync::Arc;

use backing::spec::Opened;
use disk::unit::DiskUnit;
use objects::unit::OsdUnit;

use crate::identity::Settled;
use crate::unit::UnitSpec;

/// Where a unit is served: its target's name, in lower case, and its number.
pub type Place = (String, u16);

pub fn place(iqn: &str, lun: u16) -> Place {
    (iqn.to_ascii_lowercase(), lun)
}

#[derive(Clone)]
pub struct OpenUnit {
    /// As it was asked for.
    pub spec: UnitSpec,
    pub kind: OpenKind,
    pub settled: Settled,
}

#[derive(Clone)]
pub enum OpenKind {
    Disk(OpenDisk),
    Objects(Arc<OsdUnit>),
}

#[derive(Clone)]
pub struct OpenDisk {
    /// Its store, and what was found out about it.
    pub opened: Opened,
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
