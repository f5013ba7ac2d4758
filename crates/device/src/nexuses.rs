//! Who reaches a logical unit, and what they have reserved of it: the pure machine of `scsi::reservation`, with its unit
//! attentions delivered, its verdicts written, its aborts passed on and its APTPL state kept before GOOD is said. The same
//! for every kind of unit; it never decodes a CDB and moves no data.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scsi::cdb::PersistentReserveOut;
use scsi::data::target_port_groups::{self, TargetPortGroup};
use scsi::data::vpd::{Designator, Identification, Identifier};
use scsi::reservation::{
    Access, Effects, Environment, InAction, ItPort, Refusal, Reservations, SavedError, TransportId,
};
use scsi::{AdditionalSense, Sense, SenseKey, Status, UnitAttention};

use crate::exclusion::Exclusion;
use crate::{Command, ItlNexus, Nexus, NexusId, Outcome, Persist, ResetKind};

/// Which tasks of a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// All.
    All,
    /// The one that the initiator calls so: see [`Command::tag`].
    Tagged(u64),
}

/// Aborts and counts tasks, for PREEMPT AND ABORT and for task management that a unit does itself. The server does it: it knows the
/// tasks.
pub trait AbortTasks: Send + Sync + 'static {
    /// Aborts tasks of `nexus` (but not `except`, the command that asks for it), resolves when they have stopped, and says how many
    /// there were.
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: &Command,
    ) -> Pin<Box<dyn Future<Output = usize>>>;

    /// Says how many tasks of `nexus` are in the unit's task set, `except` not counted.
    fn count(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: &Command,
    ) -> Pin<Box<dyn Future<Output = usize>>>;
}

