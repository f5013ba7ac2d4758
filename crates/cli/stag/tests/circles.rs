//! Holds import circles small: no more than three modules of a crate may import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[path = "support/workspace.rs"]
mod workspace;
use workspace::crates;

/// Modules that may import each other in a circle.
const MOST: usize = 3;

/// A crate's modules by path (`connection::tasks`; the root is empty), and the modules that each imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The files of a crate's `src`: module path and code, tests and comments left out.
fn modules(folder: &Path, path: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let file = entry.expect("a folder can be listed").path();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner = if path.is_empty() { name.clone() } else { format!("{path}::{name}") };
        if file.is_dir() {
            if name != "tests" && name != "bin" {
                modules(&file, &inner, found);
            }
        } else if file.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let text = fs::read_to_string(&file).expect("a source is text");
            let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let code: String = text
                .lines()
                .map(|line| format!("{}\n", line.split("//").next().unwrap_or_default()))
                .collect();
            let module =
                if ["lib", "main", "mod"].contains(&name.as_str()) { path.to_owned() } else { inner };
            found.entry(module).or_default().push_str(&code);
        }
    }
}

/// The paths that a piece of code names from `start` (`crate::` or `super::`s) on: `a::b`, and each of `a::{b, c::d}`.
fn paths(code: &str) -> Vec<String> {
    let end =
        code.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':' || c == '{')).unwrap_or(code.len());
    let head = &code[..end];
    let Some((prefix, _)) = head.split_once('{') else { return vec![head.trim_end_matches("::").to_owned()] };
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in code[prefix.len()..].chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => parts.push(String::new()),
            c if c.is_whitespace() => {}
            c => parts.last_mut().expect("there is one").push(c),
        }
        if depth == 0 {
            break;
        }
    }
    parts
        .iter()
        .map(|part| format!("{prefix}{}", part.split(['{', ' ']).next().unwrap_or_default()))
        .collect()
}

/// The module that a path names: the longest one that there is.
fn module_of(path: &str, known: &BTreeMap<String, String>) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    while !parts.is_empty() {
        let name = parts.join("::");
        if known.contains_key(&name) {
            return Some(name);
        }
        parts.pop();
    }
    None
}

fn imports(source: &Path) -> Imports {
    let mut known = BTreeMap::new();
    modules(source, "", &mut known);
    let mut imports = Imports::new();
    for (module, code) in &known {
        let from = imports.entry(module.clone()).or_default();
        let mut named = Vec::new();
        for (at, _) in code.match_indices("crate::") {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !(before.is_alphanumeric() || before == '_' || before == ':') {
                named.extend(paths(&code[at + "crate::".len()..]));
            }
        }
        for (at, _) in code.match_indices("super::") {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == ':' {
                continue;
            }
            let mut parent: Vec<&str> = module.split("::").collect();
            let mut rest = &code[at..];
            while let Some(after) = rest.strip_prefix("super::") {
                parent.pop();
                rest = after;
            }
            named.extend(paths(rest).into_iter().map(|path| format!("{}::{path}", parent.join("::"))));
        }
        // What a module says of those inside of it is no import, and neither is their use of it as a namespace.
        let related = |other: &str| {
            other.starts_with(&format!("{module}::"))
                || module.starts_with(&format!("{other}::"))
                || other == module
        };
        from.extend(named.iter().filter_map(|path| module_of(path, &known)).filter(|other| !related(other)));
    }
    imports
}

/// The modules that can be reached from `start` by imports.
fn reach(imports: &Imports, start: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![start.to_owned()];
    while let Some(module) = next.pop() {
        for other in imports.get(&module).into_iter().flatten() {
            if seen.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    seen
}

/// The circles of more than [`MOST`] modules.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|module| (module, reach(imports, module))).collect();
    let mut circles = BTreeSet::new();
    for (module, others) in &reached {
        let circle: Vec<String> =
            others.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
        if circle.len() > MOST {
            circles.insert(circle);
        }
    }
    circles
}

#[test]
fn no_more_than_three_modules_import_each_other_in_a_circle() {
    let mut wrong: Vec<String> = Vec::new();
    let mut seen = 0;
    for (name, folder) in crates() {
        let imports = imports(&folder.join("src"));
        seen += imports.values().map(BTreeSet::len).sum::<usize>();
        wrong.extend(circles(&imports).iter().map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    assert!(seen > 1000, "found {seen} imports: this test reads the sources wrongly");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
