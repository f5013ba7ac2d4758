//! The table of OSD commands. A row has a command's name, its own fields and its service actions.
//! It also has the properties that the readers of the table need: the type of its object, its
//! effect, its partitions, the permissions required of its capability, and the length of its own
//! data. [`Action`], [`Command`], encoding and decoding come from it.

use super::command::{At, Field, MAP_TYPE, METHOD, OBJECT, PARTITION, SOURCE};
use super::{
    Allocation, Body, CdbError, EncodeError, FlushScope, KeyToSet, List, ListCollection, ObjectRange,
    RemoveScope, SetKey, SetMasterKey, StructureScope,
};
use crate::{Id, ObjectType, Permissions as P, Version};
use Bearer::{Addressed, Own, Parent, TheRoot};
use Effect::{Changes, Creates, Keeps, Looks, Sets};
use ObjectType::{Collection, Partition, Root, User};
use Sharing::{Alone, Everything, Many, Nothing, Shared};

/// Effect of a command on the unit's content, apart from the attributes that it also sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It reads.
    Looks,
    /// It does more than read, but changes nothing itself.
    Keeps,
    /// It sets something, and is idempotent.
    Sets,
    /// It changes something.
    Changes,
    /// It creates objects.
    Creates,
}

/// Partitions that a command needs exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// It touches no partition.
    Nothing,
    /// None.
    Shared,
    /// None, unless it is strictly isolated: it goes through many objects.
    Many,
    /// Its partition, and the one that it reads.
    Alone,
    /// All of them.
    Everything,
}

/// Object and permissions that a command requires of its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Permissions for the command itself; those for attributes come on top.
    pub permissions: P,
    /// The object that the capability has to be for. Object 0 with a type below a partition's is an
    /// object that does not exist yet, or every one.
    pub id: Id,
    /// The object's type; `None` where only the unit knows it.
    pub object_type: Option<ObjectType>,
}

/// The object that a capability has to be for.
#[derive(Clone, Copy)]
enum Bearer {
    TheRoot,
    /// The command's own.
    Own,
    /// The partition that a new object is created in.
    Parent,
    /// The root or the partition that the command addresses.
    Addressed,
}

/// A command's row of the table.
struct Row {
    object_type: Option<ObjectType>,
    effect: Effect,
    sharing: Sharing,
    needs: (Bearer, P),
    data_out: u64,
    data_in: u64,
}

macro_rules! at {
    () => {
        At::Own
    };
    ($at:expr) => {
        $at
    };
}

macro_rules! osd1 {
    (-) => {
        None
    };
    ($code:literal) => {
        Some($code)
    };
}

