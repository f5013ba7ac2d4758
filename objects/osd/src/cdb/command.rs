//! Command-specific fields: bytes 16 to 51, and parts of bytes 10, 11 and 14. This module owns the
//! position of each type of field in a CDB; [`super::table`] lists the fields of each command.

use super::{Body, CdbError, EncodeError};
use crate::bytes::{codes, put};
use crate::{Id, Version};

/// A range of a user object's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRange {
    /// STARTING BYTE ADDRESS.
    pub start: u64,
    /// LENGTH in bytes.
    pub len: u64,
}

codes! {
    /// FLUSH SCOPE.
    FlushScope: u8 {
        Contents = 0 "Of a user object its data and attributes; of a collection, a partition or the root its list of members.",
        Attributes = 1 "Attributes only.",
        RangeOrAll = 2 "Of a user object a range of its data and its attributes; of the others all that is below them too.",
    }
}

codes! {
    /// Scope of REMOVE PARTITION.
    RemoveScope: u8 {
        Empty = 0 "Fail if the partition is not empty.",
        Contents = 1 "Remove what it holds with it.",
    }
}

/// Scope of OBJECT STRUCTURE CHECK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StructureScope {
    /// The whole unit.
    Root,
    /// One partition.
    Partition(u64),
}

/// An ALLOCATION LENGTH: bytes of Data-In that the command's own data may take.
pub type Allocation = u64;

/// LIST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// PARTITION_ID; 0 lists partitions.
    pub partition: u64,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: Allocation,
    /// INITIAL OBJECT_ID: the list begins with the first id that is not less.
    pub initial: u64,
    /// LIST IDENTIFIER of the list that is continued; 0 begins one.
    pub list_id: u32,
    /// LIST_ATTR: each id comes with the attributes that the get list asks for.
    pub attributes: bool,
    /// SORT ORDER, 4 bits: 0 ascending.
    pub sort: u8,
}

/// LIST COLLECTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCollection {
    /// PARTITION_ID and COLLECTION_OBJECT_ID; collection 0 lists the partition's collections.
    pub id: Id,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: Allocation,
    /// INITIAL OBJECT_ID: the list begins with the first id that is not less.
    pub initial: u64,
    /// LIST IDENTIFIER of the list that is continued; 0 begins one.
    pub list_id: u32,
    /// LIST_ATTR: each id comes with the attributes that the get list asks for.
    pub attributes: bool,
}

impl List {
    /// A list of `partition`'s user objects, or of partitions, from its beginning; ids alone.
    pub const fn new(partition: u64, allocation: Allocation) -> Self {
        Self { partition, allocation, initial: 0, list_id: 0, attributes: false, sort: 0 }
    }
}

impl ListCollection {
    /// A list of members, or of collections, from its beginning; ids alone.
    pub const fn new(id: Id, allocation: Allocation) -> Self {
        Self { id, allocation, initial: 0, list_id: 0, attributes: false }
    }
}

codes! {
    /// The key that SET KEY sets.
    KeyToSet: u8 {
        Root = 1 "The root key.",
        Partition = 2 "A partition's key.",
        Working = 3 "A working key of a partition.",
    }
}

/// SET KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKey {
    /// KEY TO SET.
    pub key: KeyToSet,
    /// PARTITION_ID; 0 with the root key.
    pub partition: u64,
    /// KEY VERSION, 0 to 15: which working key.
    pub version: u8,
    /// KEY IDENTIFIER: a name for the new key.
    pub key_id: [u8; 7],
    /// SEED: what the new key is derived from.
    pub seed: [u8; 20],
}

/// SET MASTER KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMasterKey {
    /// DH_STEP: 0 exchanges seeds, 1 changes the key; 2 and 3 are reserved.
    pub step: u8,
    /// DH_GROUP: the code of the Diffie-Hellman group.
    pub group: u8,
    /// KEY IDENTIFIER: a name for the new key.
    pub key_id: [u8; 7],
    /// PARAMETER LIST LENGTH, bytes of Data-Out.
    pub parameter_len: u32,
    /// ALLOCATION LENGTH, bytes of Data-In.
    pub allocation: u32,
}

