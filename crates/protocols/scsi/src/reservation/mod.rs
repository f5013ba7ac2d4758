//! Reservations of one logical unit: persistent reservations (SPC-4 §5.13) and SPC-2's RESERVE and
//! RELEASE.
//!
//! A pure state machine. It owns registrations, keys, the reservation and PRGENERATION. It decides
//! conflicts, unit attentions and the tasks to abort. The caller delivers the attentions, aborts
//! the tasks, and stores the state if APTPL requires it. It never does I/O and never blocks;
//! [`Reservations::MAX_REGISTRATIONS`] bounds its memory.

mod access;
mod out;
mod report;
mod saved;
#[cfg(test)]
mod tests;
mod transport_id;

pub use access::{Access, access};
pub use out::{Effects, Environment, OutAction, Refusal};
pub use report::InAction;
pub use saved::{Notes, SavedError};
pub use transport_id::{TransportId, TransportIdError};

/// Identifies an I_T nexus during its lifetime, for RESERVE and RELEASE: unlike a registration,
/// these end with the nexus.
pub type SessionId = u64;

/// Identifies an I_T nexus for persistent reservations, across sessions and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItPort {
    /// The initiator port.
    pub initiator: TransportId,
    /// RELATIVE TARGET PORT IDENTIFIER of the target port.
    pub target_port: u16,
}

/// TYPE of a persistent reservation (SPC-4 table 70).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder may write.
    WriteExclusive = 0x1,
    /// Only the holder may access.
    ExclusiveAccess = 0x3,
    /// Only registrants may write; one of them holds the reservation.
    WriteExclusiveRegistrantsOnly = 0x5,
    /// Only registrants may access; one of them holds the reservation.
    ExclusiveAccessRegistrantsOnly = 0x6,
    /// Only registrants may write; all of them hold the reservation.
    WriteExclusiveAllRegistrants = 0x7,
    /// Only registrants may access; all of them hold the reservation.
    ExclusiveAccessAllRegistrants = 0x8,
}

impl ReservationType {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// From the TYPE field.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u8 == code)
    }

    /// Whether every registrant holds it.
    pub(crate) const fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether registrants other than the holder have access.
    pub(crate) const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether nexuses without access may still read.
    pub(crate) const fn write_exclusive(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// One registered I_T nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registration {
    port: ItPort,
    key: u64,
}

/// A persistent reservation: its type, and its holder unless all registrants hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    kind: ReservationType,
    /// `None` for the all registrants types.
    holder: Option<ItPort>,
}

/// The command conflicts with a reservation: RESERVATION CONFLICT status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the command conflicts with a reservation")]
pub struct Conflict;

/// The reservations of one logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reservations {
    generation: u32,
    registrations: Vec<Registration>,
    held: Option<Held>,
    /// The APTPL bit of the last registration: the state above survives a power loss.
    aptpl: bool,
    /// The nexus that holds the unit by RESERVE(6) or RESERVE(10).
    legacy: Option<SessionId>,
}

impl Reservations {
    /// Maximum number of registrations of a unit; beyond it the unit returns INSUFFICIENT
    /// REGISTRATION RESOURCES.
    pub const MAX_REGISTRATIONS: usize = 256;

    /// No registrations, no reservation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is no registration and no reservation.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty() && self.held.is_none() && self.legacy.is_none()
    }

    /// PRGENERATION.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether APTPL is active: the state must survive a power loss.
    pub fn aptpl(&self) -> bool {
        self.aptpl
    }

    /// Type of the persistent reservation, if there is one.
    pub fn reservation_type(&self) -> Option<ReservationType> {
        self.held.as_ref().map(|held| held.kind)
    }

    /// The reservation key of `port`.
    pub fn key_of(&self, port: &ItPort) -> Option<u64> {
        self.registrations.iter().find(|r| r.port == *port).map(|r| r.key)
    }

    /// The ports that are registered.
    pub fn registered_ports(&self) -> impl Iterator<Item = &ItPort> {
        self.registrations.iter().map(|registration| &registration.port)
    }

    fn holds(&self, port: &ItPort) -> bool {
        match &self.held {
            None => false,
            Some(Held { holder: Some(holder), .. }) => holder == port,
            Some(Held { holder: None, .. }) => self.key_of(port).is_some(),
        }
    }

    /// Whether some command of `port` in `session` could conflict now. While this is false, the
    /// data path needs no check.
    pub fn concerns(&self, port: &ItPort, session: SessionId) -> bool {
        if let Some(legacy) = self.legacy {
            return legacy != session;
        }
        match &self.held {
            None => false,
            Some(held) => {
                !(self.holds(port) || held.kind.admits_registrants() && self.key_of(port).is_some())
            }
        }
    }

    /// Whether a command of class `access` from `port` in `session` may run.
    ///
    /// # Errors
    /// [`Conflict`] when a reservation forbids it.
    pub fn check(&self, port: &ItPort, session: SessionId, access: Access) -> Result<(), Conflict> {
        let allowed = match (access, self.legacy) {
            (Access::Always | Access::Legacy, _) => true,
            (Access::PersistentIn | Access::PersistentOut, legacy) => legacy.is_none(),
            (_, Some(legacy)) => legacy == session,
            (Access::Status, None) => true,
            (Access::Read, None) => {
                !self.concerns(port, session)
                    || self.held.as_ref().is_none_or(|held| held.kind.write_exclusive())
            }
            (Access::Write, None) => !self.concerns(port, session),
        };
        if allowed { Ok(()) } else { Err(Conflict) }
    }

    /// RESERVE(6) or RESERVE(10) of the whole unit, with SPC-4 §5.13.3's exceptions (CRH=1). From a
    /// nexus that a persistent reservation admits, it succeeds without effect. While there are
    /// registrations, it conflicts for all other nexuses.
    ///
    /// # Errors
    /// [`Conflict`] if another nexus holds the unit.
    pub fn reserve_legacy(&mut self, port: &ItPort, session: SessionId) -> Result<(), Conflict> {
        if self.exempt_from_legacy(port) {
            return Ok(());
        }
        if !self.registrations.is_empty() || self.legacy.is_some_and(|holder| holder != session) {
            return Err(Conflict);
        }
        self.legacy = Some(session);
        Ok(())
    }

    /// RELEASE(6) or RELEASE(10): ends the caller's own reservation and has no other effect.
    ///
    /// # Errors
    /// [`Conflict`] while there are registrations, unless §5.13.3 exempts the caller.
    pub fn release_legacy(&mut self, port: &ItPort, session: SessionId) -> Result<(), Conflict> {
        if self.exempt_from_legacy(port) {
            return Ok(());
        }
        if !self.registrations.is_empty() {
            return Err(Conflict);
        }
        if self.legacy == Some(session) {
            self.legacy = None;
        }
        Ok(())
    }

    fn exempt_from_legacy(&self, port: &ItPort) -> bool {
        self.held.as_ref().is_some_and(|held| {
            self.holds(port) || held.kind.admits_registrants() && self.key_of(port).is_some()
        })
    }

    /// Handles the loss of a nexus: ends its RESERVE. Registrations stay. Returns whether the state
    /// changed.
    pub fn nexus_lost(&mut self, session: SessionId) -> bool {
        if self.legacy == Some(session) {
            self.legacy = None;
            return true;
        }
        false
    }

    /// Handles a reset of the unit or the target: RESERVE ends, persistent reservations stay (SPC-4
    /// §5.13.1). Returns whether the state changed.
    pub fn reset(&mut self) -> bool {
        self.legacy.take().is_some()
    }
}
