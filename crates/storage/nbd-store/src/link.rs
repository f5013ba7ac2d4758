//! The connection of one core: it sends requests as they come, puts replies together, and is
//! replaced when it has ended. Owns what becomes of the requests without a reply.
//!
//! NBD cannot shut a client out, so a server may still carry out what it was sent. The rule:
//! - The server has closed its end: nothing comes later. All is sent again. The unit holds the
//!   sectors of a change meanwhile, so nothing newer was acknowledged there.
//! - The server is silent: after `op_timeout` a request ends as unknown. Nothing else is sent, over
//!   no connection of the store, until the server has answered it or has closed that connection. So
//!   nothing newer can be overtaken.
//! - The server breaks the protocol: it is sent no more, and is waited for until it closes its end.
//! - The network fails: changes end as unknown, and reads are sent again.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backing::health::problems::Kind;
use backing::remote::before;
use backing::{Extent, StoreError};
use nbd::{Command, DISCONNECT, ErrorCode, Event, Export, Failure, Flags, Refused, Session, Violation};
use runtime::{Bytes, Chain, Destination, Gather, Notify, Scatter, TcpStream, pool};

use crate::common::{BLOCK, Common, Share};
use crate::dial::{DialError, Dialled, dial};
use crate::request::{Answer, Effect, Entry, Lost, Place, Reply};

/// The most outstanding requests.
const DEPTH: usize = 256;
/// The most bytes of outstanding reads and writes, unless one alone has more.
const MAX_BYTES: u64 = 32 << 20;
/// The most data of a request, bytes, whatever the server accepts.
const MAX_REQUEST: u32 = 4 << 20;
/// How often a request is sent.
const ATTEMPTS: u32 = 3;
/// Bytes per receive.
const RECEIVE: usize = 64 << 10;
/// Pause between two tries to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a connection has ended: a server may close each at once.
const BREATH: Duration = Duration::from_millis(100);

thread_local! {
    /// The links of this core.
    static LINKS: RefCell<Vec<Rc<Link>>> = RefCell::default();
}

pub(crate) struct Link {
    pub common: Arc<Common>,
    /// Its entry of the store's owners.
    pub share: Arc<Share>,
    state: RefCell<State>,
    /// Places for further requests.
    spare: RefCell<Vec<Rc<Place>>>,
    /// There may be room, or another phase.
    room: Notify,
    /// There may be something to send.
    sending: Notify,
}

enum State {
    /// There is no connection; whether there has been none for longer than an operation may take.
    Connecting {
        is_late: bool,
    },
    Serving(Box<Serving>),
    Closed,
}

struct Serving {
    stream: Rc<TcpStream>,
    session: Session,
    /// By slot.
    entries: Vec<Option<Entry>>,
    /// Bytes of outstanding reads and writes.
    bytes: u64,
    to_send: Gather,
    /// Nothing more is sent: the server is shutting down, or breaks the protocol.
    is_leaving: bool,
}

/// What a server offers.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub flags: Flags,
    /// The most data of a request, bytes: whole blocks.
    pub payload: u32,
    /// Whether it says what is allocated.
    pub has_status: bool,
}

impl Link {
    /// This core's link of a store, if there is one.
    pub(crate) fn of(common: &Arc<Common>) -> Option<Rc<Self>> {
        LINKS.with_borrow(|links| links.iter().find(|link| Arc::ptr_eq(&link.common, common)).cloned())
    }

    /// Starts to connect, on this core.
    pub(crate) fn start(common: Arc<Common>, share: Arc<Share>) -> Rc<Self> {
        let state = RefCell::new(State::Connecting { is_late: false });
        let link = Rc::new(Self {
            common,
            share,
            state,
            spare: RefCell::default(),
            room: Notify::default(),
            sending: Notify::default(),
        });
        LINKS.with_borrow_mut(|links| links.push(link.clone()));
        let this = link.clone();
        runtime::spawn(async move {
            let _end = OnEnd(this.clone());
            let serving = runtime::spawn(this.clone().serve());
            this.common.remote.closed().await;
            serving.abort();
            this.leave();
        });
        link
    }

