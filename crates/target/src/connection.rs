//! One connection in full-feature phase: its tasks and their units, around the state machine. What carries its PDUs and its data
//! is below it, in [`crate::transport`].
//!
//! A connection lives on one core. What other cores want of it (close, abort tasks, deliver what it held) reaches it as a
//! message to that core, through [`Remote`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use device::{Cdb, Command, DataMover, Execution, Outcome};
use iscsi::pdu::{AsyncEvent, Bhs, Lun, RESERVED_TAG, TaskAttribute, TaskManagementFunction};
use iscsi::sn;
use iscsi::target::{Abort, Cid, Completion, Data, Event, Fatal, ScsiCommand, TaskKey};
use ring::{Handle, Notify};

use crate::Unit;
use crate::grants::Grants;
use crate::lun_map::{Entry, LocalView};
use crate::mover::Mover;
use crate::order::Order;
use crate::qos::gate::{self, Gate};
use crate::reassign::{self, Ferry, Parcel};
use crate::server::Shared;
use crate::session::{Member, Session, Standing};
use crate::tally::{Class, Counts};
use crate::text::Negotiated;
use crate::transport::tcp::receive::Receiver;
use crate::transport::{Link, Outbox, Start, Transport, iser};
use crate::wire::Segment;
use crate::{management, router, text};

/// Names a connection for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub u64);

/// TASK REASSIGN.
const REASSIGN: u8 = TaskManagementFunction::TaskReassign.code();

/// How often it is looked whether the gap has been filled that a connection left which is gone.
const GAP_LOOKS: Duration = Duration::from_millis(200);

/// Time for commands at work to end before their connection is closed for another daemon.
const DRAIN: Duration = Duration::from_secs(1);
/// Time for a closing connection's last PDUs to leave.
const LAST_WORDS: Duration = Duration::from_secs(5);

thread_local! {
    /// The connections of this core.
    static LOCAL: RefCell<HashMap<ConnectionId, Weak<Connection>>> = RefCell::default();
}

/// A connection as other cores reach it.
#[derive(Clone)]
pub(crate) struct Remote {
    pub id: ConnectionId,
    pub core: Handle,
}

/// Which tasks to abort.
#[derive(Clone)]
pub(crate) enum Victims {
    /// The one with this Initiator Task Tag.
    Tag(u32),
    /// All that are for this unit.
    Unit(Unit),
    /// Those that were sent before the request with this CmdSN, for this unit or for all: what a task management function
    /// affects in its own session (RFC 7143 §4.2.3.2). Later ones may have come while it was at work.
    Earlier(u32, Option<Unit>),
    /// All.
    All,
}

impl Remote {
    /// Runs `f` on the connection, on its core, and waits for what it gives; `None` if the connection is gone.
    async fn ask<T, F, Fut>(&self, f: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Connection>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let id = self.id;
        let answer = self.core.call(move || async move {
            match find(id) {
                Some(connection) => Some(f(connection).await),
                None => None,
            }
        });
        answer.await.ok().flatten()
    }

    /// Closes the connection; returns when it and its tasks have ended.
    pub(crate) async fn close(&self) {
        self.ask(|connection| async move {
            connection.shut();
            connection.ended().await;
        })
        .await;
    }

    /// Closes connections, all at once, and returns when they and their tasks have ended.
    pub(crate) async fn close_all(members: &[Member]) {
        // Each may take its time, if its peer does not read.
        members.iter().for_each(|member| member.remote.shut());
        for member in members {
            member.remote.close().await;
        }
    }

    /// Closes the connection and does not wait.
    pub(crate) fn shut(&self) {
        self.tell(|connection| connection.shut());
    }

    /// Has the connection look what its session sees, and let go of what it does not see any more.
    pub(crate) fn look_again(&self) {
        self.tell(|connection| drop(connection.view()));
    }

    /// Has the connection take no more commands, end those at work, say that its session is dropped, and close.
    pub(crate) fn drain(&self) {
        self.tell(|connection| {
            connection.draining.set(true);
            connection.stop.notify();
        });
    }

    /// Sends an Async Message.
    pub(crate) fn announce(&self, event: AsyncEvent, parameters: [u16; 3]) {
        self.tell(move |connection| {
            connection.with(|state, outbox| state.async_message(event, parameters, outbox));
        });
    }

    /// Aborts tasks; returns how many there were, when they have ended.
    pub(crate) async fn abort(&self, victims: Victims) -> usize {
        self.ask(|connection| async move { connection.abort(&victims).await }).await.unwrap_or(0)
    }

