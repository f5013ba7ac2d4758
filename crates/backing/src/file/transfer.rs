//! How the engines read and write. What an engine can do at once is done here and now, with no future; the rest goes to
//! the ring or to threads.
//!
//! What it must never do: call a write durable that its calls have not made so.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ring::{Buf, Chain, Patience, pool};

use super::{Engine, Inner, PastCache, Seen};
use crate::StoreError;
use crate::spec::CacheMode;

/// Up to this many dirty bytes, durable writes share flushes.
const FLUSHED_TOGETHER: u64 = 16 << 20;

/// The longest write that is prompt, in bytes.
pub(super) const PROMPT: usize = 64 << 10;
/// A prompt write that took longer had to wait for something (dirty pages beyond the system's limit): so many after it are the
/// ring's.
const PROMPT_FOR: Duration = Duration::from_millis(1);
const NOT_PROMPT_AFTER: u32 = 256;

/// What calls without patience were found not to work on this file system.
#[derive(Debug, Default)]
pub(super) struct Impatience {
    reads_refused: AtomicBool,
    writes_refused: AtomicBool,
    /// How many writes are not prompt.
    not_prompt: AtomicU32,
}

/// Notes what an impatient call that failed says about all others. Whether it only had to wait.
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
    /// How long the connection's core may wait for a call of its own; `None` if it makes none.
    fn patience(&self, refused: &AtomicBool) -> Option<Patience> {
        match self.engine {
            Engine::Sync => Some(Patience::Wait),
            Engine::Inline | Engine::Mmap | Engine::Sendpage => match self.in_memory {
                // Nothing that has to be waited for: there is no medium.
                true => Some(Patience::Wait),
                false => (!refused.load(Ordering::Relaxed)).then_some(Patience::None),
            },
            Engine::Uring | Engine::Fixed | Engine::Threads => None,
        }
    }

    /// Reads what needs no waiting, or what this engine waits for on the spot. `None` if it has to be [`Self::read`].
    #[inline]
    pub(super) fn read_at_once(&self, at: u64, len: usize) -> Option<Result<Chain, StoreError>> {
        let patience = self.patience(&self.impatience.reads_refused)?;
        let mut chain = Chain::new();
        while chain.len() < len {
            let (from, n) = (at + chain.len() as u64, pool::MAX_ALLOC.min(len - chain.len()));
            let Some(mut buf) = pool::alloc(n) else { return Some(Err(StoreError::NoMemory)) };
            match self.data.read_now(&mut buf, from, patience) {
                Ok(read) if read == n => chain.push(buf.freeze()),
                // The end of the file, or a call that was interrupted: whoever waits finds out which.
                Ok(_) => return None,
                Err(e) if must_wait(&e, &self.impatience.reads_refused) => return None,
                Err(e) => return Some(Err(self.read_error(&e, from, n))),
            }
        }
        Some(Ok(chain))
    }

    /// Like [`Self::read`], and notes that the page cache has the range now.
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
            // The file is shorter than it was.
            Ok(_) => {
                self.size_now();
                Err(StoreError::OutOfRange)
            }
            Err(e) => Err(self.read_error(&e, at, len)),
        }
    }

    /// A direct read may also call what is left of the last sector of a file that shrank an error.
    #[cold]
    fn read_error(&self, error: &io::Error, at: u64, len: usize) -> StoreError {
        if self.size_now() < at + len as u64 { StoreError::OutOfRange } else { StoreError::from_io(error) }
    }

    /// Writes what needs no waiting, or what this engine waits for on the spot. Gives the data back that has to be
    /// written by [`Self::write`] (again, from its start).
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
                Ok(0) => return Ok(Err(StoreError::Io(libc::EIO))),
                Ok(n) => {
                    self.wrote(n as u64, by_itself);
                    to += n as u64;
                    rest.advance(n.min(rest.len()));
                }
                Err(e) if must_wait(&e, refused) => return Err(data),
                Err(e) => return Ok(Err(StoreError::from_io(&e))),
            }
        }
        if let Some(mapped) = &self.mapped {
            mapped.saw(at, data.len(), Seen::AtOnce { written: true });
        }
        Ok(Ok(()))
    }

    /// Writes to the page cache here and now. `None` if the system has let the core wait of late.
    fn write_promptly(&self, at: u64, data: &Chain) -> Option<Result<(), StoreError>> {
        let not_prompt = &self.impatience.not_prompt;
        if not_prompt.load(Ordering::Relaxed) > 0 {
            // Lost counts do no harm.
            not_prompt.store(not_prompt.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            return None;
        }
        let begin = Instant::now();
        let mut rest = data.clone();
        let mut to = at;
        while !rest.is_empty() {
            match self.data.write_now(&rest, to, false, Patience::Wait) {
                Ok(0) => return Some(Err(StoreError::Io(libc::EIO))),
                Ok(n) => {
                    self.wrote(n as u64, false);
                    to += n as u64;
                    rest.advance(n.min(rest.len()));
                }
                Err(e) => return Some(Err(StoreError::from_io(&e))),
            }
        }
        if begin.elapsed() > PROMPT_FOR {
            not_prompt.store(NOT_PROMPT_AFTER, Ordering::Relaxed);
        }
        Some(Ok(()))
    }

    /// Whether a durable write may go past the page cache: nothing before it is left for a flush.
    fn may_pass_cache(&self, at: u64, data: &Chain) -> Option<&PastCache> {
        self.past_cache.as_ref().filter(|past| past.takes(at, data) && self.group.settled() == Some(Ok(())))
    }

    /// Writes durably here and now, past the page cache. `None` if that cannot be, or others need the core.
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
        past.ended(written)
    }

    /// Notes bytes that a later sync has to see to.
    fn wrote(&self, bytes: u64, durable: bool) {
        if !durable && !self.in_memory {
            self.group.wrote(bytes);
        }
    }

    pub(super) async fn write(&self, at: u64, data: Chain, durable: bool) -> Result<(), StoreError> {
        if durable
            && let Some(past) = self.may_pass_cache(at, &data)
            && let Some(result) = past.ended(past.file.write_at(data.clone(), at, true).await)
        {
            return result;
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
        written.map_err(|e| StoreError::from_io(&e))
    }

    /// How a durable write gets to the medium: by a flush that it shares with others, or by itself (RWF_DSYNC).
    ///
    /// Through the page cache the kernel runs one write to a file at a time, flush included, so that durable writes by
    /// themselves wait for each other and hold up all others; sharing a flush is several times faster. But a flush
    /// writes everything that is dirty: while that is a lot, a durable write had better care for itself. Direct writes
    /// run side by side.
    fn flushes_together(&self) -> bool {
        self.cache != CacheMode::Direct
            && self.engine != Engine::Sync
            && self.group.dirty() <= FLUSHED_TOGETHER
    }

    /// Whether the kernel takes these buffers as they are.
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
