//! Which other gateway has stopped: the counters that an observer has read, timed by its own clock.
//!
//! Never uses a time that another gateway wrote. A gateway is silent only as long as the observer
//! itself hears Ceph: a stall of the cluster, or a pause of the observer, accuses no one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{InstanceId, Time};

/// What an observer knows of all counters.
#[derive(Debug)]
pub struct Silence {
    /// The most that one read adds. Time beyond it was the observer's silence, or Ceph's.
    step: Duration,
    heard: BTreeMap<InstanceId, Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    counter: u64,
    quiet: Duration,
    /// Up to when `quiet` is counted.
    until: Time,
    /// It has changed since the first read.
    moved: bool,
}

impl Silence {
    /// An observer that reads each `beat`.
    #[must_use]
    pub fn new(beat: Duration) -> Self {
        Self { step: beat * 2, heard: BTreeMap::new() }
    }

    /// The counters of all members, in a read that was sent at `sent` and answered at `now`.
    /// Replies must come in the order of their reads.
    pub fn read(&mut self, sent: Time, now: Time, counters: impl Iterator<Item = (InstanceId, u64)>) {
        let before = std::mem::take(&mut self.heard);
        self.heard = counters
            .map(|(instance, counter)| {
                let heard = match before.get(&instance) {
                    Some(heard) if heard.counter == counter => {
                        let passed = sent.saturating_sub(heard.until).min(self.step);
                        Heard { quiet: heard.quiet + passed, until: sent.max(heard.until), ..*heard }
                    }
                    // The OSD read it at some time before the answer came.
                    before => Heard { counter, quiet: Duration::ZERO, until: now, moved: before.is_some() },
                };
                (instance, heard)
            })
            .collect();
    }

    /// How long the counter of `instance` has stayed the same, as far as this observer has heard.
    #[must_use]
    pub fn of(&self, instance: InstanceId) -> Duration {
        self.heard.get(&instance).map_or(Duration::ZERO, |heard| heard.quiet)
    }

    /// Whether the counter of `instance` has changed since this observer first read it.
    #[must_use]
    pub fn moved(&self, instance: InstanceId) -> bool {
        self.heard.get(&instance).is_some_and(|heard| heard.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InstanceId = InstanceId(1);

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn read(silence: &mut Silence, second: u64, counter: u64) {
        silence.read(seconds(second), seconds(second), [(ONE, counter)].into_iter());
    }

    #[test]
    fn an_unchanged_counter_is_silence_and_a_changed_one_ends_it() {
        let mut silence = Silence::new(seconds(1));
        for second in 0..4 {
            read(&mut silence, second, 7);
        }
        assert_eq!((silence.of(ONE), silence.moved(ONE)), (seconds(3), false));
        read(&mut silence, 4, 8);
        assert_eq!((silence.of(ONE), silence.moved(ONE)), (seconds(0), true));
    }

    #[test]
    fn an_observer_that_was_paused_accuses_no_one() {
        let mut silence = Silence::new(seconds(1));
        read(&mut silence, 0, 7);
        read(&mut silence, 60, 7);
        assert_eq!(silence.of(ONE), seconds(2));
    }

    #[test]
    fn the_time_that_the_first_read_took_is_no_silence() {
        let mut silence = Silence::new(seconds(5));
        silence.read(seconds(0), seconds(4), [(ONE, 7)].into_iter());
        silence.read(seconds(5), seconds(5), [(ONE, 7)].into_iter());
        assert_eq!(silence.of(ONE), seconds(1));
    }
}