    /// Has the connection deliver the commands that it held.
    fn deliver_held(&self) {
        self.tell(|connection| connection.deliver_held_or_lose());
    }

    /// Removes the connection for recovery.
    pub(crate) async fn remove(&self) {
        self.ask(|connection| async move { connection.remove().await }).await;
    }

    /// The unit of the task with tag `itt`, if it is allegiant to the connection.
    pub(crate) async fn allegiant(&self, itt: u32) -> Option<Lun> {
        let lun = self.ask(move |connection| async move { connection.inner.borrow().state.allegiant(itt) });
        lun.await.flatten()
    }

    /// Takes a task from the connection, which is gone.
    pub(crate) async fn give_up(&self, itt: u32, exp_data_sn: u32) -> Option<Parcel> {
        let parcel =
            self.ask(move |connection| async move { reassign::give_up(&connection, itt, exp_data_sn) });
        parcel.await.flatten()
    }

    /// Does something with the connection, on its core, if it still is there.
    pub(crate) fn tell(&self, f: impl FnOnce(&Rc<Connection>) + Send + 'static) {
        let id = self.id;
        // A core that has stopped has no connections any more.
        let _ = self.core.run(move || async move {
            if let Some(connection) = find(id) {
                f(&connection);
            }
        });
    }
}

/// Forgets a connection of this core that is out of its session.
pub(crate) fn bury(id: ConnectionId) {
    let connection = LOCAL.with(|local| local.borrow_mut().remove(&id));
    if let Some(connection) = connection.and_then(|connection| connection.upgrade()) {
        connection.bury();
    }
}

/// What each connection of this core has counted: its session, and by its units' addresses; what is not of any unit that it sees
/// now is under 0.
pub(crate) fn counted() -> Vec<(u16, usize, Counts)> {
    let connections: Vec<Rc<Connection>> =
        LOCAL.with(|local| local.borrow().values().filter_map(Weak::upgrade).collect());
    let of = |connection: &Rc<Connection>| {
        let tsih = connection.session.tsih;
        let mut counts = connection.view.borrow().nexuses.counts();
        counts.push((0, *connection.past.borrow()));
        counts.into_iter().map(move |(unit, counts)| (tsih, unit, counts)).collect::<Vec<_>>()
    };
    connections.iter().flat_map(of).collect()
}

/// The connection of this core with this number.
fn find(id: ConnectionId) -> Option<Rc<Connection>> {
    LOCAL.with(|local| local.borrow().get(&id).and_then(Weak::upgrade))
}

/// The state machine and what it wants sent.
pub(crate) struct Inner {
    pub state: iscsi::target::Connection<Segment>,
    pub outbox: Outbox,
}

