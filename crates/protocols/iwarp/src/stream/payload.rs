//! What a stream requires of payload buffers and of the sink for its FPDUs.

use crate::crc::Crc32c;

/// Bytes to send, by reference: cheap to split; read only for the CRC, or copied for markers.
pub trait Payload: Sized {
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the payload has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Takes the first `n` bytes off. `n` is at most [`Self::len`].
    fn split_to(&mut self, n: usize) -> Self;
    /// The bytes, if they are contiguous and no one else writes that memory. A short FPDU is then
    /// built in one piece.
    fn as_stable(&self) -> Option<&[u8]> {
        None
    }
    /// Adds these bytes to `crc` and returns a payload that no longer changes. Memory that others
    /// may write concurrently must be copied first. Called only if CRCs are on, without markers.
    fn with_crc(self, crc: &mut Crc32c) -> Self;
    /// Copies the bytes from `at` on that fill `to`. Returns whether they could be read. Called
    /// only with markers.
    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool;
}

/// Receives FPDUs in order: the one queue in front of a connection's socket.
pub trait Sink<P> {
    /// Appends bytes, copied.
    fn bytes(&mut self, bytes: &[u8]);
    /// Appends a payload, by reference.
    fn payload(&mut self, payload: P);
    /// Appends `len` bytes that `fill` copies to a place of this sink: the payload, with markers
    /// between its bytes. If `fill` returns false, some bytes could not be read: then none of
    /// the FPDU must be sent.
    fn marked(&mut self, payload: P, len: usize, fill: impl FnOnce(&P, &mut [u8]) -> bool);
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
    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        self.as_slice().copy_to(at, to)
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
    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        to.copy_from_slice(&self[at..at + to.len()]);
        true
    }
}

impl<P: AsRef<[u8]>> Sink<P> for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: P) {
        self.extend_from_slice(payload.as_ref());
    }
    fn marked(&mut self, payload: P, len: usize, fill: impl FnOnce(&P, &mut [u8]) -> bool) {
        let start = self.len();
        self.resize(start + len, 0);
        fill(&payload, &mut self[start..]);
    }
}
