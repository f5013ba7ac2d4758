//! Tunes a session for its path.
//!
//! [`plan`] turns the measurements of a path, and the limits of the target and the system, into
//! [`Settings`] with their derivation: every decision follows from numbers. [`flow`] computes how
//! many commands fill a path. [`governor`] does the same while a session runs, from samples of its
//! own traffic. Both are pure functions: no I/O, no clock. [`measure`] takes the measurements.
//!
//! Settings are also the options after a URL's `?`:
//! `iscsi://host/iqn.2026-01.org.example:disk/0?connections=4&first-burst=1M`.

mod buffers;
pub mod flow;
pub mod governor;
pub mod measure;
#[cfg(test)]
mod model;
pub mod plan;
mod settings;

use std::time::Duration;

pub use settings::{SettingError, Settings};

/// Maximum connections that a session adds by itself; a session configured for more may have those.
pub const MOST_CONNECTIONS: u16 = 4;

/// Whether a session tunes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// The session uses its options unchanged.
    #[default]
    Off,
    /// The session observes round trips and throughput, and changes its settings within its
    /// options' bounds in the full feature phase. These are the outstanding commands, connections,
    /// the splitting of writes, and unsolicited data. See [`governor`].
    Auto,
}

/// The observations and decisions of automatic tuning.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Maximum number of outstanding commands.
    pub commands: usize,
    /// Number of connections that the session wants.
    pub connections: u16,
    /// Over iSER, the longest write sent with its command, bytes; `None`: as the options set it.
    pub unsolicited: Option<u32>,
    /// Maximum length of a write before it is split, bytes; `None`: no extra limit.
    pub write_piece: Option<u32>,
    /// The configured send buffers of the sockets, bytes; `None`: automatic.
    pub send_buffer: Option<u64>,
    /// The minimum round trip; zero before the first one.
    pub rtt: Duration,
    /// The highest throughput over an interval, bytes per second, reads and writes together.
    pub rate: f64,
    /// Decisions that changed something.
    pub changes: u64,
    /// Those that were reverted because they gained nothing.
    pub reverted: u64,
}

impl Tuning {
    /// The initial state.
    pub fn begin(commands: usize, connections: u16) -> Self {
        Self {
            commands,
            connections,
            unsolicited: None,
            write_piece: None,
            send_buffer: None,
            rtt: Duration::ZERO,
            rate: 0.0,
            changes: 0,
            reverted: 0,
        }
    }

    /// Bytes to have in flight so that neither the path nor the target waits: twice the path's
    /// capacity; 0 while that is unknown. Twice as many for writes with solicited data, which take
    /// one more round trip.
    pub fn bytes_under_way(&self, write: bool) -> u64 {
        let turns = if write && self.write_piece.is_none() { 2.0 } else { 1.0 };
        (2.0 * turns * self.rate * self.rtt.as_secs_f64()) as u64
    }
}