/// One connection in full-feature phase.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub cid: u16,
    pub shared: Arc<Shared>,
    pub session: Arc<Session>,
    pub inner: RefCell<Inner>,
    /// Connections of its session that hold commands whose turn has come, and have not been told.
    news: RefCell<Vec<Cid>>,
    /// What the session sees, as this connection last looked.
    view: RefCell<Rc<LocalView>>,
    /// Bytes queued to the network above which its commands wait.
    pub send_high_water: usize,
    pub transport: Transport,
    /// Wakers of tasks that wait for data-out, by task slot.
    data_waits: RefCell<Vec<Option<Waker>>>,
    /// Commands that wait for others because of their task attributes.
    order: RefCell<Order>,
    /// Commands that wait for their time under a limit.
    pub gate: Gate,
    /// No more I/O: the peer is gone or the connection was closed.
    lost: Cell<bool>,
    /// Close when everything queued has been sent.
    closing: Cell<bool>,
    /// Take no more commands, end those at work, and close.
    draining: Cell<bool>,
    /// What was counted under views that the connection has not any more.
    past: RefCell<Counts>,
    /// There is room in the send queue again.
    pub room: Notify,
    /// ErrorRecoveryLevel 1 or 2: something may have to be sent again.
    recovers: bool,
    /// Reads that begin when enough of what was sent has been acknowledged.
    deferred: RefCell<VecDeque<ScsiCommand>>,
    /// ErrorRecoveryLevel 2: its tasks outlive it.
    keeps: bool,
    /// It is gone, and its tasks wait for another one: nothing is sent or received any more.
    detached: Cell<bool>,
    /// It was removed for recovery: its tasks may be reassigned.
    removed: Cell<bool>,
    /// Its tasks need not wait any longer.
    retired: Cell<bool>,
    /// Where the units of tasks that were reassigned bring and take their data.
    ferries: RefCell<HashMap<TaskKey, Arc<Ferry>>>,
    /// The loop that looks after what may be lost does so.
    watching: Cell<bool>,
    /// It is to begin.
    watch: Notify,
    /// What units may ask its initiator for.
    pub grants: Grants,
    /// A task has ended, or the connection has.
    progress: Notify,
    /// The connection is to stop receiving.
    stop: Notify,
    over: Cell<bool>,
    /// Why the connection was given up, if not by its receive loop.
    failure: Cell<Option<End>>,
    /// What login and text negotiation agreed on.
    pub negotiated: RefCell<Negotiated>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The peer logged out, or the connection was closed here.
    #[error("closed")]
    Closed,
    /// The peer closed it and had not logged out.
    #[error("closed without a logout")]
    HungUp,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// What it sent cannot be cut into PDUs.
    #[error(transparent)]
    Frame(#[from] iscsi::frame::FrameError),
    /// No buffer for a data segment.
    #[error("out of buffers")]
    NoBuffers,
    /// The queue pair failed, or the peer broke RDMA's protocol.
    #[error(transparent)]
    Rdma(rdma::Error),
    /// A message that is none of iSER's.
    #[error(transparent)]
    IserHeader(#[from] ::iser::HeaderError),
    /// A message that holds no whole PDU.
    #[error(transparent)]
    IserMessage(#[from] ::iser::MessageError),
    /// A command without memory for its data.
    #[error(transparent)]
    NoStag(#[from] iser::NoStag),
    /// A Hello that was not to come, or that did not come, or that cannot be agreed with.
    #[error("the Hello exchange failed")]
    NoHello,
}

impl From<rdma::Error> for End {
    fn from(error: rdma::Error) -> Self {
        match error {
            rdma::Error::Closed => Self::HungUp,
            other => Self::Rdma(other),
        }
    }
}

impl Connection {
    pub(crate) fn new(
        id: ConnectionId,
        cid: u16,
        shared: Arc<Shared>,
        session: Arc<Session>,
        link: Link,
        state: iscsi::target::Connection<Segment>,
        negotiated: Negotiated,
    ) -> Rc<Self> {
        let Link { transport, outbox } = link;
        let view = LocalView::new(session.view());
        let send_high_water = shared.limits().send_high_water;
        let recovers = state.error_recovery_level() > 0;
        let keeps = state.error_recovery_level() > 1;
        let connection = Rc::new(Self {
            id,
            cid,
            shared,
            session,
            inner: RefCell::new(Inner { state, outbox }),
            news: RefCell::default(),
            view: RefCell::new(Rc::new(view)),
            send_high_water,
            transport,
            data_waits: RefCell::default(),
            order: RefCell::default(),
            gate: Gate::default(),
            lost: Cell::new(false),
            closing: Cell::new(false),
            draining: Cell::new(false),
            past: RefCell::default(),
            room: Notify::default(),
            recovers,
            deferred: RefCell::default(),
            keeps,
            detached: Cell::new(false),
            removed: Cell::new(false),
            retired: Cell::new(false),
            ferries: RefCell::default(),
            watching: Cell::new(false),
            watch: Notify::default(),
            grants: Grants::default(),
            progress: Notify::default(),
            stop: Notify::default(),
            over: Cell::new(false),
            failure: Cell::new(None),
            negotiated: RefCell::new(negotiated),
        });
        LOCAL.with(|local| local.borrow_mut().insert(id, Rc::downgrade(&connection)));
        // After it can be found: limits that change from now on are told to it.
        connection.gate.look(&connection.session);
        connection
    }

    /// Runs the connection to its end.
    pub(crate) async fn run(self: &Rc<Self>, start: Start) -> End {
        let sender = match &self.transport {
            Transport::Tcp(_) => Some(ring::spawn(self.clone().send_loop())),
            // A queue pair sends by itself.
            Transport::Iser(_) => None,
        };
        let pinger = ring::spawn(self.clone().ping_loop());
        let watcher = self.recovers.then(|| ring::spawn(self.clone().watch_loop()));
        if self.session.is_ending() {
            self.shut();
        }
        let mut end = {
            let mut receiving = pin!(self.receive_loop(start));
            let mut stopped = pin!(self.stopped());
            poll_fn(|cx| match receiving.as_mut().poll(cx) {
                Poll::Ready(end) => Poll::Ready(end),
                Poll::Pending => stopped.as_mut().poll(cx).map(|()| End::Closed),
            })
            .await
        };
        pinger.abort();
        if let Some(watcher) = watcher {
            watcher.abort();
        }
        if let Some(error) = self.failure.take() {
            end = error;
        }
        if self.closing.get() && matches!(end, End::HungUp) {
            end = End::Closed;
        }
        if self.draining.get() && matches!(end, End::Closed) {
            let over = || self.inner.borrow().state.tasks().next().is_none().then_some(());
            // Those that wait for their initiator's data wait in vain.
            let _ = ring::timeout(DRAIN, self.progress.until(over)).await;
            self.with(|state, outbox| state.async_message(AsyncEvent::DropSession, [0; 3], outbox));
        }
        let kept = self.keeps
            && !self.draining.get()
            && (self.removed.get() || !matches!(end, End::Closed))
            && self.session.set_standing(self.id, self.standing());
        if kept && !matches!(end, End::Closed) {
            self.detach();
        }
        // After a clean end what is queued is still sent, for a while; after any other nobody would read it.
        self.closing.set(true);
        let clean = matches!(end, End::Closed | End::HungUp);
        self.lost.set(!clean && !kept);
        match (&self.transport, sender) {
            (Transport::Tcp(tcp), Some(sender)) => {
                if self.detached.get() {
                    tcp.cut();
                }
                tcp.to_send.notify();
                if ring::timeout(LAST_WORDS, sender).await.is_err() {
                    // The peer does not read, and its send would wait, with the socket and all that it sends, for as long as the
                    // peer pleases. Without a socket to send to it fails; if there is none any more, it has.
                    tcp.cut();
                }
            }
            (Transport::Iser(iser), _) => Box::pin(iser.wind_down(self, clean, LAST_WORDS)).await,
            (Transport::Tcp(_), None) => {}
        }
        if kept {
            self.detach();
            self.await_recovery().await;
        }
        self.lost.set(true);
        {
            let state = &mut self.inner.borrow_mut().state;
            state.forget_reads();
            state.forget_unacknowledged();
        }
        self.wake_all();
        // Units finish what they have begun; their answers are dropped.
        self.clear().await;
        // Reads that waited for acknowledgements and belong to another connection now.
        self.on_acknowledged();
        let released = {
            let state = &mut self.inner.borrow_mut().state;
            state.release_held();
            state.take_released()
        };
        self.tell_released(&released);
        end
    }

    /// How the connection stands to its session once it is gone.
    fn standing(&self) -> Standing {
        if self.removed.get() { Standing::Removed } else { Standing::Lost }
    }

    /// Sends and receives nothing any more. Units go on: what they bring is kept for another connection.
    fn detach(&self) {
        if self.detached.replace(true) {
            return;
        }
        self.inner.borrow_mut().outbox.mute();
        if let Transport::Tcp(tcp) = &self.transport {
            tcp.to_send.notify();
        }
        self.room.notify();
        self.progress.notify();
    }

    /// Waits until no task of this connection, which is gone, can be of use any more: all were reassigned, the time is over, or the
    /// session is. A command that was lost with it may be sent again for as long.
    async fn await_recovery(&self) {
        let retention = self.session.retention();
        let mut removed = self.removed.get();
        let mut deadline = ring::now() + retention;
        loop {
            let left = || self.removed.get() && self.inner.borrow().state.has_nothing_left();
            let changed = self.progress.until(|| {
                let done = left() && !self.session.has_gap();
                (self.retired.get() || done || self.removed.get() != removed).then_some(())
            });
            // Nobody tells of a gap that is filled.
            let soon = if left() { ring::now() + GAP_LOOKS } else { deadline };
            let told =
                ring::timeout(soon.min(deadline).saturating_duration_since(ring::now()), changed).await;
            if told.is_ok() && (self.retired.get() || self.removed.get() == removed) {
                return;
            }
            if told.is_ok() {
                // From the logout on the time is counted anew (RFC 7143 §11.15.3).
                removed = true;
                deadline = ring::now() + retention;
            } else if ring::now() >= deadline {
                if !left() {
                    tracing::info!(connection = self.id.0, "tasks were not reassigned in time");
                }
                return;
            }
        }
    }

    /// Ends all tasks, and tells the initiator, if its session goes on, that they have ended with their connection (RFC 7143 §7.6).
    pub(crate) async fn clear(self: &Rc<Self>) {
        let luns: Vec<Lun> = self.inner.borrow().state.tasks().map(|(_, task)| task.lun).collect();
        self.abort(&Victims::All).await;
        if luns.is_empty() || self.session.is_ending() {
            return;
        }
        let view = self.view();
        let cleared =
            view.luns().iter().filter(|entry| luns.iter().any(|lun| lun.number() == Some(entry.lun)));
        cleared.for_each(|entry| {
            entry.nexus.establish(scsi::UnitAttention::SomeCommandsClearedByIscsiProtocolEvent);
        });
    }

    /// Removes the connection for recovery (§11.14.1), and waits until it takes part in nothing any more.
    async fn remove(&self) {
        if !self.removed.replace(true) && self.detached.get() {
            self.session.set_standing(self.id, Standing::Removed);
        }
        if !self.detached.get() {
            self.detach();
            self.session.set_standing(self.id, Standing::Removed);
            self.stop_once();
        }
        self.progress.notify();
    }

    /// It answers a logout that removes it for recovery, and then is gone.
    pub(crate) fn remove_itself(&self) {
        self.removed.set(true);
        self.stop_once();
    }

    /// The ferry of a task that was reassigned.
    #[inline]
    pub(crate) fn ferry(&self, task: TaskKey) -> Option<Arc<Ferry>> {
        if !self.detached.get() {
            return None;
        }
        self.ferries.borrow().get(&task).cloned()
    }

    /// A task's unit brings and takes its data by `ferry` from now on.
    pub(crate) fn embark(&self, task: TaskKey, ferry: Arc<Ferry>) {
        self.ferries.borrow_mut().insert(task, ferry);
        self.wake_task(task);
    }

    /// A task was given up: what waited for room may go on, and this connection may have nothing left.
    pub(crate) fn released(self: &Rc<Self>) {
        self.room.notify();
        self.on_acknowledged();
        self.progress.notify();
    }

    /// [`Self::deliver_held`], which may end the connection.
    pub(crate) fn deliver_held_or_lose(self: &Rc<Self>) {
        if let Err(error) = self.deliver_held() {
            self.lose(error);
        }
    }

    /// The connection is out of its session too, whatever ended it: whoever waits for its end may go on.
    fn bury(&self) {
        self.lost.set(true);
        self.closing.set(true);
        if let Transport::Tcp(tcp) = &self.transport {
            tcp.to_send.notify();
        }
        self.wake_all();
        self.over.set(true);
        self.progress.notify();
    }

    /// Takes in one PDU and does what it says. `seen` learns what it means before that is done.
    #[inline]
    pub(crate) fn on_pdu(
        self: &Rc<Self>,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<Segment>,
        seen: impl FnOnce(&mut Inner, Option<&Event>),
    ) -> Result<(), End> {
        let now = ring::now();
        let event = {
            let inner = &mut *self.inner.borrow_mut();
            let event = inner.state.handle(bhs, ahs, data, now, &mut inner.outbox)?;
            seen(inner, event.as_ref());
            event
        };
        if let Some(event) = event {
            self.act(event);
        }
        if self.recovers {
            self.on_acknowledged();
        }
        self.start_all_waiting();
        self.deliver_held()
    }

    /// Drops a PDU whose data digest is wrong (RFC 7143 §7.8), and has it sent again.
    pub(crate) fn on_damaged(self: &Rc<Self>, bhs: &Bhs) -> Result<(), End> {
        self.with(|state, outbox| state.damaged(bhs, ring::now(), outbox))?;
        let task = self.inner.borrow().state.find(bhs.itt());
        if let Some(task) = task {
            self.wake_task(task);
        }
        self.start_all_waiting();
        self.deliver_held()
    }

    /// Reads that waited for acknowledgements go on if there were some.
    fn on_acknowledged(self: &Rc<Self>) {
        if !self.inner.borrow_mut().state.take_made_room() {
            return;
        }
        self.room.notify();
        loop {
            let next = self.deferred.borrow_mut().pop_front();
            let Some(command) = next else { break };
            if !self.may_begin() {
                self.deferred.borrow_mut().push_front(command);
                break;
            }
            self.start_unlimited(command);
        }
    }

    /// Whether a read may begin: not while too much waits to be acknowledged.
    fn may_begin(&self) -> bool {
        self.with(|state, outbox| state.may_begin(ring::now(), outbox))
    }

    /// Forgets a command that no unit has seen. False if it is none.
    fn remove_waiting(&self, key: TaskKey) -> bool {
        let mut deferred = self.deferred.borrow_mut();
        if let Some(at) = deferred.iter().position(|command| command.task == key) {
            deferred.remove(at);
            return true;
        }
        self.order.borrow_mut().remove(key) || self.gate.remove(key)
    }

    /// Whether a unit may put more of a task's data-in: not while too much waits to be acknowledged.
    pub(crate) fn may_put(&self, task: TaskKey) -> bool {
        !self.recovers || self.with(|state, outbox| state.may_put(task, ring::now(), outbox))
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

    /// Delivers the commands whose turn has come, here and on the session's other connections.
    fn deliver_held(self: &Rc<Self>) -> Result<(), End> {
        loop {
            let event = {
                let Inner { state, outbox } = &mut *self.inner.borrow_mut();
                state.next_held(outbox)?
            };
            if let Some(event) = event {
                self.act(event);
                continue;
            }
            let released = self.inner.borrow_mut().state.take_released();
            self.tell_released(&released);
            // Another connection may have released commands of this one since they were looked for, and this one may have
            // taken that news before the other did: then nobody else will tell it.
            if !released.contains(&self.cid) {
                break;
            }
        }
        self.kick();
        Ok(())
    }

    /// Has the session's other connections deliver what this one has released for them: once all that is ready on this core
    /// now has run, so that they are told once of what came together.
    fn tell_released(self: &Rc<Self>, released: &[Cid]) {
        let others = released.iter().filter(|cid| **cid != self.cid);
        let mut news = self.news.borrow_mut();
        let known = !news.is_empty();
        others.for_each(|cid| {
            if !news.contains(cid) {
                news.push(*cid);
            }
        });
        if !known && !news.is_empty() {
            let connection = self.clone();
            ring::spawn(async move {
                let news = std::mem::take(&mut *connection.news.borrow_mut());
                for member in connection.session.connections() {
                    if member.remote.id != connection.id && news.contains(&member.cid) {
                        member.remote.deliver_held();
                    }
                }
            });
        }
    }

    fn act(self: &Rc<Self>, event: Event) {
        match event {
            Event::Command(command) => {
                let plain = command.attribute <= TaskAttribute::Simple.code();
                if !plain {
                    // Who asks for an order wants each read as it was in its turn, and not as it is when it arrives.
                    self.inner.borrow_mut().outbox.stop_lending();
                }
                let admitted = if plain && self.order.borrow().is_empty() {
                    Some(command)
                } else {
                    let older = self.has_older(&command);
                    self.order.borrow_mut().admit(command, || older)
                };
                if let Some(command) = admitted {
                    self.start(command);
                }
            }
            Event::Data(task) => self.wake_task(task),
            Event::TaskManagement(request) if request.function == REASSIGN => {
                ring::spawn(reassign::run(self.clone(), request));
            }
            Event::TaskManagement(request) => {
                let connection = self.clone();
                ring::spawn(async move {
                    let result = management::run(&connection, &request).await;
                    let reset = management::ends_sessions(&request);
                    connection.with(|state, outbox| state.task_management_response(&request, result, outbox));
                    if reset {
                        connection.shut();
                    }
                });
            }
            Event::Text(exchange) => text::answer(self, &exchange),
            Event::Logout(request) => {
                let connection = self.clone();
                ring::spawn(async move { management::logout(connection, request).await });
            }
        }
    }

    /// What the session sees now.
    #[inline]
    pub(crate) fn view(&self) -> Rc<LocalView> {
        let view = self.view.borrow();
        if view.generation() == self.session.generation() {
            return view.clone();
        }
        drop(view);
        self.look_again()
    }

    #[cold]
    fn look_again(&self) -> Rc<LocalView> {
        let view = Rc::new(LocalView::new(self.session.view()));
        let before = self.view.replace(view.clone());
        let past = &mut *self.past.borrow_mut();
        before.nexuses.counts().iter().for_each(|(_, counts)| past.add(counts));
        // Units may go with it.
        drop(before);
        self.gate.look(&self.session);
        view
    }

    /// Hands a command to its unit, or keeps it until limits let it go.
    pub(crate) fn start(self: &Rc<Self>, scsi: ScsiCommand) {
        if !self.gate.is_closed() {
            return self.start_unlimited(scsi);
        }
        let view = self.view();
        let entry = view.luns().get(scsi.lun);
        if let Some(scsi) = gate::pass(self, scsi, entry) {
            self.start_unlimited(scsi);
        }
    }

    /// Hands a command to its unit.
    #[inline]
    pub(crate) fn start_unlimited(self: &Rc<Self>, scsi: ScsiCommand) {
        if self.recovers && scsi.expected_in > 0 && !self.may_begin() {
            self.deferred.borrow_mut().push_back(scsi);
            return;
        }
        let (task, lun) = (scsi.task, scsi.lun);
        let view = self.view();
        let entry = view.luns().get(scsi.lun);
        let Some(cdb) = Cdb::new(&scsi.cdb) else {
            return self.finish(task, lun, entry, scsi::Sense::invalid_opcode().into());
        };
        if let Some((data, outcome)) = router::answer(view.luns(), entry, &cdb) {
            Mover::new(self.clone(), task).put_data(data.into());
            return self.finish(task, lun, entry, outcome);
        }
        // The router answers for every unit that does not exist.
        let Some(entry) = entry else { return };
        let (nexus, tally) = view.nexuses.of(entry);
        let (class, began) = (Class::of(cdb.opcode()), tally.begin());
        let command = Command {
            cdb,
            attribute: router::attribute(scsi.attribute),
            nexus,
            data_out_len: scsi.expected_out.into(),
            data_in_len: scsi.expected_in.into(),
        };
        match entry.unit.execute(command, Mover::new(self.clone(), task)) {
            Execution::Done(_, outcome) => {
                tally.end(class, began, &outcome);
                self.finish(task, lun, Some(entry), outcome);
            }
            Execution::Running(future) => {
                let running = Running { connection: self.clone(), task, lun };
                ring::spawn(async move {
                    let (_, outcome) = future.await;
                    tally.end(class, began, &outcome);
                    running.finish(outcome);
                });
            }
        }
    }

    /// Whether commands of the same unit that are older than `command` are at work.
    fn has_older(&self, command: &ScsiCommand) -> bool {
        let inner = self.inner.borrow();
        let mut tasks = inner.state.tasks();
        tasks.any(|(key, task)| {
            key != command.task && task.lun == command.lun && sn::lt(task.cmd_sn, command.cmd_sn)
        })
    }

    /// Starts the commands that waited for `ended`.
    fn start_waiting(self: &Rc<Self>, lun: Lun, ended: TaskKey) {
        while !self.order.borrow().is_empty() {
            let next = self.order.borrow_mut().next(lun, ended, |command| self.has_older(command));
            let Some(command) = next else { return };
            self.start(command);
        }
    }

    /// Starts the commands that waited for tasks that ended without [`Self::finish`]: aborted, or answered when the data that
    /// was owed to them had come.
    fn start_all_waiting(self: &Rc<Self>) {
        if self.order.borrow().is_empty() {
            return;
        }
        let luns = self.order.borrow().luns();
        for lun in luns {
            self.start_waiting(lun, TaskKey::from_tag(RESERVED_TAG));
        }
    }

    /// Answers a command.
    fn finish(self: &Rc<Self>, task: TaskKey, lun: Lun, entry: Option<&Entry>, outcome: Outcome) {
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
    fn complete(self: &Rc<Self>, task: TaskKey, lun: Lun, completion: Completion) {
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

    /// Lends the state machine and its outbox, and sees that what comes of it is sent.
    pub(crate) fn with<T>(
        &self,
        f: impl FnOnce(&mut iscsi::target::Connection<Segment>, &mut Outbox) -> T,
    ) -> T {
        let Inner { state, outbox } = &mut *self.inner.borrow_mut();
        let result = f(state, outbox);
        if let Transport::Tcp(tcp) = &self.transport
            && !outbox.gather.is_empty()
        {
            tcp.to_send.notify();
        }
        if self.recovers && !self.watching.get() && state.is_pending() {
            self.watching.set(true);
            self.watch.notify();
        }
        result
    }

    /// Sees that what is queued is sent.
    pub(crate) fn kick(&self) {
        self.with(|_, _| ());
    }

    /// Whether no more I/O is possible, and no task is kept for another connection.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Whether no more I/O is possible.
    pub(crate) fn is_cut(&self) -> bool {
        self.lost.get() || self.detached.get()
    }

    /// Whether it ends when everything queued has been sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Whether the task is aborted or gone.
    pub(crate) fn is_aborted(&self, task: TaskKey) -> bool {
        self.inner.borrow().state.is_aborted(task)
    }

    /// Whether the send queue is short enough for more.
    pub(crate) fn has_room(&self) -> bool {
        let outbox = &self.inner.borrow().outbox;
        self.sending(outbox) + outbox.gather.len() < self.send_high_water
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

    fn wake_task(&self, task: TaskKey) {
        let waker = self.data_waits.borrow_mut().get_mut(task.slot()).and_then(Option::take);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_all(&self) {
        let wakers: Vec<_> = self.data_waits.borrow_mut().iter_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify();
    }

    /// Aborts tasks, waits until they have ended, and says how many there were.
    pub(crate) async fn abort(self: &Rc<Self>, victims: &Victims) -> usize {
        let mut running = Vec::new();
        let mut ended = 0;
        {
            let Inner { state, outbox } = &mut *self.inner.borrow_mut();
            let view = self.view();
            let is_for = |lun, unit: &Unit| view.luns().get(lun).is_some_and(|entry| entry.unit.is(unit));
            let keys: Vec<TaskKey> = state
                .tasks()
                .filter(|(_, task)| match victims {
                    Victims::Tag(itt) => task.itt == *itt,
                    Victims::All => true,
                    Victims::Unit(unit) => is_for(task.lun, unit),
                    Victims::Earlier(cmd_sn, unit) => {
                        sn::lt(task.cmd_sn, *cmd_sn)
                            && unit.as_ref().is_none_or(|unit| is_for(task.lun, unit))
                    }
                })
                .map(|(key, _)| key)
                .collect();
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

    /// Closes the connection now; what is queued is still sent if the peer takes it.
    pub(crate) fn shut(&self) {
        // Of one that is gone already, or as good as gone, it is the tasks that end.
        self.retired.set(self.closing.replace(true));
        self.stop.notify();
        self.progress.notify();
    }

    /// [`Self::shut`], if that has not been done: what is lost is not to be given up for that.
    fn stop_once(&self) {
        if !self.closing.get() {
            self.shut();
        }
    }

    /// Waits for the end of the connection and of its tasks.
    pub(crate) async fn ended(&self) {
        self.progress.until(|| self.over.get().then_some(())).await;
    }

    /// Gives the connection up.
    pub(crate) fn lose(&self, error: End) {
        if self.detached.get() {
            // What fails now is what was cut off.
            return;
        }
        self.failure.set(Some(error));
        match self.keeps && !self.session.is_ending() {
            true => self.detach(),
            false => self.lost.set(true),
        }
        self.stop_once();
    }

    async fn stopped(&self) {
        self.stop.until(|| (self.closing.get() || self.draining.get()).then_some(())).await;
    }

    /// Receives until the peer closes, breaks the protocol or is lost.
    async fn receive_loop(self: &Rc<Self>, start: Start) -> End {
        match (&self.transport, start) {
            (Transport::Tcp(tcp), Start::Tcp(cutter, early)) => {
                tcp.receive_loop(self, Receiver::new(cutter, early, self.recovers)).await
            }
            // Boxed: an idle TCP connection need not have room for it.
            (Transport::Iser(iser), Start::Iser { hello }) => Box::pin(iser.receive_loop(self, hello)).await,
            _ => End::Closed,
        }
    }

    /// The peer lives: some bytes came, or it took some. On a slow connection whole PDUs may be far apart.
    pub(crate) fn heard(&self) {
        self.inner.borrow_mut().state.heard(ring::now());
    }

    /// Sends what is queued, until the end.
    async fn send_loop(self: Rc<Self>) {
        if let Transport::Tcp(tcp) = &self.transport {
            tcp.send_loop(&self).await;
        }
    }

    /// Pings an initiator that is silent.
    async fn ping_loop(self: Rc<Self>) {
        loop {
            let Some(at) = self.inner.borrow().state.poll_timeout() else { return };
            ring::sleep_until(at).await;
            if let Transport::Iser(iser) = &self.transport
                && iser.has_progressed()
            {
                self.heard();
            }
            let result = self.with(|state, outbox| state.handle_timeout(ring::now(), outbox));
            if let Err(error) = result {
                return self.lose(error.into());
            }
        }
    }

    /// Looks after what may be lost, as long as there is something.
    async fn watch_loop(self: Rc<Self>) {
        let interval = self.inner.borrow().state.recovery_interval();
        loop {
            self.watch.until(|| self.watching.get().then_some(())).await;
            ring::sleep(interval).await;
            let late = {
                let Inner { state, outbox } = &mut *self.inner.borrow_mut();
                let late = state.recover(ring::now(), outbox);
                self.watching.set(state.is_pending());
                late
            };
            late.into_iter().for_each(|task| self.wake_task(task));
            self.start_all_waiting();
            self.progress.notify();
            self.kick();
        }
    }
}

/// A task that a unit is at work on.
struct Running {
    connection: Rc<Connection>,
    task: TaskKey,
    lun: Lun,
}

impl Running {
    fn finish(&self, outcome: Outcome) {
        let connection = &self.connection;
        connection.finish(self.task, self.lun, connection.view().luns().get(self.lun), outcome);
        connection.kick();
        connection.progress.notify();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A unit that panics must not leave a task that nobody ends: its connection would wait for it for ever.
        if std::thread::panicking() {
            let Self { connection, task, lun } = self;
            let running = Self { connection: connection.clone(), task: *task, lun: *lun };
            ring::spawn(async move { running.finish(scsi::Sense::internal_target_failure().into()) });
        }
    }
}
