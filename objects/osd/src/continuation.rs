//! CDB continuations (OSD-2): parameters that do not fit a CDB, at the start of Data-Out. A header
//! of 40 bytes, then descriptors.
//!
//! This module owns the bytes of segment and descriptors. The unit checks which command takes which
//! descriptor. Offsets of attributes, and of the command's own data, count from the start of the
//! whole Data-Out buffer.

use crate::bytes::Fields;
use crate::{Action, AttributeId, Id, Page, Version};

/// Bytes of a segment's header.
pub const HEADER_LEN: usize = 40;
/// The shortest segment: a header and one descriptor's.
pub(crate) const MIN_LEN: usize = 48;
/// Offset of the segment's INTEGRITY CHECK VALUE, which has 32 bytes.
pub const ICV_AT: usize = 8;

/// CDB CONTINUATION SEGMENT FORMAT.
const FORMAT: u8 = 0x01;

/// CDB CONTINUATION DESCRIPTOR TYPE.
mod kind {
    pub const END: u16 = 0x0000;
    pub const SCATTER_GATHER: u16 = 0x0001;
    pub const QUERY: u16 = 0x0002;
    pub const USER_OBJECT: u16 = 0x0100;
    pub const COPY_SOURCE: u16 = 0x0101;
    pub const EXTENSION_CAPABILITIES: u16 = 0xFFEE;
}

/// Methods of duplicating objects, as COPY USER OBJECTS, CREATE CLONE and CREATE SNAPSHOT name
/// them.
pub mod duplication {
    crate::bytes::constants! { u8:
        DEFAULT = 0x00 => "The unit's default.",
        SPACE_EFFICIENT = 0x01 => "Space is shared until one of both changes.",
        PRE_ALLOCATED = 0x41 => "Space for the whole copy is set aside.",
        BYTE_BY_BYTE = 0x81 => "Every byte is copied.",
        FASTER_COPY = 0xFD => "Whatever copies fastest.",
        HIGHER_DATA = 0xFE => "Whatever keeps data best.",
        DO_NOT_CARE = 0xFF => "Whatever the unit likes.",
    }
}

/// Error in a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContinuationError {
    /// The CDB's CONTINUATION LENGTH is under 48 or no multiple of 8: INVALID FIELD IN CDB at byte
    /// 48.
    #[error("a CDB continuation of {0} bytes")]
    Length(usize),
    /// INVALID FIELD IN PARAMETER LIST: the field that begins at this byte of Data-Out.
    #[error("invalid field in byte {0} of the CDB continuation")]
    Field(u32),
    /// There are more descriptors or entries than the caller bears.
    #[error("too many entries in the CDB continuation")]
    TooMany,
}

/// A descriptor of a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Ranges of the object that data is gathered from or scattered to, in the order of the data.
    ScatterGather(Vec<crate::cdb::ObjectRange>),
    /// Criteria of QUERY.
    Query(Query),
    /// User objects that the command is about besides the CDB's, of the same partition.
    UserObjects(Vec<u64>),
    /// Source of COPY USER OBJECTS.
    CopySource(CopySource),
    /// Further capabilities, each as long as the CDB's.
    ExtensionCapabilities(Vec<u8>),
}

/// Source of COPY USER OBJECTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// SOURCE PARTITION_ID and SOURCE USER_OBJECT_ID.
    pub id: Id,
    /// CPY_ATTR: attributes are copied too.
    pub attributes: bool,
    /// FREEZE: the source does not change while it is copied.
    pub freeze: bool,
    /// TIME OF DUPLICATION, 4 bits.
    pub time: u8,
}

/// A query: which user objects match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Whether all criteria have to hold, or any one.
    pub all: bool,
    /// The criteria.
    pub criteria: Vec<Criterion>,
}

/// An attribute whose value is to lie in a range. Values are compared as bytes, both ends included;
/// an end without a value is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Criterion {
    /// The attribute.
    pub attribute: AttributeId,
    /// MINIMUM ATTRIBUTE VALUE.
    pub min: Vec<u8>,
    /// MAXIMUM ATTRIBUTE VALUE.
    pub max: Vec<u8>,
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// INTEGRITY CHECK VALUE of the segment; zeros without security.
    pub icv: [u8; 32],
    /// The descriptors, the end of the list excepted.
    pub descriptors: Vec<Descriptor>,
}

/// Most descriptors in a continuation, and most entries in a descriptor.
pub(crate) const MAX_ENTRIES: usize = 65_536;

impl Continuation {
    /// A continuation without an integrity check value.
    pub const fn new(descriptors: Vec<Descriptor>) -> Self {
        Self { icv: [0; 32], descriptors }
    }

