//! The attacks of docs/src/design/rdma-security.md, one test each, with the names used there.
//! `Side` panics when a step names a byte outside posted or registered memory, so every test here
//! also checks that.

mod common;

use common::{DOMAIN, Seen, Side, agreed, all_rights, invalidating, options, read_request, tagged, untagged};
use iwarp::mpa::{FrameError, Responder, Role};
use iwarp::rdmap::{Opcode, Terminate};
use iwarp::stag::{Domain, Registration, Rights, Stag};
use iwarp::stream::{Landing, Options, PostError, Remote, SendFlags, Step, Stream};
use proptest::prelude::*;

fn write(stag: Stag, to: u64, bytes: &[u8]) -> Vec<u8> {
    tagged(Opcode::Write, true, stag, to, bytes)
}

#[test]
fn guessing_an_stag_ends_the_connection_at_the_first_guess() {
    let mut guess = 0x1234_5678u32;
    for seed in 0..=255 {
        for other in 0..8u8 {
            let mut bytes = [seed; 16];
            bytes[0] = other;
            let mut side = Side::new(
                &agreed(Role::Responder, false, false, false),
                &Options { seed: bytes, ..options(0) },
            );
            for _ in 0..16 {
                side.expose(64, 0, all_rights());
            }
            guess = guess.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(
                side.receive(&write(Stag(guess), 0, &[0xff; 64]), usize::MAX),
                Err(Terminate::TaggedInvalidStag)
            );
            // A later request fails too.
            let good = side.stags[0];
            assert_eq!(
                side.receive(&write(good, 0, &[0xff; 64]), usize::MAX),
                Err(Terminate::TaggedInvalidStag)
            );
            assert_eq!(side.placed, 0);
        }
    }
}

#[test]
fn an_stag_of_another_connection_is_nothing_here() {
    let mut mine = Side::plain();
    let stag = mine.expose(4096, 0, all_rights());
    let mut victim = Side::new(&agreed(Role::Responder, false, false, false), &options(8));
    victim.expose(4096, 0, all_rights());
    assert_eq!(victim.receive(&write(stag, 0, b"evil"), usize::MAX), Err(Terminate::TaggedInvalidStag));
}

#[test]
fn known_stags_do_not_tell_the_next_one() {
    // Neither the difference of two STags nor any single bit predicts the next STag: each of 32
    // bits changes about every other time.
    let mut side = Side::new(&agreed(Role::Responder, false, false, false), &options(3));
    let stags: Vec<u32> = (0..2000).map(|_| side.expose(1, 0, Rights::REMOTE_READ).0).collect();
    for bit in 0..32 {
        let changes = stags.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
        assert!((850..1150).contains(&changes), "bit {bit} changed {changes} times");
    }
    let mut steps: Vec<u32> = stags.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() > 1990);
}

#[test]
fn writing_past_either_end_of_a_buffer_writes_nothing() {
    for (to, len) in [
        (0xfff, 1),
        (0xfff, 4098),
        (0x1000, 4097),
        (0x1fff, 2),
        (0x2000, 1),
        (0, 64),
        (u64::MAX, 1),
        (u64::MAX - 62, 64),
        (0x1000 + (1 << 32), 16),
    ] {
        let mut side = Side::plain();
        let stag = side.expose(4096, 0x1000, all_rights());
        let before = side.memory.clone();
        assert!(side.receive(&write(stag, to, &vec![0xff; len]), usize::MAX).is_err(), "{to:#x} {len}");
        assert_eq!(side.memory, before);
    }
}

#[test]
fn a_write_whose_offset_wraps_writes_nothing() {
    let mut side = Side::plain();
    let stag = side.expose(16, u64::MAX - 15, all_rights());
    side.receive(&write(stag, u64::MAX - 15, &[1; 16]), usize::MAX)
        .expect("the last 16 bytes that there are");
    assert_eq!(side.receive(&write(stag, u64::MAX - 14, &[2; 16]), usize::MAX), Err(Terminate::TaggedToWrap));
    assert_eq!(side.memory[0], [1; 16]);
}

#[test]
fn writing_a_buffer_that_was_taken_back_writes_nothing() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, all_rights());
    side.receive(&write(stag, 0, b"in time"), usize::MAX).expect("still registered");
    side.withdraw(0);
    assert_eq!(side.receive(&write(stag, 0, b"too late"), usize::MAX), Err(Terminate::TaggedInvalidStag));
    assert_eq!(side.memory[0][..8], *b"in time\xd9");
}

