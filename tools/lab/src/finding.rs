//! Judges an experiment's claims against its figures, and states each verdict in a sentence. The
//! sentence contains the numbers that decided; all sentences are generated, none is written for one
//! claim.
//!
//! Disturbed rounds decide nothing. At most one verdict in 20 is wrong. A claim "holds at every
//! point" if it holds at each point by that point's own bounds: for a wrong verdict, the point at
//! which the claim is false must mislead. A claim "does not hold at some point" uses stricter
//! bounds, the more points could mislead. For a claim about at least one point the two are
//! exchanged.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::experiment::{Class, Experiment, Finding, Over, capital, fits};
use crate::figure::{Bounded, digits, number, short};
use crate::point::{Value, key};
use crate::record::Outcome;
use crate::results::{Found, Results};
use crate::spread::{Spread, Taken};

/// The maximum probability that a verdict is wrong.
pub const ERROR: f64 = 0.05;
/// A claim nearly holds if its limit is missed by at most this part of the limit.
pub const NEAR: f64 = 0.05;

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Holds,
    /// It does not hold here.
    DoesNotHold,
    /// Its limit is missed by at most [`NEAR`], if at all: the bounds reach no further beyond it.
    NearlyHolds,
    /// The bounds span the limit, or points that count failed or were disturbed in every round.
    CannotBeTold,
    /// No point of the claim was measured.
    NotMeasured,
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NearlyHolds => "nearly holds",
            Self::CannotBeTold => "cannot be told",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A claim's result at one point.
#[derive(Clone, Debug, Serialize)]
pub struct AtPoint {
    pub key: String,
    /// The point in words: only the coordinates that differ between points.
    pub place: String,
    /// The judged figure, with the bounds that decided. The bounds for "does not hold" are
    /// stricter, the more points the claim covers.
    pub figure: Bounded,
    /// The judged figure in each round.
    pub rounds: Vec<f64>,
    pub verdict: Verdict,
}

/// A claim with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    pub source: String,
    /// The claim, a sentence.
    pub claim: String,
    /// Whose claim it is.
    pub class: Class,
    pub verdict: Verdict,
    /// The reason, with the numbers.
    pub sentence: String,
    /// The result at each point.
    pub points: Vec<AtPoint>,
}

/// Judges all claims of an experiment.
pub fn judge(results: &Results) -> Vec<Judged> {
    let (all, found) = (results.found(), results.undisturbed());
    let spread = Spread::of(
        found.iter().flat_map(|found| found.figures.iter().map(|(name, figure)| (name.as_str(), figure))),
    );
    let (failed, missing) = results.lost();
    let failures = results.records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_)));
    let failures = failures.map(|record| record.key.as_str()).collect();
    let experiment = &results.experiment;
    let judge = Judge { experiment, all: &all, found: &found, failed, missing, failures, spread };
    results.experiment.finding.iter().map(|finding| judge.one(finding)).collect()
}

struct Judge<'a> {
    experiment: &'a Experiment,
    // All measured points.
    all: &'a [Found],
    // Those with an undisturbed round, with the figures of undisturbed rounds.
    found: &'a [Found],
    // Points without a figure.
    failed: Vec<Found>,
    missing: Vec<Found>,
    // Keys of points that failed in at least one round.
    failures: BTreeSet<&'a str>,
    spread: Spread,
}

/// The number of points of a claim that cannot be judged, by reason.
struct Lost {
    /// They, or the points they are compared with, failed.
    failed: usize,
    /// They, or the points they are compared with, were disturbed in every round.
    disturbed: usize,
    /// The machine lacks a requirement of theirs.
    missing: usize,
    /// The points they are compared with were not measured.
    alone: usize,
}

impl Lost {
    /// The number of points that might have spoken against the claim.
    fn silent(&self) -> usize {
        self.failed + self.disturbed
    }
}

