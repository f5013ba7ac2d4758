//! PERSISTENT RESERVE OUT (SPC-4 §6.16): parameter lists and the effects of each service action.
//! Owns the transitions; each one either completes or leaves the state unchanged.

use super::{
    Access, Conflict, Held, ItPort, Registration, ReservationType, Reservations, SessionId, TransportId,
};
use crate::UnitAttention;

/// SERVICE ACTION of PERSISTENT RESERVE OUT (SPC-4 table 228).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutAction {
    /// Registers, changes or removes a key.
    Register = 0x00,
    /// Makes a reservation.
    Reserve = 0x01,
    /// Releases the reservation.
    Release = 0x02,
    /// Removes the reservation and every registration.
    Clear = 0x03,
    /// Preempts the reservation, or removes the registrations, of a key.
    Preempt = 0x04,
    /// The same, and aborts their tasks.
    PreemptAndAbort = 0x05,
    /// Registers a key without a check of the old one.
    RegisterAndIgnore = 0x06,
    /// Moves the reservation to another nexus.
    RegisterAndMove = 0x07,
}

impl OutAction {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Register,
        Self::Reserve,
        Self::Release,
        Self::Clear,
        Self::Preempt,
        Self::PreemptAndAbort,
        Self::RegisterAndIgnore,
        Self::RegisterAndMove,
    ];

    /// From the SERVICE ACTION field.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|a| *a as u8 == code)
    }
}

/// The unit's environment while a PERSISTENT RESERVE OUT runs.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// Relative identifiers of all target ports, for ALL_TG_PT.
    pub target_ports: &'a [u16],
    /// The initiator ports that are logged in, for a TransportID that names a whole iSCSI device.
    pub initiators: &'a [TransportId],
    /// Whether the unit can store the state through a power loss; without it APTPL=1 is rejected.
    pub can_persist: bool,
}

/// The effects of a service action besides the new state.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Effects {
    /// Unit attentions to establish, in order, for the nexuses of these ports.
    pub attentions: Vec<(ItPort, UnitAttention)>,
    /// Nexuses whose tasks to abort (PREEMPT AND ABORT), except the requesting command's own task.
    pub abort: Vec<ItPort>,
    /// The state that must survive a power loss changed: store [`Reservations::to_bytes`] before
    /// returning GOOD.
    pub persist: bool,
}

/// Why a PERSISTENT RESERVE OUT had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// RESERVATION CONFLICT status.
    #[error("reservation conflict")]
    Conflict,
    /// ILLEGAL REQUEST, INVALID FIELD IN CDB: the field at this byte.
    #[error("invalid field in byte {0} of the CDB")]
    InvalidFieldInCdb(u16),
    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST: the field at this byte.
    #[error("invalid field in byte {0} of the parameter list")]
    InvalidFieldInParameterList(u16),
    /// ILLEGAL REQUEST, PARAMETER LIST LENGTH ERROR.
    #[error("parameter list length error")]
    ParameterListLength,
    /// ILLEGAL REQUEST, INVALID RELEASE OF PERSISTENT RESERVATION.
    #[error("the reservation to release is of another scope or type")]
    InvalidRelease,
    /// ILLEGAL REQUEST, INSUFFICIENT REGISTRATION RESOURCES.
    #[error("the unit has reached its maximum number of registrations")]
    InsufficientResources,
}

impl From<Conflict> for Refusal {
    fn from(Conflict: Conflict) -> Self {
        Self::Conflict
    }
}

/// The parameter list that all service actions but REGISTER AND MOVE use (SPC-4 §6.16.3), and its
/// common fields.
struct Parameters<'a> {
    key: u64,
    action_key: u64,
    spec_i_pt: bool,
    all_tg_pt: bool,
    aptpl: bool,
    /// The TransportIDs of SPEC_I_PT.
    transport_ids: &'a [u8],
}

/// Bytes of the basic parameter list, which is also the header of longer ones.
const BASIC_LEN: usize = 24;
/// Offset of the TransportIDs of SPEC_I_PT, after their length.
const SPEC_I_PT_AT: usize = 28;

fn u64_at(list: &[u8], at: usize) -> u64 {
    list.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

fn u32_at(list: &[u8], at: usize) -> Option<usize> {
    let bytes = list.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(bytes)).ok()
}

