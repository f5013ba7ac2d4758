//! kill -9 of a process that changes a store, again and again. Every acknowledged change is there,
//! and every other one is there as a whole or not at all.
//!
//! The writer is this very test binary, started with a variable in its environment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use objects::store::embedded::{self, EmbeddedStore, OpenError, Options};
use objects::store::{Change, CollectionType, Commit, Duplicate, FIRST_ID, List, ObjectStore, Step};
use osd::Id;

const WRITER: &str = "STAG_OBJECTS_WRITER";
const P: u64 = FIRST_ID;
const TASKS: u64 = 4;

fn options() -> Options {
    Options { capacity: Some(256 << 20), create: true, journal_bytes: 512 << 10, ..Options::default() }
}

fn run<F: Future>(future: F) -> F::Output {
    runtime::Runtime::new(runtime::Config::default()).expect("a ring").block_on(future)
}

/// Content of object `n` in generation `g`.
fn content(n: u64, g: u64) -> Vec<u8> {
    let len = 100 + (n * 7919 + g * 104_729) % 20_000;
    (0..len).map(|at| (n * 31 + g * 17 + at / 64) as u8 | 1).collect()
}

#[test]
fn writer() {
    let Ok(arguments) = std::env::var(WRITER) else { return };
    let (first, path) = arguments.split_once(' ').expect("two words");
    let (first, path): (u64, PathBuf) = (first.parse().expect("a number"), path.into());
    run(async move {
        let store = std::rc::Rc::new(EmbeddedStore::open(&path, &options()).expect("opened"));
        if store.partition(P).is_err() {
            store.apply(Step::CreatePartition(P).into(), Commit::Durable).await.expect("created");
        }
        let tasks: Vec<_> =
            (0..TASKS).map(|task| runtime::spawn(write(store.clone(), task, first))).collect();
        for task in tasks {
            task.await.expect("it runs until it is killed");
        }
    });
}

/// Each task has objects of its own, and goes round them: made, made anew, removed.
async fn write(store: std::rc::Rc<EmbeddedStore>, task: u64, first: u64) {
    let say = |line: String| {
        let mut out = std::io::stdout();
        out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("said");
    };
    for g in first.. {
        let n = task + TASKS * (g % 16);
        let id = Id::new(P, FIRST_ID + n);
        let commit = if g % 5 == 0 { Commit::Durable } else { Commit::Relaxed };
        let mut change = Change::new();
        if store.object(id).is_ok() {
            change.push(Step::RemoveUser(id));
        }
        let made = g % 3 > 0;
        if made {
            change.push(Step::CreateUser(id));
            change.push(Step::Write { id, at: 0, data: content(n, g).into() });
            change.set_attribute(id, 1, 1, &g.to_be_bytes());
        }
        say(format!("begin {n} {g} {}\n", u64::from(made)));
        store.apply(change, commit).await.expect("applied");
        say(format!("end {n}\n"));
    }
}

