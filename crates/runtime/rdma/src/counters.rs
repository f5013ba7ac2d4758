//! Counts of transferred data per queue pair and per core, by kind of transfer. They show how much
//! payload user space copied.

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

/// Counts since a queue pair was created, or since its core started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of incoming payload that user space copied to their place.
    pub copied_in: u64,
    /// Bytes of incoming payload passed on in the receive buffer.
    pub by_reference: u64,
    /// Bytes of incoming payload received straight into their place.
    pub in_place: u64,
    /// The part of `in_place` and `copied_in` that a [`crate::DataSink`] took in its own memory.
    pub placed: u64,
    /// Bytes of incoming payload without a destination.
    pub dropped: u64,
    /// Bytes of outgoing payload: everything posted except heads of Sends.
    pub sent: u64,
    /// Bytes of it that user space copied. These are memory that may change, under a CRC; all data
    /// with markers; pieces of up to 256 bytes; and memory read by the peer that it may also write.
    pub copied_out: u64,
    /// Messages received that require an action: all except RDMA Writes.
    pub messages_in: u64,
    /// Number of receives from the socket.
    pub receives: u64,
    /// Number of sends to the socket.
    pub sends: u64,
}

thread_local! {
    static CORE: Cell<Counters> = const { Cell::new(Counters {
        copied_in: 0, by_reference: 0, in_place: 0, placed: 0, dropped: 0, sent: 0, copied_out: 0, messages_in: 0, receives: 0, sends: 0,
    }) };
}

/// Counts of all queue pairs of this core so far.
pub fn counters() -> Counters {
    CORE.get()
}

/// Adds to the counts of this core.
pub(crate) fn count_on_core(more: Counters) {
    let mut counters = CORE.get();
    counters += more;
    CORE.set(counters);
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.copied_in += other.copied_in;
        self.by_reference += other.by_reference;
        self.in_place += other.in_place;
        self.placed += other.placed;
        self.dropped += other.dropped;
        self.sent += other.sent;
        self.copied_out += other.copied_out;
        self.messages_in += other.messages_in;
        self.receives += other.receives;
        self.sends += other.sends;
    }
}

impl Sub for Counters {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            copied_in: self.copied_in - other.copied_in,
            by_reference: self.by_reference - other.by_reference,
            in_place: self.in_place - other.in_place,
            placed: self.placed - other.placed,
            dropped: self.dropped - other.dropped,
            sent: self.sent - other.sent,
            copied_out: self.copied_out - other.copied_out,
            messages_in: self.messages_in - other.messages_in,
            receives: self.receives - other.receives,
            sends: self.sends - other.sends,
        }
    }
}