    /// Reads the continuation of a CDB with `action`; `bytes` has the CDB's CONTINUATION LENGTH.
    ///
    /// # Errors
    /// [`ContinuationError`], with the byte that sense data points at.
    pub fn parse(bytes: &[u8], action: Action) -> Result<Self, ContinuationError> {
        if bytes.len() < MIN_LEN || bytes.len() % 8 != 0 {
            return Err(ContinuationError::Length(bytes.len()));
        }
        let f = Fields(bytes);
        if f.u8(0) != FORMAT {
            return Err(ContinuationError::Field(0));
        }
        if Some(f.u16(2)) != action.code(Version::Osd2) {
            return Err(ContinuationError::Field(2));
        }
        let mut descriptors = Vec::new();
        let mut at = HEADER_LEN;
        // A whole descriptor's header at least: lengths are multiples of 8 throughout.
        while at < bytes.len() {
            let field = |within: usize| ContinuationError::Field((at + within) as u32);
            let head = Fields(f.slice(at, 8).ok_or(field(0))?);
            let kind = head.u16(0);
            if kind == kind::END {
                break;
            }
            let pad = usize::from(head.u8(3) & 7);
            let len = head.u32(4) as usize;
            let whole = len.checked_add(pad).filter(|whole| whole % 8 == 0).ok_or(field(4))?;
            let body = f.slice(at + 8, whole).and_then(|body| body.get(..len)).ok_or(field(4))?;
            if descriptors.len() >= MAX_ENTRIES {
                return Err(ContinuationError::TooMany);
            }
            descriptors.push(descriptor(kind, body, at)?);
            at += 8 + whole;
        }
        Ok(Self { icv: f.array(ICV_AT), descriptors })
    }

    /// The continuation for a CDB with `action`; its length goes into the CDB. A list's end is
    /// written behind the last descriptor. `None` for values that no field holds (an attribute
    /// value of more than 65,535 bytes or such).
    pub fn encode(&self, action: Action) -> Option<Vec<u8>> {
        let mut out = vec![FORMAT, 0];
        out.extend(action.code(Version::Osd2)?.to_be_bytes());
        out.extend([0; 4]);
        out.extend(self.icv);
        for descriptor in &self.descriptors {
            let (kind, body) = body(descriptor)?;
            let pad = body.len().next_multiple_of(8) - body.len();
            out.extend(kind.to_be_bytes());
            out.extend([0, pad as u8]); // at most 7
            out.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
            out.extend(&body);
            out.resize(out.len() + pad, 0);
        }
        out.extend([0; 8]);
        Some(out)
    }
}

/// A descriptor's body read; `at` is where the descriptor begins in Data-Out.
fn descriptor(kind: u16, body: &[u8], at: usize) -> Result<Descriptor, ContinuationError> {
    let f = Fields(body);
    let field = |within: usize| ContinuationError::Field((at + within) as u32);
    match kind {
        kind::SCATTER_GATHER => {
            if body.len() % 16 != 0 {
                return Err(field(4));
            }
            if body.len() / 16 > MAX_ENTRIES {
                return Err(ContinuationError::TooMany);
            }
            let range = |pair: &[u8]| crate::cdb::ObjectRange {
                start: Fields(pair).u64(0),
                len: Fields(pair).u64(8),
            };
            Ok(Descriptor::ScatterGather(body.chunks_exact(16).map(range).collect()))
        }
        kind::QUERY => Query::parse(body).map(Descriptor::Query).map_err(|byte| field(8 + byte)),
        kind::USER_OBJECT => {
            if body.len() % 8 != 0 {
                return Err(field(4));
            }
            if body.len() / 8 > MAX_ENTRIES {
                return Err(ContinuationError::TooMany);
            }
            Ok(Descriptor::UserObjects(body.chunks_exact(8).map(|id| Fields(id).u64(0)).collect()))
        }
        kind::COPY_SOURCE => {
            if body.len() < 17 {
                return Err(field(4));
            }
            Ok(Descriptor::CopySource(CopySource {
                id: Id::new(f.u64(0), f.u64(8)),
                attributes: f.u8(16) & 0x01 != 0,
                freeze: f.u8(17) & 0x80 != 0,
                time: f.u8(17) & 0x0F,
            }))
        }
        kind::EXTENSION_CAPABILITIES => {
            if body.is_empty() || body.len() % crate::capability::len(Version::Osd2) != 0 {
                return Err(field(4));
            }
            Ok(Descriptor::ExtensionCapabilities(body.to_vec()))
        }
        _ => Err(field(0)),
    }
}

