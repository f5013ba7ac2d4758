//! An export of an NBD server as a store. Never waits on a core.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use backing::remote::open_aside;
use backing::{BlockStore, Extent, Geometry, Health, Io, StoreError};
use nbd::Export;
use runtime::{Buf, Chain, Handle, pool};

use crate::common::{Common, Owner};
use crate::dial::{DialError, Dialled, Source, dial};
use crate::link::Link;

/// An open export.
pub struct NbdStore {
    common: Arc<Common>,
    export: Export,
}

impl NbdStore {
    /// Opens an export. The first core that needs it takes this connection over, and further cores
    /// make their own. After `op_timeout` an operation without an answer ends with
    /// [`StoreError::Unknown`]. Blocks.
    ///
    /// # Errors
    /// The server cannot be reached, or does not open the export.
    pub fn open(source: Source) -> Result<Self, DialError> {
        let (uri, limit) = (source.uri.clone(), source.op_timeout);
        let first = open_aside(move || async move { dial(&uri, limit).await.map(Dialled::into_idle) })??;
        let export = first.export().clone();
        let common = Arc::new(Common::new(source, &export));
        common.keep(first);
        Ok(Self { common, export })
    }

    /// The export as it was first opened.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Who carries out an operation of this core.
    fn way(&self) -> Way {
        if let Some(link) = Link::of(&self.common) {
            return Way::Own(link);
        }
        match self.common.owner(runtime::current_core()) {
            Owner::Other(owner) => Way::Other(owner),
            Owner::Own(owner) => Way::Own(Link::start(self.common.clone(), owner)),
        }
    }

    fn carry_out<T, F>(&self, work: impl FnOnce(Rc<Link>) -> F + Send + 'static) -> Io<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        match self.way() {
            Way::Own(link) => Io::running(work(link)),
            Way::Other(owner) => self.carry_out_by(owner, work),
        }
    }

    /// Has another core carry out an operation. Its data is copied from one core's memory to the
    /// other's.
    fn carry_out_by<T, F>(&self, owner: Handle, work: impl FnOnce(Rc<Link>) -> F + Send + 'static) -> Io<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        let common = self.common.clone();
        let carried = owner.call(move || async move {
            // The owner may have gone.
            let link = Link::of(&common).ok_or(StoreError::Unknown)?;
            work(link).await
        });
        Io::running(async move { carried.await.unwrap_or(Err(StoreError::Unknown)) })
    }
}

enum Way {
    Own(Rc<Link>),
    Other(Handle),
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.common.close();
    }
}

impl BlockStore for NbdStore {
    fn size(&self) -> u64 {
        self.common.remote.size()
    }

    fn geometry(&self) -> Geometry {
        self.common.geometry
    }

    fn writable(&self) -> bool {
        !self.common.source.read_only && !self.common.flags.read_only()
    }

    /// A server may leave holes for zeros.
    fn thin(&self) -> bool {
        self.common.flags.write_zeroes()
    }

    fn read(&self, at: u64, len: usize) -> Io<Chain> {
        match self.way() {
            Way::Own(link) => Io::running(link.read(at, len)),
            Way::Other(owner) => {
                let bytes = async move |link: Rc<Link>| Ok(link.read(at, len).await?.to_vec());
                let bytes = self.carry_out_by(owner, bytes);
                Io::running(async move { copied(&bytes.await?).ok_or(StoreError::NoMemory) })
            }
        }
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        if !self.writable() {
            return Io::err(StoreError::ReadOnly);
        }
        match self.way() {
            Way::Own(link) => Io::running(link.write(at, data, durable)),
            Way::Other(owner) => {
                let bytes = data.to_vec();
                self.carry_out_by(owner, move |link| link.write(at, Buf::from(bytes).into(), durable))
            }
        }
    }

    fn sync(&self) -> Io<()> {
        if !self.writable() {
            return Io::ok(());
        }
        self.carry_out(Link::sync)
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.write_zeros(at, len, true)
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        if !self.writable() {
            return Io::err(StoreError::ReadOnly);
        }
        self.carry_out(move |link| link.write_zeros(at, len, deallocate))
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        self.carry_out(move |link| link.extent(at, len))
    }

    fn is_in_doubt(&self) -> bool {
        self.common.remote.is_in_doubt()
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(self.common.remote.health())
    }
}

/// Bytes in buffers of this core.
fn copied(bytes: &[u8]) -> Option<Chain> {
    let mut chain = Chain::new();
    let mut rest = bytes;
    for mut buf in pool::alloc_many(bytes.len())? {
        let (piece, behind) = rest.split_at(buf.len());
        buf.copy_from_slice(piece);
        rest = behind;
        chain.push(buf);
    }
    Some(chain)
}
