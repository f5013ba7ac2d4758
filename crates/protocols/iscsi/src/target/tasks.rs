//! The tasks of a connection, by slot and by tag.

use super::inbound::Inbound;
use super::payload::Payload;
use super::recovery::History;
use crate::pdu::{Lun, RESERVED_TAG};

/// The key of a task of one connection: its slot and the slot's generation, so that a stale key
/// finds nothing. As a number it is the Target Transfer Tag of the task's R2Ts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskKey(u32);

impl TaskKey {
    fn new(slot: usize, generation: u16) -> Self {
        // Slots stay below 65,535, so no key equals the reserved tag.
        Self(u32::from(generation) << 16 | slot as u32)
    }

    /// The slot: small, dense and reused; suitable as an index of a parallel table.
    pub fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// The key as a Target Transfer Tag.
    pub fn tag(self) -> u32 {
        self.0
    }

    /// The key from a peer's Target Transfer Tag; it may be invalid.
    pub fn from_tag(tag: u32) -> Self {
        Self(tag)
    }
}

/// A SCSI command in progress.
#[derive(Debug)]
pub struct Task<P> {
    /// Initiator Task Tag.
    pub itt: u32,
    /// The LUN, in its [canonical](Lun::canonical) encoding.
    pub lun: Lun,
    /// The LUN field as received, for R2Ts and DataACKs.
    pub(crate) lun_field: Lun,
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
    /// Incoming data-out.
    pub inbound: Inbound<P>,
    /// Bytes of data-in sent or held.
    pub(crate) put: u32,
    /// The last piece of data-in, held so that its PDU can carry the status.
    pub(crate) tail: Option<P>,
    /// Bytes of data-in sent: the offset of `tail`.
    pub(crate) sent: u32,
    /// The next DataSN of data-in.
    pub(crate) data_sn: u32,
    /// The completion after invalid data; it replaces the logical unit's.
    pub(crate) refused: Option<super::Completion>,
    /// The logical unit's completion, until outstanding data has arrived.
    pub finished: Option<super::Completion>,
    /// Whether it is aborted: it ends without a response.
    pub aborted: bool,
    /// The PDUs retained for retransmission. `None` at ErrorRecoveryLevel 0.
    pub(crate) history: Option<Box<History<P>>>,
}

impl<P: Payload> Task<P> {
    /// An empty slot's task.
    fn none() -> Self {
        Self {
            itt: RESERVED_TAG,
            lun: Lun::default(),
            lun_field: Lun::default(),
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

    /// Resets it to [`Self::none`], except the fields that every command sets: its tag, unit,
    /// number and lengths.
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

    /// The next DataSN or R2TSN: the number of Data-In PDUs and R2Ts sent (ExpDataSN, RFC 7143
    /// §11.4.8).
    pub(crate) fn next_data_sn(&self) -> u32 {
        match self.bidirectional {
            // Its R2Ts share the numbers of its data (§11.7.5).
            true => self.data_sn,
            false => self.data_sn.wrapping_add(self.inbound.r2ts()),
        }
    }
}

/// The tasks of one connection. A task stays in its slot, whose memory is reused: no task is moved
/// during its life.
#[derive(Debug)]
pub struct TaskTable<P> {
    slots: Vec<Slot<P>>,
    /// The ITT of each slot, in a separate array, so that a look-up by tag reads one or two cache
    /// lines.
    tags: Vec<u32>,
    free: Vec<u16>,
    max: usize,
}

#[derive(Debug)]
struct Slot<P> {
    generation: u16,
    /// Whether the slot has a task. If not, its content is that of [`Task::none`].
    taken: bool,
    task: Task<P>,
}

impl<P: Payload> TaskTable<P> {
    /// A table for at most `max` tasks (below 65,535).
    pub fn new(max: usize) -> Self {
        Self { slots: Vec::new(), tags: Vec::new(), free: Vec::new(), max: max.min(0xfffe) }
    }

    /// The number of tasks.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a task with Initiator Task Tag `itt` and otherwise empty fields; `None` if the table is
    /// full.
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

    /// Adds `task`; `None` if the table is full.
    pub fn insert(&mut self, task: Task<P>) -> Option<TaskKey> {
        let (key, place) = self.open(task.itt)?;
        *place = task;
        Some(key)
    }

    /// The task with this key.
    #[inline]
    pub fn get(&self, key: TaskKey) -> Option<&Task<P>> {
        let slot = self.slots.get(key.slot())?;
        slot.is(key).then_some(&slot.task)
    }

    /// The task with this key.
    #[inline]
    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task<P>> {
        let slot = self.slots.get_mut(key.slot())?;
        slot.is(key).then_some(&mut slot.task)
    }

    /// Removes the task and returns it.
    pub fn remove(&mut self, key: TaskKey) -> Option<Task<P>> {
        let task = std::mem::replace(self.get_mut(key)?, Task::none());
        self.free(key);
        Some(task)
    }

    /// Removes the task, if it exists, and keeps its memory for the next.
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

    /// All tasks, mutable.
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
