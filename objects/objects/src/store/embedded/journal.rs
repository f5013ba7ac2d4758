//! The journal: the changes since the last checkpoint, in their order.
//!
//! Two segments of one preallocated store take turns. Changes gather in `pending`. A task that
//! needs one on the medium becomes the leader, writes all gathered changes as one frame, and wakes
//! the others. So one write, and one flush of the store beneath, serve many. A frame is whole or is
//! not there: its checksum says so. Its number follows the one before, so that nothing is replayed
//! behind a gap. When a segment has had enough, the leader freezes the layer of changes, and the
//! next frame goes to the other segment. A checkpoint then writes the frozen layer to redb.
//!
//! It must never call a change written that a kill of the process could take, nor go on after a
//! write or a flush has failed.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use backing::BlockStore;
use runtime::{Chain, pool};

use super::record::Key;
use super::space::Blocks;
use crate::store::{Commit, Error, Id};

const MAGIC: u32 = u32::from_le_bytes(*b"SoF1");
pub(super) const HEADER: usize = 32;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DATA: u8 = 3;
const OVERWRITTEN: u8 = 4;

/// After a frame that need not be durable, this many durable ones go through the page cache as it
/// did.
const THROUGH_CACHE: u32 = 64;

pub(super) struct Journal {
    pub store: Arc<dyn BlockStore>,
    /// The store's name: no frame of another one is ever taken for its own.
    pub name: u64,
    /// Bytes of each of the two segments.
    pub segment: u64,
    /// Frames begin at multiples of this, bytes.
    pub sector: usize,
}

/// The state, behind the lock that makes changes follow one another.
#[derive(Default)]
pub(super) struct Log {
    /// Payload of changes that no frame has yet.
    pub pending: Vec<u8>,
    /// Payload of the frame that is being written, kept until it is.
    in_flight: Vec<u8>,
    in_flight_at: u64,
    in_flight_number: u64,
    /// Changes appended, in frames being written, and written.
    pub appended: u64,
    taken: u64,
    pub written: u64,
    writing: bool,
    /// Changes that are durable in their frames, all up to this one.
    pub durable: u64,
    /// The frame that is being written will be durable when it is written.
    in_flight_durably: bool,
    /// Durable frames that are still to go through the page cache, since others did lately that
    /// need not be durable.
    through_cache: u32,
    pub number: u64,
    pub side: u64,
    pub offset: u64,
    /// A write or a flush failed: nothing more is done.
    pub failed: Option<Error>,
    waiting: Vec<Waker>,
    /// Blocks that were given up since the layer was frozen.
    pub freed: Vec<Blocks>,
    pub frozen: Option<Frozen>,
    /// A task waits for a checkpoint.
    pub rotate: bool,
    /// A checkpoint would speed up scans, which meet many deleted keys.
    pub untidy: bool,
    /// Checkpoints that have ended, well or not, and how the last one did.
    pub checkpoints: u64,
    pub checkpoint_error: Option<Error>,
    pub checkpointer: Option<Waker>,
    pub closing: bool,
}

/// Contents of a checkpoint, beside the frozen layer.
pub(super) struct Frozen {
    /// The last frame that it covers.
    pub number: u64,
    /// The segment that the next frame went to.
    pub side: u64,
    pub freed: Vec<Blocks>,
}

/// The next step of a task that waits for the journal.
pub(super) enum Turn {
    Over(Result<(), Error>),
    /// Write this, then say [`Log::end_lead`].
    Lead {
        at: u64,
        frame: Chain,
        /// So that it is durable when it is written: all frames before it are.
        durable: bool,
    },
}

impl Log {
    /// Whether a payload of `bytes` still fits.
    pub fn has_room(&self, journal: &Journal, bytes: usize) -> bool {
        let frame = (HEADER + self.pending.len() + bytes + journal.sector) as u64;
        self.offset + frame <= journal.segment
    }

    /// Whether change `ticket` is written, or whether the caller is to write it. `commit` is the
    /// durability that the caller asks for; the frame may have to be flushed all the same. `freeze`
    /// is called when the layer is to be frozen, after the frame that ends it was taken.
    pub fn turn(
        &mut self,
        cx: &mut Context<'_>,
        journal: &Journal,
        ticket: u64,
        commit: Commit,
        large: bool,
        freeze: impl FnOnce(),
    ) -> Poll<Turn> {
        if let Some(error) = self.failed {
            return Poll::Ready(Turn::Over(Err(error)));
        }
        // The next caller begins a requested checkpoint here. While another one is being written,
        // the requested one waits.
        if self.written >= ticket && !(self.rotate && self.frozen.is_none()) {
            return Poll::Ready(Turn::Over(Ok(())));
        }
        if self.writing {
            self.wait(cx);
            return Poll::Pending;
        }
        if self.in_flight.is_empty() && !self.pending.is_empty() {
            std::mem::swap(&mut self.in_flight, &mut self.pending);
            self.taken = self.appended;
            (self.in_flight_at, self.in_flight_number) =
                (self.side * journal.segment + self.offset, self.number);
            self.number += 1;
            self.offset += (HEADER + self.in_flight.len()).next_multiple_of(journal.sector) as u64;
        }
        let enough = self.rotate || large || self.offset >= journal.segment / 2;
        if enough && self.frozen.is_none() && self.pending.is_empty() {
            freeze();
            self.rotate = false;
            (self.side, self.offset) = (1 - self.side, 0);
            let freed = std::mem::take(&mut self.freed);
            self.frozen = Some(Frozen { number: self.number - 1, side: self.side, freed });
            if let Some(waker) = self.checkpointer.take() {
                waker.wake();
            }
        }
        if self.in_flight.is_empty() {
            return Poll::Ready(Turn::Over(Ok(())));
        }
        self.writing = true;
        // A frame that is durable must not lie behind one that a power cut takes: recovery would
        // end before it. And one that goes past the page cache takes its page out of it, which the
        // next that goes through would wait for.
        self.through_cache = match commit {
            Commit::Relaxed => THROUGH_CACHE,
            Commit::Durable => self.through_cache.saturating_sub(1),
        };
        let durable = commit == Commit::Durable && self.durable == self.written && self.through_cache == 0;
        self.in_flight_durably = durable;
        Poll::Ready(Turn::Lead { at: self.in_flight_at, frame: self.frame(journal), durable })
    }

