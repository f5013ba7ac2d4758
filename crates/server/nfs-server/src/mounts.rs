//! [`Mounts`]: which client has mounted what, as far as it was said. For people only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Mounts that are remembered for DUMP. They are for people only (`showmount -a`).
pub(crate) const MOST_MOUNTS: usize = 1024;

/// Who has mounted what, as far as it was said.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(IpAddr, Vec<u8>)>>);

impl Mounts {
    /// Changes what is remembered.
    pub(crate) fn change(&self, change: impl FnOnce(&mut BTreeSet<(IpAddr, Vec<u8>)>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All, in order.
    pub(crate) fn all(&self) -> Vec<(IpAddr, Vec<u8>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
