//! Classic mistakes that tests put back, to show that the checker finds each. Not in any build but
//! that of this crate's tests.

/// One mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// None: the machine as it ships.
    #[default]
    None,
    /// A new owner does not wait for the map epoch of the fences before it.
    NoBarrier,
    /// Who is no watcher of the group's object is no member, so that no fence is needed.
    WatchersAsMembers,
    /// Heartbeats carry the time of their sender, and an observer compares it with its own clock.
    ComparingClocks,
    /// An instance is taken out without a blocklist entry.
    NoBlocklist,
    /// The observer waits until the other one's lease must have ended, and takes no fence.
    LeaseWithoutGuard,
}
