//! Calls over RDMA against servers that each test plays: they lie about chunks, grant few credits,
//! reach for memory that is not theirs, and vanish.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use nfs_client::{Caller, Error, Options, Room, Transport};
use rdma::{Completion, Flags, Listener, QueuePair, Remote, Stag};
use rpc::auth::OpaqueAuth;
use rpc::message::{AcceptStat, Call, Reply, Versions};
use rpc::xdr::{Chained, List, Reader, Writer};
use rpcrdma::{Body, Failure, Header, Lists, PrivateData, Segment, WriteChunk};
use runtime::{Chain, Config, Runtime};

const PROGRAM: (u32, u32, u32) = (300_000, 1, 7);
/// Data of a call that goes by chunk.
const LONG: usize = 100_000;

/// A call as a server sees it.
struct Called {
    xid: u32,
    /// Bytes of the message.
    len: usize,
    reads: Vec<Segment>,
    write: Option<Segment>,
    /// All segments of the write chunk.
    writes: Vec<Segment>,
    reply: Option<Segment>,
    /// The arguments, if they were sent.
    arguments: Vec<u8>,
}

/// One connection of the server.
struct Peer(QueuePair);

impl Peer {
    async fn accept(listener: &mut Listener) -> Self {
        Self::accept_as(listener, 4096).await
    }

    /// Accepts a connection, with private data that limits messages to so many bytes.
    async fn accept_as(listener: &mut Listener, message: usize) -> Self {
        let own = PrivateData { remote_invalidation: true, send: message, receive: message };
        let incoming = listener.accept().await.expect("a client");
        let client = PrivateData { remote_invalidation: true, send: 8192, receive: 8192 };
        assert_eq!(PrivateData::decode(incoming.private_data()), client);
        Peer(incoming.accept(&own.encode(), &rdma::Options::default()).await.expect("it is let in"))
    }

