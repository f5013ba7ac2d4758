//! Compares two runs of the same experiments: the ratio of each figure, and whether it exceeds the
//! noise.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::figure::{Bounded, Figure, Noise, digits, short};
use crate::machine::Machine;
use crate::point::key;
use crate::record::Disturbed;
use crate::results::{Found, Results};
use crate::sample::Better;

/// The verdict on a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The second is worse, by more than the noise.
    Worse,
    /// The second is better, by more than the noise.
    Better,
    /// They differ by more than the noise, in a quantity of which neither direction is better.
    Differs,
    /// The noise explains the difference.
    Noise,
}

/// One quantity at one point, in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub key: String,
    pub quantity: String,
    pub unit: String,
    /// The median of the first run.
    pub first: f64,
    /// The median of the second run.
    pub second: f64,
    /// The second divided by the first, with the bounds from the spread of both.
    pub ratio: Bounded,
    /// The verdict on the ratio.
    pub change: Change,
}

/// One experiment that is in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    pub experiment: String,
    /// Other reasons why the figures may differ: another machine, other settings.
    pub beware: Vec<String>,
    /// All quantities that both runs measured.
    pub lines: Vec<Line>,
    /// Points that only the first has.
    pub only_first: Vec<String>,
    /// Points that only the second has.
    pub only_second: Vec<String>,
}

/// The comparison of two results.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Experiments that are in both.
    pub pairs: Vec<Pair>,
    /// Experiments that only the first has.
    pub only_first: Vec<String>,
    /// Experiments that only the second has.
    pub only_second: Vec<String>,
}

pub fn compare(first: &[Results], second: &[Results]) -> Comparison {
    let name = |results: &Results| results.experiment.name.clone();
    let lacks = |all: &[Results], one: &Results| !all.iter().any(|other| name(other) == name(one));
    let pairs = first.iter().filter_map(|a| second.iter().find(|b| name(a) == name(b)).map(|b| pair(a, b)));
    Comparison {
        pairs: pairs.collect(),
        only_first: first.iter().filter(|one| lacks(second, one)).map(name).collect(),
        only_second: second.iter().filter(|one| lacks(first, one)).map(name).collect(),
    }
}

fn pair(first: &Results, second: &Results) -> Pair {
    let (a, b) = (first.found(), second.found());
    let figures = |found: &Found| found.figures.clone().into_iter().collect::<Vec<(String, Figure)>>();
    let all: Vec<(String, Figure)> = a.iter().chain(&b).flat_map(figures).collect();
    let noise = Noise::of(all.iter().map(|(name, figure)| (name.as_str(), figure)));
    let by_key: BTreeMap<String, &Found> = b.iter().map(|found| (key(&found.coordinates), found)).collect();
    let keys: Vec<String> = a.iter().map(|found| key(&found.coordinates)).collect();
    let mut lines = Vec::new();
    for (key, found) in keys.iter().zip(&a) {
        let Some(other) = by_key.get(key) else { continue };
        for (name, figure) in &found.figures {
            let after = other.figures.get(name).filter(|after| after.unit == figure.unit);
            lines.extend(after.and_then(|after| line(key, name, figure, after, &noise)));
        }
    }
    Pair {
        experiment: first.experiment.name.clone(),
        beware: beware(first, second),
        lines,
        only_first: keys.iter().filter(|key| !by_key.contains_key(*key)).cloned().collect(),
        only_second: by_key.keys().filter(|key| !keys.contains(key)).cloned().collect(),
    }
}

/// One quantity of both; `None` if there is no ratio.
pub(crate) fn line(key: &str, name: &str, first: &Figure, second: &Figure, noise: &Noise) -> Option<Line> {
    let bounded = |figure| Bounded::value(figure, name, noise);
    let ratio = bounded(second).over(bounded(first))?;
    let change = if ratio.least <= 1.0 && ratio.most >= 1.0 {
        Change::Noise
    } else {
        match (first.better, ratio.value > 1.0) {
            (Better::Neither, _) => Change::Differs,
            (Better::Higher, true) | (Better::Lower, false) => Change::Better,
            (Better::Higher, false) | (Better::Lower, true) => Change::Worse,
        }
    };
    Some(Line {
        key: key.to_owned(),
        quantity: name.to_owned(),
        unit: first.unit.clone(),
        first: first.middle,
        second: second.middle,
        ratio,
        change,
    })
}

