//! The checksum that tells a call that comes again from another one with the same number. It is the
//! same in every process: a successor knows the calls of its predecessor.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Bytes of a call that its checksum is made of. They hold more than its arguments, but for data.
const MOST: usize = 512;

/// The checksum of a call.
pub(crate) fn of(call: &[u8], len: usize) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(&(len as u64).to_be_bytes());
    hasher.write(&call[..call.len().min(MOST)]);
    hasher.finish()
}
