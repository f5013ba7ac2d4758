//! The paper's curves beside ours: numbers of a reference table, at the places of a plot.

use crate::experiment::{Axis, Experiment, Plot, Reference};
use crate::point::{Value, size};

/// A curve of the paper: its name, and its numbers by the place on the plot's x axis.
#[derive(Debug, PartialEq)]
pub(super) struct Curve {
    pub name: String,
    pub numbers: Vec<(Value, f64)>,
}

/// The curves of the plot's reference table in the panel of this value.
pub(super) fn curves(experiment: &Experiment, plot: &Plot, panel: Option<&Value>) -> Vec<Curve> {
    let Some(reference) = experiment.reference_of(plot) else { return Vec::new() };
    let column = |name: &Option<String>| {
        let name = name.as_ref()?;
        reference.columns.iter().position(|column| column == name)
    };
    let (Some(x), Some(axis)) = (column(&reference.x), experiment.axis(&plot.x)) else { return Vec::new() };
    let panels = plot.panel.as_ref().and_then(|name| experiment.axis(name));
    let (of_panel, mut all) = (column(&reference.panel), Vec::new());
    for row in &reference.rows {
        let in_panel = panel.zip(panels).is_none_or(|(panel, axis)| {
            let cell = of_panel.and_then(|at| row.get(at));
            cell.and_then(|cell| place(experiment, axis, cell)).is_some_and(|value| value.same(panel))
        });
        let at = row.get(x).filter(|_| in_panel).and_then(|cell| place(experiment, axis, cell));
        // A row such as "largest" has no place.
        let Some(at) = at else { continue };
        add(&mut all, reference, row, &[Some(x), of_panel], at);
    }
    all
}

/// Adds the numbers of a row, whose place is known.
fn add(all: &mut Vec<Curve>, reference: &Reference, row: &[Value], places: &[Option<usize>], at: &Value) {
    let cells = || row.iter().enumerate().filter(|(column, _)| !places.contains(&Some(*column)));
    // Words that are no place tell rows apart.
    let words: Vec<String> = cells()
        .filter_map(|(_, cell)| match cell {
            Value::Text(text) if number(cell).is_none() && text != NONE => Some(text.clone()),
            _ => None,
        })
        .collect();
    for (column, cell) in cells() {
        let (Some(value), Some(name)) = (number(cell), reference.columns.get(column)) else { continue };
        let name = words.iter().chain([name]).cloned().collect::<Vec<_>>().join(", ");
        match all.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.numbers.push((at.clone(), value)),
            None => all.push(Curve { name, numbers: vec![(at.clone(), value)] }),
        }
    }
}

/// A cell without a number.
const NONE: &str = "–";

/// The number of a cell: `12`, or `12 ± 3`.
fn number(cell: &Value) -> Option<f64> {
    match cell {
        Value::Text(text) => text.split_once(" ± ")?.0.parse().ok(),
        other => other.number(),
    }
}

/// The axis's value that a cell names, by itself, by its label or as a size: `4 KB` is 4096.
fn place<'a>(experiment: &Experiment, axis: &'a Axis, cell: &Value) -> Option<&'a Value> {
    let text = cell.to_string();
    let bytes = text.trim_end_matches('B').trim_end_matches('i').replace(' ', "");
    let bytes = size(&bytes).or_else(|| bytes.parse().ok()).filter(|_| axis.unit == "B").map(Value::Whole);
    axis.every_value().find(|value| {
        value.same(cell)
            || experiment.label(&axis.name, value).eq_ignore_ascii_case(&text)
            || bytes.as_ref().is_some_and(|bytes| value.same(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
format = 1
name = "x"
title = "X"
measure = "recorded"
[[axis]]
name = "link"
values = ["near", "far"]
labels = { near = "0.2 miles" }
[[axis]]
name = "block"
unit = "B"
values = [512, "4k", "1M"]
[[plot]]
name = "rate"
title = "Rate"
quantity = "mb_s"
x = "block"
panel = "link"
reference = "Figure 2"
[[reference]]
title = "Figure 2"
x = "message"
panel = "distance"
columns = ["distance", "message", "card", "reads", "writes"]
rows = [["0.2 Miles", "4 KB", "old", 9, "7.5 ± 0.3"], ["0.2 miles", "512 B", "old", 2, "–"], ["far", "1 MiB", "new", 1, 3],
    ["both", "4 KB", "old", 5, 5], ["far", "largest", "old", 8, 8]]
"#;

    #[test]
    fn numbers_stand_at_the_places_that_their_row_names() {
        let experiment = Experiment::read(TEXT).unwrap();
        let told = |panel: &str| -> Vec<(String, Vec<(Value, f64)>)> {
            let found = curves(&experiment, &experiment.plot[0], Some(&Value::Text(panel.to_owned())));
            found.into_iter().map(|curve| (curve.name, curve.numbers)).collect()
        };
        let at = |bytes, number| (Value::Whole(bytes), number);
        assert_eq!(
            told("near"),
            [
                ("old, reads".to_owned(), vec![at(4096, 9.0), at(512, 2.0)]),
                ("old, writes".to_owned(), vec![at(4096, 7.5)])
            ]
        );
        assert_eq!(
            told("far"),
            [
                ("new, reads".to_owned(), vec![at(1 << 20, 1.0)]),
                ("new, writes".to_owned(), vec![at(1 << 20, 3.0)])
            ]
        );
    }

    #[test]
    fn a_plot_and_its_reference_fit_each_other() {
        for (from, to, said) in [
            ("reference = \"Figure 2\"", "reference = \"Figure 3\"", "there is no reference \"Figure 3\""),
            ("x = \"message\"\n", "", "says no column `x`"),
            ("x = \"message\"\n", "x = \"bytes\"\n", "has no column `bytes`"),
            ("panel = \"distance\"\n", "", "says no column `panel`"),
            ("quantity = \"mb_s\"\nx = \"block\"", "kind = \"cdf\"", "cdf draws latencies"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Experiment::read(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
