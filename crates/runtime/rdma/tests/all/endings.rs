//! The end of connections: every post gets its completion, whatever happens to the connection, and
//! all resources are freed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::{buffers, chain, pattern, received, rest, run, two};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rdma::{Completion, Crc, Error, Flags, Options, QueuePair, Remote, Rights, Side, Stag, Terminated};
use runtime::{Chain, pool};

fn options() -> Options {
    Options { crc: Crc::Never, receives: 1 << 20, ..Options::default() }
}

/// A connection on which the accepting side may already send.
async fn ready(options: &Options) -> (QueuePair, QueuePair) {
    let (a, b) = two(options, options).await;
    b.post_send(b"first", Chain::new(), Flags::default(), None);
    assert_eq!(received(&a).await, b"first");
    (a, b)
}

#[test]
fn a_disconnect_sends_what_is_queued_and_both_sides_see_a_clean_end() {
    run(async {
        let (a, b) = ready(&options()).await;
        let bytes = pattern(3_000_000, 1);
        let stag = a.expose(buffers(bytes.len()), Rights::Write).expect("an STag");
        b.post_write(Remote { stag, offset: 0 }, chain(&bytes), Some(1));
        b.post_send(b"bye", Chain::new(), Flags::default(), Some(2));
        b.disconnect();
        // Further posts are not sent.
        b.post_send(b"too late", Chain::new(), Flags::default(), Some(3));
        let closing = runtime::spawn(async move { rest(&b).await });
        assert_eq!(received(&a).await, b"bye");
        let (none, end) = rest(&a).await;
        assert!(none.is_empty() && matches!(end, Error::Closed), "{none:?} {end}");
        let all: Chain = a.withdraw(stag).expect("still lent").buffers.into_iter().collect();
        assert!(all.to_vec() == bytes);
        drop(a);
        let (completions, end) = closing.await.expect("no panic");
        assert!(matches!(end, Error::Closed), "{end}");
        assert!(matches!(
            completions[..],
            [Completion::Flushed { id: 3 }, Completion::Written { id: 1 }, Completion::Sent { id: 2 }]
        ));
    });
}

/// Notes that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One task may post while another waits for completions.
#[test]
fn a_post_after_the_close_wakes_a_waiter_for_completions() {
    run(async {
        let (_a, b) = ready(&options()).await;
        b.disconnect();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(b.poll_next(&mut cx).is_pending());
        woken.0.store(false, Ordering::Relaxed);
        b.post_send(b"too late", Chain::new(), Flags::default(), Some(3));
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(matches!(b.next().await, Ok(Completion::Flushed { id: 3 })));
    });
}

