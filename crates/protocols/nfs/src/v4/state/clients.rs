//! Owns the records of clients: EXCHANGE_ID, the sequence of CREATE_SESSION, and the time of the
//! last renewal of each lease (RFC 8881 §18.35, §18.36, §8.3).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use arrayvec::ArrayVec;

use super::limits::Limits;
use super::saved::saved;
use crate::v4::flags::exchange_id as flags;
use crate::v4::{ClientId, ClientOwner, CreateSessionOk, Status, Verifier};

/// The addresses that a client is known by, the oldest first. A further one takes the place of the
/// oldest.
pub type Hosts = ArrayVec<IpAddr, 8>;

/// The host that an address counts for: an IPv4 address, or an IPv6 network of 64 bits, all of
/// whose addresses one host can use.
fn network(host: IpAddr) -> IpAddr {
    match host.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// The caller. With AUTH_SYS only both fields together distinguish clients: every root of every
/// machine has the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal<'a> {
    /// The user, as bytes to compare.
    pub user: &'a [u8],
    /// The address that the call comes from.
    pub host: IpAddr,
}

/// A client's record in stable storage: it may reclaim after a restart of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `co_ownerid`: names the record.
    pub owner: Box<[u8]>,
    /// Of the client's start. A client that restarted has nothing to reclaim.
    pub verifier: Verifier,
    /// Other hosts do not take the client's place while it may reclaim.
    pub hosts: Hosts,
    /// A delegation of the client was revoked, so it reclaims none.
    pub revoked: bool,
}

/// The results of EXCHANGE_ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchanged {
    /// The client ID.
    pub client: ClientId,
    /// The sequence ID of the client's next CREATE_SESSION.
    pub sequence: u32,
    /// Bits of [`flags::exchange_id`](crate::v4::flags::exchange_id).
    pub flags: u32,
}

/// Whether a CREATE_SESSION is run (RFC 8881 §18.36.4).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Create {
    /// It is new.
    Run,
    /// It is a retry, with this result.
    Replay(Result<CreateSessionOk, Status>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Client {
    owner: Box<[u8]>,
    verifier: Verifier,
    user: Box<[u8]>,
    /// The addresses from which its name came with its verifier.
    hosts: Hosts,
    confirmed: bool,
    renewed: Duration,
    /// Of the last CREATE_SESSION.
    sequence: u32,
    created: Result<CreateSessionOk, Status>,
    recorded: bool,
    /// A delegation of the client was revoked.
    revoked: bool,
    /// Its record of before the server's restart allows this.
    may_reclaim: Reclaim,
    reclaim_complete: bool,
}

impl Client {
    fn record(&self) -> Record {
        let Client { owner, verifier, hosts, revoked, .. } = self;
        Record { owner: owner.clone(), verifier: *verifier, hosts: hosts.clone(), revoked: *revoked }
    }

    /// Remembers an address of the client.
    fn seen_at(&mut self, host: IpAddr) {
        if !self.hosts.contains(&host) {
            if self.hosts.is_full() {
                self.hosts.remove(0);
            }
            self.hosts.push(host);
        }
    }
}

/// The kinds of state that a client may reclaim after a restart of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reclaim {
    /// Opens and locks.
    pub(super) opens: bool,
    pub(super) delegations: bool,
}

/// The clients of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Named {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// All clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clients {
    start: u32,
    last: u32,
    clients: BTreeMap<ClientId, Client>,
    owners: BTreeMap<Box<[u8]>, Named>,
}

saved! {
    Record { owner, verifier, hosts, revoked }
    Reclaim { opens, delegations }
    Client {
        owner, verifier, user, hosts, confirmed, renewed, sequence, created, recorded, revoked,
        may_reclaim, reclaim_complete,
    }
    Named { confirmed, unconfirmed }
    Clients { start, last, clients, owners }
}

