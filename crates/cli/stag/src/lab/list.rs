//! `stag lab list`: the experiments that there are, and how long each takes.

use std::time::Duration;

use lab::figure::number;
use lab::library::{self, Source};
use lab::progress::time;
use serde::Serialize;

use super::{failed, print};
use crate::args::lab::LabList;
use crate::exit::Exit;
use crate::suggest;

pub fn list(args: &LabList) -> Exit {
    let all = match library::built_in() {
        Ok(all) => all,
        Err(error) => return failed(&error, Exit::Failed),
    };
    if let Some(name) = &args.show {
        return match all.iter().find(|source| source.experiment.name == *name) {
            Some(source) => print(&source.text),
            None => failed(&unknown(name, &all), Exit::Usage),
        };
    }
    if args.json {
        return match serde_json::to_string_pretty(&all.iter().map(line).collect::<Vec<_>>()) {
            Ok(text) => print(&(text + "\n")),
            Err(error) => failed(&error, Exit::Failed),
        };
    }
    let wide =
        all.iter().map(|source| source.experiment.name.len()).max().unwrap_or(0).max("experiment".len());
    let mut text = format!("{:wide$}  {:>12}  {:>12}  what\n", "experiment", "quick", "full");
    for source in &all {
        let line = line(source);
        let took = |plan: &Plan| format!("{} in {}", plan.runs, time(plan.expected()));
        text += &format!(
            "{:wide$}  {:>12}  {:>12}  {}\n",
            line.name,
            took(&line.quick),
            took(&line.full),
            line.title
        );
        if !line.paper.is_empty() {
            text += &format!("{:wide$}  {:>12}  {:>12}  ({})\n", "", "", "", line.paper);
        }
    }
    let whole = |quick: bool| -> Duration {
        let plans = all.iter().map(line).map(|line| if quick { line.quick } else { line.full });
        plans.map(|plan| plan.expected()).sum()
    };
    text += &format!(
        "\nruns in about the time that they take; all together {} with --quick, {} without\n",
        time(whole(true)),
        time(whole(false))
    );
    print(&text)
}

/// The error for an unknown name.
pub fn unknown(name: &str, all: &[Source]) -> String {
    let names: Vec<&str> = all.iter().map(|source| source.experiment.name.as_str()).collect();
    match suggest::nearest(name, names.iter().copied()) {
        Some(near) => format!("no experiment is called {name}; did you mean {near}?"),
        None => format!("no experiment is called {name}; there are {}", suggest::list(names)),
    }
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    title: &'a str,
    paper: &'a str,
    measure: &'a str,
    quick: Plan,
    full: Plan,
}

#[derive(Serialize)]
struct Plan {
    points: usize,
    rounds: u32,
    runs: usize,
    expected_s: f64,
}

impl Plan {
    fn expected(&self) -> Duration {
        Duration::try_from_secs_f64(self.expected_s).unwrap_or_default()
    }
}

fn line(source: &Source) -> Line<'_> {
    let experiment = &source.experiment;
    let plan = |quick: bool| {
        let (points, rounds) = (experiment.points(quick).len(), experiment.rounds(quick));
        let runs = experiment.runs(quick);
        Plan { points, rounds, runs, expected_s: number(runs) * experiment.expect_s(quick) }
    };
    Line {
        name: &experiment.name,
        title: &experiment.title,
        paper: &experiment.paper,
        measure: &experiment.measure,
        quick: plan(true),
        full: plan(false),
    }
}
