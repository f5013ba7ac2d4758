//! How the stream splits long messages into segments, and what it reports to a receiver that uses
//! direct placement.

use iwarp::mpa::{Agreed, Role};
use iwarp::stag::{Registration, Rights, Stag};
use iwarp::stream::{Event, Landing, Options, Place, Remote, Step, Stream};

/// Bytes of an FPDU without padding other than payload: length, tagged header, CRC.
const AROUND: usize = 2 + 14 + 4;

fn stream(role: Role, crc: bool, markers: bool, max_fpdu: usize) -> Stream {
    let agreed = Agreed {
        role,
        revision: 2,
        crc,
        send_markers: markers,
        receive_markers: markers,
        ird: 4,
        ord: 4,
        rtr: None,
    };
    Stream::new(&agreed, &Options { max_fpdu, ..Options::new([3; 16]) })
}

/// Two streams, and the STag of memory at the second.
fn two(crc: bool, markers: bool, max_fpdu: usize, len: usize) -> (Stream, Stream, Stag) {
    let a = stream(Role::Requester, crc, markers, max_fpdu);
    let mut b = stream(Role::Responder, crc, markers, max_fpdu);
    let rights = Rights::REMOTE_WRITE | Rights::REMOTE_READ;
    let memory = Registration { index: 1, base: 0, len: len.max(1) as u64, rights, domain: b.domain() };
    let stag = b.register(memory).expect("there is room");
    (a, b, stag)
}

/// The bytes that `a` receives when it reads `data`.
fn answered(a: &mut Stream, b: &mut Stream, stag: Stag, data: &[u8]) -> Vec<u8> {
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let len = data.len() as u32;
    a.read::<&[u8]>(Remote { stag, to: 0 }, len, Landing::Given, 5, &mut there).expect("it is open");
    assert_eq!(b.step(&mut &there[..]), Ok(Step::Event(Event::ReadRequest { index: 1, offset: 0, len })));
    b.read_response(data, &mut back).expect("it was asked for");
    back
}

/// Lengths of the payloads of tagged FPDUs.
fn payloads(mut wire: &[u8]) -> Vec<usize> {
    let mut lens = Vec::new();
    while !wire.is_empty() {
        let ulpdu = usize::from(u16::from_be_bytes([wire[0], wire[1]]));
        assert!(wire[2] & 0x80 != 0, "it is tagged");
        lens.push(ulpdu - 14);
        wire = &wire[(2 + ulpdu).next_multiple_of(4) + 4..];
    }
    lens
}

/// Blocks in an RDMA Read Response, cache lines in an RDMA Write.
#[test]
fn long_segments_are_whole_blocks_or_whole_cache_lines() {
    for crc in [false, true] {
        for (max_fpdu, response, write) in [
            (65_536, 65_024, 65_472),
            (20_000, 19_968, 19_968),
            (17_408, 16_896, 17_344),
            (9000, 8704, 8960),
            // From here on no segment is long, and every FPDU is as full as possible.
            (8192, 8172, 8172),
            (1460, 1440, 1440),
            (160, 140, 140),
        ] {
            let data = vec![7; 300_000];
            let long = write >= 8192;
            for len in [1, 511, 512, response - 1, response, response + 1, write, 65_536, 131_072, 300_000] {
                let (mut a, mut b, stag) = two(crc, false, max_fpdu, len);
                let mut wire = Vec::new();
                a.write(Remote { stag, to: 0 }, &data[..len], &mut wire).expect("it is open");
                let written = payloads(&wire);
                let read = payloads(&answered(&mut a, &mut b, stag, &data[..len]));
                for (most, lens) in [(write, written), (response, read)] {
                    let case = format!("{max_fpdu} {len} {lens:?}");
                    assert_eq!(lens.iter().sum::<usize>(), len, "{case}");
                    assert_eq!(lens.len(), len.div_ceil(most), "{case}");
                    let (shortest, rest) = match long {
                        true => lens.split_first().expect("one at least"),
                        false => lens.split_last().expect("one at least"),
                    };
                    assert!(*shortest <= most && rest.iter().all(|len| *len == most), "{case}");
                }
            }
        }
    }
}

