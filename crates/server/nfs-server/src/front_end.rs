//! NFS as a front end of [`server_core`]: its portals, its connections, its exports, and their
//! status and changes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nfs::v4::state::Callback;
use runtime::TcpStream;
use server_core::admission::Rules;
use server_core::audit::{self, Who};
use server_core::{
    Arrival, Change, Changing, ConnectionId, Core, FrontEnd, Hub, Link, Portals, Served, Service, Services,
    Sniff,
};

use crate::carried::{self, Carried};
use crate::config::{NfsConfig, NfsPortal};
use crate::connection::{Connected, Connection};
use crate::end::End;
use crate::handle::Bytes;
use crate::model::{Exported, Model, PortalEntry};
use crate::over_rdma::OverRdma;
use crate::replies::Replies;
use crate::shared::Shared;
use crate::slow::{SlowCall, SlowLog};
use crate::state::{State, limits};
use crate::tally::{self, Counts, OperationCounts, Tallies};

/// Bytes that show an RPC call: a record's mark, XID, CALL.
const SHOWN: usize = 12;
/// `msg_type` of a call (RFC 5531 §9).
const CALL: u32 = 0;

/// The connections of one core.
#[derive(Default)]
struct Own(RefCell<BTreeMap<ConnectionId, Rc<dyn Connected>>>);

/// NFS of a running server, as its administrators reach it. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// An export as it is served now.
#[derive(Clone, Debug)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// Its calls and bytes.
    pub counts: Counts,
}

/// Counts of all clients' calls since the server's start.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The exports as they are now, and their clients' calls.
    pub exports: Vec<ExportStatus>,
    /// How the operations of all clients have ended.
    pub operations: Vec<OperationCounts>,
    /// Whether every core answered. The counts of silent cores are missing.
    pub complete: bool,
}

/// A connection of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientStatus {
    /// The client's end.
    pub peer: SocketAddr,
    /// The core that it lives on.
    pub core: usize,
    /// Age of the connection.
    pub age: Duration,
    /// Calls that it has made.
    pub calls: u64,
}

/// Begins to serve NFS with `config`, as a front end of `server`. `carried` is the result of a
/// predecessor's [`Handle::hand_over`], or empty.
///
/// # Errors
/// When an address cannot be bound.
pub fn begin(server: &server_core::Server, config: NfsConfig, carried: &[u8]) -> io::Result<Handle> {
    let mut change = server.change();
    let handle = prepare(server, &mut change, config, carried)?;
    change.commit();
    Ok(handle)
}

/// Prepares a front end of `server` that serves NFS once `change` is committed. The rest is as of
/// [`begin`].
///
/// # Errors
/// When an address cannot be bound.
pub fn prepare(
    server: &server_core::Server,
    change: &mut Change<'_>,
    config: NfsConfig,
    carried: &[u8],
) -> io::Result<Handle> {
    let carried = (!carried.is_empty()).then(|| Carried::read(carried, config.limits.lease)).transpose();
    let (state, kept) = match carried {
        Ok(carried) => carried.map_or((None, Vec::new()), |it| (Some(it.state), it.replies)),
        Err(error) => {
            tracing::warn!(%error, "NFS clients reclaim what they have open: it could not be taken over");
            (None, Vec::new())
        }
    };
    let replies = Replies::default();
    kept.iter().for_each(|(key, reply)| replies.end(*key, Some(reply), config.limits.replies));
    let state = State::new(config.clients.clone(), limits(config.limits.lease), state, {
        let hub = server.hub().clone();
        move |call| call_back(&hub, call)
    });
    let nothing = NfsConfig { portals: Vec::new(), exports: Vec::new(), ..config.clone() };
    let shared = Shared::new(server.hub().clone(), Model::new(nothing), state, replies);
    let handle = Handle { shared };
    handle.prepare(change, config)?;
    let shared = &handle.shared;
    // A core that has stopped serves nothing.
    let _ = shared.hub.first().run({
        let shared = Arc::downgrade(shared);
        move |_| keep_time(shared)
    });
    server.add(shared.clone());
    Ok(handle)
}

