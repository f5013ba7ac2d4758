//! Calls against a server that each test plays itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use nfs_client::{Auth, Caller, Error, Options, Sys};
use rpc::message::{AcceptStat, AuthStat, Call, Reply, Versions};
use rpc::xdr::{Reader, Writer};
use runtime::{Chain, Config, Runtime};

const PROGRAM: (u32, u32, u32) = (300_000, 1, 7);

/// One connection of the server.
struct Peer(TcpStream);

impl Peer {
    /// The next call: its XID, and its bytes behind the header.
    fn call(&mut self) -> (u32, Vec<u8>) {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("a call");
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.0.read_exact(&mut record).expect("a whole call");
        let mut from = Reader::new(&record);
        let call = Call::read(&mut from).expect("a call's header");
        assert_eq!((call.program, call.version, call.procedure), PROGRAM);
        (call.xid, from.remaining().to_vec())
    }

    /// Replies with `results`, in two fragments.
    fn reply(&mut self, xid: u32, stat: AcceptStat, results: &[u8]) {
        let mut record = Vec::new();
        Reply::accepted(xid, stat).write(&mut Writer::new(&mut record));
        record.extend_from_slice(results);
        let (first, last) = record.split_at(5);
        let mut bytes = 5u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(&(last.len() as u32 | rpc::record::LAST).to_be_bytes());
        bytes.extend_from_slice(last);
        self.0.write_all(&bytes).expect("the client is there");
    }
}

/// Runs a server beside a client.
fn with<T>(
    server: impl FnOnce(&TcpListener) + Send + 'static,
    client: impl AsyncFnOnce(Caller) -> T,
    options: Options,
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let server: JoinHandle<()> = spawn(move || server(&listener));
    let output = Runtime::new(Config::default()).expect("a ring").block_on(async {
        let caller = Caller::connect("127.0.0.1", port, options).await.expect("it listens");
        client(caller).await
    });
    server.join().expect("the server saw what it wanted");
    output
}

fn accept(listener: &TcpListener) -> Peer {
    Peer(listener.accept().expect("a connection").0)
}

async fn ask(caller: &Caller, number: u32) -> Result<u32, Error> {
    let answer = caller.call(PROGRAM, |to| to.u32(number), Chain::new()).await?;
    Ok(Reader::new(answer.body()).u32().expect("a number"))
}

#[test]
fn replies_match_their_calls_in_any_order() {
    let server = |listener: &TcpListener| {
        let mut peer = accept(listener);
        let calls: Vec<_> = (0..20).map(|_| peer.call()).collect();
        peer.reply(calls[0].0.wrapping_sub(1), AcceptStat::Success(()), &[]);
        for (xid, arguments) in calls.iter().rev() {
            peer.reply(*xid, AcceptStat::Success(()), arguments);
        }
    };
    with(
        server,
        async |caller| {
            let asked: Vec<_> = (0..20)
                .map(|number| {
                    let caller = caller.clone();
                    runtime::spawn(async move { ask(&caller, number).await })
                })
                .collect();
            for (number, asked) in asked.into_iter().enumerate() {
                assert_eq!(asked.await.expect("no panic"), Ok(number as u32));
            }
        },
        Options::default(),
    );
}

#[test]
fn a_lost_connection_has_its_calls_sent_again_with_their_xids() {
    let server = |listener: &TcpListener| {
        let mut peer = accept(listener);
        let first: Vec<_> = (0..3).map(|_| peer.call()).collect();
        peer.reply(first[1].0, AcceptStat::Success(()), &first[1].1);
        // The client has read the reply before it sees the end of the stream.
        drop(peer);
        let mut peer = accept(listener);
        for expected in [&first[0], &first[2]] {
            let (xid, arguments) = peer.call();
            assert_eq!((xid, &arguments), (expected.0, &expected.1));
            peer.reply(xid, AcceptStat::Success(()), &arguments);
        }
    };
    with(
        server,
        async |caller| {
            let asked = [4, 5, 6].map(|number| {
                let caller = caller.clone();
                runtime::spawn(async move { ask(&caller, number).await })
            });
            for (number, asked) in [4, 5, 6].into_iter().zip(asked) {
                assert_eq!(asked.await.expect("no panic"), Ok(number));
            }
        },
        Options::default(),
    );
}

