//! Attribute lists: attributes to get, attributes to set, values retrieved, and values retrieved
//! from many objects.
//!
//! Both versions have the same lists with other headers and entries. OSD-1's header has 4 bytes,
//! and its entries are not padded. OSD-2's has 8, and its entries are padded to multiples of 8. A
//! list that a unit acts on is checked whole before its first entry is returned; a list that an
//! initiator reads may be cut short by its allocation length.

use super::{AttributeId, Page};
use crate::bytes::{Fields, put};
use crate::{ObjectType, Version};

/// LIST TYPE: attributes to get.
pub(crate) const TYPE_GET: u8 = 0x1;
/// LIST TYPE: attributes with values, to set or retrieved.
pub const TYPE_VALUES: u8 = 0x9;
/// LIST TYPE: attributes with values of many objects, OSD-2.
pub const TYPE_MANY: u8 = 0xE;
/// LIST TYPE: attributes with values of many objects, OSD-1.
pub(crate) const TYPE_MANY_OSD1: u8 = 0xF;

/// OSD-1's length of an attribute that does not exist. No value of either version is longer than
/// this less one.
const UNDEFINED: u16 = 0xFFFF;
/// The longest value, in bytes.
pub const MAX_VALUE: usize = 0xFFFE;

/// Bytes of a list's header.
pub const fn header_len(version: Version) -> usize {
    match version {
        Version::Osd1 => 4,
        Version::Osd2 => 8,
    }
}

/// Bytes of an entry with a value of `value` bytes, its padding included.
pub const fn entry_len(version: Version, value: usize) -> usize {
    match version {
        Version::Osd1 => 10 + value,
        Version::Osd2 => 16 + value.next_multiple_of(8),
    }
}

/// Error in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// It is shorter than its header, or its last entry is cut short.
    #[error("the attribute list ends within a field, at its byte {0}")]
    Short(u32),
    /// Its type is another one.
    #[error("the attribute list is of type {0:X}h")]
    Type(u8),
    /// Its header speaks of more bytes than there are.
    #[error("the attribute list is longer than the CDB says")]
    Length,
    /// An entry with an object of no known type.
    #[error("no object is of type {1:02X}h, at byte {0} of the attribute list")]
    ObjectType(u32, u8),
    /// A value of more than [`MAX_VALUE`] bytes is to be written, or too many for an object's list.
    #[error("an attribute of {0} bytes fits no list")]
    TooLong(usize),
}

impl ListError {
    /// The first byte of the field at fault, from the start of the list; `None` where the list's
    /// length is at fault.
    pub const fn byte(self) -> Option<u32> {
        match self {
            Self::Short(_) | Self::TooLong(_) => None,
            Self::Type(_) => Some(0),
            Self::Length => Some(4),
            Self::ObjectType(at, _) => Some(at),
        }
    }
}

/// The entries of a list: what its header and the bytes that are there leave of it. `strict`
/// refuses a header that speaks of more than is there.
fn entries(bytes: &[u8], version: Version, kind: u8, strict: bool) -> Result<&[u8], ListError> {
    let header = header_len(version);
    let Some(rest) = bytes.get(header..) else { return Err(ListError::Short(bytes.len() as u32)) };
    let f = Fields(bytes);
    let found = f.u8(0) & 0x0F;
    if found != kind {
        return Err(ListError::Type(found));
    }
    let said = match version {
        Version::Osd1 => u32::from(f.u16(2)),
        Version::Osd2 => f.u32(4),
    } as usize;
    // Some initiators leave the length zero: the CDB's length counts then.
    match rest.get(..said) {
        _ if said == 0 && strict => Ok(rest),
        Some(entries) => Ok(entries),
        None if strict => Err(ListError::Length),
        None => Ok(rest),
    }
}

/// A get list, as a unit reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetList<'a>(&'a [u8]);

impl<'a> GetList<'a> {
    /// Reads the list that fills `bytes`, as many as the CDB gives.
    ///
    /// # Errors
    /// It is no get list, or is cut short.
    pub fn parse(bytes: &'a [u8], version: Version) -> Result<Self, ListError> {
        let entries = entries(bytes, version, TYPE_GET, true)?;
        if entries.len() % 8 != 0 {
            return Err(ListError::Short(bytes.len() as u32));
        }
        Ok(Self(entries))
    }

    /// The attributes asked for, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = AttributeId> + Clone + use<'a> {
        self.0.chunks_exact(8).map(|entry| {
            let f = Fields(entry);
            AttributeId::new(Page(f.u32(0)), f.u32(4))
        })
    }
}

