//! Replies, simple and structured: their events, servers that lie, and streams in any pieces.

use super::*;

const AT: u64 = 0x1_0000_0000;

fn session(structured: bool) -> Session {
    let allocation = structured.then_some(7);
    let blocks = BlockSizes { minimum: 1, preferred: 512, maximum: 1 << 20 };
    let size = AT + (1 << 20);
    let flags = Flags::new(FLAGS);
    Session::new(Export { size, flags, blocks, structured, allocation, ..Export::default() }, 4)
}

fn reading(structured: bool, len: u32) -> (Session, Cookie) {
    let mut session = session(structured);
    let (cookie, _) = session.submit(Command::Read { at: AT, len }).unwrap();
    (session, cookie)
}

fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    [&be32(0x6744_6698)[..], &be32(error), &be64(cookie), data].concat()
}

fn chunk(flags: u16, kind: u16, cookie: Cookie, payload: &[u8]) -> Vec<u8> {
    let head = [be32(0x668e_33ef), be16(flags), be16(kind), be64(cookie.value())].concat();
    [&head[..], &be32(payload.len() as u32), payload].concat()
}

fn data(flags: u16, cookie: Cookie, at: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(flags, 1, cookie, &[&be64(at)[..], bytes].concat())
}

fn hole(flags: u16, cookie: Cookie, at: u64, len: u32) -> Vec<u8> {
    chunk(flags, 2, cookie, &[be64(at), be32(len)].concat())
}

fn error(value: u32, words: &str, behind: &[u8]) -> Vec<u8> {
    [&be32(value)[..], &be16(words.len() as u16), words.as_bytes(), behind].concat()
}

fn status(id: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let extents = extents.iter().flat_map(|(len, flags)| [be32(*len), be32(*flags)].concat());
    be32(id).into_iter().chain(extents).collect()
}

/// An event without borrowed bytes.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Data(u64, Vec<u8>),
    Hole(u64, u32),
    Extent(u64, u32, bool, bool),
    Done(Cookie, Result<(), Failure>),
}

/// All events of a stream that comes in pieces of `step`. Data that comes in several is joined.
fn events(session: &mut Session, stream: &[u8], step: usize) -> Result<Vec<Seen>, Violation> {
    let mut seen: Vec<Seen> = Vec::new();
    for mut piece in stream.chunks(step) {
        loop {
            let before = piece;
            let Some(event) = session.next(&mut piece)? else { break };
            let event = match event {
                Event::Data { at, bytes, .. } => {
                    let taken = before.len() - piece.len();
                    assert!(std::ptr::eq(bytes, &before[taken - bytes.len()..taken]), "where it came");
                    if let Some(Seen::Data(start, earlier)) = seen.last_mut()
                        && *start + earlier.len() as u64 == at
                    {
                        earlier.extend_from_slice(bytes);
                        continue;
                    }
                    Seen::Data(at, bytes.to_vec())
                }
                Event::Hole { at, len, .. } => Seen::Hole(at, len),
                Event::Extent { at, len, state: State { hole, zero }, .. } => {
                    Seen::Extent(at, len, hole, zero)
                }
                Event::Done { cookie, outcome } => Seen::Done(cookie, outcome),
            };
            seen.push(event);
        }
        assert!(piece.is_empty());
    }
    Ok(seen)
}

fn failure(code: ErrorCode, at: Option<u64>, message: &str) -> Failure {
    Failure { code, at, message: message.into() }
}

#[test]
fn simple_replies() {
    for step in [1, 5, 100] {
        let (mut session, first) = reading(false, 5);
        let (second, _) = session.submit(Command::Flush).unwrap();
        let (third, _) = session.submit(Command::Read { at: 0, len: 1 }).unwrap();
        let stream = [
            simple(0, second.value(), b""),
            simple(0, first.value(), b"hello"),
            simple(5, third.value(), b""),
        ]
        .concat();
        let expected = vec![
            Seen::Done(second, Ok(())),
            Seen::Data(AT, b"hello".to_vec()),
            Seen::Done(first, Ok(())),
            Seen::Done(third, Err(failure(ErrorCode::Io, None, ""))),
        ];
        assert_eq!(events(&mut session, &stream, step), Ok(expected));
        assert!(!session.is_midway());
        assert_eq!(session.outstanding(), 0);
    }
}

