//! Bounds of numbers computed in each round. Ratios are taken within a round, so that a slow round
//! does not blur them. With enough rounds the bounds are those of the median, which assume no
//! distribution of the noise. With fewer they use Student's distribution and the noise of all
//! points of the experiment. Pure arithmetic.

use std::collections::BTreeMap;

use crate::chance::{left_out, student};
use crate::figure::{ASSUMED, Bounded, Figure, median, number};

/// The weight of the noise of all points, as a number of additional rounds of a point.
const SHARED: usize = 4;
/// A point whose variance exceeds the usual one by this factor has its own noise. F of 2 and 4
/// degrees of freedom exceeds it once in 20 times.
const NOISIER: f64 = 6.94;
/// The minimum number of rounds for bounds of the median that are wrong at most once in 20 times.
const FEWEST: usize = 5;
/// The minimum number of points for estimating a common factor of each round.
const FEW: usize = 4;
/// A number per round, by round number.
pub type Rounds = BTreeMap<u32, f64>;

/// The usual variance of the logarithm of one round, by quantity. It is the median over all points
/// with more than one round, so that a few noisy points do not widen the bounds of others.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    alone: BTreeMap<String, f64>,
    apart: BTreeMap<String, f64>,
}

impl Spread {
    /// The spread of an experiment, from all its figures by quantity.
    pub fn of<'a>(figures: impl IntoIterator<Item = (&'a str, &'a Figure)>) -> Self {
        let mut by_quantity: BTreeMap<&str, Vec<Rounds>> = BTreeMap::new();
        for (name, figure) in figures {
            if figure.rounds.len() >= 2 && figure.least > 0.0 {
                by_quantity.entry(name).or_default().push(centred(&logs(&figure.by_round())));
            }
        }
        let mut spread = Self::default();
        for (name, mut points) in by_quantity {
            spread.alone.extend(usual(&points).map(|variance| (name.to_owned(), variance)));
            if points.len() >= FEW {
                let common = common(&points);
                for point in &mut points {
                    let apart = point
                        .iter()
                        .map(|(round, log)| (*round, log - common.get(round).copied().unwrap_or(0.0)));
                    *point = centred(&apart.collect());
                }
            }
            spread.apart.extend(usual(&points).map(|variance| (name.to_owned(), variance)));
        }
        spread
    }

    /// The variance of the quantity by itself.
    pub fn alone(&self, quantity: &str) -> Option<f64> {
        self.alone.get(quantity).copied()
    }

    /// The quantity's contribution to the variance of a ratio within one round.
    pub fn apart(&self, quantity: &str) -> Option<f64> {
        self.apart.get(quantity).copied()
    }
}

fn logs(rounds: &Rounds) -> Rounds {
    rounds.iter().map(|(round, value)| (*round, value.ln())).collect()
}

fn mean(values: &Rounds) -> f64 {
    values.values().sum::<f64>() / number(values.len().max(1))
}

fn centred(rounds: &Rounds) -> Rounds {
    let mean = mean(rounds);
    rounds.iter().map(|(round, value)| (*round, value - mean)).collect()
}

/// The common factor of each round: the median of its points.
fn common(points: &[Rounds]) -> Rounds {
    let mut by_round: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (round, value) in points.iter().flatten() {
        by_round.entry(*round).or_default().push(*value);
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        median(&values).unwrap_or(0.0)
    };
    by_round.into_iter().map(|(round, values)| (round, middle(values))).collect()
}

/// The median of the points' variances. The median of a variance of few rounds lies below its mean;
/// the result is corrected for that (Wilson and Hilferty).
fn usual(points: &[Rounds]) -> Option<f64> {
    let mut variances: Vec<f64> = points
        .iter()
        .map(|point| {
            let freedom = number(point.len() - 1);
            let below = (1.0 - 2.0 / (9.0 * freedom)).powi(3);
            variance(point) / below
        })
        .collect();
    variances.sort_by(f64::total_cmp);
    median(&variances)
}

