//! One connection in full-feature phase: the state machine, its output, and the commands that it runs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::task::Waker;

use ::iser::Control;
use device::{Cdb, Command, Execution, Landing, LogicalUnit};
use iscsi::pdu::{Bhs, Lun, PduRef, TaskManagementFunction};
use iscsi::sn;
use iscsi::target::{Abort, Cid, Completion, Data, Event, Fatal, ScsiCommand, TaskKey};
use scsi::Sense;

use super::mover::Mover;
use super::output::{Output, reader};
use super::payload::{Pieces, Segment};
use super::reassign::{self, Place};
use super::session::Session;
use super::{Phase, Target, management, send_targets};
use crate::clock::{Micros, SECOND};
use crate::executor::Signal;
use crate::network::{LinkId, Side};
use crate::trace::note;

/// Time for a closing connection's last PDUs to leave.
const LAST_WORDS: Micros = 5 * SECOND;
/// TASK REASSIGN.
const REASSIGN: u8 = TaskManagementFunction::TaskReassign.code();

pub(super) type State = iscsi::target::Connection<Segment>;

/// Bytes of one RDMA Read at most: small, so that there are several.
const READ: u32 = 20_000;

/// Which tasks to abort.
#[derive(Clone, Copy)]
pub(super) enum Victims {
    /// The one with this Initiator Task Tag.
    Tag(u32),
    /// Those that were sent before the command with this CmdSN.
    Before(u32),
    /// All.
    All,
}

/// One connection.
pub(super) struct Connection {
    pub cid: Cid,
    link: LinkId,
    pub session: Rc<Session>,
    target: Weak<Target>,
    state: RefCell<State>,
    output: Rc<RefCell<Output>>,
    high_water: usize,
    /// Wakers of tasks that wait for data-out, by slot.
    data_waits: RefCell<Vec<Option<Waker>>>,
    /// Where the data of WRITEs belongs.
    landings: RefCell<HashMap<TaskKey, Landing>>,
    /// Rings when there is room in the output again.
    pub room: Signal,
    /// Rings when a task has ended, or the connection, or when it stands otherwise to its session.
    pub progress: Signal,
    /// Where the units of its tasks bring and take their data.
    places: RefCell<HashMap<TaskKey, Rc<Place>>>,
    /// Its tasks outlive it: ErrorRecoveryLevel 2.
    keeps: bool,
    /// It is gone, and its tasks wait for another one.
    detached: Cell<bool>,
    /// It was removed for recovery: its tasks may be reassigned.
    removed: Cell<bool>,
    /// Its tasks need not wait any longer.
    retired: Cell<bool>,
    /// When to look for what was lost.
    look_at: Cell<Option<Micros>>,
    /// No more I/O.
    lost: Cell<bool>,
    /// It ends, and listens no more.
    ending: Cell<bool>,
    /// When its last words are cut off.
    last_words: Cell<Option<Micros>>,
    over: Cell<bool>,
}

impl Connection {
    pub fn new(
        target: &Rc<Target>,
        session: Rc<Session>,
        cid: Cid,
        link: LinkId,
        output: Rc<RefCell<Output>>,
        state: State,
    ) -> Rc<Self> {
        let keeps = state.error_recovery_level() > 1;
        Rc::new(Self {
            cid,
            link,
            session,
            target: Rc::downgrade(target),
            state: RefCell::new(state),
            output,
            high_water: target.settings.send_high_water,
            data_waits: RefCell::default(),
            landings: RefCell::default(),
            room: Signal::default(),
            progress: Signal::default(),
            places: RefCell::default(),
            keeps,
            detached: Cell::new(false),
            removed: Cell::new(false),
            retired: Cell::new(false),
            look_at: Cell::new(None),
            lost: Cell::new(false),
            ending: Cell::new(false),
            last_words: Cell::new(None),
            over: Cell::new(false),
        })
    }

    /// Lends the state machine and the place its PDUs go to.
    pub fn with<T>(&self, f: impl FnOnce(&mut State, &mut Output) -> T) -> T {
        f(&mut self.state.borrow_mut(), &mut self.output.borrow_mut())
    }

    /// Whether it takes PDUs in: not when it ends, nor from a peer that does not read.
    pub fn listens(&self) -> bool {
        !self.ending.get() && !self.detached.get() && self.has_room()
    }

    pub fn has_room(&self) -> bool {
        self.output.borrow().len() < self.high_water
    }

