//! [`Node`]: a file that is open. Owns its descriptors and its flushes.
//!
//! Every node has an O_PATH descriptor, which needs no permission and blocks no other operation. A
//! regular file gets a descriptor for reading when it is first read. It has one for writing only
//! while data is to be flushed, since a file that is open for writing cannot be executed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use runtime::File;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::path::DecInt;
use tree::{Kind, NodeId, Time, TreeError};

use crate::group::Group;
use crate::stat::Stat;
use crate::{failed, open_failed};

/// An open file.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    /// Device and inode, which no other file can have while this one is open.
    place: ((u32, u32), u64),
    /// The name that it was opened by, as [`Names`](crate::names::Names) has it.
    pub(crate) name: Option<u64>,
    path: OwnedFd,
    reader: OnceLock<File>,
    writer: Mutex<Option<Arc<File>>>,
    /// Number of writes that have ended, and of those that a flush has covered.
    written: AtomicU64,
    settled: AtomicU64,
    /// Held by the flush in progress.
    flushing: Mutex<()>,
    /// Number of the last failed flush of this file, among those of the folder; 0 without one.
    failed: AtomicU64,
    /// Flushes of data.
    pub(crate) data: Group,
    /// Flushes of data and attributes; of a directory, of its entries.
    pub(crate) all: Group,
    /// Whether there is an access control list, as of a ctime.
    list: Mutex<Option<(Time, bool)>>,
    /// Whether it was used since the cache last looked.
    pub(crate) used: AtomicBool,
}

/// Descriptors that all files of a folder are opened through.
pub(crate) struct Descriptors {
    /// The descriptors of this process by number: `/proc/self/fd`.
    numbers: OwnedFd,
    /// The folder itself.
    root: OwnedFd,
}

impl Descriptors {
    /// Opens them for the folder `root`.
    pub(crate) fn open(root: OwnedFd) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { numbers: rustix::fs::open("/proc/self/fd", flags, Mode::empty())?, root })
    }

    /// A directory where each descriptor is a link of its number.
    pub(crate) fn numbers(&self) -> BorrowedFd<'_> {
        self.numbers.as_fd()
    }

    /// The folder.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl Node {
    /// The file that is open as `path`, with its attributes, and the name that it was opened by.
    pub(crate) fn new(id: NodeId, stat: &Stat, name: Option<u64>, path: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            id,
            kind: stat.kind(),
            place: (stat.device(), stat.inode()),
            name,
            path,
            reader: OnceLock::new(),
            writer: Mutex::default(),
            written: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            flushing: Mutex::default(),
            failed: AtomicU64::new(0),
            data: Group::default(),
            all: Group::default(),
            list: Mutex::default(),
            used: AtomicBool::new(true),
        })
    }

    /// Whether these attributes are of this file.
    pub(crate) fn is(&self, stat: &Stat) -> bool {
        self.place == (stat.device(), stat.inode())
    }

    /// The O_PATH descriptor.
    pub(crate) fn path(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }

    /// Its name among the process's descriptors.
    pub(crate) fn number(&self) -> DecInt {
        DecInt::new(self.path.as_raw_fd())
    }

    /// Its path in procfs: for calls that take nothing else.
    pub(crate) fn in_proc(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    /// Sets the permission bits, as the thread's user.
    pub(crate) fn set_mode(&self, all: &Descriptors, mode: u32) -> Result<(), TreeError> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::chmodat(all.numbers(), self.number(), mode, AtFlags::empty()).map_err(failed)
    }

    /// Attributes by statx(2).
    pub(crate) fn stat(&self) -> Result<Stat, TreeError> {
        let stat = Stat::of(self.path())?;
        if stat.is_gone() { Err(TreeError::Stale) } else { Ok(stat) }
    }

    /// Opens the file once more, with other flags.
    pub(crate) fn open(&self, all: &Descriptors, flags: OFlags) -> Result<OwnedFd, TreeError> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::openat(all.numbers(), self.number(), flags, Mode::empty()).map_err(failed)
    }

    /// Opens the directory for a listing, or a flush.
    pub(crate) fn open_directory(&self) -> Result<OwnedFd, TreeError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(self.path(), ".", flags, Mode::empty()).map_err(failed)
    }

    /// The regular file, for reading.
    pub(crate) fn reader(&self, all: &Descriptors) -> Result<&File, TreeError> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        self.regular()?;
        let file = File::from_fd(self.open(all, OFlags::RDONLY)?)?;
        Ok(self.reader.get_or_init(|| file))
    }

    /// The regular file, for writing.
    pub(crate) fn writer(&self, all: &Descriptors) -> Result<Arc<File>, TreeError> {
        let mut writer = self.lock_writer();
        if let Some(writer) = &*writer {
            return Ok(Arc::clone(writer));
        }
        self.regular()?;
        let file = Arc::new(File::from_fd(self.open(all, OFlags::RDWR).map_err(open_failed)?)?);
        *writer = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Keeps a descriptor for writing that was opened when the file was made.
    pub(crate) fn keep_writer(&self, file: File) {
        self.lock_writer().get_or_insert_with(|| Arc::new(file));
    }

    fn regular(&self) -> Result<(), TreeError> {
        match self.kind {
            Kind::Regular => Ok(()),
            Kind::Directory => Err(TreeError::IsDirectory),
            _ => Err(TreeError::Invalid),
        }
    }

    /// Records that a write has ended.
    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of writes that have ended.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Whether something was written that is not flushed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.settled.load(Ordering::Acquire) != self.written()
    }

    /// Records that the first `written` writes are flushed, or known to be lost. Closes the file
    /// for writing, if that were all.
    pub(crate) fn settle(&self, written: u64) {
        self.settled.fetch_max(written, Ordering::AcqRel);
        let mut writer = self.lock_writer();
        if !self.is_dirty() && writer.as_ref().is_some_and(|writer| Arc::strong_count(writer) == 1) {
            *writer = None;
        }
    }

    /// Waits until no other flush is in progress. None begins until the guard is dropped.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a flush failed, which is the folder's failed flush of this number.
    pub(crate) fn fail(&self, number: u64) {
        self.failed.fetch_max(number, Ordering::AcqRel);
    }

    /// Number of the last flush that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the file durable, with its attributes if `all`. Blocks.
    pub(crate) fn flush(&self, descriptors: &Descriptors, all: bool) -> Result<(), TreeError> {
        let writer = self.lock_writer().clone();
        let flushed = match (&writer, self.kind) {
            (Some(writer), _) if all => rustix::fs::fsync(writer),
            (Some(writer), _) => rustix::fs::fdatasync(writer),
            (None, Kind::Directory) => match self.open_directory() {
                Ok(directory) => rustix::fs::fsync(directory),
                Err(_) => rustix::fs::syncfs(descriptors.root()),
            },
            (None, _) => match self.reader(descriptors) {
                Ok(reader) => rustix::fs::fsync(reader),
                // No descriptor exists whose flush would cover this file: a link, a device, or a
                // file that this process may not read.
                Err(_) => rustix::fs::syncfs(descriptors.root()),
            },
        };
        flushed.map_err(failed)
    }

    /// Whether there is an access control list: the known answer for this ctime, or the result of
    /// `look`.
    pub(crate) fn has_list(&self, ctime: Time, look: impl FnOnce() -> bool) -> bool {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        match *list {
            Some((at, has)) if at == ctime => has,
            _ => {
                let has = look();
                *list = Some((ctime, has));
                has
            }
        }
    }

    fn lock_writer(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
