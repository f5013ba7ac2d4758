//! [`QueuePair`]: one connection's send and receive queues, and its completions.
//!
//! Posts only queue; the task that polls hands everything over in one call, reaps completions, and sleeps on the completion
//! channel's and the connection manager's descriptors through the ring. The rule here: **the device may touch a buffer until its
//! completion has been seen or the queue pair has been destroyed**, so buffers are held until one of both, and a queue pair is
//! destroyed before anything that it knew.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ring::{BufMut, Chain, Readable, pool};

use crate::abi::{self, CompChannel, Cq, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Wc};
use crate::cm::{Id, check, set_nonblocking};
use crate::domain::Domain;
use crate::error::Error;
use crate::exposure::{Buffers, Exposures, Remote, Rights, Withdrawn};
use crate::library::Library;
use crate::options::Options;
use crate::work::{Head, Heads, Hold, Kind, MAX_HEAD, Op, Posted, Prepared, Work};

/// Completions taken at once.
const BATCH: usize = 16;
/// The bit of a work request's number that says that it is a receive.
const RECEIVE: u64 = 1 << 63;
/// Work that is expected sooner than this is polled for; a sleep and a wake cost as much.
const WORTH_POLLING: Duration = Duration::from_micros(20);

/// What has come to an end, or has arrived. Sends, writes and reads come in the order of their posts.
#[derive(Debug)]
pub enum Completion {
    /// A Send of the peer's has arrived.
    Received {
        /// Its bytes, in the receive buffer.
        message: Chain,
        /// Exposed memory that the peer has invalidated with it; [`QueuePair::withdraw`] gives it back.
        invalidated: Option<u32>,
    },
    /// A Send that was posted with this number is over; its data is not used any more.
    Sent {
        /// The number.
        id: u64,
    },
    /// The same of an RDMA Write.
    Written {
        /// The number.
        id: u64,
    },
    /// An RDMA Read is over.
    Read {
        /// The number that it was posted with.
        id: u64,
        /// What was read, as long as was asked for.
        data: Chain,
    },
    /// The connection has ended before this post.
    Flushed {
        /// The number that it was posted with.
        id: u64,
    },
}

/// Why a connection is over.
#[derive(Clone, Debug)]
enum End {
    Disconnected,
    Removed,
    Failed { operation: &'static str, status: String },
}

impl End {
    fn error(&self) -> Error {
        match self {
            Self::Disconnected => Error::Disconnected,
            Self::Removed => Error::DeviceRemoved,
            Self::Failed { operation, status } => Error::Operation { operation, status: status.clone() },
        }
    }
}

/// The device's side of a connection. The domain goes before the identifier, which keeps the device's context open.
struct Device {
    library: &'static Library,
    domain: Rc<Domain>,
    id: Id,
    channel: NonNull<CompChannel>,
    cq: NonNull<Cq>,
    /// Until the connection has ended.
    has_queue_pair: bool,
}

impl Device {
    fn destroy_queue_pair(&mut self) {
        if std::mem::take(&mut self.has_queue_pair) {
            // SAFETY: made on this identifier, and destroyed once.
            unsafe { (self.library.rdma_destroy_qp)(self.id.raw()) };
        }
    }

    /// The queue pair, while there is one.
    fn queue_pair(&self) -> Option<*mut abi::Qp> {
        // SAFETY: the identifier is valid.
        self.has_queue_pair.then(|| unsafe { (*self.id.raw()).qp })
    }

