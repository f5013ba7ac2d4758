//! An export, as the handshake has left it: its size, abilities and block sizes.

use crate::wire::{u16_at, u32_at, u64_at};

/// What a server offers: transmission flags (NBD "Transmission flags").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

const HAS_FLAGS: u16 = 1 << 0;

impl Flags {
    /// Of the field. Without NBD_FLAG_HAS_FLAGS the other bits mean nothing.
    pub fn new(field: u16) -> Self {
        Self(if field & HAS_FLAGS != 0 { field } else { 0 })
    }

    fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Writes are refused.
    pub fn read_only(self) -> bool {
        self.has(1)
    }

    /// NBD_CMD_FLUSH. Without it there is no cache that a client could flush.
    pub fn flush(self) -> bool {
        self.has(2)
    }

    /// NBD_CMD_FLAG_FUA.
    pub fn fua(self) -> bool {
        self.has(3)
    }

    /// The medium rotates.
    pub fn rotational(self) -> bool {
        self.has(4)
    }

    /// NBD_CMD_TRIM.
    pub fn trim(self) -> bool {
        self.has(5)
    }

    /// NBD_CMD_WRITE_ZEROES and NBD_CMD_FLAG_NO_HOLE.
    pub fn write_zeroes(self) -> bool {
        self.has(6)
    }

    /// A flush or FUA is in force for all connections.
    pub fn multi_conn(self) -> bool {
        self.has(8)
    }

    /// NBD_CMD_FLAG_FAST_ZERO.
    pub fn fast_zero(self) -> bool {
        self.write_zeroes() && self.has(11)
    }
}

/// Block sizes that requests have to keep to, bytes (NBD "Size constraints").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it: a power of two, at most 65,536.
    pub minimum: u32,
    /// Aligned requests of this length are efficient: a power of two, at least `minimum` and 512.
    pub preferred: u32,
    /// The most data of a read or write.
    pub maximum: u32,
}

impl Default for BlockSizes {
    /// What each server without own sizes accepts.
    fn default() -> Self {
        Self { minimum: 512, preferred: 4096, maximum: 1 << 25 }
    }
}

impl BlockSizes {
    /// Of the payload of NBD_INFO_BLOCK_SIZE; `None` if a server may not send these sizes.
    pub(crate) fn read(bytes: &[u8; 12]) -> Option<Self> {
        let sizes =
            Self { minimum: u32_at(bytes, 0), preferred: u32_at(bytes, 4), maximum: u32_at(bytes, 8) };
        let Self { minimum, preferred, maximum } = sizes;
        let valid = minimum.is_power_of_two()
            && minimum <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= minimum.max(512)
            && maximum >= preferred;
        valid.then_some(sizes)
    }
}

/// An export in the transmission phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Bytes, less than 2^63.
    pub size: u64,
    /// What the server offers.
    pub flags: Flags,
    /// What requests keep to.
    pub blocks: BlockSizes,
    /// Replies are structured.
    pub structured: bool,
    /// The id of the context `base:allocation`, if NBD_CMD_BLOCK_STATUS may be asked for it.
    pub allocation: Option<u32>,
    /// The server's words about the export, fit to show; often empty.
    pub description: String,
}

impl Export {
    /// Takes size and flags as NBD_INFO_EXPORT and NBD_OPT_EXPORT_NAME have them. False if the size
    /// is 2^63 bytes or more.
    pub(crate) fn set(&mut self, bytes: &[u8; 10]) -> bool {
        (self.size, self.flags) = (u64_at(bytes, 0), Flags::new(u16_at(bytes, 8)));
        self.size <= i64::MAX as u64
    }
}
