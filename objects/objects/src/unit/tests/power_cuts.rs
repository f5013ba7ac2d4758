//! Random sequences of commands on a directory's store whose power is cut, between two commands or
//! in the middle of one: at any operation on the journal. The store then has the state after one of
//! the unit's changes, and no change that a command has promised is lost. From there on, commands
//! and plain maps agree. `STAG_MODEL_SEEDS` and `STAG_MODEL_SEED` are as in the model test, whose
//! commands these are.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard};

use backing::StoreError;
use backing::faulty::{Action, Operations, Rule};

use super::*;
use crate::store::embedded::EmbeddedStore;
use crate::store::embedded::testing::{Rig, describe};
use crate::store::passed_on::passed_on;
use crate::store::{
    Applied, Attribute, Attributes, Change, CheckReport, Commit, Difference, Error, Extent, Io, List,
    Membership, ObjectInfo, ObjectStore, PartitionInfo, RootInfo, Scope, Step, Times, TimesUpdate,
};
use sequences::harness::{Hands, Initiator};
use sequences::model::Model;
use sequences::ops::{Chance, Pair};
use sequences::seeds;

/// Blocks of the arena; nothing here fills it.
const BLOCKS: u64 = 4000;
/// Small, so that it goes round.
const JOURNAL: usize = 512 << 10;

struct Possible {
    store: Oracle,
    /// The state in plain maps, between two commands.
    model: Option<Model>,
}

impl Possible {
    fn of(store: &Oracle, model: Option<Model>) -> Self {
        Self { store: store.snapshot(), model }
    }
}

#[derive(Default)]
struct Record {
    /// Since the last change that is on the medium for sure, that one included.
    possible: Vec<Possible>,
    done: u64,
    /// Changes that were to be on the medium, and those before them.
    promised: u64,
    /// Data of a change that failed may be there in part.
    torn: bool,
}

/// A store that remembers its state after each change.
struct Recorder {
    store: EmbeddedStore,
    beside: Oracle,
    record: Mutex<Record>,
}

impl Recorder {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }
}

