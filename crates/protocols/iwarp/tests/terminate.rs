//! Each rule that a peer can break ends in the Terminate that the RFCs name for it, without naming
//! memory.

mod common;

use common::{
    DOMAIN, Seen, Side, agreed, all_rights, fpdu, invalidating, options, read_request, tagged, untagged,
};
use iwarp::mpa::Role;
use iwarp::rdmap::{Atomic, Opcode, Terminate};
use iwarp::stag::{Domain, Rights, Stag};
use iwarp::stream::{Landing, Remote};
use zerocopy::IntoBytes;

/// STags of the side under test.
struct Stags {
    /// 4096 bytes at 0x1000, all rights.
    good: Stag,
    /// Like `good`, but only readable.
    read_only: Stag,
    /// Like `good`, but only writable.
    write_only: Stag,
    /// Like `good`, but of another domain.
    foreign: Stag,
    /// Ends at the last tagged offset.
    last: Stag,
    /// Invalidated.
    stale: Stag,
}

fn side() -> (Side, Stags) {
    let mut side = Side::plain();
    let stale = side.expose(4096, 0, all_rights());
    let stags = Stags {
        good: side.expose(4096, 0x1000, all_rights()),
        read_only: side.expose(4096, 0x1000, Rights::REMOTE_READ),
        write_only: side.expose(4096, 0x1000, Rights::REMOTE_WRITE),
        foreign: side.expose_in(4096, 0x1000, all_rights(), Domain(DOMAIN.0 + 1)),
        last: side.expose(16, u64::MAX - 15, all_rights()),
        stale,
    };
    side.withdraw(0);
    (side, stags)
}

fn write(stag: Stag, to: u64, len: usize) -> Vec<u8> {
    tagged(Opcode::Write, true, stag, to, &vec![0xee; len])
}

fn send(msn: u32, mo: u32, last: bool, len: usize) -> Vec<u8> {
    untagged(Opcode::Send, last, 0, msn, mo, &vec![0xee; len])
}

fn atomic(operation: Atomic, stag: Stag, to: u64) -> Vec<u8> {
    untagged(Opcode::AtomicRequest, true, 1, 1, 0, operation.request(9, stag.0, to).as_bytes())
}

/// The FPDU with one byte changed.
fn with(mut fpdu: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    fpdu[at] = byte;
    fpdu
}

