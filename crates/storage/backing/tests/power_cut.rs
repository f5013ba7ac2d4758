//! Power cuts at random moments under a verifying writer, on the model of a medium. No write
//! acknowledged as durable may be lost, whatever order operations end in and whatever part of the
//! rest the medium keeps.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use backing::ledger::{Generation, Ledger, SyncToken, Violation, stamp};
use backing::model::{ModelStore, Random};
use backing::{BlockStore, Io};

const BLOCK: usize = 512;
const BLOCKS: usize = 64;
const DEPTH: usize = 8;

enum Running {
    Write { io: Io<()>, lba: u64, count: usize, generation: Generation, durable: bool },
    Sync { io: Io<()>, token: SyncToken },
}

/// A writer with several operations in flight.
struct Writer {
    store: FaultyStore,
    ledger: Ledger,
    random: Random,
    running: Vec<Running>,
}

impl Writer {
    fn overlaps(&self, lba: u64, count: usize) -> bool {
        let end = lba + count as u64;
        self.running.iter().any(|running| match running {
            Running::Write { lba: other, count, .. } => lba < other + *count as u64 && *other < end,
            Running::Sync { .. } => false,
        })
    }

    fn start(&mut self) {
        if self.random.below(6) == 0 {
            let token = self.ledger.issue_sync();
            return self.running.push(Running::Sync { io: self.store.sync(), token });
        }
        let count = 1 + self.random.below(8) as usize;
        let lba = self.random.below((BLOCKS - count + 1) as u64);
        if self.overlaps(lba, count) {
            return;
        }
        let durable = self.random.below(4) == 0;
        let generation = self.ledger.issue(lba, count);
        let mut bytes = vec![0; count * BLOCK];
        for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
            stamp(lba + i as u64, generation, block);
        }
        let io = self.store.write(lba * BLOCK as u64, bytes.into(), durable);
        self.running.push(Running::Write { io, lba, count, generation, durable });
    }

    fn reap(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let ledger = &mut self.ledger;
        self.running.retain_mut(|running| match running {
            Running::Write { io, lba, count, generation, durable } => match Pin::new(io).poll(&mut cx) {
                Poll::Ready(result) => {
                    if result.is_ok() {
                        ledger.acknowledge(*lba, *count, *generation, *durable);
                    }
                    false
                }
                Poll::Pending => true,
            },
            Running::Sync { io, token } => match Pin::new(io).poll(&mut cx) {
                Poll::Ready(result) => {
                    if result.is_ok() {
                        ledger.acknowledge_sync(*token);
                    }
                    false
                }
                Poll::Pending => true,
            },
        });
    }

    fn check(&mut self) -> Result<(), Violation> {
        for lba in 0..BLOCKS as u64 {
            let mut io = self.store.read(lba * BLOCK as u64, BLOCK);
            let Poll::Ready(read) = Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("reads are not delayed");
            };
            self.ledger.check(lba, &read.expect("the power is back").to_vec(), true)?;
        }
        Ok(())
    }
}

/// Several runs on one medium, each ended by a power cut.
fn lives(seed: u64, faults: &Faults) -> Result<(), Violation> {
    let model = ModelStore::new(BLOCKS * BLOCK, BLOCK as u32);
    let mut writer = Writer {
        store: FaultyStore::new(Arc::new(model.clone()), faults.clone()),
        ledger: Ledger::new(BLOCKS),
        random: Random::new(seed),
        running: Vec::new(),
    };
    for _ in 0..4 {
        model.cut_power_after(1 + writer.random.below(100), writer.random.bits());
        while model.powered() {
            if writer.running.len() < DEPTH {
                writer.start();
            }
            faults.step(writer.random.below(3));
            writer.reap();
        }
        writer.running.clear();
        model.power_on();
        writer.check()?;
    }
    Ok(())
}

fn delays(seed: u64) -> Faults {
    let faults = Faults::new();
    faults.add(Rule::new(Operations::WRITE.or(Operations::SYNC), Action::Delay(0..20)).seed(seed));
    faults
}

#[test]
fn nothing_durable_is_lost_when_the_power_goes() {
    for seed in 0..500 {
        lives(seed, &delays(seed)).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

#[test]
fn a_medium_that_lies_about_syncs_is_found_out() {
    let found = (0..50).filter(|&seed| {
        let faults = delays(seed);
        faults.add(Rule::new(Operations::SYNC, Action::Lie));
        matches!(lives(seed, &faults), Err(Violation::Lost { .. }))
    });
    assert!(found.count() > 10, "this test would not notice lost writes");
}

#[test]
fn a_medium_that_drops_writes_is_found_out() {
    let found = (0..50).filter(|&seed| {
        let faults = delays(seed);
        faults.add(Rule::new(Operations::WRITE, Action::Lie).after(20).times(3));
        lives(seed, &faults).is_err()
    });
    assert!(found.count() > 10, "this test would not notice dropped writes");
}

#[test]
fn after_a_failed_sync_nothing_is_called_durable_that_is_not() {
    for seed in 0..200 {
        let faults = delays(seed);
        let model = ModelStore::new(BLOCKS * BLOCK, BLOCK as u32);
        let mut writer = Writer {
            store: FaultyStore::new(Arc::new(model.clone()), faults.clone()),
            ledger: Ledger::new(BLOCKS),
            random: Random::new(seed),
            running: Vec::new(),
        };
        model.cut_power_after(150, seed);
        for step in 0.. {
            if step == 40 {
                model.fail_next_sync(backing::StoreError::Io(libc::EIO));
            }
            if !model.powered() {
                break;
            }
            if writer.running.len() < DEPTH {
                writer.start();
            }
            faults.step(1);
            writer.reap();
        }
        writer.running.clear();
        model.power_on();
        writer.check().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}
