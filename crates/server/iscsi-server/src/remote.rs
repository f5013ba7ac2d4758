//! A connection as others reach it, from whatever core: messages to the core where it lives, which
//! knows its own connections by their numbers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use iscsi::pdu::{AsyncEvent, Lun};
use iscsi::target::recovery::Recovered;
use server_core::tally::Counts;
use server_core::{ConnectionId, Core, Post};

use crate::Unit;
use crate::ferry::Parcel;
use crate::slow::{Slow, SlowLog};

/// What others may ask of a connection, on its core.
pub(crate) trait Resident {
    /// Closes now; what is queued is still sent if the peer takes it.
    fn shut(&self);
    /// Takes no more commands, ends those at work, says that its session is dropped, and closes.
    fn drain(&self);
    /// It is out of its session, whatever ended it.
    fn bury(&self);
    /// Ends when the connection and its tasks have.
    fn ended(self: Rc<Self>) -> Work<()>;
    /// Looks what its session sees, and lets go of what it does not see any more.
    fn look_again(self: Rc<Self>);
    /// Limits have changed: commands that wait are charged anew.
    fn limits_changed(self: Rc<Self>);
    /// Delivers the commands that it held, and resumes those that waited for an ORDERED command of
    /// another connection.
    fn deliver_held(self: Rc<Self>);
    /// Sends an Async Message.
    fn announce(&self, event: AsyncEvent, parameters: [u16; 3]);
    /// Aborts tasks, waits until they have ended, and says how many there were.
    fn abort(self: Rc<Self>, victims: Victims) -> Work<usize>;
    /// Waits until the initiator has acknowledged all statuses so far.
    fn acknowledged(self: Rc<Self>) -> Work<()>;
    /// How many tasks there are.
    fn count(self: Rc<Self>, victims: &Victims) -> usize;
    /// Removes it for recovery (RFC 7143 §11.14.1), and waits until it takes part in nothing any
    /// more.
    fn remove(self: Rc<Self>) -> Work<()>;
    /// The unit and the CmdSN of the task with tag `itt`, if it is allegiant to this connection.
    fn allegiant(&self, itt: u32) -> Option<(Lun, u32)>;
    /// Gives up a task, if this connection is gone.
    fn give_up(self: Rc<Self>, itt: u32, exp_data_sn: u32) -> Option<Parcel>;
    /// The TSIH of its session.
    fn tsih(&self) -> u16;
    /// What it has counted, by its units' addresses; what is not of any unit that it sees now is
    /// under 0.
    fn counts(&self) -> Vec<(usize, Counts)>;
    /// Its slow commands that are not in the core's log.
    fn slow(&self) -> Vec<Slow>;
    /// What recovery had to do that is not in its session's account.
    fn recovered(&self) -> Option<Recovered>;
}

/// What a connection does for others.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T>>>;

/// The connections of a core.
#[derive(Default)]
struct Locals(RefCell<HashMap<ConnectionId, Weak<dyn Resident>>>);

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
    /// Those that were sent before the request with this CmdSN, for this unit or for all: what a
    /// task management function affects in its own session (RFC 7143 §4.2.3.2). Later ones may have
    /// come while it was at work.
    Earlier(u32, Option<Unit>),
    /// All.
    All,
}

impl Remote {
    /// Runs `f` on the connection, on its core, and waits for what it gives; `None` if the
    /// connection is gone.
    async fn ask<T, F, Fut>(&self, f: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<dyn Resident>) -> Fut + Send + 'static,
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

    /// Closes the connection and does not wait.
    pub(crate) fn shut(&self) {
        self.tell(|connection| connection.shut());
    }

    /// Has the connection look what its session sees, and let go of what it does not see any more.
    pub(crate) fn look_again(&self) {
        self.tell(|connection| connection.look_again());
    }

    /// Has the connection take no more commands, end those at work, say that its session is
    /// dropped, and close.
    pub(crate) fn drain(&self) {
        self.tell(|connection| connection.drain());
    }

    /// Limits have changed: commands that wait are charged anew.
    pub(crate) fn limits_changed(&self) {
        self.tell(|connection| connection.limits_changed());
    }

