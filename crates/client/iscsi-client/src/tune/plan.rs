//! Computes a session's settings from the measurements of a path: only arithmetic on bandwidth and
//! delay.
//!
//! A path's capacity is rate × round trip (the bandwidth-delay product), in bytes. With fewer bytes
//! in flight the link sits idle part of the time; more bytes wait in queues. So the plan uses twice
//! the product: one that travels, and one so that neither end waits for the other. A write with
//! solicited data takes more round trips, and needs more commands for the same rate: see [`Flow`].

mod telling;
mod writes;

use std::time::Duration;

use runtime::SystemLimits;

use super::flow::Flow;
use super::settings::Settings;
use telling::Telling;
use writes::{RDMA_READ, Writes};

/// Statistics of measured round trips.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest.
    pub least: Duration,
    /// The median.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The longest.
    pub most: Duration,
}

impl RoundTrips {
    /// Computes them and sorts `times`. `None` for an empty list.
    pub fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied();
        Some(Self { least: *times.first()?, p50: at(50)?, p90: at(90)?, most: *times.last()? })
    }
}

/// The measurements of a path and its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Round trips of pings (NOP-Out).
    pub rtt: RoundTrips,
    /// Duration of a lone command of 64 KiB: the round trip, its data's transfer, and the unit's
    /// time.
    pub alone: Duration,
    /// Read rate with many outstanding commands, bytes per second.
    pub read: f64,
    /// Write rate, if measured, bytes per second.
    pub write: Option<f64>,
    /// Share of this side's segments that it retransmitted, 0 to 1.
    pub loss: f64,
}

/// The target's limits, when offered everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Whether the transport is iSER.
    pub iser: bool,
    /// MaxConnections.
    pub connections: u16,
    /// MaxBurstLength, bytes.
    pub max_burst: u32,
    /// FirstBurstLength, bytes.
    pub first_burst: u32,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxOutstandingR2T.
    pub outstanding_r2t: u16,
    /// The longest data segment that it accepts, bytes (MaxRecvDataSegmentLength, over iSER
    /// TargetRecvDataSegmentLength).
    pub segment: u32,
    /// Size of a session's command window.
    pub window: u32,
    /// The longest command of its unit, bytes.
    pub max_transfer: u32,
    /// iSER: maximum RDMA Reads that it wants outstanding.
    pub reads: u16,
}

/// One setting with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The setting.
    pub what: &'static str,
    /// Its value.
    pub value: String,
    /// The reason.
    pub why: String,
}

/// Recommended limits of the target: the `[limits]` of a Stag that serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serving {
    /// `queue-depth`.
    pub queue_depth: u32,
    /// `max-burst`, bytes.
    pub max_burst: u32,
    /// `first-burst`, bytes.
    pub first_burst: u32,
    /// `max-outstanding-r2t`.
    pub outstanding_r2t: u16,
    /// `send-high-water`, bytes.
    pub send_high_water: u32,
}

/// The concurrency for commands of one length and direction that fills a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Outstanding commands per session.
    pub depth: u16,
    /// Number of parallel sessions.
    pub sessions: u16,
}

/// The settings for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Settings of each session.
    pub settings: Settings,
    /// Number of parallel sessions; above 1 only if one does not suffice and cannot have more
    /// connections.
    pub sessions: u16,
    /// Bytes of a command.
    pub io: u32,
    /// Outstanding commands per session, for reads and writes of that length.
    pub depth: u16,
    /// Capacity of the path in bytes.
    pub holds: u64,
    /// Bytes to have in flight: reads, and fully unsolicited writes.
    pub under_way: u64,
    /// The longest fully unsolicited write, bytes.
    pub unasked: u32,
    /// Bytes to have in flight for longer writes.
    pub under_way_long: u64,
    /// The computation for commands of any length.
    pub flow: Flow,
    /// Size of a session's command window.
    window: u32,
    /// Number of sessions that the sockets require.
    links: u16,
    /// Outstanding RDMA Reads of a session's target, over iSER.
    reads: Option<u16>,
    /// The settings with their reasons, in display order.
    pub reasons: Vec<Reason>,
    /// Advice for the systems at both ends, or the target's configuration.
    pub advice: Vec<String>,
    /// Recommended limits of the target.
    pub serving: Serving,
}

