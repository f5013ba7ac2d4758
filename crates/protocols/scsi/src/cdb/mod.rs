//! Command descriptor blocks: decodes bytes to a typed [`Command`] and, for initiators, encodes
//! fields to bytes ([`build`]).
//!
//! [`decode`] knows every command that a disk of this project supports. It rejects CDBs that no
//! unit could run: operation codes and service actions outside [`table`], reserved bits, protection
//! information, NACA. It knows no unit. The unit checks that a range is within the medium, that it
//! is thin or writable where required, and its limits.

pub mod block;
pub mod build;
pub mod opcode;
pub mod primary;
pub mod table;

pub use block::{
    ByteCheck, CacheRange, FormatUnit, GetLbaStatus, ReadDefectData, Sanitize, SanitizeAction, StartStopUnit,
    Transfer, Unmap, Verify, WriteAndVerify, WriteAtomic, WriteSame,
};
pub use primary::{
    Inquiry, LogSense, ModeSelect, ModeSense, PageControl, PersistentReserveIn, PersistentReserveOut,
    ReceiveCopyResults, ReportLuns, ReportSupportedOpcodes, ReportSupportedTmfs, ReportTargetPortGroups,
    ReportingOptions, SelectReport, SendDiagnostic, TokenCopy,
};

use crate::Sense;
use opcode as op;

/// A decoded CDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// READ (6, 10, 12, 16).
    Read(Transfer),
    /// WRITE (6, 10, 12, 16).
    Write(Transfer),
    /// WRITE AND VERIFY (10, 12, 16).
    WriteAndVerify(WriteAndVerify),
    /// VERIFY (10, 12, 16).
    Verify(Verify),
    /// COMPARE AND WRITE.
    CompareAndWrite(Transfer),
    /// ORWRITE (16).
    OrWrite(Transfer),
    /// WRITE SAME (10, 16).
    WriteSame(WriteSame),
    /// WRITE ATOMIC (16).
    WriteAtomic(WriteAtomic),
    /// UNMAP.
    Unmap(Unmap),
    /// PRE-FETCH (10, 16).
    PreFetch(CacheRange),
    /// SYNCHRONIZE CACHE (10, 16).
    SynchronizeCache(CacheRange),
    /// READ CAPACITY (10).
    ReadCapacity10,
    /// READ CAPACITY (16).
    ReadCapacity16 {
        /// ALLOCATION LENGTH in bytes.
        allocation: u32,
    },
    /// GET LBA STATUS (16).
    GetLbaStatus(GetLbaStatus),
    /// READ DEFECT DATA (10, 12).
    ReadDefectData(ReadDefectData),
    /// SANITIZE.
    Sanitize(Sanitize),
    /// FORMAT UNIT.
    FormatUnit(FormatUnit),
    /// START STOP UNIT.
    StartStopUnit(StartStopUnit),
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PreventAllowMediumRemoval {
        /// PREVENT: 0 allows removal; bit 0 prevents removal of the medium; bit 1 is for media
        /// changers.
        prevent: u8,
    },
    /// TEST UNIT READY.
    TestUnitReady,
    /// REQUEST SENSE.
    RequestSense {
        /// DESC: descriptor format.
        descriptor: bool,
        /// ALLOCATION LENGTH in bytes.
        allocation: u8,
    },
    /// INQUIRY.
    Inquiry(Inquiry),
    /// MODE SENSE (6, 10).
    ModeSense(ModeSense),
    /// MODE SELECT (6, 10).
    ModeSelect(ModeSelect),
    /// LOG SENSE.
    LogSense(LogSense),
    /// SEND DIAGNOSTIC.
    SendDiagnostic(SendDiagnostic),
    /// RESERVE (6, 10) of the whole unit for the sender itself.
    Reserve,
    /// RELEASE (6, 10).
    Release,
    /// PERSISTENT RESERVE IN.
    PersistentReserveIn(PersistentReserveIn),
    /// PERSISTENT RESERVE OUT.
    PersistentReserveOut(PersistentReserveOut),
    /// EXTENDED COPY (LID1).
    ExtendedCopy {
        /// PARAMETER LIST LENGTH in bytes; 0 is no error and copies nothing.
        parameter_len: u32,
    },
    /// EXTENDED COPY (LID4).
    ExtendedCopyLid4 {
        /// PARAMETER LIST LENGTH in bytes; 0 is no error and copies nothing.
        parameter_len: u32,
    },
    /// POPULATE TOKEN.
    PopulateToken(TokenCopy),
    /// WRITE USING TOKEN.
    WriteUsingToken(TokenCopy),
    /// COPY OPERATION ABORT.
    CopyOperationAbort {
        /// LIST IDENTIFIER.
        list_id: u32,
    },
    /// RECEIVE COPY RESULTS.
    ReceiveCopyResults(ReceiveCopyResults),
    /// REPORT LUNS.
    ReportLuns(ReportLuns),
    /// REPORT TARGET PORT GROUPS.
    ReportTargetPortGroups(ReportTargetPortGroups),
    /// SET TARGET PORT GROUPS.
    SetTargetPortGroups {
        /// PARAMETER LIST LENGTH in bytes; 0 is no error and changes nothing.
        parameter_len: u32,
    },
    /// REPORT SUPPORTED OPERATION CODES.
    ReportSupportedOpcodes(ReportSupportedOpcodes),
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    ReportSupportedTmfs(ReportSupportedTmfs),
    /// REPORT TIMESTAMP.
    ReportTimestamp {
        /// ALLOCATION LENGTH in bytes.
        allocation: u32,
    },
}

