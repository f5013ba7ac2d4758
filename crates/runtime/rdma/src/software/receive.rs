//! The receive side of a queue pair: from the socket into a buffer or straight into its place, and
//! through the protocol. Payload is copied only if it has a place of its own and was already
//! received elsewhere.

use std::io::ErrorKind;
use std::time::Duration;

use iwarp::rdmap::Terminate;
use iwarp::stream::{Event, Place, Step};
use runtime::{BufMut, Bytes, Chain, Destination, JoinHandle, Scatter, pool};

use super::arriving::{Arriving, Taken};
use super::memory::{Exposed, Loan, copy_in, find};
use super::{Asked, Inner, Pair};
use crate::{Buffers, Completion, Error, Stag};

/// Minimum missing bytes of a piece for a receive of its own.
const DIRECT: usize = 16 << 10;
/// Length in bytes from which a piece counts as long: one receive brings so few of them that
/// copying costs more than a receive of their own.
pub(super) const LONG: usize = 32 << 10;
/// Bytes to receive after a message's last directly placed piece: its CRC, and the data up to the
/// next long piece.
pub(super) const TAIL: usize = 512;
/// Bytes to receive at once while pieces are long, so that the pieces can be received straight into
/// their place.
const FEW: usize = 512;
/// Number of short pieces after a long one before larger receives resume.
pub(super) const LONG_AGO: u32 = 8;
/// How long incoming data waits for a buffer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The data of one RDMA Read.
pub(super) enum Kept {
    /// No data has arrived.
    Nothing,
    /// Data in the pieces in which it arrives.
    Arriving(Arriving),
    /// Buffers with room for all data.
    Whole(Buffers),
}

/// The destination of a piece's rest.
enum Target {
    Exposed(Loan),
    Message,
    /// The buffer at this position of those of the current read.
    Read(usize),
    /// Pieces of the current read.
    ReadArriving,
}

/// Why `advance` stopped early.
enum Stop {
    /// All bytes were handled.
    More,
    /// A buffer of this number of bytes is missing.
    Buffer(usize),
    Violation(Terminate),
    Over(Error),
}

/// One queue pair's incoming stream.
pub(super) struct Receiver {
    early: Option<Bytes>,
    message: Arriving,
    pub(super) read: Kept,
    /// Received bytes that are not handled yet: the beginning of an FPDU.
    pub(super) raw: Option<(BufMut, usize)>,
    /// Length of the short piece with which recent reads began, so that it is received together
    /// with the data before it.
    pub(super) first: usize,
    /// Minimum number of bytes that the last receive left in the socket.
    pub(super) there: usize,
    /// Bytes received in a row without a round of the ring.
    pub(super) turn: usize,
    /// Reused for each receive.
    scatter: Option<Scatter>,
    /// Above 0 while pieces are long.
    pub(super) long: u32,
}

impl Receiver {
    /// A stream whose first bytes, `early`, were already received.
    pub(super) fn new(early: Vec<u8>) -> Self {
        Self {
            early: (!early.is_empty()).then(|| early.into()),
            message: Arriving::default(),
            read: Kept::Nothing,
            raw: None,
            first: 0,
            there: 0,
            turn: 0,
            scatter: None,
            long: 0,
        }
    }

    /// Whether recent pieces were long.
    pub(super) fn is_long(&self) -> bool {
        self.long > 0
    }

    /// Bytes of memory that a message holds whose rest has not arrived.
    pub(super) fn settle(&mut self) -> usize {
        self.message.settle();
        self.message.held()
    }

