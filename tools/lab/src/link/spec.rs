//! The configuration of a link: delay, rate, queue, loss and reordering of each direction, and
//! whether they fit together; the names of presets. Never reads the machine: other modules find out
//! what it supports. `options` reads the words of users.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::options::LinkOptions;

/// The default overhead of a packet on the wire, bytes. It is Ethernet's header (14), check
/// sequence (4), preamble and start delimiter (8) and gap (12), IEEE 802.3.
pub const ETHERNET_OVERHEAD: u32 = 38;

/// The maximum in flight in one direction, bytes: bounds the memory of a link.
pub const MOST_IN_FLIGHT: u64 = 1 << 30;

/// The maximum number of parallel lines.
const MOST_LINES: usize = 4;

/// The maximum number of changes of a rate plan, and its longest time.
const MOST_CHANGES: usize = 1000;
const LONGEST_PLAN: Duration = Duration::from_secs(86_400);

/// The range of MTUs, bytes: from what every host takes (RFC 791 §3.1) to the largest IP packet.
const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The side of the servers.
    A,
    /// The side of the clients.
    B,
}

impl Side {
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// `a` or `b`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The capacity of the queue before the line. A full queue drops the newest packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// Bytes on the wire, including the packet being sent.
    Bytes(u64),
    /// Packets, including the one being sent.
    Packets(u32),
}

impl Queue {
    /// The maximum content, bytes on the wire, with packets of the maximum size.
    #[must_use]
    pub fn bytes(self, packet: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Packets(packets) => u64::from(packets).saturating_mul(packet),
        }
    }
}

/// The implementation that carries the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// netem where the kernel has it and it supports the configuration, else our own.
    #[default]
    Auto,
    /// Our own forwarder between two TUN devices.
    Tun,
    /// The kernel's netem on a pair of veth devices.
    Netem,
}

/// A change of a line's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateChange {
    /// From the begin of the plan.
    #[serde(rename = "at_us", with = "microseconds")]
    pub at: Duration,
    /// Bits per second on the wire from then on.
    #[serde(rename = "rate_bits_per_second")]
    pub rate: u64,
}

/// How a line's rate varies in time, beginning with the direction's own rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatePlan {
    /// In the order of time; none at 0.
    pub changes: Vec<RateChange>,
    /// After which time the plan begins again; `None`: the last rate lasts.
    #[serde(rename = "period_us", default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "maybe_microseconds")]
    pub period: Option<Duration>,
}

impl RatePlan {
    fn check(&self, rate: Option<u64>) -> Result<(), String> {
        let is_rate = |rate: u64| (1_000..=400_000_000_000).contains(&rate);
        if rate.is_none() {
            return Err("a rate plan begins with a rate, not with `unlimited`".to_owned());
        }
        if self.changes.len() > MOST_CHANGES {
            return Err(format!("a rate plan has {MOST_CHANGES} changes at most"));
        }
        let mut before = Duration::ZERO;
        for (at, change) in self.changes.iter().enumerate() {
            // The first step is the direction's own rate.
            let step = at + 2;
            if change.at <= before {
                return Err(format!(
                    "step {step} of the rate plan is at {:?}, and has to be later than {before:?}, the step before it",
                    change.at
                ));
            }
            if change.at > LONGEST_PLAN {
                return Err(format!("step {step} of the rate plan is later than a day"));
            }
            if !is_rate(change.rate) {
                return Err(format!("step {step} of the rate plan: a rate is 1 kb/s to 400 Gb/s"));
            }
            before = change.at;
        }
        match self.period {
            Some(period) if period <= before => Err(format!(
                "the rate plan repeats after {period:?}, and has to do so later than its last step, {before:?}"
            )),
            Some(period) if period > LONGEST_PLAN => Err("a rate plan repeats within a day".to_owned()),
            _ => Ok(()),
        }
    }
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// The propagation delay: from the last bit sent to the last bit received.
    #[serde(rename = "delay_us", with = "microseconds")]
    pub delay: Duration,
    /// The delay varies uniformly by up to this much in either direction; the order is kept.
    #[serde(rename = "jitter_us", with = "microseconds")]
    pub jitter: Duration,
    /// Bits per second on the wire; `None` without a limit. With a plan: at its begin.
    #[serde(rename = "rate_bits_per_second")]
    pub rate: Option<u64>,
    /// How the rate varies, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_plan: Option<RatePlan>,
    /// The queue before the line. Ignored without a rate.
    pub queue: Queue,
    /// The part of packets that the line loses, 0 to 1.
    pub loss: f64,
    /// The mean number of consecutive packets lost; 1 for independent losses.
    pub burst: f64,
    /// The part of packets that are delayed by `reorder_by` behind others, 0 to 1.
    pub reorder: f64,
    /// The additional delay of those packets.
    #[serde(rename = "reorder_by_us", with = "microseconds")]
    pub reorder_by: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// The preset that it was made from.
    pub name: String,
    /// From side A to side B.
    pub a_to_b: Direction,
    /// From side B to side A.
    pub b_to_a: Direction,
    /// The largest IP packet, bytes.
    pub mtu: u32,
    /// The overhead of each packet on the wire, bytes.
    pub overhead: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The backend to use.
    pub backend: Backend,
    /// TCP's congestion control of both sides; `None` for the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// The lines beside the first, whose values are those above; each has none of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<LinkSpec>,
}

