//! One session's load: keeps as many commands in flight as wanted, and records how they end. It owns no schedule and no
//! socket; where I/Os go comes from [`super::plan`], what is right from [`super::verify`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iscsi_client::{Completed, Disk, Error, Lun, Queue, Residual, Transfer};
use runtime::{Chain, pool};
use scsi::SenseKey;
use scsi::cdb::build::{self, Flags};

use super::cpu::{Load, Sample};
use super::interrupt;
use super::pace::Pace;
use super::plan::{Part, Run, Source, Window};
use super::tally::Tally;
use super::verify::Verifier;

/// How often an I/O is tried again that met a unit attention or a busy unit.
const MAX_TRIES: u8 = 50;
/// How long to leave a busy unit alone.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How long an I/O that is due late may keep a driver from seeing that it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Timers may be this late: what is due earlier is waited for awake.
const TIMER_SLACK: Duration = Duration::from_micros(20);

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Writes every place once.
    Fill,
    /// The load.
    Load,
    /// Reads every place whose content is known.
    Check,
}

/// An I/O in flight.
#[derive(Clone, Copy, Debug)]
struct Io {
    place: u64,
    write: bool,
    /// When it was due, or sent.
    from: Instant,
    /// A write's generation; of a read, the oldest that it may find.
    generation: u32,
    tries: u8,
    /// Whether it belongs to what is counted, where that is known when it is sent.
    counts: bool,
}

/// Ends that the sessions of a thread share.
#[derive(Debug)]
pub struct Shared {
    /// What was counted.
    pub tally: RefCell<Tally>,
    /// Errors of the run over all threads, at which it ends.
    pub max_errors: u64,
    /// I/Os of this thread so far, for the progress line.
    pub progress: std::sync::Arc<AtomicU64>,
    /// Errors so far over all threads.
    pub errors: std::sync::Arc<AtomicU64>,
}

/// One session at work.
pub struct Driver {
    pub queue: Queue,
    pub shared: Rc<Shared>,
    pub url: String,
    lun: Lun,
    bs: u32,
    blocks: u32,
    part: Part,
    source: Source,
    verifier: Option<Verifier>,
    /// What unverified writes send.
    data: Chain,
    ios: Vec<Io>,
    free: Vec<u16>,
    again: Vec<u16>,
    ended: Vec<Completed>,
    cursor: u64,
    /// A unit said that it is busy.
    pause: bool,
}

/// How a load went, besides what was tallied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Seconds from the window's start to its end, or to the last I/O of a count.
    pub seconds: f64,
    /// Processor time in the window, if this session measured it.
    pub cpu: Option<Load>,
}

impl Driver {
    /// For a session of `run` on `disk`.
    pub fn new(
        queue: Queue,
        disk: &Disk,
        url: String,
        run: &Run,
        (part, source): (Part, Source),
        verifier: Option<Verifier>,
        shared: Rc<Shared>,
    ) -> Result<Self, Error> {
        let from = Instant::now();
        let idle = Io { place: 0, write: false, from, generation: 0, tries: 0, counts: false };
        let reconnects = queue.session().reconnects();
        debug_assert_eq!(reconnects, 0);
        Ok(Self {
            lun: disk.lun(),
            bs: run.bs,
            blocks: run.bs / disk.block_len(),
            data: random_data(run.bs)?,
            ios: vec![idle; run.depth.into()],
            free: (0..run.depth).rev().collect(),
            again: Vec::with_capacity(run.depth.into()),
            ended: Vec::with_capacity(run.depth.into()),
            cursor: 0,
            pause: false,
            queue,
            shared,
            url,
            part,
            source,
            verifier,
        })
    }

