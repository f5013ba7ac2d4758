//! [`Oracle`]: locks, opens and delegations that clients hold, and their consequences for others.
//!
//! Each hold has two periods. It is *sure* from the answer that granted it until its release is
//! sent, its lease may have ended, or a restarted server need not wait for it any more: in that
//! period no other owner gets a conflicting hold. It *may* be held from the request until the
//! answer to its release, or until the server that granted it has forgotten it: a request is denied
//! only because of such a hold.

use std::time::{Duration, Instant};

/// A process of a client: an open owner and a lock owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) client: usize,
    pub(super) lane: usize,
}

/// Object of a hold. Files and cells are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The lock of a cell.
    Lock { file: usize, cell: usize, write: bool },
    /// An open: bits of reading and writing.
    Share { file: usize, access: u32, deny: u32 },
    /// A read delegation.
    Delegation { file: usize },
}

/// Bit of writing in the access of an open.
pub(super) const WRITE: u32 = 2;

/// Number of a hold that was requested.
pub(super) type HoldId = usize;

struct Hold {
    owner: Owner,
    what: What,
    /// The start of the server that granted it last.
    start: u64,
    /// Time of the request.
    asked: Instant,
    /// Time since which it is surely held.
    sure: Option<Instant>,
    /// Time since which it is not surely held any more, whatever the lease.
    given_up: Option<Instant>,
    /// Time since which it may not be held any more.
    gone: Option<Instant>,
    /// Time of the first request that conflicts with this delegation.
    recalled: Option<Instant>,
}

struct Leased {
    /// Time until which the lease is at least valid.
    valid: Instant,
    /// Time of the end of the last request.
    heard: Instant,
    /// Requests without an answer.
    outstanding: usize,
}

/// Longest time that a request travels: a client's lease may begin so long after its last request.
const WAY: Duration = Duration::from_secs(30);

pub(super) struct Oracle {
    lease: Duration,
    clients: Vec<Leased>,
    holds: Vec<Hold>,
    /// Starts of the server.
    start: u64,
    /// Time of the last start, unless the server is down.
    started: Option<Instant>,
    /// Denials.
    pub(super) denied: u64,
    /// Reclaimed holds.
    pub(super) reclaimed: u64,
}

impl What {
    /// Whether two owners cannot hold both.
    fn conflicts(&self, own: Owner, other: &What, others: Owner) -> bool {
        match (*self, *other) {
            (
                What::Lock { file, cell, write },
                What::Lock { file: other_file, cell: other_cell, write: other_writes },
            ) => file == other_file && cell == other_cell && (write || other_writes) && own != others,
            (
                What::Share { file, access, deny },
                What::Share { file: other_file, access: other_access, deny: other_deny },
            ) => {
                file == other_file && (access & other_deny != 0 || other_access & deny != 0) && own != others
            }
            (What::Share { file, access, .. }, What::Delegation { file: other_file })
            | (What::Delegation { file: other_file }, What::Share { file, access, .. }) => {
                file == other_file && access & WRITE != 0 && own.client != others.client
            }
            _ => false,
        }
    }
}

impl Oracle {
    pub(super) fn new(clients: usize, lease: Duration) -> Self {
        let now = runtime::clock();
        let clients = (0..clients).map(|_| Leased { valid: now, heard: now, outstanding: 0 }).collect();
        Self { lease, clients, holds: Vec::new(), start: 0, started: Some(now), denied: 0, reclaimed: 0 }
    }

    /// The starts of the server so far.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// A client sends a request.
    pub(super) fn sent(&mut self, client: usize) {
        self.clients[client].outstanding += 1;
    }

    /// A request was answered, or forgotten.
    pub(super) fn ended(&mut self, client: usize) {
        self.clients[client].outstanding -= 1;
        self.clients[client].heard = runtime::clock();
    }

    /// A request that was sent then has renewed the lease.
    pub(super) fn renewed(&mut self, client: usize, sent: Instant) {
        let lease = &mut self.clients[client];
        lease.valid = lease.valid.max(sent + self.lease);
    }

    /// Whether the server must know a session that one of its starts made.
    pub(super) fn must_know(&self, client: usize, start: u64) -> bool {
        self.started.is_some() && start == self.start && self.clients[client].valid >= runtime::clock()
    }

    /// Time until which the hold, which is sure, stays sure.
    fn sure_until(&self, hold: &Hold) -> Instant {
        let far = runtime::clock() + 100 * self.lease;
        let bound = match self.started {
            _ if hold.start == self.start => self.clients[hold.owner.client].valid,
            // The next start waits for it as well.
            None => far,
            Some(started) => started + self.lease,
        };
        let revoked = hold.recalled.map_or(far, |recalled| recalled + self.lease);
        bound.min(revoked).min(hold.given_up.unwrap_or(far))
    }

    fn is_sure(&self, hold: &Hold, since: Instant) -> bool {
        hold.sure.is_some_and(|sure| sure <= since) && self.sure_until(hold) >= runtime::clock()
    }

    /// Time until which it may be held: an expired lease ends it.
    fn may_until(&self, hold: &Hold) -> Instant {
        let lease = &self.clients[hold.owner.client];
        let now = runtime::clock();
        let heard = if lease.outstanding > 0 { now } else { lease.heard };
        hold.gone.unwrap_or(now).min(heard + WAY + self.lease)
    }

