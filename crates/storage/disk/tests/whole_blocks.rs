//! Concurrent commands on the same blocks on several cores: a reader gets data exactly as one
//! writer left it.
//!
//! Writers fill each write with one number. A reader that finds two numbers where only one is
//! allowed has detected a tear. The reader waits before it reads the received data, as a slow
//! initiator's socket does.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use backing::spec::StoreSpec;
use backing::{BlockStore, MemoryStore};
use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, TaskAttribute,
};
use disk::unit::{DiskOptions, DiskUnit, Registry};
use runtime::{Buf, Chain, Gather, TcpStream};
use scsi::Status;
use scsi::reservation::TransportId;

/// Test duration for each store.
const TRIED: Duration = Duration::from_millis(400);
/// How long a slow reader waits before it reads the received data.
const SLOW: Duration = Duration::from_micros(300);
const SECTOR: usize = 512;
const BLOCK: usize = 4096;

struct Mover {
    data_out: Chain,
    /// The buffers from the unit, which may be its own memory.
    data_in: Vec<Buf>,
    /// They go to a socket, which holds them while it copies them.
    holds: bool,
}

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        self.data_in.push(data);
    }
    fn holds(&self, _: usize) -> bool {
        self.holds
    }
    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }
    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        Poll::Ready(Ok(self.data_out.split_to(len)))
    }
    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

/// An initiator on its own thread.
struct Initiator {
    unit: Arc<DiskUnit>,
    nexus: Arc<ItlNexus>,
    holds: bool,
}

impl Initiator {
    fn new(unit: &Arc<DiskUnit>, id: u64) -> Self {
        Self::session(unit, id, id)
    }

    fn session(unit: &Arc<DiskUnit>, host: u64, id: u64) -> Self {
        let initiator = format!("iqn.2000-01.com.example:host{host}");
        let nexus = Nexus {
            id: NexusId(id),
            transport_id: TransportId::iscsi_port(&initiator, id).unwrap().bytes().to_vec(),
            initiator,
            target_port: 1,
            principal: None,
            target: "iqn.2000-01.com.example:target".into(),
            ports: None,
        };
        let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), false));
        unit.attach(&nexus);
        nexus.take_attention();
        Self { unit: unit.clone(), nexus, holds: false }
    }

    async fn run(&self, code: u8, lba: usize, bytes: usize, out: &[u8]) -> Vec<Buf> {
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(lba as u64).to_be_bytes());
        match code {
            WRITE_ATOMIC => cdb[12..14].copy_from_slice(&((bytes / SECTOR) as u16).to_be_bytes()),
            _ => cdb[10..14].copy_from_slice(&((bytes / SECTOR) as u32).to_be_bytes()),
        }
        let command = Command {
            cdb: Cdb::new(&cdb).unwrap(),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len: out.len() as u64,
            data_in_len: 64 << 20,
        };
        let data_out = out.chunks(1 << 20).map(|piece| Buf::from(piece.to_vec())).collect();
        let mover = Mover { data_out, data_in: Vec::new(), holds: self.holds };
        let (mover, outcome) = match self.unit.execute(command, mover) {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(future) => future.await,
        };
        assert_eq!(outcome.status, Status::Good, "{:?}", outcome.sense);
        mover.data_in
    }

    async fn write(&self, lba: usize, bytes: usize, number: u64) {
        // Occasionally an atomic command, at the start of a physical block.
        let code = if number % 4 == 0 && bytes == BLOCK && lba % 8 == 0 { WRITE_ATOMIC } else { WRITE };
        self.run(code, lba, bytes, &number.to_le_bytes().repeat(bytes / 8)).await;
    }

    async fn read(&self, lba: usize, bytes: usize, slow: bool) -> Vec<u8> {
        let data = self.run(READ, lba, bytes, &[]).await;
        if slow {
            let until = Instant::now() + SLOW;
            while Instant::now() < until {
                std::thread::yield_now();
            }
        }
        let mut bytes = vec![0; data.iter().map(Buf::len).sum()];
        let mut at = 0;
        for buf in data {
            buf.copy_to(&mut bytes[at..at + buf.len()]);
            at += buf.len();
        }
        bytes
    }
}

const READ: u8 = 0x88;
const WRITE: u8 = 0x8a;
const WRITE_ATOMIC: u8 = 0x9c;

/// Blocks of short commands, most of them across a 4 KiB boundary. Long commands use eight times
/// these numbers, and overlap.
const PLACES: [usize; 3] = [3, 20, 32];

/// Runs two writers and a reader on one core each, with commands of `bytes` bytes. Returns the
/// number of reads, and how many had a piece of `whole` bytes with more than one number.
fn tears(unit: &Arc<DiskUnit>, bytes: usize, whole: usize, slow: bool) -> (u64, u64) {
    let (done, numbers) = (AtomicBool::new(false), AtomicU64::new(1));
    let mut seen = (0, 0);
    std::thread::scope(|scope| {
        for id in [1, 2] {
            let (done, numbers) = (&done, &numbers);
            scope.spawn(move || {
                let it = Initiator::new(unit, id);
                on_a_ring(async move {
                    while !done.load(Ordering::Relaxed) {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        it.write(place(number, bytes), bytes, number).await;
                    }
                });
            });
        }
        let it = Initiator::new(unit, 3);
        seen = on_a_ring(async move {
            let (mut reads, mut torn, end) = (0, 0, Instant::now() + TRIED);
            while Instant::now() < end || reads < 20 {
                let data = it.read(place(reads, bytes), bytes, slow).await;
                assert_eq!(data.len(), bytes);
                let one = |piece: &[u8]| piece.chunks_exact(8).all(|word| word == &piece[..8]);
                torn += u64::from(!data.chunks(whole).all(one));
                reads += 1;
            }
            (reads, torn)
        });
        done.store(true, Ordering::Relaxed);
    });
    seen
}

