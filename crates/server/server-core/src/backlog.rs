//! Bound on the memory that a core's connections hold for initiators that receive slowly or not at
//! all: queued output, and the data that long reads are fetching.
//!
//! Most of it lies in the core's pool, which also takes the incoming data of all connections. So
//! together it may take a quarter of the pool, however many initiators do not read. Beyond that a
//! connection holds an equal share at most: the server stops reading from it, and its reads wait,
//! until its initiator has received enough. A connection that holds nothing may always begin. Bytes
//! are counted in steps of [`STEP`], so that short queues cost nothing.

use std::cell::Cell;
use std::rc::Rc;

use invariant::invariant;
use runtime::pool;

/// Total of the bytes that one core's connections hold.
#[derive(Debug, Default)]
pub struct Held {
    /// Bytes held by all connections.
    held: Cell<usize>,
    /// Connections that hold any.
    holders: Cell<usize>,
}

/// Divisor: the connections may hold the pool's bytes divided by this.
const PART: usize = 4;

/// Bytes that a connection may hold without being counted.
pub const STEP: usize = 64 << 10;

/// Bytes that a read fetches at most before it waits until its connection has room for more.
const PIECE: usize = 1 << 20;

/// One connection's share.
#[derive(Debug)]
pub struct Backlog {
    core: Rc<Held>,
    /// Bytes queued to be sent, in whole steps.
    queued: Cell<usize>,
    /// Upper bound of the bytes that its long reads in progress will fetch.
    reading: Cell<usize>,
}

impl Backlog {
    /// Creates the share of a connection that holds nothing yet.
    pub fn new(core: Rc<Held>) -> Self {
        Self { core, queued: Cell::new(0), reading: Cell::new(0) }
    }

    /// Sets the number of bytes queued to be sent.
    #[inline]
    pub fn account(&self, queued: usize) {
        let queued = queued / STEP * STEP;
        if queued != self.queued.get() {
            self.set(queued, self.reading.get());
        }
    }

    /// A read of `len` bytes begins. Returns the number of bytes to pass to [`Self::read`] when it
    /// ends.
    #[inline]
    pub fn begin(&self, len: usize) -> usize {
        let len = if len < STEP { 0 } else { len.min(PIECE) };
        if len > 0 {
            self.set(self.queued.get(), self.reading.get() + len);
        }
        len
    }

    /// A read that [`Self::begin`] counted as `counted` bytes has ended.
    pub fn read(&self, counted: usize) {
        let reading = self.reading.get();
        invariant!(counted <= reading, "a read of {counted} bytes ended, of {reading} that began");
        self.set(self.queued.get(), reading.saturating_sub(counted));
    }

    /// Whether more bytes are queued than may stay uncounted.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.queued.get() > 0
    }

    fn held(&self) -> usize {
        self.queued.get() + self.reading.get()
    }

    #[cold]
    fn set(&self, queued: usize, reading: usize) {
        let before = self.held();
        self.queued.set(queued);
        self.reading.set(reading);
        let now = self.held();
        let core = &*self.core;
        core.held.set(core.held.get() - before + now);
        match (before, now) {
            (0, 1..) => core.holders.set(core.holders.get() + 1),
            (1.., 0) => core.holders.set(core.holders.get() - 1),
            _ => {}
        }
    }

    /// Bytes that may be queued before the server stops reading from its initiator: `most` while
    /// the core has room.
    #[inline]
    pub fn mark(&self, most: usize) -> usize {
        let core = &*self.core;
        let bound = pool::stats().limit / PART;
        match core.held.get() <= bound {
            true => most,
            false => (bound / core.holders.get().max(1)).max(STEP).min(most),
        }
    }

    /// Whether a read of `len` bytes may begin.
    #[inline]
    pub fn may_read(&self, len: usize) -> bool {
        let (held, len) = (self.held(), len.min(PIECE));
        if held == 0 {
            return true;
        }
        let (core, bound) = (&*self.core, pool::stats().limit / PART);
        core.held.get() + len <= bound || held + len <= bound / core.holders.get().max(1)
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if self.held() > 0 {
            self.set(0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Config, Runtime};

    use super::*;

    #[test]
    fn what_is_held_together_is_a_quarter_of_the_pool_and_a_share_for_each() {
        Runtime::new(Config { pool_bytes: 16 << 20, ..Config::default() }).unwrap().block_on(async {
            let (core, bound) = (Rc::<Held>::default(), pool::stats().limit / PART);
            let all: Vec<Backlog> = (0..64).map(|_| Backlog::new(core.clone())).collect();
            for (n, one) in all.iter().enumerate() {
                assert!(one.may_read(1 << 20), "{n}: it holds nothing");
                let mut counted = Vec::new();
                while one.may_read(1 << 20) && counted.len() < 1000 {
                    counted.push(one.begin(1 << 20));
                }
                let share = (bound >> 20) / (n + 1);
                assert_eq!(counted.len(), share.max(1), "number {n}");
            }
            assert_eq!(all[0].mark(4 << 20), STEP, "a share is no less than that");
            all[0].account(STEP - 1);
            assert_eq!(all[0].queued.get(), 0);
            drop(all);
            let one = Backlog::new(core);
            assert_eq!(one.mark(4 << 20), 4 << 20);
            one.account(bound + STEP);
            assert!(one.mark(usize::MAX) <= bound && !one.may_read(STEP));
            one.account(0);
            assert!(one.may_read(bound) && one.begin(STEP - 1) == 0);
        });
    }
}
