//! Whole FPDUs byte by byte. An independent decoder (Wireshark's) agrees on each FPDU, its CRC and
//! its markers.

use iwarp::crc::Crc32c;
use iwarp::mpa::{Agreed, Role};
use iwarp::rdmap::{Atomic, Terminate};
use iwarp::stag::Stag;
use iwarp::stream::{Landing, Options, Payload, Remote, SendFlags, Stream};

fn stream(crc: bool, markers: bool) -> Stream {
    let agreed = Agreed {
        role: Role::Requester,
        revision: 2,
        crc,
        send_markers: markers,
        receive_markers: markers,
        ird: 4,
        ord: 4,
        rtr: None,
    };
    Stream::new(&agreed, &Options { max_fpdu: 1400, ..Options::new([1; 16]) })
}

const REMOTE: Remote = Remote { stag: Stag(0x0102_0304), to: 0x1122_3344_5566_7788 };

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}

#[test]
fn each_operation_is_the_fpdu_that_the_rfcs_draw() {
    let mut stream = stream(true, false);
    let mut wire = Vec::new();
    stream.write(REMOTE, &b"hello"[..], &mut wire).unwrap();
    assert_eq!(wire, hex("0013 c140 01020304 1122334455667788 68656c6c6f 000000 89ac536f"));
    wire.clear();
    let flags = SendFlags { invalidate: Some(REMOTE.stag), solicited: true };
    stream.send(&b"abc"[..], flags, &mut wire).unwrap();
    assert_eq!(wire, hex("0015 4146 01020304 00000000 00000001 00000000 616263 00 6fe35bb8"));
    wire.clear();
    stream.send(&b""[..], SendFlags::default(), &mut wire).unwrap();
    assert_eq!(wire, hex("0012 4143 00000000 00000000 00000002 00000000 accbdb8c"));
    wire.clear();
    let operation = Atomic::CmpSwap { swap: 3, mask: 4, compare: 5, compare_mask: 6 };
    stream.atomic::<&[u8]>(REMOTE, operation, 1, &mut wire).unwrap();
    let expected = "0046 414a 00000000 00000001 00000001 00000000 00000002 00000000 01020304 1122334455667788 \
        0000000000000003 0000000000000004 0000000000000005 0000000000000006 bd905753";
    assert_eq!(wire, hex(expected));
    wire.clear();
    stream.immediate::<&[u8]>(*b"12345678", false, &mut wire).unwrap();
    assert_eq!(wire, hex("001a 4148 00000000 00000000 00000003 00000000 3132333435363738 d72d8242"));
    wire.clear();
    stream.terminate::<&[u8]>(Terminate::BaseOrBounds, &mut wire);
    assert_eq!(wire, hex("0016 4147 00000000 00000002 00000001 00000000 01010000 3f9a6b65"));
}

#[test]
fn without_crc_its_field_is_zeros() {
    let mut wire = Vec::new();
    stream(false, false).write(REMOTE, &b"hello"[..], &mut wire).unwrap();
    assert_eq!(wire, hex("0013 c140 01020304 1122334455667788 68656c6c6f 000000 00000000"));
}

#[test]
fn markers_stand_every_512_bytes_and_point_to_the_start_of_their_fpdu() {
    let mut stream = stream(true, true);
    let mut wire = Vec::new();
    // The first marker precedes the first FPDU, and its CRC covers it.
    stream.write(REMOTE, &b"hello"[..], &mut wire).unwrap();
    assert_eq!(wire, hex("00000000 0013 c140 01020304 1122334455667788 68656c6c6f 000000 0e87611c"));
    stream
        .send(&b"abc"[..], SendFlags { invalidate: Some(REMOTE.stag), solicited: true }, &mut wire)
        .unwrap();
    let start = wire.len();
    stream.write(REMOTE, &[7; 500][..], &mut wire).unwrap();
    assert_eq!(wire[512..516], hex("0000 01c4"));
    assert_eq!(512 - start, 0x1c4);
    assert_eq!(wire[start..start + 16], hex("0202 c140 01020304 1122334455667788"));
    assert_eq!(wire[wire.len() - 4..], hex("387079f5"));
}

