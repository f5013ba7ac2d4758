//! Attributes of commands: taking what is to be set and got out of a command's buffers, setting it ([`modify`]), and
//! putting what was got. What attributes are worth is worked out in [`value`].
//!
//! What is got may be asked for by lists with "all" in them; the work is bounded by [`MAX_VALUES`], and done in pieces.

mod modify;
mod value;

use std::collections::{BTreeSet, btree_set};

use osd::attributes::list::{GetList, ListError, ListWriter, ValueList, write_entry};
use osd::attributes::numbers::collections;
use osd::attributes::page::{self, CurrentCommand, Field};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{AttributeParameters, Cdb, Region};
use osd::{ObjectType, Version};

use super::OsdUnit;
use super::failure::Failure;
use super::limits::{MAX_LIST, MAX_RETRIEVED};
use super::subject::Subject;
use super::task::{Current, Task, regions};
use super::transfer::Transfer;
use crate::store::Value;

pub(super) use modify::Effects;
pub(super) use value::Memberships;

/// Values that one command looks up at most; a list that asks for more ends there.
const MAX_VALUES: usize = 1 << 18;

/// Look-ups between two turns of the core's other tasks, about.
const PIECE: usize = 1024;

/// Where what is set stands, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its page's field in the CDB.
    Cdb(u16),
    /// An entry at this byte of Data-Out.
    Data(u64),
}

/// An attribute to set.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub attribute: AttributeId,
    /// Empty deletes it.
    pub value: Value,
    pub place: Place,
}

impl Setting {
    /// What is wrong with it, at fault being its page or number (0), or its value or length.
    pub fn refuse(&self, value: bool) -> Failure {
        let failure = match self.place {
            Place::Cdb(byte) if value => Failure::cdb(byte + 8),
            Place::Cdb(byte) => Failure::cdb(byte),
            Place::Data(byte) if value => Failure::parameter(byte.saturating_add(8)),
            Place::Data(byte) => Failure::parameter(byte),
        };
        failure.about(self.attribute)
    }
}

/// What is to be got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Request {
    #[default]
    Nothing,
    /// A page, in page format.
    Page(Page),
    /// A list.
    List(Vec<AttributeId>),
}

/// What a command sets and gets.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    pub set: Vec<Setting>,
    pub get: Request,
    /// Where what is got goes in Data-In; `None` if it is not wanted at all.
    pub retrieved: Option<Region>,
}

impl Parameters {
    /// Takes the lists of `cdb` out of Data-Out.
    pub async fn take(cdb: &Cdb, transfer: &mut Transfer<'_>) -> Result<Self, Failure> {
        let version = cdb.form.version();
        let mut parameters = Self { retrieved: cdb.attributes.retrieved(), ..Self::default() };
        match &cdb.attributes {
            AttributeParameters::SetOne(one) => parameters.set.push(Setting {
                attribute: one.attribute,
                value: Value::from_slice(&one.value),
                place: Place::Cdb(52),
            }),
            AttributeParameters::Page { get, set } => {
                parameters.get = get.map_or(Request::Nothing, |get| Request::Page(get.page));
                if let Some(set) = set {
                    let value = match set.value {
                        None => Value::new(),
                        Some(region) if region.len as usize > crate::store::MAX_VALUE => {
                            return Err(Failure::cdb(72).about(set.attribute));
                        }
                        Some(region) => {
                            let data = transfer.take(region.offset, u64::from(region.len)).await?;
                            Value::from_vec(data.to_vec())
                        }
                    };
                    parameters.set.push(Setting { attribute: set.attribute, value, place: Place::Cdb(64) });
                }
            }
            AttributeParameters::List { .. } => {
                for (region, field) in regions(&cdb.attributes) {
                    if region.len > MAX_LIST {
                        return Err(Failure::cdb(field - 4));
                    }
                    let list = transfer.take(region.offset, u64::from(region.len)).await?.to_vec();
                    let wrong = |error: ListError| refuse_list(error, region);
                    if field == GET_OFFSET_FIELD {
                        let list = GetList::parse(&list, version).map_err(wrong)?;
                        parameters.get = Request::List(list.iter().collect());
                    } else {
                        parameters.set = settings(&list, version, region).map_err(wrong)?;
                    }
                }
            }
        }
        Ok(parameters)
    }
}

/// GET ATTRIBUTES LIST OFFSET.
const GET_OFFSET_FIELD: u16 = 56;