/// Sends a call to a client. The core of the connection is unknown, so each core is asked.
fn call_back(hub: &Hub, call: Callback<Bytes>) {
    let call = Arc::new(call);
    for core in hub.posts() {
        let call = call.clone();
        // A core that has stopped has no connections.
        let _ = core.run(move |core| async move {
            let connection = core.own::<Own>().0.borrow().get(&ConnectionId(call.connection)).cloned();
            connection.iter().for_each(|it| it.call_back(&call));
        });
    }
}

/// Ends what the time ends of NFSv4's state.
async fn keep_time(shared: Weak<Shared>) {
    loop {
        runtime::sleep(Duration::from_secs(1)).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.state.with(|state, now| state.tick(now));
        shared.state.ledger.retry().await;
    }
}

impl Handle {
    /// Serves what `config` says from now on, whole or not at all. Clients notice nothing, but
    /// those whose export is gone: their handles are stale. Blocks, and must not be called on a
    /// core.
    ///
    /// # Errors
    /// When an address cannot be listened on; nothing has changed then.
    pub fn apply(&self, config: NfsConfig) -> io::Result<()> {
        let mut change = Change::begin(&self.shared.hub);
        self.prepare(&mut change, config)?;
        change.commit();
        Ok(())
    }

    /// The part of [`Self::apply`] that can fail. Nothing has changed before `change` is committed.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn prepare(&self, change: &mut Change<'_>, config: NfsConfig) -> io::Result<()> {
        let portals = config.portals.clone();
        change.prepare(&self.shared, Model::new(config), &portals)
    }

    /// State for a successor, so that clients notice only a pause. The server must be paused and
    /// have no calls in progress.
    pub fn hand_over(&self) -> Vec<u8> {
        let replies = self.shared.replies.all();
        self.shared.state.with(|machine, now| carried::encoded(machine, now, &replies))
    }

    /// Addresses on which the server listens, with the ports that it bound.
    pub fn portals(&self) -> Vec<NfsPortal> {
        let model = self.shared.model();
        model.portals.iter().map(|portal| NfsPortal { listen: portal.address, ..portal.asked }).collect()
    }

    /// Counts of all clients' calls. Waits for the cores for `patience` at most. Blocks, and must
    /// not be called on a core.
    pub fn activity(&self, patience: Duration) -> Activity {
        let per_core = self.shared.hub.on_each_core(patience, |core| {
            let tallies = core.own::<Tallies>();
            (tallies.all(), tallies.operations.counts())
        });
        let complete = per_core.iter().all(Option::is_some);
        let (exports, operations): (Vec<_>, Vec<_>) = per_core.into_iter().flatten().unzip();
        let all: Vec<_> = exports.into_iter().flatten().collect();
        let status = |export: &Arc<Exported>| {
            let mut counts = Counts::default();
            all.iter().filter(|(id, _)| *id == export.id).for_each(|(_, own)| counts.add(own));
            ExportStatus { name: export.config.name.clone(), counts }
        };
        let exports = self.shared.model().exports.iter().map(status).collect();
        Activity { exports, operations: tally::named(operations.into_iter()), complete }
    }

    /// The slowest calls of each core, and those that have been at work for long, the slowest
    /// first. `None` if a core does not answer within `patience`. Blocks, and must not be called
    /// on a core.
    pub fn slow(&self, patience: Duration) -> Option<Vec<SlowCall>> {
        let per_core = self.shared.hub.on_each_core(patience, |core| {
            let mut all = core.own::<SlowLog>().all();
            for one in core.own::<Own>().0.borrow().values() {
                all.extend(one.client().courses.slow_now(one.client()));
            }
            all
        });
        let all: Option<Vec<_>> = per_core.into_iter().collect();
        let mut all: Vec<SlowCall> = all?.into_iter().flatten().collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.took()));
        Some(all)
    }

    /// Ends the connections of a host at once, or the one with this port, and refuses the host for
    /// `time`. What the clients have open stays theirs. Returns the number of connections, `None`
    /// if there is none. Leaves out cores that do not answer within `patience`. Blocks, and must
    /// not be called on a core.
    pub fn disconnect(
        &self,
        host: IpAddr,
        port: Option<u16>,
        time: Duration,
        patience: Duration,
    ) -> Option<NonZeroUsize> {
        let is_it = is_of(host, port);
        self.connections(host, port, patience)?;
        let host = host.to_canonical();
        // Before its connections end: it would come back at once.
        self.shared.refusals.refuse(host, runtime::clock(), time);
        let ended = self.shared.hub.on_each_core(patience, move |core| {
            let all: Vec<_> = core.own::<Own>().0.borrow().values().cloned().collect();
            let found: Vec<_> = all.into_iter().filter(|one| is_it(one.client().peer)).collect();
            found.iter().for_each(|one| one.cut());
            found.len()
        });
        let place = port.map_or_else(|| host.to_string(), |port| SocketAddr::new(host, port).to_string());
        audit::disconnected(&Who::default(), &place, time);
        NonZeroUsize::new(ended.into_iter().flatten().sum())
    }

    /// How many connections a host has, or whether the one with this port is there: `None` if there
    /// is none. Cores that do not answer within `patience` are left out. Blocks, and must not be
    /// called on a core.
    pub fn connections(&self, host: IpAddr, port: Option<u16>, patience: Duration) -> Option<NonZeroUsize> {
        let is_it = is_of(host, port);
        NonZeroUsize::new(self.clients(patience).iter().filter(|client| is_it(client.peer)).count())
    }

    /// The connections of clients. Cores that do not answer within `patience` are left out. Blocks,
    /// and must not be called on a core.
    pub fn clients(&self, patience: Duration) -> Vec<ClientStatus> {
        let all = self.shared.hub.on_each_core(patience, |core| {
            let own = core.own::<Own>();
            let all = own.0.borrow();
            let of = |one: &Rc<dyn Connected>| (one.client().peer, one.since().elapsed(), one.made());
            all.values().map(of).collect::<Vec<_>>()
        });
        let all = all.into_iter().enumerate();
        all.flat_map(|(core, found)| found.into_iter().flatten().map(move |one| (core, one)))
            .map(|(core, (peer, age, calls))| ClientStatus { peer, core, age, calls })
            .collect()
    }
}