    /// The next call; `None` when the connection has ended.
    async fn call(&self) -> Option<Called> {
        loop {
            match self.0.next().await {
                Ok(Completion::Received { message, .. }) => {
                    self.0.post_receives(1);
                    let message = message.to_vec();
                    let mut from = Reader::new(&message);
                    let header = Header::read(&mut from).expect("a header");
                    let lists = header.lists().expect("a call");
                    let first = |chunk: WriteChunk<'_>| chunk.segments.iter().next().expect("a segment");
                    if let Body::Message(_) = header.body {
                        let call = Call::read(&mut from).expect("a call");
                        assert_eq!((call.xid, call.procedure), (header.xid, PROGRAM.2));
                    }
                    return Some(Called {
                        xid: header.xid,
                        len: message.len(),
                        reads: lists.reads.iter().map(|read| read.source).collect(),
                        write: lists.writes.iter().next().map(first),
                        writes: lists.writes.iter().flat_map(|chunk| chunk.segments.iter()).collect(),
                        reply: lists.reply.map(first),
                        arguments: from.remaining().to_vec(),
                    });
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    fn send(&self, message: &[u8], invalidate: Option<Stag>) {
        self.0.post_send(message, Chain::new(), Flags { invalidate, solicited: false }, None);
    }

    fn write(&self, to: Segment, data: &[u8]) {
        let to = Remote { stag: Stag(to.handle), offset: to.offset };
        self.0.post_write(to, Chain::from(data.to_vec()), None);
    }

    /// Replies with the given write chunks and reply chunk.
    fn reply(&self, xid: u32, writes: &[Segment], reply: Option<Segment>, rpc: &[u8]) {
        self.reply_granting(128, xid, writes, reply, rpc);
    }

    fn reply_granting(&self, credits: u32, xid: u32, writes: &[Segment], reply: Option<Segment>, rpc: &[u8]) {
        let writes = Chained::of(writes.chunks(1).map(|one| WriteChunk { segments: List::of(one) }));
        let reply = reply.as_ref().map(|one| WriteChunk { segments: List::of(std::slice::from_ref(one)) });
        let lists = Lists { writes: writes.chain(), reply, ..Lists::NONE };
        let body = if rpc.is_empty() { Body::NoMessage(lists) } else { Body::Message(lists) };
        let mut message = Vec::new();
        Header::new(xid, credits, body).write(&mut Writer::new(&mut message));
        message.extend_from_slice(rpc);
        self.send(&message, None);
    }

    fn refuse(&self, xid: u32, failure: Failure) {
        let mut message = Vec::new();
        Header::new(xid, 128, Body::Error(failure)).write(&mut Writer::new(&mut message));
        self.send(&message, None);
    }
}

/// An RPC reply with these results.
fn rpc(xid: u32, results: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    Reply::accepted(xid, AcceptStat::Success(())).write(&mut Writer::new(&mut record));
    record.extend_from_slice(results);
    record
}

/// Runs a server beside a client, on a ring each.
fn with<T>(server: impl AsyncFnOnce(Listener) + Send + 'static, client: impl AsyncFnOnce(Caller) -> T) -> T {
    with_many(server, async |connect| client(connect().await).await)
}

/// The same for a client that connects as often as it likes.
fn with_many<T>(
    server: impl AsyncFnOnce(Listener) + Send + 'static,
    client: impl AsyncFnOnce(&dyn Fn() -> Pin<Box<dyn Future<Output = Caller>>>) -> T,
) -> T {
    with_options(Options::default(), server, client)
}

fn with_options<T>(
    options: Options,
    server: impl AsyncFnOnce(Listener) + Send + 'static,
    client: impl AsyncFnOnce(&dyn Fn() -> Pin<Box<dyn Future<Output = Caller>>>) -> T,
) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        Runtime::new(Config::default()).expect("a ring").block_on(async {
            let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
            tell.send(listener.local_addr().expect("an address").port()).expect("the test waits");
            runtime::timeout(Duration::from_secs(60), server(listener)).await.expect("it ends in time");
        });
    });
    let output = Runtime::new(Config::default()).expect("a ring").block_on(async {
        let port = told.recv().expect("it listens");
        let connect = || -> Pin<Box<dyn Future<Output = Caller>>> {
            let options = Options { transport: Transport::Rdma, ..options.clone() };
            Box::pin(async move { Caller::connect("127.0.0.1", port, options).await.expect("it listens") })
        };
        runtime::timeout(Duration::from_secs(60), client(&connect)).await.expect("it ends in time")
    });
    server.join().expect("the server saw what it wanted");
    output
}

/// The results of a call with this much room, and the payload received apart behind them.
async fn ask(caller: &Caller, room: Room) -> Result<Vec<u8>, Error> {
    let answer = caller.call_for(PROGRAM, |to| to.u32(7), Chain::new(), room).await?;
    let len = answer.body().len() + answer.apart();
    Ok(answer.into_payload(0..len).to_vec())
}

const READ: Room = Room::read(LONG as u32);
const LIST: Room = Room::results(LONG);

#[test]
fn data_and_long_replies_are_taken_from_their_chunks() {
    let server = async |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        let called = peer.call().await.expect("a call");
        assert_eq!((called.write.is_some(), called.reply.is_some()), (true, false));
        let into = called.write.expect("a write chunk");
        assert_eq!(into.length as usize, LONG);
        peer.write(into, &[5; 6]);
        peer.reply(called.xid, &[Segment { length: 6, ..into }], None, &rpc(called.xid, &[0, 0, 0, 6]));

        let called = peer.call().await.expect("a call");
        assert_eq!((called.write.is_some(), called.reply.is_some()), (false, true));
        let into = called.reply.expect("a reply chunk");
        let long = rpc(called.xid, &vec![9; LONG]);
        peer.write(into, &long);
        peer.reply(called.xid, &[], Some(Segment { length: long.len() as u32, ..into }), &[]);

        let called = peer.call().await.expect("a call");
        assert!(called.write.is_none() && called.reply.is_none(), "a short reply needs no chunks");
        assert_eq!(called.arguments, [0, 0, 0, 7]);
        peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        assert_eq!(ask(&caller, READ).await, Ok(vec![0, 0, 0, 6, 5, 5, 5, 5, 5, 5, 0, 0]));
        assert!(ask(&caller, LIST).await.is_ok_and(|body| body == vec![9; LONG]));
        assert_eq!(ask(&caller, Room::SMALL).await, Ok(b"ok".to_vec()));
    });
}

