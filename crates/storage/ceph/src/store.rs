//! An RBD image as a store. Owns the meaning of librbd's errors, and never waits on a core.

use std::future::Future;
use std::io;
use std::sync::Arc;

use backing::health::problems::Kind;
use backing::{BlockStore, Extent, Geometry, Health, Io, StoreError};
use device::Persist;
use rados::{About, Error, Image, Login, Source};
use runtime::{Bytes, Chain, pool};
use smallvec::SmallVec;

use crate::name::ImageName;
use crate::persist::ImagePersist;

/// The smallest logical block of a unit, bytes: the image itself has none.
const BLOCK: u32 = 512;
/// OSDs write smaller pieces by reading what is around them.
const PHYSICAL: u32 = 4096;
/// The most bytes that are made zeros by one call: it becomes one operation for each object.
const ZEROS_AT_ONCE: u64 = 256 << 20;

/// An open image.
pub struct RbdStore {
    image: Image,
    writable: bool,
    health: Arc<Health>,
}

impl RbdStore {
    /// Opens an image; a snapshot is read-only. Blocks.
    ///
    /// # Errors
    /// See [`Image::open`].
    pub fn open(name: &ImageName, login: Login, read_only: bool) -> Result<Self, Error> {
        let writable = !read_only && name.snapshot.is_none();
        let source = Source {
            login,
            pool: name.pool.clone(),
            namespace: name.namespace.clone(),
            image: name.image.clone(),
            snapshot: name.snapshot.clone(),
            read_only: !writable,
        };
        let image = Image::open(&source)?;
        Ok(Self { image, writable, health: Health::new(format!("rbd:{name}")) })
    }

    /// What names the image in the world: its cluster, its pool, and itself there.
    pub fn seed(&self) -> String {
        let About { fsid, pool_id, id, snapshot_id, .. } = self.image.about();
        let snapshot = snapshot_id.map_or(String::new(), |id| format!("@{id}"));
        format!("{fsid}/{pool_id}/{id}{snapshot}")
    }

    /// Where its reservations are kept; nowhere if it cannot be written.
    pub fn persist(&self) -> Option<Arc<dyn Persist>> {
        self.writable.then(|| Arc::new(ImagePersist(self.image.clone())) as Arc<dyn Persist>)
    }

    fn change<F>(&self, at: u64, change: impl FnOnce(Image) -> F) -> Io<()>
    where
        F: Future<Output = io::Result<()>> + 'static,
    {
        if !self.writable {
            return Io::err(StoreError::ReadOnly);
        }
        let (change, health) = (change(self.image.clone()), self.health.clone());
        Io::running(async move { change.await.map_err(|error| failed(&error, at, true, &health)) })
    }
}

/// The error of a failed operation, which is reported to `health`.
#[cold]
fn failed(error: &io::Error, at: u64, write: bool, health: &Health) -> StoreError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let error = match errno {
        // This client is on the blocklist, or another one has broken its lock.
        libc::ESHUTDOWN => StoreError::Fenced,
        libc::EROFS if write => StoreError::Fenced,
        // An operation that ended by a timeout may still be carried out.
        libc::ETIMEDOUT | libc::ECANCELED => StoreError::Unknown,
        _ => StoreError::from_errno(errno),
    };
    health.report(Kind::of_errno(errno, write), errno, Some(at / u64::from(BLOCK)));
    error
}

impl BlockStore for RbdStore {
    fn size(&self) -> u64 {
        self.image.about().size
    }

    fn geometry(&self) -> Geometry {
        let object = u32::try_from(self.image.about().object_size).unwrap_or(1 << 31);
        Geometry { block: BLOCK, physical_block: PHYSICAL, discard_granularity: object.max(PHYSICAL) }
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn thin(&self) -> bool {
        true
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        let Some(memory) = pool::alloc_many(len) else { return Io::err(StoreError::NoMemory) };
        let (image, health) = (self.image.clone(), self.health.clone());
        Io::running(async move {
            match image.read(at, memory).await {
                (Ok(read), memory) if read == len => {
                    let mut chain = Chain::new();
                    memory.into_iter().for_each(|buf| chain.push(buf));
                    Ok(chain)
                }
                (Ok(_), _) => {
                    health.report(Kind::Shrunk, 0, Some(at / u64::from(BLOCK)));
                    Err(StoreError::OutOfRange)
                }
                (Err(error), _) => Err(failed(&error, at, false, &health)),
            }
        })
    }

    /// Each write is durable: on all replicas.
    fn write(&self, at: u64, data: Chain, _durable: bool) -> Io<()> {
        // A region's memory may change while librbd copies it.
        let stable: Option<SmallVec<[Bytes; 2]>> = data.iter().map(|buf| buf.stable()).collect();
        let Some(data) = stable else { return Io::err(StoreError::NoMemory) };
        self.change(at, |image| async move { image.write(at, data).await })
    }

    fn sync(&self) -> Io<()> {
        if !self.writable {
            return Io::ok(());
        }
        self.change(0, |image| async move { image.flush().await })
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.write_zeros(at, len, true)
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.change(at, move |image| async move {
            let mut done = 0;
            while done < len {
                let piece = ZEROS_AT_ONCE.min(len - done);
                image.write_zeros(at + done, piece, !deallocate).await?;
                done += piece;
            }
            Ok(())
        })
    }

    /// Which objects there are is not asked: all counts as mapped.
    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        Io::ok(Extent { at, len, mapped: true })
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fenced_client_and_an_unknown_outcome_are_no_medium_errors() {
        let health = Health::new("rbd:pool/image");
        let becomes = |errno, write| failed(&io::Error::from_raw_os_error(errno), 0, write, &health);
        assert_eq!(becomes(libc::ESHUTDOWN, false), StoreError::Fenced);
        assert_eq!(becomes(libc::EROFS, true), StoreError::Fenced);
        assert_eq!(becomes(libc::ETIMEDOUT, true), StoreError::Unknown);
        assert_eq!(becomes(libc::ENOSPC, true), StoreError::NoSpace);
        assert_eq!(becomes(libc::EDQUOT, true), StoreError::NoSpace);
        assert_eq!(becomes(libc::EIO, false), StoreError::Io(libc::EIO));
        assert_eq!(health.look().state, backing::health::State::Failed);
    }
}