fn body(descriptor: &Descriptor) -> Option<(u16, Vec<u8>)> {
    let mut out = Vec::new();
    let kind = match descriptor {
        Descriptor::ScatterGather(ranges) => {
            for range in ranges {
                out.extend(range.start.to_be_bytes());
                out.extend(range.len.to_be_bytes());
            }
            kind::SCATTER_GATHER
        }
        Descriptor::Query(query) => {
            query.write(&mut out)?;
            kind::QUERY
        }
        Descriptor::UserObjects(ids) => {
            out.extend(ids.iter().flat_map(|id| id.to_be_bytes()));
            kind::USER_OBJECT
        }
        Descriptor::CopySource(source) => {
            out.extend(source.id.partition.to_be_bytes());
            out.extend(source.id.object.to_be_bytes());
            out.extend([
                u8::from(source.attributes),
                u8::from(source.freeze) << 7 | source.time & 0x0F,
                0,
                0,
            ]);
            kind::COPY_SOURCE
        }
        Descriptor::ExtensionCapabilities(bytes) => {
            out.extend(bytes);
            kind::EXTENSION_CAPABILITIES
        }
    };
    Some((kind, out))
}

impl Query {
    /// Reads a query list.
    ///
    /// ENTRY LENGTH counts the bytes behind it. One that counts the whole entry is accepted too, as
    /// the lengths of both values distinguish the two.
    ///
    /// # Errors
    /// The byte of the query list at which the wrong field begins.
    fn parse(body: &[u8]) -> Result<Self, usize> {
        let f = Fields(body);
        let all = match f.u8(0) & 0x0F {
            _ if body.len() < 4 => return Err(0),
            0 => false,
            1 => true,
            _ => return Err(0),
        };
        let mut criteria = Vec::new();
        let mut at = 4;
        while at < body.len() {
            if criteria.len() >= MAX_ENTRIES {
                return Err(at);
            }
            let min_len = usize::from(f.u16(at + 12));
            let min = f.slice(at + 14, min_len).ok_or(at + 12)?;
            let max_at = at + 14 + min_len;
            // Two bytes of length have to be there themselves: beyond the end they would read as
            // zero.
            f.slice(max_at, 2).ok_or(at)?;
            let max_len = usize::from(f.u16(max_at));
            let max = f.slice(max_at + 2, max_len).ok_or(max_at)?;
            let whole = 16 + min_len + max_len;
            let said = usize::from(f.u16(at + 2));
            if said != whole - 4 && said != whole {
                return Err(at + 2);
            }
            let attribute = AttributeId::new(Page(f.u32(at + 4)), f.u32(at + 8));
            criteria.push(Criterion { attribute, min: min.to_vec(), max: max.to_vec() });
            at += whole;
        }
        Ok(Self { all, criteria })
    }

    fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        out.extend([u8::from(self.all), 0, 0, 0]);
        for Criterion { attribute, min, max } in &self.criteria {
            out.extend([0, 0]);
            out.extend(u16::try_from(12 + min.len() + max.len()).ok()?.to_be_bytes());
            out.extend(attribute.page.0.to_be_bytes());
            out.extend(attribute.number.to_be_bytes());
            for value in [min, max] {
                out.extend(u16::try_from(value.len()).ok()?.to_be_bytes());
                out.extend(value);
            }
        }
        Some(())
    }
}

