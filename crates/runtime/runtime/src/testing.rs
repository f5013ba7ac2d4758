//! Counts of allocations, for tests of the data path. Feature `testing`; not for programs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static UNCOUNTED: Cell<bool> = const { Cell::new(false) };
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting. Name it with `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

impl Counting {
    /// Number of allocations and reallocations so far, by all threads that count.
    pub fn allocations() -> u64 {
        ALLOCATIONS.load(Ordering::Relaxed)
    }

    /// Number of allocations and reallocations by this thread so far: for code on one thread,
    /// beside others such as the test harness's.
    pub fn allocations_here() -> u64 {
        HERE.get()
    }

    /// Stops counting this thread's allocations.
    pub fn ignore_this_thread() {
        UNCOUNTED.set(true);
    }

    fn count() {
        let _ = HERE.try_with(|here| here.set(here.get() + 1));
        // A thread that is ending has no flag any more.
        if !UNCOUNTED.try_with(Cell::get).unwrap_or(true) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
