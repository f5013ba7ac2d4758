//! Checks results that somebody hands on: that no file has changed since the report was written,
//! that the figures of each record stand in what the tools printed, and that `report.json` follows
//! from the records. It reads, runs nothing, and needs no machine like the one that measured.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::machine::hex;
use crate::measures;
use crate::report;
use crate::results::{Error, Results, io_error, read_all, read_text, write_whole};

/// The file of checksums, as sha256sum(1) writes and reads it.
pub const SUMS: &str = "SHA256SUMS";
/// The folder of the logs of points that failed.
const LOGS: &str = "logs";
/// The relative difference of two numbers that are the same: decimal digits may round the last bit.
const SAME: f64 = 1e-9;
/// The most differences of one report that are told.
const MOST_TOLD: usize = 10;

/// What was checked, and what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Files that have their checksum.
    pub files: usize,
    /// Records of points that were measured.
    pub records: usize,
    /// Figures that follow from what tools printed.
    pub recomputed: usize,
    /// Runs whose latencies, one by one in a histogram, are those of their percentiles.
    pub distributions: usize,
    /// Figures that the lab counted itself, such as processor time: nothing printed them.
    pub counted: usize,
    /// Verdicts of the report that follow from the records.
    pub verdicts: usize,
    /// Sentences, one for each thing that does not hold.
    pub wrong: Vec<String>,
}

/// Writes the checksums of all files of `dir`, over earlier ones.
///
/// # Errors
/// If a file cannot be read, or the checksums not be written.
pub fn seal(dir: &Path) -> Result<(), Error> {
    let lines: String = sums(dir)?.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    let path = dir.join(SUMS);
    write_whole(&path, lines.as_bytes()).map_err(io_error(&path))
}

/// Checks the results in `dir`.
///
/// # Errors
/// If they cannot be read as results at all.
pub fn verify(dir: &Path) -> Result<Verified, Error> {
    let mut verified = Verified::default();
    files(dir, &mut verified)?;
    let all = read_all(dir)?;
    for results in &all {
        verified.wrong.extend(results.broken.iter().cloned());
        records(results, &mut verified);
    }
    let path = dir.join("report/report.json");
    let text = read_text(&path)?;
    match serde_json::from_str::<Value>(&text) {
        Ok(published) => compare_reports(&published, &report::json_of(&all), &mut verified),
        Err(error) => verified.wrong.push(format!("{}: {error}", path.display())),
    }
    Ok(verified)
}

/// SHA-256 of all regular files below `dir`, by their names from there. Logs are left out: they
/// come and go while points run.
fn sums(dir: &Path) -> Result<BTreeMap<String, String>, Error> {
    let (mut all, mut folders) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(io_error(&folder))? {
            let entry = entry.map_err(io_error(&folder))?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(io_error(&folder))?);
            let name = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
            if kind.is_dir() && entry.file_name() != LOGS {
                folders.push(path);
            } else if kind.is_file() && name != SUMS && !name.ends_with(".lock") && !name.ends_with(".new") {
                let mut hash = Sha256::new();
                File::open(&path)
                    .and_then(|mut file| io::copy(&mut file, &mut hash))
                    .map_err(io_error(&path))?;
                all.insert(name, hex(&hash.finalize()));
            }
        }
    }
    Ok(all)
}

fn files(dir: &Path, verified: &mut Verified) -> Result<(), Error> {
    let path = dir.join(SUMS);
    if !path.is_file() {
        let why = "there is no such file: `stag lab report` writes it with the report".to_owned();
        return Err(Error::Broken { path: path.display().to_string(), why });
    }
    let text = read_text(&path)?;
    let sealed: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once("  ").map(|(sum, name)| (name, sum))).collect();
    let found = sums(dir)?;
    for (name, sum) in &sealed {
        match found.get(*name) {
            Some(now) if now == sum => verified.files += 1,
            Some(_) => verified.wrong.push(format!("{name} has changed since the report was written")),
            None => verified.wrong.push(format!("{name} is missing")),
        }
    }
    let new = found.keys().filter(|name| !sealed.contains_key(name.as_str()));
    verified.wrong.extend(new.map(|name| format!("{name} has come since the report was written")));
    Ok(())
}

