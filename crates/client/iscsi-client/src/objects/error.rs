//! Errors of objects, decoded from a status and its sense data.

use std::fmt;

use osd::sense::Descriptor;
use osd::{AttributeId, Id};
use scsi::{KeySpecific, Sense, SenseKey};

use crate::error::{Error, ScsiError};

/// Any error of [`crate::objects`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An error of the session, or of the unit without object information.
    #[error("{0}")]
    Session(#[from] Error),
    /// The device refused or failed the command.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The device answered with invalid data.
    #[error("the device's answer makes no sense: {0}")]
    Data(&'static str),
    /// The caller's request is impossible.
    #[error("{0}")]
    Argument(String),
    /// The authority has no credential for the command.
    #[error("no credential: {0}")]
    Authority(String),
}

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The object, collection or partition does not exist.
    NotFound,
    /// The id is in use.
    Exists,
    /// The partition or collection is not empty.
    NotEmpty,
    /// A quota is exceeded.
    Quota,
    /// The device is full, or has no memory for the command.
    Full,
    /// The credential does not permit the command.
    Denied,
    /// The credential is forged, expired or revoked.
    BadCredential,
    /// The nonce is too old, too new, or already used.
    BadNonce,
    /// An attribute cannot be set, or not to this value.
    Attribute,
    /// The device does not support the command, or a field's value.
    Unsupported,
    /// Any other failure.
    Other,
}

impl Why {
    fn words(self) -> Option<&'static str> {
        Some(match self {
            Self::NotFound => "there is no such object",
            Self::Exists => "the id is taken",
            Self::NotEmpty => "it is not empty",
            Self::Quota => "a quota is exceeded",
            Self::Full => "the device is full",
            Self::Denied => "the credential does not permit it",
            Self::BadCredential => "the credential is not valid",
            Self::BadNonce => "the request's time or nonce is not accepted; look at both clocks",
            Self::Attribute => "an attribute cannot be set so",
            Self::Unsupported => "the device cannot do that",
            Self::Other => return None,
        })
    }
}

/// A device's report on a command that failed, or was only partly done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The command's name.
    pub command: &'static str,
    /// The kind of failure.
    pub why: Why,
    /// Status and sense data as received.
    pub scsi: ScsiError,
    /// The object in error (sense descriptor 06h).
    pub object: Option<Id>,
    /// Functions not started, and functions completed (sense descriptor 06h), as the standard's
    /// bits.
    pub functions: Option<(u32, u32)>,
    /// The attributes in error (sense descriptor 08h).
    pub attributes: Vec<AttributeId>,
    /// First byte of the faulty field, in the CDB or in the parameter data.
    pub field: Option<FieldAt>,
}

/// The location of a faulty field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldAt {
    /// In the CDB.
    Cdb(u16),
    /// In the data.
    Data(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.command)?;
        if let Some(object) = self.object {
            write!(f, " of {object}")?;
        }
        match self.why.words() {
            Some(words) => write!(f, ": {words}")?,
            None => write!(f, ": {}", self.scsi)?,
        }
        for (at, attribute) in self.attributes.iter().enumerate() {
            write!(f, "{}{attribute}", if at == 0 { ": " } else { ", " })?;
        }
        match self.field {
            Some(FieldAt::Cdb(byte)) if self.why == Why::Unsupported => {
                write!(f, " (byte {byte} of the CDB)")
            }
            Some(FieldAt::Data(byte)) if self.why == Why::Unsupported => {
                write!(f, " (byte {byte} of the data)")
            }
            _ => Ok(()),
        }
    }
}

impl ObjectError {
    /// The kind of failure; `None` if the error is not from a device.
    pub fn why(&self) -> Option<Why> {
        match self {
            Self::Failed(failure) => Some(failure.why),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.why() == Some(Why::NotFound)
    }

    /// Whether a range begins beyond the object's end.
    pub(super) fn begins_past_end(&self) -> bool {
        /// STARTING BYTE ADDRESS.
        const START: FieldAt = FieldAt::Cdb(40);
        matches!(self, Self::Failed(failure) if failure.why == Why::Unsupported && failure.field == Some(START))
    }

    /// Whether the target was not reached or refused the login: no command ran.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_unreachable())
    }

    /// Decodes a status other than GOOD. `makes`: the byte of the CDB with the id of the object
    /// that the command creates.
    pub(super) fn of(command: &'static str, makes: Option<u16>, error: ScsiError) -> Self {
        let Some(sense) = &error.sense else {
            return Self::Session(Error::Scsi(Box::new(error)));
        };
        let field = match sense.key_specific {
            Some(KeySpecific::Field(pointer)) if pointer.in_cdb => Some(FieldAt::Cdb(pointer.byte)),
            Some(KeySpecific::Field(pointer)) => Some(FieldAt::Data(pointer.byte)),
            _ => None,
        };
        let said = said(sense);
        Self::Failed(Box::new(Failure {
            command,
            why: why(sense, field, makes),
            object: said.object,
            functions: said.functions,
            attributes: said.attributes,
            field,
            scsi: error,
        }))
    }
}

fn why(sense: &Sense, field: Option<FieldAt>, makes: Option<u16>) -> Why {
    /// First byte of the capability in a CDB. Below: the bytes of ids.
    const CAPABILITY: u16 = 80;
    const IDS: std::ops::Range<u16> = 16..32;
    match (sense.key, sense.additional.asc, sense.additional.ascq) {
        (_, 0x2c, 0x0a) => Why::NotEmpty,
        (_, 0x55, 0x07) => Why::Quota,
        (_, 0x55, 0x00) | (SenseKey::VolumeOverflow, ..) => Why::Full,
        (_, 0x24, 0x04 | 0x05) => Why::BadCredential,
        (_, 0x24, 0x06 | 0x07) => Why::BadNonce,
        (_, 0x26, 0x0f) => Why::BadCredential,
        (SenseKey::IllegalRequest, 0x24, 0x00) => match field {
            Some(FieldAt::Cdb(byte)) if makes == Some(byte) => Why::Exists,
            Some(FieldAt::Cdb(byte)) if IDS.contains(&byte) => Why::NotFound,
            // The field with the source partition of a command that creates another one.
            Some(FieldAt::Cdb(40)) if makes == Some(16) => Why::NotFound,
            // The permissions bit mask; the rest of the capability proves that it is genuine.
            Some(FieldAt::Cdb(129 | 130)) => Why::Denied,
            Some(FieldAt::Cdb(byte)) if byte >= CAPABILITY => Why::BadCredential,
            _ => Why::Unsupported,
        },
        (SenseKey::IllegalRequest, 0x26 | 0x1a | 0x20, _) => {
            if said(sense).attributes.is_empty() {
                Why::Unsupported
            } else {
                Why::Attribute
            }
        }
        (SenseKey::DataProtect, ..) => Why::Denied,
        _ => Why::Other,
    }
}

/// The contents of the OSD sense descriptors.
#[derive(Default)]
struct Said {
    object: Option<Id>,
    functions: Option<(u32, u32)>,
    attributes: Vec<AttributeId>,
}

fn said(sense: &Sense) -> Said {
    let mut said = Said::default();
    for descriptor in Descriptor::parse_all(&sense.descriptors) {
        match descriptor {
            Descriptor::Object { not_initiated, completed, id } => {
                said.object = Some(id);
                said.functions = Some((not_initiated, completed));
            }
            Descriptor::Attributes(ids) => said.attributes.extend(ids),
            Descriptor::ResponseIcv(_) => {}
        }
    }
    said
}
