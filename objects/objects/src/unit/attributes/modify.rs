//! Setting attributes: checks attributes and values, and makes the steps of the change. Owns the
//! rules of the standard's pages; applies nothing.

use std::collections::HashMap;

use osd::attributes::numbers::{
    PAGE_ID_LEN, attributes_access, collection_information, collections, partition_information,
    partition_quotas, root_information, root_quotas, timestamps, user_information,
};
use osd::attributes::{AttributeId, Page, PageKind};
use osd::sense::function;
use osd::{Id, ObjectType};

use super::super::OsdUnit;
use super::super::failure::Failure;
use super::super::limits::MAX_COLLECTIONS;
use super::super::policy::BYPASS;
use super::super::subject::{Info, Subject};
use super::super::task::Task;
use super::Setting;
use super::value::{Memberships, quota_len};
use crate::store::{Applied, Change, Kind, Step, TimesUpdate};

/// The steps after a change was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Effects {
    /// Quotas or the manner of timestamps have changed.
    pub policy: bool,
}

impl Task<'_> {
    /// Adds what the command sets of the object at `id` to `change`, applies it, and sees to what
    /// follows from it: the step that most commands end their function with.
    pub(crate) async fn apply_with_attributes(
        &mut self,
        id: Id,
        of_type: ObjectType,
        mut change: Change,
    ) -> Result<Applied, Failure> {
        let mut effects = Effects::default();
        self.add_settings(id, of_type, &mut change, &mut effects)?;
        let applied = self.apply(change).await?;
        self.settings_applied(effects);
        Ok(applied)
    }

    /// Adds the steps of what the command sets of the object at `id` to `change`.
    pub(crate) fn add_settings(
        &mut self,
        id: Id,
        of_type: ObjectType,
        change: &mut Change,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        if self.parameters.set.is_empty() {
            return Ok(());
        }
        self.progress.begin(function::SET_ATTRIBUTES);
        self.unit.modify(id, of_type, &self.parameters.set, change, effects)?;
        let times = TimesUpdate { attributes_modified: Some(self.now), ..TimesUpdate::default() };
        self.set_times(id, times, change)
    }

    /// Notes that the command's settings have been applied.
    pub(crate) fn settings_applied(&mut self, effects: Effects) {
        if !self.parameters.set.is_empty() {
            self.progress.done(function::SET_ATTRIBUTES);
        }
        if effects.policy {
            self.unit.policies.forget();
        }
    }
}

impl OsdUnit {
    /// Adds the steps that set `settings` of the object at `id`, which may be one that the change
    /// creates, to `change`.
    pub(in super::super) fn modify(
        &self,
        id: Id,
        of_type: ObjectType,
        settings: &[Setting],
        change: &mut Change,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let mut joined = Joined::default();
        for setting in settings {
            let AttributeId { page, number } = setting.attribute;
            if number == AttributeId::ALL || !page.suits(of_type) || page == Page::CURRENT_COMMAND {
                return Err(setting.refuse(false));
            }
            match page.kind() {
                PageKind::Of { number: 0..=0x7F, .. } => {
                    self.modify_standard(id, of_type, setting, change, effects, &mut joined)?;
                }
                _ if page.is_free() => {
                    // A page's identification has one length.
                    if number == 0 && !matches!(setting.value.len(), 0 | PAGE_ID_LEN) {
                        return Err(setting.refuse(true));
                    }
                    change.set_attribute(id, page.0, number, &setting.value);
                }
                _ => return Err(setting.refuse(false)),
            }
        }
        Ok(())
    }

