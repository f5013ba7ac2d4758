//! Checks the documents: every page of the book is in its table of contents, and the README stays
//! short. Every link, and every path named in a document or a comment, leads to a file. It does not
//! judge the pages' text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folders of this repository that hold text of our own.
const FOLDERS: &[&str] =
    &["bench", "crates", "dist", "docs", "fuzz/entry", "fuzz/fuzz_targets", "objects", "tests", "tools"];

/// The folder of the whole project.
fn workspace() -> PathBuf {
    plain(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a folder, or the file itself.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.to_owned());
    } else if path.is_dir() && !path.ends_with("target") && !path.ends_with("docs/book") {
        let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        entries.for_each(|entry| files(&entry.expect("a folder can be listed").path(), found));
    }
}

/// All files of the workspace that have text of our own, the documents at its top included.
fn texts() -> Vec<PathBuf> {
    let mut found = Vec::new();
    FOLDERS.iter().for_each(|folder| files(&workspace().join(folder), &mut found));
    let top = fs::read_dir(workspace()).expect("the workspace can be listed");
    found.extend(top.map(|entry| entry.expect("the workspace can be listed").path()).filter(|p| p.is_file()));
    assert!(found.len() > 500, "this test reads the workspace wrongly");
    found
}

fn documents() -> Vec<PathBuf> {
    texts().into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The lines of a document that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// A line without its code spans.
fn without_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The names by which the headings of a document can be linked to, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let name = |line: &str| {
        let mut title = line.trim_start_matches('#').trim().to_lowercase();
        // A link in a heading counts by its text.
        while let (Some(open), Some(close)) = (title.find("]("), title.find(')')) {
            title.replace_range(open..=close.max(open), "");
        }
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

/// The targets of the links of a document.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let line = without_spans(line);
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        found.extend(targets.map(|(target, _)| target.to_owned()));
    }
    found
}

/// The reason why a document's link is broken; `None` if it is not.
fn fault(document: &Path, link: &str) -> Option<String> {
    if link.starts_with("http") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = document.parent().unwrap_or(document);
    let path = if file.is_empty() { document.to_owned() } else { plain(&folder.join(file)) };
    let book = workspace().join("docs/src");
    if !path.exists() {
        return Some("is not there".to_owned());
    }
    if document.starts_with(&book) && !path.starts_with(&book) {
        return Some("is outside of the book: name it in backticks".to_owned());
    }
    let is_document = path.extension().is_some_and(|end| end == "md");
    if !anchor.is_empty() && is_document && !anchors(&read(&path)).contains(anchor) {
        return Some("has no such heading".to_owned());
    }
    None
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents() {
        for link in links(&read(&document)) {
            seen += 1;
            let name = document.strip_prefix(workspace()).unwrap_or(&document).display();
            wrong.extend(fault(&document, &link).map(|why| format!("{name}: {link} {why}")));
        }
    }
    assert!(seen > 150, "{seen} links: this test reads the documents wrongly");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_link_is_found() {
    let page = workspace().join("docs/src/guide/limits.md");
    for right in
        ["thin.md", "../reference/configuration.md#limits", "https://example.org/", "#limits-of-service"]
    {
        assert_eq!(fault(&page, right), None, "{right}");
    }
    for wrong in ["thinner.md", "../reference/configuration.md#limit", "#no-heading", "../../../README.md"] {
        assert!(fault(&page, wrong).is_some(), "{wrong}");
    }
}

#[test]
fn every_page_of_the_book_is_in_its_contents() {
    let book = workspace().join("docs/src");
    let contents = read(&book.join("SUMMARY.md"));
    let listed: Vec<String> = links(&contents);
    let once: BTreeSet<PathBuf> = listed.iter().map(|link| book.join(link)).collect();
    assert_eq!(once.len(), listed.len(), "SUMMARY.md lists a page twice");
    let mut pages = Vec::new();
    files(&book, &mut pages);
    let missing: Vec<_> = pages
        .iter()
        .filter(|page| page.extension().is_some_and(|end| end == "md") && !page.ends_with("SUMMARY.md"))
        .filter(|page| !once.contains(*page))
        .collect();
    assert!(missing.is_empty(), "not in docs/src/SUMMARY.md: {missing:?}");
}

/// The words of a text that look like a path of a document.
fn documents_named(text: &str) -> impl Iterator<Item = &str> {
    let of_a_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    text.split(move |c| !of_a_path(c)).map(|word| word.trim_end_matches(['.', '/'])).filter(|word| {
        let named = word.starts_with("docs/") || word.starts_with("dist/");
        named && word.contains('.')
    })
}

#[test]
fn every_document_that_a_file_names_exists() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in texts() {
        // Binary files name no documents.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for word in documents_named(&text) {
            seen += 1;
            if !workspace().join(word).exists() {
                let name = path.strip_prefix(workspace()).unwrap_or(&path).display();
                wrong.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(seen > 50, "{seen} names: this test reads the files wrongly");
    assert!(wrong.is_empty(), "these name documents that are not there:\n{}", wrong.join("\n"));
}

/// Whether a code span is a path of this repository.
fn is_path(span: &str) -> bool {
    let folders = FOLDERS.iter().copied().chain(["fuzz", ".ci", "examples"]);
    let within = folders.into_iter().any(|f| span.strip_prefix(f).is_some_and(|rest| rest.starts_with('/')));
    within && span.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'))
}

#[test]
fn every_path_that_a_document_names_exists() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents() {
        // A changelog names files that were there at its time.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = read(&document);
        for span in prose(&text).flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|s| is_path(s)) {
            seen += 1;
            // Some pages name the tests and examples of the crate that they are about.
            let places = ["", "objects/objects", "crates/runtime/rdma", "crates/cli/stag"];
            if !places.iter().any(|place| workspace().join(place).join(span).exists()) {
                let name = document.strip_prefix(workspace()).unwrap_or(&document).display();
                wrong.push(format!("{name}: {span}"));
            }
        }
    }
    assert!(seen > 50, "{seen} paths: this test reads the documents wrongly");
    assert!(wrong.is_empty(), "these name files that are not there:\n{}", wrong.join("\n"));
}

#[test]
fn the_readme_has_at_most_130_lines() {
    let lines = read(&workspace().join("README.md")).lines().count();
    assert!(lines <= 130, "README.md has {lines} lines: what is long belongs in docs/src");
}

/// The words of a text that look like a Stag metric, without the suffixes of a histogram's series.
fn metrics_named(text: &str) -> impl Iterator<Item = &str> {
    let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let own = |word: &&str| word.starts_with("stag_") || word.starts_with("process_");
    let base = |word| {
        ["_bucket", "_sum", "_count"].iter().find_map(|end| str::strip_suffix(word, end)).unwrap_or(word)
    };
    text.split(move |c| !of_a_name(c)).filter(own).map(base)
}

#[test]
fn every_metric_that_is_asked_for_exists() {
    let page = read(&workspace().join("docs/src/reference/metrics.md"));
    let there_are: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for file in ["dist/prometheus/alerts.yml", "dist/grafana/stag.json", "docs/src/guide/prometheus.md"] {
        let text = read(&workspace().join(file));
        let asked: BTreeSet<&str> = metrics_named(&text).collect();
        assert!(asked.len() > 2, "{file}: this test reads it wrongly");
        let missing: Vec<_> = asked.difference(&there_are).collect();
        assert!(missing.is_empty(), "{file} asks for metrics that are not there: {missing:?}");
    }
}
