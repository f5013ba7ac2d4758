//! What a target does at ErrorRecoveryLevel 1 and 2 to lose nothing but time when PDUs or connections are lost (RFC 7143 §7).
//!
//! [`retain`] keeps what was sent until the initiator has acknowledged it, [`snack`] sends it again, [`loss`] notices data that
//! does not come and asks for it once more, and [`reassign`] moves a task to another connection. At level 0 a connection has none
//! of this and pays for none of it.

mod loss;
mod reassign;
mod retain;
mod snack;

use std::time::Duration;

pub use reassign::{Moved, Released};
pub use retain::History;
pub(super) use retain::{Recovery, Status, StatusData};

/// What recovery had to do on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// SNACKs that asked for something to be sent again.
    pub snacks: u64,
    /// SNACKs that were rejected.
    pub rejected_snacks: u64,
    /// PDUs that were sent again.
    pub resent_pdus: u64,
    /// R2Ts that asked again for data-out that was lost (RFC 7143 §11.8, recovery R2Ts).
    pub recovery_r2ts: u64,
    /// PDUs that were dropped for a wrong digest, of header or data.
    pub digest_errors: u64,
    /// Tasks that came from a connection that was lost.
    pub reassigned_tasks: u64,
}

impl Recovered {
    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.snacks += other.snacks;
        self.rejected_snacks += other.rejected_snacks;
        self.resent_pdus += other.resent_pdus;
        self.recovery_r2ts += other.recovery_r2ts;
        self.digest_errors += other.digest_errors;
        self.reassigned_tasks += other.reassigned_tasks;
    }
}

/// How far a connection goes to recover, and what that may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// ErrorRecoveryLevel, 1 or 2 (RFC 7143 §13.20).
    pub level: u8,
    /// Bytes of data-in, ping data and text that wait for their acknowledgement, above which no read begins another burst and the
    /// command window stays where it is.
    pub keep_bytes: usize,
    /// Statuses that wait for their acknowledgement, above which the command window stays where it is.
    pub keep_statuses: usize,
    /// How long a sequence of Data-Out may pause before it counts as lost (a sequence reception timeout, §7.1.4.1); on a
    /// connection that brings nothing else either a fifth of it is enough.
    pub data_timeout: Duration,
}

/// How often one and the same PDU is sent again. A link that loses it more often than this is worth another level of recovery; a peer
/// that asks more often wants something else.
const MAX_RESENDS: u8 = 16;
/// How often data is asked for again while none of it comes.
const MAX_RECOVERIES: u8 = 16;
/// R2Ts of a task that are remembered. Those before them have been answered long since.
const MAX_R2TS: usize = 64;
/// How many times as many statuses, and bytes of other things than reads, as [`Limits`] has may wait before the connection is given
/// up: it takes an initiator that asks for more by immediate commands and never acknowledges anything.
const OVERRUN: usize = 4;
/// How long a status waits for its acknowledgement before the initiator is asked for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the answer to that may take before it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
