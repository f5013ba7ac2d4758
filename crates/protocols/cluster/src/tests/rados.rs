//! A model of RADOS: what a client's operation does when it arrives, whenever that is.
//!
//! An OSD has a map epoch of its own. It refuses a blocklisted instance from the entry's epoch on,
//! and gets a newer map at the latest when an operation of that map arrives. An operation that has
//! been sent takes effect even if its client is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::effect::{Locked, Snapshot};
use crate::id::{Epoch, InstanceId, UnitId, Version};
use crate::record::Record;

pub const OSDS: usize = 4;
pub const BLOCKS: usize = 2;
/// How long a watcher may be silent (osd_client_watch_timeout).
const WATCH: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub enum Op {
    Beat(u64),
    Read,
    Watch,
    Change { expect: Version, version: Version, record: Record },
    Acquire(UnitId),
    Break(UnitId, InstanceId),
    Release(UnitId),
    Open(UnitId),
    Write { unit: UnitId, block: usize, value: u64 },
    Fetch(UnitId),
}

#[derive(Clone, Debug)]
pub enum Reply {
    Done,
    Fenced,
    Seen(Snapshot),
    Changed(bool),
    Lock(Locked),
    Values([u64; BLOCKS]),
}

#[derive(Default)]
pub struct Rados {
    pub epoch: Epoch,
    blocklist: BTreeMap<InstanceId, Epoch>,
    osds: [Epoch; OSDS],
    version: Version,
    record: Record,
    beats: BTreeMap<InstanceId, u64>,
    watchers: BTreeMap<InstanceId, Duration>,
    locks: BTreeMap<UnitId, InstanceId>,
    data: BTreeMap<UnitId, [u64; BLOCKS]>,
}

impl Rados {
    /// The OSD of an operation: a unit's lock and its data lie on different ones.
    pub fn osd(op: &Op) -> usize {
        match op {
            Op::Beat(_) | Op::Read | Op::Watch | Op::Change { .. } => 0,
            Op::Acquire(unit) | Op::Break(unit, _) | Op::Release(unit) => unit.0 as usize % OSDS,
            Op::Open(unit) | Op::Write { unit, .. } | Op::Fetch(unit) => (unit.0 as usize + 1) % OSDS,
        }
    }

    /// An OSD has got a map.
    pub fn map(&mut self, osd: usize, epoch: Epoch) {
        self.osds[osd] = self.osds[osd].max(epoch);
    }

    /// The monitors make an entry.
    pub fn blocklist(&mut self, instance: InstanceId) -> Epoch {
        self.epoch.0 += 1;
        *self.blocklist.entry(instance).or_insert(self.epoch)
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// An operation arrives at its OSD. The reply, and the OSD's epoch.
    pub fn arrives(&mut self, now: Duration, from: InstanceId, epoch: Epoch, op: &Op) -> (Reply, Epoch) {
        let osd = Self::osd(op);
        self.map(osd, epoch);
        let at = self.osds[osd];
        if self.blocklist.get(&from).is_some_and(|entry| *entry <= at) {
            return (Reply::Fenced, at);
        }
        (self.carry_out(now, from, op), at)
    }

    fn carry_out(&mut self, now: Duration, from: InstanceId, op: &Op) -> Reply {
        match op {
            Op::Beat(beat) => {
                self.beats.insert(from, *beat);
                Reply::Done
            }
            Op::Watch => {
                self.watchers.insert(from, now);
                Reply::Done
            }
            Op::Read => Reply::Seen(Snapshot {
                version: self.version,
                record: self.record.clone(),
                beats: self.beats.clone(),
                watchers: self.watching(now),
            }),
            Op::Change { expect, version, record } => {
                let changes = *expect == self.version;
                if changes {
                    self.version = *version;
                    self.record = record.clone();
                    self.beats.retain(|instance, _| self.record.member(*instance).is_some());
                }
                Reply::Changed(changes)
            }
            Op::Acquire(unit) => match *self.locks.entry(*unit).or_insert(from) {
                holder if holder == from => Reply::Lock(Locked::Acquired),
                holder => Reply::Lock(Locked::By(holder)),
            },
            Op::Break(unit, instance) => {
                self.unlock(*unit, *instance);
                Reply::Done
            }
            Op::Release(unit) => {
                self.unlock(*unit, from);
                Reply::Done
            }
            Op::Open(unit) | Op::Fetch(unit) => {
                Reply::Values(self.data.get(unit).copied().unwrap_or_default())
            }
            Op::Write { unit, block, value } => {
                self.data.entry(*unit).or_default()[*block] = *value;
                Reply::Done
            }
        }
    }

    /// Who watches the group's object.
    pub fn watching(&self, now: Duration) -> BTreeSet<InstanceId> {
        self.watchers.iter().filter(|(_, seen)| now < **seen + WATCH).map(|(instance, _)| *instance).collect()
    }

    fn unlock(&mut self, unit: UnitId, holder: InstanceId) {
        if self.locks.get(&unit) == Some(&holder) {
            self.locks.remove(&unit);
        }
    }
}
