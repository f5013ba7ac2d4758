//! Checkpoints: the journal's changes go to redb, and space that was given up becomes zeros that
//! can be used again.
//!
//! The order keeps a power cut harmless. Data first reaches the arena's medium, then the records
//! that name it reach redb's, and only then is a segment of the journal used again. Blocks that
//! were given up are made holes only after the change that gave them up is in redb. They are used
//! again only once the holes are durable and no reader of them is left.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::database::{LAYOUT, Meta};
use super::journal::Turn;
use super::{Inner, Kind, unpoisoned};
use crate::store::{Commit, Error};

/// Time to wait for readers before their blocks are left for the next time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval at which it is checked afterwards whether those readers have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Delay after a failed checkpoint before the next.
const RETRY: Duration = Duration::from_millis(250);

/// The leader's right to write a frame. Dropped before its end (its task was torn down), it leaves
/// the lead to another.
struct Lead<'a>(&'a Inner);

impl Lead<'_> {
    fn end(self, result: Result<(), Error>) {
        self.0.log().end_lead(Some(result));
        std::mem::forget(self);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.log().end_lead(None);
    }
}

impl Inner {
    /// Waits until change `ticket` is in the journal, and writes it if no other task does. The
    /// write is durable at once if `commit` asks for it and all frames before are durable. A caller
    /// that needs durability calls [`Self::flush_journal`] after, which then has nothing to do.
    pub(super) async fn written(&self, ticket: u64, commit: Commit) -> Result<(), Error> {
        loop {
            let turn = poll_fn(|cx| {
                let mut log = self.log();
                let large = self.layers.active_bytes() >= self.most_bytes;
                log.turn(cx, &self.journal, ticket, commit, large, || self.layers.freeze())
            });
            match turn.await {
                Turn::Over(result) => return result,
                Turn::Lead { at, frame, durable } => {
                    let lead = Lead(self);
                    let result = self.journal.store.write(at, frame, durable).await.map_err(Error::from);
                    lead.end(result);
                    if let Err(error) = result {
                        self.journal_failed(error);
                    }
                }
            }
        }
    }

