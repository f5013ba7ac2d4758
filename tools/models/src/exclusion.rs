//! Commands that must be atomic, and plain writes beside them.

use loom::future::block_on;
use loom::sync::Arc;

use shipped::Exclusion;
use sync::{AtomicU32, Ordering};

mod sync {
    use std::cell::Cell;

    pub(super) use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

    /// One for each thread of a model.
    pub(super) const SLOTS: usize = 2;

    loom::thread_local! {
        static SLOT: Cell<usize> = Cell::new(0);
    }

    pub(super) fn slot() -> usize {
        SLOT.with(Cell::get)
    }

    /// Has this thread count in another slot than the first.
    pub(super) fn take_second_slot() {
        SLOT.with(|slot| slot.set(1));
    }
}

#[allow(dead_code, missing_docs, reason = "models use parts of it")]
#[path = "../../../crates/storage/device/src/exclusion.rs"]
mod shipped;

/// An exclusion, and a block that its commands read and write in two steps.
struct Disk {
    exclusion: Exclusion,
    block: AtomicU32,
    /// Plain writes between their two steps.
    writing: AtomicU32,
}

impl Disk {
    fn atomic(&self) {
        let _guard = block_on(self.exclusion.atomic(0, 1));
        let value = self.block.load(Ordering::Relaxed);
        assert_eq!(self.writing.load(Ordering::Relaxed), 0, "a plain write runs beside an atomic command");
        self.block.store(value + 1, Ordering::Relaxed);
    }

    fn plain(&self) {
        let _guard = block_on(self.exclusion.write(0, 1));
        self.writing.store(1, Ordering::Relaxed);
        let value = self.block.load(Ordering::Relaxed);
        self.block.store(value + 1, Ordering::Relaxed);
        self.writing.store(0, Ordering::Relaxed);
    }
}

fn both(preemptions: usize, one: fn(&Disk), other: fn(&Disk)) {
    crate::check(preemptions, move || {
        let disk = Arc::new(Disk {
            exclusion: Exclusion::new(),
            block: AtomicU32::new(0),
            writing: AtomicU32::new(0),
        });
        let (first, second) = (disk.clone(), disk.clone());
        let second = move || {
            sync::take_second_slot();
            other(&second);
        };
        crate::at_once(vec![Box::new(move || one(&first)), Box::new(second)]);
        assert_eq!(disk.block.load(Ordering::Relaxed), 2, "a change was lost");
    });
}

/// A plain write and an atomic command never overlap, and neither waits for ever.
pub fn a_plain_write_and_an_atomic_command_take_turns() {
    both(4, Disk::atomic, Disk::plain);
}

/// The same of two atomic commands.
pub fn two_atomic_commands_take_turns() {
    both(9, Disk::atomic, Disk::atomic);
}
