//! How long to ask again a server that says "later".

use std::time::{Duration, Instant};

/// Waits between two attempts, longer each time, up to a limit of all of them.
pub(crate) struct Patience {
    end: Instant,
    next: Duration,
}

impl Patience {
    /// The first wait is short.
    pub fn new(limit: Duration) -> Self {
        Patience { end: runtime::now() + limit, next: Duration::from_millis(50) }
    }

    /// Waits, at most for `longest`. False if the time is up.
    pub async fn wait(&mut self, longest: Duration) -> bool {
        if runtime::now() >= self.end {
            return false;
        }
        runtime::sleep(self.next).await;
        self.next = (self.next * 2).min(longest);
        true
    }
}
