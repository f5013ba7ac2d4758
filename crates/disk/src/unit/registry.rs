//! Which units there are, by their NAA designator: how EXTENDED COPY finds its sources and destinations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::DiskUnit;

/// The units of a daemon. Cheap to clone; all clones are one registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<HashMap<Vec<u8>, Weak<DiskUnit>>>>);

/// Below this many there is no looking for units that are gone.
const FEW: usize = 64;

impl Registry {
    /// No units.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `unit` known by its designator. One that had the same designator is known no more.
    pub fn add(&self, unit: &Arc<DiskUnit>) {
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked through when they fill what room there is, so that adding many takes no longer each.
        if units.len() >= FEW && units.len() == units.capacity() {
            units.retain(|_, unit| unit.strong_count() > 0);
        }
        units.insert(unit.options().identity.naa.clone(), Arc::downgrade(unit));
    }

    /// Forgets `unit`.
    pub fn remove(&self, unit: &DiskUnit) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&unit.options().identity.naa);
    }

    /// The unit with this designator, if there is one.
    pub fn find(&self, naa: &[u8]) -> Option<Arc<DiskUnit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(naa).and_then(Weak::upgrade)
    }
}
