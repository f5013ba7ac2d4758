//! Reads and writes of a [`File`] that are plain system calls: at once on the calling thread, or on
//! the core's threads.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;

use smallvec::SmallVec;

use super::File;
use super::file::{MOST_BYTES, fill_vectors};
use crate::buf::{BufMut, Chain};
use crate::op::Way;
use crate::sim::files;

/// Whether a call on the calling thread may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// No: data that is not in the page cache is `WouldBlock` (RWF_NOWAIT). Files whose system does
    /// not support such calls are `Unsupported`.
    None,
    /// Yes: wait for the medium, and block the whole core.
    Wait,
}

impl Patience {
    const fn flags(self) -> i32 {
        match self {
            Self::None => libc::RWF_NOWAIT,
            Self::Wait => 0,
        }
    }
}

impl File {
    /// Reads into `buf` from `at` on, at once. Returns the number of bytes: fewer than requested at
    /// the end of the file, or where more would have taken time.
    ///
    /// # Errors
    /// Those of preadv2(2); `WouldBlock` and `Unsupported` without patience.
    #[inline]
    pub fn read_now(&self, buf: &mut BufMut, at: u64, patience: Patience) -> io::Result<usize> {
        let vector = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len().min(MOST_BYTES) };
        // SAFETY: as below.
        if let Some(read) = unsafe { files::read(self.fd().as_raw_fd(), &[vector], at, patience.flags()) } {
            return read;
        }
        loop {
            // SAFETY: the vector names the buffer's own bytes, which this call borrows exclusively.
            let rc = unsafe {
                libc::preadv2(self.fd().as_raw_fd(), &raw const vector, 1, at as i64, patience.flags())
            };
            match usize::try_from(rc) {
                Ok(n) => return Ok(n),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Writes `data` at `at`, at once, as much of it as one call takes; with `durable` it is on the
    /// medium then. Returns the number of bytes written.
    ///
    /// # Errors
    /// Those of pwritev2(2); `WouldBlock` and `Unsupported` without patience.
    #[inline]
    pub fn write_now(&self, data: &Chain, at: u64, durable: bool, patience: Patience) -> io::Result<usize> {
        let mut vectors = SmallVec::<[libc::iovec; 16]>::new();
        fill_vectors(&mut vectors, data);
        let flags = patience.flags() | if durable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: as below.
        if let Some(written) = unsafe { files::write(self.fd().as_raw_fd(), &vectors, at, flags) } {
            return written;
        }
        loop {
            // SAFETY: the vectors name the chain's bytes, which live while it is borrowed; they are
            // only read.
            let rc = unsafe {
                libc::pwritev2(
                    self.fd().as_raw_fd(),
                    vectors.as_ptr(),
                    vectors.len() as i32,
                    at as i64,
                    flags,
                )
            };
            match usize::try_from(rc) {
                Ok(n) => return Ok(n),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// [`Self::sync_data`], at once: the whole core waits.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn sync_data_now(&self) -> io::Result<()> {
        if let Some(synced) = files::sync(self.fd().as_raw_fd()) {
            return synced;
        }
        loop {
            // SAFETY: takes the descriptor alone, which is open while the file is borrowed.
            if unsafe { libc::fdatasync(self.fd().as_raw_fd()) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// [`Self::read_at`] by a blocking call on one of the core's threads.
    pub async fn read_on_thread(&self, buf: BufMut, at: u64) -> (io::Result<usize>, BufMut) {
        let (result, destination) = self.read_by(Way::Thread, buf.into(), at).await;
        (result, destination.into_buf().expect("a buffer went in"))
    }

    /// [`Self::write_at`] by blocking calls on one of the core's threads.
    pub fn write_on_thread(
        &self,
        data: impl Into<Chain>,
        at: u64,
        durable: bool,
    ) -> impl Future<Output = io::Result<()>> {
        self.write_by(Way::Thread, data.into(), at, durable)
    }
}
