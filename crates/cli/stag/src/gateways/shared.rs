//! The units that all gateways of the group serve, as they are configured here: their images and
//! their identity.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::config::{Config, Gateways, Lun};
use crate::identity::{self, Settled};
use crate::unit::{Backing, UnitSpec};

/// The group's units at this gateway.
pub struct Shared {
    pub config: Gateways,
    units: Arc<Units>,
    images: Mutex<BTreeMap<u32, Seen>>,
}

/// An image as it was looked at.
#[derive(Clone)]
struct Seen {
    name: ImageName,
    /// What names it in the world.
    seed: String,
    bytes: u64,
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
        let images = look(group, &named(config))?;
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
        Ok(Some(Arc::new(Self { config: group.clone(), units, images: Mutex::new(images) })))
    }

    /// Joins the group; `post` is the core that serves other gateways. Blocks until that listens.
    ///
    /// # Errors
    /// The peer link's address cannot be listened on, or there is no thread.
    pub fn join(&self, post: Post) -> io::Result<Gateway> {
        let images = self.seen().iter().map(|(number, seen)| (*number, seen.name.clone())).collect();
        Gateway::start(self.units.clone(), images, post)
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<u32, Seen>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an operation on an image may take.
    pub fn op_timeout(&self) -> Duration {
        op_timeout(&self.config)
    }

    /// Has the group serve the units of `config`, which is in force now, and no others.
    pub fn follow(&self, gateway: &Gateway, config: &Config) {
        let (wanted, there) = (named(config), gateway.images());
        for number in wanted.keys().filter(|number| !there.contains_key(number)) {
            gateway.add(*number);
        }
        for number in there.keys().filter(|number| !wanted.contains_key(number)) {
            gateway.remove(*number);
            // Another image may have its name when it comes back.
            self.seen().remove(number);
        }
    }

    /// Opens a unit, of which this gateway need not be the owner. `open` makes its disk when it is.
    ///
    /// # Errors
    /// An image that is new here cannot be looked at.
    pub fn open(
        &self,
        name: &ImageName,
        spec: &UnitSpec,
        open: Open,
    ) -> Result<(Arc<SharedUnit>, Settled), String> {
        let number = unit_number(name);
        let known = self.seen().get(&number).cloned();
        let Seen { seed, bytes, .. } = match known {
            Some(seen) => seen,
            None => {
                let mut new = look(&self.config, &BTreeMap::from([(number, name.clone())]))?;
                let seen = new.remove(&number).ok_or("the image is not there")?;
                self.seen().insert(number, seen.clone());
                seen
            }
        };
        let settled = identity::of_seed(&seed);
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
    pub const AT_START: &str = "a unit of the group has these options from the start of its gateways: restart them, one after another";
}

/// The images of the group's units, by the numbers of those.
pub fn named(config: &Config) -> BTreeMap<u32, ImageName> {
    let units = config.targets.iter().flat_map(|target| &target.units);
    let image = |unit: &Lun| match &unit.spec.backing {
        Backing::Rbd(name) if unit.spec.may_be_shared() => Some((unit_number(name), name.clone())),
        _ => None,
    };
    units.filter_map(image).collect()
}

/// Looks at images. Blocks.
fn look(group: &Gateways, images: &BTreeMap<u32, ImageName>) -> Result<BTreeMap<u32, Seen>, String> {
    let names: Vec<ImageName> = images.values().cloned().collect();
    let seeds = seeds(&login(group), &names, op_timeout(group)).map_err(|error| error.to_string())?;
    let seen =
        |((number, name), (seed, bytes)): ((&u32, ImageName), _)| (*number, Seen { name, seed, bytes });
    Ok(images.keys().zip(names).zip(seeds).map(seen).collect())
}

fn op_timeout(config: &Gateways) -> Duration {
    Duration::from_secs(config.op_timeout_s.into())
}

/// How the group reaches the cluster.
fn login(config: &Gateways) -> Login {
    Login { user: config.ceph_user.clone(), conf: config.ceph_conf.clone() }
}
