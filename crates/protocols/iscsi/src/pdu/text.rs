//! The headers of Text Request (RFC 7143 §11.10) and Text Response (§11.11); their key=value data
//! is parsed elsewhere.

use super::bhs::{Tag, tail};
use super::{FINAL, Lun, RESERVED_TAG, U24, U32, flag_bits, header};
use core::fmt;

header! {
    /// Text Request (RFC 7143 §11.10).
    pub struct TextRequest {
        /// Byte 0: immediate bit, opcode 0x04.
        pub opcode_byte: u8,
        /// Byte 1: F and C.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        /// TotalAHSLength, 0.
        pub total_ahs_words: u8,
        /// DataSegmentLength in bytes.
        pub data_segment_len: U24,
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

impl fmt::Display for TextRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Text Request itt={} ttt={} cmdsn={} expstatsn={}{}{}",
            Tag(self.itt.get()),
            Tag(self.ttt.get()),
            self.cmd_sn,
            self.exp_stat_sn,
            if self.is_final() { " F" } else { "" },
            if self.continues() { " C" } else { "" }
        )?;
        tail(self.as_bhs(), f)
    }
}

header! {
    /// Text Response (RFC 7143 §11.11).
    pub struct TextResponse {
        /// Byte 0: opcode 0x24.
        pub opcode_byte: u8,
        /// Byte 1: F and C.
        pub flags: u8,
        /// Bytes 2 and 3, reserved.
        pub reserved_2: [u8; 2],
        /// TotalAHSLength, 0.
        pub total_ahs_words: u8,
        /// DataSegmentLength in bytes.
        pub data_segment_len: U24,
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

impl fmt::Display for TextResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Text Response itt={} ttt={} statsn={} expcmdsn={} maxcmdsn={}{}{}",
            Tag(self.itt.get()),
            Tag(self.ttt.get()),
            self.stat_sn,
            self.exp_cmd_sn,
            self.max_cmd_sn,
            if self.is_final() { " F" } else { "" },
            if self.continues() { " C" } else { "" }
        )?;
        tail(self.as_bhs(), f)
    }
}
