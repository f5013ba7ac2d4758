//! The report: one self-contained page, and the same content as JSON, Markdown, CSV, SVG and PNG.
//! It reads results and runs nothing.

pub(crate) mod cdf;
mod charts;
mod grid;
mod markdown;
mod page;
mod paper;
mod png;
mod style;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::experiment::Class;
use crate::finding::{Judged, Verdict, judge};
use crate::pgf::picture;
use crate::plot;
use crate::point::Value;
use crate::record::Outcome;
use crate::results::{Found, Results, csv, write_whole};
use charts::{Named, charts};
use png::Painter;

/// The version of the format of `report.json`.
const FORMAT: u32 = 1;

#[derive(Clone, Debug)]
pub struct Written {
    pub page: PathBuf,
    /// The number of SVG charts.
    pub charts: usize,
    /// The number of PNG charts.
    pub pngs: usize,
    /// Why PNG charts are missing.
    pub no_png: Option<String>,
}

/// A failure to write a file.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct Error {
    /// The path of the file.
    path: String,
    #[source]
    error: io::Error,
}

/// The data of one experiment.
struct Section<'a> {
    results: &'a Results,
    found: Vec<Found>,
    judged: Vec<Judged>,
    charts: Vec<Named>,
}

/// The verdicts, in the order of the overview.
const VERDICTS: [Verdict; 5] =
    [Verdict::Holds, Verdict::NearlyHolds, Verdict::DoesNotHold, Verdict::CannotBeTold, Verdict::NotMeasured];

/// The rows of the overview: the class of claims, and the number of each verdict in the order of
/// [`VERDICTS`]. One row if there are no claims.
fn overview<'a>(judged: impl Iterator<Item = &'a Judged> + Clone) -> Vec<(&'static str, [String; 5])> {
    let of = |class: Class| judged.clone().filter(move |one| one.class == class);
    let shown = |count: usize| if count == 0 { "–".to_owned() } else { count.to_string() };
    let counts =
        |class| VERDICTS.map(|verdict| shown(of(class).filter(|one| one.verdict == verdict).count()));
    let classes = Class::ALL.into_iter().filter(|class| of(*class).next().is_some());
    let rows: Vec<_> = classes.map(|class| (class.words(), counts(class))).collect();
    if rows.is_empty() { vec![("–", VERDICTS.map(|_| shown(0)))] } else { rows }
}

/// The content of `report.json`, read from its text: it has the same rounding as the file.
pub(crate) fn json_of(results: &[Results]) -> serde_json::Value {
    serde_json::from_str(&json(&sections(results))).unwrap_or_default()
}

fn sections(results: &[Results]) -> Vec<Section<'_>> {
    let of = |results| {
        let found = Results::found(results);
        let charts = charts(results, &found);
        Section { results, judged: judge(results), charts, found }
    };
    results.iter().map(of).collect()
}

/// Writes the report on `results` into the folder `out`.
///
/// With `pgf`, a source of LaTeX for each chart too.
pub fn write(results: &[Results], out: &Path, pgf: bool) -> Result<Written, Error> {
    let sections = sections(results);
    make(out)?;
    let painter = Painter::new();
    let mut written = Written { page: out.join("index.html"), charts: 0, pngs: 0, no_png: None };
    if painter.is_none() {
        written.no_png =
            Some("this machine has no font (on Debian: apt-get install fonts-dejavu-core)".to_owned());
    }
    let mut drawn = Vec::new();
    for section in &sections {
        let folder = out.join(&section.results.experiment.name);
        make(&folder)?;
        save(
            &folder.join("samples.csv"),
            csv(&section.results.experiment, &section.results.records).as_bytes(),
        )?;
        save(&folder.join("experiment.toml"), section.results.text.as_bytes())?;
        let mut svgs = Vec::new();
        for named in &section.charts {
            let svg = plot::draw(&named.chart);
            let file = plot::alone(&svg);
            save(&folder.join(format!("{}.svg", named.file)), file.as_bytes())?;
            if pgf {
                let source = picture(&named.chart);
                save(&folder.join(format!("{}.pgf", named.file)), source.as_bytes())?;
            }
            written.charts += 1;
            match painter.as_ref().map(|painter| painter.paint(&file)) {
                Some(Ok(png)) => {
                    save(&folder.join(format!("{}.png", named.file)), &png)?;
                    written.pngs += 1;
                }
                Some(Err(why)) => written.no_png = Some(format!("{}: {why}", named.file)),
                None => {}
            }
            svgs.push(svg);
        }
        drawn.push(svgs);
    }
    save(&out.join("report.json"), json(&sections).as_bytes())?;
    save(&out.join("results.md"), markdown::markdown(&sections).as_bytes())?;
    save(&written.page, page::page(&sections, &drawn).as_bytes())?;
    Ok(written)
}

fn make(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|error| Error { path: path.display().to_string(), error })
}

fn save(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_whole(path, bytes).map_err(|error| Error { path: path.display().to_string(), error })
}

#[derive(Serialize)]
struct Json<'a> {
    format: u32,
    experiments: Vec<JsonExperiment<'a>>,
}

#[derive(Serialize)]
struct JsonExperiment<'a> {
    name: &'a str,
    title: &'a str,
    paper: &'a str,
    quick: bool,
    began: f64,
    machine: &'a crate::machine::Machine,
    findings: &'a [Judged],
    points: Vec<JsonPoint<'a>>,
    missing: Vec<JsonMissing<'a>>,
}

#[derive(Serialize)]
struct JsonPoint<'a> {
    coordinates: std::collections::BTreeMap<&'a str, &'a Value>,
    disturbed_rounds: usize,
    figures: &'a std::collections::BTreeMap<String, crate::figure::Figure>,
}

#[derive(Serialize)]
struct JsonMissing<'a> {
    key: &'a str,
    round: u32,
    failed: bool,
    why: &'a str,
}

fn json(sections: &[Section<'_>]) -> String {
    let experiments = sections.iter().map(|section| JsonExperiment {
        name: &section.results.experiment.name,
        title: &section.results.experiment.title,
        paper: &section.results.experiment.paper,
        quick: section.results.info.quick,
        began: section.results.info.began,
        machine: &section.results.info.machine,
        findings: &section.judged,
        points: section
            .found
            .iter()
            .map(|found| JsonPoint {
                coordinates: found.coordinates.iter().map(|(axis, value)| (axis.as_str(), value)).collect(),
                disturbed_rounds: found.disturbed,
                figures: &found.figures,
            })
            .collect(),
        missing: section.results.records.iter().filter_map(missing).collect(),
    });
    let all = Json { format: FORMAT, experiments: experiments.collect() };
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}

fn missing(record: &crate::Record) -> Option<JsonMissing<'_>> {
    let (failed, why) = match &record.outcome {
        Outcome::Measured(_) => return None,
        Outcome::Missing(why) => (false, why),
        Outcome::Failed(why) => (true, why),
    };
    Some(JsonMissing { key: &record.key, round: record.round, failed, why })
}
