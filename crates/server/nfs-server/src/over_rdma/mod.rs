//! A connection of a client over RDMA (RFC 8166). Calls come in as Sends, the server fetches their
//! chunks by RDMA Read, and replies leave as RDMA Writes and a Send.
//!
//! Calls get the same treatment as over TCP ([`crate::dispatch`]). A call holds one of the receives
//! that the client knows as its credits until its reply is posted, so that a client never has more
//! calls in progress. None of the server's memory is exposed.

mod fetch;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nfs::v4::state::Callback;
use rdma::{Completion, Flags, Incoming, Options, QueuePair, Remote, Stag};
use rpc::record::MARK_LEN;
use rpc::xdr::{Reader, Writer, padding};
use rpcrdma::call::{Pieces, pieces};
use rpcrdma::{
    Body, Credits, Direction, Header, Item, Limits, Lists, Piece, PrivateData, Segment, Shape, Sinks,
    TooShort,
};
use runtime::{Buf, Chain, Notify, Pooled};
use server_core::{ConnectionId, Core};
use smallvec::SmallVec;

use crate::back_channel;
use crate::client::Client;
use crate::connection::{Connected, KEEPALIVE, either};
use crate::dispatch;
use crate::end::End;
use crate::handle::Bytes;
use crate::long_calls::LongCalls;
use crate::records::{MOST, Record};
use crate::reply::{Part, Parts, Reply};
use crate::shared::Shared;
use crate::slow::{Followed, SlowCall};
use fetch::Fetches;

/// The longest message either way, in bytes: 4 KiB of data go with their call or reply, and need no
/// chunk. Linux has 4096, and gets no longer ones.
const MESSAGE: usize = 8192;
/// Limits on the chunks of a call.
const LIMITS: Limits = Limits { read_segments: 64, write_chunks: 8, segments: 64, call: MOST };
/// Credits that a client gets at most.
const MOST_CREDITS: usize = 128;
/// Calls to the client that may be outstanding; their replies need receives too (RFC 8167 §4.4).
const BACK_CREDITS: u32 = 16;
/// Time for a client to take the remaining replies when its connection is closed.
const FAREWELL: Duration = Duration::from_secs(5);

/// One connection.
pub(crate) struct OverRdma {
    id: ConnectionId,
    client: Rc<Client>,
    since: Instant,
    long_calls: Rc<LongCalls>,
    /// `None` when the connection has ended: calls in progress do not hold its socket.
    pair: RefCell<Option<QueuePair>>,
    /// The longest message to the client, in bytes.
    inline: usize,
    /// Whether replies may invalidate the client's memory.
    invalidates: bool,
    /// Calls that the client may have outstanding.
    credits: u32,
    fetches: Fetches,
    /// The calls have become fewer, or the phase is another.
    changed: Notify,
    phase: Cell<Phase>,
    /// Calls in progress.
    calls: Cell<usize>,
    made: Cell<u64>,
    back: RefCell<Back>,
}

/// Calls to the client.
#[derive(Default)]
struct Back {
    credits: Credits,
    /// Calls that wait for a credit, by XID: [`back_channel::MOST`] at most.
    waiting: VecDeque<(u32, Vec<u8>)>,
}

/// The life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It takes calls.
    Open,
    /// It takes no more calls, and sends the remaining replies.
    Closing,
    /// A call was not fetched in time.
    Slow,
    /// It is broken, or has to end at once.
    Cut,
}

/// Fields of a call that its reply needs.
struct Called {
    xid: u32,
    sinks: Sinks,
    /// Memory of the client that the call names.
    handle: Option<u32>,
}

