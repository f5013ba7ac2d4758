//! The commands that a connection has in hand, by slot and by tag.

use super::inbound::Inbound;
use super::payload::Payload;
use super::recovery::History;
use crate::pdu::{Lun, RESERVED_TAG};

/// Names a task of one connection: its slot and the slot's generation, so that a key kept too long finds nothing. As a
/// number it is the Target Transfer Tag of the task's R2Ts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey(u32);

impl TaskKey {
    fn new(slot: usize, generation: u16) -> Self {
        // Slots stay below 65,535, so no key is the reserved tag.
        Self(u32::from(generation) << 16 | slot as u32)
    }

    /// The slot: small, dense, reused; good as an index beside this table.
    pub fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// As a Target Transfer Tag.
    pub fn tag(self) -> u32 {
        self.0
    }

    /// From a Target Transfer Tag that a peer sent; it may name nothing.
    pub fn from_tag(tag: u32) -> Self {
        Self(tag)
    }
}

/// One SCSI command in progress.
#[derive(Debug)]
pub struct Task<P> {
    /// Initiator Task Tag.
    pub itt: u32,
    /// LUN field as it came, for R2Ts.
    pub lun: Lun,
    /// CmdSN.
    pub cmd_sn: u32,
    /// Whether it was immediate, and so holds no place in the command window.
    pub immediate: bool,
    /// Expected data-in, bytes.
    pub expected_in: u32,
    /// Expected data-out, bytes.
    pub expected_out: u32,
    /// Whether it is bidirectional: both R and W.
    pub bidirectional: bool,
    /// Data-out on its way in.
    pub inbound: Inbound<P>,
    /// Data-in sent or held back, bytes.
    pub put: u32,
    /// The last of data-in, held back so that it can carry the status.
    pub tail: Option<P>,
    /// Data-in sent, bytes: the offset of `tail`.
    pub sent: u32,
    /// Next DataSN of data-in.
    pub data_sn: u32,
    /// The answer to data that broke the rules; it replaces the unit's.
    pub refused: Option<super::Completion>,
    /// The unit's answer, waiting until data that is owed has come.
    pub finished: Option<super::Completion>,
    /// Aborted: it ends without a response.
    pub aborted: bool,
    /// What may have to be sent again. `None` at ErrorRecoveryLevel 0.
    pub history: Option<Box<History<P>>>,
}

impl<P: Payload> Task<P> {
    /// The DataSN or R2TSN that comes next: how many Data-In PDUs and R2Ts there were (ExpDataSN, RFC 7143 §11.4.8).
    pub fn next_data_sn(&self) -> u32 {
        match self.bidirectional {
            // Its R2Ts share the numbers of its data (§11.7.5).
            true => self.data_sn,
            false => self.data_sn.wrapping_add(self.inbound.r2ts()),
        }
    }
}

/// The tasks of one connection.
#[derive(Debug)]
pub struct TaskTable<P> {
    slots: Vec<(u16, Option<Task<P>>)>,
    /// The ITT in each slot, apart, so that a look-up by tag reads one or two cache lines.
    tags: Vec<u32>,
    free: Vec<u16>,
    max: usize,
}

impl<P> TaskTable<P> {
    /// A table for at most `max` tasks (below 65,535).
    pub fn new(max: usize) -> Self {
        Self { slots: Vec::new(), tags: Vec::new(), free: Vec::new(), max: max.min(0xfffe) }
    }

    /// Tasks in it.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `task`; `None` when the table is full.
    pub fn insert(&mut self, task: Task<P>) -> Option<TaskKey> {
        let slot = match self.free.pop() {
            Some(slot) => usize::from(slot),
            None if self.slots.len() < self.max => {
                self.slots.push((0, None));
                self.tags.push(RESERVED_TAG);
                self.slots.len() - 1
            }
            None => return None,
        };
        self.tags[slot] = task.itt;
        self.slots[slot].1 = Some(task);
        Some(TaskKey::new(slot, self.slots[slot].0))
    }

    /// The task that `key` names.
    pub fn get(&self, key: TaskKey) -> Option<&Task<P>> {
        let (generation, task) = self.slots.get(key.slot())?;
        task.as_ref().filter(|_| TaskKey::new(key.slot(), *generation) == key)
    }

    /// The task that `key` names.
    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task<P>> {
        let (generation, task) = self.slots.get_mut(key.slot())?;
        task.as_mut().filter(|_| TaskKey::new(key.slot(), *generation) == key)
    }

    /// Takes the task out.
    pub fn remove(&mut self, key: TaskKey) -> Option<Task<P>> {
        self.get(key)?;
        let slot = key.slot();
        let (generation, task) = &mut self.slots[slot];
        *generation = generation.wrapping_add(1);
        self.tags[slot] = RESERVED_TAG;
        self.free.push(slot as u16);
        task.take()
    }

    /// The task with Initiator Task Tag `itt`.
    pub fn find(&self, itt: u32) -> Option<TaskKey> {
        if itt == RESERVED_TAG {
            return None;
        }
        let slot = self.tags.iter().position(|tag| *tag == itt)?;
        Some(TaskKey::new(slot, self.slots[slot].0))
    }

    /// All tasks, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut Task<P>)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(slot, (generation, task))| Some((TaskKey::new(slot, *generation), task.as_mut()?)))
    }

    /// All tasks.
    pub fn iter(&self) -> impl Iterator<Item = (TaskKey, &Task<P>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, (generation, task))| Some((TaskKey::new(slot, *generation), task.as_ref()?)))
    }
}
