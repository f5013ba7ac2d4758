//! Identifiers of a session's tasks and connections.

/// A task of a session, unique over a very long time. Its number is the Initiator Task Tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskKey(pub(super) u32);

impl TaskKey {
    /// The Initiator Task Tag.
    pub fn itt(self) -> u32 {
        self.0
    }

    pub(super) fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// A connection of a session, by its index in the session. Not the CID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);
