//! `docs/src/objects/commands.md` and `docs/src/evidence/tested.md` list every service action and
//! every attribute page that this crate knows, and the tests that they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use osd::attributes::Page;
use osd::attributes::numbers::page_name;
use osd::{Action, ObjectType, Version};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of the rows of all tables.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::trim).collect()).collect()
}

fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn module(name: &str) -> PathBuf {
    let unit = workspace().join("objects/objects/src/unit");
    match name {
        "security" => unit.join("security/tests.rs"),
        "reach" => unit.join("security/reach_tests.rs"),
        name => unit.join(format!("tests/{name}.rs")),
    }
}

fn exists(test: &str) {
    let (name, function) = test.split_once("::").unwrap_or_else(|| panic!("{test} names no test"));
    let source = read(&module(name));
    assert!(source.contains(&format!("#[test]\nfn {function}() {{")), "there is no test {test}");
}

/// The titles of all cases of the suite that drives a served device.
fn cases() -> BTreeSet<String> {
    let suites = ["attach", "attributes", "data", "durable", "managed", "security", "sets"];
    let mut titles = BTreeSet::new();
    for suite in suites {
        let source = read(&workspace().join(format!("tests/peers/osd_{suite}.py")));
        let list = source.split("\nCASES = [").nth(1).expect("a suite has cases");
        titles.extend(
            list.lines()
                .filter_map(|line| Some(line.trim().strip_prefix("(\"")?.split_once('"')?.0.to_owned())),
        );
    }
    titles
}

/// The tests of a row, of which there is at least one, and its cases.
fn holds(tests: &str, outside: &str, titles: &BTreeSet<String>) {
    let tests = quoted(tests);
    assert!(!tests.is_empty());
    tests.into_iter().for_each(exists);
    for title in outside.split("<br>").filter(|title| !title.is_empty()) {
        assert!(titles.contains(title), "there is no case {title:?}");
    }
}

#[test]
fn every_service_action_has_a_row_with_tests_that_exist() {
    let text = read(&workspace().join("docs/src/objects/commands.md"));
    let (rows, titles) = (rows(&text), cases());
    for action in Action::ALL {
        let code = |version| action.code(version).map_or("–".to_owned(), |code| format!("{code:X}"));
        let (one, two) = (code(Version::Osd1), code(Version::Osd2));
        let found: Vec<_> = rows.iter().filter(|row| row.get(1) == Some(&two.as_str())).collect();
        let [row] = found[..] else { panic!("{action} has {} rows", found.len()) };
        let [first, _, name, tests, outside] = row[..] else { panic!("{action}: {row:?}") };
        assert_eq!((first, name), (one.as_str(), action.name()));
        assert!(!outside.is_empty(), "{action} is not driven from outside");
        holds(tests, outside, &titles);
    }
}

#[test]
fn every_attribute_page_has_a_row_with_tests_that_exist() {
    let text = read(&workspace().join("docs/src/objects/commands.md"));
    let (rows, titles) = (rows(&text), cases());
    let kinds = [ObjectType::Root, ObjectType::Partition, ObjectType::Collection, ObjectType::User];
    let of_kinds = kinds.into_iter().flat_map(|kind| (0..0x80).map(move |number| Page::of(kind, number)));
    let mut pages = 0;
    for page in of_kinds.chain([Page::CURRENT_COMMAND]) {
        let Some(name) = page_name(page) else { continue };
        pages += 1;
        let number = format!("{:X}h", page.0);
        let found: Vec<_> = rows.iter().filter(|row| row[0] == number).collect();
        let [row] = found[..] else { panic!("{name} has {} rows", found.len()) };
        let [_, found, tests, outside] = row[..] else { panic!("{name}: {row:?}") };
        assert_eq!(found, name);
        assert!(!outside.is_empty(), "{name} is not driven from outside");
        holds(tests, outside, &titles);
    }
    assert_eq!(pages, 23);
    // And what the text below the tables names.
    let below = text.rsplit("\n\n").next().expect("a last paragraph");
    quoted(below).into_iter().for_each(exists);
}

#[test]
fn the_evidence_has_every_service_action_and_names_modules_of_tests() {
    let text = read(&workspace().join("docs/src/evidence/tested.md"));
    let table = text
        .split("\n\n")
        .find(|part| part.starts_with("| Objects ([T10 OSD-2]"))
        .expect("a table of objects");
    let mut codes = BTreeSet::new();
    let hex = |text: &str| (text.len() == 4).then(|| u16::from_str_radix(text, 16).ok()).flatten();
    for word in table.split(|c: char| !(c.is_ascii_alphanumeric() || c == '–')) {
        let ends: Vec<u16> = word.split('–').filter_map(hex).collect();
        match ends[..] {
            [first, last] => codes.extend(first..=last),
            [one] => codes.extend([one]),
            _ => {}
        }
    }
    for action in Action::ALL {
        let code = action.code(Version::Osd2).expect("OSD-2 has all");
        assert!(codes.contains(&code), "{action} ({code:04X}) is not in the table of evidence/tested.md");
    }
    for row in rows(table).iter().skip(1) {
        let named = quoted(row[1]);
        assert!(!named.is_empty(), "{row:?}");
        for name in named {
            let there = match name.split_once("::") {
                Some(("objects", rest)) => workspace().join("objects/objects/src").join(rest).is_dir(),
                _ if name.starts_with("tests/") => workspace().join("objects/objects").join(name).exists(),
                _ if name == "osd" => workspace().join("tests/peers/osd.py").exists(),
                _ => module(name).exists(),
            };
            assert!(there, "evidence/tested.md names {name}, which is nowhere");
        }
    }
}
