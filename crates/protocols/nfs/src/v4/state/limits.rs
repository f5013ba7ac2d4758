//! Limits of the state: times, counts and sizes. A peer cannot make anything grow beyond these.

use std::time::Duration;

use crate::v4::Channel;

/// Bounds of the state of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `lease_time`: a client that sends nothing for this long is expired. Also the length of the
    /// grace period, and the time to return a recalled delegation.
    pub lease: Duration,
    /// An expired client keeps its state for at most this long if nothing conflicts with it.
    pub courtesy: Duration,
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Clients of one host: an IPv4 address, or an IPv6 network of 64 bits.
    pub clients_of_host: usize,
    /// Sessions of one client.
    pub sessions: usize,
    /// Connections bound to one session.
    pub connections: usize,
    /// Highest values that CREATE_SESSION grants for a session's fore channel.
    pub fore: Channel,
    /// Highest values that the server uses of a backchannel.
    pub back: Channel,
    /// Bytes of cached replies, over all sessions. CREATE_SESSION reserves them.
    pub replies: u64,
    /// Of them, those of the clients of one host.
    pub replies_of_host: u64,
    /// Opens of one client, over all files.
    pub opens: usize,
    /// Opens of all clients.
    pub all_opens: usize,
    /// Lock owners, ranges and waiting locks of one client, over all files.
    pub ranges: usize,
    /// Lock owners, ranges and waiting locks of all clients.
    pub all_ranges: usize,
    /// Delegations of all clients, and files that get none because of a recall. 0 gives none.
    pub delegations: usize,
    /// Time after a recall in which no client gets a delegation of the same file.
    pub cooling: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            lease: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 3600),
            clients: 4096,
            clients_of_host: 1024,
            sessions: 16,
            connections: 64,
            fore: Channel {
                max_request: (1 << 20) + 4096,
                max_response: (1 << 20) + 4096,
                max_response_cached: 8192,
                max_operations: 64,
                max_requests: 128,
                ..Channel::default()
            },
            back: Channel {
                max_request: 4096,
                max_response: 4096,
                max_operations: 2,
                max_requests: 16,
                ..Channel::default()
            },
            replies: 512 << 20,
            replies_of_host: 128 << 20,
            opens: 65_536,
            all_opens: 1 << 20,
            ranges: 65_536,
            all_ranges: 1 << 20,
            delegations: 65_536,
            cooling: Duration::from_secs(60),
        }
    }
}

/// The values that both sides of a channel support. Nothing here pads headers or reads by RDMA.
pub(super) fn least(one: &Channel, other: &Channel) -> Channel {
    Channel {
        header_padding: 0,
        max_request: one.max_request.min(other.max_request),
        max_response: one.max_response.min(other.max_response),
        max_response_cached: one.max_response_cached.min(other.max_response_cached),
        max_operations: one.max_operations.min(other.max_operations),
        max_requests: one.max_requests.min(other.max_requests),
        rdma_ird: None,
    }
}
