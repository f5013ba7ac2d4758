//! Simulated time: a number of microseconds that only the world's loop moves. Nothing in a run reads a real clock; the
//! one `Instant` taken is an origin, and only differences to it are ever used.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Microseconds since the start of the run.
pub type Micros = u64;

/// One millisecond.
pub const MS: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// The time.
#[derive(Debug)]
pub struct Clock {
    origin: Instant,
    now: Cell<Micros>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { origin: Instant::now(), now: Cell::new(0) }
    }
}

impl Clock {
    /// Now.
    pub fn now(&self) -> Micros {
        self.now.get()
    }

    /// Now, as the state machines want it.
    pub fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now.get())
    }

    /// What a state machine's instant is in simulated time, rounded up.
    pub fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.origin).as_nanos().div_ceil(1000) as Micros
    }

    /// Moves time forward.
    pub(crate) fn advance_to(&self, at: Micros) {
        self.now.set(self.now.get().max(at));
    }
}