impl<'a> Parameters<'a> {
    fn parse(action: OutAction, list: &'a [u8]) -> Result<Self, Refusal> {
        if list.len() < BASIC_LEN {
            return Err(Refusal::ParameterListLength);
        }
        let flags = list[20];
        let registers = matches!(action, OutAction::Register | OutAction::RegisterAndIgnore);
        let spec_i_pt = flags & 0x08 != 0;
        let mut transport_ids: &[u8] = &[];
        if spec_i_pt {
            // §6.16.3: only REGISTER allows SPEC_I_PT.
            if action != OutAction::Register {
                return Err(Refusal::InvalidFieldInParameterList(20));
            }
            let length = u32_at(list, BASIC_LEN).ok_or(Refusal::ParameterListLength)?;
            transport_ids = list.get(SPEC_I_PT_AT..).unwrap_or_default();
            if transport_ids.len() != length {
                return Err(Refusal::ParameterListLength);
            }
        } else if list.len() != BASIC_LEN {
            return Err(Refusal::ParameterListLength);
        }
        Ok(Self {
            key: u64_at(list, 0),
            action_key: u64_at(list, 8),
            spec_i_pt,
            // Only the registering actions use these two bits; the others ignore them.
            all_tg_pt: registers && flags & 0x04 != 0,
            aptpl: registers && flags & 0x01 != 0,
            transport_ids,
        })
    }
}

/// Reads one TransportID, or returns an error for the byte at `at` in the list.
fn transport_id(bytes: &[u8], at: usize) -> Result<(TransportId, usize), Refusal> {
    TransportId::parse(bytes)
        .map_err(|_| Refusal::InvalidFieldInParameterList(u16::try_from(at).unwrap_or(u16::MAX)))
}

impl Reservations {
    /// Executes a PERSISTENT RESERVE OUT from `port` in `session`. `scope_and_type` is byte 2 of
    /// the CDB; `list` is the whole parameter list, of PARAMETER LIST LENGTH bytes.
    ///
    /// # Errors
    /// A [`Refusal`]; the state is then unchanged.
    pub fn persistent_out(
        &mut self,
        port: &ItPort,
        session: SessionId,
        action: OutAction,
        scope_and_type: u8,
        list: &[u8],
        environment: Environment<'_>,
    ) -> Result<Effects, Refusal> {
        self.check(port, session, Access::PersistentOut)?;
        let mut next = self.clone();
        let mut effects = if action == OutAction::RegisterAndMove {
            next.register_and_move(port, list, environment)?
        } else {
            let parameters = Parameters::parse(action, list)?;
            match action {
                OutAction::Register | OutAction::RegisterAndIgnore => {
                    next.register(port, action == OutAction::RegisterAndIgnore, &parameters, environment)?
                }
                _ => {
                    // All other actions require a registered nexus and its key.
                    if next.key_of(port) != Some(parameters.key) {
                        return Err(Refusal::Conflict);
                    }
                    match action {
                        OutAction::Reserve => next.reserve(port, scope_and_type)?,
                        OutAction::Release => next.release(port, scope_and_type)?,
                        OutAction::Clear => next.clear(port),
                        _ => {
                            let abort = action == OutAction::PreemptAndAbort;
                            next.preempt(port, parameters.action_key, scope_and_type, abort)?
                        }
                    }
                }
            }
        };
        let kept = |state: &Self| state.aptpl.then(|| (state.registrations.clone(), state.held.clone()));
        effects.persist = kept(self) != kept(&next);
        *self = next;
        Ok(effects)
    }

