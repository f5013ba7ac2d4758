//! One session's load: keeps as many commands in flight as wanted, and records how they end. It owns no schedule and no
//! socket; where I/Os go comes from [`super::plan`], what is right from [`super::verify`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iscsi_client::{Completed, Disk, Error, Lun, Queue, Residual, Transfer};
use load::cpu::{Sample, Spent};
use load::{Engine, Pace, Window};
use runtime::{Chain, pool};
use scsi::SenseKey;
use scsi::cdb::build::{self, Flags};

use super::plan::{Part, Run, Source};
use super::tally::Tally;
use super::verify::Verifier;
use crate::interrupt;

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
    /// A write's generation; of a read, the oldest that it may find.
    generation: u32,
    tries: u8,
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
    engine: Engine,
    ios: Vec<Io>,
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
    pub cpu: Option<Spent>,
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
        let idle = Io { place: 0, write: false, generation: 0, tries: 0 };
        let reconnects = queue.session().reconnects();
        debug_assert_eq!(reconnects, 0);
        Ok(Self {
            lun: disk.lun(),
            bs: run.bs,
            blocks: run.bs / disk.block_len(),
            data: random_data(run.bs)?,
            ios: vec![idle; run.depth.into()],
            engine: Engine::warming(run.depth),
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
        // None of it counts.
        self.engine = Engine::warming(self.depth());
        loop {
            let now = Instant::now();
            self.submit_again()?;
            while !self.stopped() && self.submit_next(phase, now)? {}
            self.queue.flush();
            if self.engine.is_idle() {
                return Ok(());
            }
            self.collect(None).await?;
        }
    }

    /// Runs the load in `window`. With a `share`, ends after so many I/Os. With `target`, measures processor time, its
    /// inner value being the target's process.
    ///
    /// # Errors
    /// Whatever ended the session.
    pub async fn load(
        &mut self,
        window: Window,
        pace: Option<Pace>,
        share: Option<u64>,
        target: Option<Option<u32>>,
    ) -> Result<Outcome, Error> {
        self.engine = Engine::new(self.depth(), window, pace, share);
        let (mut before, mut after) = (None, None);
        loop {
            let now = Instant::now();
            if interrupt::came() {
                self.engine.cut(now);
            }
            if let (Some(target), None) = (target, before) {
                before = self.engine.has_begun(now).then(|| Sample::take(target));
            }
            let over = self.engine.is_over(now) || self.stopped();
            if let (true, Some(target), None) = (over, target, after) {
                after = Some(Sample::take(target));
            }
            self.submit_again()?;
            while !over && self.submit_next(Phase::Load, now)? {}
            self.queue.flush();
            if over && self.engine.is_idle() {
                break;
            }
            // Sleeping past a time that matters would shift what is measured.
            let wake = if over { None } else { self.engine.wake(now) };
            self.collect(wake.map(|wake| wake.min(now + LOOK))).await?;
        }
        let mut tally = self.shared.tally.borrow_mut();
        self.engine.unsent(|ns| tally.unsent(ns));
        let cpu = before.zip(after.or_else(|| target.map(Sample::take))).map(|(b, a)| a.since(&b));
        Ok(Outcome { seconds: self.engine.seconds(), cpu })
    }

    fn depth(&self) -> u16 {
        // As many as there are slots for.
        self.ios.len() as u16
    }

    fn stopped(&self) -> bool {
        interrupt::came() || self.shared.errors.load(Ordering::Relaxed) >= self.shared.max_errors
    }

    /// Submits the next I/O; false if there is none at the moment.
    fn submit_next(&mut self, phase: Phase, now: Instant) -> Result<bool, Error> {
        if !self.engine.may_begin(now) {
            return Ok(false);
        }
        let Some((place, write, generation)) = self.next_io(phase) else { return Ok(false) };
        let Some(index) = self.engine.begin(now) else { return Ok(false) };
        self.ios[usize::from(index)] = Io { place, write, generation, tries: 0 };
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

    /// Waits for ends, or until `wake`, and records them.
    async fn collect(&mut self, wake: Option<Instant>) -> Result<(), Error> {
        if std::mem::take(&mut self.pause) {
            runtime::sleep(BUSY_PAUSE).await;
        }
        match wake {
            None => self.queue.completions(&mut self.ended).await?,
            Some(wake) => self.wait_until(wake).await?,
        }
        let mut ended = std::mem::take(&mut self.ended);
        let shared = self.shared.clone();
        let mut tally = shared.tally.borrow_mut();
        for completed in ended.drain(..) {
            self.finish(completed, &mut tally);
        }
        shared.progress.store(tally.ios(), Ordering::Relaxed);
        self.ended = ended;
        Ok(())
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

    /// Judges an end, and counts it if it went well.
    fn finish(&mut self, completed: Completed, tally: &mut Tally) {
        let index = completed.token as u16;
        let Some(io) = self.ios.get(usize::from(index)).copied() else { return };
        match completed.outcome {
            Ok(())
                if completed.residual == Residual::Exact && (io.write || completed.received == self.bs) =>
            {
                if let Some(ns) = self.engine.end(index, completed.at) {
                    tally.done(io.write, ns);
                }
                let Some(verifier) = &mut self.verifier else { return };
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
            }
            Err(error) if io.tries < MAX_TRIES && is_passing(&error) => {
                // What comes back from a lost session begins with a unit attention; a busy unit wants a pause.
                self.pause |= error.sense_key() != Some(SenseKey::UnitAttention);
                self.ios[usize::from(index)].tries += 1;
                self.again.push(index);
            }
            outcome => {
                self.engine.fail(index);
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
    let mut random = load::Random::new(u64::from(len), 0);
    for bytes in buffer.chunks_mut(8) {
        bytes.copy_from_slice(&random.any().to_le_bytes()[..bytes.len()]);
    }
    Ok(buffer.freeze().into())
}
