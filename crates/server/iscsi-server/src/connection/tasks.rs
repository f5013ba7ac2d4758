//! A connection's commands on their units: executed, answered, and aborted.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::task::Waker;

use device::{Cdb, Command, DataMover, Execution, Outcome};
use invariant::broken;
use iscsi::pdu::Lun;
use iscsi::sn;
use iscsi::target::{Abort, Completion, Data, ScsiCommand, TaskKey};

use super::mover::Mover;
use super::timing::{Measured, Start};
use super::{Admitted, Connection, Inner};
use crate::lun_map::Entry;
use crate::remote::Victims;
use crate::wire::Segment;
use crate::{Unit, qos, router};

impl Connection {
    /// Takes in the data that an RDMA Read of a task has fetched.
    pub(crate) fn read_done(self: &Rc<Self>, task: TaskKey, data: impl Data<Segment>) {
        let over = {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            if let Some(outgoing) = &mut outbox.iser {
                outgoing.read_done();
            }
            state.read_done(task, data, outbox)
        };
        self.wake_task(task);
        if over {
            // Others may wait for its end: an abort, or commands ordered after it.
            self.look_at_order();
            self.progress.notify();
        }
    }

    /// Hands a command to its unit: the end of [`super::pipeline`].
    #[inline]
    pub(super) fn execute(self: &Rc<Self>, command: Admitted) {
        let (scsi, view, arrival) = command.into_parts();
        let mut start = Start::new(&scsi, arrival);
        let ScsiCommand { task, itt, lun, cdb, attribute, expected_in, expected_out, .. } = scsi;
        let entry = view.luns().get(lun);
        let Some(cdb) = Cdb::from_bytes(cdb) else {
            return self.finish(task, lun, entry, scsi::Sense::invalid_opcode().into());
        };
        let entry = match router::route(view.luns(), entry, &cdb) {
            Ok(entry) => entry,
            Err((data, outcome)) => {
                Mover::new(self.clone(), task).put_data(data.into());
                return self.finish(task, lun, entry, outcome);
            }
        };
        let (nexus, tally) = view.nexuses.of(entry);
        start.timed = tally.begin();
        if start.timed.is_some() && entry.stages {
            start.unit = NonZeroUsize::new(entry.unit.address());
        }
        let (class, began) = (start.class, start.timed);
        let command = Command {
            cdb,
            attribute: router::attribute(attribute),
            nexus,
            tag: itt.into(),
            data_out_len: expected_out.into(),
            data_in_len: expected_in.into(),
        };
        match entry.unit.execute(command, Mover::new(self.clone(), task)) {
            Execution::Done(_, outcome) => {
                let took = qos::count(&tally, class, began, &outcome);
                let measured = self.timing.ended(&start, took);
                self.finish_measured(task, lun, Some(entry), outcome, measured);
            }
            Execution::Running(future) => {
                self.timing.goes_on(task, start);
                let counted = self.backlog.begin(expected_in as usize);
                let running = Running { connection: self.clone(), task, lun, counted };
                runtime::spawn(async move {
                    let (_, outcome) = future.await;
                    let took = qos::count(&tally, class, began, &outcome);
                    let measured = running.connection.timing.ended_later(task, took);
                    running.finish(outcome, measured);
                });
            }
        }
    }

    /// Answers a command, and has its status watched until it is acknowledged.
    #[inline]
    fn finish_measured(
        self: &Rc<Self>,
        task: TaskKey,
        lun: Lun,
        entry: Option<&Entry>,
        outcome: Outcome,
        measured: Option<Measured>,
    ) {
        let Some(measured) = measured else { return self.finish(task, lun, entry, outcome) };
        let stat_sn = self.inner.borrow().state.stat_sn();
        self.finish(task, lun, entry, outcome);
        let state = &self.inner.borrow().state;
        let is_sent = state.stat_sn() != stat_sn && !state.has(task);
        self.timing.sent(measured, is_sent.then_some(stat_sn));
    }

    /// Answers a command.
    #[inline]
    pub(super) fn finish(self: &Rc<Self>, task: TaskKey, lun: Lun, entry: Option<&Entry>, outcome: Outcome) {
        self.timing.account.ended(&outcome);
        let completion = Completion {
            status: outcome.status as u8,
            sense: outcome.sense.map(|sense| {
                let d_sense = entry.is_some_and(|entry| entry.unit.descriptor_sense());
                sense.emit(d_sense).as_ref().into()
            }),
            wanted_in: outcome.wanted_in,
            wanted_out: outcome.wanted_out,
        };
        self.complete(task, lun, completion);
    }

    /// Answers a command here, or on the connection that it was reassigned to.
    #[inline]
    pub(super) fn complete(self: &Rc<Self>, task: TaskKey, lun: Lun, completion: Completion) {
        match self.ferry(task) {
            Some(ferry) => {
                self.ferries.borrow_mut().remove(&task);
                ferry.end(completion);
            }
            None => {
                let Inner { state, outbox } = &mut *self.inner.borrow_mut();
                state.finish(task, completion, outbox);
            }
        }
        self.order_moved(lun, task);
    }