#[test]
fn a_read_request_names_a_sink_that_is_registered_for_nothing() {
    let mut stream = stream(false, false);
    let mut wire = Vec::new();
    stream.read::<&[u8]>(REMOTE, 0x0a0b_0c0d, Landing::Given, 1, &mut wire).unwrap();
    assert_eq!(wire[..20], hex("002e 4141 00000000 00000001 00000001 00000000"));
    let sink = Stag(u32::from_be_bytes(wire[20..24].try_into().expect("four bytes")));
    assert!(sink.0 != 0 && stream.stags().get(sink).is_none());
    assert_eq!(wire[24..], hex("0000000000000000 0a0b0c0d 01020304 1122334455667788 00000000"));
}

/// A stream with FPDUs of up to `max_fpdu` bytes and neither CRC nor markers.
fn stream_of(max_fpdu: usize) -> Stream {
    let agreed = Agreed {
        role: Role::Requester,
        revision: 2,
        crc: false,
        send_markers: false,
        receive_markers: false,
        ird: 1,
        ord: 1,
        rtr: None,
    };
    Stream::new(&agreed, &Options { max_fpdu, ..Options::new([1; 16]) })
}

#[test]
fn messages_are_cut_to_the_fpdu_size() {
    for (max_fpdu, payload) in [(1460, 1440), (160, 140)] {
        let mut stream = stream_of(max_fpdu);
        let mut wire = Vec::new();
        stream.write(Remote { stag: Stag(1), to: 0 }, &vec![9; payload + 1][..], &mut wire).unwrap();
        // Length, header, payload, padding, CRC; then the FPDU with the one byte left over.
        let first = (2 + 14 + payload).next_multiple_of(4) + 4;
        assert!(first <= max_fpdu);
        assert_eq!(wire[..4], [&((14 + payload) as u16).to_be_bytes()[..], &[0x81, 0x40]].concat());
        assert_eq!(wire[first..first + 4], [0, 15, 0xc1, 0x40]);
        assert_eq!(wire[first + 8..first + 16], (payload as u64).to_be_bytes());
        assert_eq!(wire.len(), first + 24);
    }
}

#[test]
fn of_long_tagged_segments_the_shorter_one_comes_first() {
    for (max_fpdu, longest) in [(65536, 65472), (9000, 8960)] {
        for (len, payloads) in [
            (longest, vec![longest]),
            (longest + 1, vec![1, longest]),
            (2 * longest, vec![longest, longest]),
            (2 * longest + 4096, vec![4096, longest, longest]),
        ] {
            let mut wire = Vec::new();
            stream_of(max_fpdu).write(Remote { stag: Stag(1), to: 7 }, &vec![9; len][..], &mut wire).unwrap();
            let (mut rest, mut at) = (&wire[..], 7);
            for (i, payload) in payloads.iter().enumerate() {
                let fpdu = (2 + 14 + payload).next_multiple_of(4) + 4;
                assert!(fpdu <= max_fpdu);
                let control = if i + 1 == payloads.len() { 0xc1 } else { 0x81 };
                assert_eq!(
                    rest[..4],
                    [&((14 + payload) as u16).to_be_bytes()[..], &[control, 0x40]].concat()
                );
                assert_eq!(rest[8..16], (at as u64).to_be_bytes());
                (rest, at) = (&rest[fpdu..], at + payload);
            }
            assert!(rest.is_empty());
        }
    }
}

/// Bytes that others may write at any time.
struct Shared(Vec<u8>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Payload for Shared {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn split_to(&mut self, n: usize) -> Self {
        Self(self.0.drain(..n).collect())
    }
    fn with_crc(self, crc: &mut Crc32c) -> Self {
        crc.update(&self.0);
        self
    }
    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        self.0.copy_to(at, to)
    }
}

#[test]
fn an_assembled_fpdu_equals_one_written_piece_by_piece() {
    for crc in [false, true] {
        let (mut together, mut apart) = (stream(crc, false), stream(crc, false));
        for len in 0..200 {
            let data: Vec<u8> = (0..len).map(|i: u8| i.wrapping_mul(7) ^ len).collect();
            let (mut one, mut other) = (Vec::new(), Vec::new());
            let flags = SendFlags { invalidate: Some(REMOTE.stag), solicited: true };
            together.send(&data[..], flags, &mut one).unwrap();
            apart.send(Shared(data.clone()), flags, &mut other).unwrap();
            together.write(REMOTE, &data[..], &mut one).unwrap();
            apart.write(REMOTE, Shared(data), &mut other).unwrap();
            assert_eq!(one, other, "{len} bytes, CRC {crc}");
        }
    }
}
