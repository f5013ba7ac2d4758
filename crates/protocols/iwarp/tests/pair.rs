//! Two connected streams execute random operations, over every combination of options, however the
//! bytes are split.

mod common;

use common::{DOMAIN, Seen, Side};
use iwarp::mpa::{self, Agreed, CrcPolicy, Reply, Requester, Responder, Rtr};
use iwarp::rdmap::Atomic;
use iwarp::stag::Rights;
use iwarp::stream::{Landing, Options, Remote, SendFlags};
use proptest::prelude::*;

const MEMORY: usize = 20_000;
const RECEIVE: u32 = 10_000;

/// Indices of each side's memory.
const WRITTEN: usize = 0;
const COUNTED: usize = 1;
const SINK: usize = 2;

#[derive(Debug, Clone)]
enum Operation {
    Send { len: usize, solicited: bool, invalidate: bool },
    Immediate { solicited: bool },
    Write { at: usize, len: usize },
    Read { at: usize, len: usize, registered: bool },
    Atomic { at: usize, kind: u8, value: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0..=RECEIVE as usize, any::<bool>(), any::<bool>())
            .prop_map(|(len, solicited, invalidate)| Operation::Send { len, solicited, invalidate }),
        (0..200usize, any::<bool>(), Just(false)).prop_map(|(len, solicited, invalidate)| Operation::Send {
            len,
            solicited,
            invalidate
        }),
        any::<bool>().prop_map(|solicited| Operation::Immediate { solicited }),
        (0..=MEMORY, 0..=MEMORY).prop_map(|(a, b)| Operation::Write { at: a.min(b), len: a.abs_diff(b) }),
        (0..=MEMORY, 0..=MEMORY, any::<bool>()).prop_map(|(a, b, registered)| Operation::Read {
            at: a.min(b),
            len: a.abs_diff(b),
            registered
        }),
        (0..MEMORY / 8, any::<u8>(), any::<u64>()).prop_map(|(at, kind, value)| Operation::Atomic {
            at: at * 8,
            kind,
            value
        }),
    ]
}

fn atomic(kind: u8, value: u64) -> Atomic {
    match kind % 3 {
        0 => Atomic::FetchAdd { add: value, mask: value.rotate_left(17) & u64::from(kind) },
        1 => Atomic::Swap { swap: value, mask: value.rotate_left(9) },
        _ => Atomic::CmpSwap { swap: value, mask: !0, compare: value, compare_mask: u64::from(kind) },
    }
}

#[derive(Debug, Clone)]
struct Wish {
    mpa: mpa::Options,
    max_fpdu: usize,
}

fn wish() -> impl Strategy<Value = Wish> {
    let crc = prop_oneof![Just(CrcPolicy::Never), Just(CrcPolicy::Prefer), Just(CrcPolicy::Require)];
    let rtr = prop_oneof![Just(None), Just(Some(Rtr::Send)), Just(Some(Rtr::Write)), Just(Some(Rtr::Read))];
    let max_fpdu = prop_oneof![Just(160usize), Just(576), Just(1460), Just(9000), Just(65536)];
    (crc, rtr, max_fpdu, any::<bool>(), 1..=2u8, 1..6u16, 1..6u16).prop_map(
        |(crc, rtr, max_fpdu, markers, revision, ird, ord)| {
            // Revision 1 does not negotiate depths: both sides must be configured alike.
            let (ird, ord, rtr) = if revision == 1 { (4, 4, None) } else { (ird, ord, rtr) };
            Wish { mpa: mpa::Options { revision, crc, markers, ird, ord, rtr }, max_fpdu }
        },
    )
}

