//! [`Shared`]: a value that all cores use, with a reference count for each.
//!
//! An `Arc` that every operation clones is one cache line that all cores write. Here each core
//! holds one reference to the value, and counts its own handles in memory of its own: on the data
//! path nothing that cores share is written.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::{Address, Core};

/// Counts dropped values: a thread that sees it change checks whether it holds one of them.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// Small numbers for values, reused when a value is gone from all cores.
static NUMBERS: Mutex<(usize, Vec<usize>)> = Mutex::new((0, Vec::new()));

/// One value, and the cores that hold it.
struct Held<T> {
    number: usize,
    closed: AtomicBool,
    /// The cores that hold it, to be notified when it is dropped.
    holders: Mutex<Vec<Address>>,
    value: T,
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).1.push(self.number);
    }
}

/// A thread's one reference to a value.
struct Reference<T>(Arc<Held<T>>);

/// A thread's record of one value.
struct Entry {
    /// `Reference<T>`.
    handle: Rc<dyn Any>,
    is_closed: fn(&dyn Any) -> bool,
}

#[derive(Default)]
struct Known {
    /// By number.
    entries: Vec<Option<Entry>>,
    /// [`CLOSED`] when the entries were last checked.
    closed_seen: usize,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// A value that all cores use; each gets its own [`Local`] handles of it.
///
/// The value is dropped once this, and the last `Local` on each core, has been dropped, and each
/// core that ever had one has run once more.
pub struct Shared<T: Send + Sync + 'static> {
    held: Arc<Held<T>>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Shares `value`.
    pub fn new(value: T) -> Self {
        let number = {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.1.pop().unwrap_or_else(|| {
                numbers.0 += 1;
                numbers.0 - 1
            })
        };
        let held = Held { number, closed: AtomicBool::new(false), holders: Mutex::default(), value };
        Self { held: Arc::new(held) }
    }

    /// A handle that keeps the value alive, counted on this thread alone.
    #[inline]
    pub fn local(&self) -> Local<T> {
        let known = KNOWN.try_with(|known| {
            let known = known.borrow();
            if known.closed_seen != CLOSED.load(Ordering::Acquire) {
                return None;
            }
            let entry = known.entries.get(self.held.number)?.as_ref()?;
            Rc::clone(&entry.handle).downcast::<Reference<T>>().ok()
        });
        match known {
            Ok(Some(handle)) => Local(handle),
            _ => self.first(),
        }
    }

    /// This thread's first handle.
    #[cold]
    fn first(&self) -> Local<T> {
        fn is_closed<T: 'static>(handle: &dyn Any) -> bool {
            handle.downcast_ref::<Reference<T>>().is_none_or(|held| held.0.closed.load(Ordering::Acquire))
        }
        release_closed();
        let number = self.held.number;
        let handle = Rc::new(Reference(Arc::clone(&self.held)));
        let before = KNOWN.try_with(|known| {
            let mut known = known.borrow_mut();
            if known.entries.len() <= number {
                known.entries.resize_with(number + 1, || None);
            }
            if let Some(entry) = &known.entries[number] {
                // Only checked, not removed.
                if let Ok(handle) = Rc::clone(&entry.handle).downcast::<Reference<T>>() {
                    return Err(handle);
                }
            }
            Ok(known.entries[number].replace(Entry { handle: handle.clone(), is_closed: is_closed::<T> }))
        });
        match before {
            Ok(Err(known)) => return Local(known),
            Ok(Ok(stale)) => drop(stale),
            // The thread is ending: nothing is kept for next time.
            Err(_) => return Local(handle),
        }
        Core::with_current(|core| {
            if let Some(core) = core {
                let mut holders = self.held.holders.lock().unwrap_or_else(PoisonError::into_inner);
                holders.push(core.address());
            }
        });
        Local(handle)
    }
}

impl<T: Send + Sync + 'static> Drop for Shared<T> {
    fn drop(&mut self) {
        self.held.closed.store(true, Ordering::Release);
        CLOSED.fetch_add(1, Ordering::AcqRel);
        let holders = std::mem::take(&mut *self.held.holders.lock().unwrap_or_else(PoisonError::into_inner));
        release_closed();
        for holder in holders {
            // A core that has gone has released it.
            let _ = holder.run(Box::new(release_closed));
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.held.value
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.value.fmt(f)
    }
}

/// Releases dropped values, as far as this thread holds them.
fn release_closed() {
    let released = KNOWN.try_with(|known| {
        let mut known = known.borrow_mut();
        let closed = CLOSED.load(Ordering::Acquire);
        if known.closed_seen == closed {
            return Vec::new();
        }
        known.closed_seen = closed;
        let entries = known.entries.iter_mut();
        entries.filter_map(|slot| slot.take_if(|entry| (entry.is_closed)(&*entry.handle))).collect()
    });
    // Dropping a value may run any code, so not under the borrow.
    drop(released);
}

/// A handle of a [`Shared`] value on one thread. Cloning it writes no memory that other cores use.
pub struct Local<T: 'static>(Rc<Reference<T>>);

impl<T> Clone for Local<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Deref for Local<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Cores};

    #[derive(Debug)]
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_value_lives_as_long_as_its_owner_or_a_handle() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let shared = Shared::new(Dropped(dropped.clone()));
        let (one, two) = (shared.local(), shared.local());
        assert!(Rc::ptr_eq(&one.0, &two.0), "one reference a core");
        drop((one, two));
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        let last = shared.local();
        drop(shared);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        let clone = last.clone();
        drop(last);
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(clone);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_number_that_is_used_again_never_names_the_old_value() {
        for round in 0..100u64 {
            let (a, b) = (Shared::new(round), Shared::new(format!("{round}")));
            assert_eq!(*a.local(), round);
            assert_eq!(**b.local(), round.to_string());
            let kept = a.local();
            drop(a);
            let c = Shared::new(round + 1000);
            assert_eq!((*c.local(), *kept), (round + 1000, round));
        }
    }

    #[test]
    fn cores_that_sleep_let_go_of_what_was_given_up() {
        let cores = Cores::start(2, Config::default()).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Shared::new(Dropped(dropped.clone())));
        let (sender, done) = std::sync::mpsc::channel();
        for handle in cores.handles() {
            let (shared, sender) = (shared.clone(), sender.clone());
            let _ = handle.run(move || async move {
                drop(shared.local());
                drop(shared);
                sender.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            done.recv().unwrap();
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        while Arc::strong_count(&shared) > 1 {
            std::thread::yield_now();
        }
        drop(shared);
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while dropped.load(Ordering::SeqCst) == 0 {
            assert!(std::time::Instant::now() < patience, "a sleeping core still holds it");
            std::thread::yield_now();
        }
        cores.stop();
        cores.join().unwrap();
    }
}
