//! Placement of RDMA Reads' data with hand-made peers, which split their data at odd places, pause,
//! lie, and disappear.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::peer::{Peer, raw};
use crate::support::store::{Mood, Store};
use crate::support::{pattern, received, rest, run, two};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rdma::{Completion, Error, Flags, Options, QueuePair, Remote, Side, Stag, Terminated};
use runtime::{Chain, pool};

/// Length of a read after which the queue pair expects long pieces.
const WARM: usize = 40_000;
/// Minimum bytes of a piece for a receive of its own.
const DIRECT: usize = 16 << 10;

fn options() -> Options {
    Options { crc: rdma::Crc::Never, receives: 1 << 16, receive_size: 1 << 20, ..Options::default() }
}

fn read(pair: &QueuePair, len: usize, id: u64) {
    pair.post_read(Remote { stag: Stag(1), offset: 0 }, len, id);
}

/// Reads into `store`, after read 0 has arrived: from now on the queue pair receives long pieces
/// separately.
async fn warm(crc: bool, store: &Rc<Store>, bytes: &[u8]) -> (QueuePair, Peer) {
    let (pair, mut peer) = raw(crc, &options()).await;
    store.serve(&pair);
    read(&pair, WARM, 0);
    let sent = bytes[..WARM].to_vec();
    let talking = thread::spawn(move || {
        let asked = peer.begin(1);
        let answer = peer.answer(asked[0], &sent, WARM);
        peer.socket.write_all(&answer).expect("sent");
        peer
    });
    assert_eq!(received(&pair).await, b"hello");
    match pair.next().await {
        Ok(Completion::Read { id: 0, data }) => assert!(data.to_vec() == bytes[..WARM]),
        other => panic!("{other:?}"),
    }
    (pair, runtime::blocking(move || talking.join().expect("no panic")).await)
}