impl OverRdma {
    /// Accepts a connection request.
    ///
    /// # Errors
    /// Those of the network.
    pub(crate) async fn accept(
        shared: &Arc<Shared>,
        incoming: Incoming,
        core: &Core,
        deadline: Instant,
    ) -> Result<Rc<Self>, rdma::Error> {
        let (peer, local) = (incoming.peer_addr(), incoming.local_addr());
        let limits = shared.model().limits;
        let credits = limits.calls.clamp(1, MOST_CREDITS) as u32;
        let own = PrivateData { remote_invalidation: true, send: MESSAGE, receive: MESSAGE };
        let other = PrivateData::decode(incoming.private_data());
        let options = Options {
            // Clients read nothing of a server's.
            ird: 1,
            receives: credits + BACK_CREDITS,
            receive_size: MESSAGE as u32,
            // None of the server's memory is exposed.
            stags: 1,
            send_high_water: limits.send_high_water,
            setup_timeout: deadline.saturating_duration_since(runtime::now()),
            ..Options::default()
        };
        let pair = incoming.accept(&own.encode(), &options).await?;
        pair.set_keepalive(KEEPALIVE);
        let id = shared.hub.connection_id();
        Ok(Rc::new(Self {
            id,
            client: Rc::new(Client::new(shared, id, core, peer, local)),
            since: runtime::now(),
            long_calls: core.own(),
            pair: RefCell::new(Some(pair)),
            inline: own.inline_to(&other),
            invalidates: other.remote_invalidation,
            credits,
            fetches: Fetches::default(),
            changed: Notify::default(),
            phase: Cell::new(Phase::Open),
            calls: Cell::new(0),
            made: Cell::new(0),
            back: RefCell::default(),
        }))
    }

    /// Serves calls until the client leaves, breaks the protocol, or is asked to leave. `begun` is
    /// called at the first message, which has to be there by `deadline`.
    pub(crate) async fn serve(self: Rc<Self>, deadline: Instant, begun: impl FnOnce()) -> End {
        let Some(pair) = self.pair() else { return End::Asked };
        let high_water = self.client.limits().send_high_water;
        let mut begun = Some(begun);
        let end = loop {
            let stop = self.changed.until(|| self.stops().then_some(()));
            let next = async {
                // A call that is not taken gets no reply either.
                pair.drained_below(high_water).await;
                pair.next().await
            };
            let next = either(next, stop);
            let next = match begun {
                None => next.await,
                Some(_) => {
                    let left = deadline.saturating_duration_since(runtime::now());
                    match runtime::timeout(left, Box::pin(next)).await {
                        Ok(next) => next,
                        Err(_) => break End::Slow,
                    }
                }
            };
            match next {
                None if self.phase.get() == Phase::Slow => break End::Slow,
                None => break End::Asked,
                Some(Err(rdma::Error::Closed)) => break End::Closed,
                Some(Err(error)) => break error.into(),
                Some(Ok(Completion::Received { message, .. })) => {
                    if let Some(begun) = begun.take() {
                        begun();
                    }
                    // Its client calls again over another connection.
                    if self.phase.get() != Phase::Open {
                        continue;
                    }
                    if let Err(end) = self.receive(&pair, message) {
                        break end;
                    }
                }
                Some(Ok(Completion::Read { id, data })) => self.fetches.fetched(id, data),
                Some(Ok(Completion::Immediate { .. })) => break End::NoCall,
                Some(Ok(_)) => {}
            }
        };
        if matches!(end, End::Asked) && self.phase.get() == Phase::Closing {
            pair.disconnect();
            let over = async { while pair.next().await.is_ok() {} };
            // A client that takes nothing is left alone.
            let _ = runtime::timeout(FAREWELL, over).await;
        }
        self.cut();
        end
    }

    fn pair(&self) -> Option<QueuePair> {
        self.pair.borrow().clone()
    }

    fn stops(&self) -> bool {
        match self.phase.get() {
            Phase::Open => false,
            Phase::Closing => self.calls.get() == 0,
            Phase::Slow | Phase::Cut => true,
        }
    }

