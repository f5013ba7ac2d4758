//! Maps a store's errors to sense data.

use device::Outcome;
use scsi::{AdditionalSense, Sense, SenseKey};

use backing::StoreError;

/// The sense data of a read that failed at `lba`.
pub(super) fn read_error(error: StoreError, lba: u64) -> Sense {
    match error {
        StoreError::NoMemory => out_of_buffers(),
        // The medium shrank: the requested blocks no longer exist.
        StoreError::OutOfRange => Sense::medium_error(AdditionalSense::UNRECOVERED_READ_ERROR, lba),
        StoreError::Io(_) | StoreError::NoSpace | StoreError::ReadOnly => Sense::unrecovered_read_error(lba),
        StoreError::Unsupported => Sense::internal_target_failure(),
        StoreError::Unknown | StoreError::Fenced => out_of_reach(),
    }
}

/// The sense data of a write, deallocation or synchronisation that failed at `lba`.
pub(super) fn write_error(error: StoreError, lba: u64) -> Sense {
    match error {
        StoreError::NoSpace => Sense::space_allocation_failed(),
        StoreError::ReadOnly => Sense::write_protected(),
        StoreError::NoMemory => out_of_buffers(),
        StoreError::OutOfRange | StoreError::Io(_) => Sense::write_error(lba),
        StoreError::Unsupported => Sense::internal_target_failure(),
        StoreError::Unknown | StoreError::Fenced => out_of_reach(),
    }
}

/// The medium is intact, but not to be reached from here: another path may reach it. An initiator
/// does not change the path after a MEDIUM ERROR, and retries on the same path after ABORTED
/// COMMAND.
pub(super) fn out_of_reach() -> Sense {
    Sense::not_ready(AdditionalSense::TARGET_PORT_IN_UNAVAILABLE_STATE)
}

/// The command had no effect; the initiator may retry.
pub(super) fn out_of_buffers() -> Sense {
    Sense::aborted(AdditionalSense::INSUFFICIENT_RESOURCES)
}

/// The initiator's expected data-out length differs from the CDB's: ILLEGAL REQUEST, INVALID FIELD
/// IN COMMAND INFORMATION UNIT. FCP-4 §9.4.2 allows this response without touching the medium.
pub(super) fn wrong_data_length(wanted_out: u64) -> Outcome {
    let sense = Sense::new(SenseKey::IllegalRequest, AdditionalSense::new(0x0e, 0x03));
    Outcome { wanted_out, ..Outcome::check(sense) }
}

/// The same for commands with only one valid length of data-out: INVALID FIELD IN CDB, at the block
/// count.
pub(super) fn not_the_data(wanted_out: u64, byte: u16) -> Outcome {
    Outcome { wanted_out, ..Sense::invalid_field_in_cdb(byte, None).into() }
}

/// Data-out ended before the expected length.
pub(super) fn short_data() -> Outcome {
    Sense::aborted(AdditionalSense::DATA_PHASE_ERROR).into()
}
