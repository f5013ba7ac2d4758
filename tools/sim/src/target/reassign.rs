//! Connection recovery (RFC 7143 §7.2.2, ErrorRecoveryLevel 2): what becomes of a connection that is lost, and how its tasks go on with
//! another one.
//!
//! Here everything runs in one thread, so that a task's unit is simply told that its initiator is elsewhere now.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use iscsi::pdu::{Lun, TaskManagementResult};
use iscsi::sn;
use iscsi::target::recovery::Released;
use iscsi::target::{Completion, Payload, ScsiCommand, TaskKey, TaskManagement};
use scsi::UnitAttention;

use super::Target;
use super::connection::{Connection, Victims};
use super::payload::Segment;
use crate::clock::{MS, Micros};
use crate::trace::note;

/// How often it is looked whether the gap has been filled that a connection left which is gone.
const GAP_LOOKS: Micros = 200 * MS;

/// Where a task's unit brings and takes its data.
pub(super) struct Place {
    at: RefCell<(Rc<Connection>, TaskKey)>,
    /// Data-out that had arrived on a connection before this one.
    arrived: RefCell<VecDeque<Segment>>,
    /// What the task ends with, whatever its unit says.
    refused: RefCell<Option<Completion>>,
    /// No connection wants the task any more.
    given_up: Cell<bool>,
}

impl Place {
    pub fn new(connection: Rc<Connection>, task: TaskKey) -> Rc<Self> {
        Rc::new(Self {
            at: RefCell::new((connection, task)),
            arrived: RefCell::default(),
            refused: RefCell::default(),
            given_up: Cell::new(false),
        })
    }

    /// The connection that has the task, and what it calls it.
    pub fn at(&self) -> (Rc<Connection>, TaskKey) {
        self.at.borrow().clone()
    }

    /// Whether nothing that the unit puts is of use.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// Whether nothing that the unit wants will come.
    pub fn is_refused(&self) -> bool {
        self.given_up.get() || self.refused.borrow().is_some()
    }

    /// Bytes of data-out that came before the task moved here.
    pub fn arrived(&self) -> usize {
        self.arrived.borrow().iter().map(Payload::len).sum()
    }

    /// Takes `len` of them.
    pub fn take_arrived(&self, mut len: usize, mut give: impl FnMut(Segment)) {
        let mut arrived = self.arrived.borrow_mut();
        while len > 0 {
            let Some(piece) = arrived.front_mut() else { return };
            let n = Payload::len(piece).min(len);
            give(piece.split_to(n));
            len -= n;
            if Payload::len(piece) == 0 {
                arrived.pop_front();
            }
        }
    }

    /// The unit has finished with `completion`.
    pub fn end(&self, completion: Completion) {
        let (connection, task) = self.at();
        let completion = self.refused.take().unwrap_or(completion);
        if !self.given_up.get() {
            connection.end_task(task, completion);
        }
    }

    fn move_to(&self, connection: &Rc<Connection>, task: TaskKey, parcel: Released<Segment>) {
        *self.at.borrow_mut() = (connection.clone(), task);
        self.arrived.borrow_mut().extend(parcel.data_out);
        let mut refused = self.refused.borrow_mut();
        *refused = refused.take().or(parcel.refused);
    }
}

/// TASK REASSIGN (§11.5.1). Answers it, and goes on with the task.
pub(super) async fn run(target: Rc<Target>, connection: Rc<Connection>, request: TaskManagement) {
    let (mut result, mut adopted) = (TaskManagementResult::FunctionComplete, None);
    match find(&connection, &request) {
        Err(other) => result = other,
        Ok((old, mut parcel)) => {
            let place = old.disembark(parcel.key);
            let with_command = parcel.held.is_some();
            let data = if with_command { std::mem::take(&mut parcel.data_out) } else { Vec::new() };
            let key = connection.with(|state, _| state.adopt(&parcel.task, data));
            if key.is_none() {
                result = TaskManagementResult::FunctionRejected;
                place.iter().for_each(|place| place.given_up.set(true));
            }
            adopted = key.map(|key| (key, parcel, place));
            old.released();
        }
    }
    if result == TaskManagementResult::TaskDoesNotExist {
        // One that was aborted may still be at work: it must be over when the initiator is told.
        for member in connection.session.connections() {
            member.abort(Victims::Tag(request.referenced)).await;
        }
    }
    note!(target.trace, "target cid {}: reassign {:#x}: {result}", connection.cid, request.referenced);
    // The new allegiance begins after the response (§7.2.2).
    connection.with(|state, out| state.task_management_response(&request, result, out));
    let Some((key, mut parcel, place)) = adopted else { return };
    if let Some(command) = parcel.held.take() {
        connection.with(|state, _| state.hold(ScsiCommand { task: key, ..command }));
        return connection.deliver_held_or_lose(&target);
    }
    for piece in std::mem::take(&mut parcel.data_in) {
        connection.put(key, if target.spoils_moves.get() { spoilt(&piece) } else { piece });
    }
    match (parcel.ended.take(), place) {
        (Some(completion), _) => connection.end_task(key, completion),
        (None, Some(place)) => {
            let before = place.at();
            place.move_to(&connection, key, parcel);
            connection.embark(key, place);
            before.0.wake_task(before.1);
        }
        (None, None) => target.report(format!("task {:#x} has no unit", request.referenced)),
    }
}

