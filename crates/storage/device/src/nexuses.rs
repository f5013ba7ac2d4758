//! The nexuses of a logical unit and their reservations: the state machine of `scsi::reservation`
//! with its I/O. It delivers unit attentions, writes verdicts, requests aborts, and stores APTPL
//! state before GOOD is returned. It serves every kind of unit; it never decodes a CDB and moves no
//! data.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use scsi::cdb::PersistentReserveOut;
use scsi::data::target_port_groups::{self, SetTargetPortGroup, TargetPortGroup};
use scsi::data::vpd::{Designator, Identification, Identifier};
use scsi::reservation::{
    Access, Effects, Environment, InAction, ItPort, Refusal, Reservations, SavedError, TransportId,
};
use scsi::{AdditionalSense, Sense, Status, UnitAttention};

use crate::exclusion::Exclusion;
use crate::owners::Owners;
use crate::{Charge, Command, ItlNexus, Nexus, NexusId, Outcome, Persist, Principal, Reload, ResetKind};

/// A selection of a nexus's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// All tasks of the nexus.
    All,
    /// The task with this identifier: see [`Command::tag`].
    Tagged(u64),
}

/// Aborts and counts tasks, for PREEMPT AND ABORT and for task management by the unit itself, and
/// knows limits of service. The server implements it, since it owns both.
pub trait AbortTasks: Send + Sync + 'static {
    /// Aborts tasks of `nexus` except `except`, the command that requests it. Resolves to their
    /// number when they have stopped.
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>>;

    /// The number of tasks of `nexus` in the unit's task set, without `except`.
    fn count(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>>;

    /// The limits of service of what a unit reads or writes at `nexus` beyond its commands' own
    /// data.
    fn limits(&self, nexus: &Arc<ItlNexus>, writes: bool) -> Option<Charge> {
        let _ = (nexus, writes);
        None
    }

    /// Reports what `command` has done to other initiators.
    fn did(&self, command: &Command, deed: Deed) {
        let _ = (command, deed);
    }
}

/// What a command has done to other initiators.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// It removed the registrations, and any reservation, of this number of others: by PREEMPT, or
    /// by CLEAR.
    Preempted { by_clear: bool, others: usize },
    /// It set the state of a target port group.
    SetAccess(SetTargetPortGroup),
}

/// Why stored reservations cannot be restored. Serving the unit without them could let a fenced
/// node write.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("the stored reservations cannot be read")]
    Read(#[from] io::Error),
    /// They are torn or not in our format.
    #[error("the stored reservations cannot be used")]
    Saved(#[from] SavedError),
}

/// A unit's persistent reservations, for another process that takes over the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// [`Reservations::hand_over`].
    pub saved: Vec<u8>,
    pub aptpl: bool,
    pub generation: u32,
    /// The same as `saved` with the owners of registrations; empty if none has an owner. Versions
    /// without owners understand `saved` only.
    pub owned: Vec<u8>,
}

/// The only target port group of a target whose ports are all equal.
const TARGET_PORT_GROUP: u16 = 1;

struct Known {
    nexus: Arc<ItlNexus>,
    /// Its identity in persistent reservations.
    port: ItPort,
}

#[derive(Default)]
struct State {
    reservations: Reservations,
    owners: Owners,
    known: Vec<Known>,
    /// Relative identifiers of the target ports with access to the unit.
    target_ports: Vec<u16>,
}

/// The nexuses of one unit and their reservations. All cores share it behind a mutex, which is
/// taken only on the slow path and never across an await.
pub struct Nexuses {
    state: Arc<Mutex<State>>,
    persist: Option<Arc<dyn Persist>>,
    line: Mutex<Arc<Line>>,
    /// The server of this process, and the one of other gateways' sessions.
    aborters: Mutex<[Option<Arc<dyn AbortTasks>>; 2]>,
}

/// The units that serve one store one after the other. While a configuration is applied some
/// sessions still see the old one, so a change of the reservations holds for all of them.
struct Line {
    /// Runs one PERSISTENT RESERVE OUT at a time: the next one starts from the stored result of the
    /// one before.
    turn: Exclusion,
    units: Mutex<Vec<Weak<Mutex<State>>>>,
}

