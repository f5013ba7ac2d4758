//! [`End`]: why a connection ended.

use std::io;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client closed it between two calls.
    #[error("the client closed the connection")]
    Closed,
    /// The client closed it within a call.
    #[error("the client closed the connection within a call")]
    HungUp,
    /// It broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The RDMA connection failed, or the client broke its protocol.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// A client has more calls outstanding than it was granted.
    #[error("more calls than the client has credits")]
    Credits,
    /// A call is longer than any may be.
    #[error("a call of {0} bytes")]
    TooLong(usize),
    /// A call in too many fragments.
    #[error("a call in too many fragments")]
    Fragments,
    /// The rest of a long call did not come.
    #[error("the rest of a call did not come in time")]
    Slow,
    /// The message is no RPC call.
    #[error("what came is no RPC call")]
    NoCall,
    /// The server ends, or hands its clients to another.
    #[error("the server ends")]
    Asked,
}
