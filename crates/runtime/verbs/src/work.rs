//! One operation of a queue pair's send queue, from its post to its completion: its kind, the
//! memory it holds, and its scatter/gather elements in registered memory. Posts nothing.

use std::collections::VecDeque;
use std::rc::Rc;

use runtime::{Buf, BufMut, Chain, pool};
use smallvec::SmallVec;

use crate::abi::{self, Mw, MwBindInfo, SendWr, Sge};
use crate::domain::{Domain, Slot};
use crate::error::Error;
use crate::exposure::{Exposures, Leaving};

/// The longest header before a Send's data, in bytes.
pub const MAX_HEAD: usize = 256;
/// Maximum bytes per RDMA Write of a split one: below every device's limit of 2 GiB.
const MOST_WRITTEN: usize = 256 << 20;

pub(crate) type Head = SmallVec<[u8; 112]>;

/// A request to the device.
pub(crate) enum Op {
    Send { head: Head, data: Chain, invalidate: Option<u32>, solicited: bool },
    Write { stag: u32, offset: u64, data: Chain },
    Read { stag: u32, offset: u64, len: usize },
    Bind { window: *mut Mw, rkey: u32, info: MwBindInfo },
    Invalidate { rkey: u32 },
}

impl Op {
    /// Its name in errors.
    fn kind(&self) -> Kind {
        match self {
            Self::Send { .. } => Kind::Send,
            Self::Write { .. } => Kind::Write,
            Self::Read { .. } => Kind::Read,
            Self::Bind { .. } => Kind::Bind,
            Self::Invalidate { .. } => Kind::Invalidate,
        }
    }

    /// Number of payload bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send { head, data, .. } => head.len() + data.len(),
            Self::Write { data, .. } => data.len(),
            _ => 0,
        }
    }
}

/// The kinds of [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    Bind,
    Invalidate,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "RDMA Write",
            Self::Read => "RDMA Read",
            Self::Bind => "binding of a memory window",
            Self::Invalidate => "invalidation of a memory window",
        }
    }
}

/// An operation that waits to be posted.
pub(crate) struct Work {
    pub(crate) op: Op,
    /// The id of its completion for the user.
    pub(crate) notify: Option<u64>,
    pub(crate) leaving: Option<Leaving>,
}

/// An operation, or a part of one, that is posted to the device.
pub(crate) struct Posted {
    pub(crate) kind: Kind,
    pub(crate) hold: Hold,
    /// In the last part: the id of its completion for the user.
    pub(crate) notify: Option<u64>,
    /// Payload bytes of this part.
    pub(crate) bytes: usize,
    /// It has a completion of its own. Otherwise a later completion includes it.
    pub(crate) signalled: bool,
    pub(crate) done: bool,
}

/// Memory that the device may access until the completion.
pub(crate) enum Hold {
    Nothing,
    /// Data that is only held.
    Data {
        _data: Chain,
    },
    /// The buffer for an RDMA Read's data, and the slot, if the data goes through one.
    Sink {
        buffer: BufMut,
        slot: Option<Rc<Slot>>,
    },
    Leaving(Leaving),
}

/// The result of preparing a work request.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Prepared {
    /// A work request, and whether it was the last one of this work.
    Ready(Request, bool),
    /// The pool does not have this number of bytes now.
    NoMemory(usize),
}

/// A work request without its scatter/gather list, and the memory it holds.
pub(crate) struct Request {
    pub(crate) wr: SendWr,
    pub(crate) posted: Posted,
}

