//! [`Refusals`]: clients that an administrator has disconnected. They are refused for a while, so
//! that the disconnection is noticed before they are back. The administrator's calls bound the
//! table, and each removes what is over.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients by their names, and the times until which they are refused.
#[derive(Debug)]
pub struct Refusals<Name>(Mutex<HashMap<Name, Instant>>);

impl<Name> Default for Refusals<Name> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Name: Eq + Hash> Refusals<Name> {
    fn all(&self) -> MutexGuard<'_, HashMap<Name, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a client for `time` from `now` on, instead of for as long as before.
    pub fn refuse(&self, client: Name, now: Instant, time: Duration) {
        let mut all = self.all();
        all.retain(|_, until| *until > now);
        if time.is_zero() {
            all.remove(&client);
        } else {
            all.insert(client, now + time);
        }
    }

    /// Whether a client is refused at `now`.
    pub fn covers(&self, client: &Name, now: Instant) -> bool {
        self.all().get(client).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_refused_until_its_time_is_over_and_others_are_not() {
        let (refusals, now) = (Refusals::default(), runtime::clock());
        let second = Duration::from_secs(1);
        refusals.refuse("a", now, 10 * second);
        assert!(refusals.covers(&"a", now) && !refusals.covers(&"b", now));
        assert!(refusals.covers(&"a", now + 9 * second) && !refusals.covers(&"a", now + 10 * second));
        refusals.refuse("b", now + 11 * second, second);
        assert_eq!(refusals.all().len(), 1, "what is over is forgotten");
        refusals.refuse("b", now + 11 * second, Duration::ZERO);
        assert!(!refusals.covers(&"b", now + 11 * second));
    }
}
