//! The owners of a unit's registrations: the principal that authenticated as the initiator that
//! made each one.
//!
//! Persistent reservations identify a registrant by its initiator port's name, and a name is only a
//! claim. A server checks here before it gives a principal a nexus with another's registration.
//! Owners are kept and handed over with their registrations. The first principal to arrive becomes
//! the owner of a registration without one.

use std::collections::HashMap;

use scsi::reservation::{ItPort, Notes, Reservations, SavedError};

use crate::Principal;

/// The owners of a unit's registrations; at most one per registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners(HashMap<ItPort, Principal>);

impl Owners {
    /// The owner of the registration of `port`.
    pub(crate) fn of(&self, port: &ItPort) -> Option<&Principal> {
        self.0.get(port)
    }

    /// Records that the server gave `principal` the nexus of `port`: the registration of that port
    /// is theirs.
    pub(crate) fn arrived(&mut self, port: &ItPort, principal: Option<&Principal>, now: &Reservations) {
        let Some(principal) = principal.filter(|_| now.key_of(port).is_some()) else { return };
        self.0.insert(port.clone(), principal.clone());
    }

    /// Records owners after a command of `port` left the registrations `now`. Its principal owns
    /// those of its initiator port, through any target port, unless they already have an owner.
    pub(crate) fn settle(&mut self, port: &ItPort, principal: Option<&Principal>, now: &Reservations) {
        self.0.retain(|port, _| now.key_of(port).is_some());
        let Some(principal) = principal else { return };
        for own in now.registered_ports().filter(|other| other.initiator == port.initiator) {
            self.0.entry(own.clone()).or_insert_with(|| principal.clone());
        }
    }

    /// The note that keeps the owner of the registration of `port`: its credential's 32 bytes, and
    /// the user's name.
    pub(crate) fn note(&self, port: &ItPort) -> Option<Vec<u8>> {
        let owner = self.of(port)?;
        Some([&owner.credential[..], owner.user.as_bytes()].concat())
    }

    /// Owners from their notes.
    ///
    /// # Errors
    /// A note is none of [`Self::note`].
    pub(crate) fn from_notes(notes: Notes) -> Result<Self, SavedError> {
        let owner = |note: &[u8]| {
            let (credential, user) = note.split_first_chunk::<32>()?;
            let user = std::str::from_utf8(user).ok().filter(|user| !user.is_empty())?.to_owned();
            Some(Principal { user, credential: *credential })
        };
        let owners = notes.into_iter().map(|(port, note)| Some((port, owner(&note)?)));
        owners.collect::<Option<_>>().map(Self).ok_or(SavedError::Inconsistent)
    }
}
