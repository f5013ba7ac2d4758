//! How much the connections of a core keep together of what was sent and is not acknowledged (ErrorRecoveryLevel 1 and 2).
//!
//! What is kept lies in the core's pool, where everybody's data comes to. So all of it may take a quarter of the pool, however many
//! initiators acknowledge nothing. Beyond that
//!
//! 1. a connection keeps an equal share at most: its reads wait until its initiator, which is asked, has acknowledged enough. One that
//!    keeps nothing may always begin a burst;
//! 2. who has acknowledged nothing for [`STALE`] has what it keeps given up. Should it ask for any of that by SNACK, it is rejected,
//!    and the command ends with an error, which RFC 7143 allows (§11.4.7.2, §11.17.1 "SNACK Reject");
//! 3. at half of the pool whoever has acknowledged nothing for longest is next, until it is a quarter again.
//!
//! Data of pings and text cannot be given up; a connection that keeps nothing else is given up itself.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use runtime::pool;

use crate::connection::{self, Connection, ConnectionId};

thread_local! {
    static CORE: Core = Core::default();
}

#[derive(Default)]
struct Core {
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
}

/// The part of the pool's bytes that may be kept. As much again is what single bursts and connections that kept more before may take.
const PART: usize = 4;

/// How long nothing may be acknowledged while the core keeps too much: long enough for a slow link, and twice what an initiator that
/// lost a status needs.
pub(crate) const STALE: Duration = Duration::from_secs(4);

/// How often it is looked for them.
const SWEEPS: Duration = Duration::from_millis(100);

/// Bytes that a connection which keeps `own` may keep now.
pub(crate) fn room(own: usize) -> usize {
    CORE.with(|core| {
        let bound = pool::stats().limit / PART;
        let share = bound / core.keepers.get().max(1);
        match bound.checked_sub(core.kept.get()) {
            Some(free) if free > 0 => (own + free).max(share),
            _ => {
                core.waiting.set(true);
                share
            }
        }
    })
}

/// A connection keeps `now` bytes, and kept `counted` when it said so last.
pub(crate) fn account(counted: &Cell<usize>, now: usize) {
    let before = counted.replace(now);
    if before == now {
        return;
    }
    // When the thread ends there is nobody left to tell.
    let _ = CORE.try_with(|core| {
        let kept = core.kept.get() - before + now;
        core.kept.set(kept);
        match (before, now) {
            (0, _) => core.keepers.set(core.keepers.get() + 1),
            (_, 0) => core.keepers.set(core.keepers.get() - 1),
            _ => {}
        }
        let limit = pool::stats().limit;
        let over = kept > limit / PART;
        if over && now > before && !core.sweeping.get() {
            let due = || core.swept.get().is_none_or(|at| runtime::now() - at >= SWEEPS);
            if kept > limit / PART * 2 || due() {
                core.sweeping.set(true);
                runtime::spawn(async move { sweep() });
            }
        }
        if !over && core.waiting.replace(false) {
            runtime::spawn(async move {
                for connection in connection::locals() {
                    connection.more_room();
                }
            });
        }
    });
}

/// Bytes that this core keeps, and how often a connection's were given up.
pub(crate) fn figures() -> (usize, u64) {
    CORE.with(|core| (core.kept.get(), core.given_up.get()))
}

/// Gives up what those keep that have acknowledged nothing for long, the longest first, as far as it is too much.
fn sweep() {
    let limit = pool::stats().limit;
    let now = runtime::now();
    let kept = || CORE.with(|core| core.kept.get());
    let hard = kept() > limit / PART * 2;
    let mut keepers: Vec<(Instant, ConnectionId, Rc<Connection>)> = connection::locals()
        .into_iter()
        .filter_map(|connection| Some((connection.kept_since()?, connection.id, connection)))
        .collect();
    keepers.sort_by_key(|(since, id, _)| (*since, id.0));
    for (since, id, connection) in keepers {
        if kept() <= limit / PART || !hard && now.saturating_duration_since(since) < STALE {
            break;
        }
        tracing::debug!(connection = id.0, "what its initiator does not acknowledge is given up");
        connection.give_up_kept(now);
        CORE.with(|core| core.given_up.set(core.given_up.get() + 1));
    }
    CORE.with(|core| {
        core.sweeping.set(false);
        core.swept.set(Some(now));
    });
}
