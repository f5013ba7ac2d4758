//! [`Medium`]: a unit, a file or a directory as a load sees it. [`super::drive`] is the same for
//! all of them, and is compiled for each.

use std::ops::Deref;
use std::time::Instant;

use runtime::Chain;

use super::BenchError;
use super::plan::{Run, Seat};
use super::tally::Tally;
use crate::args::{Bench, Remote};

/// One read or write.
pub enum Io {
    /// A read. With `keep`, its data are returned, to be verified.
    Read { keep: bool },
    /// A write of these data.
    Write(Chain),
}

/// Result of a read or write.
pub enum Outcome<D> {
    /// Well, with the data that were to be kept.
    Done(Option<D>),
    /// A passing error: the same I/O may succeed when it is sent again, after a while if `pause`.
    Again {
        pause: bool,
        reason: String,
    },
    Failed(String),
}

/// A finished I/O.
pub struct End<D> {
    /// The index that was passed to [`Medium::submit`].
    pub index: u16,
    /// Time at which its last byte was received, or its end was known.
    pub at: Instant,
    pub outcome: Outcome<D>,
}

/// The session has failed, and why.
#[derive(Debug)]
pub struct Lost {
    pub reason: String,
    /// Whether the server could not be reached, or refused the login.
    pub unreachable: bool,
}

impl Lost {
    /// The error of the session with `url`.
    pub fn of(self, url: &str) -> BenchError {
        BenchError::Session { url: url.to_owned(), reason: self.reason, unreachable: self.unreachable }
    }
}

/// One session with a unit, file or directory: takes many reads and writes at a time, and returns
/// their results.
pub trait Medium: Sized + 'static {
    /// A finished I/O as the medium delivers it, before [`Medium::judge`].
    type Ended;
    /// Data that were read.
    type Data: Deref<Target = [u8]>;

    /// Opens the unit, file or directory of `seat`.
    async fn open(url: &Remote, args: &Bench, run: &Run, seat: &Seat) -> Result<Self, BenchError>;

    /// Bytes of a block: the smallest I/O.
    fn block_len(&self) -> u32;

    /// Bytes of all of it.
    fn len(&self) -> u64;

    /// The most bytes of one I/O.
    fn most(&self) -> u64;

    /// Begins an I/O of `bs` bytes at byte `offset`, which [`End::index`] names.
    fn submit(&mut self, index: u16, offset: u64, bs: u32, io: Io) -> Result<(), Lost>;

    /// Sends submitted I/Os that the medium has held back to send them together.
    fn flush(&mut self);

    /// I/Os that have not ended.
    fn in_flight(&self) -> usize;

    /// Takes all waiting ends. Returns their number.
    fn take(&mut self, into: &mut Vec<Self::Ended>) -> usize;

    /// Takes all waiting ends; waits if there are none.
    async fn completions(&mut self, into: &mut Vec<Self::Ended>) -> Result<(), Lost>;

    /// The result of an I/O of `bs` bytes. `is_write` tells of an index whether it was a write.
    fn judge(ended: Self::Ended, is_write: impl FnOnce(u16) -> bool, bs: u32) -> End<Self::Data>;

    /// Has everything written made stable.
    async fn sync(&mut self) -> Result<(), Lost>;

    /// Counts what the session recovered from, and ends it.
    async fn close(self, tally: &mut Tally, url: &str);
}
