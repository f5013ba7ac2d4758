//! [`Pooled`]: futures in recycled memory, so that a warm data path does not allocate.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Slot sizes are `64 << class` bytes.
const CLASSES: usize = 8;
const ALIGN: usize = 64;
/// Free slots kept of each class; more are returned to the allocator.
const KEPT: usize = 4096;

/// Free slots of this thread, by class.
struct FreeSlots([Vec<NonNull<u8>>; CLASSES]);

thread_local! {
    static FREE: UnsafeCell<FreeSlots> = const { UnsafeCell::new(FreeSlots([const { Vec::new() }; CLASSES])) };
}

impl Drop for FreeSlots {
    fn drop(&mut self) {
        for (class, slots) in self.0.iter_mut().enumerate() {
            for slot in slots.drain(..) {
                // SAFETY: free slots were allocated with their class's layout and are not in use.
                unsafe { dealloc(slot.as_ptr(), slot_layout(class)) };
            }
        }
    }
}

const fn slot_layout(class: usize) -> Layout {
    match Layout::from_size_align(64 << class, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}

/// The class whose slots hold `layout`; `None` if it has to be allocated by itself.
const fn class_of(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN || layout.size() > 64 << (CLASSES - 1) {
        return None;
    }
    Some(layout.size().div_ceil(64).next_power_of_two().trailing_zeros() as usize)
}

/// Memory for `layout`, recycled if there is some.
pub(crate) fn take_slot(layout: Layout) -> NonNull<u8> {
    let layout = match class_of(layout) {
        Some(class) => {
            // SAFETY: the cell belongs to this thread and the borrow ends within the closure, which
            // runs no other code.
            if let Ok(Some(slot)) = FREE.try_with(|free| unsafe { (&mut (*free.get()).0)[class].pop() }) {
                return slot;
            }
            slot_layout(class)
        }
        None => Layout::from_size_align(layout.size().max(1), layout.align()).unwrap_or(layout),
    };
    // SAFETY: the layout's size is not zero.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Returns memory.
///
/// # Safety
/// `slot` came from [`take_slot`] with the same `layout`, and is not used any more.
pub(crate) unsafe fn put_slot(slot: NonNull<u8>, layout: Layout) {
    let layout = match class_of(layout) {
        Some(class) => {
            let kept = FREE.try_with(|free| {
                // SAFETY: as in `take_slot`.
                let slots = unsafe { &mut (&mut (*free.get()).0)[class] };
                let room = slots.len() < KEPT;
                if room {
                    slots.push(slot);
                }
                room
            });
            if kept == Ok(true) {
                return;
            }
            slot_layout(class)
        }
        None => Layout::from_size_align(layout.size().max(1), layout.align()).unwrap_or(layout),
    };
    // SAFETY: this is the layout that `take_slot` allocated with.
    unsafe { dealloc(slot.as_ptr(), layout) };
}

/// A pinned future in a recycled slot: what `Pin<Box<dyn Future>>` is, without its allocation.
/// Dropping it drops the future and recycles the slot.
pub struct Pooled<T> {
    future: NonNull<dyn Future<Output = T>>,
    /// Slots are recycled on the thread that drops them, and futures are not `Send`.
    _not_send: PhantomData<Rc<()>>,
}

impl<T> Pooled<T> {
    /// Moves `future` into a slot.
    pub fn new<F: Future<Output = T> + 'static>(future: F) -> Self {
        let slot = take_slot(Layout::new::<F>()).cast::<F>();
        // SAFETY: the slot is large and aligned enough for `F`, and has no other owner.
        unsafe { slot.as_ptr().write(future) };
        Self { future: slot, _not_send: PhantomData }
    }
}

impl<T> Future for Pooled<T> {
    type Output = T;
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // SAFETY: the future lives in its slot until this is dropped, is never moved out of it, and
        // `&mut self` makes the borrow unique.
        unsafe { Pin::new_unchecked(self.get_mut().future.as_mut()) }.poll(cx)
    }
}

