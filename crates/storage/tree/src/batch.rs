//! [`Batch`]: calls that arrived together. The state of a file at some time after they arrived
//! answers each of them.

use std::cell::Cell;
use std::marker::PhantomData;
use std::num::NonZeroU64;

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(0) };
    static CURRENT: Cell<Option<NonZeroU64>> = const { Cell::new(None) };
}

/// While it lives, this thread executes only calls that had arrived before it was created. So a
/// tree may read a file's state once for all of them. It is not held across an await.
pub struct Batch(PhantomData<*const ()>);

impl Batch {
    /// Begins a batch. There is one at a time.
    pub fn begin() -> Self {
        LAST.set(LAST.get() + 1);
        CURRENT.set(NonZeroU64::new(LAST.get()));
        Self(PhantomData)
    }

    /// The number of this thread's batch, if there is one.
    pub fn current() -> Option<NonZeroU64> {
        CURRENT.get()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_a_number_of_its_own_until_it_ends() {
        let number = || {
            let _batch = Batch::begin();
            Batch::current().unwrap()
        };
        assert_eq!(Batch::current(), None);
        assert_ne!(number(), number());
        assert_eq!(Batch::current(), None);
    }
}