    /// Receives once, and handles all received bytes.
    pub(super) async fn feed(&mut self, pair: &Pair) -> Result<(), Error> {
        let bytes = match self.early.take() {
            Some(early) => early,
            None => {
                let there = std::mem::take(&mut self.there);
                if self.is_bulk(pair) && self.feed_bulk(pair).await? {
                    return Ok(());
                }
                if let Some((mut raw, filled)) = self.raw.take() {
                    raw.truncate(filled);
                    return self.take(pair, &raw.freeze_bytes()).await;
                }
                // The piece in progress, if any.
                let step = pair.inner.borrow_mut().stream.step(&mut &[][..]);
                let mut most = if self.long > 0 { FEW } else { usize::MAX };
                match step {
                    Ok(Step::Payload { place, offset, rest, .. }) if rest >= DIRECT => {
                        if let (Place::Read(id), false) = (place, pair.crc)
                            && self.feed_placed(pair, id, offset, rest, there).await?
                        {
                            return Ok(());
                        }
                        match self.target(pair, place, offset, rest).await? {
                            Some((target, buffer, at)) => {
                                return self.feed_direct(pair, target, buffer, at, offset, rest).await;
                            }
                            None if !pair.crc => return self.discard(pair, place, offset, rest).await,
                            // The data is under the CRC, so it must be read.
                            None => most = rest.saturating_add(FEW),
                        }
                    }
                    Ok(Step::Payload { rest, .. }) => most = most.saturating_add(rest),
                    Ok(_) => {}
                    Err(error) => return Err(pair.violation(error)),
                }
                let bytes = pair.socket.recv_some(most).await?;
                pair.inner.borrow_mut().counters.receives += 1;
                bytes
            }
        };
        if bytes.is_empty() {
            return Err(self.end_of_stream(pair));
        }
        self.take(pair, &bytes).await
    }

    /// The error at the end of the peer's stream.
    pub(super) fn end_of_stream(&self, pair: &Pair) -> Error {
        let between = matches!(pair.inner.borrow_mut().stream.step(&mut &[][..]), Ok(Step::More));
        match between && self.message.is_empty() && matches!(self.read, Kept::Nothing) {
            true => Error::Closed,
            false => Error::Cut,
        }
    }

    /// Handles received bytes.
    pub(super) async fn take(&mut self, pair: &Pair, bytes: &Bytes) -> Result<(), Error> {
        let mut done = 0;
        loop {
            let stopped = self.advance(&mut pair.inner.borrow_mut(), bytes, &mut done);
            match stopped {
                Stop::More => return Ok(()),
                Stop::Buffer(len) => {
                    // The answers so far may hold the memory that is missing.
                    pair.kick();
                    wait_for_buffer(len).await?;
                }
                Stop::Violation(error) => return Err(pair.violation(error)),
                Stop::Over(error) => return Err(error),
            }
        }
    }

    /// Handles the received bytes from `done` on, as far as possible without waiting.
    fn advance(&mut self, inner: &mut Inner, bytes: &Bytes, done: &mut usize) -> Stop {
        let mut input = &bytes[*done..];
        let stop = loop {
            let step = inner.stream.step(&mut input);
            match step {
                Ok(Step::More | Step::Payload { here: 0, .. }) => break Stop::More,
                Ok(Step::Payload { place, offset, here, rest }) => {
                    let at = bytes.len() - input.len();
                    if matches!(place, Place::Read(_)) && offset == 0 {
                        self.first = if here + rest < DIRECT { here + rest } else { 0 };
                    }
                    if here + rest >= LONG {
                        self.long = LONG_AGO;
                    } else if rest == 0 {
                        self.long = self.long.saturating_sub(1);
                    }
                    if let Err(len) = self.place(inner, place, offset, bytes, at, here, rest) {
                        break Stop::Buffer(len);
                    }
                    inner.stream.took(&input[..here]);
                    input = &input[here..];
                }
                Ok(Step::Event(event)) => {
                    if let Err(error) = self.event(inner, event) {
                        break Stop::Over(error);
                    }
                }
                Err(error) => break Stop::Violation(error),
            }
        };
        *done = bytes.len() - input.len();
        // Send reads that have room under the ORD, and answers to reads of no bytes.
        inner.flush_stream();
        match inner.answer() {
            Ok(()) => stop,
            Err(error) => Stop::Violation(error),
        }
    }

