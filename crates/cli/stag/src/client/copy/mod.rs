//! Copies bytes between units, files and stdio, or compares them: keeps a window of chunks in
//! flight, turns zeros into holes, and on request reads back what it wrote. Runs on one ring; knows
//! units only by [`Disk`].

mod file;
mod pace;
mod side;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;

use runtime::Chain;

pub use file::{Stream, open_input, open_output};
pub use pace::Pace;
pub use side::{Sink, Source};

/// An error of a copy, and the place where it happened.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An error of a unit or an NFS file.
    #[error("{place}: {error}")]
    Remote {
        /// Its URL.
        place: String,
        /// The server's error.
        error: RemoteError,
    },
    /// An error of a local file or a stream.
    #[error("{place}: {error}")]
    Io {
        place: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// Source and sink do not fit together.
    #[error("{0}")]
    Misfit(String),
    /// The data that were read back differ from the data written.
    #[error("{place}: bytes {at} to {} are not what was written", at + len)]
    Differs {
        /// The sink.
        place: String,
        /// First byte of the chunk.
        at: u64,
        /// Its bytes.
        len: u64,
    },
    /// A comparison has found differences.
    #[error("{place} differs from {from} in {bytes} of {of} bytes, the first at byte {first}")]
    Unequal {
        /// The sink.
        place: String,
        /// The source.
        from: String,
        /// Bytes that differ.
        bytes: u64,
        /// Bytes that were compared.
        of: u64,
        first: u64,
    },
}

/// An error from the server of a unit or file.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("{0}")]
    Unit(#[from] iscsi_client::Error),
    #[error("{0}")]
    File(#[from] nfs_client::Error),
}

impl RemoteError {
    /// Whether the server could not be reached, or refused the login.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unit(error) => error.is_unreachable(),
            Self::File(error) => error.is_unreachable(),
        }
    }
}

/// A unit or NFS file as a copy uses it. Offsets and lengths are bytes, and multiples of a block.
pub trait Disk: 'static {
    /// Its URL.
    fn place(&self) -> String;
    /// Bytes of a logical block.
    fn block_bytes(&self) -> u32;
    /// Bytes of it all.
    fn bytes(&self) -> u64;
    /// Bytes that it can hold; `None` if that is not bounded.
    fn room(&self) -> Option<u64> {
        Some(self.bytes())
    }
    fn read(&self, at: u64, len: usize) -> impl Future<Output = Result<Chain, RemoteError>>;
    fn write(&self, at: u64, data: Chain) -> impl Future<Output = Result<(), RemoteError>>;
    /// Makes a range zeros without sending zeros, and frees its blocks. False if it cannot.
    fn zero(&self, at: u64, len: u64) -> impl Future<Output = Result<bool, RemoteError>>;
    /// Wanted bytes of reads or writes in flight; 0 while unknown. Twice the path's bandwidth-delay
    /// product for each round trip of an I/O.
    fn under_way(&self, _write: bool) -> u64 {
        0
    }
    /// How often its session was made anew: whether it may have lost writes that it had acknowledged
    /// and not brought to the medium.
    fn reconnects(&self) -> u64 {
        0
    }
    /// Brings everything written to the medium.
    fn sync(&self) -> impl Future<Output = Result<(), RemoteError>>;
    /// Ends a file at `end`. A unit keeps what is behind.
    fn cut(&self, _end: u64) -> impl Future<Output = Result<(), RemoteError>> {
        async { Ok(()) }
    }
    /// Called once at the end of a copy: it has written up to `end`, zeros included.
    fn end(&self, _end: u64) -> impl Future<Output = Result<(), RemoteError>> {
        async { Ok(()) }
    }
}

/// What is done with the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All of it is written.
    Copy,
    /// It is read first, and what differs is written.
    Differing,
    /// It is compared, and nothing is written.
    Check,
}

