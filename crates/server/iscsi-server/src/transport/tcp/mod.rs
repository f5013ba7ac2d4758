//! iSCSI over TCP: the loop that receives and cuts PDUs from the stream, and the loop that sends what is queued.

pub(crate) mod landing;
mod loans;
pub(crate) mod receive;

use std::cell::{Cell, RefCell};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use iscsi::pdu::Bhs;
use runtime::{Buf, Chain, Gather, Lent, Notify, TcpStream};

use crate::connection::{Connection, End, Inner};
use crate::wire::{Pieces, Segment};
use loans::Loans;
use receive::{Receiver, Taker};

/// A send that takes this long waited for the peer to make room.
const TAKEN_SLOWLY: Duration = Duration::from_millis(100);

/// Rounds of the ring for which a send waits while long data segments lie in the socket: each takes a receive of its own, and
/// would have its answer sent, and the initiator woken, by itself. Short ones come many at a time, and an initiator must not
/// wait for more of them.
const ROUNDS: usize = 8;
/// Bytes to send that wait for no more.
const PLENTY: usize = 16 << 10;

/// One connection's socket.
pub(crate) struct Tcp {
    stream: TcpStream,
    loans: RefCell<Loans>,
    /// The status that the initiator expects next, as its last PDU said.
    pub exp_stat_sn: Cell<u32>,
    /// Whether a long data segment is on its way, so that the next receive is for it alone.
    long: Cell<bool>,
    /// Bytes handed to the socket and not sent yet.
    pub sending: Cell<usize>,
    /// There is something to send, or nothing any more for ever.
    pub to_send: Notify,
}

impl Tcp {
    /// A socket whose peer expects the status `exp_stat_sn` first.
    pub(crate) fn new(stream: TcpStream, exp_stat_sn: u32) -> Self {
        Self {
            stream,
            loans: RefCell::default(),
            exp_stat_sn: Cell::new(exp_stat_sn),
            long: Cell::new(false),
            sending: Cell::new(0),
            to_send: Notify::default(),
        }
    }

    /// What the kernel knows of the path.
    pub(crate) fn info(&self) -> Option<runtime::TcpInfo> {
        self.stream.info().ok()
    }

    /// Lets no send wait any more.
    pub(crate) fn cut(&self) {
        // The peer may be gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends what half of a receive has led to at once, if this core has time to spare. A peer that gets all its answers together
    /// has nothing to do until then, nor has this core afterwards until the peer has made something of them. A core that is
    /// always busy does better with one send, and with one system call for the sends of all its connections.
    #[inline]
    fn send_early(&self, connection: &Connection) -> Result<(), End> {
        if !runtime::has_polled() || self.sending.get() > 0 || connection.is_cut() {
            return Ok(());
        }
        let Inner { state, outbox } = &mut *connection.inner.borrow_mut();
        if outbox.gather.is_empty() {
            return Ok(());
        }
        let (gather, next, expected) = (&mut outbox.gather, state.stat_sn(), self.exp_stat_sn.get());
        if self.loans.borrow_mut().send(&self.stream, gather, next, expected)? == Lent::Rest {
            self.stream.try_send(gather)?;
        }
        connection.backlog.account(gather.len());
        Ok(())
    }

    /// Sends all of `gather`.
    async fn send(&self, connection: &Connection, mut gather: Gather) -> (std::io::Result<()>, Gather) {
        loop {
            let next_stat_sn = connection.inner.borrow().state.stat_sn();
            let sent =
                self.loans.borrow_mut().send(&self.stream, &mut gather, next_stat_sn, self.exp_stat_sn.get());
            match sent {
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

    /// Receives until the peer closes, breaks the protocol or is lost.
    pub(crate) async fn receive_loop(&self, connection: &Rc<Connection>, mut receiver: Receiver) -> End {
        let mut incoming = Incoming { tcp: self, connection };
        loop {
            let fed = receiver.feed(&self.stream, &mut incoming).await;
            for _ in 0..receiver.take_dropped() {
                connection.inner.borrow_mut().state.damaged_header();
            }
            if let Err(end) = fed {
                return end;
            }
            self.long.set(receiver.awaits_long());
            connection.heard();
            if !self.long.get()
                && let Err(end) = self.send_early(connection)
            {
                return end;
            }
            connection.start_deferred();
            connection.kick();
            // A peer that does not read what it asked for is not listened to either.
            connection.room.until(|| (connection.has_room() || connection.is_cut()).then_some(())).await;
        }
    }

    /// Sends what is queued, one vectored send at a time, in order.
    pub(crate) async fn send_loop(&self, connection: &Rc<Connection>) {
        let mut spare = Gather::new();
        loop {
            let more = self.to_send.until(|| {
                let empty = connection.inner.borrow().outbox.gather.is_empty();
                match (empty, connection.is_cut() || connection.is_closing()) {
                    (_, _) if connection.is_cut() => Some(false),
                    (false, _) => Some(true),
                    (true, true) => Some(false),
                    (true, false) => None,
                }
            });
            if !more.await {
                break;
            }
            for _ in 0..ROUNDS {
                let plenty = connection.inner.borrow().outbox.gather.len() >= PLENTY;
                let waits = self.long.get() && !plenty && !connection.is_lost();
                if !waits || !self.stream.receives_first().await {
                    break;
                }
            }
            let gather = std::mem::replace(&mut connection.inner.borrow_mut().outbox.gather, spare);
            self.sending.set(gather.len());
            let begun = runtime::now();
            let (result, gather) = self.send(connection, gather).await;
            self.sending.set(0);
            spare = gather;
            connection.backlog.account(connection.inner.borrow().outbox.gather.len());
            connection.start_deferred();
            connection.room.notify();
            // What the socket's buffer takes at once, a ping above all, says nothing of the peer.
            if runtime::now().saturating_duration_since(begun) >= TAKEN_SLOWLY {
                connection.heard();
            }
            if let Err(error) = result {
                connection.lose(error.into());
            }
        }
        // The peer may be gone already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// A connection as its receiver sees it.
struct Incoming<'a> {
    tcp: &'a Tcp,
    connection: &'a Rc<Connection>,
}

impl Incoming<'_> {
    #[inline]
    fn note(&self, bhs: &Bhs) {
        if let Some(exp_stat_sn) = bhs.exp_stat_sn() {
            self.tcp.exp_stat_sn.set(exp_stat_sn);
        }
    }
}

impl Taker for Incoming<'_> {
    #[inline]
    fn pdu(&mut self, bhs: &Bhs, ahs: &[u8], data: Option<Buf>) -> Result<(), End> {
        let Some(data) = data else { return self.connection.on_damaged(bhs) };
        self.note(bhs);
        self.connection.on_pdu(bhs, ahs, Segment(data), |_, _| ())
    }

    fn halfway(&mut self) -> Result<(), End> {
        self.tcp.send_early(self.connection)
    }

    fn begin(&mut self, bhs: &Bhs, ahs: &[u8], len: usize) -> Result<bool, End> {
        if !self.connection.is_begun_early(bhs, ahs) {
            return Ok(false);
        }
        self.note(bhs);
        self.connection.begin(bhs, ahs, len).map(|()| true)
    }

    fn place(&self, bhs: &Bhs, filled: usize) -> Option<(device::Landing, u64)> {
        self.connection.place(bhs, filled)
    }

    fn long(&mut self, bhs: &Bhs, ahs: &[u8], data: Chain, begun: bool) -> Result<(), End> {
        if begun {
            return self.connection.on_rest(Pieces(data));
        }
        self.note(bhs);
        self.connection.on_pdu(bhs, ahs, Pieces(data), |_, _| ())
    }
}