#[test]
fn chunks_are_cut_into_segments_of_one_stag_as_long_as_asked() {
    const CUT: u32 = 40_000;
    let cuts = |segments: &[Segment], len: u32| {
        let first = segments[0];
        let at = |at, length| Segment { length, offset: first.offset + u64::from(at), ..first };
        assert_eq!(segments, [at(0, CUT), at(CUT, CUT), at(2 * CUT, len - 2 * CUT)]);
    };
    let server = async move |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        assert_eq!(peer.0.ord(), 3, "the client allows three RDMA Reads");
        let called = peer.call().await.expect("a call");
        cuts(&called.writes, LONG as u32);
        let [first, second, third] = called.writes[..] else { panic!("three segments") };
        peer.write(first, &[5; CUT as usize]);
        peer.write(second, &[6; 10]);
        let returned = [first, Segment { length: 10, ..second }, Segment { length: 0, ..third }];
        let mut message = Vec::new();
        let writes = Chained::of([WriteChunk { segments: List::of(&returned) }]);
        let lists = Lists { writes: writes.chain(), ..Lists::NONE };
        Header::new(called.xid, 128, Body::Message(lists)).write(&mut Writer::new(&mut message));
        message.extend(rpc(called.xid, b"data"));
        peer.send(&message, None);

        let called = peer.call().await.expect("a call");
        cuts(&called.reads, LONG as u32);
        peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        assert!(peer.call().await.is_none());
    };
    let options = Options { rdma_segment: Some(CUT), rdma_reads: 3, ..Options::default() };
    with_options(options, server, async |connect| {
        let caller = connect().await;
        let data = [vec![5; CUT as usize], vec![6; 10], vec![0; 2]].concat();
        assert!(ask(&caller, READ).await.is_ok_and(|body| body == [b"data", &data[..]].concat()));
        let payload = Chain::from(vec![7; LONG]);
        let answer = caller.call_for(PROGRAM, |to| to.u32(7), payload, Room::SMALL).await;
        assert_eq!(answer.map(|answer| answer.body().to_vec()), Ok(b"ok".to_vec()));
    });
}

/// A server that says nothing of its messages takes 1 KiB.
#[test]
fn the_segments_of_a_call_leave_it_within_a_message() {
    let server = async |mut listener: Listener| {
        let peer = Peer::accept_as(&mut listener, 1024).await;
        for _ in 0..2 {
            let called = peer.call().await.expect("a call");
            assert!(called.len <= 1024, "{}", called.len);
            assert!(called.reads.len() + called.writes.len() > 3, "it is cut");
            peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        }
        assert!(peer.call().await.is_none());
    };
    let options = Options { rdma_segment: Some(1000), ..Options::default() };
    with_options(options, server, async |connect| {
        let caller = connect().await;
        assert_eq!(ask(&caller, READ).await, Ok(b"ok".to_vec()));
        let payload = Chain::from(vec![7; LONG]);
        let answer = caller.call_for(PROGRAM, |to| to.u32(7), payload, Room::SMALL).await;
        assert_eq!(answer.map(|answer| answer.body().to_vec()), Ok(b"ok".to_vec()));
    });
}

/// A server's reply to a call with a chunk for data, or for a long reply.
type Lie = fn(&Peer, &Called);

