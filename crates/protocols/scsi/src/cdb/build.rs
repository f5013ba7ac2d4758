//! CDBs for initiators: each function returns the bytes of one command.

use arrayvec::ArrayVec;

use super::opcode as op;
use super::primary::PageControl;

/// A CDB of 6 to 16 bytes.
pub type CdbBytes = ArrayVec<u8, 16>;

/// The bits of byte 1 that READ and WRITE share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags {
    /// DPO: the data is unlikely to be accessed again soon.
    pub dpo: bool,
    /// FUA: access the medium, not only a volatile cache.
    pub fua: bool,
}

impl Flags {
    /// FUA alone.
    pub const FUA: Self = Self { dpo: false, fua: true };

    const fn bits(self) -> u8 {
        (self.dpo as u8) << 4 | (self.fua as u8) << 3
    }
}

#[inline]
fn cdb(parts: &[&[u8]]) -> CdbBytes {
    let mut bytes = CdbBytes::new();
    for part in parts {
        // No CDB here has more than 16 bytes.
        let _ = bytes.try_extend_from_slice(part);
    }
    bytes
}

fn ten(opcode: u8, flags: u8, lba: u32, len: u16) -> CdbBytes {
    cdb(&[&[opcode, flags], &lba.to_be_bytes(), &[0], &len.to_be_bytes(), &[0]])
}

fn twelve(opcode: u8, flags: u8, lba: u32, len: u32) -> CdbBytes {
    cdb(&[&[opcode, flags], &lba.to_be_bytes(), &len.to_be_bytes(), &[0, 0]])
}

fn sixteen(opcode: u8, flags: u8, lba: u64, len: u32) -> CdbBytes {
    cdb(&[&[opcode, flags], &lba.to_be_bytes(), &len.to_be_bytes(), &[0, 0]])
}

fn six(opcode: u8, rest: [u8; 4]) -> CdbBytes {
    cdb(&[&[opcode], &rest, &[0]])
}

/// TEST UNIT READY.
pub fn test_unit_ready() -> CdbBytes {
    six(op::TEST_UNIT_READY, [0; 4])
}

/// REQUEST SENSE; `descriptor` asks for descriptor format.
pub fn request_sense(descriptor: bool, allocation: u8) -> CdbBytes {
    six(op::REQUEST_SENSE, [u8::from(descriptor), 0, 0, allocation])
}

/// INQUIRY for standard data (`None`) or a VPD page.
pub fn inquiry(page: Option<u8>, allocation: u16) -> CdbBytes {
    let [high, low] = allocation.to_be_bytes();
    six(op::INQUIRY, [u8::from(page.is_some()), page.unwrap_or(0), high, low])
}

/// REPORT LUNS with a SELECT REPORT code.
pub fn report_luns(select: u8, allocation: u32) -> CdbBytes {
    cdb(&[&[op::REPORT_LUNS, 0, select, 0, 0, 0], &allocation.to_be_bytes(), &[0, 0]])
}

/// READ CAPACITY (10).
pub fn read_capacity10() -> CdbBytes {
    ten(op::READ_CAPACITY_10, 0, 0, 0)
}

/// READ CAPACITY (16).
pub fn read_capacity16(allocation: u32) -> CdbBytes {
    sixteen(op::SERVICE_ACTION_IN_16, op::SA_READ_CAPACITY_16, 0, allocation)
}

/// GET LBA STATUS (16).
pub fn get_lba_status(lba: u64, allocation: u32) -> CdbBytes {
    sixteen(op::SERVICE_ACTION_IN_16, op::SA_GET_LBA_STATUS, lba, allocation)
}

/// READ (10).
pub fn read10(lba: u32, blocks: u16, flags: Flags) -> CdbBytes {
    ten(op::READ_10, flags.bits(), lba, blocks)
}

/// READ (12).
pub fn read12(lba: u32, blocks: u32, flags: Flags) -> CdbBytes {
    twelve(op::READ_12, flags.bits(), lba, blocks)
}

/// READ (16).
pub fn read16(lba: u64, blocks: u32, flags: Flags) -> CdbBytes {
    sixteen(op::READ_16, flags.bits(), lba, blocks)
}

/// WRITE (10).
pub fn write10(lba: u32, blocks: u16, flags: Flags) -> CdbBytes {
    ten(op::WRITE_10, flags.bits(), lba, blocks)
}

/// WRITE (12).
pub fn write12(lba: u32, blocks: u32, flags: Flags) -> CdbBytes {
    twelve(op::WRITE_12, flags.bits(), lba, blocks)
}

/// WRITE (16).
pub fn write16(lba: u64, blocks: u32, flags: Flags) -> CdbBytes {
    sixteen(op::WRITE_16, flags.bits(), lba, blocks)
}

/// READ in the shorter of the 10- and 16-byte forms that can encode the range.
pub fn read(lba: u64, blocks: u32, flags: Flags) -> CdbBytes {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => read10(lba, blocks, flags),
        _ => read16(lba, blocks, flags),
    }
}

/// WRITE in the shorter of the 10- and 16-byte forms that can encode the range.
pub fn write(lba: u64, blocks: u32, flags: Flags) -> CdbBytes {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => write10(lba, blocks, flags),
        _ => write16(lba, blocks, flags),
    }
}

