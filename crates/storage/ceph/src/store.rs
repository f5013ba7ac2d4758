//! An RBD image as a store. Never waits on a core.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backing::health::problems::Kind;
use backing::{BlockStore, Extent, Geometry, Health, Io, Resources, StoreError};
use device::Persist;
use rados::{About, Error, Image, Login, Source};
use runtime::{Bytes, Chain, pool};
use smallvec::SmallVec;

use crate::group::Serving;
use crate::live::Live;
use crate::name::ImageName;
use crate::persist::{ImagePersist, SanitizeRecord};
use crate::space::Space;

/// The smallest logical block of a unit, bytes: the image itself has none.
pub(crate) const BLOCK: u32 = 512;
/// OSDs write smaller pieces by reading what is around them.
const PHYSICAL: u32 = 4096;
/// The most bytes that are made zeros by one call.
const ZEROS_AT_ONCE: u64 = 256 << 20;
/// The most objects that one call makes zeros in: it becomes an operation for each, and librbd takes
/// 1,024 at a time.
const OBJECTS_AT_ONCE: u64 = 256;

/// The most bytes of which a look says whether their objects are there. Each look reads the map of
/// all objects, 2 bits each.
const RUN_AT_ONCE: u64 = 64 << 30;

/// An open image.
pub struct RbdStore {
    live: Arc<Live>,
    writable: bool,
    health: Arc<Health>,
    space: Space,
}

impl RbdStore {
    /// Opens an image; a snapshot is read-only. One that is encrypted takes the passphrase in
    /// `key_file`. After `op_timeout` an operation without an answer ends with
    /// [`StoreError::Unknown`], and is not carried out later. Blocks.
    ///
    /// # Errors
    /// See [`Image::open`].
    pub fn open(
        name: &ImageName,
        login: Login,
        read_only: bool,
        key_file: Option<PathBuf>,
        op_timeout: Duration,
    ) -> Result<Self, Error> {
        let writable = !read_only && name.snapshot.is_none();
        let source = Source { read_only: !writable, key_file, ..name.source(login, op_timeout) };
        let health = Health::new(format!("rbd:{name}"));
        Ok(Self { live: Live::open(source, health.clone())?, writable, health, space: Space::default() })
    }

    /// A unit's image that is this gateway's in a group, for as long as `serving` is. Blocks.
    ///
    /// # Errors
    /// Its size cannot be read.
    pub fn of_group(serving: &Serving, op_timeout: Duration, health: Arc<Health>) -> Result<Self, Error> {
        let lost = serving.clone();
        let lost = Box::new(move |why: &str| lost.lost(why));
        let live = Live::of_group(serving.image().clone(), op_timeout, health.clone(), lost);
        live.see_size()?;
        let changed = Arc::downgrade(&live);
        serving.on_change(Arc::new(move || {
            if let Some(live) = changed.upgrade() {
                // Not here: while OSDs are silent it takes long.
                rados::start_unpinned(move || live.look());
            }
        }));
        Ok(Self { live, writable: true, health, space: Space::default() })
    }

    /// The group's instance of the image writes nothing any more: operations that wait for that
    /// end.
    pub fn over(&self) {
        self.live.over();
    }

    /// What names the image in the world: its cluster, its pool, and itself there.
    pub fn seed(&self) -> String {
        seed(self.live.about())
    }

    /// Where its reservations are kept; nowhere if it cannot be written.
    pub fn persist(&self) -> Option<Arc<dyn Persist>> {
        self.writable.then(|| Arc::new(ImagePersist(self.live.clone())) as Arc<dyn Persist>)
    }

    /// Where the record of a sanitize is kept; nowhere if it cannot be written.
    pub fn sanitize_record(&self) -> Option<Arc<dyn Persist>> {
        self.writable.then(|| Arc::new(SanitizeRecord(self.live.clone())) as Arc<dyn Persist>)
    }

    fn change<F>(&self, at: u64, change: impl FnOnce(Image) -> F + 'static) -> Io<()>
    where
        F: Future<Output = io::Result<()>> + 'static,
    {
        if !self.writable {
            return Io::err(StoreError::ReadOnly);
        }
        let live = self.live.clone();
        Io::running(async move {
            let (image, generation) = live.instance().await?;
            match change(image).await {
                Ok(()) => Ok(()),
                Err(error) => Err(live.failed(generation, error, at, true).await),
            }
        })
    }
}

pub(crate) fn seed(about: &About) -> String {
    let About { fsid, pool_id, id, snapshot_id, .. } = about;
    let snapshot = snapshot_id.map_or(String::new(), |id| format!("@{id}"));
    format!("{fsid}/{pool_id}/{id}{snapshot}")
}

impl BlockStore for RbdStore {
    fn size(&self) -> u64 {
        self.live.size()
    }

    fn geometry(&self) -> Geometry {
        let object = u32::try_from(self.live.about().object_size).unwrap_or(1 << 31);
        Geometry { block: BLOCK, physical_block: PHYSICAL, discard_granularity: object.max(PHYSICAL) }
    }

    fn writable(&self) -> bool {
        self.writable
    }

    fn thin(&self) -> bool {
        !self.live.about().encrypted
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        let Some(memory) = pool::alloc_many(len) else { return Io::err(StoreError::NoMemory) };
        let (live, health) = (self.live.clone(), self.health.clone());
        Io::running(async move {
            let (image, generation) = live.instance().await?;
            match image.read(at, memory).await {
                Ok((read, memory)) if read == len => {
                    let mut chain = Chain::new();
                    memory.into_iter().for_each(|buf| chain.push(buf));
                    Ok(chain)
                }
                Ok(_) => {
                    health.report(Kind::Shrunk, 0, Some(at / u64::from(BLOCK)));
                    Err(StoreError::OutOfRange)
                }
                Err(error) => Err(live.failed(generation, error, at, false).await),
            }
        })
    }

    /// Each write is durable: on all replicas.
    fn write(&self, at: u64, data: Chain, _durable: bool) -> Io<()> {
        // A region's memory may change while librbd copies it.
        let stable: Option<SmallVec<[Bytes; 2]>> = data.iter().map(|buf| buf.stable()).collect();
        let Some(data) = stable else { return Io::err(StoreError::NoMemory) };
        self.change(at, move |image| async move { image.write(at, data).await })
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
        let at_once = ZEROS_AT_ONCE.min(self.live.about().object_size.saturating_mul(OBJECTS_AT_ONCE)).max(1);
        self.change(at, move |image| async move {
            let mut done = 0;
            while done < len {
                let piece = at_once.min(len - done);
                image.write_zeros(at + done, piece, !deallocate).await?;
                done += piece;
            }
            Ok(())
        })
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        let live = self.live.clone();
        let len = len.min(RUN_AT_ONCE);
        Io::running(async move {
            let (image, generation) = live.instance().await?;
            match image.run_of_objects(at, len).await {
                Ok((len, mapped)) => Ok(Extent { at, len, mapped }),
                Err(error) => Err(live.failed(generation, error, at, false).await),
            }
        })
    }

    fn resources(&self) -> Option<Resources> {
        self.space.see(self.live.serving())
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.health)
    }
}
