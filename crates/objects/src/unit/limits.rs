//! What one command may take. A unit's memory is bounded by these and the commands that a session may have outstanding.

/// Bytes that data is read and written in: what one command holds at a time.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// The longest list of attributes to get or to set, in bytes. The longest value of one attribute is
/// [`crate::store::MAX_VALUE`].
pub(super) const MAX_LIST: u32 = 1 << 20;

/// The longest CDB continuation, in bytes: MAXIMUM CDB CONTINUATION LENGTH of the root's information.
pub(super) const MAX_CONTINUATION: u32 = 64 << 10;

/// The most attributes that are put of one object for "all": what is retrieved is bounded by its allocation length too.
pub(super) const MAX_RETRIEVED: u64 = 16 << 20;
