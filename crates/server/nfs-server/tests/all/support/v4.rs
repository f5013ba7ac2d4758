//! A client of NFSv4.1 and 4.2 that keeps nothing from going wrong.

use nfs::v4::callback::{self, Back};
use nfs::v4::{
    self, Arguments, Bitmap, CallWriter, Channel, Claim, ClientId, ClientOwner, CreateHow, CreateSession,
    DelegationType, ExchangeId, Fattr, Fore, Handle, Name, Open, Outcome, OwnerId, Results, Sequence,
    SessionId, StateOwner, StateProtect, Stateid, Status, Verifier, flags,
};
use rpc::message::{AcceptStat, Reply};
use rpc::xdr::{List, Opaque, Reader, Writer, padding};

use super::{Client, Served, call, fragment, results};

/// The fore channel that a session requests.
pub const FORE: Channel = Channel {
    header_padding: 0,
    max_request: 1 << 20,
    max_response: 1 << 20,
    max_response_cached: 4096,
    max_operations: 16,
    max_requests: 8,
    rdma_ird: None,
};

pub struct V4 {
    pub link: Client,
    pub minor: u32,
    pub client: ClientId,
    pub session: SessionId,
    /// Of the last request in the first slot.
    pub sequence: u32,
    pub cache: bool,
}

/// The call with these operations, and the data of each WRITE.
pub fn body(minor: u32, operations: &[Arguments<'_>], data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    {
        let mut to = Writer::new(&mut bytes);
        CallWriter::<Fore>::new(&mut to, Opaque::EMPTY, minor, ());
    }
    let count_at = bytes.len() - 4;
    for one in operations {
        v4::Item::write_all(one, &mut Writer::new(&mut bytes));
        if one.payload() > 0 {
            bytes.extend_from_slice(data);
            bytes.extend_from_slice(padding(data.len()));
        }
    }
    bytes[count_at..count_at + 4].copy_from_slice(&(operations.len() as u32).to_be_bytes());
    bytes
}

/// The results of a reply.
pub fn answers(reply: &[u8]) -> Vec<Results<'_>> {
    let reply = v4::Reply::<Fore>::read(results(reply)).expect("a reply");
    let all: Vec<_> = reply.results.map(|one| one.expect("a result").value).collect();
    let last = all.last().and_then(Results::error);
    assert_eq!(last.map_or(Outcome::Ok(()), |status| Outcome::Err(status, ())), reply.outcome);
    all
}

/// The data of the only READ of a reply.
pub fn data(reply: &[u8]) -> Vec<u8> {
    let body = results(reply);
    let reply = v4::Reply::<Fore>::read(body).expect("a reply");
    let found: Vec<_> = reply.results.map(|one| one.expect("a result").payload).collect();
    let range = found.into_iter().find(|range| !range.is_empty()).unwrap_or_default();
    body[range].to_vec()
}

/// The error of a reply.
pub fn status(reply: &[u8]) -> Option<Status> {
    match v4::Reply::<Fore>::read(results(reply)).expect("a reply").outcome {
        Outcome::Ok(()) => None,
        Outcome::Err(status, ()) => Some(status),
    }
}

pub fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).expect("any length")
}

pub fn handle(bytes: &[u8]) -> Arguments<'_> {
    Arguments::PutFh(Handle::new(bytes).expect("short"))
}

pub fn owner(name: &'static [u8]) -> StateOwner<'static> {
    StateOwner { client: ClientId(0), owner: OwnerId::new(name).expect("short") }
}

/// OPEN of a name for reading and writing, which makes the file if `how` says so.
pub fn open<'a>(file: &'a str, who: &'static [u8], how: Option<CreateHow<'a>>) -> Arguments<'a> {
    Arguments::Open(Open {
        seqid: 0,
        share_access: 3,
        share_deny: 0,
        owner: owner(who),
        create: how,
        claim: Claim::Null(name(file)),
    })
}

/// OPEN of the current file, which was open before the server's restart.
pub fn reclaim(who: &'static [u8]) -> Arguments<'static> {
    Arguments::Open(Open {
        seqid: 0,
        share_access: 3,
        share_deny: 0,
        owner: owner(who),
        create: None,
        claim: Claim::Previous(DelegationType::None),
    })
}

/// EXCHANGE_ID of a client's start.
pub fn exchange(name: &str, start: u8) -> Arguments<'_> {
    Arguments::ExchangeId(ExchangeId {
        client: ClientOwner {
            verifier: Verifier([start; 8]),
            owner: Opaque::new(name.as_bytes()).expect("short"),
        },
        flags: 0,
        protect: StateProtect::None(()),
        implementation: None,
    })
}

impl Served {
    /// A client with a session that has nothing to reclaim.
    pub fn v4(&self, name: &'static str) -> V4 {
        let mut it = self.v4_again(name);
        let reply = it.run(&[Arguments::ReclaimComplete(false)], &[]);
        assert_eq!(status(&reply), None);
        it
    }

    /// A client with a session that may have something to reclaim.
    pub fn v4_again(&self, name: &'static str) -> V4 {
        let mut link = self.connect();
        let (client, session) = link.v4_session(name).expect("a session");
        V4 { link, minor: 2, client, session, sequence: 0, cache: false }
    }
}

/// A call from the server to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    Probe,
    Recall(Stateid, Vec<u8>),
    NotifyLock(Vec<u8>),
}