fn refuse_list(error: ListError, region: Region) -> Failure {
    match error.byte() {
        None => Failure::parameter_length(),
        Some(byte) => Failure::parameter(region.offset.saturating_add(u64::from(byte))),
    }
}

fn settings(list: &[u8], version: Version, region: Region) -> Result<Vec<Setting>, ListError> {
    use osd::attributes::list::{entry_len, header_len};
    let mut at = region.offset + header_len(version) as u64;
    let values = ValueList::parse(list, version)?;
    Ok(values
        .iter()
        .map(|value| {
            let place = Place::Data(at);
            at += entry_len(version, value.len) as u64;
            Setting { attribute: value.attribute, value: Value::from_slice(value.bytes), place }
        })
        .collect())
}

impl Task<'_> {
    /// Gets the attributes of `subject` that the command asks for, and puts them where they go.
    pub async fn retrieve(&mut self, subject: &Subject) -> Result<(), Failure> {
        if self.parameters.get == Request::Nothing {
            return Ok(());
        }
        self.progress.begin(osd::sense::function::GET_ATTRIBUTES);
        let get = std::mem::take(&mut self.parameters.get);
        let out = self.retrieved(subject, &get).await?;
        self.put_retrieved(out);
        let accessed = crate::store::TimesUpdate {
            attributes_accessed: Some(self.now),
            ..crate::store::TimesUpdate::default()
        };
        self.touch(subject.id, accessed)?;
        self.progress.done(osd::sense::function::GET_ATTRIBUTES);
        Ok(())
    }

    /// Puts `out` at the retrieved attributes offset, with zeros before it.
    pub fn put_retrieved(&mut self, mut out: Vec<u8>) {
        let Some(region) = self.parameters.retrieved else { return };
        out.truncate(region.len as usize);
        if !out.is_empty() {
            self.transfer.pad_to(region.offset);
            self.transfer.put(out.into());
        }
    }

    /// How many bytes of retrieved attributes are worth keeping: what there is room for.
    pub fn retrieved_limit(&self) -> usize {
        let Some(region) = self.parameters.retrieved else { return 0 };
        let room = self.transfer.room().saturating_sub(region.offset.saturating_sub(self.transfer.in_at()));
        let limit = u64::from(region.len).min(MAX_RETRIEVED).min(room);
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    async fn retrieved(&mut self, subject: &Subject, get: &Request) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        match get {
            Request::Nothing => {}
            Request::Page(page) => out = self.page_format(subject, *page)?,
            Request::List(attributes) => {
                let mut list = ListWriter::new(&mut out, self.version(), self.retrieved_limit());
                let mut values = Values::of(attributes);
                // The store keeps no value that is too long for a list.
                let mut push = |attribute, value: Option<&[u8]>| list.push(attribute, value).is_ok();
                while values.look(self.unit, subject, &self.current, &mut push)? == Looked::Paused {
                    self.transfer.pause().await?;
                }
                list.finish();
            }
        }
        Ok(out)
    }

    fn page_format(&self, subject: &Subject, page: Page) -> Result<Vec<u8>, Failure> {
        if page == Page::CURRENT_COMMAND {
            let current = CurrentCommand {
                response_icv: self.current.response_icv,
                kind: ObjectType::from_code(self.current.object_type).unwrap_or(subject.object_type()),
                id: self.current.id,
                append_address: self.current.appended_at,
                used_capacity_change: self.current.used_change as u64, // two's complement on the wire
            };
            return Ok(current.encode(self.version(), self.cdb.form.icv_len()));
        }
        if page == collections::PAGE && subject.object_type() == ObjectType::User {
            return Ok(page::pointers(&self.unit.memberships_by_number(subject)?.pointers()));
        }
        let layout = page::layout(page).filter(|_| page.suits(subject.object_type()));
        let layout = layout.ok_or_else(|| Failure::cdb(52))?;
        let mut values = Vec::new();
        for field in layout {
            let Field::Attribute(number, _) = *field else { continue };
            let mut value = Vec::new();
            self.unit.value(subject, &self.current, AttributeId::new(page, number), &mut value)?;
            values.push((number, value));
        }
        let value = |number| values.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice());
        page::encode(page, value).ok_or_else(|| Failure::cdb(52))
    }
}

