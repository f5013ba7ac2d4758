//! The path of a command from its turn to its unit. It passes three stages, and waits in the first
//! that keeps it:
//!
//! 1. order: older commands of its unit, where task attributes ask for that ([`Order`]);
//! 2. limits of service ([`Gate`]);
//! 3. room: a read waits while the initiator has too many bytes to take, or to acknowledge.
//!
//! Before the first stage a command waits for its CmdSN's turn in the command window of
//! `iscsi::target`, which bounds the number of waiting commands. A command that leaves a stage
//! continues with the next one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use iscsi::pdu::{Lun, TaskAttribute};
use iscsi::sn;
use iscsi::target::{Cid, ScsiCommand, TaskKey};
use server_core::gate::{Gate, Passage};

use super::management::{FIRST_LOOK, LONGEST_LOOK};
use super::order::Order;
use super::{Admitted, Connection};
use crate::qos;
use crate::remote::Victims;

/// A stage of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Order,
    Limits,
    Room,
}

/// The waiting commands of a connection, by their stages.
#[derive(Default)]
pub(super) struct Pipeline {
    pub order: RefCell<Order>,
    /// [`Connection::go_on_in_order`] runs.
    going_on: Cell<bool>,
    /// It was called again meanwhile.
    again: Cell<bool>,
    gate: Gate<Admitted>,
    /// Reads, in order of arrival.
    room: RefCell<VecDeque<Admitted>>,
}

impl Pipeline {
    /// Forgets a waiting command. False if it does not wait here.
    pub(super) fn remove(&self, key: TaskKey) -> bool {
        let mut room = self.room.borrow_mut();
        let at = room.iter().position(|command| command.scsi.task == key);
        let in_room = at.and_then(|at| room.remove(at)).is_some();
        let mut order = self.order.borrow_mut();
        if in_room || self.gate.remove(|command| command.scsi.task == key) {
            // It had passed its order: the commands behind it wait no longer.
            order.end(key);
            return true;
        }
        order.remove(key).is_some()
    }

    /// Keeps those of the waiting commands that `stays` returns, and no order among those of a LUN
    /// that names another unit now, by `is_other`.
    pub(super) fn retain(
        &self,
        mut stays: impl FnMut(Admitted) -> Option<Admitted>,
        is_other: impl Fn(Lun) -> bool,
    ) {
        let room = std::mem::take(&mut *self.room.borrow_mut());
        *self.room.borrow_mut() = room.into_iter().filter_map(&mut stays).collect();
        self.gate.retain(&mut stays);
        self.order.borrow_mut().retain(&mut stays, is_other);
    }

    /// Calls `f` with each waiting command.
    pub(super) fn each(&self, mut f: impl FnMut(&Admitted)) {
        self.order.borrow().waiting().for_each(&mut f);
        self.gate.each(&mut f);
        self.room.borrow().iter().for_each(f);
    }

    /// Whether reads wait for room.
    pub(super) fn lacks_room(&self) -> bool {
        !self.room.borrow().is_empty()
    }
}

impl Connection {
    /// Passes a command to its unit, through all stages from `from` on.
    #[inline]
    pub(super) fn pass(self: &Rc<Self>, command: Admitted, from: Stage) {
        if from <= Stage::Order {
            let plain = command.scsi.attribute <= TaskAttribute::Simple.code();
            let ordered = self.session.window.as_ref().is_some_and(|window| window.has_ordered());
            if !(plain && !ordered && self.pipeline.order.borrow().is_empty()) {
                return self.pass_order(command, plain);
            }
        }
        if from <= Stage::Limits && self.pipeline.gate.is_closed() {
            return self.pass_limits(command);
        }
        let expected_in = command.scsi.expected_in;
        // Later reads do not overtake a waiting one: it may be long, and would wait for ever.
        if expected_in > 0 && (self.pipeline.lacks_room() || !self.may_begin(expected_in)) {
            self.pipeline.room.borrow_mut().push_back(command);
            return self.watch_backlog();
        }
        self.execute(command);
    }

    /// Resumes a command that has waited, if its LUN still denotes the same unit and nexus.
    fn go_on(self: &Rc<Self>, command: Admitted, from: Stage) {
        if let Some(command) = self.resume(command) {
            self.pass(command, from);
        }
    }

