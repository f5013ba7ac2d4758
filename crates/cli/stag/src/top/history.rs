//! The latest values of every row, for the lines over time. Must stay bounded, however many units
//! and sessions a daemon has.

use std::collections::{HashMap, VecDeque};

use super::items::{Item, Tab};

/// Samples of a row at most: more than a screen is wide.
const MOST: usize = 400;
/// Samples of a row that are kept in any case.
const LEAST: usize = 20;
/// Samples of all rows together, above [`LEAST`].
const ALL: usize = 400_000;

/// Values of a row's series at one moment.
type Sample = [Option<f32>; 3];

#[derive(Default)]
pub struct History {
    rows: HashMap<(Tab, String), VecDeque<Sample>>,
}

impl History {
    /// Adds a sample of each row, and forgets rows that are gone.
    pub fn add(&mut self, all: &[(Tab, Vec<Item>)]) {
        let count = all.iter().map(|(_, items)| items.len()).sum::<usize>();
        let most = (ALL / count.max(1)).clamp(LEAST, MOST);
        let mut before = std::mem::take(&mut self.rows);
        for (tab, items) in all {
            for item in items {
                let key = (*tab, item.name.clone());
                let mut samples = before.remove(&key).unwrap_or_default();
                let mut series = item.series.iter().map(|value| value.map(|value| value as f32));
                samples.push_back(std::array::from_fn(|_| series.next().flatten()));
                samples.drain(..samples.len().saturating_sub(most));
                self.rows.insert(key, samples);
            }
        }
    }

    /// The values of a series of a row, the latest first.
    pub fn latest(&self, tab: Tab, name: &str, series: usize) -> impl Iterator<Item = Option<f64>> {
        let samples = self.rows.get(&(tab, name.to_owned()));
        samples
            .into_iter()
            .flat_map(|all| all.iter().rev())
            .map(move |sample| sample.get(series).copied().flatten().map(f64::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: String, value: f64) -> Item {
        Item {
            name,
            more: String::new(),
            initiators: None,
            values: Vec::new(),
            series: vec![Some(value)],
            troubled: false,
        }
    }

    #[test]
    fn the_latest_samples_are_kept_of_rows_that_are_there() {
        let mut history = History::default();
        for turn in 0..MOST + 5 {
            let mut items = vec![item("a".into(), turn as f64)];
            items.extend((turn < 10).then(|| item("gone".into(), 1.0)));
            history.add(&[(Tab::Units, items)]);
        }
        let kept: Vec<_> = history.latest(Tab::Units, "a", 0).collect();
        assert_eq!((kept.len(), kept[0], kept[1]), (MOST, Some((MOST + 4) as f64), Some((MOST + 3) as f64)));
        assert_eq!(history.latest(Tab::Units, "a", 2).next(), Some(None));
        assert_eq!(history.latest(Tab::Units, "gone", 0).count(), 0);
        assert_eq!(history.latest(Tab::Sessions, "a", 0).count(), 0);
    }

    #[test]
    fn many_rows_have_short_histories() {
        let mut history = History::default();
        let items: Vec<_> = (0..10_000).map(|number| item(number.to_string(), 1.0)).collect();
        for _ in 0..41 {
            history.add(&[(Tab::Units, items.clone())]);
        }
        assert_eq!(history.latest(Tab::Units, "17", 0).count(), 40);
    }
}