    fn register(
        &mut self,
        port: &ItPort,
        ignore: bool,
        parameters: &Parameters<'_>,
        environment: Environment<'_>,
    ) -> Result<Effects, Refusal> {
        if parameters.aptpl && !environment.can_persist {
            return Err(Refusal::InvalidFieldInParameterList(20));
        }
        let old = self.key_of(port);
        if !ignore && parameters.key != old.unwrap_or(0) {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        let mut initiators = vec![port.initiator.clone()];
        match (old, parameters.action_key, parameters.spec_i_pt) {
            (Some(_), _, true) => return Err(Refusal::InvalidFieldInParameterList(20)),
            // Check all named ports before registering any: all of them or none.
            (None, 1.., true) => initiators.extend(self.specified(port, parameters, environment)?),
            _ => {}
        }
        let mut targets = vec![port.target_port];
        if parameters.all_tg_pt {
            targets.extend(environment.target_ports);
            // Target ports that are gone, too.
            let same = |r: &&Registration| r.port.initiator == port.initiator && Some(r.key) == old;
            targets.extend(self.registrations.iter().filter(same).map(|r| r.port.target_port));
            targets.sort_unstable();
            targets.dedup();
        }
        let ports = initiators.iter().flat_map(|initiator| {
            targets.iter().map(|&target_port| ItPort { initiator: initiator.clone(), target_port })
        });
        let mut registers = false;
        for of in ports {
            let known = self.registrations.iter().position(|r| r.port == of);
            // §6.16.3: ALL_TG_PT is one registration through each target port. Where it would
            // conflict, it changes nothing.
            if !ignore && parameters.key != known.map_or(0, |at| self.registrations[at].key) {
                continue;
            }
            match (known, parameters.action_key) {
                (None, 0) => continue,
                (Some(_), 0) => self.unregister(&of, port, &mut effects),
                (Some(at), key) => self.registrations[at].key = key,
                (None, _) if self.registrations.len() >= Self::MAX_REGISTRATIONS => {
                    return Err(Refusal::InsufficientResources);
                }
                (None, key) => self.registrations.push(Registration { port: of, key }),
            }
            registers = true;
        }
        if registers {
            self.registered(parameters.aptpl);
        }
        Ok(effects)
    }

    /// The initiator ports that SPEC_I_PT names.
    fn specified(
        &self,
        port: &ItPort,
        parameters: &Parameters<'_>,
        environment: Environment<'_>,
    ) -> Result<Vec<TransportId>, Refusal> {
        let mut named = Vec::new();
        let mut rest = parameters.transport_ids;
        let mut at = SPEC_I_PT_AT;
        while !rest.is_empty() {
            let (id, used) = transport_id(rest, at)?;
            let before = named.len();
            match id.device() {
                // A whole iSCSI device: all its ports that are logged in.
                Some(name) => {
                    named.extend(environment.initiators.iter().filter(|i| i.is_port_of(name)).cloned());
                    if named.len() == before {
                        return Err(Refusal::InvalidFieldInParameterList(
                            u16::try_from(at).unwrap_or(u16::MAX),
                        ));
                    }
                }
                None => named.push(id),
            }
            if named.len() > Self::MAX_REGISTRATIONS {
                return Err(Refusal::InsufficientResources);
            }
            rest = &rest[used..];
            at += used;
        }
        named.retain(|id| *id != port.initiator);
        named.sort();
        named.dedup();
        // A registered port cannot be registered again: the command lacks its key.
        for id in &named {
            let taken = self.registrations.iter().any(|r| {
                r.port.initiator == *id && (parameters.all_tg_pt || r.port.target_port == port.target_port)
            });
            if taken {
                return Err(Refusal::InvalidFieldInParameterList(24));
            }
        }
        Ok(named)
    }

    fn registered(&mut self, aptpl: bool) {
        self.generation = self.generation.wrapping_add(1);
        self.aptpl = aptpl;
    }

    /// Removes one registration, and the reservation if it was its last holder (SPC-4
    /// §5.13.11.2.1).
    fn unregister(&mut self, gone: &ItPort, requester: &ItPort, effects: &mut Effects) {
        let held_by_it = self.holds(gone);
        self.registrations.retain(|r| r.port != *gone);
        let ends = held_by_it
            && self.held.as_ref().is_some_and(|held| held.holder.is_some() || self.registrations.is_empty());
        if ends {
            self.release_held(requester, effects);
        }
    }

    /// Ends the reservation; for the registrants types the other registrants get a unit attention.
    fn release_held(&mut self, requester: &ItPort, effects: &mut Effects) {
        let Some(held) = self.held.take() else { return };
        if held.kind.admits_registrants() {
            self.tell_others(requester, UnitAttention::ReservationsReleased, effects);
        }
    }

    fn tell_others(&self, requester: &ItPort, attention: UnitAttention, effects: &mut Effects) {
        let others = self.registrations.iter().filter(|r| r.port != *requester);
        effects.attentions.extend(others.map(|r| (r.port.clone(), attention)));
    }

    fn reserve(&mut self, port: &ItPort, scope_and_type: u8) -> Result<Effects, Refusal> {
        let kind = scope_and_kind(scope_and_type)?;
        match &self.held {
            Some(held) if held.kind == kind && self.holds(port) => {}
            Some(_) => return Err(Refusal::Conflict),
            None => self.hold(port, kind),
        }
        Ok(Effects::default())
    }

    fn hold(&mut self, port: &ItPort, kind: ReservationType) {
        self.held = Some(Held { kind, holder: (!kind.all_registrants()).then(|| port.clone()) });
    }

    fn release(&mut self, port: &ItPort, scope_and_type: u8) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        let Some(held) = &self.held else { return Ok(effects) };
        if !self.holds(port) {
            return Ok(effects);
        }
        if scope_and_type != held.kind as u8 {
            return Err(Refusal::InvalidRelease);
        }
        self.release_held(port, &mut effects);
        Ok(effects)
    }

    fn clear(&mut self, port: &ItPort) -> Effects {
        let mut effects = Effects::default();
        self.tell_others(port, UnitAttention::ReservationsPreempted, &mut effects);
        self.registrations.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        effects
    }

