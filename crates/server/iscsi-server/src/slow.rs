//! [`SlowLog`]: the slowest commands of one core, with the time of each stage. A command enters it
//! when it has ended; those that are still at work are asked for where they run.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Nexus;
use server_core::tally::Class;

/// Commands that a core keeps.
const KEPT: usize = 64;
/// No command that took less is slow.
pub(crate) const FLOOR: Duration = Duration::from_millis(10);
/// A command that is still at work is slow from here on.
pub(crate) const AT_WORK: Duration = Duration::from_secs(1);
/// How long a command is kept if others need its place.
const MEMORY: Duration = Duration::from_secs(900);

/// A command, and the time of each of its stages so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    /// The first bytes of its CDB.
    pub cdb: [u8; 16],
    pub lun: u16,
    /// Initiator Task Tag.
    pub itt: u32,
    pub class: Class,
    pub order: Duration,
    pub data: Duration,
    pub medium: Duration,
    /// `None` if it is not known, or not over.
    pub send: Option<Duration>,
}

impl Course {
    /// The time of all stages that are known.
    pub(crate) fn took(&self) -> Duration {
        self.order + self.data + self.medium + self.send.unwrap_or_default()
    }
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for its turn.
    Waits,
    /// Its unit waits for the initiator: for data, or until it takes some.
    Data,
    /// Its unit is at work.
    Medium,
    /// Its status was ready at this time.
    Ended(Instant),
}

/// A slow command.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub course: Course,
    pub progress: Progress,
    pub nexus: Arc<Nexus>,
    /// The session's TSIH.
    pub tsih: u16,
}

/// A slow command as administrators see it.
#[derive(Clone, Debug)]
pub struct SlowCommand {
    /// The initiator's name.
    pub initiator: String,
    /// The target's name.
    pub target: String,
    /// TSIH of the session.
    pub tsih: u16,
    /// The unit's number as the initiator sees it.
    pub lun: u16,
    /// Initiator Task Tag.
    pub itt: u32,
    /// `read`, `write` or `other`.
    pub operation: &'static str,
    /// The first 16 bytes of its CDB.
    pub cdb: [u8; 16],
    /// How far it has come.
    pub progress: Progress,
    /// Time of each stage: order, data, medium.
    pub stages: [Duration; 3],
    /// Time from its status until the initiator acknowledged it, where that is known.
    pub send: Option<Duration>,
}

impl From<Slow> for SlowCommand {
    fn from(of: Slow) -> Self {
        let Slow { course, progress, nexus, tsih } = of;
        Self {
            initiator: nexus.initiator.clone(),
            target: nexus.target.clone(),
            tsih,
            lun: course.lun,
            itt: course.itt,
            operation: match course.class {
                Class::Read => "read",
                Class::Write => "write",
                Class::Other => "other",
            },
            cdb: course.cdb,
            progress,
            stages: [course.order, course.data, course.medium],
            send: course.send,
        }
    }
}

impl SlowCommand {
    /// The time of all stages that are known.
    pub fn took(&self) -> Duration {
        self.stages.iter().sum::<Duration>() + self.send.unwrap_or_default()
    }
}

/// The slowest commands of one core.
#[derive(Default)]
pub(crate) struct SlowLog(RefCell<Vec<Slow>>);

impl SlowLog {
    /// Keeps a slow command that ended at `now`, unless all that are kept are slower and not old.
    pub(crate) fn keep(&self, slow: Slow, now: Instant) {
        let took = slow.course.took();
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT {
            if kept.capacity() == 0 {
                kept.reserve_exact(KEPT);
            }
            return kept.push(slow);
        }
        let is_old = |one: &Slow| matches!(one.progress, Progress::Ended(at) if now.saturating_duration_since(at) > MEMORY);
        let rank = |one: &Slow| (!is_old(one), one.course.took());
        if let Some(least) = kept.iter_mut().min_by_key(|one| rank(one))
            && rank(least) < (true, took)
        {
            *least = slow;
        }
    }

    /// The commands that it keeps.
    pub(crate) fn all(&self) -> Vec<Slow> {
        self.0.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use device::NexusId;

    use super::*;

    fn slow(ms: u64, at: Instant) -> Slow {
        let course = Course {
            cdb: [0; 16],
            lun: 0,
            itt: 0,
            class: Class::Read,
            order: Duration::ZERO,
            data: Duration::ZERO,
            medium: Duration::from_millis(ms),
            send: None,
        };
        let nexus = Nexus {
            id: NexusId(1),
            initiator: String::new(),
            principal: None,
            transport_id: Vec::new(),
            target_port: 1,
            target: String::new(),
            ports: None,
        };
        Slow { course, progress: Progress::Ended(at), nexus: Arc::new(nexus), tsih: 1 }
    }

    fn kept(log: &SlowLog) -> Vec<u64> {
        let mut all: Vec<_> = log.all().iter().map(|one| one.course.took().as_millis() as u64).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn the_slowest_are_kept() {
        let (log, now) = (SlowLog::default(), runtime::clock());
        for ms in 0..200 {
            log.keep(slow(ms, now), now);
        }
        assert_eq!(kept(&log), (200 - KEPT as u64..200).collect::<Vec<_>>());
        log.keep(slow(100, now), now);
        assert_eq!(kept(&log)[0], 200 - KEPT as u64);
    }

    #[test]
    fn an_old_command_makes_room_whatever_it_took() {
        let (log, then) = (SlowLog::default(), runtime::clock());
        (0..KEPT).for_each(|_| log.keep(slow(5000, then), then));
        log.keep(slow(11, then), then + MEMORY);
        assert_eq!(kept(&log)[0], 5000);
        let later = then + MEMORY + Duration::from_secs(1);
        log.keep(slow(11, later), later);
        assert_eq!((kept(&log)[0], kept(&log).len()), (11, KEPT));
    }
}