#[test]
fn a_buffer_taken_back_while_payload_for_it_arrives_gets_no_more_of_it() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, all_rights());
    let wire = write(stag, 0, &[0xff; 4096]);
    side.receive(&wire[..1000], usize::MAX).expect("good so far");
    let placed = side.placed;
    assert!(placed > 900);
    side.withdraw(0);
    assert_eq!(side.receive(&wire[1000..], usize::MAX), Err(Terminate::TaggedInvalidStag));
    assert_eq!(side.placed, placed);
}

#[test]
fn writing_a_buffer_offered_for_reading_only_writes_nothing() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, Rights::REMOTE_READ | Rights::LOCAL_WRITE);
    assert_eq!(side.receive(&write(stag, 0, b"evil"), usize::MAX), Err(Terminate::AccessRights));
}

#[test]
fn writing_the_buffer_that_our_read_fills_writes_nothing() {
    let mut side = Side::new(&agreed(Role::Requester, false, false, false), &options(7));
    let sink = side.expose(4096, 0, Rights::LOCAL_WRITE);
    let landing = Landing::Registered { stag: sink, to: 0 };
    side.lens.insert(1, 100);
    side.stream
        .read::<Vec<u8>>(Remote { stag: Stag(9), to: 0 }, 100, landing, 1, &mut side.out)
        .expect("open");
    // The peer has seen the sink's STag in the request; a Write under it isn't the read's response.
    assert_eq!(side.receive(&write(sink, 0, b"evil"), usize::MAX), Err(Terminate::AccessRights));
}

#[test]
fn the_name_of_data_read_by_reference_cannot_be_written() {
    let mut side = Side::new(&agreed(Role::Requester, false, false, false), &options(7));
    side.lens.insert(1, 100);
    side.stream
        .read::<Vec<u8>>(Remote { stag: Stag(9), to: 0 }, 100, Landing::Given, 1, &mut side.out)
        .expect("open");
    let name = Stag(u32::from_be_bytes(side.out[20..24].try_into().expect("four bytes")));
    assert_eq!(side.receive(&write(name, 0, b"evil"), usize::MAX), Err(Terminate::TaggedInvalidStag));
}

#[test]
fn a_read_response_longer_than_the_read_overruns_nothing() {
    for landing in [false, true] {
        let mut side = Side::new(&agreed(Role::Requester, false, false, false), &options(7));
        let sink = side.expose(4096, 0, Rights::LOCAL_WRITE);
        let landing = if landing { Landing::Registered { stag: sink, to: 0 } } else { Landing::Given };
        side.lens.insert(1, 100);
        side.stream
            .read::<Vec<u8>>(Remote { stag: Stag(9), to: 0 }, 100, landing, 1, &mut side.out)
            .expect("open");
        let name = Stag(u32::from_be_bytes(side.out[20..24].try_into().expect("four bytes")));
        let to = u64::from_be_bytes(side.out[24..32].try_into().expect("eight bytes"));
        side.receive(&tagged(Opcode::ReadResponse, false, name, to, &[1; 60]), usize::MAX)
            .expect("60 of 100");
        let error = side.receive(&tagged(Opcode::ReadResponse, true, name, to + 60, &[1; 41]), usize::MAX);
        assert_eq!(error, Err(Terminate::TaggedBaseOrBounds));
        assert_eq!(side.placed, 60);
    }
}

#[test]
fn reading_past_the_end_or_what_is_not_offered_reads_nothing() {
    for (rights, to, len, error) in [
        (all_rights(), 0, 4097, Terminate::BaseOrBounds),
        (all_rights(), 4096, 1, Terminate::BaseOrBounds),
        (all_rights(), 1, u32::MAX, Terminate::BaseOrBounds),
        (all_rights(), u64::MAX - 1, 4, Terminate::ToWrap),
        (Rights::REMOTE_WRITE, 0, 4, Terminate::AccessRights),
    ] {
        let mut side = Side::plain();
        let stag = side.expose(4096, 0, rights);
        assert_eq!(side.receive(&read_request(1, len, stag, to), usize::MAX), Err(error));
        assert!(side.seen.is_empty());
        side.stream.flush::<Vec<u8>>(&mut side.out);
        assert!(side.out.is_empty());
    }
}