impl Criterion {
    /// Whether an attribute's value matches. One that does not exist (`None` or empty) matches
    /// nothing. Values are compared as unsigned big-endian numbers where they are of one length,
    /// which is the same as bytes in order.
    pub fn matches(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return false };
        (self.min.is_empty() || value >= self.min.as_slice())
            && (self.max.is_empty() || value <= self.max.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::ObjectRange;
    use proptest::prelude::*;

    #[test]
    fn a_scatter_gather_list_is_what_the_tables_say() {
        let ranges = vec![ObjectRange { start: 0x1000, len: 8 }, ObjectRange { start: 0, len: 0x200 }];
        let continuation = Continuation::new(vec![Descriptor::ScatterGather(ranges)]);
        let bytes = continuation.encode(Action::Read).unwrap();
        let mut expected = vec![0x01, 0, 0x88, 0x85, 0, 0, 0, 0];
        expected.extend([0; 32]);
        expected.extend([0, 1, 0, 0, 0, 0, 0, 32]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        expected.extend([0; 8]);
        assert_eq!(bytes, expected);
        assert_eq!(Continuation::parse(&bytes, Action::Read), Ok(continuation.clone()));
        // Without the list's end, which the length implies.
        assert_eq!(Continuation::parse(&bytes[..bytes.len() - 8], Action::Read), Ok(continuation));
    }

    #[test]
    fn a_query_is_what_the_tables_say() {
        let attribute = AttributeId::new(Page(1), 0x82);
        let query =
            Query { all: true, criteria: vec![Criterion { attribute, min: vec![1, 2], max: vec![] }] };
        let bytes = Continuation::new(vec![Descriptor::Query(query.clone())]).encode(Action::Query).unwrap();
        assert_eq!(bytes[40..48], [0, 2, 0, 2, 0, 0, 0, 22]);
        assert_eq!(bytes[48..70], *b"\x01\0\0\0\0\0\0\x0E\0\0\0\x01\0\0\0\x82\0\x02\x01\x02\0\0");
        let mut other = bytes.clone();
        other[55] = 18; // the whole entry
        for bytes in [bytes, other] {
            let found = Continuation::parse(&bytes, Action::Query).unwrap();
            assert_eq!(found.descriptors, [Descriptor::Query(query.clone())]);
        }
    }

    #[test]
    fn every_wrong_field_is_pointed_at() {
        let source = CopySource { id: Id::new(0x10000, 0x10001), attributes: true, freeze: false, time: 3 };
        let continuation = Continuation::new(vec![Descriptor::CopySource(source)]);
        let bytes = continuation.encode(Action::CopyUserObjects).unwrap();
        assert_eq!(Continuation::parse(&bytes, Action::CopyUserObjects), Ok(continuation));
        let wrong = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Continuation::parse(&bytes, Action::CopyUserObjects).unwrap_err()
        };
        assert_eq!(wrong(0, 2), ContinuationError::Field(0));
        assert_eq!(wrong(3, 0x85), ContinuationError::Field(2));
        assert_eq!(wrong(41, 0x77), ContinuationError::Field(40));
        assert_eq!(wrong(43, 0), ContinuationError::Field(44));
        assert_eq!(wrong(44, 0xFF), ContinuationError::Field(44));
        assert_eq!(Continuation::parse(&bytes[..40], Action::Read), Err(ContinuationError::Length(40)));
        assert_eq!(Continuation::parse(&bytes[..52], Action::Read), Err(ContinuationError::Length(52)));
    }

    #[test]
    fn a_criterion_is_a_range_of_values_open_where_it_has_none() {
        let attribute = AttributeId::new(Page(1), 0x82);
        let range = Criterion { attribute, min: vec![2], max: vec![4] };
        assert!([vec![2], vec![3], vec![4]].iter().all(|value| range.matches(Some(value))));
        assert!(![vec![1], vec![5], vec![]].iter().any(|value| range.matches(Some(value))));
        assert!(!range.matches(None));
        assert!(Criterion { attribute, min: vec![], max: vec![] }.matches(Some(&[0])));
    }

    fn descriptors() -> impl Strategy<Value = Descriptor> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        prop_oneof![
            proptest::collection::vec(any::<(u64, u64)>(), 0..6).prop_map(
                |ranges| Descriptor::ScatterGather(
                    ranges.into_iter().map(|(start, len)| ObjectRange { start, len }).collect()
                )
            ),
            (any::<bool>(), proptest::collection::vec((any::<(u32, u32)>(), bytes(), bytes()), 0..5))
                .prop_map(|(all, criteria)| Descriptor::Query(Query {
                    all,
                    criteria: criteria
                        .into_iter()
                        .map(|((page, number), min, max)| {
                            Criterion { attribute: AttributeId::new(Page(page), number), min, max }
                        })
                        .collect(),
                })),
            proptest::collection::vec(any::<u64>(), 0..6).prop_map(Descriptor::UserObjects),
            (any::<(u64, u64, bool, bool)>(), 0u8..16).prop_map(|((p, o, attributes, freeze), time)| {
                Descriptor::CopySource(CopySource { id: Id::new(p, o), attributes, freeze, time })
            }),
            proptest::collection::vec(any::<u8>(), 104).prop_map(Descriptor::ExtensionCapabilities),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_parses_to_itself(list in proptest::collection::vec(descriptors(), 0..5), icv in any::<[u8; 32]>()) {
            let continuation = Continuation { icv, descriptors: list };
            let bytes = continuation.encode(Action::Write).unwrap();
            prop_assert_eq!(bytes.len() % 8, 0);
            prop_assert_eq!(Continuation::parse(&bytes, Action::Write), Ok(continuation));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..160), kind in 0u16..4) {
            let _ = Continuation::parse(&bytes, Action::Read);
            if bytes.len() >= 48 {
                bytes.truncate(bytes.len() & !7);
                bytes[0] = 1;
                bytes[2..4].copy_from_slice(&[0x88, 0x85]);
                let kind = [kind::SCATTER_GATHER, kind::QUERY, kind::USER_OBJECT, kind::COPY_SOURCE][usize::from(kind)];
                bytes[40..42].copy_from_slice(&kind.to_be_bytes());
                let rest = (bytes.len() - 48) as u32;
                bytes[43] = 0;
                bytes[44..48].copy_from_slice(&rest.to_be_bytes());
                if let Ok(found) = Continuation::parse(&bytes, Action::Read) {
                    let again = found.encode(Action::Read).unwrap();
                    prop_assert_eq!(Continuation::parse(&again, Action::Read), Ok(found));
                }
            }
        }
    }
}
