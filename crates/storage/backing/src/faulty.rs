//! Fault injection over any store, by rules: errors, delays, false success and a full medium.
//!
//! Everything is deterministic: rules count operations, and time is a number that the owner of the
//! [`Faults`] advances by [`Faults::step`]. Nothing here reads a clock or starts a timer. To model
//! a power cut, use a [`super::model::ModelStore`] below.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use runtime::{Buf, Chain, Pooled, RegionRange};

use super::model::Random;
use super::{BlockStore, Extent, Geometry, Health, Io, StoreError};

/// A set of operations of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// [`BlockStore::read`].
    pub const READ: Self = Self(1);
    /// [`BlockStore::write`].
    pub const WRITE: Self = Self(2);
    /// [`BlockStore::sync`]. It has no range, so rules for a range do not match it.
    pub const SYNC: Self = Self(4);
    /// [`BlockStore::discard`].
    pub const DISCARD: Self = Self(8);
    /// [`BlockStore::write_zeros`].
    pub const ZEROS: Self = Self(16);
    /// [`BlockStore::extent`].
    pub(crate) const EXTENT: Self = Self(32);
    pub const ALL: Self = Self(63);

    /// The union of both sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The effect of a rule on an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The operation fails and has no effect.
    Fail(StoreError),
    /// The operation takes effect and resolves this many steps later: a number from the range,
    /// chosen by the rule's seed. Operations with different delays overtake each other. A range
    /// that starts at `u64::MAX` never ends by itself: see [`Faults::release`].
    Delay(Range<u64>),
    /// The operation reports success without any effect: a medium that lies. A test that does not
    /// notice proves nothing. Applies only to operations that return no data; others pass.
    Lie,
}

/// A rule: which operations get which fault, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The operations that match.
    pub operations: Operations,
    /// Match only operations that touch these bytes.
    pub bytes: Option<Range<u64>>,
    /// Number of matching operations to pass first.
    pub after: u64,
    /// Number of operations to affect then; `u64::MAX` for all.
    pub times: u64,
    /// The effect on them.
    pub action: Action,
    /// Seed of random delays.
    pub seed: u64,
}

impl Rule {
    /// A rule that applies `action` to all of `operations`.
    pub const fn new(operations: Operations, action: Action) -> Self {
        Self { operations, bytes: None, after: 0, times: u64::MAX, action, seed: 0 }
    }
    /// Matches only operations that touch `bytes`.
    pub fn on(self, bytes: Range<u64>) -> Self {
        Self { bytes: Some(bytes), ..self }
    }
    /// Passes the first `count` operations.
    pub fn after(self, count: u64) -> Self {
        Self { after: count, ..self }
    }
    /// Ends after `count` operations.
    pub fn times(self, count: u64) -> Self {
        Self { times: count, ..self }
    }
    /// Sets the seed of the delays.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// The rules and the time of a [`FaultyStore`]: the handle for tests. Clones share the same state.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rules: Vec<Active>,
    next_rule: u64,
    /// Bytes that may still be written.
    space: Option<u64>,
    now: u64,
    /// By the step at which they end, and their number.
    waiting: BTreeMap<(u64, u64), Option<Waker>>,
    next_wait: u64,
    operations: u64,
    /// A step is a microsecond of the runtime's clock.
    timed: bool,
}

struct Active {
    id: RuleId,
    rule: Rule,
    random: Random,
}

/// The decision for one operation.
enum Verdict {
    Through,
    Fail(StoreError),
    Lie,
    /// Wait for this entry of `waiting`, then decide again.
    Wait((u64, u64)),
    /// Sleep so long, then go on.
    Sleep(Duration),
}

impl Faults {
    pub fn new() -> Self {
        Self::default()
    }

    /// No faults. Delays are counted in microseconds of the runtime's clock and end by themselves.
    pub fn timed() -> Self {
        let faults = Self::default();
        faults.lock().timed = true;
        faults
    }

