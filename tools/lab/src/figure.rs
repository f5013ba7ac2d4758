//! Combines the rounds of one point: the median, the spread, and the bounds of a ratio of two. Pure
//! arithmetic.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sample::{Better, Quantity};

/// The relative spread assumed after a single round.
pub(crate) const ASSUMED: f64 = 0.05;
/// The number of standard errors in every bound.
const ERRORS: f64 = 2.0;

/// One quantity at one point, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The median of the rounds.
    pub middle: f64,
    /// The minimum of the rounds.
    pub least: f64,
    /// The maximum of the rounds.
    pub most: f64,
    pub unit: String,
    /// The direction that is better.
    pub better: Better,
    /// The value of each round, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// The numbers of those rounds.
    pub numbers: Vec<u32>,
}

impl Figure {
    /// Combines the values of rounds, each with its round number; `None` without a value.
    pub fn of<'a>(found: impl IntoIterator<Item = (u32, &'a Quantity)>) -> Option<Self> {
        let mut figure: Option<Self> = None;
        for (round, quantity) in found {
            let figure = figure.get_or_insert_with(|| Self {
                middle: 0.0,
                least: f64::INFINITY,
                most: f64::NEG_INFINITY,
                unit: quantity.unit.clone(),
                better: quantity.better,
                rounds: Vec::new(),
                numbers: Vec::new(),
            });
            figure.rounds.push(quantity.value);
            figure.numbers.push(round);
        }
        let mut figure = figure?;
        let mut sorted = figure.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        figure.middle = median(&sorted)?;
        figure.least = *sorted.first()?;
        figure.most = *sorted.last()?;
        Some(figure)
    }

    /// The value of each round, by round number.
    pub(crate) fn by_round(&self) -> BTreeMap<u32, f64> {
        self.numbers.iter().copied().zip(self.rounds.iter().copied()).collect()
    }
}

/// The median of sorted values; `None` of an empty slice.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(*sorted.get(half.checked_sub(1)?)?, upper) })
}

/// The spread between rounds of one point, by quantity. It is the standard deviation of the
/// logarithms over all points of an experiment with more than one round. A point's own two or three
/// rounds often agree by chance; all points together give a better estimate.
#[derive(Clone, Debug, Default)]
pub struct Noise(BTreeMap<String, f64>);

impl Noise {
    /// The noise of an experiment, from all its figures by quantity.
    pub fn of<'a>(figures: impl IntoIterator<Item = (&'a str, &'a Figure)>) -> Self {
        let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for (name, figure) in figures {
            if figure.rounds.len() < 2 || figure.least <= 0.0 {
                continue;
            }
            let logs: Vec<f64> = figure.rounds.iter().map(|value| value.ln()).collect();
            let count = number(logs.len());
            let mean = logs.iter().sum::<f64>() / count;
            let sum = sums.entry(name.to_owned()).or_default();
            sum.0 += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
            sum.1 += count - 1.0;
        }
        Self(sums.into_iter().map(|(name, (squares, freedom))| (name, (squares / freedom).sqrt())).collect())
    }

    /// The relative standard deviation of one round, if known.
    pub fn known(&self, quantity: &str) -> Option<f64> {
        self.0.get(quantity).copied()
    }

    fn deviation(&self, quantity: &str) -> f64 {
        self.known(quantity).unwrap_or(ASSUMED / ERRORS)
    }
}

/// A number derived from figures, with the bounds from their spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounded {
    /// The value derived from the medians.
    pub value: f64,
    pub least: f64,
    pub most: f64,
    /// Whether a spread was assumed, because a figure has one round only.
    pub assumed: bool,
}

impl Bounded {
    /// The bounds of one figure by itself.
    pub fn value(figure: &Figure, quantity: &str, noise: &Noise) -> Self {
        let error = ERRORS * noise.deviation(quantity) / number(figure.rounds.len()).sqrt();
        let (low, high) = (figure.middle * (-error).exp(), figure.middle * error.exp());
        Self {
            value: figure.middle,
            least: figure.least.min(low.min(high)),
            most: figure.most.max(high.max(low)),
            assumed: figure.rounds.len() < 2 && noise.known(quantity).is_none(),
        }
    }

    /// `self`, which may be below zero, divided by `other`; `None` unless all of `other` is above
    /// zero.
    pub fn over(self, other: Self) -> Option<Self> {
        if other.least <= 0.0 {
            return None;
        }
        Some(Self {
            value: self.value / other.value,
            least: self.least / if self.least < 0.0 { other.least } else { other.most },
            most: self.most / if self.most < 0.0 { other.most } else { other.least },
            assumed: self.assumed || other.assumed,
        })
    }
}

/// A count as `f64`.
#[expect(clippy::cast_precision_loss, reason = "counts of points and rounds")]
pub fn number(count: usize) -> f64 {
    count as f64
}

