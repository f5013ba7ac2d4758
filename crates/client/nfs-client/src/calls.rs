//! Calls over one connection: many outstanding, matched by XID, and sent again with the same XID
//! over a new connection when the old one is lost. It knows no program.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rpc::auth::{AuthSys, MAX_GROUPS, OpaqueAuth};
use rpc::message::{Accepted, Call, Message as Header, ReplyBody};
use rpc::record;
use rpc::xdr::{Opaque, Reader, Writer, padding};
use runtime::{Chain, Notify};

use crate::error::Error;
use crate::link::Link;
use crate::message::{Message, Received, Record, Room};
use crate::options::{Auth, Options, Transport};

/// Messages per send.
const BATCH: usize = 32;
/// The first and the longest wait between two attempts to connect.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Interval at which timeouts of outstanding calls are checked.
const LOOK: Duration = Duration::from_secs(1);

/// A connection to a server, for calls of any program. Clones are the same connection, which is
/// closed when the last one is dropped.
#[derive(Clone)]
pub struct Caller(Rc<Owner>);

/// Ends the task that drives the connection.
struct Owner(Rc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.closed.set(true);
        self.0.news.notify();
    }
}

/// State shared by callers and the task that drives the connection.
struct Shared {
    /// Host and port.
    place: String,
    addresses: Vec<SocketAddr>,
    options: Options,
    xid: Cell<u32>,
    calls: RefCell<HashMap<u32, Pending>>,
    /// XIDs of calls to send, in order. One may have ended meanwhile.
    queue: RefCell<VecDeque<u32>>,
    /// Time of the last reply, or of the first call after a time without calls.
    heard: Cell<Instant>,
    /// The server has not answered since calls ended without a reply. Later ones are tried over
    /// one connection each, so that what needs many calls does not wait for each of them.
    is_given_up: Cell<bool>,
    /// A connection was tried for the outstanding calls.
    is_tried: Cell<bool>,
    /// Answers the server's calls.
    service: RefCell<Option<Service>>,
    /// Answers to send, over the current connection.
    answers: RefCell<VecDeque<Vec<u8>>>,
    /// Notified of a call or an answer to send, and of the end.
    news: Notify,
    closed: Cell<bool>,
}

/// Handler of a server's calls (NFSv4.1's backchannel). It gets the call's record without record
/// marks, and returns the reply's record, or `None` for no reply.
pub type Service = Rc<dyn Fn(&[u8]) -> Option<Vec<u8>>>;

/// A call that waits for its reply.
struct Pending {
    message: Message,
    /// Time at which it was sent last; `None` while it waits to be sent.
    sent: Option<Instant>,
    answer: Option<Result<Record, Error>>,
    waker: Waker,
}

/// The reply to a call that the server executed.
#[derive(Debug)]
pub struct Answer {
    record: Record,
    /// Offset of the results.
    body: usize,
}

impl Answer {
    /// The results, except [`Self::apart`].
    pub fn body(&self) -> &[u8] {
        self.record.bytes.get(self.body..).unwrap_or_default()
    }

    /// Bytes of the results that follow [`Self::body`]: of a READ, the data or a part of them, and
    /// their padding. Results of other calls have none.
    pub fn apart(&self) -> usize {
        self.record.apart.len()
    }

    /// Range of the last result's payload, which has this length and begins at `position` of the
    /// results. `None`: it is in the body.
    pub(crate) fn payload_apart(&self, position: usize, length: u32) -> Result<Option<Range<usize>>, Error> {
        let (length, all) = (length as usize, self.body().len() + self.apart());
        match position + length + padding(length).len() {
            _ if self.apart() == 0 => Ok(None),
            end if end == all => Ok(Some(position..position + length)),
            _ => Err(Error::Nonsense("the data that came apart are not those of the results")),
        }
    }

    /// A part of the results, such as the payload of a READ, without a copy.
    pub fn into_payload(self, part: Range<usize>) -> Chain {
        let mut chain = Chain::from(self.record.bytes);
        chain.append(self.record.apart);
        let start = (self.body + part.start).min(chain.len());
        chain.advance(start);
        chain.truncate(part.len());
        chain
    }
}

/// Reason why the driver left a connection.
enum End {
    Lost(String),
    Closed,
}

