//! One session's load: keeps the wanted number of commands in flight, and records how they end. It
//! owns no schedule and no socket: [`super::plan`] chooses the places, [`super::verify`] judges the
//! data.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use load::cpu::{Sample, Spent};
use load::{Engine, Latency, Pace, Window};
use runtime::{BufMut, Chain, pool};

use super::medium::{self, End, Lost, Medium};
use super::plan::{Part, Run, Source};
use super::series::Slice;
use super::tally::Tally;
use super::verify::Verifier;
use crate::args::Pattern;
use crate::interrupt;

/// Retries of an I/O after a unit attention, or while the unit is busy.
const MAX_TRIES: u8 = 50;
/// Pause before the next commands to a busy unit.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// Longest wait before a driver checks again whether the load is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Timers may be this late: the driver polls for this last part of a wait.
const TIMER_SLACK: Duration = Duration::from_micros(20);

/// Work of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Writes every place once.
    Fill,
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
    pub tally: RefCell<Tally>,
    /// Errors of the run over all threads, at which it ends.
    pub max_errors: u64,
    /// I/Os of this thread so far, for the progress line.
    pub progress: std::sync::Arc<AtomicU64>,
    /// Errors so far over all threads.
    pub errors: std::sync::Arc<AtomicU64>,
    /// With --interval: where this thread counts for it.
    pub slice: Option<Slice>,
}

/// A session and its load.
pub struct Driver<M: Medium> {
    pub medium: M,
    pub shared: Rc<Shared>,
    pub url: String,
    pattern: Pattern,
    bs: u32,
    part: Part,
    source: Source,
    verifier: Option<Verifier>,
    /// Data of all writes, if nothing is verified.
    data: Chain,
    engine: Engine,
    ios: Vec<Io>,
    again: Vec<u16>,
    ended: Vec<M::Ended>,
    cursor: u64,
    /// A unit said that it is busy.
    pause: bool,
}

/// Duration of a load and its processor time. The [`Tally`] has the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Seconds from the window's start to its end, or to the last I/O of a count.
    pub seconds: f64,
    /// Processor time in the window, if this session measured it.
    pub cpu: Option<Spent>,
    /// Bytes that the thread copied since the warm-up began.
    pub copies: runtime::Copies,
}

impl<M: Medium> Driver<M> {
    /// For a session of `run` on `medium`.
    pub fn new(
        medium: M,
        url: String,
        run: &Run,
        (part, source): (Part, Source),
        verifier: Option<Verifier>,
        shared: Rc<Shared>,
    ) -> Result<Self, Lost> {
        let idle = Io { place: 0, write: false, generation: 0, tries: 0 };
        Ok(Self {
            pattern: run.pattern,
            bs: run.bs,
            data: random_data(run.bs)?,
            ios: vec![idle; run.depth.into()],
            engine: Engine::warming(run.depth),
            again: Vec::with_capacity(run.depth.into()),
            ended: Vec::with_capacity(run.depth.into()),
            cursor: 0,
            pause: false,
            medium,
            shared,
            url,
            part,
            source,
            verifier,
        })
    }

    /// Writes, or reads and checks, every place once.
    pub async fn pass(&mut self, phase: Phase) -> Result<(), Lost> {
        self.cursor = 0;
        // None of it counts.
        self.engine = Engine::warming(self.depth());
        loop {
            let now = Instant::now();
            self.submit_again()?;
            while !self.stopped() && self.submit_next(phase, now)? {}
            self.medium.flush();
            if self.engine.is_idle() {
                return self.medium.sync().await;
            }
            self.collect(None).await?;
        }
    }

