//! Decides whether an idle core polls for the next completion or sleeps at once, and for how long
//! it polls.
//!
//! A sleep costs the switch away and back, the interrupt that ends it (on a virtual machine an exit
//! to the host at either end), and the time until the thread runs again. Its peers wait for that
//! too. Polling costs its processor time, and all of it is wasted when nothing comes. The
//! configured limit is the cost of a sleep. The state machine below polls for as long as that is
//! cheaper on the average of the latest waits, never longer than the limit, and mostly not at all
//! when work is rare.
//!
//! Only waits that polled tell how soon work comes. After a sleep work comes later, because its
//! sender has slept meanwhile as well. So a core that has given up polling tries again, at growing
//! intervals, and only while work comes often enough. It tries at once when work comes clearly
//! sooner, many times in a row, than right after it gave up: it had learnt from other work. Another
//! thread that wants the processor ends polling for a growing while too, unless that is rare and
//! soon over.
//!
//! It owns no clock: the time is handed in, in nanoseconds from any beginning.

/// Upper ends of the classes of waits, in nanoseconds; longer ones are in a class of their own.
const CLASSES: [u64; 20] = [
    500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000, 12_000, 16_000, 20_000, 24_000, 32_000, 40_000,
    48_000, 64_000, 96_000, 128_000, 256_000, 512_000,
];

/// Waits between two reviews of the classes.
const REVIEW: u16 = 16;
/// Waits that count; when there are more, all count half.
const MEMORY: u16 = 128;
/// Waits that a trial polls.
const TRIAL: u16 = 8;
/// A wait this many limits long was idleness.
const IDLE_LIMITS: u64 = 8;
/// Work that comes to a sleeper within this many limits may come soon enough to a poller.
const NEAR_LIMITS: u64 = 4;
/// Waits that show how soon work comes to a sleeper when polling was given up. As many in a row in
/// which it comes clearly sooner mean that it is other work.
const SOONER: u16 = 16;
/// [`Spin::given_up`] so that no wait counts as sooner.
const NOTHING: (u16, u64) = (SOONER, 0);
/// Polled waits without a preemption after which preemptions are rare. The kernel's own threads
/// cause some, and to sleep for 4 ms because of them costs more than they take.
const RARELY: u16 = 64;
/// The first interval between trials, and the longest, in nanoseconds.
const INTERVAL_NS: u64 = 4_000_000;
const LONGEST_INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Polls, and reviews after so many waits whether that pays.
    Polling { review_in: u16 },
    /// Sleeps at once, at least until then.
    Sleeping { until_ns: u64 },
}

/// Result of a wait that polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Polled {
    /// Whether work came while it polled; if not, it slept afterwards.
    pub found: bool,
    /// Time until work came, polling and sleeping together, in nanoseconds.
    pub wait_ns: u64,
    /// Whether another thread took the processor meanwhile.
    pub preempted: bool,
}

/// One core's decisions.
#[derive(Clone, Debug)]
pub(super) struct Spin {
    limit_ns: u64,
    state: State,
    /// Time to poll, in nanoseconds.
    budget_ns: u64,
    /// Waits that polled, by class.
    seen: [u16; CLASSES.len() + 1],
    total: u16,
    /// Time without polling if it turns out not to pay, in nanoseconds.
    interval_ns: u64,
    /// The latest wait that slept, in nanoseconds.
    slept_ns: u64,
    /// The first waits that slept since polling was given up, at most [`SOONER`]: their number, and
    /// their sum in nanoseconds, with long ones counted as idle ones. [`NOTHING`] if another thread
    /// was the reason.
    given_up: (u16, u64),
    /// Waits in a row that slept and were clearly shorter than those on the average.
    sooner: u16,
    /// Polled waits since another thread took the processor, as far as they matter.
    undisturbed: u16,
}

impl Spin {
    /// Never polls longer than `limit_ns`, which is also the assumed cost of a sleep. 0 never
    /// polls.
    pub(super) fn new(limit_ns: u64) -> Self {
        let state = State::Polling { review_in: TRIAL };
        let seen = [0; CLASSES.len() + 1];
        Self {
            limit_ns,
            state,
            budget_ns: limit_ns,
            seen,
            total: 0,
            interval_ns: INTERVAL_NS,
            slept_ns: 0,
            given_up: NOTHING,
            sooner: 0,
            undisturbed: 0,
        }
    }

    /// Whether it never polls.
    pub(super) fn is_off(&self) -> bool {
        self.limit_ns == 0
    }

    /// Time to poll in a wait that begins now, in nanoseconds; 0 to sleep at once.
    #[inline]
    pub(super) fn budget_ns(&mut self, now_ns: u64) -> u64 {
        match self.state {
            State::Polling { .. } => self.budget_ns,
            State::Sleeping { until_ns }
                if (now_ns >= until_ns || self.sooner >= SOONER) && self.is_near(self.slept_ns) =>
            {
                if self.sooner >= SOONER {
                    self.interval_ns = INTERVAL_NS;
                }
                self.begin_trial();
                self.budget_ns
            }
            State::Sleeping { .. } => 0,
        }
    }