    /// Answers a command that came from another connection.
    pub(crate) fn end_task(self: &Rc<Self>, task: TaskKey, lun: Lun, completion: Completion) {
        self.complete(task, lun, completion);
        self.kick();
        self.progress.notify();
    }

    /// Whether the task is aborted or gone.
    pub(crate) fn is_aborted(&self, task: TaskKey) -> bool {
        self.inner.borrow().state.is_aborted(task)
    }

    /// Registers a waker for the task's next data-out.
    pub(crate) fn wait_for_data(&self, task: TaskKey, waker: &Waker) {
        let mut waits = self.data_waits.borrow_mut();
        if waits.len() <= task.slot() {
            waits.resize_with(task.slot() + 1, || None);
        }
        match &mut waits[task.slot()] {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    pub(super) fn wake_task(&self, task: TaskKey) {
        let waker = self.data_waits.borrow_mut().get_mut(task.slot()).and_then(Option::take);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn wake_all(&self) {
        let wakers: Vec<_> = self.data_waits.borrow_mut().iter_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify();
    }

    /// The tasks that `victims` names.
    pub(crate) fn tasks_of(self: &Rc<Self>, victims: &Victims) -> Vec<TaskKey> {
        let view = self.view();
        let (inner, order) = (self.inner.borrow(), self.pipeline.order.borrow());
        let is_for = |key, lun, unit: &Unit| match order.left(key) {
            Some(address) => unit.address() == address,
            None => view.luns().get(lun).is_some_and(|entry| entry.unit.is(unit)),
        };
        let tasks = inner.state.tasks().filter(|(key, task)| match victims {
            Victims::Tag(itt) => task.itt == *itt,
            Victims::All => true,
            Victims::Unit(unit) => is_for(*key, task.lun, unit),
            Victims::Of(unit, only, except) => {
                only.is_none_or(|itt| task.itt == itt)
                    && except.is_none_or(|itt| task.itt != itt)
                    && is_for(*key, task.lun, unit)
            }
            Victims::Earlier(cmd_sn, unit) => {
                sn::lt(task.cmd_sn, *cmd_sn) && unit.as_ref().is_none_or(|unit| is_for(*key, task.lun, unit))
            }
        });
        tasks.map(|(key, _)| key).collect()
    }

    /// Aborts tasks, waits until they have ended, and returns their number.
    pub(crate) async fn abort(self: &Rc<Self>, victims: &Victims) -> usize {
        let mut running = Vec::new();
        let mut ended = 0;
        let keys = self.tasks_of(victims);
        {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            for key in keys {
                match state.abort(key) {
                    Abort::Gone => broken!("a task that was found is gone"),
                    Abort::Ended => ended += 1,
                    Abort::Running if self.pipeline.remove(key) => {
                        // No unit has seen it: it ends here.
                        state.finish(key, Completion::default(), outbox);
                        ended += 1;
                    }
                    Abort::Running => running.push(key),
                }
            }
        }
        // Commands may have waited for tasks that have already ended.
        self.look_at_order();
        self.kick();
        running.iter().for_each(|key| self.wake_task(*key));
        self.room.notify();
        let gone = || running.iter().all(|key| !self.inner.borrow().state.has(*key)).then_some(());
        self.progress.until(gone).await;
        ended + running.len()
    }
}

/// A task that a unit runs.
struct Running {
    connection: Rc<Connection>,
    task: TaskKey,
    lun: Lun,
    /// Size of its read in the backlog's account (`Backlog::begin`).
    counted: usize,
}

impl Running {
    fn finish(&self, outcome: Outcome, measured: Option<Measured>) {
        let connection = &self.connection;
        // Only the format of sense data depends on the unit.
        let view = outcome.sense.is_some().then(|| connection.view());
        let left = view.is_some() && connection.pipeline.order.borrow().left(self.task).is_some();
        let entry = view.as_ref().and_then(|view| view.luns().get(self.lun)).filter(|_| !left);
        connection.finish_measured(self.task, self.lun, entry, outcome, measured);
        connection.kick();
        connection.watch_backlog();
        connection.progress.notify();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.connection.backlog.read(self.counted);
            if !std::thread::panicking() {
                self.connection.room_moved();
            }
        }
        // A unit that panics must not leave a task behind: its connection would wait for it for
        // ever.
        if std::thread::panicking() {
            let Self { connection, task, lun, .. } = self;
            let running = Self { connection: connection.clone(), task: *task, lun: *lun, counted: 0 };
            runtime::spawn(async move {
                running.finish(scsi::Sense::internal_target_failure().into(), None);
                running.connection.room_moved();
            });
        }
    }
}
