//! The schedule of a world: the running thread, and the next event.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use super::machine::{self, Machine};
use super::net::Event;
use super::{State, World};
use crate::op::Completion;

/// The condition that a waiting thread waits for, besides its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing: it can run.
    Turn,
    /// A completion on its ring, or mail from another core.
    Completion,
    /// Its timeout.
    Time,
    /// A message of a channel.
    News,
    /// The end of another thread.
    Left(usize),
    /// The end of all other threads.
    Alone,
}

/// One thread.
struct Member {
    machine: Machine,
    waits: Wait,
    /// Its timeout, in nanoseconds of virtual time.
    until: Option<u64>,
    left: bool,
    /// Completions for its ring.
    completions: VecDeque<(u64, Completion)>,
    /// Notified when its turn has come.
    news: Arc<Condvar>,
}

/// The threads of a world, and the events to come.
pub(super) struct Turns {
    members: Vec<Member>,
    /// The running thread.
    running: usize,
    /// Events by time, then by the order in which they were scheduled.
    events: BTreeMap<(u64, u64), Event>,
    said: u64,
    taken: u64,
    limit: u64,
    /// Reason for the failure of the run.
    broken: Option<String>,
}

impl Turns {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            members: Vec::new(),
            running: 0,
            events: BTreeMap::new(),
            said: 0,
            taken: 0,
            limit: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2),
            broken: None,
        }
    }

    /// A new thread of a machine: its number.
    pub(super) fn join(&mut self, machine: Machine) -> usize {
        self.members.push(Member {
            machine,
            waits: Wait::Turn,
            until: None,
            left: false,
            completions: VecDeque::new(),
            news: Arc::default(),
        });
        self.members.len() - 1
    }

    /// Gives the first turn.
    pub(super) fn begin(&mut self, first: usize) {
        self.running = first;
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// A thread may go on that waits for a channel.
    pub(super) fn has_news(&mut self, member: usize) {
        if let Some(member) = self.members.get_mut(member).filter(|member| member.waits == Wait::News) {
            member.waits = Wait::Turn;
        }
    }

    pub(super) fn machine(&self, member: usize) -> Machine {
        self.members[member].machine
    }

    /// Fails the run. All threads continue at once, and end.
    fn end(&mut self, why: String) {
        self.broken = Some(why);
        self.members.iter().for_each(|member| member.news.notify_one());
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Schedules an event.
    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.said += 1;
        self.events.insert((at, self.said), event);
    }

    /// Posts a completion to a thread's ring.
    pub(super) fn complete(&mut self, member: usize, user_data: u64, completion: Completion) {
        if let Some(member) = self.members.get_mut(member).filter(|member| !member.left) {
            member.completions.push_back((user_data, completion));
        }
    }

    /// Takes the completions for a thread's ring.
    pub(super) fn take_completions(&mut self, member: usize) -> VecDeque<(u64, Completion)> {
        std::mem::take(&mut self.members[member].completions)
    }

    pub(super) fn has_completions(&self, member: usize) -> bool {
        !self.members[member].completions.is_empty()
    }

    fn can_run(&self, number: usize, now: u64) -> bool {
        let member = &self.members[number];
        !member.left
            && (member.until.is_some_and(|until| until <= now)
                || match member.waits {
                    Wait::Turn => true,
                    Wait::Completion => !member.completions.is_empty(),
                    Wait::Time | Wait::News => false,
                    Wait::Left(other) => self.members[other].left,
                    Wait::Alone => {
                        self.members.iter().enumerate().all(|(other, member)| other == number || member.left)
                    }
                })
    }
}

impl State {
    /// Whether a thread can run now.
    fn can_run(&self, number: usize) -> bool {
        self.machines.paused(self.turns.machine(number)) <= self.now && self.turns.can_run(number, self.now)
    }

