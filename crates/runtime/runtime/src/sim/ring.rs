//! The simulated kernel side of a core's io_uring: it executes the submitted entries.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;

use super::turns::Wait;
use super::{Here, State};
use crate::op::sqe::{Kind, Offered, Sqe};
use crate::op::{Completion, IGNORED, WOKEN};

// SAFETY: the entries lie in memory that the ring's core keeps until the ring has gone, and one
// thread of a world runs at a time.
unsafe impl Send for Offered {}

/// A core's ring in a world.
pub(crate) struct SimRing {
    here: Here,
    queue: RefCell<VecDeque<Sqe>>,
    pushed: Cell<u64>,
    done: RefCell<VecDeque<(u64, Completion)>>,
}

impl SimRing {
    pub(crate) fn new(here: Here) -> Self {
        Self { here, queue: RefCell::default(), pushed: Cell::new(0), done: RefCell::default() }
    }

    /// Registers the mailbox of the ring's core.
    pub(crate) fn own(&self, mailbox: u16) {
        self.here.world.lock().net.own(self.here.me, mailbox);
    }

    /// # Safety
    /// The address is that of `count` entries, which stay mapped until the ring has gone.
    pub(crate) unsafe fn provide(&self, address: u64, count: u16) -> io::Result<()> {
        // SAFETY: the caller's.
        let provided = unsafe { Offered::new(address, count) };
        self.here.world.lock().net.provide(self.here.me, provided);
        Ok(())
    }

    /// # Safety
    /// The memory that the entry points to stays valid until its completion has been seen.
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        self.queue.borrow_mut().push_back(Sqe::of(entry));
        self.pushed.set(self.pushed.get() + 1);
        self.pushed.get()
    }

    pub(crate) fn unsubmitted(&self) -> usize {
        self.queue.borrow().len()
    }

    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        number + self.unsubmitted() as u64 <= self.pushed.get()
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.done.borrow().is_empty()
    }

    /// Executes the queued entries.
    pub(crate) fn submit(&self) {
        let mut state = self.here.world.lock();
        for sqe in self.queue.borrow_mut().drain(..) {
            state.submit(self.here.me, sqe);
        }
    }

    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.submit();
        let world = &self.here.world;
        let mut state = world.lock();
        // As for the kernel, a completion that the core has not reaped yet ends the wait: an earlier
        // call, such as one in the middle of a task, may have brought it.
        let waits = if want == 0 || self.has_completions() { Wait::Turn } else { Wait::Completion };
        // Most of the time a core with something to do keeps its turn, now and then others get
        // theirs.
        let goes_on = waits == Wait::Turn || state.turns.has_completions(self.here.me);
        if !goes_on || state.chance.happens(125_000) {
            let until = timeout.map(|timeout| {
                state.now.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2))
            });
            drop(state);
            world.wait(self.here.me, waits, until);
            state = world.lock();
        }
        self.done.borrow_mut().append(&mut state.turns.take_completions(self.here.me));
        match state.turns.broken() {
            Some(why) => Err(io::Error::other(why.to_owned())),
            None => Ok(()),
        }
    }

    pub(crate) fn next_completion(&self) -> Option<(u64, Completion)> {
        self.done.borrow_mut().pop_front()
    }
}

impl State {
    /// Posts a completion.
    pub(super) fn complete(&mut self, core: usize, sqe: &Sqe, result: i32, flags: u32) {
        if sqe.user_data == IGNORED || (sqe.skips_success() && result >= 0) {
            return;
        }
        self.note(result as u64 ^ (core as u64) << 32);
        self.turns.complete(core, sqe.user_data, Completion { result, flags });
    }

    fn submit(&mut self, core: usize, sqe: Sqe) {
        if let Some(kind) = Kind::of(&sqe) {
            if sqe.user_data == WOKEN {
                return self.watch_mail(core, sqe);
            }
            if self.net.has(sqe.fd) {
                return self.socket_operation(core, kind, sqe);
            }
        }
        match sqe.opcode {
            opcode::Nop::CODE => self.complete(core, &sqe, 0, 0),
            opcode::Close::CODE => {
                self.close(sqe.fd);
                self.complete(core, &sqe, 0, 0);
            }
            opcode::AsyncCancel::CODE => {
                let found = self.cancel(core, sqe.cancels());
                self.complete(core, &sqe, if found { 0 } else { -libc::ENOENT }, 0);
            }
            _ => self.begin_file_operation(core, sqe),
        }
    }

    /// Executes a file operation.
    pub(super) fn execute(&mut self, sqe: &Sqe) -> i32 {
        let Sqe { fd, off: at, .. } = *sqe;
        let flags = sqe.op_flags as i32;
        let one = [sqe.piece()];
        // SAFETY: the entry's pointers are valid until its completion: its submitter guarantees
        // that.
        let result = unsafe {
            match sqe.opcode {
                opcode::Read::CODE | opcode::ReadFixed::CODE => self.medium.read(fd, &one, at, flags),
                opcode::Write::CODE | opcode::WriteFixed::CODE => self.medium.write(fd, &one, at, flags),
                opcode::Writev::CODE => {
                    let pieces = std::slice::from_raw_parts(sqe.addr as *const libc::iovec, sqe.len as usize);
                    self.medium.write(fd, pieces, at, flags)
                }
                opcode::Fsync::CODE => self.medium.sync(fd).map(|()| 0),
                opcode::Fallocate::CODE => self.medium.allocate(fd, sqe.len as i32, at, sqe.addr).map(|()| 0),
                _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            }
        };
        match result {
            Ok(count) => count as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
