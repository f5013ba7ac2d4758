//! Vectors of commands and parameter data, held against a second reading of the protocol.
//!
//! `tests/lab/osd_vectors.py` makes `vectors/python.json`; it is written from the standard's facts
//! and from nothing of this crate. This crate must read its vectors to the same fields, and write
//! them to the same bytes. `vectors/rust.json` is the other way round: made here
//! (`STAG_WRITE_VECTORS=1`), read there (suite `peers.osd_vectors`). `vectors/libosd.json` has CDBs
//! that libosd of Linux 4.14 sent; both readings hold them against the same fields.

mod data;
mod made;
mod view;

use std::path::PathBuf;

use osd::Cdb;
use osd::security::{Algorithm, Key, command_request, mac};
use serde_json::{Value, json};

fn vectors(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

fn read(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(vectors(name)).expect("a file of vectors");
    serde_json::from_str(&text).expect("vectors are JSON")
}

fn of_kind(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = read("python.json").into_iter().filter(|vector| vector["kind"] == kind).collect();
    assert!(found.len() >= 3, "{} vectors of a {kind} prove nothing", found.len());
    found
}

fn bytes(vector: &Value) -> Vec<u8> {
    view::unhex(vector["hex"].as_str().expect("a vector has bytes"))
}

#[test]
fn every_cdb_of_the_second_reading_has_the_same_fields_here_and_is_written_to_the_same_bytes() {
    let found = of_kind("cdb");
    for vector in &found {
        let raw = bytes(vector);
        let cdb = Cdb::decode(&raw).unwrap_or_else(|error| panic!("{error}: {vector}"));
        assert_eq!(view::of(&cdb), vector["view"], "{vector}");
        let again = cdb.encode().unwrap_or_else(|error| panic!("{error}: {vector}"));
        assert_eq!(view::hex(&again), vector["hex"].as_str().unwrap_or_default(), "{vector}");
    }
    let missing: Vec<_> = osd::Action::ALL
        .iter()
        .filter(|action| !found.iter().any(|vector| vector["view"]["action"] == action.name()))
        .collect();
    assert!(missing.is_empty(), "no vector of {missing:?}");
}

/// libosd writes 0 as an offset that nothing is at, and this crate the number that means none: the
/// bytes need not be the same.
#[test]
fn cdbs_of_linux_have_the_fields_of_the_second_reading() {
    let found = read("libosd.json");
    for vector in &found {
        let cdb = Cdb::decode(&bytes(vector)).unwrap_or_else(|error| panic!("{error}: {vector}"));
        assert_eq!(view::of(&cdb), vector["view"], "{vector}");
    }
    for version in [200, 236] {
        let of = found.iter().filter(|vector| vector["view"]["version"] == version).count();
        assert!(of >= 9, "{of} vectors of {version} bytes prove nothing");
    }
}

#[test]
fn offsets_mean_the_same_to_both() {
    for vector in of_kind("offset") {
        let raw = bytes(&vector);
        let field = u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]);
        let version = if vector["generation"] == 1 { osd::Version::Osd1 } else { osd::Version::Osd2 };
        let here = match osd::offset::decode(field, version) {
            Ok(offset) => json!(offset),
            Err(_) => json!("malformed"),
        };
        assert_eq!(here, vector["view"], "{vector}");
    }
}

#[test]
fn attribute_lists_of_the_second_reading_have_the_same_entries_here() {
    for vector in of_kind("attribute list") {
        assert_eq!(data::list(&bytes(&vector), &vector["generation"]), vector["view"], "{vector}");
    }
}

#[test]
fn continuations_of_the_second_reading_have_the_same_descriptors_here_and_are_written_to_the_same_bytes() {
    for vector in of_kind("continuation") {
        let raw = bytes(&vector);
        let (view, again) = data::continuation(&raw);
        assert_eq!(view, vector["view"], "{vector}");
        assert_eq!(again, raw, "{vector}");
    }
}

#[test]
fn integrity_check_values_of_the_second_reading_are_ours() {
    for vector in of_kind("security") {
        let field = |name: &str| view::unhex(vector["view"][name].as_str().expect("hexadecimal"));
        let cdb = field("cdb");
        let form = Cdb::decode(&cdb).expect("a command").form;
        let algorithm = Algorithm::of_form(form);
        let key = |bytes: &[u8]| Key::new(bytes).expect("a key");
        let mut signed = mac(algorithm, &key(&field("secret")), &[&field("capability"), &field("system_id")]);
        assert_eq!(
            view::hex(signed.bytes()),
            vector["view"]["capability_key"].as_str().unwrap_or_default(),
            "{vector}"
        );
        signed = command_request(algorithm, &key(signed.bytes()), &cdb, form);
        assert_eq!(signed.bytes(), &bytes(&vector)[form.icv_at()..form.nonce_at()], "{vector}");
    }
}

#[test]
fn the_file_of_our_own_vectors_is_what_this_crate_writes() {
    let made = made::vectors();
    let path = vectors("rust.json");
    if std::env::var_os("STAG_WRITE_VECTORS").is_some() {
        let lines: Vec<String> = made.iter().map(Value::to_string).collect();
        std::fs::write(&path, format!("[\n{}\n]\n", lines.join(",\n"))).expect("the file can be written");
    }
    assert!(
        read("rust.json") == made,
        "{} is another: write it again with STAG_WRITE_VECTORS=1",
        path.display()
    );
}
