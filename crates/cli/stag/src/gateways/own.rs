//! A unit's disk, while this gateway owns it.

use std::sync::Arc;

use backing::BlockStore;
use backing::spec::{CacheMode, Opened};
use ceph::RbdStore;
use ceph::group::Serving;
use disk::unit::DiskUnit;

use super::shared::SharedUnit;
use crate::identity;
use crate::units::disk_over;

pub struct Owned {
    pub disk: Arc<DiskUnit>,
    pub store: Arc<RbdStore>,
}

impl Owned {
    /// Makes the disk over the image that is this gateway's now. Blocks.
    ///
    /// # Errors
    /// Its size or its reservations cannot be read.
    pub fn new(unit: &SharedUnit, serving: &Serving) -> Result<Self, String> {
        let store = RbdStore::of_group(serving, unit.op_timeout, unit.health.clone());
        let store = Arc::new(store.map_err(|error| error.to_string())?);
        let settled = identity::of_image(&store);
        let opened = Opened {
            store: store.clone(),
            block_size: unit.spec.options.block_bytes(),
            // A write is on all replicas before it is answered: nothing is left to flush.
            cache: CacheMode::WriteThrough,
            geometry: store.geometry(),
        };
        let disk = disk_over(opened, &unit.spec, &settled, &unit.registry)?.unit;
        Ok(Self { disk, store })
    }
}
