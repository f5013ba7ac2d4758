//! A connection of a client over TCP: calls come in as records, are executed, and their replies go
//! out in the order in which they are ready.
//!
//! A call that a tree answers at once is executed where it was received, and all such replies of
//! one receive are sent together. Other calls go on as tasks of the core, and outlive the
//! connection.

use std::cell::{Cell, RefCell};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nfs::v4::state::Callback;
use runtime::{Gather, Keepalive, Lender, Lent, Notify, Pooled, TcpStream};
use server_core::{ConnectionId, Core, TcpAccount};
use tree::Batch;

use crate::client::Client;
use crate::dispatch;
use crate::end::End;
use crate::handle::Bytes;
use crate::long_calls::LongCalls;
use crate::records::{Record, Records};
use crate::reply::Reply;
use crate::shared::Shared;
use crate::slow::Followed;

/// TCP keepalive: a silent peer is found dead after 140 s.
pub(crate) const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(20), count: 4 };

/// A connection of a client, whatever carries it.
pub(crate) trait Connected {
    fn id(&self) -> ConnectionId;
    fn client(&self) -> &Rc<Client>;
    fn since(&self) -> Instant;
    /// Calls that the client has made.
    fn made(&self) -> u64;
    /// Calls the client. If it does not answer in time, it cannot be called over this connection.
    fn call_back(&self, call: &Callback<Bytes>);
    /// Takes no more calls, and ends when the replies of the others have been sent.
    fn close(&self);
    /// Ends at once. Calls in progress go on without it.
    fn cut(&self);
}

/// One connection over TCP.
pub(crate) struct Connection {
    id: ConnectionId,
    client: Rc<Client>,
    since: Instant,
    account: Rc<TcpAccount>,
    long_calls: Rc<LongCalls>,
    stream: TcpStream,
    outbox: RefCell<Gather>,
    /// Bytes handed to the socket and not sent yet.
    sending: Cell<usize>,
    /// There is something to send, or nothing any more.
    to_send: Notify,
    /// Calls in progress, or room for replies, have become fewer or more.
    room: Notify,
    calls: Cell<usize>,
    phase: Cell<Phase>,
    made: Cell<u64>,
}

/// The life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It takes calls.
    Open,
    /// It takes no more calls, and sends the remaining replies.
    Closing,
    /// It is broken: nothing more is sent.
    Cut,
}

impl Connection {
    pub(crate) fn new(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr, core: &Core) -> Rc<Self> {
        // A peer that vanished is noticed by TCP; calls are not pinged for.
        let _ = stream.set_keepalive(Some(KEEPALIVE));
        let local = stream.local_addr().unwrap_or(peer);
        let id = shared.hub.connection_id();
        Rc::new(Self {
            id,
            client: Rc::new(Client::new(shared, id, core, peer, local)),
            since: runtime::now(),
            account: core.tcp.clone(),
            long_calls: core.own(),
            stream,
            outbox: RefCell::default(),
            sending: Cell::new(0),
            to_send: Notify::default(),
            room: Notify::default(),
            calls: Cell::new(0),
            phase: Cell::new(Phase::Open),
            made: Cell::new(0),
        })
    }

