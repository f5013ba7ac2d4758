//! FLUSH, FLUSH COLLECTION, FLUSH PARTITION, FLUSH OSD: bring acknowledged changes to the medium. A
//! store may do more than a scope asks for, never less.

use osd::Id;
use osd::cdb::FlushScope;

use super::failure::Failure;
use super::task::{Task, Touch};
use crate::store::Scope;

/// FLUSH of a user object: data and attributes, or attributes only.
pub(super) async fn object(task: &mut Task<'_>, id: Id, scope: FlushScope) -> Result<(), Failure> {
    task.unit.user_object(id)?;
    let scope = match scope {
        FlushScope::Attributes => Scope::Attributes(id),
        FlushScope::Contents | FlushScope::RangeOrAll => Scope::Object(id),
    };
    flush(task, id, scope).await
}

/// FLUSH COLLECTION: the list of members, attributes, or the members too.
pub(super) async fn collection(task: &mut Task<'_>, id: Id, scope: FlushScope) -> Result<(), Failure> {
    task.unit.collection(id)?;
    let scope = match scope {
        FlushScope::Contents => Scope::Object(id),
        FlushScope::Attributes => Scope::Attributes(id),
        // Its members are of its partition.
        FlushScope::RangeOrAll => Scope::Partition(id.partition),
    };
    flush(task, id, scope).await
}

/// FLUSH PARTITION: its list of objects, its attributes, or everything in it.
pub(super) async fn partition(task: &mut Task<'_>, partition: u64, scope: FlushScope) -> Result<(), Failure> {
    task.unit.store.partition(partition)?;
    let id = Id::partition(partition);
    let scope = match scope {
        FlushScope::Attributes => Scope::Attributes(id),
        FlushScope::Contents | FlushScope::RangeOrAll => Scope::Partition(partition),
    };
    flush(task, id, scope).await
}

/// FLUSH OSD: the list of partitions, attributes, or everything.
pub(super) async fn osd(task: &mut Task<'_>, scope: FlushScope) -> Result<(), Failure> {
    let scope = match scope {
        FlushScope::Attributes => Scope::Attributes(Id::ROOT),
        FlushScope::Contents | FlushScope::RangeOrAll => Scope::All,
    };
    flush(task, Id::ROOT, scope).await
}

async fn flush(task: &mut Task<'_>, id: Id, scope: Scope) -> Result<(), Failure> {
    task.inspect(id, Touch::READ_ALL, async |task| task.sync(scope).await).await
}
