//! The state of an NFSv4.1 server (RFC 8881 §2.4, §2.10, §8 to §10): clients, sessions, opens,
//! byte-range locks, read delegations, leases, and the grace period after a restart.
//!
//! Sans-IO: no I/O, no clock, no thread. The caller passes the time, the requests of clients, and
//! the events of connections to [`ServerState`]. It answers at once, and leaves [`Effect`]s:
//! records that stable storage has to keep, and calls to clients. All of it is bounded by
//! [`Limits`].
//!
//! Time is a [`Duration`] since any fixed moment. It must not go back.
//!
//! The caller has to
//! - carry out the effects before it sends an answer: [`ServerState::take_effects`];
//! - call [`ServerState::tick`] about once a second;
//! - report each end of a connection, and the outcome of each call to a client;
//! - do the work on the file: permissions, attributes, the data of READ and WRITE;
//! - set [`OpenFile::changing`] while an operation that [`ServerState::check_change`] or
//!   [`ServerState::check_io`] admitted has not ended.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use rpc::xdr::{List, Malformed, Reader, Writer};

mod back;
mod clients;
mod delegations;
mod effects;
mod files;
mod grace;
mod holdings;
mod limits;
mod locks;
mod members;
mod opens;
mod ranges;
mod requests;
mod saved;
mod sessions;
mod slots;
mod stateid;
#[cfg(test)]
mod tests;

pub use back::Connection;
pub use clients::{Exchanged, Hosts, Principal, Record};
pub use effects::{Callback, CallbackOperation, Effect, Outcome};
pub use holdings::Locker;
pub use limits::Limits;
pub use locks::Denied;
pub use members::{Running, Sequenced};
pub use opens::Share;
pub use requests::{Claim, Delegated, LockFile, NotLocked, OpenFile, Opened, Usage};
pub use stateid::Current;

use back::Call;
use files::{FileNo, Files};
use grace::Grace;
use holdings::{Holdings, Refusal};
use locks::Wanted;
use members::Members;
use ranges::Range;
use saved::Saved;
use sessions::Way;

use super::flags::{sequence_status, want};
use super::{
    CallbackSecurity, Channel, ChannelFromClient, ChannelFromServer, ClientId, ClientOwner, CreateSession,
    CreateSessionOk, LockType, Sequence, SessionId, ShareAccess, Stateid, Status, WhyNoDelegation,
};

/// The first word of a saved state: its format.
const FORMAT: u32 = 2;

/// The state of a server. `F` names a file; the same file has the same name while it has state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState<F: Eq + Hash> {
    limits: Limits,
    members: Members,
    holdings: Holdings,
    grace: Grace,
    files: Files<F>,
    effects: VecDeque<Effect<F>>,
}

impl<F: Clone + Eq + Hash> ServerState<F> {
    /// The state after a start of the server. `start` differs from that of each earlier start: it
    /// is part of client IDs and stateids. `seed` is random: session IDs are drawn from it.
    /// `records` is what stable storage has; a grace period begins if there are any.
    pub fn new(now: Duration, start: u32, seed: u64, limits: Limits, records: Vec<Record>) -> Self {
        ServerState {
            members: Members::new(start, seed),
            holdings: Holdings::new(start),
            grace: Grace::new(now + limits.lease, records),
            files: Files::new(),
            effects: VecDeque::new(),
            limits,
        }
    }

    /// All state, for a successor on the same clock. `bytes` encodes a file. To be called without
    /// effects that wait to be taken: they are not saved.
    pub fn save(&self, bytes: impl Fn(&F) -> Vec<u8>) -> Vec<u8> {
        let mut out = Vec::new();
        let to = &mut Writer::new(&mut out);
        to.u32(FORMAT);
        self.members.save(to);
        self.holdings.save(to);
        self.grace.save(to);
        self.files.save(to, bytes);
        out
    }