#[test]
fn reading_a_buffer_that_was_taken_back_reads_nothing() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, all_rights());
    side.withdraw(0);
    assert_eq!(side.receive(&read_request(1, 8, stag, 0), usize::MAX), Err(Terminate::InvalidStag));
}

#[test]
fn another_protection_domain_is_out_of_reach_for_every_operation() {
    let other = Domain(DOMAIN.0 + 1);
    let reach = |wire: fn(Stag) -> Vec<u8>| {
        let mut side = Side::plain();
        let stag = side.expose_in(4096, 0, all_rights(), other);
        side.receive(&wire(stag), usize::MAX).expect_err("out of reach")
    };
    assert_eq!(reach(|stag| write(stag, 0, b"evil")), Terminate::TaggedNotAssociated);
    assert_eq!(reach(|stag| read_request(1, 8, stag, 0)), Terminate::NotAssociated);
    assert_eq!(reach(|stag| invalidating(stag, 1)), Terminate::CannotInvalidate);
    let mut side = Side::plain();
    let stag = side.expose_in(4096, 0, all_rights(), other);
    let landing = Landing::Registered { stag, to: 0 };
    let read = side.stream.read::<Vec<u8>>(Remote { stag, to: 0 }, 8, landing, 1, &mut side.out);
    assert!(matches!(read, Err(PostError::Landing(_))));
}

#[test]
fn a_flood_of_sends_beyond_the_posted_receives_is_not_buffered() {
    let mut side = Side::plain();
    let mut wire = Vec::new();
    for msn in 1..=1000 {
        wire.extend_from_slice(&untagged(Opcode::Send, true, 0, msn, 0, &[0xee; 4096]));
    }
    assert_eq!(side.receive(&wire, usize::MAX), Err(Terminate::NoBuffer));
    assert_eq!((side.seen.len(), side.placed), (2, 2 * 4096));
}

#[test]
fn a_message_longer_than_its_receive_never_passes_the_buffer() {
    let mut side = Side::plain();
    for n in 0..4 {
        side.receive(&untagged(Opcode::Send, false, 0, 1, n * 1024, &[0xee; 1024]), usize::MAX)
            .expect("fits");
    }
    let error = side.receive(&untagged(Opcode::Send, false, 0, 1, 4096, &[0xee; 1]), usize::MAX);
    assert_eq!(error, Err(Terminate::TooLong));
    assert_eq!(side.placed, 4096);
}

#[test]
fn messages_without_end_or_bytes_change_nothing() {
    let mut side = Side::plain();
    for _ in 0..10_000 {
        side.receive(&untagged(Opcode::Send, false, 0, 1, 0, b""), usize::MAX).expect("allowed");
    }
    assert!(side.seen.is_empty());
    assert_eq!(side.stream.receives(), 2);
}

#[test]
fn a_flood_of_reads_is_held_by_the_ird() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, all_rights());
    for len in [8, 0] {
        for n in 1..=4 {
            let msn = if len == 8 { n } else { n + 4 };
            side.receive(&read_request(msn, len, stag, 0), usize::MAX).expect("within the IRD");
        }
        assert_eq!(side.stream.unanswered(), 4);
        if len == 8 {
            side.answer();
            assert_eq!(side.stream.unanswered(), 0);
        }
    }
    assert_eq!(side.receive(&read_request(9, 0, stag, 0), usize::MAX), Err(Terminate::NoBuffer));
    assert_eq!(side.stream.unanswered(), 4);
}

#[test]
fn responses_to_nothing_and_unknown_operations_end_the_connection() {
    for wire in [
        tagged(Opcode::ReadResponse, true, Stag(1), 0, b"12345678"),
        tagged(Opcode::ReadResponse, true, Stag(1), 0, b""),
        untagged(Opcode::AtomicResponse, true, 3, 1, 0, &[0; 12]),
    ] {
        assert_eq!(Side::plain().receive(&wire, usize::MAX), Err(Terminate::UnexpectedOpcode));
    }
}

#[test]
fn replayed_reordered_and_overlapping_segments_end_the_connection() {
    let first = untagged(Opcode::Send, false, 0, 1, 0, &[1; 100]);
    let second = untagged(Opcode::Send, true, 0, 1, 100, &[2; 100]);
    for (order, error) in [
        (vec![&second], Terminate::InvalidMo),
        (vec![&first, &first], Terminate::InvalidMo),
        (vec![&first, &second, &second], Terminate::InvalidMsn),
        (vec![&first, &second, &first], Terminate::InvalidMsn),
    ] {
        let mut side = Side::plain();
        let (last, good) = order.split_last().expect("some");
        for wire in good {
            side.receive(wire, usize::MAX).expect("in order");
        }
        assert_eq!(side.receive(last, usize::MAX), Err(error));
    }
}

