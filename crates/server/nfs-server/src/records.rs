//! From a TCP stream to the records of RPC (RFC 5531 §11), with as little copying as can be.
//!
//! A record that was received whole stays where it is. Of a long one the rest is received straight
//! into buffers of its own, which become the data of a WRITE.

use std::rc::Rc;
use std::time::Duration;

use invariant::broken;
use rpc::record::{LAST, MARK_LEN};
use runtime::{Buf, BufMut, Chain, Scatter, TcpStream, pool};

use crate::end::End;
use crate::long_calls::{Held, LongCalls};

/// Bytes that one READ or WRITE moves at most.
pub(crate) const MOST_DATA: u32 = 1 << 20;
/// The longest record, bytes: the data, and 4 KiB for the rest.
pub(crate) const MOST: usize = MOST_DATA as usize + 4096;
/// The most fragments of a record.
const MOST_FRAGMENTS: usize = 64;
/// Bytes still to come for which buffers of their own are worth a system call.
const DIRECT: usize = 16 << 10;
/// Bytes that the header of a call and the arguments of WRITE take at most, in one piece: 24, two
/// credentials of 408, a handle of 68 and 20.
const HEAD: usize = 1024;
/// The longest buffer of the pool, bytes.
const LONGEST_BUFFER: usize = 1 << 20;
/// Time for the rest of a long record, whose buffers others may wait for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A record. Its first piece holds [`HEAD`] bytes, or all.
pub(crate) struct Record {
    pub first: Buf,
    /// The bytes after the first piece.
    pub rest: Chain,
    /// Its part of the core's pool, until the call has ended.
    pub held: Option<Held>,
}

impl Record {
    pub(crate) fn whole(first: Buf) -> Self {
        Self { first, rest: Chain::new(), held: None }
    }

