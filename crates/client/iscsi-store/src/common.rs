//! What all links of a store share: the far unit as it is served, its health, the fence, and the
//! names of the sessions.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backing::health::problems::Kind;
use backing::{Geometry, Health};
use iscsi_client::tune::Tune;
use iscsi_client::{Chap, Isid, Options, Provider, Url};
use sha2::{Digest, Sha256};

use crate::look::Far;
use crate::share::{Share, lock};

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
    /// (`reconnect_timeout` is zero), since the store has to know of each loss. Level 0: a task that
    /// outlived its connection would outlive what the store knows of it.
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
    pub health: Arc<Health>,
    pub geometry: Geometry,
    /// As it was opened.
    pub far: Far,
    /// Bytes, as last seen.
    pub size: AtomicU64,
    pub fence: Fence,
    name: Name,
    closed: AtomicBool,
    /// Woken when the store is dropped.
    closing: Mutex<Vec<Waker>>,
    shares: Mutex<Vec<Arc<Share>>>,
}

impl Common {
    pub(crate) fn new(source: Source, health: Arc<Health>, name: Name, far: Far) -> Self {
        health.expect_size(far.size());
        Self {
            source,
            health,
            geometry: far.geometry(),
            size: AtomicU64::new(far.size()),
            far,
            fence: Fence::default(),
            name,
            closed: AtomicBool::new(false),
            closing: Mutex::default(),
            shares: Mutex::default(),
        }
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
        self.saw_size(far.size());
        Ok(())
    }

    pub(crate) fn saw_size(&self, size: u64) {
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = self.health.path(), before, size, "the medium's size changed");
            self.health.saw_size(size);
        }
    }

    /// Unlike [`Health::failed`] this refuses no flush: another session may serve.
    #[cold]
    pub(crate) fn tell_unusable(&self, reason: String) {
        self.health.explain(Kind::Unusable, 0, reason);
    }

    #[cold]
    pub(crate) fn tell_usable(&self) {
        if !self.fence.is_raised() {
            self.health.recovered();
        }
    }

    /// Enters a link.
    pub(crate) fn enter(&self) -> Arc<Share> {
        let share = Arc::<Share>::default();
        lock(&self.shares).push(share.clone());
        share
    }

    /// The links other than `own` that have unflushed changes.
    pub(crate) fn unflushed(&self, own: &Arc<Share>) -> Vec<Arc<Share>> {
        let shares = lock(&self.shares);
        shares.iter().filter(|share| !Arc::ptr_eq(share, own) && share.has_unflushed()).cloned().collect()
    }

    /// Ends all sessions.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.closing)).into_iter().for_each(Waker::wake);
    }

    /// Whether the store was dropped; else `known`, the caller's waker, is woken then.
    pub(crate) fn poll_closed(&self, known: &mut Option<Waker>, cx: &Context<'_>) -> Poll<()> {
        if !known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            lock(&self.closing).push(cx.waker().clone());
            *known = Some(cx.waker().clone());
        }
        if self.closed.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Raised while a target may still carry out a change whose outcome was given as unknown. Nothing is
/// sent meanwhile, over no session of the store.
#[derive(Default)]
pub(crate) struct Fence {
    /// Links that have to reinstate their session.
    raised: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

impl Fence {
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn raise(&self) {
        self.raised.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn lower(&self) {
        if self.raised.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::mem::take(&mut *lock(&self.waiting)).into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) async fn lowered(&self) {
        if !self.is_raised() {
            return;
        }
        poll_fn(|cx| {
            lock(&self.waiting).push(cx.waker().clone());
            if self.is_raised() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
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

    #[test]
    fn a_fence_holds_until_each_that_raised_it_has_lowered_it() {
        let fence = Fence::default();
        fence.raise();
        fence.raise();
        fence.lower();
        assert!(fence.is_raised());
        fence.lower();
        assert!(!fence.is_raised());
    }
}