impl Work {
    /// Turns as much of the work as possible into one work request. Appends its elements to `sges`;
    /// a header is copied into `heads`.
    pub(crate) fn prepare(
        &mut self,
        domain: &Domain,
        exposures: &mut Exposures,
        sges: &mut Vec<Sge>,
        heads: &mut Heads,
        position: u64,
    ) -> Result<Prepared, Error> {
        let kind = self.op.kind();
        let most = domain.limits().sges;
        let mut wr = SendWr { send_flags: abi::SEND_SIGNALED, ..SendWr::EMPTY };
        let (mut hold, mut bytes, mut last) = (Hold::Nothing, 0, true);
        match &mut self.op {
            Op::Send { head, data, invalidate, solicited } => {
                wr.opcode = abi::WR_SEND;
                if let Some(rkey) = invalidate {
                    (wr.opcode, wr.invalidate_rkey) = (abi::WR_SEND_WITH_INV, *rkey);
                    // rdma-core's siw takes the key from the field of writes and reads; other
                    // providers ignore it there.
                    wr.rkey = *rkey;
                }
                if *solicited {
                    wr.send_flags |= abi::SEND_SOLICITED;
                }
                let with_head = usize::from(!head.is_empty());
                let direct = data.bufs().len() + with_head <= most
                    && data.bufs().iter().all(|buf| buf.chunk().is_some());
                if !direct {
                    if data.len() > pool::MAX_ALLOC {
                        return Err(Error::TooMuch {
                            what: "bytes of a Send",
                            asked: data.len(),
                            limit: pool::MAX_ALLOC,
                        });
                    }
                    let Some(mut copy) = pool::alloc(data.len()) else {
                        return Ok(Prepared::NoMemory(data.len()));
                    };
                    data.copy_to_slice(&mut copy);
                    *data = Chain::from(copy.freeze());
                }
                bytes = head.len() + data.len();
                if with_head > 0 {
                    sges.push(heads.put(domain, position, head)?);
                }
                for buf in data.bufs() {
                    sges.push(element(domain, buf)?);
                }
                hold = Hold::Data { _data: std::mem::take(data) };
            }
            Op::Write { stag, offset, data } => {
                (wr.opcode, wr.rkey, wr.remote_addr) = (abi::WR_RDMA_WRITE, *stag, *offset);
                // A write needs no completion of its own: that of a later request includes it.
                let taken = match take_writable(data, most) {
                    Ok(taken) => taken,
                    Err(bytes) => return Ok(Prepared::NoMemory(bytes)),
                };
                bytes = taken.len();
                for buf in taken.bufs() {
                    sges.push(element(domain, buf)?);
                }
                *offset = offset.wrapping_add(bytes as u64);
                last = data.is_empty();
                if !last || self.notify.is_none() {
                    wr.send_flags &= !abi::SEND_SIGNALED;
                }
                hold = Hold::Data { _data: taken };
            }
            Op::Read { stag, offset, len } => {
                (wr.opcode, wr.rkey, wr.remote_addr) = (abi::WR_RDMA_READ, *stag, *offset);
                let n = (*len).min(pool::MAX_ALLOC);
                let Some(mut buffer) = pool::alloc(n) else { return Ok(Prepared::NoMemory(n)) };
                let slot = if domain.opens_sinks() { Some(exposures.read_sink(n)?) } else { None };
                match (&slot, buffer.chunk()) {
                    (Some(slot), _) => sges.push(Sge {
                        addr: slot.address(),
                        length: n as u32,
                        lkey: slot.registration().lkey(),
                    }),
                    (None, Some(chunk)) => {
                        let (lkey, _) = domain.chunk(chunk)?;
                        sges.push(Sge { addr: buffer.as_mut_ptr() as u64, length: n as u32, lkey });
                    }
                    (None, None) => return Err(Error::NoMemory("the sink of an RDMA Read")),
                }
                *offset = offset.wrapping_add(n as u64);
                *len -= n;
                last = *len == 0;
                hold = Hold::Sink { buffer, slot };
            }
            Op::Bind { window, rkey, info } => {
                wr.opcode = abi::WR_BIND_MW;
                (wr.mw, wr.mw_rkey, wr.bind_info) = (*window, *rkey, *info);
                wr.send_flags &= !abi::SEND_SIGNALED;
            }
            Op::Invalidate { rkey } => {
                (wr.opcode, wr.invalidate_rkey) = (abi::WR_LOCAL_INV, *rkey);
                if let Some(leaving) = self.leaving.take() {
                    hold = Hold::Leaving(leaving);
                }
            }
        }
        let notify = if last { self.notify } else { None };
        let signalled = wr.send_flags & abi::SEND_SIGNALED != 0;
        let posted = Posted { kind, hold, notify, bytes, signalled, done: false };
        Ok(Prepared::Ready(Request { wr, posted }, last))
    }
}

/// Gives the last request of a list to post, the last of `posted`, a completion of its own. Without
/// it the device would report nothing of the requests at the end of the list until a later one is
/// posted, and none is while its task waits for them: for fewer bytes in the queue, or to
/// disconnect.
pub(crate) fn signal_last(wrs: &mut [SendWr], posted: &mut VecDeque<Posted>) {
    if let (Some(wr), Some(posted)) = (wrs.last_mut(), posted.back_mut()) {
        wr.send_flags |= abi::SEND_SIGNALED;
        posted.signalled = true;
    }
}

/// Takes from the front of `data` as much as one write can carry, in memory that can be registered;
/// other memory is copied. If the pool has no buffer for the first piece, nothing is taken, and the
/// error is the length of that buffer. A wait for any other length could end while this one is not
/// there, and again and again.
fn take_writable(data: &mut Chain, most: usize) -> Result<Chain, usize> {
    let mut taken = Chain::new();
    while taken.bufs().len() < most && taken.len() < MOST_WRITTEN {
        let Some(front) = data.bufs().first() else { break };
        if front.chunk().is_some() {
            let n = front.len().min(MOST_WRITTEN);
            taken.append(data.split_to(n));
            continue;
        }
        let n = front.len().min(pool::MAX_ALLOC);
        let Some(mut copy) = pool::alloc(n) else {
            return if taken.is_empty() { Err(n) } else { Ok(taken) };
        };
        data.split_to(n).copy_to_slice(&mut copy);
        taken.push(copy.freeze());
    }
    Ok(taken)
}

/// The element for a buffer of the pool.
fn element(domain: &Domain, buf: &Buf) -> Result<Sge, Error> {
    let chunk = buf.chunk().ok_or(Error::NoMemory("data that lies outside of the pool"))?;
    let (lkey, _) = domain.chunk(chunk)?;
    let length = u32::try_from(buf.len()).map_err(|_| Error::TooMuch {
        what: "bytes in one piece",
        asked: buf.len(),
        limit: u32::MAX as usize,
    })?;
    Ok(Sge { addr: buf.as_ptr() as u64, length, lkey })
}

