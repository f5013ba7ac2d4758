//! RPC over RDMA (RFC 8166): each call exposes the memory of its chunks, and its
//! reply ends the server's access to it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use rdma::{Completion, Flags, QueuePair, Rights, Stag};
use rpc::record::MARK_LEN;
use rpc::xdr::{Chained, List, Reader, Writer, padding};
use rpcrdma::reply::written;
use rpcrdma::{
    Body, Credits, Direction, Failure, Header, Lists, PrivateData, ReadSegment, Segment, WriteChunk,
};
use runtime::{Chain, Notify, pool};

use super::tcp::{KEEPALIVE, path};
use crate::error::Error;
use crate::message::{Message, Received, Record, Room};
use crate::options::Options;

/// The longest message either way, in bytes: 4 KiB of data go with their call or reply, and need no
/// chunk. The peer may set a smaller limit.
const MESSAGE: usize = 8192;
/// The most calls that are outstanding, whatever the server grants.
const CREDITS: u32 = 128;
/// Calls of the server that may arrive at any time (RFC 8167 §4.4).
const BACK_CREDITS: u32 = 16;
/// STags of one call at most: its data, and its reply.
const STAGS: u32 = 3;
/// Bytes of a message's two headers at most, with a chunk of each kind of one segment.
const HEADERS: usize = 128;
/// Bytes of another segment in a header: of a read chunk, and of a write or reply chunk (RFC 8166
/// §4.2).
const READ_SEGMENT: usize = 24;
const SEGMENT: usize = 16;
/// Segments of a chunk at most: as many as Stag's server takes.
const SEGMENTS: usize = 64;
/// Posted bytes above which later calls wait.
const HIGH_WATER: usize = 1 << 20;

/// Error of a reply whose chunks are not those of its call.
const LIES: Error = Error::Nonsense("its chunks are not those of the call, or were not filled");

/// A connection.
pub(crate) struct Link {
    pair: QueuePair,
    /// The longest message to the server, and from it, in bytes.
    inline: (usize, usize),
    /// The longest segment of a chunk, in bytes.
    segment: u32,
    /// Segments of a chunk at most, which may then be longer.
    segments: u32,
    credits: RefCell<Credits>,
    /// Notified of a new credit.
    credit: Notify,
    /// The memory of outstanding calls, by XID.
    exposed: RefCell<HashMap<u32, Memory>>,
}

/// The memory that a call exposes.
#[derive(Default)]
struct Memory {
    /// For the server to read: data, or a long call.
    source: Option<Segment>,
    /// For a READ's data: the write chunk.
    item: Option<Segment>,
    /// For a long reply: the reply chunk.
    reply: Option<Segment>,
}

impl Memory {
    fn all(&self) -> [Option<Segment>; 3] {
        [self.source, self.item, self.reply]
    }
}

/// The part of a chunk that the server wrote.
#[derive(Default)]
struct Placed {
    buffers: rdma::Buffers,
    len: usize,
}

impl Placed {
    fn append_to(&self, record: &mut Vec<u8>) {
        let mut left = self.len;
        for buffer in &self.buffers {
            let part = &buffer[..left.min(buffer.len())];
            record.extend_from_slice(part);
            left -= part.len();
        }
    }

    fn into_chain(self) -> Chain {
        let mut chain = Chain::new();
        self.buffers.into_iter().for_each(|buffer| chain.push(buffer));
        chain.truncate(self.len);
        chain
    }
}

impl Link {
    /// Connects.
    pub async fn connect(address: SocketAddr, options: &Options) -> Result<Self, String> {
        let wanted = rdma::Options {
            // The server reads data; this side reads nothing.
            ord: 1,
            ird: options.rdma_reads,
            receives: CREDITS + BACK_CREDITS,
            receive_size: MESSAGE as u32,
            stags: STAGS * CREDITS,
            setup_timeout: options.connect_timeout,
            path: path(options),
            crc: options.rdma_crc,
            provider: options.rdma_provider,
            ..rdma::Options::default()
        };
        let own = PrivateData { remote_invalidation: true, send: MESSAGE, receive: MESSAGE };
        let private_data = |remote_invalidation| PrivateData { remote_invalidation, ..own }.encode().to_vec();
        let connected = rdma::connect_with(address, private_data, &wanted).await;
        let (pair, says) = connected.map_err(|error| error.to_string())?;
        pair.set_keepalive(KEEPALIVE);
        let other = PrivateData::decode(&says);
        let inline = (own.inline_to(&other), other.inline_to(&own));
        Ok(Link {
            pair,
            inline,
            segment: options.rdma_segment.unwrap_or(u32::MAX),
            segments: segments_within(inline.0.min(inline.1)),
            credits: RefCell::default(),
            credit: Notify::default(),
            exposed: RefCell::default(),
        })
    }

