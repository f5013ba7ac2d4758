//! Sense data (SPC-4 §4.5) as a value: a unit's report on a command that did not complete with
//! GOOD.
//!
//! Owns the value and its constructors; `wire` owns its two formats. The caller decides when to
//! send it.

mod additional;
mod wire;

use std::fmt;

pub use additional::AdditionalSense;
pub use wire::SenseBytes;

/// The sense key: the kind of error or event (SPC-4 §4.5.6, table 43).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to report.
    NoSense = 0x0,
    /// The command succeeded after recovery.
    RecoveredError = 0x1,
    /// The unit cannot be accessed.
    NotReady = 0x2,
    /// A flaw of the medium or an error in the recorded data.
    MediumError = 0x3,
    /// A failure of the device.
    HardwareError = 0x4,
    /// The CDB or the parameter list has an error.
    IllegalRequest = 0x5,
    /// A unit attention condition.
    UnitAttention = 0x6,
    /// Reading or writing is not allowed.
    DataProtect = 0x7,
    /// Blank medium.
    BlankCheck = 0x8,
    /// Vendor specific.
    VendorSpecific = 0x9,
    /// A third-party copy was aborted.
    CopyAborted = 0xA,
    /// The device aborted the command; a retry may succeed.
    AbortedCommand = 0xB,
    /// Reserved (was EQUAL).
    Reserved = 0xC,
    /// A buffered device reached its partition's end.
    VolumeOverflow = 0xD,
    /// Data did not match the medium's.
    Miscompare = 0xE,
    /// Completed, with information.
    Completed = 0xF,
}

impl SenseKey {
    /// The key in the low four bits of `code`.
    pub(crate) const fn from_low_bits(code: u8) -> Self {
        match code & 0x0F {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xA => Self::CopyAborted,
            0xB => Self::AbortedCommand,
            0xC => Self::Reserved,
            0xD => Self::VolumeOverflow,
            0xE => Self::Miscompare,
            _ => Self::Completed,
        }
    }

    /// The four bits on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSense => "NO SENSE",
            Self::RecoveredError => "RECOVERED ERROR",
            Self::NotReady => "NOT READY",
            Self::MediumError => "MEDIUM ERROR",
            Self::HardwareError => "HARDWARE ERROR",
            Self::IllegalRequest => "ILLEGAL REQUEST",
            Self::UnitAttention => "UNIT ATTENTION",
            Self::DataProtect => "DATA PROTECT",
            Self::BlankCheck => "BLANK CHECK",
            Self::VendorSpecific => "VENDOR SPECIFIC",
            Self::CopyAborted => "COPY ABORTED",
            Self::AbortedCommand => "ABORTED COMMAND",
            Self::Reserved => "RESERVED",
            Self::VolumeOverflow => "VOLUME OVERFLOW",
            Self::Miscompare => "MISCOMPARE",
            Self::Completed => "COMPLETED",
        })
    }
}

/// Location of the faulty field in a CDB or a parameter list (SPC-4 §4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// C/D: in the CDB, otherwise in the parameter list.
    pub in_cdb: bool,
    /// FIELD POINTER: the first byte of the field.
    pub byte: u16,
    /// BIT POINTER: the leftmost (most significant) bit of the field, 0 to 7; `None` for the whole
    /// byte.
    pub bit: Option<u8>,
}

/// SENSE KEY SPECIFIC (SPC-4 §4.5.2.4): the sense key determines the meaning of the three bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpecific {
    /// With ILLEGAL REQUEST.
    Field(FieldPointer),
    /// With NO SENSE and NOT READY: PROGRESS INDICATION, in 65536ths of the whole.
    Progress(u16),
    /// With HARDWARE ERROR, MEDIUM ERROR and RECOVERED ERROR: ACTUAL RETRY COUNT.
    Retries(u16),
    /// With COPY ABORTED: location of the error in the parameter list or, with `in_segment`, in the
    /// segment descriptor.
    Segment {
        /// SD: `byte` counts from the start of the segment descriptor, not of the parameter list.
        in_segment: bool,
        /// FIELD POINTER.
        byte: u16,
        /// BIT POINTER.
        bit: Option<u8>,
    },
    /// With UNIT ATTENTION: whether the queue of conditions overflowed.
    AttentionOverflow(bool),
}

