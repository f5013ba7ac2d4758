//! What a stream needs of payload buffers and of the place that its FPDUs go to.

use crate::crc::Crc32c;

/// Bytes to send, by reference: cheap to cut, looked into only for the CRC.
pub trait Payload: Sized {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Takes the first `n` bytes off. `n` is at most [`Self::len`].
    fn split_to(&mut self, n: usize) -> Self;
    /// The bytes, if they lie together in memory that nobody writes: an FPDU that is short is written in one piece.
    fn as_stable(&self) -> Option<&[u8]> {
        None
    }
    /// Adds these bytes to `crc` and gives a payload that will not change any more: one whose memory others may write at the
    /// same time copies itself first. Called only where CRCs are on.
    fn with_crc(self, crc: &mut Crc32c) -> Self;
}

/// Where FPDUs go, in order: the one queue in front of a connection's socket.
pub trait Sink<P> {
    /// Appends bytes, copied.
    fn bytes(&mut self, bytes: &[u8]);
    /// Appends a payload, by reference.
    fn payload(&mut self, payload: P);
}

impl Payload for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }
    fn split_to(&mut self, n: usize) -> Self {
        let rest = self.split_off(n);
        std::mem::replace(self, rest)
    }
    fn as_stable(&self) -> Option<&[u8]> {
        Some(self)
    }
    fn with_crc(self, crc: &mut Crc32c) -> Self {
        crc.update(&self);
        self
    }
}

impl Payload for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
    fn split_to(&mut self, n: usize) -> Self {
        let (head, rest) = self.split_at(n);
        *self = rest;
        head
    }
    fn as_stable(&self) -> Option<&[u8]> {
        Some(self)
    }
    fn with_crc(self, crc: &mut Crc32c) -> Self {
        crc.update(self);
        self
    }
}

impl<P: AsRef<[u8]>> Sink<P> for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: P) {
        self.extend_from_slice(payload.as_ref());
    }
}
