//! The x axis of a chart: where its places lie, and which of them are named.

use super::{Chart, LABEL, LEFT, RIGHT, WIDTH, step, width};
use crate::experiment::{Kind, Scale, bytes_label};
use crate::figure::{number, short};

/// The x axis: positions of places, and their names.
pub(super) struct Across {
    pub places: Vec<f64>,
    pub ticks: Vec<(f64, String)>,
    /// The room of one place.
    pub band: f64,
    /// By how many degrees names are turned that do not fit side by side.
    pub turned: Option<f64>,
}

impl Across {
    pub fn new(chart: &Chart) -> Self {
        let room = WIDTH - LEFT - RIGHT;
        let count = number(chart.places.len().max(1));
        if chart.is_category() {
            let band = room / count;
            let places: Vec<f64> =
                (0..chart.places.len()).map(|at| LEFT + band * (number(at) + 0.5)).collect();
            let ticks: Vec<_> =
                places.iter().copied().zip(chart.places.iter().map(|(_, name)| name.clone())).collect();
            let turned = ticks.iter().any(|(_, name)| width(name, LABEL) > band - 6.0);
            // A name that would begin left of the chart stands upright.
            let beyond = |(x, name): &(f64, String)| width(name, LABEL) * 0.87 > *x;
            let turned = turned.then(|| if ticks.iter().any(beyond) { 90.0 } else { 30.0 });
            return Self { places, ticks, band, turned };
        }
        let numbers: Vec<f64> = chart.places.iter().filter_map(|(value, _)| value.number()).collect();
        let logarithm = matches!(chart.x_scale, Scale::Log2 | Scale::Log10);
        let scaled: Vec<f64> = numbers.iter().map(|n| if logarithm { n.log2() } else { *n }).collect();
        let least = scaled.iter().copied().fold(f64::INFINITY, f64::min);
        let most = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Linear axes begin at zero if the values then still fill half of the axis.
        let least = if !logarithm && least > 0.0 && least < most * 0.5 { 0.0 } else { least };
        let inner = room - 36.0;
        let at = |scaled: f64| LEFT + 18.0 + inner * (scaled - least) / (most - least).max(f64::MIN_POSITIVE);
        let places: Vec<f64> = scaled.iter().map(|value| at(*value)).collect();
        let name = |value: f64, name: &str| if chart.x_bytes { bytes_short(value) } else { name.to_owned() };
        let mut all: Vec<(f64, String)> = if chart.kind == Kind::Cdf {
            // The places are buckets, which mean nothing to a reader.
            decades()
                .map(|value| (value, value.log2()))
                .filter(|(_, log)| (least..=most).contains(log))
                .map(|(value, log)| (at(log), short(value)))
                .collect()
        } else if logarithm || chart.places.len() <= 8 {
            let named = chart.places.iter().zip(&numbers).map(|((_, words), value)| name(*value, words));
            places.iter().copied().zip(named).collect()
        } else {
            let step = step((most - least) / 7.0);
            let first = (least / step).ceil();
            (0..12)
                .map(|n| (first + f64::from(n)) * step)
                .filter(|v| *v <= most)
                .map(|v| (at(v), name(v, &short(v))))
                .collect()
        };
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Names that would overlap are left out, but never the last.
        let mut ticks: Vec<(f64, String)> = Vec::new();
        let free = |a: &(f64, String), b: &(f64, String)| {
            b.0 - a.0 > (width(&a.1, LABEL) + width(&b.1, LABEL)) / 2.0 + 6.0
        };
        let last = all.last().cloned();
        for tick in all {
            let is_last = last.as_ref().is_some_and(|last| last.0 == tick.0);
            if is_last {
                while ticks.last().is_some_and(|before| !free(before, &tick)) {
                    ticks.pop();
                }
                ticks.push(tick);
            } else if ticks.last().is_none_or(|before| free(before, &tick)) {
                ticks.push(tick);
            }
        }
        Self { places, ticks, band: room / count, turned: None }
    }

    pub fn height(&self) -> f64 {
        let longest = self.ticks.iter().map(|(_, name)| width(name, LABEL)).fold(0.0, f64::max);
        24.0 + self.turned.map_or(0.0, |degrees| longest * degrees.to_radians().sin())
    }
}

/// 1, 2 and 5 times all powers of ten that a latency in µs may have.
fn decades() -> impl Iterator<Item = f64> {
    (-3..=10).flat_map(|exponent| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(exponent)))
}

fn bytes_short(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "sizes")]
    let label = bytes_label(value as i64);
    label
        .replace(" KiB", "K")
        .replace(" MiB", "M")
        .replace(" GiB", "G")
        .replace(" TiB", "T")
        .replace(" B", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Value;

    /// Names of so many letters, which stand below so many bars.
    fn across(bars: i64, letters: usize) -> Across {
        Across::new(&Chart {
            title: String::new(),
            subtitle: String::new(),
            x_title: String::new(),
            x_scale: Scale::Category,
            x_bytes: false,
            y_title: String::new(),
            y_scale: Scale::Linear,
            kind: Kind::Bars,
            places: (0..bars).map(|at| (Value::Whole(at), "n".repeat(letters))).collect(),
            series: Vec::new(),
        })
    }

    #[test]
    fn names_are_turned_where_they_need_it_and_none_is_cut_off() {
        assert_eq!((across(4, 5).turned, across(4, 5).height()), (None, 24.0));
        for (bars, letters, turned) in [(4, 22, 30.0), (22, 8, 30.0), (22, 56, 90.0)] {
            let across = across(bars, letters);
            assert_eq!(across.turned, Some(turned), "{bars} {letters}");
            let (long, turn) = (width(&"n".repeat(letters), LABEL), turned.to_radians());
            assert!(across.ticks.iter().all(|(x, _)| x - long * turn.cos() >= 0.0), "{bars} {letters}");
            assert!(across.height() >= 16.0 + long * turn.sin(), "{bars} {letters}");
        }
    }
}
