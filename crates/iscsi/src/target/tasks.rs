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
    /// No task.
    fn none() -> Self {
        Self {
            itt: RESERVED_TAG,
            lun: Lun::default(),
            cmd_sn: 0,
            immediate: false,
            expected_in: 0,
            expected_out: 0,
            bidirectional: false,
            inbound: Inbound::none(),
            put: 0,
            tail: None,
            sent: 0,
            data_sn: 0,
            refused: None,
            finished: None,
            aborted: false,
            history: None,
        }
    }

    /// Makes it what [`Self::none`] is, but for what every command sets: its tag, unit, number and lengths.
    #[inline]
    fn clear(&mut self) {
        self.inbound.clear();
        (self.put, self.sent, self.data_sn) = (0, 0, 0);
        self.aborted = false;
        self.tail = None;
        if self.refused.is_some() || self.finished.is_some() || self.history.is_some() {
            self.clear_rare();
        }
    }

    #[cold]
    fn clear_rare(&mut self) {
        self.refused = None;
        self.finished = None;
        self.history = None;
    }

    /// The DataSN or R2TSN that comes next: how many Data-In PDUs and R2Ts there were (ExpDataSN, RFC 7143 §11.4.8).
    pub fn next_data_sn(&self) -> u32 {
        match self.bidirectional {
            // Its R2Ts share the numbers of its data (§11.7.5).
            true => self.data_sn,
            false => self.data_sn.wrapping_add(self.inbound.r2ts()),
        }
    }
}

/// The tasks of one connection. Each slot's task stays where it is and is used again: none is moved while it is in hand.
#[derive(Debug)]
pub struct TaskTable<P> {
    slots: Vec<Slot<P>>,
    /// The ITT in each slot, apart, so that a look-up by tag reads one or two cache lines.
    tags: Vec<u32>,
    free: Vec<u16>,
    max: usize,
}

#[derive(Debug)]
struct Slot<P> {
    generation: u16,
    /// There is a task in it. Else what is there is as [`Task::none`] makes it.
    taken: bool,
    task: Task<P>,
}

impl<P: Payload> TaskTable<P> {
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

    /// Adds a task with Initiator Task Tag `itt` of which nothing else is known yet; `None` when the table is full.
    #[inline]
    pub fn open(&mut self, itt: u32) -> Option<(TaskKey, &mut Task<P>)> {
        let slot = match self.free.pop() {
            Some(slot) => usize::from(slot),
            None => self.grow()?,
        };
        self.tags[slot] = itt;
        let place = &mut self.slots[slot];
        place.taken = true;
        place.task.itt = itt;
        Some((TaskKey::new(slot, place.generation), &mut place.task))
    }

    #[cold]
    fn grow(&mut self) -> Option<usize> {
        if self.slots.len() >= self.max {
            return None;
        }
        self.slots.push(Slot { generation: 0, taken: false, task: Task::none() });
        self.tags.push(RESERVED_TAG);
        Some(self.slots.len() - 1)
    }

    /// Adds `task`; `None` when the table is full.
    pub fn insert(&mut self, task: Task<P>) -> Option<TaskKey> {
        let (key, place) = self.open(task.itt)?;
        *place = task;
        Some(key)
    }

    /// The task that `key` names.
    #[inline]
    pub fn get(&self, key: TaskKey) -> Option<&Task<P>> {
        let slot = self.slots.get(key.slot())?;
        slot.is(key).then_some(&slot.task)
    }

    /// The task that `key` names.
    #[inline]
    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task<P>> {
        let slot = self.slots.get_mut(key.slot())?;
        slot.is(key).then_some(&mut slot.task)
    }

    /// Takes the task out.
    pub fn remove(&mut self, key: TaskKey) -> Option<Task<P>> {
        let task = std::mem::replace(self.get_mut(key)?, Task::none());
        self.free(key);
        Some(task)
    }

    /// Drops the task, if it is there, and leaves its memory to the next.
    #[inline]
    pub fn close(&mut self, key: TaskKey) {
        if let Some(task) = self.get_mut(key) {
            task.clear();
            self.free(key);
        }
    }

    #[inline]
    fn free(&mut self, key: TaskKey) {
        let at = key.slot();
        let slot = &mut self.slots[at];
        slot.generation = slot.generation.wrapping_add(1);
        slot.taken = false;
        self.tags[at] = RESERVED_TAG;
        self.free.push(at as u16);
    }

    /// The task with Initiator Task Tag `itt`.
    pub fn find(&self, itt: u32) -> Option<TaskKey> {
        if itt == RESERVED_TAG {
            return None;
        }
        let slot = self.tags.iter().position(|tag| *tag == itt)?;
        Some(TaskKey::new(slot, self.slots[slot].generation))
    }

    /// All tasks, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut Task<P>)> {
        let taken = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.taken);
        taken.map(|(at, slot)| (TaskKey::new(at, slot.generation), &mut slot.task))
    }

    /// All tasks.
    pub fn iter(&self) -> impl Iterator<Item = (TaskKey, &Task<P>)> {
        let taken = self.slots.iter().enumerate().filter(|(_, slot)| slot.taken);
        taken.map(|(at, slot)| (TaskKey::new(at, slot.generation), &slot.task))
    }
}

impl<P> Slot<P> {
    #[inline]
    fn is(&self, key: TaskKey) -> bool {
        self.taken && u32::from(self.generation) == key.0 >> 16
    }
}
