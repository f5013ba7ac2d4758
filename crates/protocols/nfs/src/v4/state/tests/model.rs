//! Random steps of three clients against a simple model of the state that they were granted.
//!
//! The model knows the opens, the locks of each byte, the delegations, and stable storage. It
//! predicts each answer. A client may lose its state only if its lease expired.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CLIENTS: usize = 3;
const BYTES: usize = 8;
const ACCESS: [ShareAccess; 3] = [ShareAccess::Read, ShareAccess::Write, ShareAccess::Both];
const DENY: [ShareDeny; 4] = [ShareDeny::None, ShareDeny::Read, ShareDeny::Write, ShareDeny::Both];

#[derive(Debug, Clone)]
enum Step {
    Open { client: usize, owner: u8, file: u64, access: usize, deny: usize },
    Downgrade { client: usize, owner: u8, file: u64, access: usize, deny: usize },
    Close { client: usize, owner: u8, file: u64 },
    Lock { client: usize, owner: u8, file: u64, writes: bool, wait: bool, first: usize, length: usize },
    Unlock { client: usize, owner: u8, file: u64, first: usize, length: usize },
    Io { client: usize, file: u64, access: usize, anonymous: bool },
    Return { client: usize, file: u64 },
    Retry { client: usize },
    Answer { which: usize, outcome: u8 },
    Cut { client: usize },
    Pass { seconds: u64 },
    Unmount { client: usize },
    RestartClient { client: usize },
    RestartServer { back: [bool; CLIENTS] },
    HandOver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let (owner, file) = (|| 0..2u8, || 0..2u64);
    let deny = || prop_oneof![9 => Just(0usize), 1 => 1..4usize];
    let access = || prop_oneof![2 => Just(0usize), 1 => Just(1), 2 => Just(2)];
    let range = || (0..BYTES, 1..=BYTES);
    let step = prop_oneof![
        12 => (client(), owner(), file(), access(), deny()).prop_map(|(client, owner, file, access, deny)|
            Step::Open { client, owner, file, access, deny }),
        2 => (client(), owner(), file(), 0..3usize, deny()).prop_map(|(client, owner, file, access, deny)|
            Step::Downgrade { client, owner, file, access, deny }),
        6 => (client(), owner(), file()).prop_map(|(client, owner, file)| Step::Close { client, owner, file }),
        12 => (client(), owner(), file(), any::<(bool, bool)>(), range()).prop_map(
            |(client, owner, file, (writes, wait), (first, length))|
            Step::Lock { client, owner, file, writes, wait, first, length }),
        6 => (client(), owner(), file(), range()).prop_map(|(client, owner, file, (first, length))|
            Step::Unlock { client, owner, file, first, length }),
        4 => (client(), file(), 0..2usize, any::<bool>()).prop_map(|(client, file, access, anonymous)|
            Step::Io { client, file, access, anonymous }),
        3 => (client(), file()).prop_map(|(client, file)| Step::Return { client, file }),
        4 => client().prop_map(|client| Step::Retry { client }),
        14 => (any::<usize>(), 0..10u8).prop_map(|(which, outcome)| Step::Answer { which, outcome }),
        1 => client().prop_map(|client| Step::Cut { client }),
        5 => prop_oneof![12 => 1..30u64, 2 => Just(91), 1 => Just(400)].prop_map(|seconds| Step::Pass { seconds }),
        1 => client().prop_map(|client| Step::Unmount { client }),
        1 => client().prop_map(|client| Step::RestartClient { client }),
        2 => any::<[bool; CLIENTS]>().prop_map(|back| Step::RestartServer { back }),
        2 => Just(Step::HandOver),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Debug, Clone)]
struct Opening {
    stateid: Stateid,
    /// Pairs of bits that were opened and not downgraded.
    pairs: BTreeSet<(u32, u32)>,
}

