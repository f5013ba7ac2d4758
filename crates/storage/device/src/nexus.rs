//! I_T and I_T_L nexuses: the two ports of a session, and the checks that a unit requires before
//! each of their commands.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scsi::data::target_port_groups::AccessState;
use scsi::{Sense, UnitAttention};

use crate::PortGroups;
use crate::ports;

/// Identifies an I_T nexus during the daemon's lifetime; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId(pub u64);

/// The authenticated user of a nexus. The names in a login are only claims.
///
/// Equal principals have authenticated with the same user name and the same credential. Users of
/// one name with different credentials, as two targets may configure them, are different
/// principals.
#[derive(Clone, PartialEq, Eq)]
pub struct Principal {
    pub user: String,
    /// Represents the credential without revealing it. It is kept with registrations, so it must
    /// stay the same over restarts, and be of no use to guess a secret by.
    pub credential: [u8; 32],
}

impl std::fmt::Debug for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Principal({:?}, …)", self.user)
    }
}

/// An I_T nexus: one initiator port and one target port; for iSCSI, one session (RFC 7143 §4.4).
#[derive(Clone, Debug)]
pub struct Nexus {
    pub id: NexusId,
    /// The initiator's device name, e.g. `iqn.1993-08.org.debian:01:abc`. It is only a claim: see
    /// [`Self::principal`].
    pub initiator: String,
    /// The authenticated user; `None` if no authentication was required.
    pub principal: Option<Principal>,
    /// The initiator port's TransportID in the format of SPC-4 §7.6.4 (for iSCSI, format 01b:
    /// `name,i,0xISID`). It identifies a registrant to persistent reservations across sessions and
    /// restarts.
    pub transport_id: Vec<u8>,
    /// RELATIVE TARGET PORT IDENTIFIER of the target port, 1 to 65535 (for iSCSI, the portal group
    /// tag).
    pub target_port: u16,
    /// The target's device name.
    pub target: String,
    /// The target's port groups; `None` if all ports are equal. A unit may have others.
    pub ports: Option<Arc<PortGroups>>,
}

/// The checks that a unit requires before a command of this nexus runs; bits of
/// [`ItlNexus::verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Verdict(pub u8);

impl Verdict {
    /// A unit attention is pending.
    pub const ATTENTION: u8 = 1;
    /// A reservation of another nexus is in force: consult the reservation rules before any
    /// command.
    pub const RESERVED: u8 = 2;
    /// The target port's asymmetric access state does not allow every command.
    pub(crate) const INACTIVE: u8 = 4;

    /// No check required: the fast path.
    pub const fn clear(self) -> bool {
        self.0 == 0
    }
    /// Whether a unit attention is pending.
    pub const fn attention(self) -> bool {
        self.0 & Self::ATTENTION != 0
    }
    /// Whether the reservations must be checked.
    pub const fn reserved(self) -> bool {
        self.0 & Self::RESERVED != 0
    }
    /// Whether the target port's state must be checked.
    pub const fn inactive(self) -> bool {
        self.0 & Self::INACTIVE != 0
    }
}

/// An I_T_L nexus: an I_T nexus and one logical unit. The server keeps one per session and LUN and
/// passes it with every command; the unit keeps it too and writes its verdicts. It has cache lines
/// of its own, which cores read for each command.
#[derive(Debug)]
#[repr(align(128))]
pub struct ItlNexus {
    pub nexus: Arc<Nexus>,
    verdict: AtomicU8,
    /// Code of the target port's asymmetric access state.
    access: AtomicU8,
    attentions: Mutex<VecDeque<UnitAttention>>,
    /// The server's access control: this nexus may not write.
    pub read_only: bool,
    /// The unit's port groups; `None` if all ports are equal.
    pub ports: Option<Arc<PortGroups>>,
}

impl ItlNexus {
    /// Maximum pending unit attentions per nexus. If it is reached, new ones are dropped: the
    /// initiator must learn the oldest first, and SAM-5 §5.14 lets a unit merge them.
    pub const MAX_ATTENTIONS: usize = 16;

    /// A nexus with nothing pending, to a unit that has its target's port groups.
    pub fn new(nexus: Arc<Nexus>, read_only: bool) -> Self {
        let ports = nexus.ports.clone();
        Self::with_ports(nexus, read_only, ports)
    }

    /// The same, to a unit that has port groups of its own.
    pub fn with_ports(nexus: Arc<Nexus>, read_only: bool, ports: Option<Arc<PortGroups>>) -> Self {
        Self {
            nexus,
            ports,
            verdict: AtomicU8::new(0),
            access: AtomicU8::new(AccessState::ActiveOptimized.code()),
            attentions: Mutex::default(),
            read_only,
        }
    }

    /// Conditions to check before the next command: one acquire load.
    pub fn verdict(&self) -> Verdict {
        Verdict(self.verdict.load(Ordering::Acquire))
    }

    /// Sets whether another nexus's reservation is in force.
    pub(crate) fn set_reserved(&self, reserved: bool) {
        if reserved {
            self.verdict.fetch_or(Verdict::RESERVED, Ordering::AcqRel);
        } else {
            self.verdict.fetch_and(!Verdict::RESERVED, Ordering::AcqRel);
        }
    }

    /// Sets the state of its target port.
    pub(crate) fn set_access(&self, state: AccessState) {
        self.access.store(state.code(), Ordering::Release);
        if state.active() {
            self.verdict.fetch_and(!Verdict::INACTIVE, Ordering::AcqRel);
        } else {
            self.verdict.fetch_or(Verdict::INACTIVE, Ordering::AcqRel);
        }
    }

    /// The state of its target port.
    pub fn access(&self) -> AccessState {
        AccessState::from_code(self.access.load(Ordering::Acquire)).unwrap_or(AccessState::Unavailable)
    }

    /// Whether the target port's state allows `cdb`. Call it if the verdict has
    /// [`Verdict::inactive`].
    ///
    /// # Errors
    /// NOT READY with the state's own additional sense code.
    pub fn check_access(&self, cdb: &[u8]) -> Result<(), Sense> {
        ports::check(self.access(), cdb)
    }

    /// Establishes a unit attention, unless the same one is already pending.
    pub fn establish(&self, attention: UnitAttention) {
        let mut queue = self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.contains(&attention) && queue.len() < Self::MAX_ATTENTIONS {
            queue.push_back(attention);
        }
        self.verdict.fetch_or(Verdict::ATTENTION, Ordering::AcqRel);
    }

    /// Takes the oldest pending unit attention.
    pub fn take_attention(&self) -> Option<UnitAttention> {
        self.remove(|queue| queue.pop_front())
    }

    /// The oldest pending unit attention, without removing it, and whether there are more.
    pub fn pending_attention(&self) -> Option<(UnitAttention, bool)> {
        let queue = self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        queue.front().map(|oldest| (*oldest, queue.len() > 1))
    }

    /// The pending unit attentions, oldest first.
    pub fn attentions(&self) -> Vec<UnitAttention> {
        let queue = self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        queue.iter().copied().collect()
    }

    /// Removes `attention` if it is pending: REPORT LUNS does so with REPORTED LUNS DATA HAS
    /// CHANGED.
    pub fn clear_attention(&self, attention: UnitAttention) {
        self.remove(|queue| {
            queue.retain(|a| *a != attention);
        });
    }

    fn remove<T>(&self, f: impl FnOnce(&mut VecDeque<UnitAttention>) -> T) -> T {
        let mut queue = self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut queue);
        if queue.is_empty() {
            self.verdict.fetch_and(!Verdict::ATTENTION, Ordering::AcqRel);
        }
        result
    }
}
