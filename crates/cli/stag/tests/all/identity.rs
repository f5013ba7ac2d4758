//! Identities of units: the serial number and the worldwide name by which initiators recognise
//! them. Two state directories stand for two machines. For a file of the same path on both, one
//! file replaces the other.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::command::{Server, done, fails, path, stag, wait_until};
use rustix::process::Signal;

/// A worldwide name and a serial number.
type Names = (String, String);

fn names(url: &str) -> Names {
    let info: serde_json::Value = serde_json::from_slice(&done(&["info", "--json", url])).unwrap();
    let naa = info["designators"].as_array().unwrap().iter().find(|of| of["kind"] == "naa").unwrap();
    (naa["value"].as_str().unwrap().to_owned(), info["serial"].as_str().unwrap().to_owned())
}

/// The names of the first unit of a server that is started with `unit` and ended again.
fn names_of(state: &Path, more: &[&str], unit: &str) -> Names {
    let server = Server::start_on(state, &[&["--listen", "127.0.0.1:0"], more, &[unit]].concat(), 1);
    let names = names(&server.urls[0]);
    assert_eq!(server.end(Signal::TERM), Some(0));
    names
}

/// The names that earlier versions derived from a path, or from a target's name and a LUN (FNV-1a
/// with two offsets).
fn derived(seed: &str) -> Names {
    let hash =
        |offset: u64| seed.bytes().fold(offset, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let (serial, naa) = (hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142) >> 4 | 3 << 60);
    (format!("{naa:016x}"), format!("{serial:016x}"))
}

fn copy(from: &str, to: &str) {
    assert!(Command::new("cp").args(["-a", from, to]).status().unwrap().success());
}

/// The error of a server of `units`, which does not start.
fn refused(units: &[&str]) -> String {
    fails(&[&["serve", "--listen", "127.0.0.1:0", "--control", "none"], units].concat(), 4)
}

#[test]
fn the_same_path_and_lun_on_two_machines_are_four_different_units() {
    let dir = tempfile::tempdir().unwrap();
    let disk = path(dir.path(), "disk.img");
    let mut all = HashSet::new();
    for machine in ["one", "two"] {
        let state = dir.path().join(machine);
        let both = [&*format!("{disk},size=1M"), "mem:1M"];
        let server = Server::start_on(&state, &[&["--listen", "127.0.0.1:0"], &both[..]].concat(), 2);
        let first = [names(&server.urls[0]), names(&server.urls[1])];
        assert_eq!(server.end(Signal::TERM), Some(0));
        assert_eq!(names_of(&state, &[], &disk), first[0], "the same after a start anew");
        for (naa, serial) in &first {
            assert!(naa.len() == 32 && naa.starts_with("6025354") && naa.ends_with(serial), "{naa} {serial}");
        }
        all.extend(first);
        fs::remove_file(&disk).unwrap();
    }
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn memory_keeps_its_identity_in_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--iqn", "iqn.2026-01.org.example:m"];
    let first = names_of(dir.path(), &args, "mem:1M");
    assert_eq!(names_of(dir.path(), &args, "mem:2M"), first);
    // Two at a time are two units, whatever their names.
    let words = ["--listen", "127.0.0.1:0", "--iqn", "iqn.2026-01.org.example:m", "mem:1M"];
    let (one, other) = (Server::start_on(dir.path(), &words, 1), Server::start_on(dir.path(), &words, 1));
    assert_eq!(names(&one.urls[0]), first);
    assert_ne!(names(&other.urls[0]), first);
}

/// The files of memory units in a state directory.
fn records(state: &Path) -> Vec<String> {
    let kinds = ["identities", "reservations"].into_iter().flat_map(|kind| fs::read_dir(state.join(kind)));
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> =
        kinds.flatten().map(name).filter(|name| name.starts_with("memory:")).collect();
    names.sort();
    names
}

#[test]
fn memory_that_is_taken_out_leaves_no_identity_and_no_reservations() {
    let dir = tempfile::tempdir().unwrap();
    let (state, socket) = (dir.path().join("state"), path(dir.path(), "control.sock"));
    let file = path(dir.path(), "stag.toml");
    let serve = |luns: &[u16]| {
        let units: String =
            luns.iter().map(|lun| format!("[[target.unit]]\nlun = {lun}\npath = \"mem:1M\"\n")).collect();
        fs::write(&file, format!("[[target]]\niqn = \"iqn.2026-01.org.example:m\"\n{units}")).unwrap();
    };
    let apply = |luns: &[u16]| {
        serve(luns);
        done(&["apply", "--control", &socket, &file]);
    };
    serve(&[0, 1]);
    let server =
        Server::start_on(&state, &["--listen", "127.0.0.1:0", "--config", &file, "--control", &socket], 2);
    let [kept, out] = [0, 1].map(|unit| names(&server.urls[unit]));
    let of = |lun: u16| format!("memory:iqn.2026-01.org.example:m%2f{lun}");
    // As a registration with APTPL leaves it.
    fs::write(state.join("reservations").join(of(1)), scsi::reservation::Reservations::new().to_bytes())
        .unwrap();
    assert_eq!(records(&state).len(), 5, "{:?}", records(&state));
    apply(&[0]);
    wait_until("its records are gone", || records(&state) == [of(0), format!("{}.lock", of(0))]);
    apply(&[0, 1]);
    assert_ne!(names(&server.urls[1]), out, "an empty disk is not taken for the one that was lost");
    assert_eq!(names(&server.urls[0]), kept);
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert_eq!(records(&state).len(), 4, "the end of the daemon takes nothing out");
}

