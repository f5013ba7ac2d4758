//! The counters of a link. The one thread of each direction writes them, other threads read them.
//! No locks on the packet path.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Buckets per doubling of the lateness.
const PARTS: u64 = 4;
/// The number of buckets: up to 4 µs one each, then four per doubling up to about 17 s.
const BUCKETS: usize = 92;

/// A histogram of how late packets came out, beyond the time of the link's model.
#[derive(Debug)]
struct Lateness([AtomicU64; BUCKETS]);

/// The bucket of a lateness in µs.
fn bucket(us: u64) -> usize {
    if us < PARTS {
        return us as usize;
    }
    let doubling = u64::from(us.ilog2());
    let part = (us >> (doubling - 2)) & (PARTS - 1);
    (((doubling - 1) * PARTS + part) as usize).min(BUCKETS - 1)
}

/// The lower bound of a bucket, µs.
fn begins(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let (doubling, part) = (bucket / PARTS + 1, bucket % PARTS);
    (PARTS + part) << (doubling - 2)
}

/// The live counters of one direction. Only that direction's thread adds.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) packets_in: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) packets_out: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) overrun: AtomicU64,
    pub(crate) undeliverable: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) multicast: AtomicU64,
    pub(crate) reordered: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) queue_high_water: AtomicU64,
    /// The id of the direction's thread; 0 before it runs.
    pub(crate) thread: AtomicU64,
    late: Lateness,
}

impl Default for Tally {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            packets_in: zero(),
            bytes_in: zero(),
            packets_out: zero(),
            bytes_out: zero(),
            lost: zero(),
            queue_full: zero(),
            overrun: zero(),
            undeliverable: zero(),
            malformed: zero(),
            multicast: zero(),
            reordered: zero(),
            reads: zero(),
            writes: zero(),
            queue_high_water: zero(),
            thread: zero(),
            late: Lateness(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

/// Adds to a counter that only this thread writes.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Tally {
    /// Counts a packet that came out `ns` late.
    pub(crate) fn late(&self, ns: u64) {
        add(&self.late.0[bucket(ns / 1000)], 1);
    }

    /// Records the queue's backlog.
    pub(crate) fn backlog(&self, bytes: u64) {
        if bytes > self.queue_high_water.load(Ordering::Relaxed) {
            self.queue_high_water.store(bytes, Ordering::Relaxed);
        }
    }

    /// Reads all counters. The queue's high-water mark covers the time since the last call with
    /// `anew`.
    pub(crate) fn read(&self, anew: bool) -> DirectionCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let high = &self.queue_high_water;
        DirectionCounters {
            packets_in: get(&self.packets_in),
            bytes_in: get(&self.bytes_in),
            packets_out: get(&self.packets_out),
            bytes_out: get(&self.bytes_out),
            dropped_loss: get(&self.lost),
            dropped_queue: get(&self.queue_full),
            dropped_overrun: get(&self.overrun),
            dropped_device: 0,
            undeliverable: get(&self.undeliverable),
            malformed: get(&self.malformed),
            multicast: get(&self.multicast),
            reordered: get(&self.reordered),
            reads: get(&self.reads),
            writes: get(&self.writes),
            queue_high_water_bytes: if anew { high.swap(0, Ordering::Relaxed) } else { get(high) },
            cpu_seconds: 0.0,
            late_us: self
                .late
                .0
                .iter()
                .enumerate()
                .filter_map(|(at, count)| Some((begins(at), get(count))).filter(|(_, count)| *count > 0))
                .collect(),
        }
    }
}

