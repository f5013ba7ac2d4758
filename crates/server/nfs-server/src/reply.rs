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
    item: Item,
}

/// The item of a reply that may go apart over RDMA ([`nfs::ddp`]).
#[derive(Clone, Copy, Default)]
struct Item {
    /// Which of the results that may go apart it is.
    index: usize,
    /// Where it begins, and its length, if it is not the data.
    within: Option<(usize, usize)>,
}

/// The parts of a reply, without its record's mark: bytes, the item that may go apart, what follows
/// the item and its padding.
pub(crate) struct Parts {
    pub head: Vec<u8>,
    pub item: Chain,
    /// Which of the results that may go apart the item is.
    pub index: usize,
    pub tail: Vec<u8>,
}

/// An item of a reply that is being built, which may go apart.
pub(crate) struct Apart {
    /// Where in the reply's bytes it belongs.
    pub at: usize,
    /// Which of the results that may go apart it is.
    pub index: usize,
    pub item: Where,
}

/// Where an item is.
pub(crate) enum Where {
    /// Here, and not among the reply's bytes.
    Outside(Chain),
    /// Among them, with this length.
    Within(usize),
}

impl Apart {
    /// The bytes that are not among the reply's.
    pub(crate) fn data(&self) -> &[runtime::Buf] {
        match &self.item {
            Where::Outside(data) => data.bufs(),
            Where::Within(_) => &[],
        }
    }

    /// How many those are, with their padding.
    pub(crate) fn padded_len(&self) -> usize {
        self.data().iter().map(runtime::Buf::len).sum::<usize>().next_multiple_of(4)
    }
}

impl Reply {
    /// A reply without results.
    pub(crate) fn bare(reply: &message::Reply<'_>) -> Self {
        let mut head = Vec::with_capacity(64);
        let mut to = Writer::new(&mut head);
        record::begin(&mut to);
        reply.write(&mut to);
        Self::again(head)
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
        Self::again(head)
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

    /// The results end with an opaque item of `len` bytes that may go apart.
    pub(crate) fn ending_with(mut self, len: usize) -> Self {
        self.item.within = Some((self.head.len() - len.next_multiple_of(4), len));
        self
    }

    /// The reply with these bytes, and an item that may go apart.
    pub(crate) fn around(mut head: Vec<u8>, Apart { at, index, item }: Apart) -> Self {
        let (data, within) = match item {
            Where::Outside(data) => (data, None),
            Where::Within(len) => (Chain::new(), Some((at, len))),
        };
        let tail = if within.is_none() && at < head.len() { head.split_off(at) } else { Vec::new() };
        Self { head, data, tail, item: Item { index, within } }
    }

    /// Its bytes, for a reply without data.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.head
    }

    /// The reply that had these [`Self::bytes`].
    pub(crate) fn again(head: Vec<u8>) -> Self {
        Self { head, data: Chain::new(), tail: Vec::new(), item: Item::default() }
    }

    /// Takes it apart, for a message without a record's mark.
    pub(crate) fn into_parts(self) -> Parts {
        let Self { mut head, data: mut item, mut tail, item: Item { index, within } } = self;
        if let Some((at, len)) = within {
            tail = head.split_off(at + len.next_multiple_of(4));
            head.truncate(at + len);
            item.push(head.split_off(at));
        }
        head.drain(..record::MARK_LEN);
        Parts { head, item, index, tail }
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
