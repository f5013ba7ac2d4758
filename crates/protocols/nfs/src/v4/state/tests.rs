//! A server's state with clients, as the tests of its rules use it.

use std::net::{IpAddr, Ipv4Addr};

use rpc::xdr::List;

use super::*;
use crate::v4::flags::{create_session, exchange_id};
use crate::v4::{Channel, OwnerId, SequenceOk, ShareDeny, Verifier};

mod clients;
mod delegations;
mod grace;
mod leases;
mod locks;
mod model;
mod opens;
mod sessions;

const LEASE: Duration = Duration::from_secs(90);
const SECOND: Duration = Duration::from_secs(1);
const BACK: Channel = Channel {
    header_padding: 0,
    max_request: 4096,
    max_response: 4096,
    max_response_cached: 0,
    max_operations: 2,
    max_requests: 2,
    rdma_ird: None,
};
const CHANNEL: Channel = Channel {
    max_request: 1 << 20,
    max_response: 1 << 20,
    max_response_cached: 4096,
    max_operations: 8,
    max_requests: 4,
    ..BACK
};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ROOT: Principal<'_> = Principal { user: b"root", host: HOST };
const ELSEWHERE: Principal<'_> = Principal { user: b"root", host: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)) };
const OTHER: Principal<'_> = Principal { user: b"other", host: HOST };

fn limits() -> Limits {
    Limits::default()
}

/// One client of a [`Server`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Client {
    name: u8,
    id: ClientId,
    session: SessionId,
    connection: Connection,
}

/// A server's state on files that are numbers, its clock, and its effects.
struct Server {
    state: ServerState<u64>,
    now: Duration,
    effects: Vec<Effect<u64>>,
}

fn owner(name: &[u8], verifier: u8) -> ClientOwner<'_> {
    ClientOwner { verifier: Verifier([verifier; 8]), owner: OwnerId::new(name).unwrap() }
}

fn creation(client: ClientId, sequence: u32) -> CreateSession<'static> {
    CreateSession {
        client,
        sequence,
        flags: create_session::CONN_BACK_CHAN,
        fore: CHANNEL,
        back: BACK,
        program: 0x4000_0000,
        security: List::EMPTY,
    }
}

fn request(session: SessionId, slot: u32, sequence: u32) -> Sequence {
    Sequence { session, sequence, slot, highest_slot: 0, cache: true }
}

fn record(name: u8) -> Record {
    Record {
        owner: [name].into(),
        verifier: Verifier([1; 8]),
        hosts: Hosts::from_iter([HOST]),
        revoked: false,
    }
}

impl Server {
    fn new() -> Self {
        Self::with(limits(), Vec::new())
    }

    fn with(limits: Limits, records: Vec<Record>) -> Self {
        let now = Duration::from_secs(1000);
        Server { state: ServerState::new(now, 7, 11, limits, records), now, effects: Vec::new() }
    }

    /// A client with a session, on a connection with its name's number.
    fn mount(&mut self, name: u8) -> Client {
        self.mount_as(name, 1)
    }

    fn mount_as(&mut self, name: u8, verifier: u8) -> Client {
        let exchanged = self.state.exchange_id(self.now, ROOT, &owner(&[name], verifier), 0).unwrap();
        let connection = Connection::from(name);
        let create = creation(exchanged.client, exchanged.sequence);
        let created = self.state.create_session(self.now, connection, ROOT, 1, &create).unwrap();
        Client { name, id: exchanged.client, session: created.session, connection }
    }

    /// A client that may open files, and whose backchannel works.
    fn client(&mut self, name: u8) -> Client {
        let client = self.mount(name);
        self.state.reclaim_complete(self.now, client.id, false).unwrap();
        self.run(client);
        let probe = self.calls().pop().expect("a probe");
        self.answer(&probe, Outcome::Done(Ok(())));
        client
    }

    /// SEQUENCE. The checksum is the sequence ID.
    fn sequence(&mut self, connection: Connection, request: Sequence) -> Result<Sequenced<'_>, Status> {
        self.state.sequence(self.now, connection, &request, u64::from(request.sequence))
    }

    /// A COMPOUND of SEQUENCE alone, in a slot that was not used before.
    fn run(&mut self, client: Client) -> SequenceOk {
        for sequence in 1.. {
            match self.sequence(client.connection, request(client.session, 0, sequence)) {
                Ok(Sequenced::Run(running)) => {
                    let answer = running.answer();
                    self.state.finish(self.now, running, &[]);
                    return answer;
                }
                Ok(_) | Err(Status::SeqMisordered) => {}
                Err(status) => panic!("{status:?}"),
            }
        }
        unreachable!("sequence IDs ended")
    }

    /// Lets time pass, in steps of a second. Clients in `alive` renew their leases.
    fn pass(&mut self, time: Duration, alive: &[Client]) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND;
            for client in alive {
                self.run(*client);
            }
            self.state.tick(self.now);
        }
    }

    fn effects(&mut self) -> Vec<Effect<u64>> {
        self.effects.extend(self.state.take_effects());
        std::mem::take(&mut self.effects)
    }

    /// The calls since the last look. Other effects stay.
    fn calls(&mut self) -> Vec<Callback<u64>> {
        let effects = self.effects();
        let (calls, others) = effects.into_iter().partition(|it| matches!(it, Effect::Call(_)));
        self.effects = others;
        let calls: Vec<Effect<u64>> = calls;
        calls
            .into_iter()
            .filter_map(|it| if let Effect::Call(call) = it { Some(call) } else { None })
            .collect()
    }

    fn answer(&mut self, call: &Callback<u64>, outcome: Outcome) {
        self.state.called(call.session, call.slot, call.sequence, outcome);
    }

    fn open_as(
        &mut self,
        client: Client,
        owner: &[u8],
        file: u64,
        (access, deny): (ShareAccess, ShareDeny),
        claim: Claim,
    ) -> Result<Opened, Status> {
        let share = Share { access, deny };
        self.state.open(
            self.now,
            client.id,
            OpenFile { file: &file, owner, share, claim, want: 0, changing: false, made: false },
        )
    }

    fn open(&mut self, client: Client, file: u64, access: ShareAccess) -> Result<Opened, Status> {
        self.open_as(client, b"opener", file, (access, ShareDeny::None), Claim::New)
    }

    fn io(&mut self, client: Client, file: u64, stateid: Stateid, access: ShareAccess) -> Result<(), Status> {
        self.state.check_io(self.now, Some(client.id), &file, stateid, access)
    }

    fn lock(
        &mut self,
        client: Client,
        file: u64,
        locker: Locker<'_>,
        kind: LockType,
        (offset, length): (u64, u64),
    ) -> Result<Stateid, NotLocked> {
        let request = LockFile { file: &file, kind, offset, length };
        self.state.lock(self.now, client.id, request, locker, false)
    }

    /// All state through its encoding.
    fn hand_over(&mut self) {
        let limits = self.state.limits.clone();
        self.effects.extend(self.state.take_effects());
        let saved = self.state.save(|it| it.to_be_bytes().to_vec());
        let loaded = ServerState::load(&saved, limits, |it| Some(u64::from_be_bytes(it.try_into().ok()?)));
        let loaded = loaded.expect("what was saved can be loaded");
        assert!(loaded == self.state, "the loaded state differs from the saved one");
        self.state = loaded;
    }
}
