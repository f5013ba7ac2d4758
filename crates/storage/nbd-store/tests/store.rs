//! A store over a server that this file plays: its bytes, and what becomes of requests when
//! connections end.

mod server;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backing::health::Kind;
use backing::{BlockStore, Extent, StoreError};
use nbd_store::{DialError, NbdStore, Source};
use runtime::{Buf, Chain, Config, Cores, Runtime};
use server::{Act, MULTI_CONN, Request, Server, WRITE_COMMANDS, cmd};

fn source(uri: &str) -> Source {
    Source { uri: uri.parse().unwrap(), read_only: false, op_timeout: Duration::from_secs(1) }
}

fn open(server: &Server) -> NbdStore {
    NbdStore::open(source(&server.uri())).unwrap()
}

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(Config::default()).unwrap().block_on(future)
}

fn data(byte: u8, len: usize) -> Chain {
    let mut chain = Chain::new();
    chain.push(Buf::from(vec![byte; len]));
    chain
}

#[test]
fn what_is_written_is_read() {
    for structured in [false, true] {
        let server = Server::start(WRITE_COMMANDS, structured, |_| Act::Answer);
        let store = open(&server);
        assert_eq!(store.size(), server::SIZE as u64);
        assert_eq!(store.export().structured, structured);
        run(async {
            store.write(4096, data(7, 4096), true).await.unwrap();
            store.write(1 << 20, data(9, 9 << 20), false).await.unwrap();
            assert_eq!(store.read(4096, 4096).await.unwrap().to_vec(), [7; 4096]);
            let long = store.read((1 << 20) - 512, 9 << 20).await.unwrap();
            let expected = [vec![0; 512], vec![9; (9 << 20) - 512]].concat();
            assert!(long.to_vec() == expected);
            store.write_zeros(4096, 1024, false).await.unwrap();
            store.discard(2 << 20, 1 << 20).await.unwrap();
            assert_eq!(
                store.read(4096, 2048).await.unwrap().to_vec(),
                [vec![0; 1024], vec![7; 1024]].concat()
            );
            assert!(store.read(2 << 20, 1 << 20).await.unwrap().to_vec() == [0; 1 << 20]);
            store.sync().await.unwrap();
            let extent = store.extent(2 << 20, 4 << 20).await.unwrap();
            let expected = if structured { (1 << 20, false) } else { (4 << 20, true) };
            assert_eq!(extent, Extent { at: 2 << 20, len: expected.0, mapped: expected.1 });
        });
        assert_eq!(server.count(|request| request.kind == cmd::FLUSH), 1);
        assert_eq!(server.count(|request| request.is_fua()), 1, "the durable write");
        assert_eq!(server.count(|request| request.kind == cmd::TRIM), 0);
        assert!(server.count(|request| request.kind == cmd::WRITE) >= 4, "in pieces");
    }
}

#[test]
fn a_server_without_zeros_flushes_or_fua_is_sent_what_it_takes() {
    let server = Server::start(1, true, |_| Act::Answer);
    let store = open(&server);
    assert!(!store.thin());
    run(async {
        store.write(0, data(1, 4096), true).await.unwrap();
        store.write_zeros(512, 512, true).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.read(0, 1024).await.unwrap().to_vec(), [vec![1; 512], vec![0; 512]].concat());
    });
    assert_eq!(server.count(|request| ![cmd::READ, cmd::WRITE, cmd::DISC].contains(&request.kind)), 0);
}

#[test]
fn a_read_only_export_takes_nothing() {
    let server = Server::start(WRITE_COMMANDS | 2, true, |_| Act::Answer);
    let store = open(&server);
    assert!(!store.writable());
    run(async {
        assert_eq!(store.write(0, data(1, 512), false).await, Err(StoreError::ReadOnly));
        assert_eq!(store.discard(0, 512).await, Err(StoreError::ReadOnly));
        assert_eq!(store.sync().await, Ok(()));
        assert_eq!(store.read(0, 512).await.unwrap().len(), 512);
    });
}

