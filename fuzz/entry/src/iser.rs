//! Messages of iSER: headers, Hello exchanges, private data, and where a PDU's parts lie.

use crate::input::{Input, Seed};
use iser::{Control, Header, Hello, Layout, Limits, PrivateData, Remote};

/// Byte 0 and 1: limits of data and AHSs, in units of 64 bytes; then a message.
pub fn message(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = Limits { data: usize::from(input.u8()) * 64, ahs: usize::from(input.u8()) * 64 };
    let message = input.rest();
    let private = PrivateData::decode(message);
    assert_eq!(PrivateData::decode(&private.encode()), private);
    match Header::decode(message) {
        Ok(Header::Control(control)) => {
            assert_eq!(Header::decode(&control.encode()), Ok(Header::Control(control)));
            assert!(control.invalidates().is_none_or(|stag| control.owns(stag)));
        }
        Ok(Header::Hello(hello)) => {
            assert_eq!(Header::decode(&hello.encode()), Ok(Header::Hello(hello)));
            let reply = hello.answer(16);
            assert_ne!(reply.agrees_with(&hello), reply.rejected);
        }
        Ok(Header::HelloReply(reply)) => {
            assert_eq!(Header::decode(&reply.encode()), Ok(Header::HelloReply(reply)));
            let _ = reply.agrees_with(&Hello::new(16));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Layout::of(message, message.len(), limits) {
        Ok(layout) => {
            assert!(layout.ahs.start == iser::HEAD_LEN && layout.ahs.end == layout.data.start);
            assert!(layout.ahs.len() <= limits.ahs && layout.data.len() <= limits.data);
            let end = layout.data.end + Layout::padding(layout.data.len());
            assert!(layout.data.end <= message.len() && message.len() <= end);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A read, a write with immediate data, a bidirectional command with AHSs, a Hello and its answer,
/// lengths that lie.
pub fn message_seeds() -> Vec<(&'static str, Seed)> {
    let place = |n: u32| Some(Remote { stag: n << 8, offset: u64::from(n) << 40 });
    let pdu = |control: Control, ahs_words: u8, data_len: u8, body: usize| {
        let mut bhs = [0; iser::BHS_LEN];
        (bhs[0], bhs[1], bhs[4], bhs[7]) = (1, 0xc1, ahs_words, data_len);
        Seed::new().bytes([16, 4]).bytes(control.encode()).bytes(bhs).bytes(vec![0x5a; body])
    };
    let read = Control { read: place(1), write: None };
    let write = Control { read: None, write: place(2) };
    let both = Control { read: place(1), write: place(2) };
    let hello = Hello::new(4);
    vec![
        ("read", pdu(read, 0, 0, 0)),
        ("write-immediate", pdu(write, 0, 30, 32)),
        ("write-unpadded", pdu(write, 0, 30, 30)),
        ("bidirectional", pdu(both, 7, 8, 36)),
        ("too-short", pdu(read, 2, 8, 12)),
        ("too-long", pdu(Control::default(), 0, 1, 8)),
        ("no-room-for-ahs", pdu(read, 255, 0, 0)),
        ("hello", Seed::new().bytes([1, 1]).bytes(hello.encode())),
        ("hello-reply", Seed::new().bytes([1, 1]).bytes(hello.answer(8).encode())),
        ("private-data", Seed::new().bytes([0, 0]).bytes(PrivateData::new(true).encode())),
    ]
}
