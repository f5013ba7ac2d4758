//! Admission control for connections and logins: each address gets a fair share of the resources
//! that logins cost.
//!
//! It owns the counts of connections and logins, the memory of logins in progress, the delays after
//! wrong secrets, and the rate at which refusals go to the log. The caller passes in addresses,
//! times and randomness: this module opens no socket and reads no clock. All of its tables are
//! bounded, whatever peers do. `docs/src/design/security.md` states the guarantees.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invariant::{broken, invariant};

/// Memory that is counted for each login in progress, bytes: its connection, its task, and
/// [`FREE_TEXT`].
const LOGIN_BYTES: usize = 12 << 10;
/// Text that a login may hold without requesting more memory, bytes: more than known initiators
/// send.
pub const FREE_TEXT: usize = 4 << 10;
/// Probability at which early drop begins.
const EARLY: f64 = 0.3;
/// Limits below this have no early drop, since every place counts.
const SMALL: usize = 32;
/// An address with fewer logins in progress than this is dropped only when nearly all places are
/// taken.
const FEW: usize = 4;

/// Wrong secrets of one user at an address that cause no delay.
const FREE_OF_USER: u32 = 3;
/// Wrong secrets of all users together at an address that cause no delay.
const FREE_OF_ADDRESS: u32 = 16;
/// The first delay. Each wrong secret doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// The longest delay. A login that would have to wait longer is refused unread.
const LONGEST_DELAY: Duration = Duration::from_secs(8);
/// Time for which a wrong secret is remembered.
const MEMORY: Duration = Duration::from_secs(600);
/// Wrong secrets that are remembered at once: entries of addresses, and of users at addresses.
const MOST_WRONG: usize = 4096;

/// Refusals of one address that go to the log in one [`WINDOW`].
const LINES: u32 = 10;
/// Refusals of all addresses together that go to the log in one [`WINDOW`].
const ALL_LINES: u32 = 300;
/// Window of the two limits above.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses whose refusals are counted individually, at most.
const MOST_TOLD: usize = 1024;

/// A peer for accounting: an IPv4 address, or an IPv6 /64 network, since one machine may have all
/// addresses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The address.
    V4([u8; 4]),
    /// The network.
    V6([u8; 8]),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// Current bounds.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Connections at once.
    pub connections: usize,
    /// Bound on `connections` of one address.
    pub connections_per_address: usize,
    /// Logins in progress.
    pub logins: usize,
    /// Bound on `logins` of one address.
    pub logins_per_address: usize,
    /// Memory of all logins in progress, bytes.
    pub login_memory: usize,
}

impl Rules {
    /// Number of logins for which three quarters of their memory suffice.
    fn places(&self) -> usize {
        self.logins.min(self.login_memory / 4 * 3 / LOGIN_BYTES).max(1)
    }

    /// The wider of both, for each bound.
    pub(crate) fn widest(self, other: Self) -> Self {
        Self {
            connections: self.connections.max(other.connections),
            connections_per_address: self.connections_per_address.max(other.connections_per_address),
            logins: self.logins.max(other.logins),
            logins_per_address: self.logins_per_address.max(other.logins_per_address),
            login_memory: self.login_memory.max(other.login_memory),
        }
    }

    fn places_per_address(&self) -> usize {
        self.logins_per_address.min(self.places())
    }

    /// Memory for long texts: the last quarter, and a quarter of that for one address.
    fn text(&self) -> (usize, usize) {
        (self.login_memory / 4, self.login_memory / 16)
    }
}

/// Why a connection is dropped before its first byte is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// The server has as many connections as it may have.
    #[error("too many connections")]
    Connections,
    /// The address has as many connections as it may have.
    #[error("too many connections from this address")]
    ConnectionsOfAddress,
    /// As many logins are in progress as may be.
    #[error("too many logins in progress")]
    Logins,
    /// The address has as many logins in progress as it may have.
    #[error("too many logins in progress from this address")]
    LoginsOfAddress,
}

/// Current use by one address.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    connections: usize,
    logins: usize,
    text: usize,
}

/// Wrong secrets of an address, or of a user there.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    count: u32,
    /// Earliest time of the next answer.
    ready: Instant,
    last: Instant,
}

