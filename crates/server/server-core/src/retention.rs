//! Bound on the data that the connections of a core keep because the initiator has not acknowledged
//! it (iSCSI: ErrorRecoveryLevel 1 and 2).
//!
//! Kept data lies in the core's pool, which also takes the incoming data of all connections. So
//! together it may take a quarter of the pool, however many initiators acknowledge nothing. Beyond
//! that
//!
//! 1. a connection keeps an equal share at most: its reads wait until its initiator, which is
//!    asked, has acknowledged enough. A connection that keeps nothing may always begin a burst;
//! 2. the server discards the kept data of a connection that has acknowledged nothing for
//!    [`STALE`]. If the initiator requests any of it by SNACK, the server rejects the SNACK and
//!    ends the command with an error, which RFC 7143 allows (§11.4.7.2, §11.17.1 "SNACK Reject");
//! 3. at half of the pool, the server discards the data of the connection that has acknowledged
//!    nothing for longest, and goes on until a quarter of the pool is kept.
//!
//! Data of pings and text cannot be discarded; a connection that keeps nothing else is dropped.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use runtime::pool;

use crate::ConnectionId;

/// A connection that keeps sent data until it is acknowledged.
pub trait Keeper {
    /// Time since which nothing of its kept data has been acknowledged. `None`: it keeps nothing.
    fn kept_since(&self) -> Option<Instant>;
    /// Discards the kept data, or drops the connection if that is impossible.
    fn give_up_kept(self: Rc<Self>, now: Instant);
    /// Called when the core has more room for unacknowledged data.
    fn more_room(self: Rc<Self>);
}

/// Data that the connections of one core keep.
#[derive(Default)]
pub struct Retention {
    /// Bytes kept.
    kept: Cell<usize>,
    /// Connections that keep something.
    keepers: Cell<usize>,
    /// Connections wait for room.
    waiting: Cell<bool>,
    /// A sweep for connections that have acknowledged nothing is in progress; `swept` is the time
    /// of the last.
    sweeping: Cell<bool>,
    swept: Cell<Option<Instant>>,
    given_up: Cell<u64>,
    /// All connections that may keep data.
    members: RefCell<BTreeMap<ConnectionId, Weak<dyn Keeper>>>,
}

/// One connection's share.
pub struct Kept {
    core: Rc<Retention>,
    id: ConnectionId,
    bytes: Cell<usize>,
}

/// Divisor: the connections may keep the pool's bytes divided by this. Single bursts, and
/// connections that kept more before, may take as much again.
const PART: usize = 4;

/// Time without an acknowledgement after which data is discarded while the core keeps too much:
/// long enough for a slow link, and twice the time that an initiator needs to recover a lost
/// status.
pub const STALE: Duration = Duration::from_secs(4);

/// Interval of the sweeps for them.
const SWEEPS: Duration = Duration::from_millis(100);

impl Kept {
    /// The share of connection `id`, which keeps nothing yet.
    pub fn new(core: Rc<Retention>, id: ConnectionId) -> Self {
        Self { core, id, bytes: Cell::new(0) }
    }

    /// Registers the connection, which may keep data from now on.
    pub fn enter(&self, keeper: Weak<dyn Keeper>) {
        self.core.members.borrow_mut().insert(self.id, keeper);
    }

    /// Bytes that it keeps, as counted by the core.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Bytes that it may keep now, if it keeps `own`.
    pub fn room(&self, own: usize) -> usize {
        let core = &*self.core;
        let bound = pool::stats().limit / PART;
        let share = bound / core.keepers.get().max(1);
        match bound.checked_sub(core.kept.get()) {
            Some(free) if free > 0 => (own + free).max(share),
            _ => {
                core.waiting.set(true);
                share
            }
        }
    }

