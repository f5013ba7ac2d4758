//! State of error recovery for a task, a connection and a session: gaps in numbers, and the
//! requests made for them.

use crate::sn;

use super::event::Completion;
use super::ids::TaskKey;

/// The maximum plausible distance of a number ahead of the expected one.
pub(super) const MAX_GAP: u32 = 1 << 16;

/// A gap in numbered PDUs. All PDUs from the first missing one on were requested again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gap {
    pub open: bool,
    /// The newest number received since. A number that is not after it shows that the
    /// retransmission has begun.
    pub last: u32,
}

impl Gap {
    /// Records an early number. Returns whether to request the missing PDUs: at the first early
    /// number, or when the retransmission lacks its beginning.
    pub fn early(&mut self, got: u32) -> bool {
        let ask = !self.open || sn::le(got, self.last);
        *self = Gap { open: true, last: got };
        ask
    }
}

/// The missing PDUs of a task.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub data: Gap,
    pub r2t: Gap,
    /// The command's end, and the DataSN after the last Data-In that it waits for.
    pub held: Option<(Completion, u32)>,
    /// The tag of the last R-Data SNACK. A SCSI Response without it was sent before that SNACK (RFC
    /// 7143 §11.4.5).
    pub snack_tag: Option<u32>,
    /// The numbers of Data-In showed the gap.
    pub seen: bool,
    /// The target cannot resend the missing data, and will end the command.
    pub refused: bool,
}

impl Trouble {
    /// Closes the gap once all PDUs up to the newest number have arrived.
    pub fn data_came(&mut self, next: u32) {
        if self.data.open {
            self.data.open = sn::le(next, self.data.last);
        }
    }

    /// As [`Trouble::data_came`], for R2Ts.
    pub fn r2t_came(&mut self, next: u32) {
        if self.r2t.open {
            self.r2t.open = sn::le(next, self.r2t.last);
        }
    }
}

/// The recovery actions since the session was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recoveries {
    /// Commands resent with their old CmdSN, or as new ones after the target had lost them.
    pub retries: u64,
    /// Immediate requests (task management, text, logouts) that were resent.
    pub requests: u64,
    /// SNACKs for Data-In.
    pub data_snacks: u64,
    /// R-Data SNACKs.
    pub r_data_snacks: u64,
    /// SNACKs for R2Ts.
    pub r2t_snacks: u64,
    /// SNACKs for statuses.
    pub status_snacks: u64,
    /// DataACK SNACKs.
    pub data_acks: u64,
    /// Tasks that continued on another connection.
    pub reassigns: u64,
    /// Connections lost while their session continued.
    pub connections: u64,
    /// PDUs dropped for a wrong digest.
    pub digest_errors: u64,
}

impl Recoveries {
    /// SNACKs that requested a retransmission.
    pub fn snacks(&self) -> u64 {
        self.data_snacks + self.r_data_snacks + self.r2t_snacks + self.status_snacks
    }
}

/// The state of a connection's missing statuses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Status {
    pub gap: Gap,
    /// The task that has the expected status but waits for its data: acknowledging the status would
    /// abandon the data.
    pub held: Option<TaskKey>,
    /// Ticks since the missing statuses were requested.
    pub ticks: u8,
    pub tries: u8,
    /// The outstanding internal ping.
    pub probing: Option<TaskKey>,
    /// The number of internal pings sent, and the newest one answered.
    pub probes: u32,
    pub probe_answered: u32,
}

/// A lost connection, by its CID.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed {
    pub cid: u16,
    /// The target has removed it too: its tasks may be reassigned.
    pub removed: bool,
}