#[test]
fn a_server_that_lies_about_chunks_fails_its_call_and_no_other() {
    let of_data: [Lie; 6] = [
        // More than the chunk holds.
        |peer, called| {
            let of = called.write.expect("a chunk");
            peer.reply(called.xid, &[Segment { length: of.length + 1, ..of }], None, &rpc(called.xid, b"a"));
        },
        // Data that was not written.
        |peer, called| {
            let of = called.write.expect("a chunk");
            peer.write(of, &[1; 99]);
            peer.reply(called.xid, &[Segment { length: 100, ..of }], None, &rpc(called.xid, b"a"));
        },
        // Another chunk.
        |peer, called| {
            let of = called.write.expect("a chunk");
            let other = Segment { handle: of.handle ^ 1, length: 0, ..of };
            peer.reply(called.xid, &[other], None, &rpc(called.xid, b"a"));
        },
        // Two chunks for one.
        |peer, called| {
            let of = Segment { length: 0, ..called.write.expect("a chunk") };
            peer.reply(called.xid, &[of, of], None, &rpc(called.xid, b"a"));
        },
        // A reply chunk that the call did not have.
        |peer, called| {
            let of = called.write.expect("a chunk");
            peer.reply(called.xid, &[], Some(of), &rpc(called.xid, b"a"));
        },
        // No reply anywhere.
        |peer, called| peer.reply(called.xid, &[], None, &[]),
    ];
    let of_reply: [Lie; 4] = [
        |peer, called| {
            let of = called.reply.expect("a chunk");
            peer.reply(called.xid, &[], Some(Segment { length: u32::MAX, ..of }), &[]);
        },
        |peer, called| peer.reply(called.xid, &[], called.reply, &[]),
        // Both sent and in the chunk.
        |peer, called| {
            let (of, rpc) = (called.reply.expect("a chunk"), rpc(called.xid, b"ok"));
            peer.write(of, &rpc);
            peer.reply(called.xid, &[], Some(Segment { length: rpc.len() as u32, ..of }), &rpc);
        },
        // The reply to another call.
        |peer, called| {
            let (of, rpc) = (called.reply.expect("a chunk"), rpc(called.xid ^ 1, b"ok"));
            peer.write(of, &rpc);
            peer.reply(called.xid, &[], Some(Segment { length: rpc.len() as u32, ..of }), &[]);
        },
    ];
    let lies = of_data.len() + of_reply.len();
    let server = async move |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        for lie in of_data.iter().chain(&of_reply) {
            lie(&peer, &peer.call().await.expect("a call over the same connection"));
        }
        let called = peer.call().await.expect("a call over the same connection");
        peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        for lie in 0..lies {
            let answer = ask(&caller, if lie < 6 { READ } else { LIST }).await;
            assert!(matches!(answer, Err(Error::Nonsense(_))), "lie {lie}: {answer:?}");
        }
        assert_eq!(ask(&caller, Room::SMALL).await, Ok(b"ok".to_vec()));
    });
}

#[test]
fn the_errors_of_the_transport_fail_their_calls() {
    let server = async |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        for failure in [Failure::Chunk(()), Failure::Version(Versions { low: 2, high: 2 })] {
            let called = peer.call().await.expect("a call");
            peer.refuse(called.xid, failure);
        }
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        for room in [READ, LIST] {
            let answer = ask(&caller, room).await;
            assert!(matches!(answer, Err(Error::Refused(_))), "{answer:?}");
        }
    });
}

#[test]
fn no_more_calls_are_outstanding_than_were_granted() {
    const CALLS: usize = 40;
    let server = async |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        let (mut taken, mut granted) = (0, 1);
        while taken < CALLS {
            // A call of the server's own takes no credit, and is not answered.
            let mut own = Vec::new();
            Header::new(77, 1, Body::Message(Lists::NONE)).write(&mut Writer::new(&mut own));
            let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
            let call = Call { xid: 77, program: 1, version: 1, procedure: 1, credential, verifier };
            call.write(&mut Writer::new(&mut own));
            peer.send(&own, None);
            let mut waiting = vec![peer.call().await.expect("a call").xid];
            while let Ok(called) = runtime::timeout(Duration::from_millis(5), peer.call()).await {
                waiting.push(called.expect("a call").xid);
            }
            assert!(waiting.len() <= granted, "{} of {granted}", waiting.len());
            taken += waiting.len();
            granted = 3;
            for xid in waiting {
                peer.reply_granting(3, xid, &[], None, &rpc(xid, b"ok"));
            }
        }
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        let asked: Vec<_> = (0..CALLS)
            .map(|_| {
                let caller = caller.clone();
                runtime::spawn(async move { ask(&caller, Room::SMALL).await })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.expect("no panic"), Ok(b"ok".to_vec()));
        }
    });
}