/// VERIFY (16); `byte_check` is BYTCHK: 0 no data, 1 as many blocks, 3 one block.
pub fn verify16(lba: u64, blocks: u32, byte_check: u8) -> CdbBytes {
    sixteen(op::VERIFY_16, (byte_check & 3) << 1, lba, blocks)
}

/// COMPARE AND WRITE; its data-out is `blocks` to compare and then `blocks` to write.
pub fn compare_and_write(lba: u64, blocks: u8, flags: Flags) -> CdbBytes {
    sixteen(op::COMPARE_AND_WRITE, flags.bits(), lba, u32::from(blocks))
}

/// WRITE SAME (16); with `no_data_out` (NDOB) the data is zeros and the initiator sends none.
pub fn write_same16(lba: u64, blocks: u32, unmap: bool, no_data_out: bool) -> CdbBytes {
    sixteen(op::WRITE_SAME_16, u8::from(unmap) << 3 | u8::from(no_data_out), lba, blocks)
}

/// UNMAP with a parameter list of `parameter_len` bytes.
pub fn unmap(parameter_len: u16) -> CdbBytes {
    ten(op::UNMAP, 0, 0, parameter_len)
}

/// SYNCHRONIZE CACHE (10) of the whole medium.
pub fn synchronize_cache10() -> CdbBytes {
    ten(op::SYNCHRONIZE_CACHE_10, 0, 0, 0)
}

/// SYNCHRONIZE CACHE (16); 0 blocks means all to the end of the medium.
pub fn synchronize_cache16(lba: u64, blocks: u32) -> CdbBytes {
    sixteen(op::SYNCHRONIZE_CACHE_16, 0, lba, blocks)
}

/// MODE SENSE (6).
pub fn mode_sense6(
    control: PageControl,
    page: u8,
    subpage: u8,
    no_descriptor: bool,
    allocation: u8,
) -> CdbBytes {
    let dbd = u8::from(no_descriptor) << 3;
    six(op::MODE_SENSE_6, [dbd, (control as u8) << 6 | (page & 0x3F), subpage, allocation])
}

/// MODE SENSE (10).
pub fn mode_sense10(
    control: PageControl,
    page: u8,
    subpage: u8,
    no_descriptor: bool,
    allocation: u16,
) -> CdbBytes {
    let dbd = u8::from(no_descriptor) << 3;
    let [high, low] = allocation.to_be_bytes();
    cdb(&[&[op::MODE_SENSE_10, dbd, (control as u8) << 6 | (page & 0x3F), subpage, 0, 0, 0, high, low, 0]])
}

/// MODE SELECT (6) with PF set.
pub fn mode_select6(save: bool, parameter_len: u8) -> CdbBytes {
    six(op::MODE_SELECT_6, [0x10 | u8::from(save), 0, 0, parameter_len])
}

/// MODE SELECT (10) with PF set.
pub fn mode_select10(save: bool, parameter_len: u16) -> CdbBytes {
    ten(op::MODE_SELECT_10, 0x10 | u8::from(save), 0, parameter_len)
}

/// START STOP UNIT.
pub fn start_stop_unit(start: bool, load_eject: bool) -> CdbBytes {
    six(op::START_STOP_UNIT, [0, 0, 0, u8::from(load_eject) << 1 | u8::from(start)])
}

/// REPORT SUPPORTED OPERATION CODES for all commands, optionally with timeouts.
pub fn report_supported_opcodes(timeouts: bool, allocation: u32) -> CdbBytes {
    let head = [op::MAINTENANCE_IN, op::SA_REPORT_SUPPORTED_OPCODES, u8::from(timeouts) << 7, 0, 0, 0];
    cdb(&[&head, &allocation.to_be_bytes(), &[0, 0]])
}

/// REPORT TARGET PORT GROUPS.
pub fn report_target_port_groups(allocation: u32) -> CdbBytes {
    let head = [op::MAINTENANCE_IN, op::SA_REPORT_TARGET_PORT_GROUPS, 0, 0, 0, 0];
    cdb(&[&head, &allocation.to_be_bytes(), &[0, 0]])
}

/// LOG SENSE for cumulative values.
pub fn log_sense(page: u8, subpage: u8, allocation: u16) -> CdbBytes {
    let [high, low] = allocation.to_be_bytes();
    cdb(&[&[op::LOG_SENSE, 0, 0x40 | (page & 0x3F), subpage, 0, 0, 0, high, low, 0]])
}

/// PERSISTENT RESERVE IN.
pub fn persistent_reserve_in(service_action: u8, allocation: u16) -> CdbBytes {
    ten(op::PERSISTENT_RESERVE_IN, service_action & 0x1F, 0, allocation)
}

/// PERSISTENT RESERVE OUT: SCOPE is 0, `kind` is TYPE.
pub fn persistent_reserve_out(service_action: u8, kind: u8, parameter_len: u32) -> CdbBytes {
    let head = [op::PERSISTENT_RESERVE_OUT, service_action & 0x1F, kind & 0x0F, 0, 0];
    cdb(&[&head, &parameter_len.to_be_bytes(), &[0]])
}