impl Opening {
    fn union(&self) -> (u32, u32) {
        self.pairs.iter().fold((0, 0), |all, it| (all.0 | it.0, all.1 | it.1))
    }
}

#[derive(Debug, Clone)]
struct Locking {
    stateid: Stateid,
    bytes: [Option<bool>; BYTES],
}

#[derive(Debug, Clone)]
struct Delegating {
    stateid: Stateid,
    /// Time at which it first conflicted with another client's request.
    recalled: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
struct Granted {
    opens: BTreeMap<(u8, u64), Opening>,
    locks: BTreeMap<(u8, u64), Locking>,
    delegations: BTreeMap<u64, Delegating>,
}

#[derive(Debug, Clone, Default)]
struct Peer {
    verifier: u8,
    mounted: Option<Client>,
    renewed: Duration,
    sequence: u32,
    /// The reply to the last request.
    reply: Option<Vec<u8>>,
    granted: Granted,
}

struct World {
    server: Server,
    start: u32,
    peers: [Peer; CLIENTS],
    storage: BTreeMap<u8, Record>,
    outstanding: Vec<Callback<u64>>,
    connections: Connection,
}

fn small() -> Limits {
    Limits {
        clients: CLIENTS + 1,
        sessions: 2,
        connections: 2,
        opens: 3,
        ranges: 12,
        delegations: 3,
        courtesy: Duration::from_secs(300),
        ..limits()
    }
}

impl World {
    fn new() -> Self {
        World {
            server: Server::with(small(), Vec::new()),
            start: 100,
            peers: Default::default(),
            storage: BTreeMap::new(),
            outstanding: Vec::new(),
            connections: 0,
        }
    }

    fn id(&self, client: usize) -> Option<ClientId> {
        self.peers[client].mounted.map(|it| it.id)
    }

    fn expired(&self, client: usize) -> bool {
        self.server.now - self.peers[client].renewed > LEASE
    }

    fn client_of(&self, id: ClientId) -> usize {
        (0..CLIENTS).find(|it| self.id(*it) == Some(id)).expect("a client that is mounted")
    }

    /// Takes effects, and looks for clients that the server removed.
    fn settle(&mut self) {
        for effect in self.server.effects() {
            match effect {
                Effect::Remember(record) => {
                    self.storage.insert(record.owner[0], record);
                }
                Effect::Forget(owner) => {
                    self.storage.remove(&owner[0]);
                }
                Effect::EndGrace(records) => {
                    self.storage = records.into_iter().map(|it| (it.owner[0], it)).collect();
                }
                Effect::Call(call) => {
                    self.outstanding.retain(|it| (it.session, it.slot) != (call.session, call.slot));
                    self.outstanding.push(call);
                }
            }
        }
        for client in 0..CLIENTS {
            let Some(id) = self.id(client) else { continue };
            if self.server.state.members.clients.renewed(id).is_none() {
                assert!(self.expired(client), "client {client} lost its state within its lease");
                self.peers[client].mounted = None;
                self.peers[client].granted = Granted::default();
            }
            let now = self.server.now;
            let state = &self.server.state;
            self.peers[client].granted.delegations.retain(|_, it| {
                let revoked = state.test_stateid(id, it.stateid) == Err(Status::DelegRevoked);
                if revoked {
                    let since = it.recalled.expect("a delegation was revoked that was not in the way");
                    assert!(now - since >= LEASE);
                }
                !revoked
            });
        }
    }

