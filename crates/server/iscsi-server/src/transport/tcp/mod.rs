//! iSCSI over TCP: a connection's socket, the memory lent to it, and the split of its bytes into
//! PDUs.

pub(crate) mod landing;
mod loans;
pub(crate) mod receive;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;

use runtime::{Gather, Lent, Notify, TcpStream};

use loans::Loans;

/// One connection's socket.
pub(crate) struct Tcp {
    pub stream: TcpStream,
    loans: RefCell<Loans>,
    /// Whether a long data segment is arriving, so that the next receive is for it alone.
    pub long: Cell<bool>,
    /// Bytes handed to the socket and not sent yet.
    pub sending: Cell<usize>,
    /// Notified when there is something to send, or never will be again.
    pub to_send: Notify,
}

impl Tcp {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            loans: RefCell::default(),
            long: Cell::new(false),
            sending: Cell::new(0),
            to_send: Notify::default(),
        }
    }

    /// The kernel's figures on the path.
    pub(crate) fn info(&self) -> Option<runtime::TcpInfo> {
        self.stream.info().ok()
    }

    /// Makes all pending sends fail.
    pub(crate) fn cut(&self) {
        // The peer may be gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends what the socket takes of `gather` now. All of its PDUs have StatSNs before
    /// `next_stat_sn`; the initiator expects `exp_stat_sn` next.
    pub(crate) fn send_now(
        &self,
        gather: &mut Gather,
        next_stat_sn: u32,
        exp_stat_sn: u32,
    ) -> io::Result<()> {
        let lent = self.loans.borrow_mut().send(&self.stream, gather, next_stat_sn, exp_stat_sn)?;
        if lent == Lent::Rest {
            self.stream.try_send(gather)?;
        }
        Ok(())
    }

    /// Sends all of `gather`. `numbers` returns the first StatSN that no PDU has yet, and the one
    /// that the initiator expects next.
    pub(crate) async fn send(
        &self,
        mut gather: Gather,
        numbers: impl Fn() -> (u32, u32),
    ) -> (io::Result<()>, Gather) {
        loop {
            let (next, expected) = numbers();
            let sent = self.loans.borrow_mut().send(&self.stream, &mut gather, next, expected);
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
}
