//! A disk on real files with a running ring: commands that wait for the medium, work that outlives
//! its command, and reservations that outlive the daemon.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use backing::spec::StoreSpec;
use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use disk::unit::{DiskOptions, DiskUnit, FilePersist, Registry};
use runtime::{Buf, Chain};
use scsi::reservation::{ReservationType, Reservations, TransportId};
use scsi::{AdditionalSense, Status};

/// Runs a future to its end on its own ring.
fn run<F: Future>(future: F) -> F::Output {
    runtime::Runtime::new(runtime::Config::default()).expect("a ring").block_on(future)
}

const MIB: u64 = 8;

struct Mover {
    data_out: Vec<u8>,
    data_in: Vec<u8>,
    /// Whether the task was aborted.
    lost: std::rc::Rc<std::cell::Cell<bool>>,
}

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        self.data_in.extend(data.to_vec());
    }
    fn poll_put_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(if self.lost.get() { Err(Lost) } else { Ok(()) })
    }
    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        Poll::Ready(Ok(std::mem::replace(&mut self.data_out, rest).into()))
    }
    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        if self.lost.get() { Poll::Ready(Lost) } else { Poll::Pending }
    }
}

struct Initiator {
    unit: Arc<DiskUnit>,
    nexus: Arc<ItlNexus>,
}

impl Initiator {
    fn new(unit: &Arc<DiskUnit>, id: u64) -> Self {
        let initiator = format!("iqn.2000-01.com.example:host{id}");
        let nexus = Nexus {
            id: NexusId(id),
            principal: None,
            transport_id: TransportId::iscsi_port(&initiator, id).unwrap().bytes().to_vec(),
            initiator,
            target_port: 1,
            target: "iqn.2000-01.com.example:target".into(),
            ports: None,
        };
        let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), false));
        unit.attach(&nexus);
        nexus.take_attention();
        Self { unit: unit.clone(), nexus }
    }

    fn start(&self, cdb: &[u8], out: &[u8]) -> (Execution<Mover>, std::rc::Rc<std::cell::Cell<bool>>) {
        let command = Command {
            cdb: Cdb::new(cdb).unwrap(),
            attribute: TaskAttribute::Simple,
            nexus: self.nexus.clone().into(),
            tag: 0,
            data_out_len: out.len() as u64,
            data_in_len: 64 << 20,
        };
        let lost = std::rc::Rc::default();
        let mover = Mover { data_out: out.to_vec(), data_in: vec![], lost: std::rc::Rc::clone(&lost) };
        (self.unit.execute(command, mover), lost)
    }

    async fn run(&self, cdb: &[u8], out: &[u8]) -> (Outcome, Vec<u8>) {
        let (mover, outcome) = match self.start(cdb, out).0 {
            Execution::Done(mover, outcome) => (mover, outcome),
            Execution::Running(future) => future.await,
        };
        (outcome, mover.data_in)
    }

    async fn good(&self, cdb: &[u8], out: &[u8]) -> Vec<u8> {
        let (outcome, data) = self.run(cdb, out).await;
        assert_eq!(outcome.status, Status::Good, "{:?}", outcome.sense);
        data
    }
}

fn cdb16(code: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A thin unit on the file, in a cache mode, with its reservations beside it. `None` if the file
/// system does not support the mode.
fn open(directory: &Path, cache: &str, rate: Option<u64>) -> Option<Arc<DiskUnit>> {
    let path = directory.join(cache);
    let mut spec = StoreSpec::parse(path.to_str().unwrap()).unwrap();
    spec.set("size", Some(&format!("{MIB}M"))).unwrap();
    spec.set("cache", Some(cache)).unwrap();
    spec.set("bs", Some("4096")).unwrap();
    let opened = spec.open().map_err(|e| eprintln!("SKIPPED: {e}")).ok()?;
    let options = DiskOptions {
        block_size: opened.block_size,
        thin: true,
        write_cache: cache == "writeback",
        persist: Some(Arc::new(FilePersist::new(path.with_extension("pr")))),
        sanitize_bytes_per_s: rate,
        ..DiskOptions::default()
    }
    .with_identity(cache);
    Some(DiskUnit::new(opened.store, options, &Registry::new()).unwrap())
}

#[test]
fn every_kind_of_write_is_read_back_in_every_cache_mode() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for cache in ["writeback", "writethrough", "direct"] {
        let Some(unit) = open(directory.path(), cache, None) else { continue };
        run(async move {
            let it = Initiator::new(&unit, 1);
            let data: Vec<u8> = (0..3u32 << 20).map(|n| (n / 4096) as u8 | 1).collect();
            let blocks = (data.len() / 4096) as u32;
            it.good(&cdb16(0x8a, 0, 5, blocks), &data).await;
            assert_eq!(it.good(&cdb16(0x88, 0, 5, blocks), &[]).await, data);
            it.good(&cdb16(0x8a, 0x08, 0, 1), &[7; 4096]).await;
            let mut compare = cdb16(0x89, 0, 0, 0);
            compare[13] = 1;
            it.good(&compare, &[[7; 4096], [8; 4096]].concat()).await;
            it.good(&cdb16(0x8b, 0, 0, 1), &[0x10; 4096]).await;
            assert_eq!(it.good(&cdb16(0x88, 0, 0, 1), &[]).await, [0x18; 4096]);
            it.good(&cdb16(0x93, 0, 0, 600), &[3; 4096]).await;
            assert_eq!(it.good(&cdb16(0x88, 0, 0, 600), &[]).await, vec![3; 600 * 4096]);
            it.good(&cdb16(0x93, 0x08, 0, 0), &[0; 4096]).await;
            let status = it.good(&cdb16(0x9e, 0x12, 0, 1000), &[]).await;
            assert_eq!((status.len(), status[20] & 0xf), (24, 1), "{cache}");
            it.good(&cdb16(0x91, 0, 0, 0), &[]).await;
        });
    }
}

