//! One TCP connection between two gateways, from its handshake to its end: what is to be sent, and
//! what has come.
//!
//! A connection that ends is reset, so that nothing unsent is delivered later.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::{Duration, Instant};

use peer_link::{Connection, HandshakeError, Time, Violation};
use runtime::{Buf, Bytes, Chain, Gather, Notify, TcpStream};

/// How long a handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes per receive.
pub(crate) const RECEIVE: usize = 64 << 10;
/// From how many unsent bytes on nothing is added that can wait.
pub(crate) const HIGH: usize = 1 << 20;
/// Data of fewer bytes does not keep the buffer into which it was received.
const COPIED: usize = 16 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoLine {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the peer has closed the connection")]
    Closed,
    #[error("the handshake took longer than {} s", HANDSHAKE.as_secs())]
    Late,
    #[error("refused: {0}")]
    Refused(peer_link::Reason),
}

pub(crate) struct Line {
    pub connection: Connection,
    /// Until its end.
    stream: RefCell<Option<Rc<TcpStream>>>,
    to_send: RefCell<Gather>,
    /// Bytes of the send that is in flight.
    leaving: Cell<usize>,
    sending: Notify,
    /// Bytes have left, or the connection is over.
    pub left: Notify,
    why: RefCell<Option<String>>,
}

/// One end's machine, as its connection sees it.
pub(crate) trait End: 'static {
    /// Takes what has come.
    fn take(self: &Rc<Self>, line: &Rc<Line>, bytes: &Bytes) -> Result<(), Violation>;
    /// Appends what the machine has to say.
    fn fill(&self, out: &mut Vec<u8>);
    /// Looks at the time. When to do so again.
    fn tick(self: &Rc<Self>) -> Result<Duration, Violation>;
}

impl Line {
    pub fn new(connection: Connection, stream: TcpStream) -> Rc<Self> {
        Rc::new(Self {
            connection,
            stream: RefCell::new(Some(Rc::new(stream))),
            to_send: RefCell::default(),
            leaving: Cell::new(0),
            sending: Notify::default(),
            left: Notify::default(),
            why: RefCell::default(),
        })
    }

    /// Sends a message, and its data behind it.
    pub fn push(&self, head: &[u8], data: Chain) {
        if head.is_empty() {
            return;
        }
        let mut to_send = self.to_send.borrow_mut();
        to_send.push_copy(head);
        to_send.push_chain(data);
        self.sending.notify();
    }

    /// The machine may have something to say.
    pub fn wake(&self) {
        self.sending.notify();
    }

    pub fn unsent(&self) -> usize {
        self.leaving.get() + self.to_send.borrow().len()
    }

    /// Ends the connection. The first reason counts.
    pub fn cut(&self, why: &dyn Display) {
        self.why.borrow_mut().get_or_insert_with(|| why.to_string());
        if let Some(stream) = &*self.stream.borrow() {
            // It fails if the connection has an end already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.sending.notify();
    }

    /// Serves the connection to its end, and says why it has ended. `rest` has come with the
    /// handshake.
    pub async fn run<E: End>(self: &Rc<Self>, end: &Rc<E>, mut bytes: Bytes) -> String {
        let Some(stream) = self.stream.borrow().clone() else { return String::new() };
        let (line, machine) = (self.clone(), end.clone());
        let sender = runtime::spawn(async move { line.send_all(&*machine).await });
        let (line, machine) = (self.clone(), end.clone());
        let ticker = runtime::spawn(async move {
            loop {
                match machine.tick() {
                    Ok(pause) => runtime::sleep(pause).await,
                    Err(violation) => return line.cut(&violation),
                }
                line.wake();
            }
        });
        loop {
            if let Err(violation) = end.take(self, &bytes) {
                self.cut(&violation);
                break;
            }
            self.wake();
            match stream.recv_some(RECEIVE).await {
                Ok(received) if received.is_empty() => {
                    self.cut(&NoLine::Closed);
                    break;
                }
                Ok(received) => bytes = received,
                Err(error) => {
                    self.cut(&error);
                    break;
                }
            }
        }
        sender.abort();
        ticker.abort();
        self.stream.borrow_mut().take();
        if let Ok(stream) = Rc::try_unwrap(stream) {
            stream.reset();
        }
        self.left.notify();
        self.why.borrow().clone().unwrap_or_default()
    }

    async fn send_all<E: End>(&self, end: &E) {
        let (mut spare, mut out) = (Gather::new(), Vec::new());
        let Some(stream) = self.stream.borrow().clone() else { return };
        loop {
            let next = self.sending.until(|| {
                end.fill(&mut out);
                let mut to_send = self.to_send.borrow_mut();
                if !out.is_empty() {
                    to_send.push_copy(&out);
                    out.clear();
                }
                (!to_send.is_empty()).then(|| std::mem::replace(&mut *to_send, std::mem::take(&mut spare)))
            });
            let next = next.await;
            self.leaving.set(next.len());
            let (sent, empty) = stream.send(next).await;
            self.leaving.set(0);
            if let Err(error) = sent {
                return self.cut(&error);
            }
            spare = empty;
            self.left.notify();
        }
    }
}

/// The time of a machine that began at `began`.
pub(crate) fn since(began: Instant) -> Time {
    runtime::now().saturating_duration_since(began)
}

/// When a machine that is due at `due` looks at the time again.
pub(crate) fn pause(now: Time, due: Option<Time>) -> Duration {
    const LEAST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_millis(250);
    due.map_or(MOST, |due| due.saturating_sub(now).clamp(LEAST, MOST))
}

/// The part of `bytes` that `data` is, kept for long.
pub(crate) fn kept(bytes: &Bytes, data: &[u8], left: usize) -> Buf {
    if data.len() < COPIED {
        return Buf::from(data.to_vec());
    }
    let end = bytes.len() - left;
    bytes.slice(end - data.len()..end).into_buf()
}

/// The same data in memory that nobody changes, as its checksum needs it.
pub(crate) fn stable(data: Buf) -> Buf {
    if data.as_slice().is_some() { data } else { Buf::from(data.to_vec()) }
}

/// The memory of stable data.
pub(crate) fn parts(chain: &Chain) -> Vec<&[u8]> {
    chain.iter().filter_map(Buf::as_slice).collect()
}

/// Receives what a handshake waits for.
pub(crate) async fn more(stream: &TcpStream) -> Result<Bytes, NoLine> {
    let bytes = stream.recv_some(RECEIVE).await?;
    if bytes.is_empty() { Err(NoLine::Closed) } else { Ok(bytes) }
}

/// Sends a message of a handshake.
pub(crate) async fn say(stream: &TcpStream, out: &mut Vec<u8>) -> Result<(), NoLine> {
    if out.is_empty() {
        return Ok(());
    }
    let mut gather = Gather::new();
    gather.push_copy(&std::mem::take(out));
    Ok(stream.send(gather).await.0?)
}
