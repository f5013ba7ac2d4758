//! The software provider: iWARP over a TCP socket of the ring. One protocol state, one receive
//! loop, driven by polling for completions, and one send task. The protocol (`iwarp`) decides where
//! bytes belong.

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
use runtime::{Chain, Gather, Lent, Notify, TcpStream};

pub(crate) use self::handle::Handle;
use self::loans::Loans;
use self::memory::{Look, Memory};
use self::payload::{Data, Outbox};
use self::receive::Receiver;
use crate::counters::count_on_core;
use crate::{Completion, Counters, DataSink, Error, Side, Terminated};

/// Minimum completions of one receive that count as many.
const MANY: usize = 8;
/// Maximum rounds of the ring for which a send waits while long pieces are in the socket. Each such
/// piece has its own receive, and would cause its own send and a wake-up of the peer. Short pieces
/// arrive many at a time, and a peer must not wait for more of them.
const ROUNDS: usize = 8;
/// Bytes to send that do not wait for more.
const PLENTY: usize = 16 << 10;
/// How long a closing connection waits for its peer to close too.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a connection stays open for the peer to read its Terminate.
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
    /// Waker of the last poll without a completion.
    waiter: RefCell<Option<Waker>>,
    /// Completions of the last receive; 0 once the results of the first half were sent.
    batch: Cell<usize>,
    /// Whether recent pieces were long, so that each has its own receive.
    long: Cell<bool>,
    /// Bytes given to the socket and not yet sent.
    in_flight: Cell<usize>,
    /// Bytes of memory that a message holds whose rest has not arrived.
    unfinished: Cell<usize>,
    /// A violation that was found while sending. The receive loop ends with it.
    violated: RefCell<Option<Error>>,
    /// No more I/O is possible.
    lost: Cell<bool>,
    /// Close once everything queued has been sent.
    closing: Cell<bool>,
    /// Notified when there is something to send, or nothing will follow.
    to_send: Notify,
    /// Notified when something was sent, or the connection is closing or lost.
    room: Notify,
}

/// A posted read.
struct Read {
    id: u64,
    len: usize,
}

/// A read or atomic request of the peer.
enum Asked {
    /// A read of this data.
    Data(Chain),
    /// A read of memory that may also be written: the copy is made when there is room for it.
    Copy { index: u32, at: usize, len: usize },
    /// The value of these eight bytes before the operation, which runs then.
    Atomic { index: u32, at: usize, operation: Atomic },
}

/// The state that changes with every operation.
struct Inner {
    stream: Stream,
    outbox: Outbox,
    memory: Memory,
    /// Outstanding reads of this side, the oldest first.
    reads: VecDeque<Read>,
    /// The sink for their data.
    sink: Option<Weak<dyn DataSink>>,
    /// Outstanding atomics of this side, the oldest first.
    atomics: VecDeque<u64>,
    /// Unanswered reads and atomics of the peer. The protocol limits their number to the IRD.
    asked: VecDeque<Asked>,
    /// Bytes of answers in the outbox, and in the current send.
    answered: [usize; 2],
    /// Limit of these bytes above which the next answer waits.
    most_answered: usize,
    completions: VecDeque<Completion>,
    counters: Counters,
    /// The part of the counters already added to the core's.
    counted: Counters,
    ended: Option<Ended>,
}

/// The end of the connection.
enum Ended {
    /// Ended for this reason, not yet returned to the user.
    Because(Error),
    /// The reason has been returned.
    Told,
}

impl Inner {
    /// Sends this side's reads that have room under the ORD.
    fn flush_stream(&mut self) {
        let Self { stream, outbox, .. } = self;
        stream.send_due::<Data<'_>>(outbox);
    }

