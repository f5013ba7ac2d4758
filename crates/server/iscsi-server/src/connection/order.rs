//! Task attributes (SAM-5 §8.6): ORDERED commands wait for older ones of their unit, and younger
//! ones wait for them.
//!
//! Nothing is kept for units whose commands are all SIMPLE: those commands only check an empty
//! list. [`Order`] is that of one connection. Where a session may have several, an ORDERED command
//! also waits for older ones of the others ([`Order::ask`]), and younger ones of the others for it
//! ([`iscsi::target::SharedWindow::is_fenced`]). Commands of other sessions have no order.

use std::collections::VecDeque;

use iscsi::pdu::{Lun, TaskAttribute};
use iscsi::sn;
use iscsi::target::{ScsiCommand, TaskKey};

use super::Admitted;

/// Commands that wait for others, by unit.
#[derive(Default)]
pub(crate) struct Order {
    gates: Vec<Gate>,
    /// Running tasks of units that their LUNs do not name any more, with the units' addresses. They
    /// are not in the task sets that those LUNs name now.
    left: Vec<(TaskKey, usize)>,
    /// Waiting ORDERED commands, while other connections of the session may have older ones.
    asking: Vec<TaskKey>,
}

/// A unit with an ORDERED command running or waiting, here or on another connection.
struct Gate {
    lun: Lun,
    /// The running ORDERED command.
    at_work: Option<TaskKey>,
    waiting: VecDeque<Admitted>,
}

fn has(command: &ScsiCommand, attribute: TaskAttribute) -> bool {
    command.attribute == attribute.code()
}

