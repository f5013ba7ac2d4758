//! Hostile peers on raw TCP: whatever they send, the connection ends with an error and nothing else
//! happens.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support;
use crate::support::{buffers, chain, loopback, rest, run};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rdma::{
    Completion, Crc, Error, Flags, Listener, Options, Protocol, QueuePair, Rights, Side, accept, sniff,
};
use runtime::{Chain, ListenOptions, TcpListener, pool};

/// A request of revision 2 without CRC or markers, IRD and ORD 16.
const REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x10\x00\x10";

/// An FPDU without a CRC.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

fn untagged(opcode: u8, last: bool, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0x41 } else { 0x01 }, 0x40 | opcode, 0, 0, 0, 0];
    [qn, msn, mo].iter().for_each(|word| ulpdu.extend_from_slice(&word.to_be_bytes()));
    ulpdu.extend_from_slice(payload);
    fpdu(&ulpdu)
}

fn tagged(opcode: u8, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x40 | opcode];
    ulpdu.extend_from_slice(&stag.to_be_bytes());
    ulpdu.extend_from_slice(&offset.to_be_bytes());
    ulpdu.extend_from_slice(payload);
    fpdu(&ulpdu)
}

fn read_request(msn: u32, stag: u32, offset: u64, len: u32) -> Vec<u8> {
    let mut body = 0x77u32.to_be_bytes().to_vec();
    body.extend_from_slice(&0u64.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(&stag.to_be_bytes());
    body.extend_from_slice(&offset.to_be_bytes());
    untagged(1, true, 1, msn, 0, &body)
}

/// A queue pair and its raw peer, through setup.
async fn raw(options: &Options) -> (QueuePair, TcpStream) {
    raw_asking(REQUEST, options).await
}

/// Like [`raw`], with another request.
async fn raw_asking(request: &[u8], options: &Options) -> (QueuePair, TcpStream) {
    let mut listener = Listener::bind(loopback()).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut peer = TcpStream::connect(address).expect("connected");
    peer.set_nodelay(true).expect("an option");
    peer.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    peer.write_all(request).expect("sent");
    let incoming = listener.accept().await.expect("a connection");
    let pair = incoming.accept(b"", options).await.expect("accepted");
    let mut reply = [0; 24];
    peer.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    (pair, peer)
}

fn options() -> Options {
    Options { crc: Crc::Never, ..Options::default() }
}

/// Sends bytes to a new queue pair and closes. Returns the completions, the error, and the peer's
/// received bytes.
fn end_of(bytes: Vec<u8>) -> (Vec<Completion>, Error, Vec<u8>) {
    run(async move {
        let (pair, mut peer) = raw(&options()).await;
        let talking = std::thread::spawn(move || {
            // The connection may already be closed because of earlier bytes.
            let _ = peer.write_all(&bytes);
            let _ = peer.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = peer.read_to_end(&mut answer);
            answer
        });
        let (completions, end) = rest(&pair).await;
        drop(pair);
        (completions, end, runtime::blocking(move || talking.join().expect("no panic")).await)
    })
}

#[track_caller]
fn assert_terminated(bytes: Vec<u8>, layer: u8, error_type: u8, code: u8) {
    let (_, end, answer) = end_of(bytes);
    match end {
        Error::Terminated { side: Side::Local, reason, .. } => {
            assert_eq!((reason.layer, reason.error_type, reason.code), (layer, error_type, code));
        }
        other => panic!("{other}"),
    }
    // A Terminate is the last message to the peer.
    assert_eq!(answer[2..4], [0x41, 0x47], "{answer:?}");
    assert_eq!(answer[20..22], [layer << 4 | error_type, code], "{answer:?}");
}

#[test]
fn garbage_instead_of_a_request_is_no_connection() {
    run(async {
        let mut random = SmallRng::seed_from_u64(1);
        let mut listener = TcpListener::bind(loopback(), ListenOptions::default()).expect("a listener");
        let address = listener.local_addr().expect("an address");
        for _ in 0..50 {
            let mut peer = TcpStream::connect(address).expect("connected");
            let stream = listener.accept().await.expect("a connection");
            let mut bytes = vec![0; random.random_range(1..600)];
            random.fill(&mut bytes[..]);
            peer.write_all(&bytes).expect("sent");
            let (protocol, early) = sniff(&stream, Duration::from_secs(60)).await.expect("bytes");
            assert_eq!((protocol, early.is_empty()), (Protocol::Other, false));
            let refused = accept(stream, early, Duration::from_secs(60)).await;
            assert!(matches!(refused, Err(Error::Setup(_))), "{refused:?}");
        }
    });
}

#[test]
fn a_request_may_arrive_byte_by_byte_and_half_of_one_times_out() {
    run(async {
        let mut listener = TcpListener::bind(loopback(), ListenOptions::default()).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut peer = TcpStream::connect(address).expect("connected");
        peer.set_nodelay(true).expect("an option");
        let stream = listener.accept().await.expect("a connection");
        let talking = std::thread::spawn(move || {
            for byte in REQUEST {
                peer.write_all(&[*byte]).expect("sent");
                std::thread::sleep(Duration::from_millis(1));
            }
            peer
        });
        let (protocol, early) = sniff(&stream, Duration::from_secs(60)).await.expect("bytes");
        assert_eq!(protocol, Protocol::Mpa);
        let incoming = accept(stream, early, Duration::from_secs(60)).await.expect("a request");
        assert_eq!((incoming.ird(), incoming.ord()), (Some(16), Some(16)));
        drop(runtime::blocking(move || talking.join().expect("no panic")).await);
        for (n, patience) in [(5, true), (20, true), (20, false)] {
            let mut peer = TcpStream::connect(address).expect("connected");
            let stream = listener.accept().await.expect("a connection");
            peer.write_all(&REQUEST[..n]).expect("sent");
            if !patience {
                drop(peer);
                let refused = accept(stream, Vec::new(), Duration::from_secs(60)).await;
                assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
                continue;
            }
            let refused = accept(stream, Vec::new(), Duration::from_millis(50)).await;
            assert!(matches!(refused, Err(Error::TimedOut(_))), "{refused:?}");
        }
    });
}

#[test]
fn who_connects_waits_for_a_reply_no_longer_than_it_was_told_to() {
    run(async {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address: SocketAddr = silent.local_addr().expect("an address");
        let options = Options { setup_timeout: Duration::from_millis(100), ..options() };
        let refused = rdma::connect(address, b"", &options).await;
        assert!(matches!(refused, Err(Error::TimedOut(_))));
        drop(silent);
        let refused = rdma::connect(address, b"", &options).await;
        assert!(matches!(refused, Err(Error::Connect { .. })));
    });
}

#[test]
fn a_refusal_comes_with_its_private_data() {
    run(async {
        let mut listener = Listener::bind(loopback()).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let asking = runtime::spawn(async move { rdma::connect(address, b"please", &options()).await });
        let incoming = listener.accept().await.expect("a connection");
        incoming.reject(b"no").await.expect("sent");
        match asking.await.expect("no panic") {
            Err(Error::Rejected(private_data)) => assert_eq!(private_data, b"no"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn each_lie_gets_the_terminate_that_the_rfcs_name() {
    assert_terminated(untagged(3, true, 0, 2, 0, b"message two first"), 1, 2, 3);
    assert_terminated(untagged(3, true, 0, 1, 5, b"from byte five on"), 1, 2, 4);
    assert_terminated(untagged(3, true, 7, 1, 0, b"to queue seven"), 1, 2, 1);
    assert_terminated(untagged(3, true, 0, 1, 0, &[1; 9000]), 1, 2, 5);
    assert_terminated(untagged(15, true, 0, 1, 0, b"no operation"), 0, 2, 6);
    assert_terminated(tagged(0, true, 99, 0, b"into nothing"), 1, 1, 0);
    assert_terminated(read_request(1, 99, 0, 100), 0, 1, 0);
    assert_terminated(tagged(2, true, 99, 0, b"an answer to nothing"), 0, 2, 6);
    let mut version = untagged(3, true, 0, 1, 0, b"another version");
    version[3] = 0x83;
    assert_terminated(version, 0, 2, 5);
}

/// A Terminate at that point is the peer's.
#[test]
fn a_violation_right_after_a_read_gets_its_own_terminate() {
    // Both arrive with one receive, so the read has not been answered yet.
    let behind_a_read = |lie: Vec<u8>| {
        run(async move {
            let (pair, mut peer) = raw(&options()).await;
            let stag = pair.expose_source(chain(&[5; 5000])).expect("an STag");
            peer.write_all(&[read_request(1, stag.0, 0, 5000), lie].concat()).expect("sent");
            let (_, end) = rest(&pair).await;
            drop(pair);
            let hearing = move || {
                let mut answer = Vec::new();
                let _ = peer.read_to_end(&mut answer);
                answer
            };
            (end, runtime::blocking(hearing).await)
        })
    };
    let (end, answer) = behind_a_read(tagged(0, true, 99, 0, b"into nothing"));
    assert!(matches!(end, Error::Terminated { side: Side::Local, reason, .. } if reason.layer == 1), "{end}");
    assert_eq!((&answer[2..4], &answer[20..22]), (&[0x41, 0x47][..], &[0x11, 0x00][..]), "{answer:?}");
    let (end, answer) = behind_a_read(untagged(7, true, 2, 1, 0, &[0x11, 0x01, 0, 0]));
    assert!(matches!(end, Error::Terminated { side: Side::Remote, reason, .. } if reason.code == 1), "{end}");
    assert!(answer.is_empty(), "{answer:?}");
}

/// A waiting read is found to be without memory when the network has taken the answers before it.
#[test]
fn memory_withdrawn_under_a_waiting_read_gets_its_terminate() {
    run(async {
        let (pair, mut peer) = raw(&options()).await;
        let stag = pair.expose(buffers(4 << 20), Rights::ReadWrite).expect("an STag");
        // More than the sockets take.
        let reads: Vec<_> = (1..=16).flat_map(|msn| read_request(msn, stag.0, 0, 4 << 20)).collect();
        peer.write_all(&reads).expect("sent");
        let served = pair.clone();
        let serving = runtime::spawn(async move { rest(&served).await });
        while pair.queued() == 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        pair.withdraw(stag).expect("it is exposed");
        let hearing = move || {
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).expect("the connection is closed, not reset");
            answer
        };
        let answer = runtime::blocking(hearing).await;
        let (_, end) = serving.await.expect("no panic");
        let Error::Terminated { side: Side::Local, reason, .. } = end else { panic!("{end}") };
        assert_eq!((reason.layer, reason.error_type, reason.code), (0, 1, 0));
        // The last message is the Terminate.
        let last = &answer[answer.len() - fpdu(&[0; 22]).len()..];
        assert_eq!((&last[2..4], &last[20..22]), (&[0x41, 0x47][..], &[0x01, 0x00][..]), "{last:?}");
    });
}

/// The answers may hold the memory that is missing.
#[test]
fn reads_are_answered_while_received_data_waits_for_memory() {
    run(async {
        let options = Options { receive_size: 64 << 10, ..options() };
        let (pair, mut peer) = raw(&options).await;
        let stag = pair.expose_source(chain(&[5; 5000])).expect("an STag");
        // Another user takes the rest of the pool, and at least one block that the message fits in.
        let mut held = vec![pool::alloc(64 << 10).expect("a buffer")];
        pool::set_limit(pool::stats().mapped);
        held.extend(std::iter::from_fn(|| pool::alloc(1 << 20)));
        held.extend(std::iter::from_fn(|| pool::alloc(64 << 10)));
        // A read, and the beginning of a message, arrive with one receive.
        let message = untagged(3, true, 0, 1, 0, &[7; 60_000]);
        let (beginning, end) = message.split_at(100);
        peer.write_all(&[&read_request(1, stag.0, 0, 5000)[..], beginning].concat()).expect("sent");
        let served = pair.clone();
        let serving = runtime::spawn(async move { support::received(&served).await });
        let expected = tagged(2, true, 0x77, 0, &[5; 5000]);
        let mut answer = vec![0; expected.len()];
        let hearing = move || {
            peer.read_exact(&mut answer).expect("an answer");
            (peer, answer)
        };
        let (mut peer, answer) = runtime::blocking(hearing).await;
        assert!(answer == expected);
        drop(held);
        peer.write_all(end).expect("sent");
        assert!(serving.await.expect("no panic") == [7u8; 60_000]);
    });
}

#[test]
fn a_connection_that_ends_within_a_message_is_cut() {
    let whole = untagged(3, true, 0, 1, 0, &[7; 5000]);
    for len in [30, 1000, 5000] {
        let (completions, end, _) = end_of(whole[..len].to_vec());
        assert!(completions.is_empty() && matches!(end, Error::Cut), "{len}: {end}");
    }
    let (completions, end, _) = end_of(untagged(3, false, 0, 1, 0, &[7; 500]));
    assert!(completions.is_empty() && matches!(end, Error::Cut), "{end}");
    let (completions, end, _) = end_of(whole);
    assert!(completions.len() == 1 && matches!(end, Error::Closed), "{end}");
}

#[test]
fn memory_is_written_within_its_bounds_only() {
    for (offset, len) in [(0, 5001), (5000, 1), (4999, 2), (u64::MAX, 2), (1 << 40, 1)] {
        run(async move {
            let (pair, mut peer) = raw(&options()).await;
            let stag = pair.expose(buffers(5000), Rights::Write).expect("an STag");
            let bytes = tagged(0, true, stag.0, offset, &vec![1; len]);
            peer.write_all(&bytes).expect("sent");
            let (_, end) = rest(&pair).await;
            assert!(matches!(end, Error::Terminated { side: Side::Local, .. }), "{end}");
            let withdrawn = pair.withdraw(stag).expect("still lent");
            assert!(withdrawn.buffers[0].iter().all(|&b| b == 0xee));
            assert_eq!(withdrawn.placed, Some(0));
        });
    }
}

#[test]
fn memory_to_write_cannot_be_read_nor_memory_to_read_written() {
    run(async {
        let (pair, mut peer) = raw(&options()).await;
        let stag = pair.expose(buffers(5000), Rights::Write).expect("an STag");
        peer.write_all(&read_request(1, stag.0, 0, 10)).expect("sent");
        assert!(matches!(rest(&pair).await.1, Error::Terminated { side: Side::Local, .. }));
        let (pair, mut peer) = raw(&options()).await;
        let stag = pair.expose_source(chain(&[5; 5000])).expect("an STag");
        peer.write_all(&tagged(0, true, stag.0, 0, b"forged")).expect("sent");
        assert!(matches!(rest(&pair).await.1, Error::Terminated { side: Side::Local, .. }));
    });
}

#[test]
fn more_reads_than_were_agreed_on_end_the_connection() {
    run(async {
        // The peer does not receive the answers to its reads, so they stay queued.
        let options = Options { ird: 4, send_high_water: 16 << 10, ..options() };
        let (pair, mut peer) = raw(&options).await;
        let stag = pair.expose_source(chain(&[5; 1 << 20])).expect("an STag");
        let served = pair.clone();
        let serving = runtime::spawn(async move { rest(&served).await });
        let mut bytes = Vec::new();
        for msn in 1..=1000 {
            bytes.extend(read_request(msn, stag.0, 0, 1 << 20));
        }
        let talking = std::thread::spawn(move || {
            let _ = peer.write_all(&bytes);
            peer
        });
        runtime::sleep(Duration::from_millis(200)).await;
        // Only one answer is queued at a time; a thousand would be a GiB.
        assert!(pair.queued() < 3 << 20, "{}", pair.queued());
        let (_, end) = serving.await.expect("no panic");
        assert!(matches!(end, Error::Terminated { side: Side::Local, .. }), "{end}");
        drop(runtime::blocking(move || talking.join().expect("no panic")).await);
    });
}

/// Number of RDMA Read requests: many more than the socket has room for answers.
const READS: u32 = 1_500_000;

#[test]
fn endless_tiny_reads_without_taking_answers_pile_nothing_up() {
    for len in [0, 1] {
        run(async move {
            // The IRD allows all requests of one receive, so that the room for answers is the
            // limit.
            let request = b"MPA ID Req Frame\x10\x02\x00\x04\x3f\xfe\x3f\xfe";
            let options = Options { ird: 0x3ffe, send_high_water: 16 << 10, ..options() };
            let (pair, mut peer) = raw_asking(request, &options).await;
            let stag = pair.expose_source(chain(&[5; 100])).expect("an STag");
            let talking = std::thread::spawn(move || {
                let mut bytes = Vec::new();
                for msn in 1..=READS {
                    bytes.extend(read_request(msn, stag.0, 0, len));
                    if bytes.len() >= 1 << 20 || msn == READS {
                        // The connection may already be closed because of earlier bytes.
                        if peer.write_all(&bytes).is_err() {
                            break;
                        }
                        bytes.clear();
                    }
                }
                let _ = peer.shutdown(Shutdown::Write);
                peer
            });
            let (_, end) = rest(&pair).await;
            // Queued are at most the room for answers, the results of one receive, and the
            // Terminate.
            assert!(pair.queued() < 64 << 10, "{} of reads of {len} bytes: {end}", pair.queued());
            assert!(matches!(end, Error::Terminated { side: Side::Local, .. }), "{end}");
            drop(pair);
            drop(runtime::blocking(move || talking.join().expect("no panic")).await);
        });
    }
}

#[test]
fn random_bytes_and_damaged_messages_only_end_the_connection() {
    let used = std::cell::Cell::new((0, 0));
    run(async {
        for seed in 0..300u64 {
            let mut random = SmallRng::seed_from_u64(seed);
            let markers = seed % 7 == 0;
            let (pair, mut peer) = raw(&Options { markers, ..options() }).await;
            let guarded = pair.expose(buffers(100_000), Rights::Write).expect("an STag");
            let open = pair.expose(buffers(100_000), Rights::ReadWrite).expect("an STag");
            pair.post_read(rdma::Remote { stag: rdma::Stag(5), offset: 0 }, 50_000, 1);
            pair.post_send(b"hello", Chain::new(), Flags::default(), Some(2));
            let mut bytes = Vec::new();
            let mut msn = [1, 1];
            for _ in 0..random.random_range(1..40) {
                let payload = vec![3; [0, 1, 76, 4096, 40_000][random.random_range(0..5)]];
                bytes.extend(match random.random_range(0..5) {
                    0 => {
                        msn[0] += 1;
                        untagged(3, true, 0, msn[0] - 1, 0, &payload[..payload.len().min(8192)])
                    }
                    1 => {
                        msn[1] += 1;
                        read_request(msn[1] - 1, open.0, random.random_range(0..50_000), 50_000)
                    }
                    2 => tagged(0, random.random_bool(0.5), open.0, random.random_range(0..60_000), &payload),
                    3 => tagged(0, true, guarded.0, random.random_range(0..60_000), &payload),
                    _ => tagged(2, true, random.random(), 0, &payload),
                });
            }
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            if random.random_bool(0.2) {
                random.fill(&mut bytes[..]);
            }
            let talking = std::thread::spawn(move || {
                let _ = peer.set_read_timeout(Some(Duration::from_millis(300)));
                for piece in bytes.chunks(30_000) {
                    let _ = peer.write_all(piece);
                }
                let _ = peer.shutdown(Shutdown::Write);
                let _ = peer.read_to_end(&mut Vec::new());
            });
            let (completions, _) = rest(&pair).await;
            let own = |id| {
                completions.iter().filter(move |c| match c {
                    Completion::Flushed { id: i }
                    | Completion::Sent { id: i }
                    | Completion::Read { id: i, .. } => *i == id,
                    _ => false,
                })
            };
            assert_eq!((own(1).count(), own(2).count()), (1, 1), "seed {seed}");
            for stag in [guarded, open] {
                let withdrawn = pair.withdraw(stag).expect("still lent");
                assert_eq!(withdrawn.buffers[0].len(), 100_000);
            }
            drop((completions, pair));
            runtime::blocking(move || talking.join().expect("no panic")).await;
            let now = runtime::pool::stats().in_use;
            used.set(if seed < 20 { (now.max(used.get().0), now) } else { (used.get().0, now) });
        }
        runtime::sleep(Duration::from_millis(50)).await;
    });
    let (early, late) = used.get();
    assert!(late <= early, "{early} {late}");
}

#[test]
fn a_valid_stream_that_comes_in_any_pieces_is_understood() {
    run(async {
        for piece in [1, 3, 17, 100, 1459, 10_000] {
            let (pair, mut peer) = raw(&options()).await;
            let stag = pair.expose(buffers(200_000), Rights::Write).expect("an STag");
            let mut bytes = Vec::new();
            let data = support::pattern(if piece < 10 { 3000 } else { 150_000 }, 9);
            for (i, part) in data.chunks(40_000).enumerate() {
                let last = (i + 1) * 40_000 >= data.len();
                bytes.extend(tagged(0, last, stag.0, i as u64 * 40_000, part));
            }
            bytes.extend(untagged(3, false, 0, 1, 0, b"two "));
            bytes.extend(untagged(3, true, 0, 1, 4, b"parts"));
            let talking = std::thread::spawn(move || {
                for piece in bytes.chunks(piece) {
                    peer.write_all(piece).expect("sent");
                }
                peer
            });
            assert_eq!(support::received(&pair).await, b"two parts");
            let withdrawn = pair.withdraw(stag).expect("lent");
            assert!(withdrawn.buffers[0][..data.len()] == data);
            drop(runtime::blocking(move || talking.join().expect("no panic")).await);
        }
    });
}

#[test]
fn memory_withdrawn_during_a_write_is_not_written_and_not_lost() {
    run(async {
        let used = runtime::pool::stats().in_use;
        let (pair, mut peer) = raw(&options()).await;
        let stag = pair.expose(buffers(60_000), Rights::Write).expect("an STag");
        let other = pair.expose(buffers(60_000), Rights::Write).expect("an STag");
        let bytes = tagged(0, true, stag.0, 0, &[1; 60_000]);
        peer.write_all(&bytes[..20_000]).expect("sent");
        // Until the write has begun; only part of it has arrived.
        for _ in 0..10 {
            let nothing = runtime::timeout(Duration::from_millis(20), pair.next()).await;
            assert!(nothing.is_err(), "{nothing:?}");
        }
        let withdrawn = pair.withdraw(stag).expect("lent");
        assert!(withdrawn.busy && withdrawn.buffers.is_empty());
        // Its slot is not reused meanwhile.
        let third = pair.expose(buffers(60_000), Rights::Write).expect("an STag");
        peer.write_all(&bytes[20_000..]).expect("sent");
        // The write in flight is dropped; a new one has no destination.
        peer.write_all(&untagged(3, true, 0, 1, 0, b"written")).expect("sent");
        assert_eq!(support::received(&pair).await, b"written");
        peer.write_all(&bytes).expect("sent");
        let (_, end) = rest(&pair).await;
        assert!(matches!(end, Error::Terminated { side: Side::Local, .. }), "{end}");
        for stag in [other, third] {
            let withdrawn = pair.withdraw(stag).expect("lent");
            assert!(withdrawn.buffers[0].iter().all(|&b| b == 0xee));
        }
        drop(pair);
        for _ in 0..1000 {
            if runtime::pool::stats().in_use <= used {
                break;
            }
            runtime::sleep(Duration::from_millis(10)).await;
        }
        assert!(runtime::pool::stats().in_use <= used, "{} {used}", runtime::pool::stats().in_use);
    });
}
