//! Values of attributes: those of the standard pages are computed here, the store keeps the others.
//! Owns the set and the order of an object's attributes; sets none.

use std::collections::{BTreeSet, HashMap};

use osd::ObjectType;
use osd::attributes::numbers::{
    collection_information, collections, command_tracking, current_command, page_id, page_name,
    partition_information, partition_quotas, root_information, root_quotas, time, timestamps,
    unnamed_page_id, user_information, user_quotas,
};
use osd::attributes::{AttributeId, Page, PageKind};
use osd::cdb::Isolation;

use super::super::OsdUnit;
use super::super::collections::UNNAMED;
use super::super::failure::Failure;
use super::super::limits::{MAX_CONTINUATION, MAX_LIST};
use super::super::subject::{Info, Subject};
use super::super::task::Current;
use crate::store::{Attributes, BLOCK, Kind, Membership};

/// Memberships, and numbers of attributes, that are looked up at a time.
const BATCH: usize = 256;

/// The last page of its own that any object may have.
const LAST_PAGE: u32 = 0xFFFF_FFFD;

/// Duplicates share data until one of them is written: the only method of duplication.
const SHARED_COPY: u8 = 0x01;
/// Duplicates are made when they are asked for: the one time of duplication that there is.
const AT_ONCE: u8 = 0x01;
/// MAXIMUM SNAPSHOTS COUNT and MAXIMUM CLONES COUNT: no limit of their own.
const UNLIMITED: u64 = u64::MAX;

const ISOLATIONS: [Isolation; 4] =
    [Isolation::None, Isolation::Strict, Isolation::Range, Isolation::Functional];

/// The collections that an object names, by its numbers for them. At most
/// [`MAX_COLLECTIONS`](super::super::limits::MAX_COLLECTIONS), except for those kept from before
/// this limit.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Memberships(HashMap<u32, u64>);

impl Memberships {
    /// Whether `attribute` of `subject` is one of them, if it is defined.
    pub fn has(subject: &Subject, attribute: AttributeId) -> bool {
        let AttributeId { page, number } = attribute;
        page == collections::PAGE && number != 0 && subject.object_type() == ObjectType::User
    }

    pub fn get(&self, number: u32) -> Option<u64> {
        self.0.get(&number).copied()
    }

    /// Number of memberships with a number. Tracking collections are in no object's page.
    pub fn named(&self) -> u64 {
        self.0.keys().filter(|number| **number != UNNAMED).count() as u64
    }

    /// Those that are named, in the order of their numbers.
    pub fn pointers(&self) -> Vec<u64> {
        let mut named: Vec<(u32, u64)> = self.0.iter().map(|(number, id)| (*number, *id)).collect();
        named.retain(|(number, _)| *number != UNNAMED);
        named.sort_unstable();
        named.into_iter().map(|(_, id)| id).collect()
    }

    /// Appends its id to `out`. Whether there is one.
    pub fn value(&self, number: u32, out: &mut Vec<u8>) -> bool {
        let collection = self.get(number);
        out.extend(collection.map(u64::to_be_bytes).into_iter().flatten());
        collection.is_some()
    }
}

impl OsdUnit {
    /// Appends the value of an attribute of `subject` to `out`, if it is defined.
    pub(in super::super) fn value(
        &self,
        subject: &Subject,
        current: &Current,
        attribute: AttributeId,
        out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        let start = out.len();
        let of_type = subject.object_type();
        match attribute.page.kind() {
            PageKind::CurrentCommand => current_value(current, attribute.number, out),
            PageKind::Of { object, number } if object == of_type => {
                if number == 0 {
                    return self.directory_value(subject, attribute.number, out);
                }
                if attribute.number == 0 {
                    return self.page_value(subject, attribute.page, out);
                }
                if self.security_value(subject, attribute, out)? {
                    return Ok(true);
                }
                match &subject.info {
                    Info::Root(_) => self.root_value(subject, attribute, out),
                    Info::Partition(_) => self.partition_value(subject, attribute, out),
                    Info::Object(_) => self.object_value(subject, attribute, out)?,
                }
                if out.len() == start {
                    self.common_value(subject, attribute, out)?;
                }
            }
            PageKind::Any if attribute.number == 0 => return self.page_value(subject, attribute.page, out),
            PageKind::Any => {}
            _ => return Ok(false),
        }
        if out.len() > start {
            return Ok(true);
        }
        Ok(self.store.attribute(subject.id, attribute.page.0, attribute.number, out)?)
    }

