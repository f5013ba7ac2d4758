//! Owns the slots of a backchannel: which call is outstanding in which, and whether the path works
//! (RFC 8881 §2.10.3.1, §20.9).

use rpc::auth::OpaqueAuth;
use rpc::xdr::{List, Malformed, Reader, Writer, Xdr};

use super::files::FileNo;
use super::saved::{Saved, saved};
use super::stateid::StateNo;
use crate::v4::CallbackSecurity;

/// A connection, by the caller's number.
pub type Connection = u64;

/// The client's service that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Service {
    /// The minor version: that of the session.
    pub(super) minor: u32,
    /// `csa_cb_program`.
    pub(super) program: u32,
    /// The `opaque_auth` of each call: the first of `csa_sec_parms` that can be used, in XDR.
    pub(super) credential: Box<[u8]>,
}

impl Service {
    /// The service that a client asks to be called. Without AUTH_SYS it is called with AUTH_NONE.
    pub(super) fn new(minor: u32, program: u32, security: List<'_, CallbackSecurity<'_>>) -> Self {
        let usable = security.iter().find(|one| !matches!(one, CallbackSecurity::Gss(_)));
        let mut body = Vec::new();
        let credential = match usable {
            Some(CallbackSecurity::Sys(sys)) => sys.auth(&mut body),
            _ => OpaqueAuth::NONE,
        };
        let mut bytes = Vec::new();
        credential.write(&mut Writer::new(&mut bytes));
        Service { minor, program, credential: bytes.into() }
    }
}

/// A call of the server to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    /// CB_SEQUENCE alone: does the path work?
    Probe,
    /// CB_RECALL of a delegation.
    Recall(StateNo),
    /// CB_NOTIFY_LOCK to the owner of a waiting lock.
    NotifyLock(FileNo, Box<[u8]>),
}

impl Saved for Call {
    fn save(&self, to: &mut Writer<'_>) {
        match self {
            Call::Probe => to.u32(0),
            Call::Recall(state) => {
                to.u32(1);
                state.save(to);
            }
            Call::NotifyLock(file, owner) => {
                to.u32(2);
                file.save(to);
                owner.save(to);
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.u32()? {
            0 => Ok(Call::Probe),
            1 => Ok(Call::Recall(Saved::load(from)?)),
            2 => Ok(Call::NotifyLock(Saved::load(from)?, Saved::load(from)?)),
            value => Err(Malformed::Unknown { what: "callback", value }),
        }
    }
}

/// An outstanding call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flight {
    call: Call,
    /// None: the connection is gone, or the client asked to wait. Send it again.
    connection: Option<Connection>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct BackSlot {
    /// Of the last call. 0 before the first.
    sequence: u32,
    flight: Option<Flight>,
}

/// The service that a call is sent to, and the fields of its CB_SEQUENCE that vary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) service: Service,
    pub(super) slot: u32,
    pub(super) sequence: u32,
    pub(super) highest_slot: u32,
}

/// The backchannel of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Back {
    service: Service,
    slots: Vec<BackSlot>,
    proven: bool,
    fault: bool,
}

saved! {
    Service { minor, program, credential }
    Flight { call, connection }
    BackSlot { sequence, flight }
    Back { service, slots, proven, fault }
}

impl Back {
    pub(super) fn new(service: Service, slots: u32) -> Self {
        Back { service, slots: vec![BackSlot::default(); slots as usize], proven: false, fault: false }
    }

    /// Calls another service from now on.
    pub(super) fn set_service(&mut self, program: u32, security: List<'_, CallbackSecurity<'_>>) {
        self.service = Service::new(self.service.minor, program, security);
    }

    /// A call was answered, and none was lost since.
    pub(super) fn proven(&self) -> bool {
        self.proven
    }

    /// The client refused a CB_SEQUENCE: the slots are out of step.
    pub(super) fn fault(&self) -> bool {
        self.fault
    }

    /// The call is outstanding.
    pub(super) fn has(&self, call: &Call) -> bool {
        self.slots.iter().any(|it| it.flight.as_ref().is_some_and(|flight| flight.call == *call))
    }

    fn sent(&self, slot: usize) -> Sent {
        let highest = self.slots.iter().rposition(|it| it.flight.is_some()).unwrap_or(slot);
        let sequence = self.slots.get(slot).map_or(0, |it| it.sequence);
        Sent { service: self.service.clone(), slot: slot as u32, sequence, highest_slot: highest as u32 }
    }

    /// Takes a slot for a new call. None if all are taken.
    pub(super) fn send(&mut self, call: Call, connection: Connection) -> Option<Sent> {
        let at = self.slots.iter().position(|it| it.flight.is_none())?;
        let slot = self.slots.get_mut(at)?;
        slot.sequence = slot.sequence.wrapping_add(1);
        slot.flight = Some(Flight { call, connection: Some(connection) });
        Some(self.sent(at))
    }

