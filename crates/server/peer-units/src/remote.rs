//! A unit of another gateway: each command goes to the unit's owner, and waits while there is none.
//!
//! `link` is the connection of one core to one owner, `run` one command on its way.

mod link;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device::{Command, DataMover, Execution, ItlNexus, LogicalUnit, NexusId, Nexuses, ResetKind};
use peer_link::{Attention, Function, Secret, View};
use runtime::Pooled;

/// This gateway's identity towards the owners of its units, and its limits.
pub struct PeersConfig {
    pub gateway: u16,
    pub life: Life,
    /// The most bytes of data in one frame.
    pub piece: u32,
    /// How long a command waits where no owner has it.
    pub hold: Duration,
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
    config: PeersConfig,
    routes: Mutex<Routes>,
}

struct Routes {
    life: Life,
    /// Counts lives.
    lives: u64,
    owners: BTreeMap<u32, OwnerAt>,
    fenced: BTreeSet<u64>,
}

impl Peers {
    #[must_use]
    pub fn new(config: PeersConfig) -> Arc<Self> {
        let life = config.life.clone();
        let routes = Routes { life, lives: 1, owners: BTreeMap::new(), fenced: BTreeSet::new() };
        Arc::new(Self { config, routes: Mutex::new(routes) })
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group says who owns a unit. `None`: no gateway now.
    pub fn set_owner(&self, unit: u32, owner: Option<OwnerAt>) {
        let mut routes = self.routes();
        match owner {
            Some(owner) => routes.owners.insert(unit, owner),
            None => routes.owners.remove(&unit),
        };
    }

    /// The group has taken an instance out, and storage refuses it: it executes nothing any more.
    pub fn fenced(&self, instance: u64) {
        let mut routes = self.routes();
        routes.owners.retain(|_, owner| owner.instance != instance);
        routes.fenced.insert(instance);
    }

    /// The group has taken this gateway out, and it begins another life. What it has forwarded in
    /// the last one may have been executed, and its owners give no answer any more.
    pub fn renew(&self, life: Life) {
        let mut routes = self.routes();
        routes.life = life;
        routes.lives += 1;
    }

    fn life(&self) -> (u64, Life) {
        let routes = self.routes();
        (routes.lives, routes.life.clone())
    }

    /// Whether nothing is heard of an owner any more that a life has forwarded to.
    fn is_over(&self, life: u64, instance: u64) -> bool {
        let routes = self.routes();
        routes.lives != life || routes.fenced.contains(&instance)
    }

    fn owner(&self, unit: u32) -> Option<OwnerAt> {
        self.routes().owners.get(&unit).copied()
    }

    fn is_owner(&self, instance: u64) -> bool {
        self.routes().owners.values().any(|owner| owner.instance == instance)
    }
}

/// A unit that another gateway owns.
pub struct RemoteUnit {
    peers: Arc<Peers>,
    /// Its number in the group.
    number: u32,
    device_type: AtomicU8,
    descriptor_sense: AtomicBool,
    /// The sessions that see it; verdicts and attentions are its owner's.
    nexuses: Nexuses,
    /// The attentions that its owners have told of each nexus.
    pending: Mutex<BTreeMap<NexusId, Vec<Attention>>>,
}

impl RemoteUnit {
    /// Unit `number` of the group.
    ///
    /// # Errors
    /// None: there is nothing that could not be read.
    pub fn new(peers: &Arc<Peers>, number: u32) -> Result<Arc<Self>, device::KeptError> {
        Ok(Arc::new(Self {
            peers: peers.clone(),
            number,
            device_type: AtomicU8::new(0),
            descriptor_sense: AtomicBool::new(false),
            nexuses: Nexuses::new(None)?,
            pending: Mutex::default(),
        }))
    }

    /// The sessions that see it. Its reservations are the owner's.
    pub fn nexuses(&self) -> &Nexuses {
        &self.nexuses
    }

    /// D_SENSE, as the owner has told last.
    pub fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Acquire)
    }

    /// Whether both are the same unit of a group.
    pub fn is_same_unit(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peers, &other.peers) && self.number == other.number
    }

    /// Has the owner end all tasks of all other nexuses, and reset the unit. Whether it has.
    pub async fn have_reset(self: &Arc<Self>, kind: ResetKind, by: NexusId) -> bool {
        let function = match kind {
            ResetKind::LogicalUnit => Function::LogicalUnitReset,
            ResetKind::TargetWarm => Function::TargetWarmReset,
            ResetKind::TargetCold => Function::TargetColdReset,
        };
        run::manage(self, by, function).await
    }

    /// Has the owner end all tasks of all other nexuses. Whether it has.
    pub async fn clear_task_set(self: &Arc<Self>, by: NexusId) -> bool {
        run::manage(self, by, Function::ClearTaskSet).await
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<NexusId, Vec<Attention>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nexus(&self, id: NexusId) -> Option<Arc<ItlNexus>> {
        self.nexuses.attached().into_iter().find(|nexus| nexus.nexus.id == id)
    }

    /// The owner says what the unit is.
    fn see(&self, view: View) {
        self.device_type.store(view.device_type, Ordering::Release);
        self.descriptor_sense.store(view.descriptor_sense, Ordering::Release);
    }
}

impl LogicalUnit for RemoteUnit {
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mut mover: M) -> Execution<M> {
        let unit = self.clone();
        Execution::Running(Pooled::new(async move {
            let outcome = run::run(&unit, &command, &mut mover).await;
            (mover, outcome)
        }))
    }

    fn device_type(&self) -> u8 {
        self.device_type.load(Ordering::Acquire)
    }

    fn attach(&self, nexus: &Arc<ItlNexus>) {
        self.nexuses.attach(nexus);
    }

    fn detach(&self, nexus: NexusId) {
        self.nexuses.detach(nexus);
        self.pending().remove(&nexus);
        link::look();
    }

    /// [`Self::have_reset`] waits for the owner.
    fn reset(&self, _: ResetKind, _: Option<NexusId>) {
        invariant::broken!("a remote unit is reset without waiting for its owner");
    }
}
