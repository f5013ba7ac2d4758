//! Checks the pages that name proofs (README.md, evidence/tested.md, evidence/proofs.md and
//! design/security.md) against the sources. Every check, suite, case and test that they name
//! exists, and they state the right numbers of checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use conform::{Over, checks};

use crate::support::workspace::{crates, workspace};

fn read(path: impl AsRef<Path>) -> String {
    let path = workspace().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files below a folder whose name ends so.
fn files(folder: &Path, ends: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            files(&path, ends, found);
        } else if path.to_string_lossy().ends_with(ends) {
            found.push(path);
        }
    }
}

/// The names of the Rust tests in a folder.
fn tests_in(folder: &Path) -> BTreeSet<String> {
    let mut sources = Vec::new();
    files(folder, ".rs", &mut sources);
    let mut names = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(source).expect("a source is text");
        for after in text.split("#[test]").skip(1) {
            // Other attributes may stand between.
            let name = after.split_once("fn ").map(|(_, rest)| rest.split('(').next().unwrap_or_default());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

/// The names of the Rust tests of all crates.
fn all_tests() -> BTreeSet<String> {
    crates().values().flat_map(|folder| tests_in(folder)).collect()
}

/// The suites of `tests/run` by their short names, each with its source; continued string literals
/// are one.
fn suites() -> BTreeMap<String, String> {
    let list = read("tests/lab/main.py");
    let (_, list) = list.split_once("SUITES = [").expect("tests/lab/main.py has the list of suites");
    let (list, _) = list.split_once(']').expect("the list ends");
    let names = list.split('"').filter(|word| word.contains('.'));
    let source = |name: &str| read(format!("tests/{}.py", name.replace('.', "/")));
    names.map(|name| (name.split('.').next_back().unwrap_or(name).to_owned(), source(name))).collect()
}

/// The text of the code spans (in backticks).
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the tables of a text: their cells.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>();
        Some(cells)
    })
}

/// Whether there is a module with tests of its own: `control::socket` of any crate,
/// `backing::durable` of that one.
fn module_exists(first: &str, rest: &str) -> bool {
    let of_the_crate = |folder: &PathBuf, path: &str| {
        let path = folder.join("src").join(path.replace("::", "/"));
        [path.with_extension("rs"), path.join("mod.rs"), path.join("tests.rs")]
            .iter()
            .any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]")))
    };
    crates().iter().any(|(name, folder)| {
        of_the_crate(folder, &format!("{first}::{rest}")) || name == first && of_the_crate(folder, rest)
    })
}

/// The reason why a proof of docs/src/evidence/proofs.md does not exist; `None` if it does.
fn fault(
    proof: &str,
    suites: &BTreeMap<String, String>,
    tests: &BTreeSet<String>,
    checks: &BTreeSet<String>,
) -> Option<String> {
    if checks.contains(proof) || tests.contains(proof) || suites.contains_key(proof) {
        return None;
    }
    if let Some((first, rest)) = proof.split_once("::") {
        return (!module_exists(first, rest)).then(|| format!("{proof}: no such module of tests"));
    }
    if proof.contains('/') && workspace().join(proof).exists() {
        return None;
    }
    match proof.split_once(": ") {
        // A suite made of other files' cases has them under its own name.
        Some((suite, case)) => match suites.get(suite) {
            // Names are made of a suite's name and a description, or of the description alone.
            Some(source) if source.contains(case) || case_in_parts(suite, case) => None,
            Some(_) => Some(format!("{proof}: the suite {suite} has no such case")),
            None => Some(format!("{proof}: no suite {suite}")),
        },
        None => Some(format!("{proof}: no check, suite or test of that name")),
    }
}

/// Whether the case is in one of the files that a suite is made of (`osd_data` of `osd`).
fn case_in_parts(suite: &str, case: &str) -> bool {
    let mut parts = Vec::new();
    files(&workspace().join("tests/peers"), ".py", &mut parts);
    let of_it = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{suite}_")))
    };
    parts.iter().filter(of_it).any(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(case)))
}

