//! From what was measured of a path to how a session is to use it: arithmetic on bandwidth and delay, and nothing else.
//!
//! A path holds rate × round trip bytes (the bandwidth-delay product). With less under way it stands idle; what is above it waits in
//! queues. So twice of it is asked for: one that travels, and one so that neither end waits for the other. A write that is longer than
//! what goes unasked takes more round trips, and needs more commands for the same rate: how many is [`Flow`]'s to say.

mod telling;
mod writes;

use std::time::Duration;

use ring::SystemLimits;

use super::flow::Flow;
use super::settings::Settings;
use telling::Telling;
use writes::{RDMA_READ, Writes};

/// Round trips that were measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest.
    pub least: Duration,
    /// Half of them were no longer.
    pub p50: Duration,
    /// Nine of ten were no longer.
    pub p90: Duration,
    /// The longest.
    pub most: Duration,
}

impl RoundTrips {
    /// Of these, which are sorted by this. `None` of none.
    pub fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied();
        Some(Self { least: *times.first()?, p50: at(50)?, p90: at(90)?, most: *times.last()? })
    }
}

/// What was found out about a path and the unit behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Of pings (NOP-Out).
    pub rtt: RoundTrips,
    /// A lone command of 64 KiB: the round trip, its data's time on the path, and the unit's.
    pub alone: Duration,
    /// Reads with plenty under way, bytes a second.
    pub read: f64,
    /// Writes, if they were tried, bytes a second.
    pub write: Option<f64>,
    /// Of the segments that this side sent, the share that it sent again, 0 to 1.
    pub loss: f64,
}

/// What the target agrees to when it is offered everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// It is reached by iSER.
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
    /// The longest data segment that it takes, bytes (MaxRecvDataSegmentLength, over iSER TargetRecvDataSegmentLength).
    pub segment: u32,
    /// Commands of a session that it takes at a time.
    pub window: u32,
    /// The longest command of its unit, bytes.
    pub max_transfer: u32,
    /// iSER: RDMA Reads that it wants to have outstanding.
    pub reads: u16,
}

/// One choice and what it follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// What was chosen.
    pub what: &'static str,
    /// How.
    pub value: String,
    /// Why.
    pub why: String,
}

/// What the target's side should allow: the `[limits]` of a Stag that serves it.
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

/// How commands of one length and direction fill a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Commands of each session under way.
    pub depth: u16,
    /// Sessions side by side.
    pub sessions: u16,
}

/// How to use a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The session's.
    pub settings: Settings,
    /// Sessions side by side; 1 but where one is not enough and may have no more connections.
    pub sessions: u16,
    /// Bytes of a command.
    pub io: u32,
    /// Commands of each session under way, for reads and writes of that length.
    pub depth: u16,
    /// Bytes that the path holds.
    pub holds: u64,
    /// Bytes to have under way: reads, and writes that go unasked.
    pub under_way: u64,
    /// The longest write that goes unasked, bytes.
    pub unasked: u32,
    /// Bytes to have under way of writes that are longer than that.
    pub under_way_long: u64,
    /// What commands of any length call for.
    pub flow: Flow,
    /// Commands of a session that the target takes at a time.
    window: u32,
    /// Sessions that the sockets call for.
    links: u16,
    /// RDMA Reads that a session's target has outstanding, over iSER.
    reads: Option<u16>,
    /// What was chosen and why, in the order to be told.
    pub reasons: Vec<Reason>,
    /// What only the systems at both ends, or the target's configuration, can give.
    pub advice: Vec<String>,
    /// What the target's side should allow.
    pub serving: Serving,
}

/// Below this a command has more header and turnaround than data, bytes.
const SHORTEST_IO: u32 = 64 << 10;
/// Longer commands gain nothing and cost whoever waits behind them, bytes.
const LONGEST_IO: u32 = 1 << 20;
/// A rate beyond which nothing is believed, bytes a second.
const FASTEST: f64 = 1e12;
/// A time beyond which nothing is believed.
const LONGEST: Duration = Duration::from_secs(60);
/// Sessions side by side at most.
const MOST_SESSIONS: u64 = 8;
/// Commands under way at least that are no longer than that.
const LEAST_COMMANDS: u64 = 4;
/// Lengths of commands for which there is a shape to be told, bytes.
pub const LENGTHS: [u32; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

impl Plan {
    /// How commands of `block` bytes fill the path: what is there to say beside [`Plan::io`] and [`Plan::depth`].
    pub fn shape(&self, write: bool, block: u64) -> Shape {
        let window = u64::from(self.window.max(1));
        let mut sessions = u64::from(self.links.max(1));
        // A connection whose only command has just ended carries nothing.
        let least = 2 * sessions * u64::from(self.settings.connections.unwrap_or(1));
        let least = if block <= LONGEST_IO.into() { least.max(LEAST_COMMANDS) } else { least };
        let commands = self.flow.commands(write, block).max(least);
        // More than is needed is asked for: a window that has room for nearly all of that is wide enough.
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

    /// What both directions of commands of `block` bytes are well with.
    fn common(&self, block: u64) -> Shape {
        let [read, write] = [false, true].map(|write| self.shape(write, block));
        Shape { depth: read.depth.max(write.depth), sessions: read.sessions.max(write.sessions) }
    }
}

/// What the path holds, and a quarter for what varies.
fn spare(holds: u64) -> u64 {
    holds.saturating_add(holds / 4)
}

/// How to use the path.
pub fn plan(measured: &Measured, allowed: &Allowed, system: &SystemLimits) -> Plan {
    let rate = measured.read.max(measured.write.unwrap_or(0.0)).clamp(1.0, FASTEST);
    let rtt = measured.rtt.p50.min(LONGEST);
    // A float becomes the nearest number that there is.
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
    // A window that is too narrow for so many commands may be wide enough for longer ones.
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
