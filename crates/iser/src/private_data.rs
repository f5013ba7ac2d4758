//! The private data of an iSER connection request and of its reply (InfiniBand Architecture, annex A12.6.4; Linux uses it on
//! every kind of RDMA network): four bytes, of which the first has two flags.

/// Zero-based virtual addresses are not supported.
const NO_ZBVA: u8 = 0x80;
/// Send with Invalidate is not supported.
const NO_INVALIDATE: u8 = 0x40;

/// What one side can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// It supports zero-based virtual addresses, and wants the short iSER header. Nobody in use does.
    pub zero_based: bool,
    /// It supports Send with Invalidate: an initiator lets its target invalidate a task's STag with the response, a target can
    /// do so.
    pub remote_invalidation: bool,
}

impl PrivateData {
    /// Bytes of it.
    pub const LEN: usize = 4;

    /// What Stag says of itself: full iSER headers; Send with Invalidate if `remote_invalidation`.
    pub fn new(remote_invalidation: bool) -> Self {
        Self { zero_based: false, remote_invalidation }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let zbva = if self.zero_based { 0 } else { NO_ZBVA };
        let invalidate = if self.remote_invalidation { 0 } else { NO_INVALIDATE };
        [zbva | invalidate, 0, 0, 0]
    }

    /// Reads what a peer sent. A peer that sends none, or less than four bytes, promises nothing: full headers, and no Send
    /// with Invalidate. What follows the four bytes is not looked at.
    pub fn decode(bytes: &[u8]) -> Self {
        match bytes.first_chunk::<{ Self::LEN }>() {
            Some([flags, ..]) => {
                Self { zero_based: flags & NO_ZBVA == 0, remote_invalidation: flags & NO_INVALIDATE == 0 }
            }
            None => Self { zero_based: false, remote_invalidation: false },
        }
    }
}
