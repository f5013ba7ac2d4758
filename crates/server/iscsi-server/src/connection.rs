//! One connection in full-feature phase: its tasks and their units, around the state machine. The
//! transport of its PDUs and data is [`crate::transport`], which [`tcp`] and [`iser`] drive.
//!
//! A connection lives on one core. Others reach it through [`crate::remote`], and [`resident`]
//! answers them. [`phase`] is its life. Its commands reach their units through [`pipeline`], and
//! [`tasks`] runs them; [`timing`] knows where their time goes. [`recovery`] makes up for lost PDUs
//! and for a lost connection.

mod admission;
mod iser;
mod landing;
mod management;
mod mover;
mod order;
mod phase;
mod pipeline;
mod reassign;
mod recovery;
mod resident;
mod tasks;
mod tcp;
pub(crate) mod text;
mod timing;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use iscsi::pdu::{AsyncEvent, Bhs, TaskManagementFunction};
use iscsi::target::{Cid, Data, Event, TaskKey};
use runtime::Notify;
use server_core::ahead::RoundTrip;
use server_core::backlog::{Backlog, STEP};
use server_core::grants::Grants;
use server_core::pings::Peer;
use server_core::retention::{Keeper, Kept};
use server_core::tally::Counts;
use server_core::{ConnectionId, Core};

use crate::account::Accounts;
use crate::end::End;
use crate::ferry::Ferry;
use crate::lun_map::LocalView;
use crate::remote;
use crate::session::{Session, Standing};
use crate::shared::Shared;
use crate::transport::tcp::receive::Receiver;
use crate::transport::{Link, Outbox, Start, Transport};
use crate::wire::Segment;
use phase::{Life, Phase};
use pipeline::Pipeline;
use text::Negotiated;
use timing::Timing;

pub(crate) use admission::Admitted;

/// TASK REASSIGN.
const REASSIGN: u8 = TaskManagementFunction::TaskReassign.code();

/// Time for running commands to end before their connection is closed for another daemon.
const DRAIN: Duration = Duration::from_secs(1);
/// Time to send a closing connection's last PDUs.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The state machine, and the PDUs that it wants sent.
pub(crate) struct Inner {
    pub state: iscsi::target::Connection<Segment>,
    pub outbox: Outbox,
}

/// One connection in full-feature phase.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub cid: u16,
    /// State of the connection's core.
    pub core: Rc<Core>,
    pub shared: Arc<Shared>,
    pub session: Arc<Session>,
    pub inner: RefCell<Inner>,
    /// CIDs of connections of its session whose held commands can be delivered, and that have not
    /// been told yet.
    news: RefCell<Vec<Cid>>,
    /// The session's view when this connection last looked.
    view: RefCell<Rc<LocalView>>,
    /// Bytes queued to the network above which its commands wait.
    pub send_high_water: usize,
    pub transport: Transport,
    /// Places for the data of WRITEs.
    landings: RefCell<landing::Landings>,
    /// Wakers of tasks that wait for data-out, by task slot.
    data_waits: RefCell<Vec<Option<Waker>>>,
    /// Commands whose turn has come, and that wait for order, limits or room.
    pipeline: Pipeline,
    /// Phase of its life.
    life: Life,
    /// The times of its commands, and what is counted of them.
    timing: Timing,
    /// Counts under earlier views.
    past: RefCell<Counts>,
    /// Notified when the send queue has room again.
    pub room: Notify,
    /// ErrorRecoveryLevel 1 or 2: something may have to be sent again.
    recovers: bool,
    /// Bytes it holds for its initiator, in the core's account.
    pub backlog: Backlog,
    /// Bytes kept for retransmission, in the core's account.
    kept: Kept,
    /// ErrorRecoveryLevel 2: its tasks outlive it.
    keeps: bool,
    /// Its standing in the session after it is lost. Once removed for recovery, its tasks may be
    /// reassigned.
    standing: Cell<Standing>,
    /// Ferries between the units of reassigned tasks and this connection.
    ferries: RefCell<HashMap<TaskKey, Arc<Ferry>>>,
    /// Whether the loop that watches for losses runs.
    watching: Cell<bool>,
    /// Wakes that loop.
    watch: Notify,
    /// Bytes that units may request from its initiator.
    pub grants: Grants,
    /// Notified when a task or the connection has ended.
    progress: Notify,
    /// Notified when the connection must stop receiving.
    stop: Notify,
    /// Reason for which the connection was dropped, if not by its receive loop.
    failure: Cell<Option<End>>,
    /// Parameters that login and text negotiation agreed on.
    pub negotiated: RefCell<Negotiated>,
    /// Round trip to the initiator.
    round_trip: RoundTrip,
}

