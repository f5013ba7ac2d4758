//! Why a queue pair could not be set up, or has ended.

use std::io;
use std::net::SocketAddr;

/// The side that ended a stream for a protocol violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This side, because of the peer.
    Local,
    /// The peer, because of this side.
    Remote,
}

/// A Terminate message's reason: layer, error type and error code (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminated {
    /// 0 RDMAP, 1 DDP, 2 the layer below (MPA).
    pub layer: u8,
    /// Error type of that layer.
    pub error_type: u8,
    /// Error code of that type.
    pub code: u8,
}

impl std::fmt::Display for Terminated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(f, "{layer} error type {:#x} code {:#04x}", self.error_type, self.code)
    }
}

/// Why a queue pair could not be set up, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network failed, or the peer reset the connection.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No answer at the address.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The peer's address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The connection was closed, by [`crate::QueuePair::disconnect`] or by the peer between two
    /// messages.
    #[error("closed")]
    Closed,
    /// The peer closed the connection within a message.
    #[error("closed in the middle of a message")]
    Cut,
    /// An operation timed out.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
    /// The peer rejects the connection. Holds the private data of the rejection.
    #[error("the peer refuses the connection")]
    Rejected(Vec<u8>),
    /// The peer violates the protocol during the setup.
    #[error("setup: {0}")]
    Setup(String),
    /// A message broke the protocol, and a Terminate was sent for it.
    #[error("{} ended the connection: {reason}{}", if *.side == Side::Local { "this side" } else { "the peer" }, .detail)]
    Terminated {
        /// The side that found the violation.
        side: Side,
        /// The reason sent or received.
        reason: Terminated,
        /// The reason as text, in brackets, if it is known.
        detail: String,
    },
    /// No buffer became free for incoming data.
    #[error("out of buffers")]
    NoBuffers,
    /// No STag is free.
    #[error("too much memory is exposed")]
    TooManyStags,
    /// More bytes than a message can hold: 2^32 - 1.
    #[error("a message of 4 GiB or more")]
    TooLong,
    /// rdma-core or a device is missing, or an operation of it failed.
    #[error("{0}")]
    Verbs(String),
    /// The provider does not support the operation.
    #[error("{0}")]
    Unsupported(&'static str),
}
