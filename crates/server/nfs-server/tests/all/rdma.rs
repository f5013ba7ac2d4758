//! NFS over RDMA against a whole server over loopback: data in chunks, long replies and long calls,
//! and clients that lie, stop and vanish.

use crate::support;
use crate::support::rdma::{Chunks, LINUX, Message, RdmaClient, run};
use crate::support::{PATIENCE, Served, fragment, handle, nfs3, of, served, v4};
use nfs::v3::{
    Arguments, DirOp, Name, Outcome, Path, Procedure, Read, Results, SetAttributes, Stable, Status, Symlink,
    Write,
};
use rdma::Stag;
use rpc::message::Versions;
use rpc::xdr::List;
use rpcrdma::reply::written;
use rpcrdma::{Body, Direction, Failure, PrivateData, ReadSegment, Segment, WriteChunk};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A server with an empty file, the handle of its root and that of the file.
fn with_file() -> (Served, Vec<u8>, Vec<u8>) {
    let served = served();
    let mut client = served.connect();
    let root = client.mount();
    let file = client.create(&root, "file");
    (served, root, file)
}

fn write(file: &[u8], len: usize) -> Arguments<'_> {
    let (count, length) = (len as u32, len as u32);
    Arguments::Write(Write { file: handle(file), offset: 0, count, stable: Stable::FileSync, length })
}

fn read(file: &[u8], len: usize) -> Arguments<'_> {
    Arguments::Read(Read { file: handle(file), offset: 0, count: len as u32 })
}

/// The data of the file, over TCP.
fn content(served: &Served, file: &[u8], len: usize) -> Vec<u8> {
    let reply = served.connect().call(&read(file, len), &[]);
    let results = nfs::v3::results(Procedure::Read, support::results(&reply)).expect("results");
    assert!(matches!(results.value, Results::Read(Outcome::Ok(_))));
    let body = support::results(&reply);
    body[body.len() - len.next_multiple_of(4)..][..len].to_vec()
}

/// Offset of a WRITE's data in its call.
fn position(file: &[u8], len: usize) -> u32 {
    nfs3(0, &write(file, len), &[]).len() as u32
}

async fn write_by_chunk(client: &mut RdmaClient, file: &[u8], data: &[u8], parts: usize) -> Message {
    let position = position(file, data.len());
    let sources = data.chunks(data.len().div_ceil(parts)).map(|part| client.source(part));
    let reads = sources.map(|source| ReadSegment { position, source }).collect();
    client.call(&write(file, data.len()), &Chunks { reads, ..Chunks::default() }).await
}

fn is_written(message: &Message, len: usize) {
    let Results::Write(Outcome::Ok(ok)) = of(Procedure::Write, message.rpc()) else { panic!("{message:?}") };
    assert_eq!(ok.count as usize, len);
}

#[test]
fn data_goes_by_chunks_both_ways() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        assert_eq!(client.server, PrivateData { send: 8192, receive: 8192, ..LINUX });
        for (len, parts) in [(1, 1), (4097, 3), (300_001, 1), (1 << 20, 4)] {
            let data = pattern(len);
            let message = write_by_chunk(&mut client, &file, &data, parts).await;
            is_written(&message, len);
            assert!(message.header().credits >= 1);
            assert!(message.invalidated.is_some(), "the client wants its memory invalidated");
            assert!(content(&served, &file, len) == data, "{len} bytes");
            let (first, second) = (client.sink(len / 2 + 1), client.sink(len));
            let writes = vec![vec![first, second]];
            let message = client.call(&read(&file, len), &Chunks { writes, ..Chunks::default() }).await;
            let Body::Message(lists) = message.header().body else { panic!("{message:?}") };
            let returned = lists.writes.iter().next().expect("the write list comes back");
            assert_eq!(written(&[first, second], &returned), Some(len));
            assert!(message.rpc().len() < 200, "the data is not sent");
            assert_eq!(message.invalidated, Some(Stag(first.handle)));
            let found = [client.take(first), client.take(second)].concat();
            assert!(found[..len] == data[..] && found[len..].iter().all(|byte| *byte == 0xee));
        }
    });
    served.stop();
}

#[test]
fn a_client_without_private_data_gets_short_messages_and_no_invalidation() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect_as(served.address(), &[], 1024).await;
        let message = write_by_chunk(&mut client, &file, &pattern(3000), 1).await;
        is_written(&message, 3000);
        assert_eq!(message.invalidated, None);
        // Data that fit are sent inline.
        let message = client.call(&read(&file, 600), &Chunks::default()).await;
        assert!(message.rpc()[message.rpc().len() - 600..] == pattern(3000)[..600]);
        // Longer data need a chunk, and the call has none.
        let message = client.call(&read(&file, 3000), &Chunks::default()).await;
        assert_eq!(message.header().body, Body::Error(Failure::Chunk(())));
    });
    served.stop();
}

