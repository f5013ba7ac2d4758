//! Outgoing data for the protocol, and the vectored send that FPDUs are written to. Data is read
//! only for a CRC.

use std::collections::VecDeque;
use std::io;

use iwarp::crc::Crc32c;
use iwarp::stream::{Payload, Sink};
use runtime::{Buf, BufMut, Chain, Gather, pool};

use crate::{Completion, Counters};

/// Bytes of changeable memory to copy before digesting them: they are then in a near cache. Smaller
/// pieces take longer per byte (8 KiB pieces: a seventh fewer reads of 64 KiB and more).
const PIECE: usize = 32 << 10;
/// [`Gather::push`] copies stable buffers up to this length into the send.
const SHORT: usize = 256;

/// One operation's data: a head that is copied into the send, and a chain by reference.
pub(super) struct Data<'a> {
    head: &'a [u8],
    chain: Chain,
    /// Bytes of the chain that were copied.
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
        // The digested bytes must be the sent bytes.
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

    fn copy_to(&self, mut at: usize, mut to: &mut [u8]) -> bool {
        if let Some(head) = self.head.get(at..).filter(|head| !head.is_empty()) {
            let (now, rest) = to.split_at_mut(head.len().min(to.len()));
            now.copy_from_slice(&head[..now.len()]);
            (at, to) = (at + now.len(), rest);
        }
        at -= self.head.len().min(at);
        for buf in &self.chain {
            if to.is_empty() {
                break;
            }
            if at >= buf.len() {
                at -= buf.len();
                continue;
            }
            let (now, rest) = to.split_at_mut((buf.len() - at).min(to.len()));
            if buf.slice(at..at + now.len()).try_copy_to(now).is_err() {
                return false;
            }
            (at, to) = (0, rest);
        }
        true
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

/// Copies and digests as many bytes as fit `copy`.
fn copy_pieces(buf: &Buf, at: usize, copy: &mut [u8], crc: &mut Crc32c) {
    let mut done = 0;
    for piece in copy.chunks_mut(PIECE) {
        let from = at + done;
        done += piece.len();
        if buf.slice(from..from + piece.len()).try_copy_to(piece).is_err() {
            // A file was truncated during a read that is already being answered: a wrong CRC tells
            // the peer to reject these bytes.
            crc.update(&[0]);
        }
        crc.update(piece);
    }
}

/// A copy of the bytes `at..at + len` of `buffers`, which the caller has checked.
pub(super) fn copy_out(buffers: &[BufMut], mut at: usize, mut len: usize) -> Chain {
    let mut chain = Chain::new();
    for buffer in buffers {
        if at >= buffer.len() {
            at -= buffer.len();
            continue;
        }
        let mut rest = &buffer[at..buffer.len().min(at + len)];
        runtime::count_copy(rest.len());
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

/// The next data to send of a queue pair.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) gather: Gather,
    /// Whether changeable memory may be sent by reference.
    pub(super) lend: bool,
    /// Total bytes ever appended.
    pub(super) end: u64,
    /// The value of `end` when the gather was last taken.
    pub(super) swapped: u64,
    /// Completions to report once the network has taken the bytes up to each position.
    reports: VecDeque<(u64, Completion)>,
    pub(super) sent: u64,
    pub(super) copied: u64,
    /// Some of the data could not be read, so nothing more may be sent.
    unreadable: bool,
}

impl Outbox {
    /// Reports `completion` when the network has taken everything appended so far.
    pub(super) fn report(&mut self, completion: Completion) {
        self.reports.push_back((self.end, completion));
    }

    /// The next completion that is due once the network has taken `taken` bytes in total.
    pub(super) fn due(&mut self, taken: u64) -> Option<Completion> {
        let (at, _) = self.reports.front()?;
        if *at > taken { None } else { self.reports.pop_front().map(|(_, completion)| completion) }
    }

    /// Checks that everything appended was readable.
    ///
    /// # Errors
    /// If a file behind some of it was cut short.
    pub(super) fn readable(&self) -> io::Result<()> {
        if self.unreadable {
            Err(io::Error::other("a file that was being sent was cut short"))
        } else {
            Ok(())
        }
    }

    /// Takes the data to send; later data is collected in `spare`.
    pub(super) fn take(&mut self, spare: Gather) -> Gather {
        self.swapped = self.end;
        std::mem::replace(&mut self.gather, spare)
    }

    /// Adds the data appended since the last call to the counters.
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

    fn marked(&mut self, payload: Data<'a>, len: usize, fill: impl FnOnce(&Data<'a>, &mut [u8]) -> bool) {
        self.end += len as u64;
        self.sent += payload.chain.len() as u64;
        self.copied += payload.chain.len() as u64;
        if len <= SHORT {
            let mut copy = [0; SHORT];
            self.unreadable |= !fill(&payload, &mut copy[..len]);
            return self.gather.push_copy(&copy[..len]);
        }
        let (copy, readable) = match pool::alloc(len) {
            Some(mut copy) => {
                let readable = fill(&payload, &mut copy);
                (copy.freeze(), readable)
            }
            None => {
                let mut copy = vec![0; len];
                let readable = fill(&payload, &mut copy);
                (Buf::from(copy), readable)
            }
        };
        self.unreadable |= !readable;
        self.gather.push(copy);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use iwarp::mpa::{Agreed, Role};
    use iwarp::stream::{Options, Remote, SendFlags, Stream};
    use runtime::Region;

    use super::*;

    fn with_markers(crc: bool) -> Stream {
        let agreed = Agreed {
            role: Role::Requester,
            revision: 2,
            crc,
            send_markers: true,
            receive_markers: false,
            ird: 1,
            ord: 1,
            rtr: None,
        };
        Stream::new(&agreed, &Options::new([1; 16]))
    }

    /// A region with a different byte at each of the first 64 Ki places, and those bytes.
    fn region() -> (Arc<Region>, Vec<u8>) {
        let bytes: Vec<u8> = (0..64 << 10u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let region = Region::new(1 << 20).unwrap();
        region.write_from(0, &bytes).unwrap();
        (region, bytes)
    }

    /// Memory that sockets hold while they copy it had been a send for each 508 bytes.
    #[test]
    fn data_and_its_markers_are_one_piece_of_memory_to_send() {
        let (region, bytes) = region();
        let to = Remote { stag: iwarp::stag::Stag(7), to: 0 };
        for crc in [false, true] {
            let (mut ours, mut plain) = (with_markers(crc), with_markers(crc));
            let (mut outbox, mut wire) = (Outbox::default(), Vec::new());
            for (at, len) in [(4096, 60_000), (0, 100), (512, 4096)] {
                let data = Chain::from(region.slice(at, len).unwrap());
                ours.write(to, Data::new(&[], data), &mut outbox).unwrap();
                plain.write(to, &bytes[at..at + len], &mut wire).unwrap();
            }
            // Each has a header before it, and a trailer behind.
            assert!(outbox.gather.vectors() <= 3 * 3, "{:?}", outbox.gather);
            assert_eq!((outbox.gather.len(), outbox.end), (wire.len(), wire.len() as u64));
            assert_eq!((outbox.sent, outbox.copied), (64_196, 64_196));
            assert!(outbox.readable().is_ok());
        }
    }

    #[test]
    fn any_part_of_a_head_and_its_data_is_copied() {
        let (region, bytes) = region();
        let mut chain = Chain::from(region.slice(100, 1000).unwrap());
        chain.push(bytes[1100..1500].to_vec());
        chain.push(region.slice(1500, 500).unwrap());
        let data = Data::new(&bytes[60..100], chain);
        for (at, len) in
            [(0, 1940), (0, 10), (30, 20), (39, 1), (40, 1000), (1039, 402), (1440, 500), (1939, 1)]
        {
            let mut copy = vec![0; len];
            assert!(data.copy_to(at, &mut copy));
            assert_eq!(copy, bytes[60 + at..60 + at + len], "{len} bytes from {at}");
        }
    }

    #[test]
    fn nothing_is_sent_once_some_of_it_could_not_be_read() {
        for len in [100, 5000] {
            let mut outbox = Outbox::default();
            with_markers(false)
                .send(Data::new(b"fine", Chain::new()), SendFlags::default(), &mut outbox)
                .unwrap();
            assert!(outbox.readable().is_ok());
            outbox.marked(Data::new(&[], Chain::new()), len, |_, _| false);
            outbox.marked(Data::new(&[], Chain::new()), len, |_, _| true);
            assert!(outbox.readable().is_err());
        }
    }
}
