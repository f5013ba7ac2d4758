//! Pages as page format gets them: a header of 8 bytes and the page's attributes at fixed places.
//!
//! Quotas, timestamps, the Policy/Security pages of partitions, collections and user objects, and
//! Current Command have such a format; so has the Collections page: its pointers, 8 bytes each. An
//! attribute that does not exist reads as zeros. The places of the root's Policy/Security page are
//! not known for sure, and the other pages have attributes of no fixed length.

use super::{Page, PageKind, numbers};
use crate::{Id, ObjectType, Version};

/// Bytes of a page's header: page number and page length, 4 each; the length counts what follows.
pub const HEADER_LEN: usize = 8;

/// Fields of a page, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The attribute of this number, in so many bytes.
    Attribute(u32, usize),
    /// So many attributes from this number on, each in so many bytes.
    Attributes(u32, u32, usize),
    /// Zeros.
    Reserved(usize),
    /// One byte: whether the attributes from the first number on exist, the first one's bit the
    /// lowest; so many of them.
    Exist(u32, u32),
}

impl Field {
    const fn len(self) -> usize {
        match self {
            Self::Attribute(_, len) | Self::Reserved(len) => len,
            Self::Attributes(_, count, len) => count as usize * len,
            Self::Exist(..) => 1,
        }
    }

    /// The numbers of the attributes whose values stand there.
    pub const fn numbers(self) -> std::ops::Range<u32> {
        match self {
            Self::Attribute(number, _) => number..number + 1,
            Self::Attributes(first, count, _) => first..first + count,
            Self::Reserved(_) | Self::Exist(..) => 0..0,
        }
    }
}

/// The places of `page` in page format, behind the header. `None` when the page has no such format,
/// or is Current Command or Collections: see [`CurrentCommand`] and [`pointers`].
pub fn layout(page: Page) -> Option<&'static [Field]> {
    use Field::Attribute as A;
    use ObjectType::{Collection, Partition, Root, User};
    use numbers::{partition_security as security, timestamps as times};
    let PageKind::Of { object, number } = page.kind() else { return None };
    Some(match (object, number) {
        (User, 2) => &[A(0x1, 8)],
        (Partition, 2) => &[A(0x1, 8), A(0x1_0001, 8), A(0x1_0002, 8), A(0x1_0081, 4)],
        (Root, 2) => &[A(0x1, 8), A(0x1_0001, 8), A(0x1_0002, 8), A(0x1_0081, 4), A(0x2_0002, 8)],
        (Root, 3) => {
            &[A(times::ATTRIBUTES_ACCESSED, 6), A(times::ATTRIBUTES_MODIFIED, 6), A(times::BYPASS, 1)]
        }
        (Partition, 3) => &[
            A(times::CREATED, 6),
            A(times::ATTRIBUTES_ACCESSED, 6),
            A(times::ATTRIBUTES_MODIFIED, 6),
            A(times::DATA_ACCESSED, 6),
            A(times::DATA_MODIFIED, 6),
            A(times::BYPASS, 1),
        ],
        (Collection | User, 3) => &[
            A(times::CREATED, 6),
            A(times::ATTRIBUTES_ACCESSED, 6),
            A(times::ATTRIBUTES_MODIFIED, 6),
            A(times::DATA_ACCESSED, 6),
            A(times::DATA_MODIFIED, 6),
        ],
        (Partition, 5) => {
            const KEYS: u32 = security::WORKING_KEY_IDS.number;
            &[
                Field::Reserved(3),
                A(security::DEFAULT_METHOD.number, 1),
                A(security::OLDEST_NONCE.number, 6),
                A(security::NEWEST_NONCE.number, 6),
                A(security::NONCE_LIST_DEPTH.number, 2),
                A(security::FROZEN_KEYS.number, 2),
                A(security::POLICY_TAG.number, 4),
                A(security::OBJECT_POLICY_TAG.number, 4),
                Field::Exist(security::PARTITION_KEY_ID.number, 1),
                Field::Exist(KEYS, 8),
                Field::Exist(KEYS + 8, 8),
                A(security::PARTITION_KEY_ID.number, 7),
                Field::Attributes(KEYS, 16, 7),
            ]
        }
        (Collection, 5) => &[A(numbers::collection_security::POLICY_TAG.number, 4)],
        (User, 5) => &[A(numbers::user_security::POLICY_TAG.number, 4)],
        _ => return None,
    })
}

