//! The results as Markdown, for a document: claims with their verdicts, the first table of each
//! experiment, and the machine. Medians, with the minimum and maximum of the rounds.

use std::collections::BTreeSet;

use super::tables::{Asked, unit};
use super::{Section, overview, page};
use crate::compare::line_ns;
use crate::experiment::{Experiment, Table};
use crate::figure::{Figure, short};
use crate::finding::Verdict;
use crate::record::{Disturbed, Outcome};
use crate::results::Found;

/// The maximum number of figure columns in a table.
const MOST_COLUMNS: usize = 6;
/// The maximum number of reasons why points have no figures.
const MOST_WHYS: usize = 6;
/// The heading level of the parts: below the document's own headings.
const HEAD: &str = "###";

/// The whole Markdown text.
pub fn markdown(sections: &[Section<'_>]) -> String {
    let mut text = page::when(sections) + "\n";
    for (machine, experiments) in page::machines_of(sections) {
        let of = match experiments.len() == sections.len() {
            true => String::new(),
            false => {
                let names: Vec<&str> =
                    experiments.iter().map(|experiment| experiment.name.as_str()).collect();
                format!("{}: ", names.join(", "))
            }
        };
        let facts: Vec<String> = machine
            .peers
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .chain(machine.sysctl.iter().map(|(name, value)| format!("`{name}` = {value}")))
            .collect();
        let binary: String = machine.binary.chars().take(12).collect();
        text += &format!(
            "{of}{}; {}; binary {binary}… (SHA-256).\n",
            plain(&machine.line()),
            plain(&[machine.system.clone()].into_iter().chain(facts).collect::<Vec<_>>().join("; "))
        );
    }
    text += "\n| experiment | claims | holds | nearly holds | does not hold | cannot be told | not measured | runs | failed |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for section in sections {
        let records = &section.results.records;
        let failed = records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_))).count();
        let measured = records.iter().filter(|record| record.sample().is_some()).count();
        let name = &section.results.experiment.name;
        for (at, (class, counts)) in overview(section.judged.iter()).iter().enumerate() {
            let runs = if at == 0 { format!(" {measured} | {failed} ") } else { "  |  ".to_owned() };
            text += &format!("| `{name}` | {class} | {} |{runs}|\n", counts.join(" | "));
        }
    }
    if sections.len() > 1 {
        for (class, counts) in overview(sections.iter().flat_map(|section| &section.judged)) {
            text += &format!("| all | {class} | {} |  |  |\n", counts.join(" | "));
        }
    }
    text += "\nIn tables a figure is the median of the rounds, with the least and the most of them in brackets. In reasons, what stands in brackets is \
             bounds, and a ratio is the median of the rounds' own ratios, not the ratio of the medians. What *nearly holds* misses its limit by 5 % at most, if it does. \
             Disturbed rounds decide no verdict. A claim *by construction* follows from how the experiment is built.\n";
    for section in sections {
        text += &one(section);
    }
    text
}

fn one(section: &Section<'_>) -> String {
    let (results, experiment) = (section.results, &section.results.experiment);
    let mut text = format!("\n{HEAD} {}\n\n{}\n", experiment.name, plain(&experiment.title));
    if !section.judged.is_empty() {
        text += "\n| claim | whose | here | why |\n|---|---|---|---|\n";
        for judged in &section.judged {
            text += &format!(
                "| {} | {} | {} | {} |\n",
                cell_text(&judged.claim),
                judged.class.words(),
                strong(judged.verdict),
                cell_text(&judged.sentence)
            );
        }
    }
    if let Some(table) = experiment.table.first() {
        if let Some(rows) = asked_for(experiment, &section.found, table) {
            text += &format!("\n{}\n\n{rows}", plain(&table.title));
        }
    }
    let whys: BTreeSet<String> = results
        .records
        .iter()
        .filter_map(|record| match &record.outcome {
            Outcome::Measured(_) => None,
            Outcome::Missing(why) => Some(format!("left out: {why} ({})", record.key)),
            Outcome::Failed(why) => Some(format!("failed: {why} ({}, round {})", record.key, record.round)),
        })
        .collect();
    if !whys.is_empty() {
        text += "\n";
    }
    for why in whys.iter().take(MOST_WHYS) {
        text += &format!("- {}\n", plain(why));
    }
    if whys.len() > MOST_WHYS {
        text += &format!("- and {} more\n", whys.len() - MOST_WHYS);
    }
    let line = line_ns(results)
        .map(|line| format!("; a cache line took {line} ns from core to core (median)"))
        .unwrap_or_default();
    text + &format!("\n{}{line}.\n", Disturbed::of(&results.records).words())
}

fn strong(verdict: Verdict) -> String {
    match verdict {
        Verdict::Holds | Verdict::NearlyHolds | Verdict::DoesNotHold => format!("**{}**", verdict.words()),
        Verdict::CannotBeTold | Verdict::NotMeasured => verdict.words().to_owned(),
    }
}

/// A table as specified in the experiment's file, with as many of its quantities as fit side by
/// side.
fn asked_for(experiment: &Experiment, found: &[Found], table: &Table) -> Option<String> {
    let asked = Asked::of(experiment, found, table, MOST_COLUMNS)?;
    let of = |(place, quantity): &(String, &str)| {
        let (name, unit) = (experiment.quantity_name(quantity), unit(found, quantity));
        let of = if unit.is_empty() { name } else { format!("{name}, {unit}") };
        if place.is_empty() { of } else { format!("{place}: {of}") }
    };
    let head = asked.places.iter().cloned().chain(asked.columns.iter().map(of));
    let rule = "|---".repeat(asked.places.len()) + &"|--:".repeat(asked.columns.len());
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head.map(|name| cell_text(&name)).collect()) + &format!("{rule}|\n");
    for row in &asked.rows {
        let places = row.places.iter().map(|place| cell_text(place));
        let figures =
            row.figures.iter().map(|one| one.map_or_else(|| "–".to_owned(), |(_, one)| figure(one)));
        text += &line(places.chain(figures).collect());
    }
    Some(text)
}

fn figure(figure: &Figure) -> String {
    match figure.rounds.len() {
        0 | 1 => short(figure.middle),
        _ => format!("{} ({}–{})", short(figure.middle), short(figure.least), short(figure.most)),
    }
}

/// Text on one line, with `<` escaped.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('<', "\\<")
}

fn cell_text(text: &str) -> String {
    plain(text).replace('|', "\\|")
}
