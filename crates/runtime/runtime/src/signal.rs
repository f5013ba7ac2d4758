//! Signals that end the daemon, as events to wait for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::{opcode, types};

use crate::net::check;
use crate::op::{Op, Watched, is_transient};

/// A signal that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// SIGTERM: end.
    Terminate,
    /// SIGINT: end, from the keyboard.
    Interrupt,
    /// SIGHUP: read the configuration again.
    Hangup,
    /// SIGUSR1.
    User1,
}

impl Signal {
    const ALL: [(Self, libc::c_int); 4] = [
        (Self::Terminate, libc::SIGTERM),
        (Self::Interrupt, libc::SIGINT),
        (Self::Hangup, libc::SIGHUP),
        (Self::User1, libc::SIGUSR1),
    ];

    fn number(self) -> libc::c_int {
        Self::ALL.iter().find(|(signal, _)| *signal == self).map_or(0, |(_, number)| *number)
    }
}

/// Lets a write beyond the process's limit of file size (RLIMIT_FSIZE) fail with EFBIG, instead of
/// ending the process by SIGXFSZ. For the whole process, and for those that it starts.
pub fn survive_file_size_limit() {
    // SAFETY: to ignore a signal runs no handler; SIGXFSZ is a valid number, so that the call
    // cannot fail.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Receives signals instead of letting them end the process.
///
/// Create it before any other thread is started: it blocks the signals in the current thread, and
/// threads started later inherit that. A thread that does not block them may receive them instead.
#[derive(Debug)]
pub struct Signals {
    fd: Watched,
}

impl Signals {
    /// Takes `signals` over.
    pub fn new(signals: &[Signal]) -> io::Result<Self> {
        // SAFETY: the set is made valid by sigemptyset before it is used, and outlives each call;
        // the descriptor that signalfd returns is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, signal.number());
            }
            let rc = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if rc != 0 {
                return Err(io::Error::from_raw_os_error(rc));
            }
            let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Self { fd: Watched::new(OwnedFd::from_raw_fd(fd)) })
        }
    }

    /// Waits for the next one. Signals that arrive while no task waits are kept, each kind once.
    pub async fn next(&self) -> io::Result<Signal> {
        loop {
            if let Some(signal) = self.read()? {
                return Ok(signal);
            }
            // Not a read on the ring: it may be made by another thread, which sees other signals.
            let entry = opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), libc::POLLIN as u32).build();
            // SAFETY: the entry points to nothing.
            let (completion, ()) = unsafe { Op::start(entry, ()) }.await;
            match completion.count() {
                Err(e) if !is_transient(&e) => return Err(e),
                _ => {}
            }
        }
    }

    /// A signal that is there.
    fn read(&self) -> io::Result<Option<Signal>> {
        loop {
            // SAFETY: plain numbers, for which zeros are valid; the structure outlives the call,
            // and its length is its own.
            let (n, info) = unsafe {
                let mut info: libc::signalfd_siginfo = std::mem::zeroed();
                let len = size_of::<libc::signalfd_siginfo>();
                (libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), len), info)
            };
            if n < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    Some(libc::EINTR) => continue,
                    _ => return Err(error),
                }
            }
            let known = Signal::ALL.iter().find(|(_, number)| *number as u32 == info.ssi_signo);
            if let Some((signal, _)) = known {
                return Ok(Some(*signal));
            }
        }
    }
}
