//! The user's handle of a software queue pair: posting, exposing memory, completions. Dropping it
//! ends the loops of the connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use iwarp::mpa::Agreed;
use iwarp::stag::{Registration, Rights as StagRights};
use iwarp::stream::{Landing, PostError, SendFlags, Stream};
use runtime::{Chain, JoinHandle, Keepalive, Notify, TcpStream};

use super::memory::{self, Exposed, Memory};
use super::payload::{Data, Outbox};
use super::{Ended, Inner, Pair, Read, post_error};
use crate::{
    Atomic, Buffers, Completion, Counters, DataSink, Error, Flags, Options, Remote, Rights, Stag, Withdrawn,
};

/// The user's handle of a queue pair. Dropping it ends the loops and frees everything that the
/// connection holds.
pub(crate) struct Handle {
    pair: Rc<Pair>,
    /// `None` once it has ended.
    receiving: RefCell<Option<Pin<Box<dyn Future<Output = Error>>>>>,
    sending: JoinHandle<()>,
}

impl Handle {
    /// Creates the queue pair of an established connection. `early` arrived after the setup's last
    /// message.
    pub(crate) fn new(
        socket: TcpStream,
        (peer, local): (SocketAddr, SocketAddr),
        agreed: Agreed,
        early: Vec<u8>,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut seed = [0; 16];
        runtime::random(&mut seed).map_err(|_| Error::Unsupported("the system has no random numbers"))?;
        let stream_options = iwarp::stream::Options {
            max_fpdu: options.max_fpdu,
            receive_size: options.receive_size,
            max_stags: options.stags.min(memory::MOST) as usize,
            // The upper layer limits its own reads.
            max_queued: usize::MAX,
            ..iwarp::stream::Options::new(seed)
        };
        let mut stream = Stream::new(&agreed, &stream_options);
        stream.post_receives(options.first_receives.min(options.receives));
        let mut outbox = Outbox::default();
        // A CRC covers, and markers stand between, bytes of a copy.
        outbox.lend = options.lend && !agreed.crc && !agreed.send_markers;
        stream.start::<Data<'_>>(&mut outbox);
        let inner = Inner {
            stream,
            outbox,
            memory: Memory::default(),
            reads: VecDeque::new(),
            atomics: VecDeque::new(),
            asked: VecDeque::new(),
            sink: None,
            answered: [0; 2],
            most_answered: options.send_high_water.max(1),
            completions: VecDeque::new(),
            counters: Counters::default(),
            counted: Counters::default(),
            ended: None,
        };
        let pair = Rc::new(Pair {
            socket,
            peer,
            local,
            crc: agreed.crc,
            agreed,
            inner: RefCell::new(inner),
            loans: RefCell::default(),
            waiter: RefCell::default(),
            batch: Cell::new(0),
            long: Cell::new(false),
            in_flight: Cell::new(0),
            violated: RefCell::default(),
            lost: Cell::new(false),
            unfinished: Cell::new(0),
            closing: Cell::new(false),
            to_send: Notify::default(),
            room: Notify::default(),
        });
        let receiving: Pin<Box<dyn Future<Output = Error>>> = Box::pin(pair.clone().receive(early));
        let sending = runtime::spawn(pair.clone().send());
        Ok(Self { pair, receiving: RefCell::new(Some(receiving)), sending })
    }

    /// Runs an operation of the protocol, unless the connection has ended, and starts the sending
    /// of its result.
    fn post(&self, id: Option<u64>, f: impl FnOnce(&mut Inner) -> Result<Option<Completion>, PostError>) {
        let mut inner = self.pair.inner.borrow_mut();
        if inner.ended.is_some() || self.pair.closing.get() {
            if let Some(id) = id
                && !matches!(inner.ended, Some(Ended::Told))
            {
                inner.completions.push_back(Completion::Flushed { id });
                drop(inner);
                self.pair.wake();
            }
            return;
        }
        match f(&mut inner) {
            Ok(report) => {
                if let Some(completion) = report {
                    inner.outbox.report(completion);
                }
                if !inner.outbox.gather.is_empty() {
                    drop(inner);
                    self.pair.to_send.notify();
                }
            }
            Err(error) => {
                inner.completions.extend(id.map(|id| Completion::Flushed { id }));
                drop(inner);
                match error {
                    PostError::Over => self.pair.wake(),
                    error => self.pair.lose(post_error(error)),
                }
            }
        }
    }

