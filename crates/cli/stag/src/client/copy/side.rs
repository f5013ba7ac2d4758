//! The two sides of a copy. Units are written in whole blocks, so a piece that ends within a block
//! reads that block first.

use std::io;
use std::rc::Rc;

use runtime::{Chain, File, pool};

use super::file::Stream;
use super::{CopyError, Disk, RemoteError};

/// The side that bytes are read from.
pub enum Source<D> {
    /// A unit, or a file of NFS.
    Unit(Rc<D>),
    /// A file or block device: its path, itself, its bytes, and whether it can have holes.
    File(String, File, u64, bool),
    /// stdin, a pipe or a terminal.
    Stream(Stream),
}

/// The side that bytes are written to.
pub enum Sink<D> {
    /// A unit, or a file of NFS.
    Unit(Rc<D>),
    /// A file: its path, itself, and whether it was empty.
    File(String, File, bool),
    /// A block device: its path, itself and its bytes.
    Device(String, File, u64),
    /// stdout, a pipe or a terminal.
    Stream(Stream),
}

fn unit<D: Disk>(disk: &D) -> impl FnOnce(RemoteError) -> CopyError {
    let place = disk.place();
    move |error| CopyError::Remote { place, error }
}

fn file(place: &str) -> impl FnOnce(io::Error) -> CopyError {
    let place = place.to_owned();
    move |error| CopyError::Io { place, error }
}

/// The whole blocks around a range: first byte, bytes.
fn around(at: u64, len: u64, block: u64) -> (u64, u64) {
    let first = at / block * block;
    (first, (at + len).next_multiple_of(block) - first)
}

async fn read_unit<D: Disk>(disk: &D, at: u64, len: usize) -> Result<Chain, CopyError> {
    let (first, whole) = around(at, len as u64, disk.block_bytes().into());
    let mut data = disk.read(first, whole as usize).await.map_err(unit(disk))?;
    data.advance(((at - first) as usize).min(data.len()));
    data.truncate(len);
    Ok(data)
}

async fn read_file(place: &str, from: &File, at: u64, len: usize) -> Result<Chain, CopyError> {
    let mut data = Chain::new();
    while data.len() < len {
        let buf = pool::alloc_wait(len - data.len()).await;
        let (wanted, at) = (buf.len(), at + data.len() as u64);
        let (got, mut buf) = from.read_at(buf, at).await;
        let got = got.map_err(file(place))?;
        if got < wanted {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read");
            return Err(file(place)(error));
        }
        buf.truncate(got);
        data.push(buf.freeze());
    }
    Ok(data)
}

impl<D: Disk> Source<D> {
    /// As [`Disk::under_way`].
    pub fn under_way(&self) -> u64 {
        if let Self::Unit(disk) = self { disk.under_way(false) } else { 0 }
    }

    /// Its name for messages.
    pub fn place(&self) -> String {
        match self {
            Self::Unit(disk) => disk.place(),
            Self::File(place, ..) => place.clone(),
            Self::Stream(stream) => stream.place().to_owned(),
        }
    }

    /// Its length in bytes, if known.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Unit(disk) => Some(disk.bytes()),
            Self::File(_, _, bytes, _) => Some(*bytes),
            Self::Stream(_) => None,
        }
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// The next `len` bytes of a stream, or fewer at its end. `None` if the source is not a stream.
    pub(super) async fn stream(&self, len: usize) -> Result<Option<Chain>, CopyError> {
        let Self::Stream(stream) = self else { return Ok(None) };
        stream.read(len).await.map(Some).map_err(file(stream.place()))
    }

    /// Length of the hole at `at`, up to `most` bytes; 0 if there is none.
    pub(super) async fn hole(&self, at: u64, most: u64) -> Result<u64, CopyError> {
        let Self::File(place, from, bytes, true) = self else { return Ok(0) };
        let data = from.seek_data(at).await.map_err(file(place))?.unwrap_or(*bytes);
        Ok(data.saturating_sub(at).min(most))
    }

    /// Reads exactly `len` bytes at `at`.
    pub(super) async fn read(&self, at: u64, len: usize) -> Result<Chain, CopyError> {
        match self {
            Self::Unit(disk) => read_unit(&**disk, at, len).await,
            Self::File(place, from, ..) => read_file(place, from, at, len).await,
            Self::Stream(_) => Ok(Chain::new()),
        }
    }
}

impl<D: Disk> Sink<D> {
    /// As [`Disk::under_way`].
    pub fn under_way(&self) -> u64 {
        if let Self::Unit(disk) = self { disk.under_way(true) } else { 0 }
    }

    /// Its name for messages.
    pub fn place(&self) -> String {
        match self {
            Self::Unit(disk) => disk.place(),
            Self::File(place, ..) | Self::Device(place, ..) => place.clone(),
            Self::Stream(stream) => stream.place().to_owned(),
        }
    }

