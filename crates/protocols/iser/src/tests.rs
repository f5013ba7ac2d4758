//! Golden bytes, bounds, and round trips through encode and decode.

use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn a_control_header_is_28_bytes_with_write_before_read() {
    let both = Control {
        write: Some(Remote { stag: 0x1122_3344, offset: 0x0102_0304_0506_0708 }),
        read: Some(Remote { stag: 0xaabb_ccdd, offset: 0x1112_1314_1516_1718 }),
    };
    let read_only = Control { write: None, ..both };
    let write_only = Control { read: None, ..both };
    for (control, golden) in [
        (both, "1c000000 11223344 0102030405060708 aabbccdd 1112131415161718"),
        (read_only, "14000000 00000000 0000000000000000 aabbccdd 1112131415161718"),
        (write_only, "18000000 11223344 0102030405060708 00000000 0000000000000000"),
        (Control::default(), "10000000 00000000 0000000000000000 00000000 0000000000000000"),
    ] {
        assert_eq!(control.encode().to_vec(), bytes(golden));
        assert_eq!(Header::decode(&bytes(golden)), Ok(Header::Control(control)));
    }
    assert_eq!(both.invalidates(), Some(0xaabb_ccdd), "a Send names one STag: the read's");
    assert_eq!(write_only.invalidates(), Some(0x1122_3344));
    assert!(both.owns(0x1122_3344) && both.owns(0xaabb_ccdd) && !both.owns(0) && !Control::default().owns(0));
}

#[test]
fn an_stag_without_its_valid_bit_is_not_there() {
    let stray = bytes("10000000 11223344 0102030405060708 aabbccdd 1112131415161718");
    assert_eq!(Header::decode(&stray), Ok(Header::Control(Control::default())));
}

#[test]
fn hello_and_its_reply_carry_versions_and_read_depths() {
    let zeros = "00".repeat(24);
    let hello = Hello::new(4);
    assert_eq!(hello.encode().to_vec(), bytes(&format!("20aa0004{zeros}")));
    assert_eq!(Header::decode(&hello.encode()), Ok(Header::Hello(hello)));
    let reply = hello.answer(16);
    assert_eq!(reply.encode().to_vec(), bytes(&format!("30aa0004{zeros}")));
    assert_eq!(Header::decode(&reply.encode()), Ok(Header::HelloReply(reply)));
    assert!(reply.agrees_with(&hello));
    assert_eq!(hello.answer(2).ord, 2);
    let greedy = HelloReply { ord: 5, ..reply };
    assert!(!greedy.agrees_with(&hello), "more reads than the initiator answers");
}

#[test]
fn a_hello_without_our_version_is_rejected() {
    for (min_version, max_version) in [(1, 1), (11, 15), (12, 8)] {
        let hello = Hello { max_version, min_version, ird: 1 };
        let reply = hello.answer(1);
        assert!(reply.rejected && !reply.agrees_with(&hello));
        assert_eq!(reply.encode()[0], 0x31);
        assert_eq!(Header::decode(&reply.encode()), Ok(Header::HelloReply(reply)));
    }
    assert!(!Hello { max_version: 12, min_version: 8, ird: 1 }.answer(1).rejected);
}

#[test]
fn short_and_unknown_headers_are_refused() {
    assert_eq!(Header::decode(&[0x10; 27]), Err(HeaderError::Short(27)));
    assert_eq!(Header::decode(&[]), Err(HeaderError::Short(0)));
    for opcode in (0..16u8).filter(|o| !(1..=3).contains(o)) {
        assert_eq!(Header::decode(&[opcode << 4; 28]), Err(HeaderError::Opcode(opcode)));
    }
}

fn head(ahs_words: u8, data_len: u32) -> Vec<u8> {
    let mut head = Control::default().encode().to_vec();
    head.extend([1, 0x80, 0, 0, ahs_words]);
    head.extend(&data_len.to_be_bytes()[1..]);
    head.resize(HEAD_LEN, 0);
    head
}

const LIMITS: Limits = Limits { data: 8192, ahs: 256 };

