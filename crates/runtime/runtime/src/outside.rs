//! [`channel`] and [`nap`], for threads that are not cores. In a simulated world they wait in
//! virtual time.

use std::sync::mpsc;
use std::time::Duration;

pub use mpsc::{RecvError, RecvTimeoutError, SendError, Sender};

use crate::sim;

/// Interval of the checks in a simulated wait.
const LOOKS: Duration = Duration::from_micros(500);

/// The receiving end of a [`channel`].
#[derive(Debug)]
pub struct Receiver<T>(mpsc::Receiver<T>);

/// [`std::sync::mpsc::channel`], for a receiver that may block.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (sender, Receiver(receiver))
}

impl<T> Receiver<T> {
    /// Waits for the next message.
    ///
    /// # Errors
    /// All senders are dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        while sim::is_on() {
            match self.0.try_recv() {
                Ok(message) => return Ok(message),
                Err(mpsc::TryRecvError::Disconnected) => return Err(RecvError),
                Err(mpsc::TryRecvError::Empty) => _ = sim::nap(LOOKS),
            }
        }
        self.0.recv()
    }

    /// Waits for the next message, at most for `timeout`.
    ///
    /// # Errors
    /// No message came in time, or all senders are dropped.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let end = crate::clock() + timeout;
        while sim::is_on() {
            match self.0.try_recv() {
                Ok(message) => return Ok(message),
                Err(mpsc::TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(mpsc::TryRecvError::Empty) if crate::clock() >= end => {
                    return Err(RecvTimeoutError::Timeout);
                }
                Err(mpsc::TryRecvError::Empty) => _ = sim::nap(LOOKS),
            }
        }
        self.0.recv_timeout(timeout)
    }
}

/// Blocks this thread for `duration`. Not for a core.
pub fn nap(duration: Duration) {
    if !sim::nap(duration) {
        std::thread::sleep(duration);
    }
}
