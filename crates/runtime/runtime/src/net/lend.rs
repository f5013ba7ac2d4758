//! [`Lender`]: sends memory by reference (zero-copy send). The socket's queue gets the pages
//! themselves instead of copies of their bytes, and so does a peer on the same machine or the card:
//! vmsplice(2) into a pipe, splice(2) from there to the socket.
//!
//! The kernel does not report when it is done with such a page. So payload must be allowed to
//! change until the peer has it (a disk's blocks). Headers lie in memory of their own:
//! [`Lender::confirm`] frees it for the next ones, and where nobody confirms, the pages are left to
//! the kernel and new ones take their place. It never copies payload, and never waits: what a
//! socket has no room for is left to the caller.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;

use super::Gather;
use super::gather::Kind;
use super::options::check;
use crate::buf::{map_pages, unmap_pages};
use crate::copies::count_lent;
use crate::op::is_transient;

/// Bytes of headers that may be unconfirmed before their pages are left to the kernel. Touched page
/// by page, when first needed.
const HEADER_SPACE: usize = 64 << 10;
const PAGE: usize = 4096;
/// Pages of one round, which are as many as a pipe holds and as the kernel gives to the socket in
/// one call. More would leave the first of them in the socket, waiting to be joined with the rest,
/// and the rest without room.
const PAGES_A_ROUND: usize = 16;

/// Pieces of headers in a round up to which the next shares their page: there is much payload to
/// each.
const FEW_PIECES: usize = 4;
/// Least bytes of a page in use at which the next round begins another page.
const FULL_PAGE: u64 = 3 << 10;

/// Outcome of an attempt to send by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// Everything was sent.
    All,
    /// The socket has no room: wait until it is writable, then go on with the same gather.
    Full,
    /// The rest is for a plain send.
    Rest,
}

/// Pipes that a core keeps for the next zero-copy send.
const SPARE_PIPES: usize = 4;

