//! The ring's buffers as the iSCSI state machine's payloads.

use iscsi::digest::{Crc32c, DigestBytes};
use iscsi::target::{Data, Payload};
use runtime::{Buf, Chain};

/// A payload of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment(pub Buf);

impl Payload for Segment {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_to(&mut self, n: usize) -> Self {
        Self(self.0.split_to(n))
    }

    fn with_digest(self) -> (Self, DigestBytes) {
        // A region's bytes may change between the digest and the send; the bytes sent must be those
        // of the digest.
        let mut digest = Crc32c::new();
        let stable = match self.0.is_region() {
            false => self.0,
            true => match self.0.stable() {
                Some(copy) => copy.into(),
                None => {
                    let mut copy = vec![0; self.0.len()];
                    if self.0.try_copy_to(&mut copy).is_err() {
                        // A file was cut short during the read, which has been answered: a wrong
                        // digest tells the initiator not to trust these bytes.
                        digest.update(&[0]);
                    }
                    copy.into()
                }
            },
        };
        stable.for_each_slice(|bytes| digest.update(bytes));
        digest.pad(stable.len());
        (Self(stable), digest.finish())
    }

    fn stable(self) -> Self {
        match self.0.is_region() {
            false => self,
            true => match self.0.stable() {
                Some(copy) => Self(copy.into()),
                None => {
                    let mut copy = vec![0; self.0.len()];
                    // A file that was cut short under the read reads as zeros from there on, and
                    // the read has been answered.
                    let _ = self.0.try_copy_to(&mut copy);
                    Self(copy.into())
                }
            },
        }
    }

    fn copied(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}

/// A data segment, or the data of an RDMA Read, in the pieces in which it came.
pub(crate) struct Pieces(pub Chain);

impl Data<Segment> for Pieces {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn give(self, mut to: impl FnMut(Segment)) {
        self.0.into_iter().for_each(|piece| to(Segment(piece)));
    }

    fn join(self) -> Segment {
        match self.0.bufs() {
            [one] => Segment(one.clone()),
            _ => Segment(self.0.to_vec().into()),
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }
}
