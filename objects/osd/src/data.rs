//! Parameter data of commands: LIST, LIST COLLECTION, QUERY, READ MAP, PERFORM TASK MANAGEMENT
//! FUNCTION, and the vital product data pages of an object-based device.

use crate::attributes::list::{self, ListError, ObjectValues};
use crate::bytes::{Fields, codes, put};
use crate::{ObjectType, Version};

/// PERIPHERAL DEVICE TYPE of an object-based storage device.
pub const DEVICE_TYPE: u8 = 0x11;

/// Version descriptors of standard INQUIRY data.
pub mod version {
    crate::bytes::constants! { u16:
        OSD = 0x0340 => "OSD (INCITS 400), no revision claimed.",
        OSD_2 = 0x0440 => "OSD-2, no revision claimed.",
        OSD_2_INCITS = 0x0448 => "OSD-2, INCITS 458-2011.",
        SPC_3 = 0x0300 => "SPC-3.",
        ISCSI = 0x0960 => "iSCSI.",
    }
}

codes! {
    /// OBJECT DESCRIPTOR FORMAT: type of the listed objects. The value is one less than that of the
    /// same list with attributes.
    Listed: u8 {
        Partitions = 0x01 "Partitions.",
        Collections = 0x11 "Collections.",
        UserObjects = 0x21 "User objects.",
    }
}

impl Listed {
    /// OBJECT DESCRIPTOR FORMAT, 6 bits.
    pub const fn code(self, attributes: bool) -> u8 {
        self as u8 + attributes as u8
    }

    /// Decodes OBJECT DESCRIPTOR FORMAT: the type of the listed objects, and whether their
    /// attributes are included.
    pub fn parse(code: u8) -> Option<(Self, bool)> {
        let with = || Some((Self::from_code(code.checked_sub(1)?)?, true));
        Self::from_code(code).map(|listed| (listed, false)).or_else(with)
    }

    /// Type of the listed objects.
    pub const fn object_type(self) -> ObjectType {
        match self {
            Self::Partitions => ObjectType::Partition,
            Self::Collections => ObjectType::Collection,
            Self::UserObjects => ObjectType::User,
        }
    }
}

/// The header of LIST and LIST COLLECTION data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListHeader {
    /// ADDITIONAL LENGTH: bytes behind this field that the list would have with room for all of it.
    pub additional_len: u64,
    /// CONTINUATION OBJECT_ID: where to begin the next LIST; 0 when this one is complete.
    pub continuation: u64,
    /// LIST IDENTIFIER to continue with; 0 when this one is complete.
    pub list_id: u32,
    /// LSTCHG: the set of listed objects has changed since the list was begun.
    pub changed: bool,
    /// Type of the listed objects.
    pub listed: Listed,
    /// Whether each id comes with attributes.
    pub attributes: bool,
}

/// Bytes of [`ListHeader`].
pub const LIST_HEADER_LEN: usize = 24;

impl ListHeader {
    /// Encodes the header. OSD-1 distinguishes partitions and objects only.
    pub fn encode(&self, version: Version) -> [u8; LIST_HEADER_LEN] {
        let mut out = [0; LIST_HEADER_LEN];
        put(&mut out, 0, &self.additional_len.to_be_bytes());
        put(&mut out, 8, &self.continuation.to_be_bytes());
        put(&mut out, 16, &self.list_id.to_be_bytes());
        out[23] = u8::from(self.changed) << 1
            | match version {
                Version::Osd1 => u8::from(self.listed == Listed::Partitions),
                Version::Osd2 => self.listed.code(self.attributes) << 2,
            };
        out
    }

    /// Reads the header; `None` when it is cut short or its format is none. With OSD-1, ids of a
    /// partition are given as [`Listed::UserObjects`], whatever they are.
    pub fn parse(bytes: &[u8], version: Version) -> Option<Self> {
        let f = Fields(bytes.get(..LIST_HEADER_LEN)?);
        let (listed, attributes) = match version {
            Version::Osd1 if f.u8(23) & 1 != 0 => (Listed::Partitions, false),
            Version::Osd1 => (Listed::UserObjects, false),
            Version::Osd2 => Listed::parse(f.u8(23) >> 2)?,
        };
        Some(Self {
            additional_len: f.u64(0),
            continuation: f.u64(8),
            list_id: f.u32(16),
            changed: f.u8(23) & 2 != 0,
            listed,
            attributes,
        })
    }
}