    fn root_value(&self, subject: &Subject, attribute: AttributeId, out: &mut Vec<u8>) {
        use root_information as info;
        let Info::Root(root) = &subject.info else { return };
        let options = &self.options;
        let text = |text: &str, len: usize, out: &mut Vec<u8>| {
            out.extend(text.bytes().chain(std::iter::repeat(b' ')).take(len));
        };
        if attribute.page != info::PAGE {
            return;
        }
        match attribute {
            info::SYSTEM_ID => out.extend(options.system_id),
            info::VENDOR => text(&options.identity.vendor, 8, out),
            info::PRODUCT => text(&options.identity.product, 16, out),
            info::MODEL => text(&options.model, 32, out),
            info::REVISION => text(&options.identity.revision, 4, out),
            info::SERIAL => out.extend(options.identity.serial.bytes()),
            info::MAX_CONTINUATION => out.extend(MAX_CONTINUATION.to_be_bytes()),
            info::TOTAL_CAPACITY => out.extend(root.capacity.to_be_bytes()),
            info::USED_CAPACITY => out.extend(root.used.to_be_bytes()),
            info::PARTITIONS => out.extend(root.partitions.to_be_bytes()),
            info::CLOCK => out.extend(time(self.now())),
            info::DEFAULT_ISOLATION => out.push(options.isolation as u8),
            info::SUPPORTED_ISOLATION => {
                // A bit for each method, method 0 the highest of the first byte.
                let mut methods = [0u8; 32];
                for method in ISOLATIONS {
                    methods[0] |= 0x80 >> (method as u8);
                }
                out.extend(methods);
            }
            // Data that is written over data may be torn by a power cut, as on any disk; attributes
            // of a command are not.
            info::DATA_ATOMICITY | info::DATA_ATOMICITY_ALIGNMENT => out.extend(0u64.to_be_bytes()),
            info::ATTRIBUTES_ATOMICITY => out.extend(u64::from(MAX_LIST).to_be_bytes()),
            info::ATOMICITY_MULTIPLIER => out.push(1),
            info::MAX_SNAPSHOTS | info::MAX_CLONES | info::MAX_BRANCH_DEPTH => {
                out.extend(UNLIMITED.to_be_bytes());
            }
            info::DUPLICATION_METHODS => out.push(SHARED_COPY),
            info::DUPLICATION_TIMES => out.push(AT_ONCE),
            _ => {}
        }
    }

    fn partition_value(&self, subject: &Subject, attribute: AttributeId, out: &mut Vec<u8>) {
        use partition_information as info;
        let Info::Partition(partition) = &subject.info else { return };
        match attribute {
            info::ID => out.extend(subject.id.partition.to_be_bytes()),
            info::USED_CAPACITY | info::ACTUAL_DATA_SPACE => out.extend(partition.used.to_be_bytes()),
            info::USED_CAPACITY_INCREMENT => out.extend(BLOCK.to_be_bytes()),
            info::OBJECTS => {
                out.extend(partition.objects.saturating_add(partition.collections).to_be_bytes());
            }
            info::RESERVED_DATA_SPACE => out.extend(0u64.to_be_bytes()),
            info::SNAPSHOT_DUPLICATION | info::CLONE_DUPLICATION => out.push(SHARED_COPY),
            info::SNAPSHOT_DUPLICATION_TIME | info::CLONE_DUPLICATION_TIME => out.push(AT_ONCE),
            _ => {}
        }
    }