#[test]
fn what_is_read_in_whole_blocks_begins_a_block_with_each_segment() {
    for markers in [false, true] {
        for max_fpdu in [65_536, 32_768, 9000] {
            for len in [65_536, 1 << 20, 512 * 333] {
                let (mut a, mut b, stag) = two(true, markers, max_fpdu, len);
                let data: Vec<u8> = (0..len).map(|i| (i ^ i >> 8) as u8).collect();
                let wire = answered(&mut a, &mut b, stag, &data);
                // Markers split the payload. So look at the sender's position instead: each FPDU's
                // `to`.
                let (mut input, mut had, mut starts) = (&wire[..], 0, Vec::new());
                let mut left = 0;
                loop {
                    match a.step(&mut input).expect("a good stream") {
                        Step::More => break,
                        Step::Payload { offset, here, rest, .. } => {
                            assert_eq!(offset, had as u64);
                            if left == 0 && !markers {
                                starts.push(offset);
                                left = here + rest;
                            }
                            left = left.saturating_sub(here);
                            a.took(&input[..here]);
                            assert!(input[..here] == data[had..had + here]);
                            (input, had) = (&input[here..], had + here);
                        }
                        Step::Event(event) => assert_eq!(event, Event::ReadDone { id: 5 }),
                    }
                }
                assert_eq!(had, len);
                assert!(starts.iter().all(|at| at % 512 == 0), "{starts:?}");
                assert_eq!(starts.is_empty(), markers);
            }
        }
    }
}

/// All steps of a stream over `wire`, which arrives in pieces of `cut` bytes. Payload is taken at
/// most `most` bytes at a time.
fn said(mut stream: Stream, wire: &[u8], cut: usize, most: usize, unseen: bool) -> Vec<(Place, u64, usize)> {
    let mut said = Vec::new();
    for mut input in wire.chunks(cut) {
        loop {
            match stream.step(&mut input).expect("a good stream") {
                Step::More | Step::Payload { here: 0, .. } => break,
                Step::Payload { place, offset, here, rest } => {
                    let now = here.min(most);
                    said.push((place, offset, here + rest));
                    match unseen {
                        true => stream.took_unseen(now),
                        false => stream.took(&input[..now]),
                    }
                    input = &input[now..];
                }
                Step::Event(event) => {
                    assert!(matches!(event, Event::Received { .. } | Event::ReadDone { .. }));
                    said.push((Place::Receive, u64::MAX, 0));
                }
            }
        }
    }
    said
}

#[test]
fn payload_that_is_not_looked_at_moves_a_stream_as_payload_that_is() {
    for markers in [false, true] {
        let data: Vec<u8> = (0..70_001u32).map(|i| (i * 7) as u8).collect();
        let receiver = || {
            let (mut a, mut b, stag) = two(false, markers, 65_536, data.len());
            // The other side sends the answer to a read, then messages.
            let mut wire = answered(&mut a, &mut b, stag, &data);
            for len in [0, 3, 600, 4000] {
                b.send(&data[..len], Default::default(), &mut wire).expect("it is open");
            }
            a.post_receives(4);
            (a, wire)
        };
        for cut in [1, 7, 508, 512, 1000, 65_000, usize::MAX] {
            for most in [1, 500, usize::MAX] {
                let [seen, unseen] = [false, true].map(|unseen| {
                    let (a, wire) = receiver();
                    said(a, &wire, cut, most, unseen)
                });
                assert_eq!(seen, unseen, "markers {markers}, cut {cut}, most {most}");
                assert_eq!(seen.iter().filter(|(_, at, _)| *at == u64::MAX).count(), 5);
            }
        }
    }
}

