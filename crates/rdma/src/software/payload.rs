//! Outgoing data as the protocol sees it, and the vectored send that FPDUs are written to. Data is looked into only for a CRC.

use std::collections::VecDeque;

use iwarp::crc::Crc32c;
use iwarp::stream::{Payload, Sink};
use ring::{Buf, BufMut, Chain, Gather, pool};

use crate::{Completion, Counters};

/// How much of memory that may change is copied before it is digested, in bytes: it is in a near cache then, and a copy of less takes longer
/// for each byte (8 KiB at a time: a seventh fewer reads of 64 KiB and more).
const PIECE: usize = 32 << 10;
/// Stable buffers up to this length are copied into the send by [`Gather::push`].
const SHORT: usize = 256;

/// One operation's data: a head that is copied into the send, and what follows it by reference.
pub(super) struct Data<'a> {
    head: &'a [u8],
    chain: Chain,
    /// Bytes of the chain that were copied on the way.
    copied: usize,
}

impl<'a> Data<'a> {
    pub(super) fn new(head: &'a [u8], chain: Chain) -> Self {
        Self { head, chain, copied: 0 }
    }
}

impl Payload for Data<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.chain.len()
    }

    fn split_to(&mut self, n: usize) -> Self {
        let (head, rest) = self.head.split_at(n.min(self.head.len()));
        self.head = rest;
        Self { head, chain: self.chain.split_to(n - head.len()), copied: 0 }
    }

    fn as_stable(&self) -> Option<&[u8]> {
        self.chain.is_empty().then_some(self.head)
    }

    fn with_crc(self, crc: &mut Crc32c) -> Self {
        crc.update(self.head);
        if self.chain.iter().all(|buf| !buf.is_region()) {
            self.chain.for_each_slice(|bytes| crc.update(bytes));
            return self;
        }
        // What is digested must be what is sent.
        let mut stable = Self { head: self.head, chain: Chain::new(), copied: self.copied };
        for buf in self.chain {
            match buf.as_slice() {
                Some(bytes) => {
                    crc.update(bytes);
                    stable.chain.push(buf);
                }
                None => {
                    stable.copied += buf.len();
                    copy_with_crc(&buf, crc, &mut stable.chain);
                }
            }
        }
        stable
    }
}

/// Copies a region's bytes and digests the copy, piece by piece.
fn copy_with_crc(buf: &Buf, crc: &mut Crc32c, to: &mut Chain) {
    let mut at = 0;
    while at < buf.len() {
        let len = (buf.len() - at).min(pool::MAX_ALLOC);
        match pool::alloc(len) {
            Some(mut copy) => {
                copy_pieces(buf, at, &mut copy, crc);
                to.push(copy);
            }
            None => {
                let mut copy = vec![0; len];
                copy_pieces(buf, at, &mut copy, crc);
                to.push(copy);
            }
        }
        at += len;
    }
}

/// Copies and digests as many bytes as `copy` has.
fn copy_pieces(buf: &Buf, at: usize, copy: &mut [u8], crc: &mut Crc32c) {
    let mut done = 0;
    for piece in copy.chunks_mut(PIECE) {
        let from = at + done;
        done += piece.len();
        if buf.slice(from..from + piece.len()).try_copy_to(piece).is_err() {
            // A file was cut short under the read, which has been answered: a CRC that is wrong tells the peer not to believe
            // these bytes.
            crc.update(&[0]);
        }
        crc.update(piece);
    }
}

/// A copy of the bytes `at..at + len` of `buffers`, which the caller has found to lie within.
pub(super) fn copy_out(buffers: &[BufMut], mut at: usize, mut len: usize) -> Chain {
    let mut chain = Chain::new();
    for buffer in buffers {
        if at >= buffer.len() {
            at -= buffer.len();
            continue;
        }
        let mut rest = &buffer[at..buffer.len().min(at + len)];
        at = 0;
        len -= rest.len();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(rest.len().min(pool::MAX_ALLOC));
            rest = more;
            match pool::alloc(piece.len()) {
                Some(mut copy) => {
                    copy.copy_from_slice(piece);
                    chain.push(copy);
                }
                None => chain.push(piece.to_vec()),
            }
        }
        if len == 0 {
            break;
        }
    }
    chain
}

/// What a queue pair has to send next.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) gather: Gather,
    /// Whether memory that may change may be sent by reference even so.
    pub(super) lend: bool,
    /// Bytes that were ever appended.
    pub(super) end: u64,
    /// The same when the gather was last taken.
    pub(super) swapped: u64,
    /// What is to be told once the network has taken the bytes up to there.
    reports: VecDeque<(u64, Completion)>,
    pub(super) sent: u64,
    pub(super) copied: u64,
}

impl Outbox {
    /// Has `completion` told when everything appended so far has been taken by the network.
    pub(super) fn report(&mut self, completion: Completion) {
        self.reports.push_back((self.end, completion));
    }

    /// The next that is due when the network has taken `taken` bytes in all.
    pub(super) fn due(&mut self, taken: u64) -> Option<Completion> {
        let (at, _) = self.reports.front()?;
        if *at > taken { None } else { self.reports.pop_front().map(|(_, completion)| completion) }
    }

    /// Takes what is to be sent, and collects in `spare` from now on.
    pub(super) fn take(&mut self, spare: Gather) -> Gather {
        self.swapped = self.end;
        std::mem::replace(&mut self.gather, spare)
    }

    /// Counts what was appended since the last call.
    pub(super) fn count(&mut self, counters: &mut Counters) {
        counters.sent += std::mem::take(&mut self.sent);
        counters.copied_out += std::mem::take(&mut self.copied);
    }
}

impl<'a> Sink<Data<'a>> for Outbox {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.end += bytes.len() as u64;
        self.gather.push_copy(bytes);
    }

    #[inline]
    fn payload(&mut self, payload: Data<'a>) {
        self.end += payload.len() as u64;
        self.sent += payload.chain.len() as u64;
        self.copied += payload.copied as u64;
        if !payload.head.is_empty() {
            self.gather.push_copy(payload.head);
        }
        for buf in payload.chain {
            if buf.len() <= SHORT && !buf.is_region() {
                self.copied += buf.len() as u64;
            }
            match self.lend {
                true => self.gather.push_lent(buf),
                false => self.gather.push(buf),
            }
        }
    }
}