    /// Sends messages, each as soon as there is a credit for it.
    pub async fn send(&self, messages: impl Iterator<Item = Message>) -> Result<(), String> {
        for message in messages {
            self.credit.until(|| (self.credits.borrow().available() > 0).then_some(())).await;
            self.pair.posts_drained_below(HIGH_WATER).await;
            self.post(message).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn post(&self, message: Message) -> Result<(), rdma::Error> {
        let rpc = message.head.get(MARK_LEN..).unwrap_or_default();
        let xid = rpc.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
        let mut payload = message.payload;
        let pad = padding(payload.len());
        let mut memory = self.sinks(message.room)?;
        let mut body = rpc;
        let mut position = 0;
        let has_data = !payload.is_empty();
        let cuts = |chunk: Option<Segment>| chunk.map_or(0, |chunk| self.cuts(chunk.length as usize));
        let head = HEADERS + SEGMENT * (cuts(memory.item) + cuts(memory.reply)) + rpc.len();
        if head + payload.len() + pad.len() <= self.inline.0 {
            payload.push(pad.to_vec());
        } else if has_data && head + READ_SEGMENT * self.cuts(payload.len()) <= self.inline.0 {
            // The server adds the padding (RFC 8166 §3.4.5.2).
            memory.source = Some(self.source(std::mem::take(&mut payload))?);
            position = u32::try_from(rpc.len()).unwrap_or(u32::MAX);
        } else {
            let mut whole = Chain::from(rpc.to_vec());
            whole.append(std::mem::take(&mut payload));
            whole.push(pad.to_vec());
            memory.source = Some(self.source(whole)?);
            body = &[];
        }
        let [source, item, reply] = memory.all().map(|whole| self.segments(whole));
        let reads = Chained::of(source.into_iter().map(|source| ReadSegment { position, source }));
        let chunk = |segments| WriteChunk { segments: List::of(segments) };
        let writes = Chained::of(memory.item.map(|_| chunk(&item)));
        let reply = memory.reply.map(|_| chunk(&reply));
        let lists = Lists { reads: reads.chain(), writes: writes.chain(), reply };
        let kind = if body.is_empty() { Body::NoMessage(lists) } else { Body::Message(lists) };
        let mut sent = Vec::with_capacity(HEADERS + body.len());
        Header::new(xid, CREDITS, kind).write(&mut Writer::new(&mut sent));
        sent.extend_from_slice(body);
        self.exposed.borrow_mut().insert(xid, memory);
        self.credits.borrow_mut().called();
        self.pair.post_send(&sent, payload, Flags::default(), None);
        Ok(())
    }

    /// Exposes memory for the parts of a reply that one message may not hold.
    fn sinks(&self, room: Room) -> Result<Memory, rdma::Error> {
        let mut memory = Memory::default();
        if HEADERS + room.rest + room.item > self.inline.1 {
            memory.item = (room.item > 0).then(|| self.sink(room.item)).transpose()?;
            let long = HEADERS + SEGMENT * self.cuts(room.item) + room.rest > self.inline.1;
            memory.reply = long.then(|| self.sink(HEADERS + room.rest)).transpose()?;
        }
        Ok(memory)
    }

    fn sink(&self, len: usize) -> Result<Segment, rdma::Error> {
        let parts = (0..len).step_by(pool::MAX_ALLOC).map(|at| pool::alloc((len - at).min(pool::MAX_ALLOC)));
        let buffers: rdma::Buffers = parts.collect::<Option<_>>().ok_or(rdma::Error::NoBuffers)?;
        let stag = self.pair.expose(buffers, Rights::Write)?;
        Ok(self.segment(stag, len))
    }

    fn source(&self, data: Chain) -> Result<Segment, rdma::Error> {
        let len = data.len();
        let stag = self.pair.expose_source(data)?;
        Ok(self.segment(stag, len))
    }

    fn segment(&self, stag: Stag, len: usize) -> Segment {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        Segment { handle: stag.0, length, offset: self.pair.origin(stag) }
    }

    /// How often a chunk of so many bytes is cut into segments.
    fn cuts(&self, len: usize) -> usize {
        len.saturating_sub(1) / self.longest(len) as usize
    }

    /// The length of a chunk's segments but for the last.
    fn longest(&self, len: usize) -> u32 {
        self.segment.max(u32::try_from(len).unwrap_or(u32::MAX).div_ceil(self.segments)).max(1)
    }

    /// The segments by which a call names memory: all of one STag.
    fn segments(&self, memory: Option<Segment>) -> Vec<Segment> {
        let Some(Segment { handle, length, offset }) = memory else { return Vec::new() };
        let longest = self.longest(length as usize);
        let cut = |at| Segment { handle, length: longest.min(length - at), offset: offset + u64::from(at) };
        (0..length).step_by(longest as usize).map(cut).collect()
    }

    /// Passes each message to `take`. Returns the reason why the connection ended.
    pub async fn receive(&self, mut take: impl FnMut(Received) -> Result<(), String>) -> String {
        loop {
            let taken = match self.pair.next().await {
                Ok(Completion::Received { message, invalidated, .. }) => {
                    self.pair.post_receives(1);
                    match message.bufs() {
                        [one] if let Some(bytes) = one.as_slice() => self.read(bytes, invalidated),
                        _ => self.read(&message.to_vec(), invalidated),
                    }
                }
                Ok(Completion::Immediate { .. }) => Err("the server sent what is no message".to_owned()),
                // No other completion was requested.
                Ok(_) => continue,
                Err(rdma::Error::Closed) => return "the server closed the connection".to_owned(),
                Err(error) => return error.to_string(),
            };
            let taken = taken.and_then(|received| received.map_or(Ok(()), &mut take));
            if let Err(why) = taken {
                return why;
            }
        }
    }

    /// Reads a message, and ends the server's access to the memory of the call that it answers.
    fn read(&self, message: &[u8], invalidated: Option<Stag>) -> Result<Option<Received>, String> {
        let mut from = Reader::new(message);
        let header = Header::read(&mut from).map_err(|bad| format!("the server sent {bad}"))?;
        let sent = from.remaining();
        let foreign = |stag| Err(format!("the server invalidated {stag}, which is not its call's"));
        let is_call = matches!(header.body, Body::Message(_)) && Direction::of(sent) == Some(Direction::Call);
        let memory = if is_call { None } else { self.exposed.borrow_mut().remove(&header.xid) };
        let Some(memory) = memory else {
            return match invalidated {
                Some(stag) => foreign(stag),
                None if is_call => Ok(Some(Received::Record(sent.to_vec().into()))),
                None => Ok(None),
            };
        };
        self.credits.borrow_mut().replied(header.credits.min(CREDITS));
        self.credit.notify();
        if let Some(stag) = invalidated
            && !memory.all().iter().flatten().any(|segment| segment.handle == stag.0)
        {
            return foreign(stag);
        }
        let received = self.reply(&header, sent, memory);
        Ok(Some(received.map_or_else(|error| Received::Failed(header.xid, error), Received::Record)))
    }

    /// A reply: the message or the reply chunk, and the data in the write chunk.
    fn reply(&self, header: &Header<'_>, sent: &[u8], memory: Memory) -> Result<Record, Error> {
        memory.source.and_then(|segment| self.pair.withdraw(Stag(segment.handle)));
        let lists = header.lists().copied().unwrap_or(Lists::NONE);
        let mut writes = lists.writes.iter();
        let item = self.placed(memory.item, writes.next());
        let rest = self.placed(memory.reply, lists.reply);
        let (item, rest) = match header.body {
            Body::Error(Failure::Version(_)) => {
                return Err(Error::Refused("it does not speak version 1 of RPC over RDMA"));
            }
            Body::Error(Failure::Chunk(())) => {
                return Err(Error::Refused(
                    "the call's chunks, or the length of its reply, are not to its liking",
                ));
            }
            _ => (item.ok_or(LIES)?, rest.ok_or(LIES)?),
        };
        let is_sent = matches!(header.body, Body::Message(_));
        if writes.next().is_some() || is_sent != (rest.len == 0) || is_sent == sent.is_empty() {
            return Err(LIES);
        }
        let mut bytes = Vec::with_capacity(sent.len() + rest.len);
        bytes.extend_from_slice(sent);
        rest.append_to(&mut bytes);
        match bytes.first_chunk() {
            Some(xid) if u32::from_be_bytes(*xid) == header.xid => {
                let mut apart = item.into_chain();
                apart.push(padding(apart.len()).to_vec());
                Ok(Record { bytes, apart })
            }
            _ => Err(Error::Nonsense("it is of another call")),
        }
    }

    /// Ends the server's access to a chunk, and returns the data placed there. `None`: the server
    /// returned another chunk, or the chunk holds less than it reports.
    fn placed(&self, gave: Option<Segment>, returned: Option<WriteChunk<'_>>) -> Option<Placed> {
        let withdrawn = gave.map(|segment| self.pair.withdraw(Stag(segment.handle)));
        let (gave, withdrawn, returned) = match (gave, withdrawn, returned) {
            (Some(gave), Some(Some(withdrawn)), Some(returned)) => (gave, withdrawn, returned),
            // A server that writes nothing may leave the chunk out.
            (_, _, None) => return Some(Placed::default()),
            _ => return None,
        };
        let len = written(&self.segments(Some(gave)), &returned)?;
        let is_there = !withdrawn.busy && withdrawn.placed.is_none_or(|placed| placed >= len as u64);
        (len == 0 || is_there).then_some(Placed { buffers: withdrawn.buffers, len })
    }
}

/// Segments of a chunk at most where messages have so many bytes: a call's header takes half of
/// them, with a chunk of each kind.
fn segments_within(message: usize) -> u32 {
    let room = (message / 2).saturating_sub(HEADERS);
    (1 + room / (READ_SEGMENT + 2 * SEGMENT)).min(SEGMENTS) as u32
}