impl Order {
    /// Whether no command waits, none makes others wait, and none runs on a unit that has left its
    /// LUN.
    pub(crate) fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.left.is_empty()
    }

    /// Keeps those of the waiting commands that `stays` returns, and nothing of the task set of a
    /// LUN that names another unit now, by `is_other`.
    pub(crate) fn retain(
        &mut self,
        mut stays: impl FnMut(Admitted) -> Option<Admitted>,
        is_other: impl Fn(Lun) -> bool,
    ) {
        for gate in &mut self.gates {
            gate.waiting = std::mem::take(&mut gate.waiting).into_iter().filter_map(&mut stays).collect();
        }
        self.gates.retain(|gate| !is_other(gate.lun));
    }

    /// The commands that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Admitted> {
        self.gates.iter().flat_map(|gate| &gate.waiting)
    }

    /// The unit at `address`, which runs `task`, has left its LUN.
    pub(crate) fn leave(&mut self, task: TaskKey, address: usize) {
        if self.left(task).is_none() {
            self.left.push((task, address));
        }
    }

    /// The address of the unit that runs `task`, if that has left its LUN.
    pub(crate) fn left(&self, task: TaskKey) -> Option<usize> {
        self.left.iter().find(|(left, _)| *left == task).map(|(_, address)| *address)
    }

    /// Forgets tasks that have ended.
    pub(crate) fn forget_left(&mut self, has_ended: impl Fn(TaskKey) -> bool) {
        self.left.retain(|(task, _)| !has_ended(*task));
    }

    /// The units with commands that wait or make others wait.
    pub(crate) fn luns(&self) -> Vec<Lun> {
        self.gates.iter().map(|gate| gate.lun).collect()
    }

    /// The ORDERED command `task` waits until [`Self::told`], if it is not admitted before.
    pub(crate) fn ask(&mut self, task: TaskKey) {
        self.asking.push(task);
    }

    /// No other connection has commands older than `task`.
    pub(crate) fn told(&mut self, task: TaskKey) {
        self.asking.retain(|asking| *asking != task);
    }

    /// Whether other connections may have commands older than `task`.
    pub(crate) fn is_asking(&self, task: TaskKey) -> bool {
        self.asking.contains(&task)
    }

    /// Returns `command` if it may run now, and keeps it otherwise. `fenced`: it is younger than an
    /// ORDERED command of another connection. `older`: it is ORDERED, and older commands of its
    /// unit may be running.
    pub(crate) fn admit(&mut self, command: Admitted, fenced: bool, older: bool) -> Option<Admitted> {
        let scsi = &command.scsi;
        if has(scsi, TaskAttribute::HeadOfQueue) {
            return Some(command);
        }
        if let Some(gate) = self.gates.iter_mut().find(|gate| gate.lun == scsi.lun) {
            // One that was reassigned from another connection is older than some that wait here.
            let is_older = |other: &Admitted| sn::le(other.scsi.cmd_sn, command.scsi.cmd_sn);
            let at = gate.waiting.iter().rposition(is_older).map_or(0, |at| at + 1);
            gate.waiting.insert(at, command);
            return None;
        }
        if !fenced && !has(scsi, TaskAttribute::Ordered) {
            return Some(command);
        }
        let mut gate = Gate { lun: scsi.lun, at_work: None, waiting: VecDeque::new() };
        let admitted = match fenced || older {
            true => {
                gate.waiting.push_back(command);
                None
            }
            false => {
                gate.at_work = Some(scsi.task);
                Some(command)
            }
        };
        self.gates.push(gate);
        admitted
    }

    /// A task that this admitted has ended, or is not at work any more. [`Self::next`] tells what
    /// may run now.
    pub(crate) fn end(&mut self, task: TaskKey) {
        if let Some(gate) = self.gates.iter_mut().find(|gate| gate.at_work == Some(task)) {
            gate.at_work = None;
        }
    }

    /// The next command of `lun` that may run, if any; call it until there is none. `waits` tells
    /// whether the given one has to wait for commands that are not kept here.
    pub(crate) fn next(&mut self, lun: Lun, waits: impl Fn(&ScsiCommand, &Self) -> bool) -> Option<Admitted> {
        let at = self.gates.iter().position(|gate| gate.lun == lun)?;
        if self.gates[at].at_work.is_some() {
            return None;
        }
        let Some(command) = self.gates[at].waiting.front() else {
            self.gates.swap_remove(at);
            return None;
        };
        let ordered = has(&command.scsi, TaskAttribute::Ordered).then_some(command.scsi.task);
        if waits(&command.scsi, self) {
            return None;
        }
        let gate = &mut self.gates[at];
        gate.at_work = ordered;
        gate.waiting.pop_front()
    }

    /// Takes a waiting command, if it waits here.
    pub(crate) fn remove(&mut self, task: TaskKey) -> Option<Admitted> {
        self.gates.iter_mut().find_map(|gate| {
            let at = gate.waiting.iter().position(|command| command.scsi.task == task)?;
            gate.waiting.remove(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::lun_map::LocalView;

    fn command(task: u32, attribute: TaskAttribute) -> Admitted {
        let scsi = ScsiCommand {
            task: TaskKey::from_tag(task),
            itt: task,
            lun: Lun::ZERO,
            cdb: Default::default(),
            attribute: attribute.code(),
            cmd_sn: task,
            expected_in: 0,
            expected_out: 0,
        };
        Admitted::new(scsi, Rc::new(LocalView::new(Arc::default(), Rc::default())))
    }

    /// The task that runs next after `ended`.
    fn next(order: &mut Order, ended: u32, at_work: bool) -> Option<TaskKey> {
        order.end(key(ended));
        order.next(Lun::ZERO, |_, _| at_work).map(|command| command.scsi.task)
    }

    fn key(task: u32) -> TaskKey {
        TaskKey::from_tag(task)
    }

    #[test]
    fn an_ordered_command_waits_for_older_ones_and_younger_ones_wait_for_it() {
        let mut order = Order::default();
        assert!(order.admit(command(1, TaskAttribute::Simple), false, false).is_some());
        assert!(order.is_empty());
        assert!(order.admit(command(2, TaskAttribute::Ordered), false, true).is_none());
        assert!(order.admit(command(3, TaskAttribute::Simple), false, false).is_none());
        assert!(order.admit(command(4, TaskAttribute::HeadOfQueue), true, false).is_some());
        assert_eq!(next(&mut order, 9, true), None, "task 1 is still at work");
        assert_eq!(next(&mut order, 1, false), Some(key(2)), "nothing older is left");
        assert_eq!(next(&mut order, 1, false), None, "the ordered one is at work");
        assert_eq!(next(&mut order, 2, false), Some(key(3)));
        assert_eq!(next(&mut order, 2, false), None);
        assert!(order.is_empty());
    }

    #[test]
    fn a_reassigned_command_waits_before_younger_ones() {
        let mut order = Order::default();
        for (task, attribute) in [(3, TaskAttribute::Simple), (5, TaskAttribute::Simple)] {
            assert!(order.admit(command(task, attribute), true, false).is_none());
        }
        assert!(order.admit(command(4, TaskAttribute::Ordered), false, true).is_none());
        assert!(order.admit(command(2, TaskAttribute::Simple), false, false).is_none());
        let waiting: Vec<u32> = order.waiting().map(|command| command.scsi.cmd_sn).collect();
        assert_eq!(waiting, [2, 3, 4, 5]);
    }

    #[test]
    fn an_ordered_command_with_nothing_before_it_runs_at_once() {
        let mut order = Order::default();
        assert!(order.admit(command(1, TaskAttribute::Ordered), false, false).is_some());
        assert!(order.admit(command(2, TaskAttribute::Simple), false, false).is_none());
        assert!(order.remove(key(2)).is_some());
        assert!(order.remove(key(2)).is_none());
        assert_eq!(next(&mut order, 1, false), None);
        assert!(order.is_empty());
    }

    #[test]
    fn a_fenced_command_waits_and_those_behind_it_wait_too() {
        let mut order = Order::default();
        assert!(order.admit(command(1, TaskAttribute::Simple), true, false).is_none());
        assert!(order.admit(command(2, TaskAttribute::Simple), false, false).is_none());
        assert_eq!(next(&mut order, 9, true), None);
        assert_eq!(next(&mut order, 9, false), Some(key(1)));
        assert_eq!(next(&mut order, 9, false), Some(key(2)));
        assert_eq!(next(&mut order, 9, false), None);
        assert!(order.is_empty());
    }
}
