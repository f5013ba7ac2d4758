//! What must hold after each step. The medium's landings, in their order, are the witness: if each
//! write lands once between its beginning and its answer, and each read returns what was there at a
//! moment of its own, the history of every block is linearizable.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{InstanceId, UnitId};

pub type Block = (UnitId, usize);

#[derive(Default)]
pub struct Checker {
    blocks: BTreeMap<Block, History>,
    ops: BTreeMap<u64, Operation>,
    owners: BTreeMap<UnitId, InstanceId>,
    pub acknowledged: u64,
    pub refused: u64,
    pub given_up: u64,
    pub longest: Duration,
}

#[derive(Default)]
struct History {
    /// What was there from when on.
    landings: Vec<(Duration, u64)>,
    /// When the latest-begun acknowledged write began.
    written: Duration,
}

struct Operation {
    block: Block,
    writes: bool,
    begun: Duration,
    landed: bool,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pending,
    Acknowledged,
    /// Its gateway has refused it.
    Refused,
    GivenUp(Duration),
}

type Check = Result<(), String>;

impl Checker {
    pub fn begins(&mut self, now: Duration, op: u64, block: Block, writes: bool) {
        self.ops.insert(op, Operation { block, writes, begun: now, landed: false, fate: Fate::Pending });
    }

    /// An instance has opened a unit: from now on nothing of another one may land.
    pub fn opens(&mut self, unit: UnitId, instance: InstanceId) {
        self.owners.insert(unit, instance);
    }

    /// A write takes effect.
    pub fn lands(&mut self, now: Duration, from: InstanceId, block: Block, value: u64) -> Check {
        let history = self.blocks.entry(block).or_default();
        let Some(op) = self.ops.get_mut(&value) else { return Err(format!("{value} was never written")) };
        if op.landed && history.landings.last().is_some_and(|(_, last)| *last != value) {
            return Err(format!("write {value} of {block:?} came back over a newer one"));
        }
        match op.fate {
            Fate::Pending => {}
            Fate::Acknowledged if op.landed => {}
            Fate::Acknowledged => return Err(format!("write {value} landed after its acknowledgement")),
            Fate::Refused => return Err(format!("write {value} landed, and was refused")),
            Fate::GivenUp(at) if history.written <= at => {}
            Fate::GivenUp(at) => {
                return Err(format!(
                    "write {value}, given up at {at:?}, landed over one that was written since"
                ));
            }
        }
        match self.owners.get(&block.0) {
            Some(owner) if *owner == from => {}
            owner => return Err(format!("write {value} landed from {from:?}, not the owner {owner:?}")),
        }
        op.landed = true;
        history.landings.push((now, value));
        Ok(())
    }

    /// An initiator is told that its operation is done; a read has returned `value`.
    pub fn acknowledges(&mut self, now: Duration, op: u64, value: u64) -> Check {
        let Some(operation) = self.ops.get_mut(&op) else { return Err(format!("{op} never began")) };
        let history = self.blocks.entry(operation.block).or_default();
        if operation.fate != Fate::Pending {
            return Ok(());
        }
        operation.fate = Fate::Acknowledged;
        self.acknowledged += 1;
        self.longest = self.longest.max(now.saturating_sub(operation.begun));
        if operation.writes {
            history.written = history.written.max(operation.begun);
            return if operation.landed {
                Ok(())
            } else {
                Err(format!("write {op} is acknowledged and lost"))
            };
        }
        // What was there when the read began, and all that landed until its answer.
        let first = history.landings.iter().rposition(|(at, _)| *at <= operation.begun);
        let seen = &history.landings[first.unwrap_or(0)..];
        let nothing = first.is_none() && value == 0;
        if nothing || seen.iter().any(|(_, landed)| *landed == value) {
            return Ok(());
        }
        Err(format!(
            "read {op} of {:?} returned {value}, but since it began there was {seen:?}",
            operation.block
        ))
    }

    pub fn refused(&mut self, op: u64) -> Check {
        let Some(operation) = self.ops.get_mut(&op) else { return Err(format!("{op} never began")) };
        if operation.landed {
            return Err(format!("write {op} landed, and is refused"));
        }
        operation.fate = Fate::Refused;
        self.refused += 1;
        Ok(())
    }

    /// An initiator gives the path of its operation up.
    pub fn gives_up(&mut self, now: Duration, op: u64) {
        if let Some(operation) = self.ops.get_mut(&op)
            && operation.fate == Fate::Pending
        {
            operation.fate = Fate::GivenUp(now);
            self.given_up += 1;
        }
    }
}
