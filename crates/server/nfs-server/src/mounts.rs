//! [`Mounts`]: the mounts that clients have reported, and the log of who uses which export. For
//! people only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use server_core::audit;

/// Mounts that are remembered for DUMP, and those whose log lines are. They are for people only
/// (`showmount -a`).
const MOST_MOUNTS: usize = 1024;
/// Time in which a repeated mount is not logged again. At most [`MOST_MOUNTS`] lines are logged in
/// it.
const TOLD: Duration = Duration::from_secs(60);

type Mount = (IpAddr, Vec<u8>);

/// Mounts that clients have reported with MNT and not ended with UMNT.
#[derive(Default)]
pub(crate) struct Mounts(Mutex<Known>);

#[derive(Default)]
struct Known {
    now: BTreeSet<Mount>,
    /// Times at which mounts were logged, for [`TOLD`] at least.
    told: BTreeMap<Mount, Instant>,
}

impl Mounts {
    /// A client has mounted a path with MNT.
    pub(crate) fn add(&self, client: IpAddr, path: &[u8]) {
        let mut known = self.lock();
        if known.now.len() < MOST_MOUNTS {
            known.now.insert((client, path.to_vec()));
        }
        drop(known);
        self.used(client, path);
    }

    /// Logs that a client uses a path. A client that mounts again and again fills no log.
    pub(crate) fn used(&self, client: IpAddr, path: &[u8]) {
        if self.is_news(client, path, runtime::now()) {
            let path = path.escape_ascii().to_string();
            tracing::info!(target: audit::TARGET, what = "mount", %client, path, "mounted");
        }
    }

    fn is_news(&self, client: IpAddr, path: &[u8], now: Instant) -> bool {
        let mut known = self.lock();
        let mount = (client, path.to_vec());
        if known.told.len() >= MOST_MOUNTS || known.told.contains_key(&mount) {
            known.told.retain(|_, at| now.saturating_duration_since(*at) < TOLD);
        }
        if known.told.len() >= MOST_MOUNTS || known.told.contains_key(&mount) {
            return false;
        }
        known.told.insert(mount, now);
        true
    }

    /// A client has unmounted a path, or all.
    pub(crate) fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        let gone = |(other, known): &Mount| *other == client && path.is_none_or(|path| known == path);
        self.lock().now.retain(|mount| !gone(mount));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All, in order.
    pub(crate) fn all(&self) -> Vec<Mount> {
        self.lock().now.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_mount_and_unmount_all_the_time_fill_no_log() {
        let (mounts, begun, client) = (Mounts::default(), runtime::clock(), IpAddr::from([192, 0, 2, 1]));
        let cycle = |number: usize, seconds: u64| {
            let path = number.to_string();
            usize::from(mounts.is_news(client, path.as_bytes(), begun + Duration::from_secs(seconds)))
        };
        assert_eq!((0..100).map(|_| cycle(7, 0)).sum::<usize>(), 1, "one path");
        assert_eq!((0..100_000).map(|n| cycle(n, 1)).sum::<usize>(), MOST_MOUNTS - 1, "as many as it likes");
        assert_eq!(mounts.lock().told.len(), MOST_MOUNTS);
        assert_eq!(cycle(7, 62), 1, "later it is news again");
    }
}
