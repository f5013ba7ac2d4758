//! The four system calls of a file store's data path.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use ring::{BufMut, Chain};
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;

/// A file that any core uses.
#[derive(Debug)]
pub(super) struct Handle(File);

impl Handle {
    pub(super) fn new(file: File) -> Self {
        Self(file)
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Reads up to `buf[from..]` at `at`; says how many bytes came.
    pub(super) async fn read(&self, at: u64, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        let result = self.0.read_at(&mut buf[from..], at);
        (result, buf)
    }

    /// Writes some of `data` at `at`; says how many bytes went.
    pub(super) async fn write(&self, at: u64, data: &Chain, durable: bool) -> io::Result<usize> {
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut done = 0;
        for buf in data {
            let stable = buf.stable().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            let n = rustix::io::pwritev2(&self.0, &[IoSlice::new(&stable)], at + done as u64, flags)?;
            done += n;
            if n < stable.len() {
                break;
            }
        }
        Ok(done)
    }

    pub(super) async fn fdatasync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    pub(super) async fn fallocate(&self, flags: FallocateFlags, at: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, flags, at, len)?)
    }
}
