//! Steps over emitted PDUs, whole and in pieces, corrupt and hostile.

use proptest::prelude::*;

use super::*;
use crate::frame::{emit_header, emit_pdu};
use crate::pdu::{DataOut, Lun, NopOut, RESERVED_TAG, ScsiCommand, TaskAttribute};

const PLAIN: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn limits(digests: Digests) -> Limits {
    Limits { digests, max_data_segment: 262_144, max_ahs: ahs::MAX_LEN, resync: false }
}

fn read_10() -> ScsiCommand {
    let mut command =
        ScsiCommand::new(0x1400_0000, Lun::ZERO, TaskAttribute::Untagged, &[0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    command.set_read(true);
    command.edtl.set(0x0400);
    command.cmd_sn.set(0x14);
    command.exp_stat_sn.set(0x18);
    command
}

fn emitted(bhs: impl Into<Bhs>, ahs: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    emit_pdu(&mut bhs.into(), ahs, data, digests, &mut out);
    out
}

/// Output of a stream for `bytes`, which arrive in pieces of the lengths `pieces` in turn.
fn read(limits: Limits, bytes: &[u8], pieces: &[usize]) -> (Vec<Owned>, usize, Option<FrameError>) {
    let mut stream = Stream::new(limits);
    let (mut all, mut dropped, mut data) = (Vec::new(), 0, Vec::new());
    let mut pieces = pieces.iter().cycle();
    let mut left = bytes;
    while !left.is_empty() {
        let (mut input, rest) = left.split_at(left.len().min(*pieces.next().expect("there is one")));
        left = rest;
        loop {
            let (pdu, intact) = match stream.step(&mut input) {
                Err(error) => return (all, dropped, Some(error)),
                Ok(Step::More) => break,
                Ok(Step::Payload { here: 0, .. }) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Step::Payload { offset, here, .. }) => {
                    assert_eq!(offset, data.len());
                    // Less than is there: the rest is named once more.
                    let (bytes, rest) = input.split_at(here.div_ceil(2));
                    data.extend_from_slice(bytes);
                    stream.took(bytes);
                    input = rest;
                    continue;
                }
                Ok(Step::Dropped) => {
                    dropped += 1;
                    continue;
                }
                Ok(Step::Pdu(pdu)) => {
                    assert!(data.is_empty());
                    (pdu, true)
                }
                Ok(Step::Taken(pdu)) => (pdu, true),
                Ok(Step::Damaged(pdu)) => (pdu, false),
            };
            data.extend_from_slice(pdu.data);
            let trailer = pdu.trailer.iter().copied().collect();
            let data = std::mem::take(&mut data);
            all.push(Owned { bhs: *pdu.bhs, ahs: pdu.ahs.to_vec(), data, trailer, intact });
        }
    }
    (all, dropped, None)
}

#[test]
fn the_read_command_of_appendix_a_4_ends_in_the_digest_given_there() {
    let out = emitted(read_10(), &[], &[], BOTH);
    assert_eq!(out.len(), 52);
    assert_eq!(out[48..], [0x56, 0x3a, 0x96, 0xd9]);
}

#[test]
fn a_pdu_without_data_has_no_data_digest() {
    let digests = Digests { header: false, data: true };
    let out = emitted(NopOut::ping(1), &[], &[], digests);
    assert_eq!(out.len(), BHS_LEN);
    let mut stream = Stream::new(limits(digests));
    assert!(matches!(stream.step(&mut &out[..]), Ok(Step::Pdu(pdu)) if pdu.data.is_empty()));
    assert!(stream.is_between());
}

#[test]
fn a_wrong_header_digest_ends_a_stream_that_does_not_resync() {
    let mut out = emitted(NopOut::ping(1), &[], b"ping", BOTH);
    out[7] ^= 0x10;
    assert_eq!(read(limits(BOTH), &out, &[1000]).2, Some(FrameError::HeaderDigest));
    assert_eq!(read(limits(BOTH), &out, &[1]).2, Some(FrameError::HeaderDigest));
}

#[test]
fn a_wrong_header_digest_costs_one_pdu_if_the_next_is_right() {
    let resync = Limits { resync: true, max_data_segment: 8192, ..limits(BOTH) };
    let mut out = Vec::new();
    for tag in 0..6 {
        out.extend(emitted(NopOut::ping(tag), &[], b"pings"[..tag as usize % 6].into(), BOTH));
    }
    let one = |tag: u32| emitted(NopOut::ping(tag), &[], &b"pings"[..tag as usize % 6], BOTH).len();
    let start = |tag: u32| (0..tag).map(one).sum::<usize>();
    for pieces in [&[1000][..], &[1], &[7, 50]] {
        let mut bytes = out.clone();
        bytes[start(1) + 50] ^= 1;
        bytes[start(3) + 20] ^= 1;
        let (pdus, dropped, error) = read(resync, &bytes, pieces);
        assert_eq!((pdus.len(), dropped, error), (4, 2, None));
        assert_eq!(pdus.iter().map(|pdu| pdu.bhs.itt()).collect::<Vec<_>>(), [0, 2, 4, 5]);
        bytes[start(2) + 50] ^= 1;
        let (pdus, dropped, error) = read(resync, &bytes, pieces);
        assert_eq!((pdus.len(), dropped, error), (1, 1, Some(FrameError::HeaderDigest)), "twice in a row");
        bytes[start(1) + 6] = 0x7f;
        let (_, dropped, error) = read(resync, &bytes, pieces);
        assert_eq!((dropped, error), (0, Some(FrameError::HeaderDigest)), "longer than any PDU");
    }
}

#[test]
fn a_wrong_data_digest_costs_one_pdu() {
    let mut out = emitted(NopOut::ping(1), &[], b"pings", BOTH);
    out[52] ^= 1;
    out.extend(emitted(NopOut::ping(2), &[], b"", BOTH));
    for pieces in [[1000], [1], [54]] {
        let (pdus, _, error) = read(limits(BOTH), &out, &pieces);
        let told: Vec<_> = pdus.iter().map(|pdu| (pdu.bhs.itt(), pdu.intact)).collect();
        assert_eq!((&told[..], error), (&[(1, false), (2, true)][..], None));
    }
    let bhs = *Bhs::ref_from(&out).expect("a header");
    assert_eq!(super::pdus(limits(BOTH), &out), Err(FrameError::DataDigest { bhs }));
}

#[test]
fn padding_is_covered_by_the_data_digest_as_it_came() {
    let digests = Digests { header: false, data: true };
    let mut out = emitted(NopOut::ping(1), &[], b"pings", digests);
    out[BHS_LEN + 5] = 0xff;
    assert!(!read(limits(digests), &out, &[1000]).0[0].intact);
    let crc = digest::crc32c(&out[BHS_LEN..BHS_LEN + 8]);
    out[BHS_LEN + 8..].copy_from_slice(&crc);
    for pieces in [1000, 1] {
        let pdu = &read(limits(digests), &out, &[pieces]).0[0];
        assert!(pdu.intact, "a sender only SHOULD pad with zeros");
        assert_eq!(pdu.trailer[..3], [0xff, 0, 0]);
    }
}

#[test]
fn lengths_beyond_the_limits_are_refused_from_the_header_alone() {
    let limits = Limits { max_data_segment: 8192, max_ahs: 8, ..limits(PLAIN) };
    let mut bhs = Bhs::from(NopOut::ping(1));
    bhs.set_data_segment_len(8193);
    let too_long = FrameError::DataSegmentTooLong { len: 8193, max: 8192 };
    assert_eq!(Stream::new(limits).step(&mut &bhs.bytes()[..]), Err(too_long));
    bhs.set_data_segment_len(8192);
    let mut stream = Stream::new(limits);
    let step = stream.step(&mut &bhs.bytes()[..]);
    assert!(matches!(step, Ok(Step::Payload { offset: 0, here: 0, rest: 8192, .. })));
    bhs.set_total_ahs_len(12);
    let too_long = FrameError::AhsTooLong { len: 12, max: 8 };
    assert_eq!(Stream::new(limits).step(&mut &bhs.bytes()[..]), Err(too_long));
}

#[test]
fn malformed_ahs_are_refused() {
    let out = emitted(read_10(), &[0xff, 0xff, 1, 0], &[], PLAIN);
    assert!(matches!(Stream::new(limits(PLAIN)).step(&mut &out[..]), Err(FrameError::AhsMalformed(_))));
}

#[test]
fn a_header_that_does_not_fit_is_not_written() {
    let mut out = [0xaa; 51];
    assert_eq!(emit_header(&mut read_10().into(), &[], 0, true, &mut out), None);
    assert_eq!(out, [0xaa; 51]);
}

#[test]
fn data_that_is_received_elsewhere_is_taken_and_verified() {
    let payload = b"eleven byte";
    let out = emitted(DataOut::new(7, RESERVED_TAG, Lun::ZERO, 0, 0), &[], payload, BOTH);
    for spoilt in [false, true] {
        let mut stream = Stream::new(limits(BOTH));
        let mut input = &out[..55];
        let step = stream.step(&mut input);
        assert!(matches!(step, Ok(Step::Payload { offset: 0, here: 3, rest: 8, .. })));
        stream.took(&input[..3]);
        assert_eq!(stream.left(), 8);
        stream.took(if spoilt { b"ven bite" } else { &out[55..63] });
        let mut input = &out[63..65];
        assert_eq!(stream.step(&mut input), Ok(Step::More));
        let mut input = &out[65..];
        let step = stream.step(&mut input);
        assert!(matches!(step, Ok(Step::Damaged(pdu) | Step::Taken(pdu)) if pdu.bhs.itt() == 7));
        assert_eq!(matches!(step, Ok(Step::Damaged(_))), spoilt);
    }
}

#[test]
fn bytes_that_end_within_a_pdu_are_not_whole_pdus() {
    let out = emitted(NopOut::ping(1), &[], b"ping", PLAIN);
    for len in 1..out.len() {
        assert_eq!(super::pdus(limits(PLAIN), &out[..len]), Err(FrameError::Incomplete));
    }
    assert_eq!(super::pdus(limits(PLAIN), &out).map(|pdus| pdus.len()), Ok(1));
}

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

proptest! {
    #[test]
    fn emitted_pdus_are_read_in_any_pieces(
        pdus in proptest::collection::vec((
            any::<[u8; 28]>(),
            proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
            proptest::collection::vec(any::<u8>(), 0..70),
        ), 1..5),
        digests in digests(),
        pieces in proptest::collection::vec(1usize..120, 1..6),
    ) {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        for (fields, cdb, data) in pdus {
            let mut bhs = Bhs::from(read_10());
            bhs.specific_20 = fields;
            let mut area = ArrayVec::<u8, { ahs::MAX_LEN }>::new();
            if let Some(cdb) = &cdb {
                prop_assert!(ahs::Ahs::ExtendedCdb(cdb).emit(&mut area));
            }
            let before = out.len();
            emit_pdu(&mut bhs, &area, &data, digests, &mut out);
            prop_assert_eq!(limits(digests).pdu_len(&bhs), out.len() - before);
            expected.push((bhs, area.to_vec(), data));
        }
        let (got, dropped, error) = read(limits(digests), &out, &pieces);
        prop_assert_eq!((dropped, error), (0, None));
        prop_assert!(got.iter().all(|pdu| pdu.intact));
        let got: Vec<_> = got.into_iter().map(|pdu| (pdu.bhs, pdu.ahs, pdu.data)).collect();
        prop_assert_eq!(&got, &expected);

        let mut assembler = Assembler::new(limits(digests));
        let (mut got, mut left, mut pieces) = (Vec::new(), &out[..], pieces.iter().cycle());
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(*pieces.next().expect("there is one")));
            left = later;
            assembler.push(now);
            while let Some(pdu) = assembler.next_pdu().expect("PDUs that are right") {
                got.push((pdu.bhs, pdu.ahs, pdu.data));
            }
        }
        prop_assert!(assembler.is_empty());
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn one_changed_bit_never_passes_both_digests(
        payload in proptest::collection::vec(any::<u8>(), 1..70),
        bit: proptest::sample::Index,
        piece in 1usize..120,
    ) {
        let mut out = emitted(NopOut::ping(1), &[], &payload, BOTH);
        let bit = bit.index(out.len() * 8);
        out[bit / 8] ^= 1 << (bit % 8);
        let (pdus, _, _) = read(limits(BOTH), &out, &[piece]);
        prop_assert!(pdus.iter().all(|pdu| !pdu.intact));
    }

    #[test]
    fn pieces_change_nothing_in_any_bytes(
        input in proptest::collection::vec(any::<u8>(), 0..400),
        small_ahs: bool,
        resync: bool,
        digests in digests(),
        pieces in proptest::collection::vec(1usize..120, 1..6),
    ) {
        let mut input = input;
        if small_ahs && input.len() > 7 {
            input[4] %= 4;
            input[5] = 0;
            input[6] = 0;
        }
        let limits = Limits { resync, ..limits(digests) };
        prop_assert_eq!(read(limits, &input, &[1000]), read(limits, &input, &pieces));
    }
}
