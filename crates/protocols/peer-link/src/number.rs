//! Numbers of forwardings: a slot and how often it was used.
//!
//! A slot carries one forwarding at a time. Its next one says that the forwarder has the last one's
//! end. So the owner remembers one end a slot, without acknowledgements, and a number that is not
//! above the slot's last one never begins.

use std::fmt;

/// The number of a forwarded command or task management function. Never used twice between two
/// machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(u64);

impl Number {
    const SLOTS: u32 = 16;

    pub(crate) fn new(slot: usize, turn: u64) -> Self {
        Self(turn << Self::SLOTS | (slot as u64 & 0xffff))
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// How many forwardings the slot has had with this one: 1 or more.
    pub(crate) fn turn(self) -> u64 {
        self.0 >> Self::SLOTS
    }

    /// As on the wire.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// From the wire.
    #[must_use]
    pub fn from_wire(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.slot(), self.turn())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
