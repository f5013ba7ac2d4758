//! Limits of service (QoS): commands and bytes a second that a unit serves, or that one initiator
//! gets.
//!
//! [`Limiter`] keeps the account, shared by all cores without a lock; [`crate::gate`] has the
//! waiting commands of a connection. It must never hold back a command that moves no blocks:
//! initiators diagnose problems with those.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Default time for which an unused limit accumulates credit.
pub const DEFAULT_BURST: Duration = Duration::from_millis(100);
/// Longest time for which an unused limit may accumulate credit.
pub const MAX_BURST: Duration = Duration::from_secs(3600);

/// Rates a second: of reads and writes together, and of each. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of reads and writes together.
    pub total: Option<u64>,
    /// Of reads.
    pub read: Option<u64>,
    /// Of writes.
    pub write: Option<u64>,
}

impl Rates {
    fn of(&self, which: usize) -> u64 {
        [self.total, self.read, self.write][which].unwrap_or(0)
    }
}

/// Limits of a unit, or of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosLimits {
    /// Commands that move blocks, a second.
    pub iops: Rates,
    /// Bytes that they move, a second.
    pub bandwidth: Rates,
    /// Time for which an unused limit accumulates credit; at most [`MAX_BURST`].
    pub burst: Duration,
}

impl Default for QosLimits {
    fn default() -> Self {
        Self { iops: Rates::default(), bandwidth: Rates::default(), burst: DEFAULT_BURST }
    }
}

impl QosLimits {
    /// Whether there is any limit.
    pub fn any(&self) -> bool {
        self.iops != Rates::default() || self.bandwidth != Rates::default()
    }
}

/// Cost of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Whether it writes.
    pub writes: bool,
    /// Bytes that it may move.
    pub bytes: u64,
}

/// One limit: the generic cell rate algorithm. Commands are charged on arrival and get their start
/// time then, so that they start in the order of arrival, on whatever cores they are.
#[derive(Debug, Default)]
struct Bucket {
    /// Units a second; 0 for no limit.
    rate: AtomicU64,
    /// Time at which all charges will have been paid for, ns since the limiter's beginning.
    paid_at: AtomicU64,
}

impl Bucket {
    fn cost_ns(&self, amount: u64) -> Option<u64> {
        let rate = self.rate.load(Ordering::Relaxed);
        (rate > 0)
            .then(|| u64::try_from(u128::from(amount) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX))
    }

    /// Charges for `amount`; returns the time at which it may start.
    fn charge(&self, amount: u64, burst_ns: u64, now: u64) -> u64 {
        let Some(cost) = self.cost_ns(amount) else { return now };
        let mut paid_at = self.paid_at.load(Ordering::Relaxed);
        loop {
            let next = paid_at.max(now).saturating_add(cost);
            match self.paid_at.compare_exchange_weak(paid_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return paid_at.saturating_sub(burst_ns).max(now),
                Err(changed) => paid_at = changed,
            }
        }
    }

    /// Takes a charge back.
    fn refund(&self, amount: u64) {
        let Some(cost) = self.cost_ns(amount) else { return };
        let less = |paid_at: u64| Some(paid_at.saturating_sub(cost));
        // The function always gives something.
        let _ = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// The account of one unit, or of one initiator. Shared by all cores; on cache lines of its own.
#[repr(align(128))]
pub struct Limiter {
    active: AtomicBool,
    burst_ns: AtomicU64,
    /// Buckets of commands, in [`Rates`]' order, and of bytes.
    buckets: [[Bucket; 3]; 2],
    epoch: Instant,
    limits: Mutex<QosLimits>,
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limiter({:?})", self.limits())
    }
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new(QosLimits::default())
    }
}

impl Limiter {
    /// An account with these limits.
    pub fn new(limits: QosLimits) -> Self {
        let limiter = Self {
            active: AtomicBool::new(false),
            burst_ns: AtomicU64::new(0),
            buckets: Default::default(),
            epoch: runtime::clock(),
            limits: Mutex::default(),
        };
        limiter.set(limits);
        limiter
    }

