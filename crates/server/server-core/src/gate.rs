//! Commands of one connection that wait for their time under a limit of service. Other commands
//! pass them: a unit's limit delays that unit's commands only. The front end bounds the number of
//! waiting commands.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use invariant::broken;
use runtime::Notify;

use crate::qos::{Cost, Limiter};

/// The commands that wait.
pub struct Gate<C> {
    /// Whether any limit applies to the connection. Without one, commands pay only for this flag.
    closed: Cell<bool>,
    waiting: RefCell<BinaryHeap<Reverse<Waiting<C>>>>,
    count: Cell<u64>,
    /// A task runs [`Gate::watch`].
    watched: Cell<bool>,
    /// Notified when the first of them changes, or none is left.
    changed: Notify,
}

struct Waiting<C> {
    since: Instant,
    until: Instant,
    /// In order of arrival.
    number: u64,
    command: C,
    cost: Cost,
    limiters: [Option<Arc<Limiter>>; 2],
}

impl<C> Waiting<C> {
    fn rank(&self) -> (Instant, u64) {
        (self.until, self.number)
    }

    fn refund(&self) {
        self.limiters.iter().flatten().for_each(|limiter| limiter.refund(self.cost));
    }
}

impl<C> PartialEq for Waiting<C> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<C> Eq for Waiting<C> {}

impl<C> PartialOrd for Waiting<C> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<C> Ord for Waiting<C> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// Outcome of [`Gate::pass`].
#[derive(Debug, PartialEq, Eq)]
pub enum Passage<C> {
    /// The command may run now.
    Now(C),
    /// The gate keeps it, and [`Gate::watch`] runs already.
    Kept,
    /// The gate keeps it, and the caller must run [`Gate::watch`].
    KeptAlone,
}

impl<C> Default for Gate<C> {
    fn default() -> Self {
        Self {
            closed: Cell::default(),
            waiting: RefCell::default(),
            count: Cell::default(),
            watched: Cell::default(),
            changed: Notify::default(),
        }
    }
}

impl<C> Gate<C> {
    /// Sets whether any limit applies.
    pub fn set_closed(&self, closed: bool) {
        self.closed.set(closed);
    }

    /// Whether any limit applies.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Charges a command, and keeps it until its time. `is_like` returns whether a waiting command
    /// is for the same unit.
    #[cold]
    pub fn pass(
        &self,
        command: C,
        cost: Cost,
        limiters: [&Arc<Limiter>; 2],
        now: Instant,
        is_like: impl Fn(&C) -> bool,
    ) -> Passage<C> {
        let limiters = limiters.map(|limiter| limiter.is_active().then(|| limiter.clone()));
        let charged = limiters.iter().flatten().map(|limiter| limiter.charge(cost, now)).max();
        let last = || {
            let waiting = self.waiting.borrow();
            let like = waiting.iter().filter(|Reverse(one)| is_like(&one.command));
            like.map(|Reverse(one)| one.until).max()
        };
        // If a limit was lifted a moment ago, earlier commands for the same unit still wait here,
        // and go first.
        let until = if charged.is_none() { last() } else { charged };
        let Some(until) = until.filter(|until| *until > now) else { return Passage::Now(command) };
        let number = self.count.get();
        self.count.set(number.wrapping_add(1));
        self.waiting.borrow_mut().push(Reverse(Waiting {
            since: now,
            until,
            number,
            command,
            cost,
            limiters,
        }));
        if self.watched.replace(true) {
            self.changed.notify();
            return Passage::Kept;
        }
        Passage::KeptAlone
    }

    /// Removes the commands for which `is` returns true, and refunds their charges. False if none
    /// waits here.
    pub fn remove(&self, is: impl Fn(&C) -> bool) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|Reverse(one)| {
            let goes = is(&one.command);
            if goes {
                one.refund();
            }
            !goes
        });
        self.changed.notify();
        waiting.len() < before
    }

    /// Keeps the waiting commands that `stays` returns, and refunds the others.
    pub fn retain(&self, mut stays: impl FnMut(C) -> Option<C>) {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        let kept = all.into_iter().filter_map(|Reverse(one)| {
            let Waiting { command, cost, limiters, .. } = one;
            match stays(command) {
                Some(command) => Some(Reverse(Waiting { command, cost, limiters, ..one })),
                None => {
                    limiters.iter().flatten().for_each(|limiter| limiter.refund(cost));
                    None
                }
            }
        });
        let kept = kept.collect();
        *self.waiting.borrow_mut() = kept;
        self.changed.notify();
    }

    /// Calls `f` with each waiting command.
    pub fn each(&self, mut f: impl FnMut(&C)) {
        self.waiting.borrow().iter().for_each(|Reverse(one)| f(&one.command));
    }

    /// Takes all waiting commands, in order of arrival, to be charged again: the accounts have
    /// begun anew.
    pub fn take_all(&self) -> Vec<C> {
        let mut waiting = std::mem::take(&mut *self.waiting.borrow_mut()).into_vec();
        waiting.sort_by_key(|Reverse(one)| one.number);
        self.changed.notify();
        waiting.into_iter().map(|Reverse(one)| one.command).collect()
    }

    /// Passes commands to `go` when their time has come, with the time that they have waited, until
    /// none waits.
    pub async fn watch(&self, mut go: impl FnMut(C, Duration)) {
        loop {
            let first = self.waiting.borrow().peek().map(|Reverse(first)| first.until);
            let Some(until) = first else { break };
            if until > runtime::now() {
                // Another command may come before it, or it may be removed.
                let moved = || {
                    let waiting = self.waiting.borrow();
                    waiting.peek().is_none_or(|Reverse(first)| first.until != until).then_some(())
                };
                let time = until.saturating_duration_since(runtime::now());
                let _ = runtime::timeout(time, self.changed.until(moved)).await;
                continue;
            }
            let due = self.waiting.borrow_mut().pop();
            match due {
                Some(Reverse(due)) => {
                    let waited = runtime::now().saturating_duration_since(due.since);
                    go(due.command, waited);
                }
                None => broken!("a command that is due does not wait"),
            }
        }
        self.watched.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{QosLimits, Rates};

    #[test]
    fn a_command_that_leaves_the_gate_makes_room_for_the_next() {
        let total = |rate| Rates { total: Some(rate), ..Rates::default() };
        let limits = QosLimits { iops: total(1), burst: Duration::ZERO, ..QosLimits::default() };
        let (limited, free) = (Arc::new(Limiter::new(limits)), Arc::new(Limiter::default()));
        let (gate, now) = (Gate::default(), runtime::clock());
        let pass = |name: &'static str| {
            gate.pass(name, Cost { writes: false, bytes: 512 }, [&limited, &free], now, |_| true)
        };
        assert_eq!(pass("a"), Passage::Now("a"));
        assert_eq!((pass("b"), pass("c")), (Passage::KeptAlone, Passage::Kept));
        assert!(gate.remove(|name| *name == "b") && !gate.remove(|name| *name == "b"));
        assert_eq!(pass("d"), Passage::Kept);
        assert_eq!(gate.take_all(), ["c", "d"]);
        limited.set(QosLimits::default());
        assert_eq!(pass("e"), Passage::Now("e"), "nobody waits before it");
    }
}
