//! Owns the sessions: their channels, and the connections that carry them (RFC 8881 §2.10).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use invariant::{broken, invariant};
use rpc::xdr::List;

use super::back::{Back, Call, Connection, Sent, Service};
use super::limits::{Limits, least};
use super::saved::saved;
use super::slots::Slots;
use crate::v4::flags::sequence_status as flags;
use crate::v4::{
    CallbackSecurity, Channel, ChannelFromClient, ChannelFromServer, ClientId, SessionId, Status,
};

/// The shortest request and reply of a fore channel, bytes: a SEQUENCE alone fits.
const LEAST: u32 = 128;
/// The shortest request of a backchannel, bytes: a CB_RECALL fits.
const LEAST_CALL: u32 = 512;

/// The channels that a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    fore: bool,
    back: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    client: ClientId,
    fore: Channel,
    slots: Slots,
    back: Option<Back>,
    /// The client has used the session: it can be called on it.
    known: bool,
    /// A connection was bound to the backchannel at some time.
    called: bool,
    connections: BTreeMap<Connection, Bound>,
}

impl Session {
    /// The connection for the next call.
    fn caller(&self) -> Option<Connection> {
        self.back.as_ref().filter(|it| self.known && !it.fault())?;
        self.connections.iter().find(|(_, bound)| bound.back).map(|(connection, _)| *connection)
    }
}

/// The session, connection and slot for a call to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) session: SessionId,
    pub(super) connection: Connection,
    pub(super) sent: Sent,
}

/// All sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sessions {
    seed: u64,
    last: u64,
    sessions: BTreeMap<SessionId, Session>,
    by_client: BTreeSet<(ClientId, SessionId)>,
    by_connection: BTreeSet<(Connection, SessionId)>,
    /// Bytes of replies that the channels of all sessions may keep.
    reserved: u64,
}

saved! {
    Bound { fore, back }
    Session { client, fore, slots, back, known, called, connections }
    Sessions { seed, last, sessions, by_client, by_connection, reserved }
}

fn reservation(channel: &Channel) -> u64 {
    u64::from(channel.max_response_cached) * u64::from(channel.max_requests)
}

const FIRST: SessionId = SessionId([0; 16]);
const LAST: SessionId = SessionId([0xff; 16]);

impl Sessions {
    /// Session IDs are drawn from `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Sessions {
            seed,
            last: 0,
            sessions: BTreeMap::new(),
            by_client: BTreeSet::new(),
            by_connection: BTreeSet::new(),
            reserved: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Bytes of replies that are kept, and those that may be.
    pub(super) fn replies(&self) -> (u64, u64) {
        (self.sessions.values().map(|it| it.slots.kept() as u64).sum(), self.reserved)
    }

    pub(super) fn of(&self, client: ClientId) -> impl Iterator<Item = SessionId> {
        self.by_client.range((client, FIRST)..=(client, LAST)).map(|(_, session)| *session)
    }