    /// Puts `here` bytes at `at` of `bytes` into their place; `rest` more of the same piece will
    /// follow. On error returns the length of the missing buffer.
    #[allow(clippy::too_many_arguments)]
    fn place(
        &mut self,
        inner: &mut Inner,
        place: Place,
        offset: u64,
        bytes: &Bytes,
        at: usize,
        here: usize,
        rest: usize,
    ) -> Result<(), usize> {
        let arriving = match place {
            Place::Tagged(index) => {
                let Inner { memory, counters, .. } = inner;
                if let Some(Exposed::Buffers(_)) = memory.get(index) {
                    memory.write(index, offset, &bytes[at..at + here]);
                    counters.copied_in += here as u64;
                } else {
                    memory.skip(index, offset, here);
                    counters.dropped += here as u64;
                }
                return Ok(());
            }
            Place::Receive => &mut self.message,
            Place::Read(_) if rest == 0 && self.place_copy(inner, bytes, at..at + here) => return Ok(()),
            Place::Read(_) => match keep(&mut self.read, inner, here)? {
                Kept::Whole(buffers) => {
                    copy_in(buffers, offset as usize, &bytes[at..at + here]);
                    inner.counters.copied_in += here as u64;
                    return Ok(());
                }
                Kept::Arriving(arriving) => arriving,
                Kept::Nothing => return Ok(()),
            },
        };
        match arriving.take(bytes, at, here, rest) {
            Taken::Slice => inner.counters.by_reference += here as u64,
            Taken::Copied => inner.counters.copied_in += here as u64,
            Taken::Needs(len) => return Err(len),
        }
        Ok(())
    }

    /// The buffer into which the next `rest` bytes, at `offset` of `place`, can be received; `None`
    /// if they have no destination.
    async fn target(
        &mut self,
        pair: &Pair,
        place: Place,
        offset: u64,
        rest: usize,
    ) -> Result<Option<(Target, BufMut, usize)>, Error> {
        loop {
            let (arriving, target) = match place {
                Place::Tagged(index) => {
                    let found = pair.inner.borrow_mut().memory.lend(index, offset);
                    return Ok(found.map(|(loan, buffer, at)| (Target::Exposed(loan), buffer, at)));
                }
                Place::Receive => (&mut self.message, Target::Message),
                Place::Read(_) => {
                    let kept = keep(&mut self.read, &pair.inner.borrow(), 0);
                    match kept {
                        Ok(Kept::Whole(buffers)) => {
                            return Ok(find(buffers, offset as usize)
                                .map(|(i, at)| (Target::Read(i), buffers.remove(i), at)));
                        }
                        Ok(Kept::Arriving(arriving)) => (arriving, Target::ReadArriving),
                        Ok(Kept::Nothing) => return Ok(None),
                        Err(len) => {
                            wait_for_buffer(len).await?;
                            continue;
                        }
                    }
                }
            };
            match arriving.room(rest) {
                Some((buffer, at)) => return Ok(Some((target, buffer, at))),
                None => wait_for_buffer(rest).await?,
            }
        }
    }