    /// Checks the invariants that hold after each step.
    fn check(&mut self) {
        self.settle();
        let usage = self.server.state.usage();
        let all = || self.peers.iter().map(|it| &it.granted);
        assert_eq!(usage.opens, all().map(|it| it.opens.len()).sum::<usize>());
        assert_eq!(usage.locks, all().map(|it| it.locks.len()).sum::<usize>());
        assert!(usage.delegations >= all().map(|it| it.delegations.len()).sum());
        assert!(usage.clients <= CLIENTS + 1 && usage.delegations <= 3);
        assert!(usage.opens <= 3 * CLIENTS && usage.replies <= usage.reserved);
        for (client, peer) in self.peers.iter().enumerate() {
            if !peer.granted.opens.is_empty() {
                let kept = self.storage.get(&(client as u8)).map(|it| it.verifier);
                assert_eq!(kept, Some(Verifier([peer.verifier; 8])), "the record of client {client}");
            }
            if let Some(id) = self.id(client) {
                assert!(self.server.state.holdings.locks.count(id) <= 12);
            }
        }
        let opens: Vec<(usize, u8, u64, (u32, u32))> = self.opens().collect();
        for (at, one) in opens.iter().enumerate() {
            for other in &opens[at + 1..] {
                let conflict = one.3.0 & other.3.1 != 0 || one.3.1 & other.3.0 != 0;
                assert!(one.2 != other.2 || !conflict, "two opens conflict: {one:?} {other:?}");
            }
        }
        let locks: Vec<_> = self.locks().collect();
        for (at, one) in locks.iter().enumerate() {
            for other in &locks[at + 1..] {
                let both = one.3.iter().zip(other.3).any(|it| matches!(it, (Some(a), Some(b)) if *a || b));
                assert!(one.2 != other.2 || !both, "two locks conflict: {one:?} {other:?}");
            }
        }
        for (client, peer) in self.peers.iter().enumerate() {
            for file in peer.granted.delegations.keys() {
                let writer = opens.iter().find(|it| it.2 == *file && it.0 != client && it.3.0 & 2 != 0);
                assert_eq!(writer, None, "a writer beside a delegation of client {client}");
            }
        }
    }

    /// Client, owner, file, access and deny.
    fn opens(&self) -> impl Iterator<Item = (usize, u8, u64, (u32, u32))> {
        let peers = self.peers.iter().enumerate();
        peers.flat_map(|(client, peer)| {
            peer.granted.opens.iter().map(move |((owner, file), it)| (client, *owner, *file, it.union()))
        })
    }

    fn locks(&self) -> impl Iterator<Item = (usize, u8, u64, [Option<bool>; BYTES])> {
        let peers = self.peers.iter().enumerate();
        peers.flat_map(|(client, peer)| {
            peer.granted.locks.iter().map(move |((owner, file), it)| (client, *owner, *file, it.bytes))
        })
    }

    fn mount(&mut self, client: usize) {
        if self.peers[client].mounted.is_some() {
            return;
        }
        self.connections += 1;
        let (name, verifier, now) = (client as u8, self.peers[client].verifier, self.server.now);
        let exchanged = self.server.state.exchange_id(now, ROOT, &owner(&[name], verifier), 0).unwrap();
        let create = creation(exchanged.client, exchanged.sequence);
        let created = self.server.state.create_session(now, self.connections, ROOT, 1, &create).unwrap();
        let peer = &mut self.peers[client];
        peer.mounted = Some(Client {
            name,
            id: exchanged.client,
            session: created.session,
            connection: self.connections,
        });
        (peer.renewed, peer.sequence, peer.reply) = (now, 0, None);
    }

    /// Runs a COMPOUND of a client, which mounts first if it has to.
    fn compound<T: std::fmt::Debug>(
        &mut self,
        client: usize,
        act: impl FnOnce(&mut Server, Client) -> T,
    ) -> T {
        self.settle();
        if self.peers[client].mounted.is_none() {
            self.mount(client);
            let id = self.id(client).expect("it is mounted");
            self.server.state.reclaim_complete(self.server.now, id, false).unwrap();
        }
        let peer = &mut self.peers[client];
        let mounted = peer.mounted.expect("it is mounted");
        peer.sequence += 1;
        peer.renewed = self.server.now;
        let sequence = request(mounted.session, 1, peer.sequence);
        let Ok(Sequenced::Run(running)) = self.server.sequence(mounted.connection, sequence) else {
            panic!("a request does not run")
        };
        let result = act(&mut self.server, mounted);
        let reply = format!("{result:?} {}", peer.sequence).into_bytes();
        self.server.state.finish(self.server.now, running, &reply);
        peer.reply = Some(reply);
        result
    }

