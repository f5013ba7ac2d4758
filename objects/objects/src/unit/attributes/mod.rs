//! Attributes of commands: takes those to set and to get out of a command's buffers, sets them
//! ([`modify`]), and puts those that were got. [`value`] computes their values.
//!
//! A list of attributes to get may contain "all": [`entries`] looks those up and puts them.

mod entries;
mod modify;
mod value;

use osd::attributes::list::{GetList, ListError, ValueList};
use osd::attributes::numbers::collections;
use osd::attributes::page::{self, CurrentCommand};
use osd::attributes::{AttributeId, Page};
use osd::cdb::{AttributeParameters, Cdb, Region};
use osd::{ObjectType, Version};

use super::failure::Failure;
use super::limits::MAX_LIST;
use super::reply::Pieces;
use super::subject::Subject;
use super::task::{Task, regions};
use super::transfer::Transfer;
use crate::store::Value;

pub(super) use entries::Entries;
use entries::{OfOne, Values};
pub(super) use modify::Effects;
pub(super) use value::Memberships;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its page's field in the CDB.
    Cdb(u16),
    /// An entry at this byte of Data-Out.
    Data(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub attribute: AttributeId,
    /// Empty deletes it.
    pub value: Value,
    pub place: Place,
}

impl Setting {
    /// The failure of this setting: at fault is its value or length if `value`, else its page or
    /// number.
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Request {
    #[default]
    Nothing,
    Page(Page),
    List(Vec<AttributeId>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    pub set: Vec<Setting>,
    pub get: Request,
    /// Place of the retrieved attributes in Data-In; `None` if none are requested.
    pub retrieved: Option<Region>,
}

impl Parameters {
    /// Takes the lists of `cdb` out of Data-Out.
    pub async fn take(cdb: &Cdb, transfer: &mut Transfer<'_>) -> Result<Self, Failure> {
        let version = cdb.form.version();
        let mut parameters = Self { retrieved: cdb.retrieved(), ..Self::default() };
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
        match std::mem::take(&mut self.parameters.get) {
            Request::Nothing => {}
            Request::Page(page) => {
                let out = self.page_format(subject, page)?;
                self.put_page(&out).await?;
            }
            Request::List(wanted) => {
                self.put_list(OfOne { subject, values: Values::of(&wanted), looked: 0 }).await?;
            }
        }
        let accessed = crate::store::TimesUpdate {
            attributes_accessed: Some(self.now),
            ..crate::store::TimesUpdate::default()
        };
        self.touch(subject.id, accessed)?;
        self.progress.done(osd::sense::function::GET_ATTRIBUTES);
        Ok(())
    }

    /// Puts a page at the retrieved attributes offset, with zeros before it.
    async fn put_page(&mut self, page: &[u8]) -> Result<(), Failure> {
        let Some(region) = self.parameters.retrieved else { return Ok(()) };
        self.pad_to(region.offset).await?;
        let mut pieces = Pieces::new(region.len.into());
        pieces.write(self, page).await?;
        pieces.put(self);
        Ok(())
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
        for number in layout.iter().flat_map(|field| field.numbers()) {
            let mut value = Vec::new();
            self.unit.value(subject, &self.current, AttributeId::new(page, number), &mut value)?;
            values.push((number, value));
        }
        let value = |number| values.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice());
        page::encode(page, value).ok_or_else(|| Failure::cdb(52))
    }
}
