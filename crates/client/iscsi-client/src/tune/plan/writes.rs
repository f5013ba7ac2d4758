//! Chooses the negotiated parameters for writes, and derives the rest: unsolicited bytes, bytes per
//! request of a longer write, and the best command length. Arithmetic on the path's capacity and
//! the target's limits.

use std::time::Duration;

use super::{Allowed, LONGEST_IO, SHORTEST_IO, Serving};
use crate::tune::flow::Flow;
use crate::tune::governor::FAR;

/// The intended number of outstanding commands: few enough for little overhead, enough that the end
/// of one does not matter.
pub(super) const COMMANDS: u64 = 32;
/// The longest RDMA Read of Stag's target, bytes: it fetches longer writes in several.
pub(super) const RDMA_READ: u32 = 512 << 10;
/// Minimum bytes of a target's R2T, whatever MaxBurstLength allows: it splits bursts into several.
const R2T: u32 = 256 << 10;
/// Maximum unsolicited bytes if they gain nothing: they use memory that the target did not offer.
const NEAR_FIRST_BURST: u32 = 256 << 10;
/// Default bytes sent with a command over iSER ([`crate::Options::iser_unsolicited`]).
const ISER_UNSOLICITED: u32 = 8192;

/// The settings of writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writes {
    /// The computation for commands of any length.
    pub flow: Flow,
    /// Bytes per command. Below: the unit's maximum.
    pub io: u32,
    pub longest: u32,
    /// FirstBurstLength and MaxBurstLength, bytes.
    pub first_burst: u32,
    pub burst: u32,
    /// The required MaxOutstandingR2T. Below: the target's limit.
    pub wanted_r2t: u16,
    pub outstanding_r2t: u16,
    /// iSER: the longest write sent with its command, bytes, if it should differ from the default.
    pub unsolicited: Option<u32>,
    /// iSER: RDMA Reads outstanding.
    pub reads: Option<u16>,
}

impl Writes {
    /// For a path of that rate (bytes per second), round trip and capacity (`holds`, bytes), with
    /// `wait` for a lone command.
    pub fn of(rate: u64, (rtt, wait): (Duration, Duration), holds: u64, allowed: &Allowed) -> Self {
        let far = rtt >= FAR;
        let longest = LONGEST_IO.min(floor_power_of_two(allowed.max_transfer));
        let mut flow = Flow { rate, rtt, wait, unasked: u32::MAX, whole: allowed.iser, asked: 1 };
        let aimed = |under_way: u64| {
            ceil_power_of_two(under_way.div_ceil(COMMANDS)).clamp(SHORTEST_IO, LONGEST_IO).min(longest)
        };
        let short = aimed(flow.bytes(false, 1));
        let first_burst = if far { LONGEST_IO } else { NEAR_FIRST_BURST.max(short) };
        let first_burst = first_burst.min(allowed.first_burst).min(allowed.max_burst).max(512);
        let burst = ceil_power_of_two((holds / 4).max(longest.into())).clamp(256 << 10, 8 << 20);
        let burst = burst.min(allowed.max_burst).max(512);
        let wanted_r2t = u64::from(LONGEST_IO).max(holds).div_ceil(burst.min(R2T).into()) + 1;
        let wanted_r2t = u16::try_from(wanted_r2t.clamp(8, 64)).unwrap_or(64);
        let outstanding_r2t = wanted_r2t.min(allowed.outstanding_r2t.max(1));
        let unsolicited =
            (allowed.iser && far).then(|| allowed.segment.min(allowed.first_burst).max(ISER_UNSOLICITED));
        flow.unasked = match (allowed.iser, allowed.initial_r2t, allowed.immediate_data) {
            (true, ..) => unsolicited.unwrap_or(ISER_UNSOLICITED).min(allowed.segment),
            (false, false, _) => first_burst,
            // Immediate data fits one PDU, and is sent with its command (RFC 7143 §13.11).
            (false, true, true) => first_burst.min(allowed.segment),
            (false, true, false) => 0,
        };
        flow.asked = u64::from(burst) * u64::from(outstanding_r2t);
        let mut reads = None;
        if allowed.iser {
            flow.asked = u64::MAX;
            // The shortest fetched writes are little longer than the unsolicited ones.
            let shortest = flow.unasked.saturating_mul(2).clamp(SHORTEST_IO, RDMA_READ);
            let wanted = flow.twice(true, u64::MAX).div_ceil(shortest.into()).clamp(16, 128);
            let wanted = u16::try_from(wanted.next_power_of_two()).unwrap_or(128);
            reads = Some(wanted);
            flow.asked = u64::from(wanted.min(allowed.reads.max(1))) * u64::from(RDMA_READ);
        }
        // If most data is unsolicited, longer commands gain nothing. Each RDMA Read costs more.
        let io = match !allowed.iser && flow.unasked >= SHORTEST_IO {
            true => short.min(floor_power_of_two(flow.unasked)),
            false => aimed(flow.bytes(true, LONGEST_IO.into())),
        };
        Self { flow, io, longest, first_burst, burst, wanted_r2t, outstanding_r2t, unsolicited, reads }
    }

    /// The length of a write with solicited data, bytes.
    pub fn long(&self) -> u64 {
        u64::from(LONGEST_IO).max(u64::from(self.flow.unasked) + 1)
    }

    /// Recommended limits of the target.
    pub fn serving(&self, holds: u64) -> Serving {
        let commands = self.flow.commands(true, SHORTEST_IO.into());
        Serving {
            queue_depth: u32::try_from(commands).unwrap_or(1024).clamp(128, 1024),
            max_burst: self.burst.max(1 << 20),
            first_burst: (256 << 10).max(self.io.min(self.burst)),
            outstanding_r2t: self.wanted_r2t,
            send_high_water: u32::try_from(holds.next_power_of_two().clamp(4 << 20, 64 << 20))
                .unwrap_or(64 << 20),
        }
    }
}

fn floor_power_of_two(n: u32) -> u32 {
    match n.checked_ilog2() {
        Some(log) => 1 << log,
        None => 1,
    }
}

fn ceil_power_of_two(n: u64) -> u32 {
    n.max(1).checked_next_power_of_two().and_then(|n| u32::try_from(n).ok()).unwrap_or(1 << 31)
}