    /// Writes, or reads and checks, every place once.
    ///
    /// # Errors
    /// Whatever ended the session.
    pub async fn pass(&mut self, phase: Phase) -> Result<(), Error> {
        self.cursor = 0;
        loop {
            let now = Instant::now();
            self.submit_again()?;
            while !self.stopped() && !self.free.is_empty() && self.submit_next(phase, now, false)? {}
            self.queue.flush();
            if self.idle() {
                return Ok(());
            }
            self.collect(None, |_, _| false).await?;
        }
    }

    /// Runs the load in `window`. With a `share`, ends after so many I/Os. With `target`, measures processor time, its
    /// inner value being the target's process.
    ///
    /// # Errors
    /// Whatever ended the session.
    pub async fn load(
        &mut self,
        mut window: Window,
        mut pace: Option<Pace>,
        share: Option<u64>,
        target: Option<Option<u32>>,
    ) -> Result<Outcome, Error> {
        let mut left = share.unwrap_or(u64::MAX);
        let (mut before, mut after) = (None, None);
        let mut last = window.start;
        let known = pace.is_some() || share.is_some();
        loop {
            let now = Instant::now();
            if interrupt::came() && window.end.is_none_or(|end| now < end) {
                window.end = Some(now.max(window.start));
            }
            if let (Some(target), None) = (target, before) {
                before = (now >= window.start).then(|| Sample::take(target));
            }
            let over = window.end.is_some_and(|end| now >= end) || left == 0 || self.stopped();
            if let (true, Some(target), None) = (over, target, after) {
                after = Some(Sample::take(target));
            }
            self.submit_again()?;
            while !over && !self.free.is_empty() {
                let due = match &pace {
                    Some(pace) if pace.next_due() > now => break,
                    Some(pace) => pace.next_due(),
                    None => now,
                };
                let counts = known && due >= window.start && window.end.is_none_or(|end| due < end);
                if left == 0 || !self.submit_next(Phase::Load, due, counts)? {
                    break;
                }
                left -= u64::from(counts && share.is_some());
                pace.as_mut().map(|pace| pace.take(now));
            }
            self.queue.flush();
            if over && self.idle() {
                break;
            }
            // Sleeping past a time that matters would shift what is measured.
            let wake = match &pace {
                Some(pace) if !over && !self.free.is_empty() => Some(pace.next_due()),
                _ => None,
            };
            let wake = match (wake, window.end) {
                (Some(due), Some(end)) => Some(due.min(end)),
                (None, Some(end)) if !over && self.queue.in_flight() == 0 => Some(end),
                (wake, _) => wake,
            };
            let wake = wake.map(|wake| wake.min(now + LOOK));
            let counted = |io: &Io, at: Instant| {
                if known { io.counts } else { at >= window.start && window.end.is_none_or(|end| at < end) }
            };
            last = self.collect(wake, counted).await?.unwrap_or(last);
        }
        if let (Some(pace), Some(end)) = (&mut pace, window.end) {
            self.count_unsent(pace, window.start, end);
        }
        let until = window.end.unwrap_or(last);
        let cpu = before.zip(after.or_else(|| target.map(Sample::take))).map(|(b, a)| a.since(&b));
        Ok(Outcome { seconds: until.saturating_duration_since(window.start).as_secs_f64(), cpu })
    }

    /// What should have been sent before the end counts, with the time for which it waited at least.
    fn count_unsent(&self, pace: &mut Pace, start: Instant, end: Instant) {
        let mut tally = self.shared.tally.borrow_mut();
        while pace.next_due() < end {
            let Some(due) = pace.take(end) else { break };
            if due >= start {
                tally.unsent(end.saturating_duration_since(due).as_nanos() as u64);
            }
        }
    }

    fn idle(&self) -> bool {
        self.free.len() == self.ios.len()
    }

    fn stopped(&self) -> bool {
        interrupt::came() || self.shared.errors.load(Ordering::Relaxed) >= self.shared.max_errors
    }

