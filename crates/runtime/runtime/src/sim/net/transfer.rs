//! Segments, FIN and RST between the ends of a connection, and their arrival times.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::super::State;
use super::super::machine::Machine;
use super::{Event, Phase, error, nanoseconds};
use crate::op::sqe::Kind;

impl State {
    pub(in super::super) fn event(&mut self, event: Event) {
        match event {
            Event::Ends(core, sqe, result) => self.complete(core, &sqe, result, 0),
            Event::File(number) => self.file_event(number),
            Event::Arrives { client, to } => self.arrives(client, to),
            Event::Connected { client, result } => {
                if result == 0 {
                    self.net.sockets[client].phase = Phase::Connected;
                }
                let waiting = std::mem::take(&mut self.net.sockets[client].parked);
                for parked in waiting {
                    match parked.kind {
                        Kind::Connect => self.complete(parked.core, &parked.sqe, result, 0),
                        _ => self.net.sockets[client].parked.push(parked),
                    }
                }
            }
            Event::Segment { to, bytes } => {
                let socket = &mut self.net.sockets[to];
                socket.in_flight -= bytes.len().min(socket.in_flight);
                if socket.closed || socket.shut_read {
                    // A closed socket answers data with a reset.
                    if socket.closed
                        && let Some(peer) = socket.peer
                    {
                        self.signal(peer, Event::Reset { to: peer });
                    }
                    return;
                }
                if socket.error.is_none() {
                    socket.inbox.extend(bytes);
                }
                self.retry(to);
            }
            Event::Fin { to } => {
                self.net.sockets[to].eof = true;
                self.retry(to);
            }
            Event::Reset { to } => {
                let socket = &mut self.net.sockets[to];
                if !socket.closed {
                    socket.error = Some(libc::ECONNRESET);
                    socket.eof = true;
                    socket.shut_write = true;
                    self.retry(to);
                }
            }
        }
    }

    /// Arrival time at `id` of a segment that is sent now.
    pub(super) fn arrival(&mut self, id: usize, bytes: usize) -> u64 {
        let network = &self.net.network;
        let mut takes = nanoseconds(network.latency);
        let carries = (bytes as u64).saturating_mul(1_000_000_000) / network.rate.max(1);
        let (jitter, lost, again) =
            (nanoseconds(network.jitter), network.lost_per_million, nanoseconds(network.retransmission));
        takes += self.chance.within(0..jitter + 1);
        if self.chance.happens(lost) {
            takes += again;
        }
        let cut = self.net.sockets[id].peer.map_or(0, |peer| self.cut(peer, self.net.sockets[id].machine));
        let socket = &mut self.net.sockets[id];
        let free = &mut self.net.free[usize::from(socket.is_client)];
        *free = (*free).max(self.now) + carries;
        let at = (*free + takes).max(socket.last_arrival).max(socket.stalled_until);
        // TCP retransmits after a cut.
        let at = if cut > self.now { at.max(cut + takes) } else { at };
        socket.last_arrival = at;
        at
    }

    /// End of the cut from a socket's machine to another machine.
    pub(super) fn cut(&self, from: usize, to: Machine) -> u64 {
        self.machines.cut(self.net.sockets[from].machine, to)
    }

    /// Sends an event without payload to an end.
    pub(super) fn signal(&mut self, to: usize, event: Event) {
        let at = self.arrival(to, 0);
        self.turns.at(at, event);
    }

    fn arrives(&mut self, client: usize, to: SocketAddr) {
        if self.net.sockets[client].closed {
            return;
        }
        self.net.orphans().into_iter().for_each(|id| self.closed(id));
        let from = self.net.sockets[client].local;
        let Some(listener) = self.net.listener(to) else {
            let event = Event::Connected { client, result: -libc::ECONNREFUSED };
            return self.signal(client, event);
        };
        let machine = self.net.sockets[listener].machine;
        let server = self.net.add(machine, to, from);
        let end = &mut self.net.sockets[server];
        end.phase = Phase::Connected;
        end.peer = Some(client);
        let end = &mut self.net.sockets[client];
        end.remote = to;
        end.peer = Some(server);
        end.is_client = true;
        self.net.sockets[listener].backlog.push_back(server);
        self.signal(client, Event::Connected { client, result: 0 });
        self.retry(listener);
    }