    /// What the server offers. Waits for a connection.
    pub(crate) async fn offer(&self) -> Result<Offer, StoreError> {
        self.until(self.deadline(), |state| match state {
            State::Serving(serving) => Some(Ok(self.offered(serving.session.export()))),
            State::Connecting { is_late: false } => None,
            State::Connecting { is_late: true } | State::Closed => Some(Err(StoreError::Unknown)),
        })
        .await
    }

    fn offered(&self, export: &Export) -> Offer {
        let block = self.common.geometry.block;
        let most = export.blocks.maximum.min(MAX_REQUEST);
        let payload = (most - most % block).max(block);
        Offer { flags: export.flags, payload, has_status: export.allocation.is_some() }
    }

    /// Carries out a command, which `data` follows, within the time that an operation may take.
    pub(crate) async fn ask(self: &Rc<Self>, command: Command, data: Chain) -> Result<Reply, StoreError> {
        let deadline = self.deadline();
        for _ in 0..ATTEMPTS {
            let place = self.until(deadline, |state| self.submit(state, command, &data)).await?;
            let Some(answer) = before(deadline, place.ended()).await else {
                self.note_overdue(&place);
                return Err(StoreError::Unknown);
            };
            match answer {
                Answer::Done(Ok(())) => {
                    let reply = place.take();
                    // The connection has let go of it.
                    self.spare.borrow_mut().push(place);
                    return Ok(reply);
                }
                // It was not carried out. The connection ends.
                Answer::Done(Err(Failure { code: ErrorCode::ShuttingDown, .. })) => {}
                Answer::Done(Err(failure)) => return Err(self.failed(&command, &failure)),
                Answer::Lost(Lost::Unknown) if command.changes() => return Err(StoreError::Unknown),
                Answer::Lost(_) => {}
            }
        }
        Err(StoreError::Unknown)
    }

    fn deadline(&self) -> Instant {
        runtime::now() + self.common.source.op_timeout
    }

    /// Waits for a state.
    async fn until<T>(
        &self,
        deadline: Instant,
        mut found: impl FnMut(&mut State) -> Option<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let wait = self.room.until(|| found(&mut self.state.borrow_mut()));
        before(deadline, wait).await.unwrap_or(Err(StoreError::Unknown))
    }

    /// Sends a command if there is room for it.
    fn submit(
        &self,
        state: &mut State,
        command: Command,
        data: &Chain,
    ) -> Option<Result<Rc<Place>, StoreError>> {
        if self.common.remote.is_in_doubt() {
            return Some(Err(StoreError::Unknown));
        }
        let serving = match state {
            State::Serving(serving) if !serving.is_leaving => serving,
            State::Serving(_) | State::Connecting { is_late: false } => return None,
            State::Connecting { is_late: true } | State::Closed => return Some(Err(StoreError::Unknown)),
        };
        let bytes = match command {
            Command::Read { len, .. } | Command::Write { len, .. } => u64::from(len),
            _ => 0,
        };
        if serving.bytes > 0 && serving.bytes + bytes > MAX_BYTES {
            return None;
        }
        let (cookie, header) = match serving.session.submit(command) {
            Ok(submitted) => submitted,
            Err(Refused::TooMany(_)) => return None,
            Err(refused) => return Some(Err(refusal(refused))),
        };
        let effect = match command {
            Command::Flush => Effect::Flush(self.share.changes.to_flush()),
            _ if command.is_fua() || !command.changes() => Effect::None,
            // Without flushes there is no cache that a client could lose.
            _ if serving.session.export().flags.flush() => Effect::Cached,
            _ => Effect::None,
        };
        let place = self.spare.borrow_mut().pop().unwrap_or_default();
        if let Some(entry) = serving.entries.get_mut(cookie.slot()) {
            *entry = Some(Entry { place: place.clone(), bytes, effect, is_overdue: false });
        }
        serving.bytes += bytes;
        serving.to_send.push_header(&header);
        serving.to_send.push_chain(data.clone());
        self.sending.notify();
        Some(Ok(place))
    }