    /// Records a wait that slept at once.
    #[inline]
    pub(super) fn slept(&mut self, wait_ns: u64) {
        self.slept_ns = wait_ns;
        let (count, sum_ns) = self.given_up;
        if count < SOONER {
            self.given_up = (count + 1, sum_ns + wait_ns.min(self.limit_ns * IDLE_LIMITS));
            return;
        }
        // Shorter by a quarter.
        let clearly = wait_ns.saturating_add(wait_ns / 3) < sum_ns / u64::from(SOONER);
        self.sooner = if clearly { self.sooner.saturating_add(1) } else { 0 };
    }

    /// Records a wait that polled, which ended now.
    #[inline]
    pub(super) fn polled(&mut self, wait: Polled, now_ns: u64) {
        if wait.preempted {
            let rare = std::mem::take(&mut self.undisturbed) >= RARELY;
            if rare && wait.wait_ns <= self.limit_ns * IDLE_LIMITS {
                // The time until work came is unknown.
                return;
            }
            return self.stop(now_ns, NOTHING);
        }
        self.undisturbed = (self.undisturbed + 1).min(RARELY);
        if !wait.found && wait.wait_ns > self.limit_ns * IDLE_LIMITS {
            // A pause is no measure of later waits: the first wait after the next one that is near
            // will tell.
            self.slept_ns = wait.wait_ns;
            self.state = State::Sleeping { until_ns: now_ns };
            (self.given_up, self.sooner) = (NOTHING, 0);
            return;
        }
        let class = CLASSES.partition_point(|end| *end < wait.wait_ns);
        self.seen[class] += 1;
        self.total += 1;
        let State::Polling { review_in } = &mut self.state else { return };
        *review_in -= 1;
        if *review_in == 0 {
            self.review(now_ns);
        }
    }

    fn is_near(&self, wait_ns: u64) -> bool {
        wait_ns <= self.limit_ns * NEAR_LIMITS
    }

    fn begin_trial(&mut self) {
        self.state = State::Polling { review_in: TRIAL };
        self.budget_ns = self.limit_ns;
        self.seen = Default::default();
        self.total = 0;
    }

    /// Polling does not pay: leaves it alone, for twice as long as the last time. `given_up`:
    /// whether it begins to learn what work is now.
    fn stop(&mut self, now_ns: u64, given_up: (u16, u64)) {
        (self.given_up, self.sooner) = (given_up, 0);
        self.state = State::Sleeping { until_ns: now_ns + self.interval_ns };
        self.interval_ns = (self.interval_ns * 2).min(LONGEST_INTERVAL_NS);
    }

    /// Finds the polling time that would have cost the least.
    fn review(&mut self, now_ns: u64) {
        self.budget_ns = self.cheapest();
        if self.budget_ns == 0 {
            return self.stop(now_ns, (0, 0));
        }
        if self.total >= REVIEW {
            // More than a trial has gone well.
            self.interval_ns = INTERVAL_NS;
        }
        if self.total >= MEMORY {
            self.seen.iter_mut().for_each(|count| *count /= 2);
            self.total = self.seen.iter().sum();
        }
        self.state = State::Polling { review_in: REVIEW };
    }