/// Why a configuration is not a valid link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No preset has this name.
    #[error("there is no link `{0}`; there are {names}", names = names())]
    NoPreset(String),
    /// A value with invalid syntax.
    #[error("{what} `{text}`: {wanted}")]
    Value {
        /// The name of the value.
        what: &'static str,
        text: String,
        wanted: &'static str,
    },
    /// Values that contradict each other.
    #[error("{0}")]
    Together(String),
}

/// The presets, with descriptions.
pub const PRESETS: &[(&str, &str)] = &[
    ("lan", "a switch of one room: 25 µs one way, 1 Gb/s"),
    ("metro", "50 km of fibre within a city: 0.25 ms one way, 1 Gb/s"),
    ("wan-0.2mi", "0.2 miles of fibre: 2 µs one way, 1 Gb/s"),
    ("wan-1400mi", "1400 miles: 11.5 ms one way (23 ms round trip), 1 Gb/s"),
    ("wan-8600mi", "8600 miles: 70.6 ms one way (141 ms round trip), 1 Gb/s"),
];

fn names() -> String {
    PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl LinkSpec {
    /// The preset of this name.
    ///
    /// # Errors
    /// If no preset has that name.
    pub fn preset(name: &str) -> Result<Self, SpecError> {
        LinkOptions::of(name).resolve()
    }

    /// The direction from this side to the other.
    #[must_use]
    pub fn from(&self, side: Side) -> &Direction {
        match side {
            Side::A => &self.a_to_b,
            Side::B => &self.b_to_a,
        }
    }

    /// All lines, the first one first.
    pub fn lines(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// The round trip of a packet on an idle line, without serialization time.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.a_to_b.delay + self.b_to_a.delay
    }

    /// The bandwidth-delay product from `side`, bytes on the wire: the bytes in flight that fill
    /// the line for a round trip at its highest rate. `None` without a rate.
    #[must_use]
    pub(crate) fn bandwidth_delay(&self, side: Side) -> Option<u64> {
        self.from(side).highest_rate().map(|rate| bytes_in(rate, self.round_trip()))
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), SpecError> {
        let together = |text: String| Err(SpecError::Together(text));
        if self.others.len() >= MOST_LINES {
            return together(format!("a link has {MOST_LINES} lines at most"));
        }
        for (at, line) in self.others.iter().enumerate() {
            if !line.others.is_empty() {
                return together("a line has no lines of its own".to_owned());
            }
            line.check().map_err(|error| SpecError::Together(format!("line {}: {error}", at + 2)))?;
        }
        if !MTU.contains(&self.mtu) {
            return together(format!(
                "an MTU of {} is out of range: {} to {}",
                self.mtu,
                MTU.start(),
                MTU.end()
            ));
        }
        if self.overhead > 256 {
            return together(format!(
                "an overhead of {} bytes a packet is out of range: 0 to 256",
                self.overhead
            ));
        }
        // The kernel's names have at most 15 bytes (TCP_CA_NAME_MAX).
        let is_name = |name: &String| {
            (1..=15).contains(&name.len())
                && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-".contains(&c))
        };
        if let Some(name) = self.congestion.as_ref().filter(|name| !is_name(name)) {
            return together(format!("`{name}` is no name of a congestion control, such as cubic or reno"));
        }
        let packet = u64::from(self.mtu + self.overhead);
        for direction in [&self.a_to_b, &self.b_to_a] {
            if direction.rate.is_some_and(|rate| !(1_000..=400_000_000_000).contains(&rate)) {
                return together("a rate is out of range: 1 kb/s to 400 Gb/s".to_owned());
            }
            if let Some(plan) = &direction.rate_plan {
                plan.check(direction.rate).or_else(together)?;
            }
            if direction.delay > Duration::from_secs(10) || direction.jitter > Duration::from_secs(10) {
                return together("delay and jitter are 10 s at most".to_owned());
            }
            if direction.reorder_by > Duration::from_secs(10) {
                return together("what is reordered comes 10 s later at most".to_owned());
            }
            if direction.rate.is_some() && direction.queue.bytes(packet) < packet {
                return together(format!("the queue must hold a packet: {packet} bytes on the wire"));
            }
            for (what, part) in [("loss", direction.loss), ("reorder", direction.reorder)] {
                if !(0.0..1.0).contains(&part) {
                    return together(format!(
                        "{what} is a part of the packets: 0 to less than 1, or in percent"
                    ));
                }
            }
            if !(1.0..=1e6).contains(&direction.burst) {
                return together("a burst is 1 packet or more, on average".to_owned());
            }
            // The probability that a loss begins must be at most 1.
            if direction.loss / ((1.0 - direction.loss) * direction.burst) > 1.0 {
                return together(format!(
                    "{} of the packets cannot be lost {} in a row on average: lose fewer, or more in a row",
                    direction.loss, direction.burst
                ));
            }
            if direction.in_flight(packet) > MOST_IN_FLIGHT {
                return together(format!(
                    "{} bytes would be on their way in one direction; {MOST_IN_FLIGHT} is the most",
                    direction.in_flight(packet)
                ));
            }
        }
        Ok(())
    }
}

impl Direction {
    /// The highest rate that it ever has, bits per second; `None` without a limit.
    #[must_use]
    pub fn highest_rate(&self) -> Option<u64> {
        let changes = self.rate_plan.iter().flat_map(|plan| &plan.changes);
        self.rate.map(|rate| changes.map(|change| change.rate).fold(rate, u64::max))
    }

    /// The mean rate over a long time, bits per second; `None` without a limit, and for a plan that
    /// does not repeat.
    #[must_use]
    pub fn mean_rate(&self) -> Option<f64> {
        let (mut now, Some(plan)) = (self.rate? as f64, &self.rate_plan) else {
            return self.rate.map(|rate| rate as f64);
        };
        let period = plan.period?.as_secs_f64();
        let (mut bits, mut since) = (0.0, 0.0);
        for change in &plan.changes {
            bits += now * (change.at.as_secs_f64() - since);
            (now, since) = (change.rate as f64, change.at.as_secs_f64());
        }
        Some((bits + now * (period - since)) / period)
    }

    /// The maximum in flight, bytes on the wire: in the queue and on the line.
    #[must_use]
    pub fn in_flight(&self, packet: u64) -> u64 {
        let Some(rate) = self.highest_rate() else { return 0 };
        let line =
            self.delay + self.jitter + if self.reorder > 0.0 { self.reorder_by } else { Duration::ZERO };
        bytes_in(rate, line).saturating_add(self.queue.bytes(packet))
    }
}

/// Bytes that pass at `rate` bits per second in `time`.
pub(super) fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 8_000_000_000).unwrap_or(u64::MAX)
}

/// Serializes durations as microseconds.
mod microseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_nanos() as f64 / 1e3)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let us = f64::deserialize(from)?;
        if !(0.0..1e12).contains(&us) {
            return Err(D::Error::custom("a time in microseconds is out of range"));
        }
        Ok(Duration::from_nanos((us * 1e3).round() as u64))
    }
}

/// The same, of a duration that may be missing.
mod maybe_microseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Time(#[serde(with = "super::microseconds")] Duration);

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::microseconds::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Time>::deserialize(from)?.map(|Time(time)| time))
    }
}