/// The variance of two or more values.
fn variance(values: &Rounds) -> f64 {
    let mean = mean(values);
    values.values().map(|value| (value - mean).powi(2)).sum::<f64>() / number(values.len() - 1)
}

/// A number computed in each round from one or more figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The value of each round.
    pub rounds: Rounds,
    /// The usual variance of its logarithm, if known.
    usual: Option<f64>,
    /// The number of figures that it was computed from.
    figures: usize,
}

impl Taken {
    /// A single figure; `usual` is the variance of its logarithm.
    pub fn new(figure: &Figure, usual: Option<f64>) -> Self {
        Self { rounds: figure.by_round(), usual, figures: 1 }
    }

    /// `self` divided by `other`, round by round; `None` if they have no round in common, or
    /// `other` is not above zero.
    pub fn over(&self, other: &Self) -> Option<Self> {
        let mut rounds = Rounds::new();
        for (round, value) in &self.rounds {
            match other.rounds.get(round) {
                Some(by) if *by > 0.0 => _ = rounds.insert(*round, value / by),
                Some(_) => return None,
                None => {}
            }
        }
        let usual = self.usual.zip(other.usual).map(|(mine, theirs)| mine + theirs);
        (!rounds.is_empty()).then_some(Self { rounds, usual, figures: self.figures + other.figures })
    }

    /// The geometric mean of several, over the rounds that all have. `None` if there are none, or a
    /// value is not above zero.
    pub fn mean(all: &[Self]) -> Option<Self> {
        let first = all.first()?;
        let mut rounds = Rounds::new();
        for round in first.rounds.keys() {
            let values: Option<Vec<f64>> = all.iter().map(|one| one.rounds.get(round).copied()).collect();
            let Some(values) = values else { continue };
            if values.iter().any(|value| *value <= 0.0) {
                return None;
            }
            let sum: f64 = values.iter().map(|value| value.ln()).sum();
            rounds.insert(*round, (sum / number(values.len())).exp());
        }
        let usual = first.usual.map(|usual| usual / number(all.len()));
        (!rounds.is_empty()).then_some(Self { rounds, usual, figures: first.figures })
    }

    /// The median of several, over the rounds that all have. For an even number it is the upper or
    /// the lower of the two middle values. `None` if there are none.
    pub fn middle(all: &[Self], upper: bool) -> Option<Self> {
        let first = all.first()?;
        let mut rounds = Rounds::new();
        for round in first.rounds.keys() {
            let values: Option<Vec<f64>> = all.iter().map(|one| one.rounds.get(round).copied()).collect();
            let Some(mut values) = values else { continue };
            values.sort_by(f64::total_cmp);
            let at = if upper { values.len() / 2 } else { (values.len() - 1) / 2 };
            rounds.extend(values.get(at).map(|value| (*round, *value)));
        }
        // The variance of a median is π/2 times that of the mean.
        let usual = first.usual.map(|usual| usual * std::f64::consts::FRAC_PI_2 / number(all.len()));
        (!rounds.is_empty()).then_some(Self { rounds, usual, figures: first.figures })
    }

    /// The median of the rounds, and its bounds, each wrong with probability `error` or less.
    /// `None` without a round.
    ///
    /// With enough rounds for `error`, the bounds are the minimum and maximum of the rounds,
    /// possibly without the outermost ones. The median of more rounds lies between them, whatever
    /// the distribution. With fewer rounds, the bounds are those of the mean by Student's
    /// distribution, extended to contain every round.
    pub fn bounded(&self, error: f64) -> Option<Bounded> {
        let mut sorted: Vec<f64> = self.rounds.values().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let (value, least, most) = (median(&sorted)?, *sorted.first()?, *sorted.last()?);
        if let Some(out) = left_out(sorted.len(), error) {
            let (least, most) = (*sorted.get(out)?, *sorted.get(sorted.len() - 1 - out)?);
            return Some(Bounded { value, least, most, assumed: false });
        }
        // Values that may be negative have no logarithm.
        let growing = least > 0.0;
        let rounds = if growing { logs(&self.rounds) } else { self.rounds.clone() };
        let (away, assumed) = self.away(&rounds, error, if growing { 1.0 } else { value.abs() });
        let middle = mean(&rounds);
        let back = |value: f64| if growing { value.exp() } else { value };
        Some(Bounded {
            value,
            least: least.min(back(middle - away)),
            most: most.max(back(middle + away)),
            assumed,
        })
    }