/// Minimum useful command length in bytes: below it, header and turnaround cost more than the data.
const SHORTEST_IO: u32 = 64 << 10;
/// Maximum useful command length in bytes: longer ones gain nothing and delay commands behind them.
const LONGEST_IO: u32 = 1 << 20;
/// Maximum plausible rate, bytes per second.
const FASTEST: f64 = 1e12;
/// Maximum plausible duration.
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum number of parallel sessions.
const MOST_SESSIONS: u64 = 8;
/// Minimum number of outstanding commands up to that length.
const LEAST_COMMANDS: u64 = 4;
/// Lengths of commands to report a shape for, bytes.
pub const LENGTHS: [u32; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

impl Plan {
    /// The concurrency for commands of `block` bytes that fills the path, in addition to
    /// [`Plan::io`] and [`Plan::depth`].
    pub fn shape(&self, write: bool, block: u64) -> Shape {
        let window = u64::from(self.window.max(1));
        let mut sessions = u64::from(self.links.max(1));
        // A connection whose only command has just ended transfers nothing.
        let least = 2 * sessions * u64::from(self.settings.connections.unwrap_or(1));
        let least = if block <= LONGEST_IO.into() { least.max(LEAST_COMMANDS) } else { least };
        let commands = self.flow.commands(write, block).max(least);
        // The number has a margin: a window with room for nearly all of them suffices.
        if commands - commands / 8 > window.saturating_mul(sessions) {
            sessions = commands.div_ceil(window);
        }
        if let Some(reads) = self.reads.filter(|_| self.flow.turns(write, block) > 1) {
            let fetched = block.clamp(1, RDMA_READ.into()) * u64::from(reads.max(1));
            sessions = sessions.max((self.holds.saturating_add(self.holds / 2)).div_ceil(fetched));
        }
        let sessions = sessions.min(MOST_SESSIONS);
        let depth = commands.div_ceil(sessions).clamp(1, window.min(u16::MAX.into()));
        let narrow = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
        Shape { depth: narrow(depth), sessions: narrow(sessions) }
    }

    /// The concurrency for commands of `block` bytes that suits both directions.
    fn common(&self, block: u64) -> Shape {
        let [read, write] = [false, true].map(|write| self.shape(write, block));
        Shape { depth: read.depth.max(write.depth), sessions: read.sessions.max(write.sessions) }
    }
}

/// The path's capacity, plus a quarter for variation.
fn spare(holds: u64) -> u64 {
    holds.saturating_add(holds / 4)
}

/// Computes the settings for a path.
pub fn plan(measured: &Measured, allowed: &Allowed, system: &SystemLimits) -> Plan {
    let rate = measured.read.max(measured.write.unwrap_or(0.0)).clamp(1.0, FASTEST);
    let rtt = measured.rtt.p50.min(LONGEST);
    // The conversion saturates.
    let holds = (rate * rtt.as_secs_f64()).ceil() as u64;
    let wait = rtt.max(measured.alone.min(LONGEST));
    let writes = Writes::of(rate as u64, (rtt, wait), holds, allowed);
    let mut telling = Telling::default();
    let mut settings = Settings::default();
    let (under_way, under_way_long) = telling.under_way(&writes, holds, allowed);
    let links = telling.sockets(&mut settings, measured, &writes, holds, (allowed, system));
    let mut plan = Plan {
        settings,
        sessions: 1,
        io: writes.io,
        depth: 1,
        holds,
        under_way,
        unasked: writes.flow.unasked,
        under_way_long,
        flow: writes.flow,
        window: allowed.window.max(1),
        links,
        reads: writes.reads.map(|reads| reads.min(allowed.reads.max(1))),
        reasons: Vec::new(),
        advice: Vec::new(),
        serving: writes.serving(holds),
    };
    // A window too narrow for so many commands may suffice for longer ones.
    let mut shape = plan.common(plan.io.into());
    while shape.sessions > links && plan.io < writes.longest {
        plan.io *= 2;
        shape = plan.common(plan.io.into());
    }
    Shape { depth: plan.depth, sessions: plan.sessions } = shape;
    telling.commands(&plan);
    telling.congestion(&mut plan.settings, rtt, system);
    telling.negotiated(&mut plan.settings, &writes, allowed);
    plan.settings.queue_depth = (plan.depth > 128).then_some(plan.depth);
    Plan { reasons: telling.reasons, advice: telling.advice, ..plan }
}

#[cfg(test)]
pub(super) mod tests;