#[test]
fn a_message_is_its_header_bhs_ahs_and_data_with_or_without_padding() {
    let layout = |ahs, data, len| Layout::of(&head(ahs, data), len, LIMITS);
    assert_eq!(layout(0, 0, 76), Ok(Layout { ahs: 76..76, data: 76..76 }));
    for len in [101, 102, 103, 104] {
        assert_eq!(layout(5, 5, len), Ok(Layout { ahs: 76..96, data: 96..101 }), "{len}");
    }
    assert_eq!(layout(5, 5, 100), Err(MessageError::Length { got: 100, wanted: 101 }));
    assert_eq!(layout(5, 5, 105), Err(MessageError::Length { got: 105, wanted: 101 }));
    assert_eq!(layout(0, 0, 77), Err(MessageError::Length { got: 77, wanted: 76 }));
    assert_eq!(layout(0, 8192, 76 + 8192), Ok(Layout { ahs: 76..76, data: 76..76 + 8192 }));
    assert_eq!(Layout::padding(5), 3);
    assert_eq!(Layout::padding(8), 0);
}

#[test]
fn lengths_beyond_the_limits_or_the_message_are_refused() {
    let layout = |ahs, data, len| Layout::of(&head(ahs, data), len, LIMITS);
    assert_eq!(layout(65, 0, 4096), Err(MessageError::AhsTooLong { len: 260, max: 256 }));
    assert_eq!(layout(0, 8193, 16384), Err(MessageError::DataTooLong { len: 8193, max: 8192 }));
    assert_eq!(layout(0, 0xff_ffff, 76), Err(MessageError::DataTooLong { len: 0xff_ffff, max: 8192 }));
    assert_eq!(layout(1, 0, 76), Err(MessageError::Length { got: 76, wanted: 80 }));
    assert_eq!(Layout::of(&head(0, 0), 75, LIMITS), Err(MessageError::Short(75)));
    assert_eq!(Layout::of(&[0x10; 40], 40, LIMITS), Err(MessageError::Short(40)));
    assert_eq!(Layout::of(&[], 0, LIMITS), Err(MessageError::Short(0)));
}

#[test]
fn private_data_permits_what_its_flags_do_not_deny() {
    let denies = |first| PrivateData::decode(&[first, 0, 0, 0]);
    assert_eq!(denies(0x80), PrivateData::new(true), "ib_iser");
    assert_eq!(denies(0xc0), PrivateData::new(false), "libiscsi");
    assert_eq!(denies(0), PrivateData { zero_based: true, remote_invalidation: true });
    assert_eq!(PrivateData::new(true).encode(), [0x80, 0, 0, 0]);
    assert_eq!(PrivateData::new(false).encode(), [0xc0, 0, 0, 0]);
    for none in [&[][..], &[0x80], &[0x80, 0, 0]] {
        assert_eq!(PrivateData::decode(none), PrivateData::new(false));
    }
    assert_eq!(PrivateData::decode(&[0x80, 0, 0, 0, 9, 9]), PrivateData::new(true));
}

fn remote() -> impl Strategy<Value = Option<Remote>> {
    proptest::option::of((any::<u32>(), any::<u64>()).prop_map(|(stag, offset)| Remote { stag, offset }))
}

proptest! {
    #[test]
    fn every_control_header_is_read_as_it_was_written(write in remote(), read in remote()) {
        let control = Control { write, read };
        prop_assert_eq!(Header::decode(&control.encode()), Ok(Header::Control(control)));
    }

    #[test]
    fn any_bytes_are_decoded_without_panic_and_parts_lie_within(
        message in proptest::collection::vec(any::<u8>(), 0..200), data in 0usize..128, ahs in 0usize..128,
    ) {
        let _ = Header::decode(&message);
        if let Ok(layout) = Layout::of(&message, message.len(), Limits { data, ahs }) {
            prop_assert!(layout.data.end <= message.len() && layout.ahs.end == layout.data.start);
            prop_assert!(layout.data.len() <= data && layout.ahs.len() <= ahs);
        }
        let _ = PrivateData::decode(&message);
    }
}
