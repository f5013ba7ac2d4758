//! The software provider: iWARP over a TCP socket of the ring. One protocol state, one loop that receives, driven by whoever
//! asks for completions, and one task that sends. Which bytes belong where is the protocol's business (`iwarp`).

mod arriving;
mod handle;
mod loans;
mod memory;
mod payload;
mod placing;
mod receive;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use iwarp::mpa::Agreed;
use iwarp::rdmap::{Atomic, Terminate};
use iwarp::stream::{PostError, Stream};
use ring::{Chain, Gather, Lent, Notify, TcpStream};

pub(crate) use self::handle::Handle;
use self::loans::Loans;
use self::memory::{Look, Memory};
use self::payload::{Data, Outbox};
use self::receive::Receiver;
use crate::counters::count_on_core;
use crate::{Completion, Counters, DataSink, Error, Side, Terminated};

/// Completions of one receive that are many.
const MANY: usize = 8;
/// Rounds of the ring for which a send waits while long pieces lie in the socket: each takes a receive of its own, and would have
/// its answer sent, and the peer woken, by itself. Short ones come many at a time, and a peer must not wait for more of them.
const ROUNDS: usize = 8;
/// Bytes to send that wait for no more.
const PLENTY: usize = 16 << 10;
/// How long a closing connection waits for its peer to close as well.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a connection stays for its Terminate to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One connection.
struct Pair {
    socket: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
    agreed: Agreed,
    crc: bool,
    inner: RefCell<Inner>,
    loans: RefCell<Loans>,
    /// Who asked last for a completion and got none.
    waiter: RefCell<Option<Waker>>,
    /// How many completions came with the last receive; 0 once what the first half of them led to has left.
    batch: Cell<usize>,
    /// Whether pieces are long of late, so that one comes with each receive.
    long: Cell<bool>,
    /// Bytes handed to the socket and not sent yet.
    in_flight: Cell<usize>,
    /// No more I/O.
    lost: Cell<bool>,
    /// Close when everything queued has been sent.
    closing: Cell<bool>,
    /// There is something to send, or nothing any more for ever.
    to_send: Notify,
    /// Something was sent, or the connection is closing or lost.
    room: Notify,
}

/// A read that was posted.
struct Read {
    id: u64,
    len: usize,
}

/// What the peer has asked to read.
enum Asked {
    /// This.
    Data(Chain),
    /// A copy of this part of memory that is written as well, made when there is room for it.
    Copy { index: u32, at: usize, len: usize },
    /// What these eight bytes were before the operation, which is done then.
    Atomic { index: u32, at: usize, operation: Atomic },
}

/// What changes with every operation.
struct Inner {
    stream: Stream,
    outbox: Outbox,
    memory: Memory,
    /// Reads of ours, the oldest first.
    reads: VecDeque<Read>,
    /// Where what they bring may be placed.
    sink: Option<Weak<dyn DataSink>>,
    /// Atomics of ours, the oldest first.
    atomics: VecDeque<u64>,
    /// Reads and atomics of the peer's that are not answered yet: no more than it may have outstanding, since the protocol counts.
    asked: VecDeque<Asked>,
    /// Bytes of answers in the outbox, and in what is being sent.
    answered: [usize; 2],
    /// How many of them there may be before the next has to wait.
    most_answered: usize,
    completions: VecDeque<Completion>,
    counters: Counters,
    /// What of them was added to the core's.
    counted: Counters,
    ended: Option<Ended>,
}

/// How it ended.
enum Ended {
    /// Why; nobody has been told yet.
    Because(Error),
    /// Somebody has been told.
    Told,
}

impl Inner {
    /// Sends the reads of ours whose turn has come.
    fn flush_stream(&mut self) {
        let Self { stream, outbox, .. } = self;
        stream.send_due::<Data<'_>>(outbox);
    }

    /// Answers what the peer has asked to read, as far as there is room: a peer that takes no answers gets no more of them. It
    /// is listened to even so, or two that read from each other would wait for each other. Once the stream is over nothing is answered, and
    /// why it is over is known already.
    fn answer(&mut self) -> Result<(), Terminate> {
        while !self.stream.is_over() && self.answered[0] + self.answered[1] < self.most_answered {
            let before = self.outbox.gather.len();
            let answered = self.answer_next()?;
            // With its headers: there may be much more of them than of data.
            self.answered[0] += self.outbox.gather.len() - before;
            if !answered {
                break;
            }
        }
        Ok(())
    }

