//! What a store's errors mean in sense data.

use device::Outcome;
use scsi::{AdditionalSense, Sense, SenseKey};

use backing::StoreError;

/// A read failed at `lba`.
pub(super) fn read_error(error: StoreError, lba: u64) -> Sense {
    match error {
        StoreError::NoMemory => out_of_buffers(),
        // The medium shrank under us: what the initiator asks for is gone.
        StoreError::OutOfRange => Sense::medium_error(AdditionalSense::UNRECOVERED_READ_ERROR, lba),
        StoreError::Io(_) | StoreError::NoSpace | StoreError::ReadOnly => Sense::unrecovered_read_error(lba),
        StoreError::Unsupported => Sense::internal_target_failure(),
    }
}

/// A write, a deallocation or a synchronisation failed at `lba`.
pub(super) fn write_error(error: StoreError, lba: u64) -> Sense {
    match error {
        StoreError::NoSpace => Sense::space_allocation_failed(),
        StoreError::ReadOnly => Sense::write_protected(),
        StoreError::NoMemory => out_of_buffers(),
        StoreError::OutOfRange | StoreError::Io(_) => Sense::write_error(lba),
        StoreError::Unsupported => Sense::internal_target_failure(),
    }
}

/// Nothing was done; the initiator may try again.
pub(super) fn out_of_buffers() -> Sense {
    Sense::aborted(AdditionalSense::INSUFFICIENT_RESOURCES)
}

/// The initiator's expected data-out length is not what the CDB calls for: ILLEGAL REQUEST, INVALID FIELD IN COMMAND
/// INFORMATION UNIT, the way that FCP-4 §9.4.2 gives to answer without touching the medium.
pub(super) fn wrong_data_length(wanted_out: u64) -> Outcome {
    let sense = Sense::new(SenseKey::IllegalRequest, AdditionalSense::new(0x0e, 0x03));
    Outcome { wanted_out, ..Outcome::check(sense) }
}

/// The same for commands whose data-out has one length that makes sense: INVALID FIELD IN CDB, at the block count.
pub(super) fn not_the_data(wanted_out: u64, byte: u16) -> Outcome {
    Outcome { wanted_out, ..Sense::invalid_field_in_cdb(byte, None).into() }
}

/// Data-out ended early though the expected length promised all of it.
pub(super) fn short_data() -> Outcome {
    Sense::aborted(AdditionalSense::DATA_PHASE_ERROR).into()
}
