//! What a load needs of what it reads and writes: a unit or a file. [`super::drive`] is the same for
//! both, and is compiled for each of them.

use std::ops::Deref;
use std::time::Instant;

use runtime::Chain;

use super::BenchError;
use super::plan::{Run, Seat};
use super::tally::Tally;
use crate::args::{Bench, Remote};

/// One read or write.
pub enum Io {
    /// A read, of whose data `keep` says whether anybody looks at them.
    Read { keep: bool },
    /// A write of these data.
    Write(Chain),
}

/// How a read or write ended.
pub enum Outcome<D> {
    /// Well, with the data that were to be kept.
    Done(Option<D>),
    /// Not yet: the same may well succeed when it is sent again, after a while if `pause` says so.
    Again {
        pause: bool,
        reason: String,
    },
    Failed(String),
}

/// An end: of which I/O, and when.
pub struct End<D> {
    /// The number that [`Medium::submit`] was given.
    pub index: u16,
    /// When its last byte was received, or its end was known.
    pub at: Instant,
    pub outcome: Outcome<D>,
}

/// Why nothing goes on.
#[derive(Debug)]
pub struct Lost {
    pub reason: String,
    /// Nobody let this client in.
    pub unreachable: bool,
}

impl Lost {
    /// The error of the session with `url`.
    pub fn of(self, url: &str) -> BenchError {
        BenchError::Session { url: url.to_owned(), reason: self.reason, unreachable: self.unreachable }
    }
}

/// One session's way to what is loaded: takes many reads and writes at a time, and tells their ends.
pub trait Medium: Sized + 'static {
    /// An end as it comes.
    type Ended;
    /// Data that were read.
    type Data: Deref<Target = [u8]>;

    /// Opens what `seat` works on.
    async fn open(url: &Remote, args: &Bench, run: &Run, seat: &Seat) -> Result<Self, BenchError>;

    /// Bytes of a block: the smallest I/O.
    fn block_len(&self) -> u32;

    /// Bytes of all of it.
    fn len(&self) -> u64;

    /// The most bytes of one I/O.
    fn most(&self) -> u64;

    /// Begins an I/O of `bs` bytes at byte `offset`, which [`End::index`] names.
    fn submit(&mut self, index: u16, offset: u64, bs: u32, io: Io) -> Result<(), Lost>;

    /// Sends what was submitted, if it waits for more.
    fn flush(&mut self);

    /// I/Os that have not ended.
    fn in_flight(&self) -> usize;

    /// Takes the ends that there are. Returns how many.
    fn take(&mut self, into: &mut Vec<Self::Ended>) -> usize;

    /// Takes ends, and waits for the first.
    async fn completions(&mut self, into: &mut Vec<Self::Ended>) -> Result<(), Lost>;

    /// How an I/O of `bs` bytes ended, a write if `is_write` says so of its number.
    fn judge(ended: Self::Ended, is_write: impl FnOnce(u16) -> bool, bs: u32) -> End<Self::Data>;

    /// Has everything written made stable.
    async fn sync(&mut self) -> Result<(), Lost>;

    /// Counts what the session recovered from, and ends it.
    async fn close(self, tally: &mut Tally, url: &str);
}
