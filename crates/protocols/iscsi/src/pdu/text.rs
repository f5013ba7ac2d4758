//! The headers of Text Request (RFC 7143 §11.10) and Text Response (§11.11); their key=value data
//! is parsed elsewhere.

use super::bhs::{Tag, flag};
use super::{FINAL, Lun, RESERVED_TAG, U32, flag_bits, header};

header! {
    /// Text Request (RFC 7143 §11.10).
    pub struct TextRequest {
        /// Byte 1: F and C.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The LUN of the response whose TTT is returned, else reserved.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: U32,
        /// Target Transfer Tag of the response that is continued, or the reserved tag to start an
        /// exchange (§11.10.4).
        pub ttt: U32,
        /// CmdSN.
        pub cmd_sn: U32,
        /// ExpStatSN.
        pub exp_stat_sn: U32,
        /// Bytes 32 to 47, reserved.
        pub reserved_32: [u8; 16],
    }
    trace "Text Request" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), cmdsn: pdu.cmd_sn,
        expstatsn: pdu.exp_stat_sn,
    } {
        flag(f, "F", pdu.is_final())?;
        flag(f, "C", pdu.continues())?;
    }
}

impl TextRequest {
    /// A whole and final request; starts an exchange if `ttt` is [`RESERVED_TAG`].
    pub fn new(itt: u32, ttt: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = FINAL;
        pdu.itt.set(itt);
        pdu.ttt.set(ttt);
        pdu
    }

    flag_bits! {
        /// F: the initiator's last text of this exchange.
        is_final, set_final: flags & FINAL;
        /// C: the text continues in the next request. Excludes F.
        continues, set_continues: flags & 0x40;
    }

    /// Whether it starts an exchange.
    #[inline]
    pub const fn starts_exchange(&self) -> bool {
        self.ttt.get() == RESERVED_TAG
    }
}

header! {
    /// Text Response (RFC 7143 §11.11).
    pub struct TextResponse {
        /// Byte 1: F and C.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        ..
        /// The LUN for the initiator to return with the TTT, or reserved.
        pub lun: Lun,
        /// Initiator Task Tag of the request.
        pub itt: U32,
        /// Target Transfer Tag: the reserved tag if F is set and the exchange ends, else any other
        /// value.
        pub ttt: U32,
        /// StatSN.
        pub stat_sn: U32,
        /// ExpCmdSN.
        pub exp_cmd_sn: U32,
        /// MaxCmdSN.
        pub max_cmd_sn: U32,
        /// Bytes 36 to 47, reserved.
        pub reserved_36: [u8; 12],
    }
    trace "Text Response" |pdu, f| {
        itt: Tag(pdu.itt.get()), ttt: Tag(pdu.ttt.get()), statsn: pdu.stat_sn,
        expcmdsn: pdu.exp_cmd_sn, maxcmdsn: pdu.max_cmd_sn,
    } {
        flag(f, "F", pdu.is_final())?;
        flag(f, "C", pdu.continues())?;
    }
}

impl TextResponse {
    /// A whole response; final if `ttt` is [`RESERVED_TAG`] (§11.11.1 couples the two).
    pub fn new(itt: u32, ttt: u32) -> Self {
        let mut pdu = Self::zeroed();
        pdu.flags = if ttt == RESERVED_TAG { FINAL } else { 0 };
        pdu.itt.set(itt);
        pdu.ttt.set(ttt);
        pdu
    }

    flag_bits! {
        /// F: the exchange ends.
        is_final, set_final: flags & FINAL;
        /// C: the text continues in the next response. Excludes F.
        continues, set_continues: flags & 0x40;
    }
}