    /// Keeps a command until those before it have ended.
    #[cold]
    fn pass_order(self: &Rc<Self>, command: Admitted, plain: bool) {
        // Such an initiator wants each read as of its turn, not as of its arrival.
        self.inner.borrow_mut().outbox.stop_lending();
        let fenced = self.is_fenced(&command.scsi);
        let asks = self.asks_others(&command);
        let older = !plain && self.has_older(&command.scsi, &self.pipeline.order.borrow());
        let next = self.pipeline.order.borrow_mut().admit(command, fenced, asks || older);
        if let Some(command) = next {
            self.pass(command, Stage::Limits);
        }
    }

    /// Whether the command is younger than an ORDERED command of its unit that has not ended, on
    /// whatever connection of the session.
    fn is_fenced(&self, command: &ScsiCommand) -> bool {
        let window = self.session.window.as_ref();
        window.is_some_and(|window| window.is_fenced(command.cmd_sn, command.lun, self.cid))
    }

    /// Whether an ORDERED command has to wait until the session's other connections have no older
    /// commands of its unit. Asks them, and has the command go on then.
    fn asks_others(self: &Rc<Self>, command: &Admitted) -> bool {
        let ScsiCommand { task, lun, cmd_sn, attribute, .. } = command.scsi;
        let ordered = attribute == TaskAttribute::Ordered.code();
        // A task of a lost connection may be on its way to this one.
        let is_alone = || self.session.connections().len() < 2 && self.session.moves.at_rest().is_some();
        if !ordered || self.session.window.is_none() || is_alone() {
            return false;
        }
        let Some(unit) = command.entry().map(|entry| entry.unit.clone()) else { return false };
        self.pipeline.order.borrow_mut().ask(task);
        let connection = self.clone();
        runtime::spawn(async move {
            let older = Victims::Earlier(cmd_sn, Some(unit));
            let mut pause = FIRST_LOOK;
            loop {
                let (session, waits) = (&connection.session, connection.inner.borrow().state.has(task));
                let at_rest = session.moves.at_rest();
                // All older commands have come, or this one would not have had its turn.
                if !waits
                    || connection.count_at_others(&older).await == 0
                        && at_rest.is_some()
                        && session.moves.at_rest() == at_rest
                {
                    break;
                }
                // No event reports the end of another connection's command.
                runtime::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_LOOK);
            }
            connection.pipeline.order.borrow_mut().told(task);
            connection.go_on_in_order(lun);
            connection.kick();
        });
        true
    }

    /// The number of tasks at the session's other connections.
    async fn count_at_others(&self, victims: &Victims) -> usize {
        let mut count = 0;
        for member in self.session.connections() {
            if member.remote.id != self.id {
                count += member.remote.count(victims.clone()).await;
            }
        }
        count
    }

    /// Whether a command that waits for its order has to wait longer.
    fn waits(&self, command: &ScsiCommand, order: &Order) -> bool {
        self.is_fenced(command)
            || command.attribute == TaskAttribute::Ordered.code()
                && (order.is_asking(command.task) || self.has_older(command, order))
    }

    /// Charges a command's cost to its limits, and keeps it until its time.
    #[cold]
    fn pass_limits(self: &Rc<Self>, command: Admitted) {
        let scsi = &command.scsi;
        let lun = scsi.lun;
        let charged = command.entry().and_then(|entry| {
            let cost = qos::cost(&scsi.cdb, (scsi.expected_in, scsi.expected_out), entry.unit.medium())?;
            Some((cost, entry.limiter.clone()))
        });
        let Some((cost, limiter)) = charged else { return self.pass(command, Stage::Room) };
        let limiters = [&limiter, &self.session.limiter];
        let is_like = |other: &Admitted| other.scsi.lun == lun;
        match self.pipeline.gate.pass(command, cost, limiters, runtime::now(), is_like) {
            Passage::Now(command) => self.pass(command, Stage::Room),
            Passage::Kept => {}
            Passage::KeptAlone => {
                let connection = self.clone();
                runtime::spawn(async move {
                    let go = |command, waited| {
                        connection.timing.account.waited(waited);
                        connection.go_on(command, Stage::Room);
                        connection.kick();
                    };
                    connection.pipeline.gate.watch(go).await;
                });
            }
        }
    }

    /// Whether commands of the same unit that are older than `command` are running.
    fn has_older(&self, command: &ScsiCommand, order: &Order) -> bool {
        let inner = self.inner.borrow();
        let mut tasks = inner.state.tasks();
        tasks.any(|(key, task)| {
            key != command.task
                && task.lun == command.lun
                && sn::lt(task.cmd_sn, command.cmd_sn)
                && order.left(key).is_none()
        })
    }

    /// A command has ended: resumes those that waited for it.
    #[inline]
    pub(super) fn order_moved(self: &Rc<Self>, lun: Lun, ended: TaskKey) {
        self.look_at_fences();
        if !self.pipeline.order.borrow().is_empty() {
            self.pipeline.order.borrow_mut().end(ended);
            self.go_on_in_order(lun);
        }
    }

    #[cold]
    fn go_on_in_order(self: &Rc<Self>, lun: Lun) {
        /// Ends with the call, by a panic of a unit too.
        struct GoingOn<'a>(&'a Cell<bool>);
        impl Drop for GoingOn<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        // A command that ends at once comes here again. The outer call takes the next one: the stack
        // must not grow with the number of commands that wait.
        if self.pipeline.going_on.replace(true) {
            return self.pipeline.again.set(true);
        }
        let _going_on = GoingOn(&self.pipeline.going_on);
        let mut luns = vec![lun];
        while let Some(lun) = luns.last().copied() {
            let next = {
                let mut order = self.pipeline.order.borrow_mut();
                order.next(lun, |command, order| self.waits(command, order))
            };
            match next {
                Some(command) => self.go_on(command, Stage::Limits),
                None => _ = luns.pop(),
            }
            if luns.is_empty() && self.pipeline.again.take() {
                luns = self.pipeline.order.borrow().luns();
            }
        }
    }

    /// An ORDERED command of the session has ended, on whatever connection: resumes commands that
    /// waited for it, here and on the others.
    #[inline]
    pub(super) fn look_at_fences(self: &Rc<Self>) {
        if let Some(window) = &self.session.window
            && window.has_unfenced()
        {
            self.look_at_all_fences(&window.take_unfenced());
        }
    }

    #[cold]
    fn look_at_all_fences(self: &Rc<Self>, unfenced: &[Cid]) {
        self.tell_released(unfenced);
        if unfenced.contains(&self.cid) {
            self.look_at_all_in_order();
        }
    }

    /// Tasks may have ended without [`Self::finish`]: aborted, or answered when their last data
    /// came. Resumes commands that waited for them.
    #[inline]
    pub(super) fn look_at_order(self: &Rc<Self>) {
        self.look_at_fences();
        if !self.pipeline.order.borrow().is_empty() {
            self.look_at_all_in_order();
        }
    }

    #[cold]
    fn look_at_all_in_order(self: &Rc<Self>) {
        let luns = {
            let mut order = self.pipeline.order.borrow_mut();
            order.forget_left(|key| !self.inner.borrow().state.has(key));
            order.luns()
        };
        for lun in luns {
            self.go_on_in_order(lun);
        }
    }

    /// Closes the gate if a limit is set for the session or one of its units; else opens it.
    pub(super) fn look_at_limits(&self) {
        let units = self.session.view().luns.iter().any(|entry| entry.limiter.is_active());
        self.pipeline.gate.set_closed(units || self.session.limiter.is_active());
    }

    /// Limits have changed: commands that wait are charged anew.
    pub(super) fn limits_moved(self: &Rc<Self>) {
        self.look_at_limits();
        for command in self.pipeline.gate.take_all() {
            self.go_on(command, Stage::Limits);
        }
        self.kick();
    }

    /// There may be room again: resumes reads that waited for it.
    pub(super) fn room_moved(self: &Rc<Self>) {
        loop {
            let next = self.pipeline.room.borrow_mut().pop_front();
            let Some(command) = next else { break };
            if !self.may_begin(command.scsi.expected_in) {
                self.pipeline.room.borrow_mut().push_front(command);
                self.watch_backlog();
                break;
            }
            if let Some(command) = self.resume(command) {
                self.execute(command);
            }
            // The command may have ended, and the data that it brought counts for the next.
            self.kick();
        }
    }
}
