//! Objects of an object-based storage device (T10 OSD-2), over any session.
//!
//! [`Objects`] is a device. Its methods are the device's commands; each is done when its future is, and many can be under way at once:
//! the futures of several methods may be driven together, or [`Objects::start`] begins an [`Operation`] and gives a [`Pending`] end. An
//! operation can set and get attributes of the object that it works on in the same command as its data, whole or not at all.
//!
//! ```no_run
//! use initiator::objects::{Attribute, New, Objects};
//! use initiator::{Options, Session, Url};
//! use osd::attributes::numbers::user_information;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "iser://192.0.2.1/iqn.2026-01.org.example:osd/0".parse()?;
//! let session = Session::connect(&url, Options::default()).await?;
//! let device = Objects::open(&session, url.lun.unwrap_or(0)).await?;
//!
//! let partition = device.create_partition(0, []).await?;
//! let name = Attribute::new(user_information::NAME, "greeting");
//! let object = device.create_with(partition, New::default().set(name), ring::Buf::from(b"hello".to_vec())).await?;
//!
//! device.write(object, 5, ring::Buf::from(b", world".to_vec())).await?;
//! assert_eq!(device.read(object, 0, 100).await?.to_vec(), b"hello, world");
//! let length = device.attribute(object, user_information::LOGICAL_LENGTH).await?;
//! assert_eq!(length, Some(12u64.to_be_bytes().to_vec()));
//! device.flush(object).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A device with security asks for proof that a command is permitted: [`Objects::with_authority`] takes what has the credentials. Where
//! commands and answers prove themselves (CMDRSP, ALLDATA), an answer that is not the device's is an error; none of these commands is
//! sent again with a session that was made anew, since each proof is good for one time.
//!
//! # What a lost session costs
//!
//! Commands that may be run twice (reads, writes at a place, attributes, lists) are sent again by the session. Those that may not
//! (CREATE, APPEND, REMOVE, PUNCH and their like) end with [`Error::Lost`](crate::Error::Lost) then, and whether they ran is unknown. A create with an id of
//! the caller's choice can be tried again: it fails with [`Why::Exists`] if it did.

mod authority;
mod collection;
mod data;
mod device;
mod error;
mod list;
mod operation;
mod snapshot;

use std::rc::Rc;

use osd::AttributeId;
use scsi::SenseKey;

pub use authority::{Authority, Credentials};
pub use collection::{Match, Query, Range, member};
pub use data::New;
pub use device::{Facts, PartitionFacts};
pub use error::{Failure, FieldAt, ObjectError, Why};
pub use list::{List, Listed};
pub use operation::{Operation, Pending, Reply, number};
pub use osd::data::MapType;
pub use snapshot::MapEntry;

use authority::Security;

use crate::error::Error;
use crate::session::Session;
use crate::unit::Unit;

/// PERIPHERAL DEVICE TYPE of object-based storage devices.
pub const DEVICE_TYPE: u8 = 0x11;

/// An attribute's name and value. A value without bytes is that of an attribute that there is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Page and number.
    pub id: AttributeId,
    /// The value, at most 65534 bytes.
    pub value: Vec<u8>,
}

impl From<osd::attributes::list::Value<'_>> for Attribute {
    fn from(value: osd::attributes::list::Value<'_>) -> Self {
        Self { id: value.attribute, value: value.bytes.to_vec() }
    }
}

impl Attribute {
    /// An attribute with a value.
    pub fn new(id: AttributeId, value: impl Into<Vec<u8>>) -> Self {
        Self { id, value: value.into() }
    }

    /// One whose value is a number of 8 bytes.
    pub fn number(id: AttributeId, value: u64) -> Self {
        Self::new(id, value.to_be_bytes())
    }
}

/// An object-based storage device reached through a session. Clones are handles to the same.
#[derive(Clone)]
pub struct Objects {
    unit: Unit,
    security: Option<Rc<Security>>,
}

impl Objects {
    /// Opens a unit: waits until it is ready, and looks whether it is a device of objects.
    ///
    /// # Errors
    /// Any [`ObjectError`]; [`ObjectError::Argument`] if it is something else.
    pub async fn open(session: &Session, number: u16) -> Result<Self, ObjectError> {
        let unit = Unit::new(session, number)?;
        let inquiry = unit.inquiry().await?;
        if inquiry.qualifier == 3 {
            return Err(ObjectError::Argument(format!("the target has no unit {number}")));
        }
        if inquiry.device_type != DEVICE_TYPE {
            return Err(ObjectError::Argument(format!(
                "unit {number} is of type {:#04x}, and objects need one of type {DEVICE_TYPE:#04x}",
                inquiry.device_type
            )));
        }
        match unit.test_unit_ready().await {
            // A device that is being formatted, or that has no format, still takes commands.
            Err(error) if error.sense_key() == Some(SenseKey::NotReady) => {}
            other => other?,
        }
        Ok(Self::of(unit))
    }

    /// A unit that is known to be one. Nothing is sent.
    pub fn of(unit: Unit) -> Self {
        Self { unit, security: None }
    }

    /// The unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        self.unit.session()
    }

    /// The body of a vital product data page, for an authority that needs the security token (B1h).
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn vpd(&self, page: u8) -> Result<Vec<u8>, Error> {
        self.unit.vpd(page).await
    }
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Objects({:?}, {} authority)", self.unit, if self.security.is_some() { "an" } else { "no" })
    }
}
