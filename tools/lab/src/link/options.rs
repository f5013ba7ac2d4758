//! A link in the words of users and experiments: a preset, and values that override it. Reads the
//! words; `spec` checks that the values fit together.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{
    Backend, Direction, ETHERNET_OVERHEAD, LinkSpec, Queue, RateChange, RatePlan, SpecError, bytes_in,
};

/// Converts the miles of a preset into delay: 1400 miles have a round trip of 23 ms, a typical
/// value of fibre with its equipment.
const MILES_TO_NS: f64 = 11_500_000.0 / 1400.0;

/// The least that a queue of `auto` holds: bytes, and packets of the largest size. TCP begins with
/// 10 packets (RFC 6928).
const LEAST_QUEUE: u64 = 500_000;
const LEAST_PACKETS: u64 = 16;

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
    /// The rate's values one after the other, instead of `rate`; the first at 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_plan: Vec<RateStep>,
    /// After which time the plan begins again, in the syntax of the delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_period: Option<String>,
    /// Several lines, each with addresses of its own; none for a single line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<LineOptions>,
    /// The queue: `512KiB`, `1000p` (packets), or `auto`: the bandwidth-delay product, and at least
    /// 500 kB and 16 packets.
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
    /// TCP's congestion control of both sides, by the kernel's name: `cubic`, `reno`, `bbr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
}

/// One of several lines: values that replace the link's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LineOptions {
    pub delay: Option<String>,
    pub jitter: Option<String>,
    pub rate: Option<String>,
    /// Instead of `rate`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate_plan: Vec<RateStep>,
    pub rate_period: Option<String>,
    pub queue: Option<String>,
    pub loss: Option<String>,
    pub burst: Option<String>,
    pub reorder: Option<String>,
    pub reorder_by: Option<String>,
    pub mtu: Option<u32>,
}

/// `rate=100Mb/s delay=1ms`.
impl FromStr for LineOptions {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = |why: &dyn std::fmt::Display| SpecError::Together(format!("line `{text}`: {why}"));
        let mut values = serde_json::Map::new();
        for word in text.split_whitespace() {
            let (name, value) =
                word.split_once('=').ok_or_else(|| wrong(&"values are words as delay=1ms"))?;
            let number = value.parse::<u32>().ok().filter(|_| name == "mtu");
            let value = number.map_or_else(|| value.into(), serde_json::Value::from);
            if values.insert(name.to_owned(), value).is_some() {
                return Err(wrong(&format_args!("`{name}` is there twice")));
            }
        }
        serde_json::from_value(values.into()).map_err(|error| wrong(&error))
    }
}

/// One step of a plan of rates, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateStep {
    /// The time from the plan's begin, in the syntax of the delay.
    pub at: String,
    /// The rate from then on, which may differ by direction.
    pub rate: String,
}

