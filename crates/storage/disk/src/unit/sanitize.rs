//! SANITIZE (SBC-3 §4.11, §5.24): overwrites or deallocates the whole medium. It outlives its
//! command, its session and resets; it always runs to its end.
//!
//! A record says that one has begun. It is stored before the medium changes, and taken back once
//! all is on the medium. So a sanitize that failed, or that ended with the daemon, counts as failed
//! at the next start too: no host takes what is left for sanitized.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use device::{Command, DataMover, Outcome, Persist};
use runtime::{Chain, Pooled};
use scsi::Sense;
use scsi::cdb::{Sanitize, SanitizeAction};
use scsi::data::sanitize::Overwrite;

use super::error::out_of_reach;
use super::gate::{flag, sanitize_failed};
use super::limits::CHUNK_BYTES;
use super::{DiskUnit, Range};
use backing::StoreError;

/// Interval at which a command that waits for its sanitize checks for its abort.
const LOOK_FOR_ABORT: Duration = Duration::from_millis(20);

/// The contents of a record. Any other one counts as [`BEGUN`].
const NONE: &[u8] = b"stag sanitize 1: none\n";
const BEGUN: &[u8] = b"stag sanitize 1: begun\n";
/// EXIT FAILURE MODE is allowed if it fails.
const BEGUN_MAY_EXIT: &[u8] = b"stag sanitize 1: begun, exit allowed\n";
/// The most bytes of a record.
const MAX_RECORD: usize = 256;

/// The state of a sanitize.
#[derive(Default)]
pub(super) struct Sanitizing {
    /// EXIT FAILURE MODE is allowed if it fails.
    allow_exit: bool,
    /// Commands that wait for the end.
    waiting: Vec<Waker>,
}

/// The operation on the medium.
enum Work {
    /// Each pass writes the pattern, inverted on every other pass if `invert`.
    Overwrite {
        pattern: Vec<u8>,
        passes: u8,
        invert: bool,
    },
    Erase,
}

impl Sanitizing {
    /// The state by a record, and whether a sanitize has failed. Blocks.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(super) fn load(record: Option<&dyn Persist>) -> io::Result<(Self, bool)> {
        let found = record.map(|record| record.load(MAX_RECORD)).transpose()?.flatten();
        let failed = found.as_ref().is_some_and(|found| found != NONE);
        let allow_exit = found.is_some_and(|found| found == BEGUN_MAY_EXIT);
        Ok((Self { allow_exit, waiting: Vec::new() }, failed))
    }

    /// What holds for another unit on the medium.
    pub(super) fn kept(&self) -> Self {
        Self { allow_exit: self.allow_exit, waiting: Vec::new() }
    }
}

impl DiskUnit {
    /// Whether a sanitize runs. It holds the unit, and so the medium, until its end.
    pub fn is_sanitizing(&self) -> bool {
        self.flags() & flag::SANITIZING != 0
    }

    /// Whether EXIT FAILURE MODE is allowed after a sanitize that has failed; `None` if none has.
    pub fn failed_sanitize(&self) -> Option<bool> {
        let failed = self.flags() & flag::SANITIZE_FAILED != 0;
        failed.then(|| self.state().sanitizing.allow_exit)
    }

    /// A sanitize has failed in another process, which had this medium before.
    pub fn fail_sanitize(&self, may_exit: bool) {
        self.state().sanitizing.allow_exit = may_exit;
        self.set_flag(flag::SANITIZE_FAILED, true);
    }

    /// PROGRESS INDICATION: progress in 65536ths.
    pub(super) fn sanitize_progress(&self) -> u16 {
        u16::try_from(self.sanitize_done.load(Ordering::Relaxed)).unwrap_or(u16::MAX)
    }

    pub(super) async fn sanitize(
        self: &Arc<Self>,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Sanitize,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        let work = match cdb.action {
            SanitizeAction::ExitFailureMode => return self.exit_failure_mode().await,
            SanitizeAction::BlockErase | SanitizeAction::CryptographicErase if !self.options.thin => {
                return Err(Sense::invalid_field_in_cdb(1, Some(4)).into());
            }
            // There is no key to change. The promise to a host, that it can read no earlier data,
            // also holds if every block is erased.
            SanitizeAction::BlockErase | SanitizeAction::CryptographicErase => Work::Erase,
            SanitizeAction::Overwrite => {
                let list = self.parameter_list(command, mover, wanted).await?;
                let overwrite = Overwrite::parse(&list, self.options.block_size)?;
                // The pattern is repeated and truncated within each block.
                let block = self.options.block_size as usize;
                let pattern = overwrite.pattern.iter().copied().cycle().take(block).collect();
                Work::Overwrite { pattern, passes: overwrite.count, invert: overwrite.invert }
            }
        };
        self.exclude_sanitizes()?;
        let record = if cdb.allow_unrestricted_exit { BEGUN_MAY_EXIT } else { BEGUN };
        if let Err(sense) = self.keep_record(record).await {
            self.set_flag(flag::SANITIZING, false);
            return Err(Outcome { wanted_out: wanted, ..sense.into() });
        }
        self.state().sanitizing.allow_exit = cdb.allow_unrestricted_exit;
        self.set_flag(flag::SANITIZE_FAILED, false);
        let unit = self.clone();
        let all = Pooled::new(async move { unit.run_sanitize(work).await });
        if runtime::is_running() {
            // As a task of its own: it does not depend on this command.
            drop(runtime::spawn(all));
        } else {
            all.await;
        }
        if !cdb.immediate {
            self.sanitize_end(mover).await;
            if self.flags() & flag::SANITIZE_FAILED != 0 {
                return Err(Outcome { wanted_out: wanted, ..sanitize_failed().into() });
            }
        }
        Ok(Outcome::wrote(wanted))
    }