/// Lets the queue pair receive all sent data, which completes nothing.
async fn take_in(pair: &QueuePair) {
    for _ in 0..5 {
        let nothing = runtime::timeout(Duration::from_millis(20), pair.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
}

#[test]
fn what_comes_in_any_pieces_and_at_any_pace_is_what_was_sent() {
    let bytes = Arc::new(pattern(300_000, 3));
    for seed in 0..54u64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let crc = seed % 2 == 1;
        let mood = Mood::MOST[seed as usize / 2 % Mood::MOST.len()];
        let lens: Vec<usize> = (0..random.random_range(2..6))
            .map(|_| match random.random_range(0..4) {
                0 => random.random_range(0..20_000),
                1 => random.random_range(1..16) * 16_384,
                _ => random.random_range(30_000..250_000),
            })
            .collect();
        run(async {
            let (pair, mut peer) = raw(crc, &options()).await;
            let store = Store::new(&lens, mood, seed);
            store.serve(&pair);
            for (id, &len) in lens.iter().enumerate() {
                read(&pair, len, id as u64);
            }
            let (reads, sent) = (lens.len(), bytes.clone());
            let talking = thread::spawn(move || {
                let asked = peer.begin(reads);
                let (mut wire, mut messages) = (Vec::new(), Vec::new());
                for (id, asked) in asked.into_iter().enumerate() {
                    let data = &sent[id..id + asked.len];
                    let mut at = 0;
                    loop {
                        let most = [100, 15_000, 16_500, 33_000, 65_000][random.random_range(0..5)];
                        let len = random.random_range(1..=most).min(asked.len - at);
                        wire.extend(peer.response(asked, data, at, len));
                        at += len;
                        if at == asked.len {
                            break;
                        }
                        // Other segments may arrive between two segments of a read.
                        if random.random_range(0..4) == 0 {
                            let len = [0, 10, 5000, 40_000][random.random_range(0..4)];
                            wire.extend(peer.message(&sent[..len]));
                            messages.push(len);
                        }
                    }
                }
                let end = peer.message(b"end");
                wire.extend(end);
                let mut rest = &wire[..];
                let (mut pauses, bytewise) = (60, random.random_range(0..1500));
                while !rest.is_empty() {
                    let most = [3, 600, 1448, 9000, 30_000, 100_000][random.random_range(0..6)];
                    let len =
                        if wire.len() - rest.len() < bytewise { 1 } else { random.random_range(1..=most) };
                    let (now, later) = rest.split_at(len.min(rest.len()));
                    peer.socket.write_all(now).expect("sent");
                    rest = later;
                    if pauses > 0 && random.random_range(0..5) == 0 {
                        pauses -= 1;
                        thread::sleep(Duration::from_micros(random.random_range(0..1500)));
                    }
                }
                (peer, messages)
            });
            assert_eq!(received(&pair).await, b"hello");
            let (mut came, mut told) = (0, Vec::new());
            loop {
                match pair.next().await.expect("a completion") {
                    Completion::Read { id, data } => {
                        assert_eq!(id, came, "seed {seed}");
                        let at = id as usize;
                        store.check(id, &bytes[at..at + lens[at]], &data);
                        came += 1;
                    }
                    Completion::Received { message, .. } if message.to_vec() == b"end" => break,
                    Completion::Received { message, .. } => {
                        assert!(message.to_vec() == bytes[..message.len()], "seed {seed}");
                        told.push(message.len());
                    }
                    other => panic!("{other:?}"),
                }
            }
            let (_peer, messages) = runtime::blocking(move || talking.join().expect("no panic")).await;
            assert_eq!((came as usize, &told), (lens.len(), &messages));
            store.check_memory(|id| &bytes[id as usize..]);
            let counters = pair.counters();
            let all = lens.iter().chain(&told).sum::<usize>() + b"hello".len() + b"end".len();
            let payload = counters.copied_in + counters.by_reference + counters.in_place;
            assert_eq!(payload, all as u64, "seed {seed}: {counters:?}");
            assert_eq!(counters.placed, store.total());
        });
    }
}

#[test]
fn what_is_received_elsewhere_is_not_thought_to_be_in_the_socket_still() {
    const PIECE: usize = 20_000;
    run(async {
        let len = 3 * PIECE;
        let bytes = pattern(len, 4);
        // The second piece is refused, and goes to a buffer.
        let store = Store::new(&[WARM, len], Mood::Except(PIECE as u64, 2 * PIECE as u64), 1);
        let (pair, mut peer) = warm(false, &store, &bytes).await;
        read(&pair, len, 1);
        pair.flush();
        let sent = bytes.clone();
        let talking = thread::spawn(move || {
            let asked = peer.asked(1);
            let wire = peer.answer(asked[0], &sent, PIECE);
            peer.socket.write_all(&wire[..wire.len() - PIECE + 3000]).expect("sent");
            (peer, wire)
        });
        let (mut peer, wire) = runtime::blocking(move || talking.join().expect("no panic")).await;
        take_in(&pair).await;
        assert!(store.has(1, 1000, PIECE) && !store.has(1, PIECE, PIECE + 1), "the first is placed alone");
        peer.socket.write_all(&wire[wire.len() - PIECE + 3000..]).expect("sent");
        match pair.next().await {
            Ok(Completion::Read { id: 1, data }) => store.check(1, &bytes, &data),
            other => panic!("{other:?}"),
        }
        assert!(store.has_any(1, 2 * PIECE), "and so is the last");
        store.check_memory(|_| &bytes);
    });
}

#[test]
fn a_read_of_which_the_header_comes_alone_is_placed_whole() {
    // Payload begins after the header.
    const HEADER: usize = 16;
    run(async {
        let bytes = pattern(WARM, 4);
        let store = Store::new(&[WARM, WARM], Mood::All, 1);
        let (pair, mut peer) = warm(false, &store, &bytes).await;
        read(&pair, WARM, 1);
        pair.flush();
        let sent = bytes.clone();
        let talking = thread::spawn(move || {
            let asked = peer.asked(1);
            let wire = peer.answer(asked[0], &sent, WARM);
            peer.socket.write_all(&wire[..HEADER]).expect("sent");
            (peer, wire)
        });
        let (mut peer, wire) = runtime::blocking(move || talking.join().expect("no panic")).await;
        take_in(&pair).await;
        // The whole payload is available at the next look.
        peer.socket.write_all(&wire[HEADER..]).expect("sent");
        thread::sleep(Duration::from_millis(20));
        match pair.next().await {
            Ok(Completion::Read { id: 1, data }) => store.check(1, &bytes, &data),
            other => panic!("{other:?}"),
        }
        assert!(store.has(1, 0, DIRECT));
    });
}

#[test]
fn an_fpdu_with_a_wrong_crc_is_not_placed_but_all_before_it_is() {
    const PIECE: usize = 50_000;
    const PIECES: usize = 4;
    let bytes = Arc::new(pattern(PIECES * PIECE, 5));
    // The FPDU and the position of the wrong bit: in the payload's first byte, in its middle, in
    // its last, in the CRC.
    for (piece, at) in [(0, 500), (1, 16), (1, PIECE + 15), (2, PIECE / 2), (3, PIECE + 18), (3, 16)] {
        run(async {
            let store = Store::new(&[WARM, PIECES * PIECE], Mood::All, 1);
            let (pair, mut peer) = warm(true, &store, &bytes).await;
            read(&pair, PIECES * PIECE, 1);
            pair.flush();
            let sent = bytes.clone();
            let talking = thread::spawn(move || {
                let asked = peer.asked(1)[0];
                for n in 0..PIECES {
                    let mut fpdu = peer.response(asked, &sent, n * PIECE, PIECE);
                    if n == piece {
                        fpdu[at] ^= 4;
                    }
                    // The connection may already be closed because of earlier bytes.
                    if peer.socket.write_all(&fpdu).is_err() {
                        break;
                    }
                }
                let mut answer = Vec::new();
                let _ = peer.socket.read_to_end(&mut answer);
                answer
            });
            let (completions, end) = rest(&pair).await;
            assert!(matches!(completions[..], [Completion::Flushed { id: 1 }]), "{completions:?}");
            let wrong_crc = Terminated { layer: 2, error_type: 0, code: 2 };
            match end {
                Error::Terminated { side: Side::Local, reason, .. } => assert_eq!(reason, wrong_crc),
                other => panic!("{other}"),
            }
            assert!(store.has(1, 0, piece * PIECE), "{piece}");
            assert!(!store.has_any(1, piece * PIECE), "{piece}");
            store.check_memory(|_| &bytes);
            drop(pair);
            let answer = runtime::blocking(move || talking.join().expect("no panic")).await;
            assert_eq!(answer[2..4], [0x41, 0x47], "a Terminate is the last that the peer hears");
            assert_eq!(answer[20..22], [0x20, 0x02]);
        });
    }
}

#[test]
fn a_peer_that_closes_within_a_piece_only_ends_the_read() {
    let len = 200_000;
    let bytes = Arc::new(pattern(len, 6));
    for seed in 0..24u64 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (crc, resets) = (seed % 2 == 1, seed % 3 == 0);
        run(async {
            let used = pool::stats().in_use;
            let store = Store::new(&[WARM, len], [Mood::All, Mood::Random][seed as usize / 6 % 2], seed);
            let (pair, mut peer) = warm(crc, &store, &bytes).await;
            read(&pair, len, 1);
            pair.flush();
            let sent = bytes.clone();
            let talking = thread::spawn(move || {
                let asked = peer.asked(1);
                let wire = peer.answer(asked[0], &sent, 60_000);
                let cut = random.random_range(1..wire.len());
                for piece in wire[..cut].chunks(random.random_range(1000..80_000)) {
                    peer.socket.write_all(piece).expect("sent");
                }
                if resets {
                    let linger = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&peer.socket, linger).expect("an option");
                    drop(peer);
                    return None;
                }
                peer.socket.shutdown(Shutdown::Write).expect("shut");
                Some(peer)
            });
            let (completions, end) = rest(&pair).await;
            assert!(matches!(completions[..], [Completion::Flushed { id: 1 }]), "{completions:?}");
            assert!(matches!(end, Error::Cut) || resets && matches!(end, Error::Io(_)), "seed {seed}: {end}");
            let calls = store.calls();
            assert!(matches!(pair.next().await, Err(Error::Closed)));
            assert_eq!((store.calls(), Rc::strong_count(&store)), (calls, 1), "nobody is asked afterwards");
            store.check_memory(|_| &bytes);
            drop((completions, pair));
            drop(runtime::blocking(move || talking.join().expect("no panic")).await);
            for _ in 0..1000 {
                if pool::stats().in_use <= used {
                    break;
                }
                runtime::sleep(Duration::from_millis(10)).await;
            }
            assert!(pool::stats().in_use <= used, "{} {used}", pool::stats().in_use);
        });
    }
}