fn start(first: u64, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("a test knows where it is"))
        .args(["--exact", "writer", "--nocapture", "--test-threads=1", "-q"])
        .env(WRITER, format!("{first} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

type State = Option<u64>;

/// Reads the writer's reports until it is killed: each object's state, and the state that it may
/// have instead. Returns the newest generation and the number of finished changes.
fn follow(mut child: Child, known: &mut BTreeMap<u64, (State, State)>, life: Duration) -> (u64, u64) {
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // Its life begins with its first change: how long a program takes to start says nothing.
    let (mut started, mut killed, mut newest, mut ended) = (None, false, 0, 0);
    for line in lines {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["begin", n, g, made] => {
                // The last line may be cut off in the middle.
                let (Ok(n), Ok(g), Ok(made)) = (n.parse(), g.parse::<u64>(), made.parse::<u8>()) else {
                    break;
                };
                newest = newest.max(g);
                known.entry(n).or_default().1 = (made == 1).then_some(g);
            }
            ["end", n] => {
                let Ok(n) = n.parse() else { break };
                let state = known.entry(n).or_default();
                state.0 = state.1;
                ended += 1;
            }
            _ => {}
        }
        if !killed && words[0] == "begin" && started.get_or_insert_with(Instant::now).elapsed() > life {
            child.kill().expect("killed");
            killed = true;
        }
    }
    assert!(killed, "the writer ended by itself");
    child.wait().expect("it ended");
    (newest, ended)
}

#[test]
fn a_killed_writer_leaves_every_change_that_it_was_told_of_and_the_others_as_a_whole() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("objects");
    let (mut known, mut next, mut ended) = (BTreeMap::new(), 1, 0);
    for life in 0..40 {
        // A slow machine takes more lives to do as much.
        if life >= 6 && ended > 50 {
            break;
        }
        let (newest, some) =
            follow(start(next, &path), &mut known, Duration::from_millis(200 + 70 * (life % 6)));
        next = next.max(newest + 1);
        ended += some;
        run(async {
            let store = EmbeddedStore::open(&path, &options()).expect("opened");
            let report = store.check(0, false).await.expect("checked");
            assert_eq!(report.findings, Vec::<String>::new());
            for (n, states) in &mut known {
                let id = Id::new(P, FIRST_ID + n);
                let found = if store.object(id).is_ok() {
                    let mut value = Vec::new();
                    assert!(store.attribute(id, 1, 1, &mut value).expect("an attribute"));
                    let g = u64::from_be_bytes(value.try_into().expect("8 bytes"));
                    let bytes = store.read(id, 0, 1 << 20).await.expect("read").to_vec();
                    assert!(bytes == content(*n, g), "life {life}: object {n} of generation {g}");
                    Some(g)
                } else {
                    None
                };
                assert!(
                    [states.0, states.1].contains(&found),
                    "life {life}: {n} is {found:?}, not {states:?}"
                );
                *states = (found, found);
            }
            let mut users = Vec::new();
            if store.partition(P).is_ok() {
                store.list(List::Users(P), 0, 1000, &mut users).expect("listed");
            }
            assert!(users.iter().all(|id| known.contains_key(&(id - FIRST_ID))));
        });
    }
    assert!(ended > 50, "only {ended} changes: too few to prove anything");
}

#[test]
fn a_directory_is_open_once_and_what_is_no_store_is_told_apart() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("objects");
    let missing = EmbeddedStore::open(&path, &Options { create: false, ..options() });
    assert!(matches!(missing, Err(OpenError::Missing { .. })));
    std::fs::create_dir(&path).expect("made");
    std::fs::write(path.join("letter"), "dear").expect("written");
    assert!(matches!(EmbeddedStore::open(&path, &options()), Err(OpenError::NotAStore { .. })));
    std::fs::remove_file(path.join("letter")).expect("removed");
    let store = EmbeddedStore::open(&path, &options()).expect("opened");
    let again = EmbeddedStore::open(&path, &options());
    assert!(matches!(again, Err(OpenError::Arena(backing::OpenError::Locked { .. }))), "{again:?}");
    drop(store);
    EmbeddedStore::open(&path, &Options { create: false, ..options() }).expect("opened again");
}

/// Objects with attributes alone leave the arena empty.
#[test]
fn a_store_that_has_lost_files_is_not_made_anew() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let [path, away] = ["objects", "away"].map(|name| directory.path().join(name));
    let open = || EmbeddedStore::open(&path, &options());
    let store = open().expect("made");
    run(store.apply(Step::CreatePartition(P).into(), Commit::Durable)).expect("created");
    drop(store);
    std::fs::write(path.join("identity"), "its own").expect("written");
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to).expect("renamed");
    for part in ["metadata.redb", "arena", "journal"] {
        let file = path.join(part);
        rename(&file, &away);
        for _ in 0..2 {
            let told = open().expect_err("a part is missing");
            assert!(matches!(told, OpenError::Incomplete { missing, .. } if missing == part), "{told}");
            std::fs::write(&file, []).expect("emptied");
        }
        rename(&away, &file);
    }
    assert!(open().expect("whole again").partition(P).is_ok());
    for part in ["metadata.redb", "arena", "journal"] {
        std::fs::remove_file(path.join(part)).expect("removed");
        let told = open().expect_err("its identity is there");
        assert!(matches!(told, OpenError::Incomplete { missing: "metadata.redb", .. }), "{told}");
    }
    std::fs::remove_file(path.join("identity")).expect("removed");
    assert!(open().expect("a new one").partition(P).is_err());
}

