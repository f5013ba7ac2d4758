//! A connection over TCP: the loop that receives and passes PDUs on, and the loop that sends queued
//! PDUs.

use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use iscsi::pdu::Bhs;
use runtime::{Buf, Chain, Gather};

use super::{Connection, Inner};
use crate::end::End;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::receive::{Receiver, Taker};
use crate::wire::{Pieces, Segment};

/// A send that takes this long waited for the peer to make room.
const TAKEN_SLOWLY: Duration = Duration::from_millis(100);

/// Rounds of the ring for which a send waits while long data segments lie in the socket. Each such
/// segment takes a receive of its own, and would have its answer sent, and the initiator woken, by
/// itself. Short ones come many at a time, and an initiator must not wait for more of them.
const ROUNDS: usize = 8;
/// Bytes to send above which a send does not wait for more.
const PLENTY: usize = 16 << 10;

/// Sends the output of half a receive at once, if this core has time to spare. A peer that gets all
/// its answers together is idle until then; so is this core afterwards until the peer has handled
/// them. A busy core does better with one send, and with one system call for the sends of all its
/// connections.
#[inline]
fn send_early(tcp: &Tcp, connection: &Connection) -> Result<(), End> {
    if !runtime::has_polled() || tcp.sending.get() > 0 || connection.is_cut() {
        return Ok(());
    }
    let Inner { state, outbox } = &mut *connection.inner.borrow_mut();
    if outbox.gather.is_empty() {
        return Ok(());
    }
    let gather = &mut outbox.gather;
    tcp.send_now(gather, state.stat_sn(), state.exp_stat_sn())?;
    connection.backlog.account(gather.len());
    Ok(())
}

/// Receives until the peer closes, breaks the protocol or is lost.
pub(super) async fn receive_loop(tcp: &Tcp, connection: &Rc<Connection>, mut receiver: Receiver) -> End {
    let mut incoming = Incoming { tcp, connection };
    loop {
        let fed = receiver.feed(&tcp.stream, &mut incoming).await;
        for _ in 0..receiver.take_dropped() {
            connection.inner.borrow_mut().state.damaged_header();
        }
        if let Err(end) = fed {
            return end;
        }
        tcp.long.set(receiver.awaits_long());
        connection.heard();
        if !tcp.long.get()
            && let Err(end) = send_early(tcp, connection)
        {
            return end;
        }
        connection.room_moved();
        connection.kick();
        // Backpressure: while a peer does not read the responses it asked for, nothing is received
        // from it.
        connection.room.until(|| (connection.has_room() || connection.is_cut()).then_some(())).await;
    }
}

/// Sends what is queued, one vectored send at a time, in order.
pub(super) async fn send_loop(tcp: &Tcp, connection: &Rc<Connection>) {
    let mut spare = Gather::new();
    loop {
        let more = tcp.to_send.until(|| {
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
            let waits = tcp.long.get() && !plenty && !connection.is_lost();
            if !waits || !tcp.stream.receives_first().await {
                break;
            }
        }
        let gather = std::mem::replace(&mut connection.inner.borrow_mut().outbox.gather, spare);
        tcp.sending.set(gather.len());
        let begun = runtime::now();
        let numbers = || {
            let state = &connection.inner.borrow().state;
            (state.stat_sn(), state.exp_stat_sn())
        };
        let (result, gather) = tcp.send(gather, numbers).await;
        tcp.sending.set(0);
        spare = gather;
        connection.backlog.account(connection.inner.borrow().outbox.gather.len());
        connection.room_moved();
        connection.room.notify();
        // A send that the socket's buffer takes at once, such as a ping, proves nothing about the
        // peer.
        if runtime::now().saturating_duration_since(begun) >= TAKEN_SLOWLY {
            connection.heard();
        }
        if let Err(error) = result {
            connection.lose(error.into());
        }
    }
    // The peer may be gone already.
    let _ = tcp.stream.shutdown(Shutdown::Write);
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
            self.connection.acknowledged(exp_stat_sn);
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

    #[inline]
    fn soon(&self, bhs: &Bhs) {
        self.connection.prefetch(bhs);
    }

    fn halfway(&mut self) -> Result<(), End> {
        send_early(self.tcp, self.connection)
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