#[test]
fn taking_back_an_stag_that_the_peer_was_not_allowed_to_leaves_it() {
    for rights in [Rights::REMOTE_WRITE, Rights::REMOTE_READ, Rights::NONE] {
        let mut side = Side::plain();
        let stag = side.expose(4096, 0, rights);
        assert_eq!(side.receive(&invalidating(stag, 1), usize::MAX), Err(Terminate::CannotInvalidate));
        assert!(side.stream.stags().get(stag).is_some());
        assert!(side.seen.is_empty(), "nobody is told of an invalidation that was not");
    }
}

#[test]
fn an_atomic_needs_its_own_right() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, Rights::REMOTE_READ | Rights::REMOTE_WRITE);
    let mut body = vec![0; 52];
    body[8..12].copy_from_slice(&stag.0.to_be_bytes());
    let wire = untagged(Opcode::AtomicRequest, true, 1, 1, 0, &body);
    assert_eq!(side.receive(&wire, usize::MAX), Err(Terminate::AccessRights));
}

#[test]
fn registrations_are_bounded() {
    let mut side =
        Side::new(&agreed(Role::Responder, false, false, false), &Options { max_stags: 10, ..options(7) });
    for _ in 0..10 {
        side.expose(1, 0, all_rights());
    }
    let more = Registration { index: 0, base: 0, len: 1, rights: Rights::NONE, domain: DOMAIN };
    assert!(side.stream.register(more).is_err());
}

#[test]
fn our_own_reads_that_a_peer_never_answers_are_bounded() {
    let mut side =
        Side::new(&agreed(Role::Requester, false, false, false), &Options { max_queued: 10, ..options(7) });
    let remote = Remote { stag: Stag(1), to: 0 };
    let posted = (0..100)
        .take_while(|&id| side.stream.read::<Vec<u8>>(remote, 8, Landing::Given, id, &mut side.out).is_ok())
        .count();
    assert_eq!(posted, 4 + 10, "the ORD, and the queue behind it");
    assert_eq!(side.stream.outstanding(), posted);
    let refused = side.stream.read::<Vec<u8>>(remote, 8, Landing::Given, 0, &mut side.out);
    assert_eq!(refused, Err(PostError::Queue));
}

#[test]
fn a_terminate_at_any_time_ends_the_stream_and_nothing_after_it_counts() {
    let mut side = Side::plain();
    let stag = side.expose(4096, 0, all_rights());
    let terminate = untagged(Opcode::Terminate, true, 2, 1, 0, &[0x11, 0x01, 0, 0]);
    let half = untagged(Opcode::Send, false, 0, 1, 0, &[1; 100]);
    let wire = [half, terminate, write(stag, 0, b"evil")].concat();
    side.receive(&wire, usize::MAX).expect("a Terminate is no error of ours");
    assert_eq!(side.seen, [Seen::Terminated(0x1101)]);
    assert_eq!(side.placed, 100);
    let sent = side.stream.send(b"x".to_vec(), SendFlags::default(), &mut side.out);
    assert_eq!(sent, Err(PostError::Over));
    side.stream.terminate::<Vec<u8>>(Terminate::LocalCatastrophic, &mut side.out);
    assert!(side.out.is_empty(), "a Terminate is not answered");
}

#[test]
fn a_startup_frame_of_endless_private_data_is_not_collected() {
    let mut responder = Responder::new();
    let mut frame = b"MPA ID Req Frame\x00\x01\xff\xff".to_vec();
    frame.resize(70_000, 0);
    assert_eq!(responder.receive(&mut &frame[..]), Err(FrameError::TooLong(65_535).into()));
}

