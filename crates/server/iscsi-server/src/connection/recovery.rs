//! A connection's work at ErrorRecoveryLevel 1 and 2 besides its state machine. Reads wait for
//! acknowledgements, the watch loop asks again for lost PDUs, and tasks outlive the connection
//! until another one takes them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use iscsi::pdu::{Bhs, Lun};
use iscsi::target::{Fatal, TaskKey};
use server_core::retention::Keeper;

use super::{Connection, Inner, Phase};
use crate::end::End;
use crate::ferry::Ferry;
use crate::remote::Victims;
use crate::session::{GAP_LOOKS, Standing};
use crate::transport::Transport;

impl Connection {
    /// Whether it was removed for recovery: its tasks may be reassigned.
    pub(super) fn is_removed(&self) -> bool {
        self.standing.get() == Standing::Removed
    }

    /// Stops sending and receiving. Units continue: their data is kept for another connection.
    pub(super) fn detach(&self) {
        if !self.life.detach() {
            return;
        }
        self.inner.borrow_mut().outbox.mute();
        if let Transport::Tcp(tcp) = &self.transport {
            tcp.to_send.notify();
        }
        self.room.notify();
        self.progress.notify();
    }

    /// Waits until no task of this lost connection can be of use any more: all were reassigned, or
    /// the time or the session is over. A command that was lost with it may be sent again in the
    /// same time.
    pub(super) async fn await_recovery(&self) {
        let retention = self.session.retention();
        let retired = || self.life.phase() >= Phase::Retired;
        let mut removed = self.is_removed();
        let mut deadline = runtime::now() + retention;
        loop {
            let left = || self.is_removed() && self.inner.borrow().state.has_nothing_left();
            let changed = self.progress.until(|| {
                let done = left() && self.session.may_forget(self.id);
                (retired() || done || self.is_removed() != removed).then_some(())
            });
            // No event reports that a gap is filled: check again soon.
            let soon = if left() { runtime::now() + GAP_LOOKS } else { deadline };
            let told =
                runtime::timeout(soon.min(deadline).saturating_duration_since(runtime::now()), changed).await;
            if told.is_ok() && (retired() || self.is_removed() == removed) {
                return;
            }
            if told.is_ok() {
                // The logout restarts the time (RFC 7143 §11.15.3).
                removed = true;
                deadline = runtime::now() + retention;
            } else if runtime::now() >= deadline {
                if !left() {
                    tracing::info!(connection = self.id.0, "tasks were not reassigned in time");
                }
                return;
            }
        }
    }

    /// Ends all tasks. If the session continues, a unit attention tells the initiator that they
    /// have ended with their connection (RFC 7143 §7.6).
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

    /// Removes the connection for recovery (§11.14.1), and waits until its part in all work has
    /// ended.
    pub(super) async fn remove(&self) {
        let known = self.standing.replace(Standing::Removed) == Standing::Removed;
        if !(known && self.is_detached()) {
            self.detach();
            self.session.set_standing(self.id, Standing::Removed);
            self.stop.notify();
        }
        self.progress.notify();
    }

    /// Removes this connection for recovery by its own logout: it closes after the answer.
    pub(crate) fn remove_itself(&self) {
        self.standing.set(Standing::Removed);
        self.stop_once();
    }

    /// The ferry of a reassigned task.
    #[inline]
    pub(crate) fn ferry(&self, task: TaskKey) -> Option<Arc<Ferry>> {
        if !self.is_cut() {
            return None;
        }
        self.ferries.borrow().get(&task).cloned()
    }

    /// Moves a task's data by `ferry` from now on.
    pub(crate) fn embark(&self, task: TaskKey, ferry: Arc<Ferry>) {
        self.ferries.borrow_mut().insert(task, ferry);
        self.wake_task(task);
    }

    /// A task was released: resumes reads that waited for room. This connection may have no task
    /// left.
    pub(crate) fn released(self: &Rc<Self>) {
        self.room.notify();
        self.on_acknowledged();
        self.room_moved();
        self.progress.notify();
        self.kick();
    }

    /// Drops a PDU whose data digest is wrong (RFC 7143 §7.8), and has it sent again.
    pub(crate) fn on_damaged(self: &Rc<Self>, bhs: &Bhs) -> Result<(), End> {
        self.with(|state, outbox| state.damaged(bhs, runtime::now(), outbox))?;
        let task = self.inner.borrow().state.find(bhs.itt());
        if let Some(task) = task {
            self.wake_task(task);
        }
        self.look_at_order();
        self.deliver_held()
    }

    /// After acknowledgements, resumes reads that waited for them.
    pub(super) fn on_acknowledged(self: &Rc<Self>) {
        if !self.inner.borrow_mut().state.take_made_room() {
            return;
        }
        self.room.notify();
        self.room_moved();
    }

    /// Has the backlog counted again when it is small. Over TCP the send loop does so.
    #[inline]
    pub(crate) fn watch_backlog(self: &Rc<Self>) {
        if let Transport::Iser(iser) = &self.transport
            && self.backlog.is_queued()
        {
            super::iser::watch_queue(iser, self);
        }
    }

    /// Whether a read of `len` bytes may begin: not while too many bytes wait to be taken, or to be
    /// acknowledged.
    #[inline]
    pub(super) fn may_begin(&self, len: u32) -> bool {
        if !self.is_cut() && !self.backlog.may_read(len as usize) {
            return false;
        }
        !self.recovers
            || self.with(|state, outbox| {
                state.set_keep_room(self.kept.room(state.kept_bytes()));
                state.may_begin(runtime::now(), outbox)
            })
    }

    /// Whether a unit may put more of a task's data-in: not while too many bytes wait to be
    /// acknowledged.
    pub(crate) fn may_put(&self, task: TaskKey) -> bool {
        !self.recovers
            || self.with(|state, outbox| {
                state.set_keep_room(self.kept.room(state.kept_bytes()));
                state.may_put(task, runtime::now(), outbox)
            })
    }

    /// Watches for losses, as long as something may be lost. Ends with the connection, even by a
    /// panic: it would keep the connection, with all that this keeps.
    pub(super) async fn watch_loop(self: Rc<Self>) {
        let interval = self.inner.borrow().state.recovery_interval();
        loop {
            let more = self.watch.until(|| match self.life.phase() == Phase::Over {
                true => Some(false),
                false => self.watching.get().then_some(true),
            });
            if !more.await {
                return;
            }
            runtime::sleep(interval).await;
            let late = {
                let Inner { state, outbox } = &mut *self.inner.borrow_mut();
                let late = state.recover(runtime::now(), outbox);
                self.watching.set(state.is_pending());
                late
            };
            late.into_iter().for_each(|task| self.wake_task(task));
            self.clone().more_room();
            self.look_at_order();
            self.progress.notify();
            self.kick();
        }
    }
}

impl Keeper for Connection {
    fn more_room(self: Rc<Self>) {
        if !self.recovers || !self.inner.borrow().state.wants_keep_room() {
            return;
        }
        self.with(|state, _| {
            state.set_keep_room(self.kept.room(state.kept_bytes()));
            state.more_keep_room();
        });
        self.on_acknowledged();
    }

    fn kept_since(&self) -> Option<Instant> {
        (self.kept.bytes() > 0).then(|| self.inner.borrow().state.kept_since())
    }

    fn give_up_kept(self: Rc<Self>, now: Instant) {
        if self.with(|state, _| state.give_up_data(now)) {
            self.on_acknowledged();
        } else if self.is_cut() {
            self.shut();
        } else {
            self.lose(Fatal::Unacknowledged.into());
        }
    }
}
