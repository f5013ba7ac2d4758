//! SCSI Data-Out and Data-In (RFC 7143 §11.7) and R2T (§11.8).

use super::bhs::{Tag, flag};
use super::scsi::Residual;
use super::{FINAL, Lun, RESERVED_TAG, U32, flag_bits, header};

header! {
    /// SCSI Data-Out (RFC 7143 §11.7): a write's data.
    pub struct DataOut {
        /// Byte 1: F.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The logical unit, as in the R2T; reserved in unsolicited data.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: U32,
        /// Target Transfer Tag of the R2T answered, or the reserved tag in unsolicited data.
        pub ttt: U32,
        /// Bytes 24 to 27, reserved.
        pub reserved_24: [u8; 4],
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// Bytes 32 to 35, reserved.
        pub reserved_32: [u8; 4],
        /// DataSN, from 0 in each sequence.
        pub data_sn: U32,
        /// Buffer Offset: the position of the data in the whole transfer, bytes.
        pub buffer_offset: U32,
        /// Bytes 44 to 47, reserved.
        pub reserved_44: [u8; 4],
    }
    trace "SCSI Data-Out" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), lun: pdu.lun, datasn: pdu.data_sn,
        offset: pdu.buffer_offset, expstatsn: pdu.exp_stat_sn,
    } {
        flag(f, "F", pdu.is_final())?;
    }
}

impl DataOut {
    /// A PDU within a sequence (F clear). `ttt` is the R2T's, or [`RESERVED_TAG`] for unsolicited
    /// data.
    pub fn new(itt: u32, ttt: u32, lun: Lun, data_sn: u32, buffer_offset: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.lun = lun;
        pdu.itt.set(itt);
        pdu.ttt.set(ttt);
        pdu.data_sn.set(data_sn);
        pdu.buffer_offset.set(buffer_offset);
        pdu
    }

    flag_bits! {
        /// F: the last PDU of this sequence.
        is_final, set_final: flags & FINAL;
    }

    /// Whether it is unsolicited: no R2T requested it.
    #[inline]
    pub const fn is_unsolicited(&self) -> bool {
        self.ttt.get() == RESERVED_TAG
    }
}

header! {
    /// SCSI Data-In (RFC 7143 §11.7): a read's data, and the command's status if S is set.
    pub struct DataIn {
        /// Byte 1: F, A, O, U, S.
        pub flags: u8,
        /// Byte 2, reserved.
        pub reserved_2: u8,
        /// SCSI status if S is set, else reserved.
        pub status: u8,
        ..
        /// The logical unit if A is set, else reserved.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: U32,
        /// Target Transfer Tag for the acknowledgement if A is set, else the reserved tag.
        pub ttt: U32,
        /// StatSN if S is set, else reserved.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// DataSN, from 0 in each command.
        pub data_sn: U32,
        /// Buffer Offset: the position of the data in the whole transfer, bytes.
        pub buffer_offset: U32,
        /// Residual Count in bytes if S is set, else reserved.
        pub residual_count: U32,
    }
    trace "SCSI Data-In" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), datasn: pdu.data_sn,
        offset: pdu.buffer_offset, expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    } {
        flag(f, "F", pdu.is_final())?;
        if pdu.wants_ack() {
            write!(f, " A lun={}", pdu.lun)?;
        }
        if pdu.has_status() {
            write!(f, " S status={:#04x} statsn={}", pdu.status, pdu.stat_sn)?;
            Residual::tail(pdu.residual(), f)?;
        }
    }
}

impl DataIn {
    /// A PDU within a sequence (F clear), without status and without a request for acknowledgement.
    #[inline]
    pub fn new(itt: u32, data_sn: u32, buffer_offset: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.itt.set(itt);
        pdu.ttt.set(RESERVED_TAG);
        pdu.data_sn.set(data_sn);
        pdu.buffer_offset.set(buffer_offset);
        pdu
    }

    flag_bits! {
        /// F: the last PDU of this sequence.
        is_final, set_final: flags & FINAL;
        /// A: the target requests a DataACK SNACK (ErrorRecoveryLevel 1 and up). Needs TTT and LUN.
        wants_ack, set_wants_ack: flags & 0x40;
        /// S: the PDU has the command's status.
        has_status, set_has_status: flags & 0x01;
    }

    /// Adds the command's status and residual: sets S and F. The caller must set StatSN. Only a
    /// status without sense data is permitted here (§11.7.2).
    #[inline]
    pub fn set_status(&mut self, status: u8, residual: Residual) {
        self.flags |= FINAL | 0x01;
        self.status = status;
        residual.write(&mut self.flags, 0x04, 0x02, &mut self.residual_count);
    }

    /// The residual if S is set; `None` if the peer set both bits, which §11.4.1 forbids.
    #[inline]
    pub fn residual(&self) -> Option<Residual> {
        Residual::read(self.flags, 0x04, 0x02, self.residual_count.get())
    }
}

header! {
    /// Ready To Transfer (RFC 7143 §11.8): the target requests a part of a write's data.
    pub struct ReadyToTransfer {
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The logical unit.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: U32,
        /// Target Transfer Tag, never the reserved tag.
        pub ttt: U32,
        /// The next StatSN; an R2T does not advance it.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// R2TSN, from 0 in each command.
        pub r2t_sn: U32,
        /// Buffer Offset: the start of the requested data in the whole transfer, bytes.
        pub buffer_offset: U32,
        /// Desired Data Transfer Length, bytes; never 0 (§11.8.4).
        pub desired_length: U32,
    }
    trace "R2T" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), lun: pdu.lun, r2tsn: pdu.r2t_sn,
        offset: pdu.buffer_offset, length: pdu.desired_length, statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    }
}

impl ReadyToTransfer {
    /// Requests `desired_length` bytes from `buffer_offset` on.
    #[inline]
    pub fn new(itt: u32, ttt: u32, lun: Lun, r2t_sn: u32, buffer_offset: u32, desired_length: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.lun = lun;
        pdu.itt.set(itt);
        pdu.ttt.set(ttt);
        pdu.r2t_sn.set(r2t_sn);
        pdu.buffer_offset.set(buffer_offset);
        pdu.desired_length.set(desired_length);
        pdu
    }
}