    /// The time of a request is over, and its waiter goes. The server may still carry it out.
    #[cold]
    fn note_overdue(&self, place: &Rc<Place>) {
        let State::Serving(serving) = &mut *self.state.borrow_mut() else { return };
        let mut entries = serving.entries.iter_mut().flatten();
        if let Some(entry) = entries.find(|entry| Rc::ptr_eq(&entry.place, place)) {
            entry.is_overdue = true;
            let seconds = self.common.source.op_timeout.as_secs();
            let why = format!("the server has not answered for {seconds} s: nothing else is sent");
            self.common.remote.doubt(why);
        }
    }

    /// The store's error for one of the server's.
    #[cold]
    fn failed(&self, command: &Command, failure: &Failure) -> StoreError {
        let errno = failure.code.value() as i32;
        let at = failure.at.or(command.range().map(|(at, _)| at));
        tracing::debug!(path = self.common.remote.health().path(), ?command, %failure, "the server refuses");
        // A server may refuse more zeros at once than data.
        let is_too_long = matches!(
            (failure.code, command),
            (ErrorCode::TooLong, _)
                | (ErrorCode::Invalid | ErrorCode::NotSupported, Command::WriteZeroes { .. })
        );
        if !is_too_long {
            let kind = Kind::of_errno(errno, command.changes() || *command == Command::Flush);
            self.common.remote.health().report(kind, errno, at.map(|at| at / u64::from(BLOCK)));
        }
        match failure.code {
            ErrorCode::NotPermitted => StoreError::ReadOnly,
            ErrorCode::NoSpace => StoreError::NoSpace,
            _ if is_too_long => StoreError::Unsupported,
            _ => StoreError::Io(errno),
        }
    }

