//! Cuts emitted PDUs, whole and byte by byte, corrupt and hostile.

use super::*;
use crate::pdu::{DataOut, Lun, NopOut, RESERVED_TAG, ScsiCommand, TaskAttribute};
use proptest::prelude::*;

const LIMITS: Cutter =
    Cutter { header_digest: false, data_digest: false, max_data_segment: 262_144, max_ahs: ahs::MAX_LEN };

fn cutter(digests: Digests) -> Cutter {
    Cutter { header_digest: digests.header, data_digest: digests.data, ..LIMITS }
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

#[test]
fn the_read_command_of_appendix_a_4_ends_in_the_digest_given_there() {
    let out = emitted(read_10(), &[], &[], Digests { header: true, data: true });
    assert_eq!(out.len(), 52);
    assert_eq!(out[48..], [0x56, 0x3a, 0x96, 0xd9]);
}

#[test]
fn a_pdu_without_data_has_no_data_digest() {
    let digests = Digests { header: false, data: true };
    let out = emitted(NopOut::ping(1), &[], &[], digests);
    assert_eq!(out.len(), BHS_LEN);
    let cut = cutter(digests).cut(&out);
    assert!(matches!(cut, Ok(Cut::Pdu { data, consumed: BHS_LEN, .. }) if data.is_empty()));
}

#[test]
fn a_wrong_header_digest_ends_the_stream_before_its_lengths_are_used() {
    let digests = Digests { header: true, data: true };
    let mut out = emitted(NopOut::ping(1), &[], b"ping", digests);
    out[7] ^= 0x10;
    assert_eq!(cutter(digests).cut(&out), Err(FrameError::HeaderDigest));
}

#[test]
fn a_wrong_data_digest_tells_where_the_next_pdu_starts() {
    let digests = Digests { header: true, data: true };
    let bad = NopOut::ping(1);
    let mut out = emitted(bad, &[], b"pings", digests);
    let first = out.len();
    out[52] ^= 1;
    out.extend(emitted(NopOut::ping(2), &[], b"", digests));
    let Err(FrameError::DataDigest { bhs, ahs_len: 0, consumed }) = cutter(digests).cut(&out) else {
        panic!("the digest is wrong");
    };
    assert_eq!((bhs.itt(), consumed), (1, first));
    let next = cutter(digests).cut(&out[consumed..]);
    assert!(matches!(next, Ok(Cut::Pdu { bhs, .. }) if bhs.itt() == 2));
}

#[test]
fn padding_is_covered_by_the_data_digest_as_it_came() {
    let digests = Digests { header: false, data: true };
    let mut out = emitted(NopOut::ping(1), &[], b"pings", digests);
    out[BHS_LEN + 5] = 0xff;
    assert!(matches!(cutter(digests).cut(&out), Err(FrameError::DataDigest { .. })));
    let crc = digest::crc32c(&out[BHS_LEN..BHS_LEN + 8]);
    out[BHS_LEN + 8..].copy_from_slice(&crc);
    assert!(matches!(cutter(digests).cut(&out), Ok(Cut::Pdu { .. })), "a sender only SHOULD pad with zeros");
}

#[test]
fn lengths_beyond_the_limits_are_refused_from_the_header_alone() {
    let limits = Cutter { max_data_segment: 8192, max_ahs: 8, ..LIMITS };
    let mut bhs = Bhs::from(NopOut::ping(1));
    bhs.set_data_segment_len(8193);
    assert_eq!(limits.cut(bhs.bytes()), Err(FrameError::DataSegmentTooLong { len: 8193, max: 8192 }));
    bhs.set_data_segment_len(8192);
    assert!(matches!(
        limits.cut(bhs.bytes()),
        Ok(Cut::Partial { data_len: 8192, data_offset: 48, trailer: 0, .. })
    ));
    bhs.set_total_ahs_len(12);
    assert_eq!(limits.cut(bhs.bytes()), Err(FrameError::AhsTooLong { len: 12, max: 8 }));
}

#[test]
fn malformed_ahs_are_refused() {
    let out = emitted(read_10(), &[0xff, 0xff, 1, 0], &[], Digests::default());
    assert!(matches!(LIMITS.cut(&out), Err(FrameError::AhsMalformed(_))));
}

#[test]
fn a_header_that_does_not_fit_is_not_written() {
    let mut out = [0xaa; 51];
    assert_eq!(emit_header(&mut read_10().into(), &[], 0, true, &mut out), None);
    assert_eq!(out, [0xaa; 51]);
}

#[test]
fn a_partial_data_segment_can_be_finished_elsewhere_and_verified() {
    let digests = Digests { header: true, data: true };
    let payload = b"eleven byte";
    let out = emitted(DataOut::new(7, RESERVED_TAG, Lun::ZERO, 0, 0), &[], payload, digests);
    let Ok(Cut::Partial { data_offset, data_len, trailer, .. }) = cutter(digests).cut(&out[..55]) else {
        panic!("three bytes of data are here");
    };
    assert_eq!((data_offset, data_len, trailer), (52, 11, 5));
    let mut crc = Crc32c::new();
    crc.update(&out[data_offset..55]);
    crc.update(&out[55..data_offset + data_len]);
    assert!(verify_trailer(crc, &out[data_offset + data_len..]));
    crc.update(b"more");
    assert!(!verify_trailer(crc, &out[data_offset + data_len..]));
    assert!(!verify_trailer(crc, &[0, 0]));
}

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

proptest! {
    #[test]
    fn what_is_emitted_is_cut_at_every_prefix(
        fields: [u8; 32],
        cdb in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
        payload in proptest::collection::vec(any::<u8>(), 0..70),
        digests in digests(),
        rest in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bhs = Bhs::from(read_10());
        bhs.specific_20.copy_from_slice(&fields[..28]);
        let mut area = ArrayVec::<u8, { ahs::MAX_LEN }>::new();
        if let Some(cdb) = &cdb {
            prop_assert!(ahs::Ahs::ExtendedCdb(cdb).emit(&mut area));
        }
        let mut out = Vec::new();
        emit_pdu(&mut bhs, &area, &payload, digests, &mut out);
        let len = out.len();
        out.extend_from_slice(&rest);
        let header = header_len(area.len(), digests.header);
        for end in 0..out.len() {
            match cutter(digests).cut(&out[..end]) {
                Ok(Cut::NeedMore { at_least }) => prop_assert!(end < header && end < at_least && at_least <= header),
                Ok(Cut::Partial { bhs: got, ahs, data_offset, data_len, trailer }) => {
                    prop_assert!((header..len).contains(&end));
                    prop_assert_eq!((got, ahs), (&bhs, &area[..]));
                    prop_assert_eq!((data_offset, data_len), (header, payload.len()));
                    prop_assert_eq!(data_offset + data_len + trailer, len);
                }
                Ok(Cut::Pdu { bhs: got, ahs, data, consumed }) => {
                    prop_assert!(end >= len);
                    prop_assert_eq!((got, ahs), (&bhs, &area[..]));
                    prop_assert_eq!((&out[data], consumed), (&payload[..], len));
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }

    #[test]
    fn one_changed_bit_never_passes_both_digests(
        payload in proptest::collection::vec(any::<u8>(), 1..70),
        bit: proptest::sample::Index,
    ) {
        let digests = Digests { header: true, data: true };
        let mut out = emitted(NopOut::ping(1), &[], &payload, digests);
        let bit = bit.index(out.len() * 8);
        out[bit / 8] ^= 1 << (bit % 8);
        let accepted = matches!(cutter(digests).cut(&out), Ok(Cut::Pdu { .. } | Cut::Partial { .. }));
        prop_assert!(!accepted);
    }

    #[test]
    fn any_bytes_are_cut_without_panic_and_within_the_input(
        input in proptest::collection::vec(any::<u8>(), 0..400),
        small_ahs: bool,
        digests in digests(),
    ) {
        let mut input = input;
        if small_ahs && input.len() > 7 {
            input[4] %= 4;
            input[5] = 0;
            input[6] = 0;
        }
        match cutter(digests).cut(&input) {
            Ok(Cut::Pdu { data, consumed, ahs, .. }) => {
                prop_assert!(data.end <= consumed && consumed <= input.len());
                prop_assert!(ahs.len() <= ahs::MAX_LEN);
            }
            Ok(Cut::Partial { data_offset, data_len, trailer, .. }) => {
                prop_assert!(data_offset <= input.len() && data_offset + data_len + trailer > input.len());
            }
            Ok(Cut::NeedMore { at_least }) => prop_assert!(at_least > input.len()),
            Err(_) => {}
        }
    }
}