impl Connection {
    pub(crate) fn new(
        id: ConnectionId,
        cid: u16,
        shared: Arc<Shared>,
        (core, session): (&Rc<Core>, Arc<Session>),
        link: Link,
        state: iscsi::target::Connection<Segment>,
        negotiated: Negotiated,
    ) -> Rc<Self> {
        let Link { transport, mut outbox } = link;
        let view = LocalView::new(session.view(), core.ended.clone());
        outbox.view = view.shared().clone();
        let send_high_water = shared.limits().send_high_water;
        let recovers = state.error_recovery_level() > 0;
        let keeps = state.error_recovery_level() > 1;
        let account = session.target().map(|target| core.own::<Accounts>().of(&target.config.name));
        let account = account.unwrap_or_default();
        let timing = Timing::new(account, core.own(), core.own(), session.nexus.clone(), session.tsih);
        let connection = Rc::new(Self {
            id,
            cid,
            core: core.clone(),
            shared,
            session,
            inner: RefCell::new(Inner { state, outbox }),
            news: RefCell::default(),
            view: RefCell::new(Rc::new(view)),
            send_high_water,
            transport,
            landings: RefCell::default(),
            data_waits: RefCell::default(),
            pipeline: Pipeline::default(),
            life: Life::default(),
            timing,
            past: RefCell::default(),
            room: Notify::default(),
            recovers,
            backlog: Backlog::new(core.backlog.clone()),
            kept: Kept::new(core.retention.clone(), id),
            keeps,
            standing: Cell::new(Standing::Lost),
            ferries: RefCell::default(),
            watching: Cell::new(false),
            watch: Notify::default(),
            grants: Grants::new(core.grants.clone()),
            progress: Notify::default(),
            stop: Notify::default(),
            failure: Cell::new(None),
            negotiated: RefCell::new(negotiated),
            round_trip: RoundTrip::default(),
        });
        let resident: Weak<dyn remote::Resident> = Rc::<Self>::downgrade(&connection);
        remote::enter(core, id, resident);
        if connection.recovers {
            let keeper: Weak<dyn Keeper> = Rc::<Self>::downgrade(&connection);
            connection.kept.enter(keeper);
        }
        // After the connection can be found: from now on it hears of changed limits.
        connection.look_at_limits();
        connection
    }

    /// Runs the connection to its end.
    pub(crate) async fn run(self: &Rc<Self>, start: Start) -> End {
        let before = runtime::copies();
        let sender = match &self.transport {
            Transport::Tcp(_) => Some(runtime::spawn(self.clone().send_loop())),
            // A queue pair sends by itself.
            Transport::Iser(_) => None,
        };
        let pinged = self.core.pings.enter(self.id, self.clone());
        let watcher = self.recovers.then(|| runtime::spawn(self.clone().watch_loop()));
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
        drop(pinged);
        if let Some(watcher) = watcher {
            watcher.abort();
        }
        if let Some(error) = self.failure.take() {
            end = error;
        }
        let draining = self.life.phase() == Phase::Draining;
        if self.is_closing() && matches!(end, End::HungUp) {
            end = End::Closed;
        }
        if !matches!(end, End::Closed) {
            self.end_session();
        }
        if draining && matches!(end, End::Closed) {
            let over = || self.inner.borrow().state.tasks().next().is_none().then_some(());
            // Commands that wait for their initiator's data cannot end: hence the timeout.
            let _ = runtime::timeout(DRAIN, self.progress.until(over)).await;
            self.with(|state, outbox| state.async_message(AsyncEvent::DropSession, [0; 3], outbox));
        }
        let kept = self.keeps
            && !draining
            && (self.is_removed() || !matches!(end, End::Closed))
            && self.session.set_standing(self.id, self.standing.get());
        if kept && !matches!(end, End::Closed) {
            self.detach();
        }
        // After a clean end queued PDUs are still sent, for a while. After any other end the peer
        // would not read them.
        let detached = self.is_detached();
        self.life.advance(Phase::Closing { again: false });
        let clean = matches!(end, End::Closed | End::HungUp);
        if !clean && !kept {
            self.life.advance(Phase::Lost);
        }
        match (&self.transport, sender) {
            (Transport::Tcp(tcp), Some(sender)) => {
                if detached {
                    tcp.cut();
                }
                tcp.to_send.notify();
                if runtime::timeout(LAST_WORDS, sender).await.is_err() {
                    // The peer does not read, and its send would wait, with the socket and all data
                    // that it sends, for as long as the peer likes. After the cut the pending send
                    // fails.
                    tcp.cut();
                }
            }
            (Transport::Iser(iser), _) => Box::pin(iser::wind_down(iser, self, clean, LAST_WORDS)).await,
            (Transport::Tcp(_), None) => {}
        }
        // The lab reads this event: the bytes that the connection's core copied meanwhile.
        tracing::debug!(core = ?(runtime::copies() - before), "connection ended");
        if kept {
            self.detach();
            // Queued PDUs are dropped, and another connection continues the reads.
            self.backlog.account(0);
            self.room_moved();
            self.await_recovery().await;
        }
        self.life.advance(Phase::Lost);
        {
            let state = &mut self.inner.borrow_mut().state;
            state.forget_reads();
            state.forget_unacknowledged();
        }
        self.timing.close();
        self.kick();
        self.wake_all();
        // Units finish what they have begun; their answers are dropped.
        self.clear().await;
        // Reads that waited now belong to another connection.
        self.on_acknowledged();
        self.room_moved();
        let released = {
            let state = &mut self.inner.borrow_mut().state;
            state.release_held();
            self.session.set_exp_cmd_sn(state.exp_cmd_sn());
            let recovered = state.recovered();
            self.session.keep_recovered(&recovered);
            self.shared.keep_recovered(&recovered);
            self.life.advance(Phase::Ended);
            state.take_released()
        };
        self.tell_released(&released);
        self.look_at_fences();
        end
    }

