//! Sessions, and the registry of all of them.
//!
//! Connections of a session share it, on any cores. Its mutable state is behind mutexes that are
//! taken at login, logout, live changes and task management only. Numbers that commands compare are
//! atomic; the command window protects itself.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::{Nexus, NexusId};
use invariant::invariant;
use iscsi::keys::{Digest, Params};
use iscsi::pdu::Isid;
use iscsi::target::recovery::Recovered;
use iscsi::target::{Cid, SharedWindow};
use server_core::qos::Limiter;
use server_core::{ConnectionId, Core};

use crate::Unit;
use crate::lun_map::View;
use crate::node::Target;
use crate::remote::{self, Remote};

/// One session: an I_T nexus and its connections. On cache lines of its own: all of its
/// connections' cores read it for each command.
#[repr(align(128))]
pub(crate) struct Session {
    /// Target Session Identifying Handle, never 0.
    pub tsih: u16,
    /// Initiator port and target port of the session.
    pub port: PortName,
    /// The nexus.
    pub nexus: Arc<Nexus>,
    /// [`View::generation`] of the view: written when that is replaced, read for each command.
    generation: AtomicU64,
    /// Its current view.
    view: Mutex<Viewed>,
    /// Limits of service of its initiator with the target, shared with the initiator's other
    /// sessions.
    pub limiter: Arc<Limiter>,
    /// The command window, when the session may have several connections.
    pub window: Option<Arc<SharedWindow>>,
    /// Depth of the command window: that of the leading login, whatever the limits are now.
    pub queue_depth: u32,
    /// Parameters that its leading login negotiated.
    pub params: Params,
    /// Time of its start.
    pub since: Instant,
    /// ExpCmdSN at which commands continue after its only connection, with the command window, was
    /// replaced.
    exp_cmd_sn: AtomicU32,
    members: Mutex<Members>,
    /// Its tasks that go from one connection to another.
    pub moves: Moves,
    /// Counts of recovery on connections that have ended.
    recovered: Mutex<Recovered>,
}

struct Viewed {
    view: Arc<View>,
    /// The session is over: units do not get to know it again.
    over: bool,
}

/// How long a gap among a session's commands may last after the time for their recovery is over.
/// Initiators take some seconds to find out that a command was lost in transit.
const PLUG: Duration = Duration::from_secs(6);
/// Interval between checks whether a gap has been filled. No event reports that.
pub(crate) const GAP_LOOKS: Duration = Duration::from_millis(200);

/// The connections of a session.
#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// Set once: the session takes no new connection.
    ending: bool,
    /// Number of connections that are about to replace others (RFC 7143 §6.3.4): meanwhile the
    /// session lives without any.
    replacing: usize,
}

/// Reassignments of a session's tasks. Meanwhile a task may be at neither of its two connections,
/// and a count of all connections' tasks may miss it.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// A reassignment, until it is dropped.
pub(crate) struct Moving<'a>(&'a Moves);

impl Moves {
    /// Begins one.
    pub(crate) fn begin(&self) -> Moving<'_> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        Moving(self)
    }

    /// The number of reassignments, if none is in progress. A count between two equal results has
    /// missed no task.
    pub(crate) fn at_rest(&self) -> Option<usize> {
        let ended = self.ended.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}

/// A connection's properties at its login.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub peer: SocketAddr,
    /// The portal's address.
    pub portal: SocketAddr,
    pub iser: bool,
    pub header_digest: Digest,
    pub data_digest: Digest,
    pub at: Instant,
}

/// One connection of a session, as others reach it.
#[derive(Clone)]
pub(crate) struct Member {
    /// Its CID.
    pub cid: Cid,
    /// Handle to it, on its core.
    pub remote: Remote,
    /// Its properties at login.
    pub arrival: Arrival,
    /// Its standing in the session.
    pub standing: Standing,
    /// Once it is lost: whether it still waits for commands that were lost with it.
    pub watches: bool,
}

