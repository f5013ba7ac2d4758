//! A unit of the group, as this gateway's initiators see it. While this gateway owns it, its disk
//! executes the commands. Otherwise each goes to the unit's owner, or waits while there is none.
//!
//! `link` is the connection of one core to one owner, `run` one command on its way.

mod link;
mod run;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use device::{
    AbortTasks, Command, DataMover, Execution, ItlNexus, KeptError, LogicalUnit, Nexus, NexusId, Nexuses,
    PortGroups, Principal, ResetKind,
};
use disk::unit::DiskUnit;
use peer_link::{Attention, Function, View};
use runtime::Pooled;
use scsi::{Sense, UnitAttention};

use crate::peers::Peers;
use crate::seat;

/// Says that a command may begin on a unit now, and holds it open until the command has ended.
/// `None`: the unit is not this gateway's.
pub type Gate = Arc<dyn Fn() -> Option<Begun> + Send + Sync>;
/// A command that has begun, until it is dropped.
pub type Begun = Box<dyn Any + Send>;

/// A unit of the group.
pub struct GroupUnit {
    peers: Arc<Peers>,
    /// Its number in the group.
    number: u32,
    ports: Arc<PortGroups>,
    device_type: AtomicU8,
    descriptor_sense: AtomicBool,
    /// Bytes of a block, and of all, as an owner has told last.
    block_size: AtomicU32,
    size: AtomicU64,
    /// The sessions that see it; verdicts and attentions are its owner's.
    nexuses: Nexuses,
    /// The attentions that owners have left pending for each nexus, and the tenure of the one that
    /// told. One that is missing has not been any owner's, as far as an owner has told.
    pending: Mutex<BTreeMap<NexusId, (u64, Vec<Attention>)>>,
    here: RwLock<Option<Here>>,
}

/// The unit, while this gateway owns it.
struct Here {
    disk: Arc<DiskUnit>,
    gate: Gate,
    /// Nexuses that it does not serve: their ports' registrations are of other users.
    refused: Vec<NexusId>,
}

impl GroupUnit {
    /// Unit `number` of the group, behind `ports` of all gateways.
    ///
    /// # Errors
    /// None: there is nothing that could not be read.
    pub fn new(peers: &Arc<Peers>, number: u32, ports: Arc<PortGroups>) -> Result<Arc<Self>, KeptError> {
        Ok(Arc::new(Self {
            peers: peers.clone(),
            number,
            ports,
            device_type: AtomicU8::new(0),
            descriptor_sense: AtomicBool::new(false),
            block_size: AtomicU32::new(0),
            size: AtomicU64::new(0),
            nexuses: Nexuses::new(None)?,
            pending: Mutex::default(),
            here: RwLock::default(),
        }))
    }

    /// Sets the server's aborter of tasks.
    pub fn connect(&self, aborter: Arc<dyn AbortTasks>) {
        if let Some(disk) = self.disk() {
            disk.nexuses().set_aborter(aborter.clone());
        }
        self.nexuses.set_aborter(aborter);
    }

    /// This gateway owns the unit now: `disk` executes what `gate` lets begin.
    pub fn serve(&self, disk: &Arc<DiskUnit>, gate: Gate) {
        self.peers.owns(self.number);
        if let Some(aborter) = self.nexuses.aborter() {
            disk.nexuses().set_aborter(aborter);
        }
        let ports: Vec<u16> = self.ports.groups().into_iter().flat_map(|group| group.ports).collect();
        disk.nexuses().set_target_ports(&ports);
        let mut here = Here { disk: disk.clone(), gate, refused: Vec::new() };
        let mut now = self.here.write().unwrap_or_else(PoisonError::into_inner);
        self.leave(now.take());
        self.nexuses.attached().iter().for_each(|nexus| self.attach_here(&mut here, nexus));
        *now = Some(here);
    }