    /// Receives the rest of a long piece straight into its place, from byte `at` of `buffer` on,
    /// and a little of the data after it.
    async fn feed_direct(
        &mut self,
        pair: &Pair,
        target: Target,
        buffer: BufMut,
        at: usize,
        offset: u64,
        rest: usize,
    ) -> Result<(), Error> {
        let len = rest.min(buffer.len() - at);
        let mut scatter = self.scatter.take().unwrap_or_default();
        scatter.push(Destination::Pool { buf: buffer, at, len });
        let tail = {
            let inner = pair.inner.borrow();
            match target {
                // The following data is received many FPDUs at a time.
                Target::ReadArriving if pair.crc && inner.data_sink().is_some() => inner.stream.to_end(),
                Target::Read(_) | Target::ReadArriving if inner.ends_read(offset + rest as u64) => {
                    TAIL + self.first
                }
                // The next segment is received from its first byte on: aligned, and not copied.
                Target::Exposed(_) | Target::Read(_) | Target::ReadArriving if !inner.stream.is_last() => {
                    inner.stream.to_next_tagged()
                }
                _ => TAIL,
            }
        };
        if let Some(tail) = (len == rest).then(|| pool::alloc(tail)).flatten() {
            scatter.push(tail);
        }
        // Available data is cheaper without a round of the ring, unless other tasks must get their
        // turn.
        let mut result = Ok(0);
        if pair.socket.has_more() && self.has_turn(len) {
            result = pair.socket.try_recv_scatter(&mut scatter);
        }
        let early = *result.as_ref().unwrap_or(&0);
        if early < len && result.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::WouldBlock) {
            let (rest, back) = pair.socket.recv_into(scatter, len - early).await;
            (result, scatter) = (rest.map(|rest| early + rest), back);
        }
        let mut filled = scatter.take().into_iter().filter_map(Destination::into_buf);
        let (buffer, tail) = (filled.next(), filled.next());
        drop(filled);
        self.scatter = Some(scatter);
        let got = *result.as_ref().unwrap_or(&0);
        let here = got.min(len);
        if let Some(buffer) = buffer {
            let mut inner = pair.inner.borrow_mut();
            inner.stream.took(&buffer[at..at + here]);
            inner.counters.in_place += here as u64;
            inner.counters.receives += 1;
            match target {
                Target::Exposed(loan) => inner.memory.put_back(&loan, buffer, offset + here as u64),
                Target::Message => self.message.put_back(buffer, at + here),
                Target::Read(position) => {
                    if let Kept::Whole(buffers) = &mut self.read {
                        buffers.insert(position.min(buffers.len()), buffer);
                    }
                }
                Target::ReadArriving => {
                    if let Kept::Arriving(arriving) = &mut self.read {
                        arriving.put_back(buffer, at + here);
                    }
                }
            }
        }
        result?;
        if got < len {
            return Err(Error::Cut);
        }
        // Requests for memory that this receive used had to wait.
        let answered = pair.inner.borrow_mut().answer();
        answered.map_err(|error| pair.violation(error))?;
        match tail {
            Some(mut tail) if got > len => {
                tail.truncate(got - len);
                self.take(pair, &tail.freeze_bytes()).await
            }
            _ => Ok(()),
        }
    }

    /// Lets the kernel discard a long piece without a destination.
    async fn discard(&mut self, pair: &Pair, place: Place, offset: u64, rest: usize) -> Result<(), Error> {
        let early =
            if pair.socket.has_more() && self.has_turn(rest) { pair.socket.try_discard(rest) } else { Ok(0) };
        let got = match early {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Ok(got) if got > 0 => got,
            _ => pair.socket.discard(rest).await?,
        };
        if got == 0 {
            return Err(Error::Cut);
        }
        {
            let mut inner = pair.inner.borrow_mut();
            inner.stream.took_unseen(got);
            inner.counters.dropped += got as u64;
            inner.counters.receives += 1;
            if let Place::Tagged(index) = place {
                inner.memory.skip(index, offset, got);
            }
        }
        // The following data has usually arrived already.
        if got < rest || !pair.socket.has_more() || self.turn == 0 {
            return Ok(());
        }
        let Some(mut tail) = pool::alloc(TAIL) else { return Ok(()) };
        match pair.socket.try_recv(&mut tail) {
            Ok(got) if got > 0 => {
                pair.inner.borrow_mut().counters.receives += 1;
                tail.truncate(got);
                self.take(pair, &tail.freeze_bytes()).await
            }
            // The next receive finds the end, or the error.
            _ => Ok(()),
        }
    }

    /// Handles an event of the protocol.
    fn event(&mut self, inner: &mut Inner, event: Event) -> Result<(), Error> {
        inner.counters.messages_in += 1;
        match event {
            Event::Received { solicited, invalidated, .. } => {
                let message = self.message.finish();
                if let Some(invalidated) = &invalidated {
                    inner.memory.invalidate(invalidated.index, invalidated.stag.0);
                }
                let invalidated = invalidated.map(|invalidated| Stag(invalidated.stag.0));
                inner.completions.push_back(Completion::Received { message, invalidated, solicited });
            }
            Event::Immediate { data, solicited } => {
                inner.completions.push_back(Completion::Immediate { data, solicited });
            }
            Event::ReadRequest { index, offset, len } => {
                let (at, len) = (offset as usize, len as usize);
                inner.asked.push_back(match inner.memory.get(index) {
                    Some(Exposed::Source(chain)) => Asked::Data(part(chain, at, len)),
                    _ => Asked::Copy { index, at, len },
                });
            }
            Event::ReadDone { .. } => {
                let data = match std::mem::replace(&mut self.read, Kept::Nothing) {
                    Kept::Nothing => Chain::new(),
                    Kept::Arriving(mut arriving) => arriving.finish(),
                    Kept::Whole(buffers) => buffers.into_iter().collect(),
                };
                if let Some(read) = inner.reads.pop_front() {
                    inner.completions.push_back(Completion::Read { id: read.id, data });
                }
            }
            Event::AtomicRequest { index, offset, operation } => {
                inner.asked.push_back(Asked::Atomic { index, at: offset as usize, operation });
            }
            Event::AtomicDone { id, original } => {
                inner.atomics.pop_front();
                inner.completions.push_back(Completion::Atomic { id, original });
            }
            Event::Terminated(terminated) => return Err(super::remote_terminate(terminated.code)),
        }
        Ok(())
    }
}