/// Appends a get list of `attributes` to `out`.
pub fn write_get(out: &mut Vec<u8>, version: Version, attributes: impl IntoIterator<Item = AttributeId>) {
    let start = begin(out, version, TYPE_GET);
    for attribute in attributes {
        out.extend(attribute.page.0.to_be_bytes());
        out.extend(attribute.number.to_be_bytes());
    }
    end(out, start, version);
}

/// An attribute and its value, as lists carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The attribute.
    pub attribute: AttributeId,
    /// Its value, or as much of it as the allocation length had room for. An empty value deletes an
    /// attribute when set, and means that an attribute does not exist when retrieved.
    pub bytes: &'a [u8],
    /// The value's true length in bytes.
    pub len: usize,
}

impl Value<'_> {
    /// Whether the allocation length cut the value short.
    pub const fn is_cut(&self) -> bool {
        self.bytes.len() < self.len
    }
}

/// One entry of `bytes`, and what follows it; `None` where not even its header is whole. A value
/// that is cut short is given as far as it is there.
fn entry(bytes: &[u8], version: Version) -> Option<(Value<'_>, &[u8])> {
    let header = entry_len(version, 0);
    let (head, rest) = bytes.split_at_checked(header)?;
    let f = Fields(head);
    let len = match f.u16(header - 2) {
        UNDEFINED if version == Version::Osd1 => 0,
        len => usize::from(len),
    };
    let value = Value {
        attribute: AttributeId::new(Page(f.u32(0)), f.u32(4)),
        bytes: rest.get(..len).unwrap_or(rest),
        len,
    };
    Some((value, bytes.get(entry_len(version, len)..).unwrap_or_default()))
}

/// A list of attributes with values: a set list as a unit reads it, or a retrieved list as an
/// initiator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueList<'a> {
    entries: &'a [u8],
    version: Version,
}

impl<'a> ValueList<'a> {
    /// Reads the set list that fills `bytes`, as many as the CDB gives. The last entry's padding
    /// may be missing.
    ///
    /// # Errors
    /// It is no list of values, or an entry is cut short.
    pub fn parse(bytes: &'a [u8], version: Version) -> Result<Self, ListError> {
        let entries = entries(bytes, version, TYPE_VALUES, true)?;
        let mut rest = entries;
        while !rest.is_empty() {
            let at = (bytes.len() - rest.len()) as u32;
            let (value, next) = entry(rest, version).ok_or(ListError::Short(at))?;
            if value.is_cut() {
                return Err(ListError::Short(at));
            }
            rest = next;
        }
        Ok(Self { entries, version })
    }

    /// Reads a retrieved list, of which the end may be missing.
    ///
    /// # Errors
    /// It is no list of values.
    pub fn parse_retrieved(bytes: &'a [u8], version: Version) -> Result<Self, ListError> {
        Ok(Self { entries: entries(bytes, version, TYPE_VALUES, false)?, version })
    }

    /// The entries of an object's own list within another structure (LIST with attributes, lists of
    /// many objects).
    pub(crate) const fn of_entries(entries: &'a [u8], version: Version) -> Self {
        Self { entries, version }
    }

    /// The attributes, in their order.
    pub fn iter(&self) -> Values<'a> {
        Values { rest: self.entries, version: self.version }
    }
}

/// Iterates over a [`ValueList`].
#[derive(Clone, Debug)]
pub struct Values<'a> {
    rest: &'a [u8],
    version: Version,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;
    fn next(&mut self) -> Option<Value<'a>> {
        let (value, rest) = entry(self.rest, self.version)?;
        self.rest = rest;
        Some(value)
    }
}

/// Appends one entry to `out`.
///
/// # Errors
/// [`ListError::TooLong`]; nothing is appended then.
pub fn write_entry(
    out: &mut Vec<u8>,
    version: Version,
    attribute: AttributeId,
    value: Option<&[u8]>,
) -> Result<(), ListError> {
    let bytes = value.unwrap_or_default();
    if bytes.len() > MAX_VALUE {
        return Err(ListError::TooLong(bytes.len()));
    }
    let end = out.len() + entry_len(version, bytes.len());
    out.extend(attribute.page.0.to_be_bytes());
    out.extend(attribute.number.to_be_bytes());
    let len = match (version, value) {
        (Version::Osd1, None) => UNDEFINED,
        _ => bytes.len() as u16, // at most MAX_VALUE
    };
    if version == Version::Osd2 {
        out.extend([0; 6]);
    }
    out.extend(len.to_be_bytes());
    out.extend(bytes);
    out.resize(end, 0);
    Ok(())
}