/// Describes a store without its access times: no command waits for them to be on the medium.
fn said(store: &dyn ObjectStore) -> String {
    const LOOKED_AT: &str = "accessed: ";
    let text = describe(store);
    let mut parts = text.split(LOOKED_AT);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + LOOKED_AT + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// The same without the parts that show data's bytes.
fn without_data(text: &str) -> String {
    text.lines()
        .map(
            |line| if line.starts_with("  ") { line.rsplit_once(' ').map_or(line, |(l, _)| l) } else { line },
        )
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_of_data(step: &Step) -> bool {
    matches!(
        step,
        Step::Write { .. }
            | Step::Append { .. }
            | Step::Punch { .. }
            | Step::Clear { .. }
            | Step::SetLength { .. }
    )
}

/// The store is polled by hand: each operation is over at once.
fn at_once<T: Unpin>(future: Io<T>) -> Result<T, Error> {
    crate::store::embedded::testing::now(future)
}

fn done<T>(result: Result<T, Error>) -> Io<T> {
    Io::Ready(Some(result))
}

impl ObjectStore for Recorder {
    passed_on!(store: root partition object times touch attribute attributes list membership memberships reserve_ids extents differences check);

    fn apply(&self, change: Change, commit: Commit) -> Io<Applied> {
        let data = change.steps.iter().any(is_of_data);
        // Data that is only relaxed may be torn, which would tell nothing.
        let kept = if data { Commit::Durable } else { commit };
        let result = at_once(self.store.apply(change.clone(), kept));
        let mut record = self.record();
        match &result {
            Ok(_) => {
                at_once(self.beside.apply(change, commit)).expect("what the one store does the other can");
                if kept == Commit::Durable {
                    record.possible.clear();
                }
                record.done += 1;
                if commit == Commit::Durable {
                    record.promised = record.done;
                }
            }
            Err(Error::Io(_)) => {
                // The change may have been done, although its caller gets an error.
                let _ = at_once(self.beside.apply(change, commit));
                record.torn = data;
            }
            Err(_) => return done(result),
        }
        record.possible.push(Possible::of(&self.beside, None));
        done(result)
    }

    fn sync(&self, scope: Scope) -> Io<()> {
        let result = at_once(self.store.sync(scope));
        let mut record = self.record();
        if result.is_ok() {
            record.promised = record.done;
            let kept = record.possible.len().saturating_sub(1);
            record.possible.drain(..kept);
        }
        done(result)
    }

    fn read(&self, id: Id, at: u64, len: usize) -> Io<Chain> {
        self.store.read(id, at, len)
    }
}

#[derive(Debug, Default)]
struct Seen {
    between: u64,
    within: u64,
    went_on: u64,
    took: u64,
}

/// Runs commands until the power is cut within one of them and leaves what no plain maps know, or
/// to the end.
fn sequence(seed: u64, seen: &mut Seen) {
    let mut chance = Chance::new(seed);
    let rig = Rig::new(BLOCKS, JOURNAL);
    let clock = Arc::new(Hands::default());
    let open = |beside: Oracle, model: Model| {
        let record = Record { possible: vec![Possible::of(&beside, Some(model))], ..Record::default() };
        Arc::new(Recorder { store: rig.open(), beside, record: Mutex::new(record) })
    };
    let mut store = open(Oracle::new(u64::MAX / 2), Model::default());
    let client = Initiator::new(store.clone(), clock.clone());
    let mut pair = Pair::new(client, Chance::new(chance.below(u64::MAX)));
    let failed = Rc::new(Cell::new(false));
    pair.failed = Some(failed.clone());
    for _ in 0..300 {
        let within = chance.one_in(12);
        if within {
            let rule = Rule::new(Operations::ALL, Action::Fail(StoreError::Io(libc::EIO)));
            rig.journal_faults.add(rule.after(chance.below(5)).times(u64::MAX));
        }
        let done = store.record().done;
        {
            let mut step = pin!(pair.step());
            let mut cx = Context::from_waker(Waker::noop());
            for poll in 0.. {
                if step.as_mut().poll(&mut cx).is_ready() || failed.get() {
                    break;
                }
                assert!(poll < 1_000_000, "it waits for something");
            }
        }
        let mut record = store.record();
        if !failed.get() {
            if pair.promised && record.done > done {
                assert_eq!(record.promised, record.done, "a promise was not kept\n{}", pair.log.join("\n"));
            }
            record.possible.last_mut().expect("there is one").model = Some(pair.model.clone());
        }
        if !within && !chance.one_in(25) {
            continue;
        }
        let (torn, possible) = (record.torn, std::mem::take(&mut record.possible));
        drop(record);
        if failed.get() {
            seen.within += 1
        } else {
            seen.between += 1
        }
        failed.set(false);
        pair.client = None;
        drop(store);
        rig.journal_faults.clear();
        rig.cut(chance.below(u64::MAX));
        // A store that is opened anew begins with a health of its own.
        rig.health.recovered();
        rig.health.acknowledge().expect("nothing keeps a mark here");
        let left = rig.open();
        let found = said(&left);
        let same = |other: &Possible| match torn {
            true => without_data(&found) == without_data(&said(&other.store)),
            false => found == said(&other.store),
        };
        let at = possible.iter().rposition(same);
        let at = at.unwrap_or_else(|| {
            let texts: Vec<String> = possible.iter().map(|possible| said(&possible.store)).collect();
            panic!("{found}\nis none of\n{}\nafter\n{}", texts.join("\nor\n"), pair.log.join("\n"))
        });
        let report = at_once(left.check(0, false)).unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
        drop(left);
        seen.took += u64::from(at + 1 < possible.len());
        // Torn data cannot be predicted, and plain maps do not model half a command.
        let Some(Possible { store: copy, model: Some(model), .. }) = possible.into_iter().nth(at) else {
            return;
        };
        if torn {
            return;
        }
        seen.went_on += 1;
        store = open(copy, model.clone());
        pair.model = model;
        pair.client = Some(Initiator::new(store.clone(), clock.clone()));
        block_on(pair.compare_everything());
    }
}

#[test]
fn commands_whose_power_is_cut_leave_whole_changes_and_all_that_was_promised() {
    let seeds = seeds(16);
    let few = seeds.end - seeds.start < 16;
    let mut seen = Seen::default();
    for seed in seeds {
        println!("seed {seed}");
        sequence(seed + 5000, &mut seen);
    }
    println!("{seen:?}");
    assert!(few || seen.between > 0 && seen.within > 0 && seen.went_on > 0 && seen.took > 0, "{seen:?}");
}
