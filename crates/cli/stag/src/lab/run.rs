//! `stag lab run`: runs experiments, ends them well on Ctrl-C, and says what came of them.

use std::path::PathBuf;
use std::time::Duration;

use lab::context::{Pinning, kill_all, remove_what_others_left};
use lab::finding::Verdict;
use lab::library::{self, Source};
use lab::machine::Machine;
use lab::progress::Bar;
use lab::run::{Options, Summary};
use lab::{Stop, measures, results};

use super::{failed, list, print, report};
use crate::args::lab::LabRun;
use crate::exit::Exit;
use crate::interrupt;

pub fn run(args: &LabRun) -> Exit {
    let stop = Stop::default();
    // Before anything starts a thread.
    let asked = stop.clone();
    if let Err(error) = interrupt::watch(move || asked.ask(), kill_all) {
        return failed(&format!("no io_uring: {error}"), Exit::Failed);
    }
    let sources = match sources(&args.experiments) {
        Ok(sources) => sources,
        Err(why) => return failed(&why, Exit::Usage),
    };
    if let Err(error) = lab::run::check_only(&sources, &args.only) {
        return failed(&error, Exit::Usage);
    }
    let stag = match stag() {
        Ok(stag) => stag,
        Err(why) => return failed(&why, Exit::Failed),
    };
    let machine = Machine::look(&stag, &args.out);
    let options = Options {
        out: args.out.clone(),
        quick: args.quick,
        only: args.only.clone(),
        again: args.again,
        retry: args.retry,
        rounds: args.rounds,
        seed: args.seed,
        pinning: pinning(args, &machine),
        realtime: args.realtime,
        within: args.minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes)),
        wait: Duration::from_secs_f64(60.0 * args.wait),
        stag,
    };
    let unknown = |cpu: &&usize| !machine.processors.contains(cpu);
    if let Some(cpu) = options.pinning.target.iter().chain(&options.pinning.client).find(unknown) {
        return failed(&format!("there is no processor {cpu} for this process"), Exit::Usage);
    }
    remove_what_others_left();
    let mut bar = Bar::new(args.quiet);
    let done = lab::run::run(&sources, &options, machine, &measures::of, &stop, &mut bar);
    bar.finish();
    let summary = match done {
        Ok(summary) => summary,
        Err(error) => return failed(&error, Exit::Failed),
    };
    let mut text = told(&summary);
    let mut missed = false;
    if !args.no_report && !summary.interrupted {
        match written(args, &sources) {
            Ok((more, misses)) => {
                text += &more;
                missed = misses;
            }
            Err(why) => return failed(&why, Exit::Failed),
        }
    }
    if summary.interrupted {
        say!("stag: interrupted; the same command goes on with it");
    }
    let failed = summary.experiments.iter().any(|one| one.failed > 0) || args.check && missed;
    print(&text).or(match (summary.interrupted, failed) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Done,
    })
}

/// The program `stag`, which lies beside this one.
pub fn stag() -> Result<PathBuf, String> {
    let lab = std::env::current_exe().map_err(|error| format!("where the stag binary is: {error}"))?;
    Ok(lab.with_file_name("stag"))
}

/// The experiments of these names and files.
pub fn sources(words: &[String]) -> Result<Vec<Source>, String> {
    let mut all: Vec<Source> = Vec::new();
    for word in words {
        let found = library::find(word).map_err(|error| match error {
            library::Error::Unknown(name) => match library::built_in() {
                Ok(known) => format!("{}, and no file", list::unknown(&name, &known)),
                Err(error) => error.to_string(),
            },
            error => error.to_string(),
        })?;
        for source in found {
            // Named twice, or by its name and by `all`.
            match all.iter().find(|known| known.experiment.name == source.experiment.name) {
                None => all.push(source),
                Some(known) if known.text == source.text => {}
                Some(_) => return Err(format!("two experiments are called {}", source.experiment.name)),
            }
        }
    }
    Ok(all)
}

fn pinning(args: &LabRun, machine: &Machine) -> Pinning {
    if args.unpinned {
        return Pinning::default();
    }
    if args.target_cpus.is_empty() {
        return machine.pinning();
    }
    Pinning { target: args.target_cpus.clone(), client: args.client_cpus.clone() }
}

fn told(summary: &Summary) -> String {
    let mut text = String::new();
    for one in &summary.experiments {
        let mut words = vec![format!("{} measured", one.measured)];
        let others = [
            (one.before, "recorded before"),
            (one.failed, "failed"),
            (one.missing, "not possible here"),
            (one.left_out, "left out after that"),
            (one.retaken, "taken again since the machine was disturbed"),
        ];
        words.extend(
            others.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
        );
        text += &format!("{}: {}\n", one.name, words.join(", "));
    }
    text
}

/// Writes the report. Returns the verdicts of the experiments of this run, and whether any claim
/// does not hold.
fn written(args: &LabRun, sources: &[Source]) -> Result<(String, bool), String> {
    let results = results::read_all(&args.out).map_err(|error| error.to_string())?;
    let written =
        lab::report::write(&results, &args.out.join("report"), false).map_err(|error| error.to_string())?;
    lab::verify::seal(&args.out).map_err(|error| error.to_string())?;
    let (mut text, mut missed) = (String::new(), false);
    for one in results.iter().filter(|one| sources.iter().any(|s| s.experiment.name == one.experiment.name)) {
        for judged in lab::finding::judge(one) {
            missed |= judged.verdict == Verdict::DoesNotHold;
            if judged.verdict != Verdict::NotMeasured || !args.quick {
                text += &format!(
                    "{:14}  {}: {} ({})\n",
                    judged.verdict.words(),
                    one.experiment.name,
                    judged.claim,
                    judged.class.words()
                );
            }
        }
    }
    Ok((text + &report::told(&written), missed))
}
