//! The steps by which one gateway takes a unit, serves it and hands it over.
//!
//! ```text
//!                   +--- retry ---+
//!   Away - barrier - Locking - Breaking
//!    |                  |
//!    |               Locked - barrier - Opening - Serving - Draining
//!    |                                                          |
//!    +----------------------- Releasing ------------------------+
//! ```
//!
//! A step is chosen from what the record wants now, never from how it came to want it: so it does
//! not matter which changes of the record a gateway has missed.

use std::time::Duration;

use crate::effect::Effect;
use crate::id::{Epoch, InstanceId, Time, UnitId};

/// Where this gateway is with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The unit is not here.
    Away,
    /// The lock was asked for.
    Locking,
    /// The lock is another instance's, or an operation failed: tried again then.
    Waiting {
        /// The next try.
        again: Time,
    },
    /// The lock of a fenced instance is being broken.
    Breaking,
    /// The lock is this gateway's. It opens the unit when its OSD map has reached the barrier.
    Locked {
        /// Not before then.
        since: Time,
    },
    /// The unit is being opened.
    Opening,
    /// Commands begin here.
    Serving,
    /// No command begins; those that have begun end.
    Draining {
        /// Since when.
        since: Time,
    },
    /// The lock is being released.
    Releasing,
}

/// What the record wants of this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To own the unit.
    Own,
    /// Not to own it.
    Release,
}

impl Phase {
    /// Whether new commands may begin, as far as the unit is concerned.
    #[must_use]
    pub fn admits(self) -> bool {
        self == Phase::Serving
    }

    /// Whether begun commands may touch the unit.
    #[must_use]
    pub fn serves(self) -> bool {
        matches!(self, Phase::Serving | Phase::Draining { .. })
    }

    /// The next step, if one is possible now. `map` is the epoch of this gateway's map.
    #[must_use]
    pub fn next(
        self,
        unit: UnitId,
        want: Want,
        now: Time,
        map: Epoch,
        barrier: Epoch,
    ) -> Option<(Phase, Effect)> {
        match (self, want) {
            // Barrier: with an older map, this gateway could touch an object before the OSD of that
            // object refuses a fenced instance. Its late write would land after ours. The lock is
            // behind it too, since librbd loads the image's object map when it gets the lock.
            (Phase::Away, Want::Own) if map >= barrier => Some((Phase::Locking, Effect::Acquire { unit })),
            (Phase::Waiting { again }, Want::Own) if again <= now && map >= barrier => {
                Some((Phase::Locking, Effect::Acquire { unit }))
            }
            // The barrier may have risen since.
            (Phase::Locked { since }, Want::Own) if since <= now && map >= barrier => {
                Some((Phase::Opening, Effect::Open { unit }))
            }
            (Phase::Locked { since }, Want::Release) if since <= now => {
                Some((Phase::Releasing, Effect::Release { unit }))
            }
            (Phase::Serving, Want::Release) => {
                Some((Phase::Draining { since: now }, Effect::Drain { unit, asked: now }))
            }
            _ => None,
        }
    }

    /// Without an effect: what changes because the record wants something else.
    #[must_use]
    pub fn settled(self, want: Want) -> Phase {
        match (self, want) {
            (Phase::Waiting { .. }, Want::Release) => Phase::Away,
            (Phase::Draining { .. }, Want::Own) => Phase::Serving,
            _ => self,
        }
    }

    /// The lock is held by `holder`, which is fenced or not. The next phase and what to do.
    #[must_use]
    pub fn held(
        unit: UnitId,
        holder: InstanceId,
        fenced: bool,
        now: Time,
        retry: Duration,
    ) -> (Phase, Option<Effect>) {
        if fenced {
            (Phase::Breaking, Some(Effect::Break { unit, instance: holder }))
        } else {
            // A member that has not released it yet, or a client that is none of ours: a lock is
            // never taken from a living owner.
            (Phase::Waiting { again: now + retry }, None)
        }
    }

    /// An operation has failed: what is tried again, and when.
    #[must_use]
    pub fn failed(self, again: Time) -> Phase {
        match self {
            Phase::Locking | Phase::Breaking => Phase::Waiting { again },
            Phase::Opening | Phase::Releasing => Phase::Locked { since: again },
            other => other,
        }
    }

    /// When the phase goes on by itself.
    #[must_use]
    pub fn due(self, drain: Duration) -> Option<Time> {
        match self {
            Phase::Waiting { again } => Some(again),
            Phase::Locked { since } => Some(since),
            Phase::Draining { since } => Some(since + drain),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId(1);
    const ZERO: Time = Duration::ZERO;

    fn next(phase: Phase, want: Want, map: u32) -> Option<(Phase, Effect)> {
        phase.next(UNIT, want, ZERO, Epoch(map), Epoch(5))
    }

    #[test]
    fn a_lock_is_asked_for_and_a_unit_opens_behind_the_barrier_only() {
        let asks = Some((Phase::Locking, Effect::Acquire { unit: UNIT }));
        for phase in [Phase::Away, Phase::Waiting { again: ZERO }] {
            assert_eq!(next(phase, Want::Own, 4), None);
            assert_eq!(next(phase, Want::Own, 5), asks);
        }
        let locked = Phase::Locked { since: ZERO };
        assert_eq!(next(locked, Want::Own, 4), None);
        assert_eq!(next(locked, Want::Own, 5), Some((Phase::Opening, Effect::Open { unit: UNIT })));
    }

    #[test]
    fn a_serving_owner_drains_before_it_releases() {
        let (draining, effect) = next(Phase::Serving, Want::Release, 9).expect("a step");
        assert_eq!(effect, Effect::Drain { unit: UNIT, asked: ZERO });
        assert!(!draining.admits() && draining.serves());
        assert_eq!(next(draining, Want::Release, 9), None);
        assert_eq!(draining.settled(Want::Own), Phase::Serving);
    }

    #[test]
    fn a_lock_is_broken_only_if_its_holder_is_fenced() {
        let (phase, effect) = Phase::held(UNIT, InstanceId(3), false, ZERO, Duration::from_secs(1));
        assert_eq!((phase, effect), (Phase::Waiting { again: Duration::from_secs(1) }, None));
        let (phase, effect) = Phase::held(UNIT, InstanceId(3), true, ZERO, Duration::from_secs(1));
        assert_eq!(phase, Phase::Breaking);
        assert_eq!(effect, Some(Effect::Break { unit: UNIT, instance: InstanceId(3) }));
    }
}