    /// This gateway does not own the unit any more. What has begun ends on its own.
    pub fn stop(&self) {
        let mut now = self.here.write().unwrap_or_else(PoisonError::into_inner);
        self.leave(now.take());
    }

    /// Takes the nexuses away from the disk. `here` stays locked meanwhile: a session that goes
    /// takes what is kept for it along.
    fn leave(&self, before: Option<Here>) {
        let Some(here) = before else { return };
        self.saw_size(here.disk.options().block_size, here.disk.blocks());
        for nexus in here.disk.nexuses().attached() {
            // Those of other gateways are the host's.
            if self.nexuses.is_attached(&nexus) {
                let left = seat::to_wire(seat::leave(&here.disk, &nexus));
                self.keep(nexus.nexus.id, self.peers.tenure(self.number), left);
            }
        }
    }

    fn attach_here(&self, here: &mut Here, nexus: &Arc<ItlNexus>) {
        let kept = self.kept(nexus.nexus.id).map(|kept| seat::from_wire(&kept));
        if seat::take(&here.disk, nexus, kept) {
            // An owner knows it now.
            self.pending().entry(nexus.nexus.id).or_default();
        } else {
            here.refused.push(nexus.nexus.id);
        }
    }

    /// The disk, while this gateway owns the unit.
    pub fn disk(&self) -> Option<Arc<DiskUnit>> {
        let here = self.here.read().unwrap_or_else(PoisonError::into_inner);
        here.as_ref().map(|here| here.disk.clone())
    }

    /// Begins something here, if this gateway owns the unit. Inside, an outcome if it does not
    /// serve `nexus`.
    fn begin(&self, nexus: NexusId) -> Option<Result<(Arc<DiskUnit>, Begun), Sense>> {
        let here = self.here.read().unwrap_or_else(PoisonError::into_inner);
        let here = here.as_ref()?;
        let begun = (here.gate)()?;
        match here.refused.contains(&nexus) {
            false => Some(Ok((here.disk.clone(), begun))),
            true => Some(Err(Sense::logical_unit_not_supported())),
        }
    }

    /// The sessions that see it. Its reservations are the owner's.
    pub fn nexuses(&self) -> &Nexuses {
        &self.nexuses
    }

    /// The ports of all gateways that lead to it.
    pub fn ports(&self) -> &Arc<PortGroups> {
        &self.ports
    }

    /// The owner of the registration that `nexus` would use, as far as this gateway knows.
    pub fn owner(&self, nexus: &Nexus) -> Option<Principal> {
        self.disk()?.nexuses().owner(nexus)
    }

    /// D_SENSE, as the owner has told last.
    pub fn descriptor_sense(&self) -> bool {
        match self.disk() {
            Some(disk) => disk.descriptor_sense(),
            None => self.descriptor_sense.load(Ordering::Acquire),
        }
    }

    /// The unit's size, bytes; 0 as long as nobody has told.
    pub fn size(&self) -> u64 {
        match self.disk() {
            Some(disk) => disk.blocks() * u64::from(disk.options().block_size),
            None => self.size.load(Ordering::Acquire),
        }
    }

    /// Bytes of a block; 0 as long as nobody has told.
    pub fn block_size(&self) -> u32 {
        match self.disk() {
            Some(disk) => disk.options().block_size,
            None => self.block_size.load(Ordering::Acquire),
        }
    }

    /// What a unit that another gateway owns has, until its owner tells otherwise.
    pub fn saw_size(&self, block_size: u32, blocks: u64) {
        self.block_size.store(block_size, Ordering::Release);
        self.size.store(blocks.saturating_mul(block_size.into()), Ordering::Release);
    }