/// A requester's byte stream with every operation, and the responder that received it.
fn everything(crc: bool, markers: bool) -> (Vec<u8>, Side) {
    let mut side = Side::new(&agreed(Role::Responder, crc, false, markers), &options(7));
    side.stream.post_receives(4);
    let stag = side.expose(4096, 0x1000, all_rights());
    side.expose(4096, 0x1000, Rights::LOCAL_WRITE);
    side.expose(4096, 0x1000, Rights::REMOTE_READ);
    let peer = &mut Stream::new(
        &agreed(Role::Requester, crc, markers, false),
        &Options { max_fpdu: 700, ..options(1) },
    );
    let remote = Remote { stag, to: 0x1000 };
    let mut wire = Vec::new();
    peer.send(vec![1; 1500], SendFlags::default(), &mut wire).expect("open");
    peer.write(remote, vec![2; 2000], &mut wire).expect("open");
    peer.read::<Vec<u8>>(remote, 300, Landing::Given, 1, &mut wire).expect("open");
    peer.immediate::<Vec<u8>>([3; 8], true, &mut wire).expect("open");
    peer.write(Remote { stag, to: 0x1900 }, vec![4; 100], &mut wire).expect("open");
    peer.send(vec![5; 50], SendFlags { invalidate: Some(stag), solicited: true }, &mut wire).expect("open");
    (wire, side)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_corruption_never_panics_nor_writes_out_of_range(
        crc: bool,
        markers: bool,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0..3u8), 1..8),
        cut in 1usize..3000,
        most in 1usize..2000,
    ) {
        let (mut wire, mut side) = everything(crc, markers);
        for (at, byte, kind) in changes {
            let at = at.index(wire.len());
            match kind {
                0 => wire[at] = byte,
                1 => wire.insert(at, byte),
                _ => drop(wire.remove(at)),
            }
        }
        let untouched = (side.memory[1].clone(), side.memory[2].clone());
        for piece in wire.chunks(cut) {
            if let Err(error) = side.receive(piece, most) {
                side.stream.terminate::<Vec<u8>>(error, &mut side.out);
                prop_assert!(!side.out.is_empty());
                break;
            }
            side.answer();
        }
        prop_assert_eq!((&side.memory[1], &side.memory[2]), (&untouched.0, &untouched.1));
    }

    #[test]
    fn under_crc_no_flipped_bit_is_believed(
        at: proptest::sample::Index,
        bit in 0..8u8,
        markers: bool,
        cut in prop_oneof![Just(usize::MAX), 1usize..3000],
    ) {
        let (mut wire, mut good) = everything(true, markers);
        good.receive(&wire, usize::MAX).expect("not corrupted");
        let (_, mut side) = everything(true, markers);
        let at = at.index(wire.len());
        wire[at] ^= 1 << bit;
        let ended = wire.chunks(cut).find_map(|piece| side.receive(piece, usize::MAX).err());
        // Either an error, or a corrupted length that waits for more bytes. All events reported
        // before are correct.
        prop_assert!(ended.is_some() || side.seen.len() < good.seen.len());
        prop_assert_eq!(&side.seen[..], &good.seen[..side.seen.len()]);
    }

    #[test]
    fn random_segments_never_name_memory_out_of_range(
        segments in proptest::collection::vec(
            (0..16u8, any::<bool>(), any::<bool>(), 0..5u32, 0..4u32, 0..5000u32, any::<u64>(), 0..5000usize), 1..20),
    ) {
        let mut side = Side::plain();
        let stags = [
            side.expose(4096, 0, all_rights()),
            side.expose(64, u64::MAX - 63, all_rights()),
            side.expose(64, 0, Rights::REMOTE_READ),
        ];
        for (opcode, is_tagged, last, which, msn, mo, to, len) in segments {
            let Some(opcode) = Opcode::from_bits(opcode) else { continue };
            let stag = stags.get(which as usize).copied().unwrap_or(Stag(which));
            let to = if to % 3 == 0 { to } else { to % 8192 };
            let payload = vec![0xab; len];
            let wire = match is_tagged {
                true => tagged(opcode, last, stag, to, &payload),
                false if opcode == Opcode::ReadRequest => read_request(msn, len as u32, stag, to),
                false => untagged(opcode, last, which, msn, mo, &payload),
            };
            if side.receive(&wire, usize::MAX).is_err() {
                break;
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), crc: bool, markers: bool) {
        let mut side = Side::new(&agreed(Role::Responder, crc, false, markers), &options(7));
        side.stream.post_receives(3);
        side.expose(4096, 0, all_rights());
        let mut input = &bytes[..];
        if side.receive(input, usize::MAX).is_err() {
            prop_assert!(side.stream.step(&mut input).is_err());
        } else {
            let waits = matches!(side.stream.step(&mut &b""[..]), Ok(Step::More | Step::Payload { here: 0, .. }));
            prop_assert!(waits);
        }
    }
}