/// Looking up attributes of one object, in pieces: whoever does it lets others have their turn in between.
pub(super) struct Values<'w> {
    wanted: std::slice::Iter<'w, AttributeId>,
    /// Of "all pages", those that are left.
    pages: btree_set::IntoIter<u32>,
    /// The number that is wanted of them.
    number: u32,
    /// Of "all attributes" of `page`, those that are left.
    numbers: btree_set::IntoIter<u32>,
    page: Page,
    /// Values that may still be looked up.
    left: usize,
    /// Looked up once, however many attributes of the Collections page are wanted.
    memberships: Option<Memberships>,
    value: Vec<u8>,
}

impl<'w> Values<'w> {
    /// Those that `wanted` asks for, in its order: "all" is spread out, what is not defined has no value.
    pub fn of(wanted: &'w [AttributeId]) -> Self {
        Self {
            wanted: wanted.iter(),
            pages: BTreeSet::new().into_iter(),
            number: 0,
            numbers: BTreeSet::new().into_iter(),
            page: Page(0),
            left: MAX_VALUES,
            memberships: None,
            value: Vec::new(),
        }
    }

    /// Shows the next attributes of `subject` to `each`, after about [`PIECE`] look-ups with [`Looked::Paused`]. Ends when
    /// `each` says false.
    pub fn look(
        &mut self,
        unit: &OsdUnit,
        subject: &Subject,
        current: &Current,
        each: &mut dyn FnMut(AttributeId, Option<&[u8]>) -> bool,
    ) -> Result<Looked, Failure> {
        let mut looked = 0;
        while looked < PIECE {
            if self.left == 0 {
                return Ok(Looked::All(looked));
            }
            self.left -= 1;
            looked += 1;
            let (attribute, always) = if let Some(number) = self.numbers.next() {
                (AttributeId::new(self.page, number), false)
            } else if let Some(page) = self.pages.next() {
                self.page = Page(page);
                let numbers = match self.number {
                    AttributeId::ALL => unit.numbers_of(subject, self.page)?,
                    number => BTreeSet::from([number]),
                };
                looked += numbers.len();
                self.numbers = numbers.into_iter();
                continue;
            } else {
                match self.wanted.next() {
                    None => return Ok(Looked::All(looked)),
                    Some(&attribute) if !is_all(attribute) => (attribute, true),
                    Some(&AttributeId { page, number }) => {
                        let pages = match page {
                            Page::ALL => unit.pages_of(subject)?,
                            page => BTreeSet::from([page.0]),
                        };
                        looked += pages.len();
                        self.pages = pages.into_iter();
                        self.number = number;
                        continue;
                    }
                }
            };
            self.value.clear();
            let defined = match &mut self.memberships {
                memberships if Memberships::has(subject, attribute) => {
                    let memberships = match memberships {
                        Some(memberships) => memberships,
                        None => memberships.insert(unit.memberships_by_number(subject)?),
                    };
                    memberships.value(attribute.number, &mut self.value)
                }
                _ => unit.value(subject, current, attribute, &mut self.value)?,
            };
            if (defined || always) && !each(attribute, defined.then_some(&self.value[..])) {
                return Ok(Looked::All(looked));
            }
        }
        Ok(Looked::Paused)
    }
}

fn is_all(attribute: AttributeId) -> bool {
    attribute.page == Page::ALL || attribute.number == AttributeId::ALL
}

/// How far [`Values::look`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// To the end, with so many look-ups.
    All(usize),
    /// It goes on when others have had their turn.
    Paused,
}

impl Task<'_> {
    /// The entries of `subject` in a list of many objects, or of LIST with attributes: whole ones only, of as many bytes as the
    /// list's field for their length can say. `looked` counts what was looked up since others had their turn.
    pub async fn entries_of(
        &mut self,
        subject: &Subject,
        wanted: &[AttributeId],
        looked: &mut usize,
    ) -> Result<Vec<u8>, Failure> {
        let (unit, version, current) = (self.unit, self.version(), self.current);
        let mut out = Vec::new();
        let mut values = Values::of(wanted);
        loop {
            let end = values.look(unit, subject, &current, &mut |attribute, value| {
                let before = out.len();
                let written = write_entry(&mut out, version, attribute, value).is_ok();
                let fits = written && out.len() <= usize::from(u16::MAX);
                if !fits {
                    out.truncate(before);
                }
                fits
            })?;
            *looked += match end {
                Looked::All(looked) => looked,
                Looked::Paused => PIECE,
            };
            if *looked >= PIECE {
                *looked = 0;
                self.transfer.pause().await?;
            }
            if end != Looked::Paused {
                return Ok(out);
            }
        }
    }
}
