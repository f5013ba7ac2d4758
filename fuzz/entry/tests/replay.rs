//! Gives every fuzz target its seeds, mutations of them, and the inputs found by guided fuzzing, on
//! any toolchain. An input that fails is printed. `FUZZ_TARGET` selects one target, and `FUZZ_SEED`
//! is a number that changes the mutations.

use stag_fuzz_entry::mutate::{Rng, mutate};
use stag_fuzz_entry::{TARGETS, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Mutations for each target; `FUZZ_MUTATIONS` asks for more.
const MUTATIONS: u64 = 20_000;

/// Targets whose every input is a connection, or files that are opened: they get one mutation of so
/// many.
const SLOW: (&[&str], u64) = (&["rdma_stream", "object_store"], 20);

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn seeds(target: &Target) -> BTreeMap<String, Vec<u8>> {
    (target.seeds)().into_iter().map(|(name, seed)| (name.to_owned(), seed.into_bytes())).collect()
}

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(|| (target.run)(input)) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("target {} fails on the input {hex}", target.name);
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_seed_and_thousands_of_mutations_are_survived() {
    let mutations = std::env::var("FUZZ_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(MUTATIONS);
    let only = std::env::var("FUZZ_TARGET").ok();
    let more = std::env::var("FUZZ_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    for (number, target) in (1u64..).zip(TARGETS) {
        if only.as_ref().is_some_and(|name| name != target.name) {
            continue;
        }
        let seeds: Vec<_> = seeds(target).into_values().collect();
        seeds.iter().for_each(|seed| run(target, seed));
        run(target, &[]);
        let mut rng = Rng::new(number.wrapping_add(more << 32));
        let share = if SLOW.0.contains(&target.name) { SLOW.1 } else { 1 };
        for _ in 0..mutations / share {
            let seed = &seeds[rng.below(seeds.len())];
            let other = &seeds[rng.below(seeds.len())];
            run(target, &mutate(seed, other, &mut rng));
        }
    }
}

/// Inputs found by guided fuzzing for a target. In the file each is its length (four bytes) and its
/// bytes.
fn merged(target: &Target) -> Vec<Vec<u8>> {
    let file = std::fs::read(fuzz_dir().join("merged").join(target.name)).unwrap_or_default();
    let mut rest = &file[..];
    let mut inputs = Vec::new();
    while let Some((len, bytes)) = rest.split_first_chunk() {
        let (input, more) = bytes.split_at(u32::from_be_bytes(*len) as usize);
        inputs.push(input.to_vec());
        rest = more;
    }
    assert!(rest.is_empty(), "{} ends within a length", target.name);
    inputs
}

#[test]
fn inputs_found_by_guided_fuzzing_are_survived() {
    for target in TARGETS {
        let start = Instant::now();
        let inputs = merged(target);
        inputs.iter().for_each(|input| run(target, input));
        println!("{}: {} inputs in {:?}", target.name, inputs.len(), start.elapsed());
    }
}

#[test]
fn the_merged_corpus_is_at_most_20_megabytes() {
    let sizes = std::fs::read_dir(fuzz_dir().join("merged")).expect("fuzz/merged").map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        assert!(stag_fuzz_entry::target(&name).is_some(), "fuzz/merged/{name} is of no target");
        entry.metadata().expect("a file").len()
    });
    assert!(sizes.sum::<u64>() <= 20_000_000);
}

/// Seeds' names must not look like libFuzzer's own, which start with hexadecimal digits and stay
/// uncommitted.
fn is_libfuzzers(name: &str) -> bool {
    name.len() >= 5 && name.bytes().take(5).all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn the_committed_corpus_is_what_the_seeds_make() {
    for target in TARGETS {
        let dir = fuzz_dir().join("corpus").join(target.name);
        let made = seeds(target);
        assert!(made.keys().all(|name| !is_libfuzzers(name)), "{}", target.name);
        let mut committed = BTreeMap::new();
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if !is_libfuzzers(&name) {
                committed.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
        let names = |map: &BTreeMap<String, Vec<u8>>| map.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&committed), names(&made), "{}: run `cargo run -p stag-fuzz-entry`", target.name);
        assert!(committed == made, "{}: run `cargo run -p stag-fuzz-entry`", target.name);
    }
}

#[test]
fn every_target_has_its_libfuzzer_binary() {
    let manifest = std::fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(fuzz_dir().join("fuzz_targets")).unwrap() {
        files.insert(entry.unwrap().file_name().into_string().unwrap());
    }
    let wanted: BTreeSet<_> = TARGETS.iter().map(|target| format!("{}.rs", target.name)).collect();
    assert_eq!(files, wanted);
    for target in TARGETS {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{} has no [[bin]]", target.name);
    }
}
