//! An export of an NBD server as a store. Never waits on a core.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backing::{BlockStore, Extent, Geometry, Health, Io, StoreError};
use nbd::Export;
use runtime::{Chain, pool};

use crate::common::{Common, Owner};
use crate::dial::{DialError, Dialled, Source, dial};
use crate::link::Link;
use crate::remote::{self, Given, Work};

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
        // A thread without cores' tasks.
        let dialling = std::thread::Builder::new().name("nbd-open".into()).spawn(move || {
            let config =
                runtime::Config { entries: 8, spin_us: 0, recv_buffers: 2, ..runtime::Config::default() };
            let runtime = runtime::Runtime::new(config)?;
            runtime.block_on(async { dial(&uri, limit).await.map(Dialled::into_idle) })
        })?;
        let failed = || DialError::Other("the handshake has failed".to_owned());
        let first = dialling.join().map_err(|_| failed())??;
        let export = first.export().clone();
        let health = Health::new(source.uri.to_string());
        let common = Arc::new(Common::new(source, health.clone(), &export));
        health.expect_size(common.size.load(Ordering::Relaxed));
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
            Owner::Other(queue) => Way::Other(queue),
            Owner::Own(queue) => {
                let link = Link::start(self.common.clone(), queue.clone());
                runtime::spawn(remote::take_all(link.clone(), queue));
                Way::Own(link)
            }
        }
    }

    fn change<F>(&self, own: impl FnOnce(Rc<Link>) -> F, work: impl FnOnce() -> Work) -> Io<()>
    where
        F: Future<Output = Result<(), StoreError>> + 'static,
    {
        if !self.writable() {
            return Io::err(StoreError::ReadOnly);
        }
        match self.way() {
            Way::Own(link) => Io::running(own(link)),
            Way::Other(queue) => {
                let carried = remote::carry_out(queue, work());
                Io::running(async move { carried.await.map(|_| ()) })
            }
        }
    }
}

enum Way {
    Own(Rc<Link>),
    Other(Arc<crate::common::Queue>),
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.common.close();
    }
}

impl BlockStore for NbdStore {
    fn size(&self) -> u64 {
        self.common.size.load(Ordering::Acquire)
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
            Way::Other(queue) => Io::running(async move {
                match remote::carry_out(queue, Work::Read { at, len }).await? {
                    Given::Bytes(bytes) => copied(&bytes).ok_or(StoreError::NoMemory),
                    Given::Nothing | Given::Extent(_) => Err(StoreError::Unknown),
                }
            }),
        }
    }

    fn write(&self, at: u64, data: Chain, durable: bool) -> Io<()> {
        let copy = data.clone();
        self.change(
            move |link| link.write(at, data, durable),
            move || Work::Write { at, data: copy.to_vec(), durable },
        )
    }

    fn sync(&self) -> Io<()> {
        if !self.writable() {
            return Io::ok(());
        }
        self.change(Link::sync, || Work::Sync)
    }

    fn discard(&self, at: u64, len: u64) -> Io<()> {
        self.write_zeros(at, len, true)
    }

    fn write_zeros(&self, at: u64, len: u64, deallocate: bool) -> Io<()> {
        self.change(
            move |link| link.write_zeros(at, len, deallocate),
            move || Work::Zeros { at, len, deallocate },
        )
    }

    fn extent(&self, at: u64, len: u64) -> Io<Extent> {
        match self.way() {
            Way::Own(link) => Io::running(link.extent(at, len)),
            Way::Other(queue) => Io::running(async move {
                match remote::carry_out(queue, Work::Extent { at, len }).await? {
                    Given::Extent(extent) => Ok(extent),
                    Given::Nothing | Given::Bytes(_) => Err(StoreError::Unknown),
                }
            }),
        }
    }

    fn health(&self) -> Option<&Arc<Health>> {
        Some(&self.common.health)
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
