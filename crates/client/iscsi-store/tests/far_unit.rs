//! A store over a unit of this project's own server, behind a wire that this file cuts and a medium
//! that it holds.

mod far;

use std::sync::Arc;
use std::time::Duration;

use backing::health::Kind;
use backing::{BlockStore, Extent, StoreError};
use disk::unit::DiskOptions;
use far::{Far, Medium, SIZE};
use iscsi_client::{Options, Session, Unit};
use iscsi_store::{IscsiStore, OpenError, Provider, Source};
use runtime::{Buf, Chain, Config, Cores, Runtime};
use scsi::cdb::PageControl;
use scsi::cdb::build;
use scsi::mode::{CACHING, ModeData, select_list};

fn source(url: &str) -> Source {
    Source {
        url: url.parse().unwrap(),
        initiator: "iqn.2026-01.org.example:near".into(),
        chap: None,
        provider: Provider::Software,
        read_only: false,
        op_timeout: Duration::from_secs(2),
    }
}

/// For tests that wait for no end of an operation's time.
fn patient(url: &str) -> Source {
    Source { op_timeout: Duration::from_secs(60), ..source(url) }
}

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(Config::default()).unwrap().block_on(future)
}

fn data(byte: u8, len: usize) -> Chain {
    Buf::from(vec![byte; len]).into()
}

fn cached() -> DiskOptions {
    DiskOptions { write_cache: true, thin: true, ..DiskOptions::default() }
}

#[test]
fn what_is_written_is_read_over_tcp_and_iser() {
    for scheme in ["iscsi", "iser"] {
        let far = Far::start(Medium::new(), cached());
        let store = IscsiStore::open(patient(&far.direct(scheme))).unwrap();
        assert_eq!(store.size(), SIZE);
        assert!(store.thin() && store.writable() && store.write_cache());
        assert!(!store.names().is_empty());
        run(async {
            store.write(4096, data(7, 4096), true).await.unwrap();
            store.write(1 << 20, data(9, 5 << 20), false).await.unwrap();
            assert_eq!(store.read(4096, 4096).await.unwrap().to_vec(), [7; 4096]);
            let long = store.read((1 << 20) - 512, 5 << 20).await.unwrap();
            assert!(long.to_vec() == [vec![0; 512], vec![9; (5 << 20) - 512]].concat());
            store.write_zeros(4096, 1024, false).await.unwrap();
            store.discard(2 << 20, 1 << 20).await.unwrap();
            let expected = [vec![0; 1024], vec![7; 1024]].concat();
            assert_eq!(store.read(4096, 2048).await.unwrap().to_vec(), expected);
            assert!(store.read(2 << 20, 1 << 20).await.unwrap().to_vec() == [0; 1 << 20]);
            store.sync().await.unwrap();
            let extent = store.extent(2 << 20, 4 << 20).await.unwrap();
            assert_eq!(extent, Extent { at: 2 << 20, len: 1 << 20, mapped: false });
        });
        assert!(far.medium.syncs() > 0);
    }
}

#[test]
fn a_unit_keeps_its_blocks_and_its_write_protection() {
    let options = DiskOptions { block_size: 4096, read_only: true, ..DiskOptions::default() };
    let far = Far::start(Medium::new(), options);
    let store = IscsiStore::open(patient(&far.direct("iscsi"))).unwrap();
    assert_eq!((store.geometry().block, store.writable()), (4096, false));
    run(async {
        assert_eq!(store.write(0, data(1, 4096), false).await, Err(StoreError::ReadOnly));
        assert_eq!(store.discard(0, 4096).await, Err(StoreError::ReadOnly));
        assert_eq!(store.sync().await, Ok(()));
        assert_eq!(store.read(0, 8192).await.unwrap().len(), 8192);
    });
}

