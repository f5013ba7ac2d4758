//! Persistent reservations by SPC-4 §5.13, for one unit with numbered initiator ports and target
//! ports. It is written from the standard and must not use `scsi::reservation`, which it judges.

use std::collections::BTreeSet;

/// A reservation key; 0 is none.
pub(super) type Key = u8;

/// TYPE (SPC-4 table 70).
pub(super) const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];

/// Number of an I_T nexus: see [`Ports`].
pub(crate) type Nexus = usize;

/// The ports of the unit's I_T nexuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ports {
    pub(crate) initiators: usize,
    pub(crate) targets: usize,
}

impl Ports {
    pub(crate) fn nexus(self, initiator: usize, target: usize) -> Nexus {
        target * self.initiators + initiator
    }

    pub(crate) fn initiator(self, nexus: Nexus) -> usize {
        nexus % self.initiators
    }

    pub(crate) fn target(self, nexus: Nexus) -> usize {
        nexus / self.initiators
    }

    fn count(self) -> usize {
        self.initiators * self.targets
    }

    /// The nexuses of an initiator port.
    fn of_initiator(self, initiator: usize) -> impl Iterator<Item = Nexus> {
        (0..self.targets).map(move |target| self.nexus(initiator, target))
    }
}

/// The nexuses that a registration is for (SPC-4 table 69).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whom {
    /// The one that sends the command.
    Own,
    /// ALL_TG_PT: those of its initiator port.
    AllTargets,
    /// SPEC_I_PT: its own, and those of these initiator ports, one a bit, with its target port.
    Named(u32),
}

/// A command's effect on reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Request {
    /// `force` is REGISTER AND IGNORE EXISTING KEY.
    Register {
        key: Key,
        new: Key,
        aptpl: bool,
        force: bool,
        whom: Whom,
    },
    /// REGISTER AND MOVE.
    Move {
        key: Key,
        new: Key,
        to: Nexus,
        unregister: bool,
        aptpl: bool,
    },
    Reserve {
        key: Key,
        kind: u8,
    },
    Release {
        key: Key,
        kind: u8,
    },
    Clear {
        key: Key,
    },
    Preempt {
        key: Key,
        victim: Key,
        kind: u8,
        abort: bool,
    },
    Read,
    Write,
    TestUnitReady,
    ReadKeys,
    ReadReservation,
    ReadFullStatus,
}

impl Request {
    /// It may change the state.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Read
                | Self::Write
                | Self::TestUnitReady
                | Self::ReadKeys
                | Self::ReadReservation
                | Self::ReadFullStatus
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Good,
    Conflict,
    /// CHECK CONDITION, ILLEGAL REQUEST with this additional sense code.
    Refused(u8, u8),
    /// The registered keys, sorted.
    Keys(Vec<Key>),
    /// Key and TYPE of the reservation.
    Held(Option<(Key, u8)>),
    /// Each registered nexus, its key, and the TYPE of the reservation if it holds it, else 0.
    Full(BTreeSet<(Nexus, Key, u8)>),
}

/// A reservation: TYPE, and its holder unless all registrants hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    kind: u8,
    holder: Option<Nexus>,
}

/// The state of the unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    ports: Ports,
    /// Each nexus's key, 0 if it is not registered.
    keys: Vec<Key>,
    held: Option<Held>,
    aptpl: bool,
}

const INVALID_RELEASE: Outcome = Outcome::Refused(0x26, 0x04);
const INVALID_PARAMETER: Outcome = Outcome::Refused(0x26, 0x00);
const INVALID_CDB: Outcome = Outcome::Refused(0x24, 0x00);

fn all_registrants(kind: u8) -> bool {
    kind >= 7
}

impl State {
    pub fn new(ports: Ports) -> Self {
        Self { ports, keys: vec![0; ports.count()], held: None, aptpl: false }
    }

    /// The power comes back: without APTPL no registration is left.
    pub fn restart(&mut self) {
        if !self.aptpl {
            *self = Self::new(self.ports);
        }
    }

    fn holds(&self, nexus: Nexus) -> bool {
        match self.held {
            None => false,
            Some(Held { holder: Some(holder), .. }) => holder == nexus,
            Some(Held { holder: None, .. }) => self.keys[nexus] != 0,
        }
    }

    /// SPC-4 table 65 and 66.
    fn admits(&self, nexus: Nexus, writes: bool) -> bool {
        let Some(held) = self.held else { return true };
        let exclusive_access = matches!(held.kind, 3 | 6 | 8);
        let for_registrants = held.kind >= 5 && self.keys[nexus] != 0;
        self.holds(nexus) || for_registrants || !writes && !exclusive_access
    }