    /// Clients without a conflict among `holders`, or those that are expired: they give way.
    fn in_the_way(&self, own: usize, holders: &BTreeSet<usize>) -> bool {
        holders.iter().any(|it| *it == own || !self.expired(*it))
    }

    /// The answer to a request to `access` and `deny` a file. Notes delegations in the way.
    fn expect_shares(
        &mut self,
        client: usize,
        file: u64,
        (access, deny): (u32, u32),
        status: Status,
        recalls: bool,
    ) -> Result<(), Status> {
        let conflict = |it: (u32, u32)| access & it.1 != 0 || deny & it.0 != 0;
        let holders = self.opens().filter(|it| it.2 == file && conflict(it.3)).map(|it| it.0).collect();
        if self.in_the_way(client, &holders) {
            return Err(status);
        }
        let mut result = Ok(());
        for other in (0..CLIENTS).filter(|it| recalls && *it != client && !holders.contains(it)) {
            let expired = self.expired(other);
            if let Some(delegation) = self.peers[other].granted.delegations.get_mut(&file) {
                if !expired {
                    delegation.recalled.get_or_insert(self.server.now);
                    result = Err(Status::Delay);
                }
            }
        }
        result
    }

    fn open(
        &mut self,
        client: usize,
        owner: u8,
        file: u64,
        access: ShareAccess,
        deny: ShareDeny,
        claim: Claim,
    ) {
        let pair = (access.code(), deny.code());
        self.settle();
        let recalls = access.writes() || deny.denies(ShareAccess::Read);
        let mut expected = self.expect_shares(client, file, pair, Status::ShareDenied, recalls);
        let opens = &self.peers[client].granted.opens;
        if expected.is_ok() && !opens.contains_key(&(owner, file)) && opens.len() >= 3 {
            expected = Err(Status::Delay);
        }
        let opened =
            self.compound(client, |it, client| it.open_as(client, &[owner], file, (access, deny), claim));
        assert_eq!(opened.map(|_| ()), expected);
        let Ok(opened) = opened else { return };
        self.settle();
        let granted = &mut self.peers[client].granted;
        let open = granted
            .opens
            .entry((owner, file))
            .or_insert(Opening { stateid: Stateid { seqid: 0, ..opened.stateid }, pairs: BTreeSet::new() });
        open.pairs.insert(pair);
        assert_eq!(opened.stateid, Stateid { seqid: open.stateid.seqid + 1, ..open.stateid });
        open.stateid = opened.stateid;
        if let Ok(Delegated { stateid, recall }) = opened.delegation {
            let recalled = recall.then_some(self.server.now);
            let before = granted.delegations.insert(file, Delegating { stateid, recalled });
            assert!(before.is_none() && !access.writes());
            assert!(!self.opens().any(|it| it.2 == file && it.3.0 & 2 != 0));
        }
    }

    fn downgrade(&mut self, client: usize, owner: u8, file: u64, share: Share) {
        let Some(open) = self.peers[client].granted.opens.get(&(owner, file)) else { return };
        let mut open = open.clone();
        let wanted = (share.access.code(), share.deny.code());
        open.pairs.retain(|it| it.0 & !wanted.0 == 0 && it.1 & !wanted.1 == 0);
        let result = self.compound(client, |it, client| it.state.downgrade(client.id, open.stateid, share));
        if open.union() != wanted {
            return assert_eq!(result, Err(Status::Inval));
        }
        open.stateid = result.unwrap();
        self.peers[client].granted.opens.insert((owner, file), open);
    }