type Case = (&'static str, fn(&Stags) -> Vec<Vec<u8>>, Terminate);

const ADD: Atomic = Atomic::FetchAdd { add: 1, mask: 0 };

/// All FPDUs before the last are valid; the last one causes the Terminate.
const CASES: &[Case] = &[
    (
        "DDP version of a tagged segment",
        |s| vec![with(write(s.good, 0x1000, 8), 2, 0xc0)],
        Terminate::TaggedVersion,
    ),
    (
        "DDP version of an untagged segment",
        |_| vec![with(send(1, 0, true, 8), 2, 0x42)],
        Terminate::UntaggedVersion,
    ),
    ("RDMAP version, tagged", |s| vec![with(write(s.good, 0x1000, 8), 3, 0x80)], Terminate::RdmapVersion),
    ("RDMAP version, untagged", |_| vec![with(send(1, 0, true, 8), 3, 0x03)], Terminate::RdmapVersion),
    ("an opcode that is nobody's", |_| vec![with(send(1, 0, true, 8), 3, 0x4c)], Terminate::UnexpectedOpcode),
    ("a tagged Send", |s| vec![with(write(s.good, 0x1000, 8), 3, 0x43)], Terminate::UnexpectedOpcode),
    ("an untagged Write", |_| vec![with(send(1, 0, true, 8), 3, 0x40)], Terminate::UnexpectedOpcode),
    (
        "a Read Response to no read",
        |s| vec![tagged(Opcode::ReadResponse, true, s.good, 0x1000, b"12345678")],
        { Terminate::UnexpectedOpcode },
    ),
    (
        "a Write under an STag never given",
        |_| vec![write(Stag(0xdead_beef), 0x1000, 8)],
        Terminate::TaggedInvalidStag,
    ),
    ("a Write under an STag taken back", |s| vec![write(s.stale, 0, 8)], Terminate::TaggedInvalidStag),
    ("a Write before the start", |s| vec![write(s.good, 0xfff, 8)], Terminate::TaggedBaseOrBounds),
    ("a Write past the end", |s| vec![write(s.good, 0x1ff9, 8)], Terminate::TaggedBaseOrBounds),
    ("a Write far past the end", |s| vec![write(s.good, 1 << 60, 8)], Terminate::TaggedBaseOrBounds),
    ("a Write of another domain", |s| vec![write(s.foreign, 0x1000, 8)], Terminate::TaggedNotAssociated),
    ("a Write without the right", |s| vec![write(s.read_only, 0x1000, 8)], Terminate::AccessRights),
    ("a Write that wraps", |s| vec![write(s.last, u64::MAX - 6, 8)], Terminate::TaggedToWrap),
    (
        "a Write that goes on elsewhere",
        |s| {
            vec![
                tagged(Opcode::Write, false, s.good, 0x1000, b"12345678"),
                tagged(Opcode::Write, true, s.good, 0x1010, b"12345678"),
            ]
        },
        Terminate::TaggedBaseOrBounds,
    ),
    (
        "a Write that overlaps itself",
        |s| {
            vec![
                tagged(Opcode::Write, false, s.good, 0x1000, b"12345678"),
                tagged(Opcode::Write, true, s.good, 0x1004, b"12345678"),
            ]
        },
        Terminate::TaggedBaseOrBounds,
    ),
    (
        "a Write that goes on under another STag",
        |s| {
            vec![
                tagged(Opcode::Write, false, s.good, 0x1000, b"12345678"),
                tagged(Opcode::Write, true, s.write_only, 0x1008, b"12345678"),
            ]
        },
        Terminate::TaggedInvalidStag,
    ),
    (
        "a Send on a queue that there is not",
        |_| vec![untagged(Opcode::Send, true, 4, 1, 0, b"x")],
        Terminate::InvalidQn,
    ),
    ("a Send on the read queue", |_| vec![untagged(Opcode::Send, true, 1, 1, 0, b"x")], Terminate::InvalidQn),
    (
        "a Read Request on the Send queue",
        |s| vec![with(read_request(1, 8, s.good, 0x1000), 11, 0)],
        Terminate::InvalidQn,
    ),
    ("a Send ahead of its turn", |_| vec![send(2, 0, true, 8)], Terminate::InvalidMsn),
    ("a Send once more", |_| vec![send(1, 0, true, 8), send(1, 0, true, 8)], Terminate::InvalidMsn),
    ("a Read Request ahead of its turn", |s| vec![read_request(2, 8, s.good, 0x1000)], Terminate::InvalidMsn),
    ("a Send from its middle", |_| vec![send(1, 8, true, 8)], Terminate::InvalidMo),
    ("a Send with a gap", |_| vec![send(1, 0, false, 8), send(1, 9, true, 8)], Terminate::InvalidMo),
    (
        "a Send that overlaps itself",
        |_| vec![send(1, 0, false, 8), send(1, 7, true, 8)],
        Terminate::InvalidMo,
    ),
    (
        "a Send's next message inside it",
        |_| vec![send(1, 0, false, 8), send(2, 0, true, 8)],
        Terminate::InvalidMsn,
    ),
    (
        "a Read Request's middle",
        |_| vec![untagged(Opcode::ReadRequest, true, 1, 1, 4, &[0; 28])],
        Terminate::InvalidMo,
    ),
    (
        "a Send beyond the posted receives",
        |_| vec![send(1, 0, true, 8), send(2, 0, true, 8), send(3, 0, true, 8)],
        Terminate::NoBuffer,
    ),
    (
        "Immediate Data beyond the posted receives",
        |_| {
            vec![
                send(1, 0, true, 8),
                send(2, 0, true, 8),
                untagged(Opcode::Immediate, true, 0, 3, 0, b"12345678"),
            ]
        },
        Terminate::NoBuffer,
    ),
    ("a Send longer than the receive", |_| vec![send(1, 0, true, 4097)], Terminate::TooLong),
    (
        "a Send that grows longer than the receive",
        |_| vec![send(1, 0, false, 4090), send(1, 4090, true, 7)],
        Terminate::TooLong,
    ),
    (
        "a Send that changes its kind",
        |_| vec![send(1, 0, false, 8), untagged(Opcode::SendSolicited, true, 0, 1, 8, b"x")],
        Terminate::UnexpectedOpcode,
    ),
    (
        "Immediate Data inside a Send",
        |_| vec![send(1, 0, false, 8), untagged(Opcode::Immediate, true, 0, 1, 8, b"12345678")],
        Terminate::UnexpectedOpcode,
    ),
    (
        "Immediate Data that is no eight bytes",
        |_| vec![untagged(Opcode::Immediate, true, 0, 1, 0, b"1234567")],
        Terminate::Malformed,
    ),
    (
        "a Read under an STag never given",
        |_| vec![read_request(1, 8, Stag(1), 0x1000)],
        Terminate::InvalidStag,
    ),
    ("a Read under an STag taken back", |s| vec![read_request(1, 8, s.stale, 0)], Terminate::InvalidStag),
    ("a Read past the end", |s| vec![read_request(1, 4097, s.good, 0x1000)], Terminate::BaseOrBounds),
    ("a Read before the start", |s| vec![read_request(1, 8, s.good, 0)], Terminate::BaseOrBounds),
    ("a Read without the right", |s| vec![read_request(1, 8, s.write_only, 0x1000)], Terminate::AccessRights),
    ("a Read of another domain", |s| vec![read_request(1, 8, s.foreign, 0x1000)], Terminate::NotAssociated),
    ("a Read that wraps", |s| vec![read_request(1, u32::MAX, s.last, u64::MAX - 7)], Terminate::ToWrap),
    (
        "a Read beyond the IRD",
        |s| (1..=5).map(|msn| read_request(msn, 8, s.good, 0x1000)).collect(),
        Terminate::NoBuffer,
    ),
    (
        "a Read Request that is too short",
        |_| vec![untagged(Opcode::ReadRequest, true, 1, 1, 0, &[0; 27])],
        Terminate::Malformed,
    ),
    (
        "a Read Request in several segments",
        |_| vec![untagged(Opcode::ReadRequest, false, 1, 1, 0, &[0; 28])],
        Terminate::Malformed,
    ),
    ("an Atomic under an STag never given", |_| vec![atomic(ADD, Stag(1), 0x1000)], Terminate::InvalidStag),
    ("an Atomic without the right", |s| vec![atomic(ADD, s.write_only, 0x1000)], Terminate::AccessRights),
    ("an Atomic past the end", |s| vec![atomic(ADD, s.good, 0x1ff9)], Terminate::BaseOrBounds),
    ("an Atomic that is not aligned", |s| vec![atomic(ADD, s.good, 0x1004)], Terminate::StreamCatastrophic),
    (
        "an Atomic of an unknown kind",
        |s| vec![with(atomic(ADD, s.good, 0x1000), 2 + 18 + 3, 0x0f)],
        Terminate::UnexpectedOpcode,
    ),
    (
        "an Atomic Response to no request",
        |_| vec![untagged(Opcode::AtomicResponse, true, 3, 1, 0, &[0; 12])],
        Terminate::UnexpectedOpcode,
    ),
    (
        "an STag to invalidate that was never given",
        |_| vec![invalidating(Stag(3), 1)],
        Terminate::InvalidateUnknown,
    ),
    (
        "an STag to invalidate that may not be",
        |s| vec![invalidating(s.read_only, 1)],
        Terminate::CannotInvalidate,
    ),
    (
        "an STag to invalidate of another domain",
        |s| vec![invalidating(s.foreign, 1)],
        Terminate::CannotInvalidate,
    ),
    (
        "an STag invalidated twice",
        |s| vec![invalidating(s.good, 1), invalidating(s.good, 2)],
        Terminate::InvalidateUnknown,
    ),
    (
        "a Write under an STag that was just invalidated",
        |s| vec![invalidating(s.good, 1), write(s.good, 0x1000, 8)],
        Terminate::TaggedInvalidStag,
    ),
    ("an FPDU of no bytes", |_| vec![fpdu(b"")], Terminate::Malformed),
    ("an FPDU shorter than a tagged header", |_| vec![fpdu(&[0xc1, 0x40, 0, 0])], Terminate::Malformed),
    ("an FPDU shorter than an untagged header", |_| vec![fpdu(&[0x41; 17])], Terminate::Malformed),
    (
        "a Terminate of three bytes",
        |_| vec![untagged(Opcode::Terminate, true, 2, 1, 0, b"123")],
        Terminate::Malformed,
    ),
    (
        "a Terminate that is too long",
        |_| vec![untagged(Opcode::Terminate, true, 2, 1, 0, &[0; 65])],
        Terminate::Malformed,
    ),
];

/// Feeds all FPDUs, `step` bytes at a time, and returns the error of the last one.
fn ending(fpdus: &[Vec<u8>], side: &mut Side, step: usize) -> Terminate {
    let (last, good) = fpdus.split_last().expect("a case");
    for fpdu in good {
        side.receive(fpdu, usize::MAX).expect("right so far");
    }
    let before = side.memory.clone();
    let error = last.chunks(step).find_map(|piece| side.receive(piece, usize::MAX).err()).expect("an error");
    assert_eq!(side.memory, before, "nothing of the bad segment is placed");
    error
}

#[test]
fn each_broken_rule_is_answered_with_its_terminate() {
    for (what, fpdus, expected) in CASES {
        for step in [1, 7, usize::MAX] {
            let (mut side, stags) = side();
            assert_eq!(ending(&fpdus(&stags), &mut side, step), *expected, "{what}, {step} bytes at a time");
            assert!(side.stream.is_over());
            assert_eq!(side.stream.step(&mut &b"more"[..]), Err(*expected), "{what}: an error is final");
        }
    }
}

#[test]
fn the_terminate_on_the_wire_has_its_code_and_the_headers_at_fault() {
    for (what, fpdus, expected) in CASES {
        let (mut side, stags) = side();
        let fpdus = fpdus(&stags);
        ending(&fpdus, &mut side, usize::MAX);
        side.out.clear();
        side.stream.terminate::<Vec<u8>>(*expected, &mut side.out);
        let wire = std::mem::take(&mut side.out);
        // ULPDU length, DDP header, then the Terminate Control field.
        assert_eq!(wire[2..4], [0x41, 0x47], "{what}");
        assert_eq!(wire[8..20], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0], "{what}");
        assert_eq!(wire[20..22], expected.code().to_be_bytes(), "{what}");
        let bad = fpdus.last().expect("a case");
        let ulpdu_len = usize::from(u16::from_be_bytes([bad[0], bad[1]]));
        if wire[22] & 0x40 != 0 {
            let header_len = if bad[2] & 0x80 != 0 { 14 } else { 18 };
            assert_eq!(usize::from(u16::from_be_bytes([wire[24], wire[25]])), ulpdu_len, "{what}");
            assert_eq!(wire[26..26 + header_len], bad[2..2 + header_len], "{what}");
            if wire[22] & 0x20 != 0 {
                assert_eq!(bad[3], 0x41, "{what}: RDMAP's header is a Read Request's");
                assert_eq!(wire[26 + 18..26 + 18 + 28], bad[20..48], "{what}");
            }
        } else {
            assert_eq!(
                *expected,
                Terminate::Malformed,
                "{what}: only a segment without a header has none to tell"
            );
        }
        // A peer decodes it, and its stream ends too.
        let mut peer = Side::new(&agreed(Role::Requester, false, false, false), &options(1));
        peer.receive(&wire, usize::MAX).expect("a good Terminate");
        assert_eq!(peer.seen, [Seen::Terminated(expected.code())], "{what}");
        assert!(peer.stream.is_over());
        // It is sent only once.
        side.stream.terminate::<Vec<u8>>(*expected, &mut side.out);
        assert!(side.out.is_empty());
    }
}

