//! Replaces the simulation where it is not compiled in: nothing is ever simulated, at no cost.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A place in a world, of which there is none.
pub(crate) enum Here {}

impl Here {
    pub(crate) fn number(&self) -> usize {
        match *self {}
    }
}

/// A simulated connection, of which there is none.
#[derive(Debug)]
pub(crate) enum Socket {}

impl Socket {
    #[inline]
    pub(crate) fn connect(_: SocketAddr, _: Duration) -> Option<io::Result<Self>> {
        None
    }

    pub(crate) fn send(&self, _: &[u8], _: Duration) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn receive(&self, _: &mut [u8], _: Duration) -> io::Result<usize> {
        match *self {}
    }
}

/// A thread's place in a world.
pub(crate) struct Seat;

impl Seat {
    pub(crate) fn take(here: Here) -> Self {
        match here {}
    }

    pub(crate) fn reserve() -> Option<Here> {
        None
    }
}

/// Which thread of a world waits for a channel: none.
#[derive(Debug, Default)]
pub(crate) struct Waiting;

impl Waiting {
    pub(crate) fn wait(&self, _: Option<Duration>) {}

    #[inline]
    pub(crate) fn wake(&self) {}
}

#[inline]
pub(crate) fn now() -> Option<Instant> {
    None
}

#[inline]
pub(crate) fn elapsed() -> Option<Duration> {
    None
}

#[inline]
pub(crate) fn is_on() -> bool {
    false
}

#[inline]
pub(crate) fn fill(_: &mut [u8]) -> bool {
    false
}

#[inline]
pub(crate) fn nap(_: Duration) -> bool {
    false
}

#[inline]
pub(crate) fn wait_until_left(_: usize) {}

pub(crate) mod calls {
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::RawFd;

    use crate::net::RawAddr;

    #[inline]
    pub(crate) unsafe fn recvmsg(_: RawFd, _: *mut libc::msghdr) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) unsafe fn recv(_: RawFd, _: *mut u8, _: usize) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) unsafe fn sendmsg(_: RawFd, _: *const libc::msghdr) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) fn pending(_: RawFd) -> Option<usize> {
        None
    }

    #[inline]
    pub(crate) fn shutdown(_: RawFd, _: libc::c_int) -> Option<()> {
        None
    }

    #[inline]
    pub(crate) fn linger_not(_: RawFd) -> Option<()> {
        None
    }

    #[inline]
    pub(crate) fn socket() -> Option<io::Result<RawFd>> {
        None
    }

    #[inline]
    pub(crate) fn is_simulated(_: RawFd) -> bool {
        false
    }

    #[inline]
    pub(crate) fn listen(_: RawFd, _: &RawAddr) -> Option<io::Result<()>> {
        None
    }

    #[inline]
    pub(crate) fn address(_: RawFd, _: bool) -> Option<io::Result<SocketAddr>> {
        None
    }

    #[inline]
    pub(crate) fn window() -> Option<usize> {
        None
    }

    #[inline]
    pub(crate) fn wake(_: u16) -> bool {
        false
    }
}

pub(crate) mod files {
    use std::io;
    use std::os::fd::RawFd;
    use std::path::{Path, PathBuf};

    #[inline]
    pub(crate) unsafe fn read(_: RawFd, _: &[libc::iovec], _: u64, _: i32) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) unsafe fn write(_: RawFd, _: &[libc::iovec], _: u64, _: i32) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) fn sync(_: RawFd) -> Option<io::Result<()>> {
        None
    }

    #[inline]
    pub(crate) fn copy(_: RawFd, _: u64, _: RawFd, _: u64, _: usize) -> Option<io::Result<usize>> {
        None
    }

    #[inline]
    pub(crate) fn has(_: RawFd) -> bool {
        false
    }

    #[inline]
    pub(crate) fn is_named(_: RawFd, _: Option<&Path>) -> Option<bool> {
        None
    }

    #[inline]
    pub(crate) fn open(_: &Path, _: i32) -> Option<io::Result<RawFd>> {
        None
    }

    #[inline]
    pub(crate) fn path(_: &Path) -> Option<io::Result<PathBuf>> {
        None
    }

    #[inline]
    pub(crate) fn rename(_: &Path, _: &Path) -> Option<io::Result<()>> {
        None
    }

    #[inline]
    pub(crate) fn remove(_: &Path) -> Option<io::Result<()>> {
        None
    }

    #[inline]
    pub(crate) fn sync_directory(_: &Path) -> Option<io::Result<()>> {
        None
    }

    #[inline]
    pub(crate) fn room(_: &Path) -> Option<io::Result<u64>> {
        None
    }
}