/// Bytes behind a [`ListHeader`], as many as the header counts: zeros, attributes and a seal may
/// follow.
fn listed(bytes: &[u8]) -> &[u8] {
    let Some(rest) = bytes.get(LIST_HEADER_LEN..) else { return &[] };
    let len = Fields(bytes).u64(0).saturating_sub(LIST_HEADER_LEN as u64 - 8);
    &rest[..usize::try_from(len).unwrap_or(usize::MAX).min(rest.len())]
}

/// The ids behind a [`ListHeader`] without attributes; an id that is cut short is left out.
pub fn list_ids(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    listed(bytes).chunks_exact(8).map(|id| Fields(id).u64(0))
}

/// The objects behind a [`ListHeader`] with attributes, written by [`list::write_object`].
///
/// # Errors
/// An object's header is wrong. An end that is missing is no error.
pub fn list_objects(bytes: &[u8]) -> Result<Vec<ObjectValues<'_>>, ListError> {
    let mut rest = listed(bytes);
    let mut out = Vec::new();
    while rest.len() >= list::OBJECT_HEADER_LEN {
        let (found, next) = list::object(rest)?;
        out.push(found);
        rest = next;
    }
    Ok(out)
}

/// Bytes before the ids of QUERY data: ADDITIONAL LENGTH 8, reserved 3, OBJECT DESCRIPTOR FORMAT 1.
///
/// Sources disagree by one byte about the position of the ids; Stag sends them here.
pub const QUERY_HEADER_LEN: usize = 12;

/// The header of QUERY data for `matches` ids of user objects.
pub fn query_header(matches: u64) -> [u8; QUERY_HEADER_LEN] {
    let mut out = [0; QUERY_HEADER_LEN];
    let additional = matches.saturating_mul(8).saturating_add(4);
    put(&mut out, 0, &additional.to_be_bytes());
    out[11] = Listed::UserObjects.code(false) << 2;
    out
}

/// The ids of QUERY data: their number in all, and those that had room. Accepts both positions of
/// the ids, which ADDITIONAL LENGTH distinguishes. `None` when the header is cut short.
pub fn query_ids(bytes: &[u8]) -> Option<(u64, impl Iterator<Item = u64> + '_)> {
    let f = Fields(bytes);
    f.slice(0, QUERY_HEADER_LEN)?;
    let additional = f.u64(0);
    let (start, before) = if additional % 8 == 5 { (13, 5) } else { (QUERY_HEADER_LEN, 4) };
    let ids = bytes.get(start..).unwrap_or_default().chunks_exact(8).map(|id| Fields(id).u64(0));
    Some((additional.saturating_sub(before) / 8, ids))
}

codes! {
    /// DATA MAP DESCRIPTOR TYPE of a part of an object's map. 0 requests all types and is not one
    /// of them.
    MapType: u16 {
        Written = 0x0001 "Written data.",
        Hole = 0x0002 "A hole: it reads as zeros.",
        Damaged = 0x0003 "Data that is damaged.",
        DamagedAttributes = 0x8000 "Attributes that are damaged.",
    }
}

/// A part of an object's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapDescriptor {
    /// Its type.
    pub kind: MapType,
    /// Its first byte in the object.
    pub offset: u64,
    /// Bytes; a longer part takes several descriptors.
    pub len: u32,
}

/// Bytes before the first [`MapDescriptor`]: ADDITIONAL LENGTH.
pub const MAP_HEADER_LEN: usize = 8;
/// Bytes of a [`MapDescriptor`].
pub const MAP_DESCRIPTOR_LEN: usize = 16;

