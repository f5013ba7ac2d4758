//! What all links of a store share: the far unit as it is served, which links have unflushed
//! changes, and the names of the sessions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backing::remote::{Remote, Unflushed};
use backing::{Geometry, Health};
use iscsi_client::tune::Tune;
use iscsi_client::{Chap, Isid, Options, Provider, Url};
use runtime::Handle;
use sha2::{Digest, Sha256};

use crate::look::Far;

/// Where a far unit is, and how its sessions are made.
#[derive(Clone, Debug)]
pub struct Source {
    /// Names the target; LUN 0 unless it names another. It has no credential.
    pub url: Url,
    /// This host's name. Two hosts with one name would end each other's sessions.
    pub initiator: String,
    pub chap: Option<Chap>,
    /// Over `iser://`.
    pub provider: Provider,
    /// Nothing is written, even if the far unit would take it.
    pub read_only: bool,
    /// How long an operation may wait for the target.
    pub op_timeout: Duration,
}

impl Source {
    pub(crate) fn lun(&self) -> u16 {
        self.url.lun.unwrap_or(0)
    }

    /// The settings of a session.
    ///
    /// A session here is one login: it never reconnects and repeats nothing by itself
    /// (`reconnect_timeout` is zero), since the store has to know of each loss. Level 0: a task
    /// that outlived its connection would outlive what the store knows of it.
    pub(crate) fn options(&self, isid: Isid) -> Options {
        Options {
            initiator: self.initiator.clone(),
            isid: Some(isid),
            chap: self.chap.clone(),
            error_recovery_level: 0,
            queue_depth: 256,
            connect_timeout: self.op_timeout.min(Duration::from_secs(10)),
            // A session that hangs is replaced while there is time to send its commands again.
            command_timeout: self.op_timeout / 2,
            ping_interval: (self.op_timeout / 4).min(Duration::from_secs(10)),
            reconnect_timeout: Duration::ZERO,
            tune: Tune::Off,
            iser_provider: self.provider,
            ..Options::default()
        }
    }
}

pub(crate) struct Common {
    pub source: Source,
    pub remote: Remote,
    pub geometry: Geometry,
    /// As it was opened.
    pub far: Far,
    name: Name,
    shares: Mutex<Vec<Arc<Share>>>,
}

/// The part of a link that other cores see.
///
/// A unit attention for a power on comes once a session. So only the session that made a change can
/// say whether it is still in the far cache: it would hear of the power on before its SYNCHRONIZE
/// CACHE runs. A session that was made after the power on hears nothing of worth, and its
/// SYNCHRONIZE CACHE succeeds though the data is gone. Each link therefore counts its own changes,
/// and flushes them itself when another core asks.
pub(crate) struct Share {
    pub core: Handle,
    pub changes: Unflushed,
}

impl Common {
    pub(crate) fn new(source: Source, name: Name, far: Far) -> Self {
        let remote = Remote::new(Health::new(source.url.to_string()), far.size());
        Self { source, remote, geometry: far.geometry(), far, name, shares: Mutex::default() }
    }

    /// The ISID of a core's sessions.
    pub(crate) fn isid(&self, core: usize) -> Isid {
        self.name.isid(core)
    }

    /// Takes over what a far unit says after another login.
    ///
    /// # Errors
    /// It cannot be the same unit.
    pub(crate) fn reopened(&self, far: &Far) -> Result<(), &'static str> {
        if far.names != self.far.names {
            return Err("another unit is there now: it has another identity");
        }
        if far.capacity.block_len != self.far.capacity.block_len {
            return Err("the unit has other blocks now");
        }
        if far.read_only && !self.far.read_only && !self.source.read_only {
            return Err("the unit is write-protected now");
        }
        self.remote.saw_size(far.size());
        Ok(())
    }

    /// Enters a link.
    pub(crate) fn enter(&self) -> Arc<Share> {
        let share = Arc::new(Share { core: Handle::here(), changes: Unflushed::default() });
        lock(&self.shares).push(share.clone());
        share
    }

    /// The links other than `own` that have unflushed changes.
    pub(crate) fn unflushed(&self, own: &Arc<Share>) -> Vec<Arc<Share>> {
        let shares = lock(&self.shares);
        shares.iter().filter(|share| !Arc::ptr_eq(share, own) && share.changes.is_any()).cloned().collect()
    }
}

/// The stores of this process that are open, by URL and number.
static NAMES: Mutex<BTreeSet<(String, u16)>> = Mutex::new(BTreeSet::new());

/// What a store's sessions are called.
///
/// The same unit gets the same names after a restart. So the first logins of a new daemon reinstate
/// the sessions of one that was killed, and end their tasks (RFC 7143 §6.3.5). Stores that one
/// process has open side by side differ by their number.
pub(crate) struct Name {
    url: String,
    number: u16,
}

impl Name {
    pub(crate) fn take(url: &Url) -> Self {
        let url = url.to_string();
        let mut names = lock(&NAMES);
        let free = (0..=u16::MAX).find(|number| !names.contains(&(url.clone(), *number)));
        let number = free.unwrap_or(u16::MAX);
        names.insert((url.clone(), number));
        Self { url, number }
    }

    /// The ISID of the session `of` (RFC 7143 §11.12.5, the format "Random").
    pub(crate) fn isid(&self, of: usize) -> Isid {
        let digest: [u8; 32] = Sha256::digest(format!("{}\0{}\0{of}", self.url, self.number)).into();
        let [a, b, c, d, e, ..] = digest;
        Isid::random([a, b, c], u16::from_be_bytes([d, e]))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        lock(&NAMES).remove(&(std::mem::take(&mut self.url), self.number));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_is_opened_again_has_its_sessions_names_again() {
        let url: Url = "iscsi://h/iqn.2026-01.org.example:disk/3".parse().unwrap();
        let first = Name::take(&url);
        let second = Name::take(&url);
        let isid = first.isid(0);
        assert_ne!(isid, first.isid(1), "another core");
        assert_ne!(isid, second.isid(0), "a store beside it");
        drop(first);
        assert_eq!(isid, Name::take(&url).isid(0));
        let other: Url = "iscsi://h/iqn.2026-01.org.example:disk/4".parse().unwrap();
        assert_ne!(isid, Name::take(&other).isid(0));
    }
}
