//! Every OSD command and its own fields: bytes 16 to 51, and what is its own in bytes 10, 11 and 14.

use super::{Body, CdbError, EncodeError, Form};
use crate::bytes::{Fields, put};
use crate::{Action, Id, ObjectType, Version};

/// A range of a user object's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRange {
    /// STARTING BYTE ADDRESS.
    pub start: u64,
    /// LENGTH in bytes.
    pub len: u64,
}

/// FLUSH SCOPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlushScope {
    /// 0: of a user object its data and attributes; of a collection, a partition or the root its list of members alone.
    Contents = 0,
    /// 1: attributes only.
    Attributes = 1,
    /// 2: of a user object a range of its data and its attributes; of the others everything below them too.
    RangeOrAll = 2,
}

/// Scope of REMOVE PARTITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RemoveScope {
    /// 0: fail if the partition is not empty.
    Empty = 0,
    /// 1: remove what it holds with it.
    Contents = 1,
}

/// What OBJECT STRUCTURE CHECK checks.
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

/// Which key SET KEY sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KeyToSet {
    /// 1: the root key.
    Root = 1,
    /// 2: a partition's key.
    Partition = 2,
    /// 3: a working key of a partition.
    Working = 3,
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

/// A command and its own fields.
///
/// `requested` ids are 0 where the unit is to choose. Objects are addressed by [`Id`] where both ids are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// OBJECT STRUCTURE CHECK.
    ObjectStructureCheck(StructureScope),
    /// FORMAT OSD.
    Format {
        /// FORMATTED CAPACITY in bytes; 0 for all there is.
        capacity: u64,
    },
    /// CREATE: user objects.
    Create {
        /// PARTITION_ID.
        partition: u64,
        /// REQUESTED USER_OBJECT_ID.
        requested: u64,
        /// NUMBER OF USER OBJECTS; 0 means one.
        count: u16,
    },
    /// LIST.
    List(List),
    /// PUNCH: the range is deleted and what follows moves down.
    Punch(Id, ObjectRange),
    /// READ.
    Read(Id, ObjectRange),
    /// WRITE.
    Write(Id, ObjectRange),
    /// APPEND.
    Append {
        /// The user object.
        id: Id,
        /// LENGTH in bytes.
        len: u64,
    },
    /// FLUSH of a user object.
    Flush {
        /// The user object.
        id: Id,
        /// FLUSH SCOPE.
        scope: FlushScope,
        /// The range, with [`FlushScope::RangeOrAll`].
        range: ObjectRange,
    },
    /// CLEAR: the range reads as zeros.
    Clear(Id, ObjectRange),
    /// REMOVE: a user object.
    Remove(Id),
    /// CREATE PARTITION.
    CreatePartition {
        /// REQUESTED PARTITION_ID.
        requested: u64,
    },
    /// REMOVE PARTITION.
    RemovePartition {
        /// PARTITION_ID.
        partition: u64,
        /// What to do with what it holds.
        scope: RemoveScope,
    },
    /// GET ATTRIBUTES of any object.
    GetAttributes(Id),
    /// SET ATTRIBUTES of any object.
    SetAttributes(Id),
    /// CREATE AND WRITE.
    CreateAndWrite {
        /// PARTITION_ID.
        partition: u64,
        /// REQUESTED USER_OBJECT_ID.
        requested: u64,
        /// What is written.
        range: ObjectRange,
    },
    /// COPY USER OBJECTS; the source is in the CDB continuation.
    CopyUserObjects {
        /// PARTITION_ID of the copy.
        partition: u64,
        /// REQUESTED USER_OBJECT_ID.
        requested: u64,
        /// OBJECT DUPLICATION METHOD; 0 is the unit's default.
        method: u8,
    },
    /// CREATE USER TRACKING COLLECTION.
    CreateUserTrackingCollection {
        /// PARTITION_ID.
        partition: u64,
        /// REQUESTED COLLECTION_OBJECT_ID.
        requested: u64,
        /// SOURCE COLLECTION_OBJECT_ID whose members it gets; 0 for none.
        source: u64,
    },
    /// CREATE COLLECTION.
    CreateCollection {
        /// PARTITION_ID.
        partition: u64,
        /// REQUESTED COLLECTION_OBJECT_ID.
        requested: u64,
    },
    /// REMOVE COLLECTION.
    RemoveCollection {
        /// The collection.
        id: Id,
        /// FCR: even with members, which stay as objects.
        force: bool,
    },
    /// LIST COLLECTION.
    ListCollection(ListCollection),
    /// SET KEY.
    SetKey(SetKey),
    /// SET MASTER KEY.
    SetMasterKey(SetMasterKey),
    /// FLUSH COLLECTION.
    FlushCollection {
        /// The collection.
        id: Id,
        /// FLUSH SCOPE.
        scope: FlushScope,
    },
    /// FLUSH PARTITION.
    FlushPartition {
        /// PARTITION_ID.
        partition: u64,
        /// FLUSH SCOPE.
        scope: FlushScope,
    },
    /// FLUSH OSD.
    FlushOsd {
        /// FLUSH SCOPE.
        scope: FlushScope,
    },
    /// QUERY; the query list is in the CDB continuation.
    Query {
        /// The collection whose members are looked at; object 0 for all of the partition's user objects.
        id: Id,
        /// IMMED_TR: return before the tracking collection is complete.
        immediate: bool,
        /// ALLOCATION LENGTH in bytes.
        allocation: Allocation,
        /// MATCHES COLLECTION_OBJECT_ID: a collection that the matches are put into; 0 for none.
        matches: u64,
    },
    /// REMOVE MEMBER OBJECTS of a collection.
    RemoveMemberObjects(Id),
    /// GET MEMBER ATTRIBUTES of a collection.
    GetMemberAttributes(Id),
    /// SET MEMBER ATTRIBUTES of a collection.
    SetMemberAttributes(Id),
    /// CREATE CLONE: a partition that can be written, with the contents of another.
    ///
    /// No open source shows where the source stands; it is put where CREATE USER TRACKING COLLECTION has its source.
    CreateClone {
        /// REQUESTED PARTITION_ID.
        requested: u64,
        /// SOURCE PARTITION_ID, at byte 40.
        source: u64,
        /// OBJECT DUPLICATION METHOD; 0 is the unit's default.
        method: u8,
    },
    /// CREATE SNAPSHOT: a partition that stays as it is; fields as in [`Self::CreateClone`].
    CreateSnapshot {
        /// REQUESTED PARTITION_ID.
        requested: u64,
        /// SOURCE PARTITION_ID, at byte 40.
        source: u64,
        /// OBJECT DUPLICATION METHOD; 0 is the unit's default.
        method: u8,
    },
    /// DETACH CLONE: it becomes a partition of its own.
    DetachClone {
        /// PARTITION_ID of the clone.
        partition: u64,
    },
    /// REFRESH SNAPSHOT OR CLONE: it gets the present contents of its source.
    RefreshSnapshotOrClone {
        /// PARTITION_ID of the snapshot or clone.
        partition: u64,
    },
    /// RESTORE PARTITION FROM SNAPSHOT.
    RestorePartition {
        /// PARTITION_ID of the partition that is restored.
        partition: u64,
        /// SOURCE PARTITION_ID of the snapshot, at byte 40.
        snapshot: u64,
    },
    /// READ MAP.
    ReadMap {
        /// The user object.
        id: Id,
        /// ALLOCATION LENGTH in bytes.
        allocation: Allocation,
        /// STARTING BYTE ADDRESS.
        start: u64,
        /// REQUESTED MAP TYPE; 0 for all.
        map_type: u16,
    },
    /// READ MAPS AND COMPARE: where an object differs from its namesake in another partition.
    ///
    /// No open source shows where the other partition stands; it is put at byte 40 like every other source.
    ReadMapsAndCompare {
        /// The user object.
        id: Id,
        /// ALLOCATION LENGTH in bytes.
        allocation: Allocation,
        /// PARTITION_ID of the one to compare with, at byte 40.
        other: u64,
        /// REQUESTED MAP TYPE; 0 for all.
        map_type: u16,
    },
    /// PERFORM SCSI COMMAND.
    PerformScsiCommand {
        /// The CDB of the command, 16 bytes with zeros behind its own.
        cdb: [u8; 16],
    },
    /// PERFORM TASK MANAGEMENT FUNCTION.
    PerformTmf {
        /// ALLOCATION LENGTH in bytes.
        allocation: u16,
        /// The function's code.
        function: u8,
        /// The tag of the task that it is about.
        tag: u64,
    },
}

