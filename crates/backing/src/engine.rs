//! By which calls a file or block device is read and written: `engine=`.
//!
//! Every engine keeps the same promises; they differ in what an operation costs and in what it holds up. Owns their names
//! and which of them a medium gets by default; `docs/io-engines.md` has the measurements behind it.

use std::fmt;
use std::str::FromStr;

use super::spec::{CacheMode, SpecError};

/// By which calls a store on a file reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// io_uring, one operation an I/O.
    Uring,
    /// The same, with buffers that the kernel knows beforehand.
    Fixed,
    /// A system call on the connection's core where that needs no waiting (what the page cache has; anything on a file
    /// system in memory); the rest by io_uring.
    Inline,
    /// What the page cache has is sent from a shared mapping of the file; the rest as [`Self::Inline`].
    Mmap,
    /// The same, and the socket gets the page cache's own pages: nothing is copied.
    Sendpage,
    /// Blocking calls on threads of the core.
    Threads,
    /// Blocking calls on the connection's core, with every write durable before it ends (O_DSYNC). Always write-through.
    Sync,
}

impl Engine {
    /// All of them, with what each is.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Uring, "io_uring"),
        (Self::Fixed, "io_uring with registered buffers"),
        (Self::Inline, "at once what the page cache has, the rest by io_uring"),
        (Self::Mmap, "what the page cache has from a mapping, the rest by io_uring"),
        (Self::Sendpage, "the same, and nothing is copied on the way to the socket"),
        (Self::Threads, "blocking calls on threads"),
        (Self::Sync, "blocking calls on the connection's core, each write durable"),
    ];

    /// What it is called in options.
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

    /// Whether it can work in a cache mode; if not, what to write instead.
    ///
    /// # Errors
    /// What to write.
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

    /// The cache mode where none was asked for: `default` if the engine can work in it.
    pub fn cache(self, default: CacheMode) -> CacheMode {
        let modes = [default, CacheMode::WriteBack, CacheMode::WriteThrough];
        modes.into_iter().find(|mode| self.fits(*mode).is_ok()).unwrap_or(default)
    }

    /// What a cache mode gets by default: for the page cache the measured best, past it what reads best for the least processor.
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
