//! [`Slow`]: a slow command with the time of each stage, and as administrators see it.
//! [`server_core::slow`] keeps the slowest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Nexus;
use server_core::tally::Class;

/// The slowest commands of one core.
pub(crate) type SlowLog = server_core::slow::SlowLog<Slow>;

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

impl server_core::slow::Slow for Slow {
    fn took(&self) -> Duration {
        self.course.took()
    }

    fn ended(&self) -> Option<Instant> {
        match self.progress {
            Progress::Ended(at) => Some(at),
            Progress::Waits | Progress::Data | Progress::Medium => None,
        }
    }
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
