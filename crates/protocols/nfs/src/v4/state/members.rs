//! Owns the clients together with their sessions: the operations that concern both.

use std::net::IpAddr;
use std::time::Duration;

use super::back::{Call, Connection, Service};
use super::clients::{Clients, Create, Exchanged, Principal, Reclaim, Record};
use super::limits::Limits;
use super::saved::saved;
use super::sessions::Sessions;
use super::slots::Begin;
use crate::v4::flags::create_session;
use crate::v4::{
    Channel, ChannelFromClient, ChannelFromServer, ClientId, ClientOwner, CreateSession, CreateSessionOk,
    Sequence, SequenceOk, SessionId, Status,
};

/// A COMPOUND that runs: it holds its slot until
/// [`ServerState::finish`](super::ServerState::finish).
#[derive(Debug, PartialEq, Eq)]
pub struct Running {
    client: ClientId,
    fore: Channel,
    cache: bool,
    answer: SequenceOk,
}

impl Running {
    /// The client of the session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The results of its SEQUENCE.
    pub fn answer(&self) -> SequenceOk {
        self.answer
    }

    /// Limits of this request and its reply. The caller detects REP_TOO_BIG and
    /// REP_TOO_BIG_TO_CACHE.
    pub fn limits(&self) -> Channel {
        self.fore
    }
}

/// Result of a COMPOUND's SEQUENCE.
#[derive(Debug, PartialEq, Eq)]
pub enum Sequenced<'a> {
    /// It is new: run it.
    Run(Running),
    /// It is a retry: send this reply.
    Replay(&'a [u8]),
    /// It is a retry, and only the results of SEQUENCE were kept: the next operation, if there is
    /// one, gets RETRY_UNCACHED_REP.
    Uncached(SequenceOk),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) clients: Clients,
    pub(super) sessions: Sessions,
}

saved! { Members { clients, sessions } }

/// Whether the lease of a client that was last renewed at a time is valid, and the client has
/// state.
fn in_use(
    sessions: &Sessions,
    now: Duration,
    limits: &Limits,
    has_state: impl Fn(ClientId) -> bool,
) -> impl Fn(ClientId, Duration) -> bool {
    move |id, renewed| {
        let expired = now.saturating_sub(renewed) > limits.lease && sessions.busy(id) == 0;
        !expired && (has_state(id) || sessions.of(id).next().is_some())
    }
}

impl Members {
    pub(super) fn new(start: u32, seed: u64) -> Self {
        Members { clients: Clients::new(start), sessions: Sessions::new(seed) }
    }

    /// The lease is over, and no request of the client is being run.
    pub(super) fn is_expired(&self, now: Duration, id: ClientId, limits: &Limits) -> bool {
        let renewed = self.clients.renewed(id).unwrap_or(now);
        now.saturating_sub(renewed) > limits.lease && self.sessions.busy(id) == 0
    }

    /// EXCHANGE_ID. Also returns the clients that it replaced.
    pub(super) fn exchange_id(
        &mut self,
        now: Duration,
        principal: Principal<'_>,
        owner: &ClientOwner<'_>,
        flags: u32,
        has_state: impl Fn(ClientId) -> bool,
        limits: &Limits,
    ) -> Result<(Exchanged, Vec<ClientId>), Status> {
        let Members { clients, sessions } = self;
        let in_use = in_use(sessions, now, limits, has_state);
        clients.exchange_id(now, principal, owner, flags, limits, in_use)
    }

    /// Whether another client of the same name, in use on other hosts, keeps this one out.
    pub(super) fn is_kept_out(
        &self,
        now: Duration,
        host: IpAddr,
        client: ClientId,
        has_state: impl Fn(ClientId) -> bool,
        limits: &Limits,
    ) -> bool {
        self.clients.is_kept_out(client, host, in_use(&self.sessions, now, limits, has_state))
    }

