//! The time that a connection has, which a stream of events prolongs.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Time limit of a whole connection: a client that does not read is dropped. A stream of events has
/// it from one piece to the next.
const WHOLE: Duration = Duration::from_secs(30);

/// The time at which a connection is dropped.
#[derive(Clone)]
pub struct Life(Arc<Mutex<Instant>>);

impl Life {
    /// The life of a connection that begins.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + WHOLE)))
    }

    /// The client has taken what it was sent.
    pub fn prolong(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + WHOLE;
    }

    fn end(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`; `None` if its time was over before.
    pub async fn limit<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let end = self.end();
            match timeout_at(end, work.as_mut()).await {
                Ok(done) => return Some(done),
                Err(_) if self.end() > end => {}
                Err(_) => return None,
            }
        }
    }
}