    /// Executes the request of `nexus`.
    pub fn run(&mut self, nexus: Nexus, request: Request) -> Outcome {
        let own = self.keys[nexus];
        match request {
            Request::TestUnitReady => Outcome::Good,
            Request::Read | Request::Write => match self.admits(nexus, request == Request::Write) {
                true => Outcome::Good,
                false => Outcome::Conflict,
            },
            Request::ReadKeys => {
                let mut keys: Vec<_> = self.keys.iter().copied().filter(|key| *key != 0).collect();
                keys.sort_unstable();
                Outcome::Keys(keys)
            }
            Request::ReadReservation => Outcome::Held(
                self.held.map(|held| (held.holder.map_or(0, |holder| self.keys[holder]), held.kind)),
            ),
            Request::ReadFullStatus => {
                let kind = |nexus| self.held.filter(|_| self.holds(nexus)).map_or(0, |held| held.kind);
                let all = self.keys.iter().enumerate().filter(|(_, key)| **key != 0);
                Outcome::Full(all.map(|(nexus, key)| (nexus, *key, kind(nexus))).collect())
            }
            Request::Register { key, new, aptpl, force, whom } => {
                self.register(nexus, (!force).then_some(key), new, aptpl, whom)
            }
            // All others are for registered initiators, which name their key (§5.13.5).
            Request::Reserve { key, .. }
            | Request::Release { key, .. }
            | Request::Clear { key }
            | Request::Move { key, .. }
            | Request::Preempt { key, .. }
                if own == 0 || key != own =>
            {
                Outcome::Conflict
            }
            Request::Reserve { kind, .. } => match self.held {
                None => self.hold(nexus, kind),
                Some(held) if held.kind == kind && self.holds(nexus) => Outcome::Good,
                Some(_) => Outcome::Conflict,
            },
            Request::Release { kind, .. } => match self.held {
                Some(held) if self.holds(nexus) && held.kind != kind => INVALID_RELEASE,
                Some(_) if self.holds(nexus) => {
                    self.held = None;
                    Outcome::Good
                }
                _ => Outcome::Good,
            },
            Request::Clear { .. } => {
                self.keys.fill(0);
                self.held = None;
                Outcome::Good
            }
            Request::Move { new, to, unregister, aptpl, .. } => {
                self.register_and_move(nexus, new, to, unregister, aptpl)
            }
            Request::Preempt { victim, kind, .. } => self.preempt(nexus, victim, kind),
        }
    }

    fn hold(&mut self, nexus: Nexus, kind: u8) -> Outcome {
        self.held = Some(Held { kind, holder: (!all_registrants(kind)).then_some(nexus) });
        Outcome::Good
    }

    /// Tables 67 to 69. Without a `key` it is REGISTER AND IGNORE EXISTING KEY.
    fn register(&mut self, nexus: Nexus, key: Option<Key>, new: Key, aptpl: bool, whom: Whom) -> Outcome {
        let own = self.keys[nexus];
        let spec_i_pt = matches!(whom, Whom::Named(_));
        match key {
            None if spec_i_pt => return INVALID_PARAMETER,
            Some(key) if key != own => return Outcome::Conflict,
            _ if own == 0 && new == 0 && whom != Whom::AllTargets => return Outcome::Good,
            _ if own != 0 && spec_i_pt => return INVALID_PARAMETER,
            _ => {}
        }
        let (ports, target) = (self.ports, self.ports.target(nexus));
        let mut for_whom: Vec<Nexus> = match whom {
            Whom::Own => vec![nexus],
            // As if the command were received through each target port. Where it would conflict, it
            // changes nothing.
            Whom::AllTargets => {
                let of_initiator = ports.of_initiator(ports.initiator(nexus));
                of_initiator.filter(|other| key.is_none_or(|key| key == self.keys[*other])).collect()
            }
            Whom::Named(named) => {
                let named = (0..ports.initiators).filter(|initiator| named >> initiator & 1 != 0);
                let named: Vec<_> = named.map(|initiator| ports.nexus(initiator, target)).collect();
                if named.iter().any(|named| self.keys[*named] != 0) {
                    return INVALID_PARAMETER;
                }
                named.into_iter().chain([nexus]).collect()
            }
        };
        for_whom.retain(|nexus| new != 0 || self.keys[*nexus] != 0);
        if for_whom.is_empty() {
            return Outcome::Good;
        }
        for nexus in for_whom {
            match new {
                0 => self.unregister(nexus),
                key => self.keys[nexus] = key,
            }
        }
        self.aptpl = aptpl;
        Outcome::Good
    }

    /// §5.13.8, for a nexus that is registered and names its key.
    fn register_and_move(
        &mut self,
        nexus: Nexus,
        new: Key,
        to: Nexus,
        unregister: bool,
        aptpl: bool,
    ) -> Outcome {
        match self.held {
            None => return INVALID_CDB,
            // The holder must be one nexus.
            Some(held) if held.holder != Some(nexus) => return Outcome::Conflict,
            Some(_) if new == 0 || self.ports.initiator(to) == self.ports.initiator(nexus) => {
                return INVALID_PARAMETER;
            }
            Some(held) => self.held = Some(Held { holder: Some(to), ..held }),
        }
        self.keys[to] = new;
        if unregister {
            self.unregister(nexus);
        }
        self.aptpl = aptpl;
        Outcome::Good
    }

    /// §5.13.11.2.1: the reservation goes with its last holder.
    fn unregister(&mut self, nexus: Nexus) {
        let held = self.holds(nexus);
        self.keys[nexus] = 0;
        let single = self.held.is_some_and(|held| held.holder.is_some());
        if held && (single || self.keys.iter().all(|key| *key == 0)) {
            self.held = None;
        }
    }

    /// §5.13.11.2.3 and following.
    fn preempt(&mut self, nexus: Nexus, victim: Key, kind: u8) -> Outcome {
        let everybody = self.held.is_some_and(|held| held.holder.is_none()) && victim == 0;
        let takes = match self.held.and_then(|held| held.holder) {
            Some(holder) => self.keys[holder] == victim,
            None => everybody,
        };
        if victim == 0 && !everybody {
            return INVALID_PARAMETER;
        }
        let named = |state: &Self, other: Nexus| everybody || state.keys[other] == victim;
        if takes {
            for other in (0..self.keys.len()).filter(|other| *other != nexus) {
                if named(self, other) {
                    self.keys[other] = 0;
                }
            }
            return self.hold(nexus, kind);
        }
        let victims: Vec<_> = (0..self.keys.len()).filter(|other| named(self, *other)).collect();
        if victims.is_empty() {
            return Outcome::Conflict;
        }
        victims.into_iter().for_each(|victim| self.unregister(victim));
        Outcome::Good
    }
}