    /// Submits the next I/O; false if there is none at the moment.
    fn submit_next(&mut self, phase: Phase, from: Instant, counts: bool) -> Result<bool, Error> {
        let Some((place, write, generation)) = self.next_io(phase) else { return Ok(false) };
        let Some(index) = self.free.pop() else { return Ok(false) };
        self.ios[usize::from(index)] = Io { place, write, from, generation, tries: 0, counts };
        self.submit(index)?;
        Ok(true)
    }

    fn next_io(&mut self, phase: Phase) -> Option<(u64, bool, u32)> {
        let Some(verifier) = &mut self.verifier else {
            return match phase {
                Phase::Load => {
                    let write = self.source.writes();
                    Some((self.source.place(), write, 0))
                }
                Phase::Fill if self.cursor < self.part.places => {
                    self.cursor += 1;
                    Some((self.cursor - 1, true, 0))
                }
                _ => None,
            };
        };
        match phase {
            Phase::Load => {
                if !self.source.writes() {
                    let place = self.source.place();
                    return Some((place, false, verifier.begin_read(place)));
                }
                // A place that is being written is left to that write.
                (0..64).find_map(|_| {
                    let place = self.source.place();
                    Some((place, true, verifier.begin_write(place)?))
                })
            }
            Phase::Fill => {
                while self.cursor < self.part.places {
                    let place = self.cursor;
                    self.cursor += 1;
                    if let Some(generation) = verifier.begin_write(place) {
                        return Some((place, true, generation));
                    }
                }
                None
            }
            Phase::Check => {
                while self.cursor < self.part.places {
                    let place = self.cursor;
                    self.cursor += 1;
                    if verifier.is_known(place) {
                        return Some((place, false, verifier.begin_read(place)));
                    }
                }
                None
            }
        }
    }

    fn lba(&self, place: u64) -> u64 {
        (self.part.first + place) * u64::from(self.blocks)
    }

    fn submit(&mut self, index: u16) -> Result<(), Error> {
        let io = self.ios[usize::from(index)];
        let lba = self.lba(io.place);
        let transfer = match (&self.verifier, io.write) {
            (None, false) => Transfer::Discard(self.bs),
            (None, true) => Transfer::Write(self.data.clone()),
            (Some(_), false) => {
                let mut buffer = pool::alloc(self.bs as usize).ok_or(NO_MEMORY)?;
                buffer.set_len(self.bs as usize);
                Transfer::Read(buffer)
            }
            (Some(verifier), true) => {
                let mut buffer = pool::alloc(self.bs as usize).ok_or(NO_MEMORY)?;
                buffer.set_len(self.bs as usize);
                verifier.stamp(&mut buffer, lba, io.generation);
                Transfer::Write(buffer.freeze().into())
            }
        };
        let cdb = if io.write {
            build::write(lba, self.blocks, Flags::default())
        } else {
            build::read(lba, self.blocks, Flags::default())
        };
        self.queue.submit(index.into(), self.lun, &cdb, transfer)
    }

    fn submit_again(&mut self) -> Result<(), Error> {
        while let Some(index) = self.again.pop() {
            self.submit(index)?;
        }
        Ok(())
    }

    /// Waits for ends, or until `wake`, and records them. Answers when the last of those that count came.
    async fn collect(
        &mut self,
        wake: Option<Instant>,
        counted: impl Fn(&Io, Instant) -> bool,
    ) -> Result<Option<Instant>, Error> {
        if std::mem::take(&mut self.pause) {
            runtime::sleep(BUSY_PAUSE).await;
        }
        match wake {
            None => self.queue.completions(&mut self.ended).await?,
            Some(wake) => self.wait_until(wake).await?,
        }
        let mut last = None;
        let mut ended = std::mem::take(&mut self.ended);
        let shared = self.shared.clone();
        let mut tally = shared.tally.borrow_mut();
        for completed in ended.drain(..) {
            let at = completed.at;
            if let Some(index) = self.finish(completed, &mut tally) {
                let io = &self.ios[usize::from(index)];
                if counted(io, at) {
                    tally.done(io.write, at.saturating_duration_since(io.from).as_nanos() as u64);
                    last = Some(at);
                }
            }
        }
        shared.progress.store(tally.ios(), Ordering::Relaxed);
        self.ended = ended;
        Ok(last)
    }