impl Command {
    /// Which command it is.
    pub const fn action(&self) -> Action {
        match self {
            Self::ObjectStructureCheck(_) => Action::ObjectStructureCheck,
            Self::Format { .. } => Action::Format,
            Self::Create { .. } => Action::Create,
            Self::List(_) => Action::List,
            Self::Punch(..) => Action::Punch,
            Self::Read(..) => Action::Read,
            Self::Write(..) => Action::Write,
            Self::Append { .. } => Action::Append,
            Self::Flush { .. } => Action::Flush,
            Self::Clear(..) => Action::Clear,
            Self::Remove(_) => Action::Remove,
            Self::CreatePartition { .. } => Action::CreatePartition,
            Self::RemovePartition { .. } => Action::RemovePartition,
            Self::GetAttributes(_) => Action::GetAttributes,
            Self::SetAttributes(_) => Action::SetAttributes,
            Self::CreateAndWrite { .. } => Action::CreateAndWrite,
            Self::CopyUserObjects { .. } => Action::CopyUserObjects,
            Self::CreateUserTrackingCollection { .. } => Action::CreateUserTrackingCollection,
            Self::CreateCollection { .. } => Action::CreateCollection,
            Self::RemoveCollection { .. } => Action::RemoveCollection,
            Self::ListCollection(_) => Action::ListCollection,
            Self::SetKey(_) => Action::SetKey,
            Self::SetMasterKey(_) => Action::SetMasterKey,
            Self::FlushCollection { .. } => Action::FlushCollection,
            Self::FlushPartition { .. } => Action::FlushPartition,
            Self::FlushOsd { .. } => Action::FlushOsd,
            Self::Query { .. } => Action::Query,
            Self::RemoveMemberObjects(_) => Action::RemoveMemberObjects,
            Self::GetMemberAttributes(_) => Action::GetMemberAttributes,
            Self::SetMemberAttributes(_) => Action::SetMemberAttributes,
            Self::CreateClone { .. } => Action::CreateClone,
            Self::CreateSnapshot { .. } => Action::CreateSnapshot,
            Self::DetachClone { .. } => Action::DetachClone,
            Self::RefreshSnapshotOrClone { .. } => Action::RefreshSnapshotOrClone,
            Self::RestorePartition { .. } => Action::RestorePartition,
            Self::ReadMap { .. } => Action::ReadMap,
            Self::ReadMapsAndCompare { .. } => Action::ReadMapsAndCompare,
            Self::PerformScsiCommand { .. } => Action::PerformScsiCommand,
            Self::PerformTmf { .. } => Action::PerformTmf,
        }
    }