#[test]
fn a_server_that_stays_away_fails_the_calls() {
    let server = |listener: &TcpListener| {
        drop(accept(listener));
    };
    let options = Options { give_up: Duration::from_millis(300), ..Options::default() };
    let error = with(server, async |caller| ask(&caller, 1).await, options);
    assert!(matches!(error, Err(Error::Silent { .. })), "{error:?}");
}

#[test]
fn calls_to_a_server_that_was_given_up_are_tried_once_each() {
    let (closed, is_back) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (seen, answers) = (closed.clone(), is_back.clone());
    // It closes each connection until it is back.
    let server = move |listener: &TcpListener| {
        loop {
            let mut peer = accept(listener);
            if answers.load(Ordering::Acquire) {
                let (xid, arguments) = peer.call();
                return peer.reply(xid, AcceptStat::Success(()), &arguments);
            }
            seen.fetch_add(1, Ordering::AcqRel);
        }
    };
    let options = Options { give_up: Duration::from_millis(300), ..Options::default() };
    let client = async |caller: Caller| {
        let error = ask(&caller, 1).await;
        assert!(matches!(error, Err(Error::Silent { .. })), "{error:?}");
        let before = closed.load(Ordering::Acquire);
        assert!(before > 2, "the first call was tried over {before} connections");
        for number in 2..6 {
            let error = ask(&caller, number).await;
            assert!(matches!(error, Err(Error::Silent { .. })), "{error:?}");
        }
        assert_eq!(closed.load(Ordering::Acquire) - before, 4);
        is_back.store(true, Ordering::Release);
        assert_eq!(ask(&caller, 6).await, Ok(6), "the server is back");
    };
    with(server, client, options);
}

#[test]
fn a_reply_beyond_the_limit_costs_the_connection() {
    let server = |listener: &TcpListener| {
        let mut peer = accept(listener);
        peer.call();
        peer.0.write_all(&0x8000_1001u32.to_be_bytes()).expect("the client is there");
        assert_eq!(peer.0.read(&mut [0; 16]).unwrap_or(0), 0);
        let mut peer = accept(listener);
        let (xid, arguments) = peer.call();
        peer.reply(xid, AcceptStat::Success(()), &arguments);
    };
    let options = Options { max_reply: 4096, ..Options::default() };
    assert_eq!(with(server, async |caller| ask(&caller, 1).await, options), Ok(1));
}

#[test]
fn the_errors_of_rpc_keep_their_meaning() {
    let server = |listener: &TcpListener| {
        let mut peer = accept(listener);
        let xid = peer.call().0;
        peer.reply(xid, AcceptStat::ProgMismatch(Versions { low: 3, high: 4 }), &[]);
        let xid = peer.call().0;
        peer.reply(xid, AcceptStat::GarbageArgs(()), &[]);
        let xid = peer.call().0;
        let mut record = Vec::new();
        Reply::auth_error(xid, AuthStat::TooWeak).write(&mut Writer::new(&mut record));
        let mark = record.len() as u32 | rpc::record::LAST;
        peer.0.write_all(&[&mark.to_be_bytes()[..], &record].concat()).expect("the client is there");
    };
    let options =
        Options { auth: Auth::Sys(Sys { uid: 1, gid: 2, gids: vec![0; 20] }), ..Options::default() };
    with(
        server,
        async |caller| {
            let unserved = Error::Unserved { program: PROGRAM.0, version: 1, versions: Some((3, 4)) };
            assert_eq!(ask(&caller, 1).await, Err(unserved));
            assert!(matches!(ask(&caller, 1).await, Err(Error::Refused(_))));
            assert_eq!(ask(&caller, 1).await, Err(Error::Auth(AuthStat::TooWeak)));
        },
        options,
    );
}

#[test]
fn a_payload_follows_its_arguments_with_padding() {
    let server = |listener: &TcpListener| {
        let mut peer = accept(listener);
        let (xid, arguments) = peer.call();
        assert_eq!(arguments, b"\0\0\0\x05hello\0\0\0");
        peer.reply(xid, AcceptStat::Success(()), b"\0\0\0\x05world\0\0\0");
    };
    let data = with(
        server,
        async |caller| {
            let data = Chain::from(b"hello".to_vec());
            let answer = caller.call(PROGRAM, |to| to.u32(5), data).await.expect("a reply");
            answer.into_payload(4..9).to_vec()
        },
        Options::default(),
    );
    assert_eq!(data, b"world");
}
