//! Machines of a world: threads and sockets that are paused, and cut from others, together.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::net::nanoseconds;
use super::{State, with};

/// A machine. A thread is on that of the thread that started it, at first on number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine(pub u8);

thread_local! {
    /// Where threads and sockets are made that this thread makes.
    static CURRENT: Cell<Machine> = const { Cell::new(Machine(0)) };
}

/// What happens to machines, until when, in nanoseconds of virtual time.
#[derive(Default)]
pub(super) struct Machines {
    pauses: BTreeMap<Machine, u64>,
    cuts: BTreeMap<(Machine, Machine), u64>,
}

impl Machines {
    /// Until when a machine's threads do not run.
    pub(super) fn paused(&self, machine: Machine) -> u64 {
        self.pauses.get(&machine).copied().unwrap_or(0)
    }

    /// Until when nothing arrives.
    pub(super) fn cut(&self, from: Machine, to: Machine) -> u64 {
        self.cuts.get(&(from, to)).copied().unwrap_or(0)
    }
}

pub(super) fn current() -> Machine {
    CURRENT.get()
}

pub(super) fn enter(machine: Machine) {
    CURRENT.set(machine);
}

/// Runs `f`, which starts threads and makes sockets on `machine`.
pub fn on_machine<T>(machine: Machine, f: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(machine);
    let result = f();
    CURRENT.set(before);
    result
}

fn until(state: &State, duration: Duration) -> u64 {
    state.now + nanoseconds(duration)
}

/// Stops all threads of a machine for a while, as SIGSTOP does. Its kernel goes on. A duration of
/// zero ends a pause.
pub fn pause(machine: Machine, duration: Duration) {
    with(|state, _| {
        let until = until(state, duration);
        state.machines.pauses.insert(machine, until);
    });
}

/// Holds what one machine sends to another one back for a while: it arrives at the end, as after
/// retransmissions. A duration of zero ends a cut for what is sent later.
pub fn cut(from: Machine, to: Machine, duration: Duration) {
    with(|state, _| {
        let until = until(state, duration);
        state.machines.cuts.insert((from, to), until);
    });
}
