//! SNACK Request (RFC 7143 §11.16) and Reject (§11.17).

use super::bhs::Tag;
use super::codes::{Named, code_points};
use super::{FINAL, Lun, RESERVED_TAG, U32, header};

code_points! {
    /// The type of a SNACK (RFC 7143 §11.16.1).
    pub enum SnackType: u8 {
        /// Requests retransmission of Data-In or R2T PDUs.
        DataR2t = 0 => "Data/R2T",
        /// Requests retransmission of status PDUs.
        Status = 1 => "Status",
        /// Acknowledges the Data-In PDUs before BegRun.
        DataAck = 2 => "DataACK",
        /// Requests retransmission of Data-In PDUs, with other lengths if necessary.
        RData = 3 => "R-Data",
    }
}

code_points! {
    /// The reason of a Reject (RFC 7143 §11.17.1).
    pub enum RejectReason: u8 {
        /// The data digest was wrong; the initiator may resend the PDU.
        DataDigestError = 0x02 => "Data (payload) digest error",
        /// The target cannot satisfy a SNACK.
        SnackReject = 0x03 => "SNACK Reject",
        /// The PDU violates the protocol.
        ProtocolError = 0x04 => "Protocol Error",
        /// The target does not support this PDU.
        CommandNotSupported = 0x05 => "Command not supported",
        /// Too many immediate commands.
        ImmediateCommandReject = 0x06 => "Immediate command reject - too many immediate commands",
        /// The task is still running.
        TaskInProgress = 0x07 => "Task in progress",
        /// A DataACK acknowledges data that was not sent.
        InvalidDataAck = 0x08 => "Invalid data ACK",
        /// A field has an invalid value.
        InvalidPduField = 0x09 => "Invalid PDU field",
        /// No Target Transfer Tag is free.
        LongOperationReject = 0x0a => "Long op reject - out of resources",
        /// Deprecated: the negotiation restarts.
        NegotiationReset = 0x0b => "Negotiation Reset",
        /// The target accepts nothing but a logout now.
        WaitingForLogout = 0x0c => "Waiting for Logout",
    }
}

header! {
    /// SNACK Request (RFC 7143 §11.16).
    pub struct SnackRequest {
        /// Byte 1: 1 and the type.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The Data-In's LUN in a DataACK, else reserved.
        pub lun: Lun,
        /// Initiator Task Tag, or the reserved tag.
        pub itt: U32,
        /// Target Transfer Tag in a DataACK, SNACK Tag in an R-Data SNACK, else the reserved tag.
        pub ttt: U32,
        /// Bytes 24 to 27, reserved.
        pub reserved_24: [u8; 4],
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// Bytes 32 to 39, reserved.
        pub reserved_32: [u8; 8],
        /// BegRun: the first requested DataSN, R2TSN or StatSN; in a DataACK the next expected
        /// DataSN.
        pub beg_run: U32,
        /// RunLength: the number of requested PDUs; 0 means all from BegRun on.
        pub run_length: U32,
    }
    trace "SNACK Request" |pdu, f| {
        itt: Tag(pdu.itt.get()), type: Named(pdu.kind(), pdu.kind_code()),
        tag: Tag(pdu.ttt.get()), begrun: pdu.beg_run, runlength: pdu.run_length,
        expstatsn: pdu.exp_stat_sn,
    }
}

impl SnackRequest {
    /// Requests `run_length` PDUs from `beg_run` on. `tag` is the type's value for bytes 20 to 23,
    /// or [`RESERVED_TAG`].
    pub fn new(kind: SnackType, itt: u32, tag: u32, beg_run: u32, run_length: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL | kind.code();
        pdu.itt.set(itt);
        pdu.ttt.set(tag);
        pdu.beg_run.set(beg_run);
        pdu.run_length.set(run_length);
        pdu
    }

    /// The type's four bits.
    #[inline]
    pub const fn kind_code(&self) -> u8 {
        self.flags & 0x0f
    }

    /// The type; `None` if unassigned.
    #[inline]
    pub const fn kind(&self) -> Option<SnackType> {
        SnackType::from_code(self.kind_code())
    }
}

header! {
    /// Reject (RFC 7143 §11.17). Its data segment is the header of the rejected PDU, without
    /// digests.
    pub struct Reject {
        /// Byte 1: 1.
        pub flags: u8,
        /// Reason, a [`RejectReason`].
        pub reason: u8,
        /// Byte 3, reserved.
        pub reserved_3: u8,
        ..
        /// Bytes 8 to 15, reserved.
        pub reserved_8: [u8; 8],
        /// The reserved tag.
        pub itt: U32,
        /// Bytes 20 to 23, reserved.
        pub reserved_20: [u8; 4],
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// DataSN or R2TSN of the next PDU if a SNACK for data is rejected, else reserved
        /// (§11.17.3).
        pub data_sn: U32,
        /// Bytes 40 to 47, reserved.
        pub reserved_40: [u8; 8],
    }
    trace "Reject" |pdu, f| {
        reason: Named(pdu.reason_code(), pdu.reason), statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn, datasn: pdu.data_sn,
    }
}

impl Reject {
    /// A Reject. The caller must set the data segment length to that of the attached header.
    pub fn new(reason: RejectReason) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.reason = reason.code();
        pdu.itt.set(RESERVED_TAG);
        pdu
    }

    /// The reason; `None` if unassigned.
    #[inline]
    pub const fn reason_code(&self) -> Option<RejectReason> {
        RejectReason::from_code(self.reason)
    }
}
