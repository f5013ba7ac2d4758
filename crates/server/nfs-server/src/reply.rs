//! [`Reply`]: a reply as it is built, and how it becomes a record.

use rpc::message::{self, AcceptStat};
use rpc::record;
use rpc::xdr::{Writer, padding};
use runtime::{Chain, Gather};

/// Where the results of a call that was accepted begin, behind the mark of its record.
pub(crate) const RESULTS: usize = record::MARK_LEN + 24;

/// A reply: its bytes from the RPC header on, the data behind them, and what follows the data.
pub(crate) struct Reply {
    head: Vec<u8>,
    data: Chain,
    tail: Vec<u8>,
}

impl Reply {
    /// A reply without results.
    pub(crate) fn bare(reply: &message::Reply<'_>) -> Self {
        let mut head = Vec::with_capacity(64);
        let mut to = Writer::new(&mut head);
        record::begin(&mut to);
        reply.write(&mut to);
        Self { head, data: Chain::new(), tail: Vec::new() }
    }

    /// A call that was accepted, but for `stat`.
    pub(crate) fn refused(xid: u32, stat: AcceptStat) -> Self {
        Self::bare(&message::Reply::accepted(xid, stat))
    }

    /// The results of a call, which `results` writes.
    pub(crate) fn with(xid: u32, results: impl FnOnce(&mut Writer<'_>)) -> Self {
        let mut head = Vec::with_capacity(256);
        let mut to = Writer::new(&mut head);
        record::begin(&mut to);
        message::Reply::accepted(xid, AcceptStat::Success(())).write(&mut to);
        results(&mut to);
        Self { head, data: Chain::new(), tail: Vec::new() }
    }

    /// Puts data behind the results.
    pub(crate) fn and_data(mut self, data: Chain) -> Self {
        self.data = data;
        self
    }

    /// The bytes before the results of a call that was accepted: [`RESULTS`] of them.
    pub(crate) fn begun(xid: u32) -> Vec<u8> {
        Self::with(xid, |_| {}).head
    }

    /// The reply with these bytes, and data in between at `at`.
    pub(crate) fn around(mut head: Vec<u8>, at: usize, data: Chain) -> Self {
        let tail = if at < head.len() { head.split_off(at) } else { Vec::new() };
        Self { head, data, tail }
    }

    /// Its bytes, for a reply without data.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.head
    }

    /// The reply that had these [`Self::bytes`].
    pub(crate) fn again(head: Vec<u8>) -> Self {
        Self { head, data: Chain::new(), tail: Vec::new() }
    }

    /// Appends it as a record.
    pub(crate) fn send(mut self, to: &mut Gather) {
        let len = self.data.len();
        let behind = len.next_multiple_of(4) + self.tail.len();
        // All of our replies are far shorter than a record may be.
        let _ = record::end(&mut Writer::new(&mut self.head), record::MARK_LEN, behind);
        to.push_copy(&self.head);
        if len > 0 {
            for piece in self.data {
                to.push_lent(piece);
            }
            to.push_copy(padding(len));
        }
        if !self.tail.is_empty() {
            to.push_copy(&self.tail);
        }
    }
}
