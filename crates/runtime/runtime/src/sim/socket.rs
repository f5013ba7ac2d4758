//! [`Socket`]: a simulated connection of a thread that is not a core. It has no runtime, so it
//! executes each operation on a ring of its own and waits for it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use super::ring::SimRing;
use super::{Here, here};
use crate::net::RawAddr;
use crate::op::IGNORED;

/// The user data of the only operation.
const MINE: u64 = 1;

/// A connection.
pub(crate) struct Socket {
    here: Here,
    ring: SimRing,
    fd: RawFd,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Socket {
    /// Connects. `None` outside of a world.
    pub(crate) fn connect(to: SocketAddr, limit: Duration) -> Option<io::Result<Self>> {
        let here = here()?;
        let made = here.world.lock().net.socket(here.me);
        let ring = SimRing::new(here.clone());
        Some(made.and_then(|fd| {
            let socket = Self { here, ring, fd };
            let to = RawAddr::new(to);
            let connect = opcode::Connect::new(types::Fd(fd), to.as_ptr(), to.len()).build();
            socket.execute(connect, limit)?;
            Ok(socket)
        }))
    }

    pub(crate) fn send(&self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            let send = opcode::Send::new(types::Fd(self.fd), left.as_ptr(), left.len() as u32).build();
            let sent = self.execute(send, limit)?;
            left = left.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    pub(crate) fn receive(&self, room: &mut [u8], limit: Duration) -> io::Result<usize> {
        let len = room.len() as u32;
        self.execute(opcode::Recv::new(types::Fd(self.fd), room.as_mut_ptr(), len).build(), limit)
    }

    /// Executes an operation within `limit`. Its memory is no longer used afterwards.
    fn execute(&self, entry: Entry, limit: Duration) -> io::Result<usize> {
        // SAFETY: the caller keeps the entry's memory for the length of the call.
        unsafe { self.ring.push(&entry.user_data(MINE)) };
        self.ring.enter(1, Some(limit))?;
        if !self.ring.has_completions() {
            // SAFETY: the entry points to nothing.
            unsafe { self.ring.push(&opcode::AsyncCancel::new(MINE).build().user_data(IGNORED)) };
            self.ring.enter(1, None)?;
        }
        match self.ring.next_completion().map_or(-libc::ECANCELED, |(_, done)| done.result) {
            done @ 0.. => Ok(done as usize),
            errno if errno == -libc::ECANCELED => Err(io::ErrorKind::TimedOut.into()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.here.world.lock().close(self.fd);
    }
}