impl Judge<'_> {
    fn one(&self, finding: &Finding) -> Judged {
        let mut points: Vec<(&Found, Taken)> = Vec::new();
        let mut disturbed_rounds = 0;
        let those = |all: &[Found]| all.iter().filter(|found| speaks_of(finding, found)).count();
        let mut lost =
            Lost { failed: those(&self.failed), disturbed: 0, missing: those(&self.missing), alone: 0 };
        for found in self.all.iter().filter(|found| speaks_of(finding, found)) {
            let whole = self.figure(finding, found, self.all);
            let undisturbed = partner(self.found, found, &BTreeMap::new());
            match (undisturbed.and_then(|found| self.figure(finding, found, self.found)), whole) {
                (Some(taken), whole) => {
                    let rounds = whole.map_or(0, |whole| whole.rounds.len());
                    disturbed_rounds += rounds.saturating_sub(taken.rounds.len());
                    points.push((found, taken));
                }
                (None, Some(_)) => lost.disturbed += 1,
                (None, None) if self.comparison_failed(finding, found) => lost.failed += 1,
                (None, None) => lost.alone += 1,
            }
        }
        let test = Test { finding, points: points.len() };
        let at_points: Vec<AtPoint> = points
            .iter()
            .zip(self.places(&points))
            .filter_map(|((found, taken), place)| {
                let (figure, verdict) = test.at(taken)?;
                let rounds = taken.rounds.values().copied().collect();
                Some(AtPoint { key: key(&found.coordinates), place, figure, rounds, verdict })
            })
            .collect();
        let taken: Vec<Taken> = points.into_iter().map(|(_, taken)| taken).collect();
        let most = test.most_fail(&taken);
        let mean = Taken::mean(&taken).and_then(|mean| Test { finding, points: 1 }.at(&mean));
        let (verdict, mut sentence) = self.all(finding, &at_points, mean, most, &lost);
        match disturbed_rounds {
            0 => {}
            1 => sentence += " 1 disturbed round does not count.",
            rounds => sentence += &format!(" {rounds} disturbed rounds do not count."),
        }
        Judged {
            source: finding.source.clone(),
            claim: finding.claim.clone(),
            class: self.experiment.class(finding),
            verdict,
            sentence,
            points: at_points,
        }
    }

    /// Whether the point compared with `found` failed, or each failed in the rounds that the other
    /// has.
    fn comparison_failed(&self, finding: &Finding, found: &Found) -> bool {
        let to = finding.to.clone().unwrap_or_default();
        let against = finding.against.clone().unwrap_or_default();
        let mut both = against.clone();
        both.extend(to.clone());
        let fails = |point: &Found| self.failures.contains(key(&point.coordinates).as_str());
        let others = [to, against, both].into_iter().filter(|differs| !differs.is_empty());
        others.into_iter().any(|differs| {
            partner(&self.failed, found, &differs).is_some()
                || partner(self.all, found, &differs).is_some_and(|other| {
                    rounds_apart(found, other, finding) && (fails(found) || fails(other))
                })
        })
    }

    /// The judged figure at a point of `among`, in each round.
    fn figure(&self, finding: &Finding, found: &Found, among: &[Found]) -> Option<Taken> {
        if !is_ratio(finding) {
            let figure = found.figures.get(&finding.quantity)?;
            return Some(Taken::new(figure, self.spread.alone(&finding.quantity)));
        }
        let mine = self.ratio(finding, found, among)?;
        match &finding.against {
            None => Some(mine),
            Some(against) => mine.over(&self.ratio(finding, partner(among, found, against)?, among)?),
        }
    }

    fn ratio(&self, finding: &Finding, found: &Found, among: &[Found]) -> Option<Taken> {
        let taken = |found: &Found, quantity: &str| {
            let figure = found.figures.get(quantity)?;
            Some(Taken::new(figure, self.spread.apart(quantity)))
        };
        let other = match &finding.to {
            Some(to) => partner(among, found, to)?,
            None => found,
        };
        let by = taken(other, finding.to_quantity.as_ref().unwrap_or(&finding.quantity))?;
        taken(found, &finding.quantity)?.over(&by)
    }

    /// The place of each point: its coordinates on the axes on which the points differ.
    fn places(&self, points: &[(&Found, Taken)]) -> Vec<String> {
        let differs = |axis: &str| {
            let mut values = points.iter().filter_map(|(found, ..)| found.at(axis));
            let first = values.next();
            values.any(|value| first.is_some_and(|first| !first.same(value)))
        };
        let axes: Vec<&str> =
            self.experiment.axis.iter().map(|axis| axis.name.as_str()).filter(|axis| differs(axis)).collect();
        let place = |found: &Found| {
            let named =
                axes.iter().filter_map(|axis| found.at(axis).map(|value| self.experiment.place(axis, value)));
            named.collect::<Vec<_>>().join(", ")
        };
        points.iter().map(|(found, ..)| place(found)).collect()
    }

    fn all(
        &self,
        finding: &Finding,
        points: &[AtPoint],
        mean: Option<(Bounded, Verdict)>,
        most: Option<Bounded>,
        lost: &Lost,
    ) -> (Verdict, String) {
        let subject = self.subject(finding);
        if points.is_empty() && lost.disturbed > 0 {
            let points = if lost.disturbed == 1 { "point" } else { "points" };
            let text = format!("{subject}: all rounds of {} {points} were disturbed.", lost.disturbed);
            return (Verdict::CannotBeTold, text);
        }
        if points.is_empty() {
            let why = match lost {
                Lost { failed: 1, missing: 0, alone: 0, .. } => "it failed at the only point".to_owned(),
                Lost { failed: 1.., missing: 0, alone: 0, .. } => {
                    format!("it failed at all {} points", lost.failed)
                }
                Lost { failed: 1.., .. } => {
                    let all = lost.failed + lost.missing + lost.alone;
                    format!("it failed at {} of {all} points, and the others were not measured", lost.failed)
                }
                Lost { alone: 1.., .. } => "what it is compared with was not measured".to_owned(),
                Lost { .. } => "no such point was measured".to_owned(),
            };
            return (Verdict::NotMeasured, format!("{subject}: {why}."));
        }
        let count = |wanted: Verdict| points.iter().filter(|point| point.verdict == wanted).count();
        let (good, bad) = (count(Verdict::Holds), count(Verdict::DoesNotHold));
        let near = count(Verdict::NearlyHolds);
        let verdict = match finding.over {
            Over::Every if bad > 0 || most.is_some() => Verdict::DoesNotHold,
            // A point without a figure might have contradicted the claim.
            Over::Every if good == points.len() && lost.silent() == 0 => Verdict::Holds,
            Over::Every if good + near == points.len() && lost.silent() == 0 => Verdict::NearlyHolds,
            Over::Some if good > 0 => Verdict::Holds,
            Over::Some if bad == points.len() && lost.silent() == 0 => Verdict::DoesNotHold,
            Over::Every | Over::Some => Verdict::CannotBeTold,
            Over::Mean if lost.silent() > 0 => Verdict::CannotBeTold,
            Over::Mean => mean.map_or(Verdict::CannotBeTold, |(_, verdict)| verdict),
        };
        let mut text = match (points, finding.over, mean) {
            ([only], ..) => format!("{subject} {}", self.told(finding, &only.figure)),
            (_, Over::Mean, Some((mean, _))) => {
                format!(
                    "{subject} {} in the geometric mean of {} points",
                    self.told(finding, &mean),
                    points.len()
                )
            }
            _ => format!("{subject} {} at {} points", self.range(finding, points), points.len()),
        };
        text += &format!("; {} is claimed", self.limits(finding));
        if let Some(most) = most.filter(|_| bad < points.len()) {
            let number = self.writer(finding);
            let (least, most) = (number(most.least), number(most.most));
            text +=
                &format!("; it does not hold at most of them, which are in their middle {least} to {most}");
        }
        let decided: Vec<&Bounded> = match (finding.over, &mean) {
            (Over::Mean, Some((mean, _))) => vec![mean],
            _ => points.iter().map(|point| &point.figure).collect(),
        };
        if verdict == Verdict::NearlyHolds {
            let missed = decided.into_iter().map(|figure| missed(finding, figure)).fold(0.0, f64::max);
            text += &format!("; if it is missed, then by {} % at most", percent_up(missed));
        }
        if points.len() > 1 {
            text += &self.exceptions(finding, points, verdict);
        }
        text.push('.');
        if points.iter().any(|point| point.figure.assumed) {
            text += " Of one round no spread is known; 5 % is assumed.";
        }
        match lost.failed {
            0 => {}
            1 => text += " 1 more failed and is not in this.",
            failed => text += &format!(" {failed} more failed and are not in this."),
        }
        match lost.disturbed {
            0 => {}
            1 => text += " 1 more was disturbed in every round and is not in this.",
            more => text += &format!(" {more} more were disturbed in every round and are not in this."),
        }
        if lost.missing > 0 {
            text += &format!(" {} more could not be measured here.", lost.missing);
        }
        if lost.alone > 0 {
            text += &format!(" {} more could not be compared.", lost.alone);
        }
        (verdict, text)
    }

    /// The points at which the claim holds, or does not, if the points disagree.
    fn exceptions(&self, finding: &Finding, points: &[AtPoint], verdict: Verdict) -> String {
        const MOST: usize = 4;
        let number = self.writer(finding);
        // For a claim about every point, name the contradicting points; for one about some point,
        // the supporting ones.
        let told: &[(Verdict, &str)] = match (finding.over, verdict) {
            (Over::Some, Verdict::Holds) => &[(Verdict::Holds, "it holds at")],
            (Over::Mean, _) => &[(Verdict::DoesNotHold, "by itself it does not hold at")],
            (_, Verdict::Holds) => &[],
            (_, Verdict::NearlyHolds) => &[(Verdict::NearlyHolds, "the bounds reach beyond the limit at")],
            _ => &[
                (Verdict::DoesNotHold, "it does not hold at"),
                (Verdict::CannotBeTold, "the spread reaches over the limit at"),
                (Verdict::NearlyHolds, "it is missed by a few percent, if at all, at"),
            ],
        };
        let mut text = String::new();
        for (wanted, words) in told {
            let those: Vec<&AtPoint> = points.iter().filter(|point| point.verdict == *wanted).collect();
            if those.is_empty() {
                continue;
            }
            if those.len() == points.len() {
                text += &format!("; {words} all of them");
                continue;
            }
            let named = those.iter().take(MOST).map(|point| {
                format!("{} ({} to {})", point.place, number(point.figure.least), number(point.figure.most))
            });
            text += &format!("; {words} {}", named.collect::<Vec<_>>().join("; "));
            if those.len() > MOST {
                text += &format!("; and {} more", those.len() - MOST);
            }
        }
        text
    }

    fn subject(&self, finding: &Finding) -> String {
        let of = self.selection(&finding.of);
        let quantity = self.experiment.quantity_name(&finding.quantity);
        let mut subject = if of.is_empty() { capital(&quantity) } else { format!("{of}: {quantity}") };
        if let Some(against) = &finding.against {
            subject += &format!(", compared with the same at {}:", self.place(against));
        }
        subject
    }

    fn selection(&self, of: &crate::experiment::Selection) -> String {
        let named = of.iter().filter_map(|(axis, choice)| match choice {
            crate::experiment::Choice::One(value) => Some(self.experiment.place(axis, value)),
            _ => None,
        });
        named.collect::<Vec<_>>().join(", ")
    }

    fn place(&self, coordinates: &BTreeMap<String, Value>) -> String {
        let named = coordinates.iter().map(|(axis, value)| self.experiment.place(axis, value));
        named.collect::<Vec<_>>().join(", ")
    }

    fn unit(&self, quantity: &str) -> String {
        let unit =
            self.all.iter().find_map(|found| found.figures.get(quantity).map(|figure| figure.unit.clone()));
        unit.filter(|unit| !unit.is_empty()).map(|unit| format!(" {unit}")).unwrap_or_default()
    }

    /// The words after the number: the unit, or the divisor of a ratio.
    fn behind(&self, finding: &Finding) -> String {
        let with = match (&finding.to, &finding.to_quantity) {
            (None, None) => return self.unit(&finding.quantity),
            (Some(to), None) => self.place(to),
            (to, Some(quantity)) => {
                let quantity = self.experiment.quantity_name(quantity);
                let of = to.as_ref().map(|to| format!(" of {}", self.place(to))).unwrap_or_default();
                return format!(" times {quantity}{of}");
            }
        };
        format!(" times that of {with}")
    }

    fn told(&self, finding: &Finding, figure: &Bounded) -> String {
        let number = self.writer(finding);
        format!(
            "is {}{} ({} to {})",
            number(figure.value),
            self.behind(finding),
            number(figure.least),
            number(figure.most)
        )
    }

    fn range(&self, finding: &Finding, points: &[AtPoint]) -> String {
        let number = self.writer(finding);
        let values = points.iter().map(|point| point.figure.value);
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        let place = |wanted: f64| {
            let at = points.iter().find(|point| point.figure.value == wanted);
            at.map(|point| point.place.clone()).unwrap_or_default()
        };
        let (unit, times) = match is_ratio(finding) {
            true => (String::new(), self.behind(finding)),
            false => (self.unit(&finding.quantity), String::new()),
        };
        format!(
            "is {}{unit} ({}) to {}{unit} ({}){times}",
            number(least),
            place(least),
            number(most),
            place(most)
        )
    }

    fn limits(&self, finding: &Finding) -> String {
        let number = self.writer(finding);
        let unit = if is_ratio(finding) { String::new() } else { self.unit(&finding.quantity) };
        match (finding.at_least, finding.at_most) {
            (Some(least), Some(most)) => format!("{} to {}{unit}", number(least), number(most)),
            (Some(least), None) => format!("{}{unit} or more", number(least)),
            (None, Some(most)) => format!("{}{unit} or less", number(most)),
            (None, None) => String::new(),
        }
    }

    fn writer(&self, finding: &Finding) -> fn(f64) -> String {
        if is_ratio(finding) { times } else { short }
    }
}

