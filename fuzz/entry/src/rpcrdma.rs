//! RPC over RDMA: a header with its chunks, the call that is assembled from them, and a reply that
//! is placed in them.

use crate::input::{Input, Seed};
use rpc::xdr::{Chained, List, Reader, Writer};
use rpcrdma::call::pieces;
use rpcrdma::reply::{room, written};
use rpcrdma::{
    Body, Header, INLINE, Item, Limits, Lists, Piece, PrivateData, ReadSegment, Segment, Shape, Sinks,
    WriteChunk,
};

const LIMITS: Limits = Limits { read_segments: 16, write_chunks: 4, segments: 8, call: 100_000 };

fn bytes(header: &Header<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    header.write(&mut Writer::new(&mut out));
    out
}

/// Bytes 0 to 5: the parts of a reply; then the message.
pub fn header(data: &[u8]) {
    let mut input = Input::new(data);
    let (rest, first) = (usize::from(input.u16()), usize::from(input.u16()));
    let index = usize::from(input.u8() % 4);
    let items =
        [(index, first), ((index + 1) % 4, usize::from(input.u8()))].map(|(index, len)| Item { index, len });
    let message = input.rest();
    let private = PrivateData::decode(message);
    assert_eq!(PrivateData::decode(&private.encode()), private);
    let mut from = Reader::new(message);
    let header = match Header::read(&mut from) {
        Ok(header) => header,
        Err(bad) => {
            assert!(!bad.to_string().is_empty());
            if let Some(reply) = bad.reply(9) {
                assert_eq!(Header::read(&mut Reader::new(&bytes(&reply))), Ok(reply));
            }
            return;
        }
    };
    let again = bytes(&header);
    assert_eq!(again.len(), from.position());
    assert_eq!(Header::read(&mut Reader::new(&again)), Ok(header));
    call(&header, from.remaining().len());
    let Some(Ok(sinks)) = header.lists().map(|lists| Sinks::of(lists, &LIMITS)) else { return };
    let Ok(placed) = sinks.place(header.xid, 9, Shape { rest, items: &items }, INLINE) else { return };
    let answer = Header::read(&mut Reader::new(&placed.header)).expect("our own header");
    let Some(lists) = answer.lists() else { panic!("an error in place of a reply") };
    let mut rest = rest;
    let mut apart = [0; 256];
    for (item, place) in items.iter().zip(&placed.items) {
        let len = room(place) as usize;
        assert!(len == 0 || len == item.len);
        apart[item.index] = len;
        rest += if len > 0 { 0 } else { item.len.next_multiple_of(4) };
    }
    for (index, (gave, chunk)) in sinks.writes.iter().zip(lists.writes.iter()).enumerate() {
        assert_eq!(written(gave, &chunk), Some(apart[index]));
    }
    match placed.rest.is_empty() {
        true => assert!(placed.header.len() + rest <= INLINE),
        false => assert_eq!(room(&placed.rest) as usize, rest),
    }
}

/// All that was sent is in the call, once and in its order.
fn call(header: &Header<'_>, sent: usize) {
    let Ok(pieces) = pieces(header, sent, &LIMITS) else { return };
    let (mut next, mut read) = (0, 0);
    for piece in &pieces {
        match piece {
            Piece::Sent(range) => {
                assert_eq!(range.start, next);
                next = range.end;
            }
            Piece::Read(segment) => {
                assert!(segment.length > 0);
                read += segment.length as usize;
            }
            Piece::Padding(bytes) => assert!((1..4).contains(bytes)),
        }
    }
    assert!(next == sent && sent + read <= LIMITS.call);
}

/// Calls with chunks of each kind, an error, and a header that is cut.
pub fn header_seeds() -> Vec<(&'static str, Seed)> {
    let segment = |handle: u32, length| Segment { handle, length, offset: 4096 * u64::from(handle) };
    let seed = |shape: [u8; 6], header: Vec<u8>, message: &[u8]| {
        Seed::new().bytes(shape).bytes(header).bytes(message)
    };
    let with = |reads: &[ReadSegment], writes: &[Segment], reply: Option<&[Segment]>, sent: bool| {
        let reads = Chained::of(reads.iter().copied());
        let writes = [WriteChunk { segments: List::of(writes) }];
        let writes = Chained::of(writes.into_iter().filter(|chunk| !chunk.segments.is_empty()));
        let reply = reply.map(|reply| WriteChunk { segments: List::of(reply) });
        let lists = Lists { reads: reads.chain(), writes: writes.chain(), reply };
        bytes(&Header::new(7, 32, if sent { Body::Message(lists) } else { Body::NoMessage(lists) }))
    };
    let at = |position, handle, length| ReadSegment { position, source: segment(handle, length) };
    let two = [segment(5, 100), segment(6, 100)];
    let short = [0, 100, 0, 0, 0, 0];
    vec![
        ("plain", seed(short, with(&[], &[], None, true), &[1; 40])),
        ("write", seed(short, with(&[at(40, 5, 99), at(40, 6, 30)], &[], None, true), &[1; 40])),
        ("two_chunks", seed(short, with(&[at(20, 5, 10), at(40, 6, 8)], &[], None, true), &[1; 40])),
        ("long_call", seed(short, with(&[at(0, 5, 99), at(40, 6, 8)], &[], None, false), &[])),
        ("read", seed([0, 100, 0, 150, 0, 8], with(&[], &two, None, true), &[1; 40])),
        ("reply_chunk", seed([0, 180, 0, 0, 0, 0], with(&[], &[], Some(&two), true), &[1; 40])),
        ("long_reply", seed([4, 180, 0, 0, 0, 0], with(&[], &[], Some(&[segment(5, 9999)]), true), &[1; 40])),
        ("version", seed(short, [[0, 0, 0, 7], [0, 0, 0, 2], [0; 4], [0; 4]].concat(), &[])),
        (
            "error",
            seed(short, [[0, 0, 0, 7], [0, 0, 0, 1], [0; 4], [0, 0, 0, 4], [0, 0, 0, 2]].concat(), &[]),
        ),
        ("private", seed(short, PrivateData::NONE.encode().to_vec(), &[])),
    ]
}
