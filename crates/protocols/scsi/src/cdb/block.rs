//! The commands of SBC-3 and SBC-4: reads, writes, and operations on blocks in place.
//!
//! Owns their fields and the errors that the CDB alone shows. The unit checks everything that
//! depends on the unit: capacity, limits, thin provisioning.

use super::{Bytes, table};
use crate::Sense;

/// A command that transfers `blocks` starting at `lba`: READ, WRITE, ORWRITE, COMPARE AND WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// LOGICAL BLOCK ADDRESS of the first block.
    pub lba: u64,
    /// TRANSFER LENGTH in blocks; 0 transfers nothing. READ (6) and WRITE (6) encode 256 as 0; here
    /// it is 256. For COMPARE AND WRITE: the blocks to compare and then to write; its data-out is
    /// twice as long.
    pub blocks: u32,
    /// DPO: the data is unlikely to be accessed again soon.
    pub dpo: bool,
    /// FUA: access the medium, not only a volatile cache.
    pub fua: bool,
}

/// BYTCHK of VERIFY (SBC-3 table 112): the data-out to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteCheck {
    /// 00b: no data-out; the medium is read and thereby verified.
    Medium,
    /// 01b: data-out holds as many blocks as are verified; each is compared.
    Blocks,
    /// 11b: data-out holds one block, to compare with each verified block.
    OneBlock,
}

/// VERIFY (10, 12, 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// VERIFICATION LENGTH in blocks; 0 verifies nothing.
    pub blocks: u32,
    /// BYTCHK.
    pub check: ByteCheck,
    /// DPO.
    pub dpo: bool,
}

impl Verify {
    /// Number of blocks of data-out that the command requires.
    pub const fn blocks_out(&self) -> u32 {
        match self.check {
            ByteCheck::Medium => 0,
            ByteCheck::Blocks => self.blocks,
            ByteCheck::OneBlock if self.blocks == 0 => 0,
            ByteCheck::OneBlock => 1,
        }
    }
}

/// WRITE AND VERIFY (10, 12, 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAndVerify {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// TRANSFER LENGTH in blocks.
    pub blocks: u32,
    /// BYTCHK is 01b: compare the written blocks with the data-out, not only read them.
    pub compare: bool,
    /// DPO.
    pub dpo: bool,
}

/// WRITE SAME (10, 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSame {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// NUMBER OF LOGICAL BLOCKS; 0 means all to the end of the medium, unless WSNZ of the Block
    /// Limits page is one.
    pub blocks: u32,
    /// UNMAP: the blocks may be deallocated instead, if they then read as the data-out.
    pub unmap: bool,
    /// ANCHOR: with `unmap`, anchor instead.
    pub anchor: bool,
    /// NDOB: no data-out; the data is zeros. WRITE SAME (16) only.
    pub no_data_out: bool,
}

/// WRITE ATOMIC (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAtomic {
    /// The range and its DPO and FUA.
    pub transfer: Transfer,
    /// ATOMIC BOUNDARY in blocks: 0 asks for one atomic write, otherwise one atomic write per so
    /// many blocks.
    pub boundary: u16,
}

/// UNMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// ANCHOR.
    pub anchor: bool,
    /// PARAMETER LIST LENGTH in bytes; 0 is no error and does nothing.
    pub parameter_len: u16,
}

/// PRE-FETCH and SYNCHRONIZE CACHE (10, 16): a range of blocks to transfer between cache and
/// medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRange {
    /// LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// Blocks; 0 means all to the end of the medium.
    pub blocks: u32,
    /// IMMED: return status before the work is done.
    pub immediate: bool,
}

/// GET LBA STATUS (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLbaStatus {
    /// STARTING LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
}

/// The operation of SANITIZE (SBC-3 table 84).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeAction {
    /// OVERWRITE with the pattern of the parameter list.
    Overwrite,
    /// BLOCK ERASE.
    BlockErase,
    /// CRYPTOGRAPHIC ERASE.
    CryptographicErase,
    /// EXIT FAILURE MODE.
    ExitFailureMode,
}

