//! A command keeps the unit that it was addressed to. Its LUN is looked up once, in the session's
//! view when its turn comes. It carries that view ([`Admitted`]) while it waits for its order, its
//! limit, or room.
//!
//! When a live change takes a unit away from a LUN, or replaces the session's nexus with it,
//! commands that wait there end before the new unit is served. Running commands end on their own
//! unit, which gets no more data for them. Nothing here may start a command under another view than
//! its own.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use device::Outcome;
use iscsi::pdu::Lun;
use iscsi::target::{Completion, ScsiCommand};
use scsi::{Sense, UnitAttention};

use super::pipeline::Stage;
use super::timing::Start;
use super::{Connection, Inner};
use crate::lun_map::{Entry, LocalView, LunMap, View};

/// A command whose turn has come, and its session's view at that time.
pub(crate) struct Admitted {
    pub scsi: ScsiCommand,
    view: Rc<LocalView>,
    /// When its turn came.
    arrival: Instant,
}

/// Effect of a change on commands that were addressed to a LUN before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The same unit under another nexus: the initiator's right to write has changed.
    Nexus,
    /// Another unit over the same medium, such as one with another name.
    Unit,
    /// Another medium, or none.
    Medium,
}

impl Change {
    /// Sense data for commands that were addressed to the LUN before the change. Initiators send a
    /// command again after a unit attention. Where that would reach another medium, LOGICAL UNIT
    /// NOT SUPPORTED tells them that their unit is gone for good.
    fn sense(self) -> Sense {
        match self {
            Self::Nexus | Self::Unit => UnitAttention::NexusLossOccurred.into(),
            Self::Medium => Sense::logical_unit_not_supported(),
        }
    }
}

/// The change of `lun` between two maps. `None`: none that concerns its commands.
fn change(before: &LunMap, now: &LunMap, lun: Lun) -> Option<Change> {
    match (before.get(lun), now.get(lun)) {
        (None, None) => None,
        (Some(old), Some(new)) if Arc::ptr_eq(&old.nexus, &new.nexus) => None,
        (Some(old), Some(new)) if old.unit.is(&new.unit) => Some(Change::Nexus),
        (Some(old), Some(new)) if old.unit.shares_medium(&new.unit) => Some(Change::Unit),
        _ => Some(Change::Medium),
    }
}

fn completion(sense: Sense, entry: Option<&Entry>) -> Completion {
    let outcome = Outcome::from(sense);
    let d_sense = entry.is_some_and(|entry| entry.unit.descriptor_sense());
    Completion {
        status: outcome.status as u8,
        sense: outcome.sense.map(|sense| sense.emit(d_sense).as_ref().into()),
        ..Completion::default()
    }
}

impl Admitted {
    #[inline]
    pub(crate) fn new(scsi: ScsiCommand, view: Rc<LocalView>) -> Self {
        Self { scsi, view, arrival: runtime::now() }
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (ScsiCommand, Rc<LocalView>, Instant) {
        (self.scsi, self.view, self.arrival)
    }

    /// The command as its unit would get it now.
    pub(super) fn start(&self) -> Start {
        Start::new(&self.scsi, self.arrival)
    }

    /// Its unit; `None` where its LUN names none.
    #[inline]
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.view.luns().get(self.scsi.lun)
    }

    /// Continues under `view`, if its LUN still denotes the same unit under the same nexus.
    fn renew(&mut self, view: &Rc<LocalView>) -> Result<(), Change> {
        if Rc::ptr_eq(&self.view, view) {
            return Ok(());
        }
        match change(self.view.luns(), view.luns(), self.scsi.lun) {
            Some(change) => Err(change),
            None => {
                self.view = view.clone();
                Ok(())
            }
        }
    }
}

impl Connection {
    /// Passes a command whose turn has come to its unit, or has it wait.
    #[inline]
    pub(super) fn admit(self: &Rc<Self>, scsi: ScsiCommand, view: Rc<LocalView>) {
        if scsi.cdb.spilled() {
            // Memory for the next CDB.
            self.inner.borrow_mut().state.lend_for_cdb(device::Cdb::spare());
        }
        self.pass(Admitted::new(scsi, view), Stage::Order);
    }

