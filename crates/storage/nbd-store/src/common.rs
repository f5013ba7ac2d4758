//! What all connections of a store share: the export as it is served, its health, and whether the
//! server may have lost what it has acknowledged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use backing::health::problems::Kind;
use backing::{Geometry, Health};
use nbd::{Export, Flags};

use crate::dial::{Idle, Source};
use crate::remote::Job;

/// The smallest logical block of a unit, bytes.
pub(crate) const BLOCK: u32 = 512;
/// The most connections to a server that allows several.
const MAX_CONNECTIONS: usize = 16;

pub(crate) struct Common {
    pub source: Source,
    pub health: Arc<Health>,
    pub geometry: Geometry,
    /// As it was opened.
    pub flags: Flags,
    /// Bytes, as last seen: a multiple of the geometry's block.
    pub size: AtomicU64,
    /// Counts changes that were acknowledged and may be in a volatile cache.
    changes: AtomicU64,
    /// Of these, how many a flush has covered.
    flushed: AtomicU64,
    /// The connection by which the export was opened, until a core takes it.
    first: Mutex<Option<Idle>>,
    /// Requests whose time is over, and that a server may still carry out.
    overdue: AtomicUsize,
    closed: AtomicBool,
    /// Woken when the store is dropped.
    closing: Mutex<Vec<Waker>>,
    owners: Mutex<Vec<Arc<Queue>>>,
}

/// Operations for the core that owns a connection.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    waker: Option<Waker>,
    /// The owner has gone.
    is_over: bool,
}

/// Who carries out this core's operations.
pub(crate) enum Owner {
    /// This core, by a connection that it has to make now.
    Own(Arc<Queue>),
    /// Another one.
    Other(Arc<Queue>),
}

impl Common {
    pub(crate) fn new(source: Source, health: Arc<Health>, export: &Export) -> Self {
        let geometry = geometry(export);
        let size = AtomicU64::new(whole(export.size, geometry.block));
        Self {
            source,
            health,
            geometry,
            flags: export.flags,
            size,
            changes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            first: Mutex::default(),
            overdue: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            closing: Mutex::default(),
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
        let size = whole(export.size, self.geometry.block);
        let before = self.size.swap(size, Ordering::AcqRel);
        if before != size {
            tracing::warn!(path = self.health.path(), before, size, "the medium's size changed");
            self.health.saw_size(size);
        }
        Ok(())
    }

    /// A connection has ended. True if the server may have lost acknowledged changes: it may have
    /// been started anew.
    pub(crate) fn lost(&self) -> bool {
        let changes = self.to_flush();
        // Reported once.
        self.flushed.fetch_max(changes, Ordering::AcqRel) < changes
    }

    /// Whether there are acknowledged changes that no flush has covered.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.flushed.load(Ordering::Acquire) < self.to_flush()
    }

    /// A request has had its time, and the server has not answered it.
    #[cold]
    pub(crate) fn note_overdue(&self) {
        self.overdue.fetch_add(1, Ordering::AcqRel);
        let seconds = self.source.op_timeout.as_secs();
        self.tell_unusable(format!("the server has not answered for {seconds} s: nothing else is sent"));
    }

    /// A request that had had its time is answered, or its connection has ended.
    #[cold]
    pub(crate) fn overdue_ended(&self) {
        self.overdue.fetch_sub(1, Ordering::AcqRel);
        self.tell_usable();
    }

    /// Whether a server may still carry out a request that has ended.
    pub(crate) fn is_silent(&self) -> bool {
        self.overdue.load(Ordering::Acquire) > 0
    }

    /// Unlike [`Health::failed`] this refuses no flush: another connection may serve.
    #[cold]
    pub(crate) fn tell_unusable(&self, reason: String) {
        self.health.explain(Kind::Unusable, 0, reason);
    }

    #[cold]
    pub(crate) fn tell_usable(&self) {
        if !self.is_silent() {
            self.health.recovered();
        }
    }

