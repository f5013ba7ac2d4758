//! The units that all gateways of the group serve, as this gateway's initiators see each, and how
//! their disks are opened while they are this gateway's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backing::Health;
use ceph::group::Serving;
use ceph::{ImageName, RbdStore};
use device::PortGroups;
use disk::unit::DiskUnit;
use peer_units::{GroupUnit, Life, Peers, PeersConfig};
use scsi::alua::Groups;
use scsi::data::target_port_groups::{AccessState, TargetPortGroup, supported};

use crate::{Config, Counts};

/// The most bytes of data in one frame of the peer link.
const PIECE: u32 = 256 << 10;

/// The group's units at this gateway.
pub struct Units {
    pub(crate) config: Config,
    pub(crate) peers: Arc<Peers>,
    units: Mutex<BTreeMap<u32, Arc<SharedUnit>>>,
    counts: Mutex<Counts>,
}

/// A unit of the group at this gateway.
pub struct SharedUnit {
    pub number: u32,
    pub name: ImageName,
    pub unit: Arc<GroupUnit>,
    pub health: Arc<Health>,
    open: Open,
}

/// A unit's disk, while this gateway owns it.
pub struct Owned {
    pub disk: Arc<DiskUnit>,
    pub store: Arc<RbdStore>,
}

/// Makes the disk over an image that is this gateway's now. Blocks.
pub type Open = Box<dyn Fn(&Serving, &Arc<Health>) -> Result<Owned, String> + Send + Sync>;

impl Units {
    /// None yet. `config` has at least one secret.
    ///
    /// # Errors
    /// It has none.
    pub fn new(config: Config) -> Result<Arc<Self>, String> {
        let newest = config.secrets.iter().next_back().map(|(number, secret)| (*number, secret.clone()));
        let secret = newest.ok_or("the group has no secret")?;
        let peers = Peers::new(PeersConfig {
            gateway: config.number,
            life: Life { instance: 0, secret, versions: peer_link::VERSIONS },
            piece: PIECE,
            hold: config.timers.hold,
            fresh: config.timers.fresh,
        });
        Ok(Arc::new(Self { config, peers, units: Mutex::default(), counts: Mutex::default() }))
    }

    fn units(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<SharedUnit>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// A unit that is added here.
    pub(crate) fn unit(&self, number: u32) -> Option<Arc<SharedUnit>> {
        self.units().get(&number).cloned()
    }

    /// All units that are added here.
    pub(crate) fn all(&self) -> Vec<Arc<SharedUnit>> {
        self.units().values().cloned().collect()
    }

    /// Adds a unit, of which this gateway need not be the owner.
    ///
    /// # Errors
    /// The gateways have no port groups that go together.
    pub fn add(&self, number: u32, name: ImageName, open: Open) -> Result<Arc<SharedUnit>, String> {
        let unit = GroupUnit::new(&self.peers, number, self.ports()?).map_err(|error| error.to_string())?;
        let health = Health::new(format!("rbd:{name}"));
        let unit = Arc::new(SharedUnit { number, name, unit, health, open });
        self.units().insert(number, unit.clone());
        Ok(unit)
    }

    /// Takes out a unit. Its commands are the server's.
    pub(crate) fn remove(&self, number: u32) {
        self.units().remove(&number);
    }

    /// One target port group for each gateway; no owner is known yet.
    fn ports(&self) -> Result<Arc<PortGroups>, String> {
        use supported::{ACTIVE_NON_OPTIMIZED, ACTIVE_OPTIMIZED, TRANSITIONING, UNAVAILABLE};
        let group = |member: &u16| TargetPortGroup {
            id: *member,
            preferred: false,
            state: AccessState::ActiveNonOptimized,
            supported: ACTIVE_OPTIMIZED | ACTIVE_NON_OPTIMIZED | UNAVAILABLE | TRANSITIONING,
            status: scsi::alua::STATUS_NONE,
            ports: vec![*member],
        };
        let groups = self.config.links.keys().map(group).collect();
        let groups = Groups::new(groups, false, true, 0).map_err(|error| error.to_string())?;
        PortGroups::new(groups, Duration::ZERO, None).map_err(|error| error.to_string())
    }
}

impl SharedUnit {
    pub(crate) fn open(&self, serving: &Serving) -> Result<Owned, String> {
        (self.open)(serving, &self.health)
    }
}