/// The slot does not move with the handle.
impl<T> Unpin for Pooled<T> {}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        /// Recycles even if the future's own drop panics.
        struct Recycle(NonNull<u8>, Layout);
        impl Drop for Recycle {
            fn drop(&mut self) {
                // SAFETY: slot and layout are those of `Pooled::new`; the future in it has been
                // dropped.
                unsafe { put_slot(self.0, self.1) };
            }
        }
        // SAFETY: the future is alive until the next line, so its layout can be read from its
        // vtable.
        let layout = Layout::for_value(unsafe { self.future.as_ref() });
        let _recycle = Recycle(self.future.cast(), layout);
        // SAFETY: dropped once, here; nothing uses it afterwards.
        unsafe { self.future.as_ptr().drop_in_place() };
    }
}

impl<T> std::fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pooled")
    }
}

/// A value in a recycled slot: like `Box`, without its allocation.
pub(crate) struct PooledBox<T> {
    value: NonNull<T>,
    /// Slots are recycled on the thread that drops them.
    _owned: PhantomData<(T, Rc<()>)>,
}

impl<T> PooledBox<T> {
    pub(crate) fn new(value: T) -> Self {
        let slot = take_slot(Layout::new::<T>()).cast::<T>();
        // SAFETY: the slot is large and aligned enough for `T`, and has no other owner.
        unsafe { slot.as_ptr().write(value) };
        Self { value: slot, _owned: PhantomData }
    }
}

impl<T> PooledBox<T> {
    /// Moves the value out.
    pub(crate) fn into_inner(self) -> T {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is moved out once, and its slot given up once: `this` is not dropped.
        unsafe {
            let value = this.value.read();
            put_slot(this.value.cast(), Layout::new::<T>());
            value
        }
    }
}

impl<T> std::ops::Deref for PooledBox<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the value lives in its slot until this is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl<T> std::ops::DerefMut for PooledBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for PooledBox<T> {
    fn drop(&mut self) {
        // SAFETY: value and slot are given up once, here. A panic in between leaks the slot.
        unsafe {
            self.value.drop_in_place();
            put_slot(self.value.cast(), Layout::new::<T>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::task::Waker;

    fn poll_once<T>(future: &mut Pooled<T>) -> Poll<T> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_future_runs_in_its_slot_and_is_dropped_with_it() {
        let dropped = Rc::new(Cell::new(0));
        struct Count(Rc<Cell<u32>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let guard = Count(dropped.clone());
        let mut future = Pooled::new(async move {
            let _guard = guard;
            7
        });
        assert_eq!(poll_once(&mut future), Poll::Ready(7));
        drop(future);
        assert_eq!(dropped.get(), 1);

        let guard = Count(dropped.clone());
        drop(Pooled::new(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn a_slot_is_used_again() {
        let first = Pooled::new(std::future::ready([1u8; 100]));
        let at = first.future.cast::<u8>();
        drop(first);
        let second = Pooled::new(std::future::ready([2u8; 120]));
        assert_eq!(second.future.cast::<u8>(), at);
    }

    #[test]
    fn futures_of_any_size_and_alignment_fit() {
        #[repr(align(256))]
        struct Wide([u8; 300]);
        let mut wide = Pooled::new(std::future::ready(Wide([3; 300])));
        assert_eq!(wide.future.cast::<u8>().as_ptr() as usize % 256, 0);
        assert!(matches!(poll_once(&mut wide), Poll::Ready(Wide(bytes)) if bytes[299] == 3));
        let mut large = Pooled::new(std::future::ready([9u8; 100_000]));
        assert!(matches!(poll_once(&mut large), Poll::Ready(bytes) if bytes[99_999] == 9));
        let mut none = Pooled::new(async {});
        assert_eq!(poll_once(&mut none), Poll::Ready(()));
    }
}
