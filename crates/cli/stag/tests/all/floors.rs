//! Checks the sources against the rules of construction in ARCHITECTURE.md: the crates that each
//! crate may use, the places of `unsafe`, and no I/O in protocol crates. The table of floors is
//! read from that page.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::workspace::{crates, workspace};

/// The crates that may contain `unsafe`.
const UNSAFE_CRATES: &[&str] = &["runtime", "verbs", "rados"];

/// Names of std that do I/O, read a clock or start a thread: floors 0 and 1 use none of them
/// outside of their tests. An address or an instant that is passed in is a value like any other.
const NOT_IN_PROTOCOLS: &[&str] = &[
    "std::fs",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "std::io",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "Instant::now",
    "SystemTime::now",
];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Each crate's floor, from ARCHITECTURE.md. Its lines are `floor N crate text crate text`,
/// followed by indented ones, in columns separated by two spaces or more. A column that begins with
/// a crate's name stands for the crate.
fn floors() -> BTreeMap<String, u32> {
    let crates = crates();
    let mut floors = BTreeMap::new();
    let mut number = None;
    for line in read(&workspace().join("ARCHITECTURE.md")).lines() {
        let columns = match line.strip_prefix("floor ") {
            Some(rest) => {
                let (floor, columns) = rest.split_once("  ").expect("two spaces after the floor's number");
                number = Some(floor.trim().parse().expect("a floor has a number"));
                columns
            }
            // A floor of more lines than one.
            None if number.is_some() && line.starts_with("         ") => line,
            None => {
                number = None;
                continue;
            }
        };
        let mut found = 0;
        for column in columns.split("  ") {
            let word = column.split_whitespace().next().unwrap_or_default();
            if crates.contains_key(word) {
                let before = floors.insert(word.to_owned(), number.unwrap_or_default());
                assert_eq!(before, None, "ARCHITECTURE.md puts {word} on two floors");
                found += 1;
            }
        }
        assert!(found > 0, "ARCHITECTURE.md: no crate on this floor: {line}");
    }
    floors
}

/// Every dependency table of a manifest, those under `[target.'cfg(…)']` included.
fn dependency_tables(manifest: &toml::Table) -> Vec<&toml::Table> {
    let mut holders = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        holders.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    holders
        .into_iter()
        .flat_map(|holder| kinds.iter().filter_map(|kind| holder.get(*kind).and_then(toml::Value::as_table)))
        .collect()
}

/// The folder name of the crate that a dependency's `path` leads to, or that of the workspace
/// dependency it inherits.
fn path_dependency(name: &str, spec: &toml::Value, shared: &toml::Table) -> Option<String> {
    let spec = spec.as_table()?;
    let inherited = spec.get("workspace").and_then(toml::Value::as_bool) == Some(true);
    let spec = if inherited { shared.get(name)?.as_table()? } else { spec };
    let path = spec.get("path")?.as_str()?;
    Some(Path::new(path).file_name()?.to_str()?.to_owned())
}

#[test]
fn every_crate_has_one_floor_in_the_architecture() {
    let floors: Vec<String> = floors().into_keys().collect();
    assert_eq!(floors, crates().into_keys().collect::<Vec<_>>());
}

#[test]
fn a_crate_has_one_name_in_folder_manifest_and_code() {
    let root: toml::Table = read(&workspace().join("Cargo.toml")).parse().expect("Cargo.toml is TOML");
    let mut wrong = Vec::new();
    for (name, spec) in
        root["workspace"]["dependencies"].as_table().expect("workspace dependencies are a table")
    {
        if spec.get("package").is_some() {
            wrong.push(format!("the workspace calls a dependency {name}, which has another name"));
        }
    }
    for (name, folder) in crates() {
        let manifest: toml::Table =
            read(&folder.join("Cargo.toml")).parse().expect("a crate's Cargo.toml is TOML");
        if manifest["package"]["name"].as_str() != Some(&name) {
            wrong.push(format!("the package in {} has another name", folder.display()));
        }
        if manifest.get("lib").and_then(|lib| lib.get("name")).is_some() {
            wrong.push(format!("the library in {} has a name of its own", folder.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_crate_uses_only_crates_of_lower_floors() {
    let floors = floors();
    let root: toml::Table = read(&workspace().join("Cargo.toml")).parse().expect("Cargo.toml is TOML");
    let shared = root["workspace"]["dependencies"].as_table().expect("workspace dependencies are a table");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, folder) in crates() {
        let manifest: toml::Table =
            read(&folder.join("Cargo.toml")).parse().expect("a crate's Cargo.toml is TOML");
        for (key, spec) in dependency_tables(&manifest).into_iter().flatten() {
            let Some(used) = path_dependency(key, spec, shared) else { continue };
            seen += 1;
            match floors.get(&used) {
                Some(below) if *below < floors[&name] => {}
                Some(floor) => {
                    wrong.push(format!("{name} (floor {}) uses {used} (floor {floor})", floors[&name]));
                }
                None => wrong.push(format!("{name} uses {used}, which is on no floor")),
            }
        }
    }
    assert!(seen > 0, "found no dependency between crates: this test reads the manifests wrongly");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_runtime_and_verbs_may_contain_unsafe() {
    let mut wrong = Vec::new();
    for (name, folder) in crates() {
        let source = folder.join("src");
        let roots: Vec<PathBuf> =
            ["lib.rs", "main.rs"].iter().map(|file| source.join(file)).filter(|path| path.exists()).collect();
        assert!(!roots.is_empty(), "{name} has neither src/lib.rs nor src/main.rs");
        assert!(!source.join("bin").exists(), "{name} has src/bin: this test does not look there");
        for root in roots {
            let forbids = read(&root).lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
            if !UNSAFE_CRATES.contains(&name.as_str()) && !forbids {
                wrong.push(root.display().to_string());
            }
        }
    }
    assert!(wrong.is_empty(), "without #![forbid(unsafe_code)]:\n{}", wrong.join("\n"));
}

/// Every Rust file below `folder`.
fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn protocol_crates_do_no_io_and_read_no_clock() {
    let crates = crates();
    let mut wrong = Vec::new();
    for (name, floor) in floors() {
        if floor > 1 {
            continue;
        }
        let mut files = Vec::new();
        rust_files(&crates[&name].join("src"), &mut files);
        files.retain(|file| !file.ends_with("tests.rs") && !file.iter().any(|part| part == "tests"));
        for file in files {
            let text = read(&file);
            // By custom, a file's module of tests comes last.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                // Asks about the thread that runs, and makes none.
                let code = code.replace("std::thread::panicking()", "");
                if let Some(word) = NOT_IN_PROTOCOLS.iter().find(|word| code.contains(**word)) {
                    wrong.push(format!("{}:{}: {word}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "floors 0 and 1 are without I/O, clock and threads:\n{}", wrong.join("\n"));
}

#[test]
#[cfg(feature = "lab")]
fn the_daemon_carries_none_of_what_draws_the_labs_reports() {
    let has = |program: &str| {
        let bytes = fs::read(program).unwrap_or_else(|e| panic!("{program}: {e}"));
        // Of the page's style sheet.
        bytes.windows(22).any(|text| text == b"ul.findings{list-style")
    };
    assert!(has(env!("CARGO_BIN_EXE_stag-lab")), "this test looks for the wrong text");
    assert!(!has(env!("CARGO_BIN_EXE_stag")));
}
