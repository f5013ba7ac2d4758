//! [`Timing`]: the way of a connection's commands through their stages. Nothing here reads the
//! clock: one command of eight is timed by the tally, which does, and all others by the time of the
//! runtime's turns. That is good enough to find slow ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Nexus;
use iscsi::sn;
use iscsi::target::{ScsiCommand, TaskKey};
use server_core::slow::{AT_WORK, FLOOR};
use server_core::tally::Class;

use crate::account::Account;
use crate::qos;
use crate::slow::{Course, Progress, Slow, SlowLog};
use crate::stages::{Stage, UnitStages};

/// Statuses at most whose acknowledgements are waited for.
const MOST: usize = 32;
/// If an initiator without any task acknowledges later than this, it had nothing to say before: the
/// time says nothing about the network.
const THOUGHT: Duration = Duration::from_millis(100);

/// A command as its unit gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub cdb: [u8; 16],
    pub lun: u16,
    pub itt: u32,
    pub class: Class,
    pub arrival: Instant,
    /// Time of the turn in which it began.
    pub turn: Instant,
    /// When it began, by the clock, if it is timed.
    pub timed: Option<Instant>,
    /// The unit's address, if it is timed and its stages are counted for the unit too.
    pub unit: Option<NonZeroUsize>,
}

impl Start {
    /// A command that is handed to its unit now, and that came at `arrival`.
    #[inline]
    pub(super) fn new(scsi: &ScsiCommand, arrival: Instant) -> Self {
        let mut cdb = [0; 16];
        cdb.iter_mut().zip(&scsi.cdb).for_each(|(own, byte)| *own = *byte);
        Self {
            cdb,
            lun: scsi.lun.number().unwrap_or(u16::MAX),
            itt: scsi.itt,
            class: qos::class(&scsi.cdb),
            arrival,
            turn: runtime::now(),
            timed: None,
            unit: None,
        }
    }

    /// The command so far, when its unit has been at it for `took`.
    fn course(&self, took: Duration, data: Duration) -> Course {
        Course {
            cdb: self.cdb,
            lun: self.lun,
            itt: self.itt,
            class: self.class,
            order: self.timed.unwrap_or(self.turn).saturating_duration_since(self.arrival),
            data,
            medium: took.saturating_sub(data),
            send: None,
        }
    }
}

/// A command that has ended, and that is timed or slow.
pub(super) struct Measured {
    course: Course,
    timed: bool,
    /// As [`Start::unit`].
    unit: Option<NonZeroUsize>,
    at: Instant,
}

/// A command that its unit has not finished.
#[derive(Clone, Copy, Default)]
struct AtWork {
    task: Option<TaskKey>,
    start: Option<Start>,
    /// How long its unit has waited for the initiator.
    data: Duration,
    /// It waits since then.
    since: Option<Instant>,
}

