//! A command of a [`super::Queue`]: before its end, and after.

use std::time::Instant;

use iscsi::initiator::TaskKey;
use iscsi::pdu::Residual;
use runtime::BufMut;

use crate::error::Error;

/// A queued command that has ended.
#[derive(Debug)]
pub struct Completed {
    /// The token given to [`super::Queue::submit`].
    pub token: u64,
    /// Bytes read.
    pub received: u32,
    /// Whether the command transferred more or less than expected.
    pub residual: Residual,
    /// The buffer of [`super::Transfer::Read`], truncated to the received bytes.
    pub buffer: Option<BufMut>,
    /// [`Error::Scsi`] for a status other than GOOD and CONDITION MET; otherwise as for a
    /// [`super::Ticket`].
    pub outcome: Result<(), Error>,
    /// When its last byte was received, or its end was known.
    pub at: Instant,
}

/// A queued command that has not ended.
#[derive(Debug)]
pub(super) struct Queued {
    pub key: TaskKey,
    pub token: u64,
    /// Time of its last send, or of its submission.
    pub since: Instant,
    pub replays: u8,
}
