//! Access to a runtime for other threads: they wake its tasks, and give it work.
//!
//! Every runtime has a mailbox in a table that lives as long as the process, so that a waker can
//! name a runtime by number and never dangles. Mailboxes of runtimes that have gone are used again.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::mailbox::Mailbox;
use super::waker::{MAX_RUNTIMES, TaskName};

/// Work for another core.
type Job = Box<dyn FnOnce() + Send>;

pub(super) enum Message {
    Wake(TaskName),
    Run(Job),
    /// A call that another thread made for an operation of this core has ended.
    Complete {
        user_data: u64,
        result: i32,
    },
}

/// A runtime's mailbox. Its flags change with every sleep, so no other runtime's are on their cache
/// line (or its prefetched neighbour).
#[repr(align(128))]
pub(super) struct Remote {
    number: u16,
    pub(super) mailbox: Mailbox<Message>,
    /// Wakes the owner's ring; never closed, so that a late sender cannot hit another file.
    event: OwnedFd,
}

/// By number; each lives for ever.
static REMOTES: [OnceLock<Box<Remote>>; MAX_RUNTIMES] = [const { OnceLock::new() }; MAX_RUNTIMES];
static UNUSED: Mutex<Vec<&'static Remote>> = Mutex::new(Vec::new());

fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// A mailbox for a new runtime.
    pub(super) fn open() -> io::Result<&'static Self> {
        let mut unused = unpoisoned(UNUSED.lock());
        let remote = match unused.pop() {
            Some(remote) => remote,
            None => {
                let free = REMOTES.iter().position(|slot| slot.get().is_none());
                let number = free.ok_or_else(|| io::Error::other("too many runtimes"))?;
                // SAFETY: eventfd takes numbers only, and the descriptor it returns is ours alone.
                let event = unsafe {
                    let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
                    if fd < 0 {
                        return Err(io::Error::last_os_error());
                    }
                    OwnedFd::from_raw_fd(fd)
                };
                let new = Self { number: number as u16, mailbox: Mailbox::new(), event };
                REMOTES[number].get_or_init(|| Box::new(new))
            }
        };
        remote.mailbox.open();
        Ok(remote)
    }

    /// Takes no more mail. Mail that is left is dropped.
    pub(super) fn close(&'static self) {
        self.mailbox.close();
        unpoisoned(UNUSED.lock()).push(self);
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Address of this mailbox's present owner.
    pub(super) fn address(&'static self) -> Address {
        Address { remote: self, owner: self.mailbox.owner() }
    }

    /// Leaves a message for the present owner, or only for the given one, and wakes it if it may
    /// sleep. Returns the message if that owner has gone.
    fn send(&self, message: Message, owner: Option<u64>) -> Result<(), Message> {
        if self.mailbox.leave(message, owner)? && !crate::sim::calls::wake(self.number) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: writes eight bytes of our own to our own descriptor. It can only fail when
            // the counter is full, and then the owner has a wake-up to come.
            unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
        Ok(())
    }
}

/// Address of one runtime, for any thread. It never reaches another runtime.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    remote: &'static Remote,
    owner: u64,
}

impl Address {
    /// Gives work to the runtime. Returns whether it still exists; if not, the work is dropped.
    pub(crate) fn run(&self, job: Job) -> bool {
        self.remote.send(Message::Run(job), Some(self.owner)).is_ok()
    }

    /// Passes the result of an operation that was carried out elsewhere to the runtime.
    pub(crate) fn complete(&self, user_data: u64, result: i32) {
        // A runtime that has gone has leaked the data of the operation.
        let _ = self.remote.send(Message::Complete { user_data, result }, Some(self.owner));
    }
}

/// Wakes a task of another thread's runtime.
pub(super) fn wake(task: TaskName) {
    if let Some(remote) = REMOTES.get(task.runtime()).and_then(OnceLock::get) {
        // A runtime that has gone has no task to wake.
        let _ = remote.send(Message::Wake(task), None);
    }
}
