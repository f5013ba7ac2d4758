//! Threads for system calls that the ring does not have.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sim;

/// Most threads.
const MOST_THREADS: usize = 8;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { work: VecDeque::new(), threads: 0, idle: 0 });
static NEWS: Condvar = Condvar::new();

fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

enum State<T> {
    Waiting(Option<Waker>),
    Done(Result<T, Box<dyn Any + Send>>),
    Taken,
}

/// Runs `f` on another thread and waits for its result. A call that has started runs to its end
/// even if the future is dropped; a panic of `f` resumes in the caller. Calls beyond eight at a
/// time wait for their turn.
pub fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    let theirs = Arc::clone(&state);
    let place = sim::Seat::reserve();
    let simulated = place.is_some();
    let work: Work = Box::new(move || {
        let _seat = place.map(sim::Seat::take);
        let result = catch_unwind(AssertUnwindSafe(f));
        let before = std::mem::replace(&mut *unpoisoned(theirs.lock()), State::Done(result));
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    });
    if simulated {
        // A thread of its own, registered with the world.
        std::thread::Builder::new().name("sim-blocking".into()).spawn(work).expect("a thread can be had");
    } else {
        enqueue(work);
    }
    Call { state }
}

struct Call<T> {
    state: Arc<Mutex<State<T>>>,
}

impl<T> Future for Call<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = unpoisoned(self.state.lock());
        if let State::Waiting(waker) = &mut *state {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(Ok(value)) => Poll::Ready(value),
            State::Done(Err(panic)) => {
                drop(state);
                resume_unwind(panic)
            }
            State::Waiting(_) | State::Taken => unreachable!("polled after it was ready"),
        }
    }
}

fn enqueue(work: Work) {
    let mut queue = unpoisoned(QUEUE.lock());
    queue.work.push_back(work);
    if queue.idle >= queue.work.len() || queue.threads >= MOST_THREADS {
        NEWS.notify_one();
        return;
    }
    let started = std::thread::Builder::new().name("ring-blocking".into()).spawn(run);
    match started {
        Ok(_) => queue.threads += 1,
        Err(_) if queue.threads > 0 => NEWS.notify_one(),
        Err(_) => {
            // No thread can be started: run it here.
            let work = queue.work.pop_back();
            drop(queue);
            if let Some(work) = work {
                work();
            }
        }
    }
}

fn run() {
    let mut queue = unpoisoned(QUEUE.lock());
    loop {
        if let Some(work) = queue.work.pop_front() {
            drop(queue);
            work();
            queue = unpoisoned(QUEUE.lock());
            continue;
        }
        queue.idle += 1;
        let (woken, wait) = unpoisoned(NEWS.wait_timeout(queue, IDLE));
        queue = woken;
        queue.idle -= 1;
        if wait.timed_out() && queue.work.is_empty() {
            queue.threads -= 1;
            return;
        }
    }
}
