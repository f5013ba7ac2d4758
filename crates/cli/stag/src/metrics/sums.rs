//! Sums over what comes and goes: the units of a target, all targets, the connections of an
//! initiator. Such a sum falls when something of it is taken out, and Prometheus takes a counter
//! that falls for one that has begun anew. So these add up what each look finds more than the one
//! before; what was counted between the last look and a removal is lost.

use std::collections::{BTreeMap, HashMap};

use super::picture::{MOST_INITIATORS, MOST_TARGETS};
use crate::control::status::{Io, Status, Work};

/// A sum that never falls.
#[derive(Default)]
struct Growing<T> {
    /// As it was at the last look.
    seen: T,
    told: T,
}

impl Growing<Io> {
    fn grow(&mut self, now: Io) -> Io {
        self.told.add(&since(&now, &self.seen));
        self.seen = now;
        self.told
    }
}

impl Growing<Work> {
    fn grow(&mut self, now: Work) -> Work {
        self.told.add(&now.since(&self.seen));
        self.seen = now;
        self.told.clone()
    }
}

/// The sums of a daemon since its start.
#[derive(Default)]
pub struct Sums {
    work: Growing<Work>,
    all: Growing<Io>,
    targets: HashMap<String, Growing<Io>>,
    initiators: HashMap<(String, String), Growing<Io>>,
}

/// The sums at one moment.
#[derive(Default)]
pub struct Totals {
    /// Of all targets.
    pub work: Work,
    /// Of all units.
    pub all: Io,
    /// Of each target's units, by its name; empty if there are too many targets.
    pub targets: HashMap<String, Io>,
    /// By the names of the initiator and the target; no target in discovery.
    pub initiators: BTreeMap<(String, String), Initiator>,
}

/// All sessions of one initiator with one target.
#[derive(Default)]
pub struct Initiator {
    pub sessions: u64,
    pub connections: u64,
    /// Counts of their connections, ended ones included while there is a session.
    pub io: Io,
}

impl Sums {
    /// Takes in what a look has found.
    pub fn at(&mut self, status: &Status) -> Totals {
        let mut totals = Totals::default();
        for session in &status.sessions {
            let key = (session.initiator.clone(), session.target.clone().unwrap_or_default());
            let one = totals.initiators.entry(key).or_default();
            one.sessions += 1;
            one.connections += session.connections.len() as u64;
            one.io.add(&session.io);
        }
        // Without one core's part all would seem to fall, and to grow again.
        if !status.complete {
            return totals;
        }
        let few = totals.initiators.len() <= MOST_INITIATORS;
        self.initiators.retain(|key, _| few && totals.initiators.contains_key(key));
        if few {
            for (key, one) in &mut totals.initiators {
                one.io = self.initiators.entry(key.clone()).or_default().grow(one.io);
            }
        }
        let (mut work, mut all) = (Work::default(), Io::default());
        let few = status.targets.len() <= MOST_TARGETS;
        for target in &status.targets {
            work.add(&target.work);
            let mut io = Io::default();
            target.units.iter().for_each(|unit| io.add(&unit.io));
            all.add(&io);
            if few {
                totals.targets.insert(target.iqn.clone(), io);
            }
        }
        self.targets.retain(|iqn, _| totals.targets.contains_key(iqn));
        for (iqn, io) in &mut totals.targets {
            *io = self.targets.entry(iqn.clone()).or_default().grow(*io);
        }
        totals.all = self.all.grow(all);
        totals.work = self.work.grow(work);
        totals
    }
}

/// The growth since `before`.
fn since(now: &Io, before: &Io) -> Io {
    Io {
        reads: now.reads.saturating_sub(before.reads),
        writes: now.writes.saturating_sub(before.writes),
        others: now.others.saturating_sub(before.others),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
        failed: now.failed.saturating_sub(before.failed),
        timed: now.timed.saturating_sub(before.timed),
        time_ns: now.time_ns.saturating_sub(before.time_ns),
        longest_ns: now.longest_ns,
        buckets: std::array::from_fn(|at| now.buckets[at].saturating_sub(before.buckets[at])),
    }
}
