//! Drives a queue pair: posts its work to the device, takes completions, and waits. The rule: **the
//! device may access a buffer until its completion was taken or the queue pair was destroyed**. So
//! buffers are held until either happens, and a queue pair is destroyed before everything that it
//! uses.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use runtime::{BufMut, Chain, Readable, pool};

use crate::abi::{self, RecvWr, SendWr, Sge, Wc};
use crate::cm::{Event, Id};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::exposure::Exposures;
use crate::options::Options;
use crate::queue::Completion;
use crate::work::{Heads, Hold, Kind, Op, Posted, Prepared, Request, Work, signal_last};

/// Completions taken per call.
const BATCH: usize = 16;
/// The bit of a work request's id that marks a receive.
const RECEIVE: u64 = 1 << 63;
/// Poll for work that is expected sooner than this; a sleep and a wake-up cost as much.
const WORTH_POLLING: Duration = Duration::from_micros(20);
/// How long a closing connection waits for the completion of its posts, which a peer without
/// receives holds up, and for the peer to close too.
const CLOSING: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Disconnected,
    Removed,
    Failed { operation: &'static str, status: String },
}

impl End {
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Disconnected => Error::Disconnected,
            Self::Removed => Error::DeviceRemoved,
            Self::Failed { operation, status } => Error::Operation { operation, status: status.clone() },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// Disconnect once everything posted is complete.
    Wanted,
    Asked,
}

/// The whole state of one connection.
pub(crate) struct State {
    pub(crate) exposures: Exposures,
    waiting: VecDeque<Work>,
    /// Requests posted to the device, in order.
    posted: VecDeque<Posted>,
    /// Id of the first of `posted`.
    first: u64,
    depth: usize,
    heads: Heads,
    /// The buffers of posted receives, in order.
    receives: VecDeque<BufMut>,
    /// Id of the first of `receives`.
    first_receive: u64,
    max_receives: usize,
    receive_size: usize,
    /// Number of receives still to post.
    wanted: u32,
    /// Completions for the user.
    pub(crate) ready: VecDeque<Completion>,
    /// The data so far of the RDMA Read that is being completed.
    reading: Chain,
    /// Bytes posted but not complete.
    pub(crate) queued: usize,
    /// The next completion will make the completion channel readable.
    armed: bool,
    completions: Readable,
    events: Readable,
    /// Memory that waiting work waits for. Below: memory for a receive, while none is posted.
    memory: Option<pool::AllocWait>,
    receive_memory: Option<pool::AllocWait>,
    driver: Option<Waker>,
    /// The task that waits for a completion. Below: the tasks that wait until fewer than this
    /// number of bytes are queued.
    pub(crate) waiter: Option<Waker>,
    pub(crate) drained: Vec<(usize, Waker)>,
    /// Since when the queue pair is idle. Below: the recent average of such idle times.
    idle_since: Option<Instant>,
    usual_wait: Duration,
    closing: Closing,
    /// When a closing connection ends in any case.
    closed_at: Option<runtime::Sleep>,
    pub(crate) end: Option<End>,
    pub(crate) endpoint: Endpoint,
    // Reused for each post.
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
    recv_wrs: Vec<RecvWr>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.end_queue_pair();
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }
}