impl Command {
    /// Whether the command writes the medium: a write-protected unit rejects it.
    pub const fn writes_medium(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::WriteAndVerify(_)
                | Self::CompareAndWrite(_)
                | Self::OrWrite(_)
                | Self::WriteSame(_)
                | Self::WriteAtomic(_)
                | Self::Unmap(_)
                | Self::Sanitize(_)
                | Self::FormatUnit(_)
                | Self::WriteUsingToken(_)
        )
    }

    /// Whether the command needs a medium: a removable unit without one rejects it with NOT READY.
    pub const fn needs_medium(&self) -> bool {
        self.writes_medium()
            || matches!(
                self,
                Self::Read(_)
                    | Self::Verify(_)
                    | Self::PreFetch(_)
                    | Self::SynchronizeCache(_)
                    | Self::ReadCapacity10
                    | Self::ReadCapacity16 { .. }
                    | Self::GetLbaStatus(_)
                    | Self::ReadDefectData(_)
                    | Self::TestUnitReady
                    | Self::ExtendedCopy { .. }
                    | Self::ExtendedCopyLid4 { .. }
                    | Self::PopulateToken(_)
            )
    }
}

/// A CDB's first 16 bytes, padded with zeros, for field access at constant offsets without a bounds
/// check.
struct Bytes([u8; 16]);

impl Bytes {
    #[inline]
    fn new(cdb: &[u8]) -> Self {
        if let Some(all) = cdb.first_chunk::<16>() {
            return Self(*all);
        }
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        Self(padded)
    }
    #[inline]
    fn bit(&self, byte: usize, mask: u8) -> bool {
        self.0[byte] & mask != 0
    }
    #[inline]
    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
    #[inline]
    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
    #[inline]
    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }
}

/// Decodes a CDB. `cdb` may be longer than the command, as in iSCSI's field of 16 bytes.
///
/// # Errors
/// The sense data for the response: INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB with a
/// pointer to the field.
#[inline]
pub fn decode(cdb: &[u8]) -> Result<Command, Sense> {
    let b = Bytes::new(cdb);
    let check = |entry: &table::Entry| entry.check(&b.0, cdb.len());
    // The data path first. The rest is a separate function, so that this one stays small enough to
    // be inlined.
    Ok(match b.0[0] {
        op::READ_10 => check(&table::READ_10).map(|()| Command::Read(block::transfer_10(&b)))?,
        op::WRITE_10 => check(&table::WRITE_10).map(|()| Command::Write(block::transfer_10(&b)))?,
        op::READ_16 => check(&table::READ_16).map(|()| Command::Read(block::transfer_16(&b)))?,
        op::WRITE_16 => check(&table::WRITE_16).map(|()| Command::Write(block::transfer_16(&b)))?,
        _ if cdb.is_empty() => return Err(Sense::invalid_opcode()),
        _ => return decode_other(&b, cdb.len()),
    })
}

