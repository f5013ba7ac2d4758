//! [`Mounts`]: which client has mounted what, as far as it was said. For people only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mounts that are remembered for DUMP. They are for people only (`showmount -a`).
const MOST_MOUNTS: usize = 1024;

/// Who has mounted what, as far as it was said.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(IpAddr, Vec<u8>)>>);

impl Mounts {
    /// A client has mounted a path. Whether that was not known.
    pub(crate) fn add(&self, client: IpAddr, path: &[u8]) -> bool {
        let mut all = self.lock();
        all.len() < MOST_MOUNTS && all.insert((client, path.to_vec()))
    }

    /// A client has unmounted a path, or all.
    pub(crate) fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        let gone =
            |(other, known): &(IpAddr, Vec<u8>)| *other == client && path.is_none_or(|path| known == path);
        self.lock().retain(|mount| !gone(mount));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(IpAddr, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All, in order.
    pub(crate) fn all(&self) -> Vec<(IpAddr, Vec<u8>)> {
        self.lock().iter().cloned().collect()
    }
}
