//! Reasons for the end of connections and for failed logins.

use iscsi::login::target::LoginError;
use iscsi::pdu::LoginStatus;
use iscsi::target::Fatal;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The peer logged out, or the connection was closed here.
    #[error("closed")]
    Closed,
    /// The peer closed it and had not logged out.
    #[error("closed without a logout")]
    HungUp,
    /// The peer does not acknowledge statuses that a task management function waits for.
    #[error("statuses are not acknowledged")]
    Unacknowledged,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// The bytes from the peer cannot be cut into PDUs.
    #[error(transparent)]
    Frame(#[from] iscsi::frame::FrameError),
    /// No buffer for a data segment.
    #[error("out of buffers")]
    NoBuffers,
    /// The queue pair failed, or the peer broke RDMA's protocol.
    #[error(transparent)]
    Rdma(rdma::Error),
    /// A message that does not begin with an iSER header.
    #[error(transparent)]
    IserHeader(#[from] iser::HeaderError),
    /// A message without a whole PDU.
    #[error(transparent)]
    IserMessage(#[from] iser::MessageError),
    /// A command whose STags are missing.
    #[error(transparent)]
    NoStag(#[from] NoStag),
    /// An unexpected or missing Hello, or one with unacceptable parameters.
    #[error("the Hello exchange failed")]
    NoHello,
}

impl From<rdma::Error> for End {
    fn from(error: rdma::Error) -> Self {
        match error {
            rdma::Error::Closed => Self::HungUp,
            other => Self::Rdma(other),
        }
    }
}

/// The initiator has given no STag for data that its command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a command that moves data has no STag for it")]
pub(crate) struct NoStag;

/// Reason for a failed login.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginFailure {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("not an iSCSI login: {0}")]
    Frame(#[from] iscsi::frame::FrameError),
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    #[error("not an iSER login: {0}")]
    IserHeader(#[from] iser::HeaderError),
    #[error("not an iSER login: {0}")]
    IserMessage(#[from] iser::MessageError),
    #[error("opcode {0:#04x} instead of a login request")]
    Opcode(u8),
    #[error(transparent)]
    Refused(#[from] LoginError),
    #[error("the session could not be placed: {0}")]
    Placement(LoginStatus),
    #[error("it took too long")]
    TimedOut,
    #[error("logins in progress hold too much text")]
    OutOfMemory,
    #[error("too many wrong secrets came before")]
    TooManyGuesses,
}