/// A row: "NAME" and fields, each with its position unless its type determines it; `=` the service
/// actions of OSD-1 and OSD-2; object type, effect, sharing, capability; `data_out` and `data_in`,
/// in bytes.
macro_rules! commands {
    ($(
        $text:literal $name:ident
        $( ( $($t:ident : $tty:ty $(= $tat:expr)?),* ) )?
        $( { $($s:ident : $sty:ty $(= $sat:expr)?),* } )?
        = $osd1:tt, $osd2:literal, $object:expr, $effect:expr, $sharing:expr, $needs:expr
        $(, data_out $out:expr)? $(, data_in $in:expr)?;
    )*) => {
        /// An OSD command, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Action {
            $(#[doc = concat!($text, ".")] $name,)*
        }

        impl Action {
            /// All of them, by OSD-2's codes.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// SERVICE ACTION in `version`; `None` for a command that OSD-1 does not have.
            pub const fn code(self, version: Version) -> Option<u16> {
                match (self, version) {
                    $(
                        (Self::$name, Version::Osd1) => osd1!($osd1),
                        (Self::$name, Version::Osd2) => Some($osd2),
                    )*
                }
            }

            /// The standard's name of the command.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        /// A command and its own fields.
        ///
        /// `requested` ids are 0 where the unit is to choose. Objects are addressed by [`Id`] where
        /// both ids are meant.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "fields have the standard's names")]
        pub enum Command {
            $(#[doc = concat!($text, ".")] $name $( ( $($tty),* ) )? $( { $($s: $sty),* } )?,)*
        }

        impl Command {
            /// The command's service action.
            pub const fn action(&self) -> Action {
                match self { $(Self::$name { .. } => Action::$name,)* }
            }

            /// Object that bytes 16 to 31 address, or its partition if the requested id leaves the
            /// choice to the unit.
            #[inline]
            pub fn id(&self) -> Id {
                let mut id = Id::ROOT;
                match *self {
                    $(Self::$name $( ( $($t),* ) )? $( { $($s),* } )? => {
                        $( $( $t.address(at!($($tat)?), &mut id); )* )?
                        $( $( $s.address(at!($($sat)?), &mut id); )* )?
                    })*
                }
                id
            }

            #[inline]
            #[allow(unused_variables, reason = "a row decides by few of its fields")]
            fn row(&self) -> Row {
                match *self {
                    $(Self::$name $( ( $($t),* ) )? $( { $($s),* } )? => Row {
                        object_type: $object,
                        effect: $effect,
                        sharing: $sharing,
                        needs: $needs,
                        data_out: 0 $(+ $out)?,
                        data_in: 0 $(+ $in)?,
                    },)*
                }
            }
        }

        /// The command and its fields.
        pub(super) fn decode(action: Action, body: &Body<'_>) -> Result<Command, CdbError> {
            Ok(match action {
                $(Action::$name => Command::$name
                    $( ( $(<$tty>::get(body, at!($($tat)?))?),* ) )?
                    $( { $($s: <$sty>::get(body, at!($($sat)?))?),* } )?,)*
            })
        }

        /// Writes the command's fields; `out` holds the whole CDB.
        pub(super) fn encode(command: &Command, version: Version, out: &mut [u8]) -> Result<(), EncodeError> {
            match *command {
                $(Command::$name $( ( $($t),* ) )? $( { $($s),* } )? => {
                    $( $( $t.put(at!($($tat)?), version, out)?; )* )?
                    $( $( $s.put(at!($($sat)?), version, out)?; )* )?
                })*
            }
            Ok(())
        }
    };
}

// No open source shows the position of a source or of another partition in these commands. They are
// at the position of CREATE USER TRACKING COLLECTION's source.
commands! {
    "OBJECT STRUCTURE CHECK" ObjectStructureCheck(scope: StructureScope) = -, 0x8880,
        addressed(scope.id()), Keeps, if scope == StructureScope::Root { Shared } else { Alone },
        (Own, P::DEV_MGMT);
    "FORMAT OSD" Format { capacity: u64 = At::Len } = 0x8801, 0x8881,
        Some(Root), Changes, Everything, (TheRoot, P::OBJ_MGMT | P::GLOBAL);
    "CREATE" Create { partition: u64 = PARTITION, requested: u64 = OBJECT, count: u16 = At::Len }
        = 0x8802, 0x8882,
        Some(User), Creates, if count > 1 { Many } else { Shared }, (new(requested), P::CREATE);
    "LIST" List(list: List) = 0x8803, 0x8883,
        addressed(Id::partition(list.partition)), Looks, Many,
        (Own, listing(list.attributes)), data_in list.allocation;
    "PUNCH" Punch(id: Id, range: ObjectRange) = -, 0x8884,
        Some(User), Changes, Shared, (Own, P::WRITE);
    "READ" Read(id: Id, range: ObjectRange) = 0x8805, 0x8885,
        Some(User), Looks, Shared, (Own, P::READ), data_in range.len;
    "WRITE" Write(id: Id, range: ObjectRange) = 0x8806, 0x8886,
        Some(User), Sets, Shared, (Own, P::WRITE), data_out range.len;
    "APPEND" Append { id: Id, len: u64 = At::Len } = 0x8807, 0x8887,
        Some(User), Changes, Shared, (Own, P::APPEND), data_out len;
    "FLUSH" Flush { id: Id, scope: FlushScope, range: ObjectRange } = 0x8808, 0x8888,
        Some(User), Keeps, Shared, (Own, P::OBJ_MGMT);
    "CLEAR" Clear(id: Id, range: ObjectRange) = -, 0x8889,
        Some(User), Sets, Shared, (Own, P::WRITE);
    "REMOVE" Remove(id: Id) = 0x880A, 0x888A,
        Some(User), Changes, Shared, (Own, P::REMOVE);
    "CREATE PARTITION" CreatePartition { requested: u64 = PARTITION } = 0x880B, 0x888B,
        Some(Partition), Creates, Shared, (TheRoot, P::CREATE);
    "REMOVE PARTITION" RemovePartition { partition: u64 = PARTITION, scope: RemoveScope } = 0x880C, 0x888C,
        Some(Partition), Changes, Alone,
        (Own, if scope == RemoveScope::Empty { P::REMOVE } else { P::REMOVE | P::GBL_REM });
    "GET ATTRIBUTES" GetAttributes(id: Id) = 0x880E, 0x888E,
        addressed(id), Looks, Shared, (Own, P::GET_ATTR);
    "SET ATTRIBUTES" SetAttributes(id: Id) = 0x880F, 0x888F,
        addressed(id), Sets, Shared, (Own, P::SET_ATTR);
    "CREATE AND WRITE"
        CreateAndWrite { partition: u64 = PARTITION, requested: u64 = OBJECT, range: ObjectRange }
        = 0x8812, 0x8892,
        Some(User), Creates, Shared, (new(requested), P::CREATE | P::WRITE), data_out range.len;
    // The source is in the CDB continuation.
    "COPY USER OBJECTS"
        CopyUserObjects { partition: u64 = PARTITION, requested: u64 = OBJECT, method: u8 = METHOD }
        = -, 0x8893,
        Some(User), Creates, Shared, (Own, P::CREATE | P::READ | P::WRITE);
    "CREATE USER TRACKING COLLECTION"
        CreateUserTrackingCollection { partition: u64 = PARTITION, requested: u64 = OBJECT, source: u64 = SOURCE }
        = -, 0x8894,
        Some(Collection), Creates, Many, (Own, P::CREATE | P::READ | P::WRITE);
    "CREATE COLLECTION" CreateCollection { partition: u64 = PARTITION, requested: u64 = OBJECT }
        = 0x8815, 0x8895,
        Some(Collection), Creates, Shared, (Own, P::CREATE);
    // With `force` even one with members, which stay as objects.
    "REMOVE COLLECTION" RemoveCollection { id: Id, force: bool = At::Bit(0) } = 0x8816, 0x8896,
        Some(Collection), Changes, Shared, (Own, P::REMOVE);
    "LIST COLLECTION" ListCollection(list: ListCollection) = 0x8817, 0x8897,
        Some(if list.id.object == 0 { Partition } else { Collection }), Looks, Many,
        (Own, listing(list.attributes)), data_in list.allocation;
    "SET KEY" SetKey(set: SetKey) = 0x8818, 0x8898,
        Some(if set.key == KeyToSet::Root { Root } else { Partition }), Changes, Shared,
        (Addressed, P::DEV_MGMT | P::POL_SEC);
    "SET MASTER KEY" SetMasterKey(set: SetMasterKey) = 0x8819, 0x8899,
        Some(Root), Changes, Shared, (TheRoot, P::DEV_MGMT | P::POL_SEC | P::GLOBAL),
        data_out u64::from(set.parameter_len), data_in u64::from(set.allocation);
    "FLUSH COLLECTION" FlushCollection { id: Id, scope: FlushScope } = 0x881A, 0x889A,
        Some(Collection), Keeps, Shared, (Own, P::OBJ_MGMT);
    "FLUSH PARTITION" FlushPartition { partition: u64 = PARTITION, scope: FlushScope } = 0x881B, 0x889B,
        Some(Partition), Keeps, Shared, (Own, P::OBJ_MGMT);
    "FLUSH OSD" FlushOsd { scope: FlushScope } = 0x881C, 0x889C,
        Some(Root), Keeps, Shared, (TheRoot, P::OBJ_MGMT);
    // The query list is in the CDB continuation. Object 0 means all user objects of the partition.
    // With `immediate` the command ends before the search does. Matches that are put into a
    // collection change it.
    "QUERY"
        Query { id: Id, immediate: bool = At::Bit(7), allocation: Allocation = At::Len, matches: u64 = At::Start }
        = -, 0x88A0,
        Some(Collection), if matches == 0 { Keeps } else { Changes }, Many,
        (Own, if matches == 0 { P::QUERY } else { P::QUERY | P::WRITE }), data_in allocation;
    "REMOVE MEMBER OBJECTS" RemoveMemberObjects(id: Id) = -, 0x88A1,
        Some(Collection), Changes, Many, (Own, P::REMOVE | P::M_OBJECT);
    "GET MEMBER ATTRIBUTES" GetMemberAttributes(id: Id) = -, 0x88A2,
        Some(Collection), Looks, Many, (Own, P::GET_ATTR | P::M_OBJECT);
    "SET MEMBER ATTRIBUTES" SetMemberAttributes(id: Id) = -, 0x88A3,
        Some(Collection), Sets, Many, (Own, P::SET_ATTR | P::M_OBJECT);
    "CREATE CLONE" CreateClone { requested: u64 = PARTITION, source: u64 = SOURCE, method: u8 = METHOD }
        = -, 0x88A8,
        Some(Partition), Creates, Alone, (TheRoot, P::CREATE | P::READ | P::WRITE);
    "CREATE SNAPSHOT"
        CreateSnapshot { requested: u64 = PARTITION, source: u64 = SOURCE, method: u8 = METHOD } = -, 0x88A9,
        Some(Partition), Creates, Alone, (TheRoot, P::CREATE | P::READ | P::WRITE);
    "DETACH CLONE" DetachClone { partition: u64 = PARTITION } = -, 0x88AA,
        Some(Partition), Changes, Alone, (Own, P::WRITE);
    // They read another partition than the one they write: nothing below the root permits both.
    "REFRESH SNAPSHOT OR CLONE" RefreshSnapshotOrClone { partition: u64 = PARTITION } = -, 0x88AB,
        Some(Partition), Changes, Alone, (TheRoot, P::READ | P::WRITE);
    "RESTORE PARTITION FROM SNAPSHOT"
        RestorePartition { partition: u64 = PARTITION, snapshot: u64 = SOURCE } = -, 0x88AC,
        Some(Partition), Changes, Alone, (TheRoot, P::READ | P::WRITE);
    "READ MAP"
        ReadMap { id: Id, allocation: Allocation = At::Len, start: u64 = At::Start, map_type: u16 = MAP_TYPE }
        = -, 0x88B1,
        Some(User), Looks, Shared, (Own, P::DEV_MGMT), data_in allocation;
    // Compares an object with the object of the same id in the partition `other`. A capability of
    // this partition permits nothing in another one.
    "READ MAPS AND COMPARE"
        ReadMapsAndCompare { id: Id, allocation: Allocation = At::Len, other: u64 = SOURCE, map_type: u16 = MAP_TYPE }
        = -, 0x88B2,
        Some(User), Looks, Shared,
        (if other == id.partition { Own } else { TheRoot }, P::DEV_MGMT), data_in allocation;
    // Its CDB has 16 bytes, with zeros behind its own.
    "PERFORM SCSI COMMAND" PerformScsiCommand { cdb: [u8; 16] = At::Byte(32) } = 0x8F7E, 0x8F7C,
        Some(Root), Keeps, Shared, (TheRoot, P::DEV_MGMT | P::GLOBAL);
    "PERFORM TASK MANAGEMENT FUNCTION"
        PerformTmf { allocation: u16 = At::Byte(32), function: u8 = At::Byte(39), tag: u64 = At::Byte(40) }
        = 0x8F7F, 0x8F7D,
        Some(Root), Looks, Nothing, (TheRoot, P::DEV_MGMT | P::GLOBAL), data_in u64::from(allocation);
}

/// Object type that an id alone determines: the id of GET ATTRIBUTES and SET ATTRIBUTES may be a
/// user object's or a collection's.
fn addressed(id: Id) -> Option<ObjectType> {
    match id {
        Id::ROOT => Some(Root),
        Id { object: 0, .. } => Some(Partition),
        _ => None,
    }
}

/// Bearer of the capability for a created object. One with an id of the unit's choice has no
/// capability of its own, so its parent's counts.
const fn new(requested: u64) -> Bearer {
    if requested == 0 { Parent } else { Own }
}

fn listing(attributes: bool) -> P {
    if attributes { P::READ | P::M_OBJECT | P::GET_ATTR } else { P::READ }
}

impl Command {
    /// Type of the command's object. `None` where only the unit knows: an object id of GET
    /// ATTRIBUTES and SET ATTRIBUTES is a user object's or a collection's.
    #[inline]
    pub fn object_type(&self) -> Option<ObjectType> {
        self.row().object_type
    }

    /// Effect on the unit's content.
    #[inline]
    pub fn effect(&self) -> Effect {
        self.row().effect
    }

    /// Partitions that it needs exclusively.
    #[inline]
    pub fn sharing(&self) -> Sharing {
        self.row().sharing
    }

    /// Bytes of Data-Out for the command's own data. Continuation and attributes come on top.
    #[inline]
    pub fn data_out_len(&self) -> u64 {
        self.row().data_out
    }

    /// Bytes of Data-In that the command itself may fill: its length or allocation length.
    /// Attributes come on top.
    #[inline]
    pub fn data_in_len(&self) -> u64 {
        self.row().data_in
    }

    /// Object and permissions that it requires of its capability.
    pub fn needs(&self) -> Needs {
        let Row { needs: (bearer, permissions), object_type, .. } = self.row();
        let id = self.id();
        let (id, object_type) = match bearer {
            TheRoot => (Id::ROOT, Some(Root)),
            Own => (id, object_type),
            Parent => (Id::partition(id.partition), object_type),
            Addressed => (id, addressed(id)),
        };
        Needs { permissions, id, object_type }
    }

    /// The partition that a new or a restored one gets its content from.
    pub const fn source(&self) -> Option<u64> {
        match *self {
            Self::CreateClone { source, .. } | Self::CreateSnapshot { source, .. } => Some(source),
            Self::RestorePartition { snapshot, .. } => Some(snapshot),
            _ => None,
        }
    }

    /// SET KEY and SET MASTER KEY.
    pub const fn sets_keys(&self) -> bool {
        matches!(self, Self::SetKey(_) | Self::SetMasterKey(_))
    }

    /// LIST and LIST COLLECTION with LIST_ATTR: attributes are put into the list.
    pub(crate) const fn lists_attributes(&self) -> bool {
        matches!(
            self,
            Self::List(List { attributes: true, .. })
                | Self::ListCollection(ListCollection { attributes: true, .. })
        )
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

    /// Whether bytes 48 to 51 are a CDB CONTINUATION LENGTH: in OSD-2, where nothing else stands
    /// there.
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
}