impl State {
    /// The state of a connection through `id` that is not yet established, with its receives
    /// posted.
    pub(crate) fn new(id: Id, options: &Options) -> Result<Self, Error> {
        let (endpoint, depth, max_receives) = Endpoint::new(id, options)?;
        let io = |source| Error::Call { call: "dup", source };
        let mut state = Self {
            exposures: Exposures::new(Rc::clone(endpoint.domain()), options.stags, options.slot_bytes),
            waiting: VecDeque::new(),
            posted: VecDeque::with_capacity(depth as usize),
            first: 0,
            depth: depth as usize,
            heads: Heads::new(depth)?,
            receives: VecDeque::with_capacity(max_receives as usize),
            first_receive: 0,
            max_receives: max_receives as usize,
            receive_size: options.receive_size.clamp(64, pool::MAX_ALLOC),
            wanted: options.first_receives.min(options.receives),
            ready: VecDeque::new(),
            reading: Chain::new(),
            queued: 0,
            armed: false,
            completions: Readable::new(endpoint.completion_fd()).map_err(io)?,
            events: Readable::new(endpoint.id().channel().fd()).map_err(io)?,
            memory: None,
            receive_memory: None,
            driver: None,
            waiter: None,
            drained: Vec::new(),
            idle_since: None,
            usual_wait: Duration::MAX,
            closing: Closing::No,
            closed_at: None,
            end: None,
            endpoint,
            wrs: Vec::new(),
            sges: Vec::new(),
            recv_wrs: Vec::new(),
        };
        state.give_receives()?;
        Ok(state)
    }