/// A page in page format: `value` gives each attribute's value, empty or none of one that does not
/// exist. One of another length is cut or filled up with zeros. `None` when the page has no such
/// format.
pub fn encode<'a>(page: Page, mut value: impl FnMut(u32) -> Option<&'a [u8]>) -> Option<Vec<u8>> {
    let layout = layout(page)?;
    let len: usize = layout.iter().map(|field| field.len()).sum();
    let mut out = header(page, len);
    for &field in layout {
        let end = out.len() + field.len();
        match field {
            Field::Attribute(_, len) | Field::Attributes(_, _, len) => {
                for number in field.numbers() {
                    let end = out.len() + len;
                    out.extend(value(number).unwrap_or_default().iter().take(len));
                    out.resize(end, 0);
                }
            }
            Field::Reserved(_) => {}
            Field::Exist(first, count) => {
                let exists = |bit: u32, value: Option<&[u8]>| {
                    u8::from(value.is_some_and(|value| !value.is_empty())) << bit
                };
                out.push((0..count.min(8)).fold(0, |bits, bit| bits | exists(bit, value(first + bit))));
            }
        }
        out.resize(end, 0);
    }
    Some(out)
}

fn header(page: Page, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + len);
    out.extend(page.0.to_be_bytes());
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    out
}

/// The Collections page in page format: the ids of the collections that a user object is a member
/// of, in the order of their attribute numbers. Unused numbers are left out.
pub fn pointers(collections: &[u64]) -> Vec<u8> {
    let mut out = header(numbers::collections::PAGE, 8 * collections.len());
    out.extend(collections.iter().flat_map(|id| id.to_be_bytes()));
    out
}

/// The Current Command page: what the command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentCommand {
    /// RESPONSE INTEGRITY CHECK VALUE; in OSD-1 and the drafts the first 20 bytes.
    pub response_icv: [u8; 32],
    /// OBJECT TYPE.
    pub kind: ObjectType,
    /// PARTITION_ID and COLLECTION_OBJECT_ID or USER_OBJECT_ID.
    pub id: Id,
    /// STARTING BYTE ADDRESS OF APPEND.
    pub append_address: u64,
    /// CHANGE IN USED CAPACITY, bytes (OSD-2).
    pub used_capacity_change: u64,
}

impl CurrentCommand {
    /// The page: header, integrity check value of `icv_len` bytes (20 or 32), type, 3 reserved
    /// bytes, ids, append address and in OSD-2 the change in used capacity.
    pub fn encode(&self, version: Version, icv_len: usize) -> Vec<u8> {
        let icv = &self.response_icv[..icv_len.min(32)];
        let mut out = Vec::with_capacity(HEADER_LEN + 68);
        out.extend(Page::CURRENT_COMMAND.0.to_be_bytes());
        out.extend([0; 4]);
        out.extend(icv);
        out.extend([self.kind.code(), 0, 0, 0]);
        out.extend(self.id.partition.to_be_bytes());
        out.extend(self.id.object.to_be_bytes());
        out.extend(self.append_address.to_be_bytes());
        if version == Version::Osd2 {
            out.extend(self.used_capacity_change.to_be_bytes());
        }
        let len = (out.len() - HEADER_LEN) as u32; // at most 68
        out[4..8].copy_from_slice(&len.to_be_bytes());
        out
    }

