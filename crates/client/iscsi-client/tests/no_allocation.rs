//! After warm-up a queue does not allocate: reads that are dropped or kept and writes, short and
//! long. Over TCP with digests and without, with error recovery, over iSER with CRC and without.

#[allow(dead_code, reason = "shared with tests that use all of it")]
mod fake;
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod fake_iser;

use std::sync::mpsc;
use std::time::Duration;

use fake::{BLOCK, Fake, Faults};
use iscsi::keys::Offer;
use iscsi_client::{Completed, Crc, DigestChoice, Disk, Options, Queue, Session, Transfer};
use runtime::testing::Counting;
use runtime::{Buf, Chain, Runtime, pool};
use scsi::cdb::build::{self, Flags};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of commands in flight.
const DEPTH: u64 = 8;
const BLOCKS: usize = 4096;

/// A target on a thread of its own, whose allocations do not count; it ends when the sender is
/// dropped.
fn target(iser: bool, level: u8) -> (String, mpsc::Sender<()>) {
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    std::thread::spawn(move || {
        Counting::ignore_this_thread();
        let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
        runtime.block_on(async {
            let plain = Fake::start(
                Faults::default(),
                Offer { error_recovery_level: level, ..Offer::default() },
                BLOCKS,
            );
            let rdma = fake_iser::Fake::start(fake_iser::Manners::default(), BLOCKS);
            let url = if iser { rdma.url() } else { plain.url() };
            tell.send(url.to_string()).expect("the test waits");
            while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                runtime::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    (told.recv().expect("a URL"), stop)
}

#[derive(Clone, Copy, Debug)]
enum What {
    Discard,
    Read,
    Write,
}

/// Runs `count` commands, `DEPTH` at a time.
async fn work(
    queue: &mut Queue,
    disk: &Disk,
    what: What,
    data: &Chain,
    count: u64,
    ended: &mut Vec<Completed>,
) {
    let len = data.len();
    let blocks = (len / BLOCK) as u32;
    let mut begun = 0;
    while begun < count || queue.in_flight() > 0 {
        while begun < count && queue.in_flight() < DEPTH as usize {
            let lba = begun * 37 % (BLOCKS as u64 - u64::from(blocks));
            let (cdb, transfer) = match what {
                What::Discard => (build::read(lba, blocks, Flags::default()), Transfer::Discard(len as u32)),
                What::Read => {
                    let mut buffer = pool::alloc(len).expect("memory");
                    buffer.set_len(len);
                    (build::read(lba, blocks, Flags::default()), Transfer::Read(buffer))
                }
                What::Write => (build::write(lba, blocks, Flags::default()), Transfer::Write(data.clone())),
            };
            queue.submit(begun, disk.lun(), &cdb, transfer).expect("room");
            begun += 1;
        }
        queue.flush();
        queue.completions(ended).await.expect("a session");
        ended.drain(..).for_each(|command| command.outcome.expect("it goes well"));
    }
}

/// Runs everything in one session, and adds the cases that allocate after warm-up to `found`.
async fn measure(url: &str, options: Options, how: &str, found: &mut Vec<String>) {
    let session = Session::connect(&url.parse().expect("a URL"), options).await.expect("a session");
    let disk = Disk::open(&session, 0).await.expect("a disk");
    let mut queue = session.queue().expect("a queue");
    let mut ended = Vec::with_capacity(64);
    for what in [What::Discard, What::Read, What::Write] {
        for len in [512, 4096, 65536, 262_144] {
            let data = Buf::from(vec![7u8; len]).into();
            // The minimum of several counts: warm-up depends on how many commands happen to
            // overlap.
            let mut least = u64::MAX;
            for _ in 0..6 {
                let before = Counting::allocations();
                work(&mut queue, &disk, what, &data, 200, &mut ended).await;
                least = least.min(Counting::allocations() - before);
            }
            if least > 0 {
                found.push(format!("{what:?} of {len} bytes, {how}: {least} for 200"));
            }
        }
    }
    drop(queue);
    session.close().await.expect("a logout");
}

#[test]
fn a_warm_queue_does_not_allocate() {
    let runtime = Runtime::new(runtime::Config::default()).expect("io_uring works here");
    let mut found = Vec::new();
    let (url, stop) = target(false, 1);
    runtime.block_on(measure(&url, Options::default(), "error recovery level 1", &mut found));
    drop(stop);
    let (url, stop) = target(false, 0);
    for digest in [DigestChoice::Never, DigestChoice::Require] {
        let options = Options { header_digest: digest, data_digest: digest, ..Options::default() };
        runtime.block_on(measure(&url, options, &format!("digests {digest:?}"), &mut found));
    }
    drop(stop);
    let (url, _stop) = target(true, 0);
    for iser_crc in [Crc::Never, Crc::Require] {
        let options = Options { iser_crc, ..Options::default() };
        runtime.block_on(measure(&url, options, &format!("iSER, CRC {iser_crc:?}"), &mut found));
    }
    assert!(Counting::allocations() > 0, "nothing is counted");
    assert!(found.is_empty(), "{found:#?}");
}
