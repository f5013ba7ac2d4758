//! Holds what README.md and docs/proofs.md call proofs against what there is: every check, suite, case and test that they name exists,
//! and the numbers of checks that are told are those of the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use conform::{Over, checks};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

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

/// The suites of `tests/run` by their short names, each with its source; continued string literals are one.
fn suites() -> BTreeMap<String, String> {
    let list = read("tests/lab/main.py");
    let (_, list) = list.split_once("SUITES = [").expect("tests/lab/main.py has the list of suites");
    let (list, _) = list.split_once(']').expect("the list ends");
    let names = list.split('"').filter(|word| word.contains('.'));
    let source = |name: &str| read(format!("tests/{}.py", name.replace('.', "/")));
    names.map(|name| (name.split('.').next_back().unwrap_or(name).to_owned(), source(name))).collect()
}

/// What stands in backticks.
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

/// Why a proof of docs/proofs.md is none, if so.
fn fault(
    proof: &str,
    suites: &BTreeMap<String, String>,
    tests: &BTreeSet<String>,
    checks: &BTreeSet<String>,
) -> Option<String> {
    if checks.contains(proof) || tests.contains(proof) || suites.contains_key(proof) {
        return None;
    }
    match proof.split_once(": ") {
        // A suite of other files' cases has them under its own name all the same.
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
    let text = read("docs/proofs.md");
    let (suites, tests) = (suites(), tests_in(&workspace().join("crates")));
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
    assert!(wrong.is_empty(), "docs/proofs.md:\n{}", wrong.join("\n"));
}

#[test]
fn the_proofs_say_no_of_what_would_not_exist() {
    let suites = suites();
    let tests = BTreeSet::from(["a_test".to_owned()]);
    let checks = BTreeSet::from(["login/plain-login".to_owned()]);
    for right in
        ["a_test", "login/plain-login", "recovery", "multipath: login by two portals", "osd: FORMAT OSD"]
    {
        assert_eq!(fault(right, &suites, &tests, &checks), None);
    }
    for wrong in ["another_test", "login/none", "recoveries", "multipath: no such case", "nobody: login"] {
        assert!(fault(wrong, &suites, &tests, &checks).is_some(), "{wrong}");
    }
}

#[test]
fn every_suite_and_test_that_the_readme_names_exists() {
    let text = read("README.md");
    let (_, part) = text.split_once("## What works, and what shows it").expect("README says what works");
    let (part, _) = part.split_once("## Speed").expect("README says how fast it is");
    let suites = suites();
    let objects = workspace().join("crates/objects/src/unit");
    let mut wrong = Vec::new();
    let mut seen = 0;
    let mut in_objects = false;
    for line in part.lines() {
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
                    let package = rest.first().map_or("", |name| name.trim_start_matches("stag-"));
                    let folder = match package {
                        "fuzz-entry" => workspace().join("fuzz/entry"),
                        name => workspace().join("crates").join(name),
                    };
                    let of = match rest {
                        [_, "--test", name] => [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")]
                            .map(|p| folder.join(p)),
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
                    let places = [workspace().join(name), workspace().join("crates/objects").join(name)];
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
    assert!(seen > 50, "{seen} proofs: this test reads README.md wrongly");
    assert!(wrong.is_empty(), "README.md names what is not there: {}", wrong.join(", "));
}

#[test]
fn the_numbers_of_checks_that_are_told_are_those_of_the_checks() {
    let all = checks();
    let over = |iser: bool| {
        all.iter()
            .filter(|check| if iser { check.over != Over::Tcp } else { check.over != Over::Iser })
            .count()
    };
    let readme = read("README.md");
    assert!(
        readme.contains(&format!("`stag conform`, {} checks", all.len())),
        "README.md: there are {}",
        all.len()
    );
    let table = read("docs/conformance.md");
    let told = |name: &str| -> usize {
        let row = rows(&table).find(|cells| cells[0] == name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(row[1].contains('.') || row[1].contains('~'), "{name}: which version?");
        row[2].parse().expect("a number of checks")
    };
    assert_eq!(
        told("Stag"),
        over(false),
        "docs/conformance.md is older than the checks: tests/conformance writes it"
    );
    assert_eq!(
        told("Stag, iSER"),
        over(true),
        "docs/conformance.md is older than the checks: tests/conformance writes it"
    );
    assert_eq!(told("LIO"), over(false));
    for other in ["tgt", "istgt"] {
        // Each area but redirection, which they have not.
        let redirect = all.iter().filter(|check| check.area.name() == "redirect").count();
        assert_eq!(told(other), over(false) - redirect, "{other}");
    }
}
