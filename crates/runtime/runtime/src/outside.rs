//! [`thread()`], [`channel`] and [`nap`], for threads that are not cores. In a simulated world they
//! wait in virtual time.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub use mpsc::{RecvError, RecvTimeoutError, SendError};

use crate::sim;

/// The sending end of a [`channel`].
#[derive(Debug)]
pub struct Sender<T> {
    /// Dropped before the receiver is woken.
    to: Option<mpsc::Sender<T>>,
    waiting: Arc<sim::Waiting>,
}

/// The receiving end of a [`channel`].
#[derive(Debug)]
pub struct Receiver<T> {
    from: mpsc::Receiver<T>,
    waiting: Arc<sim::Waiting>,
}

/// [`std::sync::mpsc::channel`], for a receiver that may block.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (to, from) = mpsc::channel();
    let waiting = Arc::<sim::Waiting>::default();
    (Sender { to: Some(to), waiting: waiting.clone() }, Receiver { from, waiting })
}

impl<T> Sender<T> {
    /// Sends a message. Does not wait.
    ///
    /// # Errors
    /// The receiver is dropped.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        match &self.to {
            Some(to) => to.send(message)?,
            None => return Err(SendError(message)),
        }
        self.waiting.wake();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), waiting: self.waiting.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        drop(self.to.take());
        self.waiting.wake();
    }
}

impl<T> Receiver<T> {
    /// Waits for the next message.
    ///
    /// # Errors
    /// All senders are dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        while sim::is_on() {
            match self.from.try_recv() {
                Ok(message) => return Ok(message),
                Err(mpsc::TryRecvError::Disconnected) => return Err(RecvError),
                Err(mpsc::TryRecvError::Empty) => self.waiting.wait(None),
            }
        }
        self.from.recv()
    }

    /// Waits for the next message, at most for `timeout`.
    ///
    /// # Errors
    /// No message came in time, or all senders are dropped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let end = crate::clock() + timeout;
        while sim::is_on() {
            match self.from.try_recv() {
                Ok(message) => return Ok(message),
                Err(mpsc::TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(mpsc::TryRecvError::Empty) => match end.saturating_duration_since(crate::clock()) {
                    Duration::ZERO => return Err(RecvTimeoutError::Timeout),
                    left => self.waiting.wait(Some(left)),
                },
            }
        }
        self.from.recv_timeout(timeout)
    }
}

/// Blocks this thread for `duration`. Not for a core.
pub fn nap(duration: Duration) {
    if !sim::nap(duration) {
        std::thread::sleep(duration);
    }
}

/// Starts `f` on a thread of its own, which nobody waits for.
///
/// # Errors
/// The system has no thread; then `f` is dropped.
pub fn thread(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let place = sim::Seat::reserve();
    let work = move || {
        let _seat = place.map(sim::Seat::take);
        f();
    };
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}