#[test]
fn chunks_of_two_requests_interleave_in_any_order() {
    for step in [1, 9, 1000] {
        let (mut session, first) = reading(true, 10);
        let (second, _) = session.submit(Command::Read { at: 0, len: 2 }).unwrap();
        let (third, _) = session.submit(Command::Write { at: 0, len: 1, fua: false }).unwrap();
        let stream = [
            data(0, first, AT + 6, b"efgh"),
            data(1, second, 0, b"xy"),
            hole(0, first, AT + 2, 4),
            simple(0, third.value(), b""),
            // Bits that are unknown are ignored.
            data(0xfffe, first, AT, b"ab"),
            chunk(1, 0, first, b""),
        ]
        .concat();
        let expected = vec![
            Seen::Data(AT + 6, b"efgh".to_vec()),
            Seen::Data(0, b"xy".to_vec()),
            Seen::Done(second, Ok(())),
            Seen::Hole(AT + 2, 4),
            Seen::Done(third, Ok(())),
            Seen::Data(AT, b"ab".to_vec()),
            Seen::Done(first, Ok(())),
        ];
        assert_eq!(events(&mut session, &stream, step), Ok(expected));
    }
}

#[test]
fn data_may_be_received_straight_into_its_place() {
    let (mut session, cookie) = reading(true, 8);
    let stream = data(1, cookie, AT, b"01234567");
    // The header, the offset, and the first byte.
    let mut input = &stream[..29];
    let first = session.next(&mut input);
    assert_eq!(first, Ok(Some(Event::Data { cookie, at: AT, bytes: b"0" })));
    assert_eq!(session.direct(), Some((cookie, AT + 1, 7)));
    assert!(session.is_midway());
    session.received(3);
    assert_eq!(session.direct(), Some((cookie, AT + 4, 4)));
    session.received(4);
    assert_eq!(session.direct(), None);
    assert_eq!(session.next(&mut &b""[..]), Ok(Some(Event::Done { cookie, outcome: Ok(()) })));
}

#[test]
fn errors_have_a_place_and_words_and_the_first_counts() {
    let io = |at, words: &str| Err(failure(ErrorCode::Io, at, words));
    let offset = be64(AT + 3);
    for (stream, expected) in [
        (vec![(1, 0x8001, error(5, "", b""))], io(None, "")),
        (vec![(1, 0x8001, error(5, "no\x07pe", b"more"))], io(None, "no\u{fffd}pe")),
        (vec![(1, 0x8002, error(5, "bad", &offset))], io(Some(AT + 3), "bad")),
        (vec![(0, 0x8002, error(5, "", &offset)), (1, 0x8001, error(28, "", b""))], io(Some(AT + 3), "")),
        (vec![(0, 0x8001, error(5, "", b"")), (1, 0, vec![])], io(None, "")),
        // Unknown errors are errors, with whatever is behind their message.
        (vec![(1, 0x8123, error(5, "new", &[9; 40]))], io(None, "new")),
        (vec![(1, 0x8001, error(77, "", b""))], Err(failure(ErrorCode::Undefined(77), None, ""))),
    ] {
        for step in [1, 13, 1000] {
            let (mut session, cookie) = reading(true, 4);
            let stream = stream.iter().flat_map(|(flags, kind, body)| chunk(*flags, *kind, cookie, body));
            let stream: Vec<u8> = stream.collect();
            let expected = Ok(vec![Seen::Done(cookie, expected.clone())]);
            assert_eq!(events(&mut session, &stream, step), expected);
        }
    }
    let shown = failure(ErrorCode::NoSpace, Some(512), "full").to_string();
    assert_eq!(shown, "no space left on device at byte 512: full");
    assert_eq!(ErrorCode::Undefined(77).value(), 22);
    assert_eq!(ErrorCode::from_value(108), ErrorCode::ShuttingDown);
}

