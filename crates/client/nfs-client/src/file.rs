//! [`File`]: reads and writes at any offset, many at a time. Data that the server has not made
//! stable is kept, and sent again if the server loses it (RFC 1813 §3.3.7, RFC 8881 §18.3).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::{Chain, Notify};

use crate::client::{Client, Wire};
use crate::error::Error;
use crate::types::{Attributes, Handle, SetAttributes, Written};
use crate::v4::Open;

/// The most bytes of all files that are kept before a writer commits.
const MOST_KEPT: usize = 64 << 20;
/// Attempts to write data that the server loses again.
const ATTEMPTS: usize = 10;

/// An open file.
pub struct File {
    client: Client,
    handle: Handle,
    open: Option<Rc<Open>>,
    kept: RefCell<Vec<Kept>>,
    /// A task commits.
    committing: Cell<bool>,
    committed: Notify,
    /// Why data that were not stable were forgotten: no sync may say that all is stable after that.
    failed: RefCell<Option<Error>>,
}

/// Data that the server may lose.
struct Kept {
    offset: u64,
    data: Chain,
    /// The server has lost it if its verifier differs.
    verifier: [u8; 8],
}

impl File {
    pub(crate) fn new(client: Client, handle: Handle, open: Option<Rc<Open>>) -> Self {
        let (kept, committing, committed) = (RefCell::default(), Cell::new(false), Notify::default());
        File { client, handle, open, kept, committing, committed, failed: RefCell::default() }
    }