/// Whether the claim covers this point.
fn speaks_of(finding: &Finding, found: &Found) -> bool {
    // Without a differing coordinate the point would be compared with itself.
    let moved = |to: &Option<BTreeMap<String, Value>>| {
        to.as_ref()
            .is_none_or(|to| to.iter().any(|(axis, value)| found.at(axis).is_none_or(|at| !at.same(value))))
    };
    fits(&finding.at, &found.coordinates)
        && fits(&finding.of, &found.coordinates)
        && (finding.to_quantity.is_some() || moved(&finding.to))
        && moved(&finding.against)
}

/// The point of `all` that differs from `found` in these coordinates only.
fn partner<'a>(all: &'a [Found], found: &Found, differs: &BTreeMap<String, Value>) -> Option<&'a Found> {
    all.iter().find(|other| {
        other.coordinates.len() == found.coordinates.len()
            && other.coordinates.iter().all(|(axis, value)| {
                let wanted = differs.get(axis).or_else(|| found.at(axis));
                wanted.is_some_and(|wanted| wanted.same(value))
            })
    })
}

fn is_ratio(finding: &Finding) -> bool {
    finding.to.is_some() || finding.to_quantity.is_some()
}

/// A ratio as text.
fn times(value: f64) -> String {
    if value.abs() >= 1e4 { short(value) } else { digits(value, 3) }
}