    /// The limits now.
    pub fn limits(&self) -> QosLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the limits, and begins the account anew. The caller must notify connections with
    /// waiting commands ([`crate::gate::Gate::take_all`]).
    pub fn set(&self, limits: QosLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        let burst = limits.burst.min(MAX_BURST).as_nanos() as u64;
        self.burst_ns.store(burst, Ordering::Relaxed);
        for (buckets, rates) in self.buckets.iter().zip([limits.iops, limits.bandwidth]) {
            for (which, bucket) in buckets.iter().enumerate() {
                bucket.rate.store(rates.of(which), Ordering::Relaxed);
                bucket.paid_at.store(0, Ordering::Relaxed);
            }
        }
        self.active.store(limits.any(), Ordering::Release);
    }

    /// Whether there is any limit.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Charges a command; returns the time at which it may start: `now`, or later.
    pub fn charge(&self, cost: Cost, now: Instant) -> Instant {
        self.charge_amounts([Some(1), Some(cost.bytes)], cost.writes, now)
    }

    /// Charges the bytes of `cost` to a command that is running; returns the time at which they may
    /// move: `now`, or later.
    pub fn charge_bytes(&self, cost: Cost, now: Instant) -> Instant {
        self.charge_amounts([None, Some(cost.bytes)], cost.writes, now)
    }

    fn charge_amounts(&self, amounts: [Option<u64>; 2], writes: bool, now: Instant) -> Instant {
        let start = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let burst = self.burst_ns.load(Ordering::Relaxed);
        let mut at = start;
        self.each(amounts, writes, |bucket, amount| at = at.max(bucket.charge(amount, burst, start)));
        now + Duration::from_nanos(at - start)
    }

    /// Takes back the charge of a command that will not run.
    pub(crate) fn refund(&self, cost: Cost) {
        self.each([Some(1), Some(cost.bytes)], cost.writes, Bucket::refund);
    }

    /// Calls `f` with the buckets of commands and of bytes that have an amount.
    fn each(&self, amounts: [Option<u64>; 2], writes: bool, mut f: impl FnMut(&Bucket, u64)) {
        let own = if writes { 2 } else { 1 };
        for (buckets, amount) in self.buckets.iter().zip(amounts) {
            let Some(amount) = amount else { continue };
            f(&buckets[0], amount);
            f(&buckets[own], amount);
        }
    }
}

/// Accounts by owner: all sessions of one owner share an account, which exists as long as any of
/// them. Only logins look it up.
#[derive(Debug)]
pub struct Accounts<Owner>(Mutex<HashMap<Owner, Weak<Limiter>>>);