    /// What bytes 16 to 31 address: the object, or with a requested id of the unit's choice its partition.
    pub const fn id(&self) -> Id {
        match *self {
            Self::ObjectStructureCheck(StructureScope::Root)
            | Self::Format { .. }
            | Self::SetMasterKey(_)
            | Self::FlushOsd { .. }
            | Self::PerformScsiCommand { .. }
            | Self::PerformTmf { .. } => Id::ROOT,
            Self::ObjectStructureCheck(StructureScope::Partition(partition))
            | Self::List(List { partition, .. })
            | Self::RemovePartition { partition, .. }
            | Self::SetKey(SetKey { partition, .. })
            | Self::FlushPartition { partition, .. }
            | Self::DetachClone { partition }
            | Self::RefreshSnapshotOrClone { partition }
            | Self::RestorePartition { partition, .. }
            | Self::CreatePartition { requested: partition }
            | Self::CreateClone { requested: partition, .. }
            | Self::CreateSnapshot { requested: partition, .. } => Id::partition(partition),
            Self::Create { partition, requested, .. }
            | Self::CreateAndWrite { partition, requested, .. }
            | Self::CopyUserObjects { partition, requested, .. }
            | Self::CreateUserTrackingCollection { partition, requested, .. }
            | Self::CreateCollection { partition, requested } => Id::new(partition, requested),
            Self::Punch(id, _)
            | Self::Read(id, _)
            | Self::Write(id, _)
            | Self::Clear(id, _)
            | Self::Append { id, .. }
            | Self::Flush { id, .. }
            | Self::Remove(id)
            | Self::GetAttributes(id)
            | Self::SetAttributes(id)
            | Self::RemoveCollection { id, .. }
            | Self::ListCollection(ListCollection { id, .. })
            | Self::FlushCollection { id, .. }
            | Self::Query { id, .. }
            | Self::RemoveMemberObjects(id)
            | Self::GetMemberAttributes(id)
            | Self::SetMemberAttributes(id)
            | Self::ReadMap { id, .. }
            | Self::ReadMapsAndCompare { id, .. } => id,
        }
    }