impl Caller {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`Error::Resolve`] and [`Error::Connect`].
    pub async fn connect(host: &str, port: u16, options: Options) -> Result<Self, Error> {
        let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let addresses = resolve(host, port).await?;
        let link = Link::connect(&addresses, &options).await;
        let link = link.map_err(|reason| Error::Connect { place: place.clone(), reason })?;
        let mut xid = [0; 4];
        // Without randomness any first XID will do: the server distinguishes clients by address
        // too.
        let _ = runtime::random(&mut xid);
        let shared = Rc::new(Shared {
            place,
            addresses,
            options,
            xid: Cell::new(u32::from_be_bytes(xid)),
            calls: RefCell::default(),
            queue: RefCell::default(),
            heard: Cell::new(runtime::now()),
            is_given_up: Cell::new(false),
            is_tried: Cell::new(false),
            service: RefCell::default(),
            answers: RefCell::default(),
            news: Notify::default(),
            closed: Cell::new(false),
        });
        // The task ends once `closed` is set.
        drop(runtime::spawn(drive(shared.clone(), link)));
        Ok(Caller(Rc::new(Owner(shared))))
    }

    /// Host and port of the server.
    pub fn place(&self) -> &str {
        &self.0.0.place
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.0.0.options
    }

    /// Answers the server's calls over TCP with `service`, which must not use this connection
    /// before it returns. Without it, and over RDMA, they are ignored.
    pub fn serve(&self, service: Service) {
        if self.options().transport == Transport::Tcp {
            *self.0.0.service.borrow_mut() = Some(service);
        }
    }

    /// Calls a procedure with small results, as [`Self::call_for`] does.
    ///
    /// # Errors
    /// Those of [`Error`] that a connection and RPC have.
    pub async fn call(
        &self,
        number: (u32, u32, u32),
        arguments: impl FnOnce(&mut Writer<'_>),
        payload: Chain,
    ) -> Result<Answer, Error> {
        self.call_for(number, arguments, payload, Room::SMALL).await
    }

    /// Calls a procedure: `arguments` writes its arguments, and `payload` follows them. Over RDMA,
    /// results that are longer than `room` are an error. The call is retransmitted for up to
    /// [`Options::give_up`]. Dropping the future forgets the call, which the server may still
    /// execute.
    ///
    /// # Errors
    /// Those of the connection and of RPC ([`Error`]).
    pub async fn call_for(
        &self,
        (program, version, procedure): (u32, u32, u32),
        arguments: impl FnOnce(&mut Writer<'_>),
        payload: Chain,
        room: Room,
    ) -> Result<Answer, Error> {
        let shared = &self.0.0;
        let xid = shared.xid.get();
        shared.xid.set(xid.wrapping_add(1));
        let mut head = Vec::with_capacity(256);
        let mut to = Writer::new(&mut head);
        let begun = record::begin(&mut to);
        let mut body = Vec::new();
        let credential = credential(&shared.options.auth, &mut body);
        Call { xid, program, version, procedure, credential, verifier: OpaqueAuth::NONE }.write(&mut to);
        arguments(&mut to);
        record::end(&mut to, begun, payload.len()).map_err(|_| Error::Refused("the request is too long"))?;

        let record = shared.answer(xid, Message { head, payload, room }).await?;
        let mut from = Reader::new(&record.bytes);
        let Ok(Header::Reply(reply)) = Header::read(&mut from) else {
            return Err(Error::Nonsense("it is no reply"));
        };
        match reply.body {
            ReplyBody::Denied(stat) => Err(Error::of_denied(stat)),
            ReplyBody::Accepted(Accepted { stat, .. }) => match Error::of_accepted(program, version, &stat) {
                Some(error) => Err(error),
                None => Ok(Answer { body: from.position(), record }),
            },
        }
    }
}

impl Shared {
    /// Queues a call, and waits for its reply.
    async fn answer(&self, xid: u32, message: Message) -> Result<Record, Error> {
        let pending = Pending { message, sent: None, answer: None, waker: Waker::noop().clone() };
        if self.calls.borrow().is_empty() {
            self.is_tried.set(false);
            if !self.is_given_up.get() {
                self.heard.set(runtime::now());
            }
        }
        self.calls.borrow_mut().insert(xid, pending);
        self.queue.borrow_mut().push_back(xid);
        self.news.notify();
        let _forget = Forget { shared: self, xid };
        poll_fn(|cx| {
            let mut calls = self.calls.borrow_mut();
            let Some(pending) = calls.get_mut(&xid) else {
                return Poll::Ready(Err(Error::Nonsense("the call was forgotten")));
            };
            match pending.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    pending.waker.clone_from(cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Takes a message of the server. A reply to a call that has ended is ignored.
    fn take(&self, received: Received) -> Result<(), String> {
        let record = match received {
            Received::Record(record) => record,
            Received::Failed(xid, error) => {
                self.end(xid, Err(error));
                return Ok(());
            }
        };
        let Some(xid) = record.bytes.first_chunk().map(|xid| u32::from_be_bytes(*xid)) else {
            return Err("the server sent a record without an XID".to_owned());
        };
        let mut from = Reader::new(&record.bytes);
        match Header::read(&mut from) {
            Ok(Header::Reply(_)) => {}
            Ok(Header::Call(_)) => {
                let service = self.service.borrow().clone();
                // A server that calls and does not read gets no more answers.
                let has_room = self.answers.borrow().len() < BATCH;
                if let Some(answer) = service.filter(|_| has_room).and_then(|serve| serve(&record.bytes)) {
                    self.answers.borrow_mut().push_back(answer);
                    self.news.notify();
                }
                return Ok(());
            }
            Err(error) => return Err(format!("the server broke RPC: {error}")),
        }
        self.end(xid, Ok(record));
        Ok(())
    }

    /// Ends a call, if it still waits for its reply.
    fn end(&self, xid: u32, mut answer: Result<Record, Error>) {
        if let Some(pending) = self.calls.borrow_mut().get_mut(&xid)
            && pending.answer.is_none()
        {
            self.heard.set(runtime::now());
            self.is_given_up.set(false);
            // Only the data of a READ are useful in pieces.
            if let (0, Ok(record)) = (pending.message.room.item, &mut answer) {
                record.join();
            }
            pending.answer = Some(answer);
            pending.waker.wake_by_ref();
        }
    }

    /// Calls that wait for a reply.
    fn has_outstanding(&self) -> bool {
        self.calls.borrow().values().any(|pending| pending.answer.is_none())
    }

    /// Sends the queued calls, until the connection is lost.
    async fn send(&self, link: &Link) -> String {
        loop {
            let due = || (!self.queue.borrow().is_empty() || !self.answers.borrow().is_empty()).then_some(());
            self.news.until(due).await;
            let mut batch: Vec<_> = self.answers.borrow_mut().drain(..).map(Message::answer).collect();
            while batch.len() < BATCH {
                let Some(xid) = self.queue.borrow_mut().pop_front() else { break };
                if let Some(pending) = self.calls.borrow_mut().get_mut(&xid) {
                    pending.sent = Some(runtime::now());
                    batch.push(pending.message.clone());
                }
            }
            if let Err(why) = link.send(batch.into_iter()).await {
                return why;
            }
        }
    }

    /// Waits until a call has been without a reply for too long, or the connection is not needed.
    async fn watch(&self) -> End {
        loop {
            let due = || (self.closed.get() || self.has_outstanding()).then_some(());
            self.news.until(due).await;
            if self.closed.get() {
                return End::Closed;
            }
            runtime::sleep(LOOK).await;
            let limit = self.options.call_timeout;
            let now = runtime::now();
            let late = |pending: &Pending| {
                pending.answer.is_none() && pending.sent.is_some_and(|sent| now - sent > limit)
            };
            if self.calls.borrow().values().any(late) {
                return End::Lost(format!("no reply in {} s", limit.as_secs()));
            }
        }
    }

    /// Ends all outstanding calls.
    fn fail(&self, reason: &str) {
        self.is_given_up.set(true);
        let seconds = (runtime::now() - self.heard.get()).as_secs();
        for pending in self.calls.borrow_mut().values_mut().filter(|pending| pending.answer.is_none()) {
            let (place, reason) = (self.place.clone(), reason.to_owned());
            pending.answer = Some(Err(Error::Silent { place, seconds, reason }));
            pending.waker.wake_by_ref();
        }
    }

    /// Connects again once there is a call that needs it. `None` if no caller is left.
    async fn reconnect(&self, mut reason: String) -> Option<Link> {
        let mut wait = WAITS.0;
        loop {
            let due = || (self.closed.get() || self.has_outstanding()).then_some(());
            self.news.until(due).await;
            if self.closed.get() {
                return None;
            }
            let silent = runtime::now() - self.heard.get() > self.options.give_up;
            if silent && (self.is_tried.get() || !self.is_given_up.get()) {
                self.fail(&reason);
                continue;
            }
            // Before the first attempt too: a server may accept connections and close each of them.
            runtime::sleep(wait).await;
            wait = (wait * 2).min(WAITS.1);
            self.is_tried.set(true);
            match Link::connect(&self.addresses, &self.options).await {
                Ok(link) => return Some(link),
                Err(error) => reason = error,
            }
        }
    }

    /// Queues all outstanding calls again, in the order of their XIDs.
    fn requeue(&self) {
        // The server calls again, if it needs the answers.
        self.answers.borrow_mut().clear();
        let mut calls = self.calls.borrow_mut();
        let next = self.xid.get();
        let outstanding = calls.iter_mut().filter(|(_, pending)| pending.answer.is_none());
        let mut again: Vec<u32> = outstanding
            .map(|(xid, pending)| {
                pending.sent = None;
                *xid
            })
            .collect();
        // The oldest first, also where XIDs wrap.
        again.sort_by_key(|xid| std::cmp::Reverse(next.wrapping_sub(*xid)));
        *self.queue.borrow_mut() = again.into();
    }
}

/// Forgets a call when its future ends.
struct Forget<'s> {
    shared: &'s Shared,
    xid: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.calls.borrow_mut().remove(&self.xid);
    }
}

/// Sends and receives, over one connection after the other, until no caller is left.
async fn drive(shared: Rc<Shared>, mut link: Link) {
    loop {
        let end = {
            let take = |received| shared.take(received);
            let receive = async { End::Lost(link.receive(shared.options.max_reply, take).await) };
            let send = async { End::Lost(shared.send(&link).await) };
            first(receive, send, shared.watch()).await
        };
        let End::Lost(reason) = end else { return };
        tracing::debug!(server = %shared.place, %reason, "connection lost");
        drop(link);
        let Some(again) = shared.reconnect(reason).await else { return };
        tracing::info!(server = %shared.place, "connected again");
        link = again;
        shared.requeue();
    }
}

/// The output of the future that ends first.
async fn first<T>(a: impl Future<Output = T>, b: impl Future<Output = T>, c: impl Future<Output = T>) -> T {
    let (mut a, mut b, mut c) = (pin!(a), pin!(b), pin!(c));
    poll_fn(|cx| {
        if let Poll::Ready(output) = a.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        if let Poll::Ready(output) = b.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        c.as_mut().poll(cx)
    })
    .await
}

/// The credential of a call, with its body in `body`.
fn credential<'b>(auth: &Auth, body: &'b mut Vec<u8>) -> OpaqueAuth<'b> {
    match auth {
        Auth::None => OpaqueAuth::NONE,
        Auth::Sys(sys) => {
            let gids: ArrayVec<u32, MAX_GROUPS> = sys.gids.iter().copied().take(MAX_GROUPS).collect();
            let machine = Opaque::new(b"stag").unwrap_or(Opaque::EMPTY);
            AuthSys { stamp: 0, machine, uid: sys.uid, gid: sys.gid, gids }.auth(body)
        }
    }
}

/// The addresses of a host.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    // The system's resolver blocks, so it runs on a thread of its own.
    let found = runtime::blocking(move || {
        (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>).map_err(|e| e.to_string())
    });
    found.await.map_err(|reason| Error::Resolve { host: host.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_came_apart_are_those_of_the_results() {
        let record = Record { bytes: b"headresu".to_vec(), apart: Chain::from(b"lts\0".to_vec()) };
        let answer = Answer { record, body: 4 };
        assert_eq!((answer.body(), answer.apart()), (&b"resu"[..], 4));
        assert_eq!(answer.payload_apart(0, 7), Ok(Some(0..7)));
        assert_eq!(answer.payload_apart(4, 4), Ok(Some(4..8)));
        assert!(
            [(0, 4), (0, 9), (4, 0), (4, 5)].iter().all(|(at, len)| answer.payload_apart(*at, *len).is_err())
        );
        assert_eq!(answer.into_payload(2..7).to_vec(), b"sults");
        let whole = Answer { record: b"headresults".to_vec().into(), body: 4 };
        assert_eq!(whole.payload_apart(0, 3), Ok(None));
        assert_eq!(whole.into_payload(4..7).to_vec(), b"lts");
    }
}
