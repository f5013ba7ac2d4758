//! Numbers of the protocol (NBD "Values"), under the document's names without `NBD_`. All are
//! big-endian on the wire. Owns also how text of a server is made fit to show.

/// The port that IANA has reserved (NBD "Newstyle negotiation").
pub const PORT: u16 = 10809;
/// The longest string, bytes (NBD "Conventions").
pub const MAX_STRING: usize = 4096;

pub(crate) const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// Behind INIT_PASSWD in the oldstyle negotiation.
pub(crate) const CLISERV_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Behind INIT_PASSWD in the newstyle negotiation, and before each option.
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Handshake flags, and client flags of the same bits (NBD "Handshake flags").
pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const NO_ZEROES: u16 = 1 << 1;

/// NBD "Option types".
pub(crate) mod opt {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// NBD "Option reply types".
pub(crate) mod rep {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    /// Set in each error.
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR + 2;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(crate) const ERR_SHUTDOWN: u32 = ERROR + 7;
}

/// Types of NBD_REP_INFO.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// The metadata context of allocation (NBD "`base:allocation` metadata context").
pub(crate) const ALLOCATION: &str = "base:allocation";

pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// NBD "Request types".
pub(crate) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;

    /// NBD "Command flags".
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// NBD "Structured reply types".
pub(crate) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    /// Set in each error.
    pub(crate) const ERROR: u16 = 1 << 15;
    pub(crate) const ERROR_OFFSET: u16 = ERROR + 2;

    /// NBD_REPLY_FLAG_DONE.
    pub(crate) const DONE: u16 = 1 << 0;
}

/// The big-endian number at `at`. Bytes that are missing read as zeros: callers have checked.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array_at(bytes, at))
}

/// See [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

/// See [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; N])
}

/// A server's text, fit for a log line or a terminal: other bytes than UTF-8 and control characters
/// are replaced.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
