//! The interfaces of the target's state machine to payload buffers and to the output queue.

use super::tasks::TaskKey;
use crate::digest::{self, DigestBytes};
use crate::pdu::{BHS_LEN, Lun};

/// Bytes of a PDU, by reference: cheap to split, never read on the data path.
pub trait Payload: Clone {
    /// The length, bytes.
    fn len(&self) -> usize;
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Splits off the first `n` bytes. `n` is at most [`Self::len`].
    fn split_to(&mut self, n: usize) -> Self;
    /// The CRC32C of these bytes and of the zeros that pad them to a multiple of four (RFC 7143
    /// §13.1). Returned with a payload that no longer changes. If others may write its memory
    /// meanwhile, the payload is copied first.
    fn with_digest(self) -> (Self, DigestBytes);
    /// The same bytes in memory that no longer changes, for PDUs that may be resent (RFC 7143
    /// §11.16 requires exact replicas). The default suits payloads that share no memory with a
    /// writer.
    fn stable(self) -> Self {
        self
    }
    /// A payload that owns its bytes and keeps no other memory alive.
    fn copied(bytes: Vec<u8>) -> Self;
    /// Copies the bytes: for text and parameter lists, never on the data path.
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

/// A received data segment: one payload, or several if a transport delivers a message in pieces.
pub trait Data<P>: Sized {
    /// The length, bytes.
    fn len(&self) -> usize;
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Passes the pieces to `to`, in order.
    fn give(self, to: impl FnMut(P));
    /// The number of its bytes that have not arrived ([`super::Connection::begin`]): 0, or all.
    #[inline]
    fn due(&self) -> usize {
        0
    }
    /// The bytes as one payload, copied if in pieces: for pings, never on the data path.
    fn join(self) -> P;
    /// Copies the bytes: for text, never on the data path.
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

/// A data segment of this many bytes that has not arrived.
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

/// Receives finished PDUs, in order: the queue before a connection's socket.
pub trait Sink<P> {
    /// Appends a copy of the bytes.
    fn bytes(&mut self, bytes: &[u8]);
    /// Begins a PDU with a copy of its header.
    fn header(&mut self, header: &[u8; BHS_LEN]) {
        self.bytes(header);
    }
    /// Appends a payload by reference.
    fn payload(&mut self, payload: P);
    /// Announces that the next PDU has the status of this task, which ends with it. For transports
    /// that add information to it, as iSER does.
    fn ends(&mut self, _task: TaskKey) {}
    /// Whether the unit of this LUN has its sense data in descriptor format (D_SENSE of its Control
    /// mode page): sense data of the connection then has that too.
    fn descriptor_sense(&self, _lun: Lun) -> bool {
        false
    }
    /// Ends a PDU. For transports that separate PDUs.
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