#[test]
fn every_proof_that_docs_proofs_names_exists() {
    let text = read("docs/src/evidence/proofs.md");
    let (suites, tests) = (suites(), all_tests());
    let checks: BTreeSet<String> = checks().iter().map(conform::Check::full_name).collect();
    assert!(
        suites.len() > 20 && tests.len() > 1000 && checks.len() > 300,
        "this test reads the sources wrongly"
    );
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for cells in rows(&text) {
        let (proofs, rest) = cells.split_last().expect("a row has cells");
        let proven: Vec<_> = spans(proofs).collect();
        seen += proven.len();
        let says_no = rest.iter().any(|cell| cell.split([':', ' ']).next() == Some("no"));
        if proven.is_empty() && !says_no && *proofs != "shown by" {
            wrong.push(format!("nothing shows this: {}", cells.join(" | ")));
        }
        wrong.extend(proven.into_iter().filter_map(|proof| fault(proof, &suites, &tests, &checks)));
    }
    assert!(seen > 150, "{seen} proofs");
    assert!(wrong.is_empty(), "docs/src/evidence/proofs.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_promise_of_docs_security_has_a_test_that_exists() {
    let text = read("docs/src/design/security.md");
    let (suites, tests) = (suites(), all_tests());
    let checks: BTreeSet<String> = checks().iter().map(conform::Check::full_name).collect();
    let (mut wrong, mut seen, mut promises, mut before) = (Vec::new(), 0, false, "");
    for (line, next) in text.lines().zip(text.lines().skip(1)) {
        if line.starts_with('|') && !before.starts_with('|') && !next.starts_with("|---") {
            wrong.push(format!("a row of no table: {line}"));
        }
        before = line;
        promises = line.starts_with('|') && (promises || line == "| promise | test |");
        let Some(cells) = rows(line).next().filter(|_| promises && line != "| promise | test |") else {
            continue;
        };
        let proven: Vec<_> = cells.last().into_iter().flat_map(|cell| spans(cell)).collect();
        seen += proven.len();
        if proven.is_empty() && cells[1] != "the same" {
            wrong.push(format!("nothing shows this: {}", cells[0]));
        }
        wrong.extend(proven.into_iter().filter_map(|proof| fault(proof, &suites, &tests, &checks)));
    }
    assert!(seen > 90, "{seen} proofs");
    assert!(wrong.is_empty(), "docs/src/design/security.md:\n{}", wrong.join("\n"));
}

#[test]
fn the_proofs_say_no_of_what_would_not_exist() {
    let suites = suites();
    let tests = BTreeSet::from(["a_test".to_owned()]);
    let checks = BTreeSet::from(["login/plain-login".to_owned()]);
    for right in [
        "a_test",
        "login/plain-login",
        "recovery",
        "multipath: login by two portals",
        "osd: FORMAT OSD",
        "sandbox::calls",
        "backing::durable",
        "fuzz/entry",
    ] {
        assert_eq!(fault(right, &suites, &tests, &checks), None);
    }
    for wrong in [
        "another_test",
        "login/none",
        "recoveries",
        "multipath: no such case",
        "nobody: login",
        "sandbox::nobody",
        "scsi::durable",
        "fuzz/nobody",
    ] {
        assert!(fault(wrong, &suites, &tests, &checks).is_some(), "{wrong}");
    }
}

/// The proofs that a text names and that do not exist, and the number of proofs that it names.
fn missing_proofs(text: &str) -> (Vec<String>, usize) {
    let suites = suites();
    let objects = workspace().join("objects/objects/src/unit");
    let mut wrong = Vec::new();
    let mut seen = 0;
    let mut in_objects = false;
    for line in text.lines() {
        if line.starts_with("| Objects ") {
            in_objects = true;
        } else if !line.starts_with('|') {
            in_objects = false;
        }
        let proofs = match line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) {
            Some(row) => row.rsplit(" | ").next().unwrap_or_default(),
            None => line,
        };
        for span in spans(proofs) {
            let words: Vec<&str> = span.split(' ').collect();
            match words[..] {
                ["tests/run", "NAME"] => {}
                ["tests/run", ref names @ ..] => {
                    seen += names.len();
                    wrong.extend(
                        names.iter().filter(|name| !suites.contains_key(**name)).map(|_| span.to_owned()),
                    );
                }
                ["cargo", "test", "-p", ref rest @ ..] | ["-p", ref rest @ ..] => {
                    seen += 1;
                    let folder = match rest.first() {
                        Some(&"stag-fuzz-entry") => workspace().join("fuzz/entry"),
                        // An unknown crate gets a folder that does not exist.
                        name => crates()
                            .remove(*name.unwrap_or(&""))
                            .unwrap_or_else(|| workspace().join("nowhere")),
                    };
                    let of = match rest {
                        [_, "--test", name] => [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")]
                            .map(|p| folder.join(p)),
                        [_, "--test", name, module] => {
                            let module = module.trim_end_matches("::");
                            [format!("tests/{name}/{module}.rs"), format!("tests/{name}/{module}/mod.rs")]
                                .map(|p| folder.join(p))
                        }
                        [_, "--lib", name] => {
                            [format!("src/{name}/mod.rs"), format!("src/{name}.rs")].map(|p| folder.join(p))
                        }
                        _ => [folder.join("src/lib.rs"), folder.join("src/main.rs")],
                    };
                    if !of.iter().any(|path| path.exists()) {
                        wrong.push(span.to_owned());
                    }
                }
                [name] if name.starts_with("tests/") || name.starts_with("bench/") => {
                    seen += 1;
                    let places = [workspace().join(name), workspace().join("objects/objects").join(name)];
                    if !places.iter().any(|path| path.exists()) {
                        wrong.push(span.to_owned());
                    }
                }
                // A module of tests, of those of `objects::unit`.
                [name]
                    if in_objects
                        && name.chars().all(|c| c.is_ascii_lowercase())
                        && !suites.contains_key(name) =>
                {
                    seen += 1;
                    let places =
                        [format!("tests/{name}.rs"), format!("{name}/tests.rs"), format!("{name}.rs")];
                    if !places.iter().any(|path| objects.join(path).exists()) {
                        wrong.push(span.to_owned());
                    }
                }
                _ => {}
            }
        }
        // "LIO with each hash: `lio_recovery`": one lower-case word behind a colon is a suite.
        for (before, word) in proofs.split('`').zip(proofs.split('`').skip(1)).step_by(2) {
            let plain = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if before.ends_with(": ") && plain && !in_objects {
                seen += 1;
                if !suites.contains_key(word) {
                    wrong.push(word.to_owned());
                }
            }
        }
    }
    (wrong, seen)
}

#[test]
fn every_suite_and_test_that_the_evidence_names_exists() {
    let (wrong, seen) = missing_proofs(&read("docs/src/evidence/tested.md"));
    assert!(seen > 50, "{seen} proofs: this test reads the page wrongly");
    assert!(wrong.is_empty(), "evidence/tested.md names what is not there: {}", wrong.join(", "));
    for page in ["README.md", "CONTRIBUTING.md", "docs/src/start/what-stag-is.md"] {
        let (wrong, _) = missing_proofs(&read(page));
        assert!(wrong.is_empty(), "{page} names what is not there: {}", wrong.join(", "));
    }
}

#[test]
fn a_proof_that_is_not_there_is_missed() {
    for (row, missing) in [
        ("| a | `tests/run nobody` |", "tests/run nobody"),
        ("| a | `cargo test -p nobody` |", "cargo test -p nobody"),
        ("| a | `cargo test -p sim --test nobody` |", "cargo test -p sim --test nobody"),
        ("| a | by: `nobody` |", "nobody"),
        ("| a | `tests/peers/nobody.py` |", "tests/peers/nobody.py"),
    ] {
        assert_eq!(missing_proofs(row), (vec![missing.to_owned()], 1));
    }
    assert_eq!(missing_proofs("| a | by Linux: `linux`; `tests/run cu`; `cargo test -p sim` |"), (vec![], 3));
}

#[test]
fn the_numbers_of_checks_that_are_told_are_those_of_the_checks() {
    let all = checks();
    let over = |iser: bool| {
        all.iter()
            .filter(|check| {
                check.over == Over::Both || check.over == if iser { Over::Iser } else { Over::Tcp }
            })
            .count()
    };
    for (page, said) in
        [("README.md", "`stag conform` has"), ("docs/src/evidence/tested.md", "`stag conform`,")]
    {
        let right = format!("{said} {} checks", all.len());
        assert!(read(page).contains(&right), "{page} does not say: {right}");
    }
    let table = read("docs/src/evidence/conformance.md");
    let told = |name: &str| -> usize {
        let row = rows(&table).find(|cells| cells[0] == name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(row[1].contains('.') || row[1].contains('~'), "{name}: which version?");
        row[2].parse().expect("a number of checks")
    };
    assert_eq!(
        told("Stag"),
        over(false),
        "docs/src/evidence/conformance.md is older than the checks: tests/conformance writes it"
    );
    assert_eq!(
        told("Stag, iSER"),
        over(true),
        "docs/src/evidence/conformance.md is older than the checks: tests/conformance writes it"
    );
    assert_eq!(told("LIO"), over(false));
    for other in ["tgt", "istgt"] {
        // Every area but redirection, which these targets do not support.
        let redirect = all.iter().filter(|check| check.area.name() == "redirect").count();
        assert_eq!(told(other), over(false) - redirect, "{other}");
    }
}
