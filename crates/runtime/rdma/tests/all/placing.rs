//! Placement of RDMA Reads' data in the upper layer's memory, between two queue pairs, over all
//! settings and sink answers. Whatever the sink answers, a completion has the sent data, and memory
//! contains exactly the placed data.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::support::store::{Mood, Store};
use crate::support::{chain, pattern, received, rest, run, two};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rdma::{Completion, Counters, Crc, Error, Flags, Options, QueuePair, Remote};
use runtime::Chain;

/// Lengths around every boundary: nothing, a block, the minimum for a receive of its own, an FPDU,
/// a buffer of the pool.
const LENS: [usize; 11] = [0, 1, 511, 512, 16_383, 16_384, 16_385, 65_536, 65_537, (1 << 20) - 1, 1 << 20];

fn options(crc: bool) -> Options {
    let crc = if crc { Crc::Require } else { Crc::Never };
    Options { crc, receives: 1 << 16, receive_size: 1 << 20, ..Options::default() }
}

/// Settings that change the bytes on the wire.
fn settings() -> Vec<(&'static str, Options)> {
    let mut all = Vec::new();
    for crc in [false, true] {
        let base = options(crc);
        all.push(("long FPDUs", base.clone()));
        all.push(("middling FPDUs", Options { max_fpdu: 20_000, ..base.clone() }));
        all.push(("short FPDUs", Options { max_fpdu: 1460, ..base.clone() }));
        all.push(("tiny FPDUs", Options { max_fpdu: 256, ..base.clone() }));
        all.push(("markers", Options { markers: true, ..base }));
    }
    all
}

/// A connection on which both sides may send; the second one reads.
async fn ready(options: &Options) -> (QueuePair, QueuePair) {
    let (a, b) = two(options, options).await;
    b.post_send(b"first", Chain::new(), Flags::default(), None);
    assert_eq!(received(&a).await, b"first");
    (a, b)
}

/// Answers each message with the number of bytes of `bytes` that it requests.
async fn echo(pair: QueuePair, bytes: Rc<Vec<u8>>) {
    while let Ok(completion) = pair.next().await {
        if let Completion::Received { message, .. } = completion {
            let mut len = [0; 4];
            message.copy_to_slice(&mut len);
            let len = u32::from_be_bytes(len) as usize;
            pair.post_send(&[], chain(&bytes[..len]), Flags::default(), None);
        }
    }
}

/// Bytes of payload that a pair has received.
fn payload(counters: Counters) -> u64 {
    counters.copied_in + counters.by_reference + counters.in_place + counters.dropped
}