impl Clients {
    /// `start` differs from that of earlier starts, so their client IDs are unknown now.
    pub(super) fn new(start: u32) -> Self {
        Clients { start, last: 0, clients: BTreeMap::new(), owners: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// EXCHANGE_ID, in the cases of RFC 8881 §18.35.4. The user is the RFC's principal. A client's
    /// name alone is no proof, so another host does not replace a client in use by one that has
    /// restarted: that is answered as another principal is. With the client's verifier it is a
    /// further address of the client (§2.10.5). Also returns the clients whose records were
    /// replaced. `in_use` says of a client and its last renewal that the lease is valid and that it
    /// has state. DELAY: there are too many clients, or too many of the host.
    pub(super) fn exchange_id(
        &mut self,
        now: Duration,
        principal: Principal<'_>,
        request: &ClientOwner<'_>,
        sent: u32,
        limits: &Limits,
        in_use: impl Fn(ClientId, Duration) -> bool,
    ) -> Result<(Exchanged, Vec<ClientId>), Status> {
        if sent & !flags::MASK_A != 0 {
            return Err(Status::Inval);
        }
        let update = sent & flags::UPD_CONFIRMED_REC_A != 0;
        let named = self.owners.get(request.owner.bytes()).cloned().unwrap_or_default();
        let mut replaced: Vec<ClientId> = named.unconfirmed.into_iter().collect();
        if let Some((id, client)) = named.confirmed.and_then(|id| Some((id, self.clients.get_mut(&id)?))) {
            let same_user = *client.user == *principal.user;
            match (update, client.verifier == request.verifier, same_user) {
                // Case 9.
                (true, _, false) => return Err(Status::Perm),
                // Case 8.
                (true, false, true) => return Err(Status::NotSame),
                // Cases 6 and 2.
                (_, true, true) => {
                    client.seen_at(principal.host);
                    let sequence = client.sequence.wrapping_add(1);
                    let flags = flags::USE_NON_PNFS | flags::CONFIRMED_R;
                    return Ok((Exchanged { client: id, sequence, flags }, Vec::new()));
                }
                // Case 3.
                (false, _, false) if in_use(id, client.renewed) => return Err(Status::ClidInUse),
                (false, _, false) => replaced.push(id),
                (false, false, true)
                    if !client.hosts.contains(&principal.host) && in_use(id, client.renewed) =>
                {
                    return Err(Status::ClidInUse);
                }
                // Case 5: the confirmed record stays until the new one is confirmed.
                (false, false, true) => {}
            }
        } else if update {
            // Case 7.
            return Err(Status::NoEnt);
        }
        // Cases 1 and 4, and the rest of 3 and 5.
        if self.clients.len().saturating_sub(replaced.len()) >= limits.clients
            || self.has_share(principal.host, &replaced, limits)
        {
            return Err(Status::Delay);
        }
        Ok((self.add(now, principal, request), replaced))
    }

    /// Whether a host has used up its share of clients, not counting those of `without`.
    pub(super) fn has_share(&self, host: IpAddr, without: &[ClientId], limits: &Limits) -> bool {
        // Most servers have fewer clients than that, and need not count.
        self.clients.len() >= limits.clients_of_host
            && self.of_host(host).filter(|id| !without.contains(id)).count() >= limits.clients_of_host
    }

    /// The clients that are known by an address of a host.
    pub(super) fn of_host(&self, host: IpAddr) -> impl Iterator<Item = ClientId> {
        let host = network(host);
        let is_of = move |client: &Client| client.hosts.iter().any(|it| network(*it) == host);
        self.clients.iter().filter(move |(_, client)| is_of(client)).map(|(id, _)| *id)
    }

    /// Adds an unconfirmed record.
    fn add(&mut self, now: Duration, principal: Principal<'_>, request: &ClientOwner<'_>) -> Exchanged {
        self.last = self.last.wrapping_add(1);
        let id = ClientId(u64::from(self.start) << 32 | u64::from(self.last));
        let owner: Box<[u8]> = request.owner.bytes().into();
        self.owners.entry(owner.clone()).or_default().unconfirmed = Some(id);
        self.clients.insert(
            id,
            Client {
                owner,
                verifier: request.verifier,
                user: principal.user.into(),
                hosts: Hosts::from_iter([principal.host]),
                confirmed: false,
                renewed: now,
                sequence: 0,
                created: Err(Status::SeqMisordered),
                recorded: false,
                revoked: false,
                may_reclaim: Reclaim::default(),
                reclaim_complete: false,
            },
        );
        Exchanged { client: id, sequence: 1, flags: flags::USE_NON_PNFS }
    }

    /// The sequence and the principal of a CREATE_SESSION. A host that did not send the client's
    /// name and verifier does not know of the client: client IDs can be guessed.
    pub(super) fn create(
        &self,
        id: ClientId,
        sequence: u32,
        principal: Principal<'_>,
    ) -> Result<Create, Status> {
        let known = |client: &&Client| client.hosts.contains(&principal.host);
        let client = self.clients.get(&id).filter(known).ok_or(Status::StaleClientId)?;
        if sequence == client.sequence {
            return Ok(Create::Replay(client.created));
        }
        if sequence != client.sequence.wrapping_add(1) {
            return Err(Status::SeqMisordered);
        }
        if *client.user != *principal.user {
            return Err(Status::ClidInUse);
        }
        Ok(Create::Run)
    }

    /// Whether another client of the same name is in use on other hosts: since this client's
    /// EXCHANGE_ID, which would have been refused. `in_use` as for [`Self::exchange_id`].
    pub(super) fn is_kept_out(
        &self,
        id: ClientId,
        host: IpAddr,
        in_use: impl Fn(ClientId, Duration) -> bool,
    ) -> bool {
        let named = self.clients.get(&id).and_then(|it| self.owners.get(&it.owner));
        let other = named.and_then(|it| it.confirmed).filter(|it| *it != id);
        other
            .and_then(|other| Some((other, self.clients.get(&other)?)))
            .is_some_and(|(other, held)| !held.hosts.contains(&host) && in_use(other, held.renewed))
    }

    /// Keeps the result of a CREATE_SESSION that was run.
    pub(super) fn created(&mut self, id: ClientId, result: Result<CreateSessionOk, Status>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.sequence = client.sequence.wrapping_add(1);
            client.created = result;
        }
    }

    /// Confirms a record. Returns the confirmed client of the same owner that this one replaces.
    pub(super) fn confirm(&mut self, id: ClientId, may_reclaim: Reclaim) -> Option<ClientId> {
        let client = self.clients.get_mut(&id).filter(|it| !it.confirmed)?;
        client.confirmed = true;
        client.may_reclaim = may_reclaim;
        let named = self.owners.entry(client.owner.clone()).or_default();
        named.unconfirmed = None;
        named.confirmed.replace(id)
    }

    /// Removes a client. Returns its record if that is in stable storage.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Record> {
        let client = self.clients.remove(&id)?;
        if let Some(named) = self.owners.get_mut(&client.owner) {
            named.confirmed.take_if(|it| *it == id);
            named.unconfirmed.take_if(|it| *it == id);
            if *named == Named::default() {
                self.owners.remove(&client.owner);
            }
        }
        client.recorded.then(|| client.record())
    }

