//! [`Stages`]: the times of a target's commands by stage and operation, in buckets; and
//! [`UnitStages`], the same of those units for which the configuration asks.
//!
//! The stages follow each other, but for the data, which move while the unit is at work: what it
//! waits for the initiator does not count as the medium's time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use server_core::tally::Class;

/// Stages of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From its turn by CmdSN until its unit gets it: older commands of its unit go first, a limit
    /// of service delays it, or the initiator has to take other data first.
    Order = 0,
    /// Its unit waits for the initiator: for data of a write, or until it takes data of a read.
    Data = 1,
    /// The rest of the time until its status is ready.
    Medium = 2,
    /// From then until the initiator acknowledges the status (ExpStatSN, RFC 7143 §4.2.2.2).
    Send = 3,
}

/// Buckets of times: powers of four.
pub const STAGE_BUCKETS: usize = 12;
/// The first bucket ends here, binary logarithm of nanoseconds.
const FIRST: u32 = 12;

/// Times of one stage of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Bucket n counts times below 2^(12 + 2n) ns that no earlier one counts; the last one also
    /// counts longer ones.
    pub buckets: [u64; STAGE_BUCKETS],
    /// Their sum, nanoseconds.
    pub time_ns: u64,
}

impl Times {
    fn count(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bits = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST);
        self.buckets[(bits.div_ceil(2) as usize).min(STAGE_BUCKETS - 1)] += 1;
        self.time_ns = self.time_ns.saturating_add(ns);
    }

    /// How many times were counted.
    pub fn commands(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, more)| *own += more);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
    }
}

/// Times by operation (in the order of [`Class`]) and stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages([[Times; 4]; 3]);

impl Stages {
    /// Counts a time.
    pub(crate) fn count(&mut self, class: Class, stage: Stage, took: Duration) {
        self.0[class as usize][stage as usize].count(took);
    }

    /// Adds the times of `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        let (own, other) = (self.0.as_flattened_mut(), other.0.as_flattened());
        own.iter_mut().zip(other).for_each(|(own, more)| own.add(more));
    }

    /// The names of operation and stage, and their times.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, &Times)> {
        let stages = ["order", "data", "medium", "send"];
        let operations = ["read", "write", "other"].iter().zip(&self.0);
        operations.flat_map(move |(operation, times)| {
            stages.into_iter().zip(times).map(move |(stage, times)| (*operation, stage, times))
        })
    }
}

/// Times of the units of one core whose stages are counted for themselves, by the units' addresses.
#[derive(Default)]
pub(crate) struct UnitStages(RefCell<HashMap<NonZeroUsize, Box<Stages>>>);

impl UnitStages {
    /// Counts the stages of a command of `unit` whose status is ready.
    pub(crate) fn count(&self, unit: NonZeroUsize, class: Class, stages: [(Stage, Duration); 3]) {
        let mut all = self.0.borrow_mut();
        let own = all.entry(unit).or_default();
        stages.into_iter().for_each(|(stage, took)| own.count(class, stage, took));
    }

    /// Counts the time until the status of such a command was acknowledged, unless its unit was
    /// forgotten meanwhile.
    pub(crate) fn acknowledged(&self, unit: NonZeroUsize, class: Class, took: Duration) {
        if let Some(own) = self.0.borrow_mut().get_mut(&unit) {
            own.count(class, Stage::Send, took);
        }
    }

    /// Forgets a unit that is not served any more, or not counted: another may get its address.
    pub(crate) fn forget(&self, unit: usize) {
        self.0.borrow_mut().retain(|known, _| known.get() != unit);
    }

    /// All, by their units' addresses.
    pub(crate) fn all(&self) -> Vec<(usize, Box<Stages>)> {
        self.0.borrow().iter().map(|(unit, stages)| (unit.get(), stages.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets_of_powers_of_four() {
        let mut times = Times::default();
        for ns in [0, 4095, 4096, 16_383, 16_384, (1 << 32) - 1, 1 << 32, u64::MAX] {
            times.count(Duration::from_nanos(ns));
        }
        let mut expected = [0; STAGE_BUCKETS];
        (expected[0], expected[1], expected[2], expected[10], expected[11]) = (2, 2, 1, 1, 2);
        assert_eq!((times.buckets, times.commands(), times.time_ns), (expected, 8, u64::MAX));
    }

    #[test]
    fn a_unit_that_is_forgotten_begins_again_at_zero() {
        let (units, [a, b]) = (UnitStages::default(), [1, 2].map(|it| NonZeroUsize::new(it).unwrap()));
        let ms = Duration::from_millis(1);
        let stages = [(Stage::Order, ms), (Stage::Data, ms), (Stage::Medium, ms)];
        units.count(a, Class::Read, stages);
        units.acknowledged(a, Class::Read, ms);
        units.acknowledged(b, Class::Read, ms);
        let [(1, ref counted)] = units.all()[..] else { panic!("only the first is counted") };
        assert!(counted.iter().take(4).all(|(.., times)| times.commands() == 1), "{counted:?}");
        units.count(b, Class::Write, stages);
        units.forget(1);
        units.acknowledged(a, Class::Read, ms);
        assert_eq!(units.all().iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn every_stage_of_every_operation_has_times_of_its_own() {
        let mut stages = Stages::default();
        stages.count(Class::Write, Stage::Data, Duration::from_micros(5));
        stages.count(Class::Other, Stage::Send, Duration::from_micros(1));
        let mut twice = stages;
        twice.add(&stages);
        let told = twice.iter().filter(|(.., times)| times.commands() > 0);
        let told: Vec<_> = told.map(|(op, stage, it)| (op, stage, it.commands(), it.time_ns)).collect();
        assert_eq!(told, [("write", "data", 2, 10_000), ("other", "send", 2, 2000)]);
    }
}
