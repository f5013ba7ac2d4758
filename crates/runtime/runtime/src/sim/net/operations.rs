//! The operations of a socket: each is tried at once, and again when the socket changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::super::State;
use super::{Event, Parked};
use crate::net::RawAddr;
use crate::op::Completion;
use crate::op::sqe::{Kind, MORE, Sqe, received_flags};

impl State {
    /// Begins an operation.
    pub(in super::super) fn socket_operation(&mut self, core: usize, kind: Kind, sqe: Sqe) {
        let Some(id) = self.net.id(sqe.fd) else { return };
        if kind == Kind::Connect {
            // SAFETY: the entry's address is valid until its completion.
            let to =
                unsafe { RawAddr::from_raw(sqe.addr as *const libc::sockaddr, sqe.off as libc::socklen_t) };
            let Ok(to) = to.parse() else { return self.complete(core, &sqe, -libc::EINVAL, 0) };
            let port = self.net.port();
            let socket = &mut self.net.sockets[id];
            socket.local.set_port(port);
            if to.ip().is_loopback() {
                socket.local.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
            }
            let listener = self.net.listener(to).map(|listener| self.net.sockets[listener].machine);
            let cut = listener.map_or(0, |machine| self.cut(id, machine));
            let at = self.arrival(id, 0).max(cut);
            self.turns.at(at, Event::Arrives { client: id, to });
        }
        self.net.sockets[id].parked.push(Parked { core, kind, sqe, done: 0 });
        self.retry(id);
    }

    /// Tries a socket's waiting operations again.
    pub(super) fn retry(&mut self, id: usize) {
        let waiting = std::mem::take(&mut self.net.sockets[id].parked);
        let mut left = Vec::new();
        for mut parked in waiting {
            if !self.attempt(id, &mut parked) {
                left.push(parked);
            }
        }
        self.net.sockets[id].parked.append(&mut left);
    }

    /// Tries an operation. Returns whether it has ended.
    fn attempt(&mut self, id: usize, parked: &mut Parked) -> bool {
        let (core, sqe) = (parked.core, parked.sqe);
        match parked.kind {
            Kind::Connect => false,
            Kind::Accept => self.accept(id, parked),
            Kind::Poll => {
                let events = sqe.op_flags as i16;
                let socket = &self.net.sockets[id];
                let readable = !socket.inbox.is_empty() || socket.eof || socket.error.is_some();
                let writable = self.net.room(id) > 0 || socket.shut_write || socket.error.is_some();
                let mut now = 0;
                if readable {
                    now |= libc::POLLIN;
                }
                if writable {
                    now |= libc::POLLOUT;
                }
                if events & now == 0 {
                    return false;
                }
                self.complete(core, &sqe, i32::from(events & now), 0);
                true
            }
            Kind::Recv | Kind::RecvMsg => self.attempt_receive(id, parked),
            Kind::Send | Kind::SendMsg => {
                let single;
                let pieces = if parked.kind == Kind::Send {
                    single = [sqe.piece()];
                    &single[..]
                } else {
                    let header = sqe.addr as *const libc::msghdr;
                    // SAFETY: the entry's header and vectors are valid until its completion.
                    unsafe { std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen) }
                };
                let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
                match self.send(id, pieces, parked.done) {
                    Ok(n) => {
                        parked.done += n;
                        if parked.done < all {
                            return false;
                        }
                        self.complete(core, &sqe, all as i32, 0);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                    Err(_) if parked.done > 0 => self.complete(core, &sqe, parked.done as i32, 0),
                    Err(e) => self.complete(core, &sqe, -e.raw_os_error().unwrap_or(libc::EIO), 0),
                }
                true
            }
        }
    }

    fn attempt_receive(&mut self, id: usize, parked: &Parked) -> bool {
        let (core, sqe) = (parked.core, parked.sqe);
        let socket = &self.net.sockets[id];
        let ready = !socket.inbox.is_empty() || socket.eof || socket.shut_read || socket.error.is_some();
        if !ready {
            return false;
        }
        let mut buffer = None;
        let single;
        let pieces = if parked.kind == Kind::RecvMsg {
            let header = sqe.addr as *const libc::msghdr;
            // SAFETY: the entry's header and vectors are valid until its completion.
            unsafe { std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen) }
        } else if sqe.selects_buffer() && !socket.inbox.is_empty() {
            let Some(provided) = self.net.provided.get_mut(&core) else { return false };
            let Some((number, place, room)) = provided.take() else {
                self.complete(core, &sqe, -libc::ENOBUFS, 0);
                return true;
            };
            buffer = Some(number);
            single = [libc::iovec { iov_base: place.cast(), iov_len: room.min(sqe.len as usize) }];
            &single[..]
        } else {
            single = [sqe.piece()];
            &single[..]
        };
        match self.receive(id, pieces, true) {
            Ok(n) => {
                let more = !self.net.sockets[id].inbox.is_empty();
                self.complete(core, &sqe, n as i32, received_flags(buffer, more));
            }
            Err(e) => self.complete(core, &sqe, -e.raw_os_error().unwrap_or(libc::EIO), 0),
        }
        true
    }

    fn accept(&mut self, id: usize, parked: &Parked) -> bool {
        let multi = parked.sqe.is_multi_accept();
        while let Some(server) = self.net.sockets[id].backlog.pop_front() {
            let result = match self.net.descriptor(server) {
                Ok(fd) => fd,
                Err(e) => -e.raw_os_error().unwrap_or(libc::EMFILE),
            };
            // The descriptor's number depends on the machine, so it is kept out of the digest.
            self.note(server as u64);
            let said = Completion { result, flags: if multi { MORE } else { 0 } };
            self.turns.complete(parked.core, parked.sqe.user_data, said);
            if !multi {
                return true;
            }
        }
        false
    }

    /// Cancels a core's operation with that user data, or all of its operations. Returns whether
    /// there was one.
    pub(in super::super) fn cancel(&mut self, core: usize, of: Option<u64>) -> bool {
        let mut ended = Vec::new();
        for socket in &mut self.net.sockets {
            let mut at = 0;
            while let Some(parked) = socket.parked.get(at) {
                if parked.core == core && of.is_none_or(|of| parked.sqe.user_data == of) {
                    ended.push(socket.parked.remove(at));
                } else {
                    at += 1;
                }
            }
        }
        for parked in &ended {
            // A send that was sent in part reports its bytes.
            let result = if parked.done > 0 { parked.done as i32 } else { -libc::ECANCELED };
            self.complete(core, &parked.sqe, result, 0);
        }
        !ended.is_empty()
    }
}