    /// Runs the load in `window`. With a `share`, ends after that many I/Os. With a `target`,
    /// measures processor time; its inner value is the target's process.
    pub async fn load(
        &mut self,
        window: Window,
        pace: Option<Pace>,
        share: Option<u64>,
        target: Option<Option<u32>>,
    ) -> Result<Outcome, Lost> {
        self.engine = Engine::new(self.depth(), window, pace, share);
        let (mut before, mut after) = (None, None);
        loop {
            let now = Instant::now();
            // The seconds after it are not of the load.
            if self.stopped() {
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
            self.medium.flush();
            if over && self.engine.is_idle() {
                break;
            }
            // Waking later than a scheduled I/O would distort the measurement.
            let wake = if over { None } else { self.engine.wake(now) };
            self.collect(wake.map(|wake| wake.min(now + LOOK))).await?;
        }
        // The sample comes first, so that the flush does not count.
        let after = after.or_else(|| target.map(Sample::take));
        self.medium.sync().await?;
        let mut tally = self.shared.tally.borrow_mut();
        self.engine.unsent(|ns| tally.unsent(ns));
        let cpu = before.zip(after).map(|(b, a)| a.since(&b));
        Ok(Outcome { seconds: self.engine.seconds(), cpu, ..Outcome::default() })
    }

    fn depth(&self) -> u16 {
        // As many as there are slots for.
        self.ios.len() as u16
    }

    fn stopped(&self) -> bool {
        interrupt::came() || self.shared.errors.load(Ordering::Relaxed) >= self.shared.max_errors
    }

    /// Submits the next I/O; false if there is none at the moment.
    fn submit_next(&mut self, phase: Phase, now: Instant) -> Result<bool, Lost> {
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
                // Another write of the place is in flight: try another place.
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

    /// The byte at which a place begins.
    fn offset(&self, place: u64) -> u64 {
        (self.part.first + place) * u64::from(self.bs)
    }

    fn lba(&self, place: u64) -> u64 {
        self.offset(place) / u64::from(self.medium.block_len())
    }

    fn submit(&mut self, index: u16) -> Result<(), Lost> {
        let io = self.ios[usize::from(index)];
        let what = match (&self.verifier, io.write) {
            (verifier, false) => medium::Io::Read { keep: verifier.is_some() },
            (None, true) => medium::Io::Write(self.data.clone()),
            (Some(verifier), true) => {
                let mut buffer = buffer(self.bs)?;
                verifier.stamp(&mut buffer, self.lba(io.place), io.generation);
                medium::Io::Write(buffer.freeze().into())
            }
        };
        self.medium.submit(index, self.offset(io.place), self.bs, what)
    }

    fn submit_again(&mut self) -> Result<(), Lost> {
        while let Some(index) = self.again.pop() {
            self.submit(index)?;
        }
        Ok(())
    }

    /// Waits for ends, or until `wake`, and records them.
    async fn collect(&mut self, wake: Option<Instant>) -> Result<(), Lost> {
        if std::mem::take(&mut self.pause) {
            runtime::sleep(BUSY_PAUSE).await;
        }
        match wake {
            None => self.medium.completions(&mut self.ended).await?,
            Some(wake) => self.wait_until(wake).await?,
        }
        let mut ended = std::mem::take(&mut self.ended);
        let shared = self.shared.clone();
        let mut tally = shared.tally.borrow_mut();
        let mut slice = shared.slice.as_ref().map(Slice::open);
        for completed in ended.drain(..) {
            self.finish(completed, &mut tally, slice.as_deref_mut());
        }
        drop(slice);
        shared.progress.store(tally.ios(), Ordering::Relaxed);
        self.ended = ended;
        Ok(())
    }

    /// Takes ends until `wake`: sleeps as long as a timer is exact enough, then polls.
    async fn wait_until(&mut self, wake: Instant) -> Result<(), Lost> {
        let sleep_until = wake.checked_sub(TIMER_SLACK).unwrap_or(wake);
        if Instant::now() < sleep_until {
            if self.medium.in_flight() == 0 {
                runtime::sleep_until(sleep_until).await;
            } else {
                let left = sleep_until.saturating_duration_since(runtime::now());
                match runtime::timeout(left, self.medium.completions(&mut self.ended)).await {
                    Ok(collected) => return collected,
                    Err(_elapsed) => {}
                }
            }
        }
        while self.medium.take(&mut self.ended) == 0 && Instant::now() < wake {
            runtime::yield_now().await;
        }
        Ok(())
    }

    /// Judges an end, and counts it if it went well.
    fn finish(&mut self, ended: M::Ended, tally: &mut Tally, slice: Option<&mut Latency>) {
        let write = |index: u16| self.ios.get(usize::from(index)).is_some_and(|io| io.write);
        let End { index, at, outcome } = M::judge(ended, write, self.bs);
        let Some(io) = self.ios.get(usize::from(index)).copied() else { return };
        match outcome {
            medium::Outcome::Done(data) => {
                if let Some(ns) = self.engine.end(index, at) {
                    tally.done(io.write, ns);
                    if let Some(slice) = slice {
                        slice.record(ns);
                    }
                }
                let lba = self.lba(io.place);
                let Some(verifier) = &mut self.verifier else { return };
                if io.write {
                    verifier.end_write(io.place, true);
                } else if let Some(data) = data {
                    let checked = verifier.check(&data, io.place, lba, io.generation);
                    tally.verified += checked.blocks;
                    for wrong in checked.wrong {
                        tally.error(|| format!("{}: {wrong}", self.url));
                        self.shared.errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            medium::Outcome::Again { pause, .. } if io.tries < MAX_TRIES => {
                self.pause |= pause;
                self.ios[usize::from(index)].tries += 1;
                self.again.push(index);
            }
            medium::Outcome::Again { reason, .. } | medium::Outcome::Failed(reason) => {
                self.engine.fail(index);
                if let (Some(verifier), true) = (&mut self.verifier, io.write) {
                    verifier.end_write(io.place, false);
                }
                self.shared.errors.fetch_add(1, Ordering::Relaxed);
                tally.error(|| {
                    if self.pattern.is_metadata() {
                        return format!("{}: {}: {reason}", self.url, self.pattern.name());
                    }
                    let what = if io.write { "write" } else { "read" };
                    let blocks = self.bs / self.medium.block_len();
                    format!("{}: {what} of {blocks} blocks at LBA {}: {reason}", self.url, self.lba(io.place))
                });
            }
        }
    }
}

/// A buffer of `len` bytes.
fn buffer(len: u32) -> Result<BufMut, Lost> {
    let no_memory = || Lost { reason: "the buffer pool is exhausted".to_owned(), unreachable: false };
    let mut buffer = pool::alloc(len as usize).ok_or_else(no_memory)?;
    buffer.set_len(len as usize);
    Ok(buffer)
}

/// Bytes that neither compress nor repeat within an I/O.
fn random_data(len: u32) -> Result<Chain, Lost> {
    let mut random = load::Random::new(u64::from(len), 0);
    let (mut data, mut left) = (Chain::new(), len);
    while left > 0 {
        let mut buffer = buffer(left.min(pool::MAX_ALLOC as u32))?;
        for bytes in buffer.chunks_mut(8) {
            bytes.copy_from_slice(&random.any().to_le_bytes()[..bytes.len()]);
        }
        left -= buffer.len() as u32;
        data.push(buffer.freeze());
    }
    Ok(data)
}
