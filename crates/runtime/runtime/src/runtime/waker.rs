//! Wakers that are plain numbers.
//!
//! A waker's data is not a pointer but the name of a task: runtime, slot and generation. Cloning
//! copies it, dropping does nothing, and waking a task that has ended is harmless, at worst a poll
//! too many of the slot's next user. On the task's own thread waking is a push to the run queue; on
//! any other it goes through [`super::remote`].

use std::task::{RawWaker, RawWakerVTable, Waker};

use super::Core;
use super::remote;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a task's name takes 64 bits");

const INDEX_BITS: u32 = 26;
const CORE_BITS: u32 = 10;

/// Most runtimes at a time.
pub(super) const MAX_RUNTIMES: usize = 1 << CORE_BITS;
/// Most tasks of a runtime at a time.
pub(super) const MAX_TASKS: usize = 1 << INDEX_BITS;

/// Identifies a task in the process: 28 bits of generation, 10 of runtime, 26 of slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskName(u64);

impl TaskName {
    pub(super) fn new(runtime: u16, index: u32, generation: u32) -> Self {
        Self(
            u64::from(generation) << (INDEX_BITS + CORE_BITS)
                | u64::from(runtime) << INDEX_BITS
                | u64::from(index),
        )
    }

    pub(super) fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    pub(super) fn runtime(self) -> usize {
        (self.0 >> INDEX_BITS) as usize & (MAX_RUNTIMES - 1)
    }

    /// Wakes the task, from any thread.
    fn wake(self) {
        let is_local = Core::with_current(|core| match core {
            Some(core) if core.number() == self.runtime() => {
                core.schedule(self);
                true
            }
            _ => false,
        });
        if !is_local {
            remote::wake(self);
        }
    }

    fn raw(self) -> RawWaker {
        RawWaker::new(std::ptr::without_provenance(self.0 as usize), &VTABLE)
    }

    pub(super) fn waker(self) -> Waker {
        // SAFETY: every function of the table takes the data as a number; any thread may call them
        // at any time.
        unsafe { Waker::from_raw(self.raw()) }
    }

    fn from_data(data: *const ()) -> Self {
        Self(data.addr() as u64)
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| TaskName::from_data(data).raw(),
    |data| TaskName::from_data(data).wake(),
    |data| TaskName::from_data(data).wake(),
    |_| {},
);