    fn modify_standard(
        &self,
        id: Id,
        of_type: ObjectType,
        setting: &Setting,
        change: &mut Change,
        effects: &mut Effects,
        joined: &mut Joined,
    ) -> Result<(), Failure> {
        let attribute = setting.attribute;
        let len = setting.value.len();
        let keep = |change: &mut Change| {
            change.set_attribute(id, attribute.page.0, attribute.number, &setting.value);
        };
        match attribute {
            root_information::OSD_NAME
            | partition_information::NAME
            | collection_information::NAME
            | user_information::NAME => keep(change),
            user_information::LOGICAL_LENGTH => {
                let length = number_of(setting, 8)?;
                let info = self.store.object(id).ok();
                // A quota that was set just before holds already.
                let grows = info.is_none_or(|info| length > info.length);
                let checked = match joined.max_length {
                    Some(max) if grows && length > max => Err(Failure::quota()),
                    Some(_) => Ok(()),
                    None => self.check_length(id, info.as_ref(), length),
                };
                checked.map_err(|f| f.about(attribute))?;
                change.push(Step::SetLength { id, length });
            }
            AttributeId { page: collections::PAGE, number: collections::FIRST..=collections::LAST } => {
                self.modify_membership(id, setting, change, joined)?;
            }
            AttributeId { page: attributes_access::PAGE, number: 1.. } => {
                // Pairs of a page and a number.
                if len % 8 != 0 {
                    return Err(setting.refuse(true));
                }
                keep(change);
            }
            AttributeId { number: timestamps::BYPASS, page }
                if page == timestamps::page(of_type)
                    && matches!(of_type, ObjectType::Root | ObjectType::Partition) =>
            {
                if !matches!(setting.value.as_slice(), [] | [0 | BYPASS]) {
                    return Err(setting.refuse(true));
                }
                effects.policy = true;
                keep(change);
            }
            attribute => match quota_len(attribute) {
                Some(quota) => {
                    // Deleted, there is none.
                    if len != 0 && len != quota {
                        return Err(setting.refuse(true));
                    }
                    effects.policy |= matches!(attribute.page, root_quotas::PAGE | partition_quotas::PAGE);
                    if attribute == osd::attributes::numbers::user_quotas::MAX_LENGTH {
                        let max = if len == 0 { u64::MAX } else { number_of(setting, 8)? };
                        joined.max_length = Some(max.min(crate::store::MAX_LENGTH));
                    }
                    keep(change);
                }
                None => {
                    if !self.security_set(id, of_type, setting, change)? {
                        return Err(setting.refuse(false));
                    }
                }
            },
        }
        Ok(())
    }

    /// Sets or deletes a pointer of the Collections page: the object joins a collection, or leaves
    /// the one that it names by this number.
    fn modify_membership(
        &self,
        id: Id,
        setting: &Setting,
        change: &mut Change,
        joined: &mut Joined,
    ) -> Result<(), Failure> {
        let number = setting.attribute.number;
        // An object that is being created is in none.
        let there = self.store.object(id).ok();
        let before = match there {
            Some(info) => {
                let subject = Subject { id, info: Info::Object(info) };
                if joined.stored.is_none() {
                    joined.stored = Some(self.memberships_by_number(&subject)?);
                }
                joined.of_number(number)
            }
            None => joined.of_number(number),
        };
        let wanted = match setting.value.is_empty() {
            true => None,
            false => Some(number_of(setting, 8)?),
        };
        if before == wanted {
            return Ok(());
        }
        if let Some(collection) = before {
            change.push(Step::Leave { object: id, collection });
            joined.left += 1;
        }
        if let Some(collection) = wanted {
            let info = self.store.object(Id::new(id.partition, collection));
            // Spontaneous collections have no members of their own.
            let kind = info.map(|info| info.kind);
            if !matches!(kind, Ok(Kind::Collection(kind)) if kind.0 != 0xEF) {
                return Err(setting.refuse(true));
            }
            joined.joined += 1;
            let count = joined.stored.as_ref().map_or(0, Memberships::named);
            let after = (count + joined.joined).saturating_sub(joined.left);
            if after > u64::from(self.policy(id.partition)?.collections.min(MAX_COLLECTIONS)) {
                return Err(Failure::quota().about(setting.attribute));
            }
            change.push(Step::Join { object: id, collection, number });
        }
        joined.numbers.insert(number, wanted);
        Ok(())
    }
}

/// The effect of earlier settings on an object's memberships and its quota.
#[derive(Default)]
struct Joined {
    max_length: Option<u64>,
    numbers: HashMap<u32, Option<u64>>,
    /// Its memberships as they are, once they have been looked up.
    stored: Option<Memberships>,
    joined: u64,
    left: u64,
}

impl Joined {
    /// The collection that the object names by `number` by now.
    fn of_number(&self, number: u32) -> Option<u64> {
        let stored = || self.stored.as_ref().and_then(|stored| stored.get(number));
        self.numbers.get(&number).copied().unwrap_or_else(stored)
    }
}

/// A value that must have exactly `len` bytes, as a number.
pub(in super::super) fn number_of(setting: &Setting, len: usize) -> Result<u64, Failure> {
    if setting.value.len() != len {
        return Err(setting.refuse(true));
    }
    Ok(osd::attributes::number(&setting.value))
}