    pub(crate) fn post_send(&self, head: &[u8], data: Chain, flags: Flags, id: Option<u64>) {
        let flags = SendFlags {
            invalidate: flags.invalidate.map(|stag| iwarp::stag::Stag(stag.0)),
            solicited: flags.solicited,
        };
        self.post(id, |Inner { stream, outbox, .. }| {
            stream.send(Data::new(head, data), flags, outbox)?;
            Ok(id.map(|id| Completion::Sent { id }))
        });
    }

    pub(crate) fn post_immediate(&self, data: [u8; 8], solicited: bool) {
        self.post(None, |Inner { stream, outbox, .. }| {
            stream.immediate::<Data<'_>>(data, solicited, outbox)?;
            Ok(None)
        });
    }

    pub(crate) fn post_write(&self, to: Remote, data: Chain, id: Option<u64>) {
        self.post(id, |Inner { stream, outbox, .. }| {
            stream.write(remote(to), Data::new(&[], data), outbox)?;
            Ok(id.map(|id| Completion::Written { id }))
        });
    }

    pub(crate) fn post_read(&self, from: Remote, len: usize, id: u64) {
        self.post(Some(id), |Inner { stream, outbox, reads, .. }| {
            let bytes = u32::try_from(len).map_err(|_| PostError::TooLong)?;
            stream.read::<Data<'_>>(remote(from), bytes, Landing::Given, id, outbox)?;
            reads.push_back(Read { id, len });
            Ok(None)
        });
    }

    pub(crate) fn set_data_sink(&self, sink: Weak<dyn DataSink>) {
        self.pair.inner.borrow_mut().sink = Some(sink);
    }

    pub(crate) fn post_atomic(&self, to: Remote, operation: Atomic, id: u64) {
        self.post(Some(id), |Inner { stream, outbox, atomics, .. }| {
            stream.atomic::<Data<'_>>(remote(to), operation, id, outbox)?;
            atomics.push_back(id);
            Ok(None)
        });
    }

    pub(crate) fn set_receive_size(&self, size: u32) {
        self.pair.inner.borrow_mut().stream.set_receive_size(size);
    }

    pub(crate) fn post_receives(&self, count: u32) {
        self.pair.inner.borrow_mut().stream.post_receives(count);
    }