#[test]
fn reads_of_any_length_bring_what_was_sent_however_it_is_placed() {
    let mut random = SmallRng::seed_from_u64(11);
    let mut lens = LENS.to_vec();
    lens.extend((0..8).map(|_| random.random_range(0..200_000)));
    let bytes = Rc::new(pattern((1 << 20) + 1000, 5));
    for (name, options) in settings() {
        for mood in Mood::MOST {
            run(async {
                let (a, b) = ready(&options).await;
                let source = a.expose_source(chain(&bytes)).expect("an STag");
                runtime::spawn(echo(a, bytes.clone()));
                let store = Store::new(&lens, mood, 3);
                store.serve(&b);
                let (mut came, mut messages) = (0, Vec::new());
                let from = |id: usize| (id * 37) % 1000;
                for (id, &len) in lens.iter().enumerate() {
                    b.post_read(Remote { stag: source, offset: from(id) as u64 }, len, id as u64);
                    let message = [0, 40, 3000, 50_000][id % 4];
                    b.post_send(&(message as u32).to_be_bytes(), Chain::new(), Flags::default(), None);
                    messages.push(message);
                }
                let mut next = messages.iter();
                for _ in 0..2 * lens.len() {
                    match b.next().await.expect("a completion") {
                        Completion::Read { id, data } => {
                            assert_eq!(id, came, "{name} {mood:?}");
                            let from = from(id as usize);
                            store.check(id, &bytes[from..from + lens[id as usize]], &data);
                            came += 1;
                        }
                        Completion::Received { message, .. } => {
                            let len = *next.next().expect("no more than were asked for");
                            assert!(message.to_vec() == bytes[..len], "{name} {mood:?}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
                store.check_memory(|id| &bytes[from(id as usize)..]);
                let counters = b.counters();
                let all = lens.iter().chain(&messages).sum::<usize>();
                assert_eq!(payload(counters), all as u64, "{name} {mood:?} {counters:?}");
                assert_eq!((counters.placed, counters.dropped), (store.total(), 0), "{name} {mood:?}");
                assert!(counters.placed <= counters.in_place + counters.copied_in);
                if mood.places() && name == "long FPDUs" {
                    assert!(store.total() > 0, "{name} {mood:?}");
                }
                if !mood.places() {
                    assert_eq!(store.total(), 0);
                }
            });
        }
    }
}

/// Without a CRC almost none of it is copied.
#[test]
fn nearly_all_data_of_long_reads_is_placed() {
    const READS: usize = 32;
    const LEN: usize = 1 << 20;
    let bytes = pattern(LEN, 6);
    for crc in [false, true] {
        run(async {
            let (a, b) = ready(&options(crc)).await;
            let source = a.expose_source(chain(&bytes)).expect("an STag");
            runtime::spawn(async move { rest(&a).await.1 });
            let store = Store::new(&[LEN; READS], Mood::Blocks, 1);
            store.serve(&b);
            for id in 0..READS as u64 {
                b.post_read(Remote { stag: source, offset: 0 }, LEN, id);
            }
            for wanted in 0..READS as u64 {
                match b.next().await {
                    Ok(Completion::Read { id, data }) if id == wanted => store.check(id, &bytes, &data),
                    other => panic!("{other:?}"),
                }
            }
            store.check_memory(|_| &bytes);
            let counters = b.counters();
            let all = (READS * LEN) as u64;
            assert_eq!(payload(counters), all);
            assert_eq!(counters.placed, store.total());
            assert!(counters.placed > all / 10 * 9, "{counters:?}");
            if crc {
                assert!(counters.copied_in >= counters.placed, "{counters:?}");
            } else {
                assert!(counters.in_place > all / 10 * 9 && counters.copied_in < all / 20, "{counters:?}");
            }
        });
    }
}

#[test]
fn a_store_that_comes_late_changes_its_mind_or_goes_costs_nothing() {
    let lens = [300_000; 12];
    let bytes = pattern(lens[0], 7);
    for crc in [false, true] {
        for seed in 0..4 {
            run(async {
                let (a, b) = ready(&options(crc)).await;
                let source = a.expose_source(chain(&bytes)).expect("an STag");
                runtime::spawn(async move { rest(&a).await.1 });
                let mut random = SmallRng::seed_from_u64(seed);
                for id in 0..lens.len() as u64 {
                    b.post_read(Remote { stag: source, offset: 0 }, lens[0], id);
                }
                let mut store = None;
                let mut came = 0;
                while came < lens.len() as u64 {
                    // Usually in the middle of a read.
                    let polls = random.random_range(1..12);
                    let mut left = polls;
                    let next = poll_fn(|cx| match b.poll_next(cx) {
                        Poll::Pending if left > 0 => {
                            left -= 1;
                            Poll::Pending
                        }
                        Poll::Pending => Poll::Ready(None),
                        Poll::Ready(completion) => Poll::Ready(Some(completion)),
                    });
                    match next.await {
                        Some(Ok(Completion::Read { id, data })) => {
                            assert_eq!(id, came);
                            assert!(data.to_vec() == bytes, "{id}");
                            came += 1;
                        }
                        Some(other) => panic!("{other:?}"),
                        None if random.random_bool(0.3) => store = None,
                        None if store.is_none() => {
                            let fresh = Store::new(&lens, [Mood::All, Mood::Blocks][came as usize % 2], seed);
                            fresh.serve(&b);
                            store = Some(fresh);
                        }
                        None => {}
                    }
                    if let Some(store) = &store {
                        assert_eq!(Rc::strong_count(store), 1, "nobody else keeps it");
                        store.check_memory(|_| &bytes);
                    }
                }
            });
        }
    }
}

#[test]
fn others_have_their_turn_while_a_socket_never_runs_dry() {
    // Bytes in a row, and what one more receive may bring.
    const MOST: u64 = (512 + 256) << 10;
    const LEN: usize = 8 << 20;
    const BUFFER: usize = 2 << 20;
    let bytes = pattern(1 << 20, 8);
    let bytes = bytes.repeat(8);
    for (crc, mood) in
        [(false, Mood::All), (false, Mood::Refuses), (false, Mood::Except(0, 4 << 20)), (true, Mood::All)]
    {
        run(async {
            let mut options = options(crc);
            options.path.recv_buffer = Some(BUFFER);
            let (a, b) = ready(&options).await;
            let source = a.expose_source(chain(&bytes)).expect("an STag");
            runtime::spawn(async move { rest(&a).await.1 });
            let store = Store::new(&[LEN], mood, 1);
            store.serve(&b);
            b.post_read(Remote { stag: source, offset: 0 }, LEN, 0);
            let mut most = 0;
            let data = loop {
                let before = payload(b.counters());
                let polled = poll_fn(|cx| Poll::Ready(b.poll_next(cx))).await;
                most = most.max(payload(b.counters()) - before);
                match polled {
                    Poll::Ready(Ok(Completion::Read { data, .. })) => break data,
                    Poll::Ready(other) => panic!("{other:?}"),
                    // The socket fills meanwhile.
                    Poll::Pending => runtime::sleep(std::time::Duration::from_millis(1)).await,
                }
            };
            store.check(0, &bytes, &data);
            assert!(most <= MOST, "{crc} {mood:?}: {most} bytes in a row");
        });
    }
}

#[test]
fn a_pair_dropped_or_closed_during_a_read_never_calls_its_sink_again() {
    const LEN: usize = 8 << 20;
    let bytes = pattern(LEN, 9);
    for (crc, drops) in [(false, true), (false, false), (true, true), (true, false)] {
        run(async {
            let (a, b) = ready(&options(crc)).await;
            let source = a.expose_source(chain(&bytes)).expect("an STag");
            let serving = runtime::spawn(async move { rest(&a).await });
            let store = Store::new(&[LEN], Mood::All, 1);
            store.serve(&b);
            b.post_read(Remote { stag: source, offset: 0 }, LEN, 0);
            // Until part of it has arrived.
            let over = Cell::new(false);
            poll_fn(|cx| {
                over.set(b.poll_next(cx).is_ready());
                if over.get() || store.total() > 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            assert!(!over.get() && store.total() < LEN as u64);
            if drops {
                drop(b);
            } else {
                // The requested data still arrives, or not; afterwards no sink is called.
                b.disconnect();
                let (completions, end) = rest(&b).await;
                assert!(matches!(end, Error::Closed | Error::Cut), "{end}");
                match &completions[..] {
                    [Completion::Read { id: 0, data }] => store.check(0, &bytes, data),
                    [Completion::Flushed { id: 0 }] => {}
                    other => panic!("{other:?}"),
                }
                drop(b);
            }
            let calls = store.calls();
            drop(serving.await);
            for _ in 0..100 {
                runtime::round().await;
            }
            assert_eq!((store.calls(), Rc::strong_count(&store)), (calls, 1));
            store.check_memory(|_| &bytes);
        });
    }
}
