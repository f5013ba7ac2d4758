//! The private data of a connection request and of its reply (RFC 8797 §4): how long messages may
//! be, and whether Send with Invalidate may be used.
//!
//! ```text
//! f6ab0e18 | 1 version | flags: 1 remote invalidation | send size | receive size
//! ```
//! Sizes are in KiB, less one. A peer that sends none has [`crate::INLINE`] each way and does not
//! accept invalidation.

use crate::INLINE;

const MAGIC: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
const VERSION: u8 = 1;
const INVALIDATES: u8 = 1;
const UNIT: usize = 1024;

/// Parameters of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    /// It supports Send with Invalidate: a requester lets its memory be invalidated by replies.
    pub remote_invalidation: bool,
    /// The longest message that it sends, in bytes: 1 KiB to 256 KiB.
    pub send: usize,
    /// The longest message that it receives, in bytes: 1 KiB to 256 KiB.
    pub receive: usize,
}

impl PrivateData {
    /// Length, in bytes.
    pub const LEN: usize = 8;

    /// Parameters of a peer that sends no private data (RFC 8797).
    pub const NONE: Self = PrivateData { remote_invalidation: false, send: INLINE, receive: INLINE };

    /// The bytes to send. Sizes are rounded down to values that can be encoded.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let size = |bytes: usize| (bytes / UNIT).clamp(1, 256).wrapping_sub(1) as u8;
        let flags = if self.remote_invalidation { INVALIDATES } else { 0 };
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, VERSION, flags, size(self.send), size(self.receive)]
    }

    /// Reads a peer's private data. Other data, other versions and none are [`Self::NONE`]; bytes
    /// behind it are ignored, since some networks pad it.
    pub fn decode(bytes: &[u8]) -> Self {
        match bytes {
            [a, b, c, d, VERSION, flags, send, receive, ..] if [*a, *b, *c, *d] == MAGIC => {
                let size = |size: u8| (usize::from(size) + 1) * UNIT;
                PrivateData {
                    remote_invalidation: flags & INVALIDATES != 0,
                    send: size(*send),
                    receive: size(*receive),
                }
            }
            _ => Self::NONE,
        }
    }

    /// The longest message from this side to `peer`, in bytes.
    pub fn inline_to(&self, peer: &Self) -> usize {
        self.send.min(peer.receive)
    }
}
