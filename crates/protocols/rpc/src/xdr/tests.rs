//! XDR: bytes worked out by hand, limits, linked lists, and round trips.

use super::*;
use crate::{xdr_enum, xdr_struct, xdr_union};
use proptest::prelude::*;

xdr_enum! {
    /// An enumeration with a gap.
    pub enum Kind {
        /// 1.
        One = 1,
        /// 7.
        Seven = 7,
    }
}

xdr_struct! {
    /// The `file` of RFC 4506 §7, cut short.
    pub struct File<'a> {
        /// A string.
        pub name: Opaque<'a, 255>,
        /// A union.
        pub kind: FileKind<'a>,
        /// Optional data.
        pub owner: Option<u64>,
        /// A counted array.
        pub groups: ArrayVec<u32, 3>,
        /// Opaque data of fixed length.
        pub tag: [u8; 3],
        /// A flag.
        pub locked: bool,
    }
}

xdr_union! {
    /// A union.
    pub enum FileKind<'a> {
        /// void.
        Text(()) = 0,
        /// A string.
        Data(Opaque<'a, 8>) = 1,
    }
}

fn opaque<const MAX: usize>(bytes: &[u8]) -> Opaque<'_, MAX> {
    Opaque::new(bytes).unwrap()
}

fn file<'a>(name: &'a [u8], kind: FileKind<'a>) -> File<'a> {
    let groups = [1, 2].into_iter().collect();
    File { name: opaque(name), kind, owner: Some(1 << 32), groups, tag: *b"abc", locked: true }
}

