//! The grant of a capability: its object, its validity, its permissions, the attributes and the
//! bytes that it is for. Owns these checks; that the capability is genuine was proved before.

use osd::attributes::numbers::{
    attributes_access, collection_security, partition_security, user_information, user_security,
};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{Needs, ObjectRange};
use osd::continuation::CopySource;
use osd::sense::function;
use osd::{Command, Id, ObjectType, Permissions, Version};
use smallvec::SmallVec;

use super::super::OsdUnit;
use super::super::attributes::Request;
use super::super::failure::Failure;
use super::super::segments::Segments;
use super::super::task::Task;
use super::{capability_field, is_security};
use crate::store::Kind;

impl OsdUnit {
    /// Whether the capability is still good, and permits the command on its object.
    pub(super) fn check_capability(&self, task: &mut Task<'_>) -> Result<(), Failure> {
        let (cdb, capability) = (task.cdb, &task.cdb.capability);
        let v2 = cdb.form.version() == Version::Osd2;
        let (tag_at, partition_at, object_at) = if v2 { (60, 72, 80) } else { (56, 60, 68) };
        if capability.expires != 0 && self.now() > capability.expires {
            return Err(capability_field(4));
        }
        if capability.boot_epoch != 0 && capability.boot_epoch != self.security.epoch {
            return Err(capability_field(64));
        }
        let Needs { mut permissions, id, object_type: kind } = cdb.command.needs();
        if capability.partition != id.partition {
            return Err(capability_field(partition_at));
        }
        // Objects that the command created count as not yet existing.
        let info = match id.object {
            0 => None,
            _ if task.created && task.has_made(id) => None,
            _ => match self.store.object(id) {
                Ok(info) => Some(info),
                Err(crate::store::Error::NotFound(_)) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let kind = kind.or_else(|| {
            info.map(|info| match info.kind {
                Kind::User => ObjectType::User,
                Kind::Collection(_) => ObjectType::Collection,
            })
        });
        // An object that is not there has no type; the capability's will do, and the command finds
        // out.
        let suits = match kind {
            Some(kind) => kind.code() == capability.object_type,
            None => [ObjectType::User, ObjectType::Collection]
                .into_iter()
                .any(|kind| kind.code() == capability.object_type),
        };
        if !suits {
            return Err(capability_field(48));
        }
        let partition_itself = matches!(kind, Some(ObjectType::Root | ObjectType::Partition));
        // A capability for object 0 is for every object of its type in the partition.
        if capability.object != id.object && (capability.object != 0 || partition_itself) {
            return Err(capability_field(object_at));
        }
        // Only a capability for every object of the partition permits to read or fill others.
        let others = others(task);
        let elsewhere = others.iter().any(|(other, _)| other.partition != id.partition);
        let any = !others.is_empty() || matches!(cdb.command, Command::CopyUserObjects { .. });
        if any && (capability.object != 0 || elsewhere) {
            return Err(capability_field(object_at));
        }
        if capability.created != 0 {
            let created = if id.object == 0 {
                self.store.times(Id::partition(id.partition)).map(|times| times.created).ok()
            } else {
                info.map(|info| info.times.created)
            };
            if created != Some(capability.created) {
                return Err(capability_field(42));
            }
        }
        if capability.policy_tag != 0 {
            let wanted = Some(u64::from(capability.policy_tag));
            let mut is_wanted = self.policy_tag(id, kind, info.is_some())? == wanted;
            for (other, kind) in others {
                is_wanted &= self.policy_tag(other, Some(kind), true)? == wanted;
            }
            if !is_wanted {
                return Err(capability_field(tag_at));
            }
        }
        // A copy of attributes gets and sets them. With the policy access tag it sets security,
        // unless the partition has a tag for new objects, which takes its place.
        for source in copy_sources(task).filter(|source| source.attributes) {
            permissions |= Permissions::GET_ATTR | Permissions::SET_ATTR;
            let partition = Id::partition(id.partition);
            if self.stored_number(source.id, user_security::POLICY_TAG)?.is_some()
                && self.stored_number(partition, partition_security::OBJECT_POLICY_TAG)?.is_none()
            {
                permissions |= Permissions::POL_SEC;
            }
        }
        if !capability.permissions.contains(permissions) {
            return Err(capability_field(49));
        }
        task.progress.done(function::COMMAND_CAPABILITY);
        // Retrieval is checked once the lists are there; the command's own attributes are open to
        // all.
        if cdb.attributes.sets() && !capability.permissions.contains(Permissions::SET_ATTR) {
            return Err(capability_field(49));
        }
        let allowed = ObjectRange { start: capability.range_start, len: capability.range_len };
        if (allowed.start, allowed.len) != (0, 0) && !within(task, allowed) {
            return Err(capability_field(88));
        }
        Ok(())
    }

    /// The policy access tag of the object at `id`; of one that does not exist, its partition's.
    fn policy_tag(&self, id: Id, kind: Option<ObjectType>, there: bool) -> Result<Option<u64>, Failure> {
        if id.object != 0 && !there {
            return self.stored_number(Id::partition(id.partition), partition_security::POLICY_TAG);
        }
        let attribute = match kind {
            Some(ObjectType::User) if id.object != 0 => user_security::POLICY_TAG,
            Some(ObjectType::Collection) if id.object != 0 => collection_security::POLICY_TAG,
            _ => partition_security::POLICY_TAG,
        };
        self.stored_number(id, attribute)
    }

    /// Whether the attributes that a command names may be got and set by its capability; to be
    /// called when its lists have been taken.
    pub(in super::super) fn check_attributes(&self, task: &Task<'_>) -> Result<(), Failure> {
        if task.proof.is_none() {
            return Ok(());
        }
        let capability = &task.cdb.capability;
        if !capability.permissions.contains(Permissions::POL_SEC)
            && let Some(setting) =
                task.parameters.set.iter().find(|setting| decides_access(setting.attribute.page))
        {
            return Err(capability_field(49).about(setting.attribute));
        }
        // Cutting an object off changes what lies behind the range.
        if (capability.range_start, capability.range_len) != (0, 0)
            && task.parameters.set.iter().any(|setting| setting.attribute == user_information::LOGICAL_LENGTH)
        {
            return Err(capability_field(88).about(user_information::LOGICAL_LENGTH));
        }
        let page = |page: &Page| AttributeId::new(*page, AttributeId::ALL);
        let got: Vec<AttributeId> = match &task.parameters.get {
            Request::Nothing => Vec::new(),
            Request::Page(wanted) => vec![page(wanted)],
            Request::List(list) => list.clone(),
        };
        let of_object = |wanted: &&AttributeId| wanted.page != Page::CURRENT_COMMAND;
        if !capability.permissions.contains(Permissions::GET_ATTR)
            && let Some(wanted) = got.iter().find(of_object)
        {
            return Err(capability_field(49).about(*wanted));
        }
        if capability.allowed_attributes == 0 {
            return Ok(());
        }
        let mut list = Vec::new();
        let partition = Id::partition(capability.partition);
        self.store.attribute(
            partition,
            attributes_access::PAGE.0,
            capability.allowed_attributes,
            &mut list,
        )?;
        let allowed = |wanted: AttributeId| {
            list.chunks_exact(8).any(|pair| {
                let pair = osd::attributes::number(pair);
                let (page, number) = ((pair >> 32) as u32, pair as u32); // both halves
                (page == Page::ALL.0 || page == wanted.page.0)
                    && (number == AttributeId::ALL || number == wanted.number)
            })
        };
        let set = task.parameters.set.iter().map(|setting| setting.attribute);
        // A match reveals an object's attributes.
        let asked = task.descriptors.iter().flat_map(|descriptor| match descriptor {
            osd::continuation::Descriptor::Query(query) => query.criteria.as_slice(),
            _ => &[],
        });
        let asked = asked.map(|criterion| criterion.attribute);
        // A copy of attributes is of all of them.
        let copied = copy_sources(task).filter(|source| source.attributes);
        let copied = copied.map(|_| AttributeId::new(Page::ALL, AttributeId::ALL));
        let mut used = got.into_iter().chain(set).chain(asked).chain(copied);
        match used.find(|wanted| of_object(&wanted) && !allowed(*wanted)) {
            Some(wanted) => Err(capability_field(56).about(wanted)),
            None => Ok(()),
        }
    }
}

/// Whether setting attributes of a page decides about others' access: the Policy/Security pages,
/// and the lists that capabilities name.
fn decides_access(page: Page) -> bool {
    is_security(page) || page == attributes_access::PAGE
}

/// The sources of a COPY USER OBJECTS.
pub(super) fn copy_sources<'t>(task: &'t Task<'_>) -> impl Iterator<Item = &'t CopySource> {
    task.descriptors.iter().filter_map(|descriptor| match descriptor {
        osd::continuation::Descriptor::CopySource(source) => Some(source),
        _ => None,
    })
}

/// Objects that a command reads or fills besides its own, and their types.
fn others(task: &Task<'_>) -> SmallVec<[(Id, ObjectType); 1]> {
    let id = task.cdb.command.id();
    let collection = match task.cdb.command {
        Command::CreateUserTrackingCollection { source, .. } => source,
        Command::Query { matches, .. } if matches != id.object => matches,
        _ => 0,
    };
    let collection = (collection != 0).then(|| (Id::new(id.partition, collection), ObjectType::Collection));
    copy_sources(task).map(|source| (source.id, ObjectType::User)).chain(collection).collect()
}

/// Whether a command touches data within `allowed` only. One that touches data at a place that is
/// not known before does not.
fn within(task: &Task<'_>, allowed: ObjectRange) -> bool {
    let inside = |range: ObjectRange| {
        let end = allowed.start.saturating_add(allowed.len);
        range.start >= allowed.start && range.start.checked_add(range.len).is_some_and(|last| last <= end)
    };
    match task.cdb.command {
        Command::Read(_, range)
        | Command::Write(_, range)
        | Command::Clear(_, range)
        | Command::CreateAndWrite { range, .. } => match Segments::of(task, range) {
            Ok(segments) => segments.iter().all(inside),
            Err(_) => false,
        },
        // A PUNCH moves the bytes behind it, and an APPEND's place is not known; a copy is of
        // everything.
        Command::Punch(..) | Command::Append { .. } | Command::CopyUserObjects { .. } => false,
        _ => true,
    }
}