    /// Adds a rule. Rules match in the order they were added, and the first match decides. After a
    /// delay, later rules decide the effect.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.lock();
        state.next_rule += 1;
        let id = RuleId(state.next_rule);
        let random = Random::new(rule.seed);
        state.rules.push(Active { id, rule, random });
        id
    }

    /// Removes a rule. Operations that it already delays still wait.
    pub fn remove(&self, id: RuleId) {
        self.lock().rules.retain(|active| active.id != id);
    }

    /// Removes all rules and the limit of space, and ends all delays.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.rules.clear();
        state.space = None;
        drop(state);
        self.release();
    }

    /// Limits the bytes that may still be written. Overwritten ones count too, as on a
    /// log-structured medium. The write that exceeds the limit fails with [`StoreError::NoSpace`].
    /// `None` for no limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.lock().space = bytes;
    }

    /// Advances time, and wakes the operations whose delay has ended.
    pub fn step(&self, steps: u64) {
        let woken = {
            let mut state = self.lock();
            state.now = state.now.saturating_add(steps);
            let rest = (state.now.saturating_add(1), 0);
            let later = state.waiting.split_off(&rest);
            std::mem::replace(&mut state.waiting, later)
        };
        woken.into_values().flatten().for_each(Waker::wake);
    }

    /// Steps until the next delay ends; `None` if no delay ends by itself.
    #[cfg(test)]
    fn next_step(&self) -> Option<u64> {
        let state = self.lock();
        state.waiting.keys().next().filter(|(due, _)| *due < u64::MAX).map(|(due, _)| due - state.now)
    }

    /// Ends all delays now.
    pub fn release(&self) {
        let woken = std::mem::take(&mut self.lock().waiting);
        woken.into_values().flatten().for_each(Waker::wake);
    }

    /// Number of delayed operations.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Number of operations started so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `delays`: whether rules may still delay the operation.
    fn verdict(&self, operation: Operations, bytes: &Range<u64>, delays: bool) -> Verdict {
        let mut state = self.lock();
        let state = &mut *state;
        state.operations += u64::from(delays);
        for active in &mut state.rules {
            let rule = &mut active.rule;
            let delay = matches!(rule.action, Action::Delay(_));
            let touches = rule.bytes.as_ref().is_none_or(|b| b.start < bytes.end && bytes.start < b.end);
            // A rule other than a delay decides once: after the delay, if there is one.
            if !rule.operations.overlaps(operation) || !touches || (delay && !delays) || rule.times == 0 {
                continue;
            }
            if rule.after > 0 {
                rule.after -= 1;
                continue;
            }
            if rule.times != u64::MAX {
                rule.times -= 1;
            }
            match &rule.action {
                Action::Fail(error) => return Verdict::Fail(*error),
                Action::Lie => return Verdict::Lie,
                Action::Delay(steps) => {
                    let chosen = steps.start + active.random.below(steps.end.saturating_sub(steps.start));
                    if state.timed && chosen < u64::MAX / 2 {
                        return Verdict::Sleep(Duration::from_micros(chosen));
                    }
                    state.next_wait += 1;
                    let place = (state.now.saturating_add(chosen), state.next_wait);
                    state.waiting.insert(place, None);
                    return Verdict::Wait(place);
                }
            }
        }
        if operation.overlaps(Operations::WRITE) {
            if let Some(space) = &mut state.space {
                match space.checked_sub(bytes.end - bytes.start) {
                    Some(left) => *space = left,
                    None => return Verdict::Fail(StoreError::NoSpace),
                }
            }
        }
        Verdict::Through
    }

    /// Whether a rule other than a delay may match a write of these bytes.
    fn may_stop_writes(&self, bytes: &Range<u64>) -> bool {
        let state = self.lock();
        let stops = |active: &Active| {
            let rule = &active.rule;
            let touches = rule.bytes.as_ref().is_none_or(|b| b.start < bytes.end && bytes.start < b.end);
            let meets = rule.operations.overlaps(Operations::WRITE) && touches && rule.times > 0;
            meets && !matches!(rule.action, Action::Delay(_))
        };
        state.space.is_some() || state.rules.iter().any(stops)
    }

    fn poll_wait(&self, cx: &mut Context<'_>, place: (u64, u64)) -> Poll<()> {
        match self.lock().waiting.get_mut(&place) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Faults")
            .field("rules", &state.rules.len())
            .field("now", &state.now)
            .field("waiting", &state.waiting.len())
            .finish()
    }
}

/// An entry in `waiting`, removed when the operation is dropped.
struct Place(Faults, (u64, u64));

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().waiting.remove(&self.1);
    }
}

