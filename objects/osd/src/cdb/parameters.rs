//! Attribute parameters: bytes 52 to 79 of every CDB, which attributes to get and set, in one of
//! three formats.

use arrayvec::ArrayVec;

use super::{Body, CdbError, EncodeError, field};
use crate::bytes::put;
use crate::{AttributeId, Form, Page, Version, offset};

/// A part of a Data-In or Data-Out buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Bytes; never 0 in a CDB that was decoded.
    pub len: u32,
    /// First byte, from the start of the buffer.
    pub offset: u64,
}

impl Region {
    /// The byte behind the last one.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

/// The page that page format gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetPage {
    /// GET ATTRIBUTES PAGE; never 0.
    pub page: Page,
    /// Region of Data-In for the page, with its maximum length; `None` for an allocation length of
    /// 0.
    pub retrieved: Option<Region>,
}

/// The attribute that page format sets, its value in Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFromBuffer {
    /// The attribute; its page is never 0.
    pub attribute: AttributeId,
    /// Region of its value; `None` for a length of 0, which deletes it.
    pub value: Option<Region>,
}

/// The attribute that a CDB sets with the value it carries itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineValue {
    /// The attribute.
    pub attribute: AttributeId,
    /// Its value; empty deletes it.
    pub value: ArrayVec<u8, 18>,
}

/// Attributes that a command gets and sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeParameters {
    /// Format 1 (OSD-2): one attribute is set, with a value in the CDB.
    SetOne(InlineValue),
    /// Format 2: a page is got, an attribute set.
    Page {
        /// The page to get.
        get: Option<GetPage>,
        /// The attribute to set.
        set: Option<SetFromBuffer>,
    },
    /// Format 3: lists.
    List {
        /// The get list, in Data-Out.
        get: Option<Region>,
        /// Region of Data-In for retrieved attributes, with its maximum length.
        retrieved: Option<Region>,
        /// The set list, in Data-Out.
        set: Option<Region>,
    },
}

impl AttributeParameters {
    /// Nothing to get or to set.
    pub const NONE: Self = Self::List { get: None, retrieved: None, set: None };

    /// Whether there is nothing to get and nothing to set.
    pub const fn is_none(&self) -> bool {
        match self {
            Self::SetOne(_) => false,
            Self::Page { get, set } => get.is_none() && set.is_none(),
            Self::List { get, set, .. } => get.is_none() && set.is_none(),
        }
    }

    /// Whether attributes are got.
    pub const fn gets(&self) -> bool {
        matches!(self, Self::Page { get: Some(_), .. } | Self::List { get: Some(_), .. })
    }

    /// Whether attributes are set.
    pub const fn sets(&self) -> bool {
        matches!(self, Self::SetOne(_) | Self::Page { set: Some(_), .. } | Self::List { set: Some(_), .. })
    }

    /// End of their part of Data-Out, in bytes from its start; 0 if they have none.
    pub fn data_out_end(&self) -> u64 {
        let end = |region: &Option<Region>| region.map_or(0, Region::end);
        match self {
            Self::SetOne(_) => 0,
            Self::Page { set, .. } => set.map_or(0, |set| end(&set.value)),
            Self::List { get, set, .. } => end(get).max(end(set)),
        }
    }

    /// Region of Data-In for retrieved attributes.
    pub fn retrieved(&self) -> Option<Region> {
        match self {
            Self::SetOne(_) => None,
            Self::Page { get, .. } => get.and_then(|get| get.retrieved),
            Self::List { get, retrieved, .. } => get.and(*retrieved),
        }
    }
}

impl Default for AttributeParameters {
    fn default() -> Self {
        Self::NONE
    }
}

/// The format's code, bits 5 and 4 of byte 11.
mod format {
    pub const SET_ONE: u8 = 1;
    pub const PAGE: u8 = 2;
    pub const LIST: u8 = 3;
}