    /// The state that a predecessor saved. A request that it was running was not answered: its
    /// retry gets RETRY_UNCACHED_REP. `file` decodes a file.
    ///
    /// # Errors
    /// [`Malformed`]: these are not the bytes of [`Self::save`] of this format.
    pub fn load(saved: &[u8], limits: Limits, file: impl Fn(&[u8]) -> Option<F>) -> Result<Self, Malformed> {
        let mut from = Reader::new(saved);
        let format = from.u32()?;
        if format != FORMAT {
            return Err(Malformed::Unknown { what: "format of saved state", value: format });
        }
        let mut members = Members::load(&mut from)?;
        members.sessions.abandon();
        let holdings = Saved::load(&mut from)?;
        let grace = Saved::load(&mut from)?;
        let files = Files::load(&mut from, file)?;
        from.end()?;
        Ok(ServerState { limits, members, holdings, grace, files, effects: VecDeque::new() })
    }

    /// The time after which a silent client is expired.
    pub fn lease(&self) -> Duration {
        self.limits.lease
    }

    /// All connections have ended: those of a predecessor, for example.
    pub fn disconnected(&mut self) {
        self.members.sessions.disconnected();
    }

    /// The effects that the caller has to carry out since the last call.
    pub fn take_effects(&mut self) -> impl Iterator<Item = Effect<F>> {
        self.effects.drain(..)
    }

    /// The amount of state.
    pub fn usage(&self) -> Usage {
        let (locks, waiting) = self.holdings.locks.len();
        let (replies, reserved) = self.members.sessions.replies();
        Usage {
            clients: self.members.clients.len(),
            sessions: self.members.sessions.len(),
            replies,
            reserved,
            files: self.files.len(),
            opens: self.holdings.opens.len(),
            locks,
            waiting,
            delegations: self.holdings.delegations.len(),
        }
    }

    /// Some client holds something of some file.
    pub fn holds_files(&self) -> bool {
        self.files.len() > 0
    }

    /// The grace period is not over.
    pub fn in_grace(&self) -> bool {
        self.grace.is_active()
    }

    /// EXCHANGE_ID (RFC 8881 §18.35). `flags` are
    /// [`flags::exchange_id`](super::flags::exchange_id). State protection is none, whatever the
    /// client asks for.
    ///
    /// # Errors
    /// INVAL, CLID_INUSE, NOENT, NOT_SAME, PERM; DELAY with too many clients, or too many of the
    /// host.
    pub fn exchange_id(
        &mut self,
        now: Duration,
        principal: Principal<'_>,
        owner: &ClientOwner<'_>,
        flags: u32,
    ) -> Result<Exchanged, Status> {
        if self.grace.is_anothers(owner, principal.host) {
            return Err(Status::ClidInUse);
        }
        let (exchanged, replaced) = match self.try_exchange_id(now, principal, owner, flags) {
            Err(Status::Delay) => {
                self.evict(now, principal.host);
                self.try_exchange_id(now, principal, owner, flags)?
            }
            other => other?,
        };
        replaced.into_iter().for_each(|it| self.remove_client(it));
        Ok(exchanged)
    }

    fn try_exchange_id(
        &mut self,
        now: Duration,
        principal: Principal<'_>,
        owner: &ClientOwner<'_>,
        flags: u32,
    ) -> Result<(Exchanged, Vec<ClientId>), Status> {
        let holdings = &self.holdings;
        let has_state = |client| holdings.has_client(client);
        self.members.exchange_id(now, principal, owner, flags, has_state, &self.limits)
    }

