//! The units that all gateways of the group serve, as they are configured here: their images and
//! their identity.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use backing::Health;
use ceph::group::seeds;
use ceph::{ImageName, Login};
use device::Identity;
use gateway::{Gateway, Open, Units};
use iscsi::discovery::TargetAddress;
use peer_units::GroupUnit;
use server_core::Post;

use crate::config::gateways::unit_number;
use crate::config::{Config, Gateways};
use crate::identity::{self, Settled};
use crate::unit::{Backing, UnitSpec};

/// The group's units at this gateway.
pub struct Shared {
    pub config: Gateways,
    units: Arc<Units>,
    /// By unit number: the image, what names it in the world, and its bytes.
    images: BTreeMap<u32, (ImageName, String, u64)>,
}

/// A unit of the group, as it is configured here.
pub struct SharedUnit {
    pub unit: Arc<GroupUnit>,
    pub health: Arc<Health>,
    pub identity: Identity,
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
        let images = images.into_iter().zip(seeds);
        let images = images.map(|((number, name), (seed, bytes))| (number, (name, seed, bytes)));
        let units = Units::new(gateway::Config {
            number: group.number,
            links: group.members.iter().map(|member| (member.number, member.link)).collect(),
            secrets: group.secrets.clone(),
            login: login(group),
            pool: group.pool.clone(),
            namespace: group.namespace.clone(),
            object: group.object.clone(),
            op_timeout: op_timeout(group),
            timers: cluster::Timers::default(),
        })?;
        Ok(Some(Arc::new(Self { config: group.clone(), units, images: images.collect() })))
    }

    /// Joins the group; `post` is the core that serves other gateways. Blocks until that listens.
    ///
    /// # Errors
    /// The peer link's address cannot be listened on, or there is no thread.
    pub fn join(&self, post: Post) -> io::Result<Gateway> {
        Gateway::start(self.units.clone(), self.images(), post)
    }

    /// How long an operation on an image may take.
    pub fn op_timeout(&self) -> Duration {
        op_timeout(&self.config)
    }

    /// The images, by the numbers of their units.
    pub fn images(&self) -> BTreeMap<u32, ImageName> {
        self.images.iter().map(|(number, (name, ..))| (*number, name.clone())).collect()
    }

    /// Opens a unit, of which this gateway need not be the owner. `open` makes its disk when it is.
    ///
    /// # Errors
    /// The group does not know the image.
    pub fn open(
        &self,
        name: &ImageName,
        spec: &UnitSpec,
        open: Open,
    ) -> Result<(Arc<SharedUnit>, Settled), String> {
        let number = unit_number(name);
        let Some((_, seed, bytes)) = self.images.get(&number) else {
            return Err(SharedUnit::AT_START.into());
        };
        let settled = identity::of_seed(seed, None);
        let names = identity::names(&spec.options, Identity::of("Disk").named(settled.names.clone()));
        let added = self.units.add(number, name.clone(), open)?;
        let (unit, health) = (added.unit.clone(), added.health.clone());
        let block = spec.options.block_bytes();
        unit.saw_size(block, bytes / u64::from(block));
        Ok((Arc::new(SharedUnit { unit, health, identity: names }), settled))
    }

    /// The portals of the other gateways. Each has its number as the tag of its portal group.
    pub fn portals_elsewhere(&self) -> Vec<TargetAddress> {
        let others = self.config.members.iter().filter(|member| member.number != self.config.number);
        let portals = others.flat_map(|other| other.portals.iter().map(|portal| (*portal, other.number)));
        portals.map(|(portal, group)| TargetAddress::new(portal, group)).collect()
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

/// How the group reaches the cluster.
fn login(config: &Gateways) -> Login {
    Login { user: config.ceph_user.clone(), conf: config.ceph_conf.clone() }
}