/// The ranges to copy, and the options.
#[derive(Clone, Debug)]
pub struct Plan {
    pub work: Work,
    /// First byte of the source; of a stream, 0.
    pub from_at: u64,
    /// First byte of the sink; of a stream, 0.
    pub to_at: u64,
    /// Bytes; `None` for all that the source has.
    pub length: Option<u64>,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Chunks in flight.
    pub depth: usize,
    /// Turns zeros into holes and unmapped blocks.
    pub sparse: bool,
    /// Reads back and compares what was written.
    pub verify: bool,
    /// Flushes everything to the medium at the end.
    pub sync: bool,
    /// Bounds the rate of this copy, and of others that share it.
    pub pace: Option<Rc<Pace>>,
}

/// Bytes that were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub bytes: u64,
    /// Of them, zeros that were not written as such.
    pub holes: u64,
    /// Of them, what the sink had already.
    pub there: u64,
    /// The sink's session was lost meanwhile, and the source cannot be read again: what the sink
    /// had not brought to its medium may be missing.
    pub unsure: bool,
}

/// Copies, and reports each finished piece to `progress`. With `plan.sync`, all of it is on the
/// medium then, except where [`Copied::unsure`] says otherwise.
///
/// # Errors
/// Stops at the first error, after all pieces in flight have ended.
pub async fn copy<D: Disk>(
    source: Source<D>,
    sink: Sink<D>,
    plan: &Plan,
    mut progress: impl FnMut(u64),
) -> Result<Copied, CopyError> {
    if let Some(there) = source.bytes().filter(|there| plan.from_at > *there) {
        let what = format!("{} ends at byte {there}, before byte {}", source.place(), plan.from_at);
        return Err(CopyError::Misfit(what));
    }
    let available = source.bytes().map(|bytes| bytes.saturating_sub(plan.from_at));
    let length = match (plan.length, available) {
        (Some(wanted), Some(there)) if wanted > there => {
            let what = format!("{} ends {} bytes before what was asked for", source.place(), wanted - there);
            return Err(CopyError::Misfit(what));
        }
        (Some(wanted), _) => Some(wanted),
        (None, there) => there,
    };
    if let (Some(length), Some(room)) = (length, sink.room())
        && plan.to_at.checked_add(length).is_none_or(|end| end > room)
    {
        let what = format!(
            "{} has room for {} bytes, and not {length}",
            sink.place(),
            room.saturating_sub(plan.to_at)
        );
        return Err(CopyError::Misfit(what));
    }
    // Two pieces never share a block of the sink: a block that is written in part is read first.
    let plan = &Plan { chunk: plan.chunk.max(sink.block_bytes()), ..plan.clone() };
    let there = sink.bytes()?;
    let (source, sink) = (Rc::new(source), Rc::new(sink));
    let mut reconnects = sink.reconnects();
    let (mut copied, first) = pass(&source, &sink, plan, length, there, &mut progress).await?;
    let end = plan.to_at + copied.bytes;
    if plan.work == Work::Check {
        // A file ends where the source ends; a unit may be larger.
        let longer = if sink.room().is_none() { there.saturating_sub(end) } else { 0 };
        let bytes = copied.bytes - copied.there + longer;
        let (place, from, of) = (sink.place(), source.place(), copied.bytes + longer);
        return match first.or((longer > 0).then_some(end)) {
            Some(first) => Err(CopyError::Unequal { place, from, bytes, of, first }),
            None => Ok(copied),
        };
    }
    if plan.work == Work::Differing && end < there {
        sink.cut(end).await?;
    }
    sink.finish(end, plan.sync).await?;
    // A target that was started again may have lost acknowledged writes, and its SYNCHRONIZE CACHE
    // succeeds all the same. The pass writes the missing data again.
    while plan.sync && sink.reconnects() != reconnects {
        copied.unsure = source.is_stream();
        if copied.unsure {
            break;
        }
        reconnects = sink.reconnects();
        let plan = Plan { work: Work::Differing, ..plan.clone() };
        pass(&source, &sink, &plan, Some(copied.bytes), sink.bytes()?, &mut |_| ()).await?;
        sink.finish(end, true).await?;
    }
    Ok(copied)
}

