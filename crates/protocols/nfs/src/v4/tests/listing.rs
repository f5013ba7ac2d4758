//! Replies to READDIR within their limits.

use rpc::xdr::{Opaque, Writer};

use crate::v4::readdir::{Entry, Listing};
use crate::v4::*;

/// Bytes of `READDIR4resok` without entries: verifier, end of the list, eof.
const EMPTY: u32 = 8 + 8;
/// Bytes of an entry with a name of 1 to 4 bytes and a file ID: TRUE, cookie, name, attributes.
const ENTRY: u32 = 4 + 8 + 8 + (4 + 4 + 4 + 8);

/// READDIR's reply with as many of 3 entries as fit.
fn list(dir_count: u32, max_count: u32) -> (Result<usize, Status>, Vec<u8>) {
    let mut out = Vec::new();
    let mut listed = Ok(0);
    let mut to = Writer::new(&mut out);
    let mut reply: ReplyWriter<'_, '_> = ReplyWriter::new(&mut to, Text::EMPTY);
    reply.in_place(Operation::ReadDir.code(), |to| {
        let mut listing = Listing::new(to, Verifier([9; 8]), dir_count, max_count);
        let mut all = true;
        for (cookie, name) in [(3, b"a"), (4, b"b"), (5, b"c")] {
            let attributes = Attributes { fileid: Some(cookie), ..Attributes::default() };
            let name = Opaque::new(name).unwrap();
            all &= listing.entry(&Entry { cookie, name, attributes: Fattr::of(&attributes) });
        }
        listed = listing.finish(all);
        listed.map(drop)
    });
    (listed, out)
}

#[test]
fn entries_fill_the_reply_to_the_last_byte() {
    // Before `READDIR4resok`: status, tag, count, operation, status.
    let head = 20;
    let (listed, wire) = list(0, EMPTY + 3 * ENTRY);
    assert_eq!((listed, wire.len() as u32), (Ok(3), head + EMPTY + 3 * ENTRY));
    let mut reply: Reply<'_> = Reply::read(&wire).unwrap();
    let Results::ReadDir(Outcome::Ok(read)) = reply.results.next().unwrap().unwrap().value else {
        panic!("no READDIR4resok");
    };
    assert!(read.eof && read.verifier == Verifier([9; 8]));
    let found: Vec<_> = read
        .entries
        .iter()
        .map(|it| (it.cookie, it.name.bytes(), it.attributes.attributes().unwrap().fileid))
        .collect();
    assert_eq!(found, [(3, &b"a"[..], Some(3)), (4, b"b", Some(4)), (5, b"c", Some(5))]);

    let (listed, wire) = list(0, EMPTY + 3 * ENTRY - 1);
    assert_eq!((listed, wire.len() as u32), (Ok(2), head + EMPTY + 2 * ENTRY));
    // The last word, eof, is FALSE.
    assert_eq!(wire.last_chunk(), Some(&[0; 4]));
}

#[test]
fn a_reply_without_room_for_an_entry_is_toosmall() {
    for max_count in [0, EMPTY - 1, EMPTY, EMPTY + ENTRY - 1] {
        let (listed, wire) = list(0, max_count);
        assert_eq!(listed, Err(Status::TooSmall), "{max_count}");
        let words = [10005, 0, 1, 26, 10005].map(u32::to_be_bytes);
        assert_eq!(wire, words.as_flattened());
    }
    assert_eq!(list(0, EMPTY + ENTRY).0, Ok(1));
}

#[test]
fn dircount_limits_cookies_and_names_and_0_is_no_limit() {
    assert_eq!(list(2 * 16, u32::MAX).0, Ok(2));
    assert_eq!(list(2 * 16 - 1, u32::MAX).0, Ok(1));
    assert_eq!(list(1, u32::MAX).0, Ok(1));
    assert_eq!(list(0, u32::MAX).0, Ok(3));
}