#[test]
fn a_call_goes_again_with_its_xid_when_the_server_reaches_beyond_its_memory() {
    let server = async |mut listener: Listener| {
        // It invalidates an STag that is not the call's.
        let peer = Peer::accept(&mut listener).await;
        let first = peer.call().await.expect("a call");
        peer.send(&[], Some(Stag(first.write.expect("a chunk").handle ^ 1)));
        assert!(peer.call().await.is_none());
        // It writes beyond the end of a chunk.
        let peer = Peer::accept(&mut listener).await;
        let again = peer.call().await.expect("a call");
        assert_eq!(again.xid, first.xid);
        let of = again.write.expect("a chunk");
        peer.write(Segment { offset: of.offset + u64::from(of.length) - 1, ..of }, &[1; 2]);
        assert!(peer.call().await.is_none());
        // It vanishes.
        drop(Peer::accept(&mut listener).await);
        // It writes to a chunk whose call it has answered.
        let peer = Peer::accept(&mut listener).await;
        let again = peer.call().await.expect("a call");
        assert_eq!(again.xid, first.xid);
        let of = again.write.expect("a chunk");
        peer.write(of, &[3; 4]);
        peer.reply(again.xid, &[Segment { length: 4, ..of }], None, &rpc(again.xid, &[0, 0, 0, 4]));
        let next = peer.call().await.expect("a call");
        peer.write(of, &[4; 4]);
        assert!(peer.call().await.is_none());
        let peer = Peer::accept(&mut listener).await;
        let again = peer.call().await.expect("a call");
        assert_eq!(again.xid, next.xid);
        peer.reply(again.xid, &[], None, &rpc(again.xid, b"ok"));
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        assert_eq!(ask(&caller, READ).await, Ok(vec![0, 0, 0, 4, 3, 3, 3, 3]));
        assert_eq!(ask(&caller, READ).await, Ok(b"ok".to_vec()));
    });
}

#[test]
fn data_and_long_calls_are_offered_and_withdrawn() {
    let server = async |mut listener: Listener| {
        let peer = Peer::accept(&mut listener).await;
        // Data, then arguments that no message holds.
        for (sent, len) in [(4, LONG), (0, 5000)] {
            let called = peer.call().await.expect("a call");
            assert_eq!(called.arguments.len(), sent);
            let [source] = called.reads[..] else { panic!("{:?}", called.reads) };
            assert!(source.length as usize >= len);
            peer.0.post_read(
                Remote { stag: Stag(source.handle), offset: source.offset },
                source.length as usize,
                1,
            );
            let data = loop {
                match peer.0.next().await.expect("the data") {
                    Completion::Read { data, .. } => break data.to_vec(),
                    _ => continue,
                }
            };
            assert!(data.ends_with(&vec![8; len]));
            peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        }
        // Short data is sent, with its padding.
        let called = peer.call().await.expect("a call");
        assert!(called.reads.is_empty());
        assert_eq!(called.arguments, [0, 0, 0, 3, 8, 8, 8, 0]);
        peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
        assert!(peer.call().await.is_none());
    };
    with(server, async |caller| {
        let data = |len| Chain::from(vec![8; len]);
        let number = |to: &mut Writer<'_>| to.u32(3);
        caller.call(PROGRAM, number, data(LONG)).await.expect("a reply");
        let long = |to: &mut Writer<'_>| (0..1250).for_each(|_| to.u32(0x0808_0808));
        caller.call(PROGRAM, long, Chain::new()).await.expect("a reply");
        caller.call(PROGRAM, number, data(3)).await.expect("a reply");
    });
}

#[test]
fn data_of_4_kib_need_no_chunk_where_messages_are_long_enough() {
    let server = async |mut listener: Listener| {
        for message in [8192, 4096] {
            let peer = Peer::accept_as(&mut listener, message).await;
            let short = message < 8192;
            let called = peer.call().await.expect("a READ");
            assert_eq!(called.write.is_some(), short);
            let data = if short { vec![] } else { vec![7; 4096] };
            peer.reply(called.xid, &[], None, &rpc(called.xid, &data));
            let called = peer.call().await.expect("a WRITE");
            assert_eq!(called.reads.is_empty(), !short);
            assert_eq!(called.arguments.len(), if short { 4 } else { 4100 });
            peer.reply(called.xid, &[], None, &rpc(called.xid, b"ok"));
            assert!(peer.call().await.is_none());
        }
    };
    with_many(server, async |connect| {
        for message in [8192, 4096] {
            let caller = connect().await;
            let found = ask(&caller, Room::read(4096)).await.expect("a reply");
            assert!(found == if message < 8192 { vec![] } else { vec![7; 4096] });
            let data = Chain::from(vec![8; 4096]);
            caller.call(PROGRAM, |to| to.u32(4096), data).await.expect("a reply");
        }
    });
}
