//! [`Reply`]: a reply as it is built, and how it becomes a record.

use rpc::message::{self, AcceptStat};
use rpc::record;
use rpc::xdr::{Writer, padding};
use runtime::{Buf, Chain, Gather};
use smallvec::SmallVec;

/// Offset of an accepted call's results in its reply, with the record's mark.
pub(crate) const RESULTS: usize = record::MARK_LEN + 24;

/// A reply: its bytes from the record's mark on, and the items that may go apart, in order.
pub(crate) struct Reply {
    bytes: Vec<u8>,
    apart: Aparts,
}

/// The items of a reply that may go apart. Most have one at most.
pub(crate) type Aparts = SmallVec<[Apart; 1]>;

/// The parts of a reply, without its record's mark.
pub(crate) struct Parts {
    /// The bytes before the first item.
    pub head: Vec<u8>,
    /// Each item, and the bytes between its padding and the next one.
    pub items: SmallVec<[(Part, Vec<u8>); 1]>,
}

/// An item of a reply, over RDMA.
pub(crate) struct Part {
    /// Its number among the results that may go apart.
    pub index: usize,
    pub data: Chain,
}

/// An item of a reply that may go apart over RDMA ([`nfs::ddp`]).
pub(crate) struct Apart {
    /// Its offset in the reply's bytes.
    pub at: usize,
    /// Its number among the results that may go apart.
    pub index: usize,
    pub item: Where,
}

/// Place of an item.
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

    /// Length of the data with their padding, bytes.
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
        self.apart.push(Apart { at: self.bytes.len(), index: 0, item: Where::Outside(data) });
        self
    }

    /// The bytes before the results of a call that was accepted: [`RESULTS`] of them.
    pub(crate) fn begun(xid: u32) -> Vec<u8> {
        Self::with(xid, |_| {}).bytes
    }

    /// The results end with an opaque item of `len` bytes that may go apart.
    pub(crate) fn ending_with(mut self, len: usize) -> Self {
        let at = self.bytes.len() - len.next_multiple_of(4);
        self.apart.push(Apart { at, index: 0, item: Where::Within(len) });
        self
    }

    /// The reply with these bytes, and items that may go apart.
    pub(crate) fn around(bytes: Vec<u8>, apart: Aparts) -> Self {
        Self { bytes, apart }
    }

    /// Its bytes, for a reply without data.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The status that its results begin with, as those of NFS do; 0 if it has none.
    pub(crate) fn status(&self) -> u32 {
        self.bytes.get(RESULTS..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_be_bytes(*word))
    }

    /// The reply that had these [`Self::bytes`].
    pub(crate) fn again(bytes: Vec<u8>) -> Self {
        Self { bytes, apart: Aparts::new() }
    }

    /// Takes it apart, for a message without a record's mark.
    pub(crate) fn into_parts(self) -> Parts {
        let Self { mut bytes, apart } = self;
        let part = |Apart { at, index, item }: Apart| {
            let mut behind = bytes.split_off(at);
            let data = match item {
                Where::Outside(data) => data,
                Where::Within(len) => {
                    let rest = behind.split_off(len.next_multiple_of(4));
                    behind.truncate(len);
                    Chain::from(Buf::from(std::mem::replace(&mut behind, rest)))
                }
            };
            (Part { index, data }, behind)
        };
        // Each split leaves the ones before it.
        let mut items: SmallVec<[(Part, Vec<u8>); 1]> = apart.into_iter().rev().map(part).collect();
        items.reverse();
        bytes.drain(..record::MARK_LEN);
        Parts { head: bytes, items }
    }

    /// Appends it as a record.
    pub(crate) fn send(mut self, to: &mut Gather) {
        let outside = self.apart.iter().map(Apart::padded_len).sum();
        // All of our replies are far shorter than a record may be.
        let _ = record::end(&mut Writer::new(&mut self.bytes), record::MARK_LEN, outside);
        let mut sent = 0;
        for Apart { at, item, .. } in self.apart {
            let Where::Outside(data) = item else { continue };
            to.push_copy(&self.bytes[sent..at]);
            sent = at;
            let len = data.len();
            for piece in data {
                to.push_lent(piece);
            }
            to.push_copy(padding(len));
        }
        if sent < self.bytes.len() {
            to.push_copy(&self.bytes[sent..]);
        }
    }
}
