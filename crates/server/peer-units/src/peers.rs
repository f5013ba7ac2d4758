//! Who owns each unit, and who is fenced: what the group says, for all cores.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use peer_link::Secret;

/// The number of instances taken out that are remembered: four for each gateway that a group can
/// have. A link needs one for 100 ms.
const FENCED: usize = 1024;

/// This gateway's identity towards the owners of its units, and its limits.
pub struct PeersConfig {
    pub gateway: u16,
    pub life: Life,
    /// The most bytes of data in one frame.
    pub piece: u32,
    /// How long a command waits where no owner has it.
    pub hold: Duration,
    /// A command of an initiator that was not there for so long waits until it is again.
    pub fresh: Duration,
}

/// One life of this gateway.
#[derive(Clone)]
pub struct Life {
    pub instance: u64,
    /// The newest secret that all members have, and its number.
    pub secret: (u32, Secret),
    /// At most what the group has agreed on.
    pub versions: RangeInclusive<u16>,
}

/// One life of a gateway that owns units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerAt {
    pub instance: u64,
    pub address: SocketAddr,
}

/// The owner of each unit, as the group says. All cores share it.
pub struct Peers {
    pub(crate) config: PeersConfig,
    routes: Mutex<Routes>,
    /// Whether each link that is needed is up.
    links: Mutex<BTreeMap<LinkId, bool>>,
    seen: OnceLock<LinkSeen>,
    commands: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// A life of this gateway, an instance, and a core.
pub(crate) type LinkId = (u64, u64, usize);

/// What was forwarded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Commands. One that goes to two owners counts twice.
    pub commands: u64,
    /// Bytes of Data-In.
    pub bytes_in: u64,
    /// Bytes of Data-Out.
    pub bytes_out: u64,
}

/// Is told whether the link to an instance is lost.
pub type LinkSeen = Box<dyn Fn(u64, bool) + Send + Sync>;

struct Routes {
    life: Life,
    /// Counts lives.
    lives: u64,
    /// This gateway has left the group for good.
    has_left: bool,
    owners: BTreeMap<u32, OwnerAt>,
    /// The last owner of each unit, `None` for this gateway, and the number of its tenure.
    tenures: BTreeMap<u32, (Option<OwnerAt>, u64)>,
    /// Counts tenures of all units, from 1.
    last_tenure: u64,
    /// The last instances that were taken out, oldest first.
    fenced: VecDeque<u64>,
}

impl Routes {
    fn has(&mut self, unit: u32, owner: Option<OwnerAt>) {
        if self.tenures.get(&unit).is_none_or(|(last, _)| *last != owner) {
            self.last_tenure += 1;
            self.tenures.insert(unit, (owner, self.last_tenure));
        }
    }
}

impl Peers {
    #[must_use]
    pub fn new(config: PeersConfig) -> Arc<Self> {
        let life = config.life.clone();
        let (owners, tenures, last_tenure, fenced) = Default::default();
        let routes = Routes { life, lives: 1, has_left: false, owners, tenures, last_tenure, fenced };
        let zero = AtomicU64::default;
        Arc::new(Self {
            config,
            routes: Mutex::new(routes),
            links: Mutex::default(),
            seen: OnceLock::new(),
            commands: zero(),
            bytes_in: zero(),
            bytes_out: zero(),
        })
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `seen` told of links that come up and are lost. The first one counts.
    pub fn watch_links(&self, seen: LinkSeen) {
        let _ = self.seen.set(seen);
    }

    /// A link is up or not, or not needed any more. An instance is lost if one of the links to it
    /// that are needed is not up.
    pub(crate) fn link_is(&self, id: LinkId, up: Option<bool>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = match up {
            Some(up) => {
                links.insert(id, up);
                true
            }
            None => links.remove(&id).is_some(),
        };
        let lost = links.iter().any(|((_, instance, _), up)| *instance == id.1 && !*up);
        // Under the lock, so that the last one to tell knows most.
        if let Some(seen) = self.seen.get().filter(|_| is_news) {
            seen(id.1, lost);
        }
    }

    /// The instances to which commands are forwarded, and whether all links to each are up.
    #[must_use]
    pub fn links(&self) -> BTreeMap<u64, bool> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = BTreeMap::new();
        links.iter().for_each(|((_, instance, _), up)| *all.entry(*instance).or_insert(true) &= up);
        all
    }

