//! A connection as others reach it, from whatever core: messages to the core where it lives, which knows its own connections by
//! their numbers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::rc::{Rc, Weak};

use iscsi::pdu::{AsyncEvent, Lun};
use iscsi::target::recovery::Recovered;
use server_core::tally::Counts;
use server_core::{ConnectionId, Core, Post};

use super::Connection;
use crate::Unit;
use crate::reassign::{self, Parcel};
use crate::session::Member;

/// The connections of a core.
#[derive(Default)]
struct Locals(RefCell<HashMap<ConnectionId, Weak<Connection>>>);

/// A connection as other cores reach it.
#[derive(Clone)]
pub(crate) struct Remote {
    pub id: ConnectionId,
    pub core: Post,
}

/// Which tasks to abort, or to count.
#[derive(Clone)]
pub(crate) enum Victims {
    /// The one with this Initiator Task Tag.
    Tag(u32),
    /// All that are for this unit.
    Unit(Unit),
    /// Those that are for this unit, of which there may be one with this tag only, or all but one.
    Of(Unit, Option<u32>, Option<u32>),
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
        let answer = self.core.call(move |core| async move {
            match find(&core, id) {
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

    /// Limits have changed: commands that wait are charged anew.
    pub(crate) fn limits_changed(&self) {
        self.tell(Connection::limits_changed);
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

    /// How many tasks there are.
    pub(crate) async fn count(&self, victims: Victims) -> usize {
        self.ask(|connection| async move { connection.tasks_of(&victims).len() }).await.unwrap_or(0)
    }

    /// Has the connection deliver the commands that it held.
    pub(super) fn deliver_held(&self) {
        self.tell(|connection| connection.deliver_held_or_lose());
    }

    /// Removes the connection for recovery.
    pub(crate) async fn remove(&self) {
        self.ask(|connection| async move { connection.remove().await }).await;
    }

    /// The unit and the CmdSN of the task with tag `itt`, if it is allegiant to the connection.
    pub(crate) async fn allegiant(&self, itt: u32) -> Option<(Lun, u32)> {
        let task = self.ask(move |connection| async move { connection.inner.borrow().state.allegiant(itt) });
        task.await.flatten()
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
        let _ = self.core.run(move |core| async move {
            if let Some(connection) = find(&core, id) {
                f(&connection);
            }
        });
    }
}

/// Lets others find a connection of this core.
pub(super) fn enter(core: &Core, connection: &Rc<Connection>) {
    core.own::<Locals>().0.borrow_mut().insert(connection.id, Rc::downgrade(connection));
}

/// Forgets a connection of this core that is out of its session.
pub(crate) fn bury(core: &Core, id: ConnectionId) {
    let connection = core.own::<Locals>().0.borrow_mut().remove(&id);
    if let Some(connection) = connection.and_then(|connection| connection.upgrade()) {
        connection.bury();
    }
}

/// The connections of this core.
fn locals(core: &Core) -> Vec<Rc<Connection>> {
    core.own::<Locals>().0.borrow().values().filter_map(Weak::upgrade).collect()
}

/// What each connection of this core has counted: its session, and by its units' addresses; what is not of any unit that it sees
/// now is under 0.
pub(crate) fn counted(core: &Core) -> Vec<(u16, usize, Counts)> {
    let connections = locals(core);
    let of = |connection: &Rc<Connection>| {
        let tsih = connection.session.tsih;
        let mut counts = connection.view.borrow().nexuses.counts();
        counts.push((0, *connection.past.borrow()));
        counts.into_iter().map(move |(unit, counts)| (tsih, unit, counts)).collect::<Vec<_>>()
    };
    connections.iter().flat_map(of).collect()
}

/// What recovery had to do on each connection of this core, by its session.
pub(crate) fn recovered(core: &Core) -> Vec<(u16, Recovered)> {
    let there = locals(core).into_iter().filter(|connection| !connection.accounted.get());
    there.map(|connection| (connection.session.tsih, connection.inner.borrow().state.recovered())).collect()
}

/// The connection of this core with this number.
fn find(core: &Core, id: ConnectionId) -> Option<Rc<Connection>> {
    core.own::<Locals>().0.borrow().get(&id).and_then(Weak::upgrade)
}
