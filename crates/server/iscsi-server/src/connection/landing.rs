//! Places for the data of a connection's WRITEs, as their units have named them. Commands are begun
//! before their data has come, so that units can name a place in time.
//!
//! A place is known for as long as the task's mover lives, and is good only for data that its unit
//! is sure to get. This module does not touch a unit's memory.

use std::rc::Rc;

use device::Landing;
use iscsi::pdu::{Bhs, PduRef};
use iscsi::target::{Data, TaskKey};

use super::{Connection, Inner};
use crate::end::End;
use crate::wire::Segment;

/// The places of tasks, by their slots.
#[derive(Default)]
pub(super) struct Landings(Vec<Option<(TaskKey, Landing)>>);

impl Landings {
    fn set(&mut self, task: TaskKey, landing: Landing) {
        if self.0.len() <= task.slot() {
            self.0.resize_with(task.slot() + 1, || None);
        }
        self.0[task.slot()] = Some((task, landing));
    }

    fn get(&self, task: TaskKey) -> Option<&Landing> {
        let (owner, landing) = self.0.get(task.slot())?.as_ref()?;
        (*owner == task).then_some(landing)
    }

    fn take(&mut self, task: TaskKey) -> Option<(TaskKey, Landing)> {
        self.get(task)?;
        self.0[task.slot()].take()
    }
}

impl Connection {
    /// Whether to begin the command with this header before its data has come: if its data may be
    /// placed directly.
    pub(crate) fn is_begun_early(self: &Rc<Self>, bhs: &Bhs, ahs: &[u8]) -> bool {
        let Some(PduRef::ScsiCommand(command)) = bhs.view() else { return false };
        if !ahs.is_empty() || !self.inner.borrow().state.is_begun_early(bhs) {
            return false;
        }
        let view = self.view();
        view.luns().get(bhs.lun()).is_some_and(|entry| entry.unit.lands(&command.cdb))
    }

    /// Has the unit of a command prepare for it. Its PDU, with this header, is handled soon.
    #[inline]
    pub(crate) fn prefetch(&self, bhs: &Bhs) {
        if let Some(PduRef::ScsiCommand(command)) = bhs.view()
            && let Some(entry) = self.view.borrow().luns().get(bhs.lun())
        {
            entry.unit.prefetch(&command.cdb);
        }
    }

    /// Begins a command of whose `len` bytes of immediate data some are still to come.
    pub(crate) fn begin(self: &Rc<Self>, bhs: &Bhs, ahs: &[u8], len: usize) -> Result<(), End> {
        let event = {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            state.begin(bhs, ahs, len, runtime::now(), outbox)?
        };
        if let Some(event) = event {
            self.act(event);
        }
        self.look_at_order();
        self.deliver_held()
    }

    /// Takes in the rest of the immediate data of a command that was begun.
    pub(crate) fn on_rest(self: &Rc<Self>, data: impl Data<Segment>) -> Result<(), End> {
        let event = {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            state.rest(data, outbox)
        };
        if let Some(event) = event {
            self.act(event);
        }
        self.look_at_order();
        self.deliver_held()
    }

    /// The place for the data of a PDU whose header has come, from byte `filled` of its data
    /// segment on, and the offset of that byte in the command's data-out.
    pub(crate) fn place(&self, bhs: &Bhs, filled: usize) -> Option<(Landing, u64)> {
        if self.is_cut() {
            return None;
        }
        let (task, offset) = self.inner.borrow().state.awaits(bhs)?;
        let landing = self.landings.borrow().get(task)?.clone();
        Some((landing, u64::from(offset) + filled as u64))
    }

    /// The place for the data that a task's RDMA Reads fetch.
    pub(crate) fn place_fetched(&self, task: TaskKey) -> Option<Landing> {
        if self.is_cut() || !self.inner.borrow().state.awaits_reads(task) {
            return None;
        }
        self.landings.borrow().get(task).cloned()
    }

    /// Records the place that a task's unit has named for its data.
    pub(crate) fn lands(&self, task: TaskKey, landing: Landing) {
        self.landings.borrow_mut().set(task, landing);
    }

    /// Forgets the place: the task's unit has done with it.
    pub(crate) fn forget_landing(&self, task: TaskKey) {
        let landing = self.landings.borrow_mut().take(task);
        // This may be the last reference to the unit.
        drop(landing);
    }
}
