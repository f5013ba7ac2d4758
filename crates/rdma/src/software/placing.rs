//! What RDMA Reads bring, put into the upper layer's own memory ([`DataSink`]) instead of buffers.
//!
//! Without a CRC a long piece is received straight into it, with one system call that takes what the socket holds already and never waits.
//! Under a CRC a piece is received into a buffer, and copied from there as soon as its FPDU has been found right: it is in the nearest
//! cache then, and the buffer is free for the next piece. In between nothing of the upper layer's is held, and before each piece it is
//! asked anew. What it does not take goes to buffers and is handed on as it always was.

use std::rc::Rc;

use ring::{BufMut, pool};

use super::receive::{Kept, LONG, LONG_AGO, Receiver, TAIL};
use super::{Inner, Pair};
use crate::{DataSink, Error, Next};

/// Receives in a row that never wait, before others on this core have their turn: half a mebibyte, or so.
const TURN: u32 = 8;

/// How many of the next bytes of a read go to a buffer, and how many after them to their place; `None` if none do.
fn plan(
    sink: &dyn DataSink,
    id: u64,
    offset: u64,
    wanted: usize,
    there: usize,
    goes_on: bool,
) -> Option<(usize, usize)> {
    let aside = match sink.next(id, offset, wanted, there, goes_on) {
        Next::Place(len) => return Some((0, len)),
        Next::Buffer(aside) if aside < wanted.min(there) => aside,
        _ => return None,
    };
    match sink.next(id, offset + aside as u64, wanted - aside, there - aside, false) {
        Next::Place(len) => Some((aside, len)),
        _ => None,
    }
}

/// What one receive has brought.
struct Placed {
    /// Bytes in all.
    got: usize,
    /// What came behind those that were placed.
    behind: Option<BufMut>,
}

impl Receiver {
    /// Counts a receive that does not wait, if it is not others' turn.
    pub(super) fn has_turn(&mut self) -> bool {
        self.turns = (self.turns + 1) % TURN;
        self.turns > 0
    }

    /// Receives what is there of a long piece to where it belongs, and a little of what follows it. `rest` of its bytes are still to come,
    /// from `offset` of the read `id` on, and `there`, at least, are in the socket. False: that cannot be done, and nothing was received.
    pub(super) async fn feed_placed(
        &mut self,
        pair: &Pair,
        id: u64,
        offset: u64,
        rest: usize,
        mut there: usize,
    ) -> Result<bool, Error> {
        if !matches!(self.read, Kept::Arriving(_)) {
            return Ok(false);
        }
        if !self.has_turn() {
            ring::round().await;
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

    /// What of [`Self::feed_placed`] does not wait: nothing of the upper layer's is held beyond it.
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
        let Some((aside, len)) = plan(&*sink, id, offset, rest, there, arriving.ends_placed()) else {
            return Ok(None);
        };
        let mut before = match (aside > 0).then(|| arriving.room(aside)) {
            Some(None) => return Ok(None),
            room => room.flatten(),
        };
        // The end of the piece that has no place, and what is around it, if all of it is there.
        let behind = rest - aside - len;
        let around = if ends { TAIL + self.first } else { to_next };
        let mut behind = (there >= rest && behind <= TAIL).then(|| pool::alloc(behind + around)).flatten();
        let mut got = None;
        let placed = sink.place(id, offset + aside as u64, len, &mut |place| {
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
            // Less than was said to be there: the socket cannot be relied on.
            return Err(Error::Cut);
        };
        arriving.push_placed(placed);
        if rest >= LONG {
            self.long = LONG_AGO;
        }
        let mut inner = pair.inner.borrow_mut();
        inner.stream.took_unseen(aside + len);
        inner.counters.in_place += (aside + len) as u64;
        inner.counters.placed += len as u64;
        inner.counters.receives += 1;
        let behind = behind.filter(|_| got > aside + len).map(|mut behind| {
            behind.truncate(got - aside - len);
            behind
        });
        Ok(Some(Placed { got, behind }))
    }

    /// Copies the piece of a read that was received last to where it belongs: its FPDU has been found right.
    pub(super) fn settle(&mut self, inner: &mut Inner) {
        self.settles = false;
        let Some(sink) = inner.data_sink() else { return };
        let (Kept::Arriving(arriving), Some(read)) = (&mut self.read, inner.reads.front()) else { return };
        let Some(open) = arriving.take_open() else { return };
        let (start, len) = (arriving.len() as u64, open.len());
        let bytes = open.freeze_bytes();
        let mut done = 0;
        while done < len {
            let goes_on = done == 0 && arriving.ends_placed();
            let offset = start + done as u64;
            let Some((aside, here)) = plan(&*sink, read.id, offset, len - done, len - done, goes_on) else {
                break;
            };
            let from = done + aside;
            let placed = sink.place(read.id, offset + aside as u64, here, &mut |place| {
                place.write(&bytes[from..from + here]);
                here
            });
            let Some(placed) = placed else { break };
            arriving.push(bytes.slice(done..from));
            arriving.push_placed(placed);
            inner.counters.placed += here as u64;
            inner.counters.copied_in += here as u64;
            done = from + here;
        }
        arriving.push(bytes.slice(done..len));
    }
}

impl Inner {
    fn data_sink(&self) -> Option<Rc<dyn DataSink>> {
        self.sink.as_ref()?.upgrade()
    }

    /// Whether byte `end` is the end of the oldest read.
    pub(super) fn ends_read(&self, end: u64) -> bool {
        self.reads.front().is_some_and(|read| end == read.len as u64)
    }

    /// Whether some of the oldest read may be placed, as far as can be said before any of it has come.
    pub(super) fn places(&self) -> bool {
        let (Some(sink), Some(read)) = (self.data_sink(), self.reads.front()) else { return false };
        plan(&*sink, read.id, 0, read.len, read.len, false).is_some()
    }
}