fn beware(first: &Results, second: &Results) -> Vec<String> {
    let (a, b) = (&first.info, &second.info);
    let mut beware = Vec::new();
    if a.quick != b.quick {
        beware.push("one of them is a short run (--quick)".to_owned());
    }
    if a.text != b.text {
        beware.push("the experiment's file is not the same".to_owned());
    }
    if a.machine.cpu != b.machine.cpu || a.machine.processors != b.machine.processors {
        beware.push(format!("another processor: {} and {}", a.machine.cpu, b.machine.cpu));
    }
    if a.machine.kernel != b.machine.kernel {
        beware.push(format!("another kernel: {} and {}", a.machine.kernel, b.machine.kernel));
    }
    let (one, other) = (&a.machine, &b.machine);
    if one.hypervisor != other.hypervisor {
        let kind = |machine: &Machine| match machine.hypervisor.as_str() {
            "" => "no virtual one".to_owned(),
            "yes" => "a virtual one".to_owned(),
            name => format!("a virtual one ({name})"),
        };
        beware.push(format!("another kind of machine: {} and {}", kind(one), kind(other)));
    }
    if one.governor != other.governor {
        let name = |machine: &Machine| match machine.governor.as_str() {
            "" => "none that is told".to_owned(),
            name => name.to_owned(),
        };
        beware.push(format!("another governor of the clock: {} and {}", name(one), name(other)));
    }
    for (what, one, other) in [
        ("microcode", &one.microcode, &other.microcode),
        ("file system of the results", &one.store, &other.store),
    ] {
        // Older results do not tell it.
        if one != other && !one.is_empty() && !other.is_empty() {
            beware.push(format!("another {what}: {one} and {other}"));
        }
    }
    for (what, one, other) in [
        ("what the processor does against leaks is not the same", &one.mitigations, &other.mitigations),
        ("the kernel's settings are not the same", &one.sysctl, &other.sysctl),
    ] {
        if one != other {
            beware.push(format!("{what}: {}", names_that_differ(one, other)));
        }
    }
    if a.pinning != b.pinning {
        beware.push("run on other processors".to_owned());
    }
    if let (Some(one), Some(other)) = (awake(first), awake(second))
        && one != other
    {
        beware.push(format!("processors were {one} in the first and {other} in the second"));
    }
    for (words, results) in [("the first", first), ("the second", second)] {
        let disturbed = Disturbed::of(&results.records);
        if disturbed.by_others + disturbed.by_hypervisor + disturbed.by_link > 0 {
            beware.push(format!("{words}: {}", uncapital(&disturbed.words())));
        }
    }
    if let (Some(a), Some(b)) = (line_ns(first), line_ns(second)) {
        if a > 2 * b || b > 2 * a {
            beware.push(format!(
                "a cache line took {a} ns from core to core in the first and {b} ns in the second"
            ));
        }
    }
    beware
}

/// The names whose values differ, or that only one of the maps has.
fn names_that_differ(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> String {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ: Vec<&str> =
        names.into_iter().filter(|name| one.get(*name) != other.get(*name)).map(String::as_str).collect();
    differ.join(", ")
}

/// Whether the processors were kept awake during the measurement; `None` for a result without
/// figures.
fn awake(results: &Results) -> Option<&'static str> {
    let measured = || results.records.iter().filter(|record| record.sample().is_some());
    let awake = measured().filter(|record| record.load.awake).count();
    match (awake, measured().count()) {
        (_, 0) => None,
        (0, _) => Some("not kept awake"),
        (some, all) if some < all => Some("kept awake for a part of the runs"),
        _ => Some("kept awake"),
    }
}

fn uncapital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The median of the cache-line transfer time over all runs, nanoseconds.
pub(crate) fn line_ns(results: &Results) -> Option<u32> {
    let mut all: Vec<u32> = results.records.iter().filter_map(|record| record.load.cache_line_ns).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

impl Comparison {
    /// The comparison as text: differences above the noise, or all with `all`.
    pub fn text(&self, all: bool) -> String {
        let mut text = String::new();
        for pair in &self.pairs {
            let real: Vec<&Line> = pair.lines.iter().filter(|line| line.change != Change::Noise).collect();
            text += &format!(
                "{}: {} of {} figures differ by more than noise\n",
                pair.experiment,
                real.len(),
                pair.lines.len()
            );
            for beware in &pair.beware {
                text += &format!("  beware: {beware}\n");
            }
            let mut shown: Vec<&Line> = if all { pair.lines.iter().collect() } else { real };
            if !all {
                // The largest deteriorations first.
                let far = |line: &Line| -line.ratio.value.ln().abs();
                shown.sort_by(|a, b| a.change.cmp(&b.change).then(far(a).total_cmp(&far(b))));
            }
            for line in shown {
                let change = match line.change {
                    Change::Worse => "worse",
                    Change::Better => "better",
                    Change::Differs => "differs",
                    Change::Noise => "cannot be told",
                };
                let assumed = if line.ratio.assumed { " (one round: 5 % assumed)" } else { "" };
                text += &format!(
                    "  {:14} {:>6} times ({} to {})  {}: {} to {}{}  {}{assumed}\n",
                    change,
                    digits(line.ratio.value, 3),
                    digits(line.ratio.least, 3),
                    digits(line.ratio.most, 3),
                    line.quantity,
                    short(line.first),
                    short(line.second),
                    if line.unit.is_empty() { String::new() } else { format!(" {}", line.unit) },
                    line.key,
                );
            }
            for (words, keys) in [("first", &pair.only_first), ("second", &pair.only_second)] {
                if !keys.is_empty() {
                    text += &format!("  only in the {words}: {} points\n", keys.len());
                }
            }
        }
        for (words, names) in [("first", &self.only_first), ("second", &self.only_second)] {
            if !names.is_empty() {
                text += &format!("only in the {words}: {}\n", names.join(", "));
            }
        }
        text
    }
}