    /// Answers the oldest request; false if there is none, or it cannot be answered now.
    fn answer_next(&mut self) -> Result<bool, Terminate> {
        let Self { stream, outbox, memory, counters, asked, .. } = self;
        if stream.answer_empty::<Data<'_>>(outbox) {
            return Ok(true);
        }
        let Some(next) = asked.pop_front() else { return Ok(false) };
        let data = match next {
            Asked::Data(data) => data,
            Asked::Copy { index, at, len } => match memory.copy(index, at, len) {
                Look::Seen(data) => {
                    counters.copied_out += len as u64;
                    data
                }
                Look::Busy => {
                    asked.push_front(Asked::Copy { index, at, len });
                    return Ok(false);
                }
                // Withdrawn while the peer was still reading it.
                Look::Gone => return Err(Terminate::InvalidStag),
            },
            Asked::Atomic { index, at, operation } => {
                let original = match memory.apply(index, at, operation) {
                    Look::Seen(original) => original,
                    Look::Busy => {
                        asked.push_front(Asked::Atomic { index, at, operation });
                        return Ok(false);
                    }
                    Look::Gone => return Err(Terminate::InvalidStag),
                };
                let answered = stream.atomic_response::<Data<'_>>(original, outbox);
                return answered.map(|()| true).map_err(|_| Terminate::LocalCatastrophic);
            }
        };
        let answered = stream.read_response(Data::new(&[], data), outbox);
        answered.map(|()| true).map_err(|_| Terminate::LocalCatastrophic)
    }

    /// Ends it: everything posted that would have given a completion gives one now, and then the error is told.
    fn end(&mut self, error: Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(Ended::Because(error));
        while let Some(completion) = self.outbox.due(u64::MAX) {
            if let Completion::Sent { id } | Completion::Written { id } = completion {
                self.completions.push_back(Completion::Flushed { id });
            }
        }
        self.completions.extend(self.reads.drain(..).map(|read| Completion::Flushed { id: read.id }));
        self.completions.extend(self.atomics.drain(..).map(|id| Completion::Flushed { id }));
    }

    fn commit_counters(&mut self) {
        let Self { outbox, counters, .. } = self;
        outbox.count(counters);
        count_on_core(self.counters - self.counted);
        self.counted = self.counters;
    }
}

impl Pair {
    /// Receives until the connection ends, and says why it did.
    async fn receive(self: Rc<Self>, early: Vec<u8>) -> Error {
        let error = {
            let mut receiving = pin!(self.receive_loop(early));
            let mut closing = pin!(self.closed_in_vain());
            poll_fn(|cx| match receiving.as_mut().poll(cx) {
                Poll::Ready(error) => Poll::Ready(error),
                Poll::Pending => closing.as_mut().poll(cx),
            })
            .await
        };
        if let Error::NoBuffers = error {
            self.terminate(Terminate::LocalCatastrophic);
        }
        if matches!(error, Error::Terminated { side: Side::Local, .. } | Error::NoBuffers) {
            let _ = ring::timeout(LAST_WORDS, self.last_words()).await;
        }
        error
    }

    async fn receive_loop(&self, early: Vec<u8>) -> Error {
        let mut receiver = Receiver::new(early);
        loop {
            // Nothing is received before what came is taken.
            poll_fn(
                |_| if self.inner.borrow().completions.is_empty() { Poll::Ready(()) } else { Poll::Pending },
            )
            .await;
            if let Err(error) = receiver.feed(self).await {
                return error;
            }
            self.long.set(receiver.is_long());
            let count = self.inner.borrow().completions.len();
            self.batch.set(if count >= MANY { count } else { 0 });
            self.kick();
        }
    }

    /// Ends some time after the connection was closed from here.
    async fn closed_in_vain(&self) -> Error {
        self.room.until(|| self.closing.get().then_some(())).await;
        ring::sleep(CLOSING).await;
        Error::Closed
    }

    /// Sees that what is queued is sent, that the peer can read it to its end, and that the peer has.
    async fn last_words(&self) {
        self.close();
        // A socket that is closed with unread bytes in it takes back what the peer has not read yet.
        while self.socket.discard(1 << 20).await.is_ok_and(|len| len > 0) {}
    }

