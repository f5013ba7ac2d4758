//! Files, devices and streams as sides of a copy.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use runtime::{Chain, File, OpenOptions, blocking};

use super::{CopyError, Disk, Sink, Source, Work};

/// Something that is read or written from its beginning to its end: stdin, stdout, a pipe, a
/// terminal.
pub struct Stream {
    place: String,
    ends: Arc<Mutex<Ends>>,
}

enum Ends {
    Read(Box<dyn Read + Send>),
    Write(Box<dyn Write + Send>),
}

impl Stream {
    pub fn reader(place: &str, from: impl Read + Send + 'static) -> Self {
        Self { place: place.to_owned(), ends: Arc::new(Mutex::new(Ends::Read(Box::new(from)))) }
    }

    /// A stream that is written to.
    pub fn writer(place: &str, to: impl Write + Send + 'static) -> Self {
        Self { place: place.to_owned(), ends: Arc::new(Mutex::new(Ends::Write(Box::new(to)))) }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The next `len` bytes, or fewer at the end.
    pub(super) async fn read(&self, len: usize) -> io::Result<Chain> {
        let ends = self.ends.clone();
        let read = move || -> io::Result<Vec<u8>> {
            let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
            let Ends::Read(from) = &mut *ends else { return Ok(Vec::new()) };
            let mut data = Vec::with_capacity(len);
            from.take(len as u64).read_to_end(&mut data)?;
            Ok(data)
        };
        blocking(read).await.map(Chain::from)
    }

    pub(super) async fn write(&self, data: Chain) -> io::Result<()> {
        let ends = self.ends.clone();
        let data = data.to_vec();
        blocking(move || match &mut *ends.lock().unwrap_or_else(PoisonError::into_inner) {
            Ends::Write(to) => to.write_all(&data),
            Ends::Read(_) => Ok(()),
        })
        .await
    }

    pub(super) async fn flush(&self) -> io::Result<()> {
        let ends = self.ends.clone();
        blocking(move || match &mut *ends.lock().unwrap_or_else(PoisonError::into_inner) {
            Ends::Write(to) => to.flush(),
            Ends::Read(_) => Ok(()),
        })
        .await
    }
}

/// Opens the file, device or pipe at `path` as a source.
pub fn open_input<D: Disk>(path: &Path) -> Result<Source<D>, CopyError> {
    let place = path.display().to_string();
    let open = || -> io::Result<Source<D>> {
        let kind = std::fs::metadata(path)?.file_type();
        if kind.is_file() || kind.is_block_device() {
            let file = File::open(path, OpenOptions { read_only: true, ..OpenOptions::default() })?;
            let bytes = file.size()?;
            return Ok(Source::File(place.clone(), file, bytes, kind.is_file()));
        }
        if kind.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Source::Stream(Stream::reader(&place, std::fs::File::open(path)?)))
    };
    open().map_err(|error| CopyError::Io { place: place.clone(), error })
}

/// Opens the file, device or pipe at `path` as a sink. A file is created, or truncated if all of it
/// is written.
pub fn open_output<D: Disk>(path: &Path, work: Work) -> Result<Sink<D>, CopyError> {
    let place = path.display().to_string();
    let (read_only, truncate) = (work == Work::Check, work == Work::Copy);
    let open = || -> io::Result<Sink<D>> {
        match std::fs::metadata(path).map(|about| about.file_type()) {
            Ok(kind) if kind.is_block_device() => {
                let file = File::open(
                    path,
                    OpenOptions { read_only, exclusive: !read_only, ..OpenOptions::default() },
                )?;
                let bytes = file.size()?;
                return Ok(Sink::Device(place.clone(), file, bytes));
            }
            Ok(kind) if kind.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(kind) if !kind.is_file() && truncate => {
                let file = std::fs::OpenOptions::new().write(true).open(path)?;
                return Ok(Sink::Stream(Stream::writer(&place, file)));
            }
            Ok(kind) if !kind.is_file() => return Err(io::ErrorKind::NotSeekable.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !read_only => {}
            Err(error) => return Err(error),
        }
        let options = OpenOptions { read_only, create: !read_only, truncate, ..OpenOptions::default() };
        Ok(Sink::File(place.clone(), File::open(path, options)?, truncate))
    };
    open().map_err(|error| CopyError::Io { place: place.clone(), error })
}
