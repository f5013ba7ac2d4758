//! The most bytes a second that copies move together.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Bounds a rate.
#[derive(Debug)]
pub struct Pace {
    /// Bytes a second, not 0.
    rate: u64,
    /// When all that was taken will have had its time.
    free: Cell<Option<Instant>>,
}

impl Pace {
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), free: Cell::new(None) }
    }

    /// Waits until what was taken before has had its time, and takes `bytes`.
    pub async fn take(&self, bytes: u64) {
        let now = runtime::now();
        let begin = self.free.get().unwrap_or(now).max(now);
        self.free.set(Some(begin + Duration::from_secs_f64(bytes as f64 / self.rate as f64)));
        if begin > now {
            runtime::sleep_until(begin).await;
        }
    }
}
