//! Makes charts of an experiment's figures, as specified in its file.

use super::cdf;
use super::paper::{self, Curve};
use crate::experiment::{Axis, Experiment, Kind, Plot, Scale, capital, fits};
use crate::figure::Figure;
use crate::plot::{Chart, Mark, Series};
use crate::point::Value;
use crate::results::{Found, Results};

/// A chart and the name of its files.
pub struct Named {
    /// The file name without extension.
    pub file: String,
    pub chart: Chart,
    /// The note under it.
    pub note: String,
}

/// All charts of an experiment for which anything was measured.
pub fn charts(results: &Results, found: &[Found]) -> Vec<Named> {
    results.experiment.plot.iter().flat_map(|plot| of_plot(results, found, plot)).collect()
}

fn of_plot(results: &Results, found: &[Found], plot: &Plot) -> Vec<Named> {
    let experiment = &results.experiment;
    let shown: Vec<&Found> = found.iter().filter(|found| fits(&plot.at, &found.coordinates)).collect();
    let panels: Vec<Option<(String, Value)>> = match &plot.panel {
        None => vec![None],
        Some(axis) => {
            let of = |value| Some((axis.clone(), value));
            values(experiment, axis, &shown).into_iter().map(of).collect()
        }
    };
    let mut all = Vec::new();
    for panel in panels {
        let inside: Vec<&Found> = shown.iter().copied().filter(|found| found.is_at(&panel)).collect();
        let label = panel.as_ref().map(|(axis, value)| experiment.place(axis, value));
        let papers = paper::curves(experiment, plot, panel.as_ref().map(|(_, value)| value));
        let Some(chart) = chart(results, plot, &inside, label.as_deref(), &papers) else { continue };
        let file = match &panel {
            None => plot.name.clone(),
            Some((_, value)) => format!("{}-{}", plot.name, plain(&value.to_string())),
        };
        all.push(Named { file, chart, note: plot.note.clone() });
    }
    all
}

fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' })
        .take(60)
        .collect()
}

/// The axes that tell the plot's lines apart: those of its file, and all others on which its points
/// differ. Without these, a line would show only the first of several points.
fn axes_of_lines(experiment: &Experiment, plot: &Plot, found: &[&Found]) -> Vec<String> {
    let mut axes = plot.series.clone();
    for Axis { name, .. } in &experiment.axis {
        let named = *name == plot.x || plot.panel.as_ref() == Some(name) || axes.contains(name);
        if !named && values(experiment, name, found).len() > 1 {
            axes.push(name.clone());
        }
    }
    axes
}

/// The values of an axis that occur, in the axis's order.
fn values(experiment: &Experiment, axis: &str, found: &[&Found]) -> Vec<Value> {
    let Some(axis) = experiment.axis(axis) else { return Vec::new() };
    let occurs =
        |value: &&Value| found.iter().any(|found| found.at(&axis.name).is_some_and(|at| at.same(value)));
    axis.every_value().filter(occurs).cloned().collect()
}

