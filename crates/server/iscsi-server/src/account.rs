//! [`Account`]: what became of one target's commands on one core: their outcomes, their waits under
//! limits of service, and the times of their stages. A core counts in memory of its own; readers
//! ask every core.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use device::Outcome;
use scsi::{SenseKey, Status};
use server_core::tally::Class;

use crate::stages::{Stage, Stages};

/// Number of outcomes: the statuses of SAM-5 §5.3.1, CHECK CONDITION once for each sense key.
pub const OUTCOMES: usize = STATUSES.len() + KEYS.len();

/// All statuses but CHECK CONDITION.
const STATUSES: [(Status, &str); 7] = [
    (Status::Good, "good"),
    (Status::ConditionMet, "condition-met"),
    (Status::Busy, "busy"),
    (Status::ReservationConflict, "reservation-conflict"),
    (Status::TaskSetFull, "task-set-full"),
    (Status::AcaActive, "aca-active"),
    (Status::TaskAborted, "task-aborted"),
];

/// The sense keys in the order of their codes (SPC-4 §4.5.6).
const KEYS: [&str; 16] = [
    "no-sense",
    "recovered-error",
    "not-ready",
    "medium-error",
    "hardware-error",
    "illegal-request",
    "unit-attention",
    "data-protect",
    "blank-check",
    "vendor-specific",
    "copy-aborted",
    "aborted-command",
    "reserved",
    "volume-overflow",
    "miscompare",
    "completed",
];

/// Counts of one target's commands since it was first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetCounts {
    outcomes: [u64; OUTCOMES],
    /// Commands that waited for a limit of service, and then ran.
    pub limit_waits: u64,
    /// How long they waited, nanoseconds.
    pub limit_wait_ns: u64,
    /// Times of one command in eight, by stage.
    pub stages: Stages,
}

impl Default for TargetCounts {
    fn default() -> Self {
        Self { outcomes: [0; OUTCOMES], limit_waits: 0, limit_wait_ns: 0, stages: Stages::default() }
    }
}

impl TargetCounts {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(own, more)| *own += more);
        self.limit_waits += other.limit_waits;
        self.limit_wait_ns += other.limit_wait_ns;
        self.stages.add(&other.stages);
    }

    /// Each outcome: its status, its sense key (empty unless the status is CHECK CONDITION), and
    /// how many commands had it.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let statuses = STATUSES.iter().map(|(_, name)| (*name, ""));
        let checks = KEYS.iter().map(|key| ("check-condition", *key));
        statuses.chain(checks).zip(self.outcomes).map(|((status, key), count)| (status, key, count))
    }
}

fn place(outcome: &Outcome) -> usize {
    let status = STATUSES.iter().position(|(status, _)| *status == outcome.status);
    let key = outcome.sense.as_ref().map_or(SenseKey::NoSense, |sense| sense.key);
    status.unwrap_or(STATUSES.len() + usize::from(key as u8 & 0x0f))
}

/// One target's counts on one core.
#[derive(Default)]
pub(crate) struct Account(RefCell<TargetCounts>);

impl Account {
    /// A command has ended.
    #[inline]
    pub(crate) fn ended(&self, outcome: &Outcome) {
        let at = if outcome.status == Status::Good { 0 } else { place(outcome) };
        self.0.borrow_mut().outcomes[at] += 1;
    }

    /// A command has spent this time in a stage.
    pub(crate) fn stage(&self, class: Class, stage: Stage, took: Duration) {
        self.0.borrow_mut().stages.count(class, stage, took);
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> TargetCounts {
        *self.0.borrow()
    }

    /// A command goes on that a limit of service has delayed.
    pub(crate) fn waited(&self, time: Duration) {
        let counts = &mut *self.0.borrow_mut();
        counts.limit_waits += 1;
        counts.limit_wait_ns += time.as_nanos() as u64;
    }
}

/// The targets' counts on one core.
#[derive(Default)]
pub(crate) struct Accounts(RefCell<Vec<(String, Rc<Account>)>>);

impl Accounts {
    /// Those of a target, by its name. Not for the data path: a connection keeps them.
    pub(crate) fn of(&self, target: &str) -> Rc<Account> {
        let mut all = self.0.borrow_mut();
        if let Some((_, known)) = all.iter().find(|(name, _)| name == target) {
            return known.clone();
        }
        let new = Rc::<Account>::default();
        all.push((target.to_owned(), new.clone()));
        new
    }

    /// Forgets a target that is served no more.
    pub(crate) fn forget(&self, target: &str) {
        self.0.borrow_mut().retain(|(name, _)| name != target);
    }

    /// All, by their targets' names.
    pub(crate) fn all(&self) -> Vec<(String, TargetCounts)> {
        self.0.borrow().iter().map(|(name, account)| (name.clone(), account.counts())).collect()
    }
}

#[cfg(test)]
mod tests {
    use scsi::Sense;

    use super::*;

    fn told(counts: &TargetCounts) -> Vec<(&'static str, &'static str, u64)> {
        counts.outcomes().filter(|(.., count)| *count > 0).collect()
    }

    #[test]
    fn every_status_and_every_sense_key_has_a_count_of_its_own() {
        let account = Account::default();
        account.ended(&Outcome::GOOD);
        account.ended(&Outcome { status: Status::Busy, ..Outcome::GOOD });
        account.ended(&Outcome { status: Status::CheckCondition, ..Outcome::GOOD });
        account.ended(&Sense::logical_unit_not_supported().into());
        account.ended(&Sense::logical_unit_not_supported().into());
        let mut counts = account.counts();
        let expected = [
            ("good", "", 1),
            ("busy", "", 1),
            ("check-condition", "no-sense", 1),
            ("check-condition", "illegal-request", 2),
        ];
        assert_eq!(told(&counts), expected);
        counts.add(&counts.clone());
        assert_eq!(told(&counts), expected.map(|(status, key, count)| (status, key, 2 * count)));
        assert_eq!(place(&Outcome { status: Status::TaskAborted, ..Outcome::GOOD }), STATUSES.len() - 1);
    }

    #[test]
    fn a_target_that_is_served_no_more_is_forgotten() {
        let accounts = Accounts::default();
        accounts.of("a").waited(Duration::from_millis(2));
        accounts.of("b").ended(&Outcome::GOOD);
        accounts.of("a").waited(Duration::from_millis(3));
        let all = accounts.all();
        assert_eq!((all.len(), all[0].1.limit_waits, all[0].1.limit_wait_ns), (2, 2, 5_000_000));
        accounts.forget("a");
        assert_eq!(accounts.all().len(), 1);
        assert_eq!(accounts.of("a").counts().limit_waits, 0);
    }
}