    /// Begins a sanitize, unless one runs: two may have passed the checks.
    fn exclude_sanitizes(&self) -> Result<(), Sense> {
        let _state = self.state();
        if self.flags() & flag::SANITIZING != 0 {
            return Err(Sense::sanitize_in_progress(self.sanitize_progress()));
        }
        self.sanitize_done.store(0, Ordering::Relaxed);
        self.set_flag(flag::SANITIZING, true);
        Ok(())
    }

    async fn exit_failure_mode(&self) -> Result<Outcome, Outcome> {
        if self.flags() & flag::SANITIZE_FAILED == 0 {
            return Ok(Outcome::GOOD);
        }
        // Only if the failed sanitize allowed it (AUSE).
        if !self.state().sanitizing.allow_exit {
            return Err(sanitize_failed().into());
        }
        // None may store its own record meanwhile.
        self.exclude_sanitizes()?;
        let kept = self.keep_record(NONE).await;
        self.set_flag(flag::SANITIZE_FAILED, kept.is_err());
        self.set_flag(flag::SANITIZING, false);
        kept?;
        Ok(Outcome::GOOD)
    }

    /// Stores the record.
    async fn keep_record(&self, record: &[u8]) -> Result<(), Sense> {
        let Some(persist) = &self.options.sanitize_record else { return Ok(()) };
        persist.save(record.to_vec()).await.map_err(|error| {
            tracing::error!(%error, "the record of a sanitize could not be kept");
            match error.kind() {
                io::ErrorKind::NotConnected => out_of_reach(),
                _ => Sense::internal_target_failure(),
            }
        })
    }

    async fn run_sanitize(self: Arc<Self>, work: Work) {
        let wiped = self.wipe(work).await;
        if let Err(error) = &wiped {
            tracing::error!(%error, "a sanitize failed");
        }
        let failed = wiped.is_err() || self.keep_record(NONE).await.is_err();
        let waiting = {
            let mut state = self.state();
            self.set_flag(flag::SANITIZE_FAILED, failed);
            self.set_flag(flag::SANITIZING, false);
            std::mem::take(&mut state.sanitizing.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn wipe(&self, work: Work) -> Result<(), StoreError> {
        // Waits for earlier writes in flight; later ones are rejected.
        drop(self.stripes.claim(0, u64::MAX).await);
        let blocks = self.capacity();
        let all = Range { lba: 0, at: 0, bytes: blocks << self.block_shift };
        self.touch(all);
        let passes = match &work {
            Work::Overwrite { passes, .. } => u64::from(*passes),
            Work::Erase => 1,
        };
        // Smaller pieces of what a medium gives back at once would only become zeros.
        let step = match &work {
            Work::Overwrite { .. } => CHUNK_BYTES as u64,
            Work::Erase => u64::from(self.store.geometry().discard_granularity).max(CHUNK_BYTES as u64),
        };
        for pass in 0..passes {
            let data = match &work {
                Work::Overwrite { pattern, invert, .. } => {
                    let flip = if *invert && pass % 2 == 1 { 0xff } else { 0 };
                    let block: Vec<u8> = pattern.iter().map(|byte| byte ^ flip).collect();
                    Some(Chain::from(block.repeat(CHUNK_BYTES / block.len())))
                }
                Work::Erase => None,
            };
            for chunk in all.steps(self.block_shift, step) {
                match &data {
                    Some(data) => {
                        let mut data = data.clone();
                        data.truncate(chunk.bytes as usize);
                        self.store.write(chunk.at, data, false).await?;
                    }
                    None => self.store.discard(chunk.at, chunk.bytes).await?,
                }
                let done = u128::from(pass) * u128::from(all.bytes) + u128::from(chunk.at + chunk.bytes);
                let total = u128::from(passes) * u128::from(all.bytes);
                self.sanitize_done.store((done * 65536 / total).min(65535) as u32, Ordering::Relaxed);
                self.pace(chunk.bytes).await;
            }
            // The next pass must not replace this one in a cache.
            self.store.sync().await?;
        }
        Ok(())
    }

    /// Lets other tasks run, and keeps to the configured rate.
    async fn pace(&self, bytes: u64) {
        if !runtime::is_running() {
            return;
        }
        match self.options.sanitize_bytes_per_s {
            Some(rate) => {
                let us = bytes.saturating_mul(1_000_000) / rate.max(1);
                runtime::sleep(Duration::from_micros(us)).await;
            }
            None => runtime::yield_now().await,
        }
    }

    /// Waits for the sanitize's end, or for the loss of the waiting command.
    async fn sanitize_end(&self, mover: &mut dyn DataMover) {
        let ended = || {
            poll_fn(|cx| {
                let mut state = self.state();
                if self.flags() & flag::SANITIZING == 0 {
                    return Poll::Ready(());
                }
                state.sanitizing.waiting.retain(|waker| !waker.will_wake(cx.waker()));
                state.sanitizing.waiting.push(cx.waker().clone());
                Poll::Pending
            })
        };
        if !runtime::is_running() {
            return ended().await;
        }
        // No event wakes a command that waits for neither data nor room when it is aborted, so it
        // polls.
        while runtime::timeout(LOOK_FOR_ABORT, ended()).await.is_err() {
            if self.pause(mover).await.is_err() {
                return;
            }
        }
    }
}
