//! Machines of a world: threads and sockets that are paused, and cut from others, together.

use std::cell::Cell;
use std::collections::BTreeMap;

/// A machine. A thread is on that of the thread that started it, at first on number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine(pub u8);

thread_local! {
    /// The machine of the threads and sockets that this thread makes.
    static CURRENT: Cell<Machine> = const { Cell::new(Machine(0)) };
}

/// Ends of pauses and cuts, in nanoseconds of virtual time.
#[derive(Default)]
pub(super) struct Machines {
    pauses: BTreeMap<Machine, u64>,
    cuts: BTreeMap<(Machine, Machine), u64>,
}

impl Machines {
    /// Pauses a machine's threads until then.
    pub(super) fn pause(&mut self, machine: Machine, until: u64) {
        self.pauses.insert(machine, until);
    }

    /// Cuts one direction between two machines until then.
    pub(super) fn part(&mut self, from: Machine, to: Machine, until: u64) {
        self.cuts.insert((from, to), until);
    }

    /// End of a machine's pause.
    pub(super) fn paused(&self, machine: Machine) -> u64 {
        self.pauses.get(&machine).copied().unwrap_or(0)
    }

    /// End of a cut.
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