/// Closes connections, all at once, and returns when they and their tasks have ended.
pub(crate) async fn close_all(members: &[Member]) {
    // Each may take some time, if its peer does not read.
    members.iter().for_each(|member| member.remote.shut());
    for member in members {
        member.remote.close().await;
    }
}

impl Member {
    /// Whether it is lost, and waits for lost commands to come again.
    fn is_watching(&self) -> bool {
        self.standing != Standing::Alive && self.watches
    }
}

/// Result of a connection's attempt to join a session.
pub(crate) enum Joined {
    /// It is a member now.
    Member,
    /// Try again after this lost connection, which still waits for another to take its tasks, has
    /// ended. Of those removed for recovery, or else of all lost ones, it was lost first.
    After(Remote),
    /// The session is ending, has its CID, or has as many as it may.
    Refused,
}

/// Standing of a connection in its session. Lost connections stay in it only at ErrorRecoveryLevel
/// 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is connected.
    Alive,
    /// It was lost; its tasks are allegiant to it until it is removed.
    Lost,
    /// It was removed for recovery (RFC 7143 §11.14.1): its tasks may be reassigned.
    Removed,
}

/// Name of a session for reinstatement (RFC 7143 §6.3.5): the initiator port and the target port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortName {
    /// The initiator's name.
    pub initiator: String,
    /// Its ISID.
    pub isid: Isid,
    /// The target's name; empty for discovery.
    pub target: String,
    /// Target portal group.
    pub group: u16,
}

impl Session {
    fn viewed(&self) -> MutexGuard<'_, Viewed> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its current view. Not for the data path: connections keep a copy.
    pub(crate) fn view(&self) -> Arc<View> {
        self.viewed().view.clone()
    }

    /// [`View::generation`] of [`Self::view`], for connections to compare.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Its target now; `None` in a discovery session.
    pub(crate) fn target(&self) -> Option<Arc<Target>> {
        self.viewed().view.target.clone()
    }

    /// The name of its target; `None` in a discovery session.
    pub(crate) fn target_name(&self) -> Option<&str> {
        Some(self.port.target.as_str()).filter(|name| !name.is_empty())
    }

