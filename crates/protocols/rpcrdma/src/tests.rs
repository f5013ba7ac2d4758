//! The bytes of headers, hostile headers, calls put together, replies taken apart.

use proptest::prelude::*;
use rpc::message::Versions;
use rpc::xdr::{Chained, List, Reader, Writer};

use crate::call::{Pieces, pieces};
use crate::reply::{room, written};
use crate::*;

const LIMITS: Limits = Limits { read_segments: 8, write_chunks: 2, segments: 4, call: 10_000 };

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: u64::from(handle) << 32 }
}

fn read(position: u32, handle: u32, length: u32) -> ReadSegment {
    ReadSegment { position, source: segment(handle, length) }
}

fn bytes(header: &Header<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    header.write(&mut Writer::new(&mut out));
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Calls `then` with the header of a call.
fn with<T>(
    sent: bool,
    reads: &[ReadSegment],
    writes: &[&[Segment]],
    reply: Option<&[Segment]>,
    then: impl FnOnce(&Header<'_>) -> T,
) -> T {
    let reads = Chained::of(reads.iter().copied());
    let writes = Chained::of(writes.iter().map(|chunk| WriteChunk { segments: List::of(chunk) }));
    let reply = reply.map(|chunk| WriteChunk { segments: List::of(chunk) });
    let lists = Lists { reads: reads.chain(), writes: writes.chain(), reply };
    let body = if sent { Body::Message(lists) } else { Body::NoMessage(lists) };
    then(&Header::new(7, 32, body))
}

fn pieces_of(sent: Option<usize>, reads: &[ReadSegment]) -> Result<Pieces, BadChunks> {
    with(sent.is_some(), reads, &[], None, |header| pieces(header, sent.unwrap_or(0), &LIMITS))
}

fn sinks(writes: &[&[Segment]], reply: Option<&[Segment]>) -> Result<Sinks, BadChunks> {
    with(true, &[], writes, reply, |header| Sinks::of(header.lists().unwrap(), &LIMITS))
}

#[test]
fn headers_have_the_bytes_of_the_standard() {
    let plain = Header::new(7, 32, Body::Message(Lists::NONE));
    assert_eq!(bytes(&plain), words(&[7, 1, 32, 0, 0, 0, 0]));
    let long = with(false, &[read(0, 5, 100)], &[&[segment(6, 9)]], Some(&[segment(8, 4)]), bytes);
    let lists = [1, 0, 5, 100, 5, 0, 0, 1, 1, 6, 9, 6, 0, 0, 1, 1, 8, 4, 8, 0];
    assert_eq!(long, [words(&[7, 1, 32, 1]), words(&lists)].concat());
    let error = Header::new(7, 32, Body::Error(Failure::Version(Versions { low: 1, high: 1 })));
    assert_eq!(bytes(&error), words(&[7, 1, 32, 4, 1, 1, 1]));
    assert_eq!(bytes(&TooShort::reply(7, 32)), words(&[7, 1, 32, 4, 2]));
}

#[test]
fn what_is_no_header_is_answered_where_it_can_be() {
    let read = |words_: &[u32]| Header::read(&mut Reader::new(&words(words_))).map(|_| ());
    let bad = read(&[7, 2, 32, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(bad, BadHeader::Version { xid: 7, version: 2 });
    assert_eq!(bytes(&bad.reply(5).unwrap()), words(&[7, 2, 5, 4, 1, 1, 1]));
    // Kinds that there are not, any more: MSGP, DONE; lists that are cut; a count that lies.
    let lies = [
        &[7, 1, 32, 2, 0, 0, 0][..],
        &[7, 1, 32, 3],
        &[7, 1, 32, 0, 0, 0],
        &[7, 1, 32, 0, 1, 0, 5, 100, 0],
        &[7, 1, 32, 0, 0, 1, u32::MAX, 6, 9, 6, 0, 0, 0],
        &[7, 1, 32, 0, 2, 0, 0],
    ];
    for lie in lies {
        let bad = read(lie).unwrap_err();
        assert!(matches!(bad, BadHeader::Chunks { xid: 7, .. }), "{lie:?}: {bad:?}");
        assert_eq!(bytes(&bad.reply(5).unwrap()), words(&[7, 1, 5, 4, 2]));
    }
    for nothing in [&[7, 1, 32][..], &[], &[7, 1, 32, 4], &[7, 1, 32, 4, 9]] {
        assert_eq!(read(nothing).unwrap_err().reply(5), None, "{nothing:?}");
    }
}

#[test]
fn read_chunks_are_put_where_they_belong() {
    let part = |handle, length| Piece::Read(segment(handle, length));
    assert_eq!(pieces_of(Some(80), &[]).unwrap()[..], [Piece::Sent(0..80)]);
    // A WRITE's data, at the end, in two segments, with what rounds it up.
    let pieces = pieces_of(Some(80), &[read(80, 5, 100), read(80, 6, 3)]).unwrap();
    assert_eq!(pieces[..], [Piece::Sent(0..80), part(5, 100), part(6, 3), Piece::Padding(1)]);
    // Two chunks, listed the other way round; positions count what the first chunk brings.
    let pieces = pieces_of(Some(60), &[read(80, 6, 4), read(40, 5, 18)]).unwrap();
    let all = [Piece::Sent(0..40), part(5, 18), Piece::Padding(2), Piece::Sent(40..60), part(6, 4)];
    assert_eq!(pieces[..], all);
    // A call that is all in chunks, cut by the chunk of an item; empty segments are left out.
    let pieces = pieces_of(None, &[read(0, 5, 100), read(0, 9, 0), read(40, 6, 8)]).unwrap();
    let rest = Segment { handle: 5, length: 60, offset: (5 << 32) + 40 };
    assert_eq!(pieces[..], [part(5, 40), part(6, 8), Piece::Read(rest)]);
}

#[test]
fn read_chunks_that_lie_are_refused() {
    let bad = |sent, reads: &[ReadSegment]| pieces_of(sent, reads).unwrap_err();
    assert_eq!(bad(Some(80), &[read(42, 5, 4)]), BadChunks::Unaligned(42));
    assert_eq!(bad(Some(80), &[read(84, 5, 4)]), BadChunks::Misplaced(84));
    assert_eq!(bad(Some(80), &[read(40, 5, 16), read(52, 6, 4)]), BadChunks::Misplaced(52));
    assert_eq!(bad(Some(80), &[read(0, 5, 16)]), BadChunks::NoCall);
    assert_eq!(bad(None, &[read(40, 5, 16)]), BadChunks::NoCall);
    assert_eq!(bad(None, &[]), BadChunks::NoCall);
    assert_eq!(bad(Some(80), &[read(80, 5, u32::MAX)]), BadChunks::TooLong(80 + u64::from(u32::MAX)));
    assert_eq!(bad(Some(80), &[read(80, 5, 4); 9]), BadChunks::TooMany);
    let end = Segment { handle: 1, length: 2, offset: u64::MAX - 1 };
    assert_eq!(bad(Some(80), &[ReadSegment { position: 80, source: end }]), BadChunks::Wraps);
    // Sent, and behind it bytes that belong nowhere.
    let both = with(false, &[read(0, 5, 16)], &[], None, |header| pieces(header, 4, &LIMITS));
    assert_eq!(both, Err(BadChunks::NoCall));
    let error = Header::new(7, 1, Body::Error(Failure::Chunk(())));
    assert_eq!(pieces(&error, 0, &LIMITS), Err(BadChunks::NoCall));
}

#[test]
fn memory_for_replies_is_bounded_and_does_not_overlap() {
    let (a, b) = (segment(5, 100), segment(6, 100));
    assert_eq!(sinks(&[&[a, b]], Some(&[segment(7, 1)])).unwrap().segments().count(), 3);
    assert_eq!(sinks(&[&[a], &[b], &[]], None), Err(BadChunks::TooMany));
    assert_eq!(sinks(&[], Some(&[a; 5])), Err(BadChunks::TooMany));
    assert_eq!(sinks(&[&[a], &[a]], None), Err(BadChunks::Overlap));
    let within = Segment { offset: a.offset + 99, ..a };
    assert_eq!(sinks(&[&[within]], Some(&[a])), Err(BadChunks::Overlap));
    let behind = Segment { offset: a.offset + 100, ..a };
    assert!(sinks(&[&[behind]], Some(&[a])).is_ok());
    let end = Segment { handle: 1, length: 2, offset: u64::MAX - 1 };
    assert_eq!(sinks(&[], Some(&[end])), Err(BadChunks::Wraps));
}

/// The header of a placement.
fn header(placement: &Placement) -> Header<'_> {
    Header::read(&mut Reader::new(&placement.header)).unwrap()
}

#[test]
fn an_item_goes_to_its_chunk_and_the_rest_is_sent() {
    let sinks = sinks(&[&[segment(5, 100), segment(6, 100)]], None).unwrap();
    let of = |index, len| [Item { index, len }];
    let place = |items: &[Item]| sinks.place(7, 32, Shape { rest: 100, items }, INLINE);
    let placed = place(&of(0, 141)).unwrap();
    assert_eq!(placed.items[0][..], [segment(5, 100), segment(6, 41)]);
    assert!(placed.rest.is_empty());
    let Body::Message(lists) = header(&placed).body else { panic!("{placed:?}") };
    let returned = lists.writes.iter().next().unwrap();
    assert_eq!(written(&sinks.writes[0], &returned), Some(141));
    // What has no item uses no chunk.
    let placed = place(&[]).unwrap();
    let returned = header(&placed).lists().unwrap().writes.iter().next().unwrap();
    assert_eq!((placed.items.len(), written(&sinks.writes[0], &returned)), (0, Some(0)));
    // Another result's item stays with the rest.
    let placed = place(&of(1, 141)).unwrap();
    assert!(placed.items[0].is_empty() && placed.rest.is_empty());
    assert_eq!(place(&of(0, 201)), Err(TooShort { room: 200, needed: 201 }));
}

/// RFC 8166 §3.4.6.1, RFC 8267 §5.3: the chunks of the write list belong to the results in order.
#[test]
fn each_item_goes_to_the_chunk_of_its_result() {
    let writes: [&[Segment]; 4] =
        [&[segment(5, 100)], &[segment(6, 0)], &[segment(7, 100)], &[segment(8, 9)]];
    let limits = Limits { write_chunks: 4, ..LIMITS };
    let sinks = with(true, &[], &writes, None, |header| Sinks::of(header.lists().unwrap(), &limits).unwrap());
    let items = [(0, 100), (1, 5), (2, 7)].map(|(index, len)| Item { index, len });
    let placed = sinks.place(7, 32, Shape { rest: 40, items: &items }, INLINE).unwrap();
    // A result whose chunk is empty stays with the rest.
    let expected: [&[Segment]; 3] = [&[segment(5, 100)], &[], &[segment(7, 7)]];
    assert_eq!(placed.items.iter().map(|it| &it[..]).collect::<Vec<_>>(), expected);
    let lists = header(&placed);
    let lists = lists.lists().unwrap();
    let returned: Vec<_> =
        sinks.writes.iter().zip(lists.writes.iter()).map(|(gave, chunk)| written(gave, &chunk)).collect();
    assert_eq!(returned, [Some(100), Some(0), Some(7), Some(0)]);
}

#[test]
fn a_reply_too_long_to_send_goes_to_the_reply_chunk() {
    let given = [segment(5, 1000), segment(6, 1000), segment(8, 10)];
    let sinks = sinks(&[], Some(&given)).unwrap();
    let items = |len| [Item { index: 0, len }];
    let (long, longer) = (items(1001), items(2000));
    let shape = Shape { rest: 108, items: &long };
    let placed = sinks.place(7, 32, shape, INLINE).unwrap();
    // Its padding is a part of the rest.
    assert_eq!(placed.rest[..], [segment(5, 1000), segment(6, 112)]);
    let Body::NoMessage(lists) = header(&placed).body else { panic!("{placed:?}") };
    assert_eq!(written(&given, &lists.reply.unwrap()), Some(1112));
    // The chunk comes back unused with a short reply.
    let placed = sinks.place(7, 32, Shape { items: &[], ..shape }, INLINE).unwrap();
    let Body::Message(lists) = header(&placed).body else { panic!("{placed:?}") };
    assert_eq!(written(&given, &lists.reply.unwrap()), Some(0));
    let too_long = Shape { items: &longer, ..shape };
    assert_eq!(sinks.place(7, 32, too_long, INLINE), Err(TooShort { room: 2010, needed: 2108 }));
    let without = Sinks::default().place(7, 32, shape, INLINE);
    assert_eq!(without, Err(TooShort { room: 1024 - 28, needed: 1112 }));
    // The longest that is sent.
    let most = Shape { rest: 1024 - 28, items: &[] };
    assert!(Sinks::default().place(7, 32, most, INLINE).is_ok());
    assert!(Sinks::default().place(7, 32, Shape { rest: most.rest + 1, ..most }, INLINE).is_err());
}

#[test]
fn a_responder_that_lies_about_a_chunk_is_found_out() {
    let given = [segment(5, 100), segment(6, 100)];
    let says = |segments: &[Segment]| written(&given, &WriteChunk { segments: List::of(segments) });
    assert_eq!(says(&[segment(5, 100), segment(6, 7)]), Some(107));
    assert_eq!(says(&[segment(5, 99), segment(6, 7)]), None);
    assert_eq!(says(&[segment(5, 101), segment(6, 0)]), None);
    assert_eq!(says(&[segment(6, 100), segment(5, 0)]), None);
    assert_eq!(says(&[segment(5, 100)]), None);
}

#[test]
fn credits_bound_what_is_outstanding() {
    let mut credits = Credits::new();
    assert_eq!(credits.available(), 1);
    credits.called();
    assert_eq!(credits.available(), 0);
    credits.replied(3);
    assert_eq!(credits.available(), 3);
    (0..3).for_each(|_| credits.called());
    credits.replied(0);
    assert_eq!(credits.available(), 0, "two are outstanding, and one is granted");
    credits.replied(1);
    credits.replied(1);
    assert_eq!(credits.available(), 1);
}

#[test]
fn private_data_has_the_bytes_that_linux_sends() {
    let linux = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    let decoded = PrivateData { remote_invalidation: true, send: 4096, receive: 4096 };
    assert_eq!(PrivateData::decode(&linux), decoded);
    assert_eq!(decoded.encode(), linux);
    assert_eq!(PrivateData::decode(&[linux.to_vec(), vec![0; 48]].concat()), decoded);
    for other in [&linux[..7], &[], &[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3], &[0; 8]] {
        assert_eq!(PrivateData::decode(other), PrivateData::NONE);
    }
    let most = PrivateData { remote_invalidation: false, send: 256 << 10, receive: 1 << 20 };
    assert_eq!(PrivateData::decode(&most.encode()), PrivateData { receive: 256 << 10, ..most });
    assert_eq!(most.inline_to(&decoded), 4096);
    assert_eq!(decoded.inline_to(&PrivateData::NONE), INLINE);
}

#[test]
fn calls_and_replies_are_told_apart() {
    assert_eq!(Direction::of(&words(&[7, 0, 2])), Some(Direction::Call));
    assert_eq!(Direction::of(&words(&[7, 1])), Some(Direction::Reply));
    assert_eq!(Direction::of(&words(&[7, 2])), None);
    assert_eq!(Direction::of(&words(&[7])), None);
}

fn any_segment() -> impl Strategy<Value = Segment> {
    (0..4u32, 0..5000u32, prop_oneof![0..10_000u64, Just(u64::MAX - 9)])
        .prop_map(|(handle, length, offset)| Segment { handle, length, offset })
}

fn any_read() -> impl Strategy<Value = ReadSegment> {
    let position = prop_oneof![Just(0), (0..40u32).prop_map(|words| words * 4), 0..200u32];
    (position, any_segment()).prop_map(|(position, source)| ReadSegment { position, source })
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        reads in prop::collection::vec(any_read(), 0..5),
        writes in prop::collection::vec(prop::collection::vec(any_segment(), 0..3), 0..3),
        reply in prop::option::of(prop::collection::vec(any_segment(), 0..3)),
        sent: bool,
    ) {
        let writes: Vec<&[Segment]> = writes.iter().map(|chunk| &chunk[..]).collect();
        with(sent, &reads, &writes, reply.as_deref(), |header| {
            let out = bytes(header);
            let mut from = Reader::new(&out);
            assert_eq!(Header::read(&mut from).as_ref(), Ok(header));
            assert_eq!(from.position(), out.len());
        });
    }

    #[test]
    fn a_call_is_put_together_of_all_that_it_has(
        reads in prop::collection::vec(any_read(), 0..6),
        sent in prop::option::of(0..200usize),
    ) {
        let Ok(pieces) = pieces_of(sent, &reads) else { return Ok(()) };
        let (mut next, mut read) = (0, 0);
        for piece in &pieces {
            match piece {
                Piece::Sent(range) => {
                    prop_assert_eq!(range.start, next);
                    next = range.end;
                }
                Piece::Read(segment) => {
                    prop_assert!(segment.length > 0);
                    read += u64::from(segment.length);
                }
                Piece::Padding(bytes) => prop_assert!((1..4).contains(bytes)),
            }
        }
        prop_assert_eq!(next, sent.unwrap_or(0));
        prop_assert_eq!(read, reads.iter().map(|read| u64::from(read.source.length)).sum::<u64>());
    }

    #[test]
    fn a_reply_goes_where_there_is_room_and_nowhere_else(
        writes in prop::collection::vec(prop::collection::vec(any_segment(), 0..3), 0..3),
        reply in prop::option::of(prop::collection::vec(any_segment(), 0..3)),
        rest in 0..3000usize,
        lens in prop::collection::vec(0..3000usize, 0..4),
        inline in 28..4096usize,
    ) {
        let writes: Vec<&[Segment]> = writes.iter().map(|chunk| &chunk[..]).collect();
        let Ok(sinks) = sinks(&writes, reply.as_deref()) else { return Ok(()) };
        let items: Vec<Item> = lens.iter().enumerate().map(|(index, len)| Item { index, len: *len }).collect();
        let Ok(placed) = sinks.place(7, 32, Shape { rest, items: &items }, inline) else { return Ok(()) };
        let mut rest = rest;
        let mut apart = [0; 4];
        prop_assert_eq!(placed.items.len(), items.len());
        for (item, place) in items.iter().zip(&placed.items) {
            let len = room(place) as usize;
            prop_assert!(len == 0 || len == item.len);
            apart[item.index] = len;
            rest += if len > 0 { 0 } else { item.len.next_multiple_of(4) };
        }
        if placed.rest.is_empty() {
            prop_assert!(placed.header.len() + rest <= inline);
        } else {
            prop_assert_eq!(room(&placed.rest) as usize, rest);
        }
        let lists = *header(&placed).lists().unwrap();
        for (index, returned) in lists.writes.iter().enumerate() {
            prop_assert_eq!(written(&sinks.writes[index], &returned), Some(apart[index]));
        }
        prop_assert_eq!(lists.writes.iter().count(), sinks.writes.len());
        prop_assert_eq!(lists.reply.is_some(), sinks.reply.is_some());
    }
}
