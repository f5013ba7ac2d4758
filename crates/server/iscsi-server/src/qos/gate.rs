//! A connection's commands that wait for their time under a limit. Others pass them: a unit's limit holds back that unit's commands
//! only. The CmdSN window bounds how many there are.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use iscsi::target::{ScsiCommand, TaskKey};
use runtime::Notify;

use super::{Cost, Limiter};
use crate::Handle;
use crate::connection::{Admitted, Connection};
use crate::session::Session;

/// The commands that wait.
#[derive(Default)]
pub(crate) struct Gate {
    /// Whether any limit holds for the connection: all that commands of others pay for.
    closed: Cell<bool>,
    waiting: RefCell<BinaryHeap<Reverse<Waiting>>>,
    count: Cell<u64>,
    /// A task sees to those that wait.
    watched: Cell<bool>,
    /// The first of them is another, or there is none.
    changed: Notify,
}

struct Waiting {
    until: Instant,
    /// In the order of their coming.
    number: u64,
    command: Admitted,
    cost: Cost,
    limiters: [Option<Arc<Limiter>>; 2],
}

impl Waiting {
    fn rank(&self) -> (Instant, u64) {
        (self.until, self.number)
    }
}

fn refund(limiters: &[Option<Arc<Limiter>>; 2], cost: Cost) {
    limiters.iter().flatten().for_each(|limiter| limiter.refund(cost));
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl Gate {
    /// Looks which limits hold for a session.
    pub(crate) fn look(&self, session: &Session) {
        let units = session.view().luns.iter().any(|entry| entry.limiter.is_active());
        self.closed.set(units || session.limiter.is_active());
    }

    /// Whether limits hold.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// When the last of those goes that wait for the same unit.
    fn last_of(&self, command: &ScsiCommand) -> Option<Instant> {
        let waiting = self.waiting.borrow();
        let same = waiting.iter().filter(|Reverse(one)| one.command.scsi.lun == command.lun);
        same.map(|Reverse(one)| one.until).max()
    }

    /// Forgets a command that waits, and what it was charged. False if it does not wait here.
    pub(crate) fn remove(&self, task: TaskKey) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let before = waiting.len();
        waiting.retain(|Reverse(one)| {
            let keep = one.command.scsi.task != task;
            if !keep {
                refund(&one.limiters, one.cost);
            }
            keep
        });
        self.changed.notify();
        waiting.len() < before
    }

    /// Keeps those of the waiting commands that `stays` gives back, and refunds the others.
    pub(crate) fn retain(&self, mut stays: impl FnMut(Admitted) -> Option<Admitted>) {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        let kept = all.into_iter().filter_map(|Reverse(one)| {
            let Waiting { until, number, command, cost, limiters } = one;
            let command = stays(command);
            if command.is_none() {
                refund(&limiters, cost);
            }
            Some(Reverse(Waiting { until, number, command: command?, cost, limiters }))
        });
        let kept = kept.collect();
        *self.waiting.borrow_mut() = kept;
        self.changed.notify();
    }
}

/// Gives the command back if its time is now, and keeps it until then otherwise.
#[cold]
pub(crate) fn pass(connection: &Rc<Connection>, command: Admitted) -> Option<Admitted> {
    let Some(entry) = command.entry() else { return Some(command) };
    let scsi = &command.scsi;
    let Some(cost) = Cost::of(&scsi.cdb, scsi.expected_in, scsi.expected_out) else {
        return Some(command);
    };
    let now = runtime::now();
    let of = |limiter: &Arc<Limiter>| limiter.is_active().then(|| limiter.clone());
    let limiters = [of(&entry.limiter), of(&connection.session.limiter)];
    let gate = &connection.gate;
    let charged = limiters.iter().flatten().map(|limiter| limiter.charge(cost, now)).max();
    // Where a limit was lifted a moment ago, those that came before still wait to be told, and go first.
    let until = if charged.is_none() { gate.last_of(scsi) } else { charged };
    let Some(until) = until.filter(|until| *until > now) else { return Some(command) };
    let number = gate.count.get();
    gate.count.set(number.wrapping_add(1));
    gate.waiting.borrow_mut().push(Reverse(Waiting { until, number, command, cost, limiters }));
    if gate.watched.replace(true) {
        gate.changed.notify();
    } else {
        runtime::spawn(watch(connection.clone()));
    }
    None
}

/// Starts commands when their time has come, until none waits.
async fn watch(connection: Rc<Connection>) {
    let gate = &connection.gate;
    loop {
        let first = gate.waiting.borrow().peek().map(|Reverse(first)| first.until);
        let Some(until) = first else { break };
        if until > runtime::now() {
            // Another may come before it, or it may go.
            let moved = || {
                gate.waiting.borrow().peek().is_none_or(|Reverse(first)| first.until != until).then_some(())
            };
            let _ =
                runtime::timeout(until.saturating_duration_since(runtime::now()), gate.changed.until(moved))
                    .await;
            continue;
        }
        let due = gate.waiting.borrow_mut().pop();
        if let Some(Reverse(due)) = due {
            if let Some(command) = connection.resume(due.command) {
                connection.start_unlimited(command);
            }
            connection.kick();
        }
    }
    gate.watched.set(false);
}

impl Connection {
    /// Limits have changed: commands that wait are charged anew.
    pub(crate) fn limits_changed(self: &Rc<Self>) {
        self.gate.look(&self.session);
        let mut waiting = std::mem::take(&mut *self.gate.waiting.borrow_mut()).into_vec();
        waiting.sort_by_key(|Reverse(one)| one.number);
        for Reverse(one) in waiting {
            if let Some(command) = self.resume(one.command) {
                self.start(command);
            }
        }
        self.gate.changed.notify();
        self.kick();
    }
}

impl Handle {
    /// Limits have changed, of units by [`Limiter::set`] or of ACL entries: commands that wait are counted anew. Cheap, and never on
    /// the data path.
    pub fn limits_changed(&self) {
        let shared = self.shared();
        let model = shared.model();
        for session in shared.registry.all() {
            if let Some(target) = session.target_name().and_then(|name| model.target(name)) {
                let acl = target.acl(&session.port.initiator).flatten();
                let limits = acl.map(|acl| acl.limits).unwrap_or_default();
                if limits != session.limiter.limits() {
                    session.limiter.set(limits);
                }
            }
            for member in session.connections() {
                member.remote.tell(Connection::limits_changed);
            }
        }
    }
}
