//! Object stores whose files are damaged: bytes of the arena, of the journal or of the database are
//! changed, missing, or taken from another place. Opening such a store gives an error, or a store
//! that answers every query or reports an error, and that shows no object the bytes of another. It
//! never panics, and every operation ends.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::input::{Input, Seed};
use objects::store::embedded::{EmbeddedStore, Options};
use objects::store::{
    Attributes, Change, CollectionType, Commit, Duplicate, Error, FIRST_ID, List, ObjectStore, Scope, Step,
    TimesUpdate,
};
use osd::Id;
use runtime::Runtime;

/// The files, in the order in which inputs number them.
const FILES: [&str; 3] = ["arena", "journal", "metadata.redb"];
const ARENA: usize = 0;
/// Bytes that are moved by one edit at most.
const BLOCK: usize = 4096;
/// Most entries read of one kind, and most bytes read of an object.
const MOST: usize = 256;
const READ: usize = 64 << 10;
/// User objects of a whole store, each with data of one byte of its own and holes.
const OBJECTS: u64 = 4;

fn options(create: bool) -> Options {
    Options {
        capacity: Some(1 << 20),
        create,
        cache_bytes: 1 << 20,
        journal_bytes: 256 << 10,
        ..Options::default()
    }
}

/// The files of a store.
type Files = [Vec<u8>; 3];

/// redb panics on damage that it does not expect. The store catches that and calls its database
/// damaged, but libFuzzer would end the process before.
fn expect_panics_of_redb() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.location().is_some_and(|at| at.file().contains("/redb-")) {
                before(info);
            }
        }));
    });
}

/// A place of this process's own, which is memory where there is such a one.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("stag-fuzz-store-{}", std::process::id()))
}

/// Data of object `n`.
const fn byte(n: u64) -> u8 {
    0x41 + n as u8 // n is small
}

fn id(n: u64) -> Id {
    Id::new(FIRST_ID, FIRST_ID + n)
}

/// The files of a store that is at work, its latest changes in the journal alone, and of the same
/// when it was closed.
fn whole() -> &'static [Files; 2] {
    static WHOLE: OnceLock<[Files; 2]> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let directory = place();
        let _ = std::fs::remove_dir_all(&directory);
        let store = EmbeddedStore::open(&directory, &options(true)).expect("a new store");
        let runtime = Runtime::new(runtime::Config::default()).expect("a ring");
        let apply = |change| runtime.block_on(store.apply(change, Commit::Durable)).expect("there is room");
        let mut change = Change::of(Step::CreatePartition(FIRST_ID));
        change.push(Step::CreateCollection(id(100), CollectionType::LINKED));
        for n in 0..OBJECTS {
            change.push(Step::CreateUser(id(n)));
            let len = 3000 + 9000 * n as usize;
            change.push(Step::Write { id: id(n), at: 5000 * n, data: vec![byte(n); len].into() });
            change.set_attribute(id(n), 0x1_0000, 1, &[byte(n); 20]);
            change.set_attribute(id(n), 0x1_0001, 2, &vec![byte(n); 700 * n as usize + 1]);
            change.push(Step::Join { object: id(n), collection: id(100).object, number: 1 });
        }
        apply(change);
        let copy = FIRST_ID + 1;
        apply(Change::of(Step::Duplicate {
            source: FIRST_ID,
            id: copy,
            kind: Duplicate::Snapshot,
            made_ms: 1,
        }));
        apply(Change::of(Step::Write { id: id(1), at: 100_000, data: vec![byte(1); 4096].into() }));
        let at_work = files(&directory);
        drop(store);
        let closed = files(&directory);
        let _ = std::fs::remove_dir_all(&directory);
        [at_work, closed]
    })
}

fn files(directory: &Path) -> Files {
    FILES.map(|name| std::fs::read(directory.join(name)).expect("a file of the store"))
}

/// Byte 0: the whole store to use; then edits, each as its kind and file (a byte), a position
/// (four), and the operands of its kind.
pub fn run(data: &[u8]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    expect_panics_of_redb();
    let mut input = Input::new(data);
    let mut files = whole()[usize::from(input.u8() % 2)].clone();
    // Whether what objects show can only be their own.
    let mut own = true;
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let which = usize::from(input.u8());
        let file = &mut files[which % 3];
        let (len, at) = (file.len().max(1), input.u32() as usize);
        let at = at % len;
        own &= which % 3 != ARENA;
        match which / 3 % 4 {
            0 => {
                let bytes = input.chunk();
                let end = file.len().min(at + bytes.len());
                file[at.min(end)..end].copy_from_slice(&bytes[..end - at.min(end)]);
            }
            1 => {
                if let Some(byte) = file.get_mut(at) {
                    *byte ^= 1 << (input.u8() % 8);
                }
            }
            2 => file.truncate(at),
            _ => {
                // A block of another place, as a medium that mistakes one for another gives it.
                own = false;
                let from = input.u32() as usize % len / BLOCK * BLOCK;
                let to = at / BLOCK * BLOCK;
                let len = BLOCK.min(file.len() - from.max(to).min(file.len()));
                file.copy_within(from..from + len, to);
            }
        }
    }
    let directory = place();
    std::fs::create_dir_all(&directory).expect("a place");
    for (name, bytes) in FILES.iter().zip(&files) {
        std::fs::write(directory.join(name), bytes).expect("room");
    }
    match EmbeddedStore::open(&directory, &options(false)) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(store) => {
            let runtime = Runtime::new(runtime::Config::default()).expect("a ring");
            let seen = runtime.block_on(look(&store, own));
            if std::env::var_os("FUZZ_TRACE").is_some() {
                eprintln!("it opens; {seen:?}");
            }
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
}

