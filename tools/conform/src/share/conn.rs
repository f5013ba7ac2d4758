//! One raw connection to an RPC server: it sends whatever bytes a check requests, and keeps
//! whatever record arrives. It neither reconnects nor retransmits.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rpc::auth::{AuthSys, OpaqueAuth};
use rpc::message::{AcceptStat, Accepted, Call, RejectStat, Reply, ReplyBody};
use rpc::xdr::{Opaque, Reader, Writer};
use runtime::Runtime;

use super::messages::Messages;
use crate::finding::{Finding, Verdict, wrong};
use crate::lost::Lost;
use crate::stream::Stream;

/// The bit of a record mark that ends the record (RFC 5531 §11).
const LAST: u32 = 1 << 31;
/// The longest record that is accepted, bytes.
const MAX_RECORD: usize = 4 << 20;

/// Program, version and procedure.
pub(crate) type Number = (u32, u32, u32);

enum Link {
    Tcp(Stream),
    Rdma(Messages),
}

pub(crate) struct Conn {
    link: Link,
    xid: u32,
    answer_within: Duration,
    /// User and group of the calls.
    pub ids: (u32, u32),
}

/// A fragment of a record, with its mark.
pub(crate) fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | if last { LAST } else { 0 };
    [&mark.to_be_bytes(), bytes].concat()
}

/// The body of AUTH_SYS for a user and a group.
pub(crate) fn auth_sys((uid, gid): (u32, u32)) -> Vec<u8> {
    let machine = Opaque::new(b"stag-conform").unwrap_or(Opaque::EMPTY);
    rpc::xdr::encode(&AuthSys { stamp: 0, machine, uid, gid, gids: Default::default() })
}

/// A call: its header and the arguments, without a record mark.
pub(crate) fn call(xid: u32, number: Number, flavor: u32, credential: &[u8], arguments: &[u8]) -> Vec<u8> {
    let (program, version, procedure) = number;
    let mut bytes = Vec::new();
    let body = Opaque::new(credential).unwrap_or(Opaque::EMPTY);
    let credential = OpaqueAuth { flavor, body };
    let header = Call { xid, program, version, procedure, credential, verifier: OpaqueAuth::NONE };
    header.write(&mut Writer::new(&mut bytes));
    bytes.extend_from_slice(arguments);
    bytes
}

impl Conn {
    /// Connects, to the first of the addresses that accepts; with a ring over RDMA.
    pub fn connect(
        addresses: &[SocketAddr],
        rdma: Option<&Rc<Runtime>>,
        limit: Duration,
        ids: (u32, u32),
    ) -> Result<Self, Lost> {
        let mut failed = Lost::NotConnected("the host has no address".to_owned());
        for address in addresses {
            let link = match rdma {
                Some(ring) => Messages::connect(ring.clone(), *address, limit).map(Link::Rdma),
                None => Stream::connect(*address, limit, limit).map(Link::Tcp),
            };
            match link {
                Ok(link) => {
                    // The XIDs of different connections differ, or a server's cache of replies
                    // would answer one with the reply to the other.
                    let mut xid = [0; 4];
                    let _ = runtime::random(&mut xid);
                    let xid = u32::from_be_bytes(xid);
                    return Ok(Self { link, xid, answer_within: limit, ids });
                }
                Err(lost) => failed = lost,
            }
        }
        Err(failed)
    }

    /// An XID that this connection has not used.
    pub(crate) fn next_xid(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        self.xid
    }

    /// A call with the usual credential.
    pub fn usual(&mut self, number: Number, arguments: &[u8]) -> Vec<u8> {
        let credential = auth_sys(self.ids);
        call(self.next_xid(), number, 1, &credential, arguments)
    }

    /// Sends bytes as they are, over TCP; over RDMA they are one call.
    pub fn send(&mut self, bytes: &[u8]) -> Verdict {
        let sent = match &mut self.link {
            Link::Tcp(stream) => stream.send(bytes),
            Link::Rdma(messages) => messages.send(bytes),
        };
        sent.map_err(|lost| Finding::Wrong {
            seen: lost.seen(),
            expected: "a connection that takes a call".to_owned(),
        })
    }