impl<Owner> Default for Accounts<Owner> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Owner: Eq + Hash> Accounts<Owner> {
    /// The account of `owner`, with `limits` if there is none yet.
    pub fn limiter(&self, owner: Owner, limits: QosLimits) -> Arc<Limiter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|_, limiter| limiter.strong_count() > 0);
        }
        let known = all.entry(owner).or_default();
        if let Some(limiter) = known.upgrade() {
            return limiter;
        }
        let limiter = Arc::new(Limiter::new(limits));
        *known = Arc::downgrade(&limiter);
        limiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Cost = Cost { writes: false, bytes: 4096 };
    const WRITE: Cost = Cost { writes: true, bytes: 4096 };

    fn limits(iops: Rates, bandwidth: Rates, burst_ms: u64) -> QosLimits {
        QosLimits { iops, bandwidth, burst: Duration::from_millis(burst_ms) }
    }

    fn total(rate: u64) -> Rates {
        Rates { total: Some(rate), ..Rates::default() }
    }

    /// Number of commands of `cost` that are admitted within `time` under a saturating load.
    fn served(limiter: &Limiter, cost: Cost, start: Instant, time: Duration) -> usize {
        (0..).take_while(|_| limiter.charge(cost, start) < start + time).count()
    }

    #[test]
    fn so_many_commands_go_in_a_second_as_the_limit_says_and_the_burst_besides() {
        for (burst_ms, expected) in [(0, 1000), (100, 1100), (1000, 2000)] {
            let limiter = Limiter::new(limits(total(1000), Rates::default(), burst_ms));
            let got = served(&limiter, READ, Instant::now() + Duration::from_secs(9), Duration::from_secs(1));
            assert!(got.abs_diff(expected) <= 1, "{got} with a burst of {burst_ms} ms");
        }
    }

    #[test]
    fn bytes_are_counted_whatever_the_size_of_commands() {
        for bytes in [512, 65536, 1 << 20] {
            let limiter = Limiter::new(limits(Rates::default(), total(100 << 20), 0));
            let cost = Cost { writes: true, bytes };
            let got = served(&limiter, cost, Instant::now(), Duration::from_secs(2)) as u64 * bytes;
            // Whole nanoseconds a command: no more than a thousandth off.
            assert!(got.abs_diff(200 << 20) <= bytes + (200 << 10), "{got} bytes by {bytes}");
        }
    }

    #[test]
    fn a_command_that_is_larger_than_the_burst_goes_when_nothing_is_owed() {
        let limiter = Limiter::new(limits(Rates::default(), total(1000), 1));
        let now = Instant::now();
        let huge = Cost { writes: true, bytes: 1 << 30 };
        assert_eq!(limiter.charge(huge, now), now);
        assert!(limiter.charge(huge, now) > now + Duration::from_secs(1_000_000));
    }

    #[test]
    fn reads_and_writes_have_limits_of_their_own_beside_the_common_one() {
        let iops = Rates { total: Some(300), read: Some(200), write: None };
        let limiter = Limiter::new(limits(iops, Rates::default(), 0));
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(served(&limiter, READ, now, second).abs_diff(200) <= 1);
        let limiter = Limiter::new(limits(iops, Rates::default(), 0));
        assert!(served(&limiter, WRITE, now, second).abs_diff(300) <= 1, "writes have the common limit only");
    }

    #[test]
    fn bytes_of_a_running_command_owe_no_command() {
        let limiter = Limiter::new(limits(total(1), total(1 << 20), 0));
        let now = Instant::now();
        assert_eq!(limiter.charge(WRITE, now), now);
        let bytes = limiter.charge_bytes(WRITE, now);
        assert!(bytes > now && bytes < now + Duration::from_millis(100), "it waits for the bytes before it");
        assert!(limiter.charge(WRITE, now) >= now + Duration::from_millis(999), "it waits for its second");
    }

    #[test]
    fn what_is_taken_back_makes_room_for_others() {
        let limiter = Limiter::new(limits(total(10), total(1 << 20), 0));
        let now = Instant::now();
        assert_eq!(limiter.charge(READ, now), now);
        let second = limiter.charge(READ, now);
        assert!(second > now);
        limiter.refund(READ);
        assert_eq!(limiter.charge(READ, now), second);
    }

    #[test]
    fn cores_that_charge_at_once_share_one_account() {
        let limiter = Limiter::new(limits(total(1000), Rates::default(), 0));
        let start = Instant::now();
        let count = || served(&limiter, READ, start, Duration::from_secs(1));
        let got: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it counts")).sum()
        });
        assert!(got.abs_diff(1000) <= 1, "{got}");
    }

    #[test]
    fn limits_are_replaced_while_they_hold_and_lifted() {
        let limiter = Limiter::new(limits(total(1), Rates::default(), 0));
        let now = Instant::now();
        limiter.charge(READ, now);
        assert!(limiter.charge(READ, now) > now);
        limiter.set(QosLimits::default());
        assert!(!limiter.is_active());
        assert_eq!(limiter.charge(READ, now), now);
        limiter.set(limits(total(1000), Rates::default(), 0));
        assert_eq!(
            (limiter.is_active(), limiter.charge(READ, now)),
            (true, now),
            "nothing of before is owed"
        );
    }
}