    /// Replaces its view and returns the old one. Calls `before_seen` with both, before the first
    /// command finds the new one. `None` if the session's view is as new or newer, or the session
    /// is over.
    pub(crate) fn set_view(&self, view: View, before_seen: impl FnOnce(&View, &View)) -> Option<Arc<View>> {
        let mut viewed = self.viewed();
        if viewed.over || view.generation <= viewed.view.generation {
            return None;
        }
        let generation = view.generation;
        before_seen(&viewed.view, &view);
        let before = std::mem::replace(&mut viewed.view, Arc::new(view));
        self.generation.store(generation, Ordering::Release);
        Some(before)
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its connections now.
    pub(crate) fn connections(&self) -> Vec<Member> {
        self.members().list.clone()
    }

    /// Adds a connection.
    pub(crate) fn join(&self, member: Member) -> Joined {
        let mut members = self.members();
        let max = usize::from(self.params.max_connections);
        // At level 2 one more may always come, to take over from one that is still believed to be
        // there (§6.3.4).
        let spare = usize::from(self.recovers_connections());
        let mut alive = members.list.iter().filter(|other| other.standing == Standing::Alive);
        let fits = !members.ending
            && alive.clone().count() < max + spare
            && alive.all(|other| other.cid != member.cid);
        if !fits {
            return Joined::Refused;
        }
        if members.list.len() < 2 * (max + spare) {
            members.list.push(member);
            return Joined::Member;
        }
        // Lost connections must not keep out the one that may take their tasks. Those removed
        // first: the initiator has had their tasks reassigned long ago. Their remaining tasks are
        // statuses that arrived and could not be acknowledged. A lost connection with this CID
        // stays: its tasks are about to be reassigned.
        let replaced = members.list.iter().rposition(|other| other.cid == member.cid);
        let others = || {
            members.list.iter().enumerate().filter(|(at, _)| Some(*at) != replaced).map(|(_, other)| other)
        };
        let of = |standing: Standing| others().find(|other| other.standing == standing);
        match of(Standing::Removed).or_else(|| of(Standing::Lost)) {
            Some(oldest) => Joined::After(oldest.remote.clone()),
            None => Joined::Refused,
        }
    }

    /// Whether tasks outlive their connections: ErrorRecoveryLevel 2.
    pub(crate) fn recovers_connections(&self) -> bool {
        self.params.error_recovery_level >= 2 && self.target_name().is_some()
    }

    /// How long the tasks of a lost connection wait for another one: Time2Wait and Time2Retain.
    pub(crate) fn retention(&self) -> Duration {
        let seconds =
            u64::from(self.params.default_time2wait_s) + u64::from(self.params.default_time2retain_s);
        Duration::from_secs(seconds)
    }

    fn gap(&self) -> Option<u32> {
        self.window.as_ref().and_then(|window| window.gap())
    }

    /// Whether commands wait for an earlier one that has not come.
    pub(crate) fn has_gap(&self) -> bool {
        self.gap().is_some()
    }

    /// Whether commands wait for an earlier one that was lost with a connection, and that has not
    /// come again in all the time for that.
    pub(crate) async fn has_lasting_gap(&self) -> bool {
        let Some(before) = self.gap() else { return false };
        let end = runtime::now() + PLUG;
        loop {
            // The gap is filled or the session over. Or another connection was lost since: that one
            // decides at the end of its own time.
            if self.gap() != Some(before)
                || self.is_ending()
                || self.members().list.iter().any(Member::is_watching)
            {
                return false;
            }
            if runtime::now() >= end {
                return true;
            }
            runtime::sleep(GAP_LOOKS).await;
        }
    }

    /// Whether a lost connection without tasks may end its wait: there is no gap, or a connection
    /// lost later waits for the gap to be filled.
    pub(crate) fn may_forget(&self, id: ConnectionId) -> bool {
        if !self.has_gap() {
            return true;
        }
        let mut members = self.members();
        let Some(at) = members.list.iter().position(|member| member.remote.id == id) else { return true };
        let later = members.list[at + 1..].iter().any(Member::is_watching);
        members.list[at].watches &= !later;
        later
    }

    /// Ends a lost connection's wait for commands that were lost with it. Returns whether another
    /// connection still waits. The last of several decides what is missing: the time of the others
    /// is over before.
    pub(crate) fn stop_watching(&self, id: ConnectionId) -> bool {
        let mut members = self.members();
        members.list.iter_mut().filter(|member| member.remote.id == id).for_each(|it| it.watches = false);
        members.list.iter().any(Member::is_watching)
    }

    /// Records that a connection is lost, and its tasks are kept. False when the session is ending.
    pub(crate) fn set_standing(&self, id: ConnectionId, standing: Standing) -> bool {
        let mut members = self.members();
        if members.ending {
            return false;
        }
        if let Some(at) = members.list.iter().position(|member| member.remote.id == id) {
            // Lost connections are in the order of their losses.
            let member = members.list.remove(at);
            members.list.push(Member { standing, ..member });
        }
        true
    }

    /// Removes a connection. True when it was the last: the session is over.
    fn leave(&self, id: ConnectionId) -> bool {
        let mut members = self.members();
        members.list.retain(|member| member.remote.id != id);
        let last = members.list.is_empty() && members.replacing == 0;
        members.ending |= last;
        last
    }

    /// Lets the session live without a connection until the replacement has come. False if the
    /// session is over or, below ErrorRecoveryLevel 2, another connection is being replaced.
    fn begin_replacing(&self) -> bool {
        let mut members = self.members();
        let may = !members.ending && (members.replacing == 0 || self.recovers_connections());
        members.replacing += usize::from(may);
        may
    }

    /// The replacement has come, or failed. True if it failed, and the session is over.
    fn end_replacing(&self) -> bool {
        let mut members = self.members();
        if invariant!(members.replacing > 0, "more replacements ended than began") {
            members.replacing -= 1;
        }
        let last = members.list.is_empty() && members.replacing == 0;
        members.ending |= last;
        last
    }

    /// Records the ExpCmdSN of a connection that has ended, perhaps with its own command window.
    pub(crate) fn set_exp_cmd_sn(&self, exp_cmd_sn: u32) {
        self.exp_cmd_sn.store(exp_cmd_sn, Ordering::Release);
    }

    /// ExpCmdSN of the connection that has ended.
    pub(crate) fn exp_cmd_sn(&self) -> u32 {
        self.exp_cmd_sn.load(Ordering::Acquire)
    }

    /// Whether it takes no new connection any more.
    pub(crate) fn is_ending(&self) -> bool {
        self.members().ending
    }

    /// Counts of recovery on those of its connections that have ended.
    pub(crate) fn recovered(&self) -> Recovered {
        *self.recovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the counts of recovery of a connection that ends.
    pub(crate) fn keep_recovered(&self, of: &Recovered) {
        self.recovered.lock().unwrap_or_else(PoisonError::into_inner).add(of);
    }

    /// Refuses new connections from now on and returns the present ones.
    pub(crate) fn end(&self) -> Vec<Member> {
        let mut members = self.members();
        members.ending = true;
        members.list.clone()
    }
}

/// All sessions of the server.
#[derive(Default)]
pub(crate) struct Registry {
    sessions: Mutex<Sessions>,
    next_nexus: AtomicU64,
}

#[derive(Default)]
struct Sessions {
    by_tsih: BTreeMap<u16, Arc<Session>>,
    by_port: HashMap<PortName, u16>,
}

/// Parts of a new session.
pub(crate) struct NewSession {
    pub port: PortName,
    pub nexus: Arc<Nexus>,
    pub view: View,
    pub limiter: Arc<Limiter>,
    pub window: Option<Arc<SharedWindow>>,
    pub queue_depth: u32,
    pub params: Params,
}

impl Registry {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new nexus.
    pub(crate) fn nexus_id(&self) -> NexusId {
        NexusId(self.next_nexus.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// A free, unreserved and unpredictable TSIH; `None` if there are `limit` sessions, or no
    /// randomness. Without authentication, an initiator that knows a TSIH may join the session.
    pub(crate) fn free_tsih(&self, limit: usize) -> Option<u16> {
        let mut random = [0; 2];
        runtime::random(&mut random).ok()?;
        let sessions = self.sessions();
        if sessions.by_tsih.len() >= limit.min(usize::from(u16::MAX - 1)) {
            return None;
        }
        let start = u16::from_ne_bytes(random);
        let mut all = (start..=u16::MAX).chain(1..start);
        all.find(|tsih| *tsih != 0 && !sessions.by_tsih.contains_key(tsih))
    }

    /// The session with this TSIH.
    pub(crate) fn find(&self, tsih: u16) -> Option<Arc<Session>> {
        self.sessions().by_tsih.get(&tsih).cloned()
    }

    /// The session of this port, which a login with TSIH 0 reinstates.
    pub(crate) fn of_port(&self, port: &PortName) -> Option<Arc<Session>> {
        let sessions = self.sessions();
        sessions.by_port.get(port).and_then(|tsih| sessions.by_tsih.get(tsih)).cloned()
    }

    /// All sessions with the target of this normalized name.
    pub(crate) fn of_target(&self, target: &str) -> Vec<Arc<Session>> {
        let of = |session: &&Arc<Session>| session.target_name() == Some(target);
        self.sessions().by_tsih.values().filter(of).cloned().collect()
    }

    /// Whether `session` is still there.
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        self.find(session.tsih).is_some_and(|there| Arc::ptr_eq(&there, session))
    }

    /// All sessions that see `unit`, through any target.
    pub(crate) fn of_unit(&self, unit: &Unit) -> Vec<Arc<Session>> {
        let sees = |session: &Arc<Session>| session.view().luns.iter().any(|entry| entry.unit.is(unit));
        let mut all = self.all();
        all.retain(sees);
        all
    }

    /// The session of a nexus.
    pub(crate) fn of_nexus(&self, id: NexusId) -> Option<Arc<Session>> {
        self.sessions().by_tsih.values().find(|session| session.nexus.id == id).cloned()
    }

    /// All sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions().by_tsih.values().cloned().collect()
    }

    /// Enters a session under `tsih` with its first connection, and attaches it to its units.
    /// `None` when the port got a session, or the TSIH was taken, in the meantime.
    pub(crate) fn add(&self, tsih: u16, new: NewSession, first: Member) -> Option<Arc<Session>> {
        let session = Arc::new(Session {
            tsih,
            port: new.port,
            nexus: new.nexus,
            generation: AtomicU64::new(new.view.generation),
            view: Mutex::new(Viewed { view: Arc::new(new.view), over: false }),
            limiter: new.limiter,
            window: new.window,
            queue_depth: new.queue_depth,
            params: new.params,
            since: first.arrival.at,
            exp_cmd_sn: AtomicU32::new(0),
            recovered: Mutex::default(),
            moves: Moves::default(),
            members: Mutex::new(Members { list: vec![first], ..Members::default() }),
        });
        let mut sessions = self.sessions();
        let taken = session.target_name().is_some() && sessions.by_port.contains_key(&session.port);
        if taken || sessions.by_tsih.contains_key(&tsih) {
            return None;
        }
        // Discovery sessions do not reinstate each other: tools use one ISID for all that they run
        // side by side.
        if session.target_name().is_some() {
            sessions.by_port.insert(session.port.clone(), tsih);
        }
        sessions.by_tsih.insert(tsih, session.clone());
        drop(sessions);
        for entry in session.view().luns.iter() {
            entry.unit.attach(&entry.nexus);
        }
        Some(session)
    }

    /// A connection has ended, with its tasks. The last one ends the session.
    fn leave(&self, session: &Arc<Session>, id: ConnectionId) {
        if session.leave(id) {
            self.close(session);
        }
    }

    /// The session is over.
    fn close(&self, session: &Arc<Session>) {
        let last = {
            let mut viewed = session.viewed();
            viewed.over = true;
            viewed.view.clone()
        };
        for entry in last.luns.iter() {
            entry.unit.detach(session.nexus.id);
        }
        let mut sessions = self.sessions();
        if session.target_name().is_some() {
            sessions.by_port.remove(&session.port);
        }
        sessions.by_tsih.remove(&session.tsih);
    }

    /// Closes all connections of a session and waits until they have ended, and the session with
    /// them.
    pub(crate) async fn end(&self, session: &Arc<Session>) {
        close_all(&session.end()).await;
    }
}

/// Keeps a session while its only connection, perhaps, is being replaced.
pub(crate) struct Replacing {
    session: Arc<Session>,
    registry: Arc<Registry>,
}

impl Replacing {
    /// `None` if the session is over, or another connection of it is being replaced.
    pub(crate) fn begin(session: &Arc<Session>, registry: &Arc<Registry>) -> Option<Self> {
        let begun = session.begin_replacing();
        begun.then(|| Self { session: session.clone(), registry: registry.clone() })
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        if self.session.end_replacing() {
            self.registry.close(&self.session);
        }
    }
}

/// A connection's place in its session. Dropped when the connection has ended, however it did:
/// after its login timed out, by a panic, or in order.
pub(crate) struct Seat {
    pub session: Arc<Session>,
    pub id: ConnectionId,
    registry: Arc<Registry>,
    core: Rc<Core>,
}

impl Seat {
    /// The place of connection `id`, which has been entered in `session`.
    pub(crate) fn new(
        session: Arc<Session>,
        id: ConnectionId,
        registry: Arc<Registry>,
        core: Rc<Core>,
    ) -> Self {
        Self { session, id, registry, core }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.registry.leave(&self.session, self.id);
        remote::bury(&self.core, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_during_or_around_a_reassignment_is_void() {
        let moves = Moves::default();
        let before = moves.at_rest();
        assert!(before.is_some());
        let (first, second) = (moves.begin(), moves.begin());
        assert_eq!(moves.at_rest(), None);
        drop(first);
        assert_eq!(moves.at_rest(), None, "the second is in progress");
        drop(second);
        assert!(moves.at_rest().is_some_and(|now| Some(now) != before));
    }
}