#[test]
fn nobodys_memory_is_kept_for_a_peer_that_is_silent_within_a_piece() {
    let len = 3 * WARM;
    let bytes = pattern(len, 7);
    for crc in [false, true] {
        run(async {
            let store = Store::new(&[WARM, len], Mood::All, 1);
            let (pair, mut peer) = warm(crc, &store, &bytes).await;
            read(&pair, len, 1);
            pair.flush();
            let sent = bytes.clone();
            let talking = thread::spawn(move || {
                let asked = peer.asked(1);
                let wire = peer.answer(asked[0], &sent, WARM);
                peer.socket.write_all(&wire[..WARM + 1000]).expect("sent");
                (peer, wire)
            });
            let (mut peer, wire) = runtime::blocking(move || talking.join().expect("no panic")).await;
            take_in(&pair).await;
            assert!(store.has(1, if crc { 0 } else { 1000 }, WARM));
            let gone = Rc::downgrade(&store);
            drop(store);
            assert!(gone.upgrade().is_none(), "it is kept by a queue pair that waits");
            // Later data arrives in buffers.
            peer.socket.write_all(&wire[WARM + 1000..]).expect("sent");
            match pair.next().await {
                Ok(Completion::Read { id: 1, data }) => {
                    assert!(data.to_vec() == bytes);
                    let placed = data.iter().filter(|buf| buf.is_region()).map(runtime::Buf::len);
                    assert!((WARM - 1000..=WARM + 1000).contains(&placed.sum()));
                }
                other => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn a_peer_that_sends_forever_does_not_starve_other_connections() {
    // The longest possible read: seconds of data, of which the other connection needs only a small
    // part.
    const FOR_EVER: usize = u32::MAX as usize;
    const PIECE: usize = 65_024;
    struct Ring(Arc<runtime::Region>);
    impl rdma::DataSink for Ring {
        fn next(&self, _: u64, offset: u64, wanted: usize, there: usize, _: bool) -> rdma::Next {
            let room = self.0.len() - offset as usize % self.0.len();
            rdma::Next::Place(wanted.min(there).min(room))
        }
        fn place(&self, _: u64, offset: u64, len: usize, fill: &mut rdma::Fill<'_>) -> Option<runtime::Buf> {
            let at = offset as usize % self.0.len();
            let filled = fill(&mut self.0.destination(at, len).expect("within"));
            Some(self.0.slice(at, filled).expect("within"))
        }
    }
    run(async {
        let (busy, mut peer) = raw(false, &options()).await;
        let sink = Rc::new(Ring(runtime::Region::new(1 << 20).expect("memory")));
        let weak = Rc::downgrade(&sink);
        busy.set_data_sink(weak);
        read(&busy, FOR_EVER, 0);
        let enough = Arc::new(AtomicBool::new(false));
        let (began, begins) = mpsc::channel();
        let stop = enough.clone();
        let talking = thread::spawn(move || {
            let asked = peer.begin(1)[0];
            let data = vec![7; PIECE];
            for at in (0..FOR_EVER).step_by(PIECE) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Not the last segment: the read does not end.
                let fpdu = peer.response_at(asked, at, &data[..PIECE.min(FOR_EVER - at)]);
                if peer.socket.write_all(&fpdu).is_err() {
                    break;
                }
                if at == 0 {
                    began.send(()).expect("somebody waits");
                }
            }
        });
        let receiving = runtime::spawn(async move { rest(&busy).await });
        let (a, b) = two(&options(), &options()).await;
        runtime::blocking(move || begins.recv().expect("it begins")).await;
        for _ in 0..50 {
            b.post_send(b"ping", Chain::new(), Flags::default(), None);
            assert_eq!(received(&a).await, b"ping");
            a.post_send(b"pong", Chain::new(), Flags::default(), None);
            assert_eq!(received(&b).await, b"pong");
        }
        enough.store(true, Ordering::Relaxed);
        let (completions, end) = receiving.await.expect("no panic");
        assert!(matches!(completions[..], [Completion::Received { .. }, Completion::Flushed { id: 0 }]));
        assert!(matches!(end, Error::Cut), "it was still sending: {end}");
        runtime::blocking(move || talking.join().expect("no panic")).await;
    });
}
