//! Tables of figures: those specified in the experiment's file, for the page and for Markdown, and
//! one of everything in HTML.

use super::charts::{combinations, name};
use super::grid;
use crate::experiment::{Experiment, Table, capital, fits};
use crate::figure::{Figure, short};
use crate::plot::escape;
use crate::results::Found;

/// A table as specified in the file.
pub(super) struct Asked<'a> {
    /// The titles of the columns that name a row.
    pub places: Vec<String>,
    /// The columns of figures: the name of a combination, and the quantity.
    pub columns: Vec<(String, &'a str)>,
    pub rows: Vec<Row<'a>>,
}

pub(super) struct Row<'a> {
    pub places: Vec<String>,
    pub figures: Vec<Option<(&'a Found, &'a Figure)>>,
}

impl<'a> Asked<'a> {
    /// `None` if none of its points was measured. It has as many of its quantities as fit into
    /// `most` columns of figures, and one at least.
    pub fn of(experiment: &Experiment, found: &'a [Found], table: &'a Table, most: usize) -> Option<Self> {
        let shown: Vec<&Found> = found.iter().filter(|found| fits(&table.at, &found.coordinates)).collect();
        let measured = |quantity: &&String| shown.iter().any(|found| found.figures.contains_key(*quantity));
        let mut quantities: Vec<&String> = table.quantity.list().iter().filter(measured).collect();
        let combined = combinations(experiment, &table.columns, &shown);
        quantities.truncate((most / combined.len().max(1)).max(1));
        if quantities.is_empty() {
            return None;
        }
        let both =
            || combined.iter().flat_map(|column| quantities.iter().map(move |one| (column, one.as_str())));
        let rows = combinations(experiment, &table.rows, &shown).into_iter().map(|row| {
            let label = |axis: &String| {
                let value = row.iter().find(|(name, _)| name == axis);
                value.map(|(_, value)| experiment.label(axis, value)).unwrap_or_default()
            };
            let figure = |(column, quantity): (&Vec<_>, &str)| {
                let at = shown.iter().find(|found| found.is_at(row.iter().chain(column)))?;
                Some((*at, at.figures.get(quantity)?))
            };
            Row { places: table.rows.iter().map(label).collect(), figures: both().map(figure).collect() }
        });
        Some(Self {
            places: table.rows.iter().map(|axis| capital(&experiment.axis_title(axis))).collect(),
            rows: rows.collect(),
            columns: both().map(|(column, quantity)| (name(experiment, column), quantity)).collect(),
        })
    }
}

/// The unit of a quantity.
pub(super) fn unit<'a>(found: &'a [Found], quantity: &str) -> &'a str {
    found.iter().find_map(|found| found.figures.get(quantity)).map_or("", |figure| &figure.unit)
}

/// A table as specified in the file, in HTML.
pub(super) fn asked_for(experiment: &Experiment, found: &[Found], table: &Table) -> Option<String> {
    let asked = Asked::of(experiment, found, table, usize::MAX)?;
    let several =
        asked.columns.iter().any(|(_, quantity)| asked.columns.first().is_some_and(|one| one.1 != *quantity));
    let mut head: Vec<String> =
        asked.places.iter().map(|title| format!("<th>{}</th>", escape(title))).collect();
    for (words, quantity) in &asked.columns {
        let of = quantity_head(experiment, found, quantity);
        let both = match (several, words.is_empty()) {
            (_, true) => escape(&of),
            (true, false) => format!("{}<br><small>{}</small>", escape(words), escape(&of)),
            (false, false) => {
                format!("{}<br><small>{}</small>", escape(words), escape(unit(found, quantity)))
            }
        };
        head.push(format!("<th class=n>{both}</th>"));
    }
    let cells = |row: &Row<'_>| -> Vec<String> {
        let places = row.places.iter().map(|label| format!("<th>{}</th>", escape(label)));
        places.chain(row.figures.iter().map(|figure| cell(*figure))).collect()
    };
    Some(grid::table(&head, &asked.rows.iter().map(cells).collect::<Vec<_>>(), None))
}

/// The table of every point with every quantity.
pub(super) fn everything(experiment: &Experiment, found: &[Found]) -> String {
    let mut quantities: Vec<&String> = found.iter().flat_map(|found| found.figures.keys()).collect();
    quantities.sort_unstable();
    quantities.dedup();
    let axes = || experiment.axis.iter().map(|axis| axis.name.as_str());
    let mut head: Vec<String> =
        axes().map(|axis| format!("<th>{}</th>", escape(&capital(&experiment.axis_title(axis))))).collect();
    let names = quantities.iter().map(|quantity| quantity_head(experiment, found, quantity));
    head.extend(names.map(|name| format!("<th class=n>{}</th>", escape(&name))));
    let row = |found: &Found| -> Vec<String> {
        let label = |axis| found.at(axis).map(|value| experiment.label(axis, value)).unwrap_or_default();
        let places = axes().map(|axis| format!("<th>{}</th>", escape(&label(axis))));
        let figures =
            quantities.iter().map(|one| cell(found.figures.get(*one).map(|figure| (found, figure))));
        places.chain(figures).collect()
    };
    grid::table(&head, &found.iter().map(row).collect::<Vec<_>>(), None)
}

fn quantity_head(experiment: &Experiment, found: &[Found], quantity: &str) -> String {
    let (name, unit) = (capital(&experiment.quantity_name(quantity)), unit(found, quantity));
    if unit.is_empty() || name.eq_ignore_ascii_case(unit) { name } else { format!("{name} ({unit})") }
}

fn cell(figure: Option<(&Found, &Figure)>) -> String {
    let Some((found, figure)) = figure else { return "<td class=n>–</td>".to_owned() };
    let class = if found.is_pale(figure) { "n pale" } else { "n" };
    let spread = match figure.rounds.len() {
        0 | 1 => String::new(),
        _ => format!("<small>{}–{}</small>", short(figure.least), short(figure.most)),
    };
    format!("<td class=\"{class}\">{}{spread}</td>", short(figure.middle))
}