impl AtWork {
    fn waited(&self, now: Instant) -> Duration {
        self.data + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// The commands of a connection.
pub(super) struct Timing {
    pub account: Rc<Account>,
    units: Rc<UnitStages>,
    log: Rc<SlowLog>,
    nexus: Arc<Nexus>,
    tsih: u16,
    /// By task slot.
    at_work: RefCell<Vec<AtWork>>,
    /// Statuses that were sent, by StatSN.
    sent: RefCell<VecDeque<(u32, Measured)>>,
}

impl Timing {
    pub(super) fn new(
        account: Rc<Account>,
        units: Rc<UnitStages>,
        log: Rc<SlowLog>,
        nexus: Arc<Nexus>,
        tsih: u16,
    ) -> Self {
        Self { account, units, log, nexus, tsih, at_work: RefCell::default(), sent: RefCell::default() }
    }

    /// Runs `act` on the entry of a task's slot.
    fn slot<T>(&self, task: TaskKey, act: impl FnOnce(&mut AtWork) -> T) -> T {
        let mut all = self.at_work.borrow_mut();
        if all.len() <= task.slot() {
            all.resize(task.slot() + 1, AtWork::default());
        }
        let slot = &mut all[task.slot()];
        if slot.task != Some(task) {
            // One by one: a `Start` is 90 bytes, of which `None` writes one.
            slot.task = Some(task);
            slot.start = None;
            slot.data = Duration::ZERO;
            slot.since = None;
        }
        act(slot)
    }

    /// The unit of a task goes on with it.
    pub(super) fn goes_on(&self, task: TaskKey, start: Start) {
        self.slot(task, |slot| slot.start = Some(start));
    }

    /// The unit of a task waits for the initiator: for its data, or for room for data.
    pub(super) fn waits_for_initiator(&self, task: TaskKey) {
        self.slot(task, |slot| _ = slot.since.get_or_insert_with(runtime::now));
    }

    /// The unit goes on.
    pub(super) fn heard_from_initiator(&self, task: TaskKey) {
        let mut all = self.at_work.borrow_mut();
        let Some(slot) = all.get_mut(task.slot()).filter(|slot| slot.task == Some(task)) else { return };
        if slot.since.is_some() {
            slot.data = slot.waited(runtime::now());
            slot.since = None;
        }
    }

    /// A command has ended whose unit did not have to wait. `took` is known if it is timed.
    #[inline]
    pub(super) fn ended(&self, start: &Start, took: Option<Duration>) -> Option<Measured> {
        self.measure(start, took, Duration::ZERO)
    }

    /// The same of a command that went on.
    pub(super) fn ended_later(&self, task: TaskKey, took: Option<Duration>) -> Option<Measured> {
        let mut all = self.at_work.borrow_mut();
        let slot = all.get_mut(task.slot()).filter(|slot| slot.task == Some(task))?;
        slot.task = None;
        self.measure(slot.start.as_ref()?, took, slot.waited(runtime::now()))
    }

    #[inline]
    fn measure(&self, start: &Start, took: Option<Duration>, data: Duration) -> Option<Measured> {
        let now = runtime::now();
        let slow = now.saturating_duration_since(start.arrival) >= FLOOR;
        if took.is_none() && !slow {
            return None;
        }
        let at = match (start.timed, took) {
            (Some(began), Some(took)) => began + took,
            _ => now,
        };
        let took = took.unwrap_or_else(|| now.saturating_duration_since(start.turn));
        let course = start.course(took, data);
        let timed = start.timed.is_some();
        if timed {
            let stages =
                [(Stage::Order, course.order), (Stage::Data, course.data), (Stage::Medium, course.medium)];
            stages.into_iter().for_each(|(stage, took)| self.account.stage(course.class, stage, took));
            if let Some(unit) = start.unit {
                self.units.count(unit, course.class, stages);
            }
        }
        Some(Measured { course, timed, unit: start.unit, at })
    }

    /// The status of a command was sent with this StatSN; `None` if it was not, or goes out over
    /// another connection.
    pub(super) fn sent(&self, measured: Measured, stat_sn: Option<u32>) {
        let mut sent = self.sent.borrow_mut();
        match stat_sn {
            Some(stat_sn) if sent.len() < MOST => sent.push_back((stat_sn, measured)),
            _ => self.offer(measured.course, measured.at),
        }
    }

    /// The initiator has acknowledged all statuses before `exp_stat_sn`.
    #[inline]
    pub(super) fn acknowledged(&self, exp_stat_sn: u32, is_idle: impl FnOnce() -> bool) {
        let is_first = |(stat_sn, _): &(u32, Measured)| sn::lt(*stat_sn, exp_stat_sn);
        if self.sent.borrow().front().is_some_and(is_first) {
            self.take_acknowledged(exp_stat_sn, is_idle());
        }
    }

    #[inline(never)]
    fn take_acknowledged(&self, exp_stat_sn: u32, is_idle: bool) {
        let now = runtime::now();
        let mut sent = self.sent.borrow_mut();
        while let Some((stat_sn, measured)) = sent.pop_front() {
            if !sn::lt(stat_sn, exp_stat_sn) {
                sent.push_front((stat_sn, measured));
                break;
            }
            let Measured { mut course, timed, unit, at } = measured;
            let took = now.saturating_duration_since(at);
            if !is_idle || took <= THOUGHT {
                course.send = Some(took);
                if timed {
                    self.account.stage(course.class, Stage::Send, took);
                }
                if let Some(unit) = unit {
                    self.units.acknowledged(unit, course.class, took);
                }
            }
            self.offer(course, at);
        }
    }

    /// The connection has ended: no acknowledgement comes any more.
    pub(super) fn close(&self) {
        let sent = std::mem::take(&mut *self.sent.borrow_mut());
        sent.into_iter().for_each(|(_, measured)| self.offer(measured.course, measured.at));
    }

    fn offer(&self, course: Course, at: Instant) {
        if course.took() >= FLOOR {
            self.log.keep(self.slow(course, Progress::Ended(at)), at);
        }
    }

    fn slow(&self, course: Course, progress: Progress) -> Slow {
        Slow { course, progress, nexus: self.nexus.clone(), tsih: self.tsih }
    }

    /// The commands that are slow and not in the log: those at work, if `is_there` knows their
    /// tasks, those of `waiting`, which wait for their turns, and those whose acknowledgements have
    /// not come.
    pub(super) fn slow_now(
        &self,
        waiting: impl Iterator<Item = Start>,
        is_there: impl Fn(TaskKey) -> bool,
    ) -> Vec<Slow> {
        let now = runtime::now();
        let at_work = self.at_work.borrow();
        let there = at_work.iter().filter(|slot| slot.task.is_some_and(&is_there));
        let running = there.filter_map(|slot| {
            let start = slot.start?;
            let course = start.course(now.saturating_duration_since(start.turn), slot.waited(now));
            Some((course, if slot.since.is_some() { Progress::Data } else { Progress::Medium }))
        });
        let waiting = waiting.map(|start| (start.course(Duration::ZERO, Duration::ZERO), Progress::Waits));
        let unfinished = running.chain(waiting).filter(|(course, _)| course.took() >= AT_WORK);
        let sent = self.sent.borrow();
        let ended = sent.iter().map(|(_, it)| (it.course, Progress::Ended(it.at)));
        let ended = ended.filter(|(course, _)| course.took() >= FLOOR);
        unfinished.chain(ended).map(|(course, progress)| self.slow(course, progress)).collect()
    }
}

#[cfg(test)]
mod tests {
    use device::NexusId;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timing() -> Timing {
        let nexus = Nexus {
            id: NexusId(1),
            initiator: "iqn.2026-01.org.example:i".into(),
            principal: None,
            transport_id: Vec::new(),
            target_port: 1,
            target: "iqn.2026-01.org.example:t".into(),
            ports: None,
        };
        Timing::new(Rc::default(), Rc::default(), Rc::default(), Arc::new(nexus), 7)
    }

    fn start(ago: Duration, timed: bool) -> Start {
        let now = runtime::clock();
        let began = now - ago;
        Start {
            cdb: [0x2a; 16],
            lun: 3,
            itt: 9,
            class: Class::Write,
            arrival: began - 20 * MS,
            turn: began,
            timed: timed.then_some(began),
            unit: None,
        }
    }

    /// How many times each stage of writes was counted.
    fn counted(timing: &Timing) -> [u64; 4] {
        let counts = timing.account.counts();
        let of = |wanted: &str| {
            let all: Vec<_> =
                counts.stages.iter().map(|(op, stage, it)| (op, stage, it.commands())).collect();
            all.iter().find(|(op, stage, _)| *op == "write" && *stage == wanted).map_or(0, |it| it.2)
        };
        ["order", "data", "medium", "send"].map(of)
    }

    #[test]
    fn what_the_unit_waits_for_is_not_the_mediums_time() {
        let timing = timing();
        let task = TaskKey::from_tag(5);
        timing.waits_for_initiator(task);
        timing.goes_on(task, start(500 * MS, true));
        timing.slot(task, |slot| slot.since = Some(runtime::clock() - 300 * MS));
        timing.heard_from_initiator(task);
        let measured = timing.ended_later(task, Some(500 * MS)).expect("it is timed");
        let Course { order, data, medium, .. } = measured.course;
        assert_eq!(order, 20 * MS);
        assert!(data >= 300 * MS && data + medium == 500 * MS, "{data:?} {medium:?}");
        assert_eq!(counted(&timing), [1, 1, 1, 0]);
        assert!(timing.ended_later(task, None).is_none(), "it has ended");
    }

    #[test]
    fn a_status_counts_as_sent_once_it_is_acknowledged() {
        let timing = timing();
        let timed = || timing.ended(&start(MS, true), Some(MS)).expect("it is timed");
        timing.sent(timed(), Some(u32::MAX));
        timing.sent(timed(), Some(0));
        timing.acknowledged(u32::MAX, || false);
        assert_eq!(counted(&timing), [2, 2, 2, 0]);
        timing.acknowledged(0, || false);
        assert_eq!(counted(&timing)[3], 1);
        // A command that was not timed is no part of the histogram.
        let slow = timing.ended(&start(30 * MS, false), None).expect("it is slow");
        timing.sent(slow, Some(1));
        timing.acknowledged(2, || false);
        assert_eq!(counted(&timing)[3], 2);
        let all = timing.log.all();
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|one| one.course.send.is_some()));
    }

