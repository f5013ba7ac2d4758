//! Concurrent commands on the same blocks: each sees the others whole or not at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use backing::{Extent, Geometry, Io, StoreError};
use runtime::Pooled;

use super::*;

/// A mover that holds its data, as a connection does until its socket takes it.
#[derive(Default)]
struct Keeping(Vec<Buf>);

impl DataMover for Keeping {
    fn put_data(&mut self, data: Buf) {
        self.0.push(data);
    }

    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn poll_get_data(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Result<Chain, Lost>> {
        Poll::Pending
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        Poll::Pending
    }
}

/// The data of a READ, not yet read.
fn kept(it: &Initiator, lba: u32, blocks: u16) -> Vec<Buf> {
    let command = it.command(&cdb10(0x28, lba, blocks), 0, 64 << 20);
    let (mover, outcome) = match it.unit.execute(command, Keeping::default()) {
        Execution::Done(mover, outcome) => (mover, outcome),
        Execution::Running(future) => block_on(future),
    };
    assert_eq!(outcome.status, Status::Good);
    mover.0
}

fn bytes_of(bufs: &[Buf]) -> Vec<u8> {
    bufs.iter().flat_map(Buf::to_vec).collect()
}

#[test]
fn a_read_of_4_kib_does_not_show_what_is_written_after_it() {
    let it = pair();
    it.write(3, &[1; 4096]).good();
    let read = kept(&it, 3, 8);
    it.write(3, &[2; 4096]).good();
    assert_eq!(bytes_of(&read), [1; 4096]);
}

#[test]
fn a_long_read_is_sent_by_reference_until_another_initiator_may_write() {
    let it = pair();
    let by_reference = |it: &Initiator, blocks| kept(it, 0, blocks).iter().all(Buf::is_lent);
    // Also for reads longer than a chunk.
    let both = |it: &Initiator| [by_reference(it, 128), by_reference(it, 4096)];
    assert_eq!(both(&it), [true, true]);
    let nexus = |id, read_only| Initiator::fresh(&it.unit, id, read_only);
    // A second session of the same initiator.
    let own = Arc::new(ItlNexus::new(Arc::new(Nexus { id: NexusId(7), ..(*it.nexus.nexus).clone() }), false));
    it.unit.attach(&own);
    assert_eq!(both(&it), [true, true]);
    // This initiator is read-only, but may read data that the first one writes.
    let reader = nexus(2, true);
    assert_eq!(both(&it), [false, false]);
    let before = kept(&it, 0, 128);
    it.write(0, &[9; 65_536]).good();
    assert_eq!(bytes_of(&before), [0; 65_536]);
    it.unit.detach(reader.nexus.nexus.id);
    assert_eq!(both(&it), [true, true]);
    let writer = nexus(3, false);
    assert_eq!(both(&it), [false, false]);
    it.unit.detach(writer.nexus.nexus.id);
    assert_eq!(both(&it), [true, true]);
}

#[test]
fn a_unit_that_cannot_be_written_sends_to_all_by_reference() {
    let unit = disk(DiskOptions { read_only: true, ..options() });
    let (it, _other) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
    assert!(kept(&it, 0, 128).iter().all(Buf::is_lent));
}

/// A store whose writes stop half-way, and continue at the next poll.
struct Halves {
    memory: Arc<MemoryStore>,
    stop: AtomicBool,
    /// Reads stop, too, before they begin.
    stop_reads: AtomicBool,
    /// Started writes, by their first byte.
    begun: Mutex<Vec<u64>>,
}

/// Stops at the first poll.
async fn stop_once() {
    let mut stopped = false;
    std::future::poll_fn(
        |_| {
            if std::mem::replace(&mut stopped, true) { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

impl BlockStore for Halves {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn writable(&self) -> bool {
        true
    }
    fn thin(&self) -> bool {
        true
    }
    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        if !self.stop_reads.load(Ordering::Relaxed) {
            return self.memory.read(at, len);
        }
        let memory = self.memory.clone();
        Io::Running(Pooled::new(async move {
            stop_once().await;
            memory.read(at, len).await
        }))
    }
    fn write(&self, at: u64, mut data: Chain, durable: bool) -> Io<()> {
        self.begun.lock().unwrap().push(at);
        if !self.stop.load(Ordering::Relaxed) {
            return self.memory.write(at, data, durable);
        }
        let memory = self.memory.clone();
        let first = data.split_to(data.len() / 2);
        let half = first.len() as u64;
        Io::Running(Pooled::new(async move {
            memory.write(at, first, durable).await?;
            stop_once().await;
            memory.write(at + half, data, durable).await
        }))
    }
    fn sync(&self) -> Io<()> {
        Io::ok(())
    }
    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.memory.discard(at, len)
    }
    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.memory.write_zeros(at, len, deallocate)
    }
    fn extent(&self, _: u64, _: u64) -> Io<Extent> {
        Io::err(StoreError::Unsupported)
    }
}

fn halves() -> (Arc<Halves>, Initiator) {
    let memory = Arc::new(MemoryStore::new(2 << 20, true).unwrap());
    let stop = AtomicBool::default;
    let store = Arc::new(Halves { memory, stop: stop(), stop_reads: stop(), begun: Mutex::default() });
    let it = Initiator::new(&disk_of(store.clone(), options()), 1);
    it.write(3, &[1; 4096]).good();
    it.write(128, &[1; 65_536]).good();
    store.stop.store(true, Ordering::Relaxed);
    store.begun.lock().unwrap().clear();
    (store, it)
}

#[test]
fn a_read_waits_for_a_write_that_is_half_done() {
    let (_, it) = halves();
    let mut write = it.start(&cdb10(0x2a, 3, 8), &[2; 4096], 0);
    assert!(poll_once(&mut write).is_pending());
    // With FUA, and of a single sector that is not yet written.
    let fua = [0x28, 0x08, 0, 0, 0, 3, 0, 0, 8, 0];
    let mut reads =
        [&cdb10(0x28, 3, 8), &fua, &cdb10(0x28, 10, 1), &cdb10(0x2f, 3, 8)].map(|cdb| it.start(cdb, &[], 0));
    for read in &mut reads {
        assert!(poll_once(read).is_pending());
    }
    assert!(it.read(11, 5).at_once && it.read(2, 1).at_once, "what is not written is read at once");
    assert!(poll_once(&mut write).is_ready());
    let lens = [4096, 4096, 512, 0];
    for (read, len) in reads.into_iter().zip(lens) {
        assert_eq!(Initiator::end(read).good(), vec![2; len]);
    }
}

#[test]
fn a_long_read_waits_for_the_blocks_of_a_write_that_is_half_done() {
    let (_, it) = halves();
    let _other = Initiator::new(&it.unit, 2);
    let mut write = it.start(&cdb10(0x2a, 136, 8), &[2; 4096], 0);
    assert!(poll_once(&mut write).is_pending());
    let mut read = it.start(&cdb10(0x28, 128, 128), &[], 0);
    assert!(poll_once(&mut read).is_pending());
    assert!(poll_once(&mut write).is_ready());
    let data = Initiator::end(read).good();
    let expected = [vec![1; 4096], vec![2; 4096], vec![1; 65_536 - 8192]].concat();
    assert!(data == expected);
}

#[test]
fn two_writes_of_the_same_blocks_do_not_mix() {
    let (store, it) = halves();
    let mut first = it.start(&cdb10(0x2a, 3, 8), &[2; 4096], 0);
    let mut second = it.start(&cdb10(0x2a, 3, 8), &[3; 4096], 0);
    let mut beside = it.start(&cdb10(0x2a, 11, 8), &[4; 4096], 0);
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    assert!(poll_once(&mut beside).is_pending());
    assert_eq!(*store.begun.lock().unwrap(), [3 * 512, 11 * 512], "the second waits, its neighbour does not");
    assert!(poll_once(&mut first).is_ready());
    assert!(poll_once(&mut second).is_pending());
    assert!(poll_once(&mut second).is_ready());
    assert!(poll_once(&mut beside).is_ready());
    assert_eq!(it.read(3, 8).good(), [3; 4096]);
    assert_eq!(it.read(11, 8).good(), [4; 4096]);
}

#[test]
fn a_write_and_verify_compares_its_own_blocks_before_others_write_them() {
    let (store, it) = halves();
    store.stop_reads.store(true, Ordering::Relaxed);
    let mut cdb = cdb10(0x2e, 3, 8);
    cdb[1] = 2;
    let mut verify = it.start(&cdb, &[2; 4096], 0);
    assert!(poll_once(&mut verify).is_pending(), "it has written one half");
    assert!(poll_once(&mut verify).is_pending(), "it is about to read back");
    let mut write = it.start(&cdb10(0x2a, 3, 8), &[3; 4096], 0);
    assert!(poll_once(&mut write).is_pending());
    assert_eq!(*store.begun.lock().unwrap(), [3 * 512], "the other waits");
    Initiator::end(verify).good();
    store.stop.store(false, Ordering::Relaxed);
    Initiator::end(write).good();
    store.stop_reads.store(false, Ordering::Relaxed);
    assert_eq!(it.read(3, 8).good(), [3; 4096]);
}

#[test]
fn an_unmap_and_a_compare_and_write_wait_for_a_write_that_is_half_done() {
    let (_, it) = halves();
    let mut write = it.start(&cdb10(0x2a, 3, 8), &[2; 4096], 0);
    assert!(poll_once(&mut write).is_pending());
    let mut compare = cdb16(0x89, 0, 10, 0);
    compare[13] = 1;
    let mut compare = it.start(&compare, &[[2; 512], [5; 512]].concat(), 0);
    assert!(poll_once(&mut compare).is_pending());
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &3u64.to_be_bytes(), &4u32.to_be_bytes(), &[0; 4]].concat();
    let mut unmap = it.start(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
    assert!(poll_once(&mut unmap).is_pending());
    assert!(poll_once(&mut write).is_ready());
    // Its own write stops half-way, too.
    assert!(poll_once(&mut compare).is_pending());
    let Poll::Ready((_, outcome)) = poll_once(&mut compare) else { panic!("it has its block") };
    assert_eq!(outcome.status, Status::Good);
    Initiator::end(unmap).good();
    assert_eq!(it.read(3, 8).good(), [vec![0; 2048], vec![2; 1536], vec![5; 512]].concat());
}