fn spoilt(piece: &Segment) -> Segment {
    Segment(Payload::to_vec(piece).into_iter().map(|byte| byte ^ 0x5a).collect::<Vec<u8>>().into())
}

/// Looks for the task among the session's connections, and takes it from one that was removed for recovery.
fn find(
    connection: &Rc<Connection>,
    request: &TaskManagement,
) -> Result<(Rc<Connection>, Released<Segment>), TaskManagementResult> {
    if !connection.session.recovers_connections() {
        return Err(TaskManagementResult::ReassignmentNotSupported);
    }
    if request.lun != Lun::ZERO {
        return Err(TaskManagementResult::LunDoesNotExist);
    }
    let allegiant = |member: Rc<Connection>| {
        let (lun, cmd_sn) = member.with(|state, _| state.allegiant(request.referenced))?;
        Some((member, lun, cmd_sn))
    };
    // A tag is free for another task once its status has come, though that was not acknowledged before its connection was lost.
    let newest = connection
        .session
        .connections()
        .into_iter()
        .filter_map(allegiant)
        .reduce(|newest, other| if sn::le(newest.2, other.2) { other } else { newest });
    let Some((member, lun, _)) = newest else { return Err(TaskManagementResult::TaskDoesNotExist) };
    if lun != request.lun {
        return Err(TaskManagementResult::TaskDoesNotExist);
    }
    if !member.is_removed() {
        return Err(TaskManagementResult::TaskStillAllegiant);
    }
    let released = member.with(|state, _| state.release(request.referenced, request.exp_data_sn));
    released.map(|parcel| (member, parcel)).ok_or(TaskManagementResult::TaskDoesNotExist)
}

impl Connection {
    /// Waits until no task of this connection, which is gone, can be of use any more: all were reassigned, the time is over, or the
    /// session is.
    pub(super) async fn await_recovery(&self, target: &Target) {
        let retention = self.session.retention();
        let mut removed = self.is_removed();
        let mut deadline = target.clock.now() + retention;
        loop {
            let now = target.clock.now();
            let nothing = self.is_removed() && self.with(|state, _| state.has_nothing_left());
            if self.is_retired() || nothing && !self.session.has_gap() {
                return;
            }
            if self.is_removed() != removed {
                // From the logout on the time is counted anew (§11.15.3).
                removed = true;
                deadline = now + retention;
            }
            if now >= deadline {
                note!(target.trace, "target {}.{}: not recovered in time", self.session.tsih, self.cid);
                return;
            }
            // Nobody tells of a gap that is filled.
            target.alarm_at(if nothing { deadline.min(now + GAP_LOOKS) } else { deadline });
            let mut waited = false;
            poll_fn(|cx| match std::mem::replace(&mut waited, true) {
                true => Poll::Ready(()),
                false => {
                    self.progress.register(cx.waker());
                    target.alarm.register(cx.waker());
                    Poll::Pending
                }
            })
            .await;
        }
    }

    /// Ends all tasks, and tells the initiator, if its session goes on, that they have ended with their connection (§7.6).
    pub(super) async fn clear(&self) {
        let any = self.with(|state, _| state.tasks().next().is_some());
        self.abort(Victims::All).await;
        if any && !self.session.ending.get() {
            self.session.nexus.establish(UnitAttention::SomeCommandsClearedByIscsiProtocolEvent);
        }
    }

    /// A command that ended with data for its initiator, wherever that is.
    pub(super) fn completion(&self, outcome: device::Outcome) -> Completion {
        let d_sense = self.session.unit.descriptor_sense();
        Completion {
            status: outcome.status.code(),
            sense: outcome.sense.map(|sense| sense.emit(d_sense).as_ref().into()),
            wanted_in: outcome.wanted_in,
            wanted_out: outcome.wanted_out,
        }
    }
}