impl MapDescriptor {
    /// The descriptor.
    pub fn encode(&self) -> [u8; MAP_DESCRIPTOR_LEN] {
        let mut out = [0; MAP_DESCRIPTOR_LEN];
        put(&mut out, 2, &(self.kind as u16).to_be_bytes());
        put(&mut out, 4, &self.len.to_be_bytes());
        put(&mut out, 8, &self.offset.to_be_bytes());
        out
    }
}

/// The header of READ MAP data for `descriptors` of them.
pub fn map_header(descriptors: u64) -> [u8; MAP_HEADER_LEN] {
    descriptors.saturating_mul(MAP_DESCRIPTOR_LEN as u64).to_be_bytes()
}

/// READ MAP data: how many descriptors there are in all, and those that had room; one of no known
/// type is left out. `None` when the header is cut short.
pub fn map(bytes: &[u8]) -> Option<(u64, impl Iterator<Item = MapDescriptor> + '_)> {
    let total = Fields(bytes.get(..MAP_HEADER_LEN)?).u64(0) / MAP_DESCRIPTOR_LEN as u64;
    let rest = bytes.get(MAP_HEADER_LEN..).unwrap_or_default();
    let found = rest.chunks_exact(MAP_DESCRIPTOR_LEN).filter_map(|entry| {
        let f = Fields(entry);
        Some(MapDescriptor { kind: MapType::from_code(f.u16(2))?, len: f.u32(4), offset: f.u64(8) })
    });
    Some((total, found))
}

/// Vital product data page of OSD information.
pub const VPD_OSD_INFORMATION: u8 = 0xB0;
/// Vital product data page with the security token.
pub const VPD_SECURITY_TOKEN: u8 = 0xB1;
/// The shortest security token, in bytes.
pub(crate) const MIN_TOKEN_LEN: usize = 16;

/// VPD page B0h. No open source shows its contents. Stag gives the accepted versions of CDBs in
/// byte 4 (bit 0 OSD-1, bit 1 OSD-2), and three reserved bytes follow.
pub fn vpd_information() -> Vec<u8> {
    vpd(VPD_OSD_INFORMATION, &[0x03, 0, 0, 0])
}

/// VPD page B1h: the security token, tied to the I_T nexus that asks.
pub fn vpd_security_token(token: &[u8]) -> Vec<u8> {
    vpd(VPD_SECURITY_TOKEN, token)
}

/// The security token of VPD page B1h; `None` when the page is another one or cut short.
pub fn parse_security_token(bytes: &[u8]) -> Option<&[u8]> {
    let f = Fields(bytes);
    if f.u8(1) != VPD_SECURITY_TOKEN {
        return None;
    }
    f.slice(4, usize::from(f.u16(2))).filter(|token| token.len() >= MIN_TOKEN_LEN)
}

fn vpd(page: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(usize::from(u16::MAX))];
    let mut out = vec![DEVICE_TYPE, page];
    out.extend((body.len() as u16).to_be_bytes()); // at most 65,535
    out.extend(body);
    out
}

/// Bytes of PERFORM TASK MANAGEMENT FUNCTION data.
pub(crate) const TMF_RESPONSE_LEN: usize = 8;

/// SERVICE RESPONSE of a task management function (SAM-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TmfResponse {
    /// FUNCTION COMPLETE.
    Complete = 0x00,
    /// FUNCTION SUCCEEDED: the queried task or command is present.
    Succeeded = 0x05,
    /// FUNCTION REJECTED.
    Rejected = 0x08,
    /// INCORRECT LOGICAL UNIT NUMBER.
    IncorrectLun = 0x09,
}

/// The oldest unit attention that is pending, in the response of QUERY ASYNCHRONOUS EVENT (SAM-5
/// §7.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingAttention {
    /// It is not the only one.
    pub more: bool,
    /// SENSE KEY, 0 to 15.
    pub key: u8,
    /// ADDITIONAL SENSE CODE and its qualifier.
    pub code: [u8; 2],
}