#[test]
fn a_stream_continues_after_payload_taken_unseen() {
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 11) as u8).collect();
    let (mut a, mut b, stag) = two(false, false, 65_536, data.len());
    let wire = answered(&mut a, &mut b, stag, &data);
    let (mut at, mut had) = (0, 0);
    while at < wire.len() {
        // Headers arrive by themselves; the payload of the FPDU is received elsewhere, in two
        // pieces.
        let mut input = &wire[at..wire.len().min(at + 16)];
        at += input.len();
        loop {
            match a.step(&mut input).expect("a good stream") {
                Step::More => break,
                Step::Event(event) => assert_eq!((event, had), (Event::ReadDone { id: 5 }, data.len())),
                Step::Payload { offset, here, rest, .. } => {
                    assert_eq!(offset, had as u64);
                    let now = if here > 0 { here } else { rest.div_ceil(2) };
                    if here > 0 {
                        input = &input[here..];
                    } else {
                        at += now;
                    }
                    a.took_unseen(now);
                    had += now;
                }
            }
        }
    }
    assert_eq!(had, data.len());
    assert!(!a.is_over());
}

#[test]
fn it_is_known_how_far_it_is_from_one_payload_to_the_next() {
    for crc in [false, true] {
        // Each padding, in an FPDU whose header arrives alone and in one that arrives whole.
        for len in [16_384, 16_385, 16_386, 16_387] {
            for whole in [false, true] {
                let (mut a, mut b, stag) = two(crc, false, 65_536, 70_000);
                let data = vec![1; len];
                let mut wire = Vec::new();
                for to in [0, 30_000] {
                    a.write(Remote { stag, to }, &data[..], &mut wire).expect("it is open");
                }
                let first = if whole { &wire[..] } else { &wire[..16] };
                let (mut input, around) = (first, (len + AROUND).next_multiple_of(4) - len);
                assert!(matches!(b.step(&mut input), Ok(Step::Payload { .. })));
                assert_eq!((b.to_next_tagged(), b.to_end()), (around, around - 16), "{len} {whole}");
                assert_eq!(b.is_checked(), whole);
                // After exactly so many bytes the next step is payload.
                b.took(&wire[16..16 + len]);
                let mut input = &wire[16 + len..16 + len + around];
                let next = b.step(&mut input);
                let expected = Step::Payload { place: Place::Tagged(1), offset: 30_000, here: 0, rest: len };
                assert_eq!((next, input.len()), (Ok(expected), 0));
            }
        }
    }
}

#[test]
fn what_is_whole_of_many_fpdus_is_known_without_a_stream() {
    let (mut a, _, stag) = two(true, false, 65_536, 70_000);
    let (mut wire, mut ends) = (Vec::new(), vec![0]);
    for len in [0, 1, 2, 3, 4, 1000, 65_000] {
        a.write(Remote { stag, to: 0 }, &vec![1; len][..], &mut wire).expect("it is open");
        ends.push(wire.len());
    }
    for cut in (0..=wire.len()).filter(|cut| cut % 97 == 0 || ends.iter().any(|end| end.abs_diff(*cut) < 9)) {
        let whole = ends.iter().rfind(|end| **end <= cut);
        assert_eq!(Some(&Stream::whole_fpdus(&wire[..cut])), whole, "{cut}");
    }
    // The maximum of the length field.
    assert_eq!(Stream::whole_fpdus(&[0xff; 65_540 + 3]), 0);
    assert_eq!(Stream::whole_fpdus(&[0xff; 65_540 + 4]), 65_540 + 4);
}

#[test]
fn a_stream_is_between_two_fpdus_before_the_first_byte_of_the_next() {
    for (markers, crc) in [(false, false), (false, true), (true, true)] {
        let (mut a, mut b, stag) = two(crc, markers, 65_536, 100);
        let mut wire = Vec::new();
        a.write(Remote { stag, to: 0 }, &[1; 100][..], &mut wire).expect("it is open");
        let mut between = Vec::new();
        for byte in &wire {
            between.push(b.is_between());
            let mut input = std::slice::from_ref(byte);
            if let Ok(Step::Payload { here: 1, .. }) = b.step(&mut input) {
                b.took(input);
            }
        }
        between.push(b.is_between());
        // With markers this needs a look at the bytes, so it is never true.
        let wanted: Vec<bool> =
            (0..=wire.len()).map(|at| !markers && (at == 0 || at == wire.len())).collect();
        assert_eq!(between, wanted);
    }
}
