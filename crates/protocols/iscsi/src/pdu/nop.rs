//! NOP-Out (RFC 7143 §11.18) and NOP-In (§11.19).

use super::bhs::{Tag, tail};
use super::{FINAL, IMMEDIATE, Lun, RESERVED_TAG, U24, U32, header};
use core::fmt;

header! {
    /// NOP-Out (RFC 7143 §11.18): a ping, or the answer to the target's ping.
    pub struct NopOut {
        /// Byte 0: immediate bit, opcode 0x00.
        pub opcode_byte: u8,
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        /// TotalAHSLength, 0.
        pub total_ahs_words: u8,
        /// DataSegmentLength in bytes: ping data.
        pub data_segment_len: U24,
        /// The NOP-In's LUN in an answer, else reserved.
        pub lun: Lun,
        /// Initiator Task Tag, or the reserved tag if no answer is requested; the PDU must then be
        /// immediate.
        pub itt: U32,
        /// The NOP-In's Target Transfer Tag in an answer, else the reserved tag.
        pub ttt: U32,
        /// CmdSN.
        pub cmd_sn: U32,
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// Bytes 32 to 47, reserved.
        pub reserved_32: [u8; 16],
    }
}

impl NopOut {
    /// An immediate ping that requests an answer.
    pub fn ping(itt: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.opcode_byte |= IMMEDIATE;
        pdu.flags = FINAL;
        pdu.itt.set(itt);
        pdu.ttt.set(RESERVED_TAG);
        pdu
    }

    /// An immediate answer to the target's ping with this TTT and LUN.
    pub fn answer(ttt: u32, lun: Lun) -> Self {
        let mut pdu = Self::ping(RESERVED_TAG);
        pdu.lun = lun;
        pdu.ttt.set(ttt);
        pdu
    }

    /// Whether the target must answer with a NOP-In.
    #[inline]
    pub const fn wants_answer(&self) -> bool {
        self.itt.get() != RESERVED_TAG
    }
}

impl fmt::Display for NopOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NOP-Out itt={} ttt={} lun={} cmdsn={} expstatsn={}",
            Tag(self.itt.get()),
            Tag(self.ttt.get()),
            self.lun,
            self.cmd_sn,
            self.exp_stat_sn
        )?;
        tail(self.as_bhs(), f)
    }
}

header! {
    /// NOP-In (RFC 7143 §11.19): the answer to a ping, the target's ping, or an update of ExpCmdSN
    /// and MaxCmdSN.
    pub struct NopIn {
        /// Byte 0: opcode 0x20.
        pub opcode_byte: u8,
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        /// TotalAHSLength, 0.
        pub total_ahs_words: u8,
        /// DataSegmentLength in bytes: the returned data of the ping.
        pub data_segment_len: U24,
        /// The LUN to return in the answer if TTT is valid, else reserved.
        pub lun: Lun,
        /// The ping's Initiator Task Tag, or the reserved tag if the target originates the PDU.
        pub itt: U32,
        /// Target Transfer Tag if the target requests an answer, else the reserved tag.
        pub ttt: U32,
        /// StatSN; if ITT is the reserved tag, the next one, which is not advanced.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// Bytes 36 to 47, reserved.
        pub reserved_36: [u8; 12],
    }
}

impl NopIn {
    /// The answer to a ping.
    pub fn answer(itt: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.itt.set(itt);
        pdu.ttt.set(RESERVED_TAG);
        pdu
    }

    /// The target's ping, with a TTT other than the reserved one.
    pub fn ping(ttt: u32, lun: Lun) -> Self {
        let mut pdu = Self::unsolicited();
        pdu.lun = lun;
        pdu.ttt.set(ttt);
        pdu
    }

    /// An update of the command window; requests no answer.
    pub fn unsolicited() -> Self {
        Self::answer(RESERVED_TAG)
    }

    /// Whether the initiator must answer with a NOP-Out.
    #[inline]
    pub const fn wants_answer(&self) -> bool {
        self.ttt.get() != RESERVED_TAG
    }
}

impl fmt::Display for NopIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NOP-In itt={} ttt={} lun={} statsn={} expcmdsn={} maxcmdsn={}",
            Tag(self.itt.get()),
            Tag(self.ttt.get()),
            self.lun,
            self.stat_sn,
            self.exp_cmd_sn,
            self.max_cmd_sn
        )?;
        tail(self.as_bhs(), f)
    }
}
