//! Sessions of the target: their connections, their window, and their end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use device::{ItlNexus, LogicalUnit, NexusId};
use disk::unit::DiskUnit;
use iscsi::keys::Params;
use iscsi::pdu::Isid;
use iscsi::target::SharedWindow;

use super::Target;
use super::connection::Connection;
use crate::clock::{Micros, SECOND};
use crate::trace::note;

/// One session.
pub(super) struct Session {
    pub tsih: u16,
    pub initiator: String,
    pub isid: Isid,
    pub nexus: Arc<ItlNexus>,
    pub unit: Arc<DiskUnit>,
    /// When it may have several connections.
    pub window: Option<Arc<SharedWindow>>,
    pub params: Params,
    pub members: RefCell<Vec<Rc<Connection>>>,
    /// Connections that were let in and are not members yet.
    pub coming: RefCell<Vec<u16>>,
    /// It takes no more connections.
    pub ending: Cell<bool>,
}

/// How long a gap among a session's commands may last after the time for their recovery is over.
const PLUG: Micros = 2 * SECOND;

impl Session {
    pub fn connections(&self) -> Vec<Rc<Connection>> {
        self.members.borrow().clone()
    }

    pub fn nexus_id(&self) -> NexusId {
        self.nexus.nexus.id
    }

    /// Whether tasks outlive their connections: ErrorRecoveryLevel 2.
    pub fn recovers_connections(&self) -> bool {
        self.params.error_recovery_level >= 2
    }

    /// How long the tasks of a connection that is gone wait for another one: Time2Wait and Time2Retain.
    pub fn retention(&self) -> Micros {
        let Params { default_time2wait_s, default_time2retain_s, .. } = self.params;
        (Micros::from(default_time2wait_s) + Micros::from(default_time2retain_s)) * SECOND
    }

    /// Whether commands wait for one before them that has not come.
    pub fn has_gap(&self) -> bool {
        self.gap().is_some()
    }

    fn gap(&self) -> Option<u32> {
        self.window.as_ref().and_then(|window| window.gap())
    }

    /// Lets a connection in; false when the session is ending or full, or has the CID.
    pub fn admit(&self, cid: u16) -> bool {
        let members = self.members.borrow();
        let mut coming = self.coming.borrow_mut();
        // Connections that are gone stay for their tasks; at level 2 one more may come, for one that is still believed to be there.
        let alive = || members.iter().filter(|member| !member.is_detached());
        let most = usize::from(self.params.max_connections) + usize::from(self.recovers_connections());
        let fits = !self.ending.get()
            && alive().count() + coming.len() < most
            && members.len() + coming.len() < 2 * most
            && alive().all(|member| member.cid != cid)
            && !coming.contains(&cid);
        if fits {
            coming.push(cid);
        }
        fits
    }

    /// A connection that was let in is there.
    pub fn join(&self, connection: Rc<Connection>) {
        self.coming.borrow_mut().retain(|cid| *cid != connection.cid);
        self.members.borrow_mut().push(connection);
    }
}

impl Target {
    /// The session of this initiator port, which a login with TSIH 0 reinstates.
    pub(super) fn session_of(&self, initiator: &str, isid: Isid) -> Option<Rc<Session>> {
        let sessions = self.sessions.borrow();
        sessions.values().find(|s| s.initiator == initiator && s.isid == isid).cloned()
    }

    pub(super) fn session(&self, tsih: u16) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&tsih).cloned()
    }

    pub(super) fn all_sessions(&self) -> Vec<Rc<Session>> {
        self.sessions.borrow().values().cloned().collect()
    }

    pub(super) fn free_tsih(&self) -> u16 {
        loop {
            let next = self.last_tsih.get().wrapping_add(1).max(1);
            self.last_tsih.set(next);
            if !self.sessions.borrow().contains_key(&next) {
                return next;
            }
        }
    }

    pub(super) fn nexus_id(&self) -> NexusId {
        self.next_nexus.set(self.next_nexus.get() + 1);
        NexusId(self.next_nexus.get())
    }

    pub(super) fn enter(&self, session: Rc<Session>) {
        session.unit.attach(&session.nexus);
        self.sessions.borrow_mut().insert(session.tsih, session);
    }

    /// Connections that are gone and whose tasks wait for another one.
    pub(super) fn detached(&self) -> Vec<Rc<Connection>> {
        let sessions = self.sessions.borrow();
        let members = sessions.values().flat_map(|session| session.connections());
        members.filter(|member| member.is_detached()).collect()
    }

    /// A connection's time for recovery is over: if commands wait for one that was lost with it, and goes on being lost, the session
    /// fails.
    pub(super) async fn end_if_stuck(&self, session: &Rc<Session>) {
        let Some(gap) = session.gap().filter(|_| !session.ending.get()) else { return };
        self.sleep(PLUG).await;
        if !session.ending.get() && session.gap() == Some(gap) {
            note!(self.trace, "target: session {} waits for a command that was lost", session.tsih);
            session.ending.set(true);
            session.connections().iter().for_each(|member| member.end(true));
        }
    }

    /// A connection and its tasks have ended.
    pub(super) fn leave(&self, session: &Rc<Session>, connection: &Connection) {
        session.members.borrow_mut().retain(|member| !std::ptr::eq(&**member, connection));
        self.end_if_empty(session);
    }

    /// A connection that was let in will not come.
    pub(super) fn never_came(&self, session: &Rc<Session>, cid: u16) {
        session.coming.borrow_mut().retain(|coming| *coming != cid);
        self.end_if_empty(session);
    }

    /// The last connection takes the session along.
    fn end_if_empty(&self, session: &Rc<Session>) {
        if session.members.borrow().is_empty() && session.coming.borrow().is_empty() {
            session.ending.set(true);
            session.unit.detach(session.nexus_id());
            self.sessions.borrow_mut().remove(&session.tsih);
            note!(self.trace, "target: session {} has ended", session.tsih);
        }
        self.session_ended.ring();
    }

    /// Ends a session and waits until it is gone.
    pub(super) async fn end_session(&self, session: &Rc<Session>) {
        session.ending.set(true);
        for member in session.connections() {
            member.end(true);
        }
        let gone = || {
            let sessions = self.sessions.borrow();
            let there = sessions.get(&session.tsih).is_some_and(|other| Rc::ptr_eq(other, session));
            (!there).then_some(())
        };
        self.session_ended.until(gone).await;
    }
}
