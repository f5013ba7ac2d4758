//! NOP-Out (RFC 7143 §11.18) and NOP-In (§11.19).

use super::bhs::Tag;
use super::{FINAL, IMMEDIATE, Lun, RESERVED_TAG, U32, header};

header! {
    /// NOP-Out (RFC 7143 §11.18): a ping, or the answer to the target's ping.
    /// Its data segment: ping data.
    pub struct NopOut {
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
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
    trace "NOP-Out" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), lun: pdu.lun, cmdsn: pdu.cmd_sn,
        expstatsn: pdu.exp_stat_sn,
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

header! {
    /// NOP-In (RFC 7143 §11.19): the answer to a ping, the target's ping, or an update of ExpCmdSN
    /// and MaxCmdSN.
    /// Its data segment: the returned data of the ping.
    pub struct NopIn {
        /// Byte 1: 1.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
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
    trace "NOP-In" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), lun: pdu.lun, statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
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
