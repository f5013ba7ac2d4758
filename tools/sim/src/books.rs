//! The state that all parts of a run of reads and writes share: the oracle, and the possible
//! faults.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use iscsi::initiator::ProtocolError;
use iscsi_client::Error;
use runtime::Notify;

use crate::executions::Executions;
use crate::oracle::{OpId, Oracle, SECTOR};
use crate::plan::{Change, Plan};
use crate::verdict::Verdict;
use crate::workload::Excuses;

/// The state that all parts of a run share.
pub(crate) struct Books {
    pub(crate) plan: Plan,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) excuses: Cell<Excuses>,
    /// Power cuts so far.
    pub(crate) cuts: Cell<u64>,
    /// Record of executions on the medium.
    pub(crate) executions: Executions,
    /// Commands that are never sent again.
    pub(crate) once: RefCell<BTreeSet<OpId>>,
    /// Commands submitted so far.
    pub(crate) submitted: Cell<u64>,
    /// An initiator or an administrator ends sessions, or commands of others.
    pub(crate) disturbed: Cell<bool>,
    /// Wakes the loop of faults.
    news: Notify,
    last_op: Cell<OpId>,
    pub(crate) verdict: Verdict,
}

impl Books {
    pub(crate) fn new(plan: Plan, loud: bool) -> Self {
        let sectors = (plan.blocks * u64::from(plan.block)) as usize / SECTOR;
        let disturbs = |(_, change): &(u64, Change)| *change != Change::Apply;
        Self {
            oracle: RefCell::new(Oracle::new(sectors, plan.block as usize / SECTOR)),
            excuses: Cell::default(),
            cuts: Cell::new(0),
            executions: Executions::default(),
            once: RefCell::default(),
            submitted: Cell::new(0),
            disturbed: Cell::new(plan.changes.iter().any(disturbs)),
            news: Notify::default(),
            last_op: Cell::new(0),
            verdict: Verdict::new(loud),
            plan,
        }
    }

    pub(crate) fn next_op(&self) -> OpId {
        self.last_op.set(self.last_op.get() + 1);
        self.last_op.get()
    }

    /// Counts submitted commands and wakes the loop of faults.
    pub(crate) fn news(&self, submitted: u64) {
        self.submitted.set(self.submitted.get() + submitted);
        self.news.notify();
    }

    /// Waits until fault number `next` is due, at most 20 ms.
    pub(crate) async fn wait_for_news(&self, next: usize) {
        let due = self.plan.troubles.get(next).map(|(at, _)| *at);
        let news = self.news.until(|| due.is_some_and(|due| due <= self.submitted.get()).then_some(()));
        // A power cut after a number of operations is not announced, so look again soon.
        let _ = runtime::timeout(Duration::from_millis(20), news).await;
    }

    /// Whether the plan's faults can end a command with `error`. Only a flipped bit makes the
    /// server seem to break the protocol.
    pub(crate) fn may_lose(&self, error: &Error) -> bool {
        match error {
            Error::Lost(_) | Error::TimedOut(_) | Error::Login(_) | Error::Connect { .. } => true,
            // Another session has ended the task.
            Error::Protocol(ProtocolError::Unrecoverable) if self.disturbed.get() => true,
            // A task was reassigned too often, or its new connection has no room: the session
            // starts anew.
            Error::Protocol(ProtocolError::NoReassignment) => true,
            Error::Protocol(_) => self.plan.flips(),
            _ => false,
        }
    }

    /// Whether nothing disturbs sessions and commands.
    pub(crate) fn is_calm(&self) -> bool {
        self.plan.troubles.is_empty() && !self.disturbed.get()
    }

    pub(crate) fn excuse(&self, change: impl FnOnce(&mut Excuses)) {
        let mut excuses = self.excuses.get();
        change(&mut excuses);
        self.excuses.set(excuses);
    }
}
