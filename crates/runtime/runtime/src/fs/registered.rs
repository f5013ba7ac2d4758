//! Reads and writes of a [`File`] with registered buffers: the kernel knows the pool's memory
//! beforehand, and need not look up and pin its pages for every operation.
//!
//! A chunk of the core's pool is registered with its ring when the first operation uses it. Where
//! the kernel refuses (the limit on locked memory, an old kernel), operations are ordinary ones.

use std::io;
use std::rc::Rc;

use io_uring::{IoUring, opcode};

use super::File;
use super::file::MOST_BYTES;
use crate::buf::{Buf, BufMut, Chain, pool};
use crate::op::{Op, Way, is_transient};
use crate::runtime::Core;

/// Most chunks, of 2 MiB each, that can be registered.
const MOST_CHUNKS: u32 = 1024;

/// Chunks of the core's pool that are registered with its ring.
#[derive(Default)]
pub(crate) struct Registered {
    /// By chunk.
    known: Vec<bool>,
    /// Whether the ring has a table of buffers and has accepted all chunks so far.
    works: Option<bool>,
}

impl Registered {
    /// Registers a chunk if necessary. Returns whether it is registered.
    #[inline]
    fn knows(&mut self, ring: &IoUring, chunk: pool::ChunkName) -> bool {
        self.known.get(chunk.index as usize) == Some(&true) || self.register(ring, chunk)
    }

    #[cold]
    fn register(&mut self, ring: &IoUring, chunk: pool::ChunkName) -> bool {
        if chunk.index >= MOST_CHUNKS || self.works == Some(false) {
            return false;
        }
        let submitter = ring.submitter();
        if self.works.is_none() {
            self.works = Some(submitter.register_buffers_sparse(MOST_CHUNKS).is_ok());
        }
        let vector = libc::iovec { iov_base: chunk.base.as_ptr().cast(), iov_len: chunk.len };
        // SAFETY: the kernel holds the chunk's pages for as long as they are registered; the pool
        // never unmaps a chunk while its thread and with it this ring lives, so that the addresses
        // stay the same memory.
        let done = self.works == Some(true)
            && unsafe { submitter.register_buffers_update(chunk.index, &[vector], None) }.is_ok();
        if !done {
            self.works = Some(false);
            tracing::info!(
                "no more buffers can be registered (see `ulimit -l`): the rest are used as they are"
            );
            return false;
        }
        let index = chunk.index as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, false);
        }
        self.known[index] = true;
        true
    }
}

impl Core {
    /// The index at which the ring has registered a buffer's chunk.
    #[inline]
    fn registered(&self, chunk: Option<pool::ChunkName>) -> Option<u16> {
        let chunk = chunk?;
        let known = self.registered.borrow_mut().knows(self.uring.kernel()?, chunk);
        u16::try_from(chunk.index).ok().filter(|_| known)
    }
}

impl File {
    /// [`Self::read_at`] with a registered buffer, if it can be one.
    pub async fn read_registered(&self, mut buf: BufMut, at: u64) -> (io::Result<usize>, BufMut) {
        let core = Core::current();
        let Some(index) = core.registered(buf.chunk()) else { return self.read_at(buf, at).await };
        let mut done = 0;
        while done < buf.len() {
            let n = (buf.len() - done).min(MOST_BYTES) as u32;
            let ptr = buf.as_mut_ptr().wrapping_add(done);
            let entry = opcode::ReadFixed::new(self.raw(), ptr, n, index).offset(at + done as u64).build();
            // SAFETY: the entry points into the buffer, whose memory does not move with it.
            let (completion, back) =
                unsafe { Op::transfer(Way::Core, Rc::clone(&core), entry, buf, self.shared_fd()) }.await;
            buf = back;
            match completion.count() {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if is_transient(&e) => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(done), buf)
    }

    /// [`Self::write_at`] with a registered buffer, if the data lies in one that can be.
    pub async fn write_registered(&self, data: impl Into<Chain>, at: u64, durable: bool) -> io::Result<()> {
        let data = data.into();
        let core = Core::current();
        let [only] = data.bufs() else { return self.write_at(data, at, durable).await };
        let Some(index) = core.registered(only.chunk()) else {
            return self.write_at(data, at, durable).await;
        };
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let (mut rest, mut at): (Buf, u64) = (only.clone(), at);
        drop(data);
        while !rest.is_empty() {
            let len = rest.len().min(MOST_BYTES) as u32;
            let entry = opcode::WriteFixed::new(self.raw(), rest.as_ptr(), len, index);
            let entry = entry.offset(at).rw_flags(flags).build();
            // SAFETY: the entry points to the buffer's memory, which does not move with it.
            let (completion, back) =
                unsafe { Op::transfer(Way::Core, Rc::clone(&core), entry, rest, self.shared_fd()) }.await;
            rest = back;
            match completion.count() {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest.advance(n.min(rest.len()));
                    at += n as u64;
                }
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