#[test]
fn records_of_memory_that_nobody_has_served_for_90_days_are_removed_at_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let unit =
        |name: &str| ["--iqn".to_owned(), format!("iqn.2026-01.org.example:{name}"), "mem:1M".to_owned()];
    let start = |name: &str| {
        let unit = unit(name);
        let words: Vec<&str> =
            ["--listen", "127.0.0.1:0"].into_iter().chain(unit.iter().map(String::as_str)).collect();
        Server::start_on(dir.path(), &words, 1)
    };
    let old = |name: &str, days: u64| {
        for ending in ["", ".lock"] {
            let file = dir
                .path()
                .join("identities")
                .join(format!("memory:iqn.2026-01.org.example:{name}%2f0{ending}"));
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400);
            fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
        }
    };
    for name in ["gone", "young"] {
        assert_eq!(start(name).end(Signal::TERM), Some(0));
    }
    let served = start("served");
    old("gone", 91);
    old("young", 89);
    old("served", 91);
    assert_eq!(start("other").end(Signal::TERM), Some(0));
    let left = records(dir.path());
    for (name, kept) in [("gone", 0), ("young", 2), ("served", 2), ("other", 2)] {
        assert_eq!(left.iter().filter(|file| file.contains(name)).count(), kept, "{name}: {left:?}");
    }
    drop(served);
}

#[test]
fn a_file_that_is_moved_keeps_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, moved) = (path(dir.path(), "disk.img"), path(dir.path(), "moved.img"));
    let first = names_of(dir.path(), &[], &format!("{disk},size=1M"));
    fs::rename(&disk, &moved).unwrap();
    assert_eq!(names_of(dir.path(), &[], &moved), first);
    assert_eq!(
        names_of(&dir.path().join("elsewhere"), &[], &moved),
        first,
        "with another state directory too"
    );
    let anew = names_of(dir.path(), &[], &format!("{disk},size=1M"));
    assert_ne!(anew, first, "another file under the old name is another unit");
}

#[test]
fn a_copy_is_refused_until_it_is_settled_who_keeps_the_identity() {
    let dir = tempfile::tempdir().unwrap();
    let [disk, second, third] = ["disk.img", "second.img", "third.img"].map(|name| path(dir.path(), name));
    let first = names_of(dir.path(), &[], &format!("{disk},size=1M"));
    copy(&disk, &second);
    copy(&disk, &third);
    let why = refused(&[&second]);
    assert!(why.contains(&format!("it is a copy of {disk}")) && why.contains("stag identity --new"), "{why}");
    done(&["identity", "--new", &second]);
    assert_ne!(names_of(dir.path(), &[], &second), first);
    assert!(!stag(&["identity", &third]).status.success(), "it says so, and changes nothing");
    fs::remove_file(&disk).unwrap();
    assert!(refused(&[&third]).contains("stag identity --keep"));
    done(&["identity", "--keep", &third]);
    assert_eq!(names_of(dir.path(), &[], &third), first);
    let shown = String::from_utf8(done(&["identity", &third])).unwrap();
    assert!(shown.contains(&format!("naa.{}, serial {}", first.0, first.1)), "{shown}");
    let server = Server::start(&["--listen", "127.0.0.1:0", &third], 1);
    assert!(fails(&["identity", "--new", &third], 1).contains("being served"));
    assert_eq!(names(&server.urls[0]), first);
}

#[test]
fn two_units_of_one_daemon_never_have_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let naa = "naa=naa.60000000000000000000000000000001";
    let why = refused(&[&format!("mem:1M,{naa}"), &format!("mem:2M,{naa}")]);
    assert!(why.contains("LUN 1: it has the worldwide name of LUN 0"), "{why}");
    // Two read-only units of one file are one disk.
    let disk = path(dir.path(), "disk.img");
    let first = names_of(dir.path(), &[], &format!("{disk},size=1M"));
    let twice = format!("{disk},ro");
    let server = Server::start(&["--listen", "127.0.0.1:0", &twice, &twice], 2);
    assert!(server.urls.iter().all(|url| names(url) == first));
}

