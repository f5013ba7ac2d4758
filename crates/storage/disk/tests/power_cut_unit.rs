//! The power-cut model below a whole disk: acknowledged data must be as durable as advertised.
//! Commands of many kinds run concurrently, the write cache is switched on and off, and the power
//! fails. Then every GOOD is compared with the medium. With WCE=0 each GOOD counts. With WCE=1
//! those with FUA count, and those before a SYNCHRONIZE CACHE.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use backing::BlockStore;
use backing::faulty::{Action, Faults, FaultyStore, Operations, Rule};
use backing::ledger::{Generation, Ledger, SyncToken, Violation, stamp};
use backing::model::{ModelStore, Random};
use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use runtime::{Buf, Chain};
use scsi::Status;
use scsi::cdb::build::{self, Flags};

const BLOCK: usize = 512;
const BLOCKS: usize = 64;
const DEPTH: usize = 6;

/// Data-out that is available at once.
struct Mover(Vec<u8>);

impl DataMover for Mover {
    fn put_data(&mut self, _: Buf) {}

    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let rest = self.0.split_off(len.min(self.0.len()));
        Poll::Ready(Ok(std::mem::replace(&mut self.0, rest).into()))
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

/// The promise of a command's GOOD.
enum Promise {
    Change { lba: u64, count: usize, generation: Generation, durable: bool },
    Sync(SyncToken),
}

struct Initiator {
    unit: Arc<DiskUnit>,
    nexus: Arc<ItlNexus>,
    ledger: Ledger,
    random: Random,
    running: Vec<(Execution<Mover>, Promise)>,
    write_cache: bool,
}

/// A disk just after power on.
fn unit(store: &FaultyStore, write_cache: bool) -> Arc<DiskUnit> {
    let options =
        DiskOptions { thin: true, write_cache, physical_block_exponent: 0, ..DiskOptions::default() }
            .with_identity("power cut");
    DiskUnit::new(Arc::new(store.clone()), options, &Registry::new()).expect("a disk")
}

fn nexus(unit: &Arc<DiskUnit>) -> Arc<ItlNexus> {
    let nexus = Arc::new(ItlNexus::new(
        Arc::new(Nexus {
            id: NexusId(1),
            principal: None,
            initiator: "iqn.2026-01.test.stag:writer".into(),
            transport_id: Vec::new(),
            target_port: 1,
            target: "iqn.2026-01.test.stag:target".into(),
            ports: None,
        }),
        false,
    ));
    unit.attach(&nexus);
    while nexus.take_attention().is_some() {}
    nexus
}

impl Initiator {
    fn execute(&self, cdb: &[u8], out: Vec<u8>) -> Execution<Mover> {
        let command = Command {
            cdb: Cdb::new(cdb).expect("a CDB"),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len: out.len() as u64,
            data_in_len: 0,
        };
        self.unit.execute(command, Mover(out))
    }

    fn overlaps(&self, lba: u64, count: usize) -> bool {
        self.running.iter().any(|(_, promise)| match promise {
            Promise::Change { lba: other, count: len, .. } => {
                lba < other + *len as u64 && *other < lba + count as u64
            }
            Promise::Sync(_) => false,
        })
    }

    /// Starts a command of a random kind.
    fn start(&mut self) {
        let kind = self.random.below(12);
        if kind < 2 {
            let token = self.ledger.issue_sync();
            let cdb = if kind == 0 { build::synchronize_cache10() } else { build::synchronize_cache16(0, 0) };
            let execution = self.execute(&cdb, Vec::new());
            return self.running.push((execution, Promise::Sync(token)));
        }
        let count = 1 + self.random.below(8) as usize;
        let lba = self.random.below((BLOCKS - count + 1) as u64);
        if self.overlaps(lba, count) {
            return;
        }
        let zeros = kind < 5;
        let generation =
            if zeros { self.ledger.issue_zeros(lba, count) } else { self.ledger.issue(lba, count) };
        let mut data = vec![0; count * BLOCK];
        for (i, block) in data.chunks_mut(BLOCK).enumerate() {
            stamp(lba + i as u64, generation, block);
        }
        let fua = self.random.below(3) == 0;
        let flags = if fua { Flags::FUA } else { Flags::default() };
        let blocks = count as u32;
        let (cdb, out, durable) = match kind {
            2 => (build::write_same16(lba, blocks, true, true), Vec::new(), false),
            3 => (build::write_same16(lba, blocks, false, true), Vec::new(), false),
            4 => (build::unmap(24), unmap_list(lba, blocks), false),
            5 => {
                // WRITE ATOMIC (16), SBC-4 §5.48.
                let mut cdb = build::write16(lba, 0, flags);
                cdb[0] = 0x9c;
                cdb[12..14].copy_from_slice(&(blocks as u16).to_be_bytes());
                (cdb, data, fua)
            }
            6 => {
                // WRITE AND VERIFY (16): verified on the medium.
                let mut cdb = build::write16(lba, blocks, Flags::default());
                cdb[0] = 0x8e;
                (cdb, data, true)
            }
            _ => (build::write16(lba, blocks, flags), data, fua),
        };
        let durable = durable || !self.write_cache;
        let execution = self.execute(&cdb, out);
        self.running.push((execution, Promise::Change { lba, count, generation, durable }));
    }