thread_local! {
    /// Empty pipes of this core. Connections have none of their own: most have nothing to send at
    /// any one time, and a user's descriptors and pipes are limited.
    static SPARE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// Sends gathers on one socket by reference. One that holds a part of a gather must be given the
/// same gather next.
#[derive(Default)]
pub struct Lender {
    /// Present while it holds a part of a gather.
    pipe: Option<Pipe>,
    headers: Option<Headers>,
    /// Bytes of the gather that are in the pipe.
    in_pipe: usize,
    /// The kernel or the limits on descriptors do not allow zero-copy sends.
    unable: bool,
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Lender {
    /// A lender that has sent nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Position up to which headers were sent by reference; the argument of [`Self::confirm`] once
    /// the peer has them all.
    pub fn mark(&self) -> u64 {
        self.headers.as_ref().map_or(0, |headers| headers.end)
    }

    /// The peer has received everything that was sent up to `mark`: its headers' memory can be
    /// reused.
    pub fn confirm(&mut self, mark: u64) {
        if let Some(headers) = &mut self.headers {
            headers.confirmed = headers.confirmed.max(mark.min(headers.end));
        }
    }

    /// Whether a part of a gather is in the pipe, so that its rest must be sent next.
    pub fn is_midway(&self) -> bool {
        self.in_pipe > 0
    }

    /// Whether it would send any of `gather`.
    pub(super) fn takes(&self, gather: &Gather) -> bool {
        self.is_midway() || !self.unable && gather.is_worth_lending() && !crate::sim::is_on()
    }

    /// Sends as much of `gather` as `socket` takes, which must be non-blocking: splice(2) has no
    /// flag for that.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, gather: &mut Gather) -> io::Result<Lent> {
        if !self.takes(gather) {
            return Ok(Lent::Rest);
        }
        if !self.is_midway() {
            gather.copy_held();
        }
        let sent = self.send_rounds(socket, gather);
        if !self.is_midway()
            && let Some(pipe) = self.pipe.take()
        {
            pipe.keep();
        }
        sent
    }

    fn send_rounds(&mut self, socket: BorrowedFd<'_>, gather: &mut Gather) -> io::Result<Lent> {
        loop {
            if !self.drain(socket, gather)? {
                return Ok(Lent::Full);
            }
            if gather.is_empty() {
                gather.clear();
                return Ok(Lent::All);
            }
            if !self.fill(gather) {
                return Ok(Lent::Rest);
            }
        }
    }

    /// Moves the pipe's content to the socket. False if that has no room for all of it.
    fn drain(&mut self, socket: BorrowedFd<'_>, gather: &mut Gather) -> io::Result<bool> {
        let Some(pipe) = &self.pipe else { return Ok(true) };
        while self.in_pipe > 0 {
            let (from, to) = (pipe.read.as_raw_fd(), socket.as_raw_fd());
            let (null, flags) = (std::ptr::null_mut(), libc::SPLICE_F_NONBLOCK);
            // SAFETY: takes descriptors and numbers only.
            let moved = unsafe { libc::splice(from, null, to, null, self.in_pipe, flags) };
            match usize::try_from(moved) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    count_lent(n);
                    self.in_pipe -= n;
                    gather.advance(n);
                }
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    e if is_transient(&e) => {}
                    e => return Err(e),
                },
            }
        }
        Ok(true)
    }

    /// Puts the next round of `gather` into the empty pipe. False if it has to be sent in another
    /// way.
    fn fill(&mut self, gather: &Gather) -> bool {
        let Some((pipe, headers)) = self.tools() else { return false };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PAGES_A_ROUND];
        let (mut count, mut pages) = (0, 0);
        headers.next_round();
        for piece in gather.pieces() {
            let mut vector = piece.vector;
            if piece.kind == Kind::Held {
                break;
            }
            if piece.kind == Kind::Stable {
                let copy = headers.copy(vector);
                // No piece of this round lies in the pages yet, and none of the last ones in the
                // pipe.
                let copy =
                    copy.or_else(|| if count == 0 && headers.renew() { headers.copy(vector) } else { None });
                let Some(copy) = copy else { break };
                vector.iov_base = copy.as_ptr().cast();
                // Headers next to each other are one piece.
                if let Some(last) = vectors[..count].last_mut()
                    && last.iov_base.wrapping_byte_add(last.iov_len) == vector.iov_base
                {
                    let end = vector.iov_base as usize + vector.iov_len;
                    pages += end.div_ceil(PAGE) - (vector.iov_base as usize).div_ceil(PAGE);
                    last.iov_len += vector.iov_len;
                    continue;
                }
            }
            let start = vector.iov_base as usize;
            vectors[count] = vector;
            count += 1;
            pages += (start + vector.iov_len).div_ceil(PAGE) - start / PAGE;
            // Vectors for which the pipe has no room stay for the next round.
            if pages >= PAGES_A_ROUND || count == PAGES_A_ROUND {
                break;
            }
        }
        if count == 0 {
            return false;
        }
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: the vectors point to memory that the gather keeps until it is sent, or to headers
        // that stay until they are confirmed; the kernel takes references to the pages, which
        // outlive their mapping.
        let put = unsafe { libc::vmsplice(pipe.write.as_raw_fd(), vectors.as_ptr(), count, flags) };
        match usize::try_from(put) {
            Ok(n) if n > 0 => {
                self.in_pipe = n;
                true
            }
            // Whatever the error is, a plain send reports it better.
            _ => {
                self.unable = true;
                false
            }
        }
    }

    /// A pipe, and the memory for headers, which is allocated at first use.
    fn tools(&mut self) -> Option<(&Pipe, &mut Headers)> {
        if let Err(error) = self.take_tools() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| tracing::warn!(%error, "read data has to be copied"));
            self.unable = true;
        }
        self.pipe.as_ref().zip(self.headers.as_mut())
    }

    fn take_tools(&mut self) -> io::Result<()> {
        if self.headers.is_none() {
            self.headers = Some(Headers::new()?);
        }
        if self.pipe.is_none() {
            let spare = SPARE.with_borrow_mut(Vec::pop);
            self.pipe = Some(spare.map_or_else(Pipe::new, Ok)?);
        }
        Ok(())
    }
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let mut fds = [0; 2];
        // SAFETY: the kernel writes two descriptors, which only this code owns.
        unsafe {
            check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
            Ok(Self { read: OwnedFd::from_raw_fd(fds[0]), write: OwnedFd::from_raw_fd(fds[1]) })
        }
    }

    /// Keeps an empty pipe for the next sender on this core.
    fn keep(self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_PIPES {
                spare.push(self);
            }
        });
    }
}

/// A ring of memory for headers in flight. A page of its own for every round of many keeps the
/// kernel's count of the page's users on one core at a time.
struct Headers {
    base: NonNull<u8>,
    /// Positions that only grow; modulo [`HEADER_SPACE`] they are offsets.
    end: u64,
    confirmed: u64,
    /// Pieces of this round.
    pieces: usize,
}

