//! SCSI Command (RFC 7143 §11.3) and SCSI Response (§11.4).

use super::bhs::{Tag, flag};
use super::codes::{Named, code_points};
use super::{FINAL, Lun, U32, ahs, flag_bits, header};
use core::fmt;

code_points! {
    /// A task's attribute, which orders it within its task set (RFC 7143 §11.3.1, SAM-5 §8.6).
    pub enum TaskAttribute: u8 {
        /// No attribute; treated as simple.
        Untagged = 0 => "untagged",
        /// SIMPLE.
        Simple = 1 => "simple",
        /// ORDERED.
        Ordered = 2 => "ordered",
        /// HEAD OF QUEUE.
        HeadOfQueue = 3 => "head of queue",
        /// ACA.
        Aca = 4 => "ACA",
    }
}

code_points! {
    /// The iSCSI service response of a SCSI Response (RFC 7143 §11.4.3). 0x80 to 0xff are
    /// vendor-specific.
    pub enum ResponseCode: u8 {
        /// The target completed the command; the SCSI status is valid.
        CommandCompleted = 0x00 => "Command Completed at Target",
        /// The target failed; the SCSI status is invalid.
        TargetFailure = 0x01 => "Target Failure",
    }
}

/// The difference between a transfer and its expected length (RFC 7143 §11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// No difference.
    #[default]
    Exact,
    /// This many bytes were not transferred because the initiator expected fewer.
    Overflow(u32),
    /// This many of the expected bytes were not transferred.
    Underflow(u32),
}

impl Residual {
    pub(super) fn read(flags: u8, overflow: u8, underflow: u8, count: u32) -> Option<Self> {
        match (flags & overflow != 0, flags & underflow != 0) {
            (false, false) => Some(Self::Exact),
            (true, false) => Some(Self::Overflow(count)),
            (false, true) => Some(Self::Underflow(count)),
            (true, true) => None,
        }
    }

    pub(super) fn write(self, flags: &mut u8, overflow: u8, underflow: u8, field: &mut U32) {
        *flags &= !(overflow | underflow);
        let count = match self {
            Self::Exact => 0,
            Self::Overflow(count) => {
                *flags |= overflow;
                count
            }
            Self::Underflow(count) => {
                *flags |= underflow;
                count
            }
        };
        field.set(count);
    }

    fn show(this: Option<Self>, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match this {
            Some(Self::Exact) => Ok(()),
            Some(Self::Overflow(n)) => write!(f, " {name}=+{n}"),
            Some(Self::Underflow(n)) => write!(f, " {name}=-{n}"),
            None => write!(f, " {name}=contradictory"),
        }
    }

    pub(super) fn tail(this: Option<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::show(this, "residual", f)
    }
}

header! {
    /// SCSI Command (RFC 7143 §11.3).
    /// Its data segment: immediate data.
    pub struct ScsiCommand {
        /// Byte 1: F, R, W and the task attribute.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The logical unit.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: U32,
        /// Expected Data Transfer Length in bytes (§11.3.4); for a bidirectional command that of
        /// the write.
        pub edtl: U32,
        /// CmdSN.
        pub cmd_sn: U32,
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// The CDB's first 16 bytes. Shorter CDBs are padded with zeros, longer ones continue in an
        /// AHS.
        pub cdb: [u8; 16],
    }
    trace "SCSI Command" |pdu, f| {
        itt: Tag(pdu.itt.get()), lun: pdu.lun, edtl: pdu.edtl, cmdsn: pdu.cmd_sn,
        expstatsn: pdu.exp_stat_sn,
    } {
        flag(f, "R", pdu.read())?;
        flag(f, "W", pdu.write())?;
        flag(f, "F", pdu.is_final())?;
        write!(f, " attr={}", Named(pdu.attribute(), pdu.flags & 0x07))?;
        f.write_str(" cdb=")?;
        pdu.cdb.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
    }
}

