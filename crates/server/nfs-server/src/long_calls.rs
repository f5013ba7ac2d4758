//! [`LongCalls`]: bounds the part of a core's pool that calls with buffers of their own may hold.
//!
//! A client may begin a long WRITE and stop, and a slow medium holds the data of many. Without a
//! bound they would take all buffers of the core, other protocols' included. Beyond the bound, data
//! wait in the socket.

use std::cell::Cell;
use std::rc::Rc;

use invariant::invariant;
use runtime::{Notify, pool};

/// The part of the pool's bytes that long calls may hold.
const PART: usize = 4;

/// Bytes that the long calls of one core hold.
#[derive(Default)]
pub(crate) struct LongCalls {
    bytes: Cell<usize>,
    room: Notify,
}

/// The part of one call. It is given back when this is dropped.
pub(crate) struct Held {
    of: Rc<LongCalls>,
    bytes: usize,
}

impl LongCalls {
    /// Waits until there is room for `len` bytes. One call fits in any case.
    pub(crate) async fn take(self: &Rc<Self>, len: usize) -> Held {
        let most = pool::stats().limit / PART;
        let fits = || (self.bytes.get() == 0 || self.bytes.get() + len <= most).then_some(());
        self.room.until(fits).await;
        self.bytes.set(self.bytes.get() + len);
        Held { of: self.clone(), bytes: len }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.of.bytes.get();
        invariant!(self.bytes <= held, "a call gives {} bytes back of {held}", self.bytes);
        self.of.bytes.set(held.saturating_sub(self.bytes));
        self.of.room.notify();
    }
}
