//! What the target's state machine needs of payload buffers and of the place that its PDUs go to.

use super::tasks::TaskKey;
use crate::digest::{self, DigestBytes};
use crate::pdu::BHS_LEN;

/// Bytes that a PDU carries, by reference: cheap to cut, never looked into on the way through.
pub trait Payload: Clone {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Takes the first `n` bytes off. `n` is at most [`Self::len`].
    fn split_to(&mut self, n: usize) -> Self;
    /// The CRC32C of these bytes and of the zeros that pad them to a multiple of four (RFC 7143 §13.1), together with a
    /// payload that will not change any more: one whose memory others may write at the same time copies itself first.
    fn with_digest(self) -> (Self, DigestBytes);
    /// The same bytes in memory that will not change any more: what may have to be sent a second time (RFC 7143 §11.16 wants
    /// exact replicas). For payloads of which no memory is shared with a writer there is nothing to do.
    fn stable(self) -> Self {
        self
    }
    /// A payload of bytes of its own, which keeps nothing else alive.
    fn copied(bytes: Vec<u8>) -> Self;
    /// Copies the bytes out: text, parameter lists; never the data path.
    fn to_vec(&self) -> Vec<u8>;
}

impl Payload for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }
    fn split_to(&mut self, n: usize) -> Self {
        let rest = self.split_off(n);
        std::mem::replace(self, rest)
    }
    fn with_digest(self) -> (Self, DigestBytes) {
        let value = digest::data(&self);
        (self, value)
    }
    fn copied(bytes: Vec<u8>) -> Self {
        bytes
    }
    fn to_vec(&self) -> Vec<u8> {
        self.clone()
    }
}

/// A data segment as it arrived: one payload, or several where a transport delivers a message in pieces.
pub trait Data<P>: Sized {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Gives the pieces in order.
    fn give(self, to: impl FnMut(P));
    /// Bytes of it that are still to come ([`super::Connection::begin`]): none, or all.
    #[inline]
    fn due(&self) -> usize {
        0
    }
    /// As one payload, copied if it is in pieces: for pings, never the data path.
    fn join(self) -> P;
    /// Copies the bytes out: text, never the data path.
    fn to_vec(&self) -> Vec<u8>;
}

impl<P: Payload> Data<P> for P {
    fn len(&self) -> usize {
        Payload::len(self)
    }
    fn give(self, mut to: impl FnMut(P)) {
        to(self);
    }
    fn join(self) -> P {
        self
    }
    fn to_vec(&self) -> Vec<u8> {
        Payload::to_vec(self)
    }
}

/// A data segment that is still to come, of so many bytes.
pub(super) struct Due(pub usize);

impl<P: Payload> Data<P> for Due {
    fn len(&self) -> usize {
        self.0
    }
    fn due(&self) -> usize {
        self.0
    }
    fn give(self, _to: impl FnMut(P)) {}
    fn join(self) -> P {
        P::copied(Vec::new())
    }
    fn to_vec(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Where finished PDUs go, in order: the one queue in front of a connection's socket.
pub trait Sink<P> {
    /// Appends bytes, copied.
    fn bytes(&mut self, bytes: &[u8]);
    /// Begins a PDU with its header, copied.
    fn header(&mut self, header: &[u8; BHS_LEN]) {
        self.bytes(header);
    }
    /// Appends a payload, by reference.
    fn payload(&mut self, payload: P);
    /// The PDU that is begun next has the status of this task, which is over with it. For transports that tell the initiator
    /// more with it, as iSER does.
    fn ends(&mut self, _task: TaskKey) {}
    /// The PDU is whole. For transports that keep PDUs apart.
    fn whole(&mut self) {}
}

impl<P: Payload> Sink<P> for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn payload(&mut self, payload: P) {
        self.extend_from_slice(&payload.to_vec());
    }
}
