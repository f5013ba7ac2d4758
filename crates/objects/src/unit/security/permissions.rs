//! What a capability has to permit for each command, and which object it has to be for.

use osd::cdb::{KeyToSet, RemoveScope};
use osd::{Command, Id, ObjectType, Permissions};

/// What a command needs of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// Permissions for the command itself; attributes come on top.
    pub permissions: Permissions,
    /// The object that the capability has to be for. Object 0 with a type below a partition's is an object that does not
    /// exist yet, or every one.
    pub id: Id,
    /// Its type; `None` where the object says.
    pub kind: Option<ObjectType>,
}

/// Whose key signs the capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    /// The master key.
    Master,
    /// The root key.
    Root,
    /// The partition key of this partition.
    Partition(u64),
    /// The working key of the capability's partition that its KEY VERSION names.
    Working,
}

/// Whose key has to sign the capability of `command`.
pub(super) const fn signer(command: &Command) -> Signer {
    match command {
        Command::SetMasterKey(_) => Signer::Master,
        Command::SetKey(set) => match set.key {
            KeyToSet::Root => Signer::Master,
            KeyToSet::Partition => Signer::Root,
            KeyToSet::Working => Signer::Partition(set.partition),
        },
        _ => Signer::Working,
    }
}

/// What `command` needs.
pub(super) fn needs(command: &Command) -> Needs {
    use Permissions as P;
    let id = command.id();
    let root = |permissions| Needs { permissions, id: Id::ROOT, kind: Some(ObjectType::Root) };
    let of = |permissions| Needs { permissions, id, kind: command.object_type() };
    // What does not exist yet has no capability of its own: that of whatever it is created in counts.
    let new = |partition, permissions| Needs {
        permissions,
        id: Id::new(partition, 0),
        kind: command.object_type(),
    };
    match *command {
        Command::Format { .. } => root(P::OBJ_MGMT | P::GLOBAL),
        Command::SetMasterKey(_) => root(P::DEV_MGMT | P::POL_SEC | P::GLOBAL),
        Command::SetKey(set) => {
            let kind = if set.partition == 0 { ObjectType::Root } else { ObjectType::Partition };
            let id = Id::partition(set.partition);
            Needs { permissions: P::DEV_MGMT | P::POL_SEC, id, kind: Some(kind) }
        }
        Command::PerformScsiCommand { .. } | Command::PerformTmf { .. } => root(P::DEV_MGMT | P::GLOBAL),
        Command::FlushOsd { .. } => root(P::OBJ_MGMT),
        // What lies in another partition is nothing that a capability of this one is for.
        Command::ReadMapsAndCompare { other, .. } if other != id.partition => root(P::DEV_MGMT),
        Command::ObjectStructureCheck(_) | Command::ReadMap { .. } | Command::ReadMapsAndCompare { .. } => {
            of(P::DEV_MGMT)
        }
        Command::CreatePartition { .. } => root(P::CREATE),
        Command::CreateClone { .. } | Command::CreateSnapshot { .. } => root(P::CREATE | P::READ | P::WRITE),
        Command::DetachClone { .. } => of(P::WRITE),
        // They read another partition than the one they write: nothing below the root permits both.
        Command::RefreshSnapshotOrClone { .. } | Command::RestorePartition { .. } => root(P::READ | P::WRITE),
        Command::RemovePartition { scope: RemoveScope::Empty, .. } => of(P::REMOVE),
        Command::RemovePartition { .. } => of(P::REMOVE | P::GBL_REM),
        Command::List(list) if list.attributes => of(P::READ | P::M_OBJECT | P::GET_ATTR),
        Command::ListCollection(list) if list.attributes => of(P::READ | P::M_OBJECT | P::GET_ATTR),
        Command::List(_) | Command::ListCollection(_) | Command::Read(..) => of(P::READ),
        Command::Punch(..) | Command::Write(..) | Command::Clear(..) => of(P::WRITE),
        Command::Append { .. } => of(P::APPEND),
        Command::Flush { .. } | Command::FlushCollection { .. } | Command::FlushPartition { .. } => {
            of(P::OBJ_MGMT)
        }
        Command::Create { partition, requested: 0, .. } => new(partition, P::CREATE),
        Command::CreateAndWrite { partition, requested: 0, .. } => new(partition, P::CREATE | P::WRITE),
        Command::CreateAndWrite { .. } => of(P::CREATE | P::WRITE),
        Command::CopyUserObjects { .. } | Command::CreateUserTrackingCollection { .. } => {
            of(P::CREATE | P::READ | P::WRITE)
        }
        Command::Create { .. } | Command::CreateCollection { .. } => of(P::CREATE),
        Command::Remove(_) | Command::RemoveCollection { .. } => of(P::REMOVE),
        Command::GetAttributes(_) => of(P::GET_ATTR),
        Command::SetAttributes(_) => of(P::SET_ATTR),
        // Matches that are put into a collection change it.
        Command::Query { matches: 0, .. } => of(P::QUERY),
        Command::Query { .. } => of(P::QUERY | P::WRITE),
        Command::RemoveMemberObjects(_) => of(P::REMOVE | P::M_OBJECT),
        Command::GetMemberAttributes(_) => of(P::GET_ATTR | P::M_OBJECT),
        Command::SetMemberAttributes(_) => of(P::SET_ATTR | P::M_OBJECT),
    }
}
