//! Tuning a session for its path.
//!
//! [`plan`] turns what was measured of a path, and what the target and the system allow, into [`Settings`], with the arithmetic
//! that led there: it decides nothing that cannot be said in numbers. How many commands a path takes is in [`flow`]. [`governor`] does
//! the same while a session runs, from what it
//! sees of its own traffic. Both are functions of their inputs: no I/O, no clock. [`measure`] finds the inputs out.
//!
//! Settings are also the words behind a URL's `?`: `iscsi://host/iqn.2026-01.org.example:disk/0?connections=4&first-burst=1M`.

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

/// Connections that a session may come to by itself; one that was asked for more may have those.
pub const MOST_CONNECTIONS: u16 = 4;

/// Whether a session tunes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// It is run as its options say.
    #[default]
    Off,
    /// It watches round trips and throughput, and changes within its options' bounds what can be changed in full-feature phase:
    /// commands given to the target at a time, connections, how writes are split, what goes unasked. See [`governor`].
    Auto,
}

/// What a session that tunes itself knows and has decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Commands that the target is given at a time.
    pub commands: usize,
    /// Connections that the session wants to have.
    pub connections: u16,
    /// Over iSER, the longest write that goes with its command, bytes; `None`: as the options say.
    pub unsolicited: Option<u32>,
    /// The longest write that is not split, bytes; `None`: as long as a command may be.
    pub write_piece: Option<u32>,
    /// What sockets' send buffers were set to, bytes; `None`: they grow by themselves.
    pub send_buffer: Option<u64>,
    /// The shortest round trip that was seen; zero before the first.
    pub rtt: Duration,
    /// The highest throughput that was seen over an interval, bytes a second, reads and writes together.
    pub rate: f64,
    /// Decisions that changed something.
    pub changes: u64,
    /// Those that were taken back because they gained nothing.
    pub reverted: u64,
}

impl Tuning {
    /// What a session begins with.
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

    /// Bytes to have under way so that neither the path nor the target waits: twice what the path holds; 0 while that is unknown.
    /// Twice that again for writes that are longer than what goes unasked: a round trip passes until they are asked for.
    pub fn bytes_under_way(&self, write: bool) -> u64 {
        let turns = if write && self.write_piece.is_none() { 2.0 } else { 1.0 };
        (2.0 * turns * self.rate * self.rtt.as_secs_f64()) as u64
    }
}