/// Space for the header of each posted Send, by its position in the send queue.
pub(crate) struct Heads {
    blocks: Vec<BufMut>,
    depth: u64,
}

const HEADS_PER_BLOCK: u64 = (64 << 10) / MAX_HEAD as u64;

impl Heads {
    /// For `depth` posted Sends.
    pub(crate) fn new(depth: u32) -> Result<Self, Error> {
        let depth = u64::from(depth);
        let blocks = (0..depth.div_ceil(HEADS_PER_BLOCK))
            .map(|_| pool::alloc(64 << 10).ok_or(Error::NoMemory("headers")))
            .collect::<Result<_, _>>()?;
        Ok(Self { blocks, depth })
    }

    /// Copies a header to its place. The previous Send with this place is complete.
    fn put(&mut self, domain: &Domain, position: u64, head: &[u8]) -> Result<Sge, Error> {
        let slot = position % self.depth;
        let at = (slot % HEADS_PER_BLOCK) as usize * MAX_HEAD;
        let block = usize::try_from(slot / HEADS_PER_BLOCK).ok().and_then(|i| self.blocks.get_mut(i));
        let block = block.ok_or(Error::NoMemory("headers"))?;
        let chunk = block.chunk().ok_or(Error::NoMemory("headers"))?;
        let (lkey, _) = domain.chunk(chunk)?;
        assert!(head.len() <= MAX_HEAD, "a header of {} bytes", head.len());
        let to = block.as_mut_ptr().wrapping_add(at);
        // SAFETY: within the block, whose places of `MAX_HEAD` bytes are each used by one Send at a
        // time. The device may read other places meanwhile, so no reference to the whole block is
        // made.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len()) };
        Ok(Sge { addr: to as u64, length: head.len() as u32, lkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_takes_pool_memory_by_reference_and_copies_the_rest() {
        let mut pooled = pool::alloc(5000).unwrap();
        pooled.fill(7);
        let pooled = pooled.freeze();
        let mut data = Chain::from(pooled.clone());
        data.push(vec![8u8; 3000]);
        data.push(pooled.slice(..10));
        let expected = data.to_vec();
        let taken = take_writable(&mut data, 16).unwrap();
        assert!(data.is_empty());
        assert_eq!(taken.to_vec(), expected);
        assert_eq!(taken.bufs()[0].as_ptr(), pooled.as_ptr(), "by reference");
        assert!(taken.bufs().iter().all(|buf| buf.chunk().is_some()), "all of it can be registered");
    }

    #[test]
    fn a_write_waits_for_the_memory_of_its_first_piece_only() {
        let mut data = Chain::from(vec![1u8; 3000]);
        data.push(vec![2u8; 100_000]);
        pool::set_limit(0);
        assert_eq!(take_writable(&mut data, 16).unwrap_err(), 3000);
        assert_eq!(data.len(), 103_000, "nothing was taken");
        pool::set_limit(2 << 20);
        // The pool's one chunk has short blocks now, and none for the second piece.
        let first = take_writable(&mut data, 16).unwrap();
        assert_eq!(first.len(), 3000);
        assert_eq!(take_writable(&mut data, 16).unwrap_err(), 100_000);
        pool::set_limit(4 << 20);
        assert_eq!(take_writable(&mut data, 16).unwrap().len(), 100_000);
        assert!(data.is_empty());
    }

    #[test]
    fn the_last_of_the_writes_posted_together_has_a_completion() {
        let write = |_| {
            let (kind, hold) = (Kind::Write, Hold::Nothing);
            let posted = Posted { kind, hold, notify: None, bytes: 1, signalled: false, done: false };
            (SendWr { opcode: abi::WR_RDMA_WRITE, ..SendWr::EMPTY }, posted)
        };
        // One was posted before.
        let mut posted = VecDeque::from([write(0).1]);
        let mut wrs = Vec::new();
        for (wr, more) in (1..4).map(write) {
            wrs.push(wr);
            posted.push_back(more);
        }
        signal_last(&mut wrs, &mut posted);
        let signals: Vec<bool> = wrs.iter().map(|wr| wr.send_flags & abi::SEND_SIGNALED != 0).collect();
        assert_eq!(signals, [false, false, true]);
        let noted: Vec<bool> = posted.iter().map(|posted| posted.signalled).collect();
        assert_eq!(noted, [false, false, false, true]);
    }

    #[test]
    fn a_write_of_more_pieces_than_a_request_has_elements_is_taken_in_parts() {
        let pooled = pool::alloc(4096).unwrap().freeze();
        let mut data: Chain = (0..10).map(|i| pooled.slice(i * 100..i * 100 + 50)).collect();
        let mut parts = Vec::new();
        while !data.is_empty() {
            parts.push(take_writable(&mut data, 4).unwrap().len());
        }
        assert_eq!(parts, [200, 200, 100]);
    }
}
