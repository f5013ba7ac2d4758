//! Places the data of RDMA Reads in the upper layer's own memory ([`DataSink`]) instead of buffers.
//!
//! Without a CRC a long piece is received straight into that memory, with one system call that
//! takes available data and never waits. Under a CRC several FPDUs are received at once into a
//! buffer. Each piece is copied from there as soon as its FPDU's CRC was checked: it is in a near
//! cache then, and the buffer is free for the next. Between pieces no memory of the upper layer is
//! held, and the sink is asked before each piece. Data that it refuses goes to buffers as usual.

use std::io::ErrorKind;
use std::ops::Range;
use std::rc::Rc;

use iwarp::stream::Stream;
use runtime::{BufMut, Bytes, RegionRange, pool};

use super::arriving::{Arriving, Taken};
use super::receive::{Kept, LONG, LONG_AGO, Receiver, TAIL, keep};
use super::{Inner, Pair};
use crate::{Counters, DataSink, Error, Next};

/// Bytes received in a row by non-waiting system calls, before other tasks of this core get their
/// turn.
const TURN: usize = 512 << 10;
/// Bytes received at once of long FPDUs under a CRC: several of the longest, but few enough for a
/// near cache.
const BULK: usize = 256 << 10;

/// Splits the next bytes of a read: the number for a buffer, then the number to place, if any.
/// `None` if all the rest goes to buffers. The total is at least one and at most the available
/// bytes, whatever the upper layer answers. `any`, for both parts: accept runs below the minimum.
fn plan(
    sink: &dyn DataSink,
    id: u64,
    offset: u64,
    wanted: usize,
    there: usize,
    any: [bool; 2],
) -> Option<(usize, usize)> {
    let here = wanted.min(there);
    let aside = match sink.next(id, offset, wanted, there, any[0]) {
        Next::Rest | Next::Place(0) | Next::Buffer(0) => return None,
        Next::Place(len) => return Some((0, len.min(here))),
        Next::Buffer(aside) if aside < here => aside,
        Next::Buffer(_) => return Some((here, 0)),
    };
    match sink.next(id, offset + aside as u64, wanted - aside, there - aside, any[1]) {
        Next::Place(len) => Some((aside, len.min(here - aside))),
        Next::Buffer(_) => Some((aside, 0)),
        Next::Rest => None,
    }
}

/// Copies buffered bytes just before the placed ones to their place too, if they make whole blocks:
/// then all is one piece. Returns their number.
fn place_before(arriving: &mut Arriving, sink: &dyn DataSink, id: u64) -> usize {
    arriving.place_open(|offset, bytes| match sink.next(id, offset, bytes.len(), bytes.len(), true) {
        Next::Place(len) if len == bytes.len() => {
            sink.place(id, offset, len, &mut |place| copy(bytes, place))
        }
        _ => None,
    })
}

/// Fills a place of exactly the expected length.
fn copy(bytes: &[u8], place: &mut RegionRange) -> usize {
    if place.len() != bytes.len() {
        return 0;
    }
    place.write(bytes);
    bytes.len()
}

/// The result of one receive.
struct Placed {
    /// Bytes received in total.
    got: usize,
    /// Bytes received after the placed ones.
    behind: Option<BufMut>,
}

impl Receiver {
    /// Counts `len` bytes to receive without a round of the ring. False if other tasks get their
    /// turn first.
    pub(super) fn has_turn(&mut self, len: usize) -> bool {
        self.turn += len;
        let has = self.turn <= TURN;
        if !has {
            self.turn = 0;
        }
        has
    }

