//! Loom's atomics, with an order among operations that are sequentially consistent.
//!
//! Loom takes such an operation for one that acquires and releases, and knows the order among
//! fences alone. So there is a fence between two such operations that follow each other in a
//! thread. There is none elsewhere: an operation beside them with a weaker order gets no more than
//! it has.

use std::cell::Cell;

use loom::sync::atomic;

pub(crate) use atomic::Ordering;
pub(crate) use loom::sync::{Mutex, MutexGuard};

loom::thread_local! {
    /// Whether the thread's last operation was sequentially consistent.
    static IN_ORDER: Cell<bool> = Cell::new(false);
}

/// Before an operation of this order.
fn before(order: Ordering) {
    let now = order == Ordering::SeqCst;
    if IN_ORDER.with(|last| last.replace(now)) && now {
        atomic::fence(Ordering::SeqCst);
    }
}

pub(crate) fn fence(order: Ordering) {
    IN_ORDER.with(|last| last.set(false));
    atomic::fence(order);
}

#[derive(Debug, Default)]
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> Self {
        Self(atomic::AtomicU32::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        before(order);
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        before(order);
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        before(order);
        self.0.fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        before(order);
        self.0.fetch_sub(value, order)
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        expected: u32,
        value: u32,
        order: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        before(order);
        self.0.compare_exchange_weak(expected, value, order, failed)
    }
}

#[derive(Debug)]
pub(crate) struct AtomicBool(atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(atomic::AtomicBool::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        before(order);
        self.0.load(order)
    }

    /// Loom would let a swap read what this has replaced, if it were no swap itself. It acquires
    /// nothing.
    pub(crate) fn store(&self, value: bool, order: Ordering) {
        before(order);
        let releases = if order == Ordering::Relaxed { order } else { Ordering::Release };
        self.0.swap(value, releases);
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        before(order);
        self.0.swap(value, order)
    }
}