    /// Serves calls until the client leaves, breaks the protocol, or is asked to leave. `first` has
    /// been received already. `begun` is called at the first call, which has to be there by
    /// `deadline`.
    pub(crate) async fn serve(
        self: Rc<Self>,
        first: Vec<u8>,
        deadline: Instant,
        begun: impl FnOnce(),
    ) -> End {
        let sender = runtime::spawn(self.clone().send_loop());
        let mut records = Records::new(first, self.long_calls.clone());
        let mut begun = Some(begun);
        let end = 'calls: loop {
            let stop = async {
                self.room.until(|| (self.phase.get() != Phase::Open).then_some(())).await;
            };
            let next = async {
                match begun {
                    None => records.next(&self.stream).await,
                    Some(_) => {
                        let left = deadline.saturating_duration_since(runtime::now());
                        let next = Box::pin(records.next(&self.stream));
                        runtime::timeout(left, next).await.unwrap_or(Err(End::Slow))
                    }
                }
            };
            let record = match either(next, stop).await {
                Some(Ok(record)) => record,
                Some(Err(end)) => break end,
                None => break End::Asked,
            };
            if let Some(begun) = begun.take() {
                begun();
            }
            let batch = Batch::begin();
            if let Err(end) = self.execute(record) {
                break end;
            }
            while self.has_room()
                && let Some(first) = records.take_whole()
            {
                if let Err(end) = self.execute(Record::whole(first)) {
                    break 'calls end;
                }
            }
            drop(batch);
            self.to_send.notify();
            self.room.until(|| (self.has_room() || self.phase.get() != Phase::Open).then_some(())).await;
        };
        if self.phase.get() == Phase::Open {
            self.phase.set(Phase::Closing);
        }
        // The client gets the replies to its calls.
        self.room.until(|| (self.calls.get() == 0 || self.phase.get() == Phase::Cut).then_some(())).await;
        self.to_send.notify();
        let _ = sender.await;
        end
    }

    fn has_room(&self) -> bool {
        let limits = self.client.limits();
        self.calls.get() < limits.calls
            && self.outbox.borrow().len() + self.sending.get() < limits.send_high_water
    }

    /// Executes a call, at once if that is possible.
    fn execute(self: &Rc<Self>, record: Record) -> Result<(), End> {
        self.made.set(self.made.get() + 1);
        self.account.count(record.len(), 0);
        let first = record.first.clone();
        let mut call = Pooled::new(dispatch::call(self.client.clone(), record));
        let at_once = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        match at_once {
            Poll::Ready(outcome) => self.reply(outcome?),
            Poll::Pending => {
                self.calls.set(self.calls.get() + 1);
                let this = self.clone();
                let call = Followed::new(&self.client, first).run(call);
                drop(runtime::spawn(async move {
                    let (outcome, slow) = call.await;
                    this.calls.set(this.calls.get() - 1);
                    let is_sent = matches!(outcome, Ok(Some(_))) && this.phase.get() != Phase::Cut;
                    match outcome {
                        Ok(reply) => this.reply(reply),
                        Err(_) => this.close(),
                    }
                    if let Some(slow) = slow {
                        this.client.courses.ended(slow, is_sent);
                    }
                    this.to_send.notify();
                    this.room.notify();
                }));
            }
        }
        Ok(())
    }

    fn reply(&self, reply: Option<Reply>) {
        if let Some(reply) = reply.filter(|_| self.phase.get() != Phase::Cut) {
            reply.send(&mut self.outbox.borrow_mut());
        }
    }

    /// Sends the queue, one send at a time.
    async fn send_loop(self: Rc<Self>) {
        let mut spare = Gather::new();
        let mut lender = Lender::new();
        loop {
            let more = self.to_send.until(|| match (self.outbox.borrow().is_empty(), self.phase.get()) {
                (_, Phase::Cut) => Some(false),
                (false, _) => Some(true),
                (true, Phase::Closing) if self.calls.get() == 0 => Some(false),
                (true, _) => None,
            });
            if !more.await {
                break;
            }
            let gather = std::mem::replace(&mut *self.outbox.borrow_mut(), spare);
            self.sending.set(gather.len());
            self.client.courses.leave();
            let (result, gather) = self.send(&mut lender, gather).await;
            self.sending.set(0);
            if result.is_ok() {
                self.client.courses.sent();
            }
            spare = gather;
            self.room.notify();
            if result.is_err() {
                self.cut();
            }
        }
        self.client.courses.close();
        // The peer may be gone already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    async fn send(&self, lender: &mut Lender, mut gather: Gather) -> (std::io::Result<()>, Gather) {
        loop {
            match self.stream.try_lend(lender, &mut gather) {
                Ok(Lent::All) => return (Ok(()), gather),
                Ok(Lent::Rest) => return self.stream.send(gather).await,
                Ok(Lent::Full) => {
                    if let Err(error) = self.stream.writable().await {
                        return (Err(error), gather);
                    }
                }
                Err(error) => return (Err(error), gather),
            }
        }
    }
}

impl Connected for Connection {
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
        if self.phase.get() != Phase::Open {
            return;
        }
        let Some((record, xid)) = self.client.back.call(call) else { return };
        self.outbox.borrow_mut().push_copy(&record);
        self.to_send.notify();
        self.client.wait_for_answer(xid);
    }

    fn close(&self) {
        if self.phase.get() == Phase::Open {
            self.phase.set(Phase::Closing);
        }
        self.room.notify();
        self.to_send.notify();
    }

    fn cut(&self) {
        self.phase.set(Phase::Cut);
        let _ = self.stream.shutdown(Shutdown::Both);
        self.room.notify();
        self.to_send.notify();
    }
}

/// The output of `work`, or `None` if `stop` ends first.
pub(crate) async fn either<T>(work: impl Future<Output = T>, stop: impl Future<Output = ()>) -> Option<T> {
    let (mut work, mut stop) = (std::pin::pin!(work), std::pin::pin!(stop));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(cx).map(|()| None)
    })
    .await
}