/// `500ms=100Mb/s`.
impl FromStr for RateStep {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wanted = "a time, `=` and a rate: 500ms=100Mb/s";
        let (at, rate) = text.split_once('=').ok_or_else(|| SpecError::Value {
            what: "rate-plan",
            text: text.to_owned(),
            wanted,
        })?;
        Ok(Self { at: at.trim().to_owned(), rate: rate.trim().to_owned() })
    }
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
        let mut lines = Vec::new();
        for (at, line) in self.lines.iter().enumerate() {
            let told = |error| SpecError::Together(format!("line {}: {error}", at + 1));
            lines.push(self.with(line, at as u64).single().map_err(told)?);
        }
        let mut lines = lines.into_iter();
        let Some(mut first) = lines.next() else { return self.single() };
        first.others = lines.collect();
        first.check()?;
        Ok(first)
    }

    /// The options of one of its lines. Each line draws random numbers of its own.
    fn with(&self, line: &LineOptions, at: u64) -> Self {
        let or = |own: &Option<String>, links: &Option<String>| own.clone().or_else(|| links.clone());
        let mut one = Self {
            delay: or(&line.delay, &self.delay),
            jitter: or(&line.jitter, &self.jitter),
            queue: or(&line.queue, &self.queue),
            loss: or(&line.loss, &self.loss),
            burst: or(&line.burst, &self.burst),
            reorder: or(&line.reorder, &self.reorder),
            reorder_by: or(&line.reorder_by, &self.reorder_by),
            mtu: line.mtu.or(self.mtu),
            seed: Some(self.seed.unwrap_or(1).wrapping_add(at)),
            lines: Vec::new(),
            ..self.clone()
        };
        if line.rate.is_some() || !line.rate_plan.is_empty() || line.rate_period.is_some() {
            (one.rate, one.rate_period) = (line.rate.clone(), line.rate_period.clone());
            one.rate_plan.clone_from(&line.rate_plan);
        }
        one
    }

    /// A link of a single line.
    fn single(&self) -> Result<LinkSpec, SpecError> {
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
        let rates = self.rates()?;
        let queue = both(&self.queue, "queue", QUEUE, queue, None)?;
        let loss = both(&self.loss, "loss", PART, part, 0.0)?;
        let burst = both(&self.burst, "burst", "a number of packets, 1 or more", number, 1.0)?;
        let reorder = both(&self.reorder, "reorder", PART, part, 0.0)?;
        let by = both(&self.reorder_by, "reorder-by", DURATION, duration, Duration::from_micros(500))?;
        let round_trip = delay[0] + delay[1];
        let mtu = self.mtu.unwrap_or(1500);
        let overhead = self.overhead.unwrap_or(ETHERNET_OVERHEAD);
        let least = LEAST_QUEUE.max(LEAST_PACKETS * (u64::from(mtu) + u64::from(overhead)));
        let direction = |at: usize| {
            let mut direction = Direction {
                delay: delay[at],
                jitter: jitter[at],
                rate: rates[at].0,
                rate_plan: rates[at].1.clone(),
                queue: Queue::Bytes(least),
                loss: loss[at],
                burst: burst[at],
                reorder: reorder[at],
                reorder_by: by[at],
            };
            let fills = direction.highest_rate().map_or(0, |rate| bytes_in(rate, round_trip));
            direction.queue = queue[at].unwrap_or(Queue::Bytes(fills.max(least)));
            direction
        };
        let spec = LinkSpec {
            name: self.preset.clone(),
            a_to_b: direction(0),
            b_to_a: direction(1),
            mtu,
            overhead,
            seed: self.seed.unwrap_or(1),
            backend: self.backend.unwrap_or_default(),
            congestion: self.congestion.clone(),
            others: Vec::new(),
        };
        spec.check()?;
        Ok(spec)
    }

    /// The rate of both directions, and the plan of each if there is one.
    fn rates(&self) -> Result<[Rates; 2], SpecError> {
        let together = |text: &str| Err(SpecError::Together(text.to_owned()));
        let period = self.rate_period.as_deref().map(|text| {
            let wrong = || SpecError::Value { what: "rate-period", text: text.to_owned(), wanted: DURATION };
            duration(text.trim()).ok_or_else(wrong)
        });
        let period = period.transpose()?;
        let Some((first, later)) = self.rate_plan.split_first() else {
            if period.is_some() {
                return together("a rate-period repeats a rate-plan: give one");
            }
            let rates = both(&self.rate, "rate", RATE, rate, Some(1_000_000_000))?;
            return Ok(rates.map(|rate| (rate, None)));
        };
        if self.rate.is_some() {
            return together("a rate-plan has all rates: leave out `rate`");
        }
        let step = |at: usize, step: &RateStep| {
            let told = |error| SpecError::Together(format!("step {} of the rate plan: {error}", at + 1));
            let wrong = || SpecError::Value { what: "at", text: step.at.clone(), wanted: DURATION };
            let time = duration(&step.at).ok_or_else(wrong).map_err(told)?;
            let finite = |text: &str| rate(text).flatten();
            let rates = both(&Some(step.rate.clone()), "rate", PLANNED_RATE, finite, 0).map_err(told)?;
            Ok::<_, SpecError>((time, rates))
        };
        let (began, rates) = step(0, first)?;
        if !began.is_zero() {
            return together("step 1 of the rate plan has to be at 0");
        }
        let mut planned = rates
            .map(|rate| (Some(rate), Some(RatePlan { changes: Vec::with_capacity(later.len()), period })));
        for (number, next) in later.iter().enumerate() {
            let (at, rates) = step(number + 1, next)?;
            for ((_, plan), rate) in planned.iter_mut().zip(rates) {
                plan.iter_mut().for_each(|plan| plan.changes.push(RateChange { at, rate }));
            }
        }
        Ok(planned)
    }
}