    pub(crate) fn expose(&self, buffers: Buffers, rights: Rights) -> Result<Stag, Error> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.register(Exposed::Buffers(buffers), len, rights.into())
    }

    pub(crate) fn expose_source(&self, data: Chain) -> Result<Stag, Error> {
        let (len, rights) = (data.len() as u64, StagRights::REMOTE_READ | StagRights::REMOTE_INVALIDATE);
        self.register(Exposed::Source(data), len, rights)
    }

    pub(crate) fn expose_sink(&self, len: u64) -> Result<Stag, Error> {
        self.register(Exposed::Nothing, len, Rights::Write.into())
    }

    fn register(&self, exposed: Exposed, len: u64, rights: StagRights) -> Result<Stag, Error> {
        let Inner { stream, memory, .. } = &mut *self.pair.inner.borrow_mut();
        let index = memory.insert(exposed).ok_or(Error::TooManyStags)?;
        let registration = Registration { index, base: 0, len, rights, domain: stream.domain() };
        match stream.register(registration) {
            Ok(stag) => Ok(Stag(stag.0)),
            Err(_) => {
                memory.remove(index);
                Err(Error::TooManyStags)
            }
        }
    }

    pub(crate) fn withdraw(&self, stag: Stag) -> Option<Withdrawn> {
        let Inner { stream, memory, .. } = &mut *self.pair.inner.borrow_mut();
        let index = match stream.invalidate(iwarp::stag::Stag(stag.0)) {
            Some(registration) => registration.index,
            None => memory.find_invalidated(stag.0)?,
        };
        memory.remove(index)
    }

    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        self.pair.send_early();
        loop {
            {
                let mut inner = self.pair.inner.borrow_mut();
                if let Some(completion) = inner.completions.pop_front() {
                    return Poll::Ready(Ok(completion));
                }
                if let Some(ended) = &mut inner.ended {
                    return Poll::Ready(Err(match std::mem::replace(ended, Ended::Told) {
                        Ended::Because(error) => error,
                        Ended::Told => Error::Closed,
                    }));
                }
            }
            let mut receiving = self.receiving.borrow_mut();
            let polled = receiving.as_mut().map(|receiving| receiving.as_mut().poll(cx));
            match polled {
                Some(Poll::Ready(error)) => {
                    *receiving = None;
                    self.pair.lose(error);
                }
                Some(Poll::Pending) => {
                    let inner = self.pair.inner.borrow();
                    if inner.completions.is_empty() && inner.ended.is_none() {
                        let mut waiter = self.pair.waiter.borrow_mut();
                        match &mut *waiter {
                            Some(waker) => waker.clone_from(cx.waker()),
                            None => *waiter = Some(cx.waker().clone()),
                        }
                        return Poll::Pending;
                    }
                }
                None => return Poll::Ready(Err(Error::Closed)),
            }
        }
    }

    pub(crate) fn receives_many(&self) -> bool {
        let inner = self.pair.inner.borrow();
        !self.pair.long.get() && inner.completions.is_empty() && inner.ended.is_none()
    }

    pub(crate) fn held(&self) -> usize {
        let messages = self
            .pair
            .inner
            .borrow()
            .completions
            .iter()
            .map(|completion| match completion {
                Completion::Received { message, .. } => message.len(),
                _ => 0,
            })
            .sum::<usize>();
        self.pair.unfinished.get() + messages
    }

    pub(crate) fn flush(&self) {
        self.pair.flush();
    }

    pub(crate) fn queued(&self) -> usize {
        self.pair.queued()
    }

    pub(crate) fn posted(&self) -> u64 {
        self.pair.inner.borrow().outbox.end
    }

    pub(crate) fn confirm(&self, mark: u64) {
        if mark <= self.posted() {
            self.pair.loans.borrow_mut().confirm(mark);
        }
    }

    pub(crate) async fn drained_below(&self, bytes: usize) {
        let pair = &self.pair;
        pair.room.until(|| (pair.queued() < bytes || pair.lost.get()).then_some(())).await;
    }

    pub(crate) async fn posts_drained_below(&self, bytes: usize) {
        let pair = &self.pair;
        pair.room.until(|| (pair.posted() < bytes || pair.lost.get()).then_some(())).await;
    }

    pub(crate) fn disconnect(&self) {
        self.pair.close();
    }

    pub(crate) fn ord(&self) -> u16 {
        self.pair.agreed.ord
    }

    pub(crate) fn ird(&self) -> u16 {
        self.pair.agreed.ird
    }

    pub(crate) fn crc(&self) -> bool {
        self.pair.crc
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.pair.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.pair.local
    }

    pub(crate) fn tcp_info(&self) -> Option<runtime::TcpInfo> {
        self.pair.socket.info().ok()
    }

    pub(crate) fn set_send_buffer(&self, bytes: usize) {
        // If this fails, the socket still sends with its old size.
        let _ = self.pair.socket.set_send_buffer(bytes);
    }

    pub(crate) fn set_keepalive(&self, keepalive: Keepalive) {
        // If this fails, a peer that vanished is noticed when something is sent to it.
        let _ = self.pair.socket.set_keepalive(Some(keepalive));
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut inner = self.pair.inner.borrow_mut();
        inner.commit_counters();
        inner.counters
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Sends the last posts if the socket takes them at once.
        self.pair.flush();
        self.sending.abort();
        self.pair.inner.borrow_mut().commit_counters();
    }
}

fn remote(remote: Remote) -> iwarp::stream::Remote {
    iwarp::stream::Remote { stag: iwarp::stag::Stag(remote.stag.0), to: remote.offset }
}
