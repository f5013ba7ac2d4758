//! After warm-up no operation allocates. These are Sends, RDMA Writes, RDMA Reads in both
//! directions, into buffers and into the upper layer's memory, exposing and withdrawing.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use rdma::{Completion, Crc, DataSink, Fill, Flags, Next, Options, QueuePair, Remote, Rights, Stag};
use runtime::testing::Counting;
use runtime::{Buf, Chain, Region, pool};
use support::{run, two};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Concurrent operations.
const DEPTH: usize = 16;

/// Places the data of all reads at the same address.
struct Place(Arc<Region>);

impl DataSink for Place {
    fn next(&self, _: u64, _: u64, wanted: usize, there: usize, _: bool) -> Next {
        Next::Place(wanted.min(there))
    }

    fn place(&self, _: u64, offset: u64, len: usize, fill: &mut Fill<'_>) -> Option<Buf> {
        let filled = fill(&mut self.0.destination(offset as usize, len).ok()?);
        self.0.slice(offset as usize, filled).ok()
    }
}

/// The operation of one round.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

/// `DEPTH` operations of `a`, which `b` answers.
async fn round(a: &QueuePair, kind: Kind, data: &Buf, stag: Stag, len: usize) {
    for id in 0..DEPTH {
        let place = Remote { stag, offset: 0 };
        match kind {
            Kind::Send => a.post_send(&[7; 48], data.slice(..len.min(8000)).into(), Flags::default(), None),
            Kind::Write => a.post_write(place, data.slice(..len).into(), None),
            Kind::Read => a.post_read(place, len, id as u64),
        }
    }
    if let Kind::Read = kind {
        for _ in 0..DEPTH {
            assert!(matches!(a.next().await, Ok(Completion::Read { .. })));
        }
    }
    // Each one exposes memory, which the peer invalidates.
    let buffer = pool::alloc(4096).expect("a buffer");
    let mine = a.expose([buffer], Rights::Write).expect("an STag");
    a.post_send(&mine.0.to_be_bytes(), Chain::new(), Flags::default(), Some(1));
    let mut left = 2;
    while left > 0 {
        match a.next().await {
            Ok(Completion::Received { invalidated, .. }) => {
                assert_eq!(invalidated, Some(mine));
                assert!(a.withdraw(mine).is_some());
                a.post_receives(1);
                left -= 1;
            }
            Ok(Completion::Sent { id: 1 }) => left -= 1,
            other => panic!("{other:?}"),
        }
    }
}

/// Answers requests.
async fn serve(b: QueuePair) {
    while let Ok(completion) = b.next().await {
        if let Completion::Received { message, .. } = completion {
            b.post_receives(1);
            if message.len() == 4 {
                let mut name = [0; 4];
                message.copy_to_slice(&mut name);
                let stag = Stag(u32::from_be_bytes(name));
                b.post_write(Remote { stag, offset: 0 }, Buf::from_static(&[1; 4096]).into(), None);
                let flags = Flags { invalidate: Some(stag), solicited: true };
                b.post_send(b"done", Chain::new(), flags, None);
            }
        }
    }
}

#[test]
fn a_warm_queue_pair_does_not_allocate() {
    let found = Cell::new(Vec::new());
    let place = Rc::new(Place(Region::new(1 << 20).expect("memory")));
    for (name, crc, lend, placed) in [
        ("plain", Crc::Never, false, false),
        ("crc", Crc::Require, false, false),
        ("lent", Crc::Never, true, false),
        ("placed", Crc::Never, false, true),
        ("placed under a crc", Crc::Require, false, true),
    ] {
        run(async {
            let options = Options { crc, lend, receives: 1000, receive_size: 16 << 10, ..Options::default() };
            let (b, a) = two(&options, &options).await;
            assert!(Counting::allocations() > 0, "setting up allocates, and is counted");
            let region = Region::new(1 << 20).expect("memory");
            let memory = b.expose([pool::alloc(1 << 20).expect("a buffer")], Rights::Write).expect("an STag");
            let source = region.slice(0, 1 << 20).expect("within");
            let readable = b.expose_source(source.clone().into()).expect("an STag");
            runtime::spawn(serve(b));
            if placed {
                let weak = Rc::downgrade(&place);
                a.set_data_sink(weak);
            }
            for data in [source, pool::alloc(1 << 20).expect("a buffer").freeze()] {
                for (kind, stag) in [(Kind::Send, memory), (Kind::Write, memory), (Kind::Read, readable)] {
                    if placed && !matches!(kind, Kind::Read) {
                        continue;
                    }
                    for len in [100, 4096, 65_536, 1 << 20] {
                        let mut least = u64::MAX;
                        for time in 0..6 {
                            let before = Counting::allocations();
                            for _ in 0..8 {
                                round(&a, kind, &data, stag, len).await;
                            }
                            if time > 0 {
                                least = least.min(Counting::allocations() - before);
                            }
                            if least == 0 {
                                break;
                            }
                        }
                        if least > 0 {
                            let mut all = found.take();
                            all.push(format!("{name}: {kind:?} of {len} of {data:?}: {least} allocations"));
                            found.set(all);
                        }
                    }
                }
            }
            let counters = a.counters();
            assert_eq!(counters.placed > counters.by_reference, placed, "{name} {counters:?}");
        });
    }
    let found = found.take();
    assert!(found.is_empty(), "{found:#?}");
}