/// Long commands begin at a 4 KiB boundary.
fn place(number: u64, bytes: usize) -> usize {
    let place = PLACES[number as usize % PLACES.len()];
    if bytes > BLOCK { place * 8 } else { place }
}

fn on_a_ring<F: Future>(future: F) -> F::Output {
    runtime::Runtime::new(runtime::Config::default()).expect("a ring").block_on(future)
}

fn disk(store: Arc<dyn BlockStore>) -> Arc<DiskUnit> {
    DiskUnit::new(store, DiskOptions::default().with_identity("whole"), &Registry::new()).unwrap()
}

/// A unit of each kind that the file system supports.
fn units() -> Vec<(String, Arc<DiskUnit>)> {
    let mut units = vec![("memory".to_owned(), disk(Arc::new(MemoryStore::new(8 << 20, true).unwrap())))];
    let kinds = [
        ("sendpage", "writeback"),
        ("mmap", "writeback"),
        ("inline", "writeback"),
        ("uring", "writeback"),
        ("threads", "writeback"),
        ("uring", "direct"),
        ("fixed", "direct"),
        ("sync", "writethrough"),
    ];
    for (engine, cache) in kinds {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = directory.path().join("disk");
        // Its blocks are allocated, and in the page cache.
        std::fs::write(&path, vec![0; 8 << 20]).unwrap();
        let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
        spec.set("engine", Some(engine)).unwrap();
        spec.set("cache", Some(cache)).unwrap();
        match spec.open() {
            Ok(opened) if opened.block_size == 512 => {
                units.push((format!("{engine}, {cache}"), disk(opened.store)));
            }
            Ok(_) => eprintln!("SKIPPED: {engine}, {cache}: no blocks of 512 bytes"),
            Err(error) => eprintln!("SKIPPED: {engine}, {cache}: {error}"),
        }
    }
    units
}

/// Tests all units and reports all results before it fails.
fn try_all(bytes: usize, whole: usize, slow: bool) {
    let mut torn = Vec::new();
    for (name, unit) in units() {
        let (reads, tears) = tears(&unit, bytes, whole, slow);
        eprintln!("{name}: {tears} of {reads} reads torn");
        if tears > 0 {
            torn.push(name);
        }
    }
    assert!(torn.is_empty(), "torn: {torn:?}");
}

#[test]
fn commands_of_4_kib_are_whole_to_each_other() {
    try_all(BLOCK, BLOCK, false);
}

#[test]
fn short_reads_stay_whole_until_a_slow_reader_takes_them() {
    try_all(BLOCK, BLOCK, true);
}

#[test]
fn single_sectors_are_whole() {
    try_all(SECTOR, SECTOR, true);
}

#[test]
fn long_reads_beside_other_initiators_are_whole_by_4_kib() {
    try_all(64 << 10, BLOCK, true);
}

/// Short reads of a unit that only one initiator reaches are not copied before they are sent. The
/// socket is small and its reader slow, so that most sends end within a block.
#[test]
fn short_reads_sent_from_the_units_memory_are_whole() {
    const AT_ONCE: u64 = 8;
    const HEADER: usize = 48;
    let unit = disk(Arc::new(MemoryStore::new(8 << 20, true).unwrap()));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (done, numbers) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|scope| {
        for id in [1, 2] {
            let (unit, done, numbers) = (&unit, &done, &numbers);
            scope.spawn(move || {
                let it = Initiator::session(unit, 1, id);
                on_a_ring(async move {
                    while !done.load(Ordering::Relaxed) {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        it.write(place(number, BLOCK), BLOCK, number).await;
                    }
                });
            });
        }
        let reader = scope.spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let (mut reads, mut torn, mut block) = (0u64, 0u64, [0; HEADER + BLOCK]);
            while socket.read_exact(&mut block).is_ok() {
                let block = &block[HEADER..];
                torn += u64::from(!block.chunks_exact(8).all(|word| word == &block[..8]));
                reads += 1;
                if reads % 4 == 0 {
                    std::thread::sleep(SLOW / 10);
                }
            }
            (reads, torn)
        });
        let it = Initiator { holds: true, ..Initiator::session(&unit, 1, 3) };
        let sent = on_a_ring(async move {
            let stream = TcpStream::connect(address, 100 * TRIED).await.unwrap();
            stream.set_send_buffer(16 << 10).unwrap();
            let (mut gather, mut sent, end) = (Gather::new(), 0, Instant::now() + 2 * TRIED);
            while Instant::now() < end || sent < 200 {
                for n in sent..sent + AT_ONCE {
                    let data = it.run(READ, place(n, BLOCK), BLOCK, &[]).await;
                    assert!(data.iter().all(Buf::is_region), "copied already");
                    gather.push_copy(&[0; HEADER]);
                    data.into_iter().for_each(|buf| gather.push_lent(buf));
                }
                let (result, back) = stream.send(gather).await;
                result.unwrap();
                (gather, sent) = (back, sent + AT_ONCE);
            }
            sent
        });
        done.store(true, Ordering::Relaxed);
        let (reads, torn) = reader.join().unwrap();
        eprintln!("{torn} of {reads} reads torn");
        assert_eq!((reads, torn), (sent, 0));
    });
}