#[test]
fn a_store_whose_making_was_cut_off_is_made() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path();
    embedded::begin(path).expect("marked");
    for part in ["identity", "arena", "journal.new"] {
        std::fs::write(path.join(part), []).expect("written");
        EmbeddedStore::open(path, &Options { create: false, ..options() }).expect_err("it is not whole");
    }
    EmbeddedStore::open(path, &options()).expect("made");
    assert!(!path.join(embedded::UNFINISHED).exists());
    EmbeddedStore::open(path, &Options { create: false, ..options() }).expect("opened again");
}

/// All cores create objects in one collection, and write one object.
async fn use_it(store: &EmbeddedStore, core: u64, collection: Id) {
    for n in 0..100 {
        let id = Id::new(P, store.reserve_ids(P, 1).expect("an id"));
        let mut change = Change::of(Step::CreateUser(id));
        change.push(Step::Write { id, at: n * 13, data: content(core, n).into() });
        change.push(Step::Join { object: id, collection: collection.object, number: n as u32 });
        let commit = if n % 40 == 0 { Commit::Durable } else { Commit::Relaxed };
        store.apply(change, commit).await.expect("created");
        let hold = store.hold();
        let read = store.read_to_send(id, n * 13, 1 << 20).await.expect("read");
        assert_eq!(read.to_vec(), content(core, n));
        drop(hold);
        let shared = Id::new(P, FIRST_ID + 800_000);
        // One of them creates it.
        let _ = store.apply(Step::CreateUser(shared).into(), Commit::Relaxed).await;
        let data = vec![core as u8 + 1; 8192].into();
        let step = Step::Write { id: shared, at: n * 512, data };
        store.apply(step.into(), Commit::Relaxed).await.expect("written");
        if n % 2 == 0 {
            store.apply(Step::RemoveUser(id).into(), Commit::Relaxed).await.expect("removed");
        }
    }
}

#[test]
fn many_cores_create_write_and_remove_at_once_and_leave_sums_that_agree() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("objects");
    let store = std::sync::Arc::new(EmbeddedStore::open(&path, &options()).expect("opened"));
    let collection = Id::new(P, FIRST_ID + 900_000);
    run(async {
        store.apply(Step::CreatePartition(P).into(), Commit::Durable).await.expect("created");
        let step = Step::CreateCollection(collection, CollectionType::LINKED);
        store.apply(step.into(), Commit::Relaxed).await.expect("created");
    });
    std::thread::scope(|scope| {
        for core in 0..3 {
            let store = &store;
            scope.spawn(move || run(use_it(store, core, collection)));
        }
        // Meanwhile it is checked, and partitions come and go.
        scope.spawn(|| {
            run(async {
                for n in 0..25 {
                    let copy = P + 1 + n;
                    let step = Step::Duplicate { source: P, id: copy, kind: Duplicate::Clone, made_ms: 1 };
                    store.apply(step.into(), Commit::Relaxed).await.expect("duplicated");
                    let report = store.check(0, true).await.expect("checked");
                    assert_eq!(report.findings, Vec::<String>::new());
                    let step = Step::RemovePartition { id: copy, contents: true };
                    store.apply(step.into(), Commit::Relaxed).await.expect("removed");
                }
            });
        });
    });
    let there = |store: &EmbeddedStore| {
        assert_eq!(store.partition(P).expect("there").objects, 151);
        assert_eq!(store.object(collection).expect("there").members, 150);
        let report = run(store.check(0, false)).expect("checked");
        assert_eq!(report.findings, Vec::<String>::new());
    };
    there(&store);
    drop(store);
    there(&EmbeddedStore::open(&path, &options()).expect("opened"));
}
