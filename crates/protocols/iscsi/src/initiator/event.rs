//! Results of a target's PDU: events for the driver, and the reasons why a PDU cannot be accepted.

use crate::pdu::{AsyncMessage, LogoutResult, RejectReason, Residual, ResponseCode, TaskManagementResult};
use crate::text::TextError;

use super::ids::TaskKey;

/// Reason why a target's PDU cannot be accepted. At error recovery levels 0 and 1 the session must
/// end (RFC 7143 §7.4, §7.12). At level 2 only the connection must end, unless
/// [`ProtocolError::ends_session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The connection does not belong to this session.
    #[error("the connection is gone")]
    NoConnection,
    /// An initiator's PDU, a Login Response, or an undefined opcode.
    #[error("opcode {0:#04x} is invalid from a target here")]
    Opcode(u8),
    /// The tag names no task.
    #[error("task tag {0:#010x} belongs to no task")]
    UnknownTask(u32),
    /// The PDU's type does not fit the task of its tag, or the task belongs to another connection.
    #[error("the PDU does not match task {0:#010x}")]
    WrongTask(u32),
    /// StatSN is not the expected one.
    #[error("StatSN {got} where {expected} was expected")]
    StatSn {
        /// The number received.
        got: u32,
        /// The number expected.
        expected: u32,
    },
    /// DataSN or R2TSN is not the expected one.
    #[error("DataSN or R2TSN {got} where {expected} was expected")]
    DataSn {
        /// The number received.
        got: u32,
        /// The number expected.
        expected: u32,
    },
    /// Data-In outside the command's read, or out of order.
    #[error("Data-In of {len} bytes at {offset} does not fit a read of {expected}, {received} received")]
    DataIn {
        /// Buffer offset, bytes.
        offset: u32,
        /// Length, bytes.
        len: u32,
        /// The length of the command's read, bytes.
        expected: u32,
        /// Bytes received before.
        received: u32,
    },
    /// An R2T outside the command's write, out of order, or longer than MaxBurstLength.
    #[error("R2T for {len} bytes at {offset} does not fit a write of {expected}")]
    R2t {
        /// Buffer offset, bytes.
        offset: u32,
        /// Length, bytes.
        len: u32,
        /// The length of the command's write, bytes.
        expected: u32,
    },
    /// More R2Ts than MaxOutstandingR2T, or too many pings while nothing can be sent.
    #[error("the target requests more at once than it may")]
    Flood,
    /// Flags contradict each other, or a length is invalid for the PDU.
    #[error("a field of the PDU is invalid")]
    Field,
    /// A data digest is wrong, and the session's error recovery level is 0.
    #[error("wrong data digest")]
    DataDigest,
    /// Repeated requests for missing PDUs were unsuccessful.
    #[error("the target does not retransmit lost PDUs")]
    Unrecoverable,
    /// Tasks of a lost connection cannot be reassigned.
    #[error("the target does not reassign tasks")]
    NoReassignment,
    /// A text is too long.
    #[error("text: {0}")]
    Text(#[from] TextError),
}

impl ProtocolError {
    /// Whether a new connection of the same session would not help.
    pub fn ends_session(&self) -> bool {
        matches!(self, ProtocolError::NoReassignment)
    }
}

/// The end of a SCSI command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The SCSI status; invalid after [`ResponseCode::TargetFailure`].
    pub status: u8,
    /// The iSCSI service response: whether the target completed the command.
    pub response: ResponseCode,
    /// The number of bytes read and placed.
    pub received: u32,
    /// The residual of the write, or of the read if there is no write.
    pub residual: Residual,
    /// The residual of a bidirectional command's read.
    pub read_residual: Residual,
    /// Sense data; can be empty.
    pub sense: Vec<u8>,
}

/// The result of a PDU.
#[derive(Debug)]
pub enum Event<T> {
    /// A SCSI command ended.
    Done(TaskKey, T, Completion),
    /// A task management function ended, and with it these tasks: the target does not answer them.
    /// `None` is a response that RFC 7143 does not define.
    TaskManagement(TaskKey, T, Option<TaskManagementResult>, Vec<(TaskKey, T)>),
    /// The target answered a ping.
    Pong(TaskKey, T),
    /// The whole response to a text request.
    Text(TaskKey, T, Vec<u8>),
    /// The response to a logout. `None` is a response that RFC 7143 does not define.
    LoggedOut(TaskKey, T, Option<LogoutResult>),
    /// The target sent an asynchronous message.
    Async(AsyncMessage),
    /// The target rejected a PDU, which ended its task if it had one.
    Rejected(Option<RejectReason>, Option<(TaskKey, T)>),
    /// A non-repeatable command was lost with its connection. The target does not know it, and
    /// whether it ran is unknown.
    Lost(TaskKey, T),
    /// The response to [`super::Session::remove_for_recovery`]. `None` is a response that RFC 7143
    /// does not define.
    Removed {
        /// The lost connection's CID.
        cid: u16,
        /// The target's result.
        result: Option<LogoutResult>,
        /// Seconds to wait before the connection's tasks are reassigned.
        time2wait_s: u16,
        /// Seconds after that for which the target retains them.
        time2retain_s: u16,
    },
}