    /// [`Self::deliver_held`], which may end the connection.
    pub(crate) fn deliver_held_or_lose(self: &Rc<Self>) {
        if let Err(error) = self.deliver_held() {
            self.lose(error);
        }
    }

    /// The connection has left its session, after any kind of end. Wakes all who wait for that.
    fn bury(&self) {
        self.life.advance(Phase::Over);
        if let Transport::Tcp(tcp) = &self.transport {
            tcp.to_send.notify();
        }
        self.wake_all();
        self.progress.notify();
        self.watch.notify();
    }

    /// The initiator has acknowledged all statuses before `exp_stat_sn`, by a PDU that is handled
    /// next.
    #[inline]
    pub(crate) fn acknowledged(&self, exp_stat_sn: u32) {
        self.timing.acknowledged(exp_stat_sn, || self.inner.borrow().state.is_idle());
    }

    /// Takes in one PDU and acts on it. `seen` gets the event before that.
    #[inline]
    pub(crate) fn on_pdu(
        self: &Rc<Self>,
        bhs: &Bhs,
        ahs: &[u8],
        data: impl Data<Segment>,
        seen: impl FnOnce(&mut Inner, Option<&Event>),
    ) -> Result<(), End> {
        let now = runtime::now();
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
        self.look_at_order();
        self.deliver_held()
    }

    /// Delivers the commands whose turn has come, here and on the session's other connections.
    #[inline]
    fn deliver_held(self: &Rc<Self>) -> Result<(), End> {
        if !self.inner.borrow().state.is_in_order() {
            return self.deliver_all_held();
        }
        self.kick();
        Ok(())
    }

    #[cold]
    fn deliver_all_held(self: &Rc<Self>) -> Result<(), End> {
        loop {
            // First take the session's view: that refuses commands whose LUN now means another
            // unit.
            let view = self.view();
            let event = {
                let Inner { state, outbox } = &mut *self.inner.borrow_mut();
                state.next_held(outbox)?
            };
            match event {
                Some(Event::Command(command)) => {
                    self.admit(command, view);
                    continue;
                }
                Some(event) => {
                    self.act(event);
                    continue;
                }
                None => {}
            }
            let released = self.inner.borrow_mut().state.take_released();
            self.tell_released(&released);
            // Meanwhile another connection may have released commands of this one. If this
            // connection has taken that news from the window, no other one reports it: look again.
            if !released.contains(&self.cid) {
                break;
            }
        }
        self.look_at_fences();
        self.kick();
        Ok(())
    }

    /// Has the session's other connections go on with the commands that this one has released for
    /// them. Waits until all that is ready on this core now has run, so that they are told once.
    fn tell_released(self: &Rc<Self>, released: &[Cid]) {
        // At ErrorRecoveryLevel 2 a lost connection and its successor may have one CID.
        let others = released.iter().filter(|cid| self.keeps || **cid != self.cid);
        let mut news = self.news.borrow_mut();
        let known = !news.is_empty();
        others.for_each(|cid| {
            if !news.contains(cid) {
                news.push(*cid);
            }
        });
        if !known && !news.is_empty() {
            let connection = self.clone();
            runtime::spawn(async move {
                let news = std::mem::take(&mut *connection.news.borrow_mut());
                for member in connection.session.connections() {
                    if member.remote.id != connection.id && news.contains(&member.cid) {
                        member.remote.deliver_held();
                    }
                }
            });
        }
    }