/// All combinations of values of several axes that occur, in order.
pub(crate) fn combinations(
    experiment: &Experiment,
    axes: &[String],
    found: &[&Found],
) -> Vec<Vec<(String, Value)>> {
    let mut all: Vec<Vec<(String, Value)>> = Vec::new();
    let of = |found: &Found| -> Vec<(String, Value)> {
        axes.iter().filter_map(|axis| found.at(axis).map(|value| (axis.clone(), value.clone()))).collect()
    };
    for one in found.iter().map(|found| of(found)) {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all.sort_by_cached_key(|one| {
        let rank = |(axis, value): &(String, Value)| experiment.axis(axis).map_or(0, |axis| axis.rank(value));
        one.iter().map(rank).collect::<Vec<_>>()
    });
    all
}

/// The name of a combination for readers.
pub fn name(experiment: &Experiment, combination: &[(String, Value)]) -> String {
    combination.iter().map(|(axis, value)| experiment.place(axis, value)).collect::<Vec<_>>().join(", ")
}

fn chart(
    results: &Results,
    plot: &Plot,
    found: &[&Found],
    panel: Option<&str>,
    papers: &[Curve],
) -> Option<Chart> {
    let experiment = &results.experiment;
    let headline = panel.map_or_else(|| plot.title.clone(), |panel| format!("{}: {panel}", plot.title));
    let axes = axes_of_lines(experiment, plot, found);
    if plot.kind == Kind::Cdf {
        let quick = if results.info.quick { "; a short run" } else { "" };
        let lines = cdf::series(experiment, &axes, found);
        return cdf::chart(&headline, format!("all rounds together{quick}"), &lines);
    }
    let axis = experiment.axis(&plot.x)?;
    let of_papers_too = |value: &&Value| {
        let papers = papers.iter().flat_map(|curve| &curve.numbers).map(|(at, _)| at);
        papers.chain(found.iter().filter_map(|found| found.at(&plot.x))).any(|at| at.same(value))
    };
    let across: Vec<Value> = axis.every_value().filter(of_papers_too).cloned().collect();
    let quantities = plot.quantity.list();
    let lines = combinations(experiment, &axes, found);
    let mut series = Vec::new();
    let mut unit = String::new();
    let mut rounds = (usize::MAX, 0);
    for quantity in quantities {
        for line in &lines {
            let on = found.iter().filter(|found| found.is_at(line));
            let mut marks: Vec<Mark> = Vec::new();
            for one in on {
                let Some(figure) = one.figures.get(quantity) else { continue };
                let place = one.at(&plot.x).and_then(|at| across.iter().position(|value| value.same(at)));
                let Some(place) = place else { continue };
                unit.clone_from(&figure.unit);
                rounds = (rounds.0.min(figure.rounds.len()), rounds.1.max(figure.rounds.len()));
                marks.push(mark(place, figure, one.is_pale(figure)));
            }
            if marks.is_empty() {
                continue;
            }
            let mut name = name(experiment, line);
            if quantities.len() > 1 {
                let quantity = experiment.quantity_name(quantity);
                name = if name.is_empty() { quantity } else { format!("{name}: {quantity}") };
            }
            series.push(Series { name, marks, style: series.len(), of_paper: false });
        }
    }
    if series.is_empty() {
        return None;
    }
    series.extend(of_papers(papers, &series, &across));
    let numbers = across.iter().all(|value| value.number().is_some());
    let x_scale = plot.x_scale.unwrap_or(match (plot.kind, numbers, axis.unit.as_str()) {
        (Kind::Bars, ..) | (_, false, _) => Scale::Category,
        (_, true, "B") => Scale::Log2,
        _ => Scale::Linear,
    });
    let y_scale = plot.y_scale.unwrap_or(Scale::Linear);
    let y_name = match quantities {
        [only] => capital(&experiment.quantity_name(only)),
        _ => String::new(),
    };
    let mut chart = Chart {
        title: headline,
        subtitle: subtitle(
            results,
            rounds,
            series.iter().flat_map(|series| &series.marks).any(|mark| mark.disturbed),
        ) + if papers.is_empty() { "" } else { "; dashed: the paper, on its own machines" },
        x_title: String::new(),
        x_scale,
        x_bytes: axis.unit == "B",
        y_title: String::new(),
        y_scale,
        kind: plot.kind,
        places: across.iter().map(|value| (value.clone(), experiment.label(&plot.x, value))).collect(),
        series,
    };
    // Of the scales that the values allow.
    let x_scale = if chart.is_category() { Scale::Category } else { x_scale };
    chart.x_title = title(&capital(&experiment.axis_title(&plot.x)), &axis.unit, x_scale);
    chart.y_title = title(&y_name, &unit, if chart.is_logarithmic() { y_scale } else { Scale::Linear });
    Some(chart)
}

/// The paper's curves, each in the style of ours that has its name.
fn of_papers(papers: &[Curve], ours: &[Series], across: &[Value]) -> Vec<Series> {
    let one = |(at, curve): (usize, &Curve)| {
        let mark = |(value, number): &(Value, f64)| {
            let place = across.iter().position(|known| known.same(value))?;
            Some(Mark { place, middle: *number, least: *number, most: *number, disturbed: false })
        };
        let same = ours.iter().find(|series| series.name == curve.name).map(|series| series.style);
        Series {
            name: format!("{} (paper)", curve.name),
            marks: curve.numbers.iter().filter_map(mark).collect(),
            style: same.unwrap_or(ours.len() + at),
            of_paper: true,
        }
    };
    papers.iter().enumerate().map(one).collect()
}

fn mark(place: usize, figure: &Figure, disturbed: bool) -> Mark {
    Mark { place, middle: figure.middle, least: figure.least, most: figure.most, disturbed }
}

fn subtitle(results: &Results, rounds: (usize, usize), disturbed: bool) -> String {
    let how = match rounds {
        (1, 1) => "one round: no spread is known".to_owned(),
        (least, most) if least == most => {
            format!("medians of {most} rounds, whiskers from the least to the most")
        }
        (least, most) => format!("medians of {least} to {most} rounds, whiskers from the least to the most"),
    };
    let quick = if results.info.quick { "; a short run" } else { "" };
    let hollow = if disturbed { "; hollow or pale: disturbed in most rounds" } else { "" };
    format!("{how}{quick}{hollow}")
}

fn title(name: &str, unit: &str, scale: Scale) -> String {
    let mut behind: Vec<&str> = Vec::new();
    // Names of places already contain units.
    if scale != Scale::Category && !unit.is_empty() && !name.eq_ignore_ascii_case(unit) {
        behind.push(unit);
    }
    match scale {
        Scale::Log10 => behind.push("logarithmic"),
        Scale::Log2 => behind.push("doubling"),
        Scale::Linear | Scale::Category => {}
    }
    match (name.is_empty(), behind.is_empty()) {
        (_, true) => name.to_owned(),
        (true, false) => behind.join(", "),
        (false, false) => format!("{name} ({})", behind.join(", ")),
    }
}