#[test]
fn a_sanitize_outlives_its_command_and_tells_its_progress() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Ten minutes for the whole medium, so that the sanitize is still running on any machine. Then
    // one second, to see its end.
    for seconds in [600, 1] {
        let unit = open(directory.path(), "writeback", Some((MIB << 20) / seconds)).unwrap();
        run(async move {
            let it = Initiator::new(&unit, 1);
            let list = [1, 0, 0, 1, 0x5a];
            let sanitize = [0x48, 1, 0, 0, 0, 0, 0, 0, 5, 0];
            let (execution, lost) = it.start(&sanitize, &list);
            let Execution::Running(command) = execution else { panic!("it takes {seconds} s") };
            let task = runtime::spawn(command);
            let progress = async || {
                let sense = it.good(&[0x03, 0, 0, 0, 252, 0], &[]).await;
                u16::from_be_bytes([sense[16], sense[17]])
            };
            let start = Instant::now();
            while seconds > 1 && progress().await == 0 {
                assert!(start.elapsed() < Duration::from_secs(60));
                runtime::sleep(Duration::from_millis(20)).await;
            }
            if seconds > 1 {
                let (outcome, _) = it.run(&[0; 6], &[]).await;
                assert_eq!(outcome.sense.unwrap().additional, AdditionalSense::SANITIZE_IN_PROGRESS);
            }
            // The abort ends the command but not its work.
            lost.set(true);
            let ended = runtime::timeout(Duration::from_secs(60), task).await;
            assert!(ended.is_ok(), "an aborted command waits for its sanitize");
            unit.reset(device::ResetKind::TargetCold, None);
            it.nexus.take_attention();
            if seconds > 1 {
                let progress = progress().await;
                assert!(progress > 0 && progress < 0xffff, "{progress}");
                return;
            }
            while it.run(&[0; 6], &[]).await.0.status != Status::Good {
                assert!(start.elapsed() < Duration::from_secs(60));
                runtime::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(it.good(&cdb16(0x88, 0, 0, 2048), &[]).await, vec![0x5a; 8 << 20]);
        });
    }
}