    #[inline]
    fn act(self: &Rc<Self>, event: Event) {
        match event {
            Event::Command(command) => self.admit(command, self.view()),
            event => self.act_rarely(event),
        }
    }

    /// Acts on an event. [`Self::act`] handles commands, the frequent case, itself.
    #[inline(never)]
    fn act_rarely(self: &Rc<Self>, event: Event) {
        match event {
            Event::Command(command) => self.admit(command, self.view()),
            Event::Data(task) => self.wake_task(task),
            Event::TaskManagement(request) if request.function == REASSIGN => {
                runtime::spawn(reassign::run(self.clone(), request));
            }
            Event::TaskManagement(request) => {
                let connection = self.clone();
                runtime::spawn(async move {
                    let Some(result) = management::run(&connection, &request).await else { return };
                    let reset = management::ends_sessions(&request);
                    connection.with(|state, outbox| state.task_management_response(&request, result, outbox));
                    if reset {
                        // Its own session ends too, with all of its connections.
                        let others = connection.session.end().into_iter();
                        others
                            .filter(|member| member.remote.id != connection.id)
                            .for_each(|member| member.remote.shut());
                        connection.shut();
                    }
                });
            }
            Event::Text(exchange) => text::answer(self, &exchange),
            Event::Logout(request) => {
                let connection = self.clone();
                runtime::spawn(async move { management::logout(connection, request).await });
            }
        }
    }

    /// The session's view now. The caller must not borrow anything of the connection meanwhile:
    /// commands may end.
    #[inline]
    pub(crate) fn view(self: &Rc<Self>) -> Rc<LocalView> {
        let view = self.view.borrow();
        if view.generation() == self.session.generation() {
            return view.clone();
        }
        drop(view);
        self.look_again()
    }

    #[cold]
    fn look_again(self: &Rc<Self>) -> Rc<LocalView> {
        let view = Rc::new(LocalView::new(self.session.view(), self.core.ended.clone()));
        let before = self.view.replace(view.clone());
        self.inner.borrow_mut().outbox.view = view.shared().clone();
        let past = &mut *self.past.borrow_mut();
        before.nexuses.counts().iter().for_each(|(_, counts)| past.add(counts));
        self.look_at_limits();
        self.part_from(&before, &view);
        // The view may hold the last reference to a unit.
        drop(before);
        view
    }