    pub(super) fn renew(&mut self, now: Duration, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.renewed = client.renewed.max(now);
        }
    }

    /// Since when the client was not heard.
    pub(super) fn renewed(&self, id: ClientId) -> Option<Duration> {
        self.clients.get(&id).map(|it| it.renewed)
    }

    /// Whether the host has sent the client's name and verifier.
    pub(super) fn is_of(&self, id: ClientId, host: IpAddr) -> bool {
        self.clients.get(&id).is_some_and(|it| it.hosts.contains(&host))
    }

    pub(super) fn is_confirmed(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|it| it.confirmed)
    }

    /// All clients, with the times of their last renewal.
    pub(super) fn all(&self) -> impl Iterator<Item = (ClientId, Duration)> {
        self.clients.iter().map(|(id, it)| (*id, it.renewed))
    }

    /// The record that stable storage would keep of the client.
    pub(super) fn record(&self, id: ClientId) -> Option<Record> {
        self.clients.get(&id).map(Client::record)
    }

    /// Notes that the client's record is in stable storage. False if it was before.
    pub(super) fn set_recorded(&mut self, id: ClientId) -> bool {
        self.clients.get_mut(&id).is_some_and(|it| !std::mem::replace(&mut it.recorded, true))
    }

    /// All records that stable storage has to keep.
    pub(super) fn recorded(&self) -> Vec<Record> {
        self.clients.values().filter(|it| it.recorded).map(Client::record).collect()
    }

    /// Notes that a delegation was revoked. False if one was before.
    pub(super) fn set_revoked(&mut self, id: ClientId) -> bool {
        self.clients.get_mut(&id).is_some_and(|it| !std::mem::replace(&mut it.revoked, true))
    }

    /// The kinds of state that the client may reclaim in the grace period.
    pub(super) fn may_reclaim(&self, id: ClientId) -> Reclaim {
        self.clients.get(&id).map(|it| it.may_reclaim).unwrap_or_default()
    }

    /// RECLAIM_COMPLETE was sent.
    pub(super) fn reclaim_complete(&self, id: ClientId) -> bool {
        self.clients.get(&id).is_some_and(|it| it.reclaim_complete)
    }

    /// Notes RECLAIM_COMPLETE. False if it was sent before.
    pub(super) fn set_reclaim_complete(&mut self, id: ClientId) -> bool {
        self.clients.get_mut(&id).is_some_and(|it| !std::mem::replace(&mut it.reclaim_complete, true))
    }
}
