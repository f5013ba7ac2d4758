//! Limits of service: how many commands and bytes a second a unit serves, or one initiator is served.
//!
//! [`Limiter`] keeps the account, shared by all cores without a lock; `gate` has the commands of a connection that wait for their
//! time. It must never hold back a command that moves no blocks: those are how an initiator finds out what is wrong.

pub(crate) mod gate;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use device::Nexus;

use crate::config::ServerConfig;
use crate::node::Target;

/// Credit that a limit saves up while nothing comes, if nobody says otherwise.
pub const DEFAULT_BURST: Duration = Duration::from_millis(100);
/// The longest credit that is kept.
pub const MAX_BURST: Duration = Duration::from_secs(3600);

/// So much a second: of everything, and of reads and writes besides. What is `None` has no limit.
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
    /// How much of a limit may be saved up while it is not used, as the time that it stands for; at most [`MAX_BURST`].
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

/// What a command costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    writes: bool,
    bytes: u64,
}

impl Cost {
    /// What the command with this CDB costs that may move so many bytes; `None` if it costs nothing.
    pub(crate) fn of(cdb: &[u8], expected_in: u32, expected_out: u32) -> Option<Self> {
        let writes = match (*cdb.first()?, cdb.get(8..10)) {
            // READ (6) to (16), VERIFY (10) to (16) whose data, if any, comes from the initiator.
            (0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f, _) => false,
            // WRITE (6) to (16), WRITE AND VERIFY, WRITE ATOMIC (16), COMPARE AND WRITE, ORWRITE (16), WRITE SAME, UNMAP, EXTENDED
            // COPY and its kin.
            (0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x9c | 0x89 | 0x8b, _) => true,
            (0x41 | 0x93 | 0x42 | 0x83, _) => true,
            // The 32-byte ones, by SERVICE ACTION: READ, VERIFY; WRITE, WRITE AND VERIFY, WRITE SAME, WRITE ATOMIC.
            (0x7f, Some([0, 0x09 | 0x0a])) => false,
            (0x7f, Some([0, 0x0b | 0x0c | 0x0d | 0x0f])) => true,
            // Objects', of OSD-1 and OSD-2: READ; WRITE, APPEND, CREATE AND WRITE, PUNCH, CLEAR, COPY USER OBJECTS.
            (0x7f, Some([0x88, 0x05 | 0x85])) => false,
            (0x7f, Some([0x88, 0x06 | 0x07 | 0x12 | 0x84 | 0x86 | 0x87 | 0x89 | 0x92 | 0x93])) => true,
            _ => return None,
        };
        Some(Self { writes, bytes: u64::from(expected_in) + u64::from(expected_out) })
    }
}

/// One limit: the generic cell rate algorithm. Commands are charged where they come, and told when their time is, so that the order
/// in which they came is the order in which they go, on whatever cores they are.
#[derive(Debug, Default)]
struct Bucket {
    /// Units a second; 0 for no limit.
    rate: AtomicU64,
    /// When all that has been charged will have been paid for, ns since the limiter's beginning.
    paid_at: AtomicU64,
}

impl Bucket {
    fn cost_ns(&self, amount: u64) -> Option<u64> {
        let rate = self.rate.load(Ordering::Relaxed);
        (rate > 0)
            .then(|| u64::try_from(u128::from(amount) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX))
    }

    /// Charges for `amount`; says when it may go.
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
    /// Of commands, by [`Rates`]' order, and of bytes.
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

    /// Replaces the limits, and begins the account anew. Commands that wait already learn of it by
    /// [`crate::Handle::limits_changed`].
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

    /// Charges a command; says when it may go: `now`, or later.
    pub(crate) fn charge(&self, cost: Cost, now: Instant) -> Instant {
        let start = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        let burst = self.burst_ns.load(Ordering::Relaxed);
        let mut at = start;
        self.each(cost, |bucket, amount| at = at.max(bucket.charge(amount, burst, start)));
        now + Duration::from_nanos(at - start)
    }

    /// Takes back the charge of a command that will not run.
    pub(crate) fn refund(&self, cost: Cost) {
        self.each(cost, Bucket::refund);
    }

    fn each(&self, cost: Cost, mut f: impl FnMut(&Bucket, u64)) {
        let own = if cost.writes { 2 } else { 1 };
        for (buckets, amount) in self.buckets.iter().zip([1, cost.bytes]) {
            f(&buckets[0], amount);
            f(&buckets[own], amount);
        }
    }
}

/// Has units that go on in `config` go on with their accounts, under the limits that `config` gives them.
pub(crate) fn carry(before: &[Arc<Target>], config: &mut ServerConfig) {
    let old: HashMap<usize, &Arc<Limiter>> = before
        .iter()
        .flat_map(|target| &target.config.units)
        .map(|unit| (unit.unit.address(), &unit.limiter))
        .collect();
    for unit in config.targets.iter_mut().flat_map(|target| &mut target.units) {
        let Some(limiter) = old.get(&unit.unit.address()) else { continue };
        let limits = unit.limiter.limits();
        if limits != limiter.limits() {
            limiter.set(limits);
        }
        unit.limiter = Arc::clone(limiter);
    }
}

/// Whose an account is: the names of target and initiator, and the user that the initiator has proved to be.
type Whose = (String, String, Option<String>);

/// The accounts of initiators, by target, name and the user that the initiator has proved to be: all sessions of one initiator with
/// a target share one, and nobody else who claims its name uses it up. Looked at by logins only.
#[derive(Debug, Default)]
pub(crate) struct Initiators(Mutex<HashMap<Whose, Weak<Limiter>>>);

impl Initiators {
    /// The account of the initiator behind `nexus`.
    pub(crate) fn limiter(&self, nexus: &Nexus, limits: QosLimits) -> Arc<Limiter> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|_, limiter| limiter.strong_count() > 0);
        }
        let user = nexus.principal.as_ref().map(|principal| principal.user.clone());
        let known = all.entry((nexus.target.clone(), nexus.initiator.clone(), user)).or_default();
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

    /// How many commands of `cost` go within `time`, of as many as want to.
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

    #[test]
    fn another_user_of_an_initiators_name_has_an_account_of_its_own() {
        let accounts = Initiators::default();
        let of = |id, user: &str| {
            let nexus = Nexus {
                id: device::NexusId(id),
                initiator: "iqn.2026-01.org.example:i".into(),
                principal: Some(device::Principal { user: user.into(), credential: [0; 32] }),
                transport_id: Vec::new(),
                target_port: 1,
                target: "iqn.2026-01.org.example:t".into(),
                ports: None,
            };
            accounts.limiter(&nexus, QosLimits::default())
        };
        let alice = of(1, "alice");
        assert!(Arc::ptr_eq(&alice, &of(2, "alice")), "sessions of one user share theirs");
        assert!(!Arc::ptr_eq(&alice, &of(3, "bob")));
    }

    #[test]
    fn only_commands_that_move_blocks_cost_anything() {
        let mut read32 = [0; 32];
        (read32[0], read32[9]) = (0x7f, 0x09);
        assert_eq!(Cost::of(&read32, 512, 0), Some(Cost { writes: false, bytes: 512 }));
        assert_eq!(Cost::of(&[0x2a; 10], 0, 512), Some(Cost { writes: true, bytes: 512 }));
        for opcode in [0x00, 0x03, 0x12, 0x25, 0x35, 0x4d, 0x5e, 0x5f, 0x9e, 0xa0, 0xa3] {
            assert_eq!(Cost::of(&[opcode; 16], 4096, 0), None, "{opcode:#04x}");
        }
        assert_eq!(Cost::of(&[], 0, 0), None);
    }
}