    /// Bytes that it can hold; `None` if that is not bounded.
    pub fn room(&self) -> Option<u64> {
        match self {
            Self::Unit(disk) => disk.room(),
            Self::Device(_, _, bytes) => Some(*bytes),
            Self::File(..) | Self::Stream(_) => None,
        }
    }

    /// Bytes that it has had from the beginning.
    pub(super) fn bytes(&self) -> Result<u64, CopyError> {
        match self {
            Self::Unit(disk) => Ok(disk.bytes()),
            Self::File(place, to, _) => to.size().map_err(file(place)),
            Self::Device(_, _, bytes) => Ok(*bytes),
            Self::Stream(_) => Ok(0),
        }
    }

    /// Length of a block, which is always written whole.
    pub(super) fn block_bytes(&self) -> u64 {
        match self {
            Self::Unit(disk) => disk.block_bytes().into(),
            _ => 1,
        }
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// As [`Disk::reconnects`].
    pub(super) fn reconnects(&self) -> u64 {
        if let Self::Unit(disk) = self { disk.reconnects() } else { 0 }
    }

    /// The next bytes of a stream.
    pub(super) async fn stream(&self, data: Chain) -> Result<(), CopyError> {
        let Self::Stream(stream) = self else { return Ok(()) };
        stream.write(data).await.map_err(file(stream.place()))
    }

    /// Makes a range zeros without writing them, if that can be done.
    pub(super) async fn zero(&self, at: u64, len: u64) -> Result<bool, CopyError> {
        match self {
            Self::Unit(disk) => {
                let block = u64::from(disk.block_bytes());
                if at % block != 0 || len % block != 0 {
                    return Ok(false);
                }
                disk.zero(at, len).await.map_err(unit(&**disk))
            }
            // An unwritten range becomes a hole when the file gets its length.
            Self::File(_, _, true) => Ok(true),
            Self::File(_, to, false) | Self::Device(_, to, _) => Ok(to.zero(at, len).await.is_ok()),
            Self::Stream(_) => Ok(false),
        }
    }

    pub(super) async fn write(&self, at: u64, data: Chain) -> Result<(), CopyError> {
        match self {
            Self::Unit(disk) => {
                let (first, whole) = around(at, data.len() as u64, disk.block_bytes().into());
                let data = if whole == data.len() as u64 {
                    data
                } else {
                    self.patched(first, whole, at, data).await?
                };
                disk.write(first, data).await.map_err(unit(&**disk))
            }
            Self::File(place, to, _) | Self::Device(place, to, _) => {
                to.write_at(data, at, false).await.map_err(file(place))
            }
            Self::Stream(_) => self.stream(data).await,
        }
    }

    /// The blocks from `first` on as they are, with `data` at `at`.
    async fn patched(&self, first: u64, whole: u64, at: u64, data: Chain) -> Result<Chain, CopyError> {
        let mut blocks = self.read(first, whole as usize).await?.map_or_else(Vec::new, |old| old.to_vec());
        let offset = (at - first) as usize;
        blocks.resize(whole as usize, 0);
        data.copy_to_slice(&mut blocks[offset..offset + data.len()]);
        Ok(Chain::from(blocks))
    }

    /// Reads back; `None` from a stream.
    pub(super) async fn read(&self, at: u64, len: usize) -> Result<Option<Chain>, CopyError> {
        match self {
            Self::Unit(disk) => read_unit(&**disk, at, len).await.map(Some),
            Self::File(place, to, _) | Self::Device(place, to, _) => {
                read_file(place, to, at, len).await.map(Some)
            }
            Self::Stream(_) => Ok(None),
        }
    }

    /// Gives up what is behind `end`; a local file does at its end.
    pub(super) async fn cut(&self, end: u64) -> Result<(), CopyError> {
        let Self::Unit(disk) = self else { return Ok(()) };
        disk.cut(end).await.map_err(unit(&**disk))
    }

    /// Ends at `end`; with `sync`, everything is on the medium.
    pub(super) async fn finish(&self, end: u64, sync: bool) -> Result<(), CopyError> {
        match self {
            Self::Unit(disk) => {
                disk.end(end).await.map_err(unit(&**disk))?;
                if sync { disk.sync().await.map_err(unit(&**disk)) } else { Ok(()) }
            }
            Self::File(place, to, _) => {
                to.set_len(end).await.map_err(file(place))?;
                if sync { to.sync_all().await.map_err(file(place)) } else { Ok(()) }
            }
            Self::Device(place, to, _) if sync => to.sync_data().await.map_err(file(place)),
            Self::Stream(stream) => stream.flush().await.map_err(file(stream.place())),
            Self::Device(..) => Ok(()),
        }
    }
}