/// The test of a claim at each of a number of points.
struct Test<'a> {
    finding: &'a Finding,
    points: usize,
}

impl Test<'_> {
    /// The error probability of each bound. Any point may mislead at either limit, and so may the
    /// median of the points.
    fn error(&self) -> f64 {
        let most = usize::from(self.asks_most());
        ERROR / number(((self.points + most) * self.limits()).max(1))
    }

    /// The number of limits of the claim, 1 or 2.
    fn limits(&self) -> usize {
        [self.finding.at_least, self.finding.at_most].into_iter().flatten().count()
    }

    fn asks_most(&self) -> bool {
        self.finding.over == Over::Every && self.points >= 3
    }

    /// The bounds of the median point, if they show that a claim about every point does not hold at
    /// most points. Suppose that the claim holds at each point and that points err independently.
    /// Then more than half of them lie beyond the limit in at most every other round.
    fn most_fail(&self, all: &[Taken]) -> Option<Bounded> {
        if !self.asks_most() {
            return None;
        }
        let (low, high) = limits_of(self.finding);
        let bounded = |upper| Taken::middle(all, upper).and_then(|middle| middle.bounded(self.error()));
        let below = bounded(true).filter(|middle| middle.most < low);
        below.or_else(|| bounded(false).filter(|middle| middle.least > high))
    }

    /// The verdict at a point and the bounds that support it. `None` without a round.
    fn at(&self, taken: &Taken) -> Option<(Bounded, Verdict)> {
        let alone = taken.bounded(ERROR)?;
        let one = || taken.bounded(ERROR / number(self.limits().max(1)));
        let (holds, fails) = match self.finding.over {
            Over::Every => (alone, taken.bounded(self.error())?),
            Over::Some => (taken.bounded(self.error())?, one()?),
            Over::Mean => (alone, one()?),
        };
        let (low, high) = limits_of(self.finding);
        Some(if holds.least >= low && holds.most <= high {
            (holds, Verdict::Holds)
        } else if fails.most < low || fails.least > high {
            (fails, Verdict::DoesNotHold)
        } else if self.finding.over != Over::Some && missed(self.finding, &alone) <= NEAR {
            (alone, Verdict::NearlyHolds)
        } else if self.finding.over == Over::Some {
            (holds, Verdict::CannotBeTold)
        } else {
            // The bounds that span a limit.
            let clear = alone.most < low || alone.least > high;
            (if clear { fails } else { alone }, Verdict::CannotBeTold)
        })
    }
}

