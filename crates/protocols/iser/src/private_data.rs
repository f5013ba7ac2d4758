//! The private data of an iSER connection request and of its reply: four bytes, of which the first
//! has two flags. See InfiniBand Architecture, annex A12.6.4; Linux uses it on every kind of RDMA
//! network.

/// Zero-based virtual addresses are not supported.
const NO_ZBVA: u8 = 0x80;
/// Send with Invalidate is not supported.
const NO_INVALIDATE: u8 = 0x40;

/// The capabilities of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// The side supports zero-based virtual addresses, and wants the short iSER header. No
    /// implementation in use does.
    pub zero_based: bool,
    /// The side supports Send with Invalidate. An initiator then lets its target invalidate a
    /// task's STag with the response; a target can do so.
    pub remote_invalidation: bool,
}

impl PrivateData {
    /// Length of the private data, in bytes.
    pub const LEN: usize = 4;

    /// Stag's capabilities: full iSER headers; Send with Invalidate if `remote_invalidation`.
    pub fn new(remote_invalidation: bool) -> Self {
        Self { zero_based: false, remote_invalidation }
    }

    /// The four bytes to send.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let zbva = if self.zero_based { 0 } else { NO_ZBVA };
        let invalidate = if self.remote_invalidation { 0 } else { NO_INVALIDATE };
        [zbva | invalidate, 0, 0, 0]
    }

    /// Reads a peer's private data. A peer that sends fewer than four bytes, or none, has no
    /// capability: full headers, and no Send with Invalidate. Bytes after the first four are
    /// ignored.
    pub fn decode(bytes: &[u8]) -> Self {
        match bytes.first_chunk::<{ Self::LEN }>() {
            Some([flags, ..]) => {
                Self { zero_based: flags & NO_ZBVA == 0, remote_invalidation: flags & NO_INVALIDATE == 0 }
            }
            None => Self { zero_based: false, remote_invalidation: false },
        }
    }
}