    /// Answers the peer's requests while there is room: a peer that does not take answers gets no
    /// more of them. This side still receives from it, since two peers that read from each other
    /// would deadlock otherwise. After the stream has ended, no request is answered.
    fn answer(&mut self) -> Result<(), Terminate> {
        while !self.stream.is_over() && self.answered[0] + self.answered[1] < self.most_answered {
            let before = self.outbox.gather.len();
            let answered = self.answer_next()?;
            // Include the headers: there may be many more of them than data.
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

    /// Ends the connection: each post with an outstanding completion gets one now, then the user
    /// gets the error.
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
    /// Receives until the connection ends, and returns the reason.
    async fn receive(self: Rc<Self>, early: Vec<u8>) -> Error {
        let error = {
            let mut receiving = pin!(self.receive_loop(early));
            let mut ending = pin!(self.ended_otherwise());
            poll_fn(|cx| match receiving.as_mut().poll(cx) {
                Poll::Ready(error) => Poll::Ready(error),
                Poll::Pending => ending.as_mut().poll(cx),
            })
            .await
        };
        let error = self.violated.take().unwrap_or(error);
        if let Error::NoBuffers = error {
            self.terminate(Terminate::LocalCatastrophic);
        }
        if matches!(error, Error::Terminated { side: Side::Local, .. } | Error::NoBuffers) {
            let _ = runtime::timeout(LAST_WORDS, self.last_words()).await;
        }
        error
    }

    async fn receive_loop(&self, early: Vec<u8>) -> Error {
        let mut receiver = Receiver::new(early);
        loop {
            // Receive only when all completions have been taken.
            poll_fn(
                |_| if self.inner.borrow().completions.is_empty() { Poll::Ready(()) } else { Poll::Pending },
            )
            .await;
            if let Err(error) = receiver.feed(self).await {
                return error;
            }
            self.long.set(receiver.is_long());
            self.unfinished.set(receiver.settle());
            let count = self.inner.borrow().completions.len();
            self.batch.set(if count >= MANY { count } else { 0 });
            self.kick();
        }
    }

    /// Completes after a violation that was found while sending, and some time after this side
    /// closed the connection.
    async fn ended_otherwise(&self) -> Error {
        let violated = || self.violated.borrow().is_some();
        self.room.until(|| (violated() || self.closing.get()).then_some(())).await;
        if !violated() {
            runtime::sleep(CLOSING).await;
        }
        Error::Closed
    }

    /// Waits until queued data is sent and the peer has read it to its end.
    async fn last_words(&self) {
        self.close();
        // Closing a socket with unread bytes discards data that the peer has not read yet.
        while self.socket.discard(1 << 20).await.is_ok_and(|len| len > 0) {}
    }

    /// Sends queued data in order, one vectored send at a time.
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
            // With outstanding reads, wait for one round only: the next requests keep the pipeline
            // full.
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
            match result {
                Ok(()) => self.after_send(),
                Err(error) => self.lose(error.into()),
            }
        }
        // The peer may have closed already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Sends all of `gather`, by reference if that is allowed and pays.
    async fn transmit(&self, mut gather: Gather) -> (std::io::Result<()>, Gather) {
        loop {
            let sent = {
                let outbox = &self.inner.borrow().outbox;
                let mut send = || self.loans.borrow_mut().send(&self.socket, &mut gather, outbox.swapped);
                outbox.readable().and_then(|()| send())
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

    /// Whether there is something to send and sending is allowed.
    fn may_send(&self) -> bool {
        let inner = self.inner.borrow();
        // The accepting side waits for the first message of the other (RFC 5044 §7.1.2).
        !inner.outbox.gather.is_empty() && (inner.stream.may_send() || inner.stream.is_over())
    }

    /// Reports posts that the network has taken, and notifies those that wait for room.
    fn after_send(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.counters.sends += 1;
        if inner.outbox.gather.is_empty() {
            inner.answered[0] = 0;
        }
        if let Err(error) = inner.answer() {
            drop(inner);
            let error = self.violation(error);
            *self.violated.borrow_mut() = Some(error);
            inner = self.inner.borrow_mut();
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
            let outbox = &mut self.inner.borrow_mut().outbox;
            let readable = outbox.readable();
            let Outbox { gather, end, .. } = outbox;
            match readable.and_then(|()| self.loans.borrow_mut().send(&self.socket, gather, *end)) {
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

    /// Sends the results of the first half of many completions before the second half is handled,
    /// if this core has spare time. Otherwise the peer would be idle until it gets all answers at
    /// once, and then this core until the peer has processed them. A core that is always busy does
    /// better with one send.
    fn send_early(&self) {
        let batch = self.batch.get();
        if batch > 0 && self.inner.borrow().completions.len() <= batch / 2 {
            self.batch.set(0);
            if runtime::has_polled() {
                self.flush();
            }
        }
    }

    fn queued(&self) -> usize {
        self.in_flight.get() + self.inner.borrow().outbox.gather.len()
    }

    /// Queued bytes without the answers to the peer's reads.
    fn posted(&self) -> usize {
        let [waiting, sending] = self.inner.borrow().answered;
        self.queued().saturating_sub(waiting + sending)
    }

    /// Starts the sending of queued data.
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

    /// Closes the connection once everything queued has been sent.
    fn close(&self) {
        self.closing.set(true);
        self.to_send.notify();
        self.room.notify();
        self.wake();
    }

    /// Ends the connection with this error.
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

    /// Queues a Terminate with this reason.
    fn terminate(&self, error: Terminate) {
        let Inner { stream, outbox, .. } = &mut *self.inner.borrow_mut();
        stream.terminate::<Data<'_>>(error, outbox);
    }

    /// Handles a protocol violation of the peer: queues a Terminate and returns the error.
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

/// The error for an operation that the protocol rejected.
fn post_error(error: PostError) -> Error {
    match error {
        PostError::TooLong => Error::TooLong,
        PostError::NoReads => Error::Unsupported("the peer takes no RDMA Reads"),
        PostError::Wraps => Error::Unsupported("a place that passes the end of the peer's memory"),
        _ => Error::Closed,
    }
}