/// The rate of a direction, and its plan if there is one.
type Rates = (Option<u64>, Option<RatePlan>);

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
const PLANNED_RATE: &str = "bits per second with their unit: 1Gb/s, 100Mb/s, 64kb/s";
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

#[cfg(test)]
mod tests {
    use super::super::spec::{PRESETS, Side};
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
            LinkOptions { mtu: Some(575), ..LinkOptions::of("lan") },
            LinkOptions { congestion: Some("../cubic".into()), ..LinkOptions::of("lan") },
            LinkOptions { congestion: Some(String::new()), ..LinkOptions::of("lan") },
            LinkOptions { mtu: Some(65_536), ..LinkOptions::of("lan") },
            LinkOptions { mtu: Some(u32::MAX), overhead: Some(u32::MAX), ..LinkOptions::of("lan") },
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
    fn a_rate_plan_is_read_for_both_directions() {
        let plan = |text: &str, period: Option<&str>| {
            let rate_plan = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
            let rate_period = period.map(str::to_owned);
            LinkOptions { rate_plan, rate_period, ..LinkOptions::of("wan-1400mi") }.resolve()
        };
        let change = |ms, rate| RateChange { at: Duration::from_millis(ms), rate };
        let spec = plan("0=10Mb/s, 500ms=2Gb/s/1Gb/s,4s=1Gb/s", Some("5s")).unwrap();
        assert_eq!((spec.a_to_b.rate, spec.b_to_a.rate), (Some(10_000_000), Some(10_000_000)));
        let found = |direction: &Direction| direction.rate_plan.clone().unwrap();
        assert_eq!(found(&spec.a_to_b).changes, [change(500, 2_000_000_000), change(4000, 1_000_000_000)]);
        assert_eq!(found(&spec.b_to_a).changes, [change(500, 1_000_000_000), change(4000, 1_000_000_000)]);
        assert_eq!(found(&spec.a_to_b).period, Some(Duration::from_secs(5)));
        // (0.01 × 0.5 + 2 × 3.5 + 1 × 1) / 5 Gb/s.
        assert!((spec.a_to_b.mean_rate().unwrap() - 1.601e9).abs() < 1.0);
        // Queue and memory are those of the highest rate.
        assert_eq!(spec.a_to_b.queue, Queue::Bytes(5_750_000));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LinkSpec>(&text).unwrap(), spec);
        let lasts = plan("0=10Mb/s,1s=1Gb/s", None).unwrap();
        assert_eq!(lasts.a_to_b.mean_rate(), None);
        let text = serde_json::to_string(&lasts).unwrap();
        assert_eq!(serde_json::from_str::<LinkSpec>(&text).unwrap(), lasts);
    }

    #[test]
    fn a_wrong_rate_plan_is_told_with_its_step() {
        let plan = |text: &str, period: &str| {
            let rate_plan =
                text.split(',').filter(|step| !step.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
            let rate_period = (!period.is_empty()).then(|| period.to_owned());
            LinkOptions { rate_plan, rate_period, ..LinkOptions::of("lan") }.resolve()
        };
        for (text, period, told) in [
            ("1s=1Gb/s", "", "step 1 of the rate plan has to be at 0"),
            (
                "0=1Gb/s,2s=1Mb/s,1s=1Gb/s",
                "",
                "step 3 of the rate plan is at 1s, and has to be later than 2s",
            ),
            ("0=1Gb/s,0=1Mb/s", "", "step 2 of the rate plan is at 0ns"),
            ("0=1Gb/s,1s=0b/s", "", "step 2 of the rate plan: rate `0b/s`"),
            ("0=1Gb/s,1s=1b/s", "", "step 2 of the rate plan: a rate is 1 kb/s to 400 Gb/s"),
            ("0=1Gb/s,1s=unlimited", "", "step 2 of the rate plan: rate `unlimited`"),
            ("0=1Gb/s,1=1Gb/s", "", "step 2 of the rate plan: at `1`"),
            ("0=1Gb/s,1s", "", "rate-plan `1s`: a time, `=` and a rate"),
            ("0=1Gb/s,100000s=1Gb/s", "", "step 2 of the rate plan is later than a day"),
            ("0=1Gb/s,1s=1Mb/s", "1s", "repeats after 1s, and has to do so later than its last step, 1s"),
            ("0=1Gb/s,1s=1Mb/s", "100000s", "repeats within a day"),
            ("0=1Gb/s,1s=1Mb/s", "often", "rate-period `often`"),
            ("", "1s", "give one"),
        ] {
            let error = plan(text, period).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let many = (0..1002).map(|at| format!("{at}ms=1Gb/s")).collect::<Vec<_>>();
        assert!(plan(&many.join(","), "").unwrap_err().to_string().contains("1000 changes at most"));
        let both = LinkOptions {
            rate: Some("1Gb/s".into()),
            rate_plan: vec!["0=1Gb/s".parse().unwrap()],
            ..LinkOptions::of("lan")
        };
        assert!(both.resolve().unwrap_err().to_string().contains("leave out `rate`"));
    }

    #[test]
    fn lines_have_values_of_their_own_and_else_the_links() {
        let lines = |lines: &[&str]| {
            let lines = lines.iter().map(|line| line.parse()).collect::<Result<_, _>>()?;
            let (loss, mtu) = (Some("1%".into()), Some(4000));
            LinkOptions { lines, loss, mtu, ..LinkOptions::of("metro") }.resolve()
        };
        let spec = lines(&["rate=100Mb/s", "delay=1ms/2ms mtu=9000", "loss=0 queue=64KiB"]).unwrap();
        let rates: Vec<_> = spec.lines().map(|line| line.a_to_b.rate).collect();
        assert_eq!(rates, [Some(100_000_000), Some(1_000_000_000), Some(1_000_000_000)]);
        assert_eq!(spec.others[0].round_trip(), Duration::from_millis(3));
        assert_eq!(spec.lines().map(|line| line.mtu).collect::<Vec<_>>(), [4000, 9000, 4000]);
        assert_eq!(spec.lines().map(|line| line.b_to_a.loss).collect::<Vec<_>>(), [0.01, 0.01, 0.0]);
        assert_eq!(spec.others[1].a_to_b.queue, Queue::Bytes(65_536));
        // Lines do not lose the same packets.
        assert_ne!(spec.seed, spec.others[0].seed);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LinkSpec>(&text).unwrap(), spec);
        for (wrong, told) in [
            (vec!["rate=100Mb/s", "rate=fast"], "line 2: rate `fast`"),
            (vec!["rate=100Mb/s speed=1"], "unknown field `speed`"),
            (vec!["delay"], "line `delay`: values are words as delay=1ms"),
            (vec!["delay=1ms delay=2ms"], "`delay` is there twice"),
            (vec!["", "", "", "", ""], "4 lines at most"),
        ] {
            let error = lines(&wrong).unwrap_err().to_string();
            assert!(error.contains(told), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn the_queue_holds_a_round_trip_and_a_window_of_the_largest_packets() {
        let queue = |preset: &str, mtu| {
            let options = LinkOptions { mtu: Some(mtu), ..LinkOptions::of(preset) };
            options.resolve().map(|spec| spec.a_to_b.queue)
        };
        assert_eq!(queue("lan", 576), Ok(Queue::Bytes(500_000)));
        assert_eq!(queue("lan", 9000), Ok(Queue::Bytes(500_000)));
        assert_eq!(queue("lan", 65_535), Ok(Queue::Bytes(16 * 65_573)));
        assert_eq!(queue("wan-1400mi", 65_520), Ok(Queue::Bytes(2_875_000)));
    }

    #[test]
    fn a_link_in_a_file_is_the_link_again() {
        let options = LinkOptions { jitter: Some("333ns".into()), ..LinkOptions::of("wan-0.2mi") };
        let spec = options.resolve().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<LinkSpec>(&text).unwrap(), spec);
    }
}