/// A store with the faults of its [`Faults`].
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn BlockStore>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps `inner` with `faults`.
    pub fn new(inner: Arc<dyn BlockStore>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    fn run<T: Unpin + 'static>(
        &self,
        operation: Operations,
        at: u64,
        len: u64,
        lie: Option<T>,
        start: impl FnOnce(&dyn BlockStore) -> Io<T> + 'static,
    ) -> Io<T> {
        // A sync has no bytes, so no range overlaps it.
        let bytes = at..at.saturating_add(len);
        match self.faults.verdict(operation, &bytes, true) {
            Verdict::Wait(place) => {
                let (inner, place) = (self.inner.clone(), Place(self.faults.clone(), place));
                Io::Running(Pooled::new(async move {
                    poll_fn(|cx| place.0.poll_wait(cx, place.1)).await;
                    let verdict = place.0.verdict(operation, &bytes, false);
                    drop(place);
                    decide(verdict, lie, inner.as_ref(), start).await
                }))
            }
            Verdict::Sleep(duration) => {
                let (inner, faults) = (self.inner.clone(), self.faults.clone());
                Io::Running(Pooled::new(async move {
                    runtime::sleep(duration).await;
                    let verdict = faults.verdict(operation, &bytes, false);
                    decide(verdict, lie, inner.as_ref(), start).await
                }))
            }
            verdict => decide(verdict, lie, self.inner.as_ref(), start),
        }
    }
}

fn decide<T>(
    verdict: Verdict,
    lie: Option<T>,
    inner: &dyn BlockStore,
    start: impl FnOnce(&dyn BlockStore) -> Io<T>,
) -> Io<T> {
    match (verdict, lie) {
        (Verdict::Fail(error), _) => Io::err(error),
        (Verdict::Lie, Some(value)) => Io::ok(value),
        _ => start(inner),
    }
}

impl BlockStore for FaultyStore {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn refresh(&self) -> u64 {
        self.inner.refresh()
    }