    /// A change was acknowledged that only a flush makes durable.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// What a flush that begins now will cover.
    pub(crate) fn to_flush(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn has_flushed(&self, changes: u64) {
        self.flushed.fetch_max(changes, Ordering::AcqRel);
    }

    /// Who carries out the operations of a core that has no connection.
    pub(crate) fn owner(&self, core: usize) -> Owner {
        let mut owners = unpoisoned(&self.owners);
        owners.retain(|queue| !queue.lock().is_over);
        let most = if self.flags.multi_conn() { MAX_CONNECTIONS } else { 1 };
        if owners.len() < most {
            let queue = Arc::new(Queue::default());
            owners.push(queue.clone());
            return Owner::Own(queue);
        }
        Owner::Other(owners[core % owners.len()].clone())
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
        self.closed.store(true, Ordering::SeqCst);
        std::mem::take(&mut *unpoisoned(&self.closing)).into_iter().for_each(Waker::wake);
    }

    /// Whether the store was dropped; else `known`, the caller's waker, is woken then.
    pub(crate) fn poll_closed(&self, known: &mut Option<Waker>, cx: &Context<'_>) -> Poll<()> {
        if !known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            unpoisoned(&self.closing).push(cx.waker().clone());
            *known = Some(cx.waker().clone());
        }
        if self.closed.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        unpoisoned(&self.0)
    }

    /// Gives an operation to the owner. One that has gone does not carry it out.
    pub(crate) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        if waiting.is_over {
            drop(waiting);
            return job.refuse();
        }
        waiting.jobs.push_back(job);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The next operation; `None` once the owner goes.
    pub(crate) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Job>> {
        let mut waiting = self.lock();
        match waiting.jobs.pop_front() {
            Some(job) => Poll::Ready(Some(job)),
            None if waiting.is_over => Poll::Ready(None),
            None => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The owner goes.
    pub(crate) fn end(&self) {
        let (jobs, waker) = {
            let mut waiting = self.lock();
            waiting.is_over = true;
            (std::mem::take(&mut waiting.jobs), waiting.waker.take())
        };
        jobs.into_iter().for_each(Job::refuse);
        waker.into_iter().for_each(Waker::wake);
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
    use std::time::Duration;

    fn common(flags: u16) -> Common {
        let uri: Uri = "nbd://h/x".parse().unwrap();
        let source = Source { uri, read_only: false, op_timeout: Duration::from_secs(1) };
        let blocks = BlockSizes { minimum: 1, preferred: 4096, maximum: 1 << 25 };
        let export = Export { size: 1000, flags: Flags::new(flags), blocks, ..Export::default() };
        Common::new(source, Health::new("nbd"), &export)
    }

    #[test]
    fn unflushed_changes_are_lost_with_any_connection_once() {
        let common = common(1);
        assert!(!common.lost());
        common.changed();
        assert!(common.lost());
        assert!(!common.lost(), "it was reported");
        common.changed();
        let seen = common.to_flush();
        common.changed();
        common.has_flushed(seen);
        assert!(common.has_unflushed() && common.lost(), "a change after the flush began");
        assert!(!common.has_unflushed());
    }

    #[test]
    fn a_server_without_multi_conn_has_one_connection() {
        let single = common(1);
        let Owner::Own(queue) = single.owner(0) else { panic!("the first core") };
        assert!(matches!(single.owner(1), Owner::Other(_)));
        queue.end();
        assert!(matches!(single.owner(1), Owner::Own(_)), "the owner has gone");
        let several = common(1 | 1 << 8);
        assert!((0..MAX_CONNECTIONS).all(|core| matches!(several.owner(core), Owner::Own(_))));
        assert!(matches!(several.owner(99), Owner::Other(_)));
    }

    #[test]
    fn an_export_keeps_its_blocks_when_it_is_opened_again() {
        let common = common(1);
        assert_eq!(common.geometry, Geometry { block: 512, physical_block: 4096, discard_granularity: 4096 });
        assert_eq!(common.size.load(Ordering::Relaxed), 512, "whole blocks");
        let with = |minimum, flags| {
            let blocks = BlockSizes { minimum, preferred: 4096, maximum: 1 << 25 };
            Export { size: 4096, flags: Flags::new(flags), blocks, ..Export::default() }
        };
        assert!(common.reopened(&with(4096, 1)).is_err());
        assert!(common.reopened(&with(1, 3)).is_err(), "read-only");
        let several = self::common(1 | 1 << 8);
        assert!(several.reopened(&with(512, 1)).is_err(), "one connection");
        assert_eq!(common.reopened(&with(512, 1)), Ok(()));
        assert_eq!(common.size.load(Ordering::Relaxed), 4096);
    }
}
