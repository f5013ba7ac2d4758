//! Handshakes: what is negotiated, refusals, and servers that lie.

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

/// Runs a handshake with a server's bytes in pieces of `step`. Returns its end, the bytes that it
/// sent, and how many it left.
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
