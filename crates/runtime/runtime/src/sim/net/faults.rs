//! Faults for a run to cause: connections that are reset, stall or damage a bit, machines that are
//! paused or cut from each other, and a middlebox between the ends.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::machine::Machine;
use super::super::with;
use super::{Network, Socket, nanoseconds};

/// An open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    client: usize,
    /// The client's address.
    pub from: SocketAddr,
    /// The server's address.
    pub to: SocketAddr,
    /// Bytes that the server's program has read.
    pub received: u64,
}

/// The open connections of this world.
pub fn links() -> Vec<Link> {
    let found = with(|state, _| {
        let sockets = state.net.sockets.iter().enumerate();
        let open = sockets.filter(|(_, s)| s.is_client && !s.closed && s.error.is_none() && s.peer.is_some());
        let received = |s: &Socket| s.peer.map_or(0, |peer| state.net.sockets[peer].received);
        open.map(|(client, s)| Link { client, from: s.local, to: s.remote, received: received(s) }).collect()
    });
    found.unwrap_or_default()
}

/// Resets a connection on both sides.
pub fn reset(link: Link) {
    with(|state, _| {
        if let Some(peer) = state.net.sockets[link.client].peer {
            state.reset_both(link.client, peer);
        }
    });
}

/// Holds all segments of a connection back for a while.
pub fn stall(link: Link, duration: Duration) {
    with(|state, _| {
        let until = state.now + nanoseconds(duration);
        let peer = state.net.sockets[link.client].peer;
        for end in peer.into_iter().chain([link.client]) {
            state.net.sockets[end].stalled_until = until;
        }
    });
}

/// Holds all segments to a connection's client back for a while, as a client does that does not
/// read.
pub fn deafen(link: Link, duration: Duration) {
    with(|state, _| state.net.sockets[link.client].stalled_until = state.now + nanoseconds(duration));
}

/// Flips a bit of the next segment that a connection carries to its server, or to its client.
pub fn flip_a_bit(link: Link, to_server: bool) {
    with(|state, _| {
        let peer = state.net.sockets[link.client].peer;
        if let Some(end) = if to_server { peer } else { Some(link.client) } {
            state.net.sockets[end].damage = true;
        }
    });
}

/// Stops all threads of a machine for a while, as SIGSTOP does. Its kernel goes on. A duration of
/// zero ends a pause.
pub fn pause(machine: Machine, duration: Duration) {
    with(|state, _| state.machines.pause(machine, state.now + nanoseconds(duration)));
}

/// Holds what one machine sends to another one back for a while: it arrives at the end, as after
/// retransmissions. A duration of zero ends a cut for what is sent later.
pub fn cut(from: Machine, to: Machine, duration: Duration) {
    with(|state, _| state.machines.part(from, to, state.now + nanoseconds(duration)));
}

/// Changes the properties of all links.
pub fn set_network(network: Network) {
    with(|state, _| state.net.network = network);
}

/// Carries data that a program has sent: gets the number of the connection, whether its client has
/// sent the data, and the bytes, in order. Returns the bytes that reach the other end. Called in
/// the middle of a turn: it must not use this crate.
pub type Middlebox = Box<dyn FnMut(usize, bool, Vec<u8>) -> Vec<u8> + Send>;

/// Puts a middlebox on all connections, for data sent from now on.
pub fn set_middlebox(middlebox: Middlebox) {
    with(|state, _| state.net.middlebox = Some(middlebox));
}