#[test]
fn a_struct_is_its_fields_in_order_padded_to_four_bytes() {
    let value = file(b"sillyprog", FileKind::Data(opaque(b"lisp")));
    let bytes = [
        &[0, 0, 0, 9][..],
        b"sillyprog\0\0\0",
        &[0, 0, 0, 1, 0, 0, 0, 4],
        b"lisp",
        &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2],
        b"abc\0",
        &[0, 0, 0, 1],
    ]
    .concat();
    assert_eq!(encode(&value), bytes);
    assert_eq!(decode(&bytes), Ok(value));
    for len in 0..bytes.len() {
        assert!(matches!(decode::<File<'_>>(&bytes[..len]), Err(Malformed::Truncated { .. })), "{len}");
    }
    assert_eq!(decode::<File<'_>>(&[&bytes[..], &[0]].concat()), Err(Malformed::Trailing(1)));
}

#[test]
fn lengths_beyond_their_limit_are_refused_before_the_data_is_looked_at() {
    let nine = [0, 0, 0, 9];
    assert_eq!(decode::<Opaque<'_, 8>>(&nine), Err(Malformed::TooLong { length: 9, limit: 8 }));
    assert_eq!(decode::<ArrayVec<u32, 3>>(&nine), Err(Malformed::TooLong { length: 9, limit: 3 }));
    assert_eq!(decode::<Opaque<'_, 9>>(&nine), Err(Malformed::Truncated { at: 4 }));
    assert_eq!(Opaque::<8>::new(&[0; 9]), Err(TooLong { length: 9, limit: 8 }));
    let huge = decode::<Opaque<'_, { usize::MAX }>>(&[0xff; 8]);
    assert_eq!(huge, Err(Malformed::Truncated { at: 4 }));
}

#[test]
fn numbers_that_no_type_has_are_refused() {
    assert_eq!(decode::<bool>(&[0, 0, 0, 2]), Err(Malformed::Bool(2)));
    assert_eq!(decode::<Option<u32>>(&[0, 0, 0, 3]), Err(Malformed::Bool(3)));
    assert_eq!(decode::<Kind>(&[0, 0, 0, 2]), Err(Malformed::Unknown { what: "Kind", value: 2 }));
    assert_eq!(decode::<FileKind<'_>>(&[0, 0, 0, 2]), Err(Malformed::Unknown { what: "FileKind", value: 2 }));
    assert_eq!(decode(&[0, 0, 0, 7]), Ok(Kind::Seven));
    assert_eq!(Kind::ALL.iter().map(|kind| kind.code()).collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn the_value_of_padding_is_ignored_and_written_as_zero() {
    let bytes = [0, 0, 0, 1, b'a', 1, 2, 3];
    let value: Opaque<'_, 8> = decode(&bytes).unwrap();
    assert_eq!(value.bytes(), b"a");
    assert_eq!(encode(&value), [0, 0, 0, 1, b'a', 0, 0, 0]);
    assert_eq!([0, 1, 2, 3, 4].map(|length| padding(length).len()), [0, 3, 2, 1, 0]);
}

#[test]
fn a_payload_is_a_range_of_the_record() {
    let bytes = [0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0, 9];
    let mut from = Reader::new(&bytes);
    let length = from.u32().unwrap() as usize;
    assert_eq!(from.payload(length), Ok(4..9));
    assert_eq!(from.position(), 12);
    assert_eq!(from.payload(usize::MAX), Err(Malformed::Truncated { at: 12 }));
    assert_eq!(from.payload(1), Err(Malformed::Truncated { at: 12 }));
}

#[test]
fn a_linked_list_has_true_before_each_element_and_false_at_its_end() {
    let bytes = [0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0];
    let chained = Chained::of([9u32, 8]);
    assert_eq!(encode(&chained.chain()), bytes);
    let chain: Chain<'_, u32> = decode(&bytes).unwrap();
    assert_eq!(chain.iter().collect::<Vec<_>>(), [9, 8]);
    assert_eq!(chain, chained.chain());
    assert_eq!(decode::<Chain<'_, u32>>(&[0; 4]), Ok(Chain::EMPTY));
    assert_eq!(decode::<Chain<'_, u32>>(&bytes[..16]), Err(Malformed::Truncated { at: 16 }));
    assert_eq!(decode::<Chain<'_, u32>>(&[0, 0, 0, 2]), Err(Malformed::Bool(2)));
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(
        name in prop::collection::vec(any::<u8>(), 0..256),
        data in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
        owner in any::<Option<u64>>(),
        groups in prop::collection::vec(any::<u32>(), 0..4),
        tag in any::<[u8; 3]>(),
        locked in any::<bool>(),
    ) {
        let kind = data.as_deref().map_or(FileKind::Text(()), |data| FileKind::Data(opaque(data)));
        let groups = groups.into_iter().collect();
        let value = File { name: opaque(&name), kind, owner, groups, tag, locked };
        let bytes = encode(&value);
        prop_assert_eq!(bytes.len() % UNIT, 0);
        prop_assert_eq!(decode(&bytes), Ok(value));
    }

    #[test]
    fn what_is_read_of_any_bytes_is_written_as_it_was(
        words in prop::collection::vec(0u32..4, 0..40),
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut from = Reader::new(&bytes);
        if let Ok(files) = Chain::<File<'_>>::read(&mut from) {
            // All but padding, whose value is not kept.
            let again = encode(&files);
            prop_assert_eq!(again.len(), from.position());
            prop_assert_eq!(files.iter().count(), Chained::of(files.iter()).chain().iter().count());
        }
    }
}

#[test]
fn a_list_is_the_same_received_and_to_be_sent() {
    let slice = [opaque::<8>(b"a"), opaque(b"bcde")];
    let wire = b"\0\0\0\x02\0\0\0\x01a\0\0\0\0\0\0\x04bcde";
    let sent = List::of(&slice);
    assert_eq!(encode(&sent), wire);
    let received: List<'_, Opaque<'_, 8>> = decode(wire).unwrap();
    assert_eq!((received, received.len()), (sent, 2));
    assert_eq!(encode(&received), wire);
    assert!(received.iter().eq(slice));
    assert_eq!(decode(&[0; 4]), Ok(List::<u32>::EMPTY));
}

/// A count of 2³² − 1 in 12 bytes costs no more than reading these bytes.
#[test]
fn a_list_whose_count_lies_is_truncated() {
    let wire = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(decode::<List<'_, u32>>(&wire), Err(Malformed::Truncated { at: 12 }));
}

#[test]
fn a_newtype_has_the_form_of_its_inner_type() {
    crate::xdr_newtype! {
        /// A number.
        pub struct Number(u64);
    }
    assert_eq!(encode(&Number(1)), encode(&1u64));
    assert_eq!(decode(&encode(&-1i64)), Ok(Number(u64::MAX)));
}