/// Reads the figures of each record anew, in what the tools printed.
fn records(results: &Results, verified: &mut Verified) {
    let name = &results.experiment.name;
    for record in &results.records {
        let Some(sample) = record.sample() else { continue };
        let place = format!("{name}: {}, round {}", record.key, record.round);
        verified.records += 1;
        match measures::latencies_agree(record) {
            None => {}
            Some(Ok(())) => verified.distributions += 1,
            Some(Err(why)) => verified.wrong.push(format!("{place}: {why}")),
        }
        let again = match measures::read_again(&results.experiment, record) {
            None => Default::default(),
            Some(Ok(again)) => again.values,
            Some(Err(error)) => {
                verified.wrong.push(format!("{place}: {error}"));
                continue;
            }
        };
        for (quantity, told) in &sample.values {
            match again.get(quantity) {
                None => verified.counted += 1,
                Some(found) if same(found.value, told.value) => verified.recomputed += 1,
                Some(found) => verified.wrong.push(format!(
                    "{place}: {quantity} is {} in the record, and {} by what was printed",
                    told.value, found.value
                )),
            }
        }
        let lost = again.keys().filter(|quantity| !sample.values.contains_key(*quantity));
        verified
            .wrong
            .extend(lost.map(|quantity| format!("{place}: the record has no {quantity}, which was printed")));
    }
}

fn compare_reports(published: &Value, computed: &Value, verified: &mut Verified) {
    let mut differences = Vec::new();
    differ("report", published, computed, &mut differences);
    let experiments = computed["experiments"].as_array().into_iter().flatten();
    verified.verdicts +=
        experiments.filter_map(|one| one["findings"].as_array()).map(Vec::len).sum::<usize>();
    let more = differences.len().saturating_sub(MOST_TOLD);
    verified.wrong.extend(differences.into_iter().take(MOST_TOLD));
    if more > 0 {
        verified.wrong.push(format!("report: {more} more differences"));
    }
}

fn same(one: f64, other: f64) -> bool {
    one == other || (one - other).abs() <= SAME * one.abs().max(other.abs())
}

/// Adds a sentence for each place where both differ.
fn differ(place: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let more = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(more) {
                differ(&format!("{place}/{key}"), &one[key.as_str()], &other[key.as_str()], found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (one, other)) in a.iter().zip(b).enumerate() {
                differ(&format!("{place}/{at}"), one, other, found);
            }
        }
        _ => {
            let numbers = one.as_f64().zip(other.as_f64());
            if one != other && !numbers.is_some_and(|(one, other)| same(one, other)) {
                let shown = |value: &Value| value.to_string().chars().take(200).collect::<String>();
                found.push(format!(
                    "{place} is {} as published, and {} by the records",
                    shown(one),
                    shown(other)
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_may_differ_in_their_last_bit_and_in_nothing_else() {
        let told = |one: &Value, other: &Value| {
            let mut found = Vec::new();
            differ("report", one, other, &mut found);
            found
        };
        let one = json!({ "a": [1.0, { "b": "holds" }], "n": 3 });
        assert!(told(&one, &json!({ "a": [1.000_000_000_000_1, { "b": "holds" }], "n": 3.0 })).is_empty());
        let found = told(&one, &json!({ "a": [1.0, { "b": "does not hold" }], "n": 3, "more": 1 }));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("report/a/1/b is \"holds\" as published"), "{found:?}");
        assert_eq!(told(&one, &json!({ "a": [1.0], "n": 3 })).len(), 1);
    }

    #[test]
    fn a_file_that_changed_came_or_went_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("x")).unwrap();
        fs::create_dir(at("logs")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        for name in ["a", "x/b", "c", ".lock", "logs/new"] {
            fs::write(at(name), name).unwrap();
        }
        seal(folder.path()).unwrap();
        let check = || {
            let mut verified = Verified::default();
            files(folder.path(), &mut verified).unwrap();
            verified
        };
        assert_eq!((check().files, check().wrong), (3, Vec::new()));
        fs::write(at("x/b"), "B").unwrap();
        fs::write(at("x/new"), "").unwrap();
        fs::remove_file(at("c")).unwrap();
        let wrong = check().wrong.join("\n");
        for words in ["x/b has changed", "x/new has come", "c is missing"] {
            assert!(wrong.contains(words), "{wrong}");
        }
    }
}