fn limits_of(finding: &Finding) -> (f64, f64) {
    (finding.at_least.unwrap_or(f64::NEG_INFINITY), finding.at_most.unwrap_or(f64::INFINITY))
}

/// The maximum distance of the bounds beyond a limit, as a part of that limit.
fn missed(finding: &Finding, figure: &Bounded) -> f64 {
    let (low, high) = limits_of(finding);
    let part = |beyond: f64, limit: f64| match beyond {
        // No limit is crossed.
        ..=0.0 => 0.0,
        _ if limit > 0.0 => beyond / limit,
        _ => f64::INFINITY,
    };
    part(low - figure.least, low).max(part(figure.most - high, high))
}

/// Whole percent, rounded up, at least 1.
fn percent_up(part: f64) -> f64 {
    (part * 100.0 - 1e-9).ceil().max(1.0)
}

/// Whether both points have figures, but no round in common.
fn rounds_apart(found: &Found, other: &Found, finding: &Finding) -> bool {
    let of = |quantity: &str, point: &Found| point.figures.get(quantity).map(|figure| figure.numbers.clone());
    let by = finding.to_quantity.as_ref().unwrap_or(&finding.quantity);
    let numbers = of(&finding.quantity, found).zip(of(by, other));
    numbers.is_some_and(|(mine, theirs)| mine.iter().all(|round| !theirs.contains(round)))
}
