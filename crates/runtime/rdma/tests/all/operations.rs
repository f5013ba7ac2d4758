//! Every operation between two queue pairs over loopback, in all sizes and settings.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use crate::support::{buffers, chain, pattern, received, rest, run, two};
use rdma::{Atomic, Completion, Crc, Error, Flags, Options, QueuePair, Remote, Rights};
use runtime::Chain;

/// Lengths around every boundary: nothing, FPDUs, buffers of the pool, the receive buffer.
const SIZES: [usize; 21] = [
    0,
    1,
    3,
    76,
    255,
    256,
    257,
    1460,
    4096,
    16_383,
    16_384,
    16_385,
    61_440,
    61_441,
    65_472,
    65_473,
    65_536,
    131_071,
    1 << 20,
    (1 << 20) + 1,
    5_000_000,
];

/// Settings that change the bytes on the wire.
fn settings() -> Vec<(&'static str, Options)> {
    let base = Options { receive_size: 16 << 20, crc: Crc::Never, ..Options::default() };
    vec![
        ("plain", base.clone()),
        ("crc", Options { crc: Crc::Require, ..base.clone() }),
        ("markers", Options { markers: true, ..base.clone() }),
        ("crc and markers", Options { crc: Crc::Require, markers: true, ..base.clone() }),
        ("small FPDUs", Options { max_fpdu: 1460, ..base.clone() }),
        ("tiny FPDUs with crc", Options { max_fpdu: 256, crc: Crc::Require, ..base }),
    ]
}

/// The sizes to test with these settings.
fn sizes(options: &Options) -> impl Iterator<Item = usize> {
    let most = if options.max_fpdu < 4096 || options.markers { 1 << 20 } else { usize::MAX };
    SIZES.into_iter().filter(move |&size| size <= most)
}

/// Runs a test with all settings.
fn with_all<F: Future<Output = ()>>(test: impl Fn(QueuePair, QueuePair, Options) -> F) {
    for (name, options) in settings() {
        run(async {
            let (a, b) = two(&options, &options).await;
            // The accepting side sends nothing before it has received a message.
            b.post_send(b"first", Chain::new(), Flags::default(), None);
            assert_eq!(received(&a).await, b"first", "{name}");
            test(a, b, options).await;
        });
    }
}

/// Lets one end receive while the other one works.
fn serve(pair: &QueuePair) -> runtime::JoinHandle<(Vec<Completion>, Error)> {
    let pair = pair.clone();
    runtime::spawn(async move { rest(&pair).await })
}

#[test]
fn a_send_of_any_length_arrives_as_it_was() {
    with_all(async |a, b, options| {
        for size in sizes(&options) {
            let bytes = pattern(size, 1);
            let head = size.min(48);
            b.post_send(&bytes[..head], chain(&bytes[head..]), Flags::default(), Some(size as u64));
            b.flush();
            let sender = b.clone();
            let sent = runtime::spawn(async move { sender.next().await });
            assert!(received(&a).await == bytes, "{size}");
            let sent = sent.await.expect("no panic").expect("a completion");
            assert!(matches!(sent, Completion::Sent { id } if id == size as u64));
        }
    });
}

#[test]
fn an_rdma_write_is_complete_when_the_next_send_arrives() {
    with_all(async |a, b, options| {
        for size in sizes(&options) {
            let bytes = pattern(size, 2);
            let stag = a.expose(buffers(size + 200), Rights::Write).expect("an STag");
            b.post_write(Remote { stag, offset: 100 }, chain(&bytes), Some(7));
            b.post_send(b"there", Chain::new(), Flags::default(), None);
            let sender = b.clone();
            let written = runtime::spawn(async move { sender.next().await });
            assert_eq!(received(&a).await, b"there");
            let withdrawn = a.withdraw(stag).expect("it is exposed");
            let all: Chain = withdrawn.buffers.into_iter().collect();
            let all = all.to_vec();
            assert!(all[100..100 + size] == bytes, "{size}");
            assert!(all[..100].iter().chain(&all[100 + size..]).all(|&b| b == 0xee), "{size}");
            let placed = if size == 0 { 0 } else { 100 + size as u64 };
            assert_eq!((withdrawn.placed, withdrawn.busy), (Some(placed), false));
            assert!(matches!(written.await.expect("no panic"), Ok(Completion::Written { id: 7 })));
            assert!(a.withdraw(stag).is_none());
        }
    });
}

