//! [`Seal`]: the keyed hash by which a folder recognizes its own ids. Owns the key, which is in the
//! state directory, and the layout of an id: its contents, and eight bytes that only the key can
//! produce.
//!
//! File systems give handles that can be guessed: an inode's number and a generation. A folder
//! serves only the ids that it has made, so an id of a file outside, or of another folder, is
//! refused.

use std::io;
use std::path::Path;

use tree::{NodeId, TreeError};

/// Bytes of a seal.
pub(crate) const LEN: usize = 8;
/// Most bytes of an id's contents.
pub(crate) const MOST: usize = NodeId::MOST - LEN;

/// A key of SipHash-2-4, a pseudo-random function of 64 bits.
#[derive(Clone, Copy)]
pub(crate) struct Seal([u64; 2]);

impl Seal {
    /// The key in the file at `path`; a new one if there is none. Blocks.
    pub(crate) fn load(path: &Path) -> io::Result<Self> {
        let mut key = [0; 16];
        match backing::durable::read(path, key.len())? {
            Some(bytes) => key = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?,
            None => {
                runtime::random(&mut key)?;
                backing::durable::replace(path, &key)?;
            }
        }
        Ok(Self([word(&key[..8]), word(&key[8..])]))
    }

    /// The id with these contents.
    pub(crate) fn id(&self, contents: &[u8]) -> Result<NodeId, TreeError> {
        let mut bytes = [0; NodeId::MOST];
        let len = contents.len();
        bytes.get_mut(..len).ok_or(TreeError::Unsupported)?.copy_from_slice(contents);
        bytes
            .get_mut(len..len + LEN)
            .ok_or(TreeError::Unsupported)?
            .copy_from_slice(&self.hash(contents).to_le_bytes());
        NodeId::new(&bytes[..len + LEN]).map_err(|_| TreeError::Unsupported)
    }

    /// The contents of an id of this folder.
    pub(crate) fn contents<'a>(&self, id: &'a NodeId) -> Result<&'a [u8], TreeError> {
        let (contents, seal) = id.bytes().split_last_chunk::<LEN>().ok_or(TreeError::Stale)?;
        if u64::from_le_bytes(*seal) == self.hash(contents) { Ok(contents) } else { Err(TreeError::Stale) }
    }

    /// SipHash-2-4.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        let [a, b] = self.0;
        let mut v = [
            a ^ 0x736f_6d65_7073_6575,
            b ^ 0x646f_7261_6e64_6f6d,
            a ^ 0x6c79_6765_6e65_7261,
            b ^ 0x7465_6462_7974_6573,
        ];
        let mut words = bytes.chunks_exact(8);
        for chunk in &mut words {
            absorb(&mut v, word(chunk));
        }
        absorb(&mut v, word(words.remainder()) | (bytes.len() as u64) << 56);
        v[2] ^= 0xff;
        (0..4).for_each(|_| round(&mut v));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

/// Up to eight bytes, little-endian.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn absorb(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    (0..2).for_each(|_| round(v));
    v[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_is_siphash_2_4() {
        // The key and the messages 00 01 02 … of the paper's appendix A, and its reference vectors.
        let seal = Seal([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(seal.hash(&message), 0xa129_ca61_49be_45e5);
        assert_eq!(seal.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(seal.hash(&message[..8]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn an_id_is_known_by_its_own_folder_after_a_restart_and_by_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, other) = (directory.path().join("a"), directory.path().join("b"));
        let id = Seal::load(&ours).unwrap().id(b"inode 12").unwrap();
        assert_eq!(Seal::load(&ours).unwrap().contents(&id), Ok(&b"inode 12"[..]));
        assert_eq!(Seal::load(&other).unwrap().contents(&id), Err(TreeError::Stale));
        let mut bytes = id.bytes().to_vec();
        bytes[7] ^= 1;
        assert!(Seal::load(&ours).unwrap().contents(&NodeId::new(&bytes).unwrap()).is_err());
        assert!(Seal::load(&ours).unwrap().contents(&NodeId::new(b"short").unwrap()).is_err());
    }
}