/// Queries everything in a store, and changes it. Returns the number of objects, or the error that
/// it ended with.
async fn look(store: &EmbeddedStore, own: bool) -> Result<usize, Error> {
    let mut seen = 0;
    let _ = store.root();
    let mut partitions = Vec::new();
    let _ = store.list(List::Partitions, 0, MOST, &mut partitions);
    for &partition in &partitions {
        let _ = (store.partition(partition), store.times(Id::partition(partition)));
        for list in [List::Users(partition), List::Collections(partition)] {
            let mut ids = Vec::new();
            let _ = store.list(list, 0, MOST, &mut ids);
            assert!(ids.len() <= MOST && ids.is_sorted());
            for &object in &ids {
                seen += 1;
                look_at(store, Id::new(partition, object), own).await;
            }
        }
    }
    for repair in [false, true] {
        let _ = store.check(0, repair).await;
    }
    let mut change = Change::of(Step::Write { id: id(0), at: 8192, data: vec![byte(0); 100].into() });
    change.set_attribute(id(0), 0x1_0002, 1, b"more");
    let applied = store.apply(change, Commit::Durable).await;
    let _ = store.apply(Change::of(Step::RemoveUser(id(1))), Commit::Relaxed).await;
    store.touch(id(2), TimesUpdate { data_accessed: Some(7), ..TimesUpdate::default() });
    let synced = store.sync(Scope::All).await;
    for n in 0..OBJECTS {
        look_at(store, id(n), own).await;
    }
    applied?;
    synced.map(|()| seen)
}

async fn look_at(store: &EmbeddedStore, id: Id, own: bool) {
    let Ok(info) = store.object(id) else { return };
    let mut values = 0;
    let _ = store.attributes(id, Attributes::All, &mut |attribute| {
        assert!(attribute.value.len() <= objects::store::MAX_VALUE);
        values += 1;
        values < MOST
    });
    let mut memberships = Vec::new();
    let _ = store.memberships(id, 0, MOST, &mut memberships);
    let (mut extents, mut from) = (Vec::new(), 0);
    for _ in 0..MOST {
        extents.clear();
        let Ok(true) = store.extents(id, from, u64::MAX - from, 16, &mut extents) else { break };
        let Some(last) = extents.last() else { break };
        assert!(last.at + last.len > from, "extents go on");
        from = last.at + last.len;
    }
    let _ = store.differences([id, Id::new(FIRST_ID + 1, id.object)], 0, u64::MAX, 16, &mut Vec::new());
    for at in [0, info.length.saturating_sub(READ as u64)] {
        let Ok(data) = store.read(id, at, READ).await else { continue };
        assert!(data.len() as u64 <= info.length.saturating_sub(at));
        let n = id.object.wrapping_sub(FIRST_ID);
        if own && n < OBJECTS {
            assert!(data.to_vec().iter().all(|found| [0, byte(n)].contains(found)), "bytes of {id:?}");
        }
    }
}

/// Whole stores, and one for each kind of damage to each file.
pub fn seeds() -> Vec<(&'static str, Seed)> {
    let edit =
        |seed: Seed, kind: u8, file: u8, at: u32| seed.bytes([3 * kind + file]).bytes(at.to_be_bytes());
    let of = |store: u8, kind, file, at| edit(Seed::new().bytes([store]), kind, file, at);
    vec![
        ("whole-at-work", Seed::new().bytes([0])),
        ("whole-closed", Seed::new().bytes([1])),
        ("arena-other-bytes", of(1, 0, 0, 8192).chunk([0xEE; 64])),
        ("arena-cut", of(1, 2, 0, 4096)),
        ("arena-moved", of(1, 3, 0, 0).bytes([0, 0, 0x20, 0])),
        ("journal-other-bytes", of(0, 0, 1, 4096).chunk([0xEE; 64])),
        ("journal-one-bit", of(0, 1, 1, 40).bytes([3])),
        ("journal-cut", of(0, 2, 1, 100_000)),
        ("journal-moved", of(0, 3, 1, 8192).bytes([0, 0, 0, 0])),
        ("database-head", of(1, 0, 2, 0).chunk([0xEE; 64])),
        ("database-one-bit", of(1, 1, 2, 9000).bytes([0])),
        ("database-cut", of(1, 2, 2, 70_000)),
        ("database-empty", of(1, 2, 2, 0)),
        ("database-moved", of(1, 3, 2, 8192).bytes([0, 0, 0x10, 0])),
        ("database-keys-out-of-order", of(1, 1, 2, 0x1111_1111).bytes([1])),
        // The commit that opening makes met it, and panicked twice: that ends a process.
        ("database-one-bit-that-a-commit-meets", of(1, 1, 2, 0x8000_0023)),
        ("two-at-once", edit(of(0, 1, 1, 5000).bytes([1]), 1, 2, 4200).bytes([7])),
    ]
}
