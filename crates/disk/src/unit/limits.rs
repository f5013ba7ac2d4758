//! What one command may ask of a disk: what the Block Limits page reports and what commands are held to.

/// Bytes that one READ, WRITE, VERIFY, ORWRITE... may move: MAXIMUM TRANSFER LENGTH.
pub const MAX_TRANSFER_BYTES: u64 = 32 << 20;
/// Bytes that are best moved at once: OPTIMAL TRANSFER LENGTH.
pub const OPTIMAL_TRANSFER_BYTES: u64 = 1 << 20;
/// Bytes that a command moves before it looks whether the connection keeps up.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Blocks that COMPARE AND WRITE compares: MAXIMUM COMPARE AND WRITE LENGTH.
pub const MAX_COMPARE_BLOCKS: u32 = 255;
/// Bytes that WRITE ATOMIC (16) writes: MAXIMUM ATOMIC TRANSFER LENGTH. ORWRITE, too, takes no more.
pub const MAX_ATOMIC_BYTES: u64 = 2 << 20;
/// Bytes that WRITE SAME writes: MAXIMUM WRITE SAME LENGTH. No more than a WRITE of the same blocks may.
pub const MAX_WRITE_SAME_BYTES: u64 = MAX_TRANSFER_BYTES;
/// Descriptors of one UNMAP: MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;
/// Blocks that one UNMAP deallocates in all: MAXIMUM UNMAP LBA COUNT.
pub const MAX_UNMAP_BLOCKS: u32 = 1 << 20;
/// Descriptors in one GET LBA STATUS answer.
pub const MAX_LBA_STATUS: usize = 1024;
/// Bytes of a parameter list that is taken; no command of a disk has use for more.
pub const MAX_PARAMETER_LIST: usize = 64 << 10;