#[test]
fn a_long_reply_goes_to_the_reply_chunk() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        is_written(&write_by_chunk(&mut client, &file, &pattern(50_001), 1).await, 50_001);
        let given = [client.sink(30_000), client.sink(30_000)];
        let reply = Some(given.to_vec());
        let message = client.call(&read(&file, 50_001), &Chunks { reply, ..Chunks::default() }).await;
        let Body::NoMessage(lists) = message.header().body else { panic!("{message:?}") };
        let len = written(&given, &lists.reply.expect("the chunk comes back")).expect("it is the same");
        let mut rpc = given.iter().flat_map(|one| client.take(*one)).collect::<Vec<_>>();
        rpc.truncate(len);
        assert!(rpc[len - 50_004..len - 3] == pattern(50_001));
        assert!(matches!(of(Procedure::Read, &rpc), Results::Read(Outcome::Ok(_))));
        // Too little room: the client gets an error, and goes on.
        let reply = Some(vec![client.sink(20_000)]);
        let message = client.call(&read(&file, 50_001), &Chunks { reply, ..Chunks::default() }).await;
        assert_eq!(message.header().body, Body::Error(Failure::Chunk(())));
        let writes = vec![vec![client.sink(20_000)]];
        let message = client.call(&read(&file, 50_001), &Chunks { writes, ..Chunks::default() }).await;
        assert_eq!(message.header().body, Body::Error(Failure::Chunk(())));
        let message = client.call(&Arguments::Null(()), &Chunks::default()).await;
        assert!(support::results(message.rpc()).is_empty());
    });
    served.stop();
}

#[test]
fn a_long_call_is_read_from_its_chunk() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        let data = pattern(5001);
        client.xid += 1;
        let call = nfs3(client.xid, &write(&file, data.len()), &data);
        // Cut within its header, and with the data apart.
        for cuts in [[10, 2000], [40, 41]] {
            let parts = [&call[..cuts[0]], &call[cuts[0]..cuts[1]], &call[cuts[1]..]];
            let reads = parts.map(|part| ReadSegment { position: 0, source: client.source(part) });
            client.send(client.xid, &Chunks { reads: reads.to_vec(), ..Chunks::default() }, &[]);
            is_written(&client.receive().await.expect("an answer"), data.len());
        }
        let (head, rest) = call.split_at(position(&file, data.len()) as usize);
        let apart = ReadSegment { position: head.len() as u32, source: client.source(&rest[..5001]) };
        let reads = vec![ReadSegment { position: 0, source: client.source(head) }, apart];
        client.send(client.xid, &Chunks { reads, ..Chunks::default() }, &[]);
        is_written(&client.receive().await.expect("an answer"), data.len());
        assert!(content(&served, &file, 5001) == data);
    });
    served.stop();
}

#[test]
fn the_path_of_a_link_goes_to_its_chunk() {
    let (served, root, _) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        let path = [b'x'; 1001];
        let place = DirOp { directory: handle(&root), name: Name::new(b"link").expect("short") };
        let (attributes, target) = (SetAttributes::default(), Path::new(&path).expect("short"));
        let symlink = Arguments::Symlink(Symlink { place, attributes, path: target });
        let message = client.call(&symlink, &Chunks::default()).await;
        let link = match of(Procedure::Symlink, message.rpc()) {
            Results::Symlink(Outcome::Ok(made)) => made.object.expect("a handle").bytes().to_vec(),
            other => panic!("{other:?}"),
        };
        let sink = client.sink(1024);
        let chunks = Chunks { writes: vec![vec![sink]], ..Chunks::default() };
        let message = client.call(&Arguments::ReadLink(handle(&link)), &chunks).await;
        assert!(message.rpc().len() < 200);
        let found = client.take(sink);
        assert!(found[..1001] == path && found[1001] == 0xee);
        // Without a chunk it is sent.
        let message = client.call(&Arguments::ReadLink(handle(&link)), &Chunks::default()).await;
        assert!(
            matches!(of(Procedure::ReadLink, message.rpc()), Results::ReadLink(Outcome::Ok(ok)) if ok.path.bytes() == path)
        );
    });
    served.stop();
}