    /// What type of object the command is about. `None` where only the unit knows: an object id of GET ATTRIBUTES and
    /// SET ATTRIBUTES is a user object's or a collection's.
    pub const fn object_type(&self) -> Option<ObjectType> {
        match *self {
            Self::ObjectStructureCheck(StructureScope::Root)
            | Self::Format { .. }
            | Self::SetMasterKey(_)
            | Self::FlushOsd { .. }
            | Self::PerformScsiCommand { .. }
            | Self::PerformTmf { .. }
            | Self::SetKey(SetKey { key: KeyToSet::Root, .. })
            | Self::List(List { partition: 0, .. }) => Some(ObjectType::Root),
            Self::ObjectStructureCheck(StructureScope::Partition(_))
            | Self::List(_)
            | Self::ListCollection(ListCollection { id: Id { object: 0, .. }, .. })
            | Self::SetKey(_)
            | Self::CreatePartition { .. }
            | Self::RemovePartition { .. }
            | Self::FlushPartition { .. }
            | Self::CreateClone { .. }
            | Self::CreateSnapshot { .. }
            | Self::DetachClone { .. }
            | Self::RefreshSnapshotOrClone { .. }
            | Self::RestorePartition { .. } => Some(ObjectType::Partition),
            Self::GetAttributes(id) | Self::SetAttributes(id) => match id {
                Id { partition: 0, object: 0 } => Some(ObjectType::Root),
                Id { object: 0, .. } => Some(ObjectType::Partition),
                _ => None,
            },
            Self::CreateCollection { .. }
            | Self::CreateUserTrackingCollection { .. }
            | Self::RemoveCollection { .. }
            | Self::ListCollection(_)
            | Self::FlushCollection { .. }
            | Self::Query { .. }
            | Self::RemoveMemberObjects(_)
            | Self::GetMemberAttributes(_)
            | Self::SetMemberAttributes(_) => Some(ObjectType::Collection),
            Self::Create { .. }
            | Self::CreateAndWrite { .. }
            | Self::CopyUserObjects { .. }
            | Self::Punch(..)
            | Self::Read(..)
            | Self::Write(..)
            | Self::Append { .. }
            | Self::Flush { .. }
            | Self::Clear(..)
            | Self::Remove(_)
            | Self::ReadMap { .. }
            | Self::ReadMapsAndCompare { .. } => Some(ObjectType::User),
        }
    }

    /// FLUSH SCOPE, of the commands that have one.
    pub const fn flush_scope(&self) -> Option<FlushScope> {
        match *self {
            Self::Flush { scope, .. }
            | Self::FlushCollection { scope, .. }
            | Self::FlushPartition { scope, .. }
            | Self::FlushOsd { scope } => Some(scope),
            _ => None,
        }
    }

    /// Whether bytes 48 to 51 are a CDB CONTINUATION LENGTH: in OSD-2, where nothing else stands there.
    pub const fn may_continue(&self) -> bool {
        !matches!(
            self,
            Self::List(_)
                | Self::ListCollection(_)
                | Self::ReadMap { .. }
                | Self::ReadMapsAndCompare { .. }
                | Self::SetKey(_)
        )
    }