    /// Resumes a command that has waited, if its LUN still denotes the same unit and nexus. Else
    /// the command ends here.
    pub(crate) fn resume(self: &Rc<Self>, mut command: Admitted) -> Option<Admitted> {
        let view = self.view();
        match command.renew(&view) {
            Ok(()) => Some(command),
            Err(change) => {
                self.end_stray(&command, change);
                None
            }
        }
    }

    fn end_stray(self: &Rc<Self>, command: &Admitted, change: Change) {
        let ScsiCommand { task, lun, .. } = command.scsi;
        self.finish(task, lun, command.entry(), change.sense().into());
    }

    /// The session's view has changed: ends commands that were addressed to units that are not at
    /// their LUNs any more.
    #[cold]
    pub(super) fn part_from(self: &Rc<Self>, before: &LocalView, now: &Rc<LocalView>) {
        let change = |lun: Lun| change(before.luns(), now.luns(), lun);
        let mut ended: Vec<(Admitted, Change)> = Vec::new();
        let mut stays = |mut command: Admitted| match command.renew(now) {
            Ok(()) => Some(command),
            Err(change) => {
                ended.push((command, change));
                None
            }
        };
        let is_other = |lun| change(lun).is_some_and(|change| change != Change::Nexus);
        self.pipeline.retain(&mut stays, is_other);
        {
            let Inner { state, .. } = &mut *self.inner.borrow_mut();
            state.refuse_held(|lun| {
                change(lun).map(|change| completion(change.sense(), before.luns().get(lun)))
            });
            let at_work: Vec<_> = state
                .tasks()
                .filter(|(key, _)| ended.iter().all(|(command, _)| command.scsi.task != *key))
                .filter_map(|(key, task)| {
                    // The number of an immediate command may be another one's.
                    let cmd_sn = (!task.immediate).then_some(task.cmd_sn);
                    Some((key, cmd_sn, task.lun, change(task.lun)?))
                })
                .collect();
            for (key, cmd_sn, lun, change) in at_work {
                let entry = before.luns().get(lun);
                if let Some(entry) = entry.filter(|_| change != Change::Nexus) {
                    self.pipeline.order.borrow_mut().leave(key, entry.unit.address());
                    if let (Some(window), Some(cmd_sn)) = (&self.session.window, cmd_sn) {
                        // No command of the new unit waits for it.
                        window.lift(cmd_sn);
                    }
                }
                state.cut_off(key, completion(change.sense(), entry));
            }
        }
        if !ended.is_empty() {
            tracing::info!(
                connection = self.id.0,
                initiator = self.session.port.initiator,
                commands = ended.len(),
                "ended commands that waited for a unit that was removed or replaced"
            );
        }
        // In a task of its own: the caller is in the middle of something.
        let connection = self.clone();
        runtime::spawn(async move {
            for (command, change) in ended {
                connection.end_stray(&command, change);
            }
            // Running tasks may wait for data that does not come any more.
            connection.wake_all();
            connection.look_at_order();
            connection.kick();
            connection.progress.notify();
        });
    }

    /// [`Self::admit`] of a command that waited for its order on a connection that saw `view`.
    pub(super) fn admit_moved(self: &Rc<Self>, scsi: ScsiCommand, view: &View) {
        let now = self.view();
        match change(&view.luns, now.luns(), scsi.lun) {
            None => self.admit(scsi, now),
            Some(change) => self.finish(scsi.task, scsi.lun, view.luns.get(scsi.lun), change.sense().into()),
        }
    }

    /// Has a command, which waited for its turn on a connection that saw `view`, wait for it here.
    pub(crate) fn hold(self: &Rc<Self>, scsi: ScsiCommand, view: &View) {
        let now = self.view();
        let lun = scsi.lun;
        self.with(|state, _| {
            state.hold(scsi);
            state.refuse_held(|held| {
                let change = (held == lun).then(|| change(&view.luns, now.luns(), lun))??;
                Some(completion(change.sense(), view.luns.get(lun)))
            });
        });
    }
}