/// Sense data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sense {
    /// SENSE KEY.
    pub key: SenseKey,
    /// ADDITIONAL SENSE CODE and its qualifier.
    pub additional: AdditionalSense,
    /// Whether it reports an earlier command (response codes 71h and 73h).
    pub deferred: bool,
    /// INFORMATION: for a disk, an LBA, or the offset of a miscompare. Fixed format includes it
    /// only if it fits 32 bits.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION. Fixed format includes it only if it fits 32 bits.
    pub command_specific: Option<u64>,
    /// SENSE KEY SPECIFIC.
    pub key_specific: Option<KeySpecific>,
    /// FILEMARK: streams only.
    pub filemark: bool,
    /// EOM: end of medium; streams only.
    pub end_of_medium: bool,
    /// ILI: the requested length differs from that of the logical block.
    pub incorrect_length: bool,
    /// Further sense data descriptors in wire format, one after the other (object-based storage
    /// defines some). Each has a type, a length and that many bytes. Only descriptor format
    /// includes them, up to [`Self::MAX_LEN`].
    pub descriptors: Vec<u8>,
}

impl Sense {
    /// The longest possible sense data, in bytes (SPC-4 §4.5.2.1).
    pub const MAX_LEN: usize = 252;

    /// Sense data with only a key and a code.
    pub const fn new(key: SenseKey, additional: AdditionalSense) -> Self {
        Self {
            key,
            additional,
            deferred: false,
            information: None,
            command_specific: None,
            key_specific: None,
            filemark: false,
            end_of_medium: false,
            incorrect_length: false,
            descriptors: Vec::new(),
        }
    }