/// SANITIZE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// SERVICE ACTION.
    pub action: SanitizeAction,
    /// IMMED: return status before the work is done.
    pub immediate: bool,
    /// AUSE: EXIT FAILURE MODE is allowed after a failed sanitize.
    pub allow_unrestricted_exit: bool,
    /// PARAMETER LIST LENGTH in bytes: at least 5 with OVERWRITE, 0 with the others. The unit
    /// checks the maximum for OVERWRITE, which is the block length plus 4.
    pub parameter_len: u16,
}

/// FORMAT UNIT without protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatUnit {
    /// FMTDATA: the command has a parameter list.
    pub has_data: bool,
    /// LONGLIST: its header is 8 bytes long, not 4.
    pub long_list: bool,
    /// CMPLST: its defect list replaces the grown one.
    pub complete_list: bool,
    /// DEFECT LIST FORMAT.
    pub defect_list_format: u8,
}

/// START STOP UNIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartStopUnit {
    /// IMMED.
    pub immediate: bool,
    /// POWER CONDITION MODIFIER.
    pub power_condition_modifier: u8,
    /// POWER CONDITION; if it is not 0, ignore `start` and `load_eject` (SBC-3 §5.25).
    pub power_condition: u8,
    /// NO_FLUSH: do not write caches to the medium first.
    pub no_flush: bool,
    /// LOEJ: load or eject the medium, depending on `start`.
    pub load_eject: bool,
    /// START.
    pub start: bool,
}

/// READ DEFECT DATA (10, 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDefectData {
    /// REQ_PLIST: return the primary list.
    pub primary: bool,
    /// REQ_GLIST: return the grown list.
    pub grown: bool,
    /// DEFECT LIST FORMAT of the response.
    pub format: u8,
    /// ADDRESS DESCRIPTOR INDEX; 0 in the 10-byte form.
    pub index: u32,
    /// ALLOCATION LENGTH in bytes.
    pub allocation: u32,
    /// The 12-byte form, whose header is longer.
    pub long: bool,
}

const DPO: u8 = 0x10;
const FUA: u8 = 0x08;

#[inline]
pub(super) fn transfer_6(b: &Bytes) -> Transfer {
    let lba = u32::from_be_bytes([0, b.0[1] & 0x1F, b.0[2], b.0[3]]);
    let blocks = if b.0[4] == 0 { 256 } else { u32::from(b.0[4]) };
    Transfer { lba: u64::from(lba), blocks, dpo: false, fua: false }
}

#[inline]
pub(super) fn transfer_10(b: &Bytes) -> Transfer {
    Transfer { lba: u64::from(b.u32(2)), blocks: u32::from(b.u16(7)), dpo: b.bit(1, DPO), fua: b.bit(1, FUA) }
}

#[inline]
pub(super) fn transfer_12(b: &Bytes) -> Transfer {
    Transfer { lba: u64::from(b.u32(2)), blocks: b.u32(6), dpo: b.bit(1, DPO), fua: b.bit(1, FUA) }
}

#[inline]
pub(super) fn transfer_16(b: &Bytes) -> Transfer {
    Transfer { lba: b.u64(2), blocks: b.u32(10), dpo: b.bit(1, DPO), fua: b.bit(1, FUA) }
}

pub(super) fn compare_and_write(b: &Bytes) -> Transfer {
    Transfer { blocks: u32::from(b.0[13]), ..transfer_16(b) }
}

pub(super) fn write_atomic(b: &Bytes) -> WriteAtomic {
    WriteAtomic { transfer: Transfer { blocks: u32::from(b.u16(12)), ..transfer_16(b) }, boundary: b.u16(10) }
}

pub(super) fn verify(b: &Bytes, at: Transfer) -> Result<Verify, Sense> {
    let check = match (b.0[1] >> 1) & 3 {
        0 => ByteCheck::Medium,
        1 => ByteCheck::Blocks,
        3 => ByteCheck::OneBlock,
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(2))),
    };
    Ok(Verify { lba: at.lba, blocks: at.blocks, check, dpo: at.dpo })
}

