//! The limits of one command. These, times the outstanding commands of a session, bound a unit's
//! memory.

/// Bytes in which data is read and written: a command holds one such piece at a time.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// The longest list of attributes to get or to set, in bytes. The longest value of one attribute is
/// [`crate::store::MAX_VALUE`].
pub(super) const MAX_LIST: u32 = 1 << 20;

/// The longest CDB continuation, in bytes: MAXIMUM CDB CONTINUATION LENGTH of the root's
/// information.
pub(super) const MAX_CONTINUATION: u32 = 64 << 10;

/// The piece of a reply that is longer than a command may hold, in bytes.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Most bytes of a list of attributes that a command holds. A shorter list is put as it was at one
/// moment.
pub(super) const MAX_KEPT: usize = 384 << 10;

/// Most bytes of ids or of a map's descriptors that a command holds, as [`super::reply::Packed`]
/// keeps them.
pub(super) const MAX_PACKED: usize = 512 << 10;

/// Collections that one object may name, whatever its partition's quota is.
pub(super) const MAX_COLLECTIONS: u32 = 16_384;
