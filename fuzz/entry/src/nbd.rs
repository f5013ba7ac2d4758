//! NBD: what a server sends, cut anywhere. The handshake, and replies to requests of every kind.

use crate::input::{Input, Seed};
use nbd::{BlockSizes, Command, Event, Export, Flags, Handshake, Session, State, Violation};

/// The end of a handshake with a server that sends `stream` in pieces of `step`, and what the
/// client sent.
fn shake(mut handshake: Handshake, stream: &[u8], step: usize) -> (String, Vec<u8>, Option<Export>) {
    let mut out = Vec::new();
    for mut piece in stream.chunks(step) {
        match handshake.advance(&mut piece, &mut out) {
            Ok(None) => assert!(piece.is_empty()),
            Ok(Some(export)) => return (format!("{export:?}"), out, Some(export)),
            end => return (format!("{end:?}"), out, None),
        }
    }
    (String::new(), out, None)
}

/// Byte 0: how many bytes arrive at once; then the stream.
pub fn handshake(data: &[u8]) {
    let mut input = Input::new(data);
    let step = usize::from(input.u8()).max(1);
    let stream = input.rest();
    let make = || Handshake::open("disk").expect("a short name");
    let cut = shake(make(), stream, step);
    let whole = shake(make(), stream, stream.len().max(1));
    assert_eq!(cut, whole);
    if let Some(export) = whole.2 {
        let BlockSizes { minimum, preferred, maximum } = export.blocks;
        assert!(minimum.is_power_of_two() && minimum <= preferred && preferred <= maximum);
        assert!(export.size <= i64::MAX as u64);
        assert!(export.structured || export.allocation.is_none());
    }
}

/// The bytes before and behind the range of each request.
const AT: u64 = 1 << 16;
/// The requests that are outstanding: their slots are 0 to 4.
const LEN: u32 = 4096;

fn session(structured: bool) -> Session {
    let allocation = structured.then_some(1);
    let (size, flags, blocks) = (1 << 20, Flags::new(0x096d), BlockSizes::default());
    let mut session =
        Session::new(Export { size, flags, blocks, structured, allocation, ..Export::default() }, 5);
    let (at, len) = (AT, LEN);
    for command in [
        Command::Read { at, len },
        Command::Read { at: 0, len: 512 },
        Command::Write { at, len, fua: true },
        Command::Flush,
        Command::BlockStatus { at, len, one: false },
    ] {
        if structured || !matches!(command, Command::BlockStatus { .. }) {
            session.submit(command).expect("the export takes it");
        }
    }
    session
}

/// What a stream gave: the bytes of each slot's read, the other events, and its end.
#[derive(Debug, PartialEq)]
struct Given {
    memory: Vec<Vec<u8>>,
    others: Vec<String>,
    end: Option<Violation>,
    midway: bool,
}