#[test]
fn what_was_not_answered_before_a_close_is_sent_again() {
    // The first write, read and flush each cost the server its connection.
    let seen = AtomicUsize::new(0);
    let server = Server::start(WRITE_COMMANDS, true, move |request| {
        let bit = 1 << request.kind;
        match seen.fetch_or(bit, Ordering::SeqCst) & bit {
            0 => Act::Close,
            _ => Act::Answer,
        }
    });
    let store = open(&server);
    run(async {
        store.write(512, data(3, 512), true).await.unwrap();
        assert_eq!(store.read(512, 512).await.unwrap().to_vec(), [3; 512]);
        store.sync().await.unwrap();
    });
    assert_eq!(server.connections(), 4);
    assert_eq!(server.count(|request| request.kind == cmd::WRITE), 2);
}

/// A script whose first write waits for the sender, and then does what `act` says.
fn first_write_waits(act: fn() -> Act) -> (Sender<()>, impl Fn(&Request) -> Act + Send + Sync) {
    let (go, gone) = channel();
    let (seen, gone) = (AtomicUsize::new(0), Mutex::new(gone));
    let script = move |request: &Request| {
        if request.kind != cmd::WRITE || seen.fetch_add(1, Ordering::SeqCst) > 0 {
            return Act::Answer;
        }
        gone.lock().unwrap().recv().unwrap();
        act()
    };
    (go, script)
}

#[test]
fn nothing_is_sent_to_a_silent_server_until_it_answers_or_closes() {
    for (flags, act) in
        [(0, (|| Act::Answer) as fn() -> Act), (0, || Act::Close), (MULTI_CONN, || Act::Answer)]
    {
        let (go, script) = first_write_waits(act);
        let server = Server::start(WRITE_COMMANDS | flags, true, script);
        let store = Arc::new(open(&server));
        assert!(!store.is_in_doubt());
        let cores = Cores::start(2, Config::default()).unwrap();
        let late = store.clone();
        let late = cores.handles()[0].call(move || async move { late.write(512, data(3, 512), true).await });
        assert_eq!(run(late).unwrap(), Err(StoreError::Unknown));
        // On another core, by another connection if there may be one.
        let other = store.clone();
        let other = cores.handles()[1].call(move || async move {
            let failed = other.write(512, data(4, 512), true).await;
            (failed, other.read(0, 512).await.map(|_| ()))
        });
        assert_eq!(run(other).unwrap(), (Err(StoreError::Unknown), Err(StoreError::Unknown)));
        assert_eq!(server.count(|request| request.kind == cmd::WRITE), 1);
        assert!(store.health().unwrap().look().problems.iter().any(|problem| problem.kind == Kind::Unusable));
        assert!(store.is_in_doubt());
        go.send(()).unwrap();
        let again = store.clone();
        let again = cores.handles()[0].call(move || async move {
            while again.write(512, data(5, 512), true).await.is_err() {
                runtime::sleep(Duration::from_millis(10)).await;
            }
            again.read(512, 512).await.unwrap().to_vec()
        });
        assert_eq!(run(again).unwrap(), [5; 512]);
        assert!(!store.is_in_doubt());
        assert!(store.health().unwrap().look().problems.is_empty());
        drop(store);
        cores.stop();
        cores.join().unwrap();
    }
}

#[test]
fn a_server_that_breaks_the_protocol_is_left_once_it_has_closed() {
    // The first write and the first read are answered by a lie.
    let seen = AtomicUsize::new(0);
    let server = Server::start(WRITE_COMMANDS, true, move |request| {
        let bit = 1 << request.kind;
        match seen.fetch_or(bit, Ordering::SeqCst) & bit {
            0 => Act::Lie,
            _ => Act::Answer,
        }
    });
    let store = open(&server);
    run(async {
        assert_eq!(store.write(0, data(3, 512), true).await, Ok(()));
        assert_eq!(store.read(0, 512).await.unwrap().to_vec(), [3; 512]);
    });
    assert_eq!(server.count(|request| request.kind == cmd::READ), 2);
    assert_eq!(server.connections(), 3);
}

