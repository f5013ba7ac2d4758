//! Reads, writes and flushes of a world's files, by a ring or by a system call.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use super::super::net::Event;
use super::super::{State, here, with};
use super::content::{PAGE, SECTOR};
use super::{Begun, Medium, error};
use crate::op::sqe::Sqe;

/// In a million: reads and writes that move a part only, and calls without patience that would have
/// to wait.
const SHORT: u64 = 20_000;
const IMPATIENT: u64 = 300_000;

/// The bytes of some pieces of memory.
///
/// # Safety
/// They may be read.
unsafe fn gather(pieces: &[libc::iovec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        // SAFETY: the caller's.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
        });
    }
    bytes
}

/// Copies bytes to some pieces of memory.
///
/// # Safety
/// They may be written.
unsafe fn scatter(mut bytes: &[u8], pieces: &[libc::iovec]) {
    for piece in pieces {
        let (now, rest) = bytes.split_at(bytes.len().min(piece.iov_len));
        // SAFETY: the caller's; the piece has room for what was split off.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), piece.iov_base.cast(), now.len()) };
        bytes = rest;
    }
}

fn length(pieces: &[libc::iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

impl Medium {
    /// Whether a transfer suits direct I/O.
    fn is_aligned(&self, fd: RawFd, pieces: &[libc::iovec], at: u64) -> bool {
        let fits = |number: u64| number % SECTOR == 0;
        let direct = self.open.get(&fd).is_some_and(|open| open.direct);
        !direct
            || fits(at)
                && pieces.iter().all(|piece| fits(piece.iov_base as u64) && fits(piece.iov_len as u64))
    }

    /// A part of a transfer, now and then.
    fn part(&mut self, len: usize) -> usize {
        let sectors = len as u64 / SECTOR;
        if sectors > 1 && self.chance.happens(SHORT) {
            (self.chance.within(1..sectors) * SECTOR) as usize
        } else {
            len
        }
    }

    /// # Safety
    /// The pieces may be written.
    pub(in super::super) unsafe fn read(
        &mut self,
        fd: RawFd,
        pieces: &[libc::iovec],
        at: u64,
        flags: i32,
    ) -> io::Result<usize> {
        let id = self.find(fd).ok_or_else(|| error(libc::EBADF))?;
        self.operate()?;
        if !self.is_aligned(fd, pieces, at) {
            return Err(error(libc::EINVAL));
        }
        if flags & libc::RWF_NOWAIT != 0 && self.chance.happens(IMPATIENT) {
            return Err(error(libc::EAGAIN));
        }
        let wanted = self.part(length(pieces));
        let content = &mut self.contents[id];
        if content.disturbed.reads > 0 && flags & libc::RWF_NOWAIT == 0 {
            content.disturbed.reads -= 1;
            return Err(error(libc::EIO));
        }
        let mut bytes = vec![0; wanted];
        let read = content.read(&mut bytes, at)?;
        // SAFETY: the caller's.
        unsafe { scatter(&bytes[..read], pieces) };
        Ok(read)
    }

    /// # Safety
    /// The pieces may be read.
    pub(in super::super) unsafe fn write(
        &mut self,
        fd: RawFd,
        pieces: &[libc::iovec],
        at: u64,
        flags: i32,
    ) -> io::Result<usize> {
        if flags & libc::RWF_NOWAIT != 0 && self.chance.happens(IMPATIENT) {
            return Err(error(libc::EAGAIN));
        }
        if !self.is_aligned(fd, pieces, at) {
            return Err(error(libc::EINVAL));
        }
        // SAFETY: the caller's.
        let mut bytes = unsafe { gather(pieces) };
        let part = self.part(bytes.len());
        bytes.truncate(part);
        self.put(fd, &bytes, at, flags & libc::RWF_DSYNC != 0)
    }

    fn put(&mut self, fd: RawFd, bytes: &[u8], at: u64, durable: bool) -> io::Result<usize> {
        let id = self.find(fd).ok_or_else(|| error(libc::EBADF))?;
        self.operate()?;
        let open = self.open.get(&fd).filter(|open| open.writable).ok_or_else(|| error(libc::EBADF))?;
        let (direct, durable) = (open.direct, durable || open.durable);
        let content = &mut self.contents[id];
        let mut range = at..at + bytes.len() as u64;
        let fails = content.disturbed.writes > 0;
        if fails {
            // It may have been done in part.
            content.disturbed.writes -= 1;
            range.end = at + self.chance.within(0..bytes.len() as u64 / SECTOR + 1) * SECTOR;
        }
        let room = content.disturbed.room.unwrap_or(u64::MAX);
        let fits = content.fits(&range, room);
        range.end = at + fits;
        let allocated = content.write(&bytes[..fits as usize], at, direct)?;
        content.disturbed.room = content.disturbed.room.map(|room| room.saturating_sub(allocated));
        match (fails, fits) {
            (true, _) => return Err(error(libc::EIO)),
            (false, 0) if !bytes.is_empty() => return Err(error(libc::ENOSPC)),
            _ => {}
        }
        if !durable {
            // The system writes back whenever it likes, and an error waits for the next flush.
            if content.disturbed.flush && self.chance.happens(200_000) {
                content.disturbed.flush = false;
                content.fail(None);
            }
        } else if !std::mem::take(&mut content.disturbed.flush) {
            if direct {
                content.flush_sectors(&range)
            } else {
                content.flush(Some(&range))
            }
            self.report(fd)?;
        } else {
            content.fail(Some(&range));
            self.report(fd)?;
        }
        Ok(fits as usize)
    }

    /// fsync(2) and fdatasync(2).
    pub(in super::super) fn sync(&mut self, fd: RawFd) -> io::Result<()> {
        let id = self.find(fd).ok_or_else(|| error(libc::EBADF))?;
        self.operate()?;
        let content = &mut self.contents[id];
        if std::mem::take(&mut content.disturbed.flush) {
            content.fail(None)
        } else {
            content.flush(None)
        }
        self.report(fd)
    }

    /// Tells an open file of a failure of writing back, once.
    fn report(&mut self, fd: RawFd) -> io::Result<()> {
        let Some(open) = self.open.get_mut(&fd) else { return Ok(()) };
        let content = &mut self.contents[open.content];
        if std::mem::replace(&mut open.told, content.failures) == content.failures {
            return Ok(());
        }
        content.told = content.failures;
        Err(error(libc::EIO))
    }

    /// fallocate(2): holes and zeros.
    pub(in super::super) fn allocate(&mut self, fd: RawFd, mode: i32, at: u64, len: u64) -> io::Result<()> {
        const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZEROS: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let id = self.find(fd).ok_or_else(|| error(libc::EBADF))?;
        let end = at.checked_add(len).ok_or_else(|| error(libc::EFBIG))?.min(self.contents[id].len().max(at));
        match mode {
            HOLE => {
                self.operate()?;
                let content = &mut self.contents[id];
                if content.disturbed.writes > 0 {
                    content.disturbed.writes -= 1;
                    return Err(error(libc::EIO));
                }
                let freed = content.punch(at..end)?;
                content.disturbed.room = content.disturbed.room.map(|room| room + freed);
                Ok(())
            }
            ZEROS => {
                let mut at = at;
                while at < end {
                    let piece = (end - at).min(16 * PAGE) as usize;
                    at += self.put(fd, &vec![0; piece], at, false)? as u64;
                }
                Ok(())
            }
            _ => Err(error(libc::EOPNOTSUPP)),
        }
    }

    /// copy_file_range(2).
    pub(in super::super) fn copy(
        &mut self,
        from: RawFd,
        from_at: u64,
        to: RawFd,
        at: u64,
        len: usize,
    ) -> io::Result<usize> {
        let id = self.find(from).ok_or_else(|| error(libc::EXDEV))?;
        self.operate()?;
        let mut bytes = vec![0; len.min(1 << 20)];
        let read = self.contents[id].read(&mut bytes, from_at)?;
        let part = self.part(read);
        self.put(to, &bytes[..part], at, false)
    }

    /// Notes an operation of a ring that takes place later. Returns its number, and when.
    fn begin(&mut self, core: usize, sqe: Sqe) -> (u64, u64) {
        self.next += 1;
        self.begun.insert(self.next, Begun { core, sqe });
        (self.next, self.half())
    }

    /// One of the two parts of the time that an operation takes.
    fn half(&mut self) -> u64 {
        let Range { start, end } = self.delay;
        self.chance.within(start / 2..end / 2 + 1)
    }
}

impl State {
    /// Takes an operation of a ring. It takes place some time before it completes, so others may
    /// overtake it.
    pub(in super::super) fn begin_file_operation(&mut self, core: usize, sqe: Sqe) {
        let (number, after) = self.medium.begin(core, sqe);
        self.turns.at(self.now + after, Event::File(number));
    }

    pub(in super::super) fn file_event(&mut self, number: u64) {
        let Some(Begun { core, sqe }) = self.medium.begun.remove(&number) else { return };
        let result = self.execute(&sqe);
        let after = self.medium.half();
        self.later(core, sqe, result, after);
    }
}

/// Makes a system call on the world's files, during which no other thread runs. `None` outside of a
/// world, or if it is none of its files.
fn call<T>(fd: RawFd, call: impl FnOnce(&mut Medium) -> io::Result<T>) -> Option<io::Result<T>> {
    with(|state, _| state.medium.find(fd))??;
    take_time();
    with(|state, _| call(&mut state.medium))
}

fn take_time() {
    with(|state, _| state.now += state.medium.half() / 8);
}

/// preadv2(2).
///
/// # Safety
/// The pieces may be written.
pub(crate) unsafe fn read(
    fd: RawFd,
    pieces: &[libc::iovec],
    at: u64,
    flags: i32,
) -> Option<io::Result<usize>> {
    // SAFETY: the caller's.
    call(fd, |medium| unsafe { medium.read(fd, pieces, at, flags) })
}

/// pwritev2(2).
///
/// # Safety
/// The pieces may be read.
pub(crate) unsafe fn write(
    fd: RawFd,
    pieces: &[libc::iovec],
    at: u64,
    flags: i32,
) -> Option<io::Result<usize>> {
    // SAFETY: the caller's.
    call(fd, |medium| unsafe { medium.write(fd, pieces, at, flags) })
}

/// fsync(2).
pub(crate) fn sync(fd: RawFd) -> Option<io::Result<()>> {
    call(fd, |medium| medium.sync(fd))
}

/// copy_file_range(2).
pub(crate) fn copy(from: RawFd, from_at: u64, to: RawFd, at: u64, len: usize) -> Option<io::Result<usize>> {
    call(to, |medium| medium.copy(from, from_at, to, at, len))
}

/// Whether the descriptor is a file of the world.
pub(crate) fn has(fd: RawFd) -> bool {
    with(|state, _| state.medium.find(fd).is_some()).unwrap_or(false)
}

/// Whether a file of the world has a name; `at`: this one.
pub(crate) fn is_named(fd: RawFd, at: Option<&Path>) -> Option<bool> {
    with(|state, _| state.medium.is_named(fd, at))?
}

/// Makes a system call on a path. `None` outside of a world.
fn on_path<T>(call: impl FnOnce(&mut Medium) -> io::Result<T>) -> Option<io::Result<T>> {
    here()?;
    take_time();
    with(|state, _| call(&mut state.medium))
}

/// open(2).
pub(crate) fn open(path: &Path, flags: i32) -> Option<io::Result<RawFd>> {
    on_path(|medium| medium.open(path, flags))
}

/// The path by which the machine finds a file of the world.
pub(crate) fn path(path: &Path) -> Option<io::Result<PathBuf>> {
    on_path(|medium| medium.path(path))
}

/// rename(2).
pub(crate) fn rename(from: &Path, to: &Path) -> Option<io::Result<()>> {
    on_path(|medium| medium.rename(from, to))
}

/// unlink(2).
pub(crate) fn remove(path: &Path) -> Option<io::Result<()>> {
    on_path(|medium| medium.remove(path))
}

/// fsync(2) of a directory.
pub(crate) fn sync_directory(path: &Path) -> Option<io::Result<()>> {
    on_path(|medium| medium.sync_directory(path))
}

/// Bytes that can still be allocated for a file.
pub(crate) fn room(path: &Path) -> Option<io::Result<u64>> {
    on_path(|medium| medium.room(path))
}