fn receive(stream: &[u8], structured: bool, step: usize) -> Given {
    let mut session = session(structured);
    let mut given =
        Given { memory: vec![vec![0xee; LEN as usize]; 2], others: Vec::new(), end: None, midway: false };
    let start = |slot: usize| if slot == 0 { AT } else { 0 };
    for mut piece in stream.chunks(step) {
        loop {
            match session.next(&mut piece) {
                Ok(None) => break,
                Ok(Some(Event::Data { cookie, at, bytes })) => {
                    let from = (at - start(cookie.slot())) as usize;
                    given.memory[cookie.slot()][from..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(Some(Event::Hole { cookie, at, len })) => {
                    let from = (at - start(cookie.slot())) as usize;
                    given.memory[cookie.slot()][from..][..len as usize].fill(0);
                }
                Ok(Some(Event::Extent { cookie, at, len, state: State { hole, zero } })) => {
                    assert!((AT..AT + u64::from(LEN)).contains(&at) && len > 0);
                    given.others.push(format!("{cookie:?} {at} {len} {hole} {zero}"));
                }
                Ok(Some(Event::Done { cookie, outcome })) => {
                    assert!(session.command(cookie).is_none());
                    given.others.push(format!("{cookie:?} {outcome:?}"));
                }
                Err(violation) => {
                    assert!(!violation.to_string().is_empty());
                    given.end = Some(violation);
                    return given;
                }
            }
        }
        assert!(piece.is_empty());
    }
    given.midway = session.is_midway();
    given
}

/// Byte 0: whether replies are structured; byte 1: how many bytes arrive at once. Then replies,
/// each as `kind`: 0 a simple one and 1 a chunk, whose magic, cookie and length are made right, or
/// else bytes as they are.
pub fn replies(data: &[u8]) {
    let mut input = Input::new(data);
    let (structured, step) = (input.bool(), usize::from(input.u8()).max(1));
    let mut stream = Vec::new();
    while !input.is_empty() {
        match input.u8() {
            0 => {
                let (cookie, error, body) = (input.u8(), input.u8(), input.chunk());
                stream.extend(0x6744_6698u32.to_be_bytes());
                stream.extend(u32::from(error).to_be_bytes());
                stream.extend(u64::from(cookie).to_be_bytes());
                stream.extend(body);
            }
            1 => {
                let (flags, kind, cookie, body) = (input.u8(), input.u16(), input.u8(), input.chunk());
                stream.extend(0x668e_33efu32.to_be_bytes());
                stream.extend(u16::from(flags).to_be_bytes());
                stream.extend(kind.to_be_bytes());
                stream.extend(u64::from(cookie).to_be_bytes());
                stream.extend((body.len() as u32).to_be_bytes());
                stream.extend(body);
            }
            _ => stream.extend(input.chunk()),
        }
    }
    let cut = receive(&stream, structured, step);
    let whole = receive(&stream, structured, stream.len().max(1));
    // What had come of a read before a violation depends on the pieces.
    match &whole.end {
        None => assert_eq!(cut, whole),
        Some(_) => assert_eq!((&cut.others, &cut.end), (&whole.others, &whole.end)),
    }
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let numbers = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
    [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &numbers, data].concat()
}

/// A current server, an old one, and refusals.
pub fn handshake_seeds() -> Vec<(&'static str, Seed)> {
    const ERROR: u32 = 1 << 31;
    let stream = |step: u8, parts: &[Vec<u8>]| {
        Seed::new().bytes([step]).bytes(b"NBDMAGICIHAVEOPT\0\x03").bytes(parts.concat())
    };
    let export = b"\0\0\0\0\0\0\0\x10\0\0\x09\x6d";
    let sizes = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0";
    let current = [
        option_reply(8, 1, b""),
        option_reply(10, 4, b"\0\0\0\x01base:allocation"),
        option_reply(10, 1, b""),
        option_reply(7, 3, sizes),
        option_reply(7, 3, b"\0\x02words"),
        option_reply(7, 3, export),
        option_reply(7, 1, b""),
    ];
    let old = [option_reply(8, ERROR + 1, b""), option_reply(7, ERROR + 1, b""), export[2..].to_vec()];
    let tls = [option_reply(8, ERROR + 5, b"no TLS")];
    let unknown = [option_reply(8, ERROR + 1, b""), option_reply(7, ERROR + 6, b"which?")];
    vec![
        ("current", stream(255, &current)),
        ("bytewise", stream(1, &current)),
        ("old", stream(9, &old)),
        ("tls", stream(20, &tls)),
        ("unknown", stream(64, &unknown)),
    ]
}

/// Simple replies; reads in chunks and holes, in disorder; block status; errors with and without a
/// place.
pub fn replies_seeds() -> Vec<(&'static str, Seed)> {
    let simple = |seed: Seed, cookie: u8, error: u8, body: &[u8]| seed.bytes([0, cookie, error]).chunk(body);
    let chunk = |seed: Seed, flags: u8, kind: u16, cookie: u8, body: &[u8]| {
        seed.bytes([1, flags]).bytes(kind.to_be_bytes()).bytes([cookie]).chunk(body)
    };
    let data = |at: u64, len: usize| [&at.to_be_bytes()[..], &vec![7; len]].concat();
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let start = |structured: u8, step: u8| Seed::new().bytes([structured, step]);
    let plain = simple(simple(simple(start(0, 50), 1, 0, &[9; 512]), 3, 0, b""), 2, 28, b"");
    let parts = chunk(start(1, 255), 0, 1, 0, &data(AT + 1024, 3072));
    let parts = chunk(parts, 0, 2, 1, &hole(0, 256));
    let parts = chunk(parts, 0, 2, 0, &hole(AT, 1024));
    let parts = chunk(chunk(parts, 1, 0, 0, b""), 1, 1, 1, &data(256, 256));
    let status = [1u32, 1024, 3, 3072, 0].map(u32::to_be_bytes).concat();
    let status = chunk(start(1, 7), 1, 5, 4, &status);
    let words = b"\0\0\0\x05\0\x05words";
    let errors = chunk(start(1, 33), 0, 0x8002, 0, &[&words[..], &AT.to_be_bytes()].concat());
    let errors = simple(chunk(chunk(errors, 1, 0, 0, b""), 1, 0x8001, 2, words), 3, 108, b"");
    vec![("simple", plain), ("chunks", parts), ("status", status), ("errors", errors)]
}