    /// Copies received bytes into `pieces`; a null piece discards them. `in_ring`: called for a
    /// ring's operation.
    pub(in super::super) fn receive(
        &mut self,
        id: usize,
        pieces: &[libc::iovec],
        in_ring: bool,
    ) -> io::Result<usize> {
        let socket = &mut self.net.sockets[id];
        let mut got = 0;
        if !socket.shut_read {
            for piece in pieces {
                let n = piece.iov_len.min(socket.inbox.len());
                let (mut place, mut left) = (piece.iov_base.cast::<u8>(), n);
                while left > 0 {
                    let (front, _) = socket.inbox.as_slices();
                    let some = front.len().min(left);
                    if !place.is_null() {
                        // SAFETY: the piece may be written for its length, and the bytes are not
                        // part of it.
                        unsafe {
                            std::ptr::copy_nonoverlapping(front.as_ptr(), place, some);
                            place = place.add(some);
                        }
                    }
                    socket.inbox.drain(..some);
                    left -= some;
                }
                got += n;
            }
        }
        let room: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let socket = &mut self.net.sockets[id];
        if got == 0 && room > 0 {
            if socket.shut_read {
                return Ok(0);
            }
            if let Some(errno) = socket.error.take() {
                return Err(error(errno));
            }
            return if socket.eof { Ok(0) } else { Err(error(libc::EAGAIN)) };
        }
        let peer = socket.peer;
        socket.received += got as u64;
        self.note(got as u64 | u64::from(in_ring) << 63);
        if let Some(peer) = peer {
            // There is room for more.
            self.retry(peer);
        }
        Ok(got)
    }

    /// Sends as much of `pieces` as there is room for; the first `skip` bytes have been sent
    /// before.
    pub(in super::super) fn send(
        &mut self,
        id: usize,
        pieces: &[libc::iovec],
        skip: usize,
    ) -> io::Result<usize> {
        let socket = &mut self.net.sockets[id];
        if let Some(errno) = socket.error.take() {
            return Err(error(errno));
        }
        let Some(peer) = socket.peer.filter(|_| !socket.shut_write) else { return Err(error(libc::EPIPE)) };
        let room = self.net.room(id);
        let all: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let wanted = all - skip.min(all);
        if room == 0 && wanted > 0 {
            return Err(error(libc::EAGAIN));
        }
        let mut bytes = Vec::with_capacity(room.min(wanted));
        let mut skip = skip;
        for piece in pieces {
            let passed = skip.min(piece.iov_len);
            skip -= passed;
            let some = (piece.iov_len - passed).min(room - bytes.len());
            // SAFETY: the piece may be read for its length.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>().add(passed), some)
            });
        }
        let sent = bytes.len();
        self.note(sent as u64);
        if let Some(middlebox) = &mut self.net.middlebox {
            let to_server = self.net.sockets[id].is_client;
            bytes = middlebox(if to_server { id } else { peer }, to_server, bytes);
        }
        while !bytes.is_empty() {
            let most = self.net.network.segment.max(1) as u64;
            let len = match self.chance.within(0..4) {
                0 => self.chance.within(1..most + 1) as usize,
                _ => most as usize,
            };
            let rest = if len < bytes.len() { bytes.split_off(len) } else { Vec::new() };
            let mut segment = std::mem::replace(&mut bytes, rest);
            if std::mem::take(&mut self.net.sockets[peer].damage) {
                let bit = self.chance.within(0..segment.len() as u64 * 8) as usize;
                segment[bit / 8] ^= 1 << (bit % 8);
            }
            self.net.sockets[peer].in_flight += segment.len();
            let at = self.arrival(peer, segment.len());
            self.turns.at(at, Event::Segment { to: peer, bytes: segment });
            if self.chance.happens(self.net.network.reset_per_million) {
                self.reset_both(id, peer);
            }
        }
        Ok(sent)
    }

    pub(super) fn reset_both(&mut self, one: usize, other: usize) {
        self.signal(one, Event::Reset { to: one });
        self.signal(other, Event::Reset { to: other });
    }

    pub(in super::super) fn shut(&mut self, id: usize, read: bool, write: bool) {
        let socket = &mut self.net.sockets[id];
        socket.shut_read |= read;
        let says = write && !socket.shut_write && socket.phase == Phase::Connected;
        socket.shut_write |= write;
        if let Some(peer) = socket.peer.filter(|_| says) {
            self.signal(peer, Event::Fin { to: peer });
        }
        self.retry(id);
    }

    pub(in super::super) fn close(&mut self, fd: RawFd) {
        let id = self.net.id(fd);
        // SAFETY: the caller has given up ownership of the descriptor.
        unsafe { libc::close(fd) };
        if let Some(id) = id {
            self.closed(id);
        }
    }

    /// Closes a socket: all of its descriptors are closed.
    pub(super) fn closed(&mut self, id: usize) {
        for parked in std::mem::take(&mut self.net.sockets[id].parked) {
            self.complete(parked.core, &parked.sqe, -libc::ECANCELED, 0);
        }
        let socket = &mut self.net.sockets[id];
        socket.closed = true;
        let resets = socket.resets || !socket.inbox.is_empty();
        let (peer, shut) = (socket.peer, socket.shut_write);
        socket.inbox = VecDeque::new();
        socket.probe = None;
        for waiting in std::mem::take(&mut socket.backlog) {
            self.net.sockets[waiting].closed = true;
            if let Some(client) = self.net.sockets[waiting].peer {
                self.signal(client, Event::Reset { to: client });
            }
        }
        match peer {
            Some(peer) if resets => self.signal(peer, Event::Reset { to: peer }),
            Some(peer) if !shut => self.signal(peer, Event::Fin { to: peer }),
            _ => {}
        }
    }
}