    /// PREEMPT and PREEMPT AND ABORT (SPC-4 §5.13.11.2.3 to .7).
    fn preempt(
        &mut self,
        port: &ItPort,
        victim_key: u64,
        scope_and_type: u8,
        abort: bool,
    ) -> Result<Effects, Refusal> {
        let mut effects = Effects::default();
        // Whether the command preempts the reservation itself, not only registrations.
        let takes = match &self.held {
            None => false,
            Some(Held { holder: None, .. }) => victim_key == 0,
            Some(Held { holder: Some(holder), .. }) => self.key_of(holder) == Some(victim_key),
        };
        let all = takes && victim_key == 0;
        if victim_key == 0 && !all {
            return Err(Refusal::InvalidFieldInParameterList(8));
        }
        let new_kind = if takes { Some(scope_and_kind(scope_and_type)?) } else { None };
        let victims: Vec<ItPort> = self
            .registrations
            .iter()
            // The preempting nexus keeps its registration, whatever its key.
            .filter(|r| (all || r.key == victim_key) && !(takes && r.port == *port))
            .map(|r| r.port.clone())
            .collect();
        if victims.is_empty() && !takes {
            return Err(Refusal::Conflict);
        }
        if let Some(kind) = new_kind {
            let old = self.held.take().map(|held| held.kind);
            self.registrations.retain(|r| !victims.contains(&r.port));
            self.hold(port, kind);
            for victim in &victims {
                effects.attentions.push((victim.clone(), UnitAttention::RegistrationsPreempted));
            }
            if old != Some(kind) {
                self.tell_others(port, UnitAttention::ReservationsReleased, &mut effects);
            }
        } else {
            for victim in &victims {
                if victim != port {
                    effects.attentions.push((victim.clone(), UnitAttention::RegistrationsPreempted));
                }
                self.unregister(victim, port, &mut effects);
            }
        }
        if abort {
            effects.abort = victims;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// REGISTER AND MOVE (SPC-4 §5.13.8), with its own parameter list (§6.16.4).
    fn register_and_move(
        &mut self,
        port: &ItPort,
        list: &[u8],
        environment: Environment<'_>,
    ) -> Result<Effects, Refusal> {
        if list.len() < BASIC_LEN {
            return Err(Refusal::ParameterListLength);
        }
        let (key, action_key, flags) = (u64_at(list, 0), u64_at(list, 8), list[17]);
        let (unregister, aptpl) = (flags & 0x02 != 0, flags & 0x01 != 0);
        let target_port = u16::from_be_bytes([list[18], list[19]]);
        let ids = &list[BASIC_LEN..];
        if u32_at(list, 20) != Some(ids.len()) {
            return Err(Refusal::ParameterListLength);
        }
        if self.key_of(port) != Some(key) {
            return Err(Refusal::Conflict);
        }
        let Some(held) = &self.held else { return Err(Refusal::InvalidFieldInCdb(1)) };
        if held.holder.as_ref() != Some(port) {
            return Err(Refusal::Conflict);
        }
        if action_key == 0 {
            return Err(Refusal::InvalidFieldInParameterList(8));
        }
        if aptpl && !environment.can_persist {
            return Err(Refusal::InvalidFieldInParameterList(17));
        }
        if target_port != port.target_port && !environment.target_ports.contains(&target_port) {
            return Err(Refusal::InvalidFieldInParameterList(18));
        }
        let (mut initiator, used) = transport_id(ids, BASIC_LEN)?;
        if used != ids.len() {
            return Err(Refusal::InvalidFieldInParameterList(20));
        }
        // A reservation has one holder, so a device name must match exactly one port that is logged
        // in.
        if let Some(name) = initiator.device() {
            let mut ports = environment.initiators.iter().filter(|i| i.is_port_of(name));
            initiator = match (ports.next(), ports.next()) {
                (Some(only), None) => only.clone(),
                _ => return Err(Refusal::InvalidFieldInParameterList(24)),
            };
        }
        let to = ItPort { initiator, target_port };
        // §5.13.8: another initiator port, whatever the target port.
        if to.initiator == port.initiator {
            return Err(Refusal::InvalidFieldInParameterList(24));
        }
        let kind = held.kind;
        if let Some(known) = self.registrations.iter_mut().find(|r| r.port == to) {
            known.key = action_key;
        } else if self.registrations.len() - usize::from(unregister) >= Self::MAX_REGISTRATIONS {
            return Err(Refusal::InsufficientResources);
        } else {
            let port = to.clone();
            self.registrations.push(Registration { port, key: action_key });
        }
        self.hold(&to, kind);
        if unregister {
            self.registrations.retain(|r| r.port != *port);
        }
        self.registered(aptpl);
        Ok(Effects::default())
    }
}

/// The SCOPE and TYPE fields: a whole unit (LU_SCOPE) and one of the six types.
fn scope_and_kind(scope_and_type: u8) -> Result<ReservationType, Refusal> {
    if scope_and_type >> 4 != 0 {
        return Err(Refusal::InvalidFieldInCdb(2));
    }
    ReservationType::from_code(scope_and_type).ok_or(Refusal::InvalidFieldInCdb(2))
}