    /// Bytes of Data-Out that the command itself takes: what is written. Continuation and attributes come on top.
    pub const fn data_out_len(&self) -> u64 {
        match *self {
            Self::Write(_, range) | Self::CreateAndWrite { range, .. } => range.len,
            Self::Append { len, .. } => len,
            Self::SetMasterKey(SetMasterKey { parameter_len, .. }) => parameter_len as u64,
            _ => 0,
        }
    }

    /// Bytes of Data-In that the command itself may fill: its length or allocation length. Attributes come on top.
    pub const fn data_in_len(&self) -> u64 {
        match *self {
            Self::Read(_, range) => range.len,
            Self::List(List { allocation, .. })
            | Self::ListCollection(ListCollection { allocation, .. })
            | Self::Query { allocation, .. }
            | Self::ReadMap { allocation, .. }
            | Self::ReadMapsAndCompare { allocation, .. } => allocation,
            Self::SetMasterKey(SetMasterKey { allocation, .. }) => allocation as u64,
            Self::PerformTmf { allocation, .. } => allocation as u64,
            _ => 0,
        }
    }
}

/// Where fields stand that OSD-1 and OSD-2 put at different offsets.
struct Places {
    /// LENGTH, ALLOCATION LENGTH, capacity or count.
    len: usize,
    /// STARTING BYTE ADDRESS or initial id.
    start: usize,
    /// LIST IDENTIFIER.
    list_id: usize,
}

const fn places(version: Version) -> Places {
    match version {
        Version::Osd1 => Places { len: 36, start: 44, list_id: 32 },
        Version::Osd2 => Places { len: 32, start: 40, list_id: 48 },
    }
}

/// FLUSH SCOPE stands in byte 10; initiators exist that put it into byte 11.
fn flush_scope(f: Fields<'_>) -> Result<FlushScope, CdbError> {
    let (byte, code) = match f.u8(10) & 3 {
        0 => (11, f.u8(11) & 3),
        code => (10, code),
    };
    match code {
        0 => Ok(FlushScope::Contents),
        1 => Ok(FlushScope::Attributes),
        2 => Ok(FlushScope::RangeOrAll),
        _ => Err(CdbError::bit(byte, 1)),
    }
}