    #[test]
    fn a_unit_that_asks_for_it_has_the_stages_of_its_timed_commands() {
        let timing = timing();
        let of_unit = |timed| Start { unit: NonZeroUsize::new(4096), ..start(30 * MS, timed) };
        for (stat_sn, start) in [of_unit(true), start(30 * MS, true)].into_iter().enumerate() {
            let measured = timing.ended(&start, Some(30 * MS)).expect("it is timed");
            timing.sent(measured, Some(stat_sn as u32));
        }
        timing.acknowledged(2, || false);
        assert_eq!(counted(&timing), [2, 2, 2, 2]);
        let [(4096, ref stages)] = timing.units.all()[..] else { panic!("one unit asks for it") };
        let told: Vec<_> = stages.iter().filter(|(.., times)| times.commands() > 0).collect();
        assert_eq!(told.len(), 4);
        assert!(told.iter().all(|(op, _, times)| (*op, times.commands()) == ("write", 1)), "{told:?}");
    }

    #[test]
    fn an_initiator_that_had_nothing_to_say_has_not_been_slow() {
        let timing = timing();
        let long_ago = Measured {
            at: runtime::clock() - 2 * THOUGHT,
            ..timing.ended(&start(MS, true), Some(MS)).unwrap()
        };
        timing.sent(long_ago, Some(0));
        timing.acknowledged(1, || true);
        assert_eq!(counted(&timing), [1, 1, 1, 0]);
        assert_eq!(timing.log.all()[0].course.send, None);
        let long_ago = Measured {
            at: runtime::clock() - 2 * THOUGHT,
            ..timing.ended(&start(MS, true), Some(MS)).unwrap()
        };
        timing.sent(long_ago, Some(1));
        timing.acknowledged(2, || false);
        assert_eq!(counted(&timing)[3], 1);
    }