    /// The maximum distance between the mean of `rounds` and the mean of more rounds, by Student's
    /// distribution; and whether a spread was assumed.
    fn away(&self, rounds: &Rounds, error: f64, size: f64) -> (f64, bool) {
        let (count, own) = (number(rounds.len()), rounds.len() - 1);
        let usual = self.usual.map(|usual| usual * size * size);
        let (variance, freedom) = match (usual, rounds.len()) {
            (None, 1) => return (ASSUMED * number(self.figures).sqrt() * size, true),
            (None, _) => (variance(rounds), own),
            (Some(usual), 1) => (usual, SHARED),
            (Some(usual), _) => {
                let seen = variance(rounds);
                let together = (number(SHARED) * usual + number(own) * seen) / number(SHARED + own);
                if seen > NOISIER * usual { (seen, own) } else { (together.max(seen), SHARED + own) }
            }
        };
        // So few rounds do not show whether the noise is normal, nor whether it equals that of the
        // other points.
        let error = if rounds.len() < FEWEST { error / 2.0 } else { error };
        (student(error, freedom) * (variance / count).sqrt(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::figure;

    fn bounds(rounds: &[f64], usual: Option<f64>) -> Bounded {
        Taken::new(&figure(rounds), usual).bounded(0.05).unwrap()
    }

    #[test]
    fn what_makes_a_whole_round_slower_does_not_blur_a_ratio_within_it() {
        let (a, b) = (figure(&[200.0, 100.0, 51.0]), figure(&[100.0, 51.0, 25.0]));
        let other = [figure(&[10.0, 5.1, 2.5]), figure(&[1.0, 0.5, 0.255])];
        let all = [&a, &b, &other[0], &other[1]];
        let spread = Spread::of(all.into_iter().map(|figure| ("iops", figure)));
        assert!(spread.alone("iops").unwrap() > 100.0 * spread.apart("iops").unwrap());
        let taken = |figure| Taken::new(figure, spread.apart("iops"));
        let ratio = taken(&a).over(&taken(&b)).unwrap().bounded(0.05).unwrap();
        assert!((ratio.value - 2.0).abs() < 1e-9 && ratio.least > 1.9 && ratio.most < 2.15, "{ratio:?}");
    }

    #[test]
    fn the_bounds_of_many_rounds_ignore_an_outlier() {
        let eight = [1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 40.0];
        let taken = Taken::new(&figure(&eight), Some(1.0));
        let one = taken.bounded(0.05).unwrap();
        assert!((one.value - 1.045).abs() < 1e-9 && (one.least, one.most) == (1.02, 1.07), "{one:?}");
        // Stricter than 1/256: the bounds are those of few rounds.
        let (every, sure) = (taken.bounded(0.004).unwrap(), taken.bounded(0.001).unwrap());
        assert_eq!((every.least, every.most), (1.01, 40.0));
        assert!(sure.least < 1.0 && sure.most >= 40.0, "{sure:?}");
        // Four rounds are too few, even with all of them.
        let four = Taken::new(&figure(&eight[..4]), Some(1e-9)).bounded(0.05).unwrap();
        assert!(four.least <= 1.01 && four.most >= 1.04 && four.most < 1.05, "{four:?}");
    }

    /// Few rounds that agree by chance do not narrow the bounds.
    #[test]
    fn the_bounds_of_few_rounds_contain_every_round() {
        let wild = bounds(&[100.0, 110.0, 300.0], Some(1e-4));
        assert!(wild.value == 110.0 && wild.least < 100.0 && wild.most >= 300.0, "{wild:?}");
        // 10 % of noise elsewhere: 2.447 × 8.2 % / √3, with 4 shared degrees of freedom and 2 own
        // ones.
        let calm = bounds(&[100.0, 100.0, 100.0], Some(0.01));
        assert!(
            (calm.most / 100.0 - 1.1223).abs() < 1e-3 && (calm.least * calm.most - 1e4).abs() < 1e-6,
            "{calm:?}"
        );
        // No shared noise: Student's with two rounds.
        let alone = bounds(&[100.0, 101.0], None);
        assert!(alone.most > 106.0 && alone.least < 95.0 && !alone.assumed, "{alone:?}");
    }

    #[test]
    fn one_wild_point_makes_no_others_uncertain() {
        let points = [
            figure(&[100.0, 101.0, 99.0]),
            figure(&[50.0, 50.5, 49.5]),
            figure(&[10.0, 10.1, 9.9]),
            figure(&[7.0, 7.0, 7.1]),
            figure(&[1.0, 30.0, 4.0]),
        ];
        let spread = Spread::of(points.iter().map(|figure| ("iops", figure)));
        assert!(spread.alone("iops").unwrap().sqrt() < 0.02, "{spread:?}");
    }

    #[test]
    fn of_one_round_a_spread_is_assumed_where_nobody_knows_and_said() {
        let one = bounds(&[100.0], None);
        assert!(
            one.assumed && (one.least - 95.12).abs() < 0.01 && (one.most - 105.13).abs() < 0.01,
            "{one:?}"
        );
        let known = bounds(&[100.0], Some(0.0001));
        assert!(!known.assumed && (known.most - 102.8).abs() < 0.1, "{known:?}");
    }

    #[test]
    fn rounds_that_one_of_two_lacks_are_in_no_ratio() {
        let (a, b) = (Taken::new(&figure(&[1.0, 2.0, 3.0]), None), Taken::new(&figure(&[2.0]), None));
        assert_eq!(a.over(&b).unwrap().rounds, Rounds::from([(1, 0.5)]));
        let later = Taken { rounds: Rounds::from([(7, 1.0)]), usual: None, figures: 1 };
        assert_eq!(a.over(&later), None);
        assert_eq!(a.over(&Taken::new(&figure(&[0.0, 1.0, 1.0]), None)), None);
    }

    #[test]
    fn a_loss_is_a_share_below_zero_with_its_bounds_in_their_order() {
        let (gain, foretold) = (figure(&[-20.0, -10.0, -5.0]), figure(&[40.0, 25.0, 20.0]));
        let share =
            Taken::new(&gain, None).over(&Taken::new(&foretold, None)).unwrap().bounded(0.05).unwrap();
        assert!((share.value + 0.4).abs() < 1e-9 && share.least <= -0.5 && share.most >= -0.25, "{share:?}");
    }

    #[test]
    fn what_most_points_are_is_taken_within_each_round() {
        let points = [[1.0, 5.0], [2.0, 9.0], [100.0, 6.0], [3.0, 7.0]]
            .map(|rounds| Taken::new(&figure(&rounds), None));
        let middle = |all: &[Taken], upper| {
            Taken::middle(all, upper).unwrap().rounds.into_values().collect::<Vec<_>>()
        };
        assert_eq!((middle(&points, true), middle(&points, false)), (vec![3.0, 7.0], vec![2.0, 6.0]));
        assert_eq!(
            (middle(&points[..3], true), middle(&points[..3], false)),
            (vec![2.0, 6.0], vec![2.0, 6.0])
        );
        assert_eq!(Taken::middle(&[], true), None);
    }

    #[test]
    fn a_mean_of_points_is_taken_within_each_round() {
        let points =
            [Taken::new(&figure(&[1.0, 4.0]), Some(0.02)), Taken::new(&figure(&[4.0, 1.0]), Some(0.02))];
        let mean = Taken::mean(&points).unwrap();
        assert!(mean.rounds.values().all(|value| (value - 2.0).abs() < 1e-9) && mean.usual == Some(0.01));
        assert_eq!(Taken::mean(&[]), None);
        assert_eq!(Taken::mean(&[Taken::new(&figure(&[-1.0]), None)]), None);
    }
}