/// Reads the parameters. `lists_attributes`: retrieved attributes go into the command's own list,
/// and have no region.
pub(super) fn decode(body: &Body<'_>, lists_attributes: bool) -> Result<AttributeParameters, CdbError> {
    let f = body.f;
    let version = body.form.version();
    // A length of zero makes its offset meaningless, whatever it is.
    let region = |len_at: usize, offset_at: u16| -> Result<Option<Region>, CdbError> {
        match f.u32(len_at) {
            0 => Ok(None),
            len => match offset::decode(f.u32(usize::from(offset_at)), version) {
                Ok(Some(offset)) => Ok(Some(Region { len, offset })),
                Ok(None) | Err(_) => Err(CdbError::at(offset_at)),
            },
        }
    };
    match f.u8(11) >> 4 & 3 {
        format::SET_ONE if version == Version::Osd2 => {
            let len = usize::from(f.u16(60));
            let value: ArrayVec<u8, 18> =
                f.slice(62, len).and_then(|value| value.try_into().ok()).ok_or(CdbError::at(60))?;
            let attribute = AttributeId::new(Page(f.u32(52)), f.u32(56));
            Ok(AttributeParameters::SetOne(InlineValue { attribute, value }))
        }
        format::PAGE => {
            let get = match f.u32(52) {
                0 => None,
                page => Some(GetPage { page: Page(page), retrieved: region(56, 60)? }),
            };
            let set = match f.u32(64) {
                0 => None,
                page => Some(SetFromBuffer {
                    attribute: AttributeId::new(Page(page), f.u32(68)),
                    value: region(72, 76)?,
                }),
            };
            Ok(AttributeParameters::Page { get, set })
        }
        format::LIST => {
            let get = region(52, 56)?;
            // If nothing is retrieved, the offset has no meaning and may have any value.
            let retrieved = match region(60, 64) {
                Err(_) if get.is_none() || lists_attributes => None,
                retrieved => retrieved?,
            };
            Ok(AttributeParameters::List { get, retrieved, set: region(68, 72)? })
        }
        _ => Err(CdbError::bit(11, 5)),
    }
}

pub(super) fn encode(
    parameters: &AttributeParameters,
    form: Form,
    out: &mut [u8],
) -> Result<(), EncodeError> {
    let version = form.version();
    let region = |out: &mut [u8], region: Option<Region>, len_at: usize, offset_at: usize| {
        put(out, len_at, &region.map_or(0, |region| region.len).to_be_bytes());
        let offset = field(region.map(|region| region.offset), version)?;
        put(out, offset_at, &offset.to_be_bytes());
        Ok(())
    };
    let code = match parameters {
        AttributeParameters::SetOne(_) if version == Version::Osd1 => {
            return Err(EncodeError::NoField("an attribute's value"));
        }
        AttributeParameters::SetOne(set) => {
            put(out, 52, &set.attribute.page.0.to_be_bytes());
            put(out, 56, &set.attribute.number.to_be_bytes());
            put(out, 60, &(set.value.len() as u16).to_be_bytes()); // at most 18
            put(out, 62, &set.value);
            format::SET_ONE
        }
        AttributeParameters::Page { get, set } => {
            put(out, 52, &get.map_or(0, |get| get.page.0).to_be_bytes());
            region(out, get.and_then(|get| get.retrieved), 56, 60)?;
            put(out, 64, &set.map_or(0, |set| set.attribute.page.0).to_be_bytes());
            put(out, 68, &set.map_or(0, |set| set.attribute.number).to_be_bytes());
            region(out, set.and_then(|set| set.value), 72, 76)?;
            format::PAGE
        }
        AttributeParameters::List { get, retrieved, set } => {
            region(out, *get, 52, 56)?;
            region(out, *retrieved, 60, 64)?;
            region(out, *set, 68, 72)?;
            format::LIST
        }
    };
    out[11] |= code << 4;
    Ok(())
}
