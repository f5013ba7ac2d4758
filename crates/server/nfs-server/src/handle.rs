//! File handles: `version, MAC, export, node`, 17 to 57 bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, 1 |
//! | 8 | SipHash-2-4 of what follows, under the server's key |
//! | 8 | the export: SipHash of its name |
//! | 0…40 | [`NodeId`] |
//!
//! Only the server makes handles: without the key, no client can guess an inode and make one for a
//! file outside of an export. A handle grants no right: each call is checked.

use std::hash::Hasher;

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher24;
use tree::NodeId;

/// The longest handle, bytes: [`nfs::v3::MAX_HANDLE`] allows 64.
pub(crate) const MOST: usize = HEAD + NodeId::MOST;

const VERSION: u8 = 1;
const HEAD: usize = 17;

/// A handle as it is sent.
pub(crate) type Bytes = ArrayVec<u8, MOST>;

/// Names an export in its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExportId(pub u64);

/// Makes handles, and knows its own again.
#[derive(Clone, Copy)]
pub(crate) struct Handles {
    key: [u8; 16],
}

impl Handles {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { key }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(bytes);
        hasher.finish()
    }

    /// The id of the export that has this name.
    pub(crate) fn export(&self, name: &str) -> ExportId {
        ExportId(self.hash(name.as_bytes()))
    }

    /// The handle of a file.
    pub(crate) fn make(&self, export: ExportId, node: &NodeId) -> Bytes {
        let mut handle = [0; MOST];
        let (head, body) = handle.split_at_mut(HEAD);
        head[0] = VERSION;
        head[9..].copy_from_slice(&export.0.to_be_bytes());
        let len = HEAD + node.bytes().len();
        body[..node.bytes().len()].copy_from_slice(node.bytes());
        let mac = self.hash(&handle[9..len]);
        handle[1..9].copy_from_slice(&mac.to_be_bytes());
        let mut handle = Bytes::from(handle);
        handle.truncate(len);
        handle
    }

    /// The file that a handle names; `None` of one that this server has not made.
    pub(crate) fn read(&self, handle: &[u8]) -> Option<(ExportId, NodeId)> {
        let (head, node) = handle.split_first_chunk::<HEAD>()?;
        let (mac, export) = (head[1..9].first_chunk()?, head[9..].first_chunk()?);
        if head[0] != VERSION || u64::from_be_bytes(*mac) != self.hash(&handle[9..]) {
            return None;
        }
        Some((ExportId(u64::from_be_bytes(*export)), NodeId::new(node).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_known_again_by_the_same_key_only() {
        let handles = Handles::new([7; 16]);
        let node = NodeId::new(&[9; NodeId::MOST]).unwrap();
        let export = handles.export("/data");
        let handle = handles.make(export, &node);
        assert!(handle.len() <= nfs::v3::MAX_HANDLE);
        assert_eq!(handles.read(&handle), Some((export, node)));
        assert_eq!(Handles::new([8; 16]).read(&handle), None);
    }

    #[test]
    fn a_changed_bit_makes_a_handle_unknown() {
        let handles = Handles::new([7; 16]);
        let handle = handles.make(ExportId(3), &NodeId::new(b"node").unwrap());
        for bit in 0..handle.len() * 8 {
            let mut changed = handle.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(handles.read(&changed), None, "bit {bit}");
        }
        for len in 0..handle.len() {
            assert_eq!(handles.read(&handle[..len]), None);
        }
    }
}
