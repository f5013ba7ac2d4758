//! A unit of an iSCSI target as a store. Never waits on a core.

use std::rc::Rc;
use std::sync::Arc;

use backing::remote::open_aside;
use backing::{BlockStore, Extent, Geometry, Health, Io, StoreError};
use iscsi_client::Session;
use runtime::Chain;

use crate::common::{Common, Name, Source};
use crate::link::Link;
use crate::look::{Far, OpenError, look};

/// The number of the session that opens a store, which no core has.
const OPENING: usize = usize::MAX;

/// An open unit.
pub struct IscsiStore {
    common: Arc<Common>,
}

impl IscsiStore {
    /// Opens a unit. Each core makes a session of its own when it first needs it. After
    /// `op_timeout` an operation without an answer ends with [`StoreError::Unknown`]. Blocks.
    ///
    /// # Errors
    /// The target cannot be reached, refuses the login, or has no such disk.
    pub fn open(source: Source) -> Result<Self, OpenError> {
        open_aside(move || Self::open_here(source)).map_err(|error| OpenError::Other(error.to_string()))?
    }

    async fn open_here(source: Source) -> Result<Self, OpenError> {
        let name = Name::take(&source.url);
        let session = Session::connect(&source.url, source.options(name.isid(OPENING))).await?;
        let looked = look(&session, source.lun(), &mut Vec::new()).await;
        // The unit was asked; a session that does not log out ends with its connection.
        let _ = session.close().await;
        let (_, far) = looked?;
        Ok(Self { common: Arc::new(Common::new(source, name, far)) })
    }

    /// Whether the far unit has a volatile write cache (WCE).
    pub fn write_cache(&self) -> bool {
        self.common.far.write_cache
    }

    /// The far unit's designators, as in VPD page 83h; empty if it has none.
    pub fn names(&self) -> &[Vec<u8>] {
        &self.common.far.names
    }

    fn far(&self) -> &Far {
        &self.common.far
    }

    fn change<F>(&self, own: impl FnOnce(Rc<Link>) -> F) -> Io<()>
    where
        F: Future<Output = Result<(), StoreError>> + 'static,
    {
        if !self.writable() {
            return Io::err(StoreError::ReadOnly);
        }
        Io::running(own(Link::of(&self.common)))
    }
}

impl Drop for IscsiStore {
    fn drop(&mut self) {
        self.common.remote.close();
    }
}

impl BlockStore for IscsiStore {
    fn size(&self) -> u64 {
        self.common.remote.size()
    }

    fn geometry(&self) -> Geometry {
        self.common.geometry
    }

    fn writable(&self) -> bool {
        !self.common.source.read_only && !self.far().read_only
    }

    fn thin(&self) -> bool {
        self.far().zeros_may_be_holes() || self.far().unmaps()
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        Io::running(Link::of(&self.common).read(at, len))
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        self.change(move |link| link.write(at, data, durable))
    }

    fn sync(&self) -> Io<()> {
        if !self.writable() {
            return Io::ok(());
        }
        self.change(Link::sync)
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.write_zeros(at, len, true)
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.change(move |link| link.write_zeros(at, len, deallocate))
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        Io::running(Link::of(&self.common).extent(at, len))
    }

    fn is_in_doubt(&self) -> bool {
        self.common.remote.is_in_doubt()
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(self.common.remote.health())
    }
}