/// Refusals of one window.
#[derive(Clone, Copy, Debug)]
struct Told {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl Told {
    fn new(since: Instant) -> Self {
        Self { since, lines: 0, suppressed: 0 }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }
}

/// Refusals that were not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// Number of refusals that were not logged.
    pub refusals: u64,
    /// Number of addresses that they came from, among those counted individually.
    pub addresses: usize,
}

/// The counts and tables.
pub struct Admission {
    state: Mutex<State>,
    /// For users' names, which are kept as numbers.
    hasher: RandomState,
}

struct State {
    random: u64,
    of: HashMap<Source, Held>,
    all: Held,
    wrong: HashMap<(Source, Option<u64>), Wrong>,
    told: HashMap<Source, Told>,
    all_told: Option<Told>,
}

impl Admission {
    /// Starts with empty tables. `seed` seeds the random choice of connections for early drop.
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: seed,
            of: HashMap::new(),
            all: Held::default(),
            wrong: HashMap::new(),
            told: HashMap::new(),
            all_told: None,
        };
        Self { state: Mutex::new(state), hasher: RandomState::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection from `source` to begin its login. [`Self::leave`] undoes that.
    ///
    /// # Errors
    /// The reason why it is dropped.
    pub fn enter(&self, source: Source, rules: &Rules) -> Result<(), Dropped> {
        let mut state = self.state();
        let own = state.of.get(&source).copied().unwrap_or_default();
        let all = state.all;
        if all.connections >= rules.connections {
            return Err(Dropped::Connections);
        }
        if own.connections >= rules.connections_per_address {
            return Err(Dropped::ConnectionsOfAddress);
        }
        let (places, of_address) = (rules.places(), rules.places_per_address());
        // Addresses with several logins in progress compete for seven eighths of all places. The
        // rest is for addresses with few or none.
        let (from, full) = match own.logins < FEW {
            true => (places - places / 16, places),
            false => (places / 2, places - places / 8),
        };
        let by_address = chance(own.logins, of_address / 4, of_address);
        let by_all = chance(all.logins, from, full);
        if state.draw() < by_address {
            return Err(Dropped::LoginsOfAddress);
        }
        if state.draw() < by_all {
            return Err(Dropped::Logins);
        }
        let entered = |held: &mut Held| {
            held.connections += 1;
            held.logins += 1;
        };
        entered(&mut state.all);
        entered(state.of.entry(source).or_default());
        Ok(())
    }

    /// Whether the admitted connections stay within `rules`: those of `source`, and all.
    pub(crate) fn holds(&self, source: Source, rules: &Rules) -> bool {
        let state = self.state();
        let own = state.of.get(&source).copied().unwrap_or_default();
        state.all.connections <= rules.connections && own.connections <= rules.connections_per_address
    }

    /// A login from `source` has ended, successfully or not. Its connection may stay.
    pub fn logged_in(&self, source: Source) {
        self.change(source, |held| {
            if invariant!(held.logins > 0, "more logins ended than began") {
                held.logins -= 1;
            }
        });
    }

    /// A connection from `source` has ended.
    pub fn leave(&self, source: Source) {
        self.change(source, |held| {
            if invariant!(held.connections > 0, "more connections left than entered") {
                held.connections -= 1;
            }
        });
    }

    fn change(&self, source: Source, change: impl Fn(&mut Held)) {
        let mut state = self.state();
        change(&mut state.all);
        let Some(held) = state.of.get_mut(&source) else {
            broken!("nothing is held for {source:?}");
            return;
        };
        change(held);
        if held.connections == 0 && held.logins == 0 && held.text == 0 {
            state.of.remove(&source);
        }
    }

    /// Logins in progress.
    pub fn logins(&self) -> usize {
        self.state().all.logins
    }

    /// Connections, those that log in among them.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.state().all.connections
    }

    /// A login from `source` holds `now` bytes of text instead of `before`, both beyond
    /// [`FREE_TEXT`]. False if there is no room for more; then it holds as many as before.
    pub fn hold(&self, source: Source, before: usize, now: usize, rules: &Rules) -> bool {
        if now == before {
            return true;
        }
        if now > before {
            let state = self.state();
            let more = now - before;
            let own = state.of.get(&source).copied().unwrap_or_default();
            let (all, of_address) = rules.text();
            if state.all.text + more > all || own.text + more > of_address {
                return false;
            }
        }
        // Two cores at once may exceed the room by one text of each.
        self.change(source, |held| {
            let text = held.text;
            invariant!(before <= text, "{before} bytes of text given back, of {text}");
            held.text = (text + now).saturating_sub(before);
        });
        true
    }

    /// `user` of `source` has answered a challenge, rightly or not. Returns the time for which to
    /// delay the result. `None` if that is too long: then the answer counts for nothing, and is
    /// refused whether it was right or not.
    pub fn attempt(&self, source: Source, user: &str, right: bool, now: Instant) -> Option<Duration> {
        let keys = [(source, Some(self.hasher.hash_one(user))), (source, None)];
        let mut state = self.state();
        let ready = keys.iter().filter_map(|key| state.wrong.get(key)).map(|wrong| wrong.ready).max();
        let wait = ready.map_or(Duration::ZERO, |ready| ready.saturating_duration_since(now));
        if wait > LONGEST_DELAY {
            return None;
        }
        for (key, free) in keys.into_iter().zip([FREE_OF_USER, FREE_OF_ADDRESS]) {
            match right {
                true => drop(state.wrong.remove(&key)),
                false => state.note_wrong(key, free, now),
            }
        }
        Some(wait)
    }

    /// Whether to log that a login from `source` was refused.
    pub(crate) fn may_tell(&self, source: Source, now: Instant) -> bool {
        let mut state = self.state();
        let mut all = state.all_told.filter(|all| !all.is_over(now)).unwrap_or(Told::new(now));
        if !state.told.contains_key(&source) && state.told.len() >= MOST_TOLD {
            // Counted among all, and not individually.
            all.suppressed += 1;
            state.all_told = Some(all);
            return false;
        }
        let told = state.told.entry(source).or_insert(Told::new(now));
        let may = told.lines < LINES && all.lines < ALL_LINES;
        match may {
            true => (told.lines, all.lines) = (told.lines + 1, all.lines + 1),
            false => told.suppressed += 1,
        }
        state.all_told = Some(all);
        may
    }

    /// Returns and clears the counts of suppressed refusals: of the windows that are over, or, with
    /// `ending`, of all.
    pub fn suppressed(&self, now: Instant, ending: bool) -> Option<Suppressed> {
        let mut state = self.state();
        let over = state.all_told.is_some_and(|all| ending || all.is_over(now));
        if !over {
            return None;
        }
        let mut sum = Suppressed { refusals: state.all_told.map_or(0, |all| all.suppressed), addresses: 0 };
        state.all_told = None;
        state.told.retain(|_, told| {
            let stays = !(ending || told.is_over(now));
            if !stays && told.suppressed > 0 {
                sum.refusals += told.suppressed;
                sum.addresses += 1;
            }
            stays
        });
        if !state.told.is_empty() {
            state.all_told = Some(Told::new(now));
        }
        (sum.refusals > 0).then_some(sum)
    }
}