/// The command and its fields.
pub(super) fn decode(action: Action, body: &Body<'_>) -> Result<Command, CdbError> {
    let f = body.f;
    let at = places(body.form.version());
    let (partition, object) = (f.u64(16), f.u64(24));
    let id = Id::new(partition, object);
    let range = ObjectRange { start: f.u64(at.start), len: f.u64(at.len) };
    let method = f.u8(14);
    let source = f.u64(40);
    let list_attributes = body.form.version() == Version::Osd2 && f.u8(11) & 0x40 != 0;
    Ok(match action {
        Action::ObjectStructureCheck => Command::ObjectStructureCheck(match partition {
            0 => StructureScope::Root,
            partition => StructureScope::Partition(partition),
        }),
        Action::Format => Command::Format { capacity: range.len },
        Action::Create => Command::Create { partition, requested: object, count: f.u16(at.len) },
        Action::List => Command::List(List {
            partition,
            allocation: range.len,
            initial: range.start,
            list_id: f.u32(at.list_id),
            attributes: list_attributes,
            sort: f.u8(11) & 0x0F,
        }),
        Action::Punch => Command::Punch(id, range),
        Action::Read => Command::Read(id, range),
        Action::Write => Command::Write(id, range),
        Action::Append => Command::Append { id, len: range.len },
        Action::Flush => Command::Flush { id, scope: flush_scope(f)?, range },
        Action::Clear => Command::Clear(id, range),
        Action::Remove => Command::Remove(id),
        Action::CreatePartition => Command::CreatePartition { requested: partition },
        Action::RemovePartition => {
            let scope = match f.u8(11) & 7 {
                0 => RemoveScope::Empty,
                1 => RemoveScope::Contents,
                _ => return Err(CdbError::bit(11, 2)),
            };
            Command::RemovePartition { partition, scope }
        }
        Action::GetAttributes => Command::GetAttributes(id),
        Action::SetAttributes => Command::SetAttributes(id),
        Action::CreateAndWrite => Command::CreateAndWrite { partition, requested: object, range },
        Action::CopyUserObjects => Command::CopyUserObjects { partition, requested: object, method },
        Action::CreateUserTrackingCollection => {
            Command::CreateUserTrackingCollection { partition, requested: object, source }
        }
        Action::CreateCollection => Command::CreateCollection { partition, requested: object },
        Action::RemoveCollection => Command::RemoveCollection { id, force: f.u8(11) & 1 != 0 },
        Action::ListCollection => Command::ListCollection(ListCollection {
            id,
            allocation: range.len,
            initial: range.start,
            list_id: f.u32(at.list_id),
            attributes: list_attributes,
        }),
        Action::SetKey => {
            let key = match f.u8(11) & 3 {
                1 => KeyToSet::Root,
                2 => KeyToSet::Partition,
                3 => KeyToSet::Working,
                _ => return Err(CdbError::bit(11, 1)),
            };
            let (version, key_id, seed) = (f.u8(24) & 0x0F, f.array(25), f.array(32));
            Command::SetKey(SetKey { key, partition, version, key_id, seed })
        }
        Action::SetMasterKey => Command::SetMasterKey(SetMasterKey {
            step: f.u8(11) & 3,
            group: f.u8(24),
            key_id: f.array(25),
            parameter_len: f.u32(32),
            allocation: f.u32(36),
        }),
        Action::FlushCollection => Command::FlushCollection { id, scope: flush_scope(f)? },
        Action::FlushPartition => Command::FlushPartition { partition, scope: flush_scope(f)? },
        Action::FlushOsd => Command::FlushOsd { scope: flush_scope(f)? },
        Action::Query => Command::Query {
            id,
            immediate: f.u8(11) & 0x80 != 0,
            allocation: range.len,
            matches: range.start,
        },
        Action::RemoveMemberObjects => Command::RemoveMemberObjects(id),
        Action::GetMemberAttributes => Command::GetMemberAttributes(id),
        Action::SetMemberAttributes => Command::SetMemberAttributes(id),
        Action::CreateClone => Command::CreateClone { requested: partition, source, method },
        Action::CreateSnapshot => Command::CreateSnapshot { requested: partition, source, method },
        Action::DetachClone => Command::DetachClone { partition },
        Action::RefreshSnapshotOrClone => Command::RefreshSnapshotOrClone { partition },
        Action::RestorePartition => Command::RestorePartition { partition, snapshot: source },
        Action::ReadMap => {
            Command::ReadMap { id, allocation: range.len, start: range.start, map_type: f.u16(48) }
        }
        Action::ReadMapsAndCompare => {
            Command::ReadMapsAndCompare { id, allocation: range.len, other: source, map_type: f.u16(48) }
        }
        Action::PerformScsiCommand => Command::PerformScsiCommand { cdb: f.array(32) },
        Action::PerformTmf => {
            Command::PerformTmf { allocation: f.u16(32), function: f.u8(39), tag: f.u64(40) }
        }
    })
}

