//! The state that all connections of a store share: the export as it is served, which cores have
//! connections, and which of these have unflushed changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backing::remote::{Remote, Unflushed};
use backing::{Geometry, Health};
use nbd::{Export, Flags};
use runtime::Handle;

use crate::dial::{Idle, Source};

/// The smallest logical block of a unit, bytes.
pub(crate) const BLOCK: u32 = 512;
/// The most connections to a server that allows several.
const MAX_CONNECTIONS: usize = 16;

pub(crate) struct Common {
    pub source: Source,
    /// Its size is a multiple of the geometry's block.
    pub remote: Remote,
    pub geometry: Geometry,
    /// As it was opened.
    pub flags: Flags,
    /// The connection by which the export was opened, until a core takes it.
    first: Mutex<Option<Idle>>,
    /// The cores that have connections.
    owners: Mutex<Vec<Arc<Share>>>,
}

/// The part of a link that other cores see.
///
/// Only the end of the connection that made a change shows that the server may have lost it. Another
/// one, made after the server has started anew, sees nothing, and its flush succeeds though the
/// change is gone. So each link counts its own changes, and flushes them itself when another core
/// asks.
pub(crate) struct Share {
    pub core: Handle,
    pub changes: Unflushed,
}

/// Who carries out this core's operations.
pub(crate) enum Owner {
    /// This core, by a connection that it has to make now.
    Own(Arc<Share>),
    /// Another one.
    Other(Handle),
}

impl Common {
    pub(crate) fn new(source: Source, export: &Export) -> Self {
        let geometry = geometry(export);
        let health = Health::new(source.uri.to_string());
        Self {
            source,
            remote: Remote::new(health, whole(export.size, geometry.block)),
            geometry,
            flags: export.flags,
            first: Mutex::default(),
            owners: Mutex::default(),
        }
    }

    /// Takes over the size of an export that was opened again.
    ///
    /// # Errors
    /// It cannot be the same export.
    pub(crate) fn reopened(&self, export: &Export) -> Result<(), &'static str> {
        if export.blocks.minimum > self.geometry.block {
            return Err("the export has a larger minimum block size now");
        }
        if self.flags.multi_conn() && !export.flags.multi_conn() {
            return Err("the export allows one connection only now");
        }
        if export.flags.read_only() && !self.source.read_only && !self.flags.read_only() {
            return Err("the export is read-only now");
        }
        self.remote.saw_size(whole(export.size, self.geometry.block));
        Ok(())
    }

    /// Who carries out the operations of a core that has no connection.
    pub(crate) fn owner(&self, core: usize) -> Owner {
        let mut owners = unpoisoned(&self.owners);
        let most = if self.flags.multi_conn() { MAX_CONNECTIONS } else { 1 };
        if owners.len() < most {
            let own = Arc::new(Share { core: Handle::here(), changes: Unflushed::default() });
            owners.push(own.clone());
            return Owner::Own(own);
        }
        Owner::Other(owners[core % owners.len()].core)
    }

    /// The links other than `own` that have unflushed changes.
    pub(crate) fn unflushed(&self, own: &Arc<Share>) -> Vec<Arc<Share>> {
        let owners = unpoisoned(&self.owners);
        owners.iter().filter(|share| !Arc::ptr_eq(share, own) && share.changes.is_any()).cloned().collect()
    }

    /// An owner has no connection any more.
    pub(crate) fn disown(&self, owner: &Arc<Share>) {
        unpoisoned(&self.owners).retain(|other| !Arc::ptr_eq(other, owner));
    }

    /// Keeps the connection by which the export was opened.
    pub(crate) fn keep(&self, first: Idle) {
        *unpoisoned(&self.first) = Some(first);
    }

    /// The connection by which the export was opened, once.
    pub(crate) fn take_first(&self) -> Option<Idle> {
        unpoisoned(&self.first).take()
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        self.take_first().into_iter().for_each(Idle::end);
        self.remote.close();
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn whole(size: u64, block: u32) -> u64 {
    size - size % u64::from(block)
}

fn geometry(export: &Export) -> Geometry {
    let block = export.blocks.minimum.max(BLOCK);
    let physical_block = export.blocks.preferred.clamp(block, 1 << 20);
    Geometry { block, physical_block, discard_granularity: physical_block }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::{BlockSizes, Uri};
    use runtime::{Config, Runtime};
    use std::time::Duration;

    fn common(flags: u16) -> Common {
        let uri: Uri = "nbd://h/x".parse().unwrap();
        let source = Source { uri, read_only: false, op_timeout: Duration::from_secs(1) };
        let blocks = BlockSizes { minimum: 1, preferred: 4096, maximum: 1 << 25 };
        let export = Export { size: 1000, flags: Flags::new(flags), blocks, ..Export::default() };
        Common::new(source, &export)
    }

    #[test]
    fn a_server_without_multi_conn_has_one_connection() {
        let single = common(1);
        let several = common(1 | 1 << 8);
        Runtime::new(Config::default()).unwrap().block_on(async {
            let Owner::Own(owner) = single.owner(0) else { panic!("the first core") };
            assert!(matches!(single.owner(1), Owner::Other(_)));
            single.disown(&owner);
            assert!(matches!(single.owner(1), Owner::Own(_)), "the owner has gone");
            assert!((0..MAX_CONNECTIONS).all(|core| matches!(several.owner(core), Owner::Own(_))));
            assert!(matches!(several.owner(99), Owner::Other(_)));
        });
    }

    #[test]
    fn an_export_keeps_its_blocks_when_it_is_opened_again() {
        let common = common(1);
        assert_eq!(common.geometry, Geometry { block: 512, physical_block: 4096, discard_granularity: 4096 });
        assert_eq!(common.remote.size(), 512, "whole blocks");
        let with = |minimum, flags| {
            let blocks = BlockSizes { minimum, preferred: 4096, maximum: 1 << 25 };
            Export { size: 4096, flags: Flags::new(flags), blocks, ..Export::default() }
        };
        assert!(common.reopened(&with(4096, 1)).is_err());
        assert!(common.reopened(&with(1, 3)).is_err(), "read-only");
        let several = self::common(1 | 1 << 8);
        assert!(several.reopened(&with(512, 1)).is_err(), "one connection");
        assert_eq!(common.reopened(&with(512, 1)), Ok(()));
        assert_eq!(common.remote.size(), 4096);
    }
}
