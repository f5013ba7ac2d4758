//! A received PDU.

use iscsi::pdu::{Bhs, NopOut, Opcode, RESERVED_TAG, Reject};
use iser::Header;

/// A received PDU.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub bhs: Bhs,
    pub ahs: Vec<u8>,
    pub data: Vec<u8>,
    /// False only if data digests are on and this one is wrong.
    pub data_digest_right: bool,
    pub padding_is_zero: bool,
    /// The iSER header, over iSER.
    pub header: Option<Header>,
    /// The STag that the message invalidated, over iSER.
    pub invalidated: Option<u32>,
}

impl Default for Pdu {
    fn default() -> Self {
        let bhs = *NopOut::ping(0).as_bhs();
        Self {
            bhs,
            ahs: Vec::new(),
            data: Vec::new(),
            data_digest_right: true,
            padding_is_zero: true,
            header: None,
            invalidated: None,
        }
    }
}

impl Pdu {
    pub fn is(&self, opcode: Opcode) -> bool {
        self.bhs.opcode() == Some(opcode)
    }

    pub fn itt(&self) -> u32 {
        self.bhs.itt()
    }

    /// The big-endian word at byte `at` of the BHS.
    pub fn word(&self, at: usize) -> u32 {
        let bytes = self.bhs.bytes().get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_be_bytes)
    }

    pub fn stat_sn(&self) -> u32 {
        self.word(24)
    }

    pub fn exp_cmd_sn(&self) -> u32 {
        self.word(28)
    }

    pub fn max_cmd_sn(&self) -> u32 {
        self.word(32)
    }

    /// Whether the PDU consumes a StatSN (RFC 7143 §4.2.2.2).
    pub(crate) fn takes_stat_sn(&self) -> bool {
        match self.bhs.opcode() {
            Some(Opcode::DataIn) => self.bhs.flags & 1 != 0,
            Some(Opcode::ReadyToTransfer) | None => false,
            // A ping of the target carries the next StatSN but does not consume it.
            Some(Opcode::NopIn) => self.itt() != RESERVED_TAG,
            Some(opcode) => !opcode.is_from_initiator(),
        }
    }

    /// A Reject's reason as text.
    pub(crate) fn reject_reason(&self) -> String {
        let reject: &Reject = self.bhs.as_reject();
        match reject.reason_code() {
            Some(reason) => format!("{:#04x} ({})", reject.reason, reason.name()),
            None => format!("{:#04x}", reject.reason),
        }
    }
}

/// The kind of a PDU as text.
pub(crate) fn kind(bhs: &Bhs) -> String {
    bhs.opcode()
        .map_or_else(|| format!("PDU of opcode {:#04x}", bhs.opcode_code()), |opcode| opcode.to_string())
}