fn connect(requester: &Wish, responder: &Wish) -> Option<(Agreed, Agreed)> {
    let mut asks = Requester::new(requester.mpa, b"private").expect("fits");
    let request = Responder::new().receive(&mut asks.request()).expect("good").expect("whole");
    let mut options = responder.mpa;
    if requester.mpa.revision == 1 {
        (options.ird, options.ord) = (4, 4);
    }
    let (reply, theirs) = request.accept(&options, b"answer").expect("fits");
    match asks.receive(&mut &reply[..]) {
        Ok(Some(Reply::Accepted { agreed, .. })) => Some((agreed, theirs)),
        other => panic!("{other:?}"),
    }
}

fn cut(wire: &[u8], cuts: &[usize], mut to: impl FnMut(&[u8])) {
    let mut rest = wire;
    let mut n = 0;
    while !rest.is_empty() {
        let len = cuts.get(n % cuts.len().max(1)).copied().unwrap_or(usize::MAX).clamp(1, rest.len());
        let (now, later) = rest.split_at(len);
        to(now);
        rest = later;
        n += 1;
    }
}

/// Carries bytes both ways until neither side has more to send.
fn settle(a: &mut Side, b: &mut Side, cuts: &[usize], most: usize) {
    loop {
        a.answer();
        b.answer();
        let (there, back) = (std::mem::take(&mut a.out), std::mem::take(&mut b.out));
        if there.is_empty() && back.is_empty() {
            return;
        }
        cut(&there, cuts, |bytes| b.receive(bytes, most).expect("good bytes"));
        assert!(back.is_empty() || b.stream.may_send());
        cut(&back, cuts, |bytes| a.receive(bytes, most).expect("good bytes"));
    }
}

/// `a` executes all operations on `b`'s memory; then both are checked.
fn round(a: &mut Side, b: &mut Side, operations: &[Operation], salt: u8, cuts: &[usize], most: usize) {
    let mut written = b.memory[WRITTEN].clone();
    let mut counted = b.memory[COUNTED].clone();
    let (mut messages, mut asked, mut originals) = (Vec::new(), Vec::new(), Vec::new());
    let mut reads = Vec::new();
    for (n, operation) in operations.iter().enumerate() {
        let id = n as u64;
        let byte = |i: usize| (i as u8).wrapping_mul(13).wrapping_add(salt).wrapping_add(n as u8);
        match *operation {
            Operation::Send { len, solicited, invalidate } => {
                b.stream.post_receives(1);
                let data: Vec<u8> = (0..len).map(byte).collect();
                let stag = invalidate.then(|| b.expose(10, 0, Rights::REMOTE_INVALIDATE));
                let index = invalidate.then(|| b.memory.len() as u32 - 1);
                messages.push(Seen::Message { data: data.clone(), solicited, invalidated: index });
                a.stream.send(data, SendFlags { invalidate: stag, solicited }, &mut a.out).expect("open");
            }
            Operation::Immediate { solicited } => {
                b.stream.post_receives(1);
                let data = [byte(0); 8];
                messages.push(Seen::Immediate(data, solicited));
                a.stream.immediate::<Vec<u8>>(data, solicited, &mut a.out).expect("open");
            }
            Operation::Write { at, len } => {
                let data: Vec<u8> = (0..len).map(byte).collect();
                written[at..at + len].copy_from_slice(&data);
                let remote = Remote { stag: b.stags[WRITTEN], to: 1 << 40 | at as u64 };
                a.stream.write(remote, data, &mut a.out).expect("open");
            }
            Operation::Read { at, len, registered } => {
                let remote = Remote { stag: b.stags[WRITTEN], to: 1 << 40 | at as u64 };
                let landing = match registered {
                    true => Landing::Registered { stag: a.stags[SINK], to: at as u64 },
                    false => Landing::Given,
                };
                a.lens.insert(id, len as u32);
                a.stream.read::<Vec<u8>>(remote, len as u32, landing, id, &mut a.out).expect("open");
                reads.push((id, at, len, registered));
                if len > 0 {
                    asked.push(Seen::Asked { index: WRITTEN as u32, offset: at as u64, len: len as u32 });
                }
            }
            Operation::Atomic { at, kind, value } => {
                let operation = atomic(kind, value);
                let place = &mut counted[at..at + 8];
                let original = u64::from_be_bytes(place.try_into().expect("eight bytes"));
                place.copy_from_slice(&operation.apply(original).to_be_bytes());
                originals.push(Seen::Atomic(id, original));
                let remote = Remote { stag: b.stags[COUNTED], to: at as u64 };
                a.stream.atomic::<Vec<u8>>(remote, operation, id, &mut a.out).expect("open");
            }
        }
    }
    let mut sink = a.memory[SINK].clone();
    settle(a, b, cuts, most);

    assert_eq!(b.memory[WRITTEN], written);
    assert_eq!(b.memory[COUNTED], counted);
    let seen = std::mem::take(&mut b.seen);
    let (was_asked, was_told): (Vec<_>, Vec<_>) =
        seen.into_iter().partition(|s| matches!(s, Seen::Asked { .. }));
    assert_eq!(was_asked, asked);
    assert_eq!(was_told, messages);
    let mut given = std::mem::take(&mut b.given).into_iter();
    let mut expected = Vec::new();
    for (id, at, len, registered) in reads {
        let data = if len > 0 { given.next().expect("one for each read") } else { Vec::new() };
        assert_eq!(data.len(), len);
        if registered {
            sink[at..at + len].copy_from_slice(&data);
            expected.push(Seen::Read(id, Vec::new()));
        } else {
            expected.push(Seen::Read(id, data));
        }
    }
    assert_eq!(a.memory[SINK], sink);
    let done = std::mem::take(&mut a.seen);
    let (read, atomics): (Vec<_>, Vec<_>) = done.into_iter().partition(|s| matches!(s, Seen::Read(..)));
    assert_eq!(read, expected);
    assert_eq!(atomics, originals);
    assert_eq!((a.stream.outstanding(), b.stream.unanswered()), (0, 0));
}