#[test]
fn a_dropped_peer_ends_the_connection_and_flushes_all_posts() {
    run(async {
        let (a, b) = ready(&options()).await;
        let source = a.expose_source(chain(&[1; 4096])).expect("an STag");
        for id in 0..200 {
            b.post_read(Remote { stag: source, offset: 0 }, 4096, id);
        }
        drop(a);
        let (completions, end) = rest(&b).await;
        assert!(matches!(end, Error::Closed | Error::Io(_)), "{end}");
        let flushed: Vec<u64> = completions
            .iter()
            .map(|completion| match completion {
                Completion::Flushed { id } => *id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(flushed, (0..200).collect::<Vec<_>>());
        // Repeatedly, without change.
        assert!(matches!(b.next().await, Err(Error::Closed)));
        b.post_read(Remote { stag: source, offset: 0 }, 1, 7);
        b.post_send(b"anybody?", Chain::new(), Flags::default(), Some(8));
        assert!(matches!(b.next().await, Err(Error::Closed)));
    });
}

/// The network has not taken them.
#[test]
fn posts_of_a_send_that_fails_are_flushed() {
    run(async {
        let (a, b) = ready(&options()).await;
        for id in 0..2 {
            let data = Chain::from(vec![1; 32 << 20]);
            a.post_write(Remote { stag: Stag(1), offset: 0 }, data, Some(id));
        }
        drop(b);
        // Nothing is received meanwhile, so that the send finds the end.
        a.drained_below(1).await;
        let (completions, end) = rest(&a).await;
        assert!(matches!(end, Error::Io(_)), "{end}");
        assert!(
            matches!(completions[..], [Completion::Flushed { id: 0 }, Completion::Flushed { id: 1 }]),
            "{completions:?}"
        );
    });
}

#[test]
fn exposed_memory_is_given_back_after_the_connection_is_lost() {
    run(async {
        let (a, b) = ready(&options()).await;
        let stag = b.expose(buffers(10_000), Rights::Write).expect("an STag");
        drop(a);
        rest(&b).await;
        assert_eq!(b.withdraw(stag).expect("it is lent").buffers[0].len(), 10_000);
        assert!(b.withdraw(stag).is_none());
    });
}

#[test]
fn both_sides_learn_why_the_protocol_ended_a_connection() {
    run(async {
        let (a, b) = ready(&options()).await;
        b.post_write(Remote { stag: Stag(0x1234), offset: 0 }, chain(&[1; 100]), None);
        let asked = runtime::spawn(async move { rest(&b).await.1 });
        let (_, here) = rest(&a).await;
        let invalid = Terminated { layer: 1, error_type: 1, code: 0 };
        match here {
            Error::Terminated { side: Side::Local, reason, .. } => assert_eq!(reason, invalid),
            other => panic!("{other}"),
        }
        match asked.await.expect("no panic") {
            Error::Terminated { side: Side::Remote, reason, .. } => assert_eq!(reason, invalid),
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_send_that_finds_no_receive_ends_the_connection() {
    run(async {
        let options = Options { receives: 3, ..options() };
        let (a, b) = ready(&options).await;
        for _ in 0..3 {
            b.post_send(b"one more", Chain::new(), Flags::default(), None);
        }
        let asked = runtime::spawn(async move { rest(&b).await.1 });
        let (completions, end) = rest(&a).await;
        assert_eq!(completions.len(), 2);
        let no_buffer = Terminated { layer: 1, error_type: 2, code: 2 };
        assert!(
            matches!(end, Error::Terminated { side: Side::Local, reason, .. } if reason == no_buffer),
            "{end}"
        );
        assert!(matches!(asked.await.expect("no panic"), Error::Terminated { side: Side::Remote, .. }));
    });
}

#[test]
fn a_message_longer_than_a_receive_ends_the_connection() {
    run(async {
        let options = Options { receive_size: 1000, ..options() };
        let (a, b) = ready(&options).await;
        b.post_send(&[1; 1000], Chain::new(), Flags::default(), None);
        b.post_send(&[1; 1001], Chain::new(), Flags::default(), None);
        let asked = runtime::spawn(async move { rest(&b).await.1 });
        assert_eq!(received(&a).await.len(), 1000);
        let (_, end) = rest(&a).await;
        assert!(matches!(end, Error::Terminated { side: Side::Local, .. }), "{end}");
        drop(asked);
    });
}

#[test]
fn a_peer_that_does_not_read_gets_no_more_answers_than_there_is_room_for() {
    run(async {
        let options = Options { send_high_water: 1 << 20, ..options() };
        let (a, b) = ready(&options).await;
        let source = a.expose_source(chain(&[1; 1 << 20])).expect("an STag");
        let serving = a.clone();
        let serving = runtime::spawn(async move { rest(&serving).await });
        // `b` requests more and more reads but does not receive.
        for id in 0..128 {
            b.post_read(Remote { stag: source, offset: 0 }, 1 << 20, id);
        }
        for id in 0..10_000 {
            b.post_send(&[id as u8; 1000], Chain::new(), Flags::default(), None);
        }
        let filled = async {
            while a.queued() < 1 << 20 {
                runtime::sleep(Duration::from_millis(10)).await;
            }
        };
        runtime::timeout(Duration::from_secs(120), filled).await.expect("answers until there is no room");
        // More of them would arrive now.
        runtime::sleep(Duration::from_millis(300)).await;
        let queued = a.queued();
        assert!((1 << 20..3 << 20).contains(&queued), "{queued}");
        // Then it receives, and gets everything.
        let mut reads = 0;
        while reads < 128 {
            match b.next().await {
                Ok(Completion::Read { data, .. }) => {
                    assert_eq!(data.len(), 1 << 20);
                    reads += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        b.disconnect();
        rest(&b).await;
        drop(b);
        let (completions, end) = serving.await.expect("no panic");
        assert_eq!(completions.len(), 10_000);
        assert!(matches!(end, Error::Closed), "{end}");
    });
}

#[test]
fn nothing_is_received_while_nobody_asks() {
    run(async {
        let (a, b) = ready(&options()).await;
        for _ in 0..1000 {
            b.post_send(&[1; 8000], Chain::new(), Flags::default(), None);
        }
        runtime::sleep(Duration::from_millis(100)).await;
        assert_eq!(a.counters().receives, 1, "the first message");
        for _ in 0..1000 {
            assert_eq!(received(&a).await.len(), 8000);
        }
    });
}

/// Posts random operations, and records the expected completions.
fn post(pair: &QueuePair, random: &mut SmallRng, there: Stag, owed: &mut HashSet<u64>, id: u64) {
    let len = [0, 10, 5000, 70_000][random.random_range(0..4)];
    let place = Remote { stag: there, offset: random.random_range(0..1000) };
    let id = match random.random_range(0..3) {
        0 => {
            let id = random.random_bool(0.5).then_some(id);
            pair.post_send(b"message", Chain::new(), Flags::default(), id);
            id
        }
        1 => {
            let id = random.random_bool(0.5).then_some(id);
            pair.post_write(place, chain(&vec![1; len]), id);
            id
        }
        _ => {
            pair.post_read(place, len, id);
            Some(id)
        }
    };
    owed.extend(id);
}

/// Handles up to a given number of completions, or up to the end; true at the end.
async fn work(pair: &QueuePair, owed: &mut HashSet<u64>, most: usize) -> bool {
    for _ in 0..most {
        match runtime::timeout(Duration::from_millis(5), pair.next()).await {
            Ok(Ok(
                Completion::Sent { id }
                | Completion::Written { id }
                | Completion::Read { id, .. }
                | Completion::Flushed { id },
            )) => assert!(owed.remove(&id), "{id} was posted, and is over once"),
            Ok(Ok(_)) => pair.post_receives(1),
            Ok(Err(_)) => return true,
            Err(_) => return false,
        }
    }
    false
}

#[test]
fn every_post_is_accounted_for_wherever_the_connection_ends() {
    run(async {
        let mut used = Vec::new();
        for seed in 0..120 {
            let mut random = SmallRng::seed_from_u64(seed);
            let options = Options {
                crc: if seed % 2 == 0 { Crc::Never } else { Crc::Require },
                markers: seed % 5 == 0,
                max_fpdu: [65_536, 1460][seed as usize % 3 % 2],
                ord: 4,
                ..options()
            };
            let (a, b) = ready(&options).await;
            let stags =
                [&a, &b].map(|pair| pair.expose(buffers(100_000), Rights::ReadWrite).expect("an STag"));
            let mut owed = [HashSet::new(), HashSet::new()];
            let steps = random.random_range(0..30);
            for step in 0..steps {
                for (side, pair) in [&a, &b].into_iter().enumerate() {
                    for i in 0..random.random_range(0..6) {
                        post(pair, &mut random, stags[1 - side], &mut owed[side], step * 10 + i);
                    }
                    work(pair, &mut owed[side], random.random_range(0..5)).await;
                }
            }
            let [mut mine, theirs] = owed;
            match random.random_range(0..4) {
                0 => drop(b),
                1 => {
                    b.disconnect();
                    let mut theirs = theirs;
                    runtime::spawn(async move {
                        while !work(&b, &mut theirs, usize::MAX).await {}
                        assert!(theirs.is_empty());
                    });
                }
                2 => {
                    // A protocol violation.
                    b.post_write(Remote { stag: Stag(1), offset: 0 }, chain(&[1]), None);
                    let mut theirs = theirs;
                    runtime::spawn(async move {
                        while !work(&b, &mut theirs, usize::MAX).await {}
                        assert!(theirs.is_empty());
                    });
                }
                _ => {
                    // Both at once.
                    drop(b);
                    a.disconnect();
                }
            }
            while !work(&a, &mut mine, usize::MAX).await {}
            assert!(mine.is_empty(), "seed {seed}: {mine:?}");
            drop(a);
            runtime::sleep(Duration::from_millis(1)).await;
            used.push(pool::stats().in_use);
        }
        // A core keeps its receive buffers, but no more with each connection.
        for _ in 0..1000 {
            if pool::stats().in_use <= used[10] {
                break;
            }
            runtime::sleep(Duration::from_millis(10)).await;
        }
        let end = pool::stats().in_use;
        assert!(end <= used[10], "{end} of {used:?}");
    });
}

#[test]
fn a_connection_that_gets_no_buffer_in_time_is_ended() {
    run(async {
        let (a, b) = ready(&options()).await;
        let source = b.expose_source(chain(&[1; 1 << 20])).expect("an STag");
        let serving = b.clone();
        let serving = runtime::spawn(async move { rest(&serving).await });
        // Another user takes the rest of the pool.
        pool::set_limit(pool::stats().mapped);
        let mut held: Vec<_> = std::iter::from_fn(|| pool::alloc(1 << 20)).collect();
        held.extend(std::iter::from_fn(|| pool::alloc(64 << 10)));
        for id in 0..2 {
            a.post_read(Remote { stag: source, offset: 0 }, 1 << 20, id);
        }
        let waited = runtime::timeout(Duration::from_millis(100), a.next()).await;
        assert!(waited.is_err(), "{waited:?}");
        held.clear();
        assert!(matches!(a.next().await, Ok(Completion::Read { id: 0, data }) if data.len() == 1 << 20));
        assert!(matches!(a.next().await, Ok(Completion::Read { id: 1, data }) if data.len() == 1 << 20));
        held.extend(std::iter::from_fn(|| pool::alloc(1 << 20)));
        held.extend(std::iter::from_fn(|| pool::alloc(64 << 10)));
        a.post_read(Remote { stag: source, offset: 0 }, 1 << 20, 2);
        assert!(matches!(a.next().await, Ok(Completion::Flushed { id: 2 })));
        let end = a.next().await;
        assert!(matches!(end, Err(Error::NoBuffers)), "{end:?}");
        // The Terminate shows that the peer is not at fault (RFC 5040 §4.8).
        let (_, end) = serving.await.expect("no panic");
        let Error::Terminated { side: Side::Remote, reason, .. } = end else { panic!("{end}") };
        assert_eq!((reason.layer, reason.error_type, reason.code), (0, 0, 0));
    });
}

/// The pool serves its waiters in order, and a user with too much to send polls no queue pair.
#[test]
fn a_queue_pair_that_is_not_polled_keeps_no_memory_from_others() {
    run(async {
        let (idle, idle_peer) = ready(&options()).await;
        let (busy, busy_peer) = ready(&options()).await;
        let sources = [idle_peer, busy_peer].map(|peer| {
            let stag = peer.expose_source(chain(&[1; 1 << 20])).expect("an STag");
            drop(runtime::spawn(async move { rest(&peer).await }));
            Remote { stag, offset: 0 }
        });
        // Another user takes the rest of the pool, and at least what both need.
        let mut held: Vec<_> = (0..2).map(|_| pool::alloc(1 << 20).expect("a buffer")).collect();
        pool::set_limit(pool::stats().mapped);
        held.extend(std::iter::from_fn(|| pool::alloc(1 << 20)));
        held.extend(std::iter::from_fn(|| pool::alloc(64 << 10)));
        for (pair, source) in [&idle, &busy].into_iter().zip(sources) {
            pair.post_read(source, 1 << 20, 1);
            let waited = runtime::timeout(Duration::from_millis(100), pair.next()).await;
            assert!(waited.is_err(), "{waited:?}");
        }
        drop(held);
        for pair in [&busy, &idle] {
            let read = pair.next().await;
            assert!(matches!(read, Ok(Completion::Read { data, .. }) if data.len() == 1 << 20));
        }
    });
}