    fn object_value(
        &self,
        subject: &Subject,
        attribute: AttributeId,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let Info::Object(object) = &subject.info else { return Ok(()) };
        let id = subject.id;
        match (object.kind, attribute) {
            (Kind::User, user_information::PARTITION_ID)
            | (Kind::Collection(_), collection_information::PARTITION_ID) => {
                out.extend(id.partition.to_be_bytes());
            }
            (Kind::User, user_information::ID) | (Kind::Collection(_), collection_information::ID) => {
                out.extend(id.object.to_be_bytes());
            }
            (Kind::User, user_information::USED_CAPACITY | user_information::ACTUAL_DATA_SPACE)
            | (Kind::Collection(_), collection_information::USED_CAPACITY) => {
                out.extend(object.used.to_be_bytes());
            }
            (Kind::User, user_information::LOGICAL_LENGTH) => out.extend(object.length.to_be_bytes()),
            (Kind::User, user_information::RESERVED_DATA_SPACE) => out.extend(0u64.to_be_bytes()),
            (Kind::Collection(kind), collection_information::TYPE) => out.push(kind.0),
            (Kind::Collection(kind), command_tracking::MEMBERS) if kind.0 == 0x01 => {
                out.extend(object.members.to_be_bytes());
            }
            (Kind::User, AttributeId { page: collections::PAGE, number }) => {
                if let Some(membership) = self.membership_of(subject, number)? {
                    out.extend(membership.collection.to_be_bytes());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Timestamps and quotas, which look alike for every type.
    fn common_value(
        &self,
        subject: &Subject,
        attribute: AttributeId,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let of_type = subject.object_type();
        if attribute.page == timestamps::page(of_type) {
            let times = subject.times();
            let root = of_type == ObjectType::Root;
            match attribute.number {
                timestamps::CREATED if !root => out.extend(time(times.created)),
                timestamps::ATTRIBUTES_ACCESSED => out.extend(time(times.attributes_accessed)),
                timestamps::ATTRIBUTES_MODIFIED => out.extend(time(times.attributes_modified)),
                timestamps::DATA_ACCESSED if !root => out.extend(time(times.data_accessed)),
                timestamps::DATA_MODIFIED if !root => out.extend(time(times.data_modified)),
                timestamps::BYPASS if matches!(of_type, ObjectType::Root | ObjectType::Partition) => {
                    out.push(if self.policy(subject.id.partition)?.bypass { 0x7F } else { 0 });
                }
                _ => {}
            }
        } else if let Some(len) = quota_len(attribute) {
            if !self.store.attribute(subject.id, attribute.page.0, attribute.number, out)? {
                // None was set.
                out.extend(&u64::MAX.to_be_bytes()[..len]);
            }
        }
        Ok(())
    }

    /// Attribute `number` of the directory: the identification of page `number`, if the object has
    /// it. Attribute 0 is its own, as of any page.
    fn directory_value(&self, subject: &Subject, number: u32, out: &mut Vec<u8>) -> Result<bool, Failure> {
        let page = if number == 0 { Page::of(subject.object_type(), 0) } else { Page(number) };
        if !page.suits(subject.object_type()) || !self.has_page(subject, page)? {
            return Ok(false);
        }
        self.page_value(subject, page, out)
    }

    /// The identification of a page of the object: the standard's, the one that was set, or that
    /// of pages without a name.
    fn page_value(&self, subject: &Subject, page: Page, out: &mut Vec<u8>) -> Result<bool, Failure> {
        if let Some(name) = page_name(page) {
            out.extend(page_id("INCITS", name));
            return Ok(true);
        }
        if self.store.attribute(subject.id, page.0, 0, out)? {
            return Ok(true);
        }
        if !self.has_page(subject, page)? {
            return Ok(false);
        }
        out.extend(unnamed_page_id());
        Ok(true)
    }

    fn has_page(&self, subject: &Subject, page: Page) -> Result<bool, Failure> {
        if page_name(page).is_some() && page != Page::CURRENT_COMMAND {
            return Ok(true);
        }
        let mut found = false;
        self.store.attributes(subject.id, Attributes::Page(page.0), &mut |_| {
            found = true;
            false
        })?;
        Ok(found)
    }

    /// The membership that a user object names by `number`.
    fn membership_of(&self, subject: &Subject, number: u32) -> Result<Option<Membership>, Failure> {
        let mut found = None;
        self.memberships_of(subject, &mut |membership| {
            if membership.number == number {
                found = Some(membership);
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// The memberships of `subject`, to be found by their numbers.
    pub(in super::super) fn memberships_by_number(&self, subject: &Subject) -> Result<Memberships, Failure> {
        let mut by_number = HashMap::new();
        self.memberships_of(subject, &mut |membership| {
            by_number.entry(membership.number).or_insert(membership.collection);
            true
        })?;
        Ok(Memberships(by_number))
    }

    fn memberships_of(
        &self,
        subject: &Subject,
        each: &mut dyn FnMut(Membership) -> bool,
    ) -> Result<(), Failure> {
        let mut from = 0;
        let mut batch = Vec::new();
        loop {
            batch.clear();
            let more = self.store.memberships(subject.id, from, BATCH, &mut batch)?;
            for &membership in &batch {
                if !each(membership) {
                    return Ok(());
                }
            }
            match batch.last() {
                Some(last) if more => from = last.collection.saturating_add(1),
                _ => return Ok(()),
            }
        }
    }

    /// The first page from `from` on that an object has.
    pub(super) fn next_page(&self, subject: &Subject, from: u32) -> Result<Option<u32>, Failure> {
        let of_type = subject.object_type();
        let standard =
            (0..8).map(|number| Page::of(of_type, number)).filter(|page| page_name(*page).is_some());
        let standard = standard.map(|page| page.0).filter(|page| *page >= from).min();
        let mut stored = None;
        let mut next = Some(from);
        while let Some(from) = next.filter(|from| *from <= LAST_PAGE) {
            let mut found = None;
            self.store.attributes(subject.id, Attributes::Pages(from, LAST_PAGE), &mut |attribute| {
                found = Some(attribute.page);
                false
            })?;
            // Pages of the reserved range are the unit's own.
            stored = found.filter(|page| Page(*page).kind() != PageKind::Reserved);
            next = found.filter(|_| stored.is_none()).and_then(|page| page.checked_add(1));
        }
        Ok(standard.into_iter().chain(stored).min())
    }

    /// Some numbers of the attributes of a page that are defined, in ascending order: the first
    /// from `from` on, and where to go on behind them, if there may be more.
    pub(super) fn numbers_of(
        &self,
        subject: &Subject,
        page: Page,
        from: u32,
    ) -> Result<(Vec<u32>, Option<u32>), Failure> {
        let of_type = subject.object_type();
        if page == Page::CURRENT_COMMAND {
            return Ok(((from..=6).collect(), None));
        }
        if !page.suits(of_type) {
            return Ok((Vec::new(), None));
        }
        if page == Page::of(of_type, 0) {
            return self.pages_from(subject, from);
        }
        let mut numbers = BTreeSet::new();
        // Attributes behind a full batch are not known yet.
        let mut last = u32::MAX;
        self.store.attributes(subject.id, Attributes::From(page.0, from), &mut |attribute| {
            numbers.insert(attribute.number);
            if numbers.len() == BATCH {
                last = attribute.number;
            }
            numbers.len() < BATCH
        })?;
        if page == collections::PAGE && of_type == ObjectType::User {
            let mut named = BTreeSet::new();
            self.memberships_of(subject, &mut |membership| {
                if (from..=last).contains(&membership.number) {
                    named.insert(membership.number);
                }
                if named.len() > BATCH {
                    named.pop_last();
                    last = named.last().copied().unwrap_or(last);
                }
                true
            })?;
            numbers.extend(named);
        }
        // Standard attributes are tried: each is defined or not by its object's type and the page.
        let mut scratch = Vec::new();
        for &number in standard_numbers(of_type, page) {
            scratch.clear();
            let attribute = AttributeId::new(page, number);
            if self.value(subject, &Current::default(), attribute, &mut scratch)? {
                numbers.insert(number);
            }
        }
        if page_name(page).is_some() || !numbers.is_empty() {
            numbers.insert(0);
        }
        self.security_numbers(subject, page, &mut numbers)?;
        let behind = last.checked_add(1);
        Ok((numbers.range(from..=last).copied().collect(), behind))
    }

    /// The numbers of a directory: the pages that the object has, and 0 for the directory itself.
    fn pages_from(&self, subject: &Subject, from: u32) -> Result<(Vec<u32>, Option<u32>), Failure> {
        let mut numbers = if from == 0 { vec![0] } else { Vec::new() };
        let mut next = Some(from.max(1));
        while let Some(from) = next.filter(|_| numbers.len() < BATCH) {
            let page = self.next_page(subject, from)?;
            numbers.extend(page);
            next = page.and_then(|page| page.checked_add(1));
        }
        Ok((numbers, next))
    }
}

/// Length of a quota in bytes; `None` of an attribute that is none.
pub(super) fn quota_len(attribute: AttributeId) -> Option<usize> {
    match attribute {
        root_quotas::COLLECTIONS_PER_OBJECT | partition_quotas::COLLECTIONS_PER_OBJECT => Some(4),
        root_quotas::DEFAULT_MAX_OBJECT_LENGTH
        | root_quotas::PARTITION_CAPACITY
        | root_quotas::PARTITION_OBJECTS
        | root_quotas::PARTITIONS
        | partition_quotas::DEFAULT_MAX_OBJECT_LENGTH
        | partition_quotas::CAPACITY
        | partition_quotas::OBJECTS
        | user_quotas::MAX_LENGTH => Some(8),
        _ => None,
    }
}

/// The numbers of a standard page's attributes; those that are kept are among them.
fn standard_numbers(of_type: ObjectType, page: Page) -> &'static [u32] {
    const TIMES: &[u32] = &[1, 2, 3, 4, 5, timestamps::BYPASS];
    let PageKind::Of { object, number } = page.kind() else { return &[] };
    if object != of_type {
        return &[];
    }
    match (object, number) {
        (ObjectType::Root, 1) => root_information::NUMBERS,
        (ObjectType::Partition, 1) => partition_information::NUMBERS,
        (ObjectType::Collection, 1) => collection_information::NUMBERS,
        (ObjectType::User, 1) => user_information::NUMBERS,
        (ObjectType::Root, 2) => root_quotas::NUMBERS,
        (ObjectType::Partition, 2) => partition_quotas::NUMBERS,
        (ObjectType::User, 2) => user_quotas::NUMBERS,
        (_, 3) => TIMES,
        (ObjectType::Collection, 4) => command_tracking::NUMBERS,
        _ => &[],
    }
}

/// An attribute of the Current Command page.
fn current_value(current: &Current, number: u32, out: &mut Vec<u8>) {
    match AttributeId::new(Page::CURRENT_COMMAND, number) {
        AttributeId { number: 0, .. } => {
            out.extend(page_id("INCITS", page_name(Page::CURRENT_COMMAND).unwrap_or_default()));
        }
        current_command::RESPONSE_ICV => {
            out.extend(current.response_icv.iter().take(current.icv_len));
        }
        current_command::OBJECT_TYPE => out.push(current.object_type),
        current_command::PARTITION_ID => out.extend(current.id.partition.to_be_bytes()),
        current_command::OBJECT_ID => out.extend(current.id.object.to_be_bytes()),
        current_command::APPEND_ADDRESS => out.extend(current.appended_at.to_be_bytes()),
        current_command::USED_CAPACITY_CHANGE => out.extend(current.used_change.to_be_bytes()),
        _ => {}
    }
}
