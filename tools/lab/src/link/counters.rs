//! The counters of a link. The one thread of each direction writes them, other threads read them.
//! No locks on the packet path.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::spec::{LinkSpec, Side};

/// Buckets per doubling of the lateness.
const PARTS: u64 = 4;
/// The number of buckets: up to 4 µs one each, then four per doubling up to about 17 s.
const BUCKETS: usize = 92;

/// The part of the time in which a line is asked for its full rate that it may stand idle, percent.
const MOST_MISSED_PERCENT: u64 = 5;
/// From how much of that time on it counts, µs.
const LEAST_ASKED_US: u64 = 20_000;
/// From how many packets on their lateness counts.
const LEAST_PACKETS: u64 = 100;

/// How late 99 of 100 packets may come out, µs: 1 ms, or a tenth of a longer round trip.
fn most_late_us(spec: &LinkSpec) -> u64 {
    (spec.round_trip().as_micros() as u64 / 10).max(1000)
}

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
    pub(crate) largest: AtomicU64,
    /// `keeping::Span`, of all spans, ns.
    pub(crate) asked: AtomicU64,
    pub(crate) missed: AtomicU64,
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
            largest: zero(),
            asked: zero(),
            missed: zero(),
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

    /// Raises a maximum, such as the queue's backlog, to `bytes`.
    pub(crate) fn raise(most: &AtomicU64, bytes: u64) {
        if bytes > most.load(Ordering::Relaxed) {
            most.store(bytes, Ordering::Relaxed);
        }
    }

    /// Reads all counters. Maxima cover the time since the last call with `anew`.
    pub(crate) fn read(&self, anew: bool) -> DirectionCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let most = |most: &AtomicU64| if anew { most.swap(0, Ordering::Relaxed) } else { get(most) };
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
            queue_high_water_bytes: most(&self.queue_high_water),
            largest_packet_bytes: most(&self.largest),
            cpu_seconds: 0.0,
            ready_seconds: 0.0,
            asked_us: get(&self.asked) / 1000,
            missed_us: get(&self.missed) / 1000,
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
    /// The largest packet that entered, bytes; 0 where netem carries them.
    #[serde(default)]
    pub largest_packet_bytes: u64,
    /// Processor time of the direction's thread, s. Includes the receiving kernel's work on each
    /// packet.
    pub cpu_seconds: f64,
    /// How long the thread was ready and had no processor, s.
    #[serde(default)]
    pub ready_seconds: f64,
    /// How long the line was asked for its full rate, in spans of 10 ms, µs.
    #[serde(default)]
    pub asked_us: u64,
    /// Of that, how long the line stood idle while packets may have waited for the emulator, µs.
    #[serde(default)]
    pub missed_us: u64,
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

    /// The difference to `earlier`. Maxima are this one's.
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
            largest_packet_bytes: self.largest_packet_bytes,
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            ready_seconds: (self.ready_seconds - earlier.ready_seconds).max(0.0),
            asked_us: self.asked_us.saturating_sub(earlier.asked_us),
            missed_us: self.missed_us.saturating_sub(earlier.missed_us),
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
    /// The lines beside the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Counters>,
}

