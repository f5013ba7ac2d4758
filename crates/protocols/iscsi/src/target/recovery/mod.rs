//! A target's recovery at ErrorRecoveryLevel 1 and 2: lost PDUs and connections cost only time (RFC
//! 7143 §7).
//!
//! [`retain`] keeps sent PDUs until the initiator has acknowledged them, and [`snack`] resends
//! them. [`loss`] detects missing data and requests it again, and [`reassign`] moves a task to
//! another connection. At level 0 a connection has no such state and no such cost.

mod loss;
mod reassign;
mod retain;
mod snack;

use std::time::Duration;

pub(super) use loss::Loss;
pub(super) use reassign::{Allegiance, allegiant};
pub use reassign::{Moved, Released};
pub(crate) use retain::History;
pub(super) use retain::{Recovery, Status, StatusData};
pub(super) use snack::Resend;

/// The recovery actions on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// SNACKs that requested a retransmission.
    pub snacks: u64,
    /// SNACKs that were rejected.
    pub rejected_snacks: u64,
    /// PDUs that were resent.
    pub resent_pdus: u64,
    /// R2Ts that requested lost data-out again (RFC 7143 §11.8, recovery R2Ts).
    pub recovery_r2ts: u64,
    /// PDUs dropped for a wrong digest of header or data.
    pub digest_errors: u64,
    /// Tasks reassigned from a lost connection.
    pub reassigned_tasks: u64,
}

impl Recovered {
    /// Adds the counts of another connection.
    pub fn add(&mut self, other: &Self) {
        self.snacks += other.snacks;
        self.rejected_snacks += other.rejected_snacks;
        self.resent_pdus += other.resent_pdus;
        self.recovery_r2ts += other.recovery_r2ts;
        self.digest_errors += other.digest_errors;
        self.reassigned_tasks += other.reassigned_tasks;
    }
}

/// The limits of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// ErrorRecoveryLevel, 1 or 2 (RFC 7143 §13.20).
    pub level: u8,
    /// The limit of unacknowledged data-in, ping data and text, bytes. Above it, no read begins
    /// another burst, and the command window does not advance.
    pub keep_bytes: usize,
    /// The limit of unacknowledged statuses. Above it, the command window does not advance.
    pub keep_statuses: usize,
    /// The time after which a stalled sequence of Data-Out counts as lost (a sequence reception
    /// timeout, §7.1.4.1). On a connection without any other input a fifth of it applies.
    pub data_timeout: Duration,
}

/// The maximum number of retransmissions of one PDU. A link that loses it more often needs another
/// level of recovery; a peer that requests it more often is faulty.
const MAX_RESENDS: u8 = 16;
/// The maximum number of requests for data while none of it arrives.
const MAX_RECOVERIES: u8 = 16;
/// The number of a task's R2Ts that are retained. Earlier ones have been answered.
const MAX_R2TS: usize = 64;
/// The factor by which unacknowledged statuses, and bytes other than data-in, may exceed [`Limits`]
/// before the connection is given up. Only an initiator that sends immediate commands and
/// acknowledges nothing reaches it.
const OVERRUN: usize = 4;
/// The time that a status stays unacknowledged before the initiator is pinged.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit for the answer before another ping.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