#[inline(never)]
fn decode_other(b: &Bytes, len: usize) -> Result<Command, Sense> {
    let opcode = b.0[0];
    match opcode {
        // Operation codes with service actions check their table entry once the service action is
        // known.
        op::SANITIZE => return block::sanitize(b, len).map(Command::Sanitize),
        op::PERSISTENT_RESERVE_IN => {
            return primary::persistent_reserve_in(b, len).map(Command::PersistentReserveIn);
        }
        op::PERSISTENT_RESERVE_OUT => {
            return primary::persistent_reserve_out(b, len).map(Command::PersistentReserveOut);
        }
        op::RECEIVE_COPY_RESULTS => {
            return primary::receive_copy_results(b, len).map(Command::ReceiveCopyResults);
        }
        op::EXTENDED_COPY | op::SERVICE_ACTION_IN_16 | op::MAINTENANCE_IN | op::MAINTENANCE_OUT => {
            return decode_service_action(b, len);
        }
        _ => {}
    }
    let Some(entry) = table::find(opcode, None) else { return Err(Sense::invalid_opcode()) };
    entry.check(&b.0, len)?;
    Ok(match opcode {
        op::TEST_UNIT_READY => Command::TestUnitReady,
        op::REQUEST_SENSE => Command::RequestSense { descriptor: b.bit(1, 0x01), allocation: b.0[4] },
        op::FORMAT_UNIT => Command::FormatUnit(block::format_unit(b)?),
        op::READ_6 => Command::Read(block::transfer_6(b)),
        op::WRITE_6 => Command::Write(block::transfer_6(b)),
        op::INQUIRY => Command::Inquiry(primary::inquiry(b)?),
        op::MODE_SELECT_6 => Command::ModeSelect(primary::mode_select(b, false)),
        op::MODE_SELECT_10 => Command::ModeSelect(primary::mode_select(b, true)),
        op::MODE_SENSE_6 => Command::ModeSense(primary::mode_sense(b, false)),
        op::MODE_SENSE_10 => Command::ModeSense(primary::mode_sense(b, true)),
        op::RESERVE_6 | op::RESERVE_10 => Command::Reserve,
        op::RELEASE_6 | op::RELEASE_10 => Command::Release,
        op::START_STOP_UNIT => Command::StartStopUnit(block::start_stop_unit(b)),
        op::SEND_DIAGNOSTIC => Command::SendDiagnostic(primary::send_diagnostic(b)),
        op::PREVENT_ALLOW_MEDIUM_REMOVAL => Command::PreventAllowMediumRemoval { prevent: b.0[4] & 3 },
        op::READ_CAPACITY_10 => Command::ReadCapacity10,
        op::WRITE_AND_VERIFY_10 => {
            Command::WriteAndVerify(block::write_and_verify(b, block::transfer_10(b))?)
        }
        op::WRITE_AND_VERIFY_12 => {
            Command::WriteAndVerify(block::write_and_verify(b, block::transfer_12(b))?)
        }
        op::WRITE_AND_VERIFY_16 => {
            Command::WriteAndVerify(block::write_and_verify(b, block::transfer_16(b))?)
        }
        op::VERIFY_10 => Command::Verify(block::verify(b, block::transfer_10(b))?),
        op::VERIFY_12 => Command::Verify(block::verify(b, block::transfer_12(b))?),
        op::VERIFY_16 => Command::Verify(block::verify(b, block::transfer_16(b))?),
        op::PRE_FETCH_10 => Command::PreFetch(block::cache_range(b, block::transfer_10(b))),
        op::PRE_FETCH_16 => Command::PreFetch(block::cache_range(b, block::transfer_16(b))),
        op::SYNCHRONIZE_CACHE_10 => Command::SynchronizeCache(block::cache_range(b, block::transfer_10(b))),
        op::SYNCHRONIZE_CACHE_16 => Command::SynchronizeCache(block::cache_range(b, block::transfer_16(b))),
        op::READ_DEFECT_DATA_10 => Command::ReadDefectData(block::read_defect_data(b, false)),
        op::READ_DEFECT_DATA_12 => Command::ReadDefectData(block::read_defect_data(b, true)),
        op::WRITE_SAME_10 => Command::WriteSame(block::write_same(b, block::transfer_10(b))?),
        op::WRITE_SAME_16 => Command::WriteSame(block::write_same(b, block::transfer_16(b))?),
        op::UNMAP => Command::Unmap(Unmap { anchor: b.bit(1, 0x01), parameter_len: b.u16(7) }),
        op::LOG_SENSE => Command::LogSense(primary::log_sense(b)),
        op::COMPARE_AND_WRITE => Command::CompareAndWrite(block::compare_and_write(b)),
        op::ORWRITE_16 => Command::OrWrite(block::transfer_16(b)),
        op::WRITE_ATOMIC_16 => Command::WriteAtomic(block::write_atomic(b)),
        op::REPORT_LUNS => Command::ReportLuns(primary::report_luns(b)?),
        op::READ_12 => Command::Read(block::transfer_12(b)),
        op::WRITE_12 => Command::Write(block::transfer_12(b)),
        _ => return Err(Sense::invalid_opcode()),
    })
}

