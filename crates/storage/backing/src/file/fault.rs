//! Maps failed system calls to store errors, and reports them to the store's health.
//!
//! Every failed read, write and flush of a store comes here, from every engine. It must never turn
//! an error into a success.

use std::io;

use super::Inner;
use crate::StoreError;
use crate::health::{Kind, Presence};

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
    /// closed.
    pub(super) fn still_there(&self) -> Result<(), StoreError> {
        if !self.writable || !self.is_removed() {
            return Ok(());
        }
        self.health.saw(&[Presence::Removed]);
        Err(StoreError::Io(libc::EIO))
    }

    pub(super) fn is_removed(&self) -> bool {
        !self.data.is_block_device() && self.data.is_orphan().unwrap_or(false)
    }

    /// The same for every few seconds, even without writes, and whether the file is still at its
    /// path for the next start. An inaccessible directory gives no information about the file.
    pub(super) fn presence(&self) -> Option<Presence> {
        if self.data.is_block_device() {
            return None;
        }
        match self.data.is_at(&self.path) {
            _ if self.is_removed() => Some(Presence::Removed),
            Ok(true) => Some(Presence::There),
            Ok(false) => Some(Presence::Moved),
            Err(_) => None,
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
