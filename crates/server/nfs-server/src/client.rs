//! [`Client`]: the peer of a connection.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use nfs::v4::state::Outcome;
use rpc::auth::OpaqueAuth;
use rpc::message::AuthStat;
use server_core::qos::Cost;
use server_core::{ConnectionId, Core};

use crate::back_channel::{BackChannel, PATIENCE};
use crate::caller::{Identities, Identity};
use crate::config::NfsLimits;
use crate::file::File;
use crate::model::Edition;
use crate::pace::Pace;
use crate::shared::Shared;
use crate::slow::Courses;
use crate::tally::Tallies;

/// Port 111: a portal there tells the port of another one.
const PORTMAPPER: u16 = rpc::bind::PORT;

/// The client of a connection.
pub(crate) struct Client {
    /// Names the connection.
    pub connection: u64,
    /// Whether the state of NFSv4 knows the connection.
    pub known: Cell<bool>,
    /// Whether the connection is over. Calls in progress go on.
    pub over: Cell<bool>,
    /// The calls to it.
    pub back: BackChannel,
    /// Its end.
    pub peer: SocketAddr,
    /// The server's address of the connection.
    pub local: SocketAddr,
    pub identities: Identities,
    pace: Pace,
    /// Its calls that could not be answered at once.
    pub courses: Courses,
    pub shared: Arc<Shared>,
    /// Its core's counts.
    pub tallies: Rc<Tallies>,
    /// The configuration in force when the connection last looked.
    model: RefCell<Arc<Edition>>,
}

impl Client {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        connection: ConnectionId,
        core: &Core,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Self {
        Self {
            connection: connection.0,
            known: Cell::new(false),
            over: Cell::new(false),
            back: BackChannel::default(),
            peer,
            local,
            identities: Identities::default(),
            pace: Pace::default(),
            courses: Courses::new(core.own()),
            tallies: core.own(),
            model: RefCell::new(shared.model()),
            shared: shared.clone(),
        }
    }

    /// The configuration in force.
    pub(crate) fn model(&self) -> Arc<Edition> {
        self.look();
        self.model.borrow().clone()
    }

    /// The bounds in force.
    pub(crate) fn limits(&self) -> NfsLimits {
        self.look();
        self.model.borrow().limits
    }

    /// Looks whether the configuration has changed.
    fn look(&self) {
        let mut known = self.model.borrow_mut();
        if known.generation != self.shared.served.generation() {
            *known = self.shared.model();
        }
    }

    /// The caller's identity: with the groups that it claims, or with those that the machine knows.
    ///
    /// # Errors
    /// The credential is malformed, or of a flavor that is not served.
    pub(crate) async fn identity(&self, credential: &OpaqueAuth<'_>) -> Result<Rc<Identity>, AuthStat> {
        let user = self.identities.of(credential)?;
        let lookup = match &*self.model.borrow() {
            seen if seen.generation == self.shared.served.generation() => seen.groups.clone(),
            _ => self.shared.model().groups.clone(),
        };
        match lookup {
            Some(lookup) => Ok(self.courses.wait(user.managed(&self.shared.groups, &lookup)).await),
            None => Ok(user.claimed.clone()),
        }
    }

    /// Waits until the limits permit the client to read or write `bytes` of a file.
    pub(crate) async fn admit(&self, file: &File, writes: bool, bytes: u64) {
        if let Some(limits) = &file.rule.limits {
            let whose = (file.export.id, self.peer.ip());
            let turn = self.pace.admit(&self.shared, whose, **limits, Cost { writes, bytes });
            let waited = self.courses.wait(turn).await;
            if !waited.is_zero() {
                file.tally.waited(waited);
            }
        }
    }

    /// Gives a call to the client up that it does not answer in time. Holds nothing meanwhile: a
    /// takeover waits until the trees of all clients are closed.
    pub(crate) fn wait_for_answer(self: &Rc<Self>, xid: u32) {
        let client = Rc::downgrade(self);
        drop(runtime::spawn(async move {
            runtime::sleep(PATIENCE).await;
            // After the end of its connection no call waits.
            let Some(client) = client.upgrade() else { return };
            if let Some(sent) = client.back.give_up(xid) {
                let state = &client.shared.state;
                let outcome = Outcome::Lost;
                state.with(|state, _| state.called(sent.session, sent.slot, sent.sequence, outcome));
            }
        }));
    }

    /// The port of NFS for answers to the client.
    pub(crate) fn nfs_port(&self) -> u16 {
        if self.local.port() != PORTMAPPER {
            return self.local.port();
        }
        let model = self.model();
        let mut tcp = model.portals.iter().filter(|portal| !portal.asked.verbs);
        let other = tcp.find(|portal| portal.address.port() != PORTMAPPER);
        other.map_or(PORTMAPPER, |portal| portal.address.port())
    }
}