fn decode_service_action(b: &Bytes, len: usize) -> Result<Command, Sense> {
    let action = b.0[1] & 0x1F;
    let Some(entry) = table::find(b.0[0], Some(action)) else { return Err(Sense::invalid_service_action()) };
    entry.check(&b.0, len)?;
    Ok(match (b.0[0], action) {
        (op::EXTENDED_COPY, 0) => Command::ExtendedCopy { parameter_len: b.u32(10) },
        (op::EXTENDED_COPY, op::SA_EXTENDED_COPY_LID4) => {
            Command::ExtendedCopyLid4 { parameter_len: b.u32(10) }
        }
        (op::EXTENDED_COPY, op::SA_POPULATE_TOKEN) => Command::PopulateToken(primary::token_copy(b)),
        (op::EXTENDED_COPY, op::SA_WRITE_USING_TOKEN) => Command::WriteUsingToken(primary::token_copy(b)),
        (op::EXTENDED_COPY, op::SA_COPY_OPERATION_ABORT) => Command::CopyOperationAbort { list_id: b.u32(2) },
        (op::SERVICE_ACTION_IN_16, op::SA_READ_CAPACITY_16) => {
            Command::ReadCapacity16 { allocation: b.u32(10) }
        }
        (op::SERVICE_ACTION_IN_16, op::SA_GET_LBA_STATUS) => {
            Command::GetLbaStatus(GetLbaStatus { lba: b.u64(2), allocation: b.u32(10) })
        }
        (op::MAINTENANCE_IN, op::SA_REPORT_TARGET_PORT_GROUPS) => {
            Command::ReportTargetPortGroups(primary::report_target_port_groups(b)?)
        }
        (op::MAINTENANCE_OUT, op::SA_SET_TARGET_PORT_GROUPS) => {
            Command::SetTargetPortGroups { parameter_len: b.u32(6) }
        }
        (op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_OPCODES) => {
            Command::ReportSupportedOpcodes(primary::report_supported_opcodes(b)?)
        }
        (op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_TMFS) => {
            Command::ReportSupportedTmfs(primary::report_supported_tmfs(b))
        }
        (op::MAINTENANCE_IN, op::SA_REPORT_TIMESTAMP) => Command::ReportTimestamp { allocation: b.u32(6) },
        _ => return Err(Sense::invalid_service_action()),
    })
}

#[cfg(test)]
mod tests;