impl State {
    /// A number from 0 up to 1 (splitmix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn note_wrong(&mut self, key: (Source, Option<u64>), free: u32, now: Instant) {
        if !self.wrong.contains_key(&key) && self.wrong.len() >= MOST_WRONG {
            // Drops the older half, so that this is rare.
            let mut times: Vec<Instant> = self.wrong.values().map(|wrong| wrong.last).collect();
            let (_, median, _) = times.select_nth_unstable(MOST_WRONG / 2);
            let median = *median;
            self.wrong.retain(|_, wrong| wrong.last > median);
        }
        let fresh = Wrong { count: 0, ready: now, last: now };
        let wrong = self.wrong.entry(key).or_insert(fresh);
        if now.saturating_duration_since(wrong.last) >= MEMORY {
            *wrong = fresh;
        }
        wrong.count = wrong.count.saturating_add(1);
        wrong.ready = wrong.ready.max(now) + delay(wrong.count, free);
        wrong.last = now;
    }
}

/// Delay of the next answer after the `count`-th wrong secret.
fn delay(count: u32, free: u32) -> Duration {
    let Some(beyond) = count.checked_sub(free) else { return Duration::ZERO };
    FIRST_DELAY.saturating_mul(1 << beyond.min(16)).min(LONGEST_DELAY)
}