    /// Takes ends until `wake`: asleep as long as a timer is exact enough, then awake.
    async fn wait_until(&mut self, wake: Instant) -> Result<(), Error> {
        let sleep_until = wake.checked_sub(TIMER_SLACK).unwrap_or(wake);
        if Instant::now() < sleep_until {
            if self.queue.in_flight() == 0 {
                runtime::sleep_until(sleep_until).await;
            } else {
                let left = sleep_until.saturating_duration_since(runtime::now());
                match runtime::timeout(left, self.queue.completions(&mut self.ended)).await {
                    Ok(collected) => return collected,
                    Err(_elapsed) => {}
                }
            }
        }
        while self.queue.take(&mut self.ended) == 0 && Instant::now() < wake {
            runtime::yield_now().await;
        }
        Ok(())
    }

    /// Judges an end. Answers the I/O's index if it went well; it is free then.
    fn finish(&mut self, completed: Completed, tally: &mut Tally) -> Option<u16> {
        let index = completed.token as u16;
        let io = *self.ios.get(usize::from(index))?;
        match completed.outcome {
            Ok(())
                if completed.residual == Residual::Exact && (io.write || completed.received == self.bs) =>
            {
                self.free.push(index);
                let Some(verifier) = &mut self.verifier else { return Some(index) };
                if io.write {
                    verifier.end_write(io.place, true);
                } else if let Some(buffer) = &completed.buffer {
                    let lba = (self.part.first + io.place) * u64::from(self.blocks);
                    let checked = verifier.check(buffer, io.place, lba, io.generation);
                    tally.verified += checked.blocks;
                    for wrong in checked.wrong {
                        tally.error(|| format!("{}: {wrong}", self.url));
                        self.shared.errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Some(index)
            }
            Err(error) if io.tries < MAX_TRIES && is_passing(&error) => {
                // What comes back from a lost session begins with a unit attention; a busy unit wants a pause.
                self.pause |= error.sense_key() != Some(SenseKey::UnitAttention);
                self.ios[usize::from(index)].tries += 1;
                self.again.push(index);
                None
            }
            outcome => {
                self.free.push(index);
                let reason = match outcome {
                    Ok(()) if io.write => "the target did not take all of the data".to_owned(),
                    Ok(()) => format!("{} of {} bytes came", completed.received, self.bs),
                    Err(error) => error.to_string(),
                };
                if let (Some(verifier), true) = (&mut self.verifier, io.write) {
                    verifier.end_write(io.place, false);
                }
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
                tally.error(|| {
                    let what = if io.write { "write" } else { "read" };
                    let lba = (self.part.first + io.place) * u64::from(self.blocks);
                    format!("{}: {what} of {} blocks at LBA {lba}: {reason}", self.url, self.blocks)
                });
                None
            }
        }
    }
}

const NO_MEMORY: Error = Error::Argument("the buffer pool is exhausted");

/// Whether the same command may well succeed when it is sent again.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Scsi(scsi) => {
            let attention = error.sense_key() == Some(SenseKey::UnitAttention);
            // BUSY and TASK SET FULL (SAM-5 §5.3.1).
            attention || matches!(scsi.status, 0x08 | 0x28)
        }
        _ => false,
    }
}

/// Bytes that neither compress nor repeat within an I/O.
fn random_data(len: u32) -> Result<Chain, Error> {
    let mut buffer = pool::alloc(len as usize).ok_or(NO_MEMORY)?;
    buffer.set_len(len as usize);
    let mut random = super::random::Random::new(u64::from(len), 0);
    for bytes in buffer.chunks_mut(8) {
        bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]);
    }
    Ok(buffer.freeze().into())
}
