//! Persistent reservations by SPC-4 §5.13, for one unit and numbered initiators. It is written from
//! the standard and must not use `scsi::reservation`, which it judges.

/// A reservation key; 0 is none.
pub(super) type Key = u8;

/// TYPE (SPC-4 table 70).
pub(super) const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];

/// A command's effect on reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Request {
    /// `force` is REGISTER AND IGNORE EXISTING KEY.
    Register {
        key: Key,
        new: Key,
        aptpl: bool,
        force: bool,
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
}

impl Request {
    /// It may change the state.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Read | Self::Write | Self::TestUnitReady | Self::ReadKeys | Self::ReadReservation
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
}

/// A reservation: TYPE, and its holder unless all registrants hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    kind: u8,
    holder: Option<usize>,
}

/// The state of the unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    /// Each initiator's key, 0 if it is not registered.
    keys: Vec<Key>,
    held: Option<Held>,
    aptpl: bool,
}

const INVALID_RELEASE: Outcome = Outcome::Refused(0x26, 0x04);
const INVALID_PARAMETER: Outcome = Outcome::Refused(0x26, 0x00);

fn all_registrants(kind: u8) -> bool {
    kind >= 7
}

impl State {
    pub fn new(initiators: usize) -> Self {
        Self { keys: vec![0; initiators], held: None, aptpl: false }
    }

    /// The power comes back: without APTPL no registration is left.
    pub fn restart(&mut self) {
        if !self.aptpl {
            *self = Self::new(self.keys.len());
        }
    }

    fn holds(&self, initiator: usize) -> bool {
        match self.held {
            None => false,
            Some(Held { holder: Some(holder), .. }) => holder == initiator,
            Some(Held { holder: None, .. }) => self.keys[initiator] != 0,
        }
    }

    /// SPC-4 table 65 and 66.
    fn admits(&self, initiator: usize, writes: bool) -> bool {
        let Some(held) = self.held else { return true };
        let exclusive_access = matches!(held.kind, 3 | 6 | 8);
        let for_registrants = held.kind >= 5 && self.keys[initiator] != 0;
        self.holds(initiator) || for_registrants || !writes && !exclusive_access
    }

    /// Executes the request of `initiator`.
    pub fn run(&mut self, initiator: usize, request: Request) -> Outcome {
        let own = self.keys[initiator];
        match request {
            Request::TestUnitReady => Outcome::Good,
            Request::Read | Request::Write => match self.admits(initiator, request == Request::Write) {
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
            Request::Register { key, force, .. } if !force && key != own => Outcome::Conflict,
            Request::Register { new: 0, .. } if own == 0 => Outcome::Good,
            Request::Register { new, aptpl, .. } => {
                match new {
                    0 => self.unregister(initiator),
                    key => self.keys[initiator] = key,
                }
                self.aptpl = aptpl;
                Outcome::Good
            }
            // All others are for registered initiators, which name their key (§5.13.5).
            Request::Reserve { key, .. }
            | Request::Release { key, .. }
            | Request::Clear { key }
            | Request::Preempt { key, .. }
                if own == 0 || key != own =>
            {
                Outcome::Conflict
            }
            Request::Reserve { kind, .. } => match self.held {
                None => self.hold(initiator, kind),
                Some(held) if held.kind == kind && self.holds(initiator) => Outcome::Good,
                Some(_) => Outcome::Conflict,
            },
            Request::Release { kind, .. } => match self.held {
                Some(held) if self.holds(initiator) && held.kind != kind => INVALID_RELEASE,
                Some(_) if self.holds(initiator) => {
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
            Request::Preempt { victim, kind, .. } => self.preempt(initiator, victim, kind),
        }
    }

    fn hold(&mut self, initiator: usize, kind: u8) -> Outcome {
        self.held = Some(Held { kind, holder: (!all_registrants(kind)).then_some(initiator) });
        Outcome::Good
    }

    /// §5.13.11.2.1: the reservation goes with its last holder.
    fn unregister(&mut self, initiator: usize) {
        let held = self.holds(initiator);
        self.keys[initiator] = 0;
        let single = self.held.is_some_and(|held| held.holder.is_some());
        if held && (single || self.keys.iter().all(|key| *key == 0)) {
            self.held = None;
        }
    }

    /// §5.13.11.2.3 and following.
    fn preempt(&mut self, initiator: usize, victim: Key, kind: u8) -> Outcome {
        let everybody = self.held.is_some_and(|held| held.holder.is_none()) && victim == 0;
        let takes = match self.held.and_then(|held| held.holder) {
            Some(holder) => self.keys[holder] == victim,
            None => everybody,
        };
        if victim == 0 && !everybody {
            return INVALID_PARAMETER;
        }
        let named = |state: &Self, other: usize| everybody || state.keys[other] == victim;
        if takes {
            for other in (0..self.keys.len()).filter(|other| *other != initiator) {
                if named(self, other) {
                    self.keys[other] = 0;
                }
            }
            return self.hold(initiator, kind);
        }
        let victims: Vec<_> = (0..self.keys.len()).filter(|other| named(self, *other)).collect();
        if victims.is_empty() {
            return Outcome::Conflict;
        }
        victims.into_iter().for_each(|victim| self.unregister(victim));
        Outcome::Good
    }
}
