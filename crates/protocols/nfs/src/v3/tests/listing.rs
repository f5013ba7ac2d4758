//! Replies to READDIR and READDIRPLUS within their limits.

use proptest::prelude::*;
use rpc::xdr::{Opaque, Writer};

use super::file;
use crate::v3::readdir::{Entry, EntryPlus, Listed, Listing};
use crate::v3::{Handle, Name, Outcome, Procedure, Results, Status, results};

/// Bytes behind the status in an empty list: no attributes, verifier, end of the list, eof.
const EMPTY: u32 = 4 + 8 + 8;
/// Bytes of an entry with a name of 1 to 4 bytes: TRUE, file ID, name, cookie.
const ENTRY: u32 = 4 + 8 + 8 + 8;

fn name(bytes: &[u8]) -> Name<'_> {
    Opaque::new(bytes).unwrap()
}

/// READDIR's reply with as many of these names as fit in `count`.
fn list(names: &[&[u8]], count: u32) -> (Listed, Vec<u8>) {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut listing = Listing::new(&mut to, None, [0; 8], count);
    let mut all = true;
    for (at, bytes) in names.iter().enumerate() {
        all &= listing.entry(&Entry { fileid: 9, name: name(bytes), cookie: at as u64 + 1 });
    }
    (listing.finish(all), out)
}

#[test]
fn entries_fill_the_reply_to_the_last_byte() {
    let names: [&[u8]; 3] = [b".", b"..", b"abcd"];
    let (listed, wire) = list(&names, EMPTY + 3 * ENTRY);
    assert_eq!(listed, Listed::Entries(3));
    assert_eq!(wire.len() as u32, 4 + EMPTY + 3 * ENTRY);
    let Results::ReadDir(Outcome::Ok(read)) = results(Procedure::ReadDir, &wire).unwrap().value else {
        panic!("no READDIR3resok");
    };
    assert!(read.eof);
    assert_eq!(read.entries.iter().map(|entry| entry.cookie).collect::<Vec<_>>(), [1, 2, 3]);

    let (listed, wire) = list(&names, EMPTY + 3 * ENTRY - 1);
    assert_eq!(listed, Listed::Entries(2));
    assert_eq!(wire.len() as u32, 4 + EMPTY + 2 * ENTRY);
    // The last word, eof, is FALSE.
    assert_eq!(wire.last_chunk(), Some(&[0; 4]));
}

#[test]
fn a_reply_without_room_for_an_entry_is_toosmall() {
    let too_small = [0, 0, 0x27, 0x15, 0, 0, 0, 0];
    for count in [0, EMPTY - 1, EMPTY, EMPTY + ENTRY - 1] {
        assert_eq!(list(&[b"a"], count), (Listed::TooSmall, too_small.to_vec()), "{count}");
    }
    assert_eq!(list(&[b"a"], EMPTY + ENTRY).0, Listed::Entries(1));
    // An empty directory needs no room for an entry.
    assert_eq!(list(&[], EMPTY).0, Listed::Entries(0));
    assert_eq!(list(&[], EMPTY - 1).0, Listed::TooSmall);
}

#[test]
fn no_entry_follows_one_that_did_not_fit() {
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut listing = Listing::new(&mut to, None, [0; 8], EMPTY + 2 * ENTRY);
    assert!(listing.entry(&Entry { fileid: 1, name: name(b"a"), cookie: 1 }));
    assert!(!listing.entry(&Entry { fileid: 2, name: name(b"longer"), cookie: 2 }));
    assert!(!listing.entry(&Entry { fileid: 3, name: name(b"c"), cookie: 3 }));
    assert_eq!(listing.finish(true), Listed::Entries(1));
    assert_eq!(out.last_chunk(), Some(&[0; 4]), "eof though entries were left out");
}

#[test]
fn toosmall_keeps_the_attributes_and_what_was_written_before() {
    let mut out = b"head".to_vec();
    let mut to = Writer::new(&mut out);
    let listing = Listing::plus(&mut to, Some(file()), [7; 8], 1000, 50);
    assert_eq!(listing.finish(true), Listed::TooSmall);
    let failed = results(Procedure::ReadDirPlus, &out[4..]).unwrap().value;
    assert_eq!(failed, Results::ReadDirPlus(Outcome::Err(Status::TooSmall, Some(file()))));
}

fn plus(dir_count: u32, max_count: u32) -> usize {
    let handle: Option<Handle<'_>> = Some(Opaque::new(b"handle").unwrap());
    let mut out = Vec::new();
    let mut to = Writer::new(&mut out);
    let mut listing = Listing::plus(&mut to, None, [0; 8], dir_count, max_count);
    let entry =
        |cookie| EntryPlus { fileid: 1, name: name(b"name"), cookie, attributes: Some(file()), handle };
    let fitting = (1..=4).filter(|cookie| listing.entry_plus(&entry(*cookie))).count();
    listing.finish(false);
    fitting
}

#[test]
fn dircount_limits_names_and_maxcount_everything() {
    // An entry's TRUE, its 24 bytes that count for dircount, attributes, and handle.
    let one = 4 + 24 + (4 + 84) + (4 + 4 + 8);
    assert_eq!(plus(u32::MAX, EMPTY + 3 * one), 3);
    assert_eq!(plus(u32::MAX, EMPTY + 3 * one - 1), 2);
    assert_eq!(plus(2 * 24, u32::MAX), 2);
    assert_eq!(plus(2 * 24 - 1, u32::MAX), 1);
    // The first entry may exceed dircount, which is a hint; so a client with dircount 0 gets on.
    assert_eq!(plus(0, u32::MAX), 1);
}

proptest! {
    #[test]
    fn a_reply_is_within_count_and_read_as_its_entries(
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=255), 0..12),
        count in 0u32..1500,
    ) {
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let (listed, wire) = list(&names, count);
        match results(Procedure::ReadDir, &wire).unwrap().value {
            Results::ReadDir(Outcome::Ok(read)) => {
                let found: Vec<&[u8]> = read.entries.iter().map(|entry| entry.name.bytes()).collect();
                prop_assert!(wire.len() <= 4 + count as usize);
                prop_assert_eq!(listed, Listed::Entries(found.len()));
                prop_assert_eq!(&found[..], &names[..found.len()]);
                prop_assert_eq!(read.eof, found.len() == names.len());
                prop_assert!(read.eof || !found.is_empty());
            }
            other => {
                prop_assert_eq!(other, Results::ReadDir(Outcome::Err(Status::TooSmall, None)));
                prop_assert_eq!(listed, Listed::TooSmall);
            }
        }
    }
}