#[test]
fn a_call_that_comes_again_over_another_transport_is_not_executed_again() {
    let (served, root, _) = with_file();
    let mut tcp = served.connect();
    let place = DirOp { directory: handle(&root), name: Name::new(b"file").expect("short") };
    let call = nfs3(4711, &Arguments::Remove(place), &[]);
    tcp.send(&fragment(&call, true));
    let first = tcp.reply();
    run(async {
        let client = RdmaClient::connect(served.address()).await;
        client.send(4711, &Chunks::default(), &call);
        assert_eq!(client.receive().await.expect("an answer").rpc(), first);
    });
    let other = nfs3(4712, &Arguments::Remove(place), &[]);
    tcp.send(&fragment(&other, true));
    let reply = tcp.reply();
    assert!(matches!(of(Procedure::Remove, &reply), Results::Remove(Outcome::Err(Status::NoEnt, _))));
    served.stop();
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn bad_headers_are_answered_and_the_connection_goes_on() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        client.send_raw(&words(&[7, 2, 32, 0, 0, 0, 0]));
        let message = client.receive().await.expect("an answer");
        let versions = Failure::Version(Versions { low: 1, high: 1 });
        assert_eq!((message.header().version, message.header().body), (2, Body::Error(versions)));
        let bad: [&[u32]; 6] = [
            &[7, 1, 32, 2, 0, 0, 0],
            &[7, 1, 32, 0, 0, 0],
            &[7, 1, 32, 0, 0, 1, u32::MAX, 1, 1, 1, 1, 0, 0],
            // A read chunk beyond the call, within its header, of 4 GiB; the call nowhere.
            &[7, 1, 32, 0, 1, 400, 5, 100, 0, 0, 0, 0, 0, 7, 0],
            &[7, 1, 32, 0, 1, 0, 5, u32::MAX, 0, 0, 0, 0, 0, 7, 0],
            &[7, 1, 32, 1, 0, 0, 0],
        ];
        for bad in bad {
            client.send_raw(&words(bad));
            let message = client.receive().await.expect("an answer");
            assert_eq!(message.header().body, Body::Error(Failure::Chunk(())), "{bad:?}");
        }
        // Memory for the reply that overlaps.
        let sink = client.sink(100);
        let chunks = Chunks { writes: vec![vec![sink]], reply: Some(vec![sink]), ..Chunks::default() };
        let message = client.call(&read(&file, 10), &chunks).await;
        assert_eq!(message.header().body, Body::Error(Failure::Chunk(())));
        // RDMA_ERRORs for messages that the server never sent keep no receive for good.
        for _ in 0..10 {
            (0..100).for_each(|_| client.send_raw(&words(&[7, 1, 32, 4, 2])));
            let message = client.call(&Arguments::Null(()), &Chunks::default()).await;
            assert!(support::results(message.rpc()).is_empty());
        }
        // A message without a valid header ends the connection.
        client.send_raw(&[1, 2, 3]);
        assert!(client.receive().await.is_none());
    });
    served.stop();
}

#[test]
fn a_false_stag_ends_the_connection_of_its_client_alone() {
    let (served, _, file) = with_file();
    run(async {
        let mut good = RdmaClient::connect(served.address()).await;
        is_written(&write_by_chunk(&mut good, &file, &pattern(5000), 1).await, 5000);
        let mut liar = RdmaClient::connect(served.address()).await;
        let position = position(&file, 5000);
        let source = Segment { handle: 0x1234_5600, length: 5000, offset: 0 };
        let reads = vec![ReadSegment { position, source }];
        liar.xid += 1;
        let call = nfs3(liar.xid, &write(&file, 5000), &[]);
        liar.send(liar.xid, &Chunks { reads, ..Chunks::default() }, &call);
        assert!(liar.receive().await.is_none());
        // To be written to: no byte of the good client's, since STags are a connection's.
        let liar = RdmaClient::connect(served.address()).await;
        let sink = good.sink(5000);
        let call = nfs3(liar.xid, &read(&file, 5000), &[]);
        liar.send(liar.xid, &Chunks { writes: vec![vec![sink]], ..Chunks::default() }, &call);
        assert!(liar.receive().await.is_none());
        assert!(good.take(sink).iter().all(|byte| *byte == 0xee));
        let message = good.call(&Arguments::Null(()), &Chunks::default()).await;
        assert!(support::results(message.rpc()).is_empty());
    });
    assert!(content(&served, &file, 5000) == pattern(5000));
    served.stop();
}

#[test]
fn more_calls_than_credits_end_the_connection() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        let credits = client.call(&Arguments::Null(()), &Chunks::default()).await.header().credits;
        assert!((1..=128).contains(&credits));
        // None of them is done before its data is read, and that is not answered.
        let data = pattern(100);
        let position = position(&file, 100);
        for xid in 0..credits + 32 {
            let reads = vec![ReadSegment { position, source: client.source(&data) }];
            let call = nfs3(xid, &write(&file, 100), &[]);
            client.send(xid, &Chunks { reads, ..Chunks::default() }, &call);
        }
        client.pair.drained_below(1).await;
        while client.receive().await.is_some() {}
    });
    served.stop();
}