#[test]
fn an_error_of_a_flush_has_no_place() {
    let mut session = session(true);
    let (cookie, _) = session.submit(Command::Flush).unwrap();
    let stream = chunk(1, 0x8002, cookie, &error(5, "x", &be64(0)));
    let expected = Seen::Done(cookie, Err(failure(ErrorCode::Io, None, "x")));
    assert_eq!(events(&mut session, &stream, 7), Ok(vec![expected]));
}

fn asking(one: bool) -> (Session, Cookie) {
    let mut session = session(true);
    let (cookie, _) = session.submit(Command::BlockStatus { at: AT, len: 1000, one }).unwrap();
    (session, cookie)
}

#[test]
fn extents_of_a_block_status() {
    for step in [1, 11, 1000] {
        let (mut session, cookie) = asking(false);
        let stream = chunk(1, 5, cookie, &status(7, &[(600, 3), (300, 0), (100_000, 0xffff_fffd)]));
        let expected = vec![
            Seen::Extent(AT, 600, true, true),
            Seen::Extent(AT + 600, 300, false, false),
            // The last one may be longer than was asked for.
            Seen::Extent(AT + 900, 100_000, true, false),
            Seen::Done(cookie, Ok(())),
        ];
        assert_eq!(events(&mut session, &stream, step), Ok(expected));
    }
    let (mut session, cookie) = asking(true);
    let stream = chunk(1, 5, cookie, &status(7, &[(1000, 2)]));
    let expected = vec![Seen::Extent(AT, 1000, false, true), Seen::Done(cookie, Ok(()))];
    assert_eq!(events(&mut session, &stream, 64), Ok(expected));
}

#[test]
fn a_block_status_that_lies_is_refused() {
    for (name, one, body, expected) in [
        ("other context", false, status(8, &[(1, 0)]), Violation::Context(8)),
        ("none", false, status(7, &[]), Violation::Length { kind: 5, len: 4 }),
        ("torn", false, vec![0; 15], Violation::Length { kind: 5, len: 15 }),
        ("two for one", true, status(7, &[(1, 0), (1, 0)]), Violation::Length { kind: 5, len: 20 }),
        ("empty", false, status(7, &[(0, 0)]), Violation::Descriptor(0)),
        ("beyond, of one", true, status(7, &[(1001, 0)]), Violation::Descriptor(1001)),
        ("more behind the end", false, status(7, &[(1000, 0), (1, 0)]), Violation::Descriptor(1000)),
    ] {
        let (mut session, cookie) = asking(one);
        let stream = chunk(1, 5, cookie, &body);
        assert_eq!(events(&mut session, &stream, 1000), Err(expected), "{name}");
    }
    let (mut session, cookie) = asking(false);
    let twice = chunk(0, 5, cookie, &status(7, &[(1, 0)])).repeat(2);
    assert_eq!(events(&mut session, &twice, 1000), Err(Violation::Context(7)));
    let (mut session, cookie) = asking(false);
    assert_eq!(events(&mut session, &chunk(1, 0, cookie, b""), 1000), Err(Violation::Incomplete));
    let (mut session, cookie) = asking(false);
    assert_eq!(events(&mut session, &simple(0, cookie.value(), b""), 1000), Err(Violation::Simple));
    let (mut session, cookie) = asking(false);
    let failed = vec![Seen::Done(cookie, Err(failure(ErrorCode::Invalid, None, "")))];
    assert_eq!(events(&mut session, &simple(22, cookie.value(), b""), 1000), Ok(failed));
    // The longest list that a server should send is taken, and no more.
    let (mut session, cookie) = asking(false);
    let too_many = [&chunk(1, 5, cookie, b"")[..16], &be32(4 + 8 * ((1 << 20) + 1))].concat();
    let len = 4 + 8 * ((1 << 20) + 1);
    assert_eq!(events(&mut session, &too_many, 1000), Err(Violation::Length { kind: 5, len }));
}