#[test]
fn commands_of_a_connection_that_is_cut_are_sent_again() {
    let far = Far::start(Medium::new(), DiskOptions { write_cache: false, ..DiskOptions::default() });
    let store = IscsiStore::open(patient(&far.wired())).unwrap();
    run(async {
        for round in 1..=3 {
            store.write(512, data(round, 512), true).await.unwrap();
            far.wire.cut();
            assert_eq!(store.read(512, 512).await.unwrap().to_vec(), [round; 512]);
            store.sync().await.unwrap();
        }
    });
    assert!(store.health().unwrap().look().problems.is_empty());
}

#[test]
fn a_sync_is_refused_after_unflushed_changes_may_be_lost() {
    let far = Far::start(Medium::new(), cached());
    let store = IscsiStore::open(patient(&far.wired())).unwrap();
    run(async {
        store.write(0, data(3, 512), false).await.unwrap();
        store.sync().await.unwrap();
        far.wire.cut();
        store.read(0, 512).await.unwrap();
        assert_eq!(store.sync().await, Ok(()), "all was flushed before");
        store.write(0, data(3, 512), false).await.unwrap();
        far.wire.cut();
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)));
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)), "until it is acknowledged");
    });
    store.health().unwrap().acknowledge().unwrap();
    assert_eq!(run(async { store.sync().await }), Ok(()));
}

#[test]
fn durable_writes_leave_nothing_to_lose() {
    let far = Far::start(Medium::new(), cached());
    let store = IscsiStore::open(patient(&far.wired())).unwrap();
    run(async {
        store.write(0, data(3, 512), true).await.unwrap();
        far.wire.cut();
        assert_eq!(store.sync().await, Ok(()));
    });
}

/// Sets or clears WCE, as another initiator.
async fn set_write_cache(url: &str, on: bool) {
    let options = Options { initiator: "iqn.2026-01.org.example:other".into(), ..Options::default() };
    let session = Session::connect(&url.parse().unwrap(), options).await.unwrap();
    let unit = Unit::new(&session, 0).unwrap();
    let cdb = build::mode_sense6(PageControl::Current, CACHING, 0, true, 192);
    let data = unit.read_data(&cdb, 192).await.unwrap();
    let mut values = ModeData::parse(&data, false).unwrap().page(CACHING, 0).unwrap().to_vec();
    values[0] = values[0] & !0x04 | if on { 0x04 } else { 0 };
    let list = select_list(CACHING, &values, false);
    let cdb = build::mode_select6(false, list.len() as u8);
    let selected = unit.scsi_command(&cdb, Some(Buf::from(list).into()), None).await.unwrap();
    assert_eq!(selected.status, 0);
    session.close().await.unwrap();
}

#[test]
fn a_durable_write_stays_one_when_the_far_cache_is_turned_on() {
    let far = Far::start(Medium::new(), DiskOptions { write_cache: false, ..DiskOptions::default() });
    let store = IscsiStore::open(patient(&far.wired())).unwrap();
    run(async {
        store.write(0, data(1, 512), true).await.unwrap();
        set_write_cache(&far.direct("iscsi"), true).await;
        // Its unit attention ends the session, and the next one sends it.
        store.write(0, data(2, 512), true).await.unwrap();
        assert_eq!((far.medium.written().last(), far.medium.is_durable()), (Some(&2), true));
        store.write(0, data(3, 512), false).await.unwrap();
        assert!(!far.medium.is_durable());
        far.wire.cut();
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)), "it may be lost");
    });
}

/// Each session vouches for its own changes: one that was made after a power on hears nothing of
/// it.
#[test]
fn a_sync_of_one_core_hears_of_changes_that_another_has_lost() {
    let far = Far::start(Medium::new(), cached());
    let store = Arc::new(IscsiStore::open(patient(&far.wired())).unwrap());
    let cores = Cores::start(2, Config::default()).unwrap();
    let on = |core: usize, byte: u8, cut: bool| {
        let (store, wire) = (store.clone(), far.wire.clone());
        let done = cores.handles()[core].call(move || async move {
            if byte > 0 {
                store.write(0, data(byte, 512), false).await.unwrap();
            }
            if cut {
                wire.cut();
            }
            store.sync().await
        });
        run(done).unwrap()
    };
    assert_eq!(on(0, 1, false), Ok(()));
    let writer = store.clone();
    let written = cores.handles()[1].call(move || async move { writer.write(0, data(2, 512), false).await });
    assert_eq!(run(written).unwrap(), Ok(()));
    assert_eq!(on(0, 0, true), Err(StoreError::Io(libc::EIO)));
    drop(store);
    cores.stop();
    cores.join().unwrap();
}

