//! [`Waiting`]: wakes the thread of a world that waits for a channel.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::turns::Wait;
use super::{Here, here};

/// The thread that waits for a channel.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Option<Here>>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl Waiting {
    fn set(&self, waiting: Option<Here>) -> Option<Here> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), waiting)
    }

    /// Waits until somebody wakes this thread, at most for `limit`.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let Some(here) = here() else { return };
        self.set(Some(here.clone()));
        let now = here.world.lock().now;
        let until = limit.map(|limit| now.saturating_add(super::net::nanoseconds(limit)));
        here.world.wait(here.me, Wait::News, until);
        self.set(None);
    }

    /// Wakes the thread, if one waits. What a thread leaves behind wakes others after it has left
    /// its world, while the one that waits for its end has the turn.
    pub(crate) fn wake(&self) {
        if let Some(waiting) = self.set(None) {
            waiting.world.lock().turns.has_news(waiting.me);
        }
    }
}
