//! [`Epoll`]: takes a core's entries where there is no io_uring, and executes them by system calls
//! that never wait. What would have to wait is parked until epoll(7) reports its file.
//!
//! Files are registered edge-triggered, once, and for everything: to wait costs no system call of
//! its own. So this remembers what was reported and not used up. It may believe that a file is
//! ready that is not, but never the reverse: only a call that would have to wait clears the note,
//! and every later change of the file is reported.
//!
//! Operations of files never come here: the core's threads carry them out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;

use super::generation::generation;
use super::sqe::{Kind, MORE, Offered, Sqe, received_flags};
use super::{Completion, IGNORED};
use crate::net::{check, set_nonblocking};

/// Reports taken in one call.
const REPORTS: usize = 128;
/// Connections that an accept takes at once.
const ACCEPTED: usize = 32;

const EVERYTHING: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
/// After these a short receive may leave something.
const ODD: u32 = ENDED | libc::EPOLLPRI as u32;

/// Directions in which a file can be ready.
const READ: u8 = 1;
const WRITE: u8 = 2;

fn directions(events: u32) -> u8 {
    let read = (libc::EPOLLIN | libc::EPOLLPRI) as u32 | ENDED;
    let write = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    (if events & read != 0 { READ } else { 0 }) | if events & write != 0 { WRITE } else { 0 }
}

/// The directions in which an operation waits.
fn waits_for(kind: Kind, sqe: &Sqe) -> u8 {
    match kind {
        Kind::Accept | Kind::Recv | Kind::RecvMsg => READ,
        Kind::Connect | Kind::Send | Kind::SendMsg => WRITE,
        // The events of poll(2) have epoll's numbers.
        Kind::Poll => directions(sqe.op_flags & !ENDED),
    }
}

/// A descriptor's number.
#[derive(Default)]
struct Watch {
    /// The generation of the number for which it is registered.
    registered: Option<u32>,
    /// Directions in which it may be ready.
    ready: u8,
    /// Whether a short receive may leave something: the end, or bytes behind urgent data.
    odd: bool,
    /// Its parked operations, in their order.
    parked: Vec<(Kind, Sqe)>,
}

impl Watch {
    fn is_registered(&self, fd: RawFd) -> bool {
        self.registered == Some(generation(fd))
    }
}

/// All numbers of descriptors, and where the parked operations are.
#[derive(Default)]
struct Watches {
    by_fd: Vec<Watch>,
    /// By the index of an operation: the descriptor that it is parked at.
    places: Vec<RawFd>,
}

impl Watches {
    fn of(&mut self, fd: RawFd) -> &mut Watch {
        let at = fd as usize;
        if self.by_fd.len() <= at {
            self.by_fd.resize_with(at + 1, Watch::default);
        }
        &mut self.by_fd[at]
    }

    fn park(&mut self, kind: Kind, sqe: Sqe) {
        let index = sqe.user_data as u32 as usize;
        // The core's own poll has the last number, and is never cancelled by it.
        if sqe.user_data < super::WOKEN {
            if self.places.len() <= index {
                self.places.resize(index + 1, -1);
            }
            self.places[index] = sqe.fd;
        }
        self.of(sqe.fd).parked.push((kind, sqe));
    }

    /// Removes a parked operation.
    fn remove(&mut self, user_data: u64) -> Option<Sqe> {
        let fd = *self.places.get(user_data as u32 as usize)?;
        let parked = &mut self.by_fd.get_mut(usize::try_from(fd).ok()?)?.parked;
        let at = parked.iter().position(|(_, sqe)| sqe.user_data == user_data)?;
        Some(parked.remove(at).1)
    }
}

/// Outcome of an attempt.
enum Tried {
    Ended(Completion),
    /// It would have to wait.
    Waits,
}