    /// Whether both are the same unit of a group.
    pub fn is_same_unit(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peers, &other.peers) && self.number == other.number
    }

    /// Has the owner end all tasks of other gateways' nexuses, and reset the unit. The tasks of
    /// this gateway have ended. Whether it has.
    pub async fn have_reset(self: &Arc<Self>, kind: ResetKind, by: NexusId) -> bool {
        let function = match kind {
            ResetKind::LogicalUnit => Function::LogicalUnitReset,
            ResetKind::TargetWarm => Function::TargetWarmReset,
            ResetKind::TargetCold => Function::TargetColdReset,
        };
        run::manage(self, by, function, async |disk: &Arc<DiskUnit>| {
            disk.nexuses().abort_of_peers(None).await;
            disk.reset(kind, Some(by));
        })
        .await
    }

    /// Has the owner end all tasks of other gateways' nexuses. Whether it has.
    pub async fn clear_task_set(self: &Arc<Self>, by: NexusId) -> bool {
        run::manage(self, by, Function::ClearTaskSet, async |disk: &Arc<DiskUnit>| {
            let told = UnitAttention::CommandsClearedByAnotherInitiator;
            disk.nexuses().abort_of_peers(Some(told)).await;
        })
        .await
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<NexusId, (u64, Vec<Attention>)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attentions that are pending for a nexus, if an owner has told of it.
    fn kept(&self, nexus: NexusId) -> Option<Vec<Attention>> {
        self.pending().get(&nexus).map(|(_, kept)| kept.clone())
    }

    /// Keeps what an owner has told of a nexus. The word of an earlier owner comes too late, and a
    /// session that has gone meanwhile stays away.
    fn keep(&self, nexus: NexusId, tenure: u64, attentions: Vec<Attention>) {
        let mut pending = self.pending();
        let is_late = pending.get(&nexus).is_some_and(|(last, _)| *last > tenure);
        if !is_late && self.nexus(nexus).is_some() {
            pending.insert(nexus, (tenure, attentions));
        }
    }

    fn nexus(&self, id: NexusId) -> Option<Arc<ItlNexus>> {
        self.nexuses.attached().into_iter().find(|nexus| nexus.nexus.id == id)
    }

    /// The owner says what the unit is.
    fn see(&self, view: View) {
        self.device_type.store(view.device_type, Ordering::Release);
        self.descriptor_sense.store(view.descriptor_sense, Ordering::Release);
        if view.block_size > 0 {
            self.saw_size(view.block_size, view.blocks);
        }
    }
}

impl LogicalUnit for GroupUnit {
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mut mover: M) -> Execution<M> {
        let begun = match mover.is_fresh(self.peers.config.fresh) {
            true => self.begin(command.nexus.nexus.id),
            false => None,
        };
        match begun {
            None => Execution::Running(Pooled::new(run::run(self.clone(), command, mover))),
            Some(Err(sense)) => Execution::Done(mover, sense.into()),
            Some(Ok((disk, begun))) => match disk.execute(command, mover) {
                Execution::Running(task) => Execution::Running(Pooled::new(async move {
                    let ended = task.await;
                    drop(begun);
                    ended
                })),
                done => done,
            },
        }
    }

    fn device_type(&self) -> u8 {
        self.device_type.load(Ordering::Acquire)
    }

    fn attach(&self, nexus: &Arc<ItlNexus>) {
        let mut here = self.here.write().unwrap_or_else(PoisonError::into_inner);
        self.nexuses.attach(nexus);
        if let Some(here) = &mut *here {
            self.attach_here(here, nexus);
        }
    }

    fn detach(&self, nexus: NexusId) {
        let mut here = self.here.write().unwrap_or_else(PoisonError::into_inner);
        self.nexuses.detach(nexus);
        if let Some(here) = &mut *here {
            here.disk.detach(nexus);
            here.refused.retain(|refused| *refused != nexus);
        }
        drop(here);
        self.pending().remove(&nexus);
        link::look();
    }

    /// [`Self::have_reset`] waits for the owner.
    fn reset(&self, _: ResetKind, _: Option<NexusId>) {
        invariant::broken!("a unit of the group is reset without waiting for its owner");
    }
}