/// Whether a connection is of a host, or the one with this port.
fn is_of(host: IpAddr, port: Option<u16>) -> impl Fn(SocketAddr) -> bool + Copy + Send + 'static {
    let host = host.to_canonical();
    move |peer| peer.ip().to_canonical() == host && port.is_none_or(|port| peer.port() == port)
}

impl Shared {
    /// Does something to every connection, on its core.
    fn on_connections(&self, act: impl Fn(&dyn Connected) + Clone + Send + 'static) {
        for core in self.hub.posts() {
            let act = act.clone();
            // A core that has stopped has none.
            let _ = core.run(move |core| async move {
                let all: Vec<_> = core.own::<Own>().0.borrow().values().cloned().collect();
                all.iter().for_each(|one| act(&**one));
            });
        }
    }
}

impl FrontEnd for Shared {
    fn portals(&self) -> &dyn Portals {
        &self.served
    }

    fn quiesce(&self) {
        self.on_connections(|one| one.close());
    }

    fn has_clients(&self) -> bool {
        self.clients.load(Ordering::Acquire) > 0
    }

    fn disconnect(&self) {
        if !self.has_clients() {
            return;
        }
        self.on_connections(|one| one.cut());
        let deadline = runtime::clock() + Duration::from_secs(6);
        while self.has_clients() && runtime::clock() < deadline {
            runtime::nap(Duration::from_millis(1));
        }
    }

    fn let_go(&self) {
        self.served.replace(self.model().nothing());
    }

