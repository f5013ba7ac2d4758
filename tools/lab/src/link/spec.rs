//! The configuration of a link: delay, rate, queue, loss and reordering of each direction, with
//! units; the presets; and the syntax for users and experiments. Never reads the machine: other
//! modules find out what it supports.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The default overhead of a packet on the wire, bytes. It is Ethernet's header (14), check
/// sequence (4), preamble and start delimiter (8) and gap (12), IEEE 802.3.
pub const ETHERNET_OVERHEAD: u32 = 38;

/// The maximum in flight in one direction, bytes: bounds the memory of a link.
pub const MOST_IN_FLIGHT: u64 = 1 << 30;

/// Converts the miles of a preset into delay: 1400 miles have a round trip of 23 ms, a typical
/// value of fibre with its equipment.
const MILES_TO_NS: f64 = 11_500_000.0 / 1400.0;

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

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// The propagation delay: from the last bit sent to the last bit received.
    #[serde(rename = "delay_us", with = "microseconds")]
    pub delay: Duration,
    /// The delay varies uniformly by up to this much in either direction; the order is kept.
    #[serde(rename = "jitter_us", with = "microseconds")]
    pub jitter: Duration,
    /// Bits per second on the wire; `None` without a limit.
    #[serde(rename = "rate_bits_per_second")]
    pub rate: Option<u64>,
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

    /// The round trip of a packet on an idle line, without serialization time.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.a_to_b.delay + self.b_to_a.delay
    }

    /// The bandwidth-delay product from `side`, bytes on the wire: the bytes in flight that fill
    /// the line for a round trip. `None` without a rate.
    #[must_use]
    pub(crate) fn bandwidth_delay(&self, side: Side) -> Option<u64> {
        self.from(side).rate.map(|rate| bytes_in(rate, self.round_trip()))
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), SpecError> {
        let together = |text: String| Err(SpecError::Together(text));
        if !(576..=9216).contains(&self.mtu) {
            return together(format!("an MTU of {} is out of range: 576 to 9216", self.mtu));
        }
        if self.overhead > 256 {
            return together(format!(
                "an overhead of {} bytes a packet is out of range: 0 to 256",
                self.overhead
            ));
        }
        let packet = u64::from(self.mtu + self.overhead);
        for direction in [&self.a_to_b, &self.b_to_a] {
            if direction.rate.is_some_and(|rate| !(1_000..=400_000_000_000).contains(&rate)) {
                return together("a rate is out of range: 1 kb/s to 400 Gb/s".to_owned());
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
    /// The maximum in flight, bytes on the wire: in the queue and on the line.
    #[must_use]
    pub fn in_flight(&self, packet: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let line =
            self.delay + self.jitter + if self.reorder > 0.0 { self.reorder_by } else { Duration::ZERO };
        bytes_in(rate, line).saturating_add(self.queue.bytes(packet))
    }
}

/// Bytes that pass at `rate` bits per second in `time`.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 8_000_000_000).unwrap_or(u64::MAX)
}

/// A link in the syntax of users and experiments: a preset, and values that override it. Where
/// directions can differ, `X/Y` is X from side A to side B and Y from B to A; a single X is both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOptions {
    pub preset: String,
    /// The one-way delay: `11.5ms`, `250us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// The jitter, in the syntax of the delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// The rate: `1Gb/s`, `100Mb/s`, `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The queue: `512KiB`, `1000p` (packets), or `auto`: the bandwidth-delay product, and at least
    /// 500 kB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The loss: `0.1%` or `0.001`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The mean number of consecutive packets lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// The part reordered, in the syntax of the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder: Option<String>,
    /// The delay of reordered packets, in the syntax of the delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_by: Option<String>,
    /// The largest IP packet, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The overhead, bytes per packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u32>,
    /// The seed of all random numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
}

impl LinkOptions {
    /// A preset without changes.
    #[must_use]
    pub fn of(preset: &str) -> Self {
        Self { preset: preset.to_owned(), ..Self::default() }
    }