    /// The polling time with the least cost over the waits that count. A wait that ends within it
    /// costs its own time; any other costs all of it and a sleep.
    fn cheapest(&self) -> u64 {
        let total = u64::from(self.total);
        let (mut best, mut least) = (0, total * self.limit_ns);
        let (mut caught, mut caught_cost, mut start) = (0, 0, 0);
        for (end, count) in CLASSES.iter().zip(self.seen) {
            let (end, count) = ((*end).min(self.limit_ns), u64::from(count));
            caught += count;
            caught_cost += count * u64::midpoint(start, end);
            let cost = caught_cost + (total - caught) * (end + self.limit_ns);
            // A longer time of the same cost catches more.
            if cost <= least && caught > 0 {
                (best, least) = (end, cost);
            }
            if end == self.limit_ns {
                break;
            }
            start = end;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    /// A core in virtual time, with counts of its waits, its sleeps and its polling.
    struct Simulation {
        spin: Spin,
        now_ns: u64,
        polled_ns: u64,
        sleeps: u64,
        waits: u64,
    }

    impl Simulation {
        fn new(limit_us: u64) -> Self {
            Self { spin: Spin::new(limit_us * US), now_ns: 0, polled_ns: 0, sleeps: 0, waits: 0 }
        }

        /// One wait, and 2 µs of work after it. `poller` and `sleeper`: how long until work comes
        /// to either.
        fn wait(&mut self, poller: u64, sleeper: u64, preempted: bool) {
            self.waits += 1;
            let budget = self.spin.budget_ns(self.now_ns);
            if budget == 0 {
                self.sleeps += 1;
                self.now_ns += sleeper;
                self.spin.slept(sleeper);
            } else if poller <= budget {
                self.polled_ns += poller;
                self.now_ns += poller;
                self.spin.polled(Polled { found: true, wait_ns: poller, preempted }, self.now_ns);
            } else {
                self.polled_ns += budget;
                self.sleeps += 1;
                let wait_ns = budget + sleeper;
                self.now_ns += wait_ns;
                self.spin.polled(Polled { found: false, wait_ns, preempted }, self.now_ns);
            }
            self.now_ns += 2 * US;
        }

        fn waits(&mut self, n: u32, mut next: impl FnMut(u32) -> (u64, u64)) {
            for i in 0..n {
                let (poller, sleeper) = next(i);
                self.wait(poller, sleeper, false);
            }
        }

        /// The part of all time that was spent polling.
        fn polled_part(&self) -> f64 {
            self.polled_ns as f64 / self.now_ns as f64
        }

        fn forget(&mut self) {
            (self.polled_ns, self.sleeps, self.waits) = (0, 0, 0);
        }
    }

    #[test]
    fn work_that_comes_soon_is_polled_for_from_the_first_wait_on() {
        let mut core = Simulation::new(50);
        core.waits(10_000, |i| (u64::from(5 + i % 20) * US, 60 * US));
        assert_eq!(core.sleeps, 0);
    }

    #[test]
    fn an_idle_core_polls_once_and_then_never_again() {
        let mut core = Simulation::new(50);
        core.waits(100, |_| (20 * MS, 20 * MS));
        assert_eq!((core.polled_ns, core.sleeps), (50 * US, 100));
    }

    #[test]
    fn work_that_always_comes_a_little_too_late_costs_next_to_nothing() {
        for late in [60, 100, 150] {
            let mut core = Simulation::new(50);
            core.waits(100_000, |_| (late * US, late * US));
            assert!(core.polled_part() < 0.002, "{late} µs: {}", core.polled_part());
        }
    }

    #[test]
    fn a_sleeper_whose_peer_sleeps_too_finds_out_that_polling_is_faster() {
        // A sleeper sees its work come after 43 µs, beyond its limit of 20, a poller after 15.
        let mut core = Simulation::new(20);
        core.spin.stop(0, (0, 0));
        core.waits(1_000, |_| (15 * US, 43 * US));
        core.forget();
        core.waits(1_000, |_| (15 * US, 43 * US));
        assert_eq!(core.sleeps, 0);
    }

    #[test]
    fn it_polls_only_for_work_that_comes_at_once() {
        let mut core = Simulation::new(50);
        core.waits(1_000, |i| if i % 4 == 0 { (200 * US, 200 * US) } else { (3 * US, 50 * US) });
        core.forget();
        core.waits(1_000, |i| if i % 4 == 0 { (200 * US, 200 * US) } else { (3 * US, 50 * US) });
        assert_eq!(core.sleeps, 250);
        let most = 750 * 3 * US + 250 * 4 * US;
        assert!(core.polled_ns <= most, "{} of {most}", core.polled_ns);
    }

    #[test]
    fn bursts_after_pauses_are_polled_through_from_their_second_wait_on() {
        let mut core = Simulation::new(50);
        core.waits(1_000, |i| if i % 100 == 0 { (5 * MS, 5 * MS) } else { (8 * US, 40 * US) });
        assert!(core.sleeps <= 2 * 10 + 1, "{} sleeps in 10 bursts of 99 waits", core.sleeps);
        assert!(core.polled_part() < 0.2);
    }

    #[test]
    fn whoever_else_wants_the_processor_gets_it() {
        let mut core = Simulation::new(50);
        for _ in 0..100_000 {
            // The peer is on the same core: it runs only once the core sleeps or is pushed aside.
            core.wait(30 * US, 10 * US, true);
        }
        assert!(core.polled_part() < 0.001, "{}", core.polled_part());
    }

    #[test]
    fn what_takes_the_processor_rarely_and_shortly_does_not_end_polling() {
        let mut core = Simulation::new(50);
        core.waits(100, |_| (10 * US, 50 * US));
        core.forget();
        for i in 0..10_000 {
            core.wait(10 * US, 50 * US, i % 100 == 99);
        }
        assert_eq!(core.sleeps, 0);
        // For as long as a slice of a busy program, it does.
        core.wait(3 * MS, 3 * MS, true);
        core.wait(10 * US, 50 * US, false);
        assert_eq!(core.sleeps, 2);
    }

    #[test]
    fn sooner_work_is_polled_for_after_later_work_was_given_up() {
        let mut core = Simulation::new(50);
        core.waits(10_000, |_| (150 * US, 150 * US));
        core.forget();
        // A sleeper sees even this work come after its limit.
        core.waits(1_000, |_| (15 * US, 55 * US));
        assert_eq!(core.sleeps, u64::from(SOONER));
    }

    #[test]
    fn never_longer_than_the_limit_and_never_at_all_with_none() {
        for limit_us in [0, 1, 7, 50, 300, 1_000_000] {
            let mut core = Simulation::new(limit_us);
            let mut random = 1u64;
            for _ in 0..20_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let wait = (random >> 33) % (1 << (8 + (random >> 60)));
                assert!(core.spin.budget_ns(core.now_ns) <= limit_us * US);
                core.wait(wait, wait + 20 * US, random % 1000 == 0);
            }
        }
        assert!(Spin::new(0).is_off());
    }
}
