//! Handshakes, requests and replies: bytes worked out by hand from the document, servers that lie,
//! and streams that arrive in any pieces.

use proptest::prelude::*;

use crate::export::{BlockSizes, Export, Flags};
use crate::failure::{ErrorCode, Failure};
use crate::handshake::{Handshake, HandshakeError, MAX_REPLY};
use crate::request::{Command, DISCONNECT, Refused};
use crate::session::{Cookie, Event, Session, State, Violation};
use crate::uri::{Address, Uri, UriError, is_uri};

/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES, CAN_MULTI_CONN, SEND_FAST_ZERO.
const FLAGS: u16 = 0x096d;

fn be16(number: u16) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn be32(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn be64(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

mod handshake {
    use super::*;

    const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        [&b"IHAVEOPT"[..], &be32(number), &be32(data.len() as u32), data].concat()
    }

    fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let magic = [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
        [&magic[..], &be32(option), &be32(kind), &be32(data.len() as u32), data].concat()
    }

    fn error(option: u32, number: u32, words: &str) -> Vec<u8> {
        reply(option, 1 << 31 | number, words.as_bytes())
    }

    /// GO for "disk" with a request for NBD_INFO_BLOCK_SIZE.
    fn go() -> Vec<u8> {
        option(7, b"\0\0\0\x04disk\0\x01\0\x03")
    }

    fn set_context() -> Vec<u8> {
        option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation")
    }

    fn info_export(size: u64) -> Vec<u8> {
        reply(7, 3, &[be16(0), be64(size), be16(FLAGS)].concat())
    }

    /// What a handshake makes of a server's bytes that come in pieces of `step`: its end, what
    /// it sent, and how much it left.
    fn run(
        mut handshake: Handshake,
        server: &[u8],
        step: usize,
    ) -> (Result<Option<Export>, HandshakeError>, Vec<u8>, usize) {
        let mut out = Vec::new();
        let mut taken = 0;
        for piece in server.chunks(step) {
            let mut input = piece;
            let result = handshake.advance(&mut input, &mut out);
            taken += piece.len() - input.len();
            match result {
                Ok(None) => assert!(input.is_empty(), "all is taken until there is an export"),
                end => return (end, out, server.len() - taken),
            }
        }
        (Ok(None), out, server.len() - taken)
    }

    fn open(server: &[u8]) -> (Result<Option<Export>, HandshakeError>, Vec<u8>) {
        let whole = run(Handshake::open("disk").unwrap(), server, usize::MAX);
        for step in [1, 7, 20] {
            assert_eq!(run(Handshake::open("disk").unwrap(), server, step).0, whole.0);
        }
        (whole.0, whole.1)
    }

    fn whole() -> Vec<u8> {
        [
            GREETING.to_vec(),
            reply(8, 1, b""),
            reply(10, 4, b"\0\0\0\x2abase:allocation"),
            reply(10, 1, b""),
            // An unknown type of information, a description, sizes, the export.
            reply(7, 3, b"\0\x77xyz"),
            reply(7, 3, b"\0\x02a disk\n"),
            reply(7, 3, &[be16(3), be32(1), be32(4096), be32(1 << 25)].concat()),
            info_export(1 << 30),
            reply(7, 1, b""),
        ]
        .concat()
    }

    #[test]
    fn all_abilities_are_negotiated_and_what_follows_is_left() {
        let server = [whole(), b"rest".to_vec()].concat();
        let (end, out, left) = run(Handshake::open("disk").unwrap(), &server, usize::MAX);
        let export = Export {
            size: 1 << 30,
            flags: Flags::new(FLAGS),
            blocks: BlockSizes { minimum: 1, preferred: 4096, maximum: 1 << 25 },
            structured: true,
            allocation: Some(42),
            description: "a disk\u{fffd}".into(),
        };
        assert_eq!(end, Ok(Some(export)));
        assert_eq!(out, [b"\0\0\0\x03".to_vec(), option(8, b""), set_context(), go()].concat());
        assert_eq!(left, 4);
        open(&whole()).0.unwrap();
    }

    #[test]
    fn flags_say_what_a_server_offers() {
        let flags = Flags::new(FLAGS);
        assert!(flags.flush() && flags.fua() && flags.trim() && flags.write_zeroes());
        assert!(flags.multi_conn() && flags.fast_zero());
        assert!(!flags.read_only() && !flags.rotational());
        assert_eq!(Flags::new(FLAGS & !1), Flags::default(), "without NBD_FLAG_HAS_FLAGS there are none");
        assert!(!Flags::new(1 | 1 << 11).fast_zero(), "fast zeros need writes of zeros");
    }

    #[test]
    fn an_old_server_opens_by_name_after_it_refused_newer_options() {
        for (flags, zeroes) in [(3, 0), (1, 124)] {
            let server = [
                b"NBDMAGICIHAVEOPT\0".to_vec(),
                vec![flags],
                error(8, 1, ""),
                error(7, 1, "unknown"),
                be64(4096),
                be16(3),
                vec![0; zeroes],
            ]
            .concat();
            let (end, out) = open(&server);
            let export = Export { size: 4096, flags: Flags::new(3), ..Export::default() };
            assert_eq!(export.blocks, BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 });
            assert_eq!(end, Ok(Some(export)));
            assert_eq!(
                out,
                [be32(flags.into()), option(8, b""), go(), option(1, b"disk")].concat(),
                "no flag that the server has not"
            );
        }
    }

    #[test]
    fn a_refused_context_leaves_structured_replies() {
        let refused = [
            GREETING.to_vec(),
            reply(8, 1, b""),
            reply(10, 4, b"\0\0\0\x2abase:allocation"),
            error(10, 9, ""),
            info_export(512),
            reply(7, 1, b""),
        ]
        .concat();
        let Ok(Some(export)) = open(&refused).0 else { panic!("no export") };
        assert_eq!((export.structured, export.allocation), (true, None));
    }

    #[test]
    fn refusals_say_why_and_end_the_session_softly() {
        let start = [GREETING.to_vec(), error(8, 1, "")].concat();
        let tls = HandshakeError::TlsRequired;
        let none = HandshakeError::NoExport { name: "disk".into(), message: "try\u{fffd}again".into() };
        let policy = HandshakeError::Refused { kind: 1 << 31 | 2, message: String::new() };
        for (server, expected) in [
            ([GREETING.to_vec(), error(8, 5, "")].concat(), tls.clone()),
            ([start.clone(), error(7, 5, "")].concat(), tls),
            ([start.clone(), error(7, 6, "try\nagain")].concat(), none),
            ([start.clone(), error(7, 7, "")].concat(), HandshakeError::ShuttingDown),
            ([start.clone(), error(7, 2, "")].concat(), policy),
        ] {
            let (end, out) = open(&server);
            assert_eq!(end, Err(expected));
            assert!(out.ends_with(&option(2, b"")), "NBD_OPT_ABORT");
            assert!(!end.unwrap_err().to_string().is_empty());
        }
        assert!(open(&[start, error(7, 5, "")].concat()).0.unwrap_err().to_string().contains("without TLS"));
    }

    #[test]
    fn older_negotiations_and_other_servers_are_told_apart() {
        let old = [b"NBDMAGIC".to_vec(), be64(0x0000_4202_8186_1253)].concat();
        assert_eq!(open(&old).0, Err(HandshakeError::TooOld("oldstyle")));
        assert_eq!(open(b"NBDMAGICIHAVEOPT\0\x02").0, Err(HandshakeError::TooOld("newstyle")));
        assert_eq!(open(b"HTTP/1.1 400").0, Err(HandshakeError::NotNbd(0x4854_5450_2f31_2e31)));
        assert_eq!(open(b"NBDMAGICNBDMAGIC").0, Err(HandshakeError::NotNbd(0x4e42_444d_4147_4943)));
    }

    #[test]
    fn a_server_that_breaks_the_protocol_is_dropped_without_a_word() {
        let structured = [GREETING.to_vec(), reply(8, 1, b"")].concat();
        let context = [structured.clone(), reply(10, 1, b"")].concat();
        let sizes = |sizes: [u32; 3]| {
            let sizes = sizes.iter().flat_map(|size| size.to_be_bytes()).collect::<Vec<_>>();
            [context.clone(), reply(7, 3, &[be16(3), sizes].concat())].concat()
        };
        let too_long = [&reply(8, 1, b"")[..16], &be32(MAX_REPLY as u32 + 1)].concat();
        let other_magic = [b"\0\x03\xe8\x89\x04\x55\x65\xaa", &reply(8, 1, b"")[8..]].concat();
        for (name, server) in [
            ("magic", [GREETING.to_vec(), other_magic].concat()),
            ("other option", [GREETING.to_vec(), reply(10, 1, b"")].concat()),
            ("too long", [GREETING.to_vec(), too_long].concat()),
            ("data of an acknowledgement", [GREETING.to_vec(), reply(8, 1, b"x")].concat()),
            ("type", [GREETING.to_vec(), reply(8, 2, b"\0\0\0\0")].concat()),
            ("unknown type", [GREETING.to_vec(), reply(8, 99, b"")].concat()),
            ("other context", [structured.clone(), reply(10, 4, b"\0\0\0\x01qemu:dirty")].concat()),
            ("two contexts", [structured, reply(10, 4, b"\0\0\0\x01base:allocation").repeat(2)].concat()),
            ("no size", [context.clone(), reply(7, 1, b"")].concat()),
            ("short", [context.clone(), reply(7, 3, &[0; 11])].concat()),
            ("long", [context.clone(), reply(7, 3, &[0; 13])].concat()),
            ("no type", [context.clone(), reply(7, 3, b"\0")].concat()),
            ("huge", [context.clone(), info_export(1 << 63)].concat()),
            ("minimum", sizes([3, 4096, 4096])),
            ("minimum of 128 KiB", sizes([1 << 17, 1 << 17, 1 << 20])),
            ("preferred below 512", sizes([1, 256, 4096])),
            ("preferred below minimum", sizes([4096, 512, 4096])),
            ("maximum", sizes([1, 4096, 512])),
            ("endless", [context.clone(), reply(7, 3, b"\0\x77").repeat(65)].concat()),
        ] {
            let (end, out) = open(&server);
            assert!(matches!(end, Err(HandshakeError::Violation(_))), "{name}: {end:?}");
            assert!(!out.ends_with(&option(2, b"")), "{name}");
        }
    }

    #[test]
    fn names_that_no_server_can_have_are_refused() {
        assert!(matches!(Handshake::open(&"x".repeat(4097)), Err(HandshakeError::Name)));
        assert!(matches!(Handshake::open("a\0b"), Err(HandshakeError::Name)));
        assert!(Handshake::open(&"x".repeat(4096)).is_ok());
    }

    proptest! {
        #[test]
        fn any_server_ends_or_waits(
            start in 0usize..6, noise in prop::collection::vec(any::<u8>(), 0..200), step in 1usize..64,
        ) {
            let whole = whole();
            let cut = [0, 18, 38, 77, 97, whole.len() - 20][start];
            let server = [&whole[..cut], &noise].concat();
            let _ = run(Handshake::open("disk").unwrap(), &server, step);
        }
    }
}