impl ScsiCommand {
    /// A final command without data. Of a CDB over 16 bytes it contains the first 16: send
    /// [`ScsiCommand::extended_cdb`] with it.
    pub fn new(itt: u32, lun: Lun, attribute: TaskAttribute, cdb: &[u8]) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL | attribute.code();
        pdu.lun = lun;
        pdu.itt.set(itt);
        let len = cdb.len().min(16);
        pdu.cdb[..len].copy_from_slice(&cdb[..len]);
        pdu
    }

    /// The AHS with the CDB's bytes beyond the header's 16, if any.
    pub fn extended_cdb(cdb: &[u8]) -> Option<ahs::Ahs<'_>> {
        cdb.get(16..).filter(|rest| !rest.is_empty()).map(ahs::Ahs::ExtendedCdb)
    }

    flag_bits! {
        /// F: no unsolicited Data-Out follows.
        is_final, set_final: flags & FINAL;
        /// R: the command reads data.
        read, set_read: flags & 0x40;
        /// W: the command writes data.
        write, set_write: flags & 0x20;
    }

    /// The task attribute; `None` for the reserved codes 5 to 7.
    #[inline]
    pub const fn attribute(&self) -> Option<TaskAttribute> {
        TaskAttribute::from_code(self.flags & 0x07)
    }
}

header! {
    /// SCSI Response (RFC 7143 §11.4). Its data segment is SenseLength (two bytes) with sense data,
    /// then response data.
    pub struct ScsiResponse {
        /// Byte 1: 1, and the residual bits o, u, O, U.
        pub flags: u8,
        /// Response, a [`ResponseCode`].
        pub response: u8,
        /// SCSI status (SAM-5 §5.3), valid if the target completed the command.
        pub status: u8,
        ..
        /// Bytes 8 to 15, reserved.
        pub reserved_8: [u8; 8],
        /// Initiator Task Tag.
        pub itt: U32,
        /// SNACK Tag, or 0 (§11.4.4).
        pub snack_tag: U32,
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// ExpDataSN: the number of Data-In (and R2T) PDUs that the target sent for the command
        /// (§11.4.8).
        pub exp_data_sn: U32,
        /// Bidirectional Read Residual Count in bytes.
        pub bidi_read_residual: U32,
        /// Residual Count in bytes.
        pub residual_count: U32,
    }
    trace "SCSI Response" |pdu, f| {
        itt: Tag(pdu.itt.get()), response: Named(pdu.response_code(), pdu.response),
        status: format_args!("{:#04x}", pdu.status), statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn, expdatasn: pdu.exp_data_sn,
    } {
        Residual::show(pdu.residual(), "residual", f)?;
        Residual::show(pdu.bidi_residual(), "bidi-residual", f)?;
    }
}

impl ScsiResponse {
    /// A response without residuals and sense data.
    pub fn new(itt: u32, response: ResponseCode, status: u8) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.response = response.code();
        pdu.status = status;
        pdu.itt.set(itt);
        pdu
    }

    /// The service response; `None` for reserved and vendor-specific codes, which all mean failure.
    #[inline]
    pub const fn response_code(&self) -> Option<ResponseCode> {
        ResponseCode::from_code(self.response)
    }

    /// The residual; `None` if the peer set both bits, which §11.4.1 forbids.
    #[inline]
    pub fn residual(&self) -> Option<Residual> {
        Residual::read(self.flags, 0x04, 0x02, self.residual_count.get())
    }

    /// Sets the residual.
    #[inline]
    pub fn set_residual(&mut self, residual: Residual) {
        residual.write(&mut self.flags, 0x04, 0x02, &mut self.residual_count);
    }

    /// The residual of a bidirectional command's read; `None` if both bits are set.
    #[inline]
    pub fn bidi_residual(&self) -> Option<Residual> {
        Residual::read(self.flags, 0x10, 0x08, self.bidi_read_residual.get())
    }

    /// Sets the residual of a bidirectional command's read.
    #[inline]
    pub fn set_bidi_residual(&mut self, residual: Residual) {
        residual.write(&mut self.flags, 0x10, 0x08, &mut self.bidi_read_residual);
    }
}