    #[test]
    fn commands_at_work_are_slow_after_a_second_and_only_while_they_are_there() {
        let timing = timing();
        let (long, short) = (TaskKey::from_tag(1), TaskKey::from_tag(2));
        timing.goes_on(long, start(1100 * MS, false));
        timing.goes_on(short, start(100 * MS, false));
        let waiting = start(Duration::ZERO, false);
        let waiting = Start { arrival: waiting.turn - 2000 * MS, ..waiting };
        let now = timing.slow_now([waiting].into_iter(), |_| true);
        let told: Vec<_> = now.iter().map(|one| (one.progress, one.course.took() >= AT_WORK)).collect();
        assert_eq!(told, [(Progress::Medium, true), (Progress::Waits, true)]);
        assert!(timing.slow_now(std::iter::empty(), |task| task != long).is_empty());
    }

    #[test]
    fn statuses_that_nobody_acknowledges_are_bounded_and_told() {
        let timing = timing();
        for stat_sn in 0..MOST as u32 + 5 {
            let slow = timing.ended(&start(30 * MS, false), None).expect("it is slow");
            timing.sent(slow, Some(stat_sn));
        }
        assert_eq!((timing.log.all().len(), timing.slow_now(std::iter::empty(), |_| true).len()), (5, MOST));
        timing.close();
        assert_eq!(timing.log.all().len(), MOST + 5);
    }
}
