//! Schedule of the pings of a core's connections: one task sends all of them, in few turns of the
//! core's ring, and at a bounded rate.
//!
//! A ping is cheap together with others, and expensive if it wakes a core that sleeps. So time
//! advances in steps of [`STEP`]: all pings that have fallen due since the last step leave in one
//! turn. With very many connections even that would delay active ones. So a step sends [`PER_STEP`]
//! pings at most, to the connections that have been silent longest, and the others wait for the
//! next step. The interval thus grows with the number of silent connections beyond [`PER_SECOND`]
//! times the interval, and so does the time until a dead peer is found. A peer that something waits
//! for is exempt: it is pinged in time, however many others there are.
//!
//! Nothing here reads the clock. A connection does not report received data: when its time comes,
//! the task examines it and moves its time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use invariant::broken;
use runtime::Notify;

use crate::ConnectionId;

/// Step of time.
const STEP: Duration = Duration::from_millis(100);
/// Pings a step at most, of peers that nothing waits for.
const PER_STEP: usize = 10;
/// Pings of a core a second at most, of peers that nothing waits for.
pub const PER_SECOND: u32 = PER_STEP as u32 * 10;
/// Grace before a peer that has not answered a ping is dropped: data that arrives meanwhile still
/// counts as an answer.
const LAST_LISTEN: Duration = Duration::from_millis(10);
/// Upper bound of that grace, if this process was itself late by as long or longer.
const LONGEST_LISTEN: Duration = Duration::from_secs(10);

/// A peer that a core's [`Pinger`] watches.
pub trait Peer {
    /// Time at which it is to be pinged or, if it has been pinged, dropped; `None` if never again.
    fn due(&self) -> Option<Instant>;
    /// Silence after which it is to be pinged.
    fn interval(&self) -> Duration;
    /// Whether a ping is unanswered.
    fn is_pinged(&self) -> bool;
    /// Whether something waits for the peer: commands in flight, or data that it has not received
    /// or acknowledged.
    fn is_awaited(&self) -> bool;
    /// Called when it is due: pings it, or drops it if it was pinged and has been silent since.
    fn time_out(&self, now: Instant);
}

/// State of one peer.
struct Entry {
    peer: Rc<dyn Peer>,
    /// Time at which it is examined next.
    look: Option<Instant>,
    /// Time since which its ping is delayed.
    waiting: Option<Instant>,
    /// The timeout of its ping is over, and its grace runs.
    last: bool,
}

/// The peers of one core.
#[derive(Default)]
struct Pings {
    entries: HashMap<ConnectionId, Entry>,
    /// All peers to examine, by time.
    looks: BTreeSet<(Instant, ConnectionId)>,
    /// Peers whose pings are delayed, the longest silent first.
    waiting: BTreeSet<(Instant, ConnectionId)>,
    /// When the latest step was.
    stepped: Option<Instant>,
    /// Pings that were sent.
    sent: u64,
}

impl Pings {
    /// Adds a peer. Returns whether the time of the next step may have changed.
    fn enter(&mut self, id: ConnectionId, peer: Rc<dyn Peer>) -> bool {
        let Some(look) = peer.due() else { return false };
        let first = self.looks.first().is_none_or(|(first, _)| look < *first);
        self.looks.insert((look, id));
        self.entries.insert(id, Entry { peer, look: Some(look), waiting: None, last: false });
        first
    }

    /// Removes a peer.
    fn leave(&mut self, id: ConnectionId) -> Option<Rc<dyn Peer>> {
        let entry = self.entries.remove(&id)?;
        entry.look.map(|at| self.looks.remove(&(at, id)));
        entry.waiting.map(|since| self.waiting.remove(&(since, id)));
        Some(entry.peer)
    }

    /// Time of the next step; `None` without peers.
    fn next(&self) -> Option<Instant> {
        let first = self.looks.first().map(|(at, _)| *at)?;
        let Some(stepped) = self.stepped else { return Some(first) };
        let soonest = stepped + STEP;
        Some(if self.waiting.is_empty() { first.max(soonest) } else { soonest })
    }

    /// Takes the first peer whose time has come; it is not examined again before
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

    /// Takes the first of the peers with delayed pings.
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

    /// Delays its ping, if it is not delayed yet.
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

    /// Starts the grace of a peer, and returns whether it had started already.
    fn has_listened(&mut self, id: ConnectionId) -> bool {
        self.entries.get_mut(&id).is_some_and(|entry| std::mem::replace(&mut entry.last, true))
    }

    /// Ends everything pending for it until it is due again.
    fn settle(&mut self, id: ConnectionId, peer: &dyn Peer, now: Instant) {
        self.wait_no_more(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.last = false;
        }
        if let Some(due) = peer.due() {
            // A dropped peer is not examined again before it has been removed.
            self.look_again(id, if due > now { due } else { now + STEP });
        }
    }
}

/// One step: examines all peers whose time has come, and sends the pings that are due. Holds no
/// borrow while it calls peers.
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
            // It has answered, or is about to be removed.
            pings.borrow_mut().settle(id, &*peer, now);
            continue;
        };
        if peer.is_pinged() {
            if pings.borrow_mut().has_listened(id) {
                peer.time_out(now);
                pings.borrow_mut().settle(id, &*peer, now);
            } else {
                // This process may have been paused. It read nothing meanwhile, so a missing answer
                // proves nothing yet.
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
    /// Notified when the time of the next step changes.
    moved: Notify,
}

/// A connection that is pinged while this value lives.
pub struct Pinged {
    core: Rc<Pinger>,
    id: ConnectionId,
}

impl Drop for Pinged {
    fn drop(&mut self) {
        let peer = self.core.pings.borrow_mut().leave(self.id);
        // This may be the last reference, whose drop may run more code.
        drop(peer);
    }
}

impl Pinger {
    /// Starts to ping connection `id`, which is on the calling core.
    pub fn enter(self: &Rc<Self>, id: ConnectionId, peer: Rc<dyn Peer>) -> Pinged {
        let moved = self.pings.borrow_mut().enter(id, peer);
        if !self.running.replace(true) {
            runtime::spawn(run(Running(self.clone())));
        } else if moved {
            self.moved.notify();
        }
        Pinged { core: self.clone(), id }
    }

    /// Number of pings that this core has sent, and of delayed ones.
    pub fn counted(&self) -> (u64, usize) {
        let pings = self.pings.borrow();
        (pings.sent, pings.waiting.len())
    }
}

/// The task that pings. Another may start when this one has ended.
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