    /// A record of these bytes. `parted`: its header and arguments are the first piece, and what
    /// follows was apart from them.
    pub(crate) fn gathered(mut bytes: Chain, parted: bool) -> Self {
        let first = match bytes.bufs().first() {
            Some(first) if parted || first.len() >= HEAD => first.len(),
            _ => HEAD.min(bytes.len()),
        };
        let first = bytes.split_to(first);
        let first = match first.bufs() {
            [one] if one.as_slice().is_some() => one.clone(),
            _ => first.to_vec().into(),
        };
        Self { first, rest: bytes, held: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// The record in one piece.
    pub(crate) fn flat(self) -> Buf {
        if self.rest.is_empty() {
            return self.first;
        }
        let mut whole = self.first.to_vec();
        self.rest.for_each_slice(|bytes| whole.extend_from_slice(bytes));
        whole.into()
    }

    /// The bytes from `at` on, which lie behind the first piece's beginning.
    pub(crate) fn tail(self, at: usize) -> Chain {
        let mut tail = Chain::new();
        tail.push(self.first.slice(at.min(self.first.len())..));
        tail.append(self.rest);
        tail
    }
}

/// The records that come in over a connection.
pub(crate) struct Records {
    /// Received, and not cut yet.
    have: Buf,
    scatter: Scatter,
    long_calls: Rc<LongCalls>,
}

impl Records {
    /// A stream of which `first` has been received already.
    pub(crate) fn new(first: Vec<u8>, long_calls: Rc<LongCalls>) -> Self {
        Self { have: first.into(), scatter: Scatter::new(), long_calls }
    }

    /// The next record, if all of it has been received.
    pub(crate) fn take_whole(&mut self) -> Option<Buf> {
        let mark = self.have.as_slice()?.first_chunk::<MARK_LEN>()?;
        let mark = u32::from_be_bytes(*mark);
        let len = (mark & !LAST) as usize;
        if mark & LAST == 0 || len > MOST || self.have.len() - MARK_LEN < len {
            return None;
        }
        self.have.advance(MARK_LEN);
        Some(self.have.split_to(len))
    }

    /// The next record.
    ///
    /// # Errors
    /// [`End`]: nothing more comes.
    pub(crate) async fn next(&mut self, stream: &TcpStream) -> Result<Record, End> {
        if let Some(record) = self.take_whole() {
            return Ok(Record::whole(record));
        }
        let (len, last) = self.mark(stream, true).await?;
        if !last {
            return self.fragments(stream, len).await;
        }
        if len.saturating_sub(self.have.len()) >= DIRECT {
            let held = self.long_calls.clone().take(len).await;
            let long = Box::pin(self.long(stream, len));
            let record = runtime::timeout(PATIENCE, long).await.unwrap_or(Err(End::Slow))?;
            return Ok(Record { held: Some(held), ..record });
        }
        let mut whole = Vec::with_capacity(len);
        self.copy(stream, len, &mut whole).await?;
        Ok(Record::whole(whole.into()))
    }

    /// Receives the available bytes.
    async fn receive(&mut self, stream: &TcpStream) -> Result<(), End> {
        self.have = stream.recv_some(usize::MAX).await?.into();
        if self.have.is_empty() { Err(End::HungUp) } else { Ok(()) }
    }

    /// The header of a fragment: its length, and whether it is the record's last. A stream may end
    /// only before the `first` one of a record.
    async fn mark(&mut self, stream: &TcpStream, first: bool) -> Result<(usize, bool), End> {
        let mut mark = [0; MARK_LEN];
        let mut filled = 0;
        while filled < MARK_LEN {
            if self.have.is_empty() {
                match self.receive(stream).await {
                    Err(End::HungUp) if first && filled == 0 => return Err(End::Closed),
                    other => other?,
                }
            }
            let now = self.have.split_to((MARK_LEN - filled).min(self.have.len()));
            now.copy_to(&mut mark[filled..filled + now.len()]);
            filled += now.len();
        }
        let mark = u32::from_be_bytes(mark);
        let len = (mark & !LAST) as usize;
        if len > MOST { Err(End::TooLong(len)) } else { Ok((len, mark & LAST != 0)) }
    }

    /// Appends the next `len` bytes to `to`.
    async fn copy(&mut self, stream: &TcpStream, len: usize, to: &mut Vec<u8>) -> Result<(), End> {
        let end = to.len() + len;
        loop {
            let now = self.have.split_to((end - to.len()).min(self.have.len()));
            now.for_each_slice(|bytes| to.extend_from_slice(bytes));
            if to.len() == end {
                return Ok(());
            }
            self.receive(stream).await?;
        }
    }

    /// A record of several fragments, the first of which has `len` bytes.
    async fn fragments(&mut self, stream: &TcpStream, mut len: usize) -> Result<Record, End> {
        let mut whole = Vec::new();
        for _ in 0..MOST_FRAGMENTS {
            self.copy(stream, len, &mut whole).await?;
            let (next, last) = self.mark(stream, false).await?;
            if whole.len() + next > MOST {
                return Err(End::TooLong(whole.len() + next));
            }
            len = next;
            if last {
                self.copy(stream, len, &mut whole).await?;
                return Ok(Record::whole(whole.into()));
            }
        }
        Err(End::Fragments)
    }

    /// A record of `len` bytes of which many are still to come.
    async fn long(&mut self, stream: &TcpStream, len: usize) -> Result<Record, End> {
        let first = match self.have.len() >= HEAD {
            true => std::mem::take(&mut self.have),
            false => {
                let mut head = Vec::with_capacity(HEAD);
                self.copy(stream, HEAD.min(len), &mut head).await?;
                head.into()
            }
        };
        let mut rest = Chain::new();
        let there = self.have.len().min(len - first.len());
        if there > 0 {
            rest.push(self.have.split_to(there));
        }
        let mut missing = len - first.len() - there;
        if missing > 0 {
            let mut scatter = std::mem::take(&mut self.scatter);
            let all = missing;
            while missing > 0 {
                let mut buffer: BufMut = pool::alloc_wait(missing.min(LONGEST_BUFFER)).await;
                buffer.truncate(missing.min(LONGEST_BUFFER));
                missing -= buffer.len();
                scatter.push(buffer);
            }
            let (received, mut scatter) = stream.recv_into(scatter, all).await;
            for destination in scatter.take() {
                match destination.into_buf() {
                    Some(buffer) => rest.push(buffer.freeze()),
                    None => broken!("a record received into memory of another owner"),
                }
            }
            self.scatter = scatter;
            if received? < all {
                return Err(End::HungUp);
            }
        }
        Ok(Record { first, rest, held: None })
    }
}