impl Client {
    /// A client of this name, confirmed by a session on this connection.
    pub fn v4_session(&mut self, name: &str) -> Result<(ClientId, SessionId), Status> {
        let reply = self.v4(&body(1, &[exchange(name, 1)], &[]));
        status(&reply).map_or(Ok(()), Err)?;
        let Results::ExchangeId(Outcome::Ok(exchanged)) = &answers(&reply)[0] else { panic!() };
        let create = Arguments::CreateSession(CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: flags::create_session::CONN_BACK_CHAN,
            fore: FORE,
            back: FORE,
            program: 0x4000_0000,
            security: List::EMPTY,
        });
        let reply = self.v4(&body(1, &[create], &[]));
        status(&reply).map_or(Ok(()), Err)?;
        let Results::CreateSession(Outcome::Ok(created)) = &answers(&reply)[0] else { panic!() };
        assert_eq!(created.flags, flags::create_session::CONN_BACK_CHAN);
        Ok((exchanged.client, created.session))
    }

    /// Notes a call of the server's, and answers it.
    pub fn called(&mut self, record: &[u8]) {
        let mut from = Reader::new(record);
        let call = rpc::message::Call::read(&mut from).expect("a call");
        assert_eq!((call.program, call.version, call.procedure), (0x4000_0000, 1, 1));
        let compound = v4::Call::<Back>::read(from.remaining()).expect("a CB_COMPOUND");
        let mut bytes = Vec::new();
        let mut to = Writer::new(&mut bytes);
        Reply::accepted(call.xid, AcceptStat::Success(())).write(&mut to);
        let mut reply = v4::ReplyWriter::<Back>::new(&mut to, Opaque::EMPTY);
        let mut what = Called::Probe;
        for operation in compound.operations {
            match operation.expect("an operation").value {
                callback::Arguments::Sequence(of) => {
                    let (session, sequence, slot) = (of.session, of.sequence, of.slot);
                    let highest = FORE.max_requests - 1;
                    reply.push(&callback::Results::Sequence(Outcome::Ok(callback::SequenceOk {
                        session,
                        sequence,
                        slot,
                        highest_slot: highest,
                        target_highest_slot: highest,
                    })));
                }
                callback::Arguments::Recall(of) => {
                    what = Called::Recall(of.stateid, of.file.bytes().to_vec());
                    reply.push(&callback::Results::Recall(Outcome::Ok(())));
                }
                callback::Arguments::NotifyLock(of) => {
                    what = Called::NotifyLock(of.owner.owner.bytes().to_vec());
                    reply.push(&callback::Results::NotifyLock(Outcome::Ok(())));
                }
                other => panic!("{other:?}"),
            }
        }
        self.calls.push(what);
        if !self.mute {
            self.send(&fragment(&bytes, true));
        }
    }

    /// A COMPOUND, and the whole reply.
    pub fn v4(&mut self, compound: &[u8]) -> Vec<u8> {
        self.send_v4(compound);
        self.reply()
    }

    fn send_v4(&mut self, compound: &[u8]) {
        self.xid += 1;
        let call = call(self.xid, v4::PROGRAM, v4::VERSION, v4::COMPOUND, compound);
        self.send(&fragment(&call, true));
    }
}

impl V4 {
    /// SEQUENCE with this number in the first slot.
    pub fn slot(&self, sequence: u32) -> Arguments<'static> {
        let (session, cache) = (self.session, self.cache);
        Arguments::Sequence(Sequence { session, sequence, slot: 0, highest_slot: 0, cache })
    }

    /// The next request: SEQUENCE and these operations.
    pub fn run(&mut self, operations: &[Arguments<'_>], data: &[u8]) -> Vec<u8> {
        self.begin(operations, data);
        self.link.reply()
    }

    /// Sends it only.
    pub fn begin(&mut self, operations: &[Arguments<'_>], data: &[u8]) {
        self.sequence += 1;
        let all = [&[self.slot(self.sequence)], operations].concat();
        self.link.send_v4(&body(self.minor, &all, data));
    }

    /// The handle that a path leads to.
    pub fn find(&mut self, path: &str) -> Result<Vec<u8>, Status> {
        let names = path.split('/').filter(|name| !name.is_empty()).map(|it| Arguments::Lookup(name(it)));
        let mut all = vec![Arguments::PutRootFh(())];
        all.extend(names);
        all.push(Arguments::GetFh(()));
        let reply = self.run(&all, &[]);
        match answers(&reply).pop() {
            Some(Results::GetFh(Outcome::Ok(handle))) => Ok(handle.bytes().to_vec()),
            _ => Err(status(&reply).expect("an error")),
        }
    }

    /// Makes a file below `directory` and opens it: its handle, and the stateid.
    pub fn make(&mut self, directory: &[u8], file: &str, who: &'static [u8]) -> (Vec<u8>, Stateid) {
        let how = CreateHow::Unchecked(Fattr::EMPTY);
        let reply = self.run(&[handle(directory), open(file, who, Some(how)), Arguments::GetFh(())], &[]);
        match &answers(&reply)[2..] {
            [Results::Open(Outcome::Ok(opened)), Results::GetFh(Outcome::Ok(handle))] => {
                (handle.bytes().to_vec(), opened.stateid)
            }
            other => panic!("{other:?}"),
        }
    }

    /// An attribute of a file.
    pub fn size(&mut self, file: &[u8]) -> u64 {
        let reply = self.run(&[handle(file), Arguments::GetAttr(Bitmap::of(&[v4::attribute::SIZE]))], &[]);
        let Some(Results::GetAttr(Outcome::Ok(of))) = answers(&reply).pop() else { panic!() };
        of.attributes().expect("attributes").size.expect("a size")
    }
}