    /// Removes the client that was silent for longest, of those that are unconfirmed or expired: one
    /// of the host's own, if it has its share.
    fn evict(&mut self, now: Duration, host: IpAddr) {
        let Members { clients, .. } = &self.members;
        let of_host = clients.has_share(host, &[], &self.limits).then(|| clients.of_host(host).collect());
        let may_go = |id: ClientId| of_host.as_ref().is_none_or(|own: &BTreeSet<ClientId>| own.contains(&id));
        let removable = clients.all().filter(|(id, _)| {
            may_go(*id) && (!clients.is_confirmed(*id) || self.members.is_expired(now, *id, &self.limits))
        });
        if let Some((client, _)) = removable.min_by_key(|(_, renewed)| *renewed) {
            self.remove_client(client);
        }
    }

    /// CREATE_SESSION on a connection, of a minor version (RFC 8881 §18.36). `principal` as for
    /// EXCHANGE_ID.
    ///
    /// # Errors
    /// STALE_CLIENTID, SEQ_MISORDERED, CLID_INUSE, INVAL, TOOSMALL, NOSPC; those of the first
    /// request for its retry.
    pub fn create_session(
        &mut self,
        now: Duration,
        connection: Connection,
        principal: Principal<'_>,
        minor: u32,
        request: &CreateSession<'_>,
    ) -> Result<CreateSessionOk, Status> {
        let was_confirmed = self.members.clients.is_confirmed(request.client);
        let (grace, holdings) = (&self.grace, &self.holdings);
        let has_state = |client| holdings.has_client(client);
        if self.members.is_kept_out(now, principal.host, request.client, has_state, &self.limits) {
            return Err(Status::ClidInUse);
        }
        let may_reclaim = |record: &Record| grace.may_reclaim(record);
        let (created, replaced) = self.members.create_session(
            now,
            connection,
            principal,
            (minor, request),
            &self.limits,
            may_reclaim,
        );
        if let Some(client) = replaced {
            self.remove_client(client);
        }
        // A client that restarted has nothing to reclaim.
        if !was_confirmed && created.is_ok() && !self.members.clients.may_reclaim(request.client).opens {
            self.done_reclaiming(now, request.client);
        }
        created
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 §18.34).
    ///
    /// # Errors
    /// BADSESSION; INVAL if the session has no backchannel; DELAY with too many connections.
    pub fn bind(
        &mut self,
        connection: Connection,
        session: SessionId,
        direction: ChannelFromClient,
    ) -> Result<ChannelFromServer, Status> {
        let (direction, client) = self.members.bind(session, connection, direction, &self.limits)?;
        self.call(client);
        Ok(direction)
    }

    /// BACKCHANNEL_CTL: another service of the client's callbacks (RFC 8881 §18.33).
    ///
    /// # Errors
    /// NOENT if the session has no backchannel.
    pub fn set_backchannel(
        &mut self,
        session: SessionId,
        program: u32,
        security: List<'_, CallbackSecurity<'_>>,
    ) -> Result<(), Status> {
        self.members.sessions.set_service(session, program, security)
    }

    /// DESTROY_SESSION on a connection, within the COMPOUND of `own` or alone (RFC 8881 §18.37).
    ///
    /// # Errors
    /// BADSESSION, CONN_NOT_BOUND_TO_SESSION; DELAY while other requests of the session run.
    pub fn destroy_session(
        &mut self,
        connection: Connection,
        session: SessionId,
        own: Option<&Running>,
    ) -> Result<(), Status> {
        let (client, calls) = self.members.destroy_session(session, connection, own)?;
        calls.iter().for_each(|it| self.not_called(it));
        self.call(client);
        Ok(())
    }

    /// DESTROY_CLIENTID (RFC 8881 §18.50).
    ///
    /// # Errors
    /// STALE_CLIENTID, CLIENTID_BUSY.
    pub fn destroy_client(&mut self, now: Duration, host: IpAddr, client: ClientId) -> Result<(), Status> {
        self.members.may_destroy(client, host)?;
        if self.holdings.has_client(client) {
            return Err(Status::ClientIdBusy);
        }
        if self.members.clients.is_confirmed(client) {
            self.done_reclaiming(now, client);
        }
        self.remove_client(client);
        Ok(())
    }