    /// Sends what is queued, one vectored send at a time, in order.
    async fn send(self: Rc<Self>) {
        let mut spare = Gather::new();
        loop {
            let more = self.to_send.until(|| {
                if self.lost.get() {
                    return Some(false);
                }
                match (self.may_send(), self.closing.get()) {
                    (true, _) => Some(true),
                    (false, true) => Some(false),
                    (false, false) => None,
                }
            });
            if !more.await {
                break;
            }
            // Who reads is owed much more than it has asked for: what it sends next keeps that so.
            let rounds = if self.inner.borrow().reads.is_empty() { ROUNDS } else { 1 };
            for _ in 0..rounds {
                let waits = self.long.get() && self.queued() < PLENTY && !self.lost.get();
                if !waits || !self.socket.receives_first().await {
                    break;
                }
            }
            let gather = {
                let mut inner = self.inner.borrow_mut();
                inner.answered = [0, inner.answered[0]];
                inner.outbox.take(spare)
            };
            self.in_flight.set(gather.len());
            let (result, gather) = self.transmit(gather).await;
            self.in_flight.set(0);
            spare = gather;
            spare.clear();
            self.inner.borrow_mut().answered[1] = 0;
            self.after_send();
            if let Err(error) = result {
                self.lose(error.into());
            }
        }
        // The peer may be gone already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Sends all of `gather`, by reference where that may be and pays.
    async fn transmit(&self, mut gather: Gather) -> (std::io::Result<()>, Gather) {
        loop {
            let sent = {
                let end = self.inner.borrow().outbox.swapped;
                self.loans.borrow_mut().send(&self.socket, &mut gather, end)
            };
            match sent {
                Ok(Lent::All) => return (Ok(()), gather),
                Ok(Lent::Rest) => return self.socket.send(gather).await,
                Ok(Lent::Full) => {
                    if let Err(error) = self.socket.writable().await {
                        return (Err(error), gather);
                    }
                }
                Err(error) => return (Err(error), gather),
            }
        }
    }

    /// Whether there is something to send and it may be sent.
    fn may_send(&self) -> bool {
        let inner = self.inner.borrow();
        // Who was connected to waits for the other's first message (RFC 5044 §7.1.2).
        !inner.outbox.gather.is_empty() && (inner.stream.may_send() || inner.stream.is_over())
    }

    /// Tells what the network has taken, and those who wait for room that there may be some.
    fn after_send(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.counters.sends += 1;
        if inner.outbox.gather.is_empty() {
            inner.answered[0] = 0;
        }
        if let Err(error) = inner.answer() {
            drop(inner);
            let error = self.violation(error);
            return self.lose(error);
        }
        let taken = inner.outbox.end - inner.outbox.gather.len() as u64;
        let mut told = false;
        while let Some(completion) = inner.outbox.due(taken) {
            inner.completions.push_back(completion);
            told = true;
        }
        drop(inner);
        if told {
            self.wake();
        }
        self.room.notify();
    }

    fn flush(&self) {
        if self.in_flight.get() > 0 || self.lost.get() || !self.may_send() {
            return;
        }
        let result = {
            let Outbox { gather, end, .. } = &mut self.inner.borrow_mut().outbox;
            match self.loans.borrow_mut().send(&self.socket, gather, *end) {
                Ok(Lent::Rest) => self.socket.try_send(gather).map(drop),
                Ok(Lent::All | Lent::Full) => Ok(()),
                Err(error) => Err(error),
            }
        };
        match result {
            Ok(()) => self.after_send(),
            Err(error) => self.lose(error.into()),
        }
    }

    /// Sends what the first half of many completions has led to before the second is handled, if this core has time to spare: a
    /// peer that gets all its answers at once has nothing to do until then, nor has this core afterwards until the peer has
    /// made something of them. A core that is always busy does better with one send.
    fn send_early(&self) {
        let batch = self.batch.get();
        if batch > 0 && self.inner.borrow().completions.len() <= batch / 2 {
            self.batch.set(0);
            if ring::has_polled() {
                self.flush();
            }
        }
    }

    fn queued(&self) -> usize {
        self.in_flight.get() + self.inner.borrow().outbox.gather.len()
    }

    /// What is queued without the answers to the peer's reads.
    fn posted(&self) -> usize {
        let [waiting, sending] = self.inner.borrow().answered;
        self.queued().saturating_sub(waiting + sending)
    }

    /// Sees that what is queued is sent.
    fn kick(&self) {
        let empty = {
            let mut inner = self.inner.borrow_mut();
            inner.commit_counters();
            inner.outbox.gather.is_empty()
        };
        if !empty {
            self.to_send.notify();
        }
    }

    /// Closes the connection when everything queued has been sent.
    fn close(&self) {
        self.closing.set(true);
        self.to_send.notify();
        self.room.notify();
        self.wake();
    }

    /// Gives the connection up.
    fn lose(&self, error: Error) {
        self.inner.borrow_mut().end(error);
        self.lost.set(true);
        self.to_send.notify();
        self.room.notify();
        self.wake();
    }

    fn wake(&self) {
        let waiter = self.waiter.take();
        if let Some(waker) = waiter {
            waker.wake();
        }
    }

    /// Queues the word that the stream is over, and why.
    fn terminate(&self, error: Terminate) {
        let Inner { stream, outbox, .. } = &mut *self.inner.borrow_mut();
        stream.terminate::<Data<'_>>(error, outbox);
    }

    /// The peer has broken the protocol, and is told so.
    fn violation(&self, error: Terminate) -> Error {
        self.terminate(error);
        Error::Terminated {
            side: Side::Local,
            reason: terminated(error.code()),
            detail: format!(" ({error})"),
        }
    }
}

fn terminated(code: u16) -> Terminated {
    Terminated { layer: (code >> 12) as u8, error_type: (code >> 8 & 0xf) as u8, code: code as u8 }
}

fn remote_terminate(code: u16) -> Error {
    let detail = match Terminate::from_code(code) {
        Some(error) => format!(" ({error})"),
        None => String::new(),
    };
    Error::Terminated { side: Side::Remote, reason: terminated(code), detail }
}

/// Why the protocol did not take an operation of ours.
fn post_error(error: PostError) -> Error {
    match error {
        PostError::TooLong => Error::TooLong,
        PostError::NoReads => Error::Unsupported("the peer takes no RDMA Reads"),
        PostError::Wraps => Error::Unsupported("a place that passes the end of the peer's memory"),
        _ => Error::Closed,
    }
}
