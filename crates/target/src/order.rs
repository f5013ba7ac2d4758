//! Task attributes (SAM-5 §8.6): ORDERED commands wait for older ones of their unit, and younger ones wait for them.
//!
//! Nothing is kept for units whose commands are all SIMPLE, so that those pay for one look at an empty list. The order is kept
//! among the commands of one connection; what other initiators sent has no order that anybody could observe.

use std::collections::VecDeque;

use iscsi::pdu::{Lun, TaskAttribute};
use iscsi::target::{ScsiCommand, TaskKey};

/// Commands that wait for others, by unit.
#[derive(Default)]
pub(crate) struct Order {
    gates: Vec<Gate>,
}

/// A unit with an ORDERED command at work or waiting.
struct Gate {
    lun: Lun,
    /// The ORDERED command at work.
    at_work: Option<TaskKey>,
    waiting: VecDeque<ScsiCommand>,
}

fn has(command: &ScsiCommand, attribute: TaskAttribute) -> bool {
    command.attribute == attribute.code()
}

impl Order {
    /// Whether no command waits and none makes others wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    /// The units with commands that wait or make others wait.
    pub(crate) fn luns(&self) -> Vec<Lun> {
        self.gates.iter().map(|gate| gate.lun).collect()
    }

    /// Gives `command` back if it may run now, and keeps it otherwise. `older` tells whether older commands of its unit
    /// are at work; it is asked only when that matters.
    pub(crate) fn admit(
        &mut self,
        command: ScsiCommand,
        older: impl FnOnce() -> bool,
    ) -> Option<ScsiCommand> {
        if has(&command, TaskAttribute::HeadOfQueue) {
            return Some(command);
        }
        if let Some(gate) = self.gates.iter_mut().find(|gate| gate.lun == command.lun) {
            gate.waiting.push_back(command);
            return None;
        }
        if !has(&command, TaskAttribute::Ordered) {
            return Some(command);
        }
        let mut gate = Gate { lun: command.lun, at_work: None, waiting: VecDeque::new() };
        let waits = older();
        let admitted = match waits {
            true => {
                gate.waiting.push_back(command);
                None
            }
            false => {
                gate.at_work = Some(command.task);
                Some(command)
            }
        };
        self.gates.push(gate);
        admitted
    }

    /// A command of `lun` has ended: the next one that may run, if any. To be asked again until there is none. `at_work` tells
    /// whether commands older than the one given are still at work.
    pub(crate) fn next(
        &mut self,
        lun: Lun,
        ended: TaskKey,
        at_work: impl Fn(&ScsiCommand) -> bool,
    ) -> Option<ScsiCommand> {
        let at = self.gates.iter().position(|gate| gate.lun == lun)?;
        let gate = &mut self.gates[at];
        if gate.at_work == Some(ended) {
            gate.at_work = None;
        }
        if gate.at_work.is_some() {
            return None;
        }
        let Some(command) = gate.waiting.front() else {
            self.gates.swap_remove(at);
            return None;
        };
        let ordered = has(command, TaskAttribute::Ordered);
        if ordered && at_work(command) {
            return None;
        }
        if ordered {
            gate.at_work = Some(command.task);
        }
        gate.waiting.pop_front()
    }

    /// Forgets a command that waits. False if it does not.
    pub(crate) fn remove(&mut self, task: TaskKey) -> bool {
        for gate in &mut self.gates {
            if let Some(at) = gate.waiting.iter().position(|command| command.task == task) {
                gate.waiting.remove(at);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(task: u32, attribute: TaskAttribute) -> ScsiCommand {
        ScsiCommand {
            task: TaskKey::from_tag(task),
            itt: task,
            lun: Lun::ZERO,
            cdb: Default::default(),
            attribute: attribute.code(),
            cmd_sn: task,
            expected_in: 0,
            expected_out: 0,
        }
    }

    fn key(task: u32) -> TaskKey {
        TaskKey::from_tag(task)
    }

    #[test]
    fn an_ordered_command_waits_for_older_ones_and_younger_ones_wait_for_it() {
        let mut order = Order::default();
        assert!(order.admit(command(1, TaskAttribute::Simple), || true).is_some());
        assert!(order.is_empty());
        assert!(order.admit(command(2, TaskAttribute::Ordered), || true).is_none());
        assert!(order.admit(command(3, TaskAttribute::Simple), || true).is_none());
        assert!(order.admit(command(4, TaskAttribute::HeadOfQueue), || true).is_some());
        assert_eq!(order.next(Lun::ZERO, key(9), |_| true), None, "task 1 is still at work");
        let next = order.next(Lun::ZERO, key(1), |_| false).expect("nothing older is left");
        assert_eq!(next.task, key(2));
        assert_eq!(order.next(Lun::ZERO, key(1), |_| false), None, "the ordered one is at work");
        assert_eq!(order.next(Lun::ZERO, key(2), |_| false).map(|c| c.task), Some(key(3)));
        assert_eq!(order.next(Lun::ZERO, key(2), |_| false), None);
        assert!(order.is_empty());
    }

    #[test]
    fn an_ordered_command_with_nothing_before_it_runs_at_once() {
        let mut order = Order::default();
        assert!(order.admit(command(1, TaskAttribute::Ordered), || false).is_some());
        assert!(order.admit(command(2, TaskAttribute::Simple), || false).is_none());
        assert!(order.remove(key(2)));
        assert!(!order.remove(key(2)));
        assert_eq!(order.next(Lun::ZERO, key(1), |_| false), None);
        assert!(order.is_empty());
    }
}
