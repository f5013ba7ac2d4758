//! A medium that changes what lies on it: bits that turn, pages that are torn. Nothing of it ends
//! the process, and of what can be known nothing is lost.

use std::os::unix::fs::PermissionsExt;

use backing::model::Random;

use crate::store::embedded::testing::{P, Rig, apply, describe, now, object, sound};
use crate::store::embedded::{EmbeddedStore, Options};
use crate::store::{BLOCK, Change, Commit, Error, Id, ObjectStore, Step};

const OBJECTS: u64 = 400;
const PAGE: usize = 4096;

/// Value of each byte of object `n`.
fn byte(n: u64) -> u8 {
    (n % 250) as u8 + 1
}

fn create(n: u64, blocks: u64) -> Change {
    let mut change = Change::of(Step::CreateUser(object(n)));
    change.push(Step::Write { id: object(n), at: 0, data: vec![byte(n); (blocks * BLOCK) as usize].into() });
    change.set_attribute(object(n), 1, 1, b"name");
    change
}

/// A store whose database has several levels, that database while it is open and after it was
/// closed, and the store's description.
fn whole() -> (Rig, [Vec<u8>; 2], String) {
    let mut rig = Rig::new(1000, 256 << 10);
    // Everything is read from the medium, each time.
    rig.cache_bytes = 0;
    let store = rig.open();
    apply(&store, Step::CreatePartition(P)).unwrap();
    for n in 0..OBJECTS {
        apply(&store, create(n, n % 3)).unwrap();
    }
    now(store.checkpoint()).unwrap();
    now(store.checkpoint()).unwrap();
    let said = describe(&store);
    let at_work = rig.disk.bytes();
    drop(store);
    let closed = rig.disk.bytes();
    (rig, [at_work, closed], said)
}

/// Somewhere in a file; as often as not where something is.
fn place(random: &mut Random, bytes: &[u8]) -> usize {
    loop {
        let at = random.below(bytes.len() as u64) as usize;
        if random.below(2) == 0 || bytes[at / PAGE * PAGE..].iter().take(PAGE).any(|byte| *byte != 0) {
            return at;
        }
    }
}

/// Number of readable objects. Each has its own bytes, or zeros.
fn look(store: &dyn ObjectStore) -> u64 {
    let mut there = 0;
    for n in 0..OBJECTS {
        if let Ok(data) = now(store.read(object(n), 0, 1 << 20)) {
            assert!(data.to_vec().iter().all(|found| [0, byte(n)].contains(found)), "object {n}");
            there += 1;
        }
    }
    there
}

#[test]
fn one_turned_bit_anywhere_in_the_database_is_turned_back_and_nothing_is_lost() {
    let (rig, files, said) = whole();
    let mut random = Random::new(1);
    for round in 0..240 {
        let file = &files[round % 2];
        let at = match round {
            // Those bytes of the header that each commit writes.
            0..80 => random.below(320) as usize,
            _ => place(&mut random, file),
        };
        let bit = random.below(8);
        rig.disk.damage(|bytes| {
            bytes.clone_from(file);
            bytes[at] ^= 1 << bit;
        });
        let store = rig.try_open().unwrap_or_else(|error| panic!("bit {bit} of byte {at}: {error}"));
        assert_eq!(describe(&store), said, "bit {bit} of byte {at}");
        sound(&store);
    }
}

#[test]
fn a_torn_page_of_the_database_costs_its_own_records_and_a_check_repairs_the_rest() {
    let (rig, files, _) = whole();
    let mut random = Random::new(2);
    let (mut refused, mut lost) = (0, 0);
    for round in 0..80 {
        let file = &files[round % 2];
        let page = place(&mut random, file) / PAGE * PAGE;
        let other = place(&mut random, file) / PAGE * PAGE;
        rig.disk.damage(|bytes| {
            bytes.clone_from(file);
            for sector in (0..PAGE).step_by(512) {
                match random.below(3) {
                    0 => bytes.copy_within(other + sector..other + sector + 512, page + sector),
                    1 => bytes[page + sector..page + sector + 512].fill(0),
                    _ => {}
                }
            }
        });
        let Ok(store) = rig.try_open() else {
            refused += 1;
            continue;
        };
        let there = look(&store);
        lost += u64::from(there < OBJECTS);
        let report = now(store.check(0, false)).unwrap();
        if there < OBJECTS {
            assert!(report.wrong > 0, "page {page:#x}: objects are missing, and nobody says so");
            assert_eq!(apply(&store, create(OBJECTS, 1)), Err(Error::Damaged(Id::ROOT)));
        }
        if now(store.check(0, true)).unwrap().repaired == report.wrong {
            sound(&store);
        }
        look(&store);
    }
    // The header, the root of all tables, and the record of the store itself are on one page each.
    assert!(refused < 24 && lost > 5, "{refused} {lost}");
}