    /// A connection ended.
    pub fn closed(&mut self, connection: Connection) {
        for client in self.members.sessions.closed(connection) {
            self.call(client);
        }
    }

    /// SEQUENCE on a connection (RFC 8881 §18.46). Renews the lease. `checksum` is that of the
    /// whole COMPOUND: it tells a retry from another request.
    ///
    /// # Errors
    /// BADSESSION, BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY; DELAY for a retry of a
    /// request that runs.
    pub fn sequence(
        &mut self,
        now: Duration,
        connection: Connection,
        request: &Sequence,
        checksum: u64,
    ) -> Result<Sequenced<'_>, Status> {
        // The client knows the session now: find out whether it can be called.
        self.members.sessions.set_known(request.session);
        if let Some((way, call)) = self.members.sessions.probe(request.session) {
            self.push(way, call);
        }
        let delegations = &self.holdings.delegations;
        self.members.sequence(now, connection, request, checksum, &self.limits, |client| {
            if delegations.has_revoked(client) { sequence_status::RECALLABLE_STATE_REVOKED } else { 0 }
        })
    }

    /// Limits of a session's requests and their replies. The caller checks a request against them
    /// before [`Self::sequence`] takes the slot.
    ///
    /// # Errors
    /// BADSESSION.
    pub fn limits_of(&self, session: SessionId) -> Result<Channel, Status> {
        self.members.sessions.get(session).map(|(_, fore)| fore)
    }

    /// A COMPOUND ended with these bytes as its reply. They are kept for retries if the client
    /// asked for that in its SEQUENCE.
    pub fn finish(&mut self, now: Duration, running: Running, reply: &[u8]) {
        self.members.finish(now, &running, reply);
    }

    /// RECLAIM_COMPLETE (RFC 8881 §18.51). For one file system it changes nothing.
    ///
    /// # Errors
    /// COMPLETE_ALREADY.
    pub fn reclaim_complete(
        &mut self,
        now: Duration,
        client: ClientId,
        one_file_system: bool,
    ) -> Result<(), Status> {
        if one_file_system {
            return Ok(());
        }
        if !self.members.clients.set_reclaim_complete(client) {
            return Err(Status::CompleteAlready);
        }
        self.done_reclaiming(now, client);
        Ok(())
    }

    fn done_reclaiming(&mut self, now: Duration, client: ClientId) {
        if let Some(record) = self.members.clients.record(client) {
            self.grace.done(&record.owner);
            self.end_grace(now);
        }
    }

    fn end_grace(&mut self, now: Duration) {
        if self.grace.end(now) {
            self.effects.push_back(Effect::EndGrace(self.members.clients.recorded()));
        }
    }

    /// Whether OPEN by this right is admitted now: to be asked before a file is made.
    ///
    /// # Errors
    /// GRACE, NO_GRACE, RECLAIM_BAD.
    pub fn admit(&self, client: ClientId, claim: Claim) -> Result<(), Status> {
        let clients = &self.members.clients;
        let complete = clients.reclaim_complete(client);
        match claim {
            Claim::New | Claim::Delegated(_) => self.grace.admit_new(complete),
            Claim::Reclaim { .. } => self.grace.admit_reclaim(clients.may_reclaim(client).opens, complete),
        }
    }

    /// Whether the client may have one more open. A server asks before it makes a file. Otherwise
    /// OPEN would answer DELAY and leave the file behind, and the client's next try would fail.
    pub fn has_room(&self, client: ClientId) -> bool {
        self.holdings.has_room(client, &self.limits)
    }

    /// OPEN of a file that exists, before it is truncated (RFC 8881 §18.16).
    ///
    /// # Errors
    /// Those of [`Self::admit`]; SHARE_DENIED, RECLAIM_CONFLICT, BAD_STATEID, OLD_STATEID,
    /// DELEG_REVOKED; DELAY while a delegation is recalled, and with too many opens.
    pub fn open(
        &mut self,
        now: Duration,
        client: ClientId,
        request: OpenFile<'_, F>,
    ) -> Result<Opened, Status> {
        self.admit(client, request.claim)?;
        let file = self.files.intern(request.file);
        let under = match &request.claim {
            Claim::Delegated(stateid) => Some(stateid),
            _ => None,
        };
        let reclaim = matches!(request.claim, Claim::Reclaim { .. });
        let opened = self.attempt(now, Some(client), |holdings, limits| {
            let limits = (!request.made).then_some(limits);
            holdings.open(client, file, request.owner, request.share, under, limits)
        });
        let stateid = match opened {
            Ok(stateid) => stateid,
            Err(refusal) => {
                self.tidy(file);
                return Err(match refusal {
                    Refusal::Conflict(_) if reclaim => Status::ReclaimConflict,
                    refusal => status(refusal),
                });
            }
        };
        // The record of a client that reclaims is in stable storage.
        if self.members.clients.set_recorded(client) && !reclaim {
            self.remember(client);
        }
        let delegation = self.delegate(now, client, file, &request);
        Ok(Opened { stateid, delegation })
    }

    fn remember(&mut self, client: ClientId) {
        self.effects.extend(self.members.clients.record(client).map(Effect::Remember));
    }

    fn delegate(
        &mut self,
        now: Duration,
        client: ClientId,
        file: FileNo,
        request: &OpenFile<'_, F>,
    ) -> Result<Delegated, WhyNoDelegation> {
        let can_call = self.members.sessions.can_call(client);
        match request.want & want::DELEG_MASK {
            want::NO_DELEG => return Err(WhyNoDelegation::NotWanted(())),
            want::CANCEL => return Err(WhyNoDelegation::Cancelled(())),
            _ => {}
        }
        let recall = match request.claim {
            Claim::New if request.changing => return Err(WhyNoDelegation::Contention(false)),
            Claim::New if can_call => false,
            Claim::Reclaim { delegation: true } if self.members.clients.may_reclaim(client).delegations => {
                !can_call || request.changing
            }
            _ => return Err(WhyNoDelegation::Resource(false)),
        };
        if request.share.access.writes() {
            return Err(WhyNoDelegation::Resource(false));
        }
        let stateid = self.holdings.delegate(client, file, &self.limits)?;
        if recall {
            if let Ok(number) = self.holdings.names.number(&stateid) {
                self.holdings.delegations.recall(now, number, self.limits.cooling, true);
            }
        }
        Ok(Delegated { stateid, recall })
    }

    /// OPEN_DOWNGRADE (RFC 8881 §18.18).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID; INVAL if the client did not open the file so.
    pub fn downgrade(&mut self, client: ClientId, stateid: Stateid, share: Share) -> Result<Stateid, Status> {
        self.holdings.downgrade(client, &stateid, share)
    }

    /// CLOSE, which also releases the locks made with the open (RFC 8881 §18.2).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID.
    pub fn close(&mut self, client: ClientId, stateid: Stateid) -> Result<(), Status> {
        let file = self.holdings.close(client, &stateid)?;
        self.released(file);
        Ok(())
    }

    /// DELEGRETURN (RFC 8881 §18.6).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED.
    pub fn return_delegation(&mut self, client: ClientId, stateid: Stateid) -> Result<(), Status> {
        let file = self.holdings.return_delegation(client, &stateid)?;
        self.tidy(file);
        Ok(())
    }

    /// TEST_STATEID of one stateid (RFC 8881 §18.48).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED: the result of the stateid.
    pub fn test_stateid(&self, client: ClientId, stateid: Stateid) -> Result<(), Status> {
        self.holdings.test(client, &stateid)
    }

    /// FREE_STATEID (RFC 8881 §18.38).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, LOCKS_HELD.
    pub fn free_stateid(&mut self, client: ClientId, stateid: Stateid) -> Result<(), Status> {
        if let Some(file) = self.holdings.free(client, &stateid)? {
            self.tidy(file);
        }
        Ok(())
    }

    /// Whether READ may be done, or WRITE or SETATTR of the size (RFC 8881 §9.1.2). Without a
    /// client (another protocol, or the server's own work) the stateid is
    /// [`Stateid::ANONYMOUS`].
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED, OPENMODE, LOCKED, GRACE; DELAY while a delegation
    /// is recalled.
    pub fn check_io(
        &mut self,
        now: Duration,
        client: Option<ClientId>,
        file: &F,
        stateid: Stateid,
        access: ShareAccess,
    ) -> Result<(), Status> {
        // A client that did not reclaim yet may deny it.
        if self.grace.is_active() && stateid.is_special() {
            return Err(Status::Grace);
        }
        let file = self.files.number(file).unwrap_or_default();
        self.attempt(now, client, |it, _| it.check_io(client, file, &stateid, access)).map_err(status)
    }

    /// Whether a file may be changed otherwise: REMOVE, RENAME, LINK, and SETATTR of other
    /// attributes than the size. Recalls the delegations of other clients.
    ///
    /// # Errors
    /// DELAY while a delegation is recalled.
    pub fn check_change(&mut self, now: Duration, client: Option<ClientId>, file: &F) -> Result<(), Status> {
        let Some(file) = self.files.number(file) else { return Ok(()) };
        self.attempt(now, client, |it, _| it.check_delegations(file, client)).map_err(status)
    }

    /// LOCK (RFC 8881 §18.10). The owner of a lock that is denied and waits is called when it may
    /// ask again, with CB_NOTIFY_LOCK.
    ///
    /// # Errors
    /// Denied; INVAL, BAD_STATEID, OLD_STATEID, OPENMODE, GRACE, NO_GRACE, RECLAIM_BAD,
    /// RECLAIM_CONFLICT; DELAY with too many locks.
    pub fn lock(
        &mut self,
        now: Duration,
        client: ClientId,
        request: LockFile<'_, F>,
        locker: Locker<'_>,
        reclaim: bool,
    ) -> Result<Stateid, NotLocked> {
        self.admit(client, if reclaim { Claim::Reclaim { delegation: false } } else { Claim::New })?;
        let range = Range::new(request.offset, request.length)?;
        let writes = request.kind.without_wait() == LockType::Write;
        let wait = request.kind != request.kind.without_wait() && !reclaim;
        let file = self.files.number(request.file).ok_or(Status::BadStateid)?;
        let locked = self.attempt(now, Some(client), |holdings, limits| {
            holdings.lock(now, client, file, locker, (range, writes, wait), limits)
        });
        locked.map_err(|refusal| if reclaim { reclaim_conflict(refusal) } else { not_locked(refusal) })
    }

    /// LOCKT (RFC 8881 §18.11).
    ///
    /// # Errors
    /// Denied; INVAL, GRACE.
    pub fn test_lock(
        &mut self,
        now: Duration,
        client: ClientId,
        request: LockFile<'_, F>,
        owner: &[u8],
    ) -> Result<(), NotLocked> {
        self.grace.admit_new(true)?;
        let range = Range::new(request.offset, request.length)?;
        let writes = request.kind.without_wait() == LockType::Write;
        let Some(file) = self.files.number(request.file) else { return Ok(()) };
        let wanted = Wanted { client, file, owner, range, writes };
        self.attempt(now, Some(client), |it, _| it.check_lock(&wanted)).map_err(not_locked)
    }

    /// LOCKU (RFC 8881 §18.12).
    ///
    /// # Errors
    /// INVAL, BAD_STATEID, OLD_STATEID; DELAY with too many locks.
    pub fn unlock(
        &mut self,
        client: ClientId,
        stateid: Stateid,
        offset: u64,
        length: u64,
    ) -> Result<Stateid, Status> {
        let range = Range::new(offset, length)?;
        let stateid = self.holdings.unlock(client, &stateid, range, &self.limits)?;
        self.notify();
        Ok(stateid)
    }

    /// The outcome of a call to a client.
    pub fn called(&mut self, session: SessionId, slot: u32, sequence: u32, outcome: Outcome) {
        let sessions = &mut self.members.sessions;
        let Ok((client, _)) = sessions.get(session) else { return };
        let (accepted, done) = match outcome {
            Outcome::Lost => {
                sessions.lost(session, slot, sequence);
                return self.call(client);
            }
            Outcome::Refused(Status::Delay) => return sessions.delayed(session, slot, sequence),
            Outcome::Refused(_) => (false, false),
            Outcome::Done(result) => (true, result.is_ok()),
        };
        let call = sessions.answered(session, slot, sequence, accepted);
        if let Some(call) = call.filter(|_| !done) {
            self.not_called(&call);
        }
        if accepted && done {
            self.call(client);
        }
    }

    /// Ends what the time ends: leases, the grace period, recalls. Sends calls again.
    pub fn tick(&mut self, now: Duration) {
        self.end_grace(now);
        let limits = &self.limits;
        let members = &self.members;
        let over = members.clients.all().filter(|(id, renewed)| {
            // Most are not: nothing else is looked at for these.
            if now.saturating_sub(*renewed) <= limits.lease {
                return false;
            }
            let kept = members.clients.is_confirmed(*id) && self.holdings.has_client(*id);
            let courtesy = if kept { limits.courtesy } else { Duration::ZERO };
            members.is_expired(now.saturating_sub(courtesy), *id, limits)
        });
        for client in over.map(|(id, _)| id).collect::<Vec<_>>() {
            self.remove_client(client);
        }
        let lease = self.limits.lease;
        for client in self.holdings.delegations.revoke_overdue(now, lease) {
            if self.members.clients.set_revoked(client) {
                self.remember(client);
            }
        }
        let mut files = self.holdings.delegations.cooled(now);
        files.extend(self.holdings.locks.forget_waiting(|_, since| now.saturating_sub(since) > lease));
        files.into_iter().for_each(|it| self.tidy(it));
        let Holdings { delegations, locks, .. } = &self.holdings;
        let owed = self.members.sessions.owed().chain(delegations.recalled()).chain(locks.callable());
        for client in owed.collect::<BTreeSet<_>>() {
            self.call(client);
        }
    }

    /// Does what may conflict with clients, and removes those in the way that are expired: their
    /// state was kept out of courtesy. Recalls delegations that are in the way.
    fn attempt<T>(
        &mut self,
        now: Duration,
        own: Option<ClientId>,
        act: impl Fn(&mut Holdings, &Limits) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        // Files of removed clients keep their numbers until the end: `act` may use one.
        let mut files = BTreeSet::new();
        let result = loop {
            let conflict = match act(&mut self.holdings, &self.limits) {
                Err(Refusal::Conflict(conflict)) => conflict,
                other => break other,
            };
            let expired =
                |id: &&ClientId| Some(**id) != own && self.members.is_expired(now, **id, &self.limits);
            let expired: BTreeSet<ClientId> = conflict.clients.iter().filter(expired).copied().collect();
            // It is of no use to remove some clients if others stay; delegations are recalled.
            let useful = expired == conflict.clients || !conflict.recall.is_empty();
            if expired.is_empty() || !useful {
                for number in &conflict.recall {
                    self.holdings.delegations.recall(now, *number, self.limits.cooling, false);
                }
                conflict.clients.iter().for_each(|it| self.call(*it));
                break Err(Refusal::Conflict(conflict));
            }
            expired.into_iter().for_each(|it| files.extend(self.take_client(it)));
        };
        files.into_iter().for_each(|it| self.tidy(it));
        self.notify();
        result
    }

    /// Removes a client with all that it holds. Returns the files, which may have no state now.
    fn take_client(&mut self, client: ClientId) -> BTreeSet<FileNo> {
        let files = self.holdings.remove_client(client);
        if let Some(record) = self.members.remove(client) {
            self.effects.push_back(Effect::Forget(record.owner));
        }
        files
    }

    fn remove_client(&mut self, client: ClientId) {
        self.take_client(client).into_iter().for_each(|it| self.tidy(it));
        self.notify();
    }

    /// After an open ended.
    fn released(&mut self, file: FileNo) {
        self.tidy(file);
        self.notify();
    }

    /// Forgets a file without state.
    fn tidy(&mut self, file: FileNo) {
        if !self.holdings.has_file(file) {
            self.files.forget(file);
        }
    }

    /// Sends what waits to be sent to a client.
    fn call(&mut self, client: ClientId) {
        for (way, call) in self.members.sessions.send_again(client) {
            self.push(way, call);
        }
        for number in self.holdings.delegations.unsent(client) {
            let call = Call::Recall(number);
            let Some(way) = self.members.sessions.send(client, &call) else { break };
            self.holdings.delegations.set_sent(number, true);
            self.push(way, call);
        }
        while let Some((file, owner)) = self.holdings.locks.ready(client) {
            let owner: Box<[u8]> = owner.into();
            let call = Call::NotifyLock(file, owner.clone());
            let Some(way) = self.members.sessions.send(client, &call) else { break };
            self.push(way, call);
            self.holdings.locks.called(file, client, &owner);
            self.tidy(file);
        }
    }

    /// Calls the owners of waiting locks that may ask again since the last operation.
    fn notify(&mut self) {
        self.holdings.locks.take_woken().into_iter().for_each(|it| self.call(it));
    }

    /// A call did not reach the client, or the client could not do it.
    fn not_called(&mut self, call: &Call) {
        if let Call::Recall(number) = call {
            self.holdings.delegations.set_sent(*number, false);
        }
    }

    fn push(&mut self, way: Way, call: Call) {
        let operation = match call {
            Call::Probe => Some(CallbackOperation::Probe),
            Call::Recall(number) => self.holdings.delegations.get(number).and_then(|it| {
                let file = self.files.name(it.file)?.clone();
                Some(CallbackOperation::Recall { stateid: self.holdings.names.stateid(number, 1), file })
            }),
            Call::NotifyLock(file, owner) => self.files.name(file).cloned().and_then(|file| {
                let (client, _) = self.members.sessions.get(way.session).ok()?;
                Some(CallbackOperation::NotifyLock { file, client, owner })
            }),
        };
        // If the delegation or file of the call is gone, the slot still has to be used.
        let operation = operation.unwrap_or(CallbackOperation::Probe);
        self.effects.push_back(Effect::Call(Callback {
            connection: way.connection,
            minor: way.sent.service.minor,
            program: way.sent.service.program,
            credential: way.sent.service.credential,
            session: way.session,
            slot: way.sent.slot,
            sequence: way.sent.sequence,
            highest_slot: way.sent.highest_slot,
            operation,
        }));
    }
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Status(status) => status,
        Refusal::Conflict(conflict) => conflict.status,
    }
}

fn not_locked(refusal: Refusal) -> NotLocked {
    match refusal {
        Refusal::Status(status) => NotLocked::Status(status),
        Refusal::Conflict(conflict) => {
            conflict.denied.map_or(NotLocked::Status(conflict.status), NotLocked::Denied)
        }
    }
}

fn reclaim_conflict(refusal: Refusal) -> NotLocked {
    match refusal {
        Refusal::Status(status) => NotLocked::Status(status),
        Refusal::Conflict(_) => NotLocked::Status(Status::ReclaimConflict),
    }
}