    /// CREATE_SESSION (RFC 8881 §18.36.4). Also returns the client that the confirmed one replaces.
    pub(super) fn create_session(
        &mut self,
        now: Duration,
        connection: Connection,
        principal: Principal<'_>,
        (minor, request): (u32, &CreateSession<'_>),
        limits: &Limits,
        may_reclaim: impl Fn(&Record) -> Reclaim,
    ) -> (Result<CreateSessionOk, Status>, Option<ClientId>) {
        let id = request.client;
        match self.clients.create(id, request.sequence, principal) {
            Err(status) => return (Err(status), None),
            Ok(Create::Replay(result)) => return (result, None),
            Ok(Create::Run) => {}
        }
        let created = self.make_session(connection, principal.host, minor, request, limits);
        self.clients.created(id, created);
        let mut replaced = None;
        if created.is_ok() {
            self.clients.renew(now, id);
            let may_reclaim = self.clients.record(id).map(|it| may_reclaim(&it)).unwrap_or_default();
            replaced = self.clients.confirm(id, may_reclaim);
        }
        (created, replaced)
    }

    fn make_session(
        &mut self,
        connection: Connection,
        host: IpAddr,
        minor: u32,
        request: &CreateSession<'_>,
        limits: &Limits,
    ) -> Result<CreateSessionOk, Status> {
        use create_session::{CONN_BACK_CHAN, CONN_RDMA, PERSIST};
        if request.flags & !(PERSIST | CONN_BACK_CHAN | CONN_RDMA) != 0 {
            return Err(Status::Inval);
        }
        let carries_back = request.flags & CONN_BACK_CHAN != 0;
        let asked = (&request.fore, &request.back);
        let room = self.sessions.room(|| self.clients.of_host(host), limits);
        let channels = self.sessions.negotiate(request.client, asked, carries_back, room, limits)?;
        let service = Service::new(minor, request.program, request.security);
        let session = self.sessions.create(request.client, channels, service, connection, carries_back);
        let (fore, back) = channels;
        Ok(CreateSessionOk {
            session,
            sequence: request.sequence,
            flags: request.flags & CONN_BACK_CHAN,
            fore,
            back,
        })
    }

    /// BIND_CONN_TO_SESSION. Also returns the session's client.
    pub(super) fn bind(
        &mut self,
        id: SessionId,
        connection: Connection,
        direction: ChannelFromClient,
        limits: &Limits,
    ) -> Result<(ChannelFromServer, ClientId), Status> {
        let (client, _) = self.sessions.get(id)?;
        Ok((self.sessions.bind(id, connection, direction, limits.connections)?, client))
    }

    /// DESTROY_SESSION (RFC 8881 §18.37). `own` is the request in whose COMPOUND it is. Returns the
    /// client and the calls that got no answer.
    pub(super) fn destroy_session(
        &mut self,
        id: SessionId,
        connection: Connection,
        own: Option<&Running>,
    ) -> Result<(ClientId, Vec<Call>), Status> {
        let (client, _) = self.sessions.get(id)?;
        if !self.sessions.is_bound(id, connection) {
            return Err(Status::ConnNotBoundToSession);
        }
        let busy = self.sessions.slots(id).map_or(0, |it| it.busy());
        if busy > usize::from(own.is_some_and(|it| it.answer.session == id)) {
            return Err(Status::Delay);
        }
        Ok((client, self.sessions.destroy(id)))
    }

    /// Whether DESTROY_CLIENTID may remove the client (RFC 8881 §18.50).
    pub(super) fn may_destroy(&self, id: ClientId, host: IpAddr) -> Result<(), Status> {
        // The call needs no session, and client IDs can be guessed: other hosts know of no such
        // client.
        if !self.clients.is_of(id, host) {
            return Err(Status::StaleClientId);
        }
        if self.sessions.of(id).next().is_none() { Ok(()) } else { Err(Status::ClientIdBusy) }
    }

    /// Removes a client and its sessions. Returns its record if that is in stable storage.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Record> {
        for session in self.sessions.of(id).collect::<Vec<_>>() {
            self.sessions.destroy(session);
        }
        self.clients.remove(id)
    }

    /// SEQUENCE (RFC 8881 §18.46). `flags` has more status flags of a client.
    pub(super) fn sequence(
        &mut self,
        now: Duration,
        connection: Connection,
        request: &Sequence,
        checksum: u64,
        limits: &Limits,
        flags: impl Fn(ClientId) -> u32,
    ) -> Result<Sequenced<'_>, Status> {
        let Sequence { session, sequence, slot, highest_slot, cache } = *request;
        let (client, fore) = self.sessions.get(session)?;
        let set = self.sessions.back_flags(session) | flags(client);
        let slots = self.sessions.slots(session).ok_or(Status::BadSession)?;
        if slot > slots.highest() {
            return Err(Status::BadSlot);
        }
        if highest_slot > slots.highest() {
            return Err(Status::BadHighSlot);
        }
        let highest = slots.highest();
        self.clients.renew(now, client);
        if let Begin::Retry(answer) = slots.begin(slot, sequence, checksum)? {
            let reply = self.sessions.slots(session).and_then(|it| it.reply(slot));
            return Ok(reply.map_or(Sequenced::Uncached(answer), Sequenced::Replay));
        }
        let answer = SequenceOk {
            session,
            sequence,
            slot,
            highest_slot: highest,
            target_highest_slot: highest,
            status_flags: set,
        };
        slots.run(checksum, answer);
        self.sessions.bind_fore(session, connection, limits.connections);
        Ok(Sequenced::Run(Running { client, fore, cache, answer }))
    }

    /// A COMPOUND ended. Keeps its reply if the client asked for that, and if the session allows.
    pub(super) fn finish(&mut self, now: Duration, running: &Running, reply: &[u8]) {
        let keep = running.cache && reply.len() <= running.fore.max_response_cached as usize;
        if let Some(slots) = self.sessions.slots(running.answer.session) {
            slots.finish(running.answer.slot, keep.then_some(reply));
            self.clients.renew(now, running.client);
        }
    }
}
