//! The setting `identity`: it is apart from the identity itself, which depends on a unit's options.

/// The names of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Its own, random ones.
    Own,
    /// Names derived from its path, or from its target and number if it is in memory: the same on
    /// every machine.
    Derived,
}