    pub fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Whether it is gone, and only there for its tasks.
    pub fn is_detached(&self) -> bool {
        self.detached.get()
    }

    /// Whether its tasks may be reassigned.
    pub fn is_removed(&self) -> bool {
        self.removed.get()
    }

    /// Whether its tasks need not wait for another connection.
    pub fn is_retired(&self) -> bool {
        self.retired.get()
    }

    pub fn is_aborted(&self, task: TaskKey) -> bool {
        self.state.borrow().is_aborted(task)
    }

    /// The peer lives: bytes came, or it took some.
    pub fn heard(&self) {
        if let Some(target) = self.target.upgrade() {
            self.state.borrow_mut().heard(target.clock.instant());
        }
    }

    /// Some of the output has left.
    pub fn sent(&self, all: bool) {
        self.heard();
        self.room.ring();
        if all && self.ending.get() {
            self.progress.ring();
        }
    }

    pub fn wait_for_data(&self, task: TaskKey, waker: &Waker) {
        let mut waits = self.data_waits.borrow_mut();
        if waits.len() <= task.slot() {
            waits.resize_with(task.slot() + 1, || None);
        }
        waits[task.slot()] = Some(waker.clone());
    }

    pub fn wake_task(&self, task: TaskKey) {
        let waker = self.data_waits.borrow_mut().get_mut(task.slot()).and_then(Option::take);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_all(&self) {
        let wakers: Vec<_> = self.data_waits.borrow_mut().iter_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.room.ring();
    }

    /// Takes in one PDU and does what it says.
    pub fn on_pdu(
        self: &Rc<Self>,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<Segment>,
        control: Control,
    ) -> Result<(), Fatal> {
        let Some(target) = self.target.upgrade() else { return Ok(()) };
        note!(target.trace, "target {}.{} <- {bhs}", self.session.tsih, self.cid);
        let now = target.clock.instant();
        let event = self.with(|state, out| state.handle(bhs, ahs, data, now, out))?;
        if let Some(event) = event {
            if let Event::Command(command) = &event {
                self.output.borrow_mut().advertised(command.task, control);
            }
            self.act(&target, event);
        }
        self.deliver_held(&target)
    }

    /// Whether the command with this header is begun before its data has come.
    pub fn may_begin(&self, bhs: &Bhs) -> bool {
        let Some(PduRef::ScsiCommand(command)) = bhs.view() else { return false };
        bhs.lun() == Lun::ZERO
            && self.state.borrow().is_begun_early(bhs)
            && self.session.unit.lands(&command.cdb)
    }

    /// Begins a command whose immediate data is still to come.
    pub fn begin(self: &Rc<Self>, bhs: &Bhs, ahs: &[u8], len: usize) -> Result<(), Fatal> {
        let Some(target) = self.target.upgrade() else { return Ok(()) };
        note!(target.trace, "target {}.{} <- begun {bhs}", self.session.tsih, self.cid);
        let now = target.clock.instant();
        let event = self.with(|state, out| state.begin(bhs, ahs, len, now, out))?;
        if let Some(event) = event {
            self.act(&target, event);
        }
        self.deliver_held(&target)
    }

    /// Takes in the immediate data of the command that was begun.
    pub fn on_rest(self: &Rc<Self>, data: Pieces) -> Result<(), Fatal> {
        let Some(target) = self.target.upgrade() else { return Ok(()) };
        let event = self.with(|state, out| state.rest(data, out));
        if let Some(event) = event {
            self.act(&target, event);
        }
        self.deliver_held(&target)
    }

    /// A task's unit has said where its data belongs.
    pub fn lands(&self, task: TaskKey, landing: Landing) {
        self.landings.borrow_mut().insert(task, landing);
    }

    /// Where the data of a PDU belongs whose header has come, and which byte of its command's data-out its first one is.
    pub fn place(&self, bhs: &Bhs) -> Option<(Landing, u64)> {
        let (task, offset) = self.state.borrow().awaits(bhs)?;
        let landing = self.landings.borrow().get(&task)?.clone();
        Some((landing, offset.into()))
    }

    /// Whether it was agreed to recover from losses.
    pub fn recovers(&self) -> bool {
        self.state.borrow().error_recovery_level() > 0
    }

    /// Drops a PDU whose data digest is wrong, and has it sent again.
    pub fn on_damaged(self: &Rc<Self>, bhs: &Bhs) -> Result<(), Fatal> {
        let Some(target) = self.target.upgrade() else { return Ok(()) };
        note!(target.trace, "target {}.{} <- damaged {bhs}", self.session.tsih, self.cid);
        let now = target.clock.instant();
        self.with(|state, out| state.damaged(bhs, now, out))?;
        let task = self.state.borrow().find(bhs.itt());
        if let Some(task) = task {
            self.wake_task(task);
        }
        self.deliver_held(&target)
    }

    /// Looks for what was lost, when it is time.
    fn look(&self, target: &Target, now: Micros) {
        if !self.state.borrow().is_pending() {
            return self.look_at.set(None);
        }
        let interval = self.state.borrow().recovery_interval().as_micros() as Micros;
        match self.look_at.get() {
            Some(at) if at > now => {}
            Some(_) => {
                let late = self.with(|state, out| state.recover(target.clock.instant(), out));
                late.into_iter().for_each(|task| self.wake_task(task));
                self.look_at.set(Some(now + interval.max(1)));
            }
            None => self.look_at.set(Some(now + interval.max(1))),
        }
    }

    /// Where what an RDMA Read brings belongs, from its byte `offset` on, and which byte of its command's data-out that is.
    pub fn place_fetched(&self, id: u64, offset: u64) -> Option<(Landing, u64)> {
        let (task, at) = reader(id);
        if self.is_lost() || self.is_detached() || !self.state.borrow().awaits_reads(task) {
            return None;
        }
        Some((self.landings.borrow().get(&task)?.clone(), u64::from(at) + offset))
    }

    /// Takes in what an RDMA Read has brought.
    pub fn on_read(&self, id: u64, data: Pieces) {
        let (task, _) = reader(id);
        if self.with(|state, out| state.read_done(task, data, out)) {
            self.progress.ring();
        }
        self.wake_task(task);
    }

    /// What a unit has for its initiator.
    pub fn put(&self, task: TaskKey, data: Segment) {
        self.with(|state, out| {
            if let Some(data) = out.put(task, data, |len| state.put(task, len)) {
                state.put_data(task, data, out);
            }
        });
    }

    /// Asks for a task's next `len` bytes; says how many there will be.
    pub fn want(&self, task: TaskKey, len: usize) -> Option<usize> {
        self.with(|state, out| {
            let len = state.want_data(task, len, out)?;
            while let Some(read) = out.reads().then(|| state.next_read(task, READ)).flatten() {
                out.read(task, read);
            }
            Some(len)
        })
    }

    fn deliver_held(self: &Rc<Self>, target: &Rc<Target>) -> Result<(), Fatal> {
        loop {
            let event = self.with(|state, out| state.next_held(out))?;
            let Some(event) = event else { break };
            self.act(target, event);
        }
        let released = self.state.borrow_mut().take_released();
        self.tell_released(target, &released);
        Ok(())
    }

    pub fn deliver_held_or_lose(self: &Rc<Self>, target: &Rc<Target>) {
        if let Err(error) = self.deliver_held(target) {
            target.report(format!("a held command broke the protocol: {error}"));
            self.end(false);
        }
    }

    fn tell_released(self: &Rc<Self>, target: &Rc<Target>, released: &[Cid]) {
        for member in self.session.connections() {
            if !Rc::ptr_eq(&member, self) && released.contains(&member.cid) {
                // As a message to another core: it comes a little later.
                let owner = target.clone();
                target.executor.spawn(async move { member.deliver_held_or_lose(&owner) });
            }
        }
    }

    fn act(self: &Rc<Self>, target: &Rc<Target>, event: Event) {
        match event {
            Event::Command(command) => self.start(target, command),
            Event::Data(task) => self.wake_task(task),
            Event::TaskManagement(request) if request.function == REASSIGN => {
                target.executor.spawn(reassign::run(target.clone(), self.clone(), request));
            }
            Event::TaskManagement(request) => {
                let connection = self.clone();
                let owner = target.clone();
                target.executor.spawn(async move {
                    let result = management::run(&owner, &connection, &request).await;
                    note!(owner.trace, "target cid {}: task management: {result}", connection.cid);
                    connection.with(|state, out| state.task_management_response(&request, result, out));
                });
            }
            Event::Text(exchange) => {
                let reply = match exchange.text.starts_with(b"SendTargets=") {
                    true => send_targets(target.settings.text_len),
                    false => Vec::new(),
                };
                self.with(|state, out| state.text_response(&exchange, reply, out));
            }
            Event::Logout(request) => {
                target.executor.spawn(management::logout(self.clone(), request));
            }
        }
    }

    fn start(self: &Rc<Self>, target: &Rc<Target>, scsi: ScsiCommand) {
        let task = scsi.task;
        let Some(cdb) = Cdb::new(&scsi.cdb) else {
            return self.end_task(task, self.completion(Sense::invalid_opcode().into()));
        };
        if scsi.lun != Lun::ZERO {
            return self.end_task(task, self.completion(Sense::logical_unit_not_supported().into()));
        }
        let command = Command {
            cdb,
            attribute: device::TaskAttribute::Simple,
            nexus: self.session.nexus.clone().into(),
            tag: 0,
            data_out_len: scsi.expected_out.into(),
            data_in_len: scsi.expected_in.into(),
        };
        let place = Place::new(self.clone(), task);
        self.embark(task, place.clone());
        match self.session.unit.execute(command, Mover(place.clone())) {
            Execution::Done(_, outcome) => place.end(self.completion(outcome)),
            Execution::Running(future) => {
                let connection = self.clone();
                target.executor.spawn(async move {
                    let (_, outcome) = future.await;
                    place.end(connection.completion(outcome));
                });
            }
        }
    }

    /// A task's unit has this place from now on.
    pub fn embark(&self, task: TaskKey, place: Rc<Place>) {
        self.places.borrow_mut().insert(task, place);
    }

    /// The place of a task's unit, which leaves.
    pub fn disembark(&self, task: TaskKey) -> Option<Rc<Place>> {
        self.places.borrow_mut().remove(&task)
    }

    /// A task was given up: this connection may have nothing left.
    pub fn released(&self) {
        self.room.ring();
        self.progress.ring();
    }

    /// Answers a command.
    pub fn end_task(&self, task: TaskKey, completion: Completion) {
        self.disembark(task);
        self.landings.borrow_mut().remove(&task);
        self.with(|state, out| state.finish(task, completion, out));
        self.progress.ring();
    }

    /// Aborts tasks, waits until they have ended, and says how many there were.
    pub async fn abort(&self, victims: Victims) -> usize {
        let mut running = Vec::new();
        let mut ended = 0;
        {
            let mut state = self.state.borrow_mut();
            let chosen = |itt: u32, cmd_sn: u32| match victims {
                Victims::Tag(tag) => itt == tag,
                Victims::Before(later) => sn::lt(cmd_sn, later),
                Victims::All => true,
            };
            let tasks = state.tasks().filter(|(_, task)| chosen(task.itt, task.cmd_sn));
            let keys: Vec<TaskKey> = tasks.map(|(key, _)| key).collect();
            for key in keys {
                match state.abort(key) {
                    Abort::Gone => {}
                    Abort::Ended => ended += 1,
                    Abort::Running => running.push(key),
                }
            }
        }
        running.iter().for_each(|key| self.wake_task(*key));
        self.room.ring();
        let gone = || running.iter().all(|key| !self.state.borrow().has(*key)).then_some(());
        self.progress.until(gone).await;
        ended + running.len()
    }

    /// The link is gone. At ErrorRecoveryLevel 2 the tasks are not.
    pub fn lose(self: &Rc<Self>, clean: bool) {
        match self.keeps && !self.ending.get() && !self.session.ending.get() {
            true => self.detach(),
            false => self.end(clean),
        }
    }

    /// Removes the connection for recovery (RFC 7143 §11.14.1).
    pub fn remove(self: &Rc<Self>) {
        self.removed.set(true);
        self.lose(true);
        self.progress.ring();
    }

    /// Sends and receives nothing any more. Units go on: what they bring is kept for another connection.
    fn detach(self: &Rc<Self>) {
        let Some(target) = self.target.upgrade() else { return };
        if self.detached.replace(true) {
            return;
        }
        note!(target.trace, "target {}.{}: detached", self.session.tsih, self.cid);
        self.output.borrow_mut().mute();
        target.network.borrow_mut().abandon(target.clock.now(), self.link, Side::Target);
        self.leave_port(&target);
        self.room.ring();
        self.progress.ring();
        let connection = self.clone();
        target.executor.spawn({
            let target = target.clone();
            async move {
                connection.await_recovery(&target).await;
                connection.lost.set(true);
                connection.ending.set(true);
                connection.state.borrow_mut().forget_unacknowledged();
                connection.wake_all();
                connection.clear().await;
                connection.release_held(&target);
                target.end_if_stuck(&connection.session).await;
                target.leave(&connection.session, &connection);
                connection.over.set(true);
                connection.progress.ring();
                note!(target.trace, "target {}.{}: over", connection.session.tsih, connection.cid);
            }
        });
    }

    fn release_held(self: &Rc<Self>, target: &Rc<Target>) {
        let released = {
            let mut state = self.state.borrow_mut();
            state.release_held();
            state.take_released()
        };
        self.tell_released(target, &released);
    }

    /// Ends the connection. When it is `clean`, what is queued is still sent, for a while.
    pub fn end(self: &Rc<Self>, clean: bool) {
        let Some(target) = self.target.upgrade() else { return };
        if self.detached.get() {
            // Of one that is gone it is the tasks that end.
            self.retired.set(true);
            return self.progress.ring();
        }
        if !clean {
            self.lost.set(true);
            self.progress.ring();
            self.wake_all();
        }
        if self.ending.replace(true) {
            return;
        }
        self.last_words.set(Some(target.clock.now() + LAST_WORDS));
        let connection = self.clone();
        let owner = target.clone();
        target.executor.spawn(async move {
            let said = || (connection.lost.get() || connection.output.borrow().len() == 0).then_some(());
            connection.progress.until(said).await;
            connection.lost.set(true);
            connection.state.borrow_mut().forget_reads();
            connection.state.borrow_mut().forget_unacknowledged();
            connection.wake_all();
            connection.abort(Victims::All).await;
            connection.release_held(&owner);
            owner.leave(&connection.session, &connection);
            connection.bury(&owner, clean);
        });
    }

    fn bury(&self, target: &Target, clean: bool) {
        let now = target.clock.now();
        match clean {
            true => target.network.borrow_mut().close(now, self.link, Side::Target),
            false => target.network.borrow_mut().abandon(now, self.link, Side::Target),
        }
        self.leave_port(target);
        self.over.set(true);
        self.progress.ring();
        note!(target.trace, "target {}.{}: over", self.session.tsih, self.cid);
    }

    fn leave_port(&self, target: &Target) {
        for port in target.ports.borrow().iter().filter(|port| port.link == self.link) {
            *port.phase.borrow_mut() = Phase::Over;
        }
    }

    /// Waits for the end of the connection and its tasks.
    pub async fn ended(&self) {
        self.progress.until(|| self.over.get().then_some(())).await;
    }

    /// Acts on what is due.
    pub fn tick(self: &Rc<Self>, now: Micros) {
        let Some(target) = self.target.upgrade() else { return };
        if self.ending.get() {
            if self.last_words.get().is_some_and(|at| now >= at) {
                self.last_words.set(None);
                self.lost.set(true);
                self.output.borrow_mut().bytes.clear();
                self.wake_all();
                self.progress.ring();
            }
            return;
        }
        self.look(&target, now);
        let due = self.state.borrow().poll_timeout().is_some_and(|at| target.clock.micros(at) <= now);
        if due {
            let instant = target.clock.instant();
            if let Err(error) = self.with(|state, out| state.handle_timeout(instant, out)) {
                note!(target.trace, "target {}.{}: {error}", self.session.tsih, self.cid);
                self.lose(false);
            }
        }
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_event(&self) -> Option<Micros> {
        let target = self.target.upgrade()?;
        if self.ending.get() {
            return self.last_words.get();
        }
        let at = self.state.borrow().poll_timeout().map(|at| target.clock.micros(at));
        at.into_iter().chain(self.look_at.get()).min()
    }

    /// ExpCmdSN of its session.
    pub fn exp_cmd_sn(&self) -> u32 {
        self.state.borrow_mut().exp_cmd_sn()
    }

    pub fn describe(&self) -> String {
        let state = self.state.borrow();
        let tasks: Vec<String> = state
            .tasks()
            .map(|(_, task)| {
                format!(
                    "itt {:#x} sn {} out {} owed {} finished {} aborted {}",
                    task.itt,
                    task.cmd_sn,
                    task.expected_out,
                    task.inbound.owed(),
                    task.finished.is_some(),
                    task.aborted
                )
            })
            .collect();
        let standing = match (self.detached.get(), self.removed.get()) {
            (false, _) => "",
            (true, false) => " detached",
            (true, true) => " removed",
        };
        format!("session {} cid {}{standing} tasks [{}]", self.session.tsih, self.cid, tasks.join("; "))
    }
}