/// Four significant digits at most, with K, M and G for large numbers: 1.234M.
pub fn short(value: f64) -> String {
    let size = value.abs();
    for (power, unit) in [(1e9, "G"), (1e6, "M"), (1e4, "K")] {
        if size >= power {
            // From 10K on the short form saves characters.
            let power: f64 = if unit == "K" { 1e3 } else { power };
            return format!("{}{unit}", digits(value / power, 4));
        }
    }
    digits(value, 4)
}

/// `value` with `count` significant digits, without exponent and trailing zeros.
pub fn digits(value: f64, count: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    #[expect(clippy::cast_possible_truncation, reason = "an exponent of ten")]
    let magnitude = value.abs().log10().floor() as i32;
    let places = usize::try_from(count - 1 - magnitude).unwrap_or(0).min(12);
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A figure of `rounds` for tests.
    pub(crate) fn figure(rounds: &[f64]) -> Figure {
        let quantities: Vec<Quantity> = rounds
            .iter()
            .map(|value| Quantity { value: *value, unit: "IOPS".into(), better: Better::Higher })
            .collect();
        Figure::of((1..).zip(&quantities)).unwrap()
    }

    #[test]
    fn a_figure_is_the_median_between_the_least_and_the_most() {
        let three = figure(&[3.0, 1.0, 2.0]);
        assert_eq!((three.middle, three.least, three.most), (2.0, 1.0, 3.0));
        assert_eq!(figure(&[1.0, 2.0]).middle, 1.5);
        assert_eq!(Figure::of([]), None);
    }

    #[test]
    fn a_ratio_is_bounded_by_the_least_of_one_by_the_most_of_the_other() {
        let (a, b) = (figure(&[110.0, 120.0, 130.0]), figure(&[50.0, 60.0, 70.0]));
        let noise = Noise(BTreeMap::from([("iops".to_owned(), 1e-9)]));
        let ratio = Bounded::value(&a, "iops", &noise).over(Bounded::value(&b, "iops", &noise)).unwrap();
        assert!((ratio.value - 2.0).abs() < 1e-9);
        assert!((ratio.least - 110.0 / 70.0).abs() < 1e-6 && (ratio.most - 130.0 / 50.0).abs() < 1e-6);
        assert!(!ratio.assumed);
    }

    #[test]
    fn two_rounds_that_agree_by_chance_get_the_noise_of_all_points() {
        let calm = figure(&[100.0, 100.0]);
        let wild = figure(&[80.0, 120.0]);
        let noise = Noise::of([("iops", &calm), ("iops", &wild)]);
        let bounded = Bounded::value(&calm, "iops", &noise);
        assert!(bounded.least < 80.0 && bounded.most > 120.0, "{bounded:?}");
    }

    #[test]
    fn of_one_round_a_spread_is_assumed_and_said() {
        let bounded = Bounded::value(&figure(&[100.0]), "iops", &Noise::default());
        assert!(bounded.assumed);
        assert!((bounded.least - 95.12).abs() < 0.01 && (bounded.most - 105.13).abs() < 0.01, "{bounded:?}");
    }

    #[test]
    fn nothing_is_divided_by_what_is_not_above_zero() {
        let noise = Noise::default();
        let (one, zero, loss) = (figure(&[1.0]), figure(&[0.0]), figure(&[-1.0]));
        let bounded = |figure| Bounded::value(figure, "x", &noise);
        assert_eq!(bounded(&one).over(bounded(&zero)), None);
        assert_eq!(bounded(&one).over(bounded(&loss)), None);
        assert_eq!(bounded(&zero).over(bounded(&one)).map(|none| (none.least, none.most)), Some((0.0, 0.0)));
    }

    #[test]
    fn a_loss_is_a_share_below_zero_with_its_bounds_in_their_order() {
        let noise = Noise(BTreeMap::from([("gain".to_owned(), 1e-9)]));
        let bounded = |rounds: &[f64]| Bounded::value(&figure(rounds), "gain", &noise);
        let share = bounded(&[-20.0, -10.0, -5.0]).over(bounded(&[20.0, 25.0, 40.0])).unwrap();
        assert!((share.value + 0.4).abs() < 1e-6, "{share:?}");
        assert!((share.least + 1.0).abs() < 1e-6 && (share.most + 0.125).abs() < 1e-6, "{share:?}");
        // If the dividend spans zero, the divisor's minimum gives both ends.
        let either = bounded(&[-10.0, 5.0, 10.0]).over(bounded(&[20.0, 25.0, 40.0])).unwrap();
        assert!((either.least + 0.5).abs() < 1e-6 && (either.most - 0.5).abs() < 1e-6, "{either:?}");
    }

    #[test]
    fn numbers_are_short_and_keep_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.123_456, "0.1235"),
            (12.5, "12.5"),
            (9999.0, "9999"),
            (10_000.0, "10K"),
            (547_173.0, "547.2K"),
            (1_234_567.0, "1.235M"),
            (-20_000.0, "-20K"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