    fn close(&mut self, client: usize, owner: u8, file: u64) {
        let Some(open) = self.peers[client].granted.opens.remove(&(owner, file)) else { return };
        let result = self.compound(client, |it, client| it.state.close(client.id, open.stateid));
        assert_eq!(result, Ok(()));
        // Lock owner n locks with open owner n.
        self.peers[client].granted.locks.remove(&(owner, file));
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of a step")]
    fn lock(
        &mut self,
        client: usize,
        owner: u8,
        file: u64,
        kind: LockType,
        first: usize,
        length: usize,
        reclaim: bool,
    ) {
        self.settle();
        let Some(open) = self.peers[client].granted.opens.get(&(owner, file)).cloned() else { return };
        let writes = kind.without_wait() == LockType::Write;
        let last = (first + length - 1).min(BYTES - 1);
        let conflict = |bytes: &[Option<bool>; BYTES]| {
            bytes[first..=last].iter().any(|it| it.is_some_and(|it| it || writes))
        };
        let own = (client, owner);
        let others = self.locks().filter(|it| (it.0, it.1) != own && it.2 == file && conflict(&it.3));
        let holders: BTreeSet<usize> = others.map(|it| it.0).collect();
        let denied = self.in_the_way(client, &holders);
        let mode = open.union().0 & if writes { 2 } else { 1 } != 0;
        let held = self.peers[client].granted.locks.get(&(owner, file)).cloned();
        let locker = match &held {
            Some(held) if first % 2 == 0 => Locker::Existing(held.stateid),
            _ => Locker::New { open: open.stateid, owner: &[owner] },
        };
        let range = LockFile { file: &file, kind, offset: first as u64, length: (last - first + 1) as u64 };
        let result =
            self.compound(client, |it, client| it.state.lock(it.now, client.id, range, locker, reclaim));
        match result {
            Err(NotLocked::Status(Status::OpenMode)) => assert!(!mode),
            Err(NotLocked::Denied(found)) => {
                assert!(mode && denied);
                let holder = self.client_of(found.client);
                assert!(holders.contains(&holder) && (holder, found.owner[0]) != own);
                assert!(found.offset <= last as u64 && found.offset + found.length > first as u64);
            }
            Err(NotLocked::Status(Status::Delay)) => {
                let id = self.id(client).expect("it is mounted");
                assert!(mode && !denied && self.server.state.holdings.locks.count(id) + 3 > 12);
            }
            Err(other) => panic!("{other:?}"),
            Ok(stateid) => {
                assert!(mode && !denied);
                let mut bytes = held.map_or([None; BYTES], |it| it.bytes);
                bytes[first..=last].fill(Some(writes));
                self.peers[client].granted.locks.insert((owner, file), Locking { stateid, bytes });
            }
        }
    }

    fn unlock(&mut self, client: usize, owner: u8, file: u64, first: usize, length: usize) {
        let Some(mut held) = self.peers[client].granted.locks.get(&(owner, file)).cloned() else { return };
        let (first, length) = (first as u64, length as u64);
        match self.compound(client, |it, client| it.state.unlock(client.id, held.stateid, first, length)) {
            Ok(stateid) => {
                let end = ((first + length) as usize).min(BYTES);
                held.bytes[first as usize..end].fill(None);
                held.stateid = stateid;
                self.peers[client].granted.locks.insert((owner, file), held);
            }
            Err(status) => assert_eq!(status, Status::Delay),
        }
    }

    fn io(&mut self, client: usize, file: u64, access: ShareAccess, anonymous: bool) {
        self.settle();
        let (stateid, expected) = if anonymous {
            let bits = (access.code(), 0);
            let expected = self.expect_shares(client, file, bits, Status::Locked, access.writes());
            (Stateid::ANONYMOUS, expected)
        } else {
            let Some(open) = self.peers[client].granted.opens.get(&(0, file)) else { return };
            let fits = open.union().0 & access.code() != 0;
            let mut others = self.opens().filter(|it| it.2 == file && (it.0, it.1) != (client, 0));
            let denied = others.any(|it| it.3.1 & 1 != 0 && (it.0 == client || !self.expired(it.0)));
            let expected = if fits || !access.writes() && !denied { Ok(()) } else { Err(Status::OpenMode) };
            (open.stateid, expected)
        };
        let result = self.compound(client, |it, client| it.io(client, file, stateid, access));
        assert_eq!(result, expected);
    }

    fn retry(&mut self, client: usize) {
        self.settle();
        let peer = &mut self.peers[client];
        let (Some(mounted), Some(reply)) = (peer.mounted, &peer.reply) else { return };
        peer.renewed = self.server.now;
        let sequence = request(mounted.session, 1, peer.sequence);
        let again = self.server.sequence(mounted.connection, sequence);
        assert_eq!(again, Ok(Sequenced::Replay(reply)));
    }

    fn unmount(&mut self, client: usize) {
        for file in self.peers[client].granted.delegations.keys().copied().collect::<Vec<_>>() {
            self.give_back(client, file);
        }
        for (owner, file) in self.peers[client].granted.opens.keys().copied().collect::<Vec<_>>() {
            self.close(client, owner, file);
        }
        let Some(mounted) = self.peers[client].mounted.take() else { return };
        let (state, now) = (&mut self.server.state, self.server.now);
        for revoked in state.holdings.delegations.of_client(mounted.id) {
            let stateid = state.holdings.names.stateid(revoked, 1);
            state.free_stateid(mounted.id, stateid).unwrap();
        }
        state.destroy_session(mounted.connection, mounted.session, None).unwrap();
        // A waiting lock is state too.
        if state.destroy_client(now, HOST, mounted.id) == Err(Status::ClientIdBusy) {
            assert!(state.usage().waiting > 0);
            self.peers[client].mounted = Some(mounted);
            self.pass(400);
        }
    }

    fn give_back(&mut self, client: usize, file: u64) {
        self.settle();
        let Some(delegation) = self.peers[client].granted.delegations.remove(&file) else { return };
        let result =
            self.compound(client, |it, client| it.state.return_delegation(client.id, delegation.stateid));
        assert_eq!(result, Ok(()));
    }

    fn answer(&mut self, which: usize, outcome: u8) {
        if self.outstanding.is_empty() {
            return;
        }
        let call = self.outstanding.remove(which % self.outstanding.len());
        let outcome = match outcome {
            0 => Outcome::Lost,
            1 => Outcome::Refused(Status::Delay),
            2 => Outcome::Done(Err(Status::BadStateid)),
            _ => Outcome::Done(Ok(())),
        };
        self.server.answer(&call, outcome);
    }

    /// A client's connection ends, and it makes another one.
    fn cut(&mut self, client: usize) {
        self.settle();
        let Some(mounted) = &mut self.peers[client].mounted else { return };
        self.connections += 1;
        self.server.state.closed(mounted.connection);
        mounted.connection = self.connections;
        let bound = self.server.state.bind(self.connections, mounted.session, ChannelFromClient::BackOrBoth);
        assert_eq!(bound, Ok(ChannelFromServer::Both));
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds.div_ceil(10) {
            self.server.now += Duration::from_secs(seconds.min(10));
            self.server.state.tick(self.server.now);
            self.settle();
        }
    }

    fn restart_client(&mut self, client: usize) {
        self.settle();
        self.peers[client].verifier += 1;
        self.peers[client].mounted = None;
        self.peers[client].granted = Granted::default();
        self.compound(client, |_, _| ());
    }

    /// The server restarts. The clients in `back` reclaim, the others come too late.
    fn restart_server(&mut self, back: [bool; CLIENTS]) {
        self.settle();
        self.start += 1;
        let records: Vec<Record> = self.storage.values().cloned().collect();
        let grace = !records.is_empty();
        self.server.state = ServerState::new(self.server.now, self.start, 5, small(), records);
        self.outstanding.clear();
        let before = std::mem::take(&mut self.peers);
        for (client, peer) in before.iter().enumerate() {
            self.peers[client].verifier = peer.verifier;
            if !back[client] {
                continue;
            }
            self.mount(client);
            let recorded = self.storage.contains_key(&(client as u8)) && self.server.state.in_grace();
            if !recorded {
                let mounted = self.peers[client].mounted.expect("it is mounted");
                let claim = Claim::Reclaim { delegation: false };
                let share = (ShareAccess::Read, ShareDeny::None);
                let refused = self.server.open_as(mounted, &[0], 0, share, claim).unwrap_err();
                assert!([Status::NoGrace, Status::ReclaimBad].contains(&refused));
                continue;
            }
            for ((owner, file), open) in &peer.granted.opens {
                let (access, deny) = open.union();
                let (access, deny) = (ACCESS[access as usize - 1], DENY[deny as usize]);
                let delegation = peer.granted.delegations.contains_key(file);
                self.open(client, *owner, *file, access, deny, Claim::Reclaim { delegation });
            }
            for ((owner, file), held) in &peer.granted.locks {
                for (at, kind) in (0..).zip(held.bytes) {
                    let Some(writes) = kind else { continue };
                    let kind = if writes { LockType::Write } else { LockType::Read };
                    let mode = self.peers[client].granted.opens[&(*owner, *file)].union().0;
                    if mode & (1 + u32::from(writes)) != 0 {
                        self.lock(client, *owner, *file, kind, at, 1, true);
                    }
                }
            }
        }
        for client in (0..CLIENTS).filter(|it| back[*it]) {
            let id = self.id(client).expect("it is mounted");
            self.server.state.reclaim_complete(self.server.now, id, false).unwrap();
        }
        if self.server.state.in_grace() {
            assert!(grace);
            self.check();
            self.pass(90);
        }
        assert!(!self.server.state.in_grace());
        self.settle();
        for (client, back) in back.into_iter().enumerate() {
            let kept = self.storage.contains_key(&(client as u8));
            assert_eq!(kept, !self.peers[client].granted.opens.is_empty() || kept && back);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open { client, owner, file, access, deny } => {
                self.open(client, owner, file, ACCESS[access], DENY[deny], Claim::New);
            }
            Step::Downgrade { client, owner, file, access, deny } => {
                self.downgrade(client, owner, file, Share { access: ACCESS[access], deny: DENY[deny] });
            }
            Step::Close { client, owner, file } => self.close(client, owner, file),
            Step::Lock { client, owner, file, writes, wait, first, length } => {
                let kind = match (writes, wait) {
                    (false, false) => LockType::Read,
                    (true, false) => LockType::Write,
                    (false, true) => LockType::ReadWait,
                    (true, true) => LockType::WriteWait,
                };
                self.lock(client, owner, file, kind, first, length, false);
            }
            Step::Unlock { client, owner, file, first, length } => {
                self.unlock(client, owner, file, first, length);
            }
            Step::Io { client, file, access, anonymous } => self.io(client, file, ACCESS[access], anonymous),
            Step::Return { client, file } => self.give_back(client, file),
            Step::Retry { client } => self.retry(client),
            Step::Answer { which, outcome } => self.answer(which, outcome),
            Step::Cut { client } => self.cut(client),
            Step::Pass { seconds } => self.pass(seconds),
            Step::Unmount { client } => self.unmount(client),
            Step::RestartClient { client } => self.restart_client(client),
            Step::RestartServer { back } => self.restart_server(back),
            Step::HandOver => self.server.hand_over(),
        }
    }
}

proptest! {
    #[test]
    fn the_state_is_as_the_model_says(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        for client in 0..CLIENTS {
            world.unmount(client);
            world.check();
        }
        world.pass(limits().cooling.as_secs());
        prop_assert_eq!(world.server.state.usage(), Usage::default());
        prop_assert!(world.storage.is_empty());
    }
}