#[test]
fn an_immediate_sanitize_answers_before_it_is_done() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for seconds in [600, 1] {
        let unit = open(directory.path(), "writeback", Some((MIB << 20) / seconds)).unwrap();
        run(async move {
            let it = Initiator::new(&unit, 1);
            let start = Instant::now();
            it.good(&[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], &[]).await;
            assert!(start.elapsed() < Duration::from_secs(60));
            if seconds > 1 {
                assert_eq!(it.run(&[0; 6], &[]).await.0.status, Status::CheckCondition);
                return;
            }
            while it.run(&[0; 6], &[]).await.0.status != Status::Good {
                assert!(start.elapsed() < Duration::from_secs(60));
                runtime::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}

#[test]
fn aptpl_reservations_are_on_the_medium_when_good_is_said() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let list = |key: u64, new: u64, aptpl: u8| {
        let mut list = [key.to_be_bytes(), new.to_be_bytes()].concat();
        list.extend([0, 0, 0, 0, aptpl, 0, 0, 0]);
        list
    };
    let out = |action, kind| [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let unit = open(directory.path(), "writeback", None).unwrap();
    let kept = directory.path().join("writeback.pr");
    run(async move {
        let it = Initiator::new(&unit, 1);
        it.good(&out(0, 0), &list(0, 9, 1)).await;
        it.good(&out(1, 3), &list(9, 0, 0)).await;
        // A daemon killed now would start from this state.
        let kept = std::fs::read(&kept).unwrap();
        let kept = Reservations::from_bytes(&kept).unwrap();
        assert_eq!(kept.reservation_type(), Some(ReservationType::ExclusiveAccess));
    });
    let unit = open(directory.path(), "writeback", None).unwrap();
    run(async move {
        let (holder, other) = (Initiator::new(&unit, 1), Initiator::new(&unit, 2));
        holder.good(&cdb16(0x88, 0, 0, 1), &[]).await;
        assert_eq!(other.run(&cdb16(0x88, 0, 0, 1), &[]).await.0.status, Status::ReservationConflict);
    });
}

/// Two thin units of one daemon, in files of one file system.
fn two(directory: &Path) -> [Initiator; 2] {
    let registry = Registry::new();
    ["one", "two"].map(|name| {
        let mut spec = StoreSpec::parse(directory.join(name).to_str().unwrap()).unwrap();
        spec.set("size", Some(&format!("{MIB}M"))).unwrap();
        let store = spec.open().unwrap().store;
        let options = DiskOptions { thin: true, ..DiskOptions::default() }.with_identity(name);
        Initiator::new(&DiskUnit::new(store, options, &registry).unwrap(), 1)
    })
}

fn list_cdb(code: u8, action: u8, list_at: usize, list_id: u8, len: u16) -> [u8; 16] {
    let mut cdb = cdb16(code, action, 0, len.into());
    cdb[list_at + 3] = list_id;
    cdb
}

/// A token of the first `blocks` blocks.
async fn token(of: &Initiator, blocks: u32) -> Vec<u8> {
    let mut list = vec![0; 32];
    (list[1], list[15]) = (30, 16);
    list[24..28].copy_from_slice(&blocks.to_be_bytes());
    of.good(&list_cdb(0x83, 0x10, 6, 1, 32), &list).await;
    of.good(&list_cdb(0x84, 0x07, 2, 1, 1024), &[]).await[38..550].to_vec()
}

/// WRITE USING TOKEN of `blocks` blocks from `lba` on, and the command's parameter list.
fn write_using(token: &[u8], flags: u8, lba: u64, blocks: u32) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![0; 552];
    list[..2].copy_from_slice(&550u16.to_be_bytes());
    list[2] = flags;
    list[16..528].copy_from_slice(token);
    list[535] = 16;
    list[536..544].copy_from_slice(&lba.to_be_bytes());
    list[544..548].copy_from_slice(&blocks.to_be_bytes());
    (list_cdb(0x83, 0x11, 6, 2, 552), list)
}

#[test]
fn a_copy_by_token_between_files_and_within_one_brings_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = two(directory.path());
    run(async move {
        let data: Vec<u8> = (0..3u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        one.good(&cdb16(0x8a, 0, 0, 6144), &data).await;
        let token = token(&one, 6144).await;
        for (to, lba) in [(&two, 100u64), (&one, 8192)] {
            let (cdb, list) = write_using(&token, 0, lba, 6144);
            to.good(&cdb, &list).await;
            assert!(to.good(&cdb16(0x88, 0, lba, 6144), &[]).await == data);
            // In pieces that begin within a page.
            assert!(to.good(&cdb16(0x88, 0, lba + 3, 64), &[]).await == data[3 * 512..67 * 512]);
        }
    });
}

#[test]
fn a_copy_in_the_background_is_told_of_and_can_be_aborted() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = two(directory.path());
    run(async move {
        one.good(&cdb16(0x8a, 0, 0, 8192), &vec![7; 4 << 20]).await;
        let token = token(&one, 8192).await;
        let status = list_cdb(0x84, 0x05, 2, 2, 64);
        let (cdb, list) = write_using(&token, 1, 0, 8192);
        two.good(&cdb, &list).await;
        assert_eq!(two.good(&status, &[]).await[5], 0x12);
        two.good(&list_cdb(0x83, 0x1c, 2, 2, 0), &[]).await;
        assert_eq!(two.good(&status, &[]).await[5], 0x60);
        two.good(&cdb, &list).await;
        while two.good(&status, &[]).await[5] == 0x12 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        let ended = two.good(&status, &[]).await;
        assert_eq!((ended[5], &ended[16..24]), (0x01, &8192u64.to_be_bytes()[..]));
        assert!(two.good(&cdb16(0x88, 0, 0, 8192), &[]).await == vec![7; 4 << 20]);
    });
}
