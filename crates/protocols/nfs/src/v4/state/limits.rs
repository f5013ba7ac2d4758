//! What bounds the state: times, counts and sizes. A peer cannot make anything grow beyond these.

use std::time::Duration;

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
    /// Sessions of one client.
    pub sessions: usize,
    /// Connections bound to one session.
    pub connections: usize,
    /// What the fore channel of a session gets at most.
    pub fore: Channel,
    /// What the server uses of a backchannel at most.
    pub back: Channel,
    /// Bytes of cached replies, over all sessions. CREATE_SESSION reserves them.
    pub replies: u64,
    /// Opens of one client, over all files.
    pub opens: usize,
    /// Ranges of locks of one client, and its waiting locks, over all files.
    pub ranges: usize,
    /// Delegations of all clients. 0 gives none.
    pub delegations: usize,
    /// After a recall, nobody gets a delegation of the same file for this long.
    pub cooling: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            lease: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 3600),
            clients: 4096,
            sessions: 16,
            connections: 64,
            fore: Channel {
                request: (1 << 20) + 4096,
                response: (1 << 20) + 4096,
                cached: 8192,
                operations: 64,
                requests: 64,
            },
            back: Channel { request: 4096, response: 4096, cached: 0, operations: 2, requests: 16 },
            replies: 512 << 20,
            opens: 65_536,
            ranges: 65_536,
            delegations: 65_536,
            cooling: Duration::from_secs(60),
        }
    }
}

/// `channel_attrs4` without what no channel here uses (RFC 8881 §18.36).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// The longest request, bytes.
    pub request: u32,
    /// The longest reply, bytes.
    pub response: u32,
    /// The longest reply that is cached, bytes.
    pub cached: u32,
    /// The most operations of a COMPOUND.
    pub operations: u32,
    /// Slots.
    pub requests: u32,
}

super::saved::saved! { Channel { request, response, cached, operations, requests } }

impl Channel {
    /// What both sides can do.
    pub(super) fn least(self, other: Channel) -> Channel {
        Channel {
            request: self.request.min(other.request),
            response: self.response.min(other.response),
            cached: self.cached.min(other.cached),
            operations: self.operations.min(other.operations),
            requests: self.requests.min(other.requests),
        }
    }
}
