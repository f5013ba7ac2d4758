//! Whether this gateway may execute commands, judged by its own clock alone.
//!
//! A lease runs from the time at which a heartbeat was *sent* that a later read confirmed. So a
//! gateway that was paused knows on waking that it has to ask before it executes. The lease guards
//! answers from memory (a reservation's holder, a mode page). Data have the blocklist as guard.

use std::time::Duration;

use crate::id::Time;

/// A gateway's own lease.
#[derive(Debug)]
pub struct Lease {
    length: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    /// No heartbeat was ever confirmed.
    None,
    /// The latest confirmed heartbeat was sent then.
    Since(Time),
}

impl Lease {
    /// A lease that does not hold yet.
    #[must_use]
    pub fn new(length: Duration) -> Self {
        Self { length, state: State::None }
    }

    /// A heartbeat sent at `sent` has reached the group's object, and this gateway is a member.
    pub fn confirmed(&mut self, sent: Time) {
        self.state = match self.state {
            State::Since(before) => State::Since(before.max(sent)),
            State::None => State::Since(sent),
        };
    }

    /// Whether the gateway may execute at `now`.
    #[must_use]
    pub fn holds(&self, now: Time) -> bool {
        self.end().is_some_and(|end| now < end)
    }

    /// When the lease ends or has ended.
    #[must_use]
    pub fn end(&self) -> Option<Time> {
        match self.state {
            State::None => None,
            State::Since(sent) => Some(sent + self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_runs_from_the_sending_of_the_heartbeat() {
        let mut lease = Lease::new(Duration::from_secs(1));
        assert!(!lease.holds(Duration::ZERO));
        lease.confirmed(Duration::from_secs(5));
        lease.confirmed(Duration::from_secs(4));
        assert!(lease.holds(Duration::from_millis(5_999)));
        assert!(!lease.holds(Duration::from_secs(6)));
    }
}