    /// Reads the page; `None` when it is another one, or too short for its ids.
    pub fn parse(bytes: &[u8], icv_len: usize) -> Option<Self> {
        let f = crate::bytes::Fields(bytes);
        let icv_len = icv_len.min(32);
        let at = HEADER_LEN + icv_len;
        if f.u32(0) != Page::CURRENT_COMMAND.0 || bytes.len() < at + 28 {
            return None;
        }
        let mut response_icv = [0; 32];
        response_icv[..icv_len].copy_from_slice(f.slice(HEADER_LEN, icv_len)?);
        Some(Self {
            response_icv,
            kind: ObjectType::from_code(f.u8(at))?,
            id: Id::new(f.u64(at + 4), f.u64(at + 12)),
            append_address: f.u64(at + 20),
            used_capacity_change: f.u64(at + 28),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamps_page_is_five_times_of_six_bytes() {
        let page = Page::of(ObjectType::User, 3);
        let bytes = encode(page, |number| (number == 1).then_some(b"\0\0\0\0\x12\x34".as_slice())).unwrap();
        assert_eq!(bytes.len(), 38);
        assert_eq!(bytes[..14], *b"\0\0\0\x03\0\0\0\x1E\0\0\0\0\x12\x34");
        assert_eq!(encode(Page(1), |_| None), None);
    }

    #[test]
    fn pages_of_timestamps_end_with_the_bypass_where_there_is_one() {
        // Two readings of the standard by other people agree on these lengths and places.
        let lens = [
            (ObjectType::Root, 0x0D),
            (ObjectType::Partition, 0x1F),
            (ObjectType::Collection, 0x1E),
            (ObjectType::User, 0x1E),
        ];
        for (of_type, len) in lens {
            let page = Page::of(of_type, 3);
            let value = |number| (number == numbers::timestamps::BYPASS).then_some(b"\x7F".as_slice());
            let bytes = encode(page, value).unwrap();
            assert_eq!((bytes[7], bytes.len()), (len, 8 + usize::from(len)));
            assert_eq!(
                bytes.last() == Some(&0x7F),
                matches!(of_type, ObjectType::Root | ObjectType::Partition)
            );
        }
    }

    #[test]
    fn a_page_of_security_has_its_keys_behind_bits_that_say_which_there_are() {
        let page = Page::of(ObjectType::Partition, 5);
        let value = |number| -> Option<&'static [u8]> {
            match number {
                0x1 => Some(b"\x02"),
                0x2 => Some(b"oldest"),
                0x3 => Some(b"newest"),
                0x4 => Some(b"\x01\x02"),
                0x5 => Some(b"\x80\x01"),
                0x4000_0001 => Some(b"ours"),
                0x4000_0002 => Some(b"new!"),
                0x7FFF => Some(b"the key"),
                0x8000 => Some(b"key no0"),
                0x8001 => Some(b""),
                0x800F => Some(b"key noF"),
                _ => None,
            }
        };
        let mut expected =
            b"\x30\0\0\x05\0\0\0\x96\0\0\0\x02oldestnewest\x01\x02\x80\x01oursnew!\x01\x01\x80".to_vec();
        expected.extend(b"the keykey no0");
        expected.extend([0; 14 * 7]);
        expected.extend(b"key noF");
        assert_eq!(encode(page, value).unwrap(), expected);
        for of_type in [ObjectType::Collection, ObjectType::User] {
            let page = Page::of(of_type, 5);
            let bytes = encode(page, |number| (number == 0x4000_0001).then_some(b"tag!".as_slice())).unwrap();
            assert_eq!(bytes[..4], page.0.to_be_bytes());
            assert_eq!(bytes[4..], *b"\0\0\0\x04tag!");
        }
        assert_eq!(encode(Page::of(ObjectType::Root, 5), |_| None), None);
    }

    #[test]
    fn a_page_of_collections_is_their_ids() {
        assert_eq!(pointers(&[]), b"\0\0\0\x04\0\0\0\0");
        let two = pointers(&[0x1_0000, 0x1_0203]);
        assert_eq!(two, b"\0\0\0\x04\0\0\0\x10\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x02\x03");
    }

    #[test]
    fn the_current_command_page_has_its_ids_behind_the_integrity_check_value() {
        let page = CurrentCommand {
            response_icv: [7; 32],
            kind: ObjectType::User,
            id: Id::new(0x10000, 0x10001),
            append_address: 0x1234,
            used_capacity_change: 5,
        };
        let bytes = page.encode(Version::Osd2, 32);
        assert_eq!(bytes[..8], *b"\xFF\xFF\xFF\xFE\0\0\0\x44");
        assert_eq!(bytes[40..52], *b"\x80\0\0\0\0\0\0\0\0\x01\0\0");
        assert_eq!(CurrentCommand::parse(&bytes, 32), Some(page));
        for len in 0..bytes.len() {
            let _ = CurrentCommand::parse(&bytes[..len], 32);
        }
        let old = page.encode(Version::Osd1, 20);
        assert_eq!(old.len(), 56);
        assert_eq!(CurrentCommand::parse(&old, 20).unwrap().id, page.id);
    }
}
