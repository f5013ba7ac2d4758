//! Possible states of the unit while commands overlap: each command takes effect at one moment
//! between its submission and its end.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Nexus, Outcome, Ports, Request, State};
use crate::oracle::OpId;

/// Possible progress of a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// It will change the state, and has not yet.
    Open,
    /// It has changed the state, with this outcome.
    Done(Outcome),
    /// It changes nothing; the outcomes that it could have had until now.
    Seen(BTreeSet<Outcome>),
}

/// One possible course of events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Course {
    state: State,
    commands: BTreeMap<OpId, Progress>,
}

/// All possible courses of events.
pub(super) struct History {
    courses: BTreeSet<Course>,
    /// The commands in flight, and their nexuses.
    commands: BTreeMap<OpId, (Nexus, Request)>,
}

impl History {
    pub fn new(ports: Ports) -> Self {
        let course = Course { state: State::new(ports), commands: BTreeMap::new() };
        Self { courses: BTreeSet::from([course]), commands: BTreeMap::new() }
    }

    /// `nexus` submits a command.
    pub fn submit(&mut self, op: OpId, nexus: Nexus, request: Request) {
        self.commands.insert(op, (nexus, request));
        let progress = if request.changes() { Progress::Open } else { Progress::Seen(BTreeSet::new()) };
        self.change(|course| drop(course.commands.insert(op, progress.clone())));
    }

    /// A command ended.
    ///
    /// # Errors
    /// No course of events leads to this outcome.
    pub fn end(&mut self, op: OpId, outcome: &Outcome) -> Result<(), String> {
        let possible: BTreeSet<_> = self
            .courses
            .iter()
            .flat_map(|course| match course.commands.get(&op) {
                Some(Progress::Done(one)) => vec![one.clone()],
                Some(Progress::Seen(some)) => some.iter().cloned().collect(),
                _ => Vec::new(),
            })
            .collect();
        if !possible.contains(outcome) {
            return Err(format!("{outcome:?} instead of one of {possible:?}"));
        }
        self.courses.retain(|course| match course.commands.get(&op) {
            Some(Progress::Done(one)) => one == outcome,
            Some(Progress::Seen(some)) => some.contains(outcome),
            _ => false,
        });
        self.give_up(op);
        Ok(())
    }

    /// A command has ended its effects, and its outcome is unknown.
    pub fn give_up(&mut self, op: OpId) {
        self.commands.remove(&op);
        self.change(|course| drop(course.commands.remove(&op)));
    }

    /// The server starts anew.
    pub fn restart(&mut self) {
        self.change(|course| course.state.restart());
    }

    /// Changes each course, and adds those that may follow at once.
    fn change(&mut self, mut change: impl FnMut(&mut Course)) {
        let mut new: Vec<_> = std::mem::take(&mut self.courses).into_iter().collect();
        new.iter_mut().for_each(|course| {
            change(course);
            course.look(&self.commands);
        });
        while let Some(course) = new.pop() {
            for (op, progress) in &course.commands {
                let (Progress::Open, Some((nexus, request))) = (progress, self.commands.get(op)) else {
                    continue;
                };
                let mut next = course.clone();
                let outcome = next.state.run(*nexus, *request);
                next.commands.insert(*op, Progress::Done(outcome));
                next.look(&self.commands);
                if !self.courses.contains(&next) {
                    new.push(next);
                }
            }
            self.courses.insert(course);
        }
    }
}

impl Course {
    /// Adds the outcomes that commands without effect may have now.
    fn look(&mut self, commands: &BTreeMap<OpId, (Nexus, Request)>) {
        for (op, progress) in &mut self.commands {
            let (Progress::Seen(outcomes), Some((nexus, request))) = (progress, commands.get(op)) else {
                continue;
            };
            outcomes.insert(self.state.clone().run(*nexus, *request));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Whom;
    use super::*;

    const PORTS: Ports = Ports { initiators: 2, targets: 1 };
    const REGISTER: Request =
        Request::Register { key: 0, new: 7, aptpl: false, force: false, whom: Whom::Own };
    const RESERVE: Request = Request::Reserve { key: 7, kind: 3 };

    fn done(history: &mut History, op: OpId, nexus: Nexus, request: Request) {
        history.submit(op, nexus, request);
        history.end(op, &Outcome::Good).unwrap();
    }

    #[test]
    fn a_read_may_conflict_once_a_reservation_may_be_there() {
        let mut history = History::new(PORTS);
        done(&mut history, 1, 0, REGISTER);
        history.submit(2, 1, Request::Read);
        assert!(history.end(2, &Outcome::Conflict).is_err());
        history.submit(3, 0, RESERVE);
        for (op, outcome) in [(4, Outcome::Good), (5, Outcome::Conflict)] {
            history.submit(op, 1, Request::Read);
            history.end(op, &outcome).unwrap();
        }
        // The key was seen, so it is registered.
        history.submit(6, 1, Request::Read);
        assert!(history.end(6, &Outcome::Good).is_err());
    }

    #[test]
    fn a_lost_command_may_have_been_done() {
        for outcome in [Outcome::Good, Outcome::Conflict] {
            let mut history = History::new(PORTS);
            done(&mut history, 1, 0, REGISTER);
            history.submit(2, 0, RESERVE);
            history.give_up(2);
            history.submit(3, 1, Request::Read);
            history.end(3, &outcome).unwrap();
            history.submit(4, 1, Request::Read);
            history.end(4, &outcome).unwrap();
        }
    }

    #[test]
    fn a_restart_keeps_what_aptpl_promised() {
        for aptpl in [false, true] {
            let mut history = History::new(PORTS);
            done(
                &mut history,
                1,
                0,
                Request::Register { key: 0, new: 7, aptpl, force: false, whom: Whom::Own },
            );
            done(&mut history, 2, 0, RESERVE);
            history.restart();
            history.submit(3, 1, Request::Write);
            let outcome = if aptpl { Outcome::Conflict } else { Outcome::Good };
            history.end(3, &outcome).unwrap();
        }
    }
}