impl Headers {
    fn new() -> io::Result<Self> {
        let base = map_pages(HEADER_SPACE)?;
        // SAFETY: advice about the mapping just made. Huge pages would have one count of users for
        // all headers.
        unsafe { libc::madvise(base.as_ptr().cast(), HEADER_SPACE, libc::MADV_NOHUGEPAGE) };
        Ok(Self { base, end: 0, confirmed: 0, pieces: 0 })
    }

    /// Begins a round: on a new page, unless the last had few headers. Where payloads are long, a
    /// round has few headers; a page for each round would exhaust the space with less data than is
    /// in flight.
    fn next_round(&mut self) {
        if self.pieces > FEW_PIECES || self.end % PAGE as u64 >= FULL_PAGE {
            self.end = self.end.next_multiple_of(PAGE as u64);
        }
        self.pieces = 0;
    }

    /// Leaves all pages to the kernel, which keeps those that are on their way, and begins with new
    /// ones. False if the kernel does not take them.
    fn renew(&mut self) -> bool {
        // SAFETY: whole pages of this private anonymous mapping, which nothing here refers to any
        // more.
        let rc = unsafe { libc::madvise(self.base.as_ptr().cast(), HEADER_SPACE, libc::MADV_DONTNEED) };
        self.end = self.end.next_multiple_of(HEADER_SPACE as u64);
        self.confirmed = if rc == 0 { self.end } else { self.confirmed };
        rc == 0
    }

    /// Copies the bytes of `vector`, unless there is no room until more is confirmed.
    fn copy(&mut self, vector: libc::iovec) -> Option<NonNull<u8>> {
        let space = HEADER_SPACE as u64;
        let len = vector.iov_len as u64;
        let mut start = self.end;
        if start % space + len > space {
            start = start.next_multiple_of(space);
        }
        if start + len > self.confirmed + space {
            return None;
        }
        self.end = start + len;
        self.pieces += 1;
        // SAFETY: the offset and the length were just found to lie within the mapping; the source
        // is the gather's.
        unsafe {
            let place = self.base.add((start % space) as usize);
            let from = vector.iov_base.cast::<u8>();
            match vector.iov_len {
                // The usual length: a few instructions, where a variable length takes a call.
                48 => std::ptr::copy_nonoverlapping(from, place.as_ptr(), 48),
                len => std::ptr::copy_nonoverlapping(from, place.as_ptr(), len),
            }
            Some(place)
        }
    }
}

impl std::fmt::Debug for Lender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lender({} bytes in its pipe)", self.in_pipe)
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: unmaps the memory mapped by `new`. Pages that the socket still holds stay valid
        // for it alone.
        unsafe { unmap_pages(self.base, HEADER_SPACE) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::buf::Region;

    /// Shortest length that is sent by reference and not copied.
    const BLOCK: usize = 12 << 10;

    fn gather(region: &Region, blocks: usize) -> Gather {
        let mut gather = Gather::new();
        for block in 0..blocks {
            gather.push_copy(&[7; 48]);
            gather.push_lent(region.slice(block * BLOCK, BLOCK).unwrap());
        }
        gather
    }

    #[test]
    fn only_a_lender_that_is_midway_has_a_pipe() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let region = Region::new(8 << 20).unwrap();
        let (mut first, mut second) = (Lender::new(), Lender::new());
        for lender in [&mut first, &mut second] {
            assert_eq!(lender.send(socket.as_fd(), &mut gather(&region, 8)).unwrap(), Lent::All);
            assert!(lender.pipe.is_none() && lender.headers.is_some());
        }
        assert_eq!(SPARE.with_borrow(Vec::len), 1, "they took turns with one");
        // Send until the peer, which does not read, has no room: a round stays in the pipe, and its
        // lender keeps it.
        let (mut rest, mut lent) = (gather(&region, 1), 16 * (48 + BLOCK));
        while !first.is_midway() {
            rest = gather(&region, 8);
            lent += rest.len();
            first.confirm(first.mark());
            first.send(socket.as_fd(), &mut rest).unwrap();
        }
        assert!(first.pipe.is_some());
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
        let reader = std::thread::spawn(move || peer.read_exact(&mut vec![0; lent]));
        while first.send(socket.as_fd(), &mut rest).unwrap() != Lent::All {
            std::thread::yield_now();
        }
        assert!(first.pipe.is_none());
        assert_eq!(SPARE.with_borrow(Vec::len), 1);
        reader.join().unwrap().unwrap();
    }
}
