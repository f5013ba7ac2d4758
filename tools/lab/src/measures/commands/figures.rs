//! Finds figures in what programs print, by the places that the experiment's file names.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::experiment::program::{Figure, Take};
use crate::measure::Error;
use crate::sample::Sample;

/// The most places in a program's output where JSON is looked for.
const MOST_STARTS: usize = 100;

/// Adds the figures in `printed` to the sample.
///
/// # Errors
/// If one is not there.
pub(super) fn read(
    sample: &mut Sample,
    figures: &BTreeMap<String, Figure>,
    printed: &str,
) -> Result<(), Error> {
    let found = figures.values().any(|figure| figure.json.is_some());
    let found = if found { json(printed, figures) } else { None };
    for (name, figure) in figures {
        let number = match (&figure.json, &figure.text) {
            (Some(at), _) => found.as_ref().and_then(|json| json.pointer(at)).and_then(number),
            (None, Some(pattern)) => {
                let groups = pattern.0.captures_iter(printed).filter_map(|groups| groups.get(1));
                take(figure.take, groups.filter_map(|group| group.as_str().parse().ok()))
            }
            (None, None) => None,
        };
        let Some(number) = number.filter(|number| number.is_finite()) else {
            let place = figure.json.as_deref().or(figure.text.as_ref().map(|pattern| pattern.0.as_str()));
            let shown: String = printed.trim().chars().take(200).collect();
            let place = place.unwrap_or_default();
            return Err(Error::Failed(format!(
                "there is no number for `{name}` at {place} in what was printed: {shown:?}"
            )));
        };
        sample.put(name, number * figure.scale, &figure.unit, figure.better);
    }
    Ok(())
}

/// The first JSON object or list in `printed` that has the places of all `figures`, whatever stands
/// before and after it.
pub(super) fn json(printed: &str, figures: &BTreeMap<String, Figure>) -> Option<Value> {
    let starts = printed.match_indices(['{', '[']).map(|(at, _)| at);
    let all = starts.take(MOST_STARTS).filter_map(|at| {
        let text = printed.get(at..)?;
        serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.ok()
    });
    let places: Vec<&String> = figures.values().filter_map(|figure| figure.json.as_ref()).collect();
    all.into_iter().find(|json| places.iter().all(|place| json.pointer(place).is_some()))
}

/// A number, or a text that is one.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn take(which: Take, mut numbers: impl Iterator<Item = f64>) -> Option<f64> {
    match which {
        Take::First => numbers.next(),
        Take::Last => numbers.last(),
        Take::Sum | Take::Mean => {
            let (count, sum) = numbers.fold((0.0, 0.0), |(count, sum), number| (count + 1.0, sum + number));
            (count > 0.0).then_some(if which == Take::Sum { sum } else { sum / count })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(figure: &str, printed: &str) -> Result<f64, String> {
        let figures = BTreeMap::from([("x".to_owned(), toml::from_str(figure).unwrap())]);
        let mut sample = Sample::new();
        read(&mut sample, &figures, printed).map_err(|error| error.to_string())?;
        Ok(sample.values["x"].value)
    }

    #[test]
    fn a_figure_is_found_in_json_among_other_lines() {
        let printed = "fio-3.33 {starts} [1]\n{ \"jobs\": [{ \"read\": { \"bw_bytes\": 5000000 } }] }\nbye\n";
        assert_eq!(of("json = '/jobs/0/read/bw_bytes'\nscale = 1e-6", printed), Ok(5.0));
        assert!(
            of("json = '/jobs/1/read'", printed).unwrap_err().contains("/jobs/1/read in what was printed")
        );
        assert!(of("json = '/a'", "Segmentation fault").unwrap_err().contains("Segmentation fault"));
        assert!(of("json = '/a'", "{\"a\": \"fast\"}").is_err());
    }

    #[test]
    fn of_several_lines_the_file_says_which_count() {
        let printed = "iops 10\niops 20\niops many\niops 60\n";
        for (which, expected) in [("first", 10.0), ("last", 60.0), ("mean", 30.0), ("sum", 90.0)] {
            assert_eq!(of(&format!("text = 'iops (\\S+)'\ntake = '{which}'"), printed), Ok(expected));
        }
        assert!(of("text = 'mb (\\d+)'", printed).is_err());
    }
}
