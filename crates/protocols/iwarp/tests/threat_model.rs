//! Compares docs/src/design/rdma-security.md with the tests: every test named there must exist.

use std::fs;
use std::path::Path;

/// Folders, from the workspace's root, with the tests that the page names.
const SOURCES: &[&str] = &[
    "crates/protocols/iwarp/src",
    "crates/protocols/iwarp/tests",
    "crates/runtime/rdma/src",
    "crates/runtime/rdma/tests",
    "crates/protocols/iser/src",
    "fuzz/entry/src",
];

/// All Rust code below `folder`.
fn code(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            code(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).expect("the file can be read"));
        }
    }
}

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page =
        fs::read_to_string(root.join("docs/src/design/rdma-security.md")).expect("the page can be read");
    let mut all = String::new();
    SOURCES.iter().for_each(|folder| code(&root.join(folder), &mut all));
    let names: Vec<&str> = quoted(&page)
        .filter(|word| word.matches('_').count() >= 3 && !word.contains([' ', '/', '.', ':']))
        .collect();
    assert!(names.len() > 40, "the page names {} tests only", names.len());
    let missing: Vec<&&str> = names.iter().filter(|name| !all.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "tests that the page names and that are not there: {missing:#?}");
}

#[test]
fn every_case_from_outside_that_the_threat_model_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page =
        fs::read_to_string(root.join("docs/src/design/rdma-security.md")).expect("the page can be read");
    let suite = fs::read_to_string(root.join("tests/peers/iwarp_hostile.py")).expect("the suite can be read");
    let (_, cases) = suite.split_once("CASES = [").expect("the suite lists its cases");
    let (_, table) = page.split_once("## Bad input").expect("the page has that section");
    let (table, _) = table.split_once("\n## ").expect("a section follows");
    let words: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'))
        .filter_map(|line| line.rsplit(" | ").next())
        .flat_map(quoted)
        .collect();
    assert!(words.len() >= 12, "{words:?}");
    for words in words {
        assert!(cases.contains(words), "no case of the suite has the words {words:?}");
    }
}