/// PERFORM TASK MANAGEMENT FUNCTION data: the bytes that follow the first two, two reserved ones,
/// and the response. The last three describe a pending unit attention: UADE DEPTH (1 for one, 2 for
/// several) and the sense key, and the additional sense code; else they are zeros.
pub const fn tmf_response(
    response: TmfResponse,
    pending: Option<PendingAttention>,
) -> [u8; TMF_RESPONSE_LEN] {
    let [depth_and_key, asc, ascq] = match pending {
        None => [0; 3],
        Some(PendingAttention { more, key, code: [asc, ascq] }) => {
            [if more { 0x20 } else { 0x10 } | key & 0x0F, asc, ascq]
        }
    };
    [0, 6, 0, 0, response as u8, depth_and_key, asc, ascq]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_begins_with_24_bytes() {
        let header = ListHeader {
            additional_len: 32,
            continuation: 0x10005,
            list_id: 7,
            changed: true,
            listed: Listed::UserObjects,
            attributes: true,
        };
        let bytes = header.encode(Version::Osd2);
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\x20\0\0\0\0\0\x01\0\x05\0\0\0\x07\0\0\0\x8A");
        assert_eq!(ListHeader::parse(&bytes, Version::Osd2), Some(header));
        let old = ListHeader { listed: Listed::Partitions, attributes: false, ..header };
        assert_eq!(old.encode(Version::Osd1)[23], 3);
        assert_eq!(ListHeader::parse(&old.encode(Version::Osd1), Version::Osd1), Some(old));
        assert_eq!(ListHeader::parse(&bytes[..23], Version::Osd2), None);
    }

    #[test]
    fn a_list_ends_where_it_says_whatever_follows() {
        let header = ListHeader {
            additional_len: 16 + 8,
            continuation: 0,
            list_id: 0,
            changed: false,
            listed: Listed::UserObjects,
            attributes: false,
        };
        let mut bytes = header.encode(Version::Osd2).to_vec();
        bytes.extend([0, 0, 0, 0, 0, 1, 0, 5]);
        bytes.extend([0; 40]);
        assert_eq!(list_ids(&bytes).collect::<Vec<_>>(), [0x1_0005]);
        let header = ListHeader { additional_len: 16, attributes: true, ..header };
        bytes[..LIST_HEADER_LEN].copy_from_slice(&header.encode(Version::Osd2));
        assert_eq!(list_objects(&bytes).unwrap().len(), 0);
    }

    #[test]
    fn the_ids_of_a_query_begin_where_its_length_says() {
        let mut bytes = query_header(2).to_vec();
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\x14\0\0\0\x84");
        bytes.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        let (total, ids) = query_ids(&bytes).unwrap();
        assert_eq!((total, ids.collect::<Vec<_>>()), (2, vec![0x10000, 0x10001]));
        bytes.insert(11, 0);
        bytes[7] = 0x15;
        let (total, ids) = query_ids(&bytes).unwrap();
        assert_eq!((total, ids.collect::<Vec<_>>()), (2, vec![0x10000, 0x10001]));
    }

    #[test]
    fn a_map_is_a_list_of_16_byte_descriptors() {
        let part = MapDescriptor { kind: MapType::Hole, offset: 0x1000, len: 0x200 };
        let mut bytes = map_header(2).to_vec();
        bytes.extend(part.encode());
        assert_eq!(bytes[..24], *b"\0\0\0\0\0\0\0\x20\0\0\0\x02\0\0\x02\0\0\0\0\0\0\0\x10\0");
        let (total, found) = map(&bytes).unwrap();
        assert_eq!((total, found.collect::<Vec<_>>()), (2, vec![part]));
    }

    #[test]
    fn the_security_token_is_at_byte_4() {
        let page = vpd_security_token(&[5; 16]);
        assert_eq!(page[..4], [0x11, 0xB1, 0, 16]);
        assert_eq!(parse_security_token(&page), Some(&[5; 16][..]));
        assert_eq!(parse_security_token(&page[..19]), None);
        assert_eq!(parse_security_token(&vpd_information()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = ListHeader::parse(&bytes, Version::Osd2);
            list_ids(&bytes).count();
            let _ = list_objects(&bytes);
            if let Some((_, ids)) = query_ids(&bytes) { ids.count(); }
            if let Some((_, parts)) = map(&bytes) { parts.count(); }
            let _ = parse_security_token(&bytes);
        }
    }
}
