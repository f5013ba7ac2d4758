//! I/O engines, `engine=`: the system calls that read and write a file or block device.
//!
//! Every engine makes the same promises; they differ in the cost of an operation and in the thread
//! that it blocks. Owns their names and the default for each medium;
//! `docs/src/reference/engines.md` has the measurements.

use std::fmt;
use std::str::FromStr;

use super::spec::{CacheMode, SpecError};

/// The system calls with which a store reads and writes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// io_uring, one operation per I/O.
    Uring,
    /// io_uring with registered buffers.
    Fixed,
    /// A system call on the connection's core if it does not need to wait (data in the page cache;
    /// any data on a file system in memory). Otherwise io_uring.
    Inline,
    /// Sends data in the page cache from a shared mapping of the file; otherwise like
    /// [`Self::Inline`].
    Mmap,
    /// Like [`Self::Mmap`], but the socket gets the page cache's own pages: no copy.
    Sendpage,
    /// Blocking calls on threads of the core.
    Threads,
    /// Blocking calls on the connection's core; every write is durable before it ends (O_DSYNC).
    /// Always write-through.
    Sync,
}

impl Engine {
    /// All engines, each with a short description.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Uring, "io_uring"),
        (Self::Fixed, "io_uring with registered buffers"),
        (Self::Inline, "at once what the page cache has, the rest by io_uring"),
        (Self::Mmap, "what the page cache has from a mapping, the rest by io_uring"),
        (Self::Sendpage, "the same, and sends without a copy"),
        (Self::Threads, "blocking calls on threads"),
        (Self::Sync, "blocking calls on the connection's core, each write durable"),
    ];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Fixed => "fixed",
            Self::Inline => "inline",
            Self::Mmap => "mmap",
            Self::Sendpage => "sendpage",
            Self::Threads => "threads",
            Self::Sync => "sync",
        }
    }

    /// Whether the engine supports a cache mode.
    ///
    /// # Errors
    /// The option to use instead.
    pub const fn fits(self, cache: CacheMode) -> Result<(), &'static str> {
        match (self, cache) {
            (Self::Inline | Self::Mmap | Self::Sendpage, CacheMode::Direct) => {
                Err("write engine=fixed, or leave cache out")
            }
            (Self::Sync, CacheMode::WriteBack | CacheMode::Direct) => {
                Err("this engine makes every write durable; write cache=writethrough, or leave cache out")
            }
            _ => Ok(()),
        }
    }

    /// The cache mode if none is configured: `default` if the engine supports it.
    pub fn cache(self, default: CacheMode) -> CacheMode {
        let modes = [default, CacheMode::WriteBack, CacheMode::WriteThrough];
        modes.into_iter().find(|mode| self.fits(*mode).is_ok()).unwrap_or(default)
    }

    /// The default engine of a cache mode. Through the page cache: the fastest measured. Past it:
    /// the fastest reads for the least processor time.
    pub const fn default_for(cache: CacheMode) -> Self {
        match cache {
            CacheMode::Direct => Self::Fixed,
            CacheMode::WriteBack | CacheMode::WriteThrough => Self::Sendpage,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let found = Self::ALL.into_iter().find(|(engine, _)| engine.name() == text);
        found.map(|(engine, _)| engine).ok_or_else(|| SpecError::Engine(text.to_owned()))
    }
}