impl Counters {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            seconds: (self.seconds - earlier.seconds).max(0.0),
            a_to_b: self.a_to_b.since(&earlier.a_to_b),
            b_to_a: self.b_to_a.since(&earlier.b_to_a),
            others: self.others.iter().zip(&earlier.others).map(|(now, then)| now.since(then)).collect(),
        }
    }

    /// Why the link was not what `spec` says, if it was not: in either direction the line stood
    /// idle for more than [`MOST_MISSED_PERCENT`] of the time in which it was asked for its full
    /// rate, or one packet of 100 came out later than [`most_late_us`].
    #[must_use]
    pub fn behind(&self, spec: &LinkSpec) -> Option<String> {
        let mut lines = std::iter::once(self).chain(&self.others).zip(spec.lines()).enumerate();
        lines.find_map(|(at, (line, spec))| {
            let why = line.line_behind(spec)?;
            Some(if self.others.is_empty() { why } else { format!("line {}: {why}", at + 1) })
        })
    }

    /// The same of its first line alone.
    pub(super) fn line_behind(&self, spec: &LinkSpec) -> Option<String> {
        let bound = most_late_us(spec);
        [(Side::A, &self.a_to_b), (Side::B, &self.b_to_a)].into_iter().find_map(|(side, way)| {
            let (from, to) = (side.name().to_uppercase(), side.other().name().to_uppercase());
            let late = way.late_percentile(0.99);
            let packets: u64 = way.late_us.iter().map(|(_, count)| count).sum();
            if way.asked_us >= LEAST_ASKED_US && way.missed_us * 100 > way.asked_us * MOST_MISSED_PERCENT {
                return Some(format!(
                    "from {from} to {to} the line stood idle for {} % of the {} ms in which it was asked for its full rate \
                     ({MOST_MISSED_PERCENT} % are allowed)",
                    way.missed_us * 100 / way.asked_us,
                    way.asked_us / 1000
                ));
            }
            (packets >= LEAST_PACKETS && late > bound).then(|| {
                format!("from {from} to {to} one packet of 100 came out {late} µs late, or later ({bound} µs are allowed)")
            })
        })
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
        Tally::raise(&tally.queue_high_water, 700);
        Tally::raise(&tally.largest, 1500);
        let before = tally.read(true);
        assert_eq!(before.queue_high_water_bytes, 700);
        add(&tally.packets_in, 2);
        tally.late(2_900);
        tally.late(120_000);
        Tally::raise(&tally.queue_high_water, 300);
        Tally::raise(&tally.largest, 65_520);
        Tally::raise(&tally.largest, 40);
        let run = tally.read(false).since(&before);
        assert_eq!((run.packets_in, run.queue_high_water_bytes, run.largest_packet_bytes), (2, 300, 65_520));
        assert_eq!(run.late_us, [(2, 1), (112, 1)]);
        assert_eq!(run.late_percentile(0.5), 3);
        assert_eq!(run.late_percentile(1.0), 128);
    }

    #[test]
    fn any_of_several_lines_may_be_behind() {
        let line = |missed_us| Counters {
            a_to_b: DirectionCounters { asked_us: 1_000_000, missed_us, ..DirectionCounters::default() },
            ..Counters::default()
        };
        let lan = LinkSpec::preset("lan").unwrap();
        let spec = LinkSpec { others: vec![lan.clone(), lan.clone()], ..lan };
        let two = Counters { others: vec![line(0), line(0)], ..line(0) };
        assert_eq!(two.behind(&spec), None);
        let later = Counters { others: vec![line(0), line(500_000)], ..line(0) };
        assert!(later.behind(&spec).unwrap().starts_with("line 3: from A to B"));
        assert_eq!(later.since(&two).others[1].a_to_b.missed_us, 500_000);
    }

    #[test]
    fn a_line_is_behind_if_it_is_idle_or_late_by_more_than_is_allowed() {
        let lan = LinkSpec::preset("lan").unwrap();
        let idle = |asked_us, missed_us| {
            let b_to_a = DirectionCounters { asked_us, missed_us, ..DirectionCounters::default() };
            Counters { b_to_a, ..Counters::default() }.behind(&lan)
        };
        assert_eq!(idle(1_000_000, 50_000), None);
        assert_eq!(idle(19_000, 19_000), None, "too short to tell");
        let told = idle(1_000_000, 230_000).unwrap();
        assert!(told.starts_with("from B to A the line stood idle for 23 % of the 1000 ms"), "{told}");
        let late = |spec: &LinkSpec, packets: u64, us: u64| {
            let late_us = vec![(3, packets - packets / 50), (us, packets / 50)];
            let a_to_b = DirectionCounters { late_us, ..DirectionCounters::default() };
            Counters { a_to_b, ..Counters::default() }.behind(spec)
        };
        assert_eq!(late(&lan, 1000, 768), None);
        assert!(late(&lan, 1000, 1024).unwrap().contains("1280 µs late"));
        assert_eq!(late(&lan, 98, 1024), None, "too few to tell");
        let wan = LinkSpec::preset("wan-1400mi").unwrap();
        assert_eq!(late(&wan, 1000, 1792), None);
        assert!(late(&wan, 1000, 2560).is_some());
    }
}
