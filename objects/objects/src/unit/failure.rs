//! Failures of a command, and their sense data. Owns the translation of the store's and the wire's
//! errors; the descriptor with the object's ids and the functions that were completed is added
//! where the command ends.

use device::Lost;
use osd::sense::{Descriptor, code};
use osd::{AttributeId, CdbError};
use scsi::{AdditionalSense, Sense, SenseKey, Status};

use crate::store::Error;

/// An additional sense code of the wire's.
pub(super) const fn additional((asc, ascq): (u8, u8)) -> AdditionalSense {
    AdditionalSense::new(asc, ascq)
}

/// Fields of a CDB that errors point to.
pub(super) mod field {
    pub const PARTITION: u16 = 16;
    /// USER_OBJECT_ID, COLLECTION_OBJECT_ID or a requested id.
    pub const OBJECT: u16 = 24;
}

#[derive(Debug)]
pub(super) enum Failure {
    /// The command was aborted, or its initiator is gone: no status is sent.
    Lost,
    /// CHECK CONDITION. Boxed: sense data is large and failures are rare.
    Sense(Box<Sense>),
    /// A status that says all, of a command inside this one.
    Status(Status),
}

/// Whether a creation that is whole goes, because the command then ended with `result`. It stays
/// where the initiator is lost: it is told nothing, and others may have written there by now.
pub(super) fn undoes(result: &Result<(), Failure>) -> bool {
    !matches!(result, Ok(()) | Err(Failure::Lost))
}

impl From<Lost> for Failure {
    fn from(_: Lost) -> Self {
        Self::Lost
    }
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Sense(Box::new(sense))
    }
}

impl From<CdbError> for Failure {
    fn from(error: CdbError) -> Self {
        match error {
            CdbError::Opcode => Sense::invalid_opcode(),
            // An unknown service action is an unknown command (SPC-4 §4.2.5.2 leaves no other place
            // for it).
            CdbError::Field { byte: 8, bit: None } => Sense::invalid_field_in_cdb(8, None),
            CdbError::Field { byte, bit } => Sense::invalid_field_in_cdb(byte, bit),
        }
        .into()
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            // Only a command that is aborted stops its change.
            Error::Stopped => return Self::Lost,
            Error::NotFound(id) => {
                // A lookup in a partition that does not exist finds this out: the store names the
                // id that it missed.
                Sense::invalid_field_in_cdb(
                    if id.object == 0 { field::PARTITION } else { field::OBJECT },
                    None,
                )
            }
            Error::Exists(id) => Sense::invalid_field_in_cdb(
                if id.object == 0 { field::PARTITION } else { field::OBJECT },
                None,
            ),
            Error::BadId(_) => Sense::invalid_field_in_cdb(field::OBJECT, None),
            Error::NotEmpty(_) => Sense::illegal_request(additional(code::NOT_EMPTY)),
            Error::NoIds => Sense::illegal_request(AdditionalSense::SYSTEM_RESOURCE_FAILURE),
            Error::OutOfRange => Sense::invalid_field_in_cdb(40, None),
            Error::ValueTooLong => Sense::invalid_field_in_parameter_list(0, None),
            Error::BadChange | Error::NoMemory => Sense::aborted(AdditionalSense::INSUFFICIENT_RESOURCES),
            Error::Snapshot(_) => Sense::write_protected(),
            Error::NoSource(_) => Sense::invalid_field_in_cdb(field::PARTITION, None),
            Error::NoSpace | Error::TooLong => Sense::new(SenseKey::DataProtect, additional(code::QUOTA)),
            Error::ReadOnly => Sense::write_protected(),
            Error::Damaged(_) | Error::Layout(_) => {
                Sense::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR)
            }
            Error::Io(_) => Sense::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR),
        }
        .into()
    }
}

impl Failure {
    /// INVALID FIELD IN CDB at `byte`.
    pub fn cdb(byte: u16) -> Self {
        Sense::invalid_field_in_cdb(byte, None).into()
    }

    /// INVALID FIELD IN CDB at the bit `bit` of `byte`, the leftmost of the field.
    pub(crate) fn cdb_bit(byte: u16, bit: u8) -> Self {
        Sense::invalid_field_in_cdb(byte, Some(bit)).into()
    }

    /// INVALID FIELD IN PARAMETER LIST at `byte` of Data-Out. The pointer has 16 bits: a higher
    /// byte is reported as the highest value.
    pub fn parameter(byte: u64) -> Self {
        Sense::invalid_field_in_parameter_list(u16::try_from(byte).unwrap_or(u16::MAX), None).into()
    }

    /// PARAMETER LIST LENGTH ERROR.
    pub(crate) fn parameter_length() -> Self {
        Sense::parameter_list_length_error().into()
    }

    pub fn quota() -> Self {
        Sense::new(SenseKey::DataProtect, additional(code::QUOTA)).into()
    }

    /// There is no room for it at the moment: the initiator may try again.
    pub fn busy() -> Self {
        Sense::aborted(AdditionalSense::INSUFFICIENT_RESOURCES).into()
    }

    /// The listed objects changed while the initiator took the beginning of the list: it may retry.
    pub fn changed() -> Self {
        Sense::aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION).into()
    }

    #[cold]
    pub fn read(error: Error) -> Self {
        match error {
            Error::Io(_) => Sense::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR).into(),
            error => error.into(),
        }
    }

    /// Data-Out ended early though the expected length promised all of it.
    pub fn short_data() -> Self {
        Sense::aborted(AdditionalSense::DATA_PHASE_ERROR).into()
    }

    /// The same failure, which attribute `id` has brought about: with an attribute identification
    /// descriptor (08h).
    #[must_use]
    pub fn about(self, id: AttributeId) -> Self {
        match self {
            Self::Lost | Self::Status(_) => self,
            Self::Sense(mut sense) => {
                sense.descriptors.append(&mut Descriptor::Attributes(vec![id]).emit());
                Self::Sense(sense)
            }
        }
    }
}
