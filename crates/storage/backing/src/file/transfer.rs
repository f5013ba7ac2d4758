//! Reads and writes of the engines. An operation that an engine can complete at once needs no
//! future; the others go to the ring or to threads.
//!
//! This file must never report a write as durable unless its calls made it so.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use runtime::{Buf, Chain, Patience, pool};

use super::{Engine, Inner, PastCache, Seen};
use crate::StoreError;
use crate::spec::CacheMode;

/// Maximum dirty bytes at which durable writes share flushes.
const FLUSHED_TOGETHER: u64 = 16 << 20;

/// The longest write that a core makes promptly itself, in bytes.
pub(super) const PROMPT: usize = 64 << 10;
/// The longest time of a prompt write. A slower one had to wait (for example at the system's limit
/// of dirty pages): then NOT_PROMPT_AFTER writes use the ring.
const PROMPT_FOR: Duration = Duration::from_millis(1);
const NOT_PROMPT_AFTER: u32 = 256;

/// The kinds of non-blocking calls that this file system does not support.
#[derive(Debug, Default)]
pub(super) struct Impatience {
    reads_refused: AtomicBool,
    writes_refused: AtomicBool,
    /// Number of writes that still use the ring.
    not_prompt: AtomicU32,
}

/// Records that the file system does not support such calls. Returns whether the caller should wait
/// for the data in another way.
fn must_wait(error: &io::Error, refused: &AtomicBool) -> bool {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => true,
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            refused.store(true, Ordering::Relaxed);
            true
        }
        _ => false,
    }
}

impl Inner {
    /// Whether a call on the connection's core may wait; `None` for an engine that makes none.
    fn patience(&self, refused: &AtomicBool) -> Option<Patience> {
        match self.engine {
            Engine::Sync => Some(Patience::Wait),
            Engine::Inline | Engine::Mmap | Engine::Sendpage => match self.in_memory {
                // No medium, so nothing to wait for.
                true => Some(Patience::Wait),
                false => (!refused.load(Ordering::Relaxed)).then_some(Patience::None),
            },
            Engine::Uring | Engine::Fixed | Engine::Threads => None,
        }
    }

    /// Reads without waiting, or as this engine waits on the spot. `None` if [`Self::read`] must do
    /// it.
    #[inline]
    pub(super) fn read_at_once(&self, at: u64, len: usize) -> Option<Result<Chain, StoreError>> {
        let patience = self.patience(&self.impatience.reads_refused)?;
        let mut chain = Chain::new();
        while chain.len() < len {
            let (from, n) = (at + chain.len() as u64, pool::MAX_ALLOC.min(len - chain.len()));
            let Some(mut buf) = pool::alloc(n) else { return Some(Err(StoreError::NoMemory)) };
            match self.data.read_now(&mut buf, from, patience) {
                Ok(read) if read == n => chain.push(buf.freeze()),
                // The end of the file, or an interrupted call: the waiting read finds out which.
                Ok(_) => return None,
                Err(e) if must_wait(&e, &self.impatience.reads_refused) => return None,
                Err(e) => return Some(Err(self.read_error(&e, from, n))),
            }
        }
        Some(Ok(chain))
    }

    /// Like [`Self::read`], and records that the page cache now has the range.
    pub(super) async fn read_and_note(&self, at: u64, len: usize) -> Result<Chain, StoreError> {
        let chain = self.read(at, len).await?;
        if let Some(mapped) = &self.mapped {
            mapped.saw(at, len, Seen::Waited { written: false });
        }
        Ok(chain)
    }

    pub(super) async fn read(&self, at: u64, len: usize) -> Result<Chain, StoreError> {
        let mut chain = Chain::new();
        while chain.len() < len {
            let piece = pool::MAX_ALLOC.min(len - chain.len());
            chain.push(self.read_piece(at + chain.len() as u64, piece).await?);
        }
        Ok(chain)
    }

    async fn read_piece(&self, at: u64, len: usize) -> Result<Buf, StoreError> {
        let buf = pool::alloc(len).ok_or(StoreError::NoMemory)?;
        let (result, buf) = match self.engine {
            Engine::Threads => self.data.read_on_thread(buf, at).await,
            Engine::Fixed => self.data.read_registered(buf, at).await,
            _ => self.data.read_at(buf, at).await,
        };
        match result {
            Ok(n) if n == len => Ok(buf.freeze()),
            Ok(_) => Err(self.read_short(at)),
            Err(e) => Err(self.read_error(&e, at, len)),
        }
    }

    /// Writes without waiting, or as this engine waits on the spot. Returns the data that
    /// [`Self::write`] must write (again, from its start).
    #[inline]
    pub(super) fn write_at_once(
        &self,
        at: u64,
        data: Chain,
        durable: bool,
    ) -> Result<Result<(), StoreError>, Chain> {
        if let Some(mapped) = &self.mapped
            && mapped.store(at, &data)
        {
            return Ok(Ok(()));
        }
        if self.log && data.len() <= PROMPT {
            let written =
                if durable { self.write_past_cache_now(at, &data) } else { self.write_promptly(at, &data) };
            if let Some(result) = written {
                return Ok(result);
            }
        }
        let refused = &self.impatience.writes_refused;
        let Some(patience) = self.patience(refused) else { return Err(data) };
        let by_itself = self.engine == Engine::Sync;
        if durable && !by_itself && !self.in_memory {
            return Err(data);
        }
        let mut rest = data.clone();
        let mut to = at;
        while !rest.is_empty() {
            match self.data.write_now(&rest, to, by_itself, patience) {
                Ok(0) => return Ok(Err(self.wrote_nothing(to))),
                Ok(n) => {
                    self.wrote(n as u64, by_itself);
                    to += n as u64;
                    rest.advance(n.min(rest.len()));
                }
                Err(e) if must_wait(&e, refused) => return Err(data),
                Err(e) if by_itself => return Ok(Err(self.durable_write_fault(&e, to))),
                Err(e) => return Ok(Err(self.write_fault(&e, to))),
            }
        }
        if let Some(mapped) = &self.mapped {
            mapped.saw(at, data.len(), Seen::AtOnce { written: true });
        }
        Ok(Ok(()))
    }

