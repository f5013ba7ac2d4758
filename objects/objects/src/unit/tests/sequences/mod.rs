//! Random sequences of OSD commands against a unit, beside a model of plain maps: every answer and
//! every refusal is compared, and now and then everything that the unit holds. `STAG_MODEL_SEEDS`
//! is how many sequences are run of each kind, instead of a few; `STAG_MODEL_SEED` runs one alone.

pub mod harness;
pub mod model;
pub mod ops;

use std::collections::BTreeMap;

use osd::Action;
use runtime::{Config, Runtime};

use super::*;
use crate::store::ObjectStore;
use crate::store::embedded::{EmbeddedStore, Options};
use harness::{Hands, Initiator};
use ops::{Chance, Pair};

/// Commands of one sequence.
const STEPS: u64 = 600;

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(Config::default()).expect("a ring").block_on(future)
}

pub fn seeds(few: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("STAG_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STAG_MODEL_SEEDS").unwrap_or(few),
    }
}

#[derive(Debug, Default)]
struct Ended {
    /// Commands that ended well, and how often.
    commands: BTreeMap<Action, u64>,
    /// See [`Pair::namesakes`].
    namesakes: u64,
}

/// Runs a sequence. Now and then the unit ends, and all that holds its store; the store that `open`
/// then opens has to hold the same.
async fn sequence(seed: u64, mut open: impl FnMut() -> Arc<dyn ObjectStore>, ended: &mut Ended) {
    let clock = Arc::new(Hands::default());
    let mut chance = Chance::new(seed);
    let client = Initiator::new(open(), clock.clone());
    let mut pair = Pair::new(client, Chance::new(chance.below(u64::MAX)));
    for step in 1..=STEPS {
        pair.step().await;
        let again = chance.one_in(150);
        if again {
            pair.client = None;
            pair.client = Some(Initiator::new(open(), clock.clone()));
        }
        if again || step % 200 == 0 {
            pair.compare_everything().await;
        }
    }
    for (action, count) in pair.ended {
        *ended.commands.entry(action).or_default() += count;
    }
    ended.namesakes += pair.namesakes;
}

/// Every command but those on keys and tasks has ended well: a sequence that only meets refusals
/// proves little.
fn prove(ended: &Ended) {
    for action in Action::ALL {
        let others = matches!(action, Action::SetKey | Action::SetMasterKey | Action::PerformTmf);
        assert!(others || ended.commands.contains_key(action), "{action} never ended well");
    }
    assert!(ended.namesakes > 0, "no partition has had the id of one that duplicates were made of");
}

#[test]
fn a_unit_on_a_store_in_memory_does_what_plain_maps_do() {
    let mut ended = Ended::default();
    for seed in seeds(12) {
        println!("seed {seed}");
        let store = Arc::new(EmbeddedStore::in_memory(1 << 30).expect("memory"));
        run(sequence(seed, || store.clone(), &mut ended));
    }
    println!("{ended:?}");
    if std::env::var_os("STAG_MODEL_SEED").is_none() {
        prove(&ended);
    }
}

#[test]
fn a_unit_on_a_directory_does_what_plain_maps_do_and_still_has_it_when_it_is_opened_anew() {
    let mut ended = Ended::default();
    for seed in seeds(8) {
        println!("seed {seed}");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("objects");
        // Little of everything: so that not all written data is found in memory, and the journal
        // goes round.
        let options = Options {
            capacity: Some(256 << 20),
            create: true,
            cache_bytes: 1 << 20,
            journal_bytes: 256 << 10,
            engine: None,
        };
        let open =
            || -> Arc<dyn ObjectStore> { Arc::new(EmbeddedStore::open(&path, &options).expect("a store")) };
        run(sequence(seed + 1000, open, &mut ended));
    }
    println!("{ended:?}");
    if std::env::var_os("STAG_MODEL_SEED").is_none() {
        prove(&ended);
    }
}