/// Position of a field, if its type does not determine it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The position that its type has in every command.
    Own,
    /// At this byte.
    Byte(usize),
    /// LENGTH, ALLOCATION LENGTH, capacity or count.
    Len,
    /// STARTING BYTE ADDRESS or initial id.
    Start,
    /// LIST IDENTIFIER.
    ListId,
    /// This bit of byte 11.
    Bit(u8),
}

/// PARTITION_ID.
pub(super) const PARTITION: At = At::Byte(16);
/// USER_OBJECT_ID or COLLECTION_OBJECT_ID.
pub(super) const OBJECT: At = At::Byte(24);
/// SOURCE PARTITION_ID or SOURCE COLLECTION_OBJECT_ID.
pub(super) const SOURCE: At = At::Byte(40);
/// OBJECT DUPLICATION METHOD.
pub(super) const METHOD: At = At::Byte(14);
/// REQUESTED MAP TYPE.
pub(super) const MAP_TYPE: At = At::Byte(48);

impl At {
    /// The byte where a field of several bytes begins.
    const fn byte(self, version: Version) -> usize {
        match (self, version) {
            (Self::Byte(at), _) => at,
            (Self::Len, Version::Osd1) => 36,
            (Self::Len, Version::Osd2) | (Self::ListId, Version::Osd1) => 32,
            (Self::Start, Version::Osd1) => 44,
            (Self::Start, Version::Osd2) => 40,
            (Self::ListId, Version::Osd2) => 48,
            (Self::Bit(_) | Self::Own, _) => 11,
        }
    }
}

/// A field's type: its decoding and encoding, and its part of the address of the command's object.
pub(super) trait Field: Copy {
    fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError>;
    fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError>;
    fn address(self, _: At, _: &mut Id) {}
}

macro_rules! numbers {
    ($($number:ident),*) => {$(
        impl Field for $number {
            fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError> {
                Ok(body.f.$number(at.byte(body.form.version())))
            }
            fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
                put(out, at.byte(version), &self.to_be_bytes());
                Ok(())
            }
            fn address(self, at: At, id: &mut Id) {
                match at {
                    PARTITION => id.partition = self.into(),
                    OBJECT => id.object = self.into(),
                    _ => {}
                }
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Field for bool {
    fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError> {
        let At::Bit(bit) = at else { return Ok(false) };
        Ok(body.f.u8(11) >> bit & 1 != 0)
    }
    fn put(self, at: At, _: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        if let At::Bit(bit) = at {
            out[11] |= u8::from(self) << bit;
        }
        Ok(())
    }
}

impl Field for [u8; 16] {
    fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError> {
        Ok(body.f.array(at.byte(body.form.version())))
    }
    fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        put(out, at.byte(version), &self);
        Ok(())
    }
}

impl Field for Id {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        Ok(Self::new(body.f.u64(16), body.f.u64(24)))
    }
    fn put(self, _: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        self.partition.put(PARTITION, version, out)?;
        self.object.put(OBJECT, version, out)
    }
    fn address(self, _: At, id: &mut Id) {
        *id = self;
    }
}

impl Field for ObjectRange {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        Ok(Self { start: u64::get(body, At::Start)?, len: u64::get(body, At::Len)? })
    }
    fn put(self, _: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        self.start.put(At::Start, version, out)?;
        self.len.put(At::Len, version, out)
    }
}

impl Field for FlushScope {
    /// It stands in byte 10; initiators exist that put it into byte 11.
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        let (byte, code) = match body.f.u8(10) & 3 {
            0 => (11, body.f.u8(11) & 3),
            code => (10, code),
        };
        Self::from_code(code).ok_or(CdbError::bit(byte, 1))
    }
    fn put(self, _: At, _: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        out[10] |= self as u8;
        Ok(())
    }
}

