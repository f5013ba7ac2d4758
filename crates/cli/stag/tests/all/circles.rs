//! Limits import circles: no more than three modules of a crate may import each other in a
//! circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::workspace::crates;

/// Modules that may import each other in a circle.
const MOST: usize = 3;
/// Larger circles that exist, by crate and one of their modules, with their most modules. Add none;
/// remove those that are untied.
const KNOWN: &[(&str, &str, usize)] = &[
    ("iscsi", "pdu::bhs", 10),
    ("iscsi", "target::tasks", 6),
    ("iscsi", "initiator::session", 6),
    ("runtime", "op::driver", 23),
    ("server-core", "hub", 5),
];

/// A crate's modules by path (`connection::tasks`; the root is empty), and the modules that each
/// imports.
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

/// The path or `use` tree at the beginning of `code`: `a::b`, or `a::{b, c::{d}}`.
fn tree(code: &str) -> &str {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return &code[..=at],
            '}' => depth -= 1,
            c if depth == 0 && !(c.is_alphanumeric() || c == '_' || c == ':') => return &code[..at],
            _ => {}
        }
    }
    code
}

/// The paths of a tree: `a::{b, c::d as e}` has `a::b` and `a::c::d as e`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, inner)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let mut depth = 1;
    let mut parts = vec![String::new()];
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match c {
            _ if depth == 0 => break,
            ',' if depth == 1 => parts.push(String::new()),
            c => parts.last_mut().expect("there is one").push(c),
        }
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| expand(&format!("{prefix}{part}"))).collect()
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The path from the crate's root that `path` is in `module`; `None` if it does not begin there.
fn absolute(module: &str, path: &str) -> Option<Vec<String>> {
    let path = segments(path.split(" as ").next().unwrap_or_default());
    let mut from = segments(module);
    let mut rest = path.as_slice();
    match rest.first()?.as_str() {
        "crate" => from.clear(),
        "self" => {}
        "super" => {
            while rest.get(1).is_some_and(|next| next == "super") {
                from.pop();
                rest = &rest[1..];
            }
            from.pop();
        }
        _ => return None,
    }
    from.extend_from_slice(&rest[1..]);
    Some(from)
}

/// The names that each module imports by `use`, each with its path from the crate's root.
type Names = BTreeMap<String, BTreeMap<String, Vec<String>>>;

fn names(known: &BTreeMap<String, String>) -> Names {
    let mut names = Names::new();
    for (module, code) in known {
        let of = names.entry(module.clone()).or_default();
        for (at, _) in code.match_indices("use ") {
            let before = code[..at].chars().next_back().unwrap_or('\n');
            if !before.is_whitespace() {
                continue;
            }
            let statement = code[at + 4..].split(';').next().unwrap_or_default();
            for path in expand(statement) {
                let inner = format!("self::{path}");
                let is_inner = segments(&path).first().is_some_and(|first| {
                    known.contains_key(&if module.is_empty() {
                        first.clone()
                    } else {
                        format!("{module}::{first}")
                    })
                });
                let found = absolute(module, if is_inner { &inner } else { &path });
                let Some(found) = found.filter(|found| !found.is_empty()) else { continue };
                let name = path.split(" as ").nth(1).map(|name| name.trim().to_owned());
                if let Some(name) = name.or_else(|| found.last().cloned()) {
                    of.insert(name, found);
                }
            }
        }
    }
    names
}

/// The module that defines what a path names; re-exports are followed.
fn module_of(path: &[String], known: &BTreeMap<String, String>, names: &Names, steps: usize) -> String {
    let len = (0..=path.len()).rev().find(|len| known.contains_key(&path[..*len].join("::"))).unwrap_or(0);
    let module = path[..len].join("::");
    let next = path.get(len).and_then(|name| names.get(&module)?.get(name));
    match next {
        Some(next) if steps > 0 && *next != path[..=len] => {
            let path: Vec<String> = next.iter().chain(&path[len + 1..]).cloned().collect();
            module_of(&path, known, names, steps - 1)
        }
        _ => module,
    }
}

fn imports(source: &Path) -> Imports {
    let mut known = BTreeMap::new();
    modules(source, "", &mut known);
    let names = names(&known);
    let mut imports = Imports::new();
    for (module, code) in &known {
        let from = imports.entry(module.clone()).or_default();
        let mut named = Vec::new();
        for start in ["crate::", "super::"] {
            for (at, _) in code.match_indices(start) {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                if !(before.is_alphanumeric() || before == '_' || before == ':') {
                    named.extend(expand(tree(&code[at..])));
                }
            }
        }
        // A reference to an ancestor, a descendant or the root is not an import, nor is the use of
        // a module as a namespace.
        let related = |other: &str| {
            other.starts_with(&format!("{module}::"))
                || module.starts_with(&format!("{other}::"))
                || other == module
                || other.is_empty()
        };
        let found = named.iter().filter_map(|path| absolute(module, path));
        let found = found.map(|path| module_of(&path, &known, &names, 8));
        from.extend(found.filter(|other| !related(other)));
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
        let is_known = |circle: &Vec<String>| {
            let mut of = KNOWN.iter().filter(|(known, ..)| *known == name);
            of.any(|(_, module, most)| circle.iter().any(|one| one == module) && circle.len() <= *most)
        };
        let circles = circles(&imports);
        let new = circles.iter().filter(|circle| !is_known(circle));
        wrong.extend(new.map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    assert!(seen > 1000, "found {seen} imports: this test reads the sources wrongly");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_path_leads_to_the_module_behind_a_re_export() {
    let known = |module: &str, code: &str| (module.to_owned(), code.to_owned());
    let known = BTreeMap::from([
        known("", "pub use shop::Bread;"),
        known("shop", "pub(crate) use counter::{Bread, Cake as Sweet};"),
        known("shop::counter", ""),
    ]);
    let names = names(&known);
    let of = |path: &str| module_of(&absolute("shop::counter", path).unwrap(), &known, &names, 8);
    assert_eq!(of("crate::Bread"), "shop::counter");
    assert_eq!(of("super::Sweet"), "shop::counter");
    assert_eq!(of("crate::shop::Milk"), "shop");
    assert_eq!(
        expand(tree("crate::{a, b::{c, d as e}}; f")),
        ["crate::a", "crate::b::c", "crate::b::d as e"]
    );
}