#[test]
fn a_server_that_lies_and_stays_is_sent_nothing_until_it_closes() {
    let seen = AtomicUsize::new(0);
    let server = Server::start(WRITE_COMMANDS, true, move |request| {
        match request.kind == cmd::WRITE && seen.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Act::LieAndStay,
            false => Act::Answer,
        }
    });
    let store = open(&server);
    run(async {
        assert_eq!(store.write(0, data(3, 512), true).await, Err(StoreError::Unknown));
        assert_eq!(store.read(0, 512).await.unwrap_err(), StoreError::Unknown);
        assert_eq!(server.connections(), 1);
        while store.read(0, 512).await.is_err() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(server.connections(), 2);
    assert_eq!(server.count(|request| request.kind == cmd::WRITE), 1);
}

#[test]
fn a_server_that_shuts_down_is_left_and_found_again() {
    let seen = AtomicUsize::new(0);
    let server = Server::start(WRITE_COMMANDS, true, move |_| match seen.fetch_add(1, Ordering::SeqCst) {
        0 => Act::Fail(108),
        _ => Act::Answer,
    });
    let store = open(&server);
    run(async { store.write(0, data(3, 512), true).await.unwrap() });
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_change_whose_reply_comes_with_the_end_counts_as_lost() {
    let server = Server::start(WRITE_COMMANDS, true, |request| match request.kind {
        cmd::WRITE => Act::AnswerAndClose,
        _ => Act::Answer,
    });
    let store = open(&server);
    run(async {
        store.write(0, data(3, 512), false).await.unwrap();
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)));
    });
}

#[test]
fn a_failed_flush_is_not_made_good_by_another() {
    let seen = AtomicUsize::new(0);
    let server = Server::start(WRITE_COMMANDS, true, move |request| {
        match request.kind == cmd::FLUSH && seen.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Act::Fail(28),
            false => Act::Answer,
        }
    });
    let store = open(&server);
    run(async {
        assert_eq!(store.sync().await, Err(StoreError::NoSpace));
        assert_eq!(store.sync().await, Err(StoreError::NoSpace), "refused");
        store.health().unwrap().acknowledge().unwrap();
        assert_eq!(store.sync().await, Ok(()));
    });
}

#[test]
fn a_store_that_is_closed_has_its_changes_flushed() {
    let server = Server::start(WRITE_COMMANDS, true, |_| Act::Answer);
    let store = open(&server);
    run(async {
        store.write(0, data(3, 512), false).await.unwrap();
        drop(store);
        runtime::sleep(Duration::from_millis(1)).await;
    });
    server.wait_for_end();
    assert_eq!(server.count(|request| request.kind == cmd::FLUSH), 1);
    assert_eq!(server.count(|request| request.kind == cmd::DISC), 1);
}

#[test]
fn zeros_that_a_server_refuses_are_sent_as_data() {
    for error in [22, 95] {
        let server = Server::start(WRITE_COMMANDS, true, move |request| match request.kind {
            cmd::ZEROES => Act::Fail(error),
            _ => Act::Answer,
        });
        let store = open(&server);
        run(async {
            store.write(0, data(3, 3 << 20), false).await.unwrap();
            store.discard(512, 2 << 20).await.unwrap();
            let expected = [vec![3; 512], vec![0; 2 << 20], vec![3; 512]].concat();
            assert!(store.read(0, expected.len()).await.unwrap().to_vec() == expected);
        });
    }
}

#[test]
fn a_sync_is_refused_after_unflushed_changes_may_be_lost() {
    let server = Server::start(WRITE_COMMANDS, true, |request| match request.kind {
        cmd::READ => Act::Close,
        _ => Act::Answer,
    });
    let store = open(&server);
    run(async {
        store.write(0, data(3, 512), false).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.read(0, 512).await.unwrap_err(), StoreError::Unknown, "three connections closed");
        store.sync().await.unwrap();
        store.write(0, data(3, 512), false).await.unwrap();
        assert!(store.read(0, 512).await.is_err());
        assert_eq!(store.sync().await, Err(StoreError::Io(libc::EIO)));
    });
    store.health().unwrap().acknowledge().unwrap();
    run(async { store.sync().await.unwrap() });
}

