//! Objects of an object-based storage device (T10 OSD-2), over any session.
//!
//! [`Objects`] is a device. Its methods are the device's commands; a command is complete when its
//! future is, and many can be outstanding. Drive the futures of several methods together, or start
//! an [`Operation`] with [`Objects::start`], which returns a [`Pending`]. An operation can set and
//! get attributes of its object in the same command as its data, all or nothing.
//!
//! ```no_run
//! use iscsi_client::objects::{Attribute, New, Objects};
//! use iscsi_client::{Options, Session, Url};
//! use osd::attributes::numbers::user_information;
//! use runtime::Buf;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "iser://192.0.2.1/iqn.2026-01.org.example:osd/0".parse()?;
//! let session = Session::connect(&url, Options::default()).await?;
//! let device = Objects::open(&session, url.lun.unwrap_or(0)).await?;
//!
//! let partition = device.create_partition(0, []).await?;
//! let new = New::default().set(Attribute::new(user_information::NAME, "greeting"));
//! let object = device.create_with(partition, new, Buf::from(b"hello".to_vec())).await?;
//!
//! device.write(object, 5, Buf::from(b", world".to_vec())).await?;
//! assert_eq!(device.read(object, 0, 100).await?.to_vec(), b"hello, world");
//! let length = device.attribute(object, user_information::LOGICAL_LENGTH).await?;
//! assert_eq!(length, Some(12u64.to_be_bytes().to_vec()));
//! device.flush(object).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A device with security requires proof that a command is permitted: pass the source of
//! credentials to [`Objects::with_authority`]. If commands and answers carry proofs (CMDRSP,
//! ALLDATA), a forged answer is an error. Such commands are not repeated after a reconnect, since
//! each proof is valid once.
//!
//! # The cost of a lost session
//!
//! The session repeats commands that may run twice: reads, writes at an offset, attributes, lists.
//! Others (CREATE, APPEND, REMOVE, PUNCH and similar) then end with
//! [`Error::Lost`](crate::Error::Lost): whether they ran is unknown. A create with an id chosen by
//! the caller can be retried: it fails with [`Why::Exists`] if it ran.

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

/// An attribute's name and value. An attribute without bytes does not exist.
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

    /// An attribute whose value is a number of 8 bytes.
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
    /// Opens a unit: waits until it is ready, and checks that it is an object-based storage device.
    ///
    /// # Errors
    /// Any [`ObjectError`]; [`ObjectError::Argument`] for another type of unit.
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
            // A device without a format, or during formatting, still accepts commands.
            Err(error) if error.sense_key() == Some(SenseKey::NotReady) => {}
            other => other?,
        }
        Ok(Self::of(unit))
    }

    /// Wraps a unit that is known to be such a device. Sends nothing.
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
