//! [`Ends`]: results of NFS calls that run as tasks, until the load takes them.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use nfs_client::Error;
use runtime::Notify;

use super::medium::Lost;

/// A call that has ended, its result and the time of its end.
pub struct Ended<T> {
    pub index: u16,
    pub at: Instant,
    pub outcome: Result<T, Error>,
}

/// Ends that the load has not taken yet.
pub struct Ends<T> {
    waiting: RefCell<Vec<Ended<T>>>,
    came: Notify,
    in_flight: Cell<usize>,
}

impl<T> Default for Ends<T> {
    fn default() -> Self {
        Self { waiting: RefCell::default(), came: Notify::default(), in_flight: Cell::new(0) }
    }
}

impl<T> Ends<T> {
    /// A call begins.
    pub fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// A call has ended.
    pub fn end(&self, index: u16, outcome: Result<T, Error>) {
        self.waiting.borrow_mut().push(Ended { index, at: Instant::now(), outcome });
        self.came.notify();
    }

    /// Calls whose ends were not taken.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Takes all waiting ends. Returns their number.
    pub fn take(&self, into: &mut Vec<Ended<T>>) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let count = waiting.len();
        self.in_flight.set(self.in_flight.get() - count);
        into.append(&mut waiting);
        count
    }

    /// Takes all waiting ends; waits if there are none.
    pub async fn some(&self, into: &mut Vec<Ended<T>>) {
        self.came.until(|| (!self.waiting.borrow().is_empty()).then_some(())).await;
        self.take(into);
    }
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        let unreachable =
            matches!(error, Error::Resolve { .. } | Error::Connect { .. } | Error::Silent { .. });
        Self { reason: error.to_string(), unreachable }
    }
}