    /// Writes to the page cache on this core. `None` if such a write was slow recently.
    fn write_promptly(&self, at: u64, data: &Chain) -> Option<Result<(), StoreError>> {
        let not_prompt = &self.impatience.not_prompt;
        if not_prompt.load(Ordering::Relaxed) > 0 {
            // Lost updates are harmless.
            not_prompt.store(not_prompt.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            return None;
        }
        let begin = runtime::clock();
        let mut rest = data.clone();
        let mut to = at;
        while !rest.is_empty() {
            match self.data.write_now(&rest, to, false, Patience::Wait) {
                Ok(0) => return Some(Err(self.wrote_nothing(to))),
                Ok(n) => {
                    self.wrote(n as u64, false);
                    to += n as u64;
                    rest.advance(n.min(rest.len()));
                }
                Err(e) => return Some(Err(self.write_fault(&e, to))),
            }
        }
        if runtime::clock().saturating_duration_since(begin) > PROMPT_FOR {
            not_prompt.store(NOT_PROMPT_AFTER, Ordering::Relaxed);
        }
        Some(Ok(()))
    }

    /// Whether a durable write may bypass the page cache: no earlier write needs a flush.
    fn may_pass_cache(&self, at: u64, data: &Chain) -> Option<&PastCache> {
        self.past_cache.as_ref().filter(|past| past.takes(at, data) && self.group.settled() == Some(Ok(())))
    }

    /// Writes durably on this core, bypassing the page cache. `None` if that is not possible, or
    /// the core has other work.
    fn write_past_cache_now(&self, at: u64, data: &Chain) -> Option<Result<(), StoreError>> {
        let past = self.may_pass_cache(at, data)?;
        let written = self.alone.wait_for(|| {
            let mut rest = data.clone();
            let mut to = at;
            while !rest.is_empty() {
                match past.file.write_now(&rest, to, true, Patience::Wait)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    n => {
                        to += n as u64;
                        rest.advance(n.min(rest.len()));
                    }
                }
            }
            Ok(())
        })?;
        past.ended(written).map(|ended| ended.map_err(|e| self.durable_write_fault(&e, at)))
    }

    /// Counts bytes that a later sync must flush.
    fn wrote(&self, bytes: u64, durable: bool) {
        if !durable && !self.in_memory {
            self.group.wrote(bytes);
        }
    }

    pub(super) async fn write(&self, at: u64, data: Chain, durable: bool) -> Result<(), StoreError> {
        if durable
            && let Some(past) = self.may_pass_cache(at, &data)
            && let Some(ended) = past.ended(past.file.write_at(data.clone(), at, true).await)
        {
            return match ended {
                Ok(()) => Ok(()),
                Err(error) => Err(self.durable_write_failed(error, at).await),
            };
        }
        let by_itself = durable && !self.flushes_together();
        let len = data.len();
        let result = if self.is_aligned(&data) {
            self.write_piece(data, at, by_itself).await
        } else {
            self.write_copied(at, data, by_itself).await
        };
        if !by_itself {
            self.group.wrote(len as u64);
        }
        result?;
        if let Some(mapped) = &self.mapped {
            mapped.saw(at, len, Seen::Waited { written: true });
        }
        if durable && !by_itself { self.sync().await } else { Ok(()) }
    }

    async fn write_piece(&self, data: Chain, at: u64, durable: bool) -> Result<(), StoreError> {
        let written = match self.engine {
            Engine::Threads => self.data.write_on_thread(data, at, durable).await,
            Engine::Fixed => self.data.write_registered(data, at, durable).await,
            _ => self.data.write_at(data, at, durable).await,
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) if durable => Err(self.durable_write_failed(error, at).await),
            Err(error) => Err(self.write_fault(&error, at)),
        }
    }

    /// Whether durable writes share a flush, or each is durable by itself (RWF_DSYNC).
    ///
    /// Through the page cache the kernel runs one write per file at a time, including its flush. So
    /// separate durable writes wait for each other and block all others; sharing a flush is several
    /// times faster. But a flush writes everything that is dirty: if that is much, a separate
    /// durable write is faster. Direct writes run in parallel.
    fn flushes_together(&self) -> bool {
        self.cache != CacheMode::Direct
            && self.engine != Engine::Sync
            && self.group.dirty() <= FLUSHED_TOGETHER
    }

    /// Whether the kernel accepts these buffers unchanged.
    fn is_aligned(&self, data: &Chain) -> bool {
        let sector = self.geometry.block as usize;
        self.memory_align == 1
            || data.iter().all(|buf| buf.is_aligned(self.memory_align) && buf.len() % sector == 0)
    }

    async fn write_copied(&self, at: u64, mut data: Chain, durable: bool) -> Result<(), StoreError> {
        let mut to = at;
        while !data.is_empty() {
            let piece = data.split_to(pool::MAX_ALLOC.min(data.len()));
            let mut copy = pool::alloc(piece.len()).ok_or(StoreError::NoMemory)?;
            piece.copy_to_slice(&mut copy);
            drop(piece);
            let len = copy.len() as u64;
            self.write_piece(copy.freeze().into(), to, durable).await?;
            to += len;
        }
        Ok(())
    }
}