    /// A message has come.
    fn receive(self: &Rc<Self>, pair: &QueuePair, message: Chain) -> Result<(), End> {
        let message: Buf = match message.bufs() {
            [one] if one.as_slice().is_some() => one.clone(),
            _ => message.to_vec().into(),
        };
        let mut from = Reader::new(message.as_slice().unwrap_or_default());
        let header = match Header::read(&mut from) {
            Ok(header) => header,
            Err(bad) => {
                let reply = bad.reply(self.credits).ok_or(End::NoCall)?;
                tracing::debug!(peer = %self.client.peer, %bad, "a call with a bad header");
                self.refuse(pair, &reply);
                return Ok(());
            }
        };
        let at = from.position();
        let Some(lists) = header.lists() else {
            // An RDMA_ERROR: the answer to a call of the server's, if to anything.
            pair.post_receives(1);
            self.credited(pair, header.credits);
            return Ok(());
        };
        let sent = from.remaining();
        let put = pieces(&header, sent.len(), &LIMITS);
        let (pieces, sinks) = match put.and_then(|put| Ok((put, Sinks::of(lists, &LIMITS)?))) {
            Ok(both) => both,
            Err(bad) => {
                tracing::debug!(peer = %self.client.peer, %bad, "a call with bad chunks");
                self.refuse(pair, &TooShort::reply(header.xid, self.credits));
                return Ok(());
            }
        };
        if let Body::Message(_) = header.body
            && Direction::of(sent) == Some(Direction::Reply)
        {
            self.credited(pair, header.credits);
        } else {
            self.made.set(self.made.get() + 1);
            if self.calls.get() >= self.credits as usize {
                return Err(End::Credits);
            }
        }
        let handle = lists.reads.iter().map(|read| read.source).chain(sinks.segments()).next();
        let handle = handle.map(|segment| segment.handle);
        let called = Called { xid: header.xid, sinks, handle };
        match &pieces[..] {
            [] | [Piece::Sent(_)] => self.execute(called, Record::whole(message.slice(at..))),
            _ => {
                // The message would hold a receive buffer.
                self.fetch(called, pieces, sent.to_vec().into());
                Ok(())
            }
        }
    }

    /// Executes a call, at once if that is possible.
    fn execute(self: &Rc<Self>, called: Called, record: Record) -> Result<(), End> {
        let first = record.first.clone();
        let mut call = Pooled::new(dispatch::call(self.client.clone(), record));
        match Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => self.answer(called, outcome?),
            Poll::Pending => {
                let call = Followed::new(&self.client, first).run(call);
                self.in_progress(async |this| this.ended(called, call.await));
            }
        }
        Ok(())
    }

    /// Executes a call when what its chunks hold has come.
    fn fetch(self: &Rc<Self>, called: Called, pieces: Pieces, sent: Buf) {
        self.in_progress(async |this| {
            let Some(record) = this.fetches.fetch(pieces, sent, this).await else { return };
            let followed = Followed::new(&this.client, record.first.clone());
            let call = Pooled::new(dispatch::call(this.client.clone(), record));
            this.ended(called, followed.run(call).await);
        });
    }

    /// Goes on with a call as a task, which outlives the connection.
    fn in_progress(self: &Rc<Self>, call: impl AsyncFnOnce(&Self) + 'static) {
        self.calls.set(self.calls.get() + 1);
        let this = self.clone();
        drop(runtime::spawn(async move {
            call(&this).await;
            this.calls.set(this.calls.get() - 1);
            this.changed.notify();
        }));
    }

    /// A call that went on as a task has ended.
    fn ended(&self, called: Called, (outcome, slow): (Result<Option<Reply>, End>, Option<SlowCall>)) {
        match outcome {
            Ok(reply) => self.answer(called, reply),
            Err(_) => self.close(),
        }
        if let Some(slow) = slow {
            // When the client has all of the reply is not known.
            self.client.courses.ended(slow, false);
        }
    }

    /// Answers a message that could not be taken.
    fn refuse(&self, pair: &QueuePair, header: &Header<'_>) {
        pair.post_receives(1);
        let mut message = Vec::with_capacity(28);
        header.write(&mut Writer::new(&mut message));
        pair.post_send(&message, Chain::new(), Flags::default(), None);
    }

    /// Posts a reply. The client has its credit again, and its memory.
    fn answer(&self, called: Called, reply: Option<Reply>) {
        let Some(pair) = self.pair() else { return };
        let Some(reply) = reply else { return pair.post_receives(1) };
        let Parts { head, items } = reply.into_parts();
        let rest = head.len() + items.iter().map(|(_, behind)| behind.len()).sum::<usize>();
        let shape = items.iter().map(|(part, _)| Item { index: part.index, len: part.data.len() });
        let shape: SmallVec<[Item; 1]> = shape.collect();
        let shape = Shape { rest, items: &shape };
        let Called { xid, sinks, handle } = called;
        let placed = match sinks.place(xid, self.credits, shape, self.inline) {
            Ok(placed) => placed,
            Err(short) => {
                tracing::debug!(peer = %self.client.peer, %short, "a reply that the client has no room for");
                return self.refuse(&pair, &TooShort::reply(xid, self.credits));
            }
        };
        pair.post_receives(1);
        let mut rest = Chain::new();
        for ((Part { data, .. }, behind), place) in items.into_iter().zip(&placed.items) {
            if place.is_empty() {
                let len = data.len();
                rest.append(data);
                rest.push(padding(len).to_vec());
            } else {
                write(&pair, place, data);
            }
            rest.push(behind);
        }
        let mut message = placed.header;
        if placed.rest.is_empty() {
            message.extend_from_slice(&head);
        } else {
            let mut whole = Chain::new();
            whole.push(head);
            whole.append(std::mem::take(&mut rest));
            write(&pair, &placed.rest, whole);
        }
        let invalidate = handle.filter(|_| self.invalidates).map(Stag);
        pair.post_send(&message, rest, Flags { invalidate, solicited: false }, None);
    }

    /// A call to the client was answered, and so many credits are granted.
    fn credited(&self, pair: &QueuePair, granted: u32) {
        self.back.borrow_mut().credits.replied(granted);
        self.call_what_waits(pair);
    }

    /// Calls the client as often as it has granted. A call whose answer nobody awaits any more is
    /// dropped.
    fn call_what_waits(&self, pair: &QueuePair) {
        let mut back = self.back.borrow_mut();
        while back.credits.available() > 0
            && let Some((xid, message)) = back.waiting.pop_front()
        {
            if self.client.back.waits_for(xid) {
                back.credits.called();
                pair.post_send(&message, Chain::new(), Flags::default(), None);
            }
        }
    }
}