    /// Sends an Async Message.
    pub(crate) fn announce(&self, event: AsyncEvent, parameters: [u16; 3]) {
        self.tell(move |connection| connection.announce(event, parameters));
    }

    /// Aborts tasks; returns how many there were, when they have ended.
    pub(crate) async fn abort(&self, victims: Victims) -> usize {
        self.ask(|connection| async move { connection.abort(victims).await }).await.unwrap_or(0)
    }

    /// Waits until the initiator has acknowledged all statuses that the connection has sent so far,
    /// or the connection is gone.
    pub(crate) async fn acknowledged(&self) {
        self.ask(|connection| async move { connection.acknowledged().await }).await;
    }

    /// How many tasks there are.
    pub(crate) async fn count(&self, victims: Victims) -> usize {
        self.ask(|connection| async move { connection.count(&victims) }).await.unwrap_or(0)
    }

    /// Has the connection deliver the commands that it held, and resume those that waited for an
    /// ORDERED command of another one.
    pub(crate) fn deliver_held(&self) {
        self.tell(|connection| connection.deliver_held());
    }

    /// Removes the connection for recovery.
    pub(crate) async fn remove(&self) {
        self.ask(|connection| async move { connection.remove().await }).await;
    }

    /// The unit and the CmdSN of the task with tag `itt`, if it is allegiant to the connection.
    pub(crate) async fn allegiant(&self, itt: u32) -> Option<(Lun, u32)> {
        let task = self.ask(move |connection| async move { connection.allegiant(itt) });
        task.await.flatten()
    }

    /// Takes a task from the connection, which is gone.
    pub(crate) async fn give_up(&self, itt: u32, exp_data_sn: u32) -> Option<Parcel> {
        let parcel = self.ask(move |connection| async move { connection.give_up(itt, exp_data_sn) });
        parcel.await.flatten()
    }

    /// Does something with the connection, on its core, if it still is there.
    fn tell(&self, f: impl FnOnce(Rc<dyn Resident>) + Send + 'static) {
        let id = self.id;
        // A core that has stopped has no connections any more.
        let _ = self.core.run(move |core| async move {
            if let Some(connection) = find(&core, id) {
                f(connection);
            }
        });
    }
}

/// Lets others find a connection of this core.
pub(crate) fn enter(core: &Core, id: ConnectionId, connection: Weak<dyn Resident>) {
    core.own::<Locals>().0.borrow_mut().insert(id, connection);
}

/// Forgets a connection of this core that is out of its session.
pub(crate) fn bury(core: &Core, id: ConnectionId) {
    let connection = core.own::<Locals>().0.borrow_mut().remove(&id);
    if let Some(connection) = connection.and_then(|connection| connection.upgrade()) {
        connection.bury();
    }
}

/// The connections of this core.
fn locals(core: &Core) -> Vec<Rc<dyn Resident>> {
    core.own::<Locals>().0.borrow().values().filter_map(Weak::upgrade).collect()
}

/// What each connection of this core has counted: its session, and by its units' addresses
/// ([`Resident::counts`]).
pub(crate) fn counted(core: &Core) -> Vec<(u16, usize, Counts)> {
    let connections = locals(core);
    let of = |connection: &Rc<dyn Resident>| {
        let tsih = connection.tsih();
        connection.counts().into_iter().map(move |(unit, counts)| (tsih, unit, counts)).collect::<Vec<_>>()
    };
    connections.iter().flat_map(of).collect()
}

/// The slow commands of this core.
pub(crate) fn slow(core: &Core) -> Vec<Slow> {
    let mut all = core.own::<SlowLog>().all();
    all.extend(locals(core).iter().flat_map(|connection| connection.slow()));
    all
}

/// What recovery had to do on each connection of this core, by its session.
pub(crate) fn recovered(core: &Core) -> Vec<(u16, Recovered)> {
    let all = locals(core);
    all.iter().filter_map(|connection| Some((connection.tsih(), connection.recovered()?))).collect()
}

/// The connection of this core with this number.
fn find(core: &Core, id: ConnectionId) -> Option<Rc<dyn Resident>> {
    core.own::<Locals>().0.borrow().get(&id).and_then(Weak::upgrade)
}
