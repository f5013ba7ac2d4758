//! What stores have in common whose medium lies behind a network: the size as last seen, the end of
//! the store, requests without an answer, and changes that no flush has covered.
//!
//! A request that had its time ends with [`StoreError::Unknown`](crate::StoreError::Unknown), and
//! the server may still carry it out. The store is in doubt until it knows that this cannot happen
//! any more, and sends nothing else meanwhile: nothing newer can be overtaken. How it comes to know
//! that is each protocol's own.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use runtime::{Awaited, Config, Runtime};

use crate::Health;
use crate::health::problems::Kind;

/// One store, for all of its connections.
pub struct Remote {
    health: Arc<Health>,
    /// Bytes, as last seen.
    size: AtomicU64,
    /// Who has to settle something.
    in_doubt: AtomicUsize,
    settled: Awaited<()>,
    closed: Awaited<bool>,
}

impl Remote {
    pub fn new(health: Arc<Health>, size: u64) -> Self {
        health.expect_size(size);
        let (in_doubt, settled, closed) = (AtomicUsize::new(0), Awaited::new(()), Awaited::new(false));
        Self { health, size: size.into(), in_doubt, settled, closed }
    }

    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub fn saw_size(&self, size: u64) {
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = self.health.path(), before, size, "the medium's size changed");
            self.health.saw_size(size);
        }
    }

    /// Unlike [`Health::failed`] this refuses no flush: another connection may serve.
    #[cold]
    pub fn tell_unusable(&self, reason: String) {
        self.health.explain(Kind::Unusable, 0, reason);
    }

    #[cold]
    pub fn tell_usable(&self) {
        if !self.is_in_doubt() {
            self.health.recovered();
        }
    }

    /// Refuses flushes from now on: the server may have lost what it has acknowledged.
    #[cold]
    pub async fn flush_failed(&self, errno: i32) {
        let health = self.health.clone();
        // It stores a mark.
        runtime::blocking(move || health.flush_failed(errno, None)).await;
    }

    /// A request has ended as unknown. Call it before the caller is told.
    #[cold]
    pub fn doubt(&self, reason: String) {
        self.in_doubt.fetch_add(1, Ordering::SeqCst);
        self.tell_unusable(reason);
    }

    /// One that doubted knows that the server does not carry the request out later.
    #[cold]
    pub fn settle(&self) {
        self.in_doubt.fetch_sub(1, Ordering::SeqCst);
        self.settled.change(|()| ());
    }

    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::SeqCst) > 0
    }

    /// Waits until nothing is in doubt.
    pub async fn settled(&self) {
        if self.is_in_doubt() {
            self.settled.until(|()| (!self.is_in_doubt()).then_some(())).await;
        }
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.closed.change(|closed| *closed = true);
    }

    /// Waits for [`Self::close`].
    pub async fn closed(&self) {
        self.closed.until(|closed| closed.then_some(())).await;
    }
}

/// Counts changes that were acknowledged, and that only a flush makes durable.
#[derive(Default)]
pub struct Unflushed {
    changes: AtomicU64,
    /// Of these, how many a flush has covered.
    flushed: AtomicU64,
}

impl Unflushed {
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// What a flush that begins now will cover.
    pub fn to_flush(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn has_flushed(&self, changes: u64) {
        self.flushed.fetch_max(changes, Ordering::AcqRel);
    }

    pub fn is_any(&self) -> bool {
        self.flushed.load(Ordering::Acquire) < self.to_flush()
    }

    /// The server's cache may be gone. True if acknowledged changes may be gone with it; they are
    /// reported once.
    pub fn lost(&self) -> bool {
        let changes = self.to_flush();
        self.flushed.fetch_max(changes, Ordering::AcqRel) < changes
    }
}

/// The result of `future`, if there is one in time.
pub async fn before<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    runtime::timeout(deadline.saturating_duration_since(runtime::now()), future).await.ok()
}

/// Runs a future on a thread without cores' tasks. Blocks.
///
/// # Errors
/// The thread or its ring could not be made, or the future has panicked.
pub fn open_aside<T, F, Fut>(make: F) -> io::Result<T>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T>,
    T: Send + 'static,
{
    let thread = std::thread::Builder::new().name("open".into()).spawn(move || {
        let config = Config { entries: 64, spin_us: 0, recv_buffers: 4, ..Config::default() };
        Ok(Runtime::new(config)?.block_on(make()))
    })?;
    thread.join().map_err(|_| io::Error::other("the thread that opens it has failed"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unflushed_changes_are_lost_once() {
        let changes = Unflushed::default();
        assert!(!changes.lost());
        changes.changed();
        let seen = changes.to_flush();
        changes.changed();
        changes.has_flushed(seen);
        assert!(changes.is_any() && changes.lost(), "a change after the flush began");
        assert!(!changes.is_any() && !changes.lost(), "it was reported");
    }

    #[test]
    fn a_store_is_in_doubt_until_each_that_doubted_has_settled() {
        let remote = Remote::new(Health::new("remote"), 512);
        let unusable = || !remote.health().look().problems.is_empty();
        remote.doubt("one".into());
        remote.doubt("two".into());
        remote.settle();
        remote.tell_usable();
        assert!(remote.is_in_doubt() && unusable());
        remote.settle();
        remote.tell_usable();
        assert!(!remote.is_in_doubt() && !unusable());
        Runtime::new(Config::default()).unwrap().block_on(remote.settled());
    }
}
