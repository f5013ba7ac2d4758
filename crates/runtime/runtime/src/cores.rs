//! [`Cores`]: one pinned thread and runtime per core, and handles by which other threads give them
//! work.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use crate::op::Backend;
use crate::runtime::{Address, Config, Core, Runtime, available_cores, spawn};
use crate::sim;

thread_local! {
    /// Index of this thread's core among its `Cores`, and their number.
    static CURRENT: Cell<(usize, usize)> = const { Cell::new((0, 1)) };
}

/// Index of the current core among those that were started together; 0 elsewhere.
pub fn current_core() -> usize {
    CURRENT.get().0
}

/// Number of cores that were started together with the current one; 1 elsewhere.
pub fn core_count() -> usize {
    CURRENT.get().1
}

fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// The core has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the core has stopped")]
pub struct CoreGone;

/// Stops a core.
#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        if let Some(waker) = unpoisoned(self.waker.lock()).take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        std::future::poll_fn(|cx| {
            *unpoisoned(self.waker.lock()) = Some(cx.waker().clone());
            if self.asked.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A core's thread, and its number in a simulated world.
struct Thread(JoinHandle<()>, Option<usize>);

impl Thread {
    fn join(self) -> std::thread::Result<()> {
        if let Some(number) = self.1 {
            sim::wait_until_left(number);
        }
        self.0.join()
    }
}

/// Threads, each with a runtime, that run until they are stopped.
pub struct Cores {
    handles: Vec<Handle>,
    stops: Vec<Arc<Stop>>,
    threads: Vec<Thread>,
    backend: Backend,
}

impl Cores {
    /// Starts `count` cores. Several are pinned to processors of their own as long as the process
    /// may use that many, beginning with `config.core` if that is set; a single one is pinned only
    /// if that is set. More of them than processors never poll. Returns once all of them run.
    pub fn start(count: usize, config: Config) -> io::Result<Self> {
        let count = count.max(1);
        let mut processors = available_cores();
        if let Some(first) = config.core.and_then(|core| processors.iter().position(|p| *p == core)) {
            processors.rotate_left(first);
        }
        let mut this =
            Self { handles: Vec::new(), stops: Vec::new(), threads: Vec::new(), backend: config.backend };
        let pin = !sim::is_on() && count <= processors.len() && (count > 1 || config.core.is_some());
        // Cores that share a processor would poll while the others have work.
        let spin_us = if count <= processors.len() { config.spin_us } else { 0 };
        for index in 0..count {
            let pinned = if pin { processors.get(index).copied() } else { None };
            let config = Config { core: pinned, spin_us, ..config.clone() };
            let stop = Arc::new(Stop::default());
            let theirs = Arc::clone(&stop);
            let (started, ready) = crate::channel();
            let place = sim::Seat::reserve();
            let number = place.as_ref().map(sim::Here::number);
            let thread = std::thread::Builder::new().name(format!("core-{index}")).spawn(move || {
                let _seat = place.map(sim::Seat::take);
                CURRENT.set((index, count));
                let runtime = match Runtime::new(config) {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let backend = runtime.backend();
                runtime.block_on(async {
                    drop(started.send(Ok((Core::current().address(), backend))));
                    theirs.wait().await;
                });
            })?;
            this.threads.push(Thread(thread, number));
            this.stops.push(stop);
            match ready.recv() {
                Ok(Ok((address, backend))) => {
                    this.handles.push(Handle { index, address });
                    this.backend = backend;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(io::Error::other("a core did not start")),
            }
        }
        Ok(this)
    }

    /// What carries out their operations; never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// One handle a core.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Stops all cores. Each drops its tasks, cancels its operations and waits until the kernel has
    /// released their buffers. The caller has to end everything that needs an orderly end before.
    pub fn stop(&self) {
        for stop in &self.stops {
            stop.ask();
        }
    }

    /// Waits until all cores have stopped. Fails if one of them panicked.
    pub fn join(mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                result = Err(io::Error::other("a core panicked"));
            }
        }
        result
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cores({})", self.len())
    }
}

/// Gives work to one core, from any thread.
#[derive(Clone, Copy)]
pub struct Handle {
    index: usize,
    address: Address,
}

impl Handle {
    /// The core that asks.
    pub fn here() -> Self {
        Self { index: current_core(), address: Core::current().address() }
    }

    /// Index of the core.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Makes a future on that core and runs it there as a task.
    pub fn run<F, Fut>(&self, make: F) -> Result<(), CoreGone>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
    {
        let job = move || drop(spawn(make()));
        if self.address.run(Box::new(job)) { Ok(()) } else { Err(CoreGone) }
    }

    /// Makes a future on that core, runs it there, and waits for its output. Dropping the returned
    /// future does not end the other one. `CoreGone` if the core stops or the future panics before
    /// there is an output.
    pub fn call<F, Fut>(
        &self,
        make: F,
    ) -> impl Future<Output = Result<Fut::Output, CoreGone>> + Send + use<F, Fut>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let answer = Arc::new(Answer { state: Mutex::new(AnswerState::Waiting(None)) });
        let sender = Sender(Arc::clone(&answer));
        // If the core has gone, dropping the job drops the sender, which reports that.
        let _ = self.run(move || async move {
            let output = make().await;
            sender.send(output);
        });
        Call(answer)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.index)
    }
}

enum AnswerState<T> {
    Waiting(Option<Waker>),
    There(T),
    Never,
}

struct Answer<T> {
    state: Mutex<AnswerState<T>>,
}

/// Answers once, at the latest when it is dropped.
struct Sender<T>(Arc<Answer<T>>);

impl<T> Sender<T> {
    fn send(self, value: T) {
        self.set(AnswerState::There(value));
    }

    fn set(&self, value: AnswerState<T>) {
        let mut state = unpoisoned(self.0.state.lock());
        if let AnswerState::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = value;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.set(AnswerState::Never);
    }
}

struct Call<T>(Arc<Answer<T>>);

impl<T> Future for Call<T> {
    type Output = Result<T, CoreGone>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = unpoisoned(self.0.state.lock());
        if let AnswerState::Waiting(waker) = &mut *state {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, AnswerState::Never) {
            AnswerState::There(value) => Poll::Ready(Ok(value)),
            AnswerState::Never | AnswerState::Waiting(_) => Poll::Ready(Err(CoreGone)),
        }
    }
}