/// Why the reservations that APTPL kept cannot be put into force. Serving the unit without them could let a fenced node
/// write.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// They cannot be read.
    #[error("the kept reservations cannot be read")]
    Read(#[from] io::Error),
    /// They are torn or not ours.
    #[error("the kept reservations cannot be used")]
    Saved(#[from] SavedError),
}

/// The one target port group of a target whose ports are all alike.
const TARGET_PORT_GROUP: u16 = 1;

/// A nexus that reaches the unit.
struct Known {
    nexus: Arc<ItlNexus>,
    /// Its name in persistent reservations.
    port: ItPort,
}

#[derive(Default)]
struct State {
    reservations: Reservations,
    known: Vec<Known>,
    /// Relative identifiers of the target ports that lead to the unit.
    target_ports: Vec<u16>,
}

/// The nexuses of one unit and their reservations, shared by all cores: a mutex, taken on the slow path only and never
/// across an await.
pub struct Nexuses {
    state: Mutex<State>,
    persist: Option<Arc<dyn Persist>>,
    /// Lets one PERSISTENT RESERVE OUT run at a time: the next starts from what it has kept.
    turn: Exclusion,
    aborter: Mutex<Option<Arc<dyn AbortTasks>>>,
}

/// The nexus as persistent reservations name it.
fn port_of(nexus: &Nexus) -> ItPort {
    // A server that gives no proper TransportID still gets reservations of its own.
    let parsed = TransportId::parse(&nexus.transport_id).ok().map(|(id, _)| id);
    let initiator = parsed
        .or_else(|| TransportId::iscsi_port(&nexus.initiator, nexus.id.0))
        .unwrap_or_else(|| TransportId::opaque(nexus.id.0));
    ItPort { initiator, target_port: nexus.target_port }
}

impl State {
    fn find(&self, id: NexusId) -> Option<&Known> {
        self.known.iter().find(|known| known.nexus.nexus.id == id)
    }

    /// Writes every nexus's verdict anew.
    fn refresh_verdicts(&self) {
        for known in &self.known {
            let reserved = self.reservations.concerns(&known.port, known.nexus.nexus.id.0);
            known.nexus.set_reserved(reserved);
        }
    }
}

impl Nexuses {
    /// Nobody, with the reservations that `persist` kept. Blocks for a small file if there is such a place; without one
    /// APTPL=1 is refused.
    ///
    /// # Errors
    /// When what was kept cannot be used.
    pub fn new(persist: Option<Arc<dyn Persist>>) -> Result<Self, KeptError> {
        let kept = match &persist {
            Some(persist) => persist.load(Reservations::MAX_SAVED_LEN)?,
            None => None,
        };
        let reservations = match kept {
            Some(bytes) => Reservations::from_bytes(&bytes)?,
            None => Reservations::new(),
        };
        Ok(Self {
            state: Mutex::new(State { reservations, ..State::default() }),
            persist,
            turn: Exclusion::new(),
            aborter: Mutex::new(None),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which target ports lead to the unit: what ALL_TG_PT registers with. Those of nexuses that are attached always
    /// count.
    pub fn set_target_ports(&self, ports: &[u16]) {
        self.state().target_ports = ports.to_vec();
    }

    /// The target ports that [`Self::set_target_ports`] named.
    pub fn target_ports(&self) -> Vec<u16> {
        self.state().target_ports.clone()
    }

    /// Says who aborts and counts tasks.
    pub fn set_aborter(&self, aborter: Arc<dyn AbortTasks>) {
        *self.aborter.lock().unwrap_or_else(PoisonError::into_inner) = Some(aborter);
    }

    fn aborter(&self) -> Option<Arc<dyn AbortTasks>> {
        self.aborter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has tasks of `nexus` aborted, but not `except`, resolves when they have stopped, and says how many there were. `None` if nobody
    /// does that here.
    pub async fn abort_tasks(&self, nexus: Arc<ItlNexus>, which: Tasks, except: &Command) -> Option<usize> {
        Some(self.aborter()?.abort(nexus, which, except).await)
    }

    /// How many tasks of `nexus` are in the task set, `except` not counted. `None` if nobody knows here.
    pub async fn count_tasks(&self, nexus: Arc<ItlNexus>, which: Tasks, except: &Command) -> Option<usize> {
        Some(self.aborter()?.count(nexus, which, except).await)
    }

    /// The I_T nexus was lost, as far as this unit is concerned, though its session goes on: RESERVE ends, and it is told.
    pub fn lose(&self, nexus: &ItlNexus) {
        let mut state = self.state();
        if state.reservations.nexus_lost(nexus.nexus.id.0) {
            state.refresh_verdicts();
        }
        drop(state);
        nexus.establish(UnitAttention::NexusLossOccurred);
    }

    /// All that are attached.
    pub fn attached(&self) -> Vec<Arc<ItlNexus>> {
        self.state().known.iter().map(|known| known.nexus.clone()).collect()
    }

    /// Whether nobody reaches the unit.
    pub fn is_empty(&self) -> bool {
        self.state().known.is_empty()
    }

    /// A session reached the unit: see [`crate::LogicalUnit::attach`].
    pub fn attach(&self, nexus: &Arc<ItlNexus>) {
        let mut state = self.state();
        // Of the codes for a new nexus the general one: it is the only one that some initiators (libiscsi's iscsi-ls) expect.
        nexus.establish(UnitAttention::PowerOnResetOrBusDeviceReset);
        state.known.retain(|known| known.nexus.nexus.id != nexus.nexus.id);
        state.known.push(Known { nexus: nexus.clone(), port: port_of(&nexus.nexus) });
        state.refresh_verdicts();
        drop(state);
        if let Some(ports) = &nexus.nexus.ports {
            ports.attach(nexus);
        }
    }

    /// A session is gone: see [`crate::LogicalUnit::detach`].
    pub fn detach(&self, nexus: NexusId) {
        let mut state = self.state();
        for known in state.known.extract_if(.., |known| known.nexus.nexus.id == nexus) {
            if let Some(ports) = &known.nexus.nexus.ports {
                ports.detach(&known.nexus);
            }
        }
        if state.reservations.nexus_lost(nexus.0) {
            state.refresh_verdicts();
        }
    }

    /// The unit was reset: RESERVE ends, and every nexus gets the unit attention that tells it.
    pub fn reset(&self, kind: ResetKind) {
        let mut state = self.state();
        state.reservations.reset();
        state.refresh_verdicts();
        let attention = match kind {
            ResetKind::LogicalUnit => UnitAttention::BusDeviceResetFunctionOccurred,
            ResetKind::TargetWarm => UnitAttention::ScsiBusReset,
            ResetKind::TargetCold => UnitAttention::PowerOnResetOrBusDeviceReset,
        };
        for known in &state.known {
            known.nexus.establish(attention);
        }
    }

    /// Establishes `attention` for every nexus but `except`.
    pub fn establish(&self, attention: UnitAttention, except: Option<NexusId>) {
        for known in self.state().known.iter().filter(|known| Some(known.nexus.nexus.id) != except) {
            known.nexus.establish(attention);
        }
    }

    /// The attached nexus `id`, or else one that `initiator` has.
    pub fn find(&self, id: NexusId, initiator: &str) -> Option<Arc<ItlNexus>> {
        let state = self.state();
        let same = || state.known.iter().find(|known| known.nexus.nexus.initiator == initiator);
        state.find(id).or_else(same).map(|known| known.nexus.clone())
    }

    /// The nexus as persistent reservations name it.
    pub fn port_of(&self, nexus: &ItlNexus) -> ItPort {
        let known = self.state().find(nexus.nexus.id).map(|known| known.port.clone());
        known.unwrap_or_else(|| port_of(&nexus.nexus))
    }

    /// What is checked before a command runs, where its nexus's verdict is not clear: a pending unit attention (not where the
    /// command is `exempt`, SAM-5 §5.14.4), the target port's access state, reservations, in that order.
    ///
    /// # Errors
    /// What the command is answered with.
    pub fn gate(
        &self,
        command: &Command,
        exempt: bool,
        access: impl FnOnce() -> Access,
    ) -> Result<(), Outcome> {
        let verdict = command.nexus.verdict();
        if verdict.attention() && !exempt {
            if let Some(attention) = command.nexus.take_attention() {
                return Err(Sense::from(attention).into());
            }
        }
        if verdict.inactive() {
            command.nexus.check_access(command.cdb.bytes())?;
        }
        if verdict.reserved() {
            self.check(&command.nexus, access())?;
        }
        Ok(())
    }

    /// Whether a reservation lets a command of class `access` of `nexus` run.
    ///
    /// # Errors
    /// RESERVATION CONFLICT.
    pub fn check(&self, nexus: &ItlNexus, access: Access) -> Result<(), Outcome> {
        let port = self.port_of(nexus);
        let allowed = self.state().reservations.check(&port, nexus.nexus.id.0, access);
        allowed.map_err(|_| Outcome::status(Status::ReservationConflict))
    }

    /// RESERVE and RELEASE.
    ///
    /// # Errors
    /// RESERVATION CONFLICT.
    pub fn reserve_legacy(&self, nexus: &ItlNexus, release: bool) -> Result<Outcome, Outcome> {
        let port = self.port_of(nexus);
        let session = nexus.nexus.id.0;
        let mut state = self.state();
        let done = if release {
            state.reservations.release_legacy(&port, session)
        } else {
            state.reservations.reserve_legacy(&port, session)
        };
        state.refresh_verdicts();
        done.map(|()| Outcome::GOOD).map_err(|_| Outcome::status(Status::ReservationConflict))
    }

    /// PERSISTENT RESERVE IN: its parameter data.
    ///
    /// # Errors
    /// RESERVATION CONFLICT.
    pub fn persistent_in(&self, nexus: &ItlNexus, action: InAction) -> Result<Vec<u8>, Outcome> {
        // Also asked when no verdict is set: whoever holds the unit by RESERVE conflicts with itself here.
        self.check(nexus, Access::PersistentIn)?;
        Ok(self.state().reservations.persistent_in(action, self.persist.is_some()))
    }

    /// PERSISTENT RESERVE OUT with its parameter list.
    ///
    /// # Errors
    /// What the command is answered with.
    pub async fn persistent_out(
        &self,
        command: &Command,
        cdb: PersistentReserveOut,
        list: &[u8],
    ) -> Result<(), Outcome> {
        let port = self.port_of(&command.nexus);
        let turn = self.turn.atomic(0, 1).await;
        let (next, effects) = self.next(&port, command, cdb, list)?;
        if effects.persist {
            self.keep(&next).await?;
        }
        let victims = self.commit(next, &effects, command);
        // A task that is to be aborted may be one that waits for this turn.
        drop(turn);
        for nexus in victims {
            self.abort_tasks(nexus, Tasks::All, command).await;
        }
        Ok(())
    }

    /// What the reservations will be, if what follows from them can be kept.
    fn next(
        &self,
        port: &ItPort,
        command: &Command,
        cdb: PersistentReserveOut,
        list: &[u8],
    ) -> Result<(Reservations, Effects), Outcome> {
        let state = self.state();
        let mut target_ports: Vec<u16> = state.known.iter().map(|k| k.port.target_port).collect();
        target_ports.extend_from_slice(&state.target_ports);
        target_ports.sort_unstable();
        target_ports.dedup();
        let mut initiators: Vec<_> = state.known.iter().map(|k| k.port.initiator.clone()).collect();
        initiators.sort();
        initiators.dedup();
        let environment = Environment {
            target_ports: &target_ports,
            initiators: &initiators,
            can_persist: self.persist.is_some(),
        };
        let mut next = state.reservations.clone();
        let session = command.nexus.nexus.id.0;
        let effects = next
            .persistent_out(port, session, cdb.action, cdb.scope << 4 | cdb.kind, list, environment)
            .map_err(refused)?;
        Ok((next, effects))
    }

    async fn keep(&self, next: &Reservations) -> Result<(), Outcome> {
        let Some(persist) = &self.persist else { return Ok(()) };
        persist.save(next.to_bytes()).await.map_err(|error| {
            tracing::error!(%error, "reservations could not be kept");
            // The state is as it was, and so is what is kept, or newer by what the initiator asked for.
            Outcome::check(Sense::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE))
        })
    }

    /// Puts the new state in force and tells who has to know. Gives the nexuses whose tasks are to be aborted.
    fn commit(&self, next: Reservations, effects: &Effects, command: &Command) -> Vec<Arc<ItlNexus>> {
        let mut state = self.state();
        state.reservations = next;
        for (port, attention) in &effects.attentions {
            let own = command.nexus.nexus.id;
            for known in state.known.iter().filter(|k| k.port == *port && k.nexus.nexus.id != own) {
                known.nexus.establish(*attention);
            }
        }
        state.refresh_verdicts();
        let aborted = |known: &&Known| effects.abort.contains(&known.port);
        state.known.iter().filter(aborted).map(|known| known.nexus.clone()).collect()
    }

    /// The target port groups as `nexus` is told of them, and how long a transition takes, in seconds (REPORT TARGET PORT
    /// GROUPS): one group of all ports where they are alike.
    pub fn port_groups(&self, nexus: &Nexus) -> (Vec<TargetPortGroup>, u8) {
        if let Some(ports) = &nexus.ports {
            return (ports.groups(), ports.transition_s());
        }
        let mut ports = self.target_ports();
        ports.push(nexus.target_port);
        ports.sort_unstable();
        ports.dedup();
        (vec![TargetPortGroup::optimized(TARGET_PORT_GROUP, ports)], 0)
    }

    /// Names of the unit, and of the port and the target through which `nexus` reaches it (VPD page 83h). The unit is known by
    /// its NAA designator, and by `vendor` and `serial`.
    pub fn identification(&self, nexus: &Nexus, naa: &[u8], vendor: &str, serial: &str) -> Identification {
        // SPC-4 §7.8.6.11 names an iSCSI target port by its target's name and its portal group tag.
        let port = format!("{},t,0x{:04x}", nexus.target, nexus.target_port);
        let mut designators = vec![
            Designator::unit(Identifier::Naa(naa.to_vec())),
            Designator::unit(Identifier::t10_vendor(vendor, serial)),
            Designator::iscsi_port(Identifier::RelativeTargetPort(nexus.target_port)),
        ];
        let group = match &nexus.ports {
            Some(ports) => ports.group_of(nexus.target_port),
            None => Some(TARGET_PORT_GROUP),
        };
        designators.extend(group.map(|group| Designator::iscsi_port(Identifier::TargetPortGroup(group))));
        designators.push(Designator::iscsi_port(Identifier::ScsiName(port)));
        designators.push(Designator::iscsi_device(Identifier::ScsiName(nexus.target.clone())));
        Identification(designators)
    }

    /// SET TARGET PORT GROUPS with its parameter list: well when all groups are in their new states.
    ///
    /// # Errors
    /// What the command is answered with.
    pub async fn set_port_groups(&self, nexus: &ItlNexus, list: &[u8]) -> Result<(), Sense> {
        let ports = nexus.nexus.ports.as_ref().filter(|ports| ports.explicit());
        let ports = ports.ok_or(Sense::invalid_service_action())?;
        ports.set(&target_port_groups::parse_set(list)?, nexus).await
    }

    /// Takes over the persistent reservations of a unit that this one replaces on the same store.
    pub fn inherit(&self, old: &Self) {
        let reservations = old.state().reservations.clone();
        self.put(reservations);
    }

    /// The persistent reservations for another process that serves the unit from now on: see [`Reservations::hand_over`].
    /// `None` if there are none.
    pub fn hand_over(&self) -> Option<(Vec<u8>, bool, u32)> {
        let state = self.state();
        (!state.reservations.is_empty()).then(|| state.reservations.hand_over())
    }

    /// Puts into force what [`Self::hand_over`] gave.
    ///
    /// # Errors
    /// When the bytes are torn; the unit is as it was.
    pub fn take_over(&self, bytes: &[u8], aptpl: bool, generation: u32) -> Result<(), SavedError> {
        self.put(Reservations::take_over(bytes, aptpl, generation)?);
        Ok(())
    }

    fn put(&self, reservations: Reservations) {
        let mut state = self.state();
        state.reservations = reservations;
        state.refresh_verdicts();
    }
}

fn refused(refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Conflict => Outcome::status(Status::ReservationConflict),
        Refusal::InvalidFieldInCdb(byte) => Sense::invalid_field_in_cdb(byte, None).into(),
        Refusal::InvalidFieldInParameterList(byte) => {
            Sense::invalid_field_in_parameter_list(byte, None).into()
        }
        Refusal::ParameterListLength => Sense::parameter_list_length_error().into(),
        Refusal::InvalidRelease => Sense::invalid_release().into(),
        Refusal::InsufficientResources => Sense::insufficient_registration_resources().into(),
    }
}