#[test]
fn a_structured_reply_that_lies_is_refused() {
    let (_, cookie) = reading(true, 8);
    let range = |at, len| Violation::Range { at, len };
    let length = |kind, len| Violation::Length { kind, len };
    let long = error(5, &"x".repeat(4097), b"");
    for (name, stream, expected) in [
        ("simple", simple(0, cookie.value(), b""), Violation::Simple),
        ("simple error", simple(22, cookie.value(), b""), Violation::Simple),
        ("other cookie", simple(0, cookie.value() + 1, b""), Violation::Cookie(cookie.value() + 1)),
        ("later cookie", simple(0, cookie.value() + (1 << 32), b""), Violation::Cookie(1 << 32)),
        ("magic", be32(0x2560_9513), Violation::Magic(0x2560_9513)),
        ("type", chunk(0, 3, cookie, b""), Violation::Type(3)),
        ("status of a read", chunk(0, 5, cookie, &status(7, &[(1, 0)])), Violation::Type(5)),
        ("no end", chunk(0, 0, cookie, b""), length(0, 0)),
        ("end with bytes", chunk(1, 0, cookie, b"x"), length(0, 1)),
        ("no data", data(1, cookie, AT, b""), length(1, 8)),
        ("no offset", chunk(1, 1, cookie, b"1234"), length(1, 4)),
        ("hole", chunk(1, 2, cookie, &[0; 13]), length(2, 13)),
        ("empty hole", hole(1, cookie, AT, 0), range(AT, 0)),
        ("before", data(1, cookie, AT - 1, b"12"), range(AT - 1, 2)),
        ("behind", data(1, cookie, AT + 7, b"12"), range(AT + 7, 2)),
        ("far behind", hole(1, cookie, u64::MAX, 8), range(u64::MAX, 8)),
        ("long hole", hole(1, cookie, AT + 1, u32::MAX), range(AT + 1, u32::MAX.into())),
        (
            "twice",
            [hole(0, cookie, AT, 4), data(1, cookie, AT + 3, b"1")].concat(),
            Violation::Overlap(AT + 3),
        ),
        ("part", data(1, cookie, AT, b"1234567"), Violation::Incomplete),
        ("nothing", chunk(1, 0, cookie, b""), Violation::Incomplete),
        ("no error", chunk(1, 0x8001, cookie, &error(0, "", b"")), Violation::NoError),
        ("short error", chunk(1, 0x8001, cookie, &[1; 5]), length(0x8001, 5)),
        ("short error with place", chunk(1, 0x8002, cookie, &[1; 13]), length(0x8002, 13)),
        ("message behind", chunk(1, 0x8001, cookie, b"\0\0\0\x05\0\x03ab"), Violation::Message(3)),
        ("message over place", chunk(1, 0x8002, cookie, &error(5, "a", &[0; 7])), Violation::Message(1)),
        ("long message", chunk(1, 0x8001, cookie, &long), Violation::Message(4097)),
        ("long error", chunk(1, 0x8001, cookie, &[0; 9000]), length(0x8001, 9000)),
        ("error elsewhere", chunk(1, 0x8002, cookie, &error(5, "", &be64(AT + 8))), range(AT + 8, 1)),
        ("endless", chunk(0, 0x8001, cookie, &error(5, "", b"")).repeat(17), Violation::Chunks(16)),
    ] {
        for step in [1, 1000] {
            let (mut session, ours) = reading(true, 8);
            assert_eq!(ours, cookie);
            assert_eq!(events(&mut session, &stream, step), Err(expected), "{name}");
        }
    }
    let (mut session, cookie) = reading(false, 8);
    assert_eq!(events(&mut session, &data(1, cookie, AT, b"12345678"), 64), Err(Violation::Structured));
}

#[test]
fn a_reply_after_the_last_chunk_is_to_no_request() {
    let (mut session, cookie) = reading(true, 1);
    let stream = data(1, cookie, AT, b"1").repeat(2);
    assert_eq!(events(&mut session, &stream, 1000), Err(Violation::Cookie(cookie.value())));
}

#[test]
fn a_cut_within_a_reply_is_seen() {
    let (_, cookie) = reading(true, 4);
    let stream = [
        hole(0, cookie, AT, 1),
        chunk(0, 0x8002, cookie, &error(5, "abc", &be64(AT))),
        data(0, cookie, AT + 1, b"123"),
        chunk(1, 0, cookie, b""),
    ]
    .concat();
    let mut ends = Vec::new();
    for cut in 0..=stream.len() {
        let (mut session, _) = reading(true, 4);
        events(&mut session, &stream[..cut], 1000).unwrap();
        if !session.is_midway() {
            ends.push(cut);
        }
    }
    assert_eq!(ends, [0, 32, 32 + 37, 32 + 37 + 31, stream.len()]);
}

