//! ONC RPC: a stream of records cut anywhere, and messages with their credentials and rpcbind's
//! procedures.

use crate::input::{Input, Seed};
use rpc::auth::{AuthSys, Credential, OpaqueAuth};
use rpc::bind::{self, Binding, Mapping};
use rpc::message::{AcceptStat, AuthStat, Call, Message, Reply, Versions};
use rpc::record::{self, Assembler, LAST, Limits, RecordError};
use rpc::xdr::{Chained, Malformed, Opaque, Reader, Writer};

const LIMITS: Limits = Limits { record: 600, fragments: 6 };

/// The records of a stream that arrives in pieces of `step` bytes, and what ended it.
fn cut(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<RecordError>) {
    let mut assembler = Assembler::new(LIMITS);
    let mut found = Vec::new();
    for mut piece in stream.chunks(step) {
        loop {
            match assembler.next_record(&mut piece) {
                Ok(Some(record)) => found.push(record.to_vec()),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        assert!(piece.is_empty());
    }
    (found, None)
}

/// Byte 0: how many bytes are received at once; then the stream.
pub fn records(data: &[u8]) {
    let mut input = Input::new(data);
    let step = usize::from(input.u8()).max(1);
    let stream = input.rest();
    let (found, error) = cut(stream, step);
    assert!(found.iter().all(|record| record.len() <= LIMITS.record));
    // The records do not depend on how they arrive.
    assert_eq!(cut(stream, stream.len().max(1)), (found.clone(), error));
    // Data written as records decodes to the same.
    let mut out = Vec::new();
    for record in &found {
        let mut to = Writer::new(&mut out);
        let begun = record::begin(&mut to);
        to.raw(record);
        record::end(&mut to, begun, 0).expect("a record below the limit has a mark");
    }
    assert_eq!(cut(&out, step), (found, None));
}

fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Writer::new(&mut out));
    out
}

/// Checks that a decoded value encodes to bytes that decode to the same.
fn again<'a, T: PartialEq + std::fmt::Debug>(
    bytes: &'a [u8],
    buffer: &'a mut Vec<u8>,
    read: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
    write: impl Fn(&T, &mut Writer<'_>),
) {
    let mut from = Reader::new(bytes);
    let Ok(value) = read(&mut from) else { return };
    write(&value, &mut Writer::new(buffer));
    assert_eq!(buffer.len(), from.position());
    assert_eq!(read(&mut Reader::new(buffer)), Ok(value));
}

macro_rules! procedures {
    ($bytes:expr, $version:ident) => {
        for procedure in bind::$version::Procedure::ALL {
            let (arguments, results) = (&mut Vec::new(), &mut Vec::new());
            again(
                $bytes,
                arguments,
                |from| bind::$version::Arguments::read(*procedure, from),
                |value, to| value.write(to),
            );
            again(
                $bytes,
                results,
                |from| bind::$version::Results::read(*procedure, from),
                |value, to| value.write(to),
            );
        }
    };
}

/// A message, with arguments or results of rpcbind behind its header.
pub fn message(data: &[u8]) {
    let mut from = Reader::new(data);
    let message = match Message::read(&mut from) {
        Ok(message) => message,
        Err(bad) => {
            if let Some(reply) = bad.reply() {
                assert!(!reply.is_success());
                let bytes = written(|to| reply.write(to));
                assert_eq!(Message::read(&mut Reader::new(&bytes)), Ok(Message::Reply(reply)));
            }
            return assert!(!bad.to_string().is_empty());
        }
    };
    let bytes = written(|to| match &message {
        Message::Call(call) => call.write(to),
        Message::Reply(reply) => reply.write(to),
    });
    assert_eq!(bytes.len(), from.position());
    assert_eq!(Message::read(&mut Reader::new(&bytes)), Ok(message));
    if let Message::Call(call) = message
        && let Ok(Credential::Sys(sys)) = call.credential.credential()
    {
        let mut buffer = Vec::new();
        assert_eq!(sys.auth(&mut buffer).credential(), Ok(Credential::Sys(sys.clone())));
    }
    procedures!(from.remaining(), v2);
    procedures!(from.remaining(), v3);
    procedures!(from.remaining(), v4);
}

fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | if last { LAST } else { 0 };
    [&mark.to_be_bytes(), bytes].concat()
}

/// Whole records, one in fragments, and ones beyond the limits.
pub fn records_seeds() -> Vec<(&'static str, Seed)> {
    let stream = |step: u8, parts: &[Vec<u8>]| Seed::new().bytes([step]).bytes(parts.concat());
    let parts =
        [fragment(b"ab", false), fragment(b"", false), fragment(b"cdefg", true), fragment(b"h", true)];
    vec![
        ("whole", stream(255, &[fragment(b"abcdefgh", true), fragment(b"", true), fragment(b"ijkl", true)])),
        ("fragments", stream(3, &parts)),
        ("endless", stream(9, &[fragment(b"", false).repeat(8)])),
        ("long", stream(64, &[fragment(&[7; 500], false), fragment(&[8; 101], true)])),
    ]
}

fn text<const MAX: usize>(text: &str) -> Opaque<'_, MAX> {
    Opaque::new(text.as_bytes()).expect("a seed's text is short")
}

/// A call for each version of rpcbind, and replies.
pub fn message_seeds() -> Vec<(&'static str, Seed)> {
    let gids = [4, 24].into_iter().collect();
    let sys = AuthSys { stamp: 5, machine: text("host"), uid: 1000, gid: 100, gids };
    let mut buffer = Vec::new();
    let credential = sys.auth(&mut buffer);
    let call = |version, procedure| {
        let verifier = OpaqueAuth::NONE;
        let call = Call { xid: 7, program: bind::PROGRAM, version, procedure, credential, verifier };
        written(|to| call.write(to))
    };
    let reply = |stat| written(|to| Reply::accepted(7, stat).write(to));
    let mapping = Mapping { program: 100_003, version: 3, protocol: bind::TCP, port: 2049 };
    let binding = || Binding {
        program: 100_003,
        version: 3,
        netid: text("tcp"),
        address: text("192.0.2.1.8.1"),
        owner: text("root"),
    };
    let (mappings, bindings) = (Chained::of([mapping, mapping]), Chained::of([binding(), binding()]));
    let seed = |head: Vec<u8>, body: Vec<u8>| Seed::new().bytes(head).bytes(body);
    vec![
        ("getport", seed(call(2, 3), written(|to| bind::v2::Arguments::GetPort(mapping).write(to)))),
        ("getaddr", seed(call(4, 3), written(|to| bind::v4::Arguments::GetAddr(binding()).write(to)))),
        (
            "dump",
            seed(
                reply(AcceptStat::Success(())),
                written(|to| bind::v2::Results::Dump(mappings.chain()).write(to)),
            ),
        ),
        (
            "bindings",
            seed(
                reply(AcceptStat::Success(())),
                written(|to| bind::v4::Results::Dump(bindings.chain()).write(to)),
            ),
        ),
        ("mismatch", seed(reply(AcceptStat::ProgMismatch(Versions { low: 3, high: 4 })), Vec::new())),
        ("denied", seed(written(|to| Reply::auth_error(7, AuthStat::TooWeak).write(to)), Vec::new())),
    ]
}