    /// The link in numbers.
    ///
    /// # Errors
    /// If a value has invalid syntax, or the values contradict each other.
    pub fn resolve(&self) -> Result<LinkSpec, SpecError> {
        let delay_ns = match self.preset.as_str() {
            "lan" => 25_000.0,
            "metro" => 250_000.0,
            "wan-0.2mi" => 0.2 * MILES_TO_NS,
            "wan-1400mi" => 1400.0 * MILES_TO_NS,
            "wan-8600mi" => 8600.0 * MILES_TO_NS,
            other => return Err(SpecError::NoPreset(other.to_owned())),
        };
        let delay = both(&self.delay, "delay", DURATION, duration, Duration::from_nanos(delay_ns as u64))?;
        let jitter = both(&self.jitter, "jitter", DURATION, duration, Duration::ZERO)?;
        let rate = both(&self.rate, "rate", RATE, rate, Some(1_000_000_000))?;
        let queue = both(&self.queue, "queue", QUEUE, queue, None)?;
        let loss = both(&self.loss, "loss", PART, part, 0.0)?;
        let burst = both(&self.burst, "burst", "a number of packets, 1 or more", number, 1.0)?;
        let reorder = both(&self.reorder, "reorder", PART, part, 0.0)?;
        let by = both(&self.reorder_by, "reorder-by", DURATION, duration, Duration::from_micros(500))?;
        let round_trip = delay[0] + delay[1];
        let direction = |at: usize| Direction {
            delay: delay[at],
            jitter: jitter[at],
            rate: rate[at],
            queue: queue[at].unwrap_or_else(|| {
                Queue::Bytes(rate[at].map_or(0, |rate| bytes_in(rate, round_trip)).max(500_000))
            }),
            loss: loss[at],
            burst: burst[at],
            reorder: reorder[at],
            reorder_by: by[at],
        };
        let spec = LinkSpec {
            name: self.preset.clone(),
            a_to_b: direction(0),
            b_to_a: direction(1),
            mtu: self.mtu.unwrap_or(1500),
            overhead: self.overhead.unwrap_or(ETHERNET_OVERHEAD),
            seed: self.seed.unwrap_or(1),
            backend: self.backend.unwrap_or_default(),
        };
        spec.check()?;
        Ok(spec)
    }
}

/// A preset's name alone.
impl FromStr for LinkOptions {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let options = Self::of(text);
        options.resolve().map(|_| options)
    }
}

const DURATION: &str = "a time with its unit: 11.5ms, 250us, 1s, 0";
const RATE: &str = "bits per second with their unit: 1Gb/s, 100Mb/s, 64kb/s, or unlimited";
const QUEUE: &str = "bytes (512KiB, 2MB), packets (1000p), or auto";
const PART: &str = "a part of the packets: 0.1% or 0.001, less than all";

/// Reads one value for both directions, or one for each.
fn both<T: Copy>(
    text: &Option<String>,
    what: &'static str,
    wanted: &'static str,
    read: impl Fn(&str) -> Option<T>,
    default: T,
) -> Result<[T; 2], SpecError> {
    let Some(text) = text else { return Ok([default; 2]) };
    let one =
        |part: &str| read(part.trim()).ok_or_else(|| SpecError::Value { what, text: text.clone(), wanted });
    // The slash of a rate unit is followed by `s`: 1Gb/s.
    let cut = text.char_indices().find(|(at, c)| *c == '/' && !text[at + 1..].trim_start().starts_with('s'));
    match cut {
        Some((at, _)) => Ok([one(&text[..at])?, one(&text[at + 1..])?]),
        None => one(text).map(|value| [value; 2]),
    }
}

/// The number at the beginning of a text, and the unit after it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    value.is_finite().then_some((value, text[end..].trim()))
}

fn number(text: &str) -> Option<f64> {
    let (value, unit) = number_and_unit(text)?;
    unit.is_empty().then_some(value)
}

fn duration(text: &str) -> Option<Duration> {
    let (value, unit) = number_and_unit(text)?;
    let ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if value == 0.0 => 1.0,
        _ => return None,
    };
    let ns = (value * ns).round();
    (ns < 1e15).then(|| Duration::from_nanos(ns as u64))
}

fn rate(text: &str) -> Option<Option<u64>> {
    if text == "unlimited" {
        return Some(None);
    }
    let (value, unit) = number_and_unit(text)?;
    let unit = unit.to_ascii_lowercase();
    let unit = unit.trim_end_matches("/s").trim_end_matches("ps");
    let bits = match unit {
        "bit" | "b" => 1.0,
        "k" | "kb" | "kbit" => 1e3,
        "m" | "mb" | "mbit" => 1e6,
        "g" | "gb" | "gbit" => 1e9,
        _ => return None,
    };
    let bits = (value * bits).round();
    (1.0..1e15).contains(&bits).then_some(Some(bits as u64))
}

