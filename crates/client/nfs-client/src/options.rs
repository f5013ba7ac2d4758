//! The settings of a client.

use std::time::Duration;

pub use rdma::{Crc, Provider};

/// Settings of calls: identity, time limits and transport.
#[derive(Debug, Clone)]
pub struct Options {
    /// Transport of the calls. [`crate::Client`] uses the URL's.
    pub transport: Transport,
    /// Identity of the caller.
    pub auth: Auth,
    /// Connect from a port below 1024 if this process may, as Linux's servers require by default.
    pub reserved_port: bool,
    /// Time limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// Time for a reply. After it the connection counts as lost, and outstanding calls are sent
    /// again over a new one.
    pub call_timeout: Duration,
    /// Time for which calls are retransmitted without any reply of the server, before they fail.
    pub give_up: Duration,
    /// The longest reply that is accepted, bytes, without record marks.
    pub max_reply: usize,
    /// Over RDMA, whether FPDUs sent carry a CRC32C.
    pub rdma_crc: Crc,
    /// Over RDMA, RDMA Reads of the server that may be outstanding, 1 to 16383: they fetch what is
    /// written.
    pub rdma_reads: u16,
    /// Over RDMA, the longest segment of a call's memory, bytes; `None` for one segment. A chunk
    /// has 64 segments at most, fewer where the server takes short messages, and longer ones where
    /// it would have more.
    pub rdma_segment: Option<u32>,
    /// Over RDMA, who moves the bytes: software iWARP, or an RDMA device by rdma-core's verbs.
    pub rdma_provider: Provider,
}

/// Transport of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP, with record marks (RFC 5531 §11).
    #[default]
    Tcp,
    /// RDMA (RFC 8166), by [`Options::rdma_provider`].
    Rdma,
}

impl Transport {
    /// The port of NFS, if a URL names none (RFC 8267 §6.1).
    pub fn port(self) -> u16 {
        match self {
            Transport::Tcp => nfs::PORT,
            Transport::Rdma => rpcrdma::NFS_PORT,
        }
    }
}

/// The credential of each call (RFC 5531 §8.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// AUTH_NONE: no identity.
    None,
    /// AUTH_SYS.
    Sys(Sys),
}

/// The identity that AUTH_SYS claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sys {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Supplementary groups, at most 16; more are not sent.
    pub gids: Vec<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            transport: Transport::Tcp,
            auth: Auth::None,
            reserved_port: true,
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(30),
            give_up: Duration::from_secs(120),
            max_reply: (1 << 20) + (64 << 10),
            rdma_crc: Crc::default(),
            rdma_reads: 128,
            rdma_segment: None,
            rdma_provider: Provider::default(),
        }
    }
}
