//! Futures polled by hand, in an order that the seed chooses. No thread, no timer: a future that waits for time waits on
//! a [`Signal`] which the world rings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::random::Rng;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks that were woken, each once.
#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

impl Ready {
    fn push(&self, id: u64) {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ready.contains(&id) {
            ready.push(id);
        }
    }

    /// Takes one; `choose` says which of how many.
    fn take(&self, choose: impl FnOnce(usize) -> usize) -> Option<u64> {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ready.len();
        (count > 0).then(|| ready.remove(choose(count)))
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.id);
    }
}

/// Runs futures.
#[derive(Default)]
pub struct Executor {
    tasks: RefCell<BTreeMap<u64, (Task, Waker)>>,
    next: RefCell<u64>,
    ready: Arc<Ready>,
}

impl Executor {
    /// Adds a future; it is polled by the next [`Self::run`].
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut next = self.next.borrow_mut();
        *next += 1;
        let id = *next;
        let waker = Waker::from(Arc::new(TaskWaker { id, ready: self.ready.clone() }));
        self.tasks.borrow_mut().insert(id, (Box::pin(future), waker));
        self.ready.push(id);
    }

    /// Polls what was woken until nothing is. Answers whether there was anything.
    pub fn run(&self, rng: &RefCell<Rng>) -> bool {
        let mut ran = false;
        while let Some(id) = self.ready.take(|n| rng.borrow_mut().index(n)) {
            // Out of the table while it runs, so that it may spawn.
            let Some((mut task, waker)) = self.tasks.borrow_mut().remove(&id) else { continue };
            ran = true;
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.tasks.borrow_mut().insert(id, (task, waker));
            }
        }
        ran
    }

    /// How many futures have not ended.
    pub fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all futures where they stand: the process was killed.
    pub fn kill(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }
}

/// Something to wait for.
#[derive(Default)]
pub struct Signal(RefCell<Vec<Waker>>);

impl Signal {
    /// Has everybody who waits look again.
    pub fn ring(&self) {
        let wakers = std::mem::take(&mut *self.0.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Leaves a waker for the next [`Self::ring`].
    pub fn register(&self, waker: &Waker) {
        self.0.borrow_mut().push(waker.clone());
    }

    /// Waits until `condition` gives something.
    pub async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                self.register(cx.waker());
                Poll::Pending
            }
        })
        .await
    }
}