#[test]
fn pages_that_change_under_an_open_store_are_never_used_for_a_commit() {
    let (mut unread, mut damaged, mut refused) = (0, 0, 0);
    for seed in 0..12 {
        let (rig, _, said) = whole();
        let store = rig.open();
        let mut random = Random::new(seed);
        let single = seed % 2 == 0;
        rig.disk.damage(|bytes| {
            let used =
                bytes.chunks_exact(PAGE).enumerate().skip(1).filter(|(_, page)| page.iter().any(|b| *b != 0));
            let used: Vec<usize> = used.map(|(page, _)| page).collect();
            for page in used {
                // One bit of each page, or two of some.
                let at = page * PAGE + random.below(PAGE as u64) as usize;
                match random.below(16) {
                    _ if single => bytes[at] ^= 1 << random.below(8),
                    0 | 1 => bytes[at] ^= 0x55,
                    _ => {}
                }
            }
        });
        if single {
            assert_eq!(describe(&store), said);
        }
        unread += u64::from(look(&store) < OBJECTS);
        for n in OBJECTS..OBJECTS + 30 {
            let _ = apply(&store, create(n, 1));
            let _ = apply(&store, Step::RemoveUser(object(n - OBJECTS)));
        }
        let first = now(store.checkpoint());
        assert!(first.is_ok() || !single, "{first:?}");
        if !single {
            // redb is opened anew, and made anew.
            if now(store.checkpoint()).is_err() || now(store.check(0, false)).is_err() {
                refused += 1;
                continue;
            }
            damaged += u64::from(matches!(apply(&store, create(OBJECTS, 1)), Err(Error::Damaged(_))));
            now(store.check(0, true)).unwrap();
            assert!(look(&store) > OBJECTS / 2);
        }
        drop(store);
        let store = rig.open();
        assert!(look(&store) > OBJECTS / 2);
        if single {
            sound(&store);
            assert!((30..OBJECTS + 30).all(|n| store.object(object(n)).is_ok()));
        }
    }
    assert!(unread > 1 && damaged > 1 && refused < 4, "{unread} {damaged} {refused}");
}

#[test]
fn a_damaged_database_file_is_replaced_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (file, damaged) = (directory.path().join("metadata.redb"), directory.path().join("metadata.damaged"));
    let options = Options { capacity: Some(1 << 20), create: true, journal_bytes: 0, ..Options::default() };
    let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
    let store = EmbeddedStore::open(directory.path(), &options).unwrap();
    runtime.block_on(store.apply(Step::CreatePartition(P).into(), Commit::Durable)).unwrap();
    for n in 0..50 {
        runtime.block_on(store.apply(create(n, 1), Commit::Durable)).unwrap();
    }
    drop(store);
    let mut bytes = std::fs::read(&file).unwrap();
    for at in 0..bytes.len() - 4 {
        // Two bits of each record there, on pages of whatever age.
        bytes[at + 3] ^= if bytes[at..].starts_with(b"name") { 0x11 } else { 0 };
    }
    std::fs::write(&file, &bytes).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let store = EmbeddedStore::open(directory.path(), &options).unwrap();
    assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(!directory.path().join("metadata.rebuilt").exists());
    let changed = runtime.block_on(store.apply(create(50, 1), Commit::Durable));
    assert_eq!(changed.map(drop), Err(Error::Damaged(Id::ROOT)));
    let report = runtime.block_on(store.check(0, true)).unwrap();
    assert!(report.repaired > 0, "{report:?}");
    runtime.block_on(store.apply(create(60, 1), Commit::Durable)).unwrap();
    drop(store);
    // A repaired database is whole, and is not repaired again.
    let kept = std::fs::metadata(&damaged).unwrap().modified().unwrap();
    let store = EmbeddedStore::open(directory.path(), &options).unwrap();
    assert!(store.object(object(60)).is_ok());
    assert_eq!(std::fs::metadata(&damaged).unwrap().modified().unwrap(), kept);
}
