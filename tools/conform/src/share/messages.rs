//! RPC over RDMA (RFC 8166): calls one at a time, each with memory for a reply of any length.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma::{Buffers, Flags, QueuePair, Rights, Stag};
use rpc::xdr::{Chained, List, Reader, Writer};
use rpcrdma::reply::written;
use rpcrdma::{Body, Direction, Failure, Header, Lists, PrivateData, ReadSegment, Segment, WriteChunk};
use runtime::{Chain, Runtime, pool};

use crate::lost::Lost;
use crate::pair::Pair;

/// The longest message that is accepted, bytes.
const MESSAGE: usize = 4096;
/// Bytes of a header with a chunk of each kind at most.
const HEADER: usize = 128;
/// The longest reply, bytes: 2 MiB of data, and the rest.
const MAX_REPLY: usize = (2 << 20) + (64 << 10);
/// Messages that the server may have in flight.
const RECEIVES: u32 = 64;

/// A queue pair for calls.
pub(crate) struct Messages {
    pair: Pair,
    /// The longest message to the server, bytes.
    longest: usize,
    /// The memory of the calls without a reply, with their XIDs.
    exposed: Vec<(u32, Memory)>,
}

struct Memory {
    /// A call that is too long for a message.
    call: Option<Segment>,
    reply: Segment,
}

impl Messages {
    pub fn connect(runtime: Rc<Runtime>, address: SocketAddr, limit: Duration) -> Result<Self, Lost> {
        let wanted = rdma::Options {
            ord: 1,
            receives: RECEIVES,
            receive_size: MESSAGE as u32,
            stags: 2 * RECEIVES,
            setup_timeout: limit,
            ..rdma::Options::default()
        };
        let own = PrivateData { remote_invalidation: true, send: MESSAGE, receive: MESSAGE };
        let (pair, says) = Pair::connect(runtime, address, &own.encode(), &wanted)?;
        let longest = own.inline_to(&PrivateData::decode(&says));
        Ok(Self { pair, longest, exposed: Vec::new() })
    }

    /// Sends a call.
    pub fn send(&mut self, call: &[u8]) -> Result<(), Lost> {
        let xid = call.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
        let (longest, exposed) = (self.longest, &mut self.exposed);
        self.pair.run(async |pair| {
            let is_long = HEADER + call.len() > longest;
            let memory = Memory {
                call: if is_long { Some(source(pair, call)?) } else { None },
                reply: sink(pair, MAX_REPLY).await?,
            };
            let reads = Chained::of(memory.call.map(|source| ReadSegment { position: 0, source }));
            let reply = WriteChunk { segments: List::of(std::slice::from_ref(&memory.reply)) };
            let lists = Lists { reads: reads.chain(), reply: Some(reply), ..Lists::NONE };
            let body = if is_long { Body::NoMessage(lists) } else { Body::Message(lists) };
            let mut message = Vec::new();
            Header::new(xid, RECEIVES / 2, body).write(&mut Writer::new(&mut message));
            if !is_long {
                message.extend_from_slice(call);
            }
            pair.post_send(&message, Chain::new(), Flags::default(), None);
            pair.flush();
            exposed.push((xid, memory));
            Ok(())
        })?
    }

    /// The next reply, or call of the server, until `until`.
    pub fn receive(&mut self, until: Instant) -> Result<Vec<u8>, Lost> {
        let (message, _) = self.pair.receive(until)?;
        self.read(&message)
    }

    /// Reads a message. A reply ends the server's access to the memory of its call.
    fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Lost> {
        let mut from = Reader::new(message);
        let header = Header::read(&mut from).map_err(|bad| Lost::Garbled(bad.to_string()))?;
        let sent = from.remaining().to_vec();
        if matches!(header.body, Body::Message(_)) && Direction::of(&sent) == Some(Direction::Call) {
            return Ok(sent);
        }
        let Some(at) = self.exposed.iter().position(|(xid, _)| *xid == header.xid) else { return Ok(sent) };
        let memory = self.exposed.swap_remove(at).1;
        memory.call.map(|call| self.withdraw(call));
        let placed = self.withdraw(memory.reply);
        match header.body {
            Body::Message(_) => Ok(sent),
            Body::NoMessage(lists) => {
                let len = lists.reply.and_then(|reply| written(&[memory.reply], &reply));
                let Some(len) = len.filter(|len| *len <= MAX_REPLY) else {
                    return Err(Lost::Garbled("a reply in a chunk that its call did not give".to_owned()));
                };
                let mut reply = Vec::with_capacity(len);
                for buffer in &placed {
                    reply.extend_from_slice(&buffer[..buffer.len().min(len - reply.len())]);
                }
                Ok(reply)
            }
            Body::Error(Failure::Chunk(())) => Err(Lost::Garbled("ERR_CHUNK".to_owned())),
            Body::Error(Failure::Version(_)) => Err(Lost::Garbled("ERR_VERS".to_owned())),
        }
    }

    /// Ends the server's access to memory, and returns it.
    fn withdraw(&self, segment: Segment) -> Buffers {
        let taken = self.pair.run(async |pair| pair.withdraw(Stag(segment.handle)));
        taken.ok().flatten().map(|taken| taken.buffers).unwrap_or_default()
    }
}

async fn sink(pair: &QueuePair, len: usize) -> Result<Segment, Lost> {
    let mut buffers = Buffers::default();
    for at in (0..len).step_by(pool::MAX_ALLOC) {
        buffers.push(pool::alloc_wait((len - at).min(pool::MAX_ALLOC)).await);
    }
    segment(pair, pair.expose(buffers, Rights::Write), len)
}

fn source(pair: &QueuePair, bytes: &[u8]) -> Result<Segment, Lost> {
    segment(pair, pair.expose_source(bytes.to_vec().into()), bytes.len())
}

fn segment(pair: &QueuePair, stag: Result<Stag, rdma::Error>, len: usize) -> Result<Segment, Lost> {
    let stag = stag.map_err(|error| Lost::Garbled(error.to_string()))?;
    Ok(Segment { handle: stag.0, length: len as u32, offset: pair.origin(stag) })
}
