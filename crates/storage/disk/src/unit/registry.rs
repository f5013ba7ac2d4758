//! The daemon's units by NAA designator: EXTENDED COPY finds its sources and destinations here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::DiskUnit;

/// The units of a daemon. Cheap to clone; all clones share one registry.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<HashMap<Vec<u8>, Weak<DiskUnit>>>>);

/// Below this number of units there is no cleanup of dropped ones.
const FEW: usize = 64;

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `unit` under its designator, in place of any earlier one.
    pub fn add(&self, unit: &Arc<DiskUnit>) {
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Clean up whenever the table is full, so that the cost per added unit stays constant.
        if units.len() >= FEW && units.len() == units.capacity() {
            units.retain(|_, unit| unit.strong_count() > 0);
        }
        units.insert(unit.options().identity.naa.clone(), Arc::downgrade(unit));
    }

    /// Removes the unit's designator.
    pub fn remove(&self, unit: &DiskUnit) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&unit.options().identity.naa);
    }

    /// The unit with this designator, if there is one.
    pub fn find(&self, naa: &[u8]) -> Option<Arc<DiskUnit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(naa).and_then(Weak::upgrade)
    }
}