impl Connected for OverRdma {
    fn id(&self) -> ConnectionId {
        self.id
    }

    fn client(&self) -> &Rc<Client> {
        &self.client
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn made(&self) -> u64 {
        self.made.get()
    }

    fn call_back(&self, call: &Callback<Bytes>) {
        let (Phase::Open, Some(pair)) = (self.phase.get(), self.pair()) else { return };
        let Some((record, xid)) = self.client.back.call(call) else { return };
        self.client.wait_for_answer(xid);
        let mut message = Vec::with_capacity(record.len() + 28);
        Header::new(xid, BACK_CREDITS, Body::Message(Lists::NONE)).write(&mut Writer::new(&mut message));
        message.extend_from_slice(&record[MARK_LEN..]);
        // Without chunks a longer one cannot be sent: it will not be answered.
        if message.len() <= self.inline {
            let mut back = self.back.borrow_mut();
            if back.waiting.len() >= back_channel::MOST {
                back.waiting.retain(|(xid, _)| self.client.back.waits_for(*xid));
            }
            back.waiting.push_back((xid, message));
            drop(back);
            self.call_what_waits(&pair);
        }
    }

    fn close(&self) {
        if self.phase.get() == Phase::Open {
            self.phase.set(Phase::Closing);
        }
        self.changed.notify();
    }

    fn cut(&self) {
        self.phase.set(Phase::Cut);
        self.pair.take();
        self.fetches.lose_all();
        self.changed.notify();
    }
}

/// Posts RDMA Writes of `data` to these segments, which hold all of it.
fn write(pair: &QueuePair, to: &[Segment], mut data: Chain) {
    for segment in to.iter().filter(|segment| segment.length > 0) {
        pair.post_write(remote(segment), data.split_to(segment.length as usize), None);
    }
}

fn remote(segment: &Segment) -> Remote {
    Remote { stag: Stag(segment.handle), offset: segment.offset }
}
