//! [`Use`]: one core's own count of its uses of an `Arc`.
//!
//! Cloning an `Arc` writes to a cache line that every core which clones it takes from the others, a
//! hundred nanoseconds each time. A core keeps one clone instead, for as long as it uses it now and
//! then, and counts its own uses of that. For a value that is made to be used by all cores there is
//! [`crate::Shared`], which each core holds until it is dropped.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::runtime::Core;

/// Time after which a core drops its hold on a value that it does not use.
const KEPT: Duration = Duration::from_millis(20);

/// Something that all cores share, as one core uses it: cloning and dropping it writes to this
/// core's memory only.
pub struct Use<T: ?Sized + 'static>(Rc<Arc<T>>);

impl<T: ?Sized + Send + Sync + 'static> Use<T> {
    /// A use of `shared`, counted on this core. The first call, and the first after a while without
    /// any use, clones the `Arc`; the others only look it up.
    pub fn of(shared: &Arc<T>) -> Self {
        let address = Arc::as_ptr(shared).cast::<()>().addr();
        let found = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let entry = held.entries.get_mut(&address)?;
            entry.used = true;
            entry.value.clone().downcast::<Arc<T>>().ok()
        });
        match found {
            Ok(Some(one)) => Self(one),
            Ok(None) => Self::keep(address, shared),
            Err(_) => Self::from(shared.clone()),
        }
    }

    #[cold]
    fn keep(address: usize, shared: &Arc<T>) -> Self {
        if !Core::with_current(|core| core.is_some()) {
            // No runtime sweeps on this thread.
            sweep_if_due();
        }
        let one = Rc::new(shared.clone());
        let entry = Entry { value: one.clone(), used: true };
        // The replaced entry is dropped outside: its drop may come here again.
        let before = HELD.try_with(|held| held.borrow_mut().entries.insert(address, entry));
        drop(before);
        Self(one)
    }

    /// The count itself, for code that handles any type behind an `Arc<T>`.
    pub fn into_rc(self) -> Rc<Arc<T>> {
        self.0
    }

    /// The value that it is a use of.
    pub fn shared(&self) -> &Arc<T> {
        &self.0
    }
}

/// A use that [`Use::of`] does not keep, to be cloned by its owner.
impl<T: ?Sized + 'static> From<Arc<T>> for Use<T> {
    fn from(shared: Arc<T>) -> Self {
        Self(Rc::new(shared))
    }
}

impl<T: ?Sized + 'static> Clone for Use<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized + 'static> Deref for Use<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized + fmt::Debug + 'static> fmt::Debug for Use<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Values that this core holds, by address: an address cannot change its meaning while it is held.
#[derive(Default)]
struct Held {
    entries: HashMap<usize, Entry, BuildHasherDefault<AddressHasher>>,
    swept: Option<Instant>,
}

struct Entry {
    /// A `Rc<Arc<T>>`.
    value: Rc<dyn Any>,
    /// Whether it was used since the last sweep.
    used: bool,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

/// [`sweep_if_due`], for a core that is about to sleep. When to do so again, if it holds something
/// that is not in use now.
pub(crate) fn sweep() -> Option<Instant> {
    let due = sweep_if_due()?;
    HELD.try_with(|held| held.borrow().has_idle()).unwrap_or(false).then_some(due)
}

/// Releases values that have not been used for a while, at most once in [`KEPT`]. Returns the time
/// at which that is due again; `None`: nothing is held.
pub(crate) fn sweep_if_due() -> Option<Instant> {
    let mut unused = Vec::new();
    let next = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if held.entries.is_empty() {
            return None;
        }
        let now = crate::clock();
        let due = held.swept.map_or(now, |swept| swept + KEPT);
        if now < due {
            return Some(due);
        }
        held.swept = Some(now);
        unused
            .extend(held.entries.extract_if(|_, entry| !std::mem::take(&mut entry.used) && entry.is_idle()));
        Some(now + KEPT)
    });
    // Outside of the borrow: its drop may come here again.
    drop(unused);
    next.ok().flatten()
}

impl Entry {
    fn is_idle(&self) -> bool {
        Rc::strong_count(&self.value) == 1
    }
}

impl Held {
    fn has_idle(&self) -> bool {
        self.entries.values().any(Entry::is_idle)
    }
}

/// Addresses are spread well enough by one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Runtime, sleep, yield_now};

    #[test]
    fn uses_on_one_core_share_one_clone_of_the_arc() {
        let shared: Arc<str> = "text".into();
        let uses: Vec<_> = (0..100).map(|_| Use::of(&shared)).collect();
        assert_eq!(Arc::strong_count(&shared), 2);
        assert!(uses.iter().all(|one| &**one == "text" && Arc::ptr_eq(one.shared(), &shared)));
        let other = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let _uses = (Use::of(&shared), Use::of(&shared));
                Arc::strong_count(&shared)
            }
        });
        assert_eq!(other.join().unwrap(), 4, "two of the other thread, and its own");
        assert_eq!(Arc::strong_count(&shared), 2, "what a thread held goes with it");
    }

    #[test]
    fn one_object_under_two_types_keeps_both_apart() {
        let shared = Arc::new(7u32);
        let as_debug: Arc<dyn fmt::Debug + Send + Sync> = shared.clone();
        for _ in 0..3 {
            assert_eq!(*Use::of(&shared), 7);
            assert_eq!(format!("{:?}", Use::of(&as_debug)), "7");
        }
    }

    #[test]
    fn an_idle_core_releases_only_what_is_unused() {
        let runtime = Runtime::new(Config::default()).unwrap();
        let (unused, in_use) = (Arc::new(1), Arc::new(2));
        runtime.block_on(async {
            drop(Use::of(&unused));
            let one = Use::of(&in_use);
            for _ in 0..3 {
                sleep(KEPT + Duration::from_millis(5)).await;
            }
            assert_eq!(Arc::strong_count(&unused), 1);
            assert_eq!(Arc::strong_count(&in_use), 2);
            drop(one);
        });
    }

    #[test]
    fn a_core_that_never_sleeps_lets_go_too() {
        let runtime = Runtime::new(Config::default()).unwrap();
        let (unused, in_use) = (Arc::new(1), Arc::new(2));
        runtime.block_on(async {
            drop(Use::of(&unused));
            let one = Use::of(&in_use);
            let begun = Instant::now();
            // There is always a task that is ready.
            while Arc::strong_count(&unused) > 1 {
                assert!(begun.elapsed() < Duration::from_secs(20), "it is held for ever");
                yield_now().await;
            }
            assert_eq!(Arc::strong_count(&in_use), 2);
            drop(one);
        });
    }

    #[test]
    fn a_thread_without_a_runtime_lets_go_when_it_takes_something_else() {
        let unused = Arc::new(0);
        drop(Use::of(&unused));
        let begun = Instant::now();
        for other in 1.. {
            drop(Use::of(&Arc::new(other)));
            if Arc::strong_count(&unused) == 1 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it is held for ever");
        }
        let held = HELD.with(|held| held.borrow().entries.len());
        std::thread::sleep(KEPT);
        (0..2).for_each(|_| {
            drop(Use::of(&Arc::new(0)));
            std::thread::sleep(KEPT);
        });
        assert!(HELD.with(|held| held.borrow().entries.len()) <= 2, "{held} were held before");
    }
}