#[test]
fn a_change_of_unknown_outcome_never_comes_late() {
    let medium = Medium::new();
    let far = Far::start(medium.clone(), DiskOptions { write_cache: false, ..DiskOptions::default() });
    let store = Arc::new(IscsiStore::open(source(&far.direct("iscsi"))).unwrap());
    let cores = Cores::start(2, Config::default()).unwrap();
    let call = |core: usize, at: u64, byte: u8| {
        let store = store.clone();
        let done = cores.handles()[core].call(move || async move {
            (store.write(at, data(byte, 512), true).await, store.read(0, 512).await.map(drop))
        });
        run(done).unwrap()
    };
    assert_eq!(call(1, 512, 1), (Ok(()), Ok(())), "both cores have their sessions");
    medium.hold();
    let unknown = Err(StoreError::Unknown);
    assert_eq!(call(0, 512, 3), (unknown, unknown));
    // The held write is still at the target, so nothing else is sent by any session, anywhere.
    assert_eq!(call(1, 8192, 4), (unknown, unknown));
    assert_eq!(medium.written(), [1]);
    let health = store.health().unwrap();
    assert!(health.look().problems.iter().any(|problem| problem.kind == Kind::Unusable));
    medium.release();
    let again = store.clone();
    let last = cores.handles()[1].call(move || async move {
        while again.write(512, data(5, 512), true).await.is_err() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        again.read(512, 512).await.unwrap().to_vec()
    });
    assert_eq!(run(last).unwrap(), [5; 512]);
    let written = medium.written();
    assert_eq!(written.last(), Some(&5), "{written:?}");
    drop(store);
    cores.stop();
    cores.join().unwrap();
}

#[test]
fn a_unit_that_grows_is_noticed_by_its_unit_attention() {
    let medium = Medium::new();
    let far = Far::start(medium.clone(), cached());
    let store = IscsiStore::open(patient(&far.direct("iscsi"))).unwrap();
    run(async {
        store.read(0, 512).await.unwrap();
        medium.grow(2 * SIZE);
        // READ CAPACITY of another initiator has the far unit look at its medium.
        let other =
            Source { initiator: "iqn.2026-01.org.example:other".into(), ..patient(&far.direct("iscsi")) };
        let other = std::thread::spawn(move || IscsiStore::open(other).unwrap().size()).join().unwrap();
        assert_eq!(other, 2 * SIZE);
        while store.size() != 2 * SIZE {
            store.read(0, 512).await.unwrap();
            runtime::sleep(Duration::from_millis(5)).await;
        }
        store.write(2 * SIZE - 512, data(1, 512), false).await.unwrap();
    });
}

#[test]
fn a_store_that_is_closed_has_its_changes_flushed() {
    let far = Far::start(Medium::new(), cached());
    let store = IscsiStore::open(patient(&far.direct("iscsi"))).unwrap();
    run(async {
        store.write(0, data(3, 512), false).await.unwrap();
        assert_eq!(far.medium.syncs(), 0);
        drop(store);
        while far.medium.syncs() == 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    let far = Far::start(Medium::new(), cached());
    let error = |url: &str| IscsiStore::open(source(url)).err().unwrap();
    let url = far.direct("iscsi");
    assert!(matches!(error(&url.replace(":far", ":other")), OpenError::Session(_)));
    assert!(matches!(error(&format!("{}7", url.trim_end_matches('0'))), OpenError::NotReady(_)));
}