/// Writes the command's fields; `out` holds the whole CDB of `form`.
pub(super) fn encode(command: &Command, form: Form, out: &mut [u8]) -> Result<(), EncodeError> {
    let version = form.version();
    let at = places(version);
    let id = match *command {
        // Their bytes 16 to 31 hold other things than an id, or less than the id says.
        Command::SetMasterKey(_) | Command::PerformScsiCommand { .. } | Command::PerformTmf { .. } => {
            Id::ROOT
        }
        _ => command.id(),
    };
    put(out, 16, &id.partition.to_be_bytes());
    put(out, 24, &id.object.to_be_bytes());
    let range = |out: &mut [u8], range: ObjectRange| {
        put(out, at.len, &range.len.to_be_bytes());
        put(out, at.start, &range.start.to_be_bytes());
    };
    if let Some(scope) = command.flush_scope() {
        out[10] |= scope as u8;
    }
    match *command {
        Command::ObjectStructureCheck(_)
        | Command::Remove(_)
        | Command::CreatePartition { .. }
        | Command::GetAttributes(_)
        | Command::SetAttributes(_)
        | Command::CreateCollection { .. }
        | Command::FlushCollection { .. }
        | Command::FlushPartition { .. }
        | Command::FlushOsd { .. }
        | Command::RemoveMemberObjects(_)
        | Command::GetMemberAttributes(_)
        | Command::SetMemberAttributes(_)
        | Command::DetachClone { .. }
        | Command::RefreshSnapshotOrClone { .. } => {}
        Command::Format { capacity } => put(out, at.len, &capacity.to_be_bytes()),
        Command::Create { count, .. } => put(out, at.len, &count.to_be_bytes()),
        Command::List(List { allocation, initial, list_id, attributes, sort, .. }) => {
            range(out, ObjectRange { start: initial, len: allocation });
            put(out, at.list_id, &list_id.to_be_bytes());
            out[11] |= list_attributes(attributes, version)? | sort & 0x0F;
        }
        Command::ListCollection(ListCollection { allocation, initial, list_id, attributes, .. }) => {
            range(out, ObjectRange { start: initial, len: allocation });
            put(out, at.list_id, &list_id.to_be_bytes());
            out[11] |= list_attributes(attributes, version)?;
        }
        Command::Punch(_, r)
        | Command::Read(_, r)
        | Command::Write(_, r)
        | Command::Clear(_, r)
        | Command::Flush { range: r, .. }
        | Command::CreateAndWrite { range: r, .. } => range(out, r),
        Command::Append { len, .. } => put(out, at.len, &len.to_be_bytes()),
        Command::RemovePartition { scope, .. } => out[11] |= scope as u8,
        Command::CopyUserObjects { method, .. } => out[14] = method,
        Command::CreateUserTrackingCollection { source, .. } => put(out, 40, &source.to_be_bytes()),
        Command::RemoveCollection { force, .. } => out[11] |= u8::from(force),
        Command::SetKey(SetKey { key, version, key_id, seed, .. }) => {
            out[11] |= key as u8;
            out[24] = version & 0x0F;
            put(out, 25, &key_id);
            put(out, 32, &seed);
        }
        Command::SetMasterKey(SetMasterKey { step, group, key_id, parameter_len, allocation }) => {
            out[11] |= step & 3;
            out[24] = group;
            put(out, 25, &key_id);
            put(out, 32, &parameter_len.to_be_bytes());
            put(out, 36, &allocation.to_be_bytes());
        }
        Command::Query { immediate, allocation, matches, .. } => {
            out[11] |= u8::from(immediate) << 7;
            range(out, ObjectRange { start: matches, len: allocation });
        }
        Command::CreateClone { source, method, .. } | Command::CreateSnapshot { source, method, .. } => {
            out[14] = method;
            put(out, 40, &source.to_be_bytes());
        }
        Command::RestorePartition { snapshot, .. } => put(out, 40, &snapshot.to_be_bytes()),
        Command::ReadMap { allocation, start, map_type, .. } => {
            range(out, ObjectRange { start, len: allocation });
            put(out, 48, &map_type.to_be_bytes());
        }
        Command::ReadMapsAndCompare { allocation, other, map_type, .. } => {
            range(out, ObjectRange { start: other, len: allocation });
            put(out, 48, &map_type.to_be_bytes());
        }
        Command::PerformScsiCommand { cdb } => put(out, 32, &cdb),
        Command::PerformTmf { allocation, function, tag } => {
            put(out, 32, &allocation.to_be_bytes());
            out[39] = function;
            put(out, 40, &tag.to_be_bytes());
        }
    }
    Ok(())
}

fn list_attributes(attributes: bool, version: Version) -> Result<u8, EncodeError> {
    match (attributes, version) {
        (true, Version::Osd1) => Err(EncodeError::NoField("attributes of listed objects")),
        (attributes, _) => Ok(u8::from(attributes) << 6),
    }
}
