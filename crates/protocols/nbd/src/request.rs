//! Commands, whether an export takes them, and their header (NBD "Request message").

use crate::export::Export;
use crate::wire::{REQUEST_MAGIC, cmd};

/// Bytes of a request's header. The data of a write follows it.
pub const HEADER_LEN: usize = 28;

/// NBD_CMD_DISC: the server carries out all outstanding requests and closes the connection. It is
/// the last that a client sends, and has no reply.
pub const DISCONNECT: [u8; HEADER_LEN] = header(0, cmd::DISC, 0, 0, 0);

/// A command. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// NBD_CMD_READ.
    Read {
        /// Where.
        at: u64,
        /// How much.
        len: u32,
    },
    /// NBD_CMD_WRITE.
    Write {
        /// Where.
        at: u64,
        /// How much data follows the header.
        len: u32,
        /// Whether the data is on stable storage when this is answered.
        fua: bool,
    },
    /// NBD_CMD_FLUSH: what was answered before is on stable storage when this is answered.
    Flush,
    /// NBD_CMD_TRIM: a hint. Afterwards the range has any content.
    Trim {
        /// Where.
        at: u64,
        /// How much.
        len: u32,
        /// Whether its effect is on stable storage when this is answered.
        fua: bool,
    },
    /// NBD_CMD_WRITE_ZEROES.
    WriteZeroes {
        /// Where.
        at: u64,
        /// How much.
        len: u32,
        /// Whether the zeros are on stable storage when this is answered.
        fua: bool,
        /// Whether the server may leave a hole.
        hole: bool,
        /// Whether to fail with [`crate::ErrorCode::NotSupported`] rather than be as slow as a
        /// write.
        fast: bool,
    },
    /// NBD_CMD_BLOCK_STATUS: what is allocated.
    BlockStatus {
        /// Where.
        at: u64,
        /// How much is of interest.
        len: u32,
        /// Whether one extent, no longer than `len`, is enough.
        one: bool,
    },
}

/// Why an export does not take a command, which was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It would change a read-only export.
    #[error("the export is read-only")]
    ReadOnly,
    /// The server does not offer it.
    #[error("the server does not support {0}")]
    Unsupported(&'static str),
    /// Its range ends behind the export.
    #[error("the range ends behind the export")]
    OutOfRange,
    /// Its range is empty.
    #[error("the range is empty")]
    Empty,
    /// Offset or length is no multiple of the export's minimum block size.
    #[error("the range is not aligned to {0} bytes")]
    Misaligned(u32),
    /// It would carry too much data at once.
    #[error("a request carries at most {0} bytes")]
    TooLong(u32),
    /// As many requests as may be are outstanding.
    #[error("{0} requests are outstanding")]
    TooMany(usize),
}

impl Command {
    /// Its range, offset and length; `None` for a flush.
    pub fn range(&self) -> Option<(u64, u32)> {
        match *self {
            Self::Flush => None,
            Self::Read { at, len }
            | Self::Write { at, len, .. }
            | Self::Trim { at, len, .. }
            | Self::WriteZeroes { at, len, .. }
            | Self::BlockStatus { at, len, .. } => Some((at, len)),
        }
    }

    /// Whether it may change what the export holds.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Trim { .. } | Self::WriteZeroes { .. })
    }

    /// Whether its effect is on stable storage when it is answered.
    pub fn is_fua(&self) -> bool {
        matches!(
            self,
            Self::Write { fua: true, .. }
                | Self::Trim { fua: true, .. }
                | Self::WriteZeroes { fua: true, .. }
        )
    }

    /// Checks what a client must, before it sends the command.
    ///
    /// # Errors
    /// The export does not take it.
    pub fn check(&self, export: &Export) -> Result<(), Refused> {
        let flags = export.flags;
        let offered = |offered: bool, what| if offered { Ok(()) } else { Err(Refused::Unsupported(what)) };
        if self.changes() && flags.read_only() {
            return Err(Refused::ReadOnly);
        }
        if self.is_fua() {
            offered(flags.fua(), "FUA")?;
        }
        match self {
            Self::Read { .. } | Self::Write { .. } => {}
            Self::Flush => offered(flags.flush(), "flushes")?,
            Self::Trim { .. } => offered(flags.trim(), "trims")?,
            Self::WriteZeroes { fast, .. } => {
                offered(flags.write_zeroes(), "writes of zeros")?;
                offered(!fast || flags.fast_zero(), "fast zeros")?;
            }
            Self::BlockStatus { .. } => offered(export.allocation.is_some(), "block status")?,
        }
        let Some((at, len)) = self.range() else { return Ok(()) };
        let blocks = export.blocks;
        if len == 0 {
            return Err(Refused::Empty);
        }
        if at.checked_add(len.into()).is_none_or(|end| end > export.size) {
            return Err(Refused::OutOfRange);
        }
        if at % u64::from(blocks.minimum) != 0 || len % blocks.minimum != 0 {
            return Err(Refused::Misaligned(blocks.minimum));
        }
        match self {
            Self::Read { .. } | Self::Write { .. } if len > blocks.maximum => {
                Err(Refused::TooLong(blocks.maximum))
            }
            _ => Ok(()),
        }
    }

    /// Its header under this cookie.
    pub(crate) fn header(&self, cookie: u64) -> [u8; HEADER_LEN] {
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let (kind, flags) = match *self {
            Self::Read { .. } => (cmd::READ, 0),
            Self::Write { fua, .. } => (cmd::WRITE, flag(fua, cmd::FUA)),
            Self::Flush => (cmd::FLUSH, 0),
            Self::Trim { fua, .. } => (cmd::TRIM, flag(fua, cmd::FUA)),
            Self::WriteZeroes { fua, hole, fast, .. } => {
                let flags = flag(fua, cmd::FUA) | flag(!hole, cmd::NO_HOLE) | flag(fast, cmd::FAST_ZERO);
                (cmd::WRITE_ZEROES, flags)
            }
            Self::BlockStatus { one, .. } => (cmd::BLOCK_STATUS, flag(one, cmd::REQ_ONE)),
        };
        let (at, len) = self.range().unwrap_or_default();
        header(flags, kind, cookie, at, len)
    }
}

const fn header(flags: u16, kind: u16, cookie: u64, at: u64, len: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let (magic, rest) = bytes.split_at_mut(4);
    magic.copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    let (first, rest) = rest.split_at_mut(2);
    first.copy_from_slice(&flags.to_be_bytes());
    let (second, rest) = rest.split_at_mut(2);
    second.copy_from_slice(&kind.to_be_bytes());
    let (third, rest) = rest.split_at_mut(8);
    third.copy_from_slice(&cookie.to_be_bytes());
    let (fourth, fifth) = rest.split_at_mut(8);
    fourth.copy_from_slice(&at.to_be_bytes());
    fifth.copy_from_slice(&len.to_be_bytes());
    bytes
}