#[test]
fn a_bad_read_requests_own_header_goes_along() {
    let (mut side, _) = side();
    let bad = read_request(1, 8, Stag(1), 0x1000);
    ending(&[bad], &mut side, usize::MAX);
    side.stream.terminate::<Vec<u8>>(Terminate::InvalidStag, &mut side.out);
    assert_eq!(side.out[22], 0xe0);
}

#[test]
fn the_header_of_a_write_whose_stag_is_taken_back_half_way_goes_along() {
    let (mut side, stags) = side();
    let bad = write(stags.good, 0x1000, 100);
    let index = side.stags.iter().position(|stag| *stag == stags.good).expect("an STag");
    side.receive(&bad[..50], usize::MAX).expect("right so far");
    side.withdraw(index);
    assert_eq!(side.receive(&bad[50..], usize::MAX), Err(Terminate::TaggedInvalidStag));
    side.stream.terminate::<Vec<u8>>(Terminate::TaggedInvalidStag, &mut side.out);
    assert_eq!(side.out[20..26], [0x11, 0x00, 0xc0, 0, 0, 114]);
    assert_eq!(side.out[26..40], bad[2..16]);
}

#[test]
fn a_wrong_crc_ends_the_stream_before_its_payload_is_named() {
    for step in [1, 5, usize::MAX] {
        let mut side = Side::new(&agreed(Role::Responder, true, false, false), &options(7));
        side.stream.post_receives(1);
        let mut wire = send(1, 0, true, 50);
        *wire.last_mut().expect("bytes") ^= 1;
        let error = wire.chunks(step).find_map(|piece| side.receive(piece, usize::MAX).err());
        assert_eq!(error, Some(Terminate::Crc));
        assert!(side.seen.is_empty());
        if step == usize::MAX {
            assert_eq!(side.placed, 0);
        }
        side.stream.terminate::<Vec<u8>>(Terminate::Crc, &mut side.out);
        assert_eq!(side.out[20..24], [0x20, 0x02, 0, 0]);
    }
}