    /// A forwarded command has ended.
    pub(crate) fn has_forwarded(&self, bytes_in: u64, bytes_out: u64) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
    }

    /// What was forwarded so far.
    #[must_use]
    pub fn forwarded(&self) -> Forwarded {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Forwarded {
            commands: of(&self.commands),
            bytes_in: of(&self.bytes_in),
            bytes_out: of(&self.bytes_out),
        }
    }

    /// The group says who owns a unit. `None`: no gateway now.
    pub fn set_owner(&self, unit: u32, owner: Option<OwnerAt>) {
        let mut routes = self.routes();
        match owner {
            Some(at) => {
                routes.has(unit, owner);
                routes.owners.insert(unit, at);
            }
            None => {
                routes.owners.remove(&unit);
            }
        }
    }

    /// The group serves these units and no others, which have no owner any more.
    pub fn keep(&self, is_served: impl Fn(u32) -> bool) {
        let mut routes = self.routes();
        routes.owners.retain(|unit, _| is_served(*unit));
        routes.tenures.retain(|unit, _| is_served(*unit));
    }

    /// This gateway owns a unit.
    pub(crate) fn owns(&self, unit: u32) {
        self.routes().has(unit, None);
    }

    /// The number of the last owner's tenure, 0 without one. If it differs, another owner may have
    /// had the unit.
    pub(crate) fn tenure(&self, unit: u32) -> u64 {
        self.routes().tenures.get(&unit).map_or(0, |(_, tenure)| *tenure)
    }

    /// The group has taken an instance out, and storage refuses it: it executes nothing any more.
    pub fn fenced(&self, instance: u64) {
        let mut routes = self.routes();
        routes.owners.retain(|_, owner| owner.instance != instance);
        routes.fenced.push_back(instance);
        if routes.fenced.len() > FENCED {
            routes.fenced.pop_front();
        }
    }

    /// The group has taken this gateway out, and it begins another life. What it has forwarded in
    /// the last one may have been executed, and its owners give no answer any more.
    pub fn renew(&self, life: Life) {
        let mut routes = self.routes();
        routes.life = life;
        routes.lives += 1;
    }

    /// This gateway has left the group for good: owners no longer answer its forwarded commands.
    pub fn leave(&self) {
        let mut routes = self.routes();
        routes.owners.clear();
        routes.has_left = true;
    }

    /// The newest secret that all gateways have, and its number, for connections from now on.
    pub fn use_secret(&self, secret: (u32, Secret)) {
        self.routes().life.secret = secret;
    }

    /// The newest version that all gateways speak, for connections from now on.
    pub fn use_version(&self, newest: u16) {
        let (oldest, own) = self.config.life.versions.clone().into_inner();
        self.routes().life.versions = oldest..=newest.clamp(oldest, own);
    }

    pub(crate) fn life(&self) -> (u64, Life) {
        let routes = self.routes();
        (routes.lives, routes.life.clone())
    }

    /// Whether a life forwards nothing to an owner any more.
    pub(crate) fn is_over(&self, life: u64, instance: u64) -> bool {
        let routes = self.routes();
        routes.has_left || routes.lives != life || routes.fenced.contains(&instance)
    }

    /// Storage refuses the instance.
    pub(crate) fn is_fenced(&self, instance: u64) -> bool {
        self.routes().fenced.contains(&instance)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.routes().has_left
    }

    pub(crate) fn owner(&self, unit: u32) -> Option<OwnerAt> {
        self.routes().owners.get(&unit).copied()
    }

    pub(crate) fn is_owner(&self, instance: u64) -> bool {
        self.routes().owners.values().any(|owner| owner.instance == instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> Arc<Peers> {
        let secret = Secret::new(&[7; 32]).expect("32 bytes");
        let life = Life { instance: 1, secret: (1, secret), versions: 1..=3 };
        let time = Duration::from_secs(1);
        Peers::new(PeersConfig { gateway: 1, life, piece: 4096, hold: time, fresh: time })
    }

    #[test]
    fn a_unit_that_the_group_serves_no_more_is_forgotten() {
        let peers = peers();
        let at = OwnerAt { instance: 22, address: SocketAddr::from(([127, 0, 0, 1], 3261)) };
        [7, 8].into_iter().for_each(|unit| peers.set_owner(unit, Some(at)));
        let before = [7, 8].map(|unit| peers.tenure(unit));
        peers.keep(|unit| unit == 8);
        assert_eq!((peers.owner(7), peers.tenure(7)), (None, 0));
        assert_eq!((peers.owner(8), peers.tenure(8)), (Some(at), before[1]));
        assert_eq!(peers.routes().tenures.len(), 1);
        // It comes back, and another owner may have had it.
        peers.set_owner(7, Some(at));
        assert!(!before.contains(&peers.tenure(7)));
        peers.keep(|_| false);
        assert!(!peers.is_owner(22), "no link is needed");
    }

    #[test]
    fn the_last_fences_are_remembered() {
        let peers = peers();
        let last = 2 * FENCED as u64;
        (1..=last).for_each(|instance| peers.fenced(instance));
        assert_eq!(peers.routes().fenced.len(), FENCED);
        assert!(peers.is_fenced(last) && !peers.is_fenced(1));
    }

    #[test]
    fn no_version_is_offered_that_the_group_has_not_agreed_on() {
        let peers = peers();
        let offers = |newest| {
            peers.use_version(newest);
            peers.life().1.versions
        };
        assert_eq!([1, 2, 9, 0].map(offers), [1..=1, 1..=2, 1..=3, 1..=1]);
    }

    #[test]
    fn a_link_that_nothing_needs_is_not_lost() {
        let peers = peers();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = told.clone();
        peers.watch_links(Box::new(move |_, lost| tells.lock().expect("it tells").push(lost)));
        let links = [(0, Some(true)), (1, Some(true)), (0, Some(false)), (0, None), (0, None)];
        links.into_iter().for_each(|(core, up)| peers.link_is((1, 22, core), up));
        assert_eq!(*told.lock().expect("it was told"), [false, false, true, false]);
        peers.link_is((1, 22, 1), Some(false));
        peers.link_is((1, 22, 0), Some(true));
        assert_eq!(told.lock().expect("it was told").last(), Some(&true), "one core has no link");
    }
}