    /// The next time at which something may happen: an event, a timeout, or the end of a pause.
    fn next_time(&self) -> Option<u64> {
        let event = self.turns.events.keys().next().map(|(at, _)| *at);
        let members = self.turns.members.iter().enumerate().filter(|(_, member)| !member.left);
        let members = members.filter_map(|(number, member)| {
            let paused = self.machines.paused(member.machine);
            match self.turns.can_run(number, self.now) {
                true => Some(paused),
                false => member.until.map(|until| until.max(paused)),
            }
        });
        event.into_iter().chain(members).min()
    }

    /// Chooses the next thread, and executes the events until it can run. `None` if all have left
    /// or the run has failed.
    fn choose(&mut self) -> Option<usize> {
        loop {
            if self.turns.broken.is_some() {
                return None;
            }
            let count = self.turns.members.len();
            let able = (0..count).filter(|n| self.can_run(*n)).count();
            if able > 0 {
                let chosen = self.chance.within(0..able as u64) as usize;
                return (0..count).filter(|n| self.can_run(*n)).nth(chosen);
            }
            if self.turns.members.iter().all(|member| member.left) {
                return None;
            }
            match self.next_time() {
                Some(at) => {
                    self.now = self.now.max(at);
                    self.check_limit();
                    self.happen();
                }
                None => {
                    let waits: Vec<_> = self.turns.members.iter().map(|m| (m.left, m.waits)).collect();
                    self.turns.end(format!("everything waits for ever: {waits:?}"));
                }
            }
        }
    }

    fn check_limit(&mut self) {
        if self.now > self.turns.limit && self.turns.broken.is_none() {
            let limit = Duration::from_nanos(self.turns.limit);
            self.turns.end(format!("not at an end after {limit:?} of virtual time"));
        }
    }

    /// Executes the events that are due.
    pub(super) fn happen(&mut self) {
        while let Some((&key, _)) = self.turns.events.first_key_value() {
            if key.0 > self.now {
                return;
            }
            if let Some(event) = self.turns.events.remove(&key) {
                self.event(event);
            }
        }
    }
}

impl World {
    /// Waits for a condition, or until a time. Returns in this thread's next turn.
    pub(super) fn wait(&self, me: usize, waits: Wait, until: Option<u64>) {
        let mut state = self.lock();
        let member = &mut state.turns.members[me];
        member.waits = waits;
        member.until = until;
        // Every turn takes some virtual time.
        let spent = state.chance.within(100..3_000);
        state.now += spent;
        state.check_limit();
        state.happen();
        let next = state.choose();
        drop(self.hand_to(state, next, Some(me)));
    }

    /// Waits for the first turn of a thread that has just come.
    pub(super) fn wait_for_turn(&self, me: usize) {
        let state = self.lock();
        machine::enter(state.turns.machine(me));
        drop(self.sleep_until_turn(state, me));
    }

    /// A thread leaves. If it panicked, the run fails.
    pub(super) fn leave(&self, me: usize, panicked: bool) {
        let mut state = self.lock();
        state.turns.members[me].left = true;
        state.net.forget(me);
        state.medium.forget(me);
        if panicked && state.turns.broken.is_none() {
            state.turns.end("a thread of the world has panicked".into());
        }
        if state.turns.running == me {
            let next = state.choose();
            drop(self.hand_to(state, next, None));
        }
    }

    fn hand_to<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        next: Option<usize>,
        me: Option<usize>,
    ) -> Option<MutexGuard<'a, State>> {
        if let Some(next) = next {
            state.turns.running = next;
            state.turns.taken += 1;
            state.note(next as u64);
            if Some(next) != me {
                state.turns.members[next].news.notify_one();
            }
        }
        me.map(|me| self.sleep_until_turn(state, me))
    }

    fn sleep_until_turn<'a>(&'a self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let news = state.turns.members[me].news.clone();
        while state.turns.running != me && state.turns.broken.is_none() {
            state = news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let member = &mut state.turns.members[me];
        member.waits = Wait::Turn;
        member.until = None;
        if let Some(why) = state.turns.broken.clone() {
            drop(state);
            if !std::thread::panicking() {
                panic!("{why}");
            }
            return self.lock();
        }
        state
    }
}
