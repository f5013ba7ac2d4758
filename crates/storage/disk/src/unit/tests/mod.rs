//! A disk on a memory store, driven without a ring: each command as an initiator sends it.

mod access;
mod blocks;
mod copy;
mod identity;
mod landing;
mod medium;
mod mode;
mod provisioning;
mod reserve;
mod sanitize;
mod thresholds;
mod token;
mod whole;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use runtime::{Buf, Chain};
use scsi::reservation::TransportId;
use scsi::{AdditionalSense, SenseKey, Status};

use super::{DiskOptions, DiskUnit, Registry};
use backing::{BlockStore, MemoryStore};

/// Takes data-out from a vector and puts data-in into one.
pub struct TestMover {
    data_out: Vec<u8>,
    data_in: Vec<u8>,
    /// Number of polls at which data or room is not yet available.
    pending: usize,
    lost: bool,
}

impl TestMover {
    fn wait(&mut self, cx: &Context<'_>) -> bool {
        if self.pending == 0 {
            return false;
        }
        self.pending -= 1;
        cx.waker().wake_by_ref();
        true
    }
}

impl DataMover for TestMover {
    fn put_data(&mut self, data: Buf) {
        self.data_in.extend(data.to_vec());
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        if self.lost {
            return Poll::Ready(Err(Lost));
        }
        if self.wait(cx) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if self.lost {
            return Poll::Ready(Err(Lost));
        }
        if self.wait(cx) {
            return Poll::Pending;
        }
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        let data = std::mem::replace(&mut self.data_out, rest);
        Poll::Ready(Ok(data.into()))
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        if self.lost { Poll::Ready(Lost) } else { Poll::Pending }
    }
}

struct Thread(std::thread::Thread);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread: a lost wake-up would hang it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub data: Vec<u8>,
    /// The command was complete when `execute` returned.
    pub at_once: bool,
}

impl Ran {
    #[track_caller]
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.outcome.status, Status::Good, "{:?}", self.outcome.sense);
        self.data
    }

    #[track_caller]
    pub fn sense(&self) -> (SenseKey, AdditionalSense) {
        assert_eq!(self.outcome.status, Status::CheckCondition, "{self:?}");
        let sense = self.outcome.sense.as_ref().unwrap();
        (sense.key, sense.additional)
    }

    #[track_caller]
    pub fn fails(self, key: SenseKey, additional: AdditionalSense) {
        assert_eq!(self.sense(), (key, additional));
    }

    #[track_caller]
    pub fn refused(self, additional: AdditionalSense) {
        self.fails(SenseKey::IllegalRequest, additional);
    }
}

/// An initiator attached to a unit.
#[derive(Clone)]
pub struct Initiator {
    pub unit: Arc<DiskUnit>,
    pub nexus: Arc<ItlNexus>,
}

impl Initiator {
    /// Attaches a nexus, and takes the resulting unit attention.
    pub fn new(unit: &Arc<DiskUnit>, id: u64) -> Self {
        let this = Self::fresh(unit, id, false);
        this.run(&[0; 6]).fails(SenseKey::UnitAttention, AdditionalSense::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        this
    }

    pub fn fresh(unit: &Arc<DiskUnit>, id: u64, read_only: bool) -> Self {
        Self::with(unit, nexus(id), read_only)
    }

    /// Attaches a given nexus.
    pub fn with(unit: &Arc<DiskUnit>, nexus: Nexus, read_only: bool) -> Self {
        let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), read_only));
        unit.attach(&nexus);
        Self { unit: unit.clone(), nexus }
    }

    /// Takes the unit attention of a new nexus.
    pub fn settled(self) -> Self {
        self.run(&[0; 6]).sense();
        self
    }

    pub fn command(&self, cdb: &[u8], out: u64, room: u64) -> Command {
        Command {
            cdb: Cdb::new(cdb).unwrap(),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len: out,
            data_in_len: room,
        }
    }

    /// Starts a command with `out` to send.
    pub fn start(&self, cdb: &[u8], out: &[u8], pending: usize) -> Execution<TestMover> {
        let mover = TestMover { data_out: out.to_vec(), data_in: Vec::new(), pending, lost: false };
        self.unit.execute(self.command(cdb, out.len() as u64, 64 << 20), mover)
    }

    pub fn end(execution: Execution<TestMover>) -> Ran {
        let (at_once, (mover, outcome)) = match execution {
            Execution::Done(mover, outcome) => (true, (mover, outcome)),
            Execution::Running(future) => (false, block_on(future)),
        };
        Ran { outcome, data: mover.data_in, at_once }
    }

    pub fn run(&self, cdb: &[u8]) -> Ran {
        Self::end(self.start(cdb, &[], 0))
    }

    pub fn run_out(&self, cdb: &[u8], out: &[u8]) -> Ran {
        Self::end(self.start(cdb, out, 0))
    }

    pub fn write(&self, lba: u32, data: &[u8]) -> Ran {
        self.run_out(&cdb10(0x2a, lba, (data.len() >> self.unit.block_shift) as u16), data)
    }

    pub fn read(&self, lba: u32, blocks: u16) -> Ran {
        self.run(&cdb10(0x28, lba, blocks))
    }
}

/// The nexus of a separate initiator without authentication.
pub fn nexus(id: u64) -> Nexus {
    let initiator = format!("iqn.2000-01.com.example:host{id}");
    Nexus {
        id: NexusId(id),
        principal: None,
        transport_id: TransportId::iscsi_port(&initiator, id).unwrap().bytes().to_vec(),
        initiator,
        target_port: 1,
        target: "iqn.2000-01.com.example:target".into(),
        ports: None,
    }
}

pub fn cdb10(code: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = code;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

pub fn cdb16(code: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Capacity of the test disks, in blocks.
pub const BLOCKS: u64 = 4096;

pub fn options() -> DiskOptions {
    DiskOptions { thin: true, ..DiskOptions::default() }.with_identity("test")
}

pub fn disk_of(store: Arc<dyn BlockStore>, options: DiskOptions) -> Arc<DiskUnit> {
    DiskUnit::new(store, options, &Registry::new()).unwrap()
}

pub fn disk(options: DiskOptions) -> Arc<DiskUnit> {
    let size = BLOCKS * u64::from(options.block_size);
    disk_of(Arc::new(MemoryStore::new(size, true).unwrap()), options)
}

/// A thin disk of 512-byte blocks and an initiator without a pending unit attention.
pub fn pair() -> Initiator {
    Initiator::new(&disk(options()), 1)
}

/// Polls a running command once.
pub fn poll_once<T>(execution: &mut Execution<T>) -> Poll<(T, Outcome)> {
    match execution {
        Execution::Running(future) => Pin::new(future).poll(&mut Context::from_waker(Waker::noop())),
        Execution::Done(..) => panic!("it is not running"),
    }
}
