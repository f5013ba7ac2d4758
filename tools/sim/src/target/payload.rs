//! The units' buffers as the target state machine's payloads.

use iscsi::digest::{Crc32c, DigestBytes};
use iscsi::target::{Data, Payload};
use runtime::{Buf, Chain};

/// A payload on its way through a connection of the target.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment(pub Buf);

impl Payload for Segment {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_to(&mut self, n: usize) -> Self {
        Self(self.0.split_to(n))
    }

    fn with_digest(self) -> (Self, DigestBytes) {
        let mut digest = Crc32c::new();
        self.0.for_each_slice(|bytes| digest.update(bytes));
        digest.pad(self.0.len());
        (self, digest.finish())
    }

    fn copied(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// A data segment in the pieces in which it came.
pub(super) struct Pieces(pub Chain);

impl Data<Segment> for Pieces {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn give(self, mut to: impl FnMut(Segment)) {
        self.0.into_iter().for_each(|piece| to(Segment(piece)));
    }

    fn join(self) -> Segment {
        Segment(self.0.to_vec().into())
    }

    fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}