impl Field for RemoveScope {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        Self::from_code(body.f.u8(11) & 7).ok_or(CdbError::bit(11, 2))
    }
    fn put(self, _: At, _: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        out[11] |= self as u8;
        Ok(())
    }
}

impl StructureScope {
    /// Id of the checked object: the root or a partition.
    pub(super) const fn id(self) -> Id {
        match self {
            Self::Root => Id::ROOT,
            Self::Partition(partition) => Id::partition(partition),
        }
    }
}

impl Field for StructureScope {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        Ok(match u64::get(body, PARTITION)? {
            0 => Self::Root,
            partition => Self::Partition(partition),
        })
    }
    fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        self.id().put(at, version, out)
    }
    fn address(self, _: At, id: &mut Id) {
        *id = self.id();
    }
}

impl Field for ListCollection {
    fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError> {
        let ObjectRange { start: initial, len: allocation } = ObjectRange::get(body, at)?;
        let attributes = body.form.version() == Version::Osd2 && bool::get(body, At::Bit(6))?;
        let list_id = u32::get(body, At::ListId)?;
        Ok(Self { id: Id::get(body, at)?, allocation, initial, list_id, attributes })
    }
    fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        if self.attributes && version == Version::Osd1 {
            return Err(EncodeError::NoField("attributes of listed objects"));
        }
        self.id.put(at, version, out)?;
        ObjectRange { start: self.initial, len: self.allocation }.put(at, version, out)?;
        self.list_id.put(At::ListId, version, out)?;
        self.attributes.put(At::Bit(6), version, out)
    }
    fn address(self, _: At, id: &mut Id) {
        *id = self.id;
    }
}

impl Field for List {
    fn get(body: &Body<'_>, at: At) -> Result<Self, CdbError> {
        let ListCollection { id, allocation, initial, list_id, attributes } = ListCollection::get(body, at)?;
        let (partition, sort) = (id.partition, body.f.u8(11) & 0x0F);
        Ok(Self { partition, allocation, initial, list_id, attributes, sort })
    }
    fn put(self, at: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        let Self { partition, allocation, initial, list_id, attributes, sort } = self;
        out[11] |= sort & 0x0F;
        ListCollection { id: Id::partition(partition), allocation, initial, list_id, attributes }
            .put(at, version, out)
    }
    fn address(self, _: At, id: &mut Id) {
        id.partition = self.partition;
    }
}

impl Field for SetKey {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        let key = KeyToSet::from_code(body.f.u8(11) & 3).ok_or(CdbError::bit(11, 1))?;
        let (version, key_id, seed) = (body.f.u8(24) & 0x0F, body.f.array(25), body.f.array(32));
        Ok(Self { key, partition: u64::get(body, PARTITION)?, version, key_id, seed })
    }
    fn put(self, _: At, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        out[11] |= self.key as u8;
        out[24] = self.version & 0x0F;
        put(out, 25, &self.key_id);
        put(out, 32, &self.seed);
        self.partition.put(PARTITION, version, out)
    }
    fn address(self, _: At, id: &mut Id) {
        id.partition = self.partition;
    }
}

impl Field for SetMasterKey {
    fn get(body: &Body<'_>, _: At) -> Result<Self, CdbError> {
        let f = body.f;
        let (parameter_len, allocation) = (f.u32(32), f.u32(36));
        Ok(Self { step: f.u8(11) & 3, group: f.u8(24), key_id: f.array(25), parameter_len, allocation })
    }
    fn put(self, _: At, _: Version, out: &mut [u8]) -> Result<(), EncodeError> {
        out[11] |= self.step & 3;
        out[24] = self.group;
        put(out, 25, &self.key_id);
        put(out, 32, &self.parameter_len.to_be_bytes());
        put(out, 36, &self.allocation.to_be_bytes());
        Ok(())
    }
}
