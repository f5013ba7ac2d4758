//! When I/Os are due at a fixed rate. The schedule never waits for the target: what could not be
//! sent in time stays due, and its latency counts from when it was due (no coordinated omission).

use std::time::{Duration, Instant};

/// A schedule of equally spaced I/Os.
#[derive(Clone, Debug)]
pub struct Pace {
    from: Instant,
    /// Seconds between two of them.
    interval: f64,
    taken: u64,
}

impl Pace {
    /// `rate` I/Os a second from `from` on; the first is due after `offset` of an interval, 0 to
    /// below 1.
    pub fn new(from: Instant, rate: f64, offset: f64) -> Self {
        let interval = 1.0 / rate.max(1e-9);
        let from = from + Duration::from_secs_f64((interval * offset).clamp(0.0, 1e9));
        Self { from, interval, taken: 0 }
    }

    /// Time at which the next I/O is due.
    pub fn next_due(&self) -> Instant {
        self.from + Duration::from_secs_f64((self.taken as f64 * self.interval).min(1e9))
    }

    /// Takes the next I/O if it is due at `now`; returns the time at which it was due.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.next_due();
        (due <= now).then(|| {
            self.taken += 1;
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn ios_are_due_at_equal_distances_and_not_earlier() {
        let from = Instant::now();
        let mut pace = Pace::new(from, 1000.0, 0.0);
        assert_eq!(pace.take(from), Some(from));
        assert_eq!(pace.take(from), None);
        assert_eq!(pace.take(from + MS / 2), None);
        assert!(pace.take(from + MS).is_some());
        assert_eq!(pace.next_due(), from + 2 * MS);
    }

    #[test]
    fn what_could_not_be_taken_in_time_stays_due_at_its_old_time() {
        let from = Instant::now();
        let mut pace = Pace::new(from, 1000.0, 0.0);
        let late = from + 10 * MS;
        let due: Vec<Instant> = std::iter::from_fn(|| pace.take(late)).collect();
        assert_eq!(due.len(), 11);
        assert_eq!((due[0], due[10]), (from, late));
    }

    #[test]
    fn no_time_is_lost_over_many_ios() {
        let from = Instant::now();
        let mut pace = Pace::new(from, 333_333.3, 0.0);
        let mut count = 0;
        while pace.take(from + Duration::from_secs(3)).is_some() {
            count += 1;
        }
        assert!((999_999..=1_000_001).contains(&count), "{count}");
    }

    #[test]
    fn offsets_part_the_sessions_that_share_a_rate() {
        let from = Instant::now();
        assert_eq!(Pace::new(from, 1000.0, 0.5).next_due(), from + MS / 2);
    }
}