#[test]
fn errors_of_a_server_are_the_stores() {
    for (value, expected) in [
        (1, StoreError::ReadOnly),
        (5, StoreError::Io(libc::EIO)),
        (28, StoreError::NoSpace),
        (75, StoreError::Unsupported),
        (4711, StoreError::Io(libc::EINVAL)),
    ] {
        let server = Server::start(WRITE_COMMANDS, true, move |_| Act::Fail(value));
        let store = open(&server);
        run(async {
            assert_eq!(store.write(0, data(1, 512), false).await, Err(expected));
            assert_eq!(store.read(0, 512).await.unwrap_err(), expected);
        });
    }
}

#[test]
fn all_cores_use_one_connection_unless_the_server_allows_several() {
    for (flags, most) in [(WRITE_COMMANDS, 1), (WRITE_COMMANDS | MULTI_CONN, 3)] {
        let server = Server::start(flags, true, |_| Act::Answer);
        let store = Arc::new(open(&server));
        let cores = Cores::start(3, Config::default()).unwrap();
        for round in 0..2 {
            for (number, core) in cores.handles().iter().enumerate() {
                let store = store.clone();
                let at = (round * 3 + number as u64) * 4096;
                let byte = at as u8 | 1;
                let done = core.call(move || async move {
                    store.write(at, data(byte, 4096), false).await.unwrap();
                    store.sync().await.unwrap();
                    assert_eq!(store.read(at, 4096).await.unwrap().to_vec(), [byte; 4096]);
                    store.write_zeros(at, 512, true).await.unwrap();
                    store.extent(at, 512).await.unwrap();
                    store.read(at, 512).await.unwrap().to_vec()
                });
                assert_eq!(run(done).unwrap(), [0; 512]);
            }
        }
        assert_eq!(server.connections(), most);
        drop(store);
        cores.stop();
        cores.join().unwrap();
        server.wait_for_end();
    }
}

#[test]
fn a_sync_has_each_connection_flush_its_own_changes() {
    let server = Server::start(WRITE_COMMANDS | MULTI_CONN, true, |_| Act::Answer);
    let store = Arc::new(open(&server));
    let cores = Cores::start(2, Config::default()).unwrap();
    let flushes = || server.count(|request| request.kind == cmd::FLUSH);
    let writer = store.clone();
    let write = cores.handles()[0].call(move || async move { writer.write(0, data(3, 512), false).await });
    assert_eq!(run(write).unwrap(), Ok(()));
    // A connection that is made now does not know whether the server is still the one that took it.
    for expected in [2, 3] {
        let syncer = store.clone();
        let sync = cores.handles()[1].call(move || async move { syncer.sync().await });
        assert_eq!(run(sync).unwrap(), Ok(()));
        assert_eq!(flushes(), expected, "the first has nothing left to flush the second time");
    }
    drop(store);
    cores.stop();
    cores.join().unwrap();
    server.wait_for_end();
}

#[test]
fn an_export_that_is_not_used_is_let_go() {
    let server = Server::start(WRITE_COMMANDS, true, |_| Act::Answer);
    drop(open(&server));
    server.wait_for_end();
    assert_eq!((server.connections(), server.count(|request| request.kind == cmd::DISC)), (1, 1));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let server = Server::start(WRITE_COMMANDS, true, |_| Act::Answer);
    let error = NbdStore::open(source(&format!("{}other", server.uri()))).err().unwrap();
    assert!(matches!(error, DialError::Handshake(_)), "{error}");
    assert!(error.to_string().contains("no export \"diskother\""), "{error}");
    let missing = "nbd+unix:///x?socket=/nowhere/socket";
    assert!(matches!(NbdStore::open(source(missing)).err().unwrap(), DialError::Io(_)));
}