    /// Waits for the next event of the connection manager. Only before the driving task starts.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        loop {
            if let Some(event) = self.endpoint.id().channel().next()? {
                return Poll::Ready(Ok(event));
            }
            match self.events.poll_readable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(source)) => return Poll::Ready(Err(Error::Call { call: "poll", source })),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(crate) fn post(&mut self, work: Work) {
        if self.end.is_some() {
            // The connection has ended: flush the post; the error follows.
            self.ready.extend(work.notify.map(|id| Completion::Flushed { id }));
            self.tell();
        } else {
            self.queued += work.op.bytes();
            self.waiting.push_back(work);
            self.wake_driver();
        }
    }

    /// Runs an operation on the exposures, and queues its posts.
    pub(crate) fn with_exposures<R>(
        &mut self,
        f: impl FnOnce(&mut Exposures, &mut VecDeque<Work>, bool) -> R,
    ) -> R {
        let result = f(&mut self.exposures, &mut self.waiting, self.end.is_some());
        if self.end.is_some() {
            self.waiting.clear();
        }
        self.wake_driver();
        result
    }

    /// Adds receives to post.
    pub(crate) fn want_receives(&mut self, n: u32) {
        self.wanted = self.wanted.saturating_add(n);
        self.wake_driver();
    }

    pub(crate) fn close(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::Wanted;
            self.closed_at = Some(runtime::sleep(CLOSING));
        }
        self.wake_driver();
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Wakes the tasks whose condition is met.
    fn tell(&mut self) {
        if !self.ready.is_empty() || self.end.is_some() {
            if let Some(waiter) = self.waiter.take() {
                waiter.wake();
            }
        }
        if !self.drained.is_empty() {
            let (queued, ended) = (self.queued, self.end.is_some());
            self.drained.retain(|(bytes, waker)| {
                let wait = queued >= *bytes && !ended;
                if !wait {
                    waker.wake_by_ref();
                }
                wait
            });
        }
    }

    /// Posts queued work now.
    pub(crate) fn flush(&mut self) {
        if self.end.is_none() {
            if let Err(error) = self.give_work().and_then(|()| self.give_receives()) {
                self.fail("post", &error);
            }
        }
    }

    /// Does all pending work. Ready when the connection has ended.
    pub(crate) fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut found = false;
        loop {
            self.flush();
            self.tell();
            if self.end.is_some() {
                return Poll::Ready(());
            }
            if self.closed_at.as_mut().is_some_and(|time| Pin::new(time).poll(cx).is_ready()) {
                self.disconnected();
                continue;
            }
            match self.reap() {
                Ok(true) => {
                    found = true;
                    self.learn();
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    self.fail("ibv_poll_cq", &error);
                    continue;
                }
            }
            match self.take_connection_event(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.fail("connection manager", &error);
                    continue;
                }
            }
            if self.is_worth_polling(found) {
                // Another round of the core's loop, without sleeping.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !self.armed {
                match self.endpoint.arm() {
                    Ok(()) => self.armed = true,
                    Err(error) => self.fail("ibv_req_notify_cq", &error),
                }
                // Check for completions that arrived since the last look.
                continue;
            }
            match self.completions.poll_readable(cx) {
                Poll::Ready(Ok(())) => {
                    if self.endpoint.take_event() {
                        self.armed = false;
                    }
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    self.fail("poll", &Error::Call { call: "poll", source: error });
                    continue;
                }
                Poll::Pending => {}
            }
            if is_there(&mut self.memory, cx) || is_there(&mut self.receive_memory, cx) {
                continue;
            }
            if !self.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                self.driver = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
    }

    /// Posts as much waiting work as the queue has room for.
    fn give_work(&mut self) -> Result<(), Error> {
        if self.closing == Closing::Wanted && self.waiting.is_empty() && self.posted.is_empty() {
            self.closing = Closing::Asked;
            return self.endpoint.id().disconnect();
        }
        if self.waiting.is_empty() || self.memory.is_some() {
            return Ok(());
        }
        self.wrs.clear();
        self.sges.clear();
        while self.posted.len() < self.depth {
            let Some(work) = self.waiting.front_mut() else { break };
            let number = self.first + self.posted.len() as u64;
            let before = self.sges.len();
            let domain = self.endpoint.domain();
            match work.prepare(domain, &mut self.exposures, &mut self.sges, &mut self.heads, number)? {
                Prepared::NoMemory(bytes) => {
                    self.memory = Some(pool::alloc_wait(bytes));
                    break;
                }
                Prepared::Ready(request, last) => {
                    let Request { mut wr, posted } = request;
                    (wr.wr_id, wr.num_sge) = (number, (self.sges.len() - before) as i32);
                    self.wrs.push(wr);
                    self.posted.push_back(posted);
                    if last {
                        self.waiting.pop_front();
                    }
                }
            }
        }
        if self.wrs.is_empty() {
            return Ok(());
        }
        signal_last(&mut self.wrs, &mut self.posted);
        let (all, count, elements) = (self.wrs.as_mut_ptr(), self.wrs.len(), self.sges.as_mut_ptr());
        let mut at = 0;
        for i in 0..count {
            // SAFETY: within the vector, which does not move until the list is posted.
            unsafe {
                let wr = all.add(i);
                (*wr).next = if i + 1 < count { all.add(i + 1) } else { ptr::null_mut() };
                (*wr).sg_list = elements.wrapping_add(at);
                at += (*wr).num_sge as usize;
            }
        }
        // SAFETY: this state owns the list and its elements. `posted` holds the referenced buffers
        // until their completion or the end of the queue pair. Their memory is registered for this
        // domain.
        unsafe { self.endpoint.post_send(all) }?;
        for wr in self.wrs.iter().filter(|wr| wr.opcode == abi::WR_BIND_MW) {
            // SAFETY: the exposure holds the window until its invalidation completes, which is
            // later.
            unsafe { (*wr.mw).rkey = wr.mw_rkey };
        }
        Ok(())
    }

    /// Posts the requested receives, as far as buffers are available.
    fn give_receives(&mut self) -> Result<(), Error> {
        if self.wanted == 0 || self.receives.len() >= self.max_receives {
            return Ok(());
        }
        self.recv_wrs.clear();
        self.sges.clear();
        while self.wanted > 0 && self.receives.len() < self.max_receives {
            let Some(mut buffer) = pool::alloc(self.receive_size) else { break };
            let Some(chunk) = buffer.chunk() else { break };
            let (lkey, _) = self.endpoint.domain().chunk(chunk)?;
            let number = RECEIVE | (self.first_receive + self.receives.len() as u64);
            let length = self.receive_size as u32;
            self.sges.push(Sge { addr: buffer.as_mut_ptr() as u64, length, lkey });
            let wr = RecvWr { wr_id: number, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
            self.recv_wrs.push(wr);
            self.receives.push_back(buffer);
            self.wanted -= 1;
        }
        if self.recv_wrs.is_empty() {
            // Without any receive the peer waits for this side, and this side must wait for memory.
            // Its work goes on meanwhile: the data that it holds may be that memory.
            if self.receives.is_empty() && self.receive_memory.is_none() {
                self.receive_memory = Some(pool::alloc_wait(self.receive_size));
            }
            return Ok(());
        }
        let (all, count, elements) =
            (self.recv_wrs.as_mut_ptr(), self.recv_wrs.len(), self.sges.as_mut_ptr());
        for i in 0..count {
            // SAFETY: within the vector, which does not move until the list is posted.
            unsafe {
                let wr = all.add(i);
                (*wr).next = if i + 1 < count { all.add(i + 1) } else { ptr::null_mut() };
                (*wr).sg_list = elements.wrapping_add(i);
            }
        }
        // SAFETY: this state owns the list and its elements. `receives` holds the buffers until
        // their completion or the end of the queue pair. Their memory is registered for this
        // domain.
        unsafe { self.endpoint.post_recv(all) }
    }

    /// Takes completions from the device. Returns whether there were any.
    fn reap(&mut self) -> Result<bool, Error> {
        let mut completions = [Wc::EMPTY; BATCH];
        let n = self.endpoint.poll(&mut completions)?;
        for completion in completions.iter().take(n) {
            if self.end.is_none() {
                self.complete(completion);
            }
        }
        Ok(n > 0)
    }

    /// Handles one completion of the device.
    fn complete(&mut self, wc: &Wc) {
        let is_receive = wc.wr_id & RECEIVE != 0;
        if wc.status == abi::WC_SUCCESS {
            return if is_receive { self.complete_receive(wc) } else { self.complete_sends(wc) };
        }
        let operation = if is_receive {
            "receive"
        } else {
            let index = wc.wr_id.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
            index.and_then(|i| self.posted.get(i)).map_or("an operation", |posted| posted.kind.name())
        };
        self.finish(if wc.status == abi::WC_WR_FLUSH_ERR {
            End::Disconnected
        } else {
            End::Failed { operation, status: self.endpoint.status(wc) }
        });
    }

    fn complete_receive(&mut self, wc: &Wc) {
        let len = wc.byte_len as usize;
        let in_order = wc.wr_id == RECEIVE | self.first_receive;
        let fits = len <= self.receive_size;
        let Some(mut buffer) = self.receives.pop_front().filter(|_| in_order && fits) else {
            let status = format!("a receive that was not posted, or {len} bytes");
            return self.finish(End::Failed { operation: "receive", status });
        };
        self.first_receive += 1;
        buffer.truncate(len);
        let flag = self.endpoint.domain().limits().invalidated_flag;
        let invalidated = (wc.wc_flags & flag != 0).then_some(wc.invalidated_rkey);
        if let Some(rkey) = invalidated {
            self.exposures.invalidated(rkey);
        }
        self.ready.push_back(Completion::Received { message: Chain::from(buffer.freeze()), invalidated });
    }

    /// Completes a work request, and all earlier ones without a completion of their own. Others may
    /// still be in flight: siw completes an RDMA Read after later Sends.
    fn complete_sends(&mut self, wc: &Wc) {
        let index = wc.wr_id.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        let Some(index) = index.filter(|&i| self.posted.get(i).is_some_and(|posted| !posted.done)) else {
            let status = format!("number {} is not posted", wc.wr_id);
            return self.finish(End::Failed { operation: "ibv_poll_cq", status });
        };
        for (i, posted) in self.posted.iter_mut().enumerate().take(index + 1) {
            posted.done |= i == index || !posted.signalled;
        }
        while self.posted.front().is_some_and(|posted| posted.done) {
            let Some(Posted { kind, hold, notify, bytes, .. }) = self.posted.pop_front() else { break };
            self.first += 1;
            self.queued -= bytes.min(self.queued);
            match hold {
                Hold::Sink { mut buffer, slot } => {
                    if let Some(slot) = slot {
                        slot.read(0, &mut buffer);
                        self.exposures.give_slot(slot);
                    }
                    self.reading.push(buffer.freeze());
                }
                Hold::Leaving(leaving) => self.exposures.left(leaving),
                Hold::Nothing | Hold::Data { .. } => {}
            }
            let Some(id) = notify else { continue };
            self.ready.push_back(match kind {
                Kind::Read => Completion::Read { id, data: std::mem::take(&mut self.reading) },
                Kind::Write => Completion::Written { id },
                _ => Completion::Sent { id },
            });
        }
    }

    /// Destroys the windows, then the queue pair; only then may memory be freed. Destroying a queue
    /// pair with a bound window would block.
    fn end_queue_pair(&mut self) {
        self.exposures.unbind_all();
        for posted in &mut self.posted {
            if let Hold::Leaving(leaving) = &mut posted.hold {
                leaving.unbind();
            }
        }
        self.waiting.iter_mut().filter_map(|work| work.leaving.as_mut()).for_each(|leaving| leaving.unbind());
        self.endpoint.destroy_queue_pair();
    }

    fn fail(&mut self, operation: &'static str, error: &Error) {
        self.finish(End::Failed { operation, status: error.to_string() });
    }

    /// Ends the connection: releases everything from the device, and flushes all posts.
    fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.end_queue_pair();
        let posted = self.posted.drain(..).filter_map(|posted| posted.notify);
        let waiting = self.waiting.drain(..).filter_map(|work| work.notify);
        self.ready.extend(posted.chain(waiting).map(|id| Completion::Flushed { id }));
        self.receives.clear();
        self.reading = Chain::new();
        self.memory = None;
        self.receive_memory = None;
        self.closed_at = None;
        self.queued = 0;
    }

    /// Handles a pending event of the connection manager. Returns whether there was one.
    fn take_connection_event(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        match self.events.poll_readable(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(source)) => return Err(Error::Call { call: "poll", source }),
        }
        if let Some(event) = self.endpoint.id().channel().next()? {
            match event.kind {
                abi::event::DISCONNECTED => self.disconnected(),
                abi::event::TIMEWAIT_EXIT | abi::event::ADDR_CHANGE | abi::event::ESTABLISHED => {}
                abi::event::DEVICE_REMOVAL => self.finish(End::Removed),
                _ => self.finish(End::Disconnected),
            }
        }
        Ok(true)
    }

    /// Handles a disconnect by the peer or by both sides, or the end of the wait for one. Messages
    /// that arrived before are still returned.
    fn disconnected(&mut self) {
        if self.closing != Closing::Asked {
            self.closing = Closing::Asked;
            // This answers the peer, which may have stopped waiting for it.
            let _ = self.endpoint.id().disconnect();
        }
        let mut one = [Wc::EMPTY];
        while self.end.is_none() && matches!(self.endpoint.poll(&mut one), Ok(1)) {
            self.complete(&one[0]);
        }
        self.finish(End::Disconnected);
    }

    /// Updates the average idle time when work arrives.
    fn learn(&mut self) {
        if let Some(since) = self.idle_since.take() {
            let wait = runtime::now().saturating_duration_since(since);
            self.usual_wait = (self.usual_wait.min(Duration::from_millis(1)) * 7 + wait) / 8;
        }
    }

    /// Whether more work is expected so soon that sleeping does not pay.
    fn is_worth_polling(&mut self, found: bool) -> bool {
        let now = runtime::now();
        if found || self.idle_since.is_none() {
            self.idle_since = Some(now);
        }
        let waited = self.idle_since.map_or(Duration::MAX, |since| now.saturating_duration_since(since));
        self.usual_wait < WORTH_POLLING && waited < WORTH_POLLING
    }
}

/// Whether memory that was waited for is there: the next attempt takes it from the pool.
fn is_there(memory: &mut Option<pool::AllocWait>, cx: &mut Context<'_>) -> bool {
    let there = memory.as_mut().is_some_and(|memory| Pin::new(memory).poll(cx).is_ready());
    if there {
        *memory = None;
    }
    there
}

impl Work {
    /// An operation without a completion for the user.
    pub(crate) fn plain(op: Op) -> Self {
        Self { op, notify: None, leaving: None }
    }
}