/// The counters of one direction. Packets and bytes are those of the wire (a super-packet counts as
/// its packets). Bytes include IP headers and exclude the line's overhead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionCounters {
    /// Packets that entered the link.
    pub packets_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Packets that came out.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Packets that the line lost, as configured.
    pub dropped_loss: u64,
    /// Packets dropped at the full queue.
    pub dropped_queue: u64,
    /// Packets dropped for lack of the emulator's memory; above 0 only without a rate.
    pub dropped_overrun: u64,
    /// Packets that the kernel dropped before the emulator could read them.
    pub dropped_device: u64,
    /// Packets that the receiving device did not accept.
    pub undeliverable: u64,
    /// Reads that were not valid packets.
    pub malformed: u64,
    /// Multicast packets, which the link does not carry and does not count as packets.
    pub multicast: u64,
    /// Packets delayed for reordering, as configured.
    pub reordered: u64,
    /// Packets and super-packets as read from the device.
    pub reads: u64,
    /// Packets and super-packets as written to the device.
    pub writes: u64,
    /// The maximum backlog of the queue, bytes on the wire.
    pub queue_high_water_bytes: u64,
    /// Processor time of the direction's thread, s. Includes the receiving kernel's work on each
    /// packet.
    pub cpu_seconds: f64,
    /// The histogram of lateness beyond the link's model: lower bounds in µs, and packets.
    pub late_us: Vec<(u64, u64)>,
}

impl DirectionCounters {
    /// The lateness that the given part of the packets did not exceed, µs, as the upper bound of
    /// its bucket; 0 without packets.
    #[must_use]
    pub fn late_percentile(&self, part: f64) -> u64 {
        let all: u64 = self.late_us.iter().map(|(_, count)| count).sum();
        let mut below = 0;
        for (from, count) in &self.late_us {
            below += count;
            if below as f64 >= all as f64 * part {
                return begins(bucket(*from) + 1);
            }
        }
        0
    }

    /// The difference to `earlier`. The high-water mark is this one's.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut late = Vec::new();
        for (from, count) in &self.late_us {
            let before = earlier.late_us.iter().find(|(at, _)| at == from).map_or(0, |(_, count)| *count);
            if count.saturating_sub(before) > 0 {
                late.push((*from, count - before));
            }
        }
        Self {
            packets_in: self.packets_in.saturating_sub(earlier.packets_in),
            bytes_in: self.bytes_in.saturating_sub(earlier.bytes_in),
            packets_out: self.packets_out.saturating_sub(earlier.packets_out),
            bytes_out: self.bytes_out.saturating_sub(earlier.bytes_out),
            dropped_loss: self.dropped_loss.saturating_sub(earlier.dropped_loss),
            dropped_queue: self.dropped_queue.saturating_sub(earlier.dropped_queue),
            dropped_overrun: self.dropped_overrun.saturating_sub(earlier.dropped_overrun),
            dropped_device: self.dropped_device.saturating_sub(earlier.dropped_device),
            undeliverable: self.undeliverable.saturating_sub(earlier.undeliverable),
            malformed: self.malformed.saturating_sub(earlier.malformed),
            multicast: self.multicast.saturating_sub(earlier.multicast),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            queue_high_water_bytes: self.queue_high_water_bytes,
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            late_us: late,
        }
    }
}

/// The counters of a link since it came up, or since `Link::reset_counters`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// The time they cover, s.
    pub seconds: f64,
    /// From side A to side B.
    pub a_to_b: DirectionCounters,
    /// From side B to side A.
    pub b_to_a: DirectionCounters,
}

impl Counters {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            seconds: (self.seconds - earlier.seconds).max(0.0),
            a_to_b: self.a_to_b.since(&earlier.a_to_b),
            b_to_a: self.b_to_a.since(&earlier.b_to_a),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lateness_falls_into_the_bucket_that_begins_below_it() {
        for us in (0..100_000).chain([1_000_000, 15_000_000]) {
            let at = bucket(us);
            assert!(begins(at) <= us && us < begins(at + 1), "{us} in {at}: {}", begins(at));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counters_of_a_run_are_what_came_after_those_before_it() {
        let tally = Tally::default();
        add(&tally.packets_in, 3);
        tally.late(2_500);
        tally.backlog(700);
        let before = tally.read(true);
        assert_eq!(before.queue_high_water_bytes, 700);
        add(&tally.packets_in, 2);
        tally.late(2_900);
        tally.late(120_000);
        tally.backlog(300);
        let run = tally.read(false).since(&before);
        assert_eq!((run.packets_in, run.queue_high_water_bytes), (2, 300));
        assert_eq!(run.late_us, [(2, 1), (112, 1)]);
        assert_eq!(run.late_percentile(0.5), 3);
        assert_eq!(run.late_percentile(1.0), 128);
    }
}
