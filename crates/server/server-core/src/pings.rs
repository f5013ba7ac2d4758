//! When which connections of a core are pinged: all by one task, in few turns of the core's ring,
//! and never more than so many a second.
//!
//! A ping is cheap where it goes together with others, and dear where it wakes a core that sleeps.
//! So time is looked at in steps of [`STEP`]: all pings that have fallen due since the last one
//! leave in one turn. With very many connections even that would take from those that work: a step
//! sends [`PER_STEP`] pings at most, to those that have been silent longest, and the others wait
//! for the next. So the interval grows with the number of silent connections beyond [`PER_SECOND`]
//! times the interval, and so does the time until a dead peer is found. None of that is for a peer
//! that something waits for: it is asked in time, however many others there are.
//!
//! Nothing here reads the clock. A connection that is heard is not told of: when its time comes it
//! is looked at, and its time moved.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use invariant::broken;
use runtime::Notify;

use crate::ConnectionId;

/// Steps in which time is looked at.
const STEP: Duration = Duration::from_millis(100);
/// Pings a step at most, of peers that nothing waits for.
const PER_STEP: usize = 10;
/// Pings of a core a second at most, of peers that nothing waits for.
pub const PER_SECOND: u32 = PER_STEP as u32 * 10;
/// How long is listened once more before a peer is given up that has not answered a ping: what has
/// come meanwhile is taken.
const LAST_LISTEN: Duration = Duration::from_millis(10);
/// The same, where this side was late itself by as long or longer.
const LONGEST_LISTEN: Duration = Duration::from_secs(10);

/// One whom somebody pings.
pub trait Peer {
    /// When it is to be pinged, or, if it has been, given up; `None` if never any more.
    fn due(&self) -> Option<Instant>;
    /// The silence after which it is to be pinged.
    fn interval(&self) -> Duration;
    /// Whether a ping waits for its answer.
    fn is_pinged(&self) -> bool;
    /// Whether something waits for it: commands under way, or what it has not taken or
    /// acknowledged.
    fn is_awaited(&self) -> bool;
    /// It is due: pings it, or gives it up if it was pinged and nothing was heard since.
    fn time_out(&self, now: Instant);
}

/// What is known of one peer.
struct Entry {
    peer: Rc<dyn Peer>,
    /// When it is looked at next.
    look: Option<Instant>,
    /// Since when its ping waits for its turn.
    waiting: Option<Instant>,
    /// Its time for an answer is over, and it is listened to once more.
    last: bool,
}

/// The peers of one core.
#[derive(Default)]
struct Pings {
    entries: HashMap<ConnectionId, Entry>,
    /// All that are looked at, by when.
    looks: BTreeSet<(Instant, ConnectionId)>,
    /// Those whose pings wait for their turn, the longest silent first.
    waiting: BTreeSet<(Instant, ConnectionId)>,
    /// When the latest step was.
    stepped: Option<Instant>,
    /// Pings that were sent.
    sent: u64,
}

impl Pings {
    /// A peer comes. Whether the time of the next step may have changed.
    fn enter(&mut self, id: ConnectionId, peer: Rc<dyn Peer>) -> bool {
        let Some(look) = peer.due() else { return false };
        let first = self.looks.first().is_none_or(|(first, _)| look < *first);
        self.looks.insert((look, id));
        self.entries.insert(id, Entry { peer, look: Some(look), waiting: None, last: false });
        first
    }

    /// A peer goes.
    fn leave(&mut self, id: ConnectionId) -> Option<Rc<dyn Peer>> {
        let entry = self.entries.remove(&id)?;
        entry.look.map(|at| self.looks.remove(&(at, id)));
        entry.waiting.map(|since| self.waiting.remove(&(since, id)));
        Some(entry.peer)
    }

    /// When the next step is; `None` while there is nobody.
    fn next(&self) -> Option<Instant> {
        let first = self.looks.first().map(|(at, _)| *at)?;
        let Some(stepped) = self.stepped else { return Some(first) };
        let soonest = stepped + STEP;
        Some(if self.waiting.is_empty() { first.max(soonest) } else { soonest })
    }

    /// The first that is to be looked at by now; it is not looked at again until
    /// [`Self::look_again`].
    fn take_due(&mut self, now: Instant) -> Option<(ConnectionId, Rc<dyn Peer>)> {
        let &(at, id) = self.looks.first().filter(|(at, _)| *at <= now)?;
        self.looks.remove(&(at, id));
        let Some(entry) = self.entries.get_mut(&id) else {
            broken!("a look at connection {}, which has left", id.0);
            return None;
        };
        entry.look = None;
        Some((id, entry.peer.clone()))
    }

    /// The first of those that wait for their turn.
    fn take_waiting(&mut self) -> Option<(ConnectionId, Rc<dyn Peer>)> {
        let (_, id) = self.waiting.pop_first()?;
        let Some(entry) = self.entries.get_mut(&id) else {
            broken!("a ping of connection {}, which has left", id.0);
            return None;
        };
        entry.waiting = None;
        Some((id, entry.peer.clone()))
    }

