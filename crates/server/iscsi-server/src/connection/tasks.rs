//! A connection's commands, from their turn to their answer: to their units, in order where that was asked for, and aborted.

use std::rc::Rc;
use std::task::Waker;

use device::{Cdb, Command, DataMover, Execution, Outcome};
use iscsi::pdu::{Lun, RESERVED_TAG};
use iscsi::sn;
use iscsi::target::{Abort, Completion, Data, ScsiCommand, TaskKey};
use server_core::gate::Passage;

use super::mover::Mover;
use super::order::Order;
use super::{Admitted, Connection, Inner};
use crate::lun_map::Entry;
use crate::remote::Victims;
use crate::wire::Segment;
use crate::{Unit, qos, router};

impl Connection {
    /// Forgets a command that no unit has seen. False if it is none.
    pub(super) fn remove_waiting(&self, key: TaskKey) -> bool {
        let mut deferred = self.deferred.borrow_mut();
        if let Some(at) = deferred.iter().position(|command| command.scsi.task == key) {
            deferred.remove(at);
            return true;
        }
        self.order.borrow_mut().remove(key) || self.gate.remove(|command| command.scsi.task == key)
    }

    /// Takes in what an RDMA Read of a task has brought.
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
            // Others may wait for its end: an abort, or commands that are to come after it.
            self.start_all_waiting();
            self.progress.notify();
        }
    }

    /// Hands a command to its unit, or keeps it until limits let it go.
    #[inline]
    pub(crate) fn start(self: &Rc<Self>, command: Admitted) {
        if !self.gate.is_closed() {
            return self.start_unlimited(command);
        }
        self.pass_gate(command);
    }

    /// Charges a command for what it costs, and starts it when its time has come.
    #[cold]
    fn pass_gate(self: &Rc<Self>, command: Admitted) {
        let scsi = &command.scsi;
        let (lun, cost) = (scsi.lun, qos::cost(&scsi.cdb, scsi.expected_in, scsi.expected_out));
        let limiter = command.entry().map(|entry| entry.limiter.clone());
        let (Some(cost), Some(limiter)) = (cost, limiter) else { return self.start_unlimited(command) };
        let limiters = [&limiter, &self.session.limiter];
        let is_like = |other: &Admitted| other.scsi.lun == lun;
        match self.gate.pass(command, cost, limiters, runtime::now(), is_like) {
            Passage::Now(command) => self.start_unlimited(command),
            Passage::Kept => {}
            Passage::KeptAlone => {
                let connection = self.clone();
                runtime::spawn(async move {
                    let go = |command| {
                        if let Some(command) = connection.resume(command) {
                            connection.start_unlimited(command);
                        }
                        connection.kick();
                    };
                    connection.gate.watch(go).await;
                });
            }
        }
    }

    /// Looks which limits hold for the session.
    pub(super) fn look_at_limits(&self) {
        let units = self.session.view().luns.iter().any(|entry| entry.limiter.is_active());
        self.gate.set_closed(units || self.session.limiter.is_active());
    }

    /// Limits have changed: commands that wait are charged anew.
    pub(super) fn limits_changed(self: &Rc<Self>) {
        self.look_at_limits();
        for command in self.gate.take_all() {
            if let Some(command) = self.resume(command) {
                self.start(command);
            }
        }
        self.kick();
    }

    /// Hands a command to its unit.
    #[inline]
    pub(crate) fn start_unlimited(self: &Rc<Self>, command: Admitted) {
        // One that waits is not overtaken: it may be long, and would wait for ever.
        let expected_in = command.scsi.expected_in;
        let waits = || !self.deferred.borrow().is_empty() || !self.may_begin(expected_in);
        if expected_in > 0 && waits() {
            self.deferred.borrow_mut().push_back(command);
            return self.watch_backlog();
        }
        self.start_now(command);
    }

    /// Hands a command to its unit that need not wait for anything.
    #[inline]
    pub(super) fn start_now(self: &Rc<Self>, command: Admitted) {
        let (scsi, view) = command.into_parts();
        let ScsiCommand { task, itt, lun, cdb, attribute, expected_in, expected_out, .. } = scsi;
        let entry = view.luns().get(lun);
        let Some(cdb) = Cdb::from_bytes(cdb) else {
            return self.finish(task, lun, entry, scsi::Sense::invalid_opcode().into());
        };
        if let Some((data, outcome)) = router::answer(view.luns(), entry, &cdb) {
            Mover::new(self.clone(), task).put_data(data.into());
            return self.finish(task, lun, entry, outcome);
        }
        // The router answers for every unit that does not exist.
        let Some(entry) = entry else { return };
        let (nexus, tally) = view.nexuses.of(entry);
        let (class, began) = (qos::class(cdb.bytes()), tally.begin());
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
                qos::count(&tally, class, began, &outcome);
                self.finish(task, lun, Some(entry), outcome);
            }
            Execution::Running(future) => {
                let counted = self.backlog.begin(expected_in as usize);
                let running = Running { connection: self.clone(), task, lun, counted };
                runtime::spawn(async move {
                    let (_, outcome) = future.await;
                    qos::count(&tally, class, began, &outcome);
                    running.finish(outcome);
                });
            }
        }
    }

    /// Whether commands of the same unit that are older than `command` are at work.
    pub(super) fn has_older(&self, command: &ScsiCommand) -> bool {
        self.has_older_beside(command, &self.order.borrow())
    }

    fn has_older_beside(&self, command: &ScsiCommand, order: &Order) -> bool {
        let inner = self.inner.borrow();
        let mut tasks = inner.state.tasks();
        tasks.any(|(key, task)| {
            key != command.task
                && task.lun == command.lun
                && sn::lt(task.cmd_sn, command.cmd_sn)
                && order.left(key).is_none()
        })
    }

    /// Starts the commands that waited for `ended`.
    pub(super) fn start_waiting(self: &Rc<Self>, lun: Lun, ended: TaskKey) {
        while !self.order.borrow().is_empty() {
            let next = {
                let mut order = self.order.borrow_mut();
                order.next(lun, ended, |command, order| self.has_older_beside(command, order))
            };
            let Some(command) = next else { return };
            if let Some(command) = self.resume(command) {
                self.start(command);
            }
        }
    }

    /// Starts the commands that waited for tasks that ended without [`Self::finish`]: aborted, or answered when the data that
    /// was owed to them had come.
    #[inline]
    pub(super) fn start_all_waiting(self: &Rc<Self>) {
        if self.order.borrow().is_empty() {
            return;
        }
        self.start_those_in_order();
    }

    #[cold]
    fn start_those_in_order(self: &Rc<Self>) {
        let luns = {
            let mut order = self.order.borrow_mut();
            order.forget_left(|key| !self.inner.borrow().state.has(key));
            order.luns()
        };
        for lun in luns {
            self.start_waiting(lun, TaskKey::from_tag(RESERVED_TAG));
        }
    }

    /// Answers a command.
    #[inline]
    pub(super) fn finish(self: &Rc<Self>, task: TaskKey, lun: Lun, entry: Option<&Entry>, outcome: Outcome) {
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

    /// Answers a command here, or where it was reassigned to.
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
        if !self.order.borrow().is_empty() {
            self.start_waiting(lun, task);
        }
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

    /// Leaves a waker for the task's next data-out.
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
        let (inner, order) = (self.inner.borrow(), self.order.borrow());
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

    /// Aborts tasks, waits until they have ended, and says how many there were.
    pub(crate) async fn abort(self: &Rc<Self>, victims: &Victims) -> usize {
        let mut running = Vec::new();
        let mut ended = 0;
        let keys = self.tasks_of(victims);
        {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            for key in keys {
                match state.abort(key) {
                    Abort::Gone => {}
                    Abort::Ended => ended += 1,
                    Abort::Running if self.remove_waiting(key) => {
                        // No unit has seen it: it ends here.
                        state.finish(key, Completion::default(), outbox);
                        ended += 1;
                    }
                    Abort::Running => running.push(key),
                }
            }
        }
        // Commands may have waited for those that are over already.
        self.start_all_waiting();
        self.kick();
        running.iter().for_each(|key| self.wake_task(*key));
        self.room.notify();
        let gone = || running.iter().all(|key| !self.inner.borrow().state.has(*key)).then_some(());
        self.progress.until(gone).await;
        ended + running.len()
    }
}

/// A task that a unit is at work on.
struct Running {
    connection: Rc<Connection>,
    task: TaskKey,
    lun: Lun,
    /// How its read is counted.
    counted: usize,
}

impl Running {
    fn finish(&self, outcome: Outcome) {
        let connection = &self.connection;
        // Only sense data has a format that its unit decides.
        let view = outcome.sense.is_some().then(|| connection.view());
        let left = view.is_some() && connection.order.borrow().left(self.task).is_some();
        let entry = view.as_ref().and_then(|view| view.luns().get(self.lun)).filter(|_| !left);
        connection.finish(self.task, self.lun, entry, outcome);
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
                self.connection.start_deferred();
            }
        }
        // A unit that panics must not leave a task that nobody ends: its connection would wait for it for ever.
        if std::thread::panicking() {
            let Self { connection, task, lun, .. } = self;
            let running = Self { connection: connection.clone(), task: *task, lun: *lun, counted: 0 };
            runtime::spawn(async move {
                running.finish(scsi::Sense::internal_target_failure().into());
                running.connection.start_deferred();
            });
        }
    }
}