impl Line {
    fn units(&self) -> MutexGuard<'_, Vec<Weak<Mutex<State>>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The identity of a nexus in persistent reservations.
fn port_of(nexus: &Nexus) -> ItPort {
    // A session without a valid TransportID still gets reservations of its own.
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

    fn put(&mut self, reservations: Reservations, owners: Owners) {
        self.reservations = reservations;
        self.owners = owners;
        self.refresh_verdicts();
    }

    /// Recomputes the verdict of every nexus.
    fn refresh_verdicts(&self) {
        for known in &self.known {
            let reserved = self.reservations.concerns(&known.port, known.nexus.nexus.id.0);
            known.nexus.set_reserved(reserved);
        }
    }
}

impl Nexuses {
    /// No nexuses, with the reservations stored in `persist`. Blocks to read a small file if
    /// `persist` is given; without it APTPL=1 is rejected.
    ///
    /// # Errors
    /// The stored reservations cannot be used.
    pub fn new(persist: Option<Arc<dyn Persist>>) -> Result<Self, KeptError> {
        let kept = match &persist {
            Some(persist) => persist.load(GROUP_HEAD + Reservations::MAX_SAVED_LEN)?,
            None => None,
        };
        let keeps_all = persist.as_ref().is_some_and(|persist| persist.keeps_all());
        let (reservations, owners) = match kept {
            Some(bytes) => read_kept(&bytes, keeps_all)?,
            None => (Reservations::new(), Owners::default()),
        };
        let state = Arc::new(Mutex::new(State { reservations, owners, ..State::default() }));
        let (weak, units) = (Arc::downgrade(&state), Mutex::new(vec![Arc::downgrade(&state)]));
        persist.iter().for_each(|persist| persist.on_replaced(weak.clone()));
        Ok(Self {
            state,
            persist,
            line: Mutex::new(Arc::new(Line { turn: Exclusion::new(), units })),
            aborters: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn line(&self) -> Arc<Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the target ports with access to the unit, which ALL_TG_PT registers. The ports of
    /// attached nexuses always count.
    pub fn set_target_ports(&self, ports: &[u16]) {
        self.state().target_ports = ports.to_vec();
    }

    /// The target ports set by [`Self::set_target_ports`].
    pub fn target_ports(&self) -> Vec<u16> {
        self.state().target_ports.clone()
    }

    /// Sets the implementation that aborts and counts tasks.
    pub fn set_aborter(&self, aborter: Arc<dyn AbortTasks>) {
        self.aborters.lock().unwrap_or_else(PoisonError::into_inner)[0] = Some(aborter);
    }

    /// Sets the same for nexuses of other gateways.
    pub fn set_peers(&self, aborter: Arc<dyn AbortTasks>) {
        self.aborters.lock().unwrap_or_else(PoisonError::into_inner)[1] = Some(aborter);
    }

    /// The implementation set by [`Self::set_aborter`].
    pub fn aborter(&self) -> Option<Arc<dyn AbortTasks>> {
        let [own, _] = self.aborters();
        own
    }

    fn aborters(&self) -> [Option<Arc<dyn AbortTasks>>; 2] {
        self.aborters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks each aborter, and adds up. Each knows nexuses of its own.
    async fn ask_aborters(
        &self,
        ask: impl Fn(&dyn AbortTasks) -> Pin<Box<dyn Future<Output = usize>>>,
    ) -> Option<usize> {
        let aborters = self.aborters();
        let mut count = None;
        for aborter in aborters.iter().flatten() {
            *count.get_or_insert(0) += ask(&**aborter).await;
        }
        count
    }

    /// Aborts tasks of `nexus` except `except`; resolves to their number when they have stopped.
    /// `None` without an [`AbortTasks`].
    pub async fn abort_tasks(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Option<usize> {
        self.ask_aborters(|aborter| aborter.abort(nexus.clone(), which, except)).await
    }

    /// The number of tasks of `nexus` in the task set, without `except`. `None` without an
    /// [`AbortTasks`].
    pub async fn count_tasks(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        except: Option<&Command>,
    ) -> Option<usize> {
        self.ask_aborters(|aborter| aborter.count(nexus.clone(), which, except)).await
    }

    /// Aborts all tasks of other gateways' nexuses, and waits for their end. A nexus that had some
    /// gets the attention `told`.
    pub async fn abort_of_peers(&self, told: Option<UnitAttention>) {
        let [_, Some(aborter)] = self.aborters() else { return };
        for nexus in self.attached() {
            let aborted = aborter.abort(nexus.clone(), Tasks::All, None).await;
            if let Some(told) = told.filter(|_| aborted > 0) {
                nexus.establish(told);
            }
        }
    }

    /// Handles the loss of the I_T nexus for this unit while its session continues: ends its
    /// RESERVE and establishes a unit attention.
    pub fn lose(&self, nexus: &ItlNexus) {
        let mut state = self.state();
        if state.reservations.nexus_lost(nexus.nexus.id.0) {
            state.refresh_verdicts();
        }
        drop(state);
        nexus.establish(UnitAttention::NexusLossOccurred);
    }

    pub fn attached(&self) -> Vec<Arc<ItlNexus>> {
        self.state().known.iter().map(|known| known.nexus.clone()).collect()
    }

    /// Whether one initiator may write data that another reads: two initiators are attached, and at
    /// least one may write. Sessions of the same name and principal are one initiator.
    pub fn has_rivals(&self) -> bool {
        let state = self.state();
        let Some(first) = state.known.first().map(|known| known.nexus.nexus.clone()) else { return false };
        let other = |nexus: &Nexus| nexus.initiator != first.initiator || nexus.principal != first.principal;
        let writes = state.known.iter().any(|known| !known.nexus.read_only);
        writes && state.known.iter().any(|known| other(&known.nexus.nexus))
    }

    /// Whether no nexus is attached.
    pub fn is_empty(&self) -> bool {
        self.state().known.is_empty()
    }

    /// Attaches a nexus: see [`crate::LogicalUnit::attach`].
    pub fn attach(&self, nexus: &Arc<ItlNexus>) {
        let mut state = self.state();
        // The general code for a new nexus: some initiators (libiscsi's iscsi-ls) expect no other.
        nexus.establish(UnitAttention::PowerOnResetOrBusDeviceReset);
        state.known.retain(|known| known.nexus.nexus.id != nexus.nexus.id);
        let port = port_of(&nexus.nexus);
        let State { owners, reservations, .. } = &mut *state;
        owners.arrived(&port, nexus.nexus.principal.as_ref(), reservations);
        state.known.push(Known { nexus: nexus.clone(), port });
        state.refresh_verdicts();
        drop(state);
        if let Some(ports) = &nexus.ports {
            ports.attach(nexus);
        }
    }

    /// Detaches a nexus: see [`crate::LogicalUnit::detach`].
    pub fn detach(&self, nexus: NexusId) {
        let mut state = self.state();
        for known in state.known.extract_if(.., |known| known.nexus.nexus.id == nexus) {
            if let Some(ports) = &known.nexus.ports {
                ports.detach(&known.nexus);
            }
        }
        if state.reservations.nexus_lost(nexus.0) {
            state.refresh_verdicts();
        }
    }

    /// Handles a reset of the unit: RESERVE ends, and every nexus gets a unit attention.
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

    /// Establishes `attention` for every nexus except `except`.
    pub fn establish(&self, attention: UnitAttention, except: Option<NexusId>) {
        for known in self.state().known.iter().filter(|known| Some(known.nexus.nexus.id) != except) {
            known.nexus.establish(attention);
        }
    }

    /// The nexus that gives a third-party copy access to this unit, for a command of `by` to any
    /// unit.
    ///
    /// It is the nexus of the same session, if that session can see this unit. Otherwise it is the
    /// nexus of a session with another target, if the same principal authenticated as the same
    /// initiator there; a name alone proves nothing. That session's rights must not be wider: if
    /// `by` is read-only, so must be the other.
    pub fn reached_by(&self, by: &ItlNexus) -> Option<Arc<ItlNexus>> {
        let state = self.state();
        let issuer = &by.nexus;
        let same_principal = |known: &&Known| {
            let other = &known.nexus.nexus;
            issuer.principal.is_some()
                && other.principal == issuer.principal
                && other.initiator == issuer.initiator
                // Units that a target masks from this session stay masked.
                && other.target != issuer.target
                && (known.nexus.read_only || !by.read_only)
        };
        // A registration belongs to an initiator port: prefer a nexus of the same port.
        let elsewhere = || {
            let others = state.known.iter().filter(same_principal);
            others.min_by_key(|known| known.nexus.nexus.transport_id != issuer.transport_id)
        };
        state.find(issuer.id).or_else(elsewhere).map(|known| known.nexus.clone())
    }

    /// Whether `nexus` is attached. A detached one gets no verdicts.
    pub fn is_attached(&self, nexus: &ItlNexus) -> bool {
        self.state().known.iter().any(|known| std::ptr::eq(Arc::as_ptr(&known.nexus), nexus))
    }

    /// The owner of the registration that `nexus` would use if it were attached. `None`: there is
    /// no registration, or no owner authenticated.
    pub fn owner(&self, nexus: &Nexus) -> Option<Principal> {
        self.state().owners.of(&port_of(nexus)).cloned()
    }

    /// The identity of a nexus in persistent reservations.
    pub(crate) fn port_of(&self, nexus: &ItlNexus) -> ItPort {
        let known = self.state().find(nexus.nexus.id).map(|known| known.port.clone());
        known.unwrap_or_else(|| port_of(&nexus.nexus))
    }

    /// The checks before a command runs, if its nexus's verdict is not clear. In this order: a
    /// pending unit attention (unless the command is `exempt`, SAM-5 §5.14.4), the target port's
    /// access state, reservations.
    ///
    /// # Errors
    /// The outcome of the command.
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

    /// Whether reservations allow a command of class `access` of `nexus`.
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
        // Check even with a clear verdict: the holder of RESERVE conflicts with itself here.
        self.check(nexus, Access::PersistentIn)?;
        Ok(self.state().reservations.persistent_in(action, self.persist.is_some()))
    }

    /// PERSISTENT RESERVE OUT with its parameter list.
    ///
    /// # Errors
    /// The outcome of the command.
    pub async fn persistent_out(
        &self,
        command: &Command,
        cdb: PersistentReserveOut,
        list: &[u8],
    ) -> Result<(), Outcome> {
        let port = self.port_of(&command.nexus);
        let line = self.line();
        let turn = line.turn.atomic(0, 1).await;
        let epoch = self.epoch();
        let (next, effects) = self.next(&port, command, cdb, list)?;
        if effects.persist || self.persist.as_ref().is_some_and(|persist| persist.keeps_all()) {
            self.keep(&next, epoch, command).await?;
        }
        let victims = self.commit(next, epoch, &effects, command)?;
        self.tell_preempted(&port, &effects, command);
        // A task to abort may itself wait for this turn.
        drop(turn);
        for nexus in victims {
            self.abort_tasks(nexus, Tasks::All, Some(command)).await;
        }
        Ok(())
    }

    /// Reports to the server that other nexuses lost registrations by `command`.
    fn tell_preempted(&self, own: &ItPort, effects: &Effects, command: &Command) {
        use UnitAttention::{RegistrationsPreempted, ReservationsPreempted};
        let lost = |wanted: UnitAttention| {
            effects.attentions.iter().filter(|(port, told)| *told == wanted && port != own).count()
        };
        for (by_clear, others) in [(false, lost(RegistrationsPreempted)), (true, lost(ReservationsPreempted))]
        {
            if others > 0 {
                self.tell(command, Deed::Preempted { by_clear, others });
            }
        }
    }

    fn tell(&self, command: &Command, deed: Deed) {
        self.aborters().iter().flatten().for_each(|aborter| aborter.did(command, deed));
    }

    /// The state after the command, or its refusal.
    fn next(
        &self,
        port: &ItPort,
        command: &Command,
        cdb: PersistentReserveOut,
        list: &[u8],
    ) -> Result<(Reservations, Effects), Outcome> {
        let state = self.state();
        // ALL_TG_PT must not register for a session of another principal under the same name.
        let own = &command.nexus.nexus;
        let foreign =
            |k: &&Known| k.nexus.nexus.initiator == own.initiator && k.nexus.nexus.principal != own.principal;
        let mut target_ports: Vec<u16> = state.known.iter().map(|k| k.port.target_port).collect();
        target_ports.extend_from_slice(&state.target_ports);
        target_ports.sort_unstable();
        target_ports.dedup();
        let taken = |target_port: u16| {
            let taken = ItPort { initiator: port.initiator.clone(), target_port };
            state.known.iter().filter(foreign).any(|k| k.port == taken)
        };
        target_ports.retain(|target_port| !taken(*target_port));
        let others = state.known.iter().filter(|k| !foreign(k));
        let mut initiators: Vec<_> = others.map(|k| k.port.initiator.clone()).collect();
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

    /// How often another daemon has replaced the stored reservations.
    fn epoch(&self) -> u64 {
        self.persist.as_ref().map_or(0, |persist| persist.epoch())
    }

    async fn keep(&self, next: &Reservations, epoch: u64, command: &Command) -> Result<(), Outcome> {
        let Some(persist) = &self.persist else { return Ok(()) };
        let own = &command.nexus.nexus;
        let mut owners = self.state().owners.clone();
        owners.settle(&port_of(own), own.principal.as_ref(), next);
        let bytes = match persist.keeps_all() {
            false => next.to_bytes_with(|port| owners.note(port)),
            true => {
                let (_, aptpl, generation) = next.hand_over();
                let mut bytes = GROUP.to_vec();
                bytes.extend_from_slice(&[aptpl.into(), 0, 0, 0]);
                bytes.extend_from_slice(&generation.to_be_bytes());
                bytes.extend(next.whole().to_bytes_with(|port| owners.note(port)));
                bytes
            }
        };
        persist.save_since(epoch, bytes).await.map_err(|error| {
            tracing::error!(%error, "reservations could not be kept");
            // The state is unchanged. The stored state is the old one, or already the requested
            // one.
            Outcome::check(match error.kind() {
                io::ErrorKind::NotConnected => {
                    Sense::not_ready(AdditionalSense::TARGET_PORT_IN_UNAVAILABLE_STATE)
                }
                _ => Sense::internal_target_failure(),
            })
        })
    }

    /// Puts the new state in force and establishes unit attentions. Returns the nexuses whose tasks
    /// to abort. BUSY if another daemon's state is in force since `epoch`.
    fn commit(
        &self,
        next: Reservations,
        epoch: u64,
        effects: &Effects,
        command: &Command,
    ) -> Result<Vec<Arc<ItlNexus>>, Outcome> {
        let own = &command.nexus.nexus;
        let line = self.line();
        let units = line.units();
        let mut victims = Vec::new();
        for unit in units.iter().filter_map(Weak::upgrade) {
            let mut state = locked(&unit);
            if self.epoch() != epoch {
                return Err(Outcome::status(Status::Busy));
            }
            state.owners.settle(&port_of(own), own.principal.as_ref(), &next);
            state.reservations = next.clone();
            for (port, attention) in &effects.attentions {
                for known in state.known.iter().filter(|k| k.port == *port && k.nexus.nexus.id != own.id) {
                    known.nexus.establish(*attention);
                }
            }
            state.refresh_verdicts();
            let aborted = state.known.iter().filter(|known| effects.abort.contains(&known.port));
            victims.extend(aborted.map(|known| known.nexus.clone()));
        }
        Ok(victims)
    }

    /// The target port groups for `nexus`, and the transition time in seconds (REPORT TARGET PORT
    /// GROUPS): one group of all ports if they are equal.
    pub fn port_groups(&self, nexus: &ItlNexus) -> (Vec<TargetPortGroup>, u8) {
        if let Some(ports) = &nexus.ports {
            return (ports.groups(), ports.transition_s());
        }
        let mut ports = self.target_ports();
        ports.push(nexus.nexus.target_port);
        ports.sort_unstable();
        ports.dedup();
        (vec![TargetPortGroup::optimized(TARGET_PORT_GROUP, ports)], 0)
    }

    /// The designators of the unit, and of the port and the target of `nexus` (VPD page 83h). The
    /// unit has its NAA designator, and one of `vendor` and `serial`.
    pub fn identification(&self, itl: &ItlNexus, naa: &[u8], vendor: &str, serial: &str) -> Identification {
        let nexus = &itl.nexus;
        // SPC-4 §7.8.6.11 names an iSCSI target port by its target's name and its portal group tag.
        let port = format!("{},t,0x{:04x}", nexus.target, nexus.target_port);
        let mut designators = vec![
            Designator::unit(Identifier::Naa(naa.to_vec())),
            Designator::unit(Identifier::t10_vendor(vendor, serial)),
            Designator::iscsi_port(Identifier::RelativeTargetPort(nexus.target_port)),
        ];
        let group = match &itl.ports {
            Some(ports) => ports.group_of(nexus.target_port),
            None => Some(TARGET_PORT_GROUP),
        };
        designators.extend(group.map(|group| Designator::iscsi_port(Identifier::TargetPortGroup(group))));
        designators.push(Designator::iscsi_port(Identifier::ScsiName(port)));
        designators.push(Designator::iscsi_device(Identifier::ScsiName(nexus.target.clone())));
        Identification(designators)
    }

    /// SET TARGET PORT GROUPS with its parameter list. Succeeds once all groups are in their new
    /// states.
    ///
    /// # Errors
    /// The sense data for the response.
    pub async fn set_port_groups(&self, command: &Command, list: &[u8]) -> Result<(), Sense> {
        let ports = command.nexus.ports.as_ref().filter(|ports| ports.explicit());
        let ports = ports.ok_or(Sense::invalid_service_action())?;
        let wanted = target_port_groups::parse_set(list)?;
        ports.set(&wanted, &command.nexus).await?;
        // A list may name a group many times.
        let last: BTreeMap<u16, SetTargetPortGroup> =
            wanted.into_iter().map(|set| (set.group_or_port, set)).collect();
        last.into_values().for_each(|set| self.tell(command, Deed::SetAccess(set)));
        Ok(())
    }

    /// Takes the persistent reservations of a unit that this one replaces on the same store. Until
    /// the old one is dropped a change through either of them holds for both.
    pub fn inherit(&self, old: &Self) {
        let line = old.line();
        let mut units = line.units();
        let (reservations, owners) = {
            let old = old.state();
            (old.reservations.clone(), old.owners.clone())
        };
        self.put(reservations, owners);
        units.retain(|unit| unit.strong_count() > 0);
        units.push(Arc::downgrade(&self.state));
        drop(units);
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// The persistent reservations for another process that takes over the unit. `None` if there
    /// are none.
    pub fn hand_over(&self) -> Option<HandedOver> {
        let State { reservations, owners, .. } = &*self.state();
        let (saved, aptpl, generation) = reservations.hand_over();
        let owned = reservations.whole().to_bytes_with(|port| owners.note(port));
        let owned = if owned == saved { Vec::new() } else { owned };
        (!reservations.is_empty()).then_some(HandedOver { saved, aptpl, generation, owned })
    }

    /// Puts the reservations from [`Self::hand_over`] in force.
    ///
    /// # Errors
    /// The bytes are torn; the unit is unchanged.
    pub fn take_over(&self, from: &HandedOver) -> Result<(), SavedError> {
        let bytes = if from.owned.is_empty() { &from.saved } else { &from.owned };
        let (_, owners) = read(bytes)?;
        self.put(Reservations::take_over(bytes, from.aptpl, from.generation)?, owners);
        Ok(())
    }

    fn put(&self, reservations: Reservations, owners: Owners) {
        self.state().put(reservations, owners);
    }
}

/// What another daemon has stored is in force as after a power on.
impl Reload for Mutex<State> {
    fn reload(&self, bytes: Option<&[u8]>) -> io::Result<()> {
        let kept = bytes.map(|bytes| read_kept(bytes, false)).transpose();
        let kept = kept.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let (reservations, owners) = kept.unwrap_or_else(|| (Reservations::new(), Owners::default()));
        let mut state = locked(self);
        state.put(reservations, owners);
        for known in &state.known {
            known.nexus.establish(UnitAttention::PowerOnResetOrBusDeviceReset);
        }
        Ok(())
    }
}

/// What stands before the stored form of [`Persist::keeps_all`]: this, whether APTPL is active,
/// three reserved bytes, and PRGENERATION (32 bits, big-endian).
const GROUP: [u8; 8] = *b"STAGPG\x00\x01";
const GROUP_HEAD: usize = GROUP.len() + 8;

/// [`read`] of either stored form. After a power on only what APTPL protects is in force.
fn read_kept(bytes: &[u8], keeps_all: bool) -> Result<(Reservations, Owners), SavedError> {
    let Some(([aptpl, _, _, _, generation @ ..], saved)) =
        bytes.strip_prefix(&GROUP).and_then(<[u8]>::split_first_chunk::<8>)
    else {
        return read(bytes);
    };
    let (reservations, owners) = read(saved)?;
    match keeps_all {
        true => {
            let generation = u32::from_be_bytes(*generation);
            Ok((Reservations::take_over(saved, *aptpl != 0, generation)?, owners))
        }
        false if *aptpl != 0 => Ok((reservations, owners)),
        false => Ok((Reservations::new(), Owners::default())),
    }
}

/// Reservations and the owners of registrations from their stored form.
fn read(bytes: &[u8]) -> Result<(Reservations, Owners), SavedError> {
    let (reservations, notes) = Reservations::from_bytes_with(bytes)?;
    Ok((reservations, Owners::from_notes(notes)?))
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