    fn all_of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        self.of(client).filter_map(|it| self.sessions.get(&it))
    }

    /// Requests of the client that are being run.
    pub(super) fn busy(&self, client: ClientId) -> usize {
        self.all_of(client).map(|it| it.slots.busy()).sum()
    }

    /// Unique, and not to be guessed without the seed.
    fn draw(&mut self) -> SessionId {
        self.last += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, self.last).hash(&mut hasher);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&hasher.finish().to_be_bytes());
        id[8..].copy_from_slice(&self.last.to_be_bytes());
        SessionId(id)
    }

    /// Bytes of replies that one more session of a host may keep. `clients` are the host's.
    pub(super) fn room<T: Iterator<Item = ClientId>>(
        &self,
        clients: impl FnOnce() -> T,
        limits: &Limits,
    ) -> u64 {
        let all = limits.replies.saturating_sub(self.reserved);
        let share = limits.replies_of_host;
        // Most servers keep less for all hosts.
        let own = match self.reserved < share {
            true => self.reserved,
            false => clients().flat_map(|it| self.all_of(it)).map(|it| reservation(&it.fore)).sum(),
        };
        all.min(share.saturating_sub(own))
    }

    /// Negotiates a session's channels, with `room` for replies (RFC 8881 §18.36.3).
    ///
    /// # Errors
    /// TOOSMALL; NOSPC if replies could not be kept, or if the client has too many sessions.
    pub(super) fn negotiate(
        &self,
        client: ClientId,
        asked: (&Channel, &Channel),
        wants_back: bool,
        room: u64,
        limits: &Limits,
    ) -> Result<(Channel, Channel), Status> {
        let mut fore = least(asked.0, &limits.fore);
        let back = least(asked.1, &limits.back);
        let usable = |it: &Channel| it.max_requests > 0 && it.max_response >= LEAST;
        if !usable(&fore) || fore.max_request < LEAST || fore.max_operations == 0 {
            return Err(Status::TooSmall);
        }
        if wants_back && !(usable(&back) && back.max_request >= LEAST_CALL && back.max_operations >= 2) {
            return Err(Status::TooSmall);
        }
        fore.max_response_cached = fore.max_response_cached.min(fore.max_response);
        if fore.max_response_cached > 0 {
            fore.max_requests = fore
                .max_requests
                .min(u32::try_from(room / u64::from(fore.max_response_cached)).unwrap_or(u32::MAX));
        }
        if fore.max_requests == 0 || self.of(client).count() >= limits.sessions {
            return Err(Status::NoSpc);
        }
        Ok((fore, back))
    }

    /// Makes a session, carried by `connection`.
    pub(super) fn create(
        &mut self,
        client: ClientId,
        (fore, back): (Channel, Channel),
        service: Service,
        connection: Connection,
        carries_back: bool,
    ) -> SessionId {
        let id = self.draw();
        let usable = back.max_requests > 0 && back.max_operations >= 2 && back.max_request >= LEAST_CALL;
        let session = Session {
            client,
            fore,
            slots: Slots::new(fore.max_requests),
            back: usable.then(|| Back::new(service, back.max_requests)),
            known: false,
            called: carries_back,
            connections: BTreeMap::from([(connection, Bound { fore: true, back: carries_back })]),
        };
        self.reserved += reservation(&fore);
        self.sessions.insert(id, session);
        self.by_client.insert((client, id));
        self.by_connection.insert((connection, id));
        id
    }

    /// Removes a session. Returns its outstanding calls.
    pub(super) fn destroy(&mut self, id: SessionId) -> Vec<Call> {
        let Some(session) = self.sessions.remove(&id) else {
            broken!("a session that is destroyed twice");
            return Vec::new();
        };
        self.by_client.remove(&(session.client, id));
        for connection in session.connections.keys() {
            self.by_connection.remove(&(*connection, id));
        }
        let reserved = reservation(&session.fore);
        invariant!(reserved <= self.reserved, "{reserved} bytes given back of {}", self.reserved);
        self.reserved = self.reserved.saturating_sub(reserved);
        session.back.into_iter().flat_map(Back::into_calls).collect()
    }

    /// The session's client and its fore channel.
    pub(super) fn get(&self, id: SessionId) -> Result<(ClientId, Channel), Status> {
        self.sessions.get(&id).map(|it| (it.client, it.fore)).ok_or(Status::BadSession)
    }

    pub(super) fn slots(&mut self, id: SessionId) -> Option<&mut Slots> {
        self.sessions.get_mut(&id).map(|it| &mut it.slots)
    }

    pub(super) fn is_bound(&self, id: SessionId, connection: Connection) -> bool {
        self.by_connection.contains(&(connection, id))
    }

    /// Binds a connection to the fore channel, as SEQUENCE does without state protection
    /// (RFC 8881 §2.10.3.1). A connection beyond the limit is served without being bound.
    pub(super) fn bind_fore(&mut self, id: SessionId, connection: Connection, most: usize) {
        if let Some(session) = self.sessions.get_mut(&id) {
            if session.connections.len() < most && !session.connections.contains_key(&connection) {
                session.connections.insert(connection, Bound { fore: true, back: false });
                self.by_connection.insert((connection, id));
            }
        }
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 §18.34).
    ///
    /// # Errors
    /// BADSESSION; INVAL if the session has no backchannel; DELAY beyond the limit.
    pub(super) fn bind(
        &mut self,
        id: SessionId,
        connection: Connection,
        direction: ChannelFromClient,
        most: usize,
    ) -> Result<ChannelFromServer, Status> {
        let session = self.sessions.get_mut(&id).ok_or(Status::BadSession)?;
        let has_back = session.back.is_some();
        let (fore, back) = match direction {
            ChannelFromClient::Fore => (true, false),
            ChannelFromClient::Back if has_back => (false, true),
            ChannelFromClient::Back => return Err(Status::Inval),
            ChannelFromClient::ForeOrBoth | ChannelFromClient::BackOrBoth => (true, has_back),
        };
        if session.connections.len() >= most && !session.connections.contains_key(&connection) {
            return Err(Status::Delay);
        }
        let bound = session.connections.entry(connection).or_insert(Bound { fore, back });
        // A connection may have been bound by its SEQUENCE before.
        bound.fore |= fore;
        bound.back |= back;
        session.called |= bound.back;
        let bound = *bound;
        self.by_connection.insert((connection, id));
        Ok(match (bound.fore, bound.back) {
            (true, true) => ChannelFromServer::Both,
            (_, true) => ChannelFromServer::Back,
            _ => ChannelFromServer::Fore,
        })
    }

    pub(super) fn set_service(
        &mut self,
        id: SessionId,
        program: u32,
        security: List<'_, CallbackSecurity<'_>>,
    ) -> Result<(), Status> {
        let back = self.sessions.get_mut(&id).and_then(|it| it.back.as_mut()).ok_or(Status::NoEnt)?;
        back.set_service(program, security);
        Ok(())
    }

    /// Forgets a connection. Returns the clients whose sessions it carried.
    pub(super) fn closed(&mut self, connection: Connection) -> Vec<ClientId> {
        let ids: Vec<SessionId> =
            self.by_connection.range((connection, FIRST)..=(connection, LAST)).map(|(_, id)| *id).collect();
        let mut clients = Vec::new();
        for id in ids {
            self.by_connection.remove(&(connection, id));
            if let Some(session) = self.sessions.get_mut(&id) {
                session.connections.remove(&connection);
                if let Some(back) = &mut session.back {
                    back.lost(connection);
                }
                clients.push(session.client);
            }
        }
        clients
    }

    /// Status flags of the backchannels (RFC 8881 §18.46.3). A client that never bound one gets
    /// none.
    pub(super) fn back_flags(&self, id: SessionId) -> u32 {
        let Some(session) = self.sessions.get(&id) else {
            broken!("the flags of a session that has gone");
            return 0;
        };
        let all = || self.all_of(session.client);
        let mut set = 0;
        if session.back.as_ref().is_some_and(Back::fault) {
            set |= flags::BACKCHANNEL_FAULT;
        }
        if session.called && session.caller().is_none() {
            set |= flags::CB_PATH_DOWN_SESSION;
        }
        if all().any(|it| it.called) && !all().any(|it| it.caller().is_some()) {
            set |= flags::CB_PATH_DOWN;
        }
        set
    }

    /// An answered call proves that the client can be called.
    pub(super) fn can_call(&self, client: ClientId) -> bool {
        let proven = |it: &Session| it.caller().is_some() && it.back.as_ref().is_some_and(Back::proven);
        self.all_of(client).any(proven)
    }

    /// Sends a call on some session of the client. None if no backchannel is up and free.
    pub(super) fn send(&mut self, client: ClientId, call: &Call) -> Option<Way> {
        let sessions: Vec<SessionId> = self.of(client).collect();
        sessions.into_iter().find_map(|id| self.send_on(id, call))
    }

    fn send_on(&mut self, id: SessionId, call: &Call) -> Option<Way> {
        let session = self.sessions.get_mut(&id)?;
        let connection = session.caller()?;
        let back = session.back.as_mut()?;
        let sent = back.send(call.clone(), connection)?;
        Some(Way { session: id, connection, sent })
    }

    /// The clients for which [`Self::send_again`] has something.
    pub(super) fn owed(&self) -> impl Iterator<Item = ClientId> {
        let owed = |it: &&Session| it.back.as_ref().is_some_and(Back::is_owed);
        self.sessions.values().filter(owed).map(|it| it.client)
    }

    /// Sends calls again that were lost, and a probe on each backchannel that is not proven.
    pub(super) fn send_again(&mut self, client: ClientId) -> Vec<(Way, Call)> {
        let mut calls = Vec::new();
        for id in self.of(client).collect::<Vec<_>>() {
            while let Some(call) = self.send_lost(id) {
                calls.push(call);
            }
            calls.extend(self.probe(id));
        }
        calls
    }

    /// The client uses the session.
    pub(super) fn set_known(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.known = true;
        }
    }

    /// Sends a CB_SEQUENCE alone if no call proved that the backchannel works; again, if the client
    /// asked to wait.
    pub(super) fn probe(&mut self, id: SessionId) -> Option<(Way, Call)> {
        let back = self.sessions.get(&id)?.back.as_ref()?;
        if back.proven() {
            return None;
        }
        if back.has(&Call::Probe) {
            return self.send_lost(id);
        }
        self.send_on(id, &Call::Probe).map(|way| (way, Call::Probe))
    }

    fn send_lost(&mut self, id: SessionId) -> Option<(Way, Call)> {
        let session = self.sessions.get_mut(&id)?;
        let connection = session.caller()?;
        let back = session.back.as_mut()?;
        let (call, sent) = back.send_again(connection)?;
        Some((Way { session: id, connection, sent }, call))
    }

    /// A call got no answer: its connection no longer carries the backchannel.
    pub(super) fn lost(&mut self, id: SessionId, slot: u32, sequence: u32) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(back) = &mut session.back else { return };
        let Some(connection) = back.connection(slot, sequence) else { return };
        back.lost(connection);
        if let Some(bound) = session.connections.get_mut(&connection) {
            bound.back = false;
            if !bound.fore {
                session.connections.remove(&connection);
                self.by_connection.remove(&(connection, id));
            }
        }
    }

    /// The client asked to send a call later.
    pub(super) fn delayed(&mut self, id: SessionId, slot: u32, sequence: u32) {
        if let Some(back) = self.sessions.get_mut(&id).and_then(|it| it.back.as_mut()) {
            back.delayed(slot, sequence);
        }
    }

    /// A call was answered. Returns it if it was outstanding.
    pub(super) fn answered(
        &mut self,
        id: SessionId,
        slot: u32,
        sequence: u32,
        accepted: bool,
    ) -> Option<Call> {
        self.sessions.get_mut(&id)?.back.as_mut()?.answered(slot, sequence, accepted)
    }

    /// Forgets all connections.
    pub(super) fn disconnected(&mut self) {
        let all: BTreeSet<Connection> =
            self.by_connection.iter().map(|(connection, _)| *connection).collect();
        all.into_iter().for_each(|it| drop(self.closed(it)));
    }

    /// Ends all requests that are being run: the process that ran them is gone.
    pub(super) fn abandon(&mut self) {
        self.sessions.values_mut().for_each(|it| it.slots.abandon());
    }
}