    fn wind_down(self: Arc<Self>, grace: Duration) -> Pin<Box<dyn Future<Output = io::Result<()>>>> {
        Box::pin(async move {
            self.quiesce();
            let deadline = runtime::now() + grace;
            while self.has_clients() && runtime::now() < deadline {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            self.on_connections(|one| one.cut());
            Ok(())
        })
    }
}

impl Changing for Shared {
    type Content = Model;
    type Asked = NfsPortal;

    fn contents(&self) -> &Served<Model, NfsPortal> {
        &self.served
    }

    fn services(self: &Arc<Self>, _: &PortalEntry) -> Services {
        Arc::new([Arc::new(AtPortal(self.clone()))])
    }
}

/// NFS at one portal.
struct AtPortal(Arc<Shared>);

impl Service for AtPortal {
    fn rules(&self) -> Rules {
        let limits = self.0.model().limits;
        Rules {
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            // A connection has no login: it is one until its first call. One address may have as
            // many as connections: early drop would take some below that limit.
            logins: limits.connections,
            logins_per_address: limits.connections,
            login_memory: usize::MAX,
        }
    }

    fn setup_time(&self) -> Duration {
        self.0.model().limits.setup_time
    }

    fn prepare(&self, stream: &TcpStream, _: SocketAddr) {
        stream.unpaced_within_machine();
    }

    fn takes_rdma(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn sniff(&self, first: &[u8]) -> Sniff {
        let Some(first) = first.first_chunk::<SHOWN>() else { return Sniff::More };
        let word = |at: usize| u32::from_be_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        match word(8) {
            // The word is not that of a call's header if a short fragment ends before it.
            _ if word(0) < 8 => Sniff::Mine,
            // A call of another RPC version gets RPC_MISMATCH later.
            CALL => Sniff::Mine,
            _ => Sniff::No("what came is no RPC call"),
        }
    }

    fn serve(self: Arc<Self>, arrival: Arrival) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move { serve(&self.0, arrival).await })
    }
}

/// One connection, from its first bytes to its end.
async fn serve(shared: &Arc<Shared>, arrival: Arrival) {
    let Arrival { link, peer, core, mut place, deadline } = arrival;
    if shared.refusals.covers(&peer.ip().to_canonical(), runtime::now()) {
        return audit::refused(&shared.hub, peer, &Who::default(), &"an administrator has disconnected it");
    }
    let begun = || place.logged_in();
    let end = match link {
        Link::Stream(stream, first) => {
            let connection = Connection::new(shared, stream, peer, &core);
            let present = Present::new(shared, &core, connection.clone());
            let end = connection.serve(first, deadline, begun).await;
            drop(present);
            end
        }
        Link::Rdma(incoming) => match OverRdma::accept(shared, incoming, &core, deadline).await {
            Ok(connection) => {
                let present = Present::new(shared, &core, connection.clone());
                let end = connection.serve(deadline, begun).await;
                drop(present);
                end
            }
            Err(error) => error.into(),
        },
    };
    match end {
        End::Closed | End::Asked | End::Io(_) => tracing::debug!(%peer, %end, "a connection has ended"),
        end => tracing::info!(%peer, %end, "a connection has ended"),
    }
}

/// A connection among those of its core, for as long as it is there.
struct Present {
    shared: Arc<Shared>,
    own: Rc<Own>,
    connection: Rc<dyn Connected>,
}

impl Present {
    fn new(shared: &Arc<Shared>, core: &Core, connection: Rc<dyn Connected>) -> Self {
        shared.clients.fetch_add(1, Ordering::AcqRel);
        let own = core.own::<Own>();
        own.0.borrow_mut().insert(connection.id(), connection.clone());
        Self { shared: shared.clone(), own, connection }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let id = self.connection.id();
        self.own.0.borrow_mut().remove(&id);
        self.connection.client().back.end();
        self.connection.client().over.set(true);
        if self.connection.client().known.get() {
            self.shared.state.with(|state, _| state.closed(id.0));
        }
        self.shared.clients.fetch_sub(1, Ordering::AcqRel);
    }
}