    fn reap(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut running = Vec::new();
        for (execution, promise) in std::mem::take(&mut self.running) {
            let outcome = match execution {
                Execution::Done(_, outcome) => outcome,
                Execution::Running(mut future) => match Pin::new(&mut future).poll(&mut cx) {
                    Poll::Ready((_, outcome)) => outcome,
                    Poll::Pending => {
                        running.push((Execution::Running(future), promise));
                        continue;
                    }
                },
            };
            self.ended(&outcome, promise);
        }
        self.running = running;
    }

    fn ended(&mut self, outcome: &Outcome, promise: Promise) {
        if outcome.status != Status::Good {
            return;
        }
        match promise {
            Promise::Change { lba, count, generation, durable } => {
                self.ledger.acknowledge(lba, count, generation, durable);
            }
            Promise::Sync(token) => self.ledger.acknowledge_sync(token),
        }
    }

    /// MODE SELECT (6) of WCE without other commands in flight. Switching the cache off must flush
    /// it to the medium.
    fn switch_cache(&mut self, faults: &Faults) {
        while !self.running.is_empty() {
            faults.step(1);
            self.reap();
        }
        let on = !self.write_cache;
        let mut page = [0; 20];
        (page[0], page[1], page[2]) = (0x08, 18, u8::from(on) << 2);
        let list = [&[0; 4][..], &page].concat();
        let token = self.ledger.issue_sync();
        let mut execution = self.execute(&build::mode_select6(false, list.len() as u8), list);
        let outcome = loop {
            match &mut execution {
                Execution::Done(_, outcome) => break outcome.clone(),
                Execution::Running(future) => {
                    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready((_, outcome)) => break outcome,
                        Poll::Pending => faults.step(1),
                    }
                }
            }
        };
        if outcome.status == Status::Good {
            self.write_cache = on;
            if !on {
                self.ledger.acknowledge_sync(token);
            }
        }
    }
}

/// UNMAP's parameter list with one descriptor (SBC-3 §5.28.2).
fn unmap_list(lba: u64, blocks: u32) -> Vec<u8> {
    [&[0, 22, 0, 16, 0, 0, 0, 0][..], &lba.to_be_bytes(), &blocks.to_be_bytes(), &[0; 4]].concat()
}

/// Several runs of one disk, each ended by a power cut.
fn lives(seed: u64, write_cache: bool, lie: Option<Rule>) -> Result<usize, Violation> {
    let model = ModelStore::new(BLOCKS * BLOCK, BLOCK as u32);
    let faults = Faults::new();
    if let Some(rule) = lie {
        faults.add(rule);
    }
    let delayed = Operations::WRITE.or(Operations::SYNC).or(Operations::DISCARD).or(Operations::ZEROS);
    faults.add(Rule::new(delayed, Action::Delay(0..12)).seed(seed));
    let store = FaultyStore::new(Arc::new(model.clone()), faults.clone());
    let first = unit(&store, write_cache);
    let mut initiator = Initiator {
        nexus: nexus(&first),
        unit: first,
        ledger: Ledger::new(BLOCKS),
        random: Random::new(seed),
        running: Vec::new(),
        write_cache,
    };
    let mut started = 0;
    for _ in 0..4 {
        model.cut_power_after(1 + initiator.random.below(120), initiator.random.bits());
        while model.powered() {
            if initiator.running.len() < DEPTH {
                initiator.start();
                started += 1;
            }
            if initiator.random.below(40) == 0 {
                initiator.switch_cache(&faults);
            }
            faults.step(initiator.random.below(3));
            initiator.reap();
        }
        initiator.running.clear();
        model.power_on();
        initiator.unit = unit(&store, write_cache);
        initiator.nexus = nexus(&initiator.unit);
        initiator.write_cache = write_cache;
        for lba in 0..BLOCKS as u64 {
            let bytes = model.durable_bytes(lba as usize * BLOCK, BLOCK).expect("within the medium");
            initiator.ledger.check(lba, &bytes, true)?;
        }
    }
    assert_eq!(store.size(), (BLOCKS * BLOCK) as u64);
    Ok(started)
}

#[test]
fn every_good_is_kept_over_power_cuts() {
    let mut started = 0;
    for seed in 0..300 {
        for write_cache in [true, false] {
            started += lives(seed, write_cache, None).unwrap_or_else(|violation| {
                panic!("seed {seed}, WCE={}: {violation}", u8::from(write_cache))
            });
        }
    }
    assert!(started > 50_000, "only {started} commands: too few to prove anything");
}

#[test]
fn a_medium_that_lies_is_found_out_through_the_disk() {
    for operation in [Operations::SYNC, Operations::WRITE, Operations::ZEROS] {
        let lie = Rule::new(operation, Action::Lie).after(10);
        let found = (0..60).filter(|&seed| lives(seed, seed % 2 == 0, Some(lie.clone())).is_err()).count();
        assert!(found > 10, "of 60 runs with lies about {operation:?} only {found} were found out");
    }
}