fn side(agreed: &Agreed, wish: &Wish, seed: u8) -> Side {
    let options = Options {
        max_fpdu: wish.max_fpdu,
        receive_size: RECEIVE,
        domain: DOMAIN,
        ..Options::new([seed; 16])
    };
    let mut side = Side::new(agreed, &options);
    side.expose(MEMORY, 1 << 40, Rights::REMOTE_WRITE | Rights::REMOTE_READ);
    side.expose(MEMORY, 0, Rights::REMOTE_ATOMIC);
    side.expose(MEMORY, 0, Rights::LOCAL_WRITE);
    side
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_both_ways_over_any_options_and_any_cuts_arrive(
        wishes in (wish(), wish()),
        rounds in proptest::collection::vec((any::<bool>(), proptest::collection::vec(operation(), 1..12)), 1..5),
        cuts in proptest::collection::vec(prop_oneof![1usize..40, 1usize..70_000], 1..6),
        most in prop_oneof![Just(usize::MAX), 1usize..3000],
    ) {
        let (ours, theirs) = connect(&wishes.0, &wishes.1).expect("both agree");
        prop_assert_eq!(ours.crc, theirs.crc);
        prop_assert_eq!((ours.send_markers, ours.receive_markers), (theirs.receive_markers, theirs.send_markers));
        prop_assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird);
        let mut a = side(&ours, &wishes.0, 1);
        let mut b = side(&theirs, &wishes.1, 2);
        a.stream.start::<Vec<u8>>(&mut a.out);
        let first = Operation::Immediate { solicited: false };
        round(&mut a, &mut b, &[first], 0, &cuts, most);
        for (n, (forth, operations)) in rounds.iter().enumerate() {
            if *forth {
                round(&mut a, &mut b, operations, n as u8, &cuts, most);
            } else {
                // A peer without IRD gets no reads.
                round(&mut b, &mut a, operations, n as u8, &cuts, most);
            }
        }
    }
}
