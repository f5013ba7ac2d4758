//! Outcomes of commands, counted where they run: by each connection for each unit it uses, in
//! memory of its own core. Nothing is shared and nothing is atomic; readers ask every core.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// One of this many commands is timed: reading the clock costs a hundredth of a small read.
const TIMED: u64 = 8;
/// 2^64 divided by the golden ratio: the fractions of its multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Buckets of latencies: powers of two of nanoseconds, from 512 on.
pub const BUCKETS: usize = 24;
/// The first bucket ends here, binary logarithm of nanoseconds.
const FIRST: u32 = 9;

/// Counts of commands, their bytes and their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Commands that read blocks.
    pub reads: u64,
    /// Commands that write blocks.
    pub writes: u64,
    /// All others.
    pub others: u64,
    /// Bytes that reads requested.
    pub read_bytes: u64,
    /// Bytes that writes requested.
    pub written_bytes: u64,
    /// Commands that did not end with GOOD.
    pub failed: u64,
    /// Commands that were timed: one of eight.
    pub timed: u64,
    /// Sum of their latencies, nanoseconds: from the time the command was complete here until its
    /// status was ready.
    pub time_ns: u64,
    /// The longest latency, nanoseconds.
    pub longest_ns: u64,
    /// Number of them by latency: bucket n counts latencies below 2^(9 + n) ns and not below half
    /// of that; the last bucket also counts longer ones.
    pub buckets: [u64; BUCKETS],
}

impl Counts {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.failed += other.failed;
        self.timed += other.timed;
        self.time_ns += other.time_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, more)| *own += more);
    }
}

/// Classes of commands in the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// All others.
    Other,
}

/// One connection's counts for one unit. On cache lines of its own, which no other core writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    counts: RefCell<Counts>,
    begun: Cell<u64>,
}

impl Tally {
    /// A command begins. Returns the time, if this command is one that is timed.
    #[inline]
    pub fn begin(&self) -> Option<Instant> {
        let begun = self.begun.get();
        self.begun.set(begun + 1);
        is_timed(begun).then(runtime::clock)
    }

    /// It has ended, and moved `bytes`. Returns the time that it took, if it is one that is timed.
    #[inline]
    pub fn end(&self, class: Class, began: Option<Instant>, bytes: u64, failed: bool) -> Option<Duration> {
        let counts = &mut *self.counts.borrow_mut();
        match class {
            Class::Read => {
                counts.reads += 1;
                counts.read_bytes += bytes;
            }
            Class::Write => {
                counts.writes += 1;
                counts.written_bytes += bytes;
            }
            Class::Other => counts.others += 1,
        }
        counts.failed += u64::from(failed);
        let took = runtime::clock().saturating_duration_since(began?);
        time(counts, took);
        Some(took)
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }
}

/// Whether the command with this number is timed: one of each eight, and not always the same, since
/// initiators repeat themselves (a read, a write, a flush).
#[inline]
fn is_timed(begun: u64) -> bool {
    let which = (begun / TIMED).wrapping_mul(GOLDEN) >> (u64::BITS - TIMED.ilog2());
    begun % TIMED == which
}

fn time(counts: &mut Counts, took: Duration) {
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let bucket = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST) as usize;
    counts.timed += 1;
    counts.time_ns = counts.time_ns.saturating_add(ns);
    counts.longest_ns = counts.longest_ns.max(ns);
    counts.buckets[bucket.min(BUCKETS - 1)] += 1;
}

/// Counts of the ended connections of one core, by unit: the unit's address, or another number that
/// is unique among those in use.
#[derive(Debug, Default)]
pub struct Ended(RefCell<HashMap<usize, Counts>>);

impl Ended {
    /// Keeps an ended connection's counts for a unit.
    pub fn keep(&self, unit: usize, counts: &Counts) {
        if *counts != Counts::default() {
            self.0.borrow_mut().entry(unit).or_default().add(counts);
        }
    }

    /// Forgets a unit that is no longer served: another may get its address.
    pub fn forget(&self, unit: usize) {
        self.0.borrow_mut().remove(&unit);
    }

    /// The counts so far, with their units.
    pub fn counts(&self) -> Vec<(usize, Counts)> {
        self.0.borrow().iter().map(|(unit, counts)| (*unit, *counts)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_of_eight_is_timed_and_all_are_counted() {
        let tally = Tally::default();
        for _ in 0..23 {
            let began = tally.begin();
            tally.end(Class::Read, began, 4096, false);
        }
        let began = tally.begin();
        tally.end(Class::Write, began, 512, true);
        let counts = tally.counts();
        assert_eq!((counts.reads, counts.read_bytes), (23, 23 * 4096));
        assert_eq!((counts.writes, counts.written_bytes, counts.failed), (1, 512, 1));
        assert_eq!((counts.timed, counts.buckets.iter().sum::<u64>()), (3, 3));
    }

    #[test]
    fn of_initiators_that_repeat_themselves_all_commands_are_timed_alike() {
        for period in 2..=16 {
            let mut timed = vec![0; period];
            (0..8000)
                .filter(|number| is_timed(*number))
                .for_each(|number| timed[number as usize % period] += 1);
            assert_eq!(timed.iter().sum::<usize>(), 1000);
            let share = 1000 / period;
            assert!(
                timed.iter().all(|count| (share * 3 / 4..=share * 5 / 4 + 1).contains(count)),
                "{timed:?}"
            );
        }
    }

    #[test]
    fn buckets_hold_more_than_32_bits_count() {
        let mut counts = Counts::default();
        counts.buckets[0] = u64::from(u32::MAX);
        time(&mut counts, Duration::from_nanos(1));
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!((counts.buckets[0], sum.buckets[0]), (1 << 32, 1 << 33));
    }

    #[test]
    fn times_fall_into_buckets_of_powers_of_two() {
        let mut counts = Counts::default();
        for ns in [0, 511, 512, 1023, 1024, u64::MAX] {
            time(&mut counts, Duration::from_nanos(ns));
        }
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[2]), (2, 2, 1));
        assert_eq!(counts.buckets[BUCKETS - 1], 1);
    }

    #[test]
    fn what_ended_connections_counted_is_kept_until_their_unit_goes() {
        let ended = Ended::default();
        ended.keep(7, &Counts { reads: 1, ..Counts::default() });
        ended.keep(7, &Counts { reads: 2, ..Counts::default() });
        assert_eq!(ended.counts(), [(7, Counts { reads: 3, ..Counts::default() })]);
        ended.forget(7);
        assert_eq!(ended.counts(), []);
    }
}