    fn limit(&self, bytes: Option<u64>) {
        self.inner.limit(bytes);
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn thin(&self) -> bool {
        self.inner.thin()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn health(&self) -> Option<&Arc<Health>> {
        self.inner.health()
    }
    fn resources(&self) -> Option<super::Resources> {
        self.inner.resources()
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        self.run(Operations::READ, at, len as u64, None, move |inner| inner.read(at, len))
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        let len = data.len() as u64;
        self.run(Operations::WRITE, at, len, Some(()), move |inner| inner.write(at, data, durable))
    }

    fn lands(&self) -> bool {
        self.inner.lands()
    }

    fn land(&self, at: u64, len: usize, fill: &mut dyn FnMut(&mut RegionRange) -> usize) -> Option<Buf> {
        // The rules apply to the write that follows. Until then place no data that a rule might
        // stop.
        let bytes = at..at.saturating_add(len as u64);
        if self.faults.may_stop_writes(&bytes) { None } else { self.inner.land(at, len, fill) }
    }

    fn sync(&self) -> Io<()> {
        self.run(Operations::SYNC, 0, 0, Some(()), |inner| inner.sync())
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.run(Operations::DISCARD, at, len, Some(()), move |inner| inner.discard(at, len))
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.run(Operations::ZEROS, at, len, Some(()), move |inner| inner.write_zeros(at, len, deallocate))
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.run(Operations::EXTENT, at, len, None, move |inner| inner.extent(at, len))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;
    use crate::model::ModelStore;
    use crate::testing::now;

    const EIO: StoreError = StoreError::Io(libc::EIO);

    fn faulty() -> (FaultyStore, Faults, ModelStore) {
        let (faults, model) = (Faults::new(), ModelStore::new(1 << 16, 512));
        (FaultyStore::new(Arc::new(model.clone()), faults.clone()), faults, model)
    }

    fn poll<T: Unpin>(io: &mut Io<T>) -> Poll<Result<T, StoreError>> {
        Pin::new(io).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn sector(byte: u8) -> Chain {
        vec![byte; 512].into()
    }

    #[test]
    fn a_rule_meets_its_operations_after_some_and_so_many_times() {
        let (store, faults, _) = faulty();
        faults.add(Rule::new(Operations::WRITE, Action::Fail(EIO)).after(2).times(1));
        let write = || now(store.write(0, sector(1), false));
        assert_eq!([write(), write(), write(), write()], [Ok(()), Ok(()), Err(EIO), Ok(())]);
        now(store.read(0, 512)).unwrap();
        assert_eq!(faults.operations(), 5);
    }

    #[test]
    fn a_bad_range_fails_whoever_touches_it() {
        let (store, faults, _) = faulty();
        let rule = faults.add(Rule::new(Operations::ALL, Action::Fail(EIO)).on(1024..1536));
        assert!(now(store.read(512, 512)).is_ok());
        assert!(now(store.read(512, 1024)).is_err());
        assert_eq!(now(store.discard(1024, 512)), Err(EIO));
        assert!(now(store.read(1536, 512)).is_ok());
        assert_eq!(now(store.sync()), Ok(()), "a sync has no range");
        faults.remove(rule);
        assert!(now(store.read(512, 1024)).is_ok());
    }

    #[test]
    fn delayed_operations_overtake_each_other_and_happen_when_they_end() {
        let (store, faults, _) = faulty();
        let slow = faults.add(Rule::new(Operations::WRITE, Action::Delay(5..6)));
        let mut first = store.write(0, sector(1), false);
        faults.remove(slow);
        faults.add(Rule::new(Operations::WRITE, Action::Delay(2..3)));
        let mut second = store.write(0, sector(2), false);
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        assert_eq!((faults.waiting(), faults.next_step()), (2, Some(2)));
        faults.step(2);
        assert!(poll(&mut first).is_pending());
        assert_eq!(now(store.read(0, 1024)).unwrap().to_vec()[0], 0, "not before it is polled");
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert_eq!(now(store.read(0, 512)).unwrap().to_vec()[0], 2);
        faults.step(3);
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())));
        assert_eq!(now(store.read(0, 512)).unwrap().to_vec()[0], 1);
        assert_eq!(faults.next_step(), None);
    }

    #[test]
    fn what_hangs_is_released_by_hand_and_may_be_dropped() {
        let (store, faults, _) = faulty();
        faults.add(Rule::new(Operations::ALL, Action::Delay(u64::MAX..u64::MAX)));
        faults.add(Rule::new(Operations::SYNC, Action::Fail(EIO)));
        let (read, mut sync) = (store.read(0, 512), store.sync());
        assert!(poll(&mut sync).is_pending());
        drop(read);
        assert_eq!((faults.waiting(), faults.next_step()), (1, None));
        faults.release();
        assert_eq!(poll(&mut sync), Poll::Ready(Err(EIO)), "a later rule decides when the delay has ended");
    }

    #[test]
    fn a_seed_gives_the_same_delays_again() {
        let delays = |seed| {
            let (store, faults, _) = faulty();
            faults.add(Rule::new(Operations::READ, Action::Delay(0..1000)).seed(seed));
            let _kept: Vec<_> = (0..20).map(|_| store.read(0, 512)).collect();
            faults.lock().waiting.keys().copied().collect::<Vec<_>>()
        };
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }

    #[test]
    fn the_medium_fills_up() {
        let (store, faults, _) = faulty();
        faults.limit_space(Some(1500));
        let write = || now(store.write(0, sector(1), false));
        assert_eq!([write(), write(), write()], [Ok(()), Ok(()), Err(StoreError::NoSpace)]);
        assert!(now(store.discard(0, 512)).is_ok());
        faults.clear();
        assert_eq!(write(), Ok(()));
    }

    #[test]
    fn a_lying_medium_loses_what_it_called_durable() {
        let (store, faults, model) = faulty();
        faults.add(Rule::new(Operations::SYNC, Action::Lie));
        now(store.write(0, sector(1), false)).unwrap();
        now(store.sync()).unwrap();
        assert_eq!(model.unsynced(), 1);
        assert_eq!(model.durable_bytes(0, 1), Some(vec![0]));
    }

    #[test]
    fn nothing_lands_where_a_write_might_fail() {
        let faults = Faults::new();
        let model = ModelStore::new(1 << 16, 512).landing().unwrap();
        let store = FaultyStore::new(Arc::new(model), faults.clone());
        let lands = |at| store.land(at, 512, &mut |place| place.len()).is_some();
        assert!(store.lands() && lands(0));
        faults.add(Rule::new(Operations::WRITE, Action::Delay(5..6)));
        assert!(lands(0), "a write that is late may have landed before");
        faults.add(Rule::new(Operations::WRITE, Action::Lie).after(100).on(0..512));
        assert!(!lands(0) && lands(512));
        faults.limit_space(Some(1 << 20));
        assert!(!lands(512));
    }
}
