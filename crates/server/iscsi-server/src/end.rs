//! Why connections end, and why logins come to nothing.

use iscsi::login::target::LoginError;
use iscsi::pdu::LoginStatus;
use iscsi::target::Fatal;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The peer logged out, or the connection was closed here.
    #[error("closed")]
    Closed,
    /// The peer closed it and had not logged out.
    #[error("closed without a logout")]
    HungUp,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// What it sent cannot be cut into PDUs.
    #[error(transparent)]
    Frame(#[from] iscsi::frame::FrameError),
    /// No buffer for a data segment.
    #[error("out of buffers")]
    NoBuffers,
    /// The queue pair failed, or the peer broke RDMA's protocol.
    #[error(transparent)]
    Rdma(rdma::Error),
    /// A message that is none of iSER's.
    #[error(transparent)]
    IserHeader(#[from] iser::HeaderError),
    /// A message that holds no whole PDU.
    #[error(transparent)]
    IserMessage(#[from] iser::MessageError),
    /// A command without memory for its data.
    #[error(transparent)]
    NoStag(#[from] NoStag),
    /// A Hello that was not to come, or that did not come, or that cannot be agreed with.
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

/// The initiator has named no memory for what a command of its wants moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a command that moves data has no STag for it")]
pub(crate) struct NoStag;

/// Why a connection did not get through login.
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