pub(super) fn write_and_verify(b: &Bytes, at: Transfer) -> Result<WriteAndVerify, Sense> {
    let compare = match (b.0[1] >> 1) & 3 {
        0 => false,
        1 => true,
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(2))),
    };
    Ok(WriteAndVerify { lba: at.lba, blocks: at.blocks, compare, dpo: at.dpo })
}

pub(super) fn write_same(b: &Bytes, at: Transfer) -> Result<WriteSame, Sense> {
    let unmap = b.bit(1, 0x08);
    let anchor = b.bit(1, 0x10);
    if anchor && !unmap {
        // SBC-3 table 126: ANCHOR without UNMAP is an error.
        return Err(Sense::invalid_field_in_cdb(1, Some(4)));
    }
    // NDOB of the 16-byte form; in the 10-byte form the same bit is obsolete.
    let no_data_out = b.0[0] == super::opcode::WRITE_SAME_16 && b.bit(1, 0x01);
    Ok(WriteSame { lba: at.lba, blocks: at.blocks, unmap, anchor, no_data_out })
}

pub(super) fn cache_range(b: &Bytes, at: Transfer) -> CacheRange {
    CacheRange { lba: at.lba, blocks: at.blocks, immediate: b.bit(1, 0x02) }
}

pub(super) fn sanitize(b: &Bytes, len: usize) -> Result<Sanitize, Sense> {
    let (action, entry) = match b.0[1] & 0x1F {
        0x01 => (SanitizeAction::Overwrite, &table::SANITIZE_OVERWRITE),
        0x02 => (SanitizeAction::BlockErase, &table::SANITIZE_BLOCK_ERASE),
        0x03 => (SanitizeAction::CryptographicErase, &table::SANITIZE_CRYPTOGRAPHIC_ERASE),
        0x1F => (SanitizeAction::ExitFailureMode, &table::SANITIZE_EXIT_FAILURE_MODE),
        _ => return Err(Sense::invalid_service_action()),
    };
    entry.check(&b.0, len)?;
    let parameter_len = b.u16(7);
    let right = match action {
        SanitizeAction::Overwrite => parameter_len > 4,
        _ => parameter_len == 0,
    };
    if !right {
        return Err(Sense::invalid_field_in_cdb(7, None));
    }
    Ok(Sanitize { action, immediate: b.bit(1, 0x80), allow_unrestricted_exit: b.bit(1, 0x20), parameter_len })
}

pub(super) fn format_unit(b: &Bytes) -> Result<FormatUnit, Sense> {
    let format = FormatUnit {
        has_data: b.bit(1, 0x10),
        long_list: b.bit(1, 0x20),
        complete_list: b.bit(1, 0x08),
        defect_list_format: b.0[1] & 0x07,
    };
    // Without a parameter list the bits that describe one must be zero (SBC-3 table 38).
    if !format.has_data && b.0[1] & 0x2F != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(if format.long_list { 5 } else { 3 })));
    }
    Ok(format)
}

pub(super) fn start_stop_unit(b: &Bytes) -> StartStopUnit {
    StartStopUnit {
        immediate: b.bit(1, 0x01),
        power_condition_modifier: b.0[3] & 0x0F,
        power_condition: b.0[4] >> 4,
        no_flush: b.bit(4, 0x04),
        load_eject: b.bit(4, 0x02),
        start: b.bit(4, 0x01),
    }
}

pub(super) fn read_defect_data(b: &Bytes, long: bool) -> ReadDefectData {
    let what = if long { b.0[1] } else { b.0[2] };
    ReadDefectData {
        primary: what & 0x10 != 0,
        grown: what & 0x08 != 0,
        format: what & 0x07,
        index: if long { b.u32(2) } else { 0 },
        allocation: if long { b.u32(6) } else { u32::from(b.u16(7)) },
        long,
    }
}