    /// The calls that the headers make through the context.
    fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context is open as long as the identifier is there, and its table does not change.
        unsafe { &(*self.domain.context()).ops }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        // SAFETY: the queue pair is gone, events of the queue were acknowledged as they were taken, and each of both is
        // destroyed once, the channel last.
        unsafe {
            (self.library.ibv_destroy_cq)(self.cq.as_ptr());
            (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

struct State {
    /// What is exposed; before `device` in this order, since its windows are of the device's domain.
    exposures: Exposures,
    waiting: VecDeque<Work>,
    /// What the device has, in order.
    posted: VecDeque<Posted>,
    /// The number of the first of `posted`.
    first: u64,
    heads: Heads,
    /// The buffers of posted receives, in order.
    receives: VecDeque<BufMut>,
    /// The number of the first of `receives`.
    first_receive: u64,
    /// Receives that are to be posted.
    wanted: u32,
    /// Completions to be told.
    ready: VecDeque<Completion>,
    /// What has come so far of the RDMA Read that is being completed.
    reading: Chain,
    /// Bytes posted and not completed.
    queued: usize,
    /// The device will make the completion channel readable.
    armed: bool,
    completions: Readable,
    events: Readable,
    memory: Option<pool::AllocWait>,
    waker: Option<Waker>,
    /// When there was last nothing to do, and how long it has taken of late until there was.
    idle_since: Option<Instant>,
    usual_wait: Duration,
    closing: Closing,
    end: Option<End>,
    device: Device,
    // Used again and again.
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
    recv_wrs: Vec<RecvWr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// As soon as everything posted is done.
    Wanted,
    Asked,
}

impl Drop for State {
    fn drop(&mut self) {
        // Windows, then the queue pair; only then any memory.
        self.exposures.unbind_all();
        self.device.destroy_queue_pair();
    }
}

/// One connection. It lives on the core that made it.
pub struct QueuePair {
    state: RefCell<State>,
    depth: usize,
    max_receives: usize,
    receive_size: usize,
    ird: u8,
    ord: u8,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
}

impl QueuePair {
    /// Makes the queues for a connection through `id`, with its receives posted. It is not connected yet.
    pub(crate) fn new(id: Id, options: &Options) -> Result<Self, Error> {
        let library = id.library();
        // SAFETY: the identifier holds the device, and lives in the same structure as the domain, which goes first there.
        let domain = unsafe { Domain::for_connection(library, id.context()?) }?;
        let limits = domain.limits();
        let depth = options.sends.clamp(4, limits.work_requests.min(4096));
        let max_receives = options.receives.clamp(1, limits.work_requests.min(16 << 10));
        let entries = (depth + max_receives + 2).min(limits.completions);
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(domain.context()) };
        let channel = NonNull::new(channel).ok_or_else(|| Error::call("ibv_create_comp_channel"))?;
        // SAFETY: the channel was just made on this context.
        let cq = unsafe {
            (library.ibv_create_cq)(domain.context(), entries as i32, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = Error::call("ibv_create_cq");
            // SAFETY: made above, and used by nobody.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let mut device =
            Device { library, id, domain: Rc::clone(&domain), channel, cq, has_queue_pair: false };
        let mut attributes = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: depth,
                max_recv_wr: max_receives,
                max_send_sge: limits.sges as u32,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: identifier, domain and completion queue are of one context and outlive the queue pair.
        let rc =
            unsafe { (library.rdma_create_qp)(device.id.raw(), device.domain.raw(), &raw mut attributes) };
        check("rdma_create_qp", rc)?;
        device.has_queue_pair = true;
        // SAFETY: the channel is open, and so is its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) };
        let io = |source| Error::Call { call: "dup", source };
        set_nonblocking(&fd.try_clone_to_owned().map_err(io)?)?;
        let (peer, local) = (device.id.peer(), device.id.local());
        let pair = Self {
            depth: depth as usize,
            max_receives: max_receives as usize,
            receive_size: options.receive_size.clamp(64, pool::MAX_ALLOC),
            ird: options.ird.min(limits.ird),
            ord: options.ord.min(limits.ord),
            peer,
            local,
            state: RefCell::new(State {
                exposures: Exposures::new(Rc::clone(&device.domain), options.stags, options.slot_bytes),
                waiting: VecDeque::new(),
                posted: VecDeque::with_capacity(depth as usize),
                first: 0,
                heads: Heads::new(depth)?,
                receives: VecDeque::with_capacity(max_receives as usize),
                first_receive: 0,
                wanted: options.receives,
                ready: VecDeque::new(),
                reading: Chain::new(),
                queued: 0,
                armed: false,
                completions: Readable::new(fd).map_err(io)?,
                events: Readable::new(device.id.channel().fd()).map_err(io)?,
                memory: None,
                waker: None,
                idle_since: None,
                usual_wait: Duration::MAX,
                closing: Closing::No,
                end: None,
                device,
                wrs: Vec::new(),
                sges: Vec::new(),
                recv_wrs: Vec::new(),
            }),
        };
        pair.give_receives(&mut pair.state.borrow_mut())?;
        Ok(pair)
    }

    /// What both sides agreed on.
    pub(crate) fn agree(&mut self, ird: u8, ord: u8) {
        (self.ird, self.ord) = (ird, ord);
    }

    /// Runs `f` with the identifier.
    pub(crate) fn with_id<R>(&self, f: impl FnOnce(&Id) -> R) -> R {
        f(&self.state.borrow().device.id)
    }

    /// Waits for the next event of the connection manager.
    pub(crate) async fn next_event(&self) -> Result<crate::cm::Event, Error> {
        std::future::poll_fn(|cx| {
            let state = &mut *self.state.borrow_mut();
            loop {
                if let Some(event) = state.device.id.channel().next()? {
                    return Poll::Ready(Ok(event));
                }
                match state.events.poll_readable(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(source)) => {
                        return Poll::Ready(Err(Error::Call { call: "poll", source }));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The address on this side.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// RDMA Reads of the peer that are answered at once.
    pub fn ird(&self) -> u8 {
        self.ird
    }

    /// RDMA Reads of ours that the device has outstanding at once; more wait in its queue, and what was posted after them.
    pub fn ord(&self) -> u8 {
        self.ord
    }

    /// Whether the peer may invalidate what is exposed here. Where it may not, a peer that does so loses the connection's
    /// registered memory one by one, which costs time.
    pub fn takes_invalidation(&self) -> bool {
        self.state.borrow().device.domain.has_windows()
    }

    /// Bytes of Sends and RDMA Writes that were posted and have not been completed.
    pub fn queued(&self) -> usize {
        self.state.borrow().queued
    }

    /// How many keys are exposed.
    pub fn exposed(&self) -> usize {
        self.state.borrow().exposures.len()
    }

    /// Queues a Send of `head`, which is copied, and `data`. With `notify`, its end is told.
    ///
    /// # Errors
    /// `head` is longer than [`MAX_HEAD`].
    pub fn post_send(
        &self,
        head: &[u8],
        data: impl Into<Chain>,
        invalidate: Option<u32>,
        solicited: bool,
        notify: Option<u64>,
    ) -> Result<(), Error> {
        if head.len() > MAX_HEAD {
            return Err(Error::TooMuch {
                what: "bytes before a Send's data",
                asked: head.len(),
                limit: MAX_HEAD,
            });
        }
        let head = Head::from_slice(head);
        self.post(Op::Send { head, data: data.into(), invalidate, solicited }, notify);
        Ok(())
    }

    /// Queues an RDMA Write. With `notify`, its end is told. A region's memory is copied when the device takes it.
    pub fn post_write(&self, remote: Remote, data: impl Into<Chain>, notify: Option<u64>) {
        let data = data.into();
        if data.is_empty() {
            if let Some(id) = notify {
                self.post(Op::Write { stag: remote.stag, offset: remote.offset, data }, Some(id));
            }
            return;
        }
        self.post(Op::Write { stag: remote.stag, offset: remote.offset, data }, notify);
    }

    /// Queues an RDMA Read of `len` bytes, which [`Completion::Read`] brings.
    pub fn post_read(&self, remote: Remote, len: usize, id: u64) {
        self.post(Op::Read { stag: remote.stag, offset: remote.offset, len }, Some(id));
    }

    /// Lets the peer send `n` messages more.
    pub fn post_receives(&self, n: u32) {
        let state = &mut *self.state.borrow_mut();
        state.wanted = state.wanted.saturating_add(n);
        state.wake();
    }

    /// Lends buffers for the peer to reach.
    ///
    /// # Errors
    /// When too much is exposed, or the device has no room for more.
    pub fn expose(&self, buffers: Buffers, rights: Rights) -> Result<Remote, Error> {
        let state = &mut *self.state.borrow_mut();
        let State { exposures, waiting, .. } = state;
        let remote = exposures.expose(buffers, rights, |op| waiting.push_back(Work::plain(op)))?;
        state.wake();
        Ok(remote)
    }

    /// Lends data for the peer to read.
    ///
    /// # Errors
    /// As [`Self::expose`].
    pub fn expose_source(&self, data: Chain) -> Result<Remote, Error> {
        let state = &mut *self.state.borrow_mut();
        let State { exposures, waiting, .. } = state;
        let remote = exposures.expose_source(data, |op| waiting.push_back(Work::plain(op)))?;
        state.wake();
        Ok(remote)
    }

    /// Lets the peer write `len` bytes that nobody looks at.
    ///
    /// # Errors
    /// As [`Self::expose`].
    pub fn expose_sink(&self, len: usize) -> Result<Remote, Error> {
        let state = &mut *self.state.borrow_mut();
        let State { exposures, waiting, .. } = state;
        let remote = exposures.expose_sink(len, |op| waiting.push_back(Work::plain(op)))?;
        state.wake();
        Ok(remote)
    }

    /// Ends an exposure and gives its buffers back. Where the peer has not invalidated it and could still write, they are
    /// others that hold the same.
    ///
    /// # Errors
    /// [`Error::UnknownStag`].
    pub fn withdraw(&self, stag: u32) -> Result<Withdrawn, Error> {
        let state = &mut *self.state.borrow_mut();
        let State { exposures, waiting, end, .. } = state;
        let withdrawn = exposures.withdraw(stag, end.is_some(), |op, leaving| {
            waiting.push_back(Work { leaving: Some(leaving), ..Work::plain(op) });
        })?;
        state.wake();
        Ok(withdrawn)
    }

    /// Ends the connection once everything posted is done. [`Self::next`] tells when it is over.
    pub fn disconnect(&self) {
        let state = &mut *self.state.borrow_mut();
        if state.closing == Closing::No {
            state.closing = Closing::Wanted;
        }
        state.wake();
    }

    /// The next completion. Nothing is posted while nobody asks for one.
    ///
    /// # Errors
    /// Why the connection has ended, once everything posted has been told of.
    pub async fn next(&self) -> Result<Completion, Error> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn post(&self, op: Op, notify: Option<u64>) {
        let state = &mut *self.state.borrow_mut();
        if state.end.is_some() {
            // It can be told only; the error comes after.
            state.ready.extend(notify.map(|id| Completion::Flushed { id }));
        } else {
            state.queued += op.bytes();
            state.waiting.push_back(Work { op, notify, leaving: None });
        }
        state.wake();
    }

    /// [`Self::next`] for who polls.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        let state = &mut *self.state.borrow_mut();
        let mut found = false;
        loop {
            if state.end.is_none() {
                if let Err(error) = self.give_work(state).and_then(|()| self.give_receives(state)) {
                    state.finish(End::Failed { operation: "post", status: error.to_string() });
                }
            }
            if let Some(completion) = state.ready.pop_front() {
                return Poll::Ready(Ok(completion));
            }
            if let Some(end) = &state.end {
                return Poll::Ready(Err(end.error()));
            }
            if self.reap(state) {
                found = true;
                state.learn();
                continue;
            }
            match state.poll_events(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    state.finish(End::Failed { operation: "connection manager", status: error.to_string() });
                    continue;
                }
            }
            if state.is_worth_polling(found) {
                // Once more around the core's loop, without sleeping.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !state.armed {
                if let Err(error) = state.arm() {
                    state.finish(End::Failed { operation: "ibv_req_notify_cq", status: error.to_string() });
                }
                // What came between the last look and now.
                continue;
            }
            match state.completions.poll_readable(cx) {
                Poll::Ready(Ok(())) => {
                    state.take_completion_event();
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    state.finish(End::Failed { operation: "poll", status: error.to_string() });
                    continue;
                }
                Poll::Pending => {}
            }
            if let Some(memory) = &mut state.memory {
                if Pin::new(memory).poll(cx).is_ready() {
                    state.memory = None;
                    continue;
                }
            }
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
    }

    /// Hands over what waits and fits.
    fn give_work(&self, state: &mut State) -> Result<(), Error> {
        if state.closing == Closing::Wanted && state.waiting.is_empty() && state.posted.is_empty() {
            state.closing = Closing::Asked;
            return state.device.id.disconnect();
        }
        if state.waiting.is_empty() || state.memory.is_some() {
            return Ok(());
        }
        let Some(queue_pair) = state.device.queue_pair() else { return Ok(()) };
        state.wrs.clear();
        state.sges.clear();
        let State { waiting, posted, first, exposures, heads, wrs, sges, device, memory, .. } = state;
        while posted.len() < self.depth {
            let Some(work) = waiting.front_mut() else { break };
            let number = *first + posted.len() as u64;
            let before = sges.len();
            match work.prepare(&device.domain, exposures, sges, heads, number)? {
                Prepared::NoMemory(bytes) => {
                    *memory = Some(pool::alloc_wait(bytes));
                    break;
                }
                Prepared::Ready(request, last) => {
                    let mut wr = request.wr;
                    (wr.wr_id, wr.num_sge) = (number, (sges.len() - before) as i32);
                    // A queue of unsignalled requests alone would never be found to be done.
                    if posted.len() + 1 == self.depth {
                        wr.send_flags |= abi::SEND_SIGNALED;
                    }
                    wrs.push(wr);
                    posted.push_back(request.posted);
                    if last {
                        waiting.pop_front();
                    }
                }
            }
        }
        let Some(all) = NonNull::new(wrs.as_mut_ptr()).filter(|_| !wrs.is_empty()) else { return Ok(()) };
        let mut at = 0;
        for i in 0..wrs.len() {
            let next = if i + 1 < wrs.len() { all.as_ptr().wrapping_add(i + 1) } else { ptr::null_mut() };
            wrs[i].next = next;
            wrs[i].sg_list = sges.as_mut_ptr().wrapping_add(at);
            at += wrs[i].num_sge as usize;
        }
        let post_send =
            device.ops().post_send.ok_or_else(|| Error::code("ibv_post_send", libc::EOPNOTSUPP))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the list and its elements live until the call returns; what the elements point to is held in `posted` until
        // its completion or the end of the queue pair, in memory that is registered for this domain.
        let code = unsafe { post_send(queue_pair, wrs.as_mut_ptr(), &raw mut bad) };
        if code != 0 {
            return Err(Error::code("ibv_post_send", code));
        }
        for wr in wrs.iter().filter(|wr| wr.opcode == abi::WR_BIND_MW) {
            // SAFETY: the window is held by its exposure until its invalidation is completed, which is later.
            unsafe { (*wr.mw).rkey = wr.mw_rkey };
        }
        Ok(())
    }

    /// Posts receives that are wanted, as far as there are buffers.
    fn give_receives(&self, state: &mut State) -> Result<(), Error> {
        if state.wanted == 0 || state.receives.len() >= self.max_receives {
            return Ok(());
        }
        let Some(queue_pair) = state.device.queue_pair() else { return Ok(()) };
        state.recv_wrs.clear();
        state.sges.clear();
        while state.wanted > 0 && state.receives.len() < self.max_receives {
            let Some(mut buffer) = pool::alloc(self.receive_size) else { break };
            let Some(chunk) = buffer.chunk() else { break };
            let (lkey, _) = state.device.domain.chunk(chunk)?;
            let number = RECEIVE | (state.first_receive + state.receives.len() as u64);
            let length = self.receive_size as u32;
            state.sges.push(Sge { addr: buffer.as_mut_ptr() as u64, length, lkey });
            let wr = RecvWr { wr_id: number, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
            state.recv_wrs.push(wr);
            state.receives.push_back(buffer);
            state.wanted -= 1;
        }
        if state.recv_wrs.is_empty() {
            // Without a single one the peer waits for us, and we for memory.
            if state.receives.is_empty() && state.memory.is_none() {
                state.memory = Some(pool::alloc_wait(self.receive_size));
            }
            return Ok(());
        }
        let all = state.recv_wrs.as_mut_ptr();
        let count = state.recv_wrs.len();
        for (i, wr) in state.recv_wrs.iter_mut().enumerate() {
            wr.sg_list = state.sges.as_mut_ptr().wrapping_add(i);
            wr.next = if i + 1 < count { all.wrapping_add(i + 1) } else { ptr::null_mut() };
        }
        let post_recv =
            state.device.ops().post_recv.ok_or_else(|| Error::code("ibv_post_recv", libc::EOPNOTSUPP))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the list and its elements live until the call returns; the buffers are held in `receives` until their
        // completion or the end of the queue pair, in memory that is registered for this domain.
        let code = unsafe { post_recv(queue_pair, state.recv_wrs.as_mut_ptr(), &raw mut bad) };
        if code == 0 { Ok(()) } else { Err(Error::code("ibv_post_recv", code)) }
    }

    /// Takes completions from the device. Whether there were any.
    fn reap(&self, state: &mut State) -> bool {
        let Some(poll_cq) = state.device.ops().poll_cq else { return false };
        let mut completions = [Wc::EMPTY; BATCH];
        // SAFETY: the queue is there as long as the device's side is; there is room for as many as are asked for.
        let n = unsafe { poll_cq(state.device.cq.as_ptr(), BATCH as i32, completions.as_mut_ptr()) };
        let Ok(n) = usize::try_from(n) else {
            state.finish(End::Failed { operation: "ibv_poll_cq", status: format!("error {n}") });
            return true;
        };
        for completion in completions.iter().take(n) {
            if state.end.is_none() {
                state.complete(completion, self.receive_size);
            }
        }
        n > 0
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// One completion of the device.
    fn complete(&mut self, wc: &Wc, receive_size: usize) {
        let is_receive = wc.wr_id & RECEIVE != 0;
        if wc.status != abi::WC_SUCCESS {
            let operation = if is_receive {
                "receive"
            } else {
                let index = wc.wr_id.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
                index.and_then(|i| self.posted.get(i)).map_or("an operation", |posted| posted.kind.name())
            };
            return self.finish(if wc.status == abi::WC_WR_FLUSH_ERR {
                End::Disconnected
            } else {
                End::Failed { operation, status: self.status(wc) }
            });
        }
        if is_receive { self.complete_receive(wc, receive_size) } else { self.complete_sends(wc) }
    }

    fn status(&self, wc: &Wc) -> String {
        // SAFETY: the library's texts live as long as it does, and end with a zero.
        let text = unsafe {
            let text = (self.device.library.ibv_wc_status_str)(wc.status);
            if text.is_null() { "?".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        format!("{text} (status {}, vendor's {:#x})", wc.status, wc.vendor_err)
    }

    fn complete_receive(&mut self, wc: &Wc, receive_size: usize) {
        let len = wc.byte_len as usize;
        let in_order = wc.wr_id == RECEIVE | self.first_receive;
        let Some(mut buffer) = self.receives.pop_front().filter(|_| in_order && len <= receive_size) else {
            let status = format!("a receive that was not posted, or {len} bytes");
            return self.finish(End::Failed { operation: "receive", status });
        };
        self.first_receive += 1;
        buffer.truncate(len);
        let invalidated = (wc.wc_flags & abi::WC_WITH_INV != 0).then_some(wc.invalidated_rkey);
        if let Some(rkey) = invalidated {
            self.exposures.invalidated(rkey);
        }
        self.ready.push_back(Completion::Received { message: Chain::from(buffer.freeze()), invalidated });
    }

    /// A work request is done, and with it all before it.
    fn complete_sends(&mut self, wc: &Wc) {
        let last = wc.wr_id;
        if last < self.first || last - self.first >= self.posted.len() as u64 {
            let status = format!("number {last} is not posted");
            return self.finish(End::Failed { operation: "ibv_poll_cq", status });
        }
        while self.first <= last {
            let Some(Posted { kind, hold, notify, bytes }) = self.posted.pop_front() else { break };
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

    /// The connection is over: the device lets go of everything, and what was posted is told of.
    fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.exposures.unbind_all();
        self.device.destroy_queue_pair();
        let posted = self.posted.drain(..).filter_map(|posted| posted.notify);
        let waiting = self.waiting.drain(..).filter_map(|work| work.notify);
        self.ready.extend(posted.chain(waiting).map(|id| Completion::Flushed { id }));
        self.receives.clear();
        self.reading = Chain::new();
        self.memory = None;
        self.queued = 0;
    }

    /// Looks what the connection manager has to say. Whether there was anything.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        match self.events.poll_readable(cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(source)) => return Err(Error::Call { call: "poll", source }),
        }
        if let Some(event) = self.device.id.channel().next()? {
            match event.kind {
                // What the peer sent before it went is still to be told.
                abi::event::DISCONNECTED => {
                    if self.closing != Closing::Asked {
                        self.closing = Closing::Asked;
                        let _ = self.device.id.disconnect();
                    }
                    self.finish_after_completions();
                }
                abi::event::TIMEWAIT_EXIT | abi::event::ADDR_CHANGE | abi::event::ESTABLISHED => {}
                abi::event::DEVICE_REMOVAL => self.finish(End::Removed),
                _ => self.finish(End::Disconnected),
            }
        }
        Ok(true)
    }

    /// Takes what has arrived, then ends.
    fn finish_after_completions(&mut self) {
        let Some(poll_cq) = self.device.ops().poll_cq else { return self.finish(End::Disconnected) };
        loop {
            let mut wc = Wc::EMPTY;
            // SAFETY: as in `QueuePair::reap`, for one.
            let n = unsafe { poll_cq(self.device.cq.as_ptr(), 1, &raw mut wc) };
            if n <= 0 || wc.status != abi::WC_SUCCESS || self.end.is_some() {
                break;
            }
            self.complete(&wc, usize::MAX);
        }
        self.finish(End::Disconnected);
    }

    fn arm(&mut self) -> Result<(), Error> {
        let notify = self.device.ops().req_notify_cq;
        let notify = notify.ok_or_else(|| Error::code("ibv_req_notify_cq", libc::EOPNOTSUPP))?;
        // SAFETY: the queue is there as long as the device's side is.
        let code = unsafe { notify(self.device.cq.as_ptr(), 0) };
        if code != 0 {
            return Err(Error::code("ibv_req_notify_cq", code));
        }
        self.armed = true;
        Ok(())
    }

    /// The completion channel was readable: takes its event, if it is there.
    fn take_completion_event(&mut self) {
        let (mut cq, mut context): (*mut Cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        let library = self.device.library;
        // SAFETY: the channel is open and does not block; its one queue's events are acknowledged as they are taken.
        unsafe {
            let channel = self.device.channel.as_ptr();
            if (library.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) == 0 {
                (library.ibv_ack_cq_events)(cq, 1);
                self.armed = false;
            }
        }
    }

    /// Work has come: how long it took since there was none.
    fn learn(&mut self) {
        if let Some(since) = self.idle_since.take() {
            let wait = ring::now().saturating_duration_since(since);
            self.usual_wait = (self.usual_wait.min(Duration::from_millis(1)) * 7 + wait) / 8;
        }
    }

    /// Whether more work is expected so soon that a sleep does not pay.
    fn is_worth_polling(&mut self, found: bool) -> bool {
        let now = ring::now();
        if found || self.idle_since.is_none() {
            self.idle_since = Some(now);
        }
        let waited = self.idle_since.map_or(Duration::MAX, |since| now.saturating_duration_since(since));
        self.usual_wait < WORTH_POLLING && waited < WORTH_POLLING
    }
}

impl Work {
    fn plain(op: Op) -> Self {
        Self { op, notify: None, leaving: None }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("peer", &self.peer)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}
