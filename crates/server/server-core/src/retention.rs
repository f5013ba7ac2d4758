//! How much the connections of a core keep together of what was sent and is not acknowledged
//! (iSCSI: ErrorRecoveryLevel 1 and 2).
//!
//! What is kept lies in the core's pool, where everybody's data comes to. So all of it may take a
//! quarter of the pool, however many initiators acknowledge nothing. Beyond that
//!
//! 1. a connection keeps an equal share at most: its reads wait until its initiator, which is
//!    asked, has acknowledged enough. One that keeps nothing may always begin a burst;
//! 2. who has acknowledged nothing for [`STALE`] has what it keeps given up. Should it ask for any
//!    of that by SNACK, it is rejected, and the command ends with an error, which RFC 7143 allows
//!    (§11.4.7.2, §11.17.1 "SNACK Reject");
//! 3. at half of the pool whoever has acknowledged nothing for longest is next, until it is a
//!    quarter again.
//!
//! Data of pings and text cannot be given up; a connection that keeps nothing else is given up
//! itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use runtime::pool;

use crate::ConnectionId;

/// A connection that keeps what it has sent.
pub trait Keeper {
    /// Since when nothing of what it keeps has been acknowledged. `None`: it keeps nothing.
    fn kept_since(&self) -> Option<Instant>;
    /// Gives up what is kept, or itself if that cannot be.
    fn give_up_kept(self: Rc<Self>, now: Instant);
    /// The core has more room for what is to be acknowledged.
    fn more_room(self: Rc<Self>);
}

/// What one core keeps.
#[derive(Default)]
pub struct Retention {
    /// Bytes kept.
    kept: Cell<usize>,
    /// Connections that keep something.
    keepers: Cell<usize>,
    /// Connections wait for room.
    waiting: Cell<bool>,
    /// Looking for those that have acknowledged nothing is under way, or was at this time.
    sweeping: Cell<bool>,
    swept: Cell<Option<Instant>>,
    given_up: Cell<u64>,
    /// All that may keep something.
    members: RefCell<BTreeMap<ConnectionId, Weak<dyn Keeper>>>,
}

/// One connection's part.
pub struct Kept {
    core: Rc<Retention>,
    id: ConnectionId,
    bytes: Cell<usize>,
}

/// The part of the pool's bytes that may be kept. As much again is what single bursts and
/// connections that kept more before may take.
const PART: usize = 4;

/// How long nothing may be acknowledged while the core keeps too much: long enough for a slow link,
/// and twice what an initiator that lost a status needs.
pub const STALE: Duration = Duration::from_secs(4);

/// How often it is looked for them.
const SWEEPS: Duration = Duration::from_millis(100);

impl Kept {
    /// The part of connection `id`, which keeps nothing yet.
    pub fn new(core: Rc<Retention>, id: ConnectionId) -> Self {
        Self { core, id, bytes: Cell::new(0) }
    }

    /// From now on the connection may keep something.
    pub fn enter(&self, keeper: Weak<dyn Keeper>) {
        self.core.members.borrow_mut().insert(self.id, keeper);
    }

    /// Bytes that it keeps, as the core counts them.
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

    /// It keeps `now` bytes.
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
        if !over && self.waiting.replace(false) {
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

    /// Bytes that this core keeps, and how often a connection's were given up.
    pub fn figures(&self) -> (usize, u64) {
        (self.kept.get(), self.given_up.get())
    }

    /// Gives up what those keep that have acknowledged nothing for long, the longest first, as far
    /// as it is too much.
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
