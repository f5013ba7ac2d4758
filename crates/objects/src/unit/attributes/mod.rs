//! Attributes of commands: taking what is to be set and got out of a command's buffers, setting it ([`modify`]), and
//! putting what was got. What attributes are worth is worked out in [`value`].
//!
//! What is got may be asked for by lists with "all" in them; the work is bounded by [`MAX_VALUES`].

mod modify;
mod value;

use osd::attributes::list::{GetList, ListError, ListWriter, ValueList, write_entry};
use osd::attributes::page::{self, CurrentCommand};
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

/// Values that one command looks up at most; a list that asks for more ends there.
const MAX_VALUES: usize = 1 << 18;

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
        let out = self.retrieved(subject, &get)?;
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

    fn retrieved(&self, subject: &Subject, get: &Request) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        match get {
            Request::Nothing => {}
            Request::Page(page) => out = self.page_format(subject, *page)?,
            Request::List(attributes) => {
                let mut list = ListWriter::new(&mut out, self.version(), self.retrieved_limit());
                self.unit.each_value(subject, &self.current, attributes, &mut |attribute, value| {
                    // The store keeps no value that is too long for a list.
                    list.push(attribute, value).is_ok()
                })?;
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
        let layout = page::layout(page).filter(|_| page.suits(subject.object_type()));
        let layout = layout.ok_or_else(|| Failure::cdb(52))?;
        let mut values = Vec::new();
        for &(number, _) in layout {
            let mut value = Vec::new();
            self.unit.value(subject, &self.current, AttributeId::new(page, number), &mut value)?;
            values.push((number, value));
        }
        let value = |number| values.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice());
        page::encode(page, value).ok_or_else(|| Failure::cdb(52))
    }
}

impl OsdUnit {
    /// Shows the attributes of `subject` that `wanted` asks for, in its order: "all" is spread out, what is not defined has no
    /// value. Ends when `each` says false.
    pub(super) fn each_value(
        &self,
        subject: &Subject,
        current: &Current,
        wanted: &[AttributeId],
        each: &mut dyn FnMut(AttributeId, Option<&[u8]>) -> bool,
    ) -> Result<(), Failure> {
        let mut left = MAX_VALUES;
        let mut value = Vec::new();
        let mut one = |attribute: AttributeId, always: bool| -> Result<bool, Failure> {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            value.clear();
            let defined = self.value(subject, current, attribute, &mut value)?;
            Ok(if defined || always { each(attribute, defined.then_some(&value[..])) } else { true })
        };
        for &attribute in wanted {
            let AttributeId { page, number } = attribute;
            if page != Page::ALL && number != AttributeId::ALL {
                if !one(attribute, true)? {
                    return Ok(());
                }
                continue;
            }
            let pages = match page {
                Page::ALL => self.pages_of(subject)?,
                page => std::iter::once(page.0).collect(),
            };
            for page in pages.into_iter().map(Page) {
                let numbers = match number {
                    AttributeId::ALL => self.numbers_of(subject, page)?,
                    number => std::iter::once(number).collect(),
                };
                for number in numbers {
                    if !one(AttributeId::new(page, number), false)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// The entries of `subject` in a list of many objects, or of LIST with attributes: whole ones only, of as many bytes as the
    /// list's field for their length can say.
    pub(super) fn entries_of(
        &self,
        subject: &Subject,
        wanted: &[AttributeId],
        version: Version,
    ) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        self.each_value(subject, &Current::default(), wanted, &mut |attribute, value| {
            let before = out.len();
            let written = write_entry(&mut out, version, attribute, value).is_ok();
            let fits = written && out.len() <= usize::from(u16::MAX);
            if !fits {
                out.truncate(before);
            }
            fits
        })?;
        Ok(out)
    }
}
