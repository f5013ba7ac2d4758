//! Retry intervals and total time limit for a server that answers "later".

use std::time::{Duration, Instant};

/// Waits between two attempts, longer each time, up to a limit on their sum.
pub(crate) struct Patience {
    end: Instant,
    next: Duration,
}

impl Patience {
    /// The first wait is short.
    pub fn new(limit: Duration) -> Self {
        Patience { end: runtime::now() + limit, next: Duration::from_millis(50) }
    }

    /// Waits, at most for `longest`. False if the limit is reached.
    pub async fn wait(&mut self, longest: Duration) -> bool {
        if runtime::now() >= self.end {
            return false;
        }
        runtime::sleep(self.next).await;
        self.next = (self.next * 2).min(longest);
        true
    }
}
