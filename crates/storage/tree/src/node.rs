//! [`NodeId`]: identifies a file of a tree for as long as the file exists.

use std::fmt;

/// Identifies a file of one tree, across renames. A tree must recognize its own ids after a
/// restart. The id of a removed file is never reused.
///
/// A server puts it into its file handles, so it holds at most [`NodeId::MOST`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    len: u8,
    bytes: [u8; Self::MOST],
}

/// More bytes than a [`NodeId`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are more than a node's name of {most} holds", most = NodeId::MOST)]
pub struct TooLong(pub usize);

impl NodeId {
    /// Most bytes of an id.
    pub const MOST: usize = 40;

    /// The id that consists of `bytes`.
    ///
    /// # Errors
    /// If there are more than [`Self::MOST`].
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut id = Self { len: bytes.len() as u8, bytes: [0; Self::MOST] };
        id.bytes.get_mut(..bytes.len()).ok_or(TooLong(bytes.len()))?.copy_from_slice(bytes);
        Ok(id)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_holds_forty_bytes_and_no_more() {
        let bytes: Vec<u8> = (0..41).collect();
        assert_eq!(NodeId::new(&bytes[..40]).unwrap().bytes(), &bytes[..40]);
        assert_eq!(NodeId::new(&bytes), Err(TooLong(41)));
        assert_ne!(NodeId::new(&[0]).unwrap(), NodeId::new(&[]).unwrap(), "the length counts");
    }
}