mod requests {
    use super::*;

    fn export() -> Export {
        Export {
            size: 1 << 20,
            flags: Flags::new(FLAGS),
            blocks: BlockSizes { minimum: 512, preferred: 4096, maximum: 65_536 },
            structured: true,
            allocation: Some(1),
            ..Export::default()
        }
    }

    #[test]
    fn headers_are_the_documents() {
        let mut session = Session::new(export(), 8);
        let (at, len) = (0x1000, 0x200);
        for (command, flags, kind) in [
            (Command::Read { at, len }, 0, 0),
            (Command::Write { at, len, fua: true }, 1, 1),
            (Command::Trim { at, len, fua: false }, 0, 4),
            (Command::WriteZeroes { at, len, fua: true, hole: false, fast: true }, 0x13, 6),
            (Command::WriteZeroes { at, len, fua: false, hole: true, fast: false }, 0, 6),
            (Command::BlockStatus { at, len, one: true }, 8, 7),
        ] {
            let (cookie, header) = session.submit(command).unwrap();
            let expected = [
                vec![0x25, 0x60, 0x95, 0x13],
                be16(flags),
                be16(kind),
                be64(cookie.value()),
                be64(at),
                be32(len),
            ]
            .concat();
            assert_eq!(header[..], expected);
        }
        let (cookie, header) = session.submit(Command::Flush).unwrap();
        let expected = [vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3], be64(cookie.value()), vec![0; 12]].concat();
        assert_eq!(header[..], expected);
        let expected = [vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 2], vec![0; 20]].concat();
        assert_eq!(DISCONNECT[..], expected);
    }

    #[test]
    fn nothing_is_sent_that_an_export_does_not_take() {
        let read = |at, len| Command::Read { at, len };
        let zeroes = |len, fast| Command::WriteZeroes { at: 0, len, fua: false, hole: true, fast };
        let all = export();
        let with = |flags: u16| Export { flags: Flags::new(flags), allocation: None, ..export() };
        for (export, command, expected) in [
            (&all, read(0, 65_536), Ok(())),
            (&all, read((1 << 20) - 512, 512), Ok(())),
            (&all, read(0, 66_048), Err(Refused::TooLong(65_536))),
            (&all, zeroes(1 << 20, true), Ok(())),
            (&all, read(0, 0), Err(Refused::Empty)),
            (&all, read(1 << 20, 512), Err(Refused::OutOfRange)),
            (&all, read(u64::MAX - 511, 512), Err(Refused::OutOfRange)),
            (&all, read(1, 512), Err(Refused::Misaligned(512))),
            (&all, read(0, 513), Err(Refused::Misaligned(512))),
            (&with(3), Command::Write { at: 0, len: 512, fua: false }, Err(Refused::ReadOnly)),
            (&with(1), Command::Write { at: 0, len: 512, fua: false }, Ok(())),
            (&with(1), Command::Write { at: 0, len: 512, fua: true }, Err(Refused::Unsupported("FUA"))),
            (&with(1), Command::Flush, Err(Refused::Unsupported("flushes"))),
            (&with(1), Command::Trim { at: 0, len: 512, fua: false }, Err(Refused::Unsupported("trims"))),
            (&with(1), zeroes(512, false), Err(Refused::Unsupported("writes of zeros"))),
            (&with(0x41), zeroes(512, true), Err(Refused::Unsupported("fast zeros"))),
            (
                &with(FLAGS),
                Command::BlockStatus { at: 0, len: 512, one: true },
                Err(Refused::Unsupported("block status")),
            ),
        ] {
            assert_eq!(command.check(export), expected, "{command:?}");
        }
    }

    #[test]
    fn outstanding_requests_are_bounded_and_cookies_are_not_used_twice() {
        let mut session = Session::new(export(), 2);
        let (first, _) = session.submit(Command::Flush).unwrap();
        let (second, _) = session.submit(Command::Flush).unwrap();
        assert_eq!(session.submit(Command::Flush), Err(Refused::TooMany(2)));
        let reply = [be32(0x6744_6698), be32(0), be64(first.value())].concat();
        let done = Event::Done { cookie: first, outcome: Ok(()) };
        assert_eq!(session.next(&mut &reply[..]), Ok(Some(done)));
        assert_eq!((session.outstanding(), session.command(first)), (1, None));
        let (third, _) = session.submit(Command::Flush).unwrap();
        assert_eq!(third.slot(), first.slot());
        assert!(![first.value(), second.value()].contains(&third.value()));
        assert_eq!(session.next(&mut &reply[..]), Err(Violation::Cookie(first.value())));
    }
}