#[test]
fn without_crc_its_field_is_not_looked_at() {
    let mut side = Side::plain();
    let mut wire = send(1, 0, true, 50);
    let at = wire.len() - 4;
    wire[at..].fill(0x99);
    side.receive(&wire, usize::MAX).expect("not checked");
    assert_eq!(side.seen.len(), 1);
}

#[test]
fn a_marker_that_points_elsewhere_ends_the_stream() {
    let mut peer = Side::new(&agreed(Role::Requester, false, true, false), &options(1));
    peer.stream.send(vec![1; 2000], Default::default(), &mut peer.out).expect("open");
    // Markers of the first FPDU: at 0 and every 512 bytes.
    for at in [0, 512, 1024, 1536] {
        let mut side = Side::new(&agreed(Role::Responder, false, false, true), &options(7));
        side.stream.post_receives(1);
        let mut wire = peer.out.clone();
        wire[at + 3] ^= 4;
        assert_eq!(side.receive(&wire, usize::MAX), Err(Terminate::Marker), "at {at}");
        assert!(side.seen.is_empty());
    }
}

#[test]
fn a_read_response_must_be_the_oldest_reads() {
    let respond = |stag_off: u32, to_off: u64, last, len: usize| {
        let mut reader = Side::new(&agreed(Role::Requester, false, false, false), &options(1));
        let remote = Remote { stag: Stag(77), to: 0 };
        for id in [1, 2] {
            reader.lens.insert(id, 100);
            reader.stream.read::<Vec<u8>>(remote, 100, Landing::Given, id, &mut reader.out).expect("open");
        }
        let stag = u32::from_be_bytes(reader.out[20..24].try_into().expect("four bytes"));
        let to = u64::from_be_bytes(reader.out[24..32].try_into().expect("eight bytes"));
        let wire = tagged(
            Opcode::ReadResponse,
            last,
            Stag(stag.wrapping_add(stag_off)),
            to.wrapping_add(to_off),
            &vec![0; len],
        );
        reader.receive(&wire, usize::MAX).map(|()| reader.seen)
    };
    assert_eq!(respond(0, 0, true, 100), Ok(vec![Seen::Read(1, vec![0; 100])]));
    assert_eq!(respond(0, 0, false, 60), Ok(vec![]));
    assert_eq!(respond(1, 0, true, 100), Err(Terminate::TaggedInvalidStag));
    assert_eq!(respond(0, 100, true, 100), Err(Terminate::TaggedBaseOrBounds), "the second before the first");
    assert_eq!(respond(0, 1, false, 60), Err(Terminate::TaggedBaseOrBounds));
    assert_eq!(respond(0, 0, true, 101), Err(Terminate::TaggedBaseOrBounds), "too much");
    assert_eq!(respond(0, 0, true, 99), Err(Terminate::TaggedBaseOrBounds), "too little");
    assert_eq!(respond(0, 0, false, 100), Err(Terminate::TaggedBaseOrBounds), "no end");
}