    fn look_again(&mut self, id: ConnectionId, at: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(before) = entry.look.replace(at) {
            self.looks.remove(&(before, id));
        }
        self.looks.insert((at, id));
    }

    /// Its ping waits for its turn, if it does not yet.
    fn wait(&mut self, id: ConnectionId, since: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.waiting.is_none() {
            entry.waiting = Some(since);
            self.waiting.insert((since, id));
        }
    }

    fn wait_no_more(&mut self, id: ConnectionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(since) = entry.waiting.take() {
            self.waiting.remove(&(since, id));
        }
    }

    /// Whether it has been listened to once more; from now on it has.
    fn has_listened(&mut self, id: ConnectionId) -> bool {
        self.entries.get_mut(&id).is_some_and(|entry| std::mem::replace(&mut entry.last, true))
    }

    /// Nothing is open with it until it is due again.
    fn settle(&mut self, id: ConnectionId, peer: &dyn Peer, now: Instant) {
        self.wait_no_more(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.last = false;
        }
        if let Some(due) = peer.due() {
            // What was given up is not looked at again before it has gone.
            self.look_again(id, if due > now { due } else { now + STEP });
        }
    }
}

/// One step: looks at all peers whose time has come, and sends what may be sent. Nothing is
/// borrowed while peers are called.
fn step(pings: &RefCell<Pings>, now: Instant) {
    pings.borrow_mut().stepped = Some(now);
    let ping = |id, peer: &dyn Peer| {
        peer.time_out(now);
        let pings = &mut *pings.borrow_mut();
        pings.sent += 1;
        pings.settle(id, peer, now);
    };
    loop {
        let due = pings.borrow_mut().take_due(now);
        let Some((id, peer)) = due else { break };
        let Some(at) = peer.due().filter(|at| *at <= now) else {
            // It was heard, or is as good as gone.
            pings.borrow_mut().settle(id, &*peer, now);
            continue;
        };
        if peer.is_pinged() {
            if pings.borrow_mut().has_listened(id) {
                peer.time_out(now);
                pings.borrow_mut().settle(id, &*peer, now);
            } else {
                // This side may have stood still, and its peer with it: nobody was heard in that
                // time, whoever spoke.
                let late = now.saturating_duration_since(at);
                pings.borrow_mut().look_again(id, now + late.clamp(LAST_LISTEN, LONGEST_LISTEN));
            }
        } else if peer.is_awaited() {
            ping(id, &*peer);
        } else {
            let pings = &mut *pings.borrow_mut();
            pings.wait(id, at);
            // Something may wait for it by then.
            pings.look_again(id, now + peer.interval());
        }
    }
    let mut left = PER_STEP;
    while left > 0 {
        let first = pings.borrow_mut().take_waiting();
        let Some((id, peer)) = first else { break };
        if peer.due().is_some_and(|at| at <= now) && !peer.is_pinged() {
            ping(id, &*peer);
            left -= 1;
        } else {
            pings.borrow_mut().settle(id, &*peer, now);
        }
    }
}

/// Pings the connections of one core.
#[derive(Default)]
pub struct Pinger {
    pings: RefCell<Pings>,
    /// Whether the task that pings them runs.
    running: Cell<bool>,
    /// The next step is at another time.
    moved: Notify,
}

/// A connection that is pinged for as long as this is kept.
pub struct Pinged {
    core: Rc<Pinger>,
    id: ConnectionId,
}

impl Drop for Pinged {
    fn drop(&mut self) {
        let peer = self.core.pings.borrow_mut().leave(self.id);
        // It may be the last that has it, and has more to drop than this.
        drop(peer);
    }
}

impl Pinger {
    /// Has connection `id`, of the core on which this is called, pinged.
    pub fn enter(self: &Rc<Self>, id: ConnectionId, peer: Rc<dyn Peer>) -> Pinged {
        let moved = self.pings.borrow_mut().enter(id, peer);
        if !self.running.replace(true) {
            runtime::spawn(run(Running(self.clone())));
        } else if moved {
            self.moved.notify();
        }
        Pinged { core: self.clone(), id }
    }

    /// Pings that this core has sent, and how many wait for their turn.
    pub fn counted(&self) -> (u64, usize) {
        let pings = self.pings.borrow();
        (pings.sent, pings.waiting.len())
    }
}

/// The task that pings: another may run when it has ended.
struct Running(Rc<Pinger>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.set(false);
    }
}

/// Pings the connections of this core.
async fn run(running: Running) {
    let core = &*running.0;
    let next = || core.pings.borrow().next();
    loop {
        let at = next();
        let moved = core.moved.until(|| (next() != at).then_some(()));
        match at {
            None => moved.await,
            Some(at) => {
                let time = at.saturating_duration_since(runtime::now());
                if runtime::timeout(time, moved).await.is_err() {
                    step(&core.pings, runtime::now());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
