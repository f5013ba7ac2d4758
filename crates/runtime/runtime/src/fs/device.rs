//! Properties and operations of block devices by ioctls, and holes of files. All of these are
//! system calls that the ring does not have; those that may take long run on the blocking threads.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::net::check;

const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u64 as libc::Ioctl;
const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

pub(super) fn unlock(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_UN) }).map(drop)
}

pub(super) fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes a u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

pub(super) fn logical_sector(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes an int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKSSZGET, &raw mut bytes) })?;
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

pub(super) fn discard(fd: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
    let range = [at, len];
    // SAFETY: BLKDISCARD reads two u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) }).map(drop)
}

pub(super) fn zero_out(fd: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
    let range = [at, len];
    // SAFETY: BLKZEROOUT reads two u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKZEROOUT, range.as_ptr()) }).map(drop)
}

/// lseek with SEEK_DATA or SEEK_HOLE; `None` when there is none from `at` on.
pub(super) fn seek(fd: BorrowedFd<'_>, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let at = i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: takes numbers only. No other call uses the file's position, which this moves.
    let found = unsafe { libc::lseek64(fd.as_raw_fd(), at, whence) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

pub(super) fn set_len(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let len = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::ftruncate64(fd.as_raw_fd(), len) }).map(drop)
}

pub(super) fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat64> {
    // SAFETY: plain numbers, for which zeros are valid; the kernel fills them in.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        check(libc::fstat64(fd.as_raw_fd(), &raw mut stat))?;
        Ok(stat)
    }
}

/// copy_file_range(2), once.
pub(super) fn copy_range(
    from: BorrowedFd<'_>,
    from_at: u64,
    to: BorrowedFd<'_>,
    at: u64,
    len: usize,
) -> io::Result<usize> {
    let beyond = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let mut from_at = i64::try_from(from_at).map_err(beyond)?;
    let mut at = i64::try_from(at).map_err(beyond)?;
    // SAFETY: both descriptors are open, and both offsets are there for the length of the call.
    let copied = unsafe {
        libc::copy_file_range(from.as_raw_fd(), &raw mut from_at, to.as_raw_fd(), &raw mut at, len, 0)
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// FICLONERANGE.
pub(super) fn share_range(
    from: BorrowedFd<'_>,
    from_at: u64,
    to: BorrowedFd<'_>,
    at: u64,
    len: u64,
) -> io::Result<()> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: from_at,
        src_length: len,
        dest_offset: at,
    };
    // SAFETY: the call reads the structure, which outlives it.
    check(unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) }).map(drop)
}