    /// An owner requests a hold.
    pub(super) fn ask(&mut self, owner: Owner, what: What) -> HoldId {
        let now = runtime::clock();
        for hold in &mut self.holds {
            if matches!(hold.what, What::Delegation { .. }) && what.conflicts(owner, &hold.what, hold.owner) {
                hold.recalled.get_or_insert(now);
            }
        }
        self.holds.push(Hold {
            owner,
            what,
            start: self.start,
            asked: now,
            sure: None,
            given_up: None,
            gone: None,
            recalled: None,
        });
        self.holds.len() - 1
    }

    /// The hold was granted.
    ///
    /// # Errors
    /// Another owner held a conflicting one, all the time.
    pub(super) fn granted(&mut self, id: HoldId) -> Result<(), String> {
        let (now, own) = (runtime::clock(), &self.holds[id]);
        let conflicting = self.holds.iter().find(|other| {
            own.what.conflicts(own.owner, &other.what, other.owner) && self.is_sure(other, own.asked)
        });
        if let Some(other) = conflicting {
            return Err(format!(
                "{:?} got {:?}, while {:?} held {:?}",
                own.owner, own.what, other.owner, other.what
            ));
        }
        self.holds[id].sure.get_or_insert(now);
        Ok(())
    }

    /// The server denied all of `ids`. Another owner must possibly have held something that
    /// conflicts with one of them.
    ///
    /// # Errors
    /// No other owner can have held such.
    pub(super) fn denied(&mut self, ids: &[HoldId]) -> Result<(), String> {
        self.denied += 1;
        ids.iter().for_each(|id| self.gone(*id));
        let because = |id: &HoldId| {
            let own = &self.holds[*id];
            self.holds.iter().any(|other| {
                own.what.conflicts(own.owner, &other.what, other.owner) && self.may_until(other) >= own.asked
            })
        };
        if ids.iter().any(because) {
            return Ok(());
        }
        let what: Vec<_> = ids.iter().map(|id| (self.holds[*id].owner, self.holds[*id].what)).collect();
        Err(format!("{what:?} was denied, and nobody has what conflicts"))
    }

    /// The hold's release is sent, or its owner does not know any more whether it has it.
    pub(super) fn give_up(&mut self, id: HoldId) {
        self.holds[id].given_up.get_or_insert(runtime::clock());
    }

    /// The hold's release was answered, or the request was refused.
    pub(super) fn gone(&mut self, id: HoldId) {
        self.give_up(id);
        self.holds[id].gone.get_or_insert(runtime::clock());
    }

    /// The server knows the client as a new one: it has lost its holds, except those that it may
    /// reclaim.
    pub(super) fn is_new(&mut self, client: usize) {
        let now = runtime::clock();
        let start = self.start;
        for hold in self.holds.iter_mut().filter(|it| it.owner.client == client) {
            hold.gone.get_or_insert(now);
            if hold.start == start {
                hold.given_up.get_or_insert(now);
            }
        }
    }

    /// Whether the server must let it be reclaimed.
    pub(super) fn must_reclaim(&self, id: HoldId) -> bool {
        let hold = &self.holds[id];
        hold.start < self.start && self.started.is_some() && self.is_sure(hold, runtime::clock())
    }

    /// An owner asks for a hold that it had before the server's restart.
    pub(super) fn reclaim(&mut self, id: HoldId) {
        let hold = &mut self.holds[id];
        (hold.gone, hold.asked) = (None, runtime::clock());
    }

    /// The hold was reclaimed from this start of the server.
    ///
    /// # Errors
    /// Another owner has a conflicting hold, or had one meanwhile; or the server was not restarted.
    pub(super) fn has_reclaimed(&mut self, id: HoldId, start: u64) -> Result<(), String> {
        self.reclaimed += 1;
        let own = &self.holds[id];
        if own.start == start {
            return Err(format!("{:?} reclaimed {:?} of the same start", own.owner, own.what));
        }
        let meanwhile = self
            .holds
            .iter()
            .find(|other| own.what.conflicts(own.owner, &other.what, other.owner) && other.sure > own.sure);
        if let Some(other) = meanwhile {
            return Err(format!(
                "{:?} reclaimed {:?}, and {:?} had {:?} meanwhile",
                own.owner, own.what, other.owner, other.what
            ));
        }
        self.granted(id)?;
        self.holds[id].start = start;
        Ok(())
    }

    /// The server was killed.
    pub(super) fn killed(&mut self) {
        let now = runtime::clock();
        for at in 0..self.holds.len() {
            let kept = self.is_sure(&self.holds[at], now);
            let hold = &mut self.holds[at];
            hold.gone.get_or_insert(now);
            if !kept {
                hold.given_up.get_or_insert(now);
            }
        }
        self.started = None;
        self.start += 1;
    }

    /// It was started again.
    pub(super) fn started(&mut self) {
        self.started = Some(runtime::clock());
    }

    /// Whether it is held for sure.
    pub(super) fn is_held(&self, id: HoldId) -> bool {
        self.is_sure(&self.holds[id], runtime::clock())
    }
}