#[test]
fn derived_names_are_those_of_the_versions_before_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let disk = path(dir.path(), "disk.img");
    let of_path = names_of(dir.path(), &[], &format!("{disk},size=1M,identity=derived"));
    let real = fs::canonicalize(&disk).unwrap();
    assert_eq!(of_path, derived(real.to_str().unwrap()));
    let config = path(dir.path(), "stag.toml");
    let text = "identity = \"derived\"\n[[target]]\niqn = \"iqn.2026-01.org.example:T\"\n\
                [[target.unit]]\nlun = 0\npath = \"mem:1M\"\n[[target.unit]]\nlun = 1\npath = \"mem:1M\"\nidentity = \"own\"\n";
    fs::write(&config, text).unwrap();
    let server = Server::start_on(dir.path(), &["--listen", "127.0.0.1:0", "--config", &config], 2);
    assert_eq!(names(&server.urls[0]), derived("iqn.2026-01.org.example:t/0"));
    assert!(names(&server.urls[1]).0.starts_with('6'));
}

#[test]
fn a_unit_that_was_served_under_derived_names_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    // Persistent reservations beside a file, which only a daemon leaves there.
    let disk = path(dir.path(), "disk.img");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    fs::write(format!("{disk}.reservations"), scsi::reservation::Reservations::new().to_bytes()).unwrap();
    let real = fs::canonicalize(&disk).unwrap();
    assert_eq!(names_of(dir.path(), &[], &disk), derived(real.to_str().unwrap()));
    // A daemon that is replaced reports its serial numbers; its names move with the file from then
    // on.
    let (other, moved) = (path(dir.path(), "other.img"), path(dir.path(), "moved.img"));
    let socket = path(dir.path(), "control.sock");
    let words = |unit| {
        vec!["--listen", "127.0.0.1:0", "--iqn", "iqn.2026-01.org.example:t", "--control", &socket, unit]
    };
    let old = format!("{other},size=1M,identity=derived");
    let old = Server::start_on(dir.path(), &words(&old), 1);
    let before = names(&old.urls[0]);
    let new = Server::start_on(dir.path(), &[words(&other), vec!["--takeover"]].concat(), 1);
    assert_eq!(old.ended(), Some(0));
    assert_eq!(names(&new.urls[0]), before);
    assert_eq!(new.end(Signal::TERM), Some(0));
    fs::rename(&other, &moved).unwrap();
    assert_eq!(names_of(dir.path(), &[], &moved), before);
}

#[test]
fn a_target_that_had_the_default_name_of_an_earlier_version_keeps_it_over_takeovers() {
    const OLD: &str = "iqn.2026-01.org.stag:disk";
    let dir = tempfile::tempdir().unwrap();
    let (disk, socket) =
        (format!("{},size=1M", path(dir.path(), "disk.img")), path(dir.path(), "control.sock"));
    let start = |more: &[&str]| {
        let words = ["--listen", "127.0.0.1:0", "--control", &socket, &disk];
        Server::start_on(dir.path(), &[&words[..], more].concat(), 1)
    };
    let mut running = start(&["--iqn", OLD]);
    for _ in 0..2 {
        let next = start(&["--takeover"]);
        assert_eq!(running.ended(), Some(0));
        assert!(next.urls[0].contains(&format!("/{OLD}/")), "{}", next.urls[0]);
        running = next;
    }
    assert_eq!(running.end(Signal::TERM), Some(0));
    let anew = start(&[]);
    assert!(!anew.urls[0].contains(&format!("/{OLD}/")), "{}", anew.urls[0]);
}

#[test]
fn a_store_of_objects_has_its_identity_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, moved) = (path(dir.path(), "store"), path(dir.path(), "moved"));
    let unit = |store: &str| format!("osd:{store},capacity=16M");
    // Its making was cut off.
    fs::create_dir(&store).unwrap();
    fs::write(Path::new(&store).join("unfinished"), "").unwrap();
    let first = names_of(dir.path(), &[], &unit(&store));
    assert!(first.0.starts_with("6025354"), "{first:?}");
    fs::rename(&store, &moved).unwrap();
    assert_eq!(names_of(dir.path(), &[], &unit(&moved)), first);
    // One of an earlier version has none.
    fs::remove_file(Path::new(&moved).join("identity")).unwrap();
    assert_eq!(
        names_of(dir.path(), &[], &unit(&moved)),
        derived(fs::canonicalize(&moved).unwrap().to_str().unwrap())
    );
}

#[test]
fn an_identity_that_cannot_be_read_is_never_replaced_silently() {
    let dir = tempfile::tempdir().unwrap();
    let disk = path(dir.path(), "disk.img");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    fs::write(format!("{disk}.identity"), "{\"v\":1").unwrap();
    let why = refused(&[&disk]);
    assert!(why.contains("cannot be read") && why.contains(&format!("{disk}.identity")), "{why}");
}
