//! The limits of one command to a disk: the Block Limits page reports them, and commands enforce
//! them.

/// Maximum bytes of one READ, WRITE, VERIFY, ORWRITE...: MAXIMUM TRANSFER LENGTH.
pub const MAX_TRANSFER_BYTES: u64 = 32 << 20;
/// Recommended bytes per command: OPTIMAL TRANSFER LENGTH.
pub(crate) const OPTIMAL_TRANSFER_BYTES: u64 = 1 << 20;
/// Bytes that a command transfers before it waits for the connection.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Maximum blocks of COMPARE AND WRITE: MAXIMUM COMPARE AND WRITE LENGTH.
pub(crate) const MAX_COMPARE_BLOCKS: u32 = 255;
/// Maximum bytes of WRITE ATOMIC (16): MAXIMUM ATOMIC TRANSFER LENGTH. ORWRITE has the same limit.
pub(crate) const MAX_ATOMIC_BYTES: u64 = 2 << 20;
/// Maximum bytes of WRITE SAME: MAXIMUM WRITE SAME LENGTH, the same as for a WRITE.
pub(crate) const MAX_WRITE_SAME_BYTES: u64 = MAX_TRANSFER_BYTES;
/// Maximum descriptors of one UNMAP: MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(crate) const MAX_UNMAP_DESCRIPTORS: u32 = 256;
/// Maximum total blocks of one UNMAP: MAXIMUM UNMAP LBA COUNT.
pub(crate) const MAX_UNMAP_BLOCKS: u32 = 1 << 20;
/// Maximum descriptors in one GET LBA STATUS response, and maximum extents that its store is asked
/// for.
pub(crate) const MAX_LBA_STATUS: usize = 1024;
/// Maximum bytes of a parameter list; no disk command needs more.
pub const MAX_PARAMETER_LIST: usize = 64 << 10;
