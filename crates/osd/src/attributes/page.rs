//! Pages as page format gets them: a header of 8 bytes and the page's attributes at fixed places.
//!
//! Only pages whose attributes all have fixed lengths have such a format: quotas, timestamps and Current Command. An
//! attribute that does not exist reads as zeros there.

use super::{Page, PageKind, numbers};
use crate::{Id, ObjectType, Version};

/// Bytes of a page's header: page number and page length, 4 each; the length counts what follows.
pub const HEADER_LEN: usize = 8;

/// The attributes of `page` in page format: number and length in bytes, in the order in which they stand behind the header.
/// `None` when the page has no such format, or is Current Command: see [`CurrentCommand`].
pub fn layout(page: Page) -> Option<&'static [(u32, usize)]> {
    use ObjectType::{Partition, Root, User};
    let PageKind::Of { object, number } = page.kind() else { return None };
    Some(match (object, number) {
        (User, 2) => &[(0x1, 8)],
        (Partition, 2) => &[(0x1, 8), (0x1_0001, 8), (0x1_0002, 8), (0x1_0081, 4)],
        (Root, 2) => &[(0x1, 8), (0x1_0001, 8), (0x1_0002, 8), (0x1_0081, 4), (0x2_0002, 8)],
        (Root, 3) => {
            &[(numbers::timestamps::ATTRIBUTES_ACCESSED, 6), (numbers::timestamps::ATTRIBUTES_MODIFIED, 6)]
        }
        (_, 3) => &[
            (numbers::timestamps::CREATED, 6),
            (numbers::timestamps::ATTRIBUTES_ACCESSED, 6),
            (numbers::timestamps::ATTRIBUTES_MODIFIED, 6),
            (numbers::timestamps::DATA_ACCESSED, 6),
            (numbers::timestamps::DATA_MODIFIED, 6),
        ],
        _ => return None,
    })
}

/// A page in page format: `value` gives each attribute's value. One of another length is cut or filled up with zeros.
/// `None` when the page has no such format.
pub fn encode<'a>(page: Page, mut value: impl FnMut(u32) -> Option<&'a [u8]>) -> Option<Vec<u8>> {
    let layout = layout(page)?;
    let len: usize = layout.iter().map(|(_, len)| len).sum();
    let mut out = Vec::with_capacity(HEADER_LEN + len);
    out.extend(page.0.to_be_bytes());
    out.extend((len as u32).to_be_bytes()); // a sum of small constants
    for &(number, len) in layout {
        let end = out.len() + len;
        out.extend(value(number).unwrap_or_default().iter().take(len));
        out.resize(end, 0);
    }
    Some(out)
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
    /// The page: header, integrity check value of `icv_len` bytes (20 or 32), type, 3 reserved bytes, ids, append address
    /// and in OSD-2 the change in used capacity.
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
