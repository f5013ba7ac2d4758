//! Where the parts of a reply go (RFC 8166 §3.4.6, §3.5): items by RDMA Write to chunks of the
//! write list, the rest behind the header or to the reply chunk.

use rpc::xdr::{Chained, List, Writer, padding};
use smallvec::SmallVec;

use crate::call::checked;
use crate::{BadChunks, Body, Failure, Header, Limits, Lists, Segment, Segments, WriteChunk};

/// The memory that a call names for its reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sinks {
    /// The write list.
    pub writes: SmallVec<[Segments; 1]>,
    /// The reply chunk.
    pub reply: Option<Segments>,
}

/// An item of a reply that may go apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Which of the results that may go apart it is, from 0: it belongs to this chunk of the write
    /// list.
    pub index: usize,
    /// Its length without its padding.
    pub len: usize,
}

/// A reply, as its upper layer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape<'i> {
    /// Bytes beside the items and their padding.
    pub rest: usize,
    /// The items, each with another index.
    pub items: &'i [Item],
}

/// Placement of the parts of a reply. The RDMA Writes come before the Send.
#[derive(Debug, PartialEq, Eq)]
pub struct Placement {
    /// The transport header, which the Send begins with.
    pub header: Vec<u8>,
    /// Where each item goes, without its padding. Empty: it stays with the rest.
    pub items: SmallVec<[Segments; 1]>,
    /// Where the rest goes. Empty: behind the header.
    pub rest: Segments,
}

/// A reply that is too long for the memory that its call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has room for {room} bytes, and the reply takes {needed}")]
pub struct TooShort {
    /// Bytes that there is room for.
    pub room: u64,
    /// Bytes that are needed.
    pub needed: usize,
}

impl TooShort {
    /// The header that reports it (RFC 8166 §4.5.2).
    pub fn reply(xid: u32, credits: u32) -> Header<'static> {
        Header::new(xid, credits, Body::Error(Failure::Chunk(())))
    }
}

fn segments(chunk: &WriteChunk<'_>, limits: &Limits) -> Result<Segments, BadChunks> {
    if chunk.segments.len() > limits.segments {
        return Err(BadChunks::TooMany);
    }
    chunk.segments.iter().map(checked).collect()
}

/// Bytes that segments hold.
pub fn room(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.length)).sum()
}

/// The first `bytes` bytes of a chunk: each segment with the length that is filled.
fn filled(segments: &[Segment], mut bytes: usize) -> Segments {
    let take = |segment: &Segment| {
        let length = segment.length.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        bytes -= length as usize;
        Segment { length, ..*segment }
    };
    segments.iter().map(take).collect()
}

impl Sinks {
    /// The memory that the chunks of a call name.
    ///
    /// # Errors
    /// [`BadChunks`]
    pub fn of(lists: &Lists<'_>, limits: &Limits) -> Result<Self, BadChunks> {
        let mut sinks = Self::default();
        for chunk in lists.writes.iter() {
            if sinks.writes.len() == limits.write_chunks {
                return Err(BadChunks::TooMany);
            }
            sinks.writes.push(segments(&chunk, limits)?);
        }
        sinks.reply = lists.reply.as_ref().map(|chunk| segments(chunk, limits)).transpose()?;
        let mut all: SmallVec<[Segment; 4]> = sinks.segments().filter(|one| one.length > 0).collect();
        all.sort_unstable_by_key(|one| (one.handle, one.offset));
        let overlap = |two: &[Segment]| {
            two[0].handle == two[1].handle && two[0].offset + u64::from(two[0].length) > two[1].offset
        };
        if all.windows(2).any(overlap) { Err(BadChunks::Overlap) } else { Ok(sinks) }
    }

    /// All segments.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        self.writes.iter().chain(&self.reply).flatten().copied()
    }

    /// Places the parts of a reply, of which `inline` bytes may be sent, with the header. An item
    /// without a chunk stays with the rest.
    ///
    /// # Errors
    /// [`TooShort`].
    pub fn place(
        &self,
        xid: u32,
        credits: u32,
        shape: Shape<'_>,
        inline: usize,
    ) -> Result<Placement, TooShort> {
        let mut rest = shape.rest;
        let mut items: SmallVec<[Segments; 1]> = SmallVec::new();
        let mut writes: SmallVec<[Segments; 1]> = self.writes.iter().map(|chunk| filled(chunk, 0)).collect();
        for item in shape.items {
            let chunk = self.writes.get(item.index).filter(|_| item.len > 0);
            // A requester that gives an empty chunk wants the item with the rest.
            let Some(chunk) = chunk.filter(|chunk| room(chunk) > 0) else {
                rest += item.len + padding(item.len).len();
                items.push(Segments::new());
                continue;
            };
            if room(chunk) < item.len as u64 {
                return Err(TooShort { room: room(chunk), needed: item.len });
            }
            writes[item.index] = filled(chunk, item.len);
            items.push(writes[item.index].clone());
        }
        let header = |in_chunk: usize| {
            let writes = Chained::of(writes.iter().map(|chunk| WriteChunk { segments: List::of(chunk) }));
            let reply = self.reply.as_ref().map(|chunk| filled(chunk, in_chunk));
            let reply = reply.as_ref().map(|chunk| WriteChunk { segments: List::of(chunk) });
            let lists = Lists { writes: writes.chain(), reply, ..Lists::NONE };
            let body = if in_chunk > 0 { Body::NoMessage(lists) } else { Body::Message(lists) };
            let mut header = Vec::with_capacity(128);
            Header::new(xid, credits, body).write(&mut Writer::new(&mut header));
            header
        };
        let sent = header(0);
        if sent.len() + rest <= inline {
            return Ok(Placement { header: sent, items, rest: Segments::new() });
        }
        match &self.reply {
            Some(chunk) if room(chunk) >= rest as u64 => {
                let mut rest = filled(chunk, rest);
                rest.retain(|segment| segment.length > 0);
                Ok(Placement { header: header(room(&rest) as usize), items, rest })
            }
            Some(chunk) => Err(TooShort { room: room(chunk), needed: rest }),
            None => Err(TooShort { room: inline.saturating_sub(sent.len()) as u64, needed: rest }),
        }
    }
}

/// Bytes that a responder reports to have written to a chunk that a call `gave`. `None`: it
/// returned another chunk, or one with gaps.
pub fn written(gave: &[Segment], returned: &WriteChunk<'_>) -> Option<usize> {
    if gave.len() != returned.segments.len() {
        return None;
    }
    let (mut bytes, mut full) = (0, true);
    for (gave, returned) in gave.iter().zip(returned.segments.iter()) {
        let same = (gave.handle, gave.offset) == (returned.handle, returned.offset);
        if !same || returned.length > gave.length || (!full && returned.length > 0) {
            return None;
        }
        full = returned.length == gave.length;
        bytes += returned.length as usize;
    }
    Some(bytes)
}