/// Appends a header of `kind` with a zero length. Returns the offset at which the list begins.
fn begin(out: &mut Vec<u8>, version: Version, kind: u8) -> usize {
    let start = out.len();
    out.push(kind);
    out.resize(start + header_len(version), 0);
    start
}

/// Writes the length of the list from `start` to the end of `out`.
fn end(out: &mut [u8], start: usize, version: Version) {
    let len = out.len() - start - header_len(version);
    write_len(&mut out[start..], version, len);
}

/// Writes a list's length. A length beyond OSD-1's 16 bits becomes their largest value.
fn write_len(list: &mut [u8], version: Version, len: usize) {
    match version {
        Version::Osd1 => put(list, 2, &u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()),
        Version::Osd2 => put(list, 4, &u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()),
    }
}

const fn type_of(many: bool, version: Version) -> u8 {
    match (many, version) {
        (false, _) => TYPE_VALUES,
        (true, Version::Osd1) => TYPE_MANY_OSD1,
        (true, Version::Osd2) => TYPE_MANY,
    }
}

/// The header of a list with values of one object's attributes, or of `many`, whose entries take
/// `len` bytes.
pub fn values_header(version: Version, many: bool, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_len(version));
    begin(&mut out, version, type_of(many, version));
    write_len(&mut out, version, len);
    out
}

/// Appends a list of attributes with values to `out`; one that does not exist has none.
///
/// # Errors
/// [`ListError::TooLong`]; nothing is appended then.
pub fn write_values<'a>(
    out: &mut Vec<u8>,
    version: Version,
    values: impl IntoIterator<Item = (AttributeId, Option<&'a [u8]>)>,
) -> Result<(), ListError> {
    let start = begin(out, version, type_of(false, version));
    let write = |(attribute, value)| write_entry(out, version, attribute, value);
    let written = values.into_iter().try_for_each(write);
    if written.is_err() {
        out.truncate(start);
    } else {
        end(out, start, version);
    }
    written
}

/// Bytes of an object's header in OSD-2's lists of many objects and in LIST with attributes.
pub const OBJECT_HEADER_LEN: usize = 16;

/// Appends an object with its entries, as OSD-2's lists of many objects and LIST with attributes
/// have them.
///
/// # Errors
/// [`ListError::TooLong`]; nothing is appended then.
pub fn write_object(out: &mut Vec<u8>, id: u64, kind: ObjectType, entries: &[u8]) -> Result<(), ListError> {
    let len = u16::try_from(entries.len()).map_err(|_| ListError::TooLong(entries.len()))?;
    out.extend(id.to_be_bytes());
    out.extend([kind.code(), 0, 0, 0, 0, 0]);
    out.extend(len.to_be_bytes());
    out.extend(entries);
    Ok(())
}

/// Appends an object with its entries, which [`write_entry`] made, as lists of many objects have
/// them.
///
/// # Errors
/// [`ListError::TooLong`]; nothing is appended then.
pub fn write_of_many(
    out: &mut Vec<u8>,
    version: Version,
    id: u64,
    kind: ObjectType,
    entries: &[u8],
) -> Result<(), ListError> {
    match version {
        Version::Osd1 => {
            let mut rest = entries;
            while let Some((_, next)) = entry(rest, Version::Osd1) {
                out.extend(id.to_be_bytes());
                out.extend(&rest[..rest.len() - next.len()]);
                rest = next;
            }
            Ok(())
        }
        Version::Osd2 => write_object(out, id, kind, entries),
    }
}

/// An object and its attributes in a list of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectValues<'a> {
    /// The object's id in its partition (a partition's own id where partitions are listed).
    pub id: u64,
    /// Its type; OSD-1 does not give it.
    pub kind: Option<ObjectType>,
    /// Its attributes: in OSD-1 one, for each attribute is an entry of its own.
    pub values: ValueList<'a>,
}