impl From<Result<i32, io::Error>> for Tried {
    fn from(result: Result<i32, io::Error>) -> Self {
        match result {
            Ok(result) => Self::Ended(Completion { result, flags: 0 }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Self::Waits,
            Err(error) => Self::Ended(Completion { result: errno(&error), flags: 0 }),
        }
    }
}

fn errno(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Calls until no signal interrupts it.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<i32> {
    loop {
        match call() {
            done @ 0.. => return Ok(i32::try_from(done).unwrap_or(i32::MAX)),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// One core's epoll instance, and its entries.
pub(crate) struct Epoll {
    fd: OwnedFd,
    queue: RefCell<VecDeque<Sqe>>,
    pushed: Cell<u64>,
    done: RefCell<VecDeque<(u64, Completion)>>,
    watches: RefCell<Watches>,
    offered: Cell<Option<Offered>>,
    /// There is no epoll_pwait2: waits are whole milliseconds.
    coarse: Cell<bool>,
    /// The latest [`Self::enter`] asked for no reports.
    skipped: Cell<bool>,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes a number only, and the descriptor it returns is ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self {
            fd,
            queue: RefCell::default(),
            pushed: Cell::new(0),
            done: RefCell::default(),
            watches: RefCell::default(),
            offered: Cell::new(None),
            coarse: Cell::new(false),
            skipped: Cell::new(false),
        })
    }

    /// Takes the ring of provided buffers.
    ///
    /// # Safety
    /// The address is that of `count` entries, which stay mapped as long as this exists.
    pub(crate) unsafe fn provide(&self, address: u64, count: u16) -> io::Result<()> {
        // SAFETY: the caller's.
        self.offered.set(Some(unsafe { Offered::new(address, count) }));
        Ok(())
    }

    /// Queues an entry and numbers it.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its completion has been seen, or it
    /// was taken back.
    #[inline]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> u64 {
        self.queue.borrow_mut().push_back(Sqe::of(entry));
        self.pushed.set(self.pushed.get() + 1);
        self.pushed.get()
    }

    #[inline]
    pub(crate) fn unsubmitted(&self) -> usize {
        self.queue.borrow().len()
    }

    pub(crate) fn is_submitted(&self, number: u64) -> bool {
        number + self.unsubmitted() as u64 <= self.pushed.get()
    }

    /// Executes the queued entries as far as they do not wait.
    pub(crate) fn submit(&self) {
        loop {
            let Some(sqe) = self.queue.borrow_mut().pop_front() else { return };
            self.execute(sqe);
        }
    }

    /// Takes back an operation that is queued or parked, and has no completion.
    pub(crate) fn take_back(&self, user_data: u64) -> bool {
        if self.done.borrow().iter().any(|(done, _)| *done == user_data) {
            return false;
        }
        if self.watches.borrow_mut().remove(user_data).is_some() {
            return true;
        }
        let mut queue = self.queue.borrow_mut();
        let found = queue.iter_mut().find(|sqe| sqe.user_data == user_data);
        // Replaced, not removed: the numbering counts every entry.
        found.map(|sqe| *sqe = Sqe::of(&opcode::Nop::new().build().user_data(IGNORED))).is_some()
    }

    /// Stops watching a descriptor, whose number may become another file's.
    pub(crate) fn forget(&self, fd: RawFd) {
        let mut watches = self.watches.borrow_mut();
        let Some(watch) = watches.by_fd.get_mut(fd as usize) else { return };
        if watch.registered.take().is_some() {
            // SAFETY: takes numbers only. Failure means that the file is not registered any more.
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        }
        self.end(watch.parked.drain(..).map(|(_, sqe)| sqe));
    }

    /// Whether something has ended. Asks for reports, by a system call, if that is not known.
    pub(crate) fn has_work(&self) -> bool {
        // An error shows at the next turn of the loop.
        self.has_completions() || (self.collect(Some(Duration::ZERO)).is_ok() && self.has_completions())
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.done.borrow().is_empty()
    }

    /// Executes everything queued, and waits until something has ended or `timeout` has passed; not
    /// at all if `want` is 0.
    pub(crate) fn enter(&self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        if want == 0 && self.unsubmitted() == 0 && self.has_completions() {
            // `has_work` has just asked.
            return Ok(());
        }
        self.submit();
        if !self.has_completions() {
            return self.collect(if want > 0 { timeout } else { Some(Duration::ZERO) });
        }
        // What has ended is handled first, but never twice in a row.
        if self.skipped.replace(true) {
            return self.collect(Some(Duration::ZERO));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn next_completion(&self) -> Option<(u64, Completion)> {
        self.done.borrow_mut().pop_front()
    }

    fn complete(&self, sqe: &Sqe, completion: Completion) {
        if sqe.user_data != IGNORED && !(sqe.skips_success() && completion.result >= 0) {
            self.done.borrow_mut().push_back((sqe.user_data, completion));
        }
    }

    /// Completes operations as cancelled.
    fn end(&self, operations: impl Iterator<Item = Sqe>) {
        operations.for_each(|sqe| self.complete(&sqe, Completion { result: -libc::ECANCELED, flags: 0 }));
    }

    fn execute(&self, sqe: Sqe) {
        if let Some(kind) = Kind::of(&sqe) {
            return self.begin(kind, sqe);
        }
        let result = match sqe.opcode {
            opcode::Nop::CODE => 0,
            opcode::Close::CODE => {
                self.forget(sqe.fd);
                // SAFETY: the entry's submitter has given the descriptor up.
                match unsafe { libc::close(sqe.fd) } {
                    0 => 0,
                    _ => errno(&io::Error::last_os_error()),
                }
            }
            opcode::AsyncCancel::CODE => self.cancel(&sqe),
            _ => -libc::EOPNOTSUPP,
        };
        self.complete(&sqe, Completion { result, flags: 0 });
    }

    fn cancel(&self, cancel: &Sqe) -> i32 {
        let mut watches = self.watches.borrow_mut();
        match cancel.cancels() {
            Some(user_data) => match watches.remove(user_data) {
                Some(sqe) => self.end(std::iter::once(sqe)),
                None => return -libc::ENOENT,
            },
            None => {
                for watch in &mut watches.by_fd {
                    self.end(watch.parked.drain(..).map(|(_, sqe)| sqe));
                }
            }
        }
        0
    }

    /// Begins an operation: tries it, unless it is known that it has to wait.
    fn begin(&self, kind: Kind, sqe: Sqe) {
        let mut watches = self.watches.borrow_mut();
        let watch = watches.of(sqe.fd);
        let known = watch.is_registered(sqe.fd);
        let waits = waits_for(kind, &sqe);
        let tries = if known { watch.ready & waits != 0 } else { !sqe.polls_first() };
        if kind == Kind::Accept {
            // Another process may share the listener, and have taken the connection meanwhile. If
            // this fails, so does the accept.
            let _ = set_nonblocking(&sqe.fd, true);
        }
        if tries {
            match self.attempt(kind, &sqe, None, watch) {
                Tried::Ended(completion) => {
                    self.complete(&sqe, completion);
                    if completion.flags & MORE == 0 {
                        return;
                    }
                }
                Tried::Waits => watch.ready &= !waits,
            }
        }
        if !known && let Err(error) = self.register(watch, sqe.fd) {
            return self.complete(&sqe, Completion { result: errno(&error), flags: 0 });
        }
        watches.park(kind, sqe);
    }

    fn register(&self, watch: &mut Watch, fd: RawFd) -> io::Result<()> {
        let generation = generation(fd);
        let data = u64::from(generation) << 32 | u64::from(fd as u32);
        let mut event = libc::epoll_event { events: EVERYTHING, u64: data };
        let ctl = self.fd.as_raw_fd();
        // SAFETY: the event outlives the calls.
        let added = check(unsafe { libc::epoll_ctl(ctl, libc::EPOLL_CTL_ADD, fd, &raw mut event) });
        match added {
            // The same open file had the number before.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                // SAFETY: as above.
                check(unsafe { libc::epoll_ctl(ctl, libc::EPOLL_CTL_MOD, fd, &raw mut event) })?;
            }
            added => _ = added?,
        }
        // What it is ready for is reported at once.
        (watch.registered, watch.ready, watch.odd) = (Some(generation), 0, true);
        Ok(())
    }

    /// Takes reports, and tries again what was parked for them.
    fn collect(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.skipped.set(false);
        let mut reports = [libc::epoll_event { events: 0, u64: 0 }; REPORTS];
        let count = match self.wait(&mut reports, timeout) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let mut watches = self.watches.borrow_mut();
        for report in &reports[..count] {
            let (events, data) = (report.events, report.u64);
            let fd = data as u32 as RawFd;
            let watch = watches.of(fd);
            // Otherwise it is about a file that had the number before.
            if watch.registered == Some((data >> 32) as u32) {
                self.report(watch, events);
            }
        }
        Ok(())
    }

    fn wait(&self, reports: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let (fd, room, at) = (self.fd.as_raw_fd(), reports.len() as i32, reports.as_mut_ptr());
        if !self.coarse.get() {
            let time = timeout.map(|timeout| libc::timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the reports have that much room, and the time outlives the call.
            let count = unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, at, room, time, no_mask, 0) };
            match usize::try_from(count).map_err(|_| io::Error::last_os_error()) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {}
                result => return result,
            }
            self.coarse.set(true);
        }
        // Rounded up: to wake before the time would be to turn until it has come.
        let milliseconds = timeout
            .map_or(-1, |timeout| i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the reports have that much room.
        let count = unsafe { libc::epoll_pwait(fd, at, room, milliseconds, std::ptr::null()) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn report(&self, watch: &mut Watch, events: u32) {
        watch.ready |= directions(events);
        watch.odd = events & ODD != 0;
        let mut at = 0;
        while let Some((kind, sqe)) = watch.parked.get(at).copied() {
            let waits = waits_for(kind, &sqe);
            if watch.ready & waits == 0 {
                at += 1;
                continue;
            }
            match self.attempt(kind, &sqe, Some(events), watch) {
                Tried::Ended(completion) => {
                    if completion.flags & MORE == 0 {
                        watch.parked.remove(at);
                    } else {
                        at += 1;
                    }
                    self.complete(&sqe, completion);
                }
                Tried::Waits => {
                    watch.ready &= !waits;
                    at += 1;
                }
            }
        }
    }

    /// Tries an operation. `events`: what its file was just reported for.
    fn attempt(&self, kind: Kind, sqe: &Sqe, events: Option<u32>, watch: &mut Watch) -> Tried {
        match kind {
            Kind::Poll => poll(sqe, events),
            Kind::Accept => self.accept(sqe),
            Kind::Connect => connect(sqe),
            Kind::Recv | Kind::RecvMsg => {
                let (tried, drained) = self.receive(kind, sqe);
                if drained && !watch.odd {
                    // What comes later is reported.
                    watch.ready &= !READ;
                }
                tried
            }
            Kind::Send | Kind::SendMsg => send(kind, sqe),
        }
    }

    /// Receives. Also whether that was all that there is.
    fn receive(&self, kind: Kind, sqe: &Sqe) -> (Tried, bool) {
        let flags = sqe.op_flags as i32 | libc::MSG_DONTWAIT;
        let mut buffer = None;
        let (room, received) = if kind == Kind::RecvMsg {
            // SAFETY: the entry's memory stays valid until its completion.
            unsafe {
                let header = sqe.addr as *mut libc::msghdr;
                let pieces = std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen);
                let room = pieces.iter().map(|piece| piece.iov_len).sum();
                (room, uninterrupted(|| libc::recvmsg(sqe.fd, header, flags)))
            }
        } else {
            let mut piece = sqe.piece();
            let mut offered = self.offered.get().filter(|_| sqe.selects_buffer());
            if let Some(offered) = &mut offered {
                let Some((id, place, len)) = offered.take() else {
                    return (Tried::from(Err(io::Error::from_raw_os_error(libc::ENOBUFS))), false);
                };
                (buffer, piece.iov_base) = (Some(id), place.cast());
                piece.iov_len = piece.iov_len.min(len);
            }
            // SAFETY: the entry's memory stays valid until its completion. A provided buffer is not
            // used by others until a completion names it.
            let received =
                uninterrupted(|| unsafe { libc::recv(sqe.fd, piece.iov_base, piece.iov_len, flags) });
            if let Some(mut offered) = offered {
                if !matches!(received, Ok(1..)) {
                    buffer = None;
                    offered.untake();
                }
                self.offered.set(Some(offered));
            }
            (piece.iov_len, received)
        };
        let Ok(got) = received else { return (Tried::from(received), false) };
        let more = got as usize == room && is_nonempty(sqe.fd);
        (Tried::Ended(Completion { result: got, flags: received_flags(buffer, more) }), !more)
    }

    /// Accepts what is there. More than a few connections at once end a repeated accept: whoever
    /// takes them starts another.
    fn accept(&self, sqe: &Sqe) -> Tried {
        let null = std::ptr::null_mut();
        for number in 1.. {
            // SAFETY: no address is asked for.
            let accepted = uninterrupted(|| unsafe {
                libc::accept4(sqe.fd, null, null.cast(), sqe.op_flags as i32) as isize
            });
            let goes_on = accepted.is_ok() && sqe.is_multi_accept() && number < ACCEPTED;
            if !goes_on {
                return Tried::from(accepted);
            }
            if let Ok(result) = accepted {
                self.complete(sqe, Completion { result, flags: MORE });
            }
        }
        Tried::Waits
    }
}

/// Whether a socket has received more than was taken.
fn is_nonempty(fd: RawFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, which outlives the call.
    let asked = check(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) });
    asked.is_err() || bytes > 0
}

fn poll(sqe: &Sqe, events: Option<u32>) -> Tried {
    let always = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
    let flags = if sqe.is_multi_poll() { MORE } else { 0 };
    if let Some(events) = events {
        return match events & (sqe.op_flags | always) {
            0 => Tried::Waits,
            events => Tried::Ended(Completion { result: events as i32, flags }),
        };
    }
    // What was reported may have been used up since, by others.
    let mut asked = libc::pollfd { fd: sqe.fd, events: sqe.op_flags as i16, revents: 0 };
    // SAFETY: the structure outlives the call.
    match uninterrupted(|| unsafe { libc::poll(&raw mut asked, 1, 0) as isize }) {
        Ok(0) => Tried::Waits,
        Ok(_) => Tried::Ended(Completion { result: asked.revents.into(), flags }),
        Err(error) => Tried::from(Err(error)),
    }
}

/// Begins to connect, or asks how it went: a second call of connect(2) tells.
fn connect(sqe: &Sqe) -> Tried {
    // If this fails, so does the connect.
    let _ = set_nonblocking(&sqe.fd, true);
    // SAFETY: the entry's address stays valid until its completion.
    let rc = unsafe { libc::connect(sqe.fd, sqe.addr as *const libc::sockaddr, sqe.off as libc::socklen_t) };
    let connected = check(rc);
    let is = |error: &io::Error, errnos: &[i32]| error.raw_os_error().is_some_and(|is| errnos.contains(&is));
    match connected {
        Err(error) if is(&error, &[libc::EINPROGRESS, libc::EALREADY, libc::EINTR]) => return Tried::Waits,
        _ => _ = set_nonblocking(&sqe.fd, false),
    }
    match connected {
        // Not a wait: no local port is free.
        Err(error) if !is(&error, &[libc::EISCONN]) => {
            Tried::Ended(Completion { result: errno(&error), flags: 0 })
        }
        _ => Tried::from(Ok(0)),
    }
}

/// Sends what the socket takes. Less than all is for the sender to go on with.
fn send(kind: Kind, sqe: &Sqe) -> Tried {
    let flags = sqe.op_flags as i32 & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let piece = sqe.piece();
    // SAFETY: the entry's memory stays valid until its completion.
    Tried::from(uninterrupted(|| unsafe {
        match kind {
            Kind::SendMsg => libc::sendmsg(sqe.fd, sqe.addr as *const libc::msghdr, flags),
            _ => libc::send(sqe.fd, piece.iov_base, piece.iov_len, flags),
        }
    }))
}