    /// Sets the number of bytes that it keeps.
    pub fn account(&self, now: usize) {
        let before = self.bytes.replace(now);
        if before != now {
            self.core.account(before, now);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.core.members.borrow_mut().remove(&self.id);
        // A connection that ended by a panic has forgotten nothing.
        self.account(0);
    }
}

impl Retention {
    fn account(self: &Rc<Self>, before: usize, now: usize) {
        let kept = self.kept.get() - before + now;
        self.kept.set(kept);
        match (before, now) {
            (0, _) => self.keepers.set(self.keepers.get() + 1),
            (_, 0) => self.keepers.set(self.keepers.get() - 1),
            _ => {}
        }
        let limit = pool::stats().limit;
        let over = kept > limit / PART;
        if over && now > before && !self.sweeping.get() {
            let due = || self.swept.get().is_none_or(|at| runtime::now() - at >= SWEEPS);
            if kept > limit / PART * 2 || due() {
                self.sweeping.set(true);
                let core = self.clone();
                runtime::spawn(async move { core.sweep() });
            }
        }
        // A share may be dropped after its runtime: then nobody waits.
        if !over && self.waiting.get() && runtime::is_running() {
            self.waiting.set(false);
            let core = self.clone();
            runtime::spawn(async move {
                core.members().into_iter().for_each(|(_, keeper)| keeper.more_room());
            });
        }
    }

    fn members(&self) -> Vec<(ConnectionId, Rc<dyn Keeper>)> {
        let members = self.members.borrow();
        members.iter().filter_map(|(id, keeper)| Some((*id, keeper.upgrade()?))).collect()
    }

    /// Bytes that this core keeps, and the number of times that a connection's kept data was
    /// discarded.
    pub fn figures(&self) -> (usize, u64) {
        (self.kept.get(), self.given_up.get())
    }

    /// Discards kept data of connections that have acknowledged nothing for [`STALE`], the longest
    /// first, until the core keeps no more than its bound.
    fn sweep(&self) {
        let limit = pool::stats().limit;
        let now = runtime::now();
        let hard = self.kept.get() > limit / PART * 2;
        let mut keepers: Vec<_> = self
            .members()
            .into_iter()
            .filter_map(|(id, keeper)| Some((keeper.kept_since()?, id, keeper)))
            .collect();
        keepers.sort_by_key(|(since, id, _)| (*since, *id));
        for (since, id, keeper) in keepers {
            let too_much = self.kept.get() > limit / PART;
            if !too_much || !hard && now.saturating_duration_since(since) < STALE {
                break;
            }
            tracing::debug!(connection = id.0, "what its client does not acknowledge is given up");
            keeper.give_up_kept(now);
            self.given_up.set(self.given_up.get() + 1);
        }
        self.sweeping.set(false);
        self.swept.set(Some(now));
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Config, Runtime};

    use super::*;

    /// A connection that notes that there is more room.
    #[derive(Default)]
    struct Waiting(Cell<bool>);

    impl Keeper for Waiting {
        fn kept_since(&self) -> Option<Instant> {
            None
        }

        fn give_up_kept(self: Rc<Self>, _: Instant) {}

        fn more_room(self: Rc<Self>) {
            self.0.set(true);
        }
    }

    #[test]
    fn a_connection_that_ends_by_a_panic_gives_back_what_it_kept() {
        Runtime::new(Config { pool_bytes: 16 << 20, ..Config::default() }).unwrap().block_on(async {
            let (core, bound) = (Rc::<Retention>::default(), pool::stats().limit / PART);
            let lost = Kept::new(core.clone(), ConnectionId(1));
            lost.account(bound);
            let other = Kept::new(core.clone(), ConnectionId(2));
            let waiting = Rc::new(Waiting::default());
            let keeper: Weak<dyn Keeper> = Rc::<Waiting>::downgrade(&waiting);
            other.enter(keeper);
            other.room(0);
            assert!(core.waiting.get(), "the core keeps as much as it may");
            drop(lost);
            assert_eq!((core.figures().0, core.keepers.get()), (0, 0));
            runtime::yield_now().await;
            assert!(waiting.0.get(), "who waited hears of the room");
        });
    }
}
