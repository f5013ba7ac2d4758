//! The versions of the standard.

/// Standard that a command follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// INCITS 400-2004.
    Osd1,
    /// INCITS 458-2011 and its drafts.
    Osd2,
}