#[test]
fn clients_that_vanish_while_their_data_is_read_hold_nothing() {
    let (served, _, file) = with_file();
    run(async {
        // More than a core's long calls may hold.
        for _ in 0..60 {
            let client = RdmaClient::connect(served.address()).await;
            let position = position(&file, 1 << 20);
            let reads = vec![ReadSegment { position, source: client.source(&pattern(1 << 20)) }];
            let call = nfs3(1, &write(&file, 1 << 20), &[]);
            client.send(1, &Chunks { reads, ..Chunks::default() }, &call);
            client.pair.drained_below(1).await;
        }
        let mut client = RdmaClient::connect(served.address()).await;
        is_written(&write_by_chunk(&mut client, &file, &pattern(1 << 20), 1).await, 1 << 20);
    });
    assert!(content(&served, &file, 1 << 20) == pattern(1 << 20));
    served.stop();
}

/// Their calls wait when `send_high_water` bytes of replies do.
#[test]
fn clients_that_read_nothing_over_rdma_hold_no_more_than_their_share() {
    const LEN: usize = 1 << 20;
    let (served, _, file) = with_file();
    run(async {
        let mut good = RdmaClient::connect(served.address()).await;
        is_written(&write_by_chunk(&mut good, &file, &pattern(LEN), 1).await, LEN);
        let mut silent = Vec::new();
        for _ in 0..8 {
            // Without invalidation all its calls can name one chunk.
            let says = PrivateData { remote_invalidation: false, ..LINUX };
            let client = RdmaClient::connect_as(served.address(), &says.encode(), 4096).await;
            let chunks = Chunks { writes: vec![vec![client.sink(LEN)]], ..Chunks::default() };
            // As many as it has credits. More would end its connection.
            for xid in 0..128 {
                client.send(xid, &chunks, &nfs3(xid, &read(&file, LEN), &[]));
            }
            client.pair.drained_below(1).await;
            silent.push(client);
        }
        // The others are served meanwhile.
        for _ in 0..20 {
            let sink = good.sink(LEN);
            let chunks = Chunks { writes: vec![vec![sink]], ..Chunks::default() };
            good.call(&read(&file, LEN), &chunks).await;
            assert!(good.take(sink) == pattern(LEN));
        }
        let connections = served.nfs.clients(PATIENCE);
        assert_eq!(connections.len(), 1 + silent.len());
        assert!(connections.iter().all(|it| it.calls <= 64), "{connections:?}");
        drop(silent);
    });
    served.stop();
}

#[test]
fn a_server_that_ends_sends_what_is_left() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        is_written(&write_by_chunk(&mut client, &file, &pattern(100), 1).await, 100);
        let stopping = std::thread::spawn(move || served.stop());
        assert!(client.receive().await.is_none());
        stopping.join().expect("it stops");
    });
}

#[test]
fn a_chunk_that_is_not_used_comes_back_empty() {
    let (served, _, file) = with_file();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        let (sink, reply) = ([client.sink(100)], [client.sink(100)]);
        let chunks = Chunks { writes: vec![sink.to_vec()], reply: Some(reply.to_vec()), ..Chunks::default() };
        let message = client.call(&Arguments::GetAttr(handle(&file)), &chunks).await;
        let Body::Message(lists) = message.header().body else { panic!("{message:?}") };
        let first = lists.writes.iter().next();
        let unused =
            |gave: &[Segment], chunk: Option<WriteChunk<'_>>| written(gave, &chunk.expect("a chunk"));
        assert_eq!((unused(&sink, first), unused(&reply, lists.reply)), (Some(0), Some(0)));
        assert!(matches!(of(Procedure::GetAttr, message.rpc()), Results::GetAttr(Outcome::Ok(_))));
    });
    served.stop();
}

