//! The commands of SPC-4: identification, configuration and access control of a unit.

use super::{Bytes, table};
use crate::Sense;
use crate::copy::ResultsAction;
use crate::reservation::{InAction, OutAction};

/// INQUIRY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The requested VPD page (EVPD and PAGE CODE); `None` for standard INQUIRY data.
    pub page: Option<u8>,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u16,
}

/// PC: the kind of values of mode or log parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// 00b: current values (LOG SENSE: threshold values).
    Current,
    /// 01b: mask of the bits that MODE SELECT can change (LOG SENSE: cumulative values).
    Changeable,
    /// 10b: default values.
    Default,
    /// 11b: saved values.
    Saved,
}

impl PageControl {
    /// From the two bits.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Current,
            1 => Self::Changeable,
            2 => Self::Default,
            _ => Self::Saved,
        }
    }
}

/// MODE SENSE (6, 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSense {
    /// DBD: no block descriptors.
    pub no_block_descriptor: bool,
    /// LLBAA: a long LBA block descriptor may be returned. MODE SENSE (10) only.
    pub long_lba_accepted: bool,
    /// PC.
    pub control: PageControl,
    /// PAGE CODE; 3Fh for all pages.
    pub page: u8,
    /// SUBPAGE CODE; FFh for all subpages.
    pub subpage: u8,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u16,
    /// The 10-byte form, whose header has 8 bytes instead of 4.
    pub long: bool,
}

/// MODE SELECT (6, 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSelect {
    /// PF: mode pages follow the block descriptors.
    pub page_format: bool,
    /// SP: also save the pages.
    pub save: bool,
    /// PARAMETER LIST LENGTH in bytes; 0 is no error and does nothing.
    pub parameter_len: u16,
    /// The 10-byte form.
    pub long: bool,
}

/// LOG SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSense {
    /// SP: save parameters.
    pub save: bool,
    /// PC.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// PARAMETER POINTER: the first parameter code to return.
    pub pointer: u16,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u16,
}

/// SEND DIAGNOSTIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDiagnostic {
    /// SELF-TEST CODE; 0 if `self_test` selects the test.
    pub code: u8,
    /// PF.
    pub page_format: bool,
    /// SELFTEST: run the default self-test.
    pub self_test: bool,
    /// PARAMETER LIST LENGTH in bytes.
    pub parameter_len: u16,
}

/// PERSISTENT RESERVE IN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentReserveIn {
    /// SERVICE ACTION.
    pub action: InAction,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u16,
}

/// PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentReserveOut {
    /// SERVICE ACTION.
    pub action: OutAction,
    /// SCOPE; only 0, LU_SCOPE, is in use. Its meaning depends on the action, so it is not checked
    /// here.
    pub scope: u8,
    /// TYPE, four bits, unchecked: [`crate::reservation::ReservationType::from_code`] reads them.
    pub kind: u8,
    /// PARAMETER LIST LENGTH in bytes.
    pub parameter_len: u32,
}

/// RECEIVE COPY RESULTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCopyResults {
    /// SERVICE ACTION.
    pub action: ResultsAction,
    /// LIST IDENTIFIER: one byte, or four for the service actions of LID4.
    pub list_id: u32,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

/// POPULATE TOKEN and WRITE USING TOKEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCopy {
    /// LIST IDENTIFIER.
    pub list_id: u32,
    /// PARAMETER LIST LENGTH in bytes; 0 is no error and does nothing.
    pub parameter_len: u32,
}

/// SELECT REPORT of REPORT LUNS (SPC-4 table 288).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectReport {
    /// 00h: units with peripheral, flat or hierarchical addresses, without well known units.
    Addressable,
    /// 01h: well known units only.
    WellKnown,
    /// 02h: all units.
    All,
}

/// REPORT LUNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportLuns {
    /// SELECT REPORT.
    pub select: SelectReport,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

/// REPORT TARGET PORT GROUPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportTargetPortGroups {
    /// PARAMETER DATA FORMAT is 001b: with the extended header.
    pub extended: bool,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

/// REPORTING OPTIONS of REPORT SUPPORTED OPERATION CODES (SPC-4 table 304).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportingOptions {
    /// 000b: all commands.
    All,
    /// 001b: one operation code that has no service actions.
    Opcode(u8),
    /// 010b: one operation code and service action.
    ServiceAction(u8, u16),
    /// 011b: one operation code, with the service action if it has any.
    Either(u8, u16),
}

/// REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportSupportedOpcodes {
    /// REPORTING OPTIONS and the requested command.
    pub options: ReportingOptions,
    /// RCTD: with command timeouts descriptors.
    pub timeouts: bool,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportSupportedTmfs {
    /// REPD: the extended data with timeouts.
    pub extended: bool,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

pub(super) fn inquiry(b: &Bytes) -> Result<Inquiry, Sense> {
    let evpd = b.bit(1, 0x01);
    if !evpd && b.0[2] != 0 {
        return Err(Sense::invalid_field_in_cdb(2, None));
    }
    Ok(Inquiry { page: evpd.then_some(b.0[2]), allocation: b.u16(3) })
}

pub(super) fn mode_sense(b: &Bytes, long: bool) -> ModeSense {
    ModeSense {
        no_block_descriptor: b.bit(1, 0x08),
        long_lba_accepted: long && b.bit(1, 0x10),
        control: PageControl::from_bits(b.0[2] >> 6),
        page: b.0[2] & 0x3F,
        subpage: b.0[3],
        allocation: if long { b.u16(7) } else { u16::from(b.0[4]) },
        long,
    }
}

pub(super) fn mode_select(b: &Bytes, long: bool) -> ModeSelect {
    ModeSelect {
        page_format: b.bit(1, 0x10),
        save: b.bit(1, 0x01),
        parameter_len: if long { b.u16(7) } else { u16::from(b.0[4]) },
        long,
    }
}

pub(super) fn log_sense(b: &Bytes) -> LogSense {
    LogSense {
        save: b.bit(1, 0x01),
        control: PageControl::from_bits(b.0[2] >> 6),
        page: b.0[2] & 0x3F,
        subpage: b.0[3],
        pointer: b.u16(5),
        allocation: b.u16(7),
    }
}

pub(super) fn send_diagnostic(b: &Bytes) -> SendDiagnostic {
    SendDiagnostic {
        code: b.0[1] >> 5,
        page_format: b.bit(1, 0x10),
        self_test: b.bit(1, 0x04),
        parameter_len: b.u16(3),
    }
}

/// Rejects a service action outside the table, and reserved bits that are set.
fn check_action(b: &Bytes, len: usize) -> Result<u8, Sense> {
    let action = b.0[1] & 0x1F;
    let entry = table::find(b.0[0], Some(action)).ok_or(Sense::invalid_service_action())?;
    entry.check(&b.0, len)?;
    Ok(action)
}

pub(super) fn persistent_reserve_in(b: &Bytes, len: usize) -> Result<PersistentReserveIn, Sense> {
    let action = InAction::from_code(check_action(b, len)?).ok_or(Sense::invalid_service_action())?;
    Ok(PersistentReserveIn { action, allocation: b.u16(7) })
}

pub(super) fn persistent_reserve_out(b: &Bytes, len: usize) -> Result<PersistentReserveOut, Sense> {
    let action = OutAction::from_code(check_action(b, len)?).ok_or(Sense::invalid_service_action())?;
    Ok(PersistentReserveOut { action, scope: b.0[2] >> 4, kind: b.0[2] & 0x0F, parameter_len: b.u32(5) })
}

pub(super) fn receive_copy_results(b: &Bytes, len: usize) -> Result<ReceiveCopyResults, Sense> {
    let action = ResultsAction::from_code(check_action(b, len)?).ok_or(Sense::invalid_service_action())?;
    let list_id = match action {
        ResultsAction::CopyStatusLid4 | ResultsAction::RodTokenInformation => b.u32(2),
        _ => b.0[2].into(),
    };
    Ok(ReceiveCopyResults { action, list_id, allocation: b.u32(10) })
}

pub(super) fn token_copy(b: &Bytes) -> TokenCopy {
    TokenCopy { list_id: b.u32(6), parameter_len: b.u32(10) }
}

pub(super) fn report_luns(b: &Bytes) -> Result<ReportLuns, Sense> {
    let select = match b.0[2] {
        0 => SelectReport::Addressable,
        1 => SelectReport::WellKnown,
        2 => SelectReport::All,
        _ => return Err(Sense::invalid_field_in_cdb(2, None)),
    };
    Ok(ReportLuns { select, allocation: b.u32(6) })
}

pub(super) fn report_target_port_groups(b: &Bytes) -> Result<ReportTargetPortGroups, Sense> {
    let extended = match b.0[1] >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(7))),
    };
    Ok(ReportTargetPortGroups { extended, allocation: b.u32(6) })
}

pub(super) fn report_supported_opcodes(b: &Bytes) -> Result<ReportSupportedOpcodes, Sense> {
    let (opcode, action) = (b.0[3], b.u16(4));
    let options = match b.0[2] & 7 {
        0 => ReportingOptions::All,
        1 => ReportingOptions::Opcode(opcode),
        2 => ReportingOptions::ServiceAction(opcode, action),
        3 => ReportingOptions::Either(opcode, action),
        _ => return Err(Sense::invalid_field_in_cdb(2, Some(2))),
    };
    Ok(ReportSupportedOpcodes { options, timeouts: b.bit(2, 0x80), allocation: b.u32(6) })
}

pub(super) fn report_supported_tmfs(b: &Bytes) -> ReportSupportedTmfs {
    ReportSupportedTmfs { extended: b.bit(2, 0x80), allocation: b.u32(6) }
}