/// One read as a server may answer it: its length, where it is cut, and which pieces are holes.
fn pieces() -> impl Strategy<Value = (u32, Vec<(u32, u32, bool)>)> {
    let cuts = prop::collection::btree_set(1u32..64, 0..8);
    (64u32..80, cuts, any::<u64>()).prop_map(|(len, cuts, holes)| {
        let bounds: Vec<u32> = [0].into_iter().chain(cuts).chain([len]).collect();
        let pieces = bounds.windows(2).enumerate();
        (len, pieces.map(|(at, pair)| (pair[0], pair[1], holes >> at & 1 == 1)).collect())
    })
}

proptest! {
    #[test]
    fn reads_are_put_together_from_any_chunks_in_any_pieces(
        reads in prop::collection::vec(pieces(), 1..4), order in any::<u64>(), step in 1usize..200,
    ) {
        let mut session = session(true);
        let content = |at: u64| at.wrapping_mul(31) as u8;
        let (mut chunks, mut ends, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (len, pieces)) in reads.into_iter().enumerate() {
            let at = AT + number as u64 * 100;
            let (cookie, _) = session.submit(Command::Read { at, len }).unwrap();
            let mut memory: Vec<u8> = (at..at + u64::from(len)).map(content).collect();
            for (start, end, is_hole) in pieces {
                let (from, to) = (at + u64::from(start), at + u64::from(end));
                chunks.push(if is_hole {
                    memory[start as usize..end as usize].fill(0);
                    hole(0, cookie, from, end - start)
                } else {
                    data(0, cookie, from, &(from..to).map(content).collect::<Vec<_>>())
                });
            }
            ends.push(chunk(1, 0, cookie, b""));
            expected.push((cookie, at, memory));
        }
        // Some order of all chunks; the ends come last.
        let mut stream = Vec::new();
        let mut random = order;
        while !chunks.is_empty() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let next = (random >> 33) as usize % chunks.len();
            stream.extend(chunks.swap_remove(next));
        }
        stream.extend(ends.concat());
        let seen = events(&mut session, &stream, step).unwrap();
        for (cookie, at, memory) in expected {
            let mut read = vec![0xff; memory.len()];
            let mut put = |from: u64, bytes: &[u8]| {
                if let Some(from) = from.checked_sub(at).filter(|from| *from < 100) {
                    read[from as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            };
            for event in &seen {
                match event {
                    Seen::Data(from, bytes) => put(*from, bytes),
                    Seen::Hole(from, len) => put(*from, &vec![0; *len as usize]),
                    _ => {}
                }
            }
            prop_assert_eq!(read, memory);
            prop_assert!(seen.contains(&Seen::Done(cookie, Ok(()))));
        }
        prop_assert_eq!(session.outstanding(), 0);
    }

    #[test]
    fn any_stream_gives_the_same_however_it_is_cut(
        noise in prop::collection::vec(any::<u8>(), 0..120),
        kind in prop::sample::select(vec![0u16, 1, 2, 3, 5, 0x8001, 0x8002, 0x8003]),
        flags in 0u16..2, wrong in any::<bool>(), step in 1usize..40, structured in any::<bool>(),
    ) {
        let make = || {
            let (mut session, read) = reading(structured, 64);
            let status = Command::BlockStatus { at: AT, len: 64, one: false };
            let other = session.submit(if structured { status } else { Command::Flush }).unwrap().0;
            (session, if wrong { other } else { read })
        };
        let cookie = make().1;
        let head = if structured { chunk(flags, kind, cookie, &noise) } else { simple(0, cookie.value(), &noise) };
        let stream = [head, noise].concat();
        let cut = events(&mut make().0, &stream, step);
        let whole = events(&mut make().0, &stream, 10_000);
        prop_assert_eq!(cut, whole);
    }
}
