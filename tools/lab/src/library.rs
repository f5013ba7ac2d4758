//! The built-in experiments, and those of files. It reads them and runs nothing.

use std::fs;
use std::path::Path;

use crate::experiment::{Experiment, Wrong};
use crate::measures;

/// The texts of `experiments/*.toml`, by file name.
const BUILT_IN: &[&str] = include!(concat!(env!("OUT_DIR"), "/experiments.rs"));

/// The maximum length of a file, bytes.
const MOST_TEXT: u64 = 1 << 20;

/// An experiment and the text that it was read from.
#[derive(Clone, Debug)]
pub struct Source {
    pub experiment: Experiment,
    /// The text of the file.
    pub text: String,
}

/// Why an experiment cannot be found or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a built-in name nor a file.
    #[error("no experiment and no file is called {0}; `stag lab list` names those that there are")]
    Unknown(String),
    /// A file that cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The path of the file.
        path: String,
        #[source]
        error: std::io::Error,
    },
    /// A file with an error.
    #[error("{path}: {error}")]
    Wrong {
        /// The path of the file.
        path: String,
        #[source]
        error: Wrong,
    },
}

/// All built-in experiments, in the order of their files.
///
/// # Errors
/// If one is invalid, which a test rules out.
pub fn built_in() -> Result<Vec<Source>, Error> {
    BUILT_IN.iter().map(|text| read("a built-in experiment", (*text).to_owned())).collect()
}

/// The built-in experiment of that name, or the one of that file; `all` means all built-in ones
/// that repeat a paper: those with marks of our own are named.
///
/// # Errors
/// If there is none, or it is invalid.
pub fn find(word: &str) -> Result<Vec<Source>, Error> {
    let mut known = built_in()?;
    if word == "all" {
        known.retain(|source| !source.experiment.paper.is_empty());
        return Ok(known);
    }
    if let Some(at) = known.iter().position(|source| source.experiment.name == word) {
        return Ok(vec![known.swap_remove(at)]);
    }
    let path = Path::new(word);
    if !path.is_file() {
        return Err(Error::Unknown(word.to_owned()));
    }
    let unreadable = |error| Error::Unreadable { path: word.to_owned(), error };
    if fs::metadata(path).map_err(unreadable)?.len() > MOST_TEXT {
        return Err(unreadable(std::io::Error::other("longer than 1 MiB")));
    }
    Ok(vec![read(word, fs::read_to_string(path).map_err(unreadable)?)?])
}

fn read(path: &str, text: String) -> Result<Source, Error> {
    let wrong = |error| Error::Wrong { path: path.to_owned(), error };
    let experiment = Experiment::read(&text).map_err(wrong)?;
    if !measures::KINDS.contains(&experiment.measure.as_str()) {
        let (measure, kinds) = (&experiment.measure, measures::KINDS.join(", "));
        return Err(wrong(Wrong::Sense(format!("no measure is called `{measure}`; there are: {kinds}"))));
    }
    if let Some(name) = unknown_setting(&experiment) {
        let (measure, known) = (&experiment.measure, measures::settings(&experiment).join(", "));
        return Err(wrong(Wrong::Sense(format!("`{measure}` reads no setting `{name}`; it reads: {known}"))));
    }
    Ok(Source { experiment, text })
}

/// A setting that the measure does not read: a misspelt setting would otherwise be ignored
/// silently.
fn unknown_setting(experiment: &Experiment) -> Option<&str> {
    let known = measures::settings(experiment);
    let of_axes = experiment.axis.iter().flat_map(|axis| axis.settings.values());
    let all = [&experiment.settings, &experiment.quick.settings].into_iter().chain(of_axes);
    all.flat_map(|table| table.keys()).map(String::as_str).find(|name| !known.contains(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn built_in_experiments_are_valid_and_have_unique_names() {
        let all = built_in().unwrap();
        let names: BTreeSet<_> = all.iter().map(|source| source.experiment.name.clone()).collect();
        assert_eq!(names.len(), all.len());
        for source in &all {
            let experiment = &source.experiment;
            assert!(!experiment.title.is_empty() && !experiment.about.is_empty(), "{}", experiment.name);
        }
    }

    #[test]
    fn a_setting_that_nothing_reads_is_an_error_wherever_it_is() {
        let axis = "[[axis]]\nname = 'way'\nvalues = ['a']\n";
        let file = |settings: &str| {
            read("x", format!("format = 1\nname = 'x'\ntitle = 'X'\nmeasure = 'bench'\n{settings}"))
        };
        assert!(file(&format!("[settings]\ndepth = 4\n{axis}[axis.settings]\na = {{ mtu = 9000 }}")).is_ok());
        for settings in [
            format!("[settings]\ncrc = false\n{axis}"),
            format!("[quick]\nsettings = {{ crc = false }}\n{axis}"),
            format!("{axis}[axis.settings]\na = {{ crc = false }}"),
        ] {
            let error = file(&settings).unwrap_err().to_string();
            assert!(error.contains("no setting `crc`") && error.contains("digests"), "{error}");
        }
    }

    #[test]
    fn an_unknown_experiment_name_is_an_error() {
        assert!(find("no-such-thing").unwrap_err().to_string().contains("stag lab list"));
    }
}
