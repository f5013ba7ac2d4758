//! Maps failed system calls to store errors, and reports them to the store's health.
//!
//! Every failed read, write and flush of a store comes here, from every engine. It must never turn
//! an error into a success.

use std::io;

use super::Inner;
use crate::StoreError;
use crate::health::Kind;

/// Why a file without a name cannot be used.
const ORPHAN: &str =
    "its file was removed, or replaced by another one: what is written to it is lost when it is closed";

impl Inner {
    /// The error of a failed read. A direct read may also fail in the last sector of a file that
    /// shrank.
    #[cold]
    pub(super) fn read_error(&self, error: &io::Error, at: u64, len: usize) -> StoreError {
        if self.size_now() < at + len as u64 { self.read_short(at) } else { self.fault(error, at, false) }
    }

    /// The error of a read at the end of the file: the file shrank.
    #[cold]
    pub(super) fn read_short(&self, at: u64) -> StoreError {
        self.size_now();
        self.health.report(Kind::Shrunk, 0, Some(self.lba(at)));
        StoreError::OutOfRange
    }

    /// The error of a failed write, or of another change of the medium.
    #[cold]
    pub(super) fn write_fault(&self, error: &io::Error, at: u64) -> StoreError {
        self.fault(error, at, true)
    }

    /// The error of a write that the system reported as successful with 0 bytes.
    #[cold]
    pub(super) fn wrote_nothing(&self, at: u64) -> StoreError {
        self.write_fault(&io::Error::from_raw_os_error(libc::EIO), at)
    }

    /// The error of a failed durable write. If its flush failed, the device may have dropped other
    /// writes from its cache, and no later flush would report that.
    #[cold]
    pub(super) fn durable_write_fault(&self, error: &io::Error, at: u64) -> StoreError {
        let failed = self.fault(error, at, true);
        if matches!(failed, StoreError::Io(_)) {
            self.health.flush_failed(errno(error), Some(self.lba(at)));
        }
        failed
    }

    /// Like [`Self::durable_write_fault`], but the core does not block while the mark is stored.
    #[cold]
    pub(super) async fn durable_write_failed(&self, error: io::Error, at: u64) -> StoreError {
        let failed = self.fault(&error, at, true);
        if matches!(failed, StoreError::Io(_)) {
            self.mark(errno(&error), Some(self.lba(at))).await;
        }
        failed
    }

    /// The error of a failed flush, after which every flush is refused. The mark is stored before
    /// any caller gets the error.
    #[cold]
    pub(super) async fn flush_failed(&self, error: io::Error) -> StoreError {
        self.mark(errno(&error), None).await;
        StoreError::from_io(&error)
    }

    /// Call before reporting data as durable: the data of an unlinked file is lost when it is
    /// closed. A removed device reports errors itself; its name in /dev means nothing.
    pub(super) fn still_there(&self) -> Result<(), StoreError> {
        if self.data.is_block_device() || !self.writable || !self.data.is_orphan().unwrap_or(false) {
            return Ok(());
        }
        self.health.failed(ORPHAN);
        Err(StoreError::Io(libc::EIO))
    }

    /// Checks the same every few seconds, even without writes, and that the file is still at its
    /// path for the next start. A moved file is intact, so nothing fails yet.
    pub(super) fn inspect(&self) {
        if self.data.is_block_device() {
            return;
        }
        match (self.data.is_orphan(), self.data.is_at(&self.path)) {
            (Ok(true), _) => self.health.failed(ORPHAN),
            (Ok(false), Ok(false)) => self.health.report(Kind::Replaced, 0, None),
            (Ok(false), Ok(true)) => self.health.recovered(),
            // An inaccessible directory gives no information about the file.
            _ => {}
        }
    }

    /// Reports a flush that was refused because an earlier one failed.
    #[cold]
    pub(super) fn flush_refused(&self, error: StoreError) {
        let errno = match error {
            StoreError::Io(errno) => errno,
            StoreError::NoSpace => libc::ENOSPC,
            _ => libc::EIO,
        };
        let unusable = |problem: &crate::health::Problem| problem.kind == Kind::Unusable;
        if !self.health.look().problems.iter().any(unusable) {
            self.health.report(Kind::Flush, errno, None);
        }
    }

    async fn mark(&self, errno: i32, lba: Option<u64>) {
        let health = self.health.clone();
        if runtime::is_running() {
            runtime::blocking(move || health.flush_failed(errno, lba)).await;
        } else {
            health.flush_failed(errno, lba);
        }
    }

    fn fault(&self, error: &io::Error, at: u64, write: bool) -> StoreError {
        let failed = StoreError::from_io(error);
        // An unsupported operation and a shortage of buffers are not faults of the medium.
        if !matches!(failed, StoreError::Unsupported | StoreError::NoMemory) {
            let errno = errno(error);
            self.health.report(Kind::of_errno(errno, write), errno, Some(self.lba(at)));
        }
        failed
    }

    fn lba(&self, at: u64) -> u64 {
        at / u64::from(self.block_size)
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