    /// Receives available data of a long piece into its place, and a little of the data after it.
    /// `rest` bytes of the piece are still missing, from `offset` of the read `id` on; at least
    /// `there` are in the socket. False: not possible, nothing was received.
    pub(super) async fn feed_placed(
        &mut self,
        pair: &Pair,
        id: u64,
        offset: u64,
        rest: usize,
        mut there: usize,
    ) -> Result<bool, Error> {
        {
            let inner = pair.inner.borrow();
            // A read that began in its own buffers continues there.
            if inner.data_sink().is_none()
                || !matches!(keep(&mut self.read, &inner, 0), Ok(Kept::Arriving(_)))
            {
                return Ok(false);
            }
        }
        if !self.has_turn(rest) {
            runtime::round().await;
        }
        if there < rest {
            there = pair.socket.pending()?;
        }
        if there == 0 {
            pair.socket.readable().await?;
            there = pair.socket.pending()?;
        }
        match self.place_now(pair, id, offset, rest, there)? {
            Some(Placed { got, behind }) => {
                self.there = there.saturating_sub(got);
                if let Some(behind) = behind {
                    self.take(pair, &behind.freeze_bytes()).await?;
                }
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The part of [`Self::feed_placed`] that never waits: it holds the upper layer's memory only
    /// while it runs.
    fn place_now(
        &mut self,
        pair: &Pair,
        id: u64,
        offset: u64,
        rest: usize,
        there: usize,
    ) -> Result<Option<Placed>, Error> {
        let Kept::Arriving(arriving) = &mut self.read else { return Ok(None) };
        let (sink, ends, to_next) = {
            let inner = pair.inner.borrow();
            let Some(sink) = inner.data_sink().filter(|_| there > 0) else { return Ok(None) };
            (sink, inner.ends_read(offset + rest as u64), inner.stream.to_next_tagged())
        };
        let Some((aside, len)) = plan(&*sink, id, offset, rest, there, [arriving.ends_placed(), false])
        else {
            return Ok(None);
        };
        let mut before = match (aside > 0).then(|| arriving.room(aside)) {
            Some(None) => return Ok(None),
            room => room.flatten(),
        };
        if len == 0 {
            let Some((mut buffer, at)) = before else { return Ok(None) };
            let got = pair.socket.try_recv(&mut buffer[at..at + aside]);
            arriving.put_back(buffer, at + got.as_ref().unwrap_or(&0));
            let got = got?;
            let mut inner = pair.inner.borrow_mut();
            inner.stream.took_unseen(got);
            inner.counters.in_place += got as u64;
            inner.counters.receives += 1;
            return if got > 0 { Ok(Some(Placed { got, behind: None })) } else { Err(Error::Cut) };
        }
        // Also receive the end of the piece that has no place, and the bytes around it, if all of
        // it is available.
        let behind = rest - aside - len;
        let around = if ends { TAIL + self.first } else { to_next };
        let mut behind = (there >= rest && behind <= TAIL).then(|| pool::alloc(behind + around)).flatten();
        let mut got = None;
        let placed = sink.place(id, offset + aside as u64, len, &mut |place| {
            if got.is_some() || place.len() != len {
                // Only once, and only with the expected length.
                return 0;
            }
            let before = before.as_mut().map_or(&mut [][..], |(buffer, at)| &mut buffer[*at..*at + aside]);
            let came = pair.socket.try_recv_around(before, place, behind.as_deref_mut().unwrap_or_default());
            let filled = came.as_ref().map_or(0, |came| came.saturating_sub(aside).min(len));
            got = Some(came);
            filled
        });
        if let Some((buffer, at)) = before {
            arriving.put_back(buffer, if got.is_some() { at + aside } else { at });
        }
        let Some(got) = got.transpose()? else { return Ok(None) };
        let (Some(placed), true) = (placed, got >= aside + len) else {
            // Less than the socket reported: it is not reliable.
            return Err(Error::Cut);
        };
        let too = place_before(arriving, &*sink, id);
        arriving.push_placed(placed);
        if rest >= LONG {
            self.long = LONG_AGO;
        }
        let mut inner = pair.inner.borrow_mut();
        inner.stream.took_unseen(aside + len);
        inner.counters.in_place += (aside + len) as u64;
        inner.counters.placed += (too + len) as u64;
        inner.counters.receives += 1;
        let behind = behind.filter(|_| got > aside + len).map(|mut behind| {
            behind.truncate(got - aside - len);
            behind
        });
        Ok(Some(Placed { got, behind }))
    }

    /// Whether to receive many FPDUs at a time: long ones under a CRC, of reads that may be placed.
    pub(super) fn is_bulk(&self, pair: &Pair) -> bool {
        let inner = pair.inner.borrow();
        pair.crc
            && self.long > 0
            && !matches!(self.read, Kept::Whole(_))
            && inner.stream.is_between()
            && !inner.reads.is_empty()
            && inner.data_sink().is_some()
    }

    /// Receives available data, many FPDUs at a time, and handles the whole ones. Each has its CRC
    /// checked and is copied to its place while it is in a near cache. False: no buffer is
    /// available.
    pub(super) async fn feed_bulk(&mut self, pair: &Pair) -> Result<bool, Error> {
        if !pair.socket.has_more() {
            pair.socket.readable().await?;
        } else if !self.has_turn(BULK) {
            runtime::round().await;
        }
        let Some((mut buffer, filled)) = self.raw.take().or_else(|| Some((pool::alloc(BULK)?, 0))) else {
            return Ok(false);
        };
        let got = match pair.socket.try_recv(&mut buffer[filled..]) {
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.raw = Some((buffer, filled)).filter(|_| filled > 0);
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        if got == 0 {
            return Err(if filled > 0 { Error::Cut } else { self.end_of_stream(pair) });
        }
        pair.inner.borrow_mut().counters.receives += 1;
        let filled = filled + got;
        let whole = Stream::whole_fpdus(&buffer[..filled]);
        if whole == 0 {
            self.raw = Some((buffer, filled));
            return Ok(true);
        }
        let mut rest = None;
        if filled > whole {
            match pool::alloc(BULK) {
                Some(mut next) => {
                    runtime::count_copy(filled - whole);
                    next[..filled - whole].copy_from_slice(&buffer[whole..filled]);
                    self.raw = Some((next, filled - whole));
                }
                None => rest = Some(whole..filled),
            }
        }
        buffer.truncate(filled);
        let bytes = buffer.freeze_bytes();
        self.take(pair, &bytes.slice(..whole)).await?;
        if let Some(rest) = rest {
            self.take(pair, &bytes.slice(rest)).await?;
        }
        Ok(true)
    }

    /// Copies a piece of the current read to its place, if its CRC was checked. False: none of it
    /// has a place.
    pub(super) fn place_copy(&mut self, inner: &mut Inner, bytes: &Bytes, range: Range<usize>) -> bool {
        if !inner.stream.is_checked() {
            return false;
        }
        if matches!(self.read, Kept::Nothing) && inner.places() {
            self.read = Kept::Arriving(Arriving::default());
        }
        let (Kept::Arriving(arriving), Some(sink), Some(read)) =
            (&mut self.read, inner.data_sink(), inner.reads.front())
        else {
            return false;
        };
        let mut at = range.start;
        while at < range.end {
            let (offset, left) = (arriving.len() as u64, range.end - at);
            // The data is copied in any case.
            let Some((aside, len)) = plan(&*sink, read.id, offset, left, left, [true; 2]) else { break };
            let from = at + aside;
            if len == 0 {
                break;
            }
            let here = &bytes[from..from + len];
            let placed = sink.place(read.id, offset + aside as u64, len, &mut |place| copy(here, place));
            let Some(placed) = placed.filter(|placed| placed.len() == len) else { break };
            inner.counters.take(arriving.push(bytes.slice(at..from)), aside);
            let too = place_before(arriving, &*sink, read.id);
            arriving.push_placed(placed);
            inner.counters.placed += (too + len) as u64;
            inner.counters.copied_in += len as u64;
            at = from + len;
        }
        if at == range.start {
            return false;
        }
        inner.counters.take(arriving.push(bytes.slice(at..range.end)), range.end - at);
        true
    }
}

impl Counters {
    /// Counts `len` bytes with this result.
    fn take(&mut self, taken: Taken, len: usize) {
        match taken {
            Taken::Copied => self.copied_in += len as u64,
            Taken::Slice | Taken::Needs(_) => self.by_reference += len as u64,
        }
    }
}

impl Inner {
    pub(super) fn data_sink(&self) -> Option<Rc<dyn DataSink>> {
        self.sink.as_ref()?.upgrade()
    }

    /// Whether the oldest read ends at byte `end`.
    pub(super) fn ends_read(&self, end: u64) -> bool {
        self.reads.front().is_some_and(|read| end == read.len as u64)
    }

    /// Whether some of the oldest read may be placed, judged before any of its data arrives.
    pub(super) fn places(&self) -> bool {
        let (Some(sink), Some(read)) = (self.data_sink(), self.reads.front()) else { return false };
        plan(&*sink, read.id, 0, read.len, read.len, [false; 2]).is_some_and(|(_, len)| len > 0)
    }
}
