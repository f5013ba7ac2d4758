//! What initiators send: shared bytes, cut without copying.

use std::ops::Range;
use std::rc::Rc;

use iscsi::digest::{self, DigestBytes};
use iscsi::target::Payload;

/// A part of shared bytes.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    bytes: Rc<Vec<u8>>,
    part: Range<usize>,
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), bytes: Rc::new(bytes) }
    }
}

impl Slice {
    fn get(&self) -> &[u8] {
        &self.bytes[self.part.clone()]
    }
}

impl Payload for Slice {
    fn len(&self) -> usize {
        self.part.len()
    }

    fn split_to(&mut self, n: usize) -> Self {
        let head = Self { bytes: self.bytes.clone(), part: self.part.start..self.part.start + n };
        self.part.start += n;
        head
    }

    fn with_digest(self) -> (Self, DigestBytes) {
        let value = digest::data(self.get());
        (self, value)
    }

    fn copied(bytes: Vec<u8>) -> Self {
        bytes.into()
    }

    fn to_vec(&self) -> Vec<u8> {
        self.get().to_vec()
    }
}
