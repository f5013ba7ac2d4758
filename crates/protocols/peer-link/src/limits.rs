//! What an end keeps at most, and the timers.

use std::time::Duration;

/// The owner's limits hold for both ends: it tells them in the handshake. `piece` is each end's
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of data in one frame to this end.
    pub piece: u32,
    /// Commands in flight.
    pub commands: u16,
    /// I_T_L nexuses.
    pub nexuses: u32,
    /// Bytes of Data-Out that come with commands, unsolicited, until those commands have ended.
    pub unsolicited: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { piece: 256 << 10, commands: 512, nexuses: 4096, unsolicited: 4 << 20 }
    }
}

impl Limits {
    /// The fewest bytes of a piece.
    pub const LEAST_PIECE: u32 = 4 << 10;
    /// The most bytes of a piece.
    pub const MOST_PIECE: u32 = 1 << 20;
    /// The most commands.
    pub const MOST_COMMANDS: u16 = 8192;
    /// The most nexuses.
    pub const MOST_NEXUSES: u32 = 1 << 16;
    /// The most unsolicited bytes.
    pub const MOST_UNSOLICITED: u32 = 1 << 30;
    /// Slots besides for task management, which must not wait for commands.
    pub(crate) const FUNCTIONS: usize = 8;

    /// Whether the protocol allows them.
    #[must_use]
    pub fn fit(&self) -> bool {
        (Self::LEAST_PIECE..=Self::MOST_PIECE).contains(&self.piece)
            && (1..=Self::MOST_COMMANDS).contains(&self.commands)
            && (1..=Self::MOST_NEXUSES).contains(&self.nexuses)
            && self.unsolicited <= Self::MOST_UNSOLICITED
    }

    pub(crate) fn slots(&self) -> usize {
        usize::from(self.commands) + Self::FUNCTIONS
    }
}

/// How often an owner sends its time, if it has nothing else to say.
pub const BEAT: Duration = Duration::from_millis(250);
/// A peer from which nothing has come for so long has lost its connection. It is less than
/// `suspected` of the group's timers, so that a dead gateway is suspected in time.
pub const SILENT: Duration = Duration::from_secs(1);