/// Probability of dropping one more when `count` exist: 0 below `from`, 1 from `full` on, and
/// linear between, from [`EARLY`] to 1. Limits below [`SMALL`] have no early drop.
fn chance(count: usize, from: usize, full: usize) -> f64 {
    if count >= full {
        return 1.0;
    }
    if count < from || full < SMALL {
        return 0.0;
    }
    EARLY + (1.0 - EARLY) * (count - from) as f64 / (full - from) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        connections: 65536,
        connections_per_address: 65536,
        logins: 1024,
        logins_per_address: 256,
        login_memory: 16 << 20,
    };

    fn at(last: u8) -> Source {
        IpAddr::from([192, 0, 2, last]).into()
    }

    /// Tries `times` times; returns the number of admitted connections.
    fn press(admission: &Admission, source: Source, times: usize) -> usize {
        (0..times).filter(|_| admission.enter(source, &RULES).is_ok()).count()
    }

    #[test]
    fn one_address_never_holds_more_than_its_share_and_others_get_in_at_once() {
        for seed in 0..20 {
            let admission = Admission::new(seed);
            assert_eq!(press(&admission, at(1), 64), 64, "below a quarter nobody is dropped");
            let held = 64 + press(&admission, at(1), 20_000);
            assert!((200..=256).contains(&held), "{held}");
            assert_eq!(admission.enter(at(1), &RULES), Err(Dropped::LoginsOfAddress));
            for other in 2..100 {
                assert_eq!(admission.enter(at(other), &RULES), Ok(()), "address {other}");
                admission.logged_in(at(other));
            }
        }
    }

    #[test]
    fn fifteen_addresses_together_do_not_keep_another_out() {
        for seed in 0..20 {
            let admission = Admission::new(seed);
            for _ in 0..2000 {
                (1..16).for_each(|attacker| _ = press(&admission, at(attacker), 1));
            }
            assert!(admission.logins() <= 1024 * 7 / 8 + 15 * FEW, "{}", admission.logins());
            for _ in 0..100 {
                assert_eq!(admission.enter(at(200), &RULES), Ok(()));
                admission.logged_in(at(200));
                admission.leave(at(200));
            }
        }
    }

    #[test]
    fn early_drop_begins_at_three_in_ten_and_ends_in_certainty() {
        assert_eq!(chance(63, 64, 256), 0.0);
        assert_eq!(chance(64, 64, 256), EARLY);
        assert!((chance(160, 64, 256) - 0.65).abs() < 1e-9);
        assert_eq!(chance(256, 64, 256), 1.0);
        assert_eq!((chance(3, 1, 4), chance(4, 1, 4)), (0.0, 1.0), "small limits are used up");
    }

    #[test]
    fn places_are_given_back_and_nothing_is_kept_of_who_is_gone() {
        let admission = Admission::new(1);
        for n in 0..=255u8 {
            assert_eq!(admission.enter(at(n), &RULES), Ok(()));
        }
        assert!(admission.hold(at(7), 0, 9000, &RULES));
        assert!(admission.hold(at(7), 9000, 0, &RULES));
        for n in 0..=255u8 {
            admission.logged_in(at(n));
            admission.leave(at(n));
        }
        assert_eq!((admission.logins(), admission.connections()), (0, 0));
        assert!(admission.state().of.is_empty());
    }

    #[test]
    fn memory_bounds_the_logins_whatever_their_limit_says() {
        let rules = Rules { logins: 1 << 20, logins_per_address: 1 << 20, ..RULES };
        let admission = Admission::new(3);
        let mut in_all = 0;
        for n in 0..200_000u32 {
            in_all += usize::from(admission.enter(Source::V4(n.to_be_bytes()), &rules).is_ok());
        }
        assert!(in_all * LOGIN_BYTES <= rules.login_memory * 3 / 4, "{in_all}");
        assert!(in_all > 900, "{in_all}");
        // Texts have the rest, and an address a quarter of that.
        let mut text = 0;
        for n in 0..1000u32 {
            text += usize::from(admission.hold(Source::V4((n % 3).to_be_bytes()), 0, 16 << 10, &rules))
                * (16 << 10);
        }
        assert_eq!(text, 3 << 20, "three addresses");
        for n in 0..1000u32 {
            let source = Source::V4((3 + n % 100).to_be_bytes());
            text += usize::from(admission.hold(source, 0, 16 << 10, &rules)) * (16 << 10);
        }
        assert_eq!(text, 4 << 20);
        assert!(in_all * LOGIN_BYTES + text <= rules.login_memory);
    }

    #[test]
    fn limits_of_connections_hold_beyond_the_login() {
        let rules = Rules { connections: 5, connections_per_address: 2, ..RULES };
        let admission = Admission::new(1);
        let enter = |n| {
            let entered = admission.enter(at(n), &rules);
            if entered.is_ok() {
                admission.logged_in(at(n));
            }
            entered
        };
        assert_eq!((enter(1), enter(1), enter(1)), (Ok(()), Ok(()), Err(Dropped::ConnectionsOfAddress)));
        assert_eq!(
            (enter(2), enter(2), enter(3), enter(4)),
            (Ok(()), Ok(()), Ok(()), Err(Dropped::Connections))
        );
        admission.leave(at(1));
        assert_eq!(enter(4), Ok(()));
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_a_mapped_address_is_ipv4() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    #[test]
    fn wrong_secrets_delay_the_same_user_and_address_and_nobody_else() {
        let (admission, start) = (Admission::new(1), Instant::now());
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = admission.attempt(at(1), "alice", false, now).expect("it waits its turn");
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits, [0, 0, 0, 250, 500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]);
        assert_eq!(admission.attempt(at(2), "alice", false, now), Some(Duration::ZERO), "another address");
        assert_eq!(admission.attempt(at(1), "bob", false, now), Some(Duration::ZERO), "another user");
        // The right answer is delayed like a wrong one, and clears the record.
        assert_eq!(admission.attempt(at(1), "alice", true, now), Some(Duration::from_secs(8)));
        assert_eq!(admission.attempt(at(1), "alice", false, now), Some(Duration::ZERO));
    }

    #[test]
    fn many_users_names_from_one_address_are_delayed_too() {
        let (admission, now) = (Admission::new(1), Instant::now());
        let answered = (0..1000).filter_map(|n| admission.attempt(at(1), &format!("user{n}"), false, now));
        assert!(answered.count() < 25, "guesses at once");
    }

    #[test]
    fn guesses_at_once_wait_in_turn_and_are_refused_unread_in_the_end() {
        let (admission, now) = (Admission::new(1), Instant::now());
        let waits: Vec<_> = (0..100).map_while(|_| admission.attempt(at(1), "alice", false, now)).collect();
        assert!(waits.is_sorted() && waits.len() < 12, "{waits:?}");
        assert_eq!(admission.attempt(at(1), "alice", true, now), None, "the right one is no exception");
        let later = now + Duration::from_secs(60);
        assert_eq!(admission.attempt(at(1), "alice", true, later), Some(Duration::ZERO));
    }

    #[test]
    fn the_table_of_wrong_secrets_is_bounded_and_forgets() {
        let (admission, now) = (Admission::new(1), Instant::now());
        for n in 0..20_000u32 {
            let later = now + Duration::from_millis(u64::from(n));
            admission.attempt(Source::V4(n.to_be_bytes()), "alice", false, later);
        }
        assert!(admission.state().wrong.len() <= MOST_WRONG);
        let again = Admission::new(1);
        (0..5).for_each(|_| _ = again.attempt(at(1), "alice", false, now));
        let after = now + MEMORY;
        assert_eq!(again.attempt(at(1), "alice", false, after), Some(Duration::ZERO));
        assert_eq!(again.attempt(at(1), "alice", false, after), Some(Duration::ZERO));
    }

    #[test]
    fn a_flood_of_refusals_takes_few_lines_and_the_rest_is_counted() {
        let (admission, now) = (Admission::new(1), Instant::now());
        let lines = (0..5000).filter(|_| admission.may_tell(at(1), now)).count();
        assert_eq!(lines, LINES as usize);
        assert!(admission.may_tell(at(2), now), "another address is told");
        assert_eq!(admission.suppressed(now, false), None, "the window is open");
        let later = now + WINDOW;
        assert_eq!(admission.suppressed(later, false), Some(Suppressed { refusals: 4990, addresses: 1 }));
        assert_eq!(admission.suppressed(later, false), None, "told once");
        assert!(admission.may_tell(at(1), later));
        // Many addresses at once have a bound of their own.
        let many = (0..100_000u32).filter(|n| admission.may_tell(Source::V4(n.to_be_bytes()), later)).count();
        assert!(many < ALL_LINES as usize, "{many}");
        assert!(admission.state().told.len() <= MOST_TOLD);
        let left = admission.suppressed(later, true).expect("a count at the end");
        assert_eq!(left.refusals, 100_000 - many as u64);
    }
}