    /// The frame in flight, as bytes. Its changes are seen already: it cannot fail for want of a
    /// buffer.
    fn frame(&self, journal: &Journal) -> Chain {
        let payload = &self.in_flight;
        let len = (HEADER + payload.len()).next_multiple_of(journal.sector);
        let fill = |bytes: &mut [u8]| {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&journal.name.to_le_bytes());
            bytes[16..24].copy_from_slice(&self.in_flight_number.to_le_bytes());
            bytes[24..28].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            bytes[28..32].fill(0);
            bytes[HEADER..HEADER + payload.len()].copy_from_slice(payload);
            bytes[HEADER + payload.len()..].fill(0);
            let sum = crc_fast::crc32_iscsi(&bytes[8..HEADER + payload.len()]);
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        };
        if let Some(mut buf) = pool::alloc(len) {
            fill(&mut buf);
            return buf.freeze().into();
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        bytes.into()
    }

    /// The leader's write has ended; `None` if its task was dropped before, and another has to do
    /// it again.
    pub fn end_lead(&mut self, result: Option<Result<(), Error>>) {
        self.writing = false;
        match result {
            Some(Ok(())) => {
                self.written = self.taken;
                if self.in_flight_durably {
                    self.durable = self.taken;
                }
                self.in_flight.clear();
            }
            Some(Err(error)) => self.failed = Some(error),
            None => {}
        }
        self.wake();
    }

    pub fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }

    pub fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// Appends to a payload that `key` has `value` now.
pub(super) fn put(payload: &mut Vec<u8>, key: &Key, value: Option<&[u8]>) {
    payload.push(if value.is_some() { PUT } else { DELETE });
    payload.extend_from_slice(key);
    if let Some(value) = value {
        payload.extend_from_slice(&(value.len() as u32).to_le_bytes());
        payload.extend_from_slice(value);
    }
}

/// Appends to a payload what the arena has at `at` bytes: it is written again after a power cut.
pub(super) fn data(payload: &mut Vec<u8>, at: u64, bytes: &Chain) {
    payload.push(DATA);
    payload.extend_from_slice(&at.to_le_bytes());
    payload.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    let start = payload.len();
    payload.resize(start + bytes.len(), 0);
    bytes.copy_to_slice(&mut payload[start..]);
}

/// Appends to a payload that a write went to the arena without the journal: the journal's earlier
/// data for it are out of date.
pub(super) fn overwritten(payload: &mut Vec<u8>, at: u64, len: u64) {
    payload.push(OVERWRITTEN);
    payload.extend_from_slice(&at.to_le_bytes());
    payload.extend_from_slice(&len.to_le_bytes());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    Put(Key, &'a [u8]),
    Delete(Key),
    Data(u64, &'a [u8]),
    Overwritten(u64, u64),
}

/// Entries of a payload, in order; an error for a malformed one, which the payload's checksum rules
/// out.
pub(super) fn entries(mut payload: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, Error>> {
    std::iter::from_fn(move || {
        let (kind, rest) = payload.split_first()?;
        payload = rest;
        let entry = match *kind {
            PUT => take_key(&mut payload).zip(take_bytes(&mut payload)).map(|(k, v)| Entry::Put(k, v)),
            DELETE => take_key(&mut payload).map(Entry::Delete),
            DATA => take_u64(&mut payload).zip(take_bytes(&mut payload)).map(|(at, b)| Entry::Data(at, b)),
            OVERWRITTEN => take_u64(&mut payload)
                .zip(take_u64(&mut payload))
                .map(|(at, len)| Entry::Overwritten(at, len)),
            _ => None,
        };
        if entry.is_none() {
            payload = &[];
        }
        Some(entry.ok_or(Error::Damaged(Id::ROOT)))
    })
}

fn take_key(from: &mut &[u8]) -> Option<Key> {
    let (key, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*key)
}

fn take_u64(from: &mut &[u8]) -> Option<u64> {
    let (number, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u64::from_le_bytes(*number))
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = from.split_first_chunk()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > rest.len() {
        return None;
    }
    let (bytes, rest) = rest.split_at(len);
    *from = rest;
    Some(bytes)
}

/// The payloads of a segment's frames from number `next` on, as far as they follow one another.
pub(super) fn frames<'a>(
    segment: &'a [u8],
    journal: &Journal,
    mut next: u64,
) -> impl Iterator<Item = &'a [u8]> {
    let (mut at, name, sector) = (0, journal.name, journal.sector);
    std::iter::from_fn(move || {
        let frame = segment.get(at..)?;
        let word = |from: usize| frame.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes);
        let long = |from: usize| frame.get(from..from + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (magic, sum, found, number, len) = (word(0)?, word(4)?, long(8)?, long(16)?, word(24)? as usize);
        if magic != MAGIC || found != name || number != next || len > frame.len() - HEADER {
            return None;
        }
        if sum != crc_fast::crc32_iscsi(&frame[8..HEADER + len]) {
            return None;
        }
        next += 1;
        at += (HEADER + len).next_multiple_of(sector);
        Some(&frame[HEADER..HEADER + len])
    })
}
