//! Input that no honest peer sends: a value or an error, in time bounded by its length.

use proptest::prelude::*;
use rpc::xdr::{self, List, Malformed, Reader, Writer};

use super::samples::{self, some_bytes, some_parts};
use crate::v4::callback::Back;
use crate::v4::*;

fn bytes<'a>(item: &impl Item<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    item.write_all(&mut Writer::new(&mut out));
    out
}

/// A decoded item is encoded, and decoded as the same again.
fn check_item<'a, 'b, A: Item<'a>, B: Item<'b>>(item: &A, wire: &'b [u8]) {
    let number = u32::from_be_bytes(*wire.first_chunk().unwrap());
    let mut from = Reader::new(&wire[4..]);
    let again = B::read_of(number, &mut from).unwrap().unwrap();
    from.end().unwrap();
    assert_eq!(again.payload_length(), item.payload_length());
    assert_eq!(bytes(&again), wire);
}

fn check_any<P: Program>(body: &[u8]) {
    if let Ok(call) = Call::<P>::read(body) {
        let mut refused = false;
        for one in call.operations {
            assert!(!refused, "an operation follows one that was refused");
            let Ok(Located { value, payload }) = one else {
                refused = true;
                continue;
            };
            assert_eq!(payload.len() as u32, value.payload_length());
            check_item::<_, P::Arguments<'_>>(&value, &bytes(&value));
        }
    }
    if let Ok(reply) = Reply::<P>::read(body) {
        for Located { value, payload } in reply.results.map_while(Result::ok) {
            assert_eq!(payload.len() as u32, value.payload_length());
            check_item::<_, P::Results<'_>>(&value, &bytes(&value));
        }
    }
}

/// A call or a reply with an empty tag and these operations or results.
fn body_of(items: &[Vec<u8>], callback: bool) -> Vec<u8> {
    let head = [0, 2, items.len() as u32].map(u32::to_be_bytes);
    let callback_head = [0, 2, 0, items.len() as u32].map(u32::to_be_bytes);
    let head = if callback { callback_head.as_flattened() } else { head.as_flattened() };
    [head, &items.concat()].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_changed_byte_or_a_cut_leads_to_a_value_or_an_error(
        parts in some_parts(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(), first in any::<prop::sample::Index>(),
    ) {
        let borrowed = parts.borrowed();
        let referring = borrowed.referring();
        let calls: Vec<_> = samples::arguments(&parts, &borrowed).iter().map(bytes).collect();
        let replies: Vec<_> = samples::results(&parts, &borrowed).iter().map(bytes).collect();
        let backs: Vec<_> = samples::callbacks(&parts, &referring).iter().map(bytes).collect();
        for (items, callback) in [(&calls, false), (&replies, false), (&backs, true)] {
            // A WRITE or READ without its payload would hide what follows it.
            let whole = body_of(&items[first.index(items.len())..], callback);
            let mut wire = whole[..cut.index(whole.len() + 1)].to_vec();
            check_any::<Fore>(&wire);
            check_any::<Back>(&wire);
            if !wire.is_empty() {
                let at = at.index(wire.len());
                wire[at] = byte;
                check_any::<Fore>(&wire);
                check_any::<Back>(&wire);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(
        number in 0u32..80, words in prop::collection::vec(0u32..9, 0..60), rest in some_bytes(300),
    ) {
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        for callback in [false, true] {
            let item = [&number.to_be_bytes()[..], &head, &rest].concat();
            let body = body_of(&[item], callback);
            check_any::<Fore>(&body);
            check_any::<Back>(&body);
        }
        check_any::<Fore>(&rest);
        if let Ok(fattr) = xdr::decode::<Fattr<'_>>(&rest) {
            let _ = fattr.attributes();
        }
    }
}

/// Counts of 2³² − 1 at every depth, in the few bytes that hold them.
#[test]
fn counts_that_lie_end_with_the_record() {
    const MANY: [u8; 4] = [0xff; 4];
    let zeros = [0; 64];
    let truncated = |result: Result<(), Malformed>| {
        assert!(matches!(result, Err(Malformed::Truncated { .. })), "{result:?}");
    };
    truncated(xdr::decode::<Bitmap>(&[&MANY[..], &zeros].concat()).map(drop));
    truncated(xdr::decode::<Fattr<'_>>(&[&[0; 4], &MANY[..], &zeros].concat()).map(drop));
    truncated(xdr::decode::<List<'_, Stateid>>(&[&MANY[..], &zeros].concat()).map(drop));
    truncated(xdr::decode::<FsLocations<'_>>(&[&[0; 4], &MANY[..], &MANY].concat()).map(drop));
    truncated(xdr::decode::<Name<'_>>(&[&MANY[..], &zeros].concat()).map(drop));
    let long = [&MANY[..], &zeros].concat();
    assert_eq!(
        xdr::decode::<Handle<'_>>(&long),
        Err(Malformed::TooLong { length: u32::MAX, limit: MAX_HANDLE })
    );
    // Lists within lists are each read once to be checked: CB_SEQUENCE's lists of lists.
    let one = [&[7; 16][..], &[0, 0, 0, 0]].concat();
    let lists = [&1000u32.to_be_bytes()[..], &one.repeat(1000)].concat();
    let read: List<'_, callback::ReferringCalls<'_>> = xdr::decode(&lists).unwrap();
    assert_eq!(read.iter().filter(|it| it.calls.is_empty()).count(), 1000);
}