    /// ILLEGAL REQUEST with `additional`.
    pub const fn illegal_request(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::IllegalRequest, additional)
    }

    /// The same sense with INFORMATION set.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The same sense with COMMAND-SPECIFIC INFORMATION set.
    #[must_use]
    pub const fn with_command_specific(mut self, value: u64) -> Self {
        self.command_specific = Some(value);
        self
    }

    /// The same sense with one more descriptor of its own format.
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: &[u8]) -> Self {
        self.descriptors.extend_from_slice(descriptor);
        self
    }

    /// The same sense with SENSE KEY SPECIFIC set.
    #[must_use]
    pub const fn with_key_specific(mut self, specific: KeySpecific) -> Self {
        self.key_specific = Some(specific);
        self
    }

    /// The same sense with PROGRESS INDICATION set, in 65536ths of the whole.
    #[must_use]
    pub const fn with_progress(self, progress: u16) -> Self {
        self.with_key_specific(KeySpecific::Progress(progress))
    }

    /// NO SENSE: the response to REQUEST SENSE if nothing is pending.
    pub const fn no_sense() -> Self {
        Self::new(SenseKey::NoSense, AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION)
    }

    /// INVALID COMMAND OPERATION CODE.
    pub const fn invalid_opcode() -> Self {
        Self::illegal_request(AdditionalSense::INVALID_COMMAND_OPERATION_CODE)
            .with_key_specific(KeySpecific::Field(FieldPointer { in_cdb: true, byte: 0, bit: None }))
    }

    /// INVALID FIELD IN CDB: the field starts at `byte`, and with `bit` at that (most significant)
    /// bit.
    pub const fn invalid_field_in_cdb(byte: u16, bit: Option<u8>) -> Self {
        Self::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB)
            .with_key_specific(KeySpecific::Field(FieldPointer { in_cdb: true, byte, bit }))
    }

    /// INVALID FIELD IN CDB at the SERVICE ACTION of byte 1: a known operation code, an unknown
    /// service action.
    pub const fn invalid_service_action() -> Self {
        Self::invalid_field_in_cdb(1, Some(4))
    }

    /// INVALID FIELD IN PARAMETER LIST: the field starts at `byte` of the data-out.
    pub const fn invalid_field_in_parameter_list(byte: u16, bit: Option<u8>) -> Self {
        Self::in_parameter_list(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST, byte, bit)
    }

    /// ILLEGAL REQUEST with `additional` and a pointer into the parameter list.
    pub const fn in_parameter_list(additional: AdditionalSense, byte: u16, bit: Option<u8>) -> Self {
        Self::illegal_request(additional).with_key_specific(KeySpecific::Field(FieldPointer {
            in_cdb: false,
            byte,
            bit,
        }))
    }

    /// PARAMETER LIST LENGTH ERROR: the parameter list is truncated or has an impossible length.
    pub const fn parameter_list_length_error() -> Self {
        Self::illegal_request(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)
    }

    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub const fn lba_out_of_range() -> Self {
        Self::illegal_request(AdditionalSense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE)
    }

    /// LOGICAL UNIT NOT SUPPORTED: no unit at this LUN.
    pub const fn logical_unit_not_supported() -> Self {
        Self::illegal_request(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED)
    }

    /// SAVING PARAMETERS NOT SUPPORTED.
    pub const fn saving_parameters_not_supported() -> Self {
        Self::illegal_request(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED)
    }

    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    pub const fn invalid_release() -> Self {
        Self::illegal_request(AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION)
    }

    /// INSUFFICIENT REGISTRATION RESOURCES.
    pub const fn insufficient_registration_resources() -> Self {
        Self::illegal_request(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES)
    }

    /// MEDIUM REMOVAL PREVENTED.
    pub const fn medium_removal_prevented() -> Self {
        Self::illegal_request(AdditionalSense::MEDIUM_REMOVAL_PREVENTED)
    }

    /// MISCOMPARE DURING VERIFY OPERATION. INFORMATION is the offset in bytes of the first
    /// difference, from the start of the data-out (SBC-3 §5.2 for COMPARE AND WRITE).
    pub const fn miscompare(offset: u64) -> Self {
        Self::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE_DURING_VERIFY_OPERATION)
            .with_information(offset)
    }

    /// MEDIUM ERROR, UNRECOVERED READ ERROR at `lba`.
    pub const fn unrecovered_read_error(lba: u64) -> Self {
        Self::medium_error(AdditionalSense::UNRECOVERED_READ_ERROR, lba)
    }

    /// MEDIUM ERROR, WRITE ERROR at `lba`.
    pub const fn write_error(lba: u64) -> Self {
        Self::medium_error(AdditionalSense::WRITE_ERROR, lba)
    }

    /// MEDIUM ERROR with `additional`; INFORMATION is `lba`.
    pub const fn medium_error(additional: AdditionalSense, lba: u64) -> Self {
        Self::new(SenseKey::MediumError, additional).with_information(lba)
    }

    /// HARDWARE ERROR, INTERNAL TARGET FAILURE.
    pub const fn internal_target_failure() -> Self {
        Self::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE)
    }

    /// DATA PROTECT, WRITE PROTECTED.
    pub const fn write_protected() -> Self {
        Self::new(SenseKey::DataProtect, AdditionalSense::WRITE_PROTECTED)
    }

    /// DATA PROTECT, LOGICAL UNIT SOFTWARE WRITE PROTECTED: SWP of the control mode page is one.
    pub const fn software_write_protected() -> Self {
        Self::new(SenseKey::DataProtect, AdditionalSense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)
    }

    /// DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT: the medium is full.
    pub const fn space_allocation_failed() -> Self {
        Self::new(SenseKey::DataProtect, AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT)
    }

    /// NOT READY with `additional`.
    pub const fn not_ready(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::NotReady, additional)
    }

    /// NOT READY, MEDIUM NOT PRESENT - TRAY OPEN: a removable unit that was ejected.
    pub const fn medium_not_present() -> Self {
        Self::not_ready(AdditionalSense::MEDIUM_NOT_PRESENT_TRAY_OPEN)
    }

    /// NOT READY, SANITIZE IN PROGRESS, with its progress in 65536ths.
    pub const fn sanitize_in_progress(progress: u16) -> Self {
        Self::not_ready(AdditionalSense::SANITIZE_IN_PROGRESS).with_progress(progress)
    }

    /// ABORTED COMMAND with `additional`.
    pub const fn aborted(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::AbortedCommand, additional)
    }

    /// ILLEGAL REQUEST, INSUFFICIENT RESOURCES.
    pub const fn insufficient_resources() -> Self {
        Self::illegal_request(AdditionalSense::INSUFFICIENT_RESOURCES)
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.additional)?;
        match self.key_specific {
            Some(KeySpecific::Field(p)) => {
                write!(f, ", {} byte {}", if p.in_cdb { "CDB" } else { "parameter list" }, p.byte)?;
                if let Some(bit) = p.bit {
                    write!(f, " bit {bit}")?;
                }
            }
            Some(KeySpecific::Progress(p)) => write!(f, ", {}% done", u32::from(p) * 100 / 65536)?,
            _ => {}
        }
        if let Some(information) = self.information {
            write!(f, ", information {information:#x}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Sense {}