    /// Passes the state machine and its outbox to `f`, and has its output sent.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        f: impl FnOnce(&mut iscsi::target::Connection<Segment>, &mut Outbox) -> T,
    ) -> T {
        let Inner { state, outbox } = &mut *self.inner.borrow_mut();
        let result = f(state, outbox);
        match &self.transport {
            Transport::Tcp(tcp) if !outbox.gather.is_empty() => {
                self.backlog.account(tcp.sending.get() + outbox.gather.len());
                tcp.to_send.notify();
            }
            Transport::Tcp(_) => {}
            Transport::Iser(iser) => self.backlog.account(iser.queued()),
        }
        if self.recovers {
            self.kept.account(state.kept_bytes());
            if !self.watching.get() && state.is_pending() {
                self.watching.set(true);
                self.watch.notify();
            }
        }
        result
    }

    /// Has queued output sent.
    #[inline]
    pub(crate) fn kick(&self) {
        self.with(|_, _| ());
    }

    /// The shortest recent round trip to the initiator; zero if unknown.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.get(runtime::now(), || match &self.transport {
            Transport::Tcp(tcp) => tcp.info(),
            Transport::Iser(iser) => iser.info(),
        })
    }

    /// Bytes handed to the network and not yet taken by it, besides those in the outbox.
    #[inline]
    pub(crate) fn sending(&self, outbox: &Outbox) -> usize {
        match &self.transport {
            Transport::Tcp(tcp) => tcp.sending.get(),
            Transport::Iser(_) => outbox.iser.as_ref().map_or(0, |iser| iser.queued()),
        }
    }

    /// Whether its data moves by RDMA.
    pub(crate) fn is_iser(&self) -> bool {
        matches!(self.transport, Transport::Iser(_))
    }

    /// Whether no more I/O is possible, and no task is kept for another connection.
    pub(crate) fn is_lost(&self) -> bool {
        self.life.phase() >= Phase::Lost
    }

    /// Whether no more I/O is possible.
    pub(crate) fn is_cut(&self) -> bool {
        self.life.phase() >= Phase::Detached
    }

    /// Whether its tasks are, or were, kept for another connection.
    pub(crate) fn is_detached(&self) -> bool {
        matches!(self.life.phase(), Phase::Detached | Phase::Retired)
    }

    /// Whether it ends when everything queued has been sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.life.phase() >= Phase::Closing { again: false }
    }

    /// Whether the send queue is short enough for more.
    pub(crate) fn has_room(&self) -> bool {
        let outbox = &self.inner.borrow().outbox;
        let queued = self.sending(outbox) + outbox.gather.len();
        queued < STEP.min(self.send_high_water) || queued < self.backlog.mark(self.send_high_water)
    }

    /// Closes the connection now; what is queued is still sent if the peer takes it.
    pub(crate) fn shut(&self) {
        self.life.close();
        self.stop.notify();
        self.progress.notify();
    }

    /// [`Self::shut`], unless the connection is closing already: a second one would give up tasks
    /// that another connection may take.
    fn stop_once(&self) {
        if !self.is_closing() {
            self.shut();
        }
    }

    /// Waits for the end of the connection and of its tasks.
    pub(crate) async fn ended(&self) {
        self.progress.until(|| (self.life.phase() == Phase::Over).then_some(())).await;
    }

    /// Drops the connection.
    pub(crate) fn lose(&self, error: End) {
        if self.is_detached() {
            // This error comes from the cut that detached the connection.
            return;
        }
        self.failure.set(Some(error));
        if !self.is_closing() {
            self.end_session();
        }
        match self.keeps && !self.session.is_ending() {
            true => self.detach(),
            false => _ = self.life.advance(Phase::Lost),
        }
        self.stop.notify();
        self.progress.notify();
    }

    /// Below ErrorRecoveryLevel 2 a lost connection ends its session (RFC 7143 §7.1.4.4), with the
    /// connections that are about to join it. It does so at once: a task management function that
    /// waits for this connection must not be answered then.
    fn end_session(&self) {
        if self.session.recovers_connections() {
            return;
        }
        for member in self.session.end() {
            if member.remote.id != self.id {
                member.remote.shut();
            }
        }
    }

    async fn stopped(&self) {
        self.stop.until(|| (self.life.phase() >= Phase::Draining).then_some(())).await;
    }

    /// Receives until the peer closes, breaks the protocol or is lost.
    async fn receive_loop(self: &Rc<Self>, start: Start) -> End {
        match (&self.transport, start) {
            (Transport::Tcp(tcp), Start::Tcp(limits, early)) => {
                let receiver = Receiver::new(limits, early, self.core.tcp.clone());
                tcp::receive_loop(tcp, self, receiver).await
            }
            // Boxed: an idle TCP connection needs no room for it.
            (Transport::Iser(iser), Start::Iser { hello }) => {
                Box::pin(iser::receive_loop(iser, self, hello)).await
            }
            _ => End::Closed,
        }
    }

    /// The peer is alive: some bytes came, or it took some. On a slow connection whole PDUs may be
    /// far apart.
    pub(crate) fn heard(&self) {
        self.inner.borrow_mut().state.heard(runtime::now());
    }

    /// Sends what is queued, until the end.
    async fn send_loop(self: Rc<Self>) {
        if let Transport::Tcp(tcp) = &self.transport {
            tcp::send_loop(tcp, &self).await;
        }
    }
}

impl Peer for Connection {
    fn due(&self) -> Option<Instant> {
        if let Transport::Iser(iser) = &self.transport
            && iser.has_progressed()
        {
            self.heard();
        }
        let gone = self.is_cut() || self.is_closing();
        self.inner.borrow().state.poll_timeout().filter(|_| !gone)
    }

    fn interval(&self) -> Duration {
        self.inner.borrow().state.nop_interval()
    }

    fn is_pinged(&self) -> bool {
        self.inner.borrow().state.is_pinged()
    }

    fn is_awaited(&self) -> bool {
        let Inner { state, outbox } = &*self.inner.borrow();
        let unsent = self.sending(outbox) + outbox.gather.len() > 0;
        unsent || self.kept.bytes() > 0 || state.tasks().next().is_some() || self.pipeline.lacks_room()
    }

    fn time_out(&self, now: Instant) {
        if let Err(error) = self.with(|state, outbox| state.handle_timeout(now, outbox)) {
            self.lose(error.into());
        }
    }
}