    /// Makes change `ticket`, which is written, durable, and with it all that are written.
    pub(super) async fn flush_journal(&self, ticket: u64) -> Result<(), Error> {
        let written = {
            let log = self.log();
            if log.durable >= ticket {
                return log.failed.map_or(Ok(()), Err);
            }
            log.written
        };
        let result = self.journal.store.sync().await.map_err(Error::from);
        let mut log = self.log();
        match result {
            // Those that were written meanwhile are for the next flush.
            Ok(()) => log.durable = log.durable.max(written),
            Err(error) => {
                log.failed = Some(log.failed.unwrap_or(error));
                log.wake();
                drop(log);
                self.journal_failed(error);
            }
        }
        result
    }

    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), Error> {
        self.flush_refusal()?;
        self.write_touched().await?;
        let ticket = self.log().appended;
        self.written(ticket, Commit::Relaxed).await?;
        self.arena.sync().await?;
        self.flush_journal(ticket).await
    }

    /// Asks for a checkpoint, and waits for its end.
    pub(super) async fn checkpoint(&self) -> Result<(), Error> {
        let (before, ticket) = {
            let mut log = self.log();
            if let Some(error) = log.failed {
                return Err(error);
            }
            log.rotate = true;
            // One that is being written does not have everything.
            (log.checkpoints + u64::from(log.frozen.is_some()), log.appended)
        };
        loop {
            self.written(ticket, Commit::Relaxed).await?;
            if !self.has_thread && self.layers.take_failed() {
                self.open_anew();
            }
            if !self.has_thread && self.log().frozen.is_some() {
                self.write_checkpoint().await?;
                // Boxed: it may need a checkpoint itself.
                while Box::pin(self.empty_some()).await? {}
            }
            let ended = poll_fn(|cx| {
                let mut log = self.log();
                if let Some(error) = log.failed {
                    return Poll::Ready(Some(Err(error)));
                }
                if log.checkpoints > before {
                    return Poll::Ready(Some(log.checkpoint_error.map_or(Ok(()), Err)));
                }
                if log.frozen.is_none() || !self.has_thread {
                    // The one before has ended: now this one can be begun.
                    return Poll::Ready(None);
                }
                log.wait(cx);
                Poll::Pending
            });
            if let Some(result) = ended.await {
                return result;
            }
        }
    }

    /// Requests a checkpoint from the store's own thread, without waiting for it.
    pub(super) fn ask_for_checkpoint(&self) {
        let mut log = self.log();
        // One is running, or will be.
        if log.frozen.is_some() || log.rotate {
            return;
        }
        log.untidy = true;
        if let Some(waker) = log.checkpointer.take() {
            waker.wake();
        }
    }

    /// Writes the frozen layer to redb, if there is one.
    pub(super) async fn write_checkpoint(&self) -> Result<(), Error> {
        let result = self.write_frozen().await;
        {
            let mut log = self.log();
            log.checkpoint_error = result.err();
            log.checkpoints += 1;
            if let Some(frozen) = log.frozen.take_if(|_| result.is_ok()) {
                // Under the journal's lock: blocks on their way to be free are in one list or the
                // other, always.
                self.limbo().blocks.extend(frozen.freed);
            }
        }
        if let Err(error) = result {
            let what = format!("a checkpoint of the objects' metadata failed ({error}); it is tried again");
            match error {
                Error::NoSpace => self.health.explain(Kind::Full, libc::ENOSPC, what),
                Error::Io(errno) => self.health.explain(Kind::Write, errno, what),
                _ => self.health.explain(Kind::Write, 0, what),
            }
            self.open_anew();
        }
        if result.is_ok() {
            self.reclaim(PATIENCE).await;
        }
        self.log().wake();
        result
    }

    /// Opens redb anew after it has failed: until then it answers no request.
    fn open_anew(&self) {
        self.layers.take_failed();
        match self.database.open_anew() {
            Ok((_, base, lost)) => {
                self.layers.write().base = Arc::new(base);
                if lost {
                    self.damaged.store(true, Ordering::Relaxed);
                }
            }
            Err(error) => {
                let errno = if let Error::Io(errno) = error { errno } else { 0 };
                let what =
                    format!("the objects' metadata cannot be opened anew ({error}); it is tried again");
                self.health.explain(Kind::Read, errno, what);
            }
        }
    }

    /// Begins a checkpoint and writes it: for the task that others would wait for.
    pub(super) async fn checkpoint_here(&self) -> Result<(), Error> {
        let ticket = {
            let mut log = self.log();
            log.rotate = true;
            log.appended
        };
        self.written(ticket, Commit::Relaxed).await?;
        self.write_checkpoint().await
    }

    async fn write_frozen(&self) -> Result<(), Error> {
        let Some((number, side)) = self.log().frozen.as_ref().map(|f| (f.number, f.side)) else {
            return Ok(());
        };
        self.logged.flush_begins();
        self.arena.sync().await?;
        self.logged.flushed();
        let layer = self.layers.read().frozen.clone();
        let base = self.database.write(&layer, &self.meta(number, side, false))?;
        let mut view = self.layers.write();
        view.base = Arc::new(base);
        view.frozen = Arc::default();
        Ok(())
    }

    fn meta(&self, number: u64, side: u64, clean: bool) -> Meta {
        let journal = &self.journal;
        Meta {
            layout: LAYOUT,
            name: journal.name,
            number,
            side,
            blocks: self.capacity_blocks,
            segment: journal.segment,
            clean,
        }
    }

    /// Whether a checkpoint would make space free.
    pub(super) fn can_reclaim(&self) -> bool {
        let log = self.log();
        let frozen = log.frozen.as_ref().is_some_and(|frozen| !frozen.freed.is_empty());
        frozen
            || !log.freed.is_empty()
            || !self.limbo().blocks.is_empty()
            || !unpoisoned(self.dying.lock()).is_empty()
    }

    /// The work of the store's own thread until it is closed.
    pub(super) async fn write_checkpoints(self: &Arc<Self>) {
        loop {
            let work = poll_fn(|cx| {
                let mut log = self.log();
                let dying = !unpoisoned(self.dying.lock()).is_empty() && log.failed.is_none();
                let touched = self.has_many_touched() && log.failed.is_none();
                let untidy = log.untidy && log.failed.is_none();
                let failed = self.layers.poll_failed(cx);
                if log.frozen.is_some() || log.closing || dying || touched || untidy || failed {
                    return Poll::Ready((log.frozen.is_some(), log.closing));
                }
                log.checkpointer = Some(cx.waker().clone());
                Poll::Pending
            });
            let readers = self.limbo().waits();
            let (frozen, closing) = match readers {
                false => work.await,
                true => match runtime::timeout(LOOK_AGAIN, work).await {
                    Ok(work) => work,
                    Err(_) => {
                        self.reclaim(Duration::ZERO).await;
                        continue;
                    }
                },
            };
            if !closing && self.layers.take_failed() {
                self.open_anew();
                // A redb that fails again at once is not reopened in a busy loop.
                runtime::sleep(RETRY).await;
            }
            let result = match frozen {
                true => self.write_checkpoint().await,
                false if closing => Ok(()),
                false if std::mem::take(&mut self.log().untidy) => self.checkpoint_here().await,
                false if self.has_many_touched() => match self.drain_touched().await {
                    Ok(false) => self.empty_some().await.map(drop),
                    drained => drained.map(drop),
                },
                false => self.empty_some().await.map(drop),
            };
            if closing {
                break;
            }
            if result.is_err() {
                runtime::sleep(RETRY).await;
            }
        }
        if let Err(error) = self.close().await {
            tracing::error!(%error, "the store of objects is closed with its journal not empty: it is replayed when it is opened");
        }
    }

    /// The last checkpoint: after it there is nothing to replay, and all that is free is zeros.
    async fn close(self: &Arc<Self>) -> Result<(), Error> {
        // A change that found no room would wait for this very task.
        self.checkpoint_here().await?;
        while self.write_some_touched().await? {
            if self.log().offset > self.journal.segment / 4 {
                self.checkpoint_here().await?;
            }
        }
        for _ in 0..2 {
            self.checkpoint_here().await?;
        }
        let (number, side) = {
            let log = self.log();
            (log.number - 1, log.side)
        };
        let clean = self.limbo().blocks.is_empty()
            && self.log().freed.is_empty()
            && !self.damaged.load(Ordering::Relaxed);
        self.database.write(&super::layers::Layer::default(), &self.meta(number, side, clean))?;
        Ok(())
    }
}