#[test]
fn an_rdma_read_of_any_length_gives_what_is_there() {
    with_all(async |a, b, options| {
        let _serving = serve(&a);
        for size in sizes(&options) {
            let bytes = pattern(size + 30, 3);
            let source = a.expose_source(chain(&bytes)).expect("an STag");
            b.post_read(Remote { stag: source, offset: 20 }, size, 9);
            match b.next().await {
                Ok(Completion::Read { id: 9, data }) => {
                    assert!(data.to_vec() == bytes[20..20 + size], "{size}")
                }
                other => panic!("{other:?}"),
            }
            a.withdraw(source).expect("it is exposed");
        }
    });
}

/// The value that `b`'s next read or atomic returns.
async fn original(b: &QueuePair, wanted: u64) -> u64 {
    match b.next().await {
        Ok(Completion::Atomic { id, original }) if id == wanted => original,
        other => panic!("{other:?}"),
    }
}

#[test]
fn atomics_change_eight_bytes_and_complete_in_order_with_reads() {
    with_all(async |a, b, _| {
        let _serving = serve(&a);
        // The second number spans two buffers.
        let pieces = [12, 12, 40].map(|len| {
            let mut buffer = runtime::pool::alloc(len).expect("a buffer");
            buffer.fill(0);
            buffer
        });
        let stag = a.expose(pieces, Rights::All).expect("an STag");
        let place = Remote { stag, offset: 8 };
        b.post_atomic(place, Atomic::FetchAdd { add: 5, mask: 0 }, 1);
        b.post_read(place, 8, 2);
        b.post_atomic(place, Atomic::FetchAdd { add: u64::MAX, mask: 0 }, 3);
        let all = u64::MAX;
        b.post_atomic(place, Atomic::CmpSwap { swap: 70, mask: all, compare: 5, compare_mask: all }, 4);
        b.post_atomic(place, Atomic::CmpSwap { swap: 90, mask: all, compare: 4, compare_mask: all }, 5);
        b.post_atomic(place, Atomic::Swap { swap: 7, mask: 0xff }, 6);
        b.post_read(Remote { stag, offset: 0 }, 64, 7);
        assert_eq!(original(&b, 1).await, 0);
        match b.next().await {
            Ok(Completion::Read { id: 2, data }) => assert_eq!(data.to_vec(), 5u64.to_ne_bytes()),
            other => panic!("{other:?}"),
        }
        assert_eq!(original(&b, 3).await, 5);
        assert_eq!(original(&b, 4).await, 4, "it does not compare");
        assert_eq!(original(&b, 5).await, 4);
        assert_eq!(original(&b, 6).await, 90);
        match b.next().await {
            Ok(Completion::Read { id: 7, data }) => {
                let bytes = data.to_vec();
                assert_eq!(bytes[8..16], 7u64.to_ne_bytes());
                assert!(bytes[..8].iter().chain(&bytes[16..]).all(|&byte| byte == 0));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(a.withdraw(stag).expect("it is exposed").placed, Some(16));
    });
}

#[test]
fn an_atomic_needs_memory_with_that_right_and_a_multiple_of_eight() {
    for (rights, offset, code) in [(Rights::ReadWrite, 0, 0x02), (Rights::All, 4, 0x07)] {
        run(async {
            let (a, b) = two(&Options::default(), &Options::default()).await;
            b.post_send(b"first", Chain::new(), Flags::default(), None);
            assert_eq!(received(&a).await, b"first");
            let stag = a.expose(buffers(64), rights).expect("an STag");
            b.post_atomic(Remote { stag, offset }, Atomic::Swap { swap: 1, mask: 1 }, 9);
            let serving = serve(&a);
            assert!(matches!(b.next().await, Ok(Completion::Flushed { id: 9 })));
            match b.next().await {
                Err(Error::Terminated { reason, .. }) => assert_eq!(reason.code, code, "{offset}"),
                other => panic!("{other:?}"),
            }
            let (_, error) = serving.await.expect("no panic");
            assert!(matches!(error, Error::Terminated { .. }), "{error:?}");
        });
    }
}

#[test]
fn memory_that_may_be_read_and_written_is_both() {
    with_all(async |a, b, _| {
        let _serving = serve(&a);
        let stag = a.expose(buffers(3 << 20), Rights::ReadWrite).expect("an STag");
        let bytes = pattern(1 << 20, 4);
        let place = Remote { stag, offset: 700_000 };
        b.post_write(place, chain(&bytes), None);
        b.post_read(place, bytes.len(), 1);
        match b.next().await {
            Ok(Completion::Read { data, .. }) => assert!(data.to_vec() == bytes),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn many_operations_at_once_come_in_order() {
    with_all(async |a, b, _| {
        let bytes = pattern(40_000, 5);
        let source = b.expose_source(chain(&bytes)).expect("an STag");
        let serving = serve(&b);
        for round in 0..5u64 {
            for i in 0..300 {
                let (at, len) = ((i * 131) % 20_000, (i * 57) % 20_000);
                a.post_read(Remote { stag: source, offset: at as u64 }, len, round * 1000 + i as u64);
                a.post_send(&(i as u32).to_be_bytes(), Chain::new(), Flags::default(), None);
                if i % 100 == 99 {
                    b.post_receives(100);
                }
            }
            for i in 0..300 {
                let (at, len) = ((i * 131) % 20_000, (i * 57) % 20_000);
                match a.next().await {
                    Ok(Completion::Read { id, data }) => {
                        assert_eq!(id, round * 1000 + i as u64);
                        assert!(data.to_vec() == bytes[at..at + len]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        a.disconnect();
        let (_, end) = rest(&a).await;
        assert!(matches!(end, Error::Closed), "{end}");
        let (all, end) = serving.await.expect("no panic");
        assert!(matches!(end, Error::Closed), "{end}");
        assert_eq!(all.len(), 1500);
        for (i, completion) in all.into_iter().enumerate() {
            let Completion::Received { message, .. } = completion else { panic!("{completion:?}") };
            assert_eq!(message.to_vec(), (i as u32 % 300).to_be_bytes());
        }
    });
}

#[test]
fn a_send_takes_back_memory_and_says_so() {
    with_all(async |a, b, _| {
        let stag = a.expose(buffers(5000), Rights::Write).expect("an STag");
        let source = a.expose_source(chain(&[1; 100])).expect("an STag");
        b.post_write(Remote { stag, offset: 0 }, chain(&[3; 4096]), None);
        for (stag, solicited) in [(stag, false), (source, true)] {
            b.post_send(b"done", Chain::new(), Flags { invalidate: Some(stag), solicited }, None);
            match a.next().await {
                Ok(Completion::Received { message, invalidated, solicited: told }) => {
                    assert_eq!((message.to_vec(), invalidated), (b"done".to_vec(), Some(stag)));
                    assert_eq!(told, solicited);
                }
                other => panic!("{other:?}"),
            }
        }
        let withdrawn = a.withdraw(stag).expect("it is still lent");
        assert!(withdrawn.invalidated);
        assert_eq!((withdrawn.placed, withdrawn.buffers.len()), (Some(4096), 1));
        assert!(a.withdraw(stag).is_none());
        // The peer has no access any more.
        let _serving = serve(&a);
        b.post_write(Remote { stag, offset: 0 }, chain(&[4; 10]), None);
        let (_, end) = rest(&b).await;
        assert!(matches!(end, Error::Terminated { .. }), "{end}");
    });
}

#[test]
fn a_sink_takes_everything_and_keeps_nothing() {
    with_all(async |a, b, _| {
        let used = runtime::pool::stats().in_use;
        let stag = a.expose_sink(10 << 20).expect("an STag");
        let bytes = pattern(1 << 20, 6);
        for i in 0..10 {
            b.post_write(Remote { stag, offset: i << 20 }, chain(&bytes), None);
            b.post_send(b"there", Chain::new(), Flags::default(), None);
            let sender = b.clone();
            let sending = runtime::spawn(async move { sender.drained_below(1).await });
            assert_eq!(received(&a).await, b"there");
            sending.await.expect("no panic");
        }
        assert_eq!(a.counters().dropped, 10 << 20);
        assert_eq!(a.withdraw(stag).expect("it is exposed").placed, Some(10 << 20));
        assert!(a.counters().receives < (10 << 20) / 400, "{:?}", a.counters());
        assert!(runtime::pool::stats().in_use < used + (1 << 20), "what is held is what is received into");
    });
}

#[test]
fn immediate_data_arrives() {
    with_all(async |a, b, _| {
        b.post_immediate(*b"8 bytes.", true);
        match a.next().await {
            Ok(Completion::Immediate { data, solicited: true }) => assert_eq!(&data, b"8 bytes."),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn large_data_is_not_copied_by_who_receives_it() {
    let options = Options { crc: Crc::Never, ..Options::default() };
    run(async {
        let (a, b) = two(&options, &options).await;
        let bytes = pattern(1 << 20, 7);
        let stag = a.expose(buffers(1 << 20), Rights::Write).expect("an STag");
        for _ in 0..20 {
            b.post_write(Remote { stag, offset: 0 }, chain(&bytes), None);
            b.post_send(b"there", Chain::new(), Flags::default(), None);
            assert_eq!(received(&a).await, b"there");
        }
        let counters = a.counters();
        let all = 20 << 20;
        assert_eq!(counters.copied_in + counters.in_place + counters.by_reference, all + 20 * 5);
        // The first segment of each write is short. Of the others no byte is copied.
        assert!(counters.copied_in < all / 128, "{counters:?}");
        assert_eq!(b.counters().copied_out, 0, "{:?}", b.counters());
        // And in the other direction, by a read.
        let source = b.expose_source(chain(&bytes)).expect("an STag");
        let _serving = serve(&b);
        let before = a.counters();
        for i in 0..20 {
            a.post_read(Remote { stag: source, offset: 0 }, 1 << 20, i);
            match a.next().await {
                Ok(Completion::Read { data, .. }) => assert!(data.to_vec() == bytes),
                other => panic!("{other:?}"),
            }
        }
        let counters = a.counters() - before;
        assert!(counters.copied_in < all / 50, "{counters:?}");
    });
}

#[test]
fn reads_of_4_kib_are_handed_on_where_they_were_received() {
    let options = Options { crc: Crc::Never, ..Options::default() };
    run(async {
        let (a, b) = two(&options, &options).await;
        let source = b.expose_source(chain(&pattern(1 << 20, 8))).expect("an STag");
        a.post_receives(1);
        b.post_send(b"x", Chain::new(), Flags::default(), None);
        let _serving = serve(&b);
        received(&a).await;
        for round in 0..20 {
            for i in 0..32 {
                a.post_read(Remote { stag: source, offset: i * 4096 }, 4096, round);
            }
            for _ in 0..32 {
                assert!(matches!(a.next().await, Ok(Completion::Read { .. })));
            }
        }
        let counters = a.counters();
        assert_eq!(counters.in_place + counters.by_reference + counters.copied_in, 1 + 640 * 4096);
        // Only data across the end of a receive.
        assert!(counters.copied_in < 640 * 4096 / 10, "{counters:?}");
    });
}

#[test]
fn memory_that_may_change_is_sent_from_where_it_is_unless_a_crc_covers_it() {
    for (crc, lend) in [(Crc::Never, false), (Crc::Never, true), (Crc::Require, true)] {
        let options = Options { crc, lend, receives: 1000, ..Options::default() };
        run(async {
            let (a, b) = two(&options, &options).await;
            let region = runtime::Region::new(4 << 20).expect("memory");
            let bytes = pattern(4 << 20, 11);
            region.write_from(0, &bytes).expect("within");
            let mut all = 0;
            for round in 0..200 {
                let len = [512, 4096, 65_536, 1 << 20][round % 4];
                let at = round * 4096;
                let stag = a.expose(buffers(len), Rights::Write).expect("an STag");
                for part in (0..len).step_by(len / 4) {
                    let data = region.slice(at + part, len / 4).expect("within");
                    b.post_write(Remote { stag, offset: part as u64 }, data.into(), None);
                }
                b.post_send(b"there", Chain::new(), Flags::default(), None);
                let mark = b.posted();
                assert_eq!(received(&a).await, b"there");
                let withdrawn = a.withdraw(stag).expect("it is exposed");
                assert!(withdrawn.buffers[0][..] == bytes[at..at + len], "{round}");
                // For some rounds without confirmations.
                if !(50..150).contains(&round) {
                    b.confirm(mark);
                }
                all += len as u64;
            }
            let counters = b.counters();
            assert_eq!(counters.sent, all);
            match crc {
                Crc::Require => assert!(counters.copied_out >= all, "{counters:?}"),
                _ => assert_eq!(counters.copied_out, 0),
            }
        });
    }
}

/// Number of wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_for_room_is_told_by_a_flush_as_well() {
    run(async {
        let (_a, b) = two(&Options::default(), &Options::default()).await;
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        b.post_send(b"last", Chain::new(), Flags::default(), None);
        let (mut all, mut posts) = (pin!(b.drained_below(1)), pin!(b.posts_drained_below(1)));
        assert!(all.as_mut().poll(&mut cx).is_pending() && posts.as_mut().poll(&mut cx).is_pending());
        b.flush();
        assert_eq!((b.queued(), woken.0.load(Ordering::Relaxed)), (0, 1));
        assert!(all.poll(&mut cx).is_ready() && posts.poll(&mut cx).is_ready());
    });
}
