//! Tables of figures in HTML: those specified in the experiment's file, and one of everything.

use super::charts::{combinations, name};
use crate::experiment::{Experiment, Table, capital, fits};
use crate::figure::{Figure, short};
use crate::plot::escape;
use crate::point::Value;
use crate::results::Found;

/// A table as specified in the file; `None` if none of its points was measured.
pub(crate) fn asked_for(experiment: &Experiment, found: &[Found], table: &Table) -> Option<String> {
    let shown: Vec<&Found> = found.iter().filter(|found| fits(&table.at, &found.coordinates)).collect();
    let quantities: Vec<&String> = table
        .quantity
        .list()
        .iter()
        .filter(|quantity| shown.iter().any(|found| found.figures.contains_key(*quantity)))
        .collect();
    if quantities.is_empty() {
        return None;
    }
    let rows = combinations(experiment, &table.rows, &shown);
    let columns = combinations(experiment, &table.columns, &shown);
    let at = |row: &[(String, Value)], column: &[(String, Value)]| {
        let same = |found: &&&Found| {
            row.iter().chain(column).all(|(axis, value)| found.at(axis).is_some_and(|at| at.same(value)))
        };
        shown.iter().find(same).copied()
    };
    let mut head = String::from("<tr>");
    for axis in &table.rows {
        head += &format!("<th>{}</th>", escape(&capital(&experiment.axis_title(axis))));
    }
    for column in &columns {
        for quantity in &quantities {
            let words = name(experiment, column);
            let of = quantity_head(experiment, &shown, quantity);
            let several = quantities.len() > 1 || words.is_empty();
            let both = match (several, words.is_empty()) {
                (true, true) => escape(&of),
                (true, false) => format!("{}<br><small>{}</small>", escape(&words), escape(&of)),
                (false, _) => {
                    format!("{}<br><small>{}</small>", escape(&words), escape(&unit(&shown, quantity)))
                }
            };
            head += &format!("<th class=n>{both}</th>");
        }
    }
    head += "</tr>";
    let mut body = String::new();
    for row in &rows {
        body += "<tr>";
        for axis in &table.rows {
            let value =
                row.iter().find(|(name, _)| name == axis).map(|(_, value)| experiment.label(axis, value));
            body += &format!("<th>{}</th>", escape(&value.unwrap_or_default()));
        }
        for column in &columns {
            for quantity in &quantities {
                body += &cell(at(row, column), quantity);
            }
        }
        body += "</tr>";
    }
    Some(format!("<div class=wide><table><thead>{head}</thead><tbody>{body}</tbody></table></div>"))
}

/// The table of every point with every quantity.
pub fn everything(experiment: &Experiment, found: &[Found]) -> String {
    let shown: Vec<&Found> = found.iter().collect();
    let mut quantities: Vec<&String> = found.iter().flat_map(|found| found.figures.keys()).collect();
    quantities.sort_unstable();
    quantities.dedup();
    let mut text = String::from("<div class=wide><table><thead><tr>");
    for axis in &experiment.axis {
        text += &format!("<th>{}</th>", escape(&capital(&experiment.axis_title(&axis.name))));
    }
    for quantity in &quantities {
        text += &format!("<th class=n>{}</th>", escape(&quantity_head(experiment, &shown, quantity)));
    }
    text += "</tr></thead><tbody>";
    for found in &shown {
        text += "<tr>";
        for axis in &experiment.axis {
            let value =
                found.at(&axis.name).map(|value| experiment.label(&axis.name, value)).unwrap_or_default();
            text += &format!("<th>{}</th>", escape(&value));
        }
        for quantity in &quantities {
            text += &cell(Some(found), quantity);
        }
        text += "</tr>";
    }
    text + "</tbody></table></div>"
}

fn unit(found: &[&Found], quantity: &str) -> String {
    let figure = found.iter().find_map(|found| found.figures.get(quantity));
    figure.map(|figure| figure.unit.clone()).unwrap_or_default()
}

fn quantity_head(experiment: &Experiment, found: &[&Found], quantity: &str) -> String {
    let (name, unit) = (capital(&experiment.quantity_name(quantity)), unit(found, quantity));
    if unit.is_empty() || name.eq_ignore_ascii_case(&unit) { name } else { format!("{name} ({unit})") }
}

fn cell(found: Option<&Found>, quantity: &str) -> String {
    let Some((found, figure)) =
        found.and_then(|found| found.figures.get(quantity).map(|figure| (found, figure)))
    else {
        return "<td class=n>–</td>".to_owned();
    };
    let class = if found.disturbed * 2 > figure.rounds.len() { "n pale" } else { "n" };
    format!("<td class=\"{class}\">{}{}</td>", short(figure.middle), spread(figure))
}

fn spread(figure: &Figure) -> String {
    if figure.rounds.len() < 2 {
        return String::new();
    }
    format!("<small>{}–{}</small>", short(figure.least), short(figure.most))
}