mod replies {
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
}

mod uris {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { address: Address::Tcp { host: host.into(), port }, export: export.into() }
    }

    fn unix(path: &str, export: &str) -> Uri {
        Uri { address: Address::Unix(path.into()), export: export.into() }
    }

    #[test]
    fn the_documents_examples_and_others() {
        for (text, uri, shown) in [
            ("nbd://example.com/disk", tcp("example.com", 10809, "disk"), "nbd://example.com/disk"),
            ("nbd+unix:///disk?socket=sock", unix("sock", "disk"), "nbd+unix:///disk?socket=sock"),
            ("nbd://example.com/", tcp("example.com", 10809, ""), "nbd://example.com/"),
            ("nbd://example.com", tcp("example.com", 10809, ""), "nbd://example.com/"),
            ("nbd://example.com//disk", tcp("example.com", 10809, "/disk"), "nbd://example.com//disk"),
            (
                "nbd://example.com/hello%20world",
                tcp("example.com", 10809, "hello world"),
                "nbd://example.com/hello%20world",
            ),
            ("nbd://10.0.0.1:10809/a,b", tcp("10.0.0.1", 10809, "a,b"), "nbd://10.0.0.1/a%2Cb"),
            ("nbd://h:99/%c3%a9", tcp("h", 99, "é"), "nbd://h:99/%C3%A9"),
            ("nbd://h:/x", tcp("h", 10809, "x"), "nbd://h/x"),
            ("nbd://[::1]:77/x", tcp("::1", 77, "x"), "nbd://[::1]:77/x"),
            ("nbd://[fe80::1]", tcp("fe80::1", 10809, ""), "nbd://[fe80::1]/"),
            ("nbd+unix:///?socket=/run/a%20b", unix("/run/a b", ""), "nbd+unix:///?socket=/run/a%20b"),
            ("nbd+unix://?socket=/s&", unix("/s", ""), "nbd+unix:///?socket=/s"),
        ] {
            assert!(is_uri(text));
            assert_eq!(text.parse(), Ok(uri.clone()), "{text}");
            assert_eq!(uri.to_string(), shown);
            assert_eq!(shown.parse(), Ok(uri));
        }
    }

    #[test]
    fn what_names_no_export_is_refused() {
        let text = str::to_owned;
        for (uri, expected) in [
            ("disk", UriError::Scheme),
            ("http://h/x", UriError::Scheme),
            ("nbds://h/x", UriError::Tls),
            ("nbds+unix:///x?socket=/s", UriError::Tls),
            ("nbd://user@h/x", UriError::Tls),
            ("nbd://h/x?tls-type=psk", UriError::Tls),
            ("nbd:///x", UriError::NoHost),
            ("nbd://:10809/x", UriError::NoHost),
            ("nbd+unix:///x", UriError::NoSocket),
            ("nbd+unix:///x?socket=", UriError::NoSocket),
            ("nbd+unix://h/x?socket=/s", UriError::Host),
            ("nbd+unix:///x?socket=/s&socket=/t", UriError::Parameter(text("socket"))),
            ("nbd://h/x?socket=/s", UriError::Parameter(text("socket"))),
            ("nbd://h/x?a=b", UriError::Parameter(text("a"))),
            ("nbd://h:0/x", UriError::Port(text("0"))),
            ("nbd://h:+1/x", UriError::Port(text("+1"))),
            ("nbd://h:65536/x", UriError::Port(text("65536"))),
            ("nbd://[::1/x", UriError::BadHost(text("[::1"))),
            ("nbd://[h]/x", UriError::BadHost(text("[h]"))),
            ("nbd://[::1]9/x", UriError::BadHost(text("[::1]9"))),
            ("nbd://a%2Fb/x", UriError::BadHost(text("a%2Fb"))),
            ("nbd://h/%2", UriError::Encoding(text("%2"))),
            ("nbd://h/%+1", UriError::Encoding(text("%+1"))),
            ("nbd://h/%ff", UriError::Encoding(text("%ff"))),
            ("nbd://h/%00", UriError::Encoding(text("%00"))),
            ("nbd+unix:///?socket=%00/abstract", UriError::Encoding(text("%00/abstract"))),
            ("nbd://h/x#y", UriError::Encoding(text("x#y"))),
            ("nbd://h/a b", UriError::Encoding(text("a b"))),
        ] {
            assert_eq!(uri.parse::<Uri>(), Err(expected), "{uri}");
        }
        assert_eq!(format!("nbd://h/{}", "x".repeat(4097)).parse::<Uri>(), Err(UriError::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_what_is_read(
            host in "[a-z0-9._-]{1,9}", port in 1u16.., export in "[^\0]{0,20}", path in "[^\0]{1,20}",
        ) {
            for uri in [tcp(&host, port, &export), unix(&path, &export)] {
                prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(nbd|nbd\\+unix)://[^\0]{0,30}") {
            if let Ok(uri) = text.parse::<Uri>() {
                prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            }
        }
    }
}
