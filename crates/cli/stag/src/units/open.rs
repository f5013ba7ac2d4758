//! An open unit: its description, its identity, and its place.

use std::sync::Arc;

use backing::spec::Opened;
use disk::unit::DiskUnit;
use objects::unit::OsdUnit;

use crate::gateways::SharedUnit;
use crate::identity::Settled;
use crate::unit::UnitSpec;

/// The place of a unit: its target's name, in lower case, and its number. Units of a target share
/// the name.
pub type Place = (Arc<str>, u16);

pub fn place(iqn: &str, lun: u16) -> Place {
    (name(iqn), lun)
}

/// A target's name in places.
pub fn name(iqn: &str) -> Arc<str> {
    iqn.to_ascii_lowercase().into()
}

/// Why a unit could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unopened {
    pub reason: String,
    /// Another process or the system has its medium, and may let it go.
    pub in_use: bool,
}

impl From<String> for Unopened {
    fn from(reason: String) -> Self {
        Self { reason, in_use: false }
    }
}

impl From<backing::OpenError> for Unopened {
    fn from(error: backing::OpenError) -> Self {
        use backing::OpenError::{Claimed, Locked};
        Self { reason: error.to_string(), in_use: matches!(error, Locked { .. } | Claimed { .. }) }
    }
}

impl From<ceph::Error> for Unopened {
    fn from(error: ceph::Error) -> Self {
        Self { reason: error.to_string(), in_use: matches!(error, ceph::Error::Held { .. }) }
    }
}

#[derive(Clone)]
pub struct OpenUnit {
    /// As configured.
    pub spec: UnitSpec,
    pub kind: OpenKind,
    pub settled: Settled,
}

#[derive(Clone)]
pub enum OpenKind {
    Disk(OpenDisk),
    Objects(Arc<OsdUnit>),
    /// A disk that all gateways of the group serve.
    Shared(Arc<SharedUnit>),
}

#[derive(Clone)]
pub struct OpenDisk {
    /// Its store, and the properties of its medium.
    pub opened: Opened,
    pub unit: Arc<DiskUnit>,
}

impl OpenUnit {
    /// The disk, if it is one.
    pub fn disk(&self) -> Option<&OpenDisk> {
        match &self.kind {
            OpenKind::Disk(disk) => Some(disk),
            OpenKind::Objects(_) | OpenKind::Shared(_) => None,
        }
    }

    /// Whether it is being sanitized.
    pub fn is_sanitizing(&self) -> bool {
        self.disk().is_some_and(|disk| disk.unit.is_sanitizing())
    }

    /// Whether its server may still carry out an operation that has ended here.
    pub fn is_in_doubt(&self) -> bool {
        self.disk().is_some_and(|disk| disk.opened.store.is_in_doubt())
    }

    /// Its NAA designator.
    pub fn naa(&self) -> &[u8] {
        match &self.kind {
            OpenKind::Disk(disk) => &disk.unit.options().identity.naa,
            OpenKind::Objects(unit) => &unit.options().identity.naa,
            OpenKind::Shared(unit) => &unit.identity.naa,
        }
    }

    /// The unit as a server takes it.
    pub fn served(&self) -> iscsi_server::Unit {
        match &self.kind {
            OpenKind::Disk(disk) => iscsi_server::Unit::Disk(disk.unit.clone()),
            OpenKind::Objects(unit) => iscsi_server::Unit::Objects(unit.clone()),
            OpenKind::Shared(unit) => iscsi_server::Unit::Group(unit.unit.clone()),
        }
    }
}