/// Copies or compares all of it once: `length` bytes, or to the end of a stream. `there`: bytes that
/// the sink has at the beginning. Returns what was done, and the first byte of the sink that
/// differed.
async fn pass<D: Disk>(
    source: &Rc<Source<D>>,
    sink: &Rc<Sink<D>>,
    plan: &Plan,
    length: Option<u64>,
    there: u64,
    progress: &mut impl FnMut(u64),
) -> Result<(Copied, Option<u64>), CopyError> {
    let skip_holes = plan.sparse && plan.work == Work::Copy && !sink.is_stream();
    let room = sink.room().map(|room| room.saturating_sub(plan.to_at));
    let block = sink.block_bytes();
    let mut claims = Claims { at: 0, length, room, block, skip_holes, done: false };
    let mut copied = Copied::default();
    let mut under_way = VecDeque::new();
    let (mut failed, mut first) = (None, None);
    loop {
        // At least the requested depth; more if the path can hold more.
        let wanted = source.under_way().max(sink.under_way()).div_ceil(plan.chunk.max(1));
        let depth = plan.depth.max(usize::try_from(wanted).unwrap_or(MOST_PIECES).min(MOST_PIECES)).max(1);
        while failed.is_none() && under_way.len() < depth {
            match claims.next(source, plan).await {
                Ok(Some(piece)) => {
                    if let (Some(pace), false) = (&plan.pace, piece.hole) {
                        pace.take(piece.len).await;
                    }
                    let (source, sink, plan) = (source.clone(), sink.clone(), plan.clone());
                    under_way.push_back(runtime::spawn(async move {
                        carry(&source, &sink, &plan, piece, there).await
                    }));
                }
                Ok(None) => break,
                Err(error) => failed = Some(error),
            }
        }
        let Some(oldest) = under_way.pop_front() else { break };
        match oldest.await {
            Ok(Ok(piece)) => {
                // A stream takes pieces in their order, which is that of this queue.
                if let (Some(data), None) = (piece.for_stream, &failed) {
                    if let Err(error) = sink.stream(data).await {
                        failed = Some(error);
                        continue;
                    }
                }
                copied.bytes += piece.bytes;
                copied.holes += piece.holes;
                copied.there += piece.there;
                first = first.or(piece.differs);
                progress(piece.bytes);
            }
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Err(_) => failed = failed.or(Some(CopyError::Misfit("a part of the copy was aborted".into()))),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok((copied, first)),
    }
}

/// A piece of the copy: bytes from the copy's beginning.
struct Piece {
    at: u64,
    len: u64,
    /// Data from a stream; `None` if it is still to be read at its offset.
    data: Option<Chain>,
    /// The source has a hole here.
    hole: bool,
}

/// A piece that is done.
#[derive(Default)]
struct Carried {
    bytes: u64,
    holes: u64,
    /// Bytes that the sink had already.
    there: u64,
    /// The first byte of the sink that differed.
    differs: Option<u64>,
    for_stream: Option<Chain>,
}

/// Cuts the source into pieces.
struct Claims {
    at: u64,
    length: Option<u64>,
    room: Option<u64>,
    /// Bytes of a block of the sink.
    block: u64,
    skip_holes: bool,
    done: bool,
}

impl Claims {
    async fn next<D: Disk>(&mut self, source: &Source<D>, plan: &Plan) -> Result<Option<Piece>, CopyError> {
        let left = self.length.map_or(u64::MAX, |length| length - self.at);
        if self.done || left == 0 {
            return Ok(None);
        }
        // Ends at a multiple of a chunk in the sink, so that all commands but the first are
        // aligned.
        let mut len = (plan.chunk - (plan.to_at + self.at) % plan.chunk).min(left);
        let (mut data, mut hole) = (None, false);
        if let Some(read) = source.stream(len as usize).await? {
            self.done = (read.len() as u64) < len;
            len = read.len() as u64;
            data = Some(read);
            if len == 0 {
                return Ok(None);
            }
            if let Some(room) = self.room.filter(|room| self.at + len > *room) {
                let what =
                    format!("{} has more than the {room} bytes that there is room for", source.place());
                return Err(CopyError::Misfit(what));
            }
        } else if self.skip_holes {
            // A hole is one piece, up to a bound that keeps the progress bar moving.
            let mut known = source.hole(plan.from_at + self.at, left.min(HOLE)).await?;
            if known < left {
                // The next piece would write the rest of the block, side by side with this one.
                known = known.saturating_sub((plan.to_at + self.at + known) % self.block);
            }
            hole = known > 0;
            len = if hole { known } else { len };
        }
        let piece = Piece { at: self.at, len, data, hole };
        self.at += len;
        Ok(Some(piece))
    }
}

/// Most pieces in flight, unless more are requested. Each holds its data in memory.
const MOST_PIECES: usize = 128;

/// The longest hole that is taken as one piece, bytes.
const HOLE: u64 = 64 << 20;

/// `there`: bytes that the sink has had from the beginning.
async fn carry<D: Disk>(
    source: &Source<D>,
    sink: &Sink<D>,
    plan: &Plan,
    piece: Piece,
    there: u64,
) -> Result<Carried, CopyError> {
    let to = plan.to_at + piece.at;
    if piece.hole && sink.zero(to, piece.len).await? {
        return Ok(Carried { bytes: piece.len, holes: piece.len, ..Carried::default() });
    }
    let mut data = piece.data;
    let mut done = Carried { bytes: piece.len, ..Carried::default() };
    let mut at = 0;
    // One iteration, except for a hole that the sink cannot make: its zeros are written in chunks.
    while at < piece.len {
        let len = (piece.len - at).min(plan.chunk);
        let chunk = match data.take() {
            Some(chunk) => chunk,
            None => source.read(plan.from_at + piece.at + at, len as usize).await?,
        };
        if plan.work != Work::Copy {
            let known = len.min(there.saturating_sub(to + at));
            let back = if known > 0 { sink.read(to + at, known as usize).await? } else { None };
            let (same, first) = compare(&chunk, &back.unwrap_or_default());
            done.differs = done.differs.or(first.map(|first| to + at + first));
            if first.is_none() || plan.work == Work::Check {
                done.there += same;
                at += len;
                continue;
            }
        }
        if sink.is_stream() {
            done.for_stream.get_or_insert_default().append(chunk);
        } else if plan.sparse && is_zero(&chunk) && sink.zero(to + at, len).await? {
            done.holes += len;
        } else {
            sink.write(to + at, chunk.clone()).await?;
            if plan.verify && sink.read(to + at, len as usize).await?.is_some_and(|back| !same(&back, &chunk))
            {
                return Err(CopyError::Differs { place: sink.place(), at: to + at, len });
            }
        }
        at += len;
    }
    Ok(done)
}

/// Whether all bytes are zeros.
fn is_zero(chain: &Chain) -> bool {
    let mut zero = true;
    chain.for_each_slice(|bytes| {
        let words = bytes.chunks_exact(16);
        let rest = words.remainder().iter().all(|byte| *byte == 0);
        let word = |word: &[u8]| word.try_into().map_or(0, u128::from_ne_bytes);
        zero = zero && rest && words.fold(0, |all, bytes| all | word(bytes)) == 0;
    });
    zero
}

/// How many bytes of `data` are the same in `there`, and the first that is not.
fn compare(data: &Chain, there: &Chain) -> (u64, Option<u64>) {
    if same(data, there) {
        return (data.len() as u64, None);
    }
    let (data, there) = (data.to_vec(), there.to_vec());
    let equal = data.iter().zip(&there).filter(|(a, b)| a == b).count();
    let first = data.iter().zip(&there).position(|(a, b)| a != b).unwrap_or(there.len());
    (equal as u64, Some(first as u64))
}

/// Whether both hold the same bytes.
fn same(a: &Chain, b: &Chain) -> bool {
    a.len() == b.len() && a.to_vec() == b.to_vec()
}
