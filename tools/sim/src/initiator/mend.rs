//! What an initiator does when it has lost a connection and not its session (ErrorRecoveryLevel 2, RFC 7143 §7.2.2, §6.3.4): with another
//! one at hand it has the lost one removed there and its tasks go on there; without, a new one with the same CID takes its place.

use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{LoginStatus, LogoutResult};

use super::link::Phase;
use super::{Initiator, LOGIN_TIME, Purpose, State};
use crate::clock::{MS, Micros, SECOND};
use crate::network::{LinkId, Side};
use crate::oracle::OpId;
use crate::trace::note;

/// Time for the answer to a logout for recovery.
const REMOVAL_TIME: Micros = 10 * SECOND;
/// Between two tries.
const PAUSE: Micros = 100 * MS;

/// A connection that was lost while its session goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    cid: u16,
    since: Micros,
    /// Its tasks are another one's.
    adopted: bool,
}

/// What is being done about the connections that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mending {
    /// Nothing, until then.
    Idle(Micros),
    /// A logout that removes a connection was sent on a link; its answer is awaited until then.
    Removing(u16, LinkId, Micros),
    /// The target has forgotten the connection, and wants to be left alone until then.
    Waiting(u16, Micros),
}

impl Initiator {
    /// Whether it can lose a connection and keep its session.
    fn keeps_session(&self) -> bool {
        self.state == State::Up && self.protocol.params().error_recovery_level >= 2
    }

    /// A connection is lost; below level 2 the session with it.
    pub(super) fn lose_link(&mut self, id: LinkId, why: &str) {
        let Some(at) = self.links.iter().position(|link| link.id == id) else { return };
        if !self.keeps_session() {
            return self.lose(why);
        }
        let now = self.now();
        let link = self.links.remove(at);
        note!(self.shared.trace, "initiator {}: loses link {} (cid {}): {why}", self.number, id.0, link.cid);
        let vanishes = self.rng.chance(300);
        let mut network = self.shared.network.borrow_mut();
        if vanishes {
            // The target hears nothing of it.
            network.vanish(id);
        }
        network.abandon(now, id, Side::Initiator);
        drop(network);
        let Phase::Full(on, _) = link.phase else {
            // It was to join the session. There is time to try again as long as there are others, or tasks are kept.
            self.joining = None;
            self.next_join = now + PAUSE;
            return;
        };
        for op in self.ops.values_mut().filter(|op| matches!(op.purpose, Purpose::Scsi(_))) {
            // The target may have lost it, so that it runs twice.
            op.replayed |= self.protocol.connection_of(op.key) == Some(on);
        }
        for (_, token) in self.protocol.lose_connection(on) {
            self.drop_request(token.op);
        }
        self.broken.push(Broken { cid: link.cid, since: now, adopted: false });
    }

    /// A request went down with its connection; nobody knows whether it was done.
    fn drop_request(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        self.ended += 1;
        if let Purpose::Abort(victim, _) = op.purpose
            && let Some(victim) = self.ops.get_mut(&victim)
        {
            victim.aborting = false;
        }
    }

    /// Does what is due about lost connections.
    pub(super) fn mend(&mut self) {
        if self.broken.is_empty() || !self.keeps_session() {
            return;
        }
        let now = self.now();
        match self.mending {
            Mending::Idle(at) if at > now => return,
            Mending::Removing(_, link, until) if self.links.iter().any(|other| other.id == link) => {
                if now < until {
                    return;
                }
                self.lose_link(link, "a removal was not answered");
            }
            Mending::Waiting(_, until) if now < until => return,
            Mending::Waiting(cid, _) => {
                self.broken.iter_mut().filter(|b| b.cid == cid).for_each(|broken| broken.adopted = true);
                if !self.adopt(cid) {
                    return;
                }
            }
            Mending::Idle(_) | Mending::Removing(..) => {}
        }
        self.mending = Mending::Idle(now);
        let waiting = self.broken.iter().find(|broken| !broken.adopted).copied();
        let Some(first) = waiting.or(self.broken.first().copied()) else { return };
        let other = self.any_connection();
        match (waiting, other) {
            (Some(broken), Some((on, link))) => {
                if self.protocol.remove_for_recovery(on, broken.cid) {
                    note!(self.shared.trace, "initiator {}: removes cid {}", self.number, broken.cid);
                    self.mending = Mending::Removing(broken.cid, link, now + REMOVAL_TIME);
                } else {
                    self.mending = Mending::Idle(now + PAUSE);
                }
            }
            _ if self.joining.is_some() => self.mending = Mending::Idle(now + PAUSE),
            _ => {
                let (begin, end) = self.recovery_times(first.since);
                let alone = other.is_none();
                if alone && now < begin {
                    self.mending = Mending::Idle(begin);
                } else if alone && now > end {
                    self.lose("its tasks are forgotten");
                } else if now < self.next_join {
                    self.mending = Mending::Idle(self.next_join);
                } else {
                    self.joining = Some(now + LOGIN_TIME);
                    self.dial_as(first.cid);
                    self.mending = Mending::Idle(now + PAUSE);
                }
            }
        }
    }

    /// From when to when a connection may come back for tasks that lost theirs then.
    fn recovery_times(&self, since: Micros) -> (Micros, Micros) {
        let params = self.protocol.params();
        let begin = since + Micros::from(params.default_time2wait_s) * SECOND;
        (begin, begin + Micros::from(params.default_time2retain_s) * SECOND)
    }

    /// Moves the tasks of a connection that the target has forgotten. False if that costs the session.
    fn adopt(&mut self, cid: u16) -> bool {
        let moved = self.protocol.adopt(cid);
        if moved.is_err() {
            self.lose("tasks were moved too often");
        }
        moved.is_ok()
    }

    /// A further connection has logged in: it may be one that was lost.
    pub(super) fn joined(&mut self, cid: u16) {
        self.joining = None;
        if self.broken.iter().any(|broken| broken.cid == cid) && self.adopt(cid) {
            self.broken.retain(|broken| broken.cid != cid);
        }
    }

    /// A further connection was refused.
    pub(super) fn not_joined(&mut self, id: LinkId, error: &InitiatorLoginError) {
        use InitiatorLoginError::Status;
        if !self.keeps_session() || *error == Status(LoginStatus::SessionDoesNotExist) {
            return self.lose("the login failed");
        }
        self.lose_link(id, "the login failed");
    }

    /// The answer to a logout for recovery.
    pub(super) fn removed(&mut self, cid: u16, result: Option<LogoutResult>, time2wait_s: u16) {
        let Mending::Removing(awaited, ..) = self.mending else { return };
        if awaited != cid {
            return;
        }
        match result {
            Some(LogoutResult::Success | LogoutResult::CidNotFound) => {
                self.mending = Mending::Waiting(cid, self.now() + Micros::from(time2wait_s) * SECOND);
            }
            _ => self.lose("a connection was not removed"),
        }
    }

    /// When [`Self::mend`] has something to do.
    pub(super) fn next_mending(&self) -> Option<Micros> {
        if self.broken.is_empty() {
            return None;
        }
        Some(match self.mending {
            Mending::Idle(at) | Mending::Removing(.., at) | Mending::Waiting(_, at) => at,
        })
    }

    /// Connections that were lost while their session went on, and tasks that went on elsewhere.
    pub fn recoveries(&self) -> (u64, u64) {
        let all = self.protocol.recoveries();
        (all.connections, all.reassigns)
    }
}