    /// The file's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its attributes.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn attributes(&self) -> Result<Attributes, Error> {
        self.client.attributes(&self.handle).await
    }

    /// Reads `length` bytes at `offset`, or fewer at the end of the file.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Chain, Error> {
        let most = self.client.sizes().0 as usize;
        let mut data = Chain::new();
        while data.len() < length {
            let count = (length - data.len()).min(most) as u32;
            let at = offset + data.len() as u64;
            let (part, end) = match (&self.client.0.wire, &self.open) {
                (Wire::V4(v4), Some(open)) => v4.read(open, at, count).await?,
                (Wire::V3(v3), _) => v3.read(&self.handle, at, count).await?,
                (Wire::V4(_), None) => return Err(Error::Nonsense("the file is not open")),
            };
            // A short read that is not the end is legal.
            if part.is_empty() && !end {
                return Err(Error::Nonsense("a read without data"));
            }
            data.append(part);
            if end {
                break;
            }
        }
        Ok(data)
    }

    /// Writes `data` at `offset`. It is stable after [`Self::sync`]. Writes between two syncs must
    /// not overlap: those that the server lost are sent again, in any order with the others.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn write(&self, offset: u64, data: Chain) -> Result<(), Error> {
        self.write_pieces(offset, data, false).await?;
        if self.client.0.kept.get() > MOST_KEPT {
            self.sync().await?;
        }
        Ok(())
    }

    /// Writes `data` at `offset`, and returns when it is stable (FILE_SYNC).
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn write_stable(&self, offset: u64, data: Chain) -> Result<(), Error> {
        self.write_pieces(offset, data, true).await
    }

    async fn write_pieces(&self, offset: u64, mut data: Chain, stable: bool) -> Result<(), Error> {
        let most = self.client.sizes().1 as usize;
        let mut at = offset;
        while !data.is_empty() {
            let mut part = data.clone();
            part.truncate(most);
            let written = self.write_once(at, part.clone(), stable).await?;
            let count = written.count as usize;
            if count == 0 || count > part.len() {
                return Err(Error::Nonsense("a write of no bytes, or of more than were sent"));
            }
            part.truncate(count);
            data.advance(count);
            if !written.stable {
                if stable {
                    return Err(Error::Nonsense("a write that had to be stable is not"));
                }
                self.keep(Kept { offset: at, data: part, verifier: written.verifier });
            }
            at += count as u64;
        }
        Ok(())
    }

    fn keep(&self, kept: Kept) {
        let total = &self.client.0.kept;
        total.set(total.get() + kept.data.len());
        self.kept.borrow_mut().push(kept);
    }

    async fn write_once(&self, at: u64, data: Chain, stable: bool) -> Result<Written, Error> {
        match (&self.client.0.wire, &self.open) {
            (Wire::V4(v4), Some(open)) => v4.write(open, at, data, stable).await,
            (Wire::V3(v3), _) => v3.write(&self.handle, at, data, stable).await,
            (Wire::V4(_), None) => Err(Error::Nonsense("the file is not open")),
        }
    }

    /// Waits until all earlier writes are stable.
    ///
    /// # Errors
    /// Connection errors, and the server's error status. Data that are not stable are then
    /// forgotten, and every later call fails too: some of them may be another caller's. The same
    /// holds after a call whose future was dropped.
    pub async fn sync(&self) -> Result<(), Error> {
        self.committed.until(|| (!self.committing.replace(true)).then_some(())).await;
        let _committing = Committing(self);
        let failed = self.failed.borrow().clone();
        if let Some(error) = failed {
            return Err(error);
        }
        // Until it is known better: if this future is dropped, the data are forgotten with it.
        *self.failed.borrow_mut() = Some(Error::Refused("an earlier sync was given up"));
        let done = self.commit().await;
        *self.failed.borrow_mut() = done.clone().err();
        done
    }

    async fn commit(&self) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let kept = std::mem::take(&mut *self.kept.borrow_mut());
            if kept.is_empty() {
                return Ok(());
            }
            let total = &self.client.0.kept;
            total.set(total.get() - kept.iter().map(|one| one.data.len()).sum::<usize>());
            let verifier = match (&self.client.0.wire, &self.open) {
                (Wire::V4(v4), Some(open)) => v4.commit(open).await?,
                (Wire::V3(v3), _) => v3.commit(&self.handle).await?,
                (Wire::V4(_), None) => return Err(Error::Nonsense("the file is not open")),
            };
            let lost = kept.into_iter().filter(|one| one.verifier != verifier);
            let mut again = false;
            for Kept { offset, data, .. } in lost {
                tracing::info!(offset, bytes = data.len(), "the server lost data that was not stable");
                again = true;
                // Writes of the caller come behind: those in flight now are of other ranges.
                self.write_kept(offset, data).await?;
            }
            if !again {
                return Ok(());
            }
        }
        Err(Error::Nonsense("the server loses data again and again"))
    }

    /// Writes lost data again, all of it.
    async fn write_kept(&self, mut offset: u64, mut data: Chain) -> Result<(), Error> {
        while !data.is_empty() {
            let written = self.write_once(offset, data.clone(), false).await?;
            let count = written.count as usize;
            if count == 0 || count > data.len() {
                return Err(Error::Nonsense("a write of no bytes, or of more than were sent"));
            }
            let part = data.split_to(count);
            if !written.stable {
                self.keep(Kept { offset, data: part, verifier: written.verifier });
            }
            offset += count as u64;
        }
        Ok(())
    }

    /// Sets the file's size.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn set_size(&self, size: u64) -> Result<(), Error> {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.client.set_attributes(&self.handle, &set).await
    }

    /// Closes the file. Data that were not synced may not be stable.
    ///
    /// # Errors
    /// Connection errors, and the server's error status.
    pub async fn close(&self) -> Result<(), Error> {
        match (&self.client.0.wire, &self.open) {
            (Wire::V4(v4), Some(open)) => v4.close(open).await,
            _ => Ok(()),
        }
    }
}

/// Ends [`File::committing`], also of a sync that is given up.
struct Committing<'f>(&'f File);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.committing.set(false);
        self.0.committed.notify();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let total = &self.client.0.kept;
        total.set(total.get() - self.kept.borrow().iter().map(|one| one.data.len()).sum::<usize>());
    }
}