    /// A call has to be sent: one again, or one that proves that the backchannel works.
    pub(super) fn is_owed(&self) -> bool {
        let parked = |flight: &Flight| flight.connection.is_none();
        !self.proven || self.slots.iter().filter_map(|it| it.flight.as_ref()).any(parked)
    }

    /// Takes a call that has to be sent again, in its slot and with its sequence ID.
    pub(super) fn send_again(&mut self, connection: Connection) -> Option<(Call, Sent)> {
        let parked = |it: &BackSlot| it.flight.as_ref().is_some_and(|flight| flight.connection.is_none());
        let at = self.slots.iter().position(parked)?;
        let flight = self.slots.get_mut(at)?.flight.as_mut()?;
        flight.connection = Some(connection);
        let call = flight.call.clone();
        Some((call, self.sent(at)))
    }

    /// The calls sent on a connection have to be sent again.
    pub(super) fn lost(&mut self, connection: Connection) {
        for flight in self.slots.iter_mut().filter_map(|it| it.flight.as_mut()) {
            if flight.connection == Some(connection) {
                flight.connection = None;
                self.proven = false;
            }
        }
    }

    /// The connection of the outstanding call of a slot.
    pub(super) fn connection(&self, slot: u32, sequence: u32) -> Option<Connection> {
        let slot = self.slots.get(slot as usize).filter(|it| it.sequence == sequence)?;
        slot.flight.as_ref()?.connection
    }

    /// The client asked to wait: the call has to be sent again.
    pub(super) fn delayed(&mut self, slot: u32, sequence: u32) {
        let slot = self.slots.get_mut(slot as usize).filter(|it| it.sequence == sequence);
        if let Some(flight) = slot.and_then(|it| it.flight.as_mut()) {
            flight.connection = None;
        }
    }

    /// The client answered: `accepted` its CB_SEQUENCE or not. Frees the slot and returns the call.
    pub(super) fn answered(&mut self, slot: u32, sequence: u32, accepted: bool) -> Option<Call> {
        let slot = self.slots.get_mut(slot as usize).filter(|it| it.sequence == sequence)?;
        let flight = slot.flight.take()?;
        self.proven = accepted;
        self.fault |= !accepted;
        Some(flight.call)
    }

    /// The outstanding calls.
    pub(super) fn into_calls(self) -> impl Iterator<Item = Call> {
        self.slots.into_iter().filter_map(|it| it.flight).map(|it| it.call)
    }
}

#[cfg(test)]
mod tests {
    use rpc::auth::AuthSys;
    use rpc::xdr::Opaque;

    use super::*;
    use crate::v4::{GssHandles, GssService};

    fn back(slots: u32) -> Back {
        Back::new(Service::new(2, 7, List::EMPTY), slots)
    }

    fn sent(slot: u32, sequence: u32, highest_slot: u32) -> Sent {
        Sent { service: Service::new(2, 7, List::EMPTY), slot, sequence, highest_slot }
    }

    /// RFC 8881 §2.10.6.1: a retry has the slot and the sequence ID of the first request.
    #[test]
    fn a_lost_call_is_sent_again_in_its_slot() {
        let mut back = back(2);
        let first = back.send(Call::Probe, 1).unwrap();
        assert_eq!(first, sent(0, 1, 0));
        let second = back.send(Call::Recall(9), 2).unwrap();
        assert_eq!(second, sent(1, 1, 1));
        assert_eq!(back.send(Call::Recall(8), 2), None);
        back.lost(2);
        assert_eq!(back.send_again(3), Some((Call::Recall(9), second.clone())));
        assert_eq!(back.send_again(3), None);
        assert_eq!(back.answered(0, 1, true), Some(Call::Probe));
        assert!(back.proven());
        assert_eq!(back.answered(0, 1, true), None);
        assert_eq!(back.send(Call::Recall(8), 3), Some(sent(0, 2, 1)));
    }

    #[test]
    fn a_refused_cb_sequence_is_a_fault() {
        let mut back = back(1);
        back.send(Call::Probe, 1).unwrap();
        assert_eq!(back.answered(0, 1, false), Some(Call::Probe));
        assert!(back.fault() && !back.proven());
    }

    #[test]
    fn a_client_is_called_with_the_first_credential_that_can_be_used() {
        let sys = AuthSys {
            stamp: 1,
            machine: Opaque::new(b"host").unwrap(),
            uid: 3,
            gid: 4,
            gids: Default::default(),
        };
        let gss =
            GssHandles { service: GssService::None, from_server: Opaque::EMPTY, from_client: Opaque::EMPTY };
        let (sys, gss) = (CallbackSecurity::Sys(sys), CallbackSecurity::Gss(gss));
        let both = Service::new(2, 7, List::of(&[gss.clone(), sys]));
        assert_eq!(both.credential[..8], [0, 0, 0, 1, 0, 0, 0, 24]);
        assert_eq!(Service::new(2, 7, List::of(&[gss])).credential[..], [0; 8]);
    }
}