/// RFC 8267 §5.3: the chunks of the write list belong to the results that may go apart, in their
/// order.
#[test]
fn the_data_of_each_read_goes_to_its_own_chunk() {
    let served = served();
    let data = pattern(20_000);
    let mut c = served.v4("client");
    let root = c.find("/data").unwrap();
    let (file, opened) = c.make(&root, "file", b"owner");
    let stable = nfs::v4::Stable::Unstable;
    let write = nfs::v4::Write { stateid: opened, offset: 0, stable, length: data.len() as u32 };
    let write = nfs::v4::Arguments::Write(write);
    assert_eq!(v4::status(&c.run(&[v4::handle(&file), write], &data)), None);
    let kind = nfs::v4::CreateType::Symlink(rpc::xdr::Opaque::new(b"the/path").unwrap());
    let link = nfs::v4::Create { kind, name: v4::name("link"), attributes: nfs::v4::Fattr::EMPTY };
    let link = nfs::v4::Arguments::Create(link);
    assert_eq!(v4::status(&c.run(&[v4::handle(&root), link], &[])), None);
    let link = c.find("/data/link").unwrap();
    let read = |offset, count| nfs::v4::Arguments::Read(nfs::v4::Read { stateid: opened, offset, count });
    let all = [
        c.slot(c.sequence + 1),
        v4::handle(&file),
        read(0, 5000),
        read(5000, 10),
        v4::handle(&link),
        nfs::v4::Arguments::ReadLink(()),
        v4::handle(&file),
        read(6000, 3000),
        read(9000, 100),
    ];
    let body = v4::body(2, &all, &[]);
    let call = support::call(77, nfs::v4::PROGRAM, nfs::v4::VERSION, nfs::v4::COMPOUND, &body);
    run(async {
        let client = RdmaClient::connect(served.address()).await;
        let sinks = [8192, 64, 64, 4096].map(|len| client.sink(len));
        let writes = sinks.iter().map(|sink| vec![*sink]).collect();
        client.send(77, &Chunks { writes, ..Chunks::default() }, &call);
        let message = client.receive().await.expect("a reply");
        let header = message.header();
        let lists = header.lists().expect("no error");
        let expected: [&[u8]; 4] = [&data[..5000], &data[5000..5010], b"the/path", &data[6000..9000]];
        let lengths: Vec<_> =
            lists.writes.iter().map(|chunk| chunk.segments.iter().next().unwrap().length as usize).collect();
        assert_eq!(lengths, expected.map(<[u8]>::len));
        // The one without a chunk is where it would be over TCP.
        assert!(message.rpc().ends_with(&data[9000..9100]));
        for (sink, expected) in sinks.iter().zip(expected) {
            assert!(client.take(*sink).starts_with(expected));
        }
    });
    served.stop();
}

/// RFC 8166 §4.5: an RDMA_ERROR is the answer to a call, too, and grants credits.
#[test]
fn a_client_that_answers_calls_with_errors_is_called_again() {
    use nfs::v4::{Arguments, CreateSession, Outcome, Results, Sequence, flags};

    /// Sends a COMPOUND. Returns its reply, and if it causes a call of the server's, its XID.
    async fn compound(client: &mut RdmaClient, one: Arguments<'_>, calls: bool) -> (Message, Option<u32>) {
        client.xid += 1;
        let body = v4::body(1, &[one], &[]);
        let call = support::call(client.xid, nfs::v4::PROGRAM, nfs::v4::VERSION, nfs::v4::COMPOUND, &body);
        client.send(client.xid, &Chunks::default(), &call);
        let (mut reply, mut called) = (None, None);
        while reply.is_none() || calls && called.is_none() {
            let message = client.receive().await.expect("a message");
            match Direction::of(message.rpc()) {
                Some(Direction::Call) => called = Some(message.header().xid),
                _ => reply = Some(message),
            }
        }
        (reply.expect("it came"), called)
    }

    let served = served();
    run(async {
        let mut client = RdmaClient::connect(served.address()).await;
        let (reply, _) = compound(&mut client, v4::exchange("client", 1), false).await;
        let Results::ExchangeId(Outcome::Ok(exchanged)) = &v4::answers(reply.rpc())[0] else { panic!() };
        let (id, sequence) = (exchanged.client, exchanged.sequence);
        for number in 0..3 {
            let create = Arguments::CreateSession(CreateSession {
                client: id,
                sequence: sequence + number,
                flags: flags::create_session::CONN_BACK_CHAN,
                fore: v4::FORE,
                back: v4::FORE,
                program: 0x4000_0000,
                security: List::EMPTY,
            });
            let (reply, _) = compound(&mut client, create, false).await;
            let Results::CreateSession(Outcome::Ok(created)) = &v4::answers(reply.rpc())[0] else { panic!() };
            // The server finds out whether the client can be called in this session.
            let (session, cache) = (created.session, false);
            let first = Sequence { session, sequence: 1, slot: 0, highest_slot: 0, cache };
            let (_, called) = compound(&mut client, Arguments::Sequence(first), true).await;
            // ERR_CHUNK, with one credit.
            client.send_raw(&words(&[called.expect("it came"), 1, 1, 4, 2]));
        }
    });
    served.stop();
}