    /// The next reply. Calls of the server are skipped.
    pub fn receive(&mut self) -> Verdict<Answer> {
        let until = runtime::clock() + self.answer_within;
        loop {
            let record = match &mut self.link {
                Link::Tcp(stream) => record(stream, until),
                Link::Rdma(messages) => messages.receive(until),
            };
            let record = record
                .map_err(|lost| Finding::Wrong { seen: lost.seen(), expected: "a reply".to_owned() })?;
            if record.get(4..8) == Some(&[0, 0, 0, 0]) {
                continue;
            }
            return match Reply::read(&mut Reader::new(&record)) {
                Ok(_) => Ok(Answer(record)),
                Err(error) => wrong(format!("a reply that cannot be decoded: {error}"), "a reply of RPC"),
            };
        }
    }

    /// Sends a whole call, over TCP in one fragment, and takes its reply.
    pub fn exchange(&mut self, call: &[u8]) -> Verdict<Answer> {
        match &self.link {
            Link::Tcp(_) => self.send(&fragment(call, true))?,
            Link::Rdma(_) => self.send(call)?,
        }
        let answer = self.receive()?;
        let wanted = call.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
        match answer.xid() == wanted {
            true => Ok(answer),
            false => {
                wrong(format!("XID {:08x}", answer.xid()), format!("XID {wanted:08x}, that of the call"))
            }
        }
    }

    /// A call with the usual credential, and its reply.
    pub fn call(&mut self, number: Number, arguments: &[u8]) -> Verdict<Answer> {
        let call = self.usual(number, arguments);
        self.exchange(&call)
    }
}

/// The next record, until `until`.
fn record(stream: &mut Stream, until: Instant) -> Result<Vec<u8>, Lost> {
    let mut record = Vec::new();
    loop {
        let mark = loop {
            match stream.received.first_chunk() {
                Some(mark) => break u32::from_be_bytes(*mark),
                None => stream.more(until)?,
            }
        };
        let length = (mark & !LAST) as usize;
        if record.len() + length > MAX_RECORD {
            return Err(Lost::Garbled(format!("a record of more than {MAX_RECORD} bytes")));
        }
        while stream.received.len() < 4 + length {
            stream.more(until)?;
        }
        record.extend_from_slice(stream.received.get(4..4 + length).unwrap_or_default());
        stream.received.drain(..4 + length);
        if mark & LAST != 0 {
            return Ok(record);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    pub fn xid(&self) -> u32 {
        self.0.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid))
    }

    /// The status of the call. `None`: the header cannot be decoded.
    pub fn outcome(&self) -> Option<ReplyBody<'_>> {
        Reply::read(&mut Reader::new(&self.0)).ok().map(|reply| reply.body)
    }

    /// The status of the call, as text.
    pub fn told(&self) -> String {
        match self.outcome() {
            None => "a reply that cannot be decoded".to_owned(),
            Some(ReplyBody::Accepted(Accepted { stat, .. })) => match stat {
                AcceptStat::Success(()) => "SUCCESS".to_owned(),
                AcceptStat::ProgUnavail(()) => "PROG_UNAVAIL".to_owned(),
                AcceptStat::ProgMismatch(of) => format!("PROG_MISMATCH from {} to {}", of.low, of.high),
                AcceptStat::ProcUnavail(()) => "PROC_UNAVAIL".to_owned(),
                AcceptStat::GarbageArgs(()) => "GARBAGE_ARGS".to_owned(),
                AcceptStat::SystemErr(()) => "SYSTEM_ERR".to_owned(),
            },
            Some(ReplyBody::Denied(RejectStat::RpcMismatch(of))) => {
                format!("RPC_MISMATCH from {} to {}", of.low, of.high)
            }
            Some(ReplyBody::Denied(RejectStat::AuthError(stat))) => format!("AUTH_ERROR {stat:?}"),
        }
    }

    /// The results of a call that was executed.
    pub fn body(&self) -> Verdict<&[u8]> {
        let mut from = Reader::new(&self.0);
        match Reply::read(&mut from) {
            Ok(reply) if reply.is_success() => Ok(self.0.get(from.position()..).unwrap_or_default()),
            _ => wrong(self.told(), "SUCCESS"),
        }
    }
}