    /// Connects, serves, and connects again.
    async fn serve(self: Rc<Self>) {
        let mut late_from = self.deadline();
        loop {
            let error = match self.connect().await {
                Ok((stream, rest)) => {
                    let sender = runtime::spawn(self.clone().send_all(stream.clone()));
                    let (lost, why) = self.receive(&stream, rest).await;
                    sender.abort();
                    self.lose(lost, &why).await;
                    late_from = self.deadline();
                    runtime::sleep(BREATH).await;
                    continue;
                }
                Err(error) => error,
            };
            self.common.remote.tell_unusable(format!("no connection to the server: {error}"));
            if runtime::now() >= late_from {
                *self.state.borrow_mut() = State::Connecting { is_late: true };
                self.room.notify();
            }
            runtime::sleep(PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<(Rc<TcpStream>, Bytes), DialError> {
        let source = &self.common.source;
        let Dialled { stream, export, rest } = match self.common.take_first() {
            Some(first) => first.into_dialled()?,
            None => dial(&source.uri, source.op_timeout).await?,
        };
        self.common.reopened(&export).map_err(|why| DialError::Other(why.to_owned()))?;
        let stream = Rc::new(stream);
        let serving = Serving {
            stream: stream.clone(),
            session: Session::new(export, DEPTH),
            entries: (0..DEPTH).map(|_| None).collect(),
            bytes: 0,
            to_send: Gather::new(),
            is_leaving: false,
        };
        *self.state.borrow_mut() = State::Serving(Box::new(serving));
        self.common.remote.tell_usable();
        self.room.notify();
        Ok((stream, rest))
    }

    /// Sends what there is to send, as much as there is at once.
    async fn send_all(self: Rc<Self>, stream: Rc<TcpStream>) {
        let mut gather = Gather::new();
        loop {
            let more = || match &mut *self.state.borrow_mut() {
                State::Serving(serving) if serving.to_send.is_empty() => None,
                State::Serving(serving) => Some(Some(std::mem::take(&mut serving.to_send))),
                State::Connecting { .. } | State::Closed => Some(None),
            };
            let Some(next) = self.sending.until(more).await else { return };
            // What is sent next collects in the one that is empty.
            if let State::Serving(serving) = &mut *self.state.borrow_mut() {
                serving.to_send = std::mem::take(&mut gather);
            }
            let (sent, empty) = stream.send(next).await;
            if let Err(error) = sent {
                // The receiver knows better what has become of the connection.
                tracing::debug!(path = self.common.remote.health().path(), %error, "a request could not be sent");
                return;
            }
            gather = empty;
        }
    }

    /// Receives until the connection has ended. Returns what that means for outstanding requests.
    async fn receive(&self, stream: &TcpStream, mut bytes: Bytes) -> (Lost, String) {
        let mut scatter = Scatter::new();
        loop {
            match self.take(&bytes) {
                Ok(None) => {}
                // Before anything else is answered.
                Ok(Some(errno)) => self.common.remote.flush_failed(errno).await,
                Err(violation) => {
                    let lost = self.dismiss(stream).await;
                    return (lost, format!("the server breaks the protocol: {violation}"));
                }
            }
            let left = match &*self.state.borrow() {
                State::Serving(serving) => serving.session.direct().map_or(0, |(_, _, left)| left),
                _ => 0,
            };
            // What is left of a chunk has a buffer of its own. Not one to wait for: the pool may be
            // full of writes that the server takes once its replies are received.
            let own = if left > 0 { pool::alloc(left.min(pool::MAX_ALLOC)) } else { None };
            let received = if let Some(buf) = own {
                bytes = Bytes::new();
                let len = buf.len();
                scatter.push(buf);
                let (received, mut back) = stream.recv_into(scatter, len).await;
                let filled = back.take();
                scatter = back;
                received.map(|received| {
                    let whole = received == len;
                    filled.into_iter().filter(|_| whole).for_each(|filled| self.put(filled));
                    whole
                })
            } else {
                stream.recv_some(RECEIVE).await.map(|received| {
                    bytes = received;
                    !bytes.is_empty()
                })
            };
            match received {
                Ok(true) => {}
                Ok(false) => return (Lost::Over, "the server has closed the connection".to_owned()),
                Err(error) => return lost_by(&error),
            }
        }
    }

    /// Lets a server that broke the protocol finish, and close.
    #[cold]
    async fn dismiss(&self, stream: &TcpStream) -> Lost {
        if let State::Serving(serving) = &mut *self.state.borrow_mut() {
            serving.is_leaving = true;
        }
        // An error means that it has an end.
        let _ = stream.shutdown(Shutdown::Write);
        loop {
            match stream.recv_some(RECEIVE).await {
                Ok(bytes) if bytes.is_empty() => return Lost::Over,
                Ok(_) => {}
                Err(error) => return lost_by(&error).0,
            }
        }
    }

    /// Takes received bytes. Returns the errno of a flush that has failed.
    fn take(&self, bytes: &Bytes) -> Result<Option<i32>, Violation> {
        let mut state = self.state.borrow_mut();
        let State::Serving(serving) = &mut *state else { return Ok(None) };
        let mut input = &bytes[..];
        let (mut has_room, mut failed_flush) = (false, None);
        while let Some(event) = serving.session.next(&mut input)? {
            let taken = bytes.len() - input.len();
            let place = |slot: usize| serving.entries.get(slot).and_then(Option::as_ref);
            match event {
                Event::Data { cookie, at, bytes: data } => {
                    let data = bytes.slice(taken - data.len()..taken);
                    place(cookie.slot()).inspect(|entry| entry.place.put(at, data.into_buf()));
                }
                Event::Hole { cookie, at, len } => {
                    place(cookie.slot()).inspect(|entry| entry.place.put_zeros(at, len));
                }
                Event::Extent { cookie, at, len, state } => {
                    let extent = Extent { at, len: len.into(), mapped: !(state.hole && state.zero) };
                    place(cookie.slot()).inspect(|entry| entry.place.put_extent(extent));
                }
                Event::Done { cookie, outcome } => {
                    let Some(entry) = serving.entries.get_mut(cookie.slot()).and_then(Option::take) else {
                        continue;
                    };
                    serving.bytes -= entry.bytes;
                    has_room = true;
                    match (&outcome, entry.effect) {
                        (Err(Failure { code: ErrorCode::ShuttingDown, .. }), _) => serving.is_leaving = true,
                        (Err(failure), Effect::Flush(_)) => failed_flush = Some(failure.code.value() as i32),
                        // Here, not where it is waited for: the connection may have ended by then.
                        (Ok(()), Effect::Cached) => self.share.changes.changed(),
                        (Ok(()), Effect::Flush(changes)) => self.share.changes.has_flushed(changes),
                        (_, Effect::None) | (Err(_), Effect::Cached) => {}
                    }
                    self.end(entry, Answer::Done(outcome));
                }
            }
        }
        if serving.is_leaving && serving.session.outstanding() == 0 {
            // The receiver sees an end; an error means that it has.
            let _ = serving.stream.shutdown(Shutdown::Both);
        }
        drop(state);
        if has_room {
            self.room.notify();
        }
        Ok(failed_flush)
    }

    fn end(&self, entry: Entry, answer: Answer) {
        if entry.is_overdue {
            self.common.remote.settle();
            self.common.remote.tell_usable();
        }
        entry.place.end(answer);
    }

    /// Takes data that was received straight into a buffer.
    fn put(&self, filled: Destination) {
        let mut state = self.state.borrow_mut();
        let State::Serving(serving) = &mut *state else { return };
        let (Some((cookie, at, _)), Some(buf)) = (serving.session.direct(), filled.into_buf()) else {
            return;
        };
        serving.session.received(buf.len());
        if let Some(Some(entry)) = serving.entries.get(cookie.slot()) {
            entry.place.put(at, buf.freeze());
        }
    }

    /// Ends the requests of a connection that has ended.
    async fn lose(&self, lost: Lost, why: &str) {
        let was = self.state.replace(State::Connecting { is_late: false });
        let State::Serving(serving) = was else { return };
        let outstanding = serving.session.outstanding();
        tracing::warn!(
            path = self.common.remote.health().path(),
            why,
            outstanding,
            ?lost,
            "a connection has ended"
        );
        if self.share.changes.lost() {
            self.common.remote.flush_failed(libc::EIO).await;
        }
        for entry in serving.entries.into_iter().flatten() {
            self.end(entry, Answer::Lost(lost));
        }
        self.room.notify();
    }

    /// Ends the connection of a store that is dropped.
    fn leave(&self) {
        let was = self.state.replace(State::Closed);
        let State::Serving(mut serving) = was else { return };
        for entry in serving.entries.iter_mut().filter_map(Option::take) {
            self.end(entry, Answer::Lost(Lost::Unknown));
        }
        if serving.session.outstanding() == 0 {
            // All that was to be sent was answered, so no send is in flight.
            let mut gather = serving.to_send;
            if self.share.changes.is_any()
                && let Ok((_, header)) = serving.session.submit(Command::Flush)
            {
                // The next client does not know of these changes. The server carries the flush out
                // before it closes.
                gather.push_header(&header);
            }
            gather.push_header(&DISCONNECT);
            // A server that does not take it sees the connection end.
            let _ = serving.stream.try_send(&mut gather);
        }
    }
}

/// Lets others know that a core's connection has gone, however its task ends.
struct OnEnd(Rc<Link>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        let Self(link) = self;
        link.common.disown(&link.share);
        link.state.replace(State::Closed);
        link.room.notify();
        link.sending.notify();
        // The thread may be ending.
        let _ = LINKS.try_with(|links| links.borrow_mut().retain(|other| !Rc::ptr_eq(other, link)));
    }
}

/// What an error of the socket means for outstanding requests.
fn lost_by(error: &io::Error) -> (Lost, String) {
    let lost = match error.kind() {
        // The server's end does not know the connection.
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Lost::Over,
        _ => Lost::Unknown,
    };
    (lost, error.to_string())
}

/// The store's error for a command that the export does not take. The unit has checked its range.
fn refusal(refused: Refused) -> StoreError {
    match refused {
        Refused::ReadOnly => StoreError::ReadOnly,
        Refused::OutOfRange => StoreError::OutOfRange,
        Refused::Unsupported(_) => StoreError::Unsupported,
        Refused::Empty | Refused::Misaligned(_) | Refused::TooLong(_) | Refused::TooMany(_) => {
            StoreError::Io(libc::EINVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_knows_no_connection_carries_nothing_out_later() {
        let lost = |errno| lost_by(&io::Error::from_raw_os_error(errno)).0;
        assert_eq!(lost(libc::ECONNRESET), Lost::Over);
        assert_eq!(lost(libc::EPIPE), Lost::Over);
        assert_eq!(lost(libc::ETIMEDOUT), Lost::Unknown);
        assert_eq!(lost(libc::EHOSTUNREACH), Lost::Unknown);
    }
}
