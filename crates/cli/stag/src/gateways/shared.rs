//! The units that all gateways of the group serve: their images, their identity, and the unit that
//! this gateway's initiators see of each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backing::Health;
use ceph::group::seeds;
use ceph::{ImageName, Login};
use device::{Identity, PortGroups};
use disk::unit::Registry;
use iscsi::discovery::TargetAddress;
use peer_units::{GroupUnit, Life, Peers, PeersConfig};
use scsi::alua::Groups;
use scsi::data::target_port_groups::{AccessState, TargetPortGroup, supported};

use crate::config::gateways::unit_number;
use crate::config::{Config, Gateways};
use crate::identity::{self, Settled};
use crate::unit::{Backing, UnitSpec};

/// The most bytes of data in one frame of the peer link.
const PIECE: u32 = 256 << 10;

/// The group's units at this gateway.
pub struct Shared {
    pub config: Gateways,
    pub peers: Arc<Peers>,
    /// By unit number: the image, and what names it in the world.
    images: BTreeMap<u32, (ImageName, String)>,
    units: Mutex<BTreeMap<u32, Arc<SharedUnit>>>,
}

/// A unit of the group, as it is configured here.
pub struct SharedUnit {
    pub number: u32,
    pub name: ImageName,
    pub unit: Arc<GroupUnit>,
    pub health: Arc<Health>,
    pub identity: Identity,
    pub(super) spec: UnitSpec,
    pub(super) registry: Registry,
    pub(super) op_timeout: Duration,
}

/// How the group reaches the cluster.
pub fn login(config: &Gateways) -> Login {
    Login { user: config.ceph_user.clone(), conf: config.ceph_conf.clone() }
}

impl Shared {
    /// Looks at the images of all shared units. `None` without a group. Blocks.
    ///
    /// # Errors
    /// An image cannot be looked at.
    pub fn new(config: &Config) -> Result<Option<Arc<Self>>, String> {
        let Some(group) = &config.gateways else { return Ok(None) };
        let mut images = BTreeMap::new();
        for unit in config.targets.iter().flat_map(|target| &target.units) {
            if let Backing::Rbd(name) = &unit.spec.backing
                && unit.spec.may_be_shared()
            {
                images.insert(unit_number(name), name.clone());
            }
        }
        let names: Vec<ImageName> = images.values().cloned().collect();
        let seeds = seeds(&login(group), &names, op_timeout(group)).map_err(|error| error.to_string())?;
        let images = images.into_iter().zip(seeds).map(|((number, name), seed)| (number, (name, seed)));
        let Some((number, secret)) = group.secrets.iter().next_back() else {
            return Err("the group has no secret".into());
        };
        let timers = cluster::Timers::default();
        let peers = Peers::new(PeersConfig {
            gateway: group.number,
            life: Life { instance: 0, secret: (*number, secret.clone()), versions: peer_link::VERSIONS },
            piece: PIECE,
            hold: timers.hold,
            fresh: timers.fresh,
        });
        Ok(Some(Arc::new(Self {
            config: group.clone(),
            peers,
            images: images.collect(),
            units: Mutex::default(),
        })))
    }

    /// The images, by the numbers of their units.
    pub fn images(&self) -> BTreeMap<u32, ImageName> {
        self.images.iter().map(|(number, (name, _))| (*number, name.clone())).collect()
    }

    fn units(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<SharedUnit>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A unit that is open here.
    pub fn unit(&self, number: u32) -> Option<Arc<SharedUnit>> {
        self.units().get(&number).cloned()
    }

    /// All units that are open here.
    pub fn all(&self) -> Vec<Arc<SharedUnit>> {
        self.units().values().cloned().collect()
    }

    /// Opens a unit, of which this gateway need not be the owner.
    ///
    /// # Errors
    /// The group does not know the image.
    pub fn open(
        &self,
        name: &ImageName,
        spec: &UnitSpec,
        registry: &Registry,
    ) -> Result<(Arc<SharedUnit>, Settled), String> {
        let number = unit_number(name);
        let Some((_, seed)) = self.images.get(&number) else {
            return Err(SharedUnit::AT_START.into());
        };
        let settled = identity::of_seed(seed, None);
        let unit = GroupUnit::new(&self.peers, number, self.ports()?).map_err(|error| error.to_string())?;
        let unit = Arc::new(SharedUnit {
            number,
            name: name.clone(),
            unit,
            health: Health::new(format!("rbd:{name}")),
            identity: identity::names(&spec.options, Identity::of("Disk").named(settled.names.clone())),
            spec: spec.clone(),
            registry: registry.clone(),
            op_timeout: op_timeout(&self.config),
        });
        self.units().insert(number, unit.clone());
        Ok((unit, settled))
    }

    /// The portals of the other gateways. Each has its number as the tag of its portal group.
    pub fn portals_elsewhere(&self) -> Vec<TargetAddress> {
        let others = self.config.members.iter().filter(|member| member.number != self.config.number);
        let portals = others.flat_map(|other| other.portals.iter().map(|portal| (*portal, other.number)));
        portals.map(|(portal, group)| TargetAddress::new(portal, group)).collect()
    }

    /// One target port group for each gateway; no owner is known yet.
    fn ports(&self) -> Result<Arc<PortGroups>, String> {
        use supported::{ACTIVE_NON_OPTIMIZED, ACTIVE_OPTIMIZED, TRANSITIONING, UNAVAILABLE};
        let group = |member: &crate::config::GatewayMember| TargetPortGroup {
            id: member.number,
            preferred: false,
            state: AccessState::ActiveNonOptimized,
            supported: ACTIVE_OPTIMIZED | ACTIVE_NON_OPTIMIZED | UNAVAILABLE | TRANSITIONING,
            status: scsi::alua::STATUS_NONE,
            ports: vec![member.number],
        };
        let groups = self.config.members.iter().map(group).collect();
        let groups = Groups::new(groups, false, true, 0).map_err(|error| error.to_string())?;
        PortGroups::new(groups, Duration::ZERO, None).map_err(|error| error.to_string())
    }
}

impl SharedUnit {
    /// Why a change has to wait.
    pub const AT_START: &str =
        "a unit of the group changes when its gateways start: restart them, one after another";
}

fn op_timeout(config: &Gateways) -> Duration {
    Duration::from_secs(config.op_timeout_s.into())
}