/// Decides how to keep the data of the current read, when its first `here` bytes have arrived. On
/// error returns the length of the missing buffer.
pub(super) fn keep<'a>(read: &'a mut Kept, inner: &Inner, here: usize) -> Result<&'a mut Kept, usize> {
    if let Kept::Nothing = read {
        let len = inner.reads.front().map_or(0, |read| read.len);
        // For a long read with little data so far, the rest is received straight into its place.
        *read = match len.saturating_sub(here) >= DIRECT {
            false => Kept::Arriving(Arriving::default()),
            true if inner.places() => Kept::Arriving(Arriving::default()),
            true => match pool::alloc_many(len) {
                Some(buffers) => Kept::Whole(buffers.into_iter().collect()),
                None if len <= pool::MAX_ALLOC => return Err(len),
                // The pool does not have that much at once, and may never have.
                None => Kept::Arriving(Arriving::default()),
            },
        };
    }
    Ok(read)
}

/// The bytes `at..at + len` of `chain`, as far as they exist.
fn part(chain: &Chain, mut at: usize, mut len: usize) -> Chain {
    let mut part = Chain::new();
    for buf in chain {
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let here = len.min(buf.len() - at);
        part.push(buf.slice(at..at + here));
        (at, len) = (0, len - here);
        if len == 0 {
            break;
        }
    }
    part
}

/// Waits until the pool has a block of `len` bytes, at most [`pool::MAX_ALLOC`].
async fn wait_for_buffer(len: usize) -> Result<(), Error> {
    // The block is not kept: the next attempt takes it from the pool. Other users of the pool
    // usually return some soon.
    let wait = async move { runtime::timeout(PATIENCE, pool::alloc_wait(len)).await.is_ok() };
    let mut waiting = Waiting(runtime::spawn(wait));
    let came = (&mut waiting.0).await.unwrap_or(false);
    // If the queue pair was not polled for long, some may have come since.
    if came || pool::alloc(len).is_some() { Ok(()) } else { Err(Error::NoBuffers) }
}

/// The task that waits for memory. A queue pair may not be polled meanwhile, and the pool serves
/// its waiters in order: without a task, all later waiters of this core would wait for the poll.
struct Waiting(JoinHandle<bool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