/// The object at the start of `bytes`, which OSD-2's lists of many objects and LIST with attributes
/// have, and what follows.
///
/// # Errors
/// The header is cut short, or the object's type is none.
pub fn object(bytes: &[u8]) -> Result<(ObjectValues<'_>, &[u8]), ListError> {
    let (head, rest) =
        bytes.split_at_checked(OBJECT_HEADER_LEN).ok_or(ListError::Short(bytes.len() as u32))?;
    let f = Fields(head);
    let kind = ObjectType::from_code(f.u8(8)).ok_or(ListError::ObjectType(8, f.u8(8)))?;
    let (entries, rest) = rest.split_at_checked(usize::from(f.u16(14))).unwrap_or((rest, &[]));
    let values = ValueList::of_entries(entries, Version::Osd2);
    Ok((ObjectValues { id: f.u64(0), kind: Some(kind), values }, rest))
}

/// A list of many objects' attributes, as an initiator reads it.
///
/// # Errors
/// It is no such list, or an object's header is wrong. An end that is missing is no error.
pub fn parse_many(bytes: &[u8], version: Version) -> Result<Vec<ObjectValues<'_>>, ListError> {
    let mut out = Vec::new();
    match version {
        Version::Osd1 => {
            let mut rest = entries(bytes, version, TYPE_MANY_OSD1, false)?;
            while let Some((id, tail)) = rest.split_first_chunk::<8>() {
                let Some((_, next)) = entry(tail, version) else { break };
                let values = ValueList::of_entries(&tail[..tail.len() - next.len()], version);
                out.push(ObjectValues { id: u64::from_be_bytes(*id), kind: None, values });
                rest = next;
            }
        }
        Version::Osd2 => {
            let mut rest = entries(bytes, version, TYPE_MANY, false)?;
            while rest.len() >= OBJECT_HEADER_LEN {
                let (found, next) = object(rest)?;
                out.push(found);
                rest = next;
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: AttributeId = AttributeId::new(Page(1), 9);

    #[test]
    fn lists_of_osd_2_are_what_the_tables_say() {
        let mut out = Vec::new();
        write_get(&mut out, Version::Osd2, [NAME, AttributeId::new(Page(0x9000_0001), 3)]);
        assert_eq!(out, *b"\x01\0\0\0\0\0\0\x10\0\0\0\x01\0\0\0\x09\x90\0\0\x01\0\0\0\x03");
        let mut out = Vec::new();
        write_values(&mut out, Version::Osd2, [(NAME, Some(&b"abc"[..])), (NAME, None)]).unwrap();
        assert_eq!(out[..8], *b"\x09\0\0\0\0\0\0\x28");
        assert_eq!(out[8..32], *b"\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\x03abc\0\0\0\0\0");
        assert_eq!(out[32..], *b"\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn lists_of_osd_1_are_what_the_tables_say() {
        let mut out = Vec::new();
        write_get(&mut out, Version::Osd1, [NAME]);
        assert_eq!(out, *b"\x01\0\0\x08\0\0\0\x01\0\0\0\x09");
        let mut out = Vec::new();
        write_values(&mut out, Version::Osd1, [(NAME, Some(&b"abc"[..])), (NAME, None)]).unwrap();
        assert_eq!(out, *b"\x09\0\0\x17\0\0\0\x01\0\0\0\x09\0\x03abc\0\0\0\x01\0\0\0\x09\xFF\xFF");
    }

    #[test]
    fn many_objects_are_listed_with_their_types_in_osd_2_and_without_in_osd_1() {
        let mut entries = Vec::new();
        write_entry(&mut entries, Version::Osd2, NAME, Some(b"x")).unwrap();
        let mut out = values_header(Version::Osd2, true, OBJECT_HEADER_LEN + entries.len());
        write_of_many(&mut out, Version::Osd2, 0x10001, ObjectType::User, &entries).unwrap();
        assert_eq!(out[..24], *b"\x0E\0\0\0\0\0\0\x28\0\0\0\0\0\x01\0\x01\x80\0\0\0\0\0\0\x18");
        let found = parse_many(&out, Version::Osd2).unwrap();
        assert_eq!((found[0].id, found[0].kind), (0x10001, Some(ObjectType::User)));
        assert_eq!(found[0].values.iter().next().unwrap().bytes, b"x");

        let mut entries = Vec::new();
        write_entry(&mut entries, Version::Osd1, NAME, Some(b"x")).unwrap();
        write_entry(&mut entries, Version::Osd1, NAME, None).unwrap();
        let mut out = values_header(Version::Osd1, true, 2 * 8 + entries.len());
        write_of_many(&mut out, Version::Osd1, 0x10001, ObjectType::User, &entries).unwrap();
        let found = parse_many(&out, Version::Osd1).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|object| object.id == 0x10001 && object.kind.is_none()));
    }

    #[test]
    fn a_header_without_a_length_leaves_it_to_the_cdb() {
        let mut out = Vec::new();
        write_get(&mut out, Version::Osd2, [NAME, NAME]);
        out[4..8].fill(0);
        assert_eq!(GetList::parse(&out, Version::Osd2).unwrap().iter().len(), 2);
        assert_eq!(GetList::parse(&out[..15], Version::Osd2), Err(ListError::Short(15)));
        out[7] = 0x20;
        assert_eq!(GetList::parse(&out, Version::Osd2), Err(ListError::Length));
        out[0] = 0x09;
        assert_eq!(GetList::parse(&out, Version::Osd2), Err(ListError::Type(9)));
        assert_eq!(GetList::parse(&[1, 0], Version::Osd2), Err(ListError::Short(2)));
    }

    #[test]
    fn a_set_list_that_is_cut_short_is_refused_and_a_retrieved_one_is_read_as_far_as_it_goes() {
        for version in [Version::Osd1, Version::Osd2] {
            let mut out = Vec::new();
            write_values(&mut out, version, [(NAME, Some(&b"first"[..])), (NAME, Some(b"second"))]).unwrap();
            let padding = if version == Version::Osd2 { 2 } else { 0 };
            let cut = out.len() - padding - 3;
            // Whatever length the header gives, the set list has to be whole.
            let mut zero = out.clone();
            zero[1..header_len(version)].fill(0);
            assert!(ValueList::parse(&zero[..cut], version).is_err());
            assert!(ValueList::parse(&out[..cut], version).is_err());
            let found: Vec<_> = ValueList::parse_retrieved(&out[..cut], version).unwrap().iter().collect();
            assert_eq!(found.len(), 2);
            assert!(found[1].is_cut() && found[1].bytes == b"sec" && found[1].len == 6);
        }
    }

    #[test]
    fn values_beyond_the_fields_are_refused() {
        let long = vec![0; MAX_VALUE + 1];
        let mut out = vec![7];
        let refused = write_values(&mut out, Version::Osd2, [(NAME, Some(&long[1..])), (NAME, Some(&long))]);
        assert_eq!((refused, out.as_slice()), (Err(ListError::TooLong(0xFFFF)), &[7][..]));
        write_values(&mut out, Version::Osd2, [(NAME, Some(&long[1..]))]).unwrap();
        let entries = [0; 0x1_0000];
        let refused = write_of_many(&mut out, Version::Osd2, 1, ObjectType::User, &entries);
        assert_eq!(refused, Err(ListError::TooLong(0x1_0000)));
    }

    fn versions() -> impl Strategy<Value = Version> {
        prop_oneof![Just(Version::Osd1), Just(Version::Osd2)]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            values in proptest::collection::vec((any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
            version in versions(),
        ) {
            let mut whole = Vec::new();
            let named = |v: &(u32, u32, Vec<u8>)| AttributeId::new(Page(v.0), v.1);
            write_values(&mut whole, version, values.iter().map(|v| (named(v), Some(&v.2[..])))).unwrap();
            let read: Vec<_> = ValueList::parse(&whole, version).unwrap().iter()
                .map(|v| (v.attribute.page.0, v.attribute.number, v.bytes.to_vec())).collect();
            prop_assert_eq!(&read, &values);
            let mut ids = Vec::new();
            write_get(&mut ids, version, values.iter().map(named));
            let read: Vec<_> = GetList::parse(&ids, version).unwrap().iter().map(|a| (a.page.0, a.number)).collect();
            prop_assert_eq!(read, values.iter().map(|v| (v.0, v.1)).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in proptest::sample::select(vec![1u8, 9, 0xE, 0xF]),
            zero in any::<bool>(),
            version in versions(),
        ) {
            if let Some(first) = bytes.first_mut() { *first = kind; }
            if zero && bytes.len() >= 8 { bytes[1..header_len(version)].fill(0); }
            if let Ok(list) = GetList::parse(&bytes, version) { list.iter().count(); }
            if let Ok(list) = ValueList::parse(&bytes, version) {
                prop_assert!(list.iter().all(|value| !value.is_cut()));
            }
            if let Ok(list) = ValueList::parse_retrieved(&bytes, version) { list.iter().count(); }
            if let Ok(objects) = parse_many(&bytes, version) {
                for object in objects { object.values.iter().count(); }
            }
        }
    }
}