fn queue(text: &str) -> Option<Option<Queue>> {
    if text == "auto" {
        return Some(None);
    }
    let (value, unit) = number_and_unit(text)?;
    let scale = match unit {
        "p" | "packets" => {
            return (value.fract() == 0.0 && (1.0..1e9).contains(&value))
                .then_some(Some(Queue::Packets(value as u32)));
        }
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "K" | "KiB" => 1024.0,
        "MB" => 1e6,
        "M" | "MiB" => 1024.0 * 1024.0,
        "GB" => 1e9,
        "G" | "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = (value * scale).round();
    (1.0..1e15).contains(&bytes).then_some(Some(Queue::Bytes(bytes as u64)))
}

fn part(text: &str) -> Option<f64> {
    let (value, unit) = number_and_unit(text)?;
    let part = match unit {
        "%" => value / 100.0,
        "" => value,
        _ => return None,
    };
    (0.0..1.0).contains(&part).then_some(part)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_link_that_can_be() {
        for (name, _) in PRESETS {
            let spec = LinkSpec::preset(name).unwrap();
            assert_eq!(&spec.name, name);
            assert_eq!(spec.a_to_b, spec.b_to_a);
        }
        let wan = LinkSpec::preset("wan-1400mi").unwrap();
        assert_eq!(wan.round_trip(), Duration::from_millis(23));
        assert_eq!(wan.bandwidth_delay(Side::A), Some(2_875_000));
        assert_eq!(wan.a_to_b.queue, Queue::Bytes(2_875_000));
        assert!(LinkSpec::preset("moon").unwrap_err().to_string().contains("wan-8600mi"));
    }

    #[test]
    fn each_direction_may_have_its_own_value() {
        let options = LinkOptions {
            delay: Some("1ms/2.5ms".into()),
            rate: Some("1Gb/s/100Mb/s".into()),
            queue: Some("1000p/2MB".into()),
            loss: Some("0.1%/0.25".into()),
            mtu: Some(9000),
            ..LinkOptions::of("lan")
        };
        let spec = options.resolve().unwrap();
        assert_eq!(spec.a_to_b.delay, Duration::from_millis(1));
        assert_eq!(spec.b_to_a.delay, Duration::from_micros(2500));
        assert_eq!((spec.a_to_b.rate, spec.b_to_a.rate), (Some(1_000_000_000), Some(100_000_000)));
        assert_eq!((spec.a_to_b.queue, spec.b_to_a.queue), (Queue::Packets(1000), Queue::Bytes(2_000_000)));
        assert_eq!((spec.a_to_b.loss, spec.b_to_a.loss), (0.001, 0.25));
        let both = LinkOptions { rate: Some("10Gb/s".into()), ..LinkOptions::of("lan") }.resolve().unwrap();
        assert_eq!((both.a_to_b.rate, both.b_to_a.rate), (Some(10_000_000_000), Some(10_000_000_000)));
    }

    #[test]
    fn a_word_that_is_not_understood_is_told_with_what_would_be() {
        let wrong = [
            LinkOptions { delay: Some("11".into()), ..LinkOptions::of("lan") },
            LinkOptions { rate: Some("fast".into()), ..LinkOptions::of("lan") },
            LinkOptions { queue: Some("1.5p".into()), ..LinkOptions::of("lan") },
            LinkOptions { queue: Some("100".into()), ..LinkOptions::of("lan") },
            LinkOptions { loss: Some("100%".into()), ..LinkOptions::of("lan") },
            LinkOptions { loss: Some("60%".into()), burst: Some("0.5".into()), ..LinkOptions::of("lan") },
            LinkOptions { mtu: Some(100), ..LinkOptions::of("lan") },
            LinkOptions { delay: Some("9s".into()), rate: Some("10Gb/s".into()), ..LinkOptions::of("lan") },
            LinkOptions { delay: Some("-1ms".into()), ..LinkOptions::of("lan") },
        ];
        for options in wrong {
            assert!(options.resolve().is_err(), "{options:?}");
        }
        let error = LinkOptions { delay: Some("11".into()), ..LinkOptions::of("lan") }.resolve().unwrap_err();
        assert_eq!(error.to_string(), "delay `11`: a time with its unit: 11.5ms, 250us, 1s, 0");
    }

    #[test]
    fn a_link_in_a_file_is_the_link_again() {
        let options = LinkOptions { jitter: Some("333ns".into()), ..LinkOptions::of("wan-0.2mi") };
        let spec = options.resolve().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LinkSpec>(&text).unwrap(), spec);
    }
}
