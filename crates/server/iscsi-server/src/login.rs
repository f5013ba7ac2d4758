//! A connection's way from accept to full-feature phase: the login dialog, and the place of its
//! session.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use device::{Nexus, Principal};
use iscsi::frame::{Digests, padding_len};
use iscsi::keys::Params;
use iscsi::login::SessionType;
use iscsi::login::target::{Outcome, Placement, Reply, Step, TargetLogin};
use iscsi::name;
use iscsi::pdu::{Bhs, Isid, LoginStatus, Opcode};
use iscsi::stream::{self, Assembler};
use iscsi::target::{CommandWindow, SharedWindow, Window, inbound::WriteLimits, recovery};
use iscsi::text::LOGIN_SEGMENT_LEN;
use rdma::QueuePair;
use runtime::{Gather, TcpStream};
use scsi::reservation::TransportId;
use server_core::admission::{FREE_TEXT, Source};
use server_core::audit::Who;
use server_core::{Core, Link as Arrived, Post};

use crate::audit;
use crate::config::Limits;
use crate::connection::{Connection, text};
use crate::door::Door;
use crate::end::LoginFailure;
use crate::remote::Remote;
use crate::renewal;
use crate::session::{Arrival, Joined, Member, NewSession, PortName, Replacing, Seat, Standing};
use crate::shared::{BoundPortal, Shared};
use crate::transport::iser::{Iser, Outgoing, sent_or_over, setup};
use crate::transport::tcp::Tcp;
use crate::transport::{Link, Outbox, Start, Transport};

/// Most lost connections that one login evicts from a session; other connections may join at the
/// same time.
const EVICTIONS: usize = 4;

/// Time for a refused peer to take the answer.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Attempts of a login to end the session that it reinstates.
const REINSTATEMENTS: usize = 200;
/// Pause between two attempts.
const REINSTATEMENT_PAUSE: Duration = Duration::from_millis(10);

/// A connection whose login has succeeded.
pub(crate) struct LoggedIn {
    pub seat: Seat,
    pub outcome: Box<Outcome>,
    pub stat_sn: u32,
    pub window: Window,
}

/// A connection whose transport is known.
pub(crate) enum Wire {
    /// TCP, and received bytes that are not used yet.
    Tcp(TcpStream, Assembler),
    /// RDMA, and whether responses may invalidate the initiator's STags.
    Iser(QueuePair, bool),
}

impl Wire {
    /// Answers a connection request if it is one.
    pub(crate) async fn of(link: Arrived, shared: &Shared) -> Result<Self, LoginFailure> {
        match link {
            Arrived::Stream(stream, early) => {
                let mut input = Assembler::new(stream::Limits::LOGIN);
                input.push(&early);
                Ok(Self::Tcp(stream, input))
            }
            Arrived::Rdma(incoming) => {
                let model = shared.model();
                let (limits, config) = (&model.limits, &model.iser);
                let (pair, remote_invalidation) =
                    setup::accept(incoming, limits, config, model.zero_copy).await?;
                Ok(Self::Iser(pair, remote_invalidation))
            }
        }
    }

    /// The local address that the peer connected to.
    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream, _) => stream.local_addr(),
            Self::Iser(pair, _) => Ok(pair.local_addr()),
        }
    }

    /// The next PDU of the login, with its data segment.
    async fn receive(&mut self, room: &mut Room<'_>) -> Result<(Bhs, Vec<u8>), LoginFailure> {
        match self {
            Self::Tcp(stream, input) => receive(stream, input, room).await,
            Self::Iser(pair, _) => {
                let mut next = pin!(setup::receive(pair));
                poll_fn(|cx| {
                    let polled = next.as_mut().poll(cx);
                    room.input = pair.held();
                    match polled {
                        Poll::Pending => {
                            room.count().map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
                        }
                        ready => ready,
                    }
                })
                .await
            }
        }
    }

    async fn send(&self, reply: Reply) -> Result<(), LoginFailure> {
        let bhs: Bhs = reply.header.into();
        match self {
            Self::Tcp(stream, _) => send(stream, &bhs, &reply.data).await?,
            Self::Iser(pair, _) => setup::send(pair, &bhs, &reply.data),
        }
        Ok(())
    }

    /// Sends the last reply to a refused peer.
    async fn send_last(&self, reply: Reply) -> Result<(), LoginFailure> {
        self.send(reply).await?;
        if let Self::Iser(pair, _) = self {
            // A dropped queue pair sends nothing more.
            sent_or_over(pair, LAST_WORDS).await;
        }
        Ok(())
    }
}

/// Memory of one login in progress, beyond the amount counted for every login. Released on drop.
struct Room<'a> {
    shared: &'a Shared,
    source: Source,
    /// Received bytes that have not been used.
    input: usize,
    /// Bytes of text that is incomplete, or not sent.
    text: usize,
    counted: usize,
}

impl Room<'_> {
    /// Counts the memory that the login holds now.
    fn count(&mut self) -> Result<(), LoginFailure> {
        let now = (self.input + self.text).saturating_sub(FREE_TEXT);
        if now != self.counted {
            let rules = self.shared.rules();
            if !self.shared.hub.admission.hold(self.source, self.counted, now, &rules) {
                return Err(LoginFailure::OutOfMemory);
            }
            self.counted = now;
        }
        Ok(())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shared.hub.admission.hold(self.source, self.counted, 0, &self.shared.rules());
    }
}

/// Bounds on writes, as negotiated.
pub(crate) fn write_limits(params: &Params) -> WriteLimits {
    WriteLimits {
        max_burst: params.max_burst_length,
        first_burst: params.first_burst_length,
        max_r2t: params.max_outstanding_r2t,
        initial_r2t: params.initial_r2t,
        immediate: params.immediate_data,
    }
}

/// Bounds of recovery on a connection; `None` at ErrorRecoveryLevel 0.
fn recovery(params: &Params, limits: &Limits, queue_depth: u32) -> Option<recovery::Limits> {
    (params.error_recovery_level > 0).then(|| recovery::Limits {
        level: params.error_recovery_level,
        // A burst must fit, or nothing could ever be acknowledged.
        keep_bytes: limits.unacknowledged.max(params.max_burst_length as usize),
        keep_statuses: 2 * queue_depth as usize + 64,
        data_timeout: limits.data_timeout,
    })
}

/// Runs the login dialog on a new connection.
pub(crate) async fn run(
    wire: &mut Wire,
    peer: SocketAddr,
    portal: BoundPortal,
    shared: &Arc<Shared>,
    core: (Post, &Rc<Core>),
    who: &mut Who,
) -> Result<LoggedIn, LoginFailure> {
    let rdma = match wire {
        Wire::Iser(pair, _) => Some(setup::segment(pair.is_software())),
        Wire::Tcp(..) => None,
    };
    let group = portal.group;
    let model = shared.model();
    let door = Door { shared, model: &model, group, portal: portal.address, rdma };
    let mut login = TargetLogin::new(1);
    let source = Source::from(peer.ip());
    let mut room = Room { shared, source, input: 0, text: 0, counted: 0 };
    loop {
        let (bhs, data) = match wire.receive(&mut room).await {
            Err(LoginFailure::OutOfMemory) => return no_room(wire, &mut login).await,
            received => received?,
        };
        if bhs.opcode() != Some(Opcode::LoginRequest) {
            // RFC 7143 §6.3: nothing else may come before the full-feature phase.
            return Err(LoginFailure::Opcode(bhs.opcode_code()));
        }
        let step = login.handle(bhs.as_login_request(), &data, &door);
        let (initiator, target) = login.names();
        (who.initiator, who.target) = (initiator.map(str::to_owned), target.map(str::to_owned));
        if let Some(attempt) = login.take_attempt() {
            let wait = shared.hub.admission.attempt(source, &attempt.user, attempt.right, runtime::now());
            who.user = Some(attempt.user);
            match wait {
                Some(Duration::ZERO) => {}
                // A right and a wrong response wait alike, so that an impatient initiator learns
                // nothing.
                Some(wait) => runtime::sleep(wait).await,
                None => {
                    wire.send_last(login.refuse(LoginStatus::ServiceUnavailable)).await?;
                    return Err(LoginFailure::TooManyGuesses);
                }
            }
        }
        room.text = login.held();
        if room.count().is_err() {
            return no_room(wire, &mut login).await;
        }
        match step {
            Step::Reply(reply) => wire.send(reply).await?,
            Step::Close(reply, error) => {
                wire.send_last(reply).await?;
                return Err(error.into());
            }
            Step::Place(outcome) => {
                let arrival = Arrival {
                    peer,
                    portal: portal.address,
                    iser: rdma.is_some(),
                    header_digest: outcome.params.header_digest,
                    data_digest: outcome.params.data_digest,
                    at: runtime::now(),
                };
                let (target, user) = (outcome.target.as_deref(), outcome.user.as_deref());
                let placed = match model.principal(target, &outcome.initiator, user) {
                    Ok(principal) => place(&outcome, principal, group, shared, core, arrival).await,
                    Err(status) => Err(status),
                };
                let (seat, window, placement) = match placed {
                    Ok(placed) => placed,
                    Err(status) => {
                        wire.send_last(login.refuse(status)).await?;
                        return Err(LoginFailure::Placement(status));
                    }
                };
                if let Wire::Iser(pair, _) = wire {
                    let now = shared.model();
                    setup::widen(pair, &now.limits, &now.iser);
                }
                wire.send(login.accept(placement)).await?;
                audit::login(peer, &outcome, seat.session.tsih, rdma.is_some());
                let stat_sn = login.next_stat_sn();
                return Ok(LoggedIn { seat, outcome, stat_sn, window });
            }
        }
    }
}

/// Refuses a login because there is no memory for its text.
async fn no_room(wire: &mut Wire, login: &mut TargetLogin) -> Result<LoggedIn, LoginFailure> {
    wire.send_last(login.refuse(LoginStatus::OutOfResources)).await?;
    Err(LoginFailure::OutOfMemory)
}

/// The next PDU from a stream; `input` has been received already.
async fn receive(
    stream: &TcpStream,
    input: &mut Assembler,
    room: &mut Room<'_>,
) -> Result<(Bhs, Vec<u8>), LoginFailure> {
    loop {
        if let Some(pdu) = input.next_pdu()? {
            room.input = input.held();
            return Ok((pdu.bhs, pdu.data));
        }
        let received = stream.recv_some(LOGIN_SEGMENT_LEN).await?;
        if received.is_empty() {
            return Err(LoginFailure::Closed);
        }
        room.input = input.held() + received.len();
        room.count()?;
        input.push(&received);
    }
}

async fn send(stream: &TcpStream, bhs: &Bhs, data: &[u8]) -> std::io::Result<()> {
    let mut gather = Gather::new();
    gather.push_copy(bhs.bytes());
    gather.push_copy(data);
    gather.push_copy(&[0; 3][..padding_len(data.len())]);
    stream.send(gather).await.0
}

/// Finds the place of the session: a new one, a reinstated one, or an old one with one more
/// connection (RFC 7143 §6.3.5).
async fn place(
    outcome: &Outcome,
    principal: Option<Principal>,
    group: u16,
    shared: &Arc<Shared>,
    (post, core): (Post, &Rc<Core>),
    arrival: Arrival,
) -> Result<(Seat, Window, Placement), LoginStatus> {
    let id = shared.hub.connection_id();
    let member = Member {
        cid: outcome.cid,
        remote: Remote { id, core: post },
        arrival,
        standing: Standing::Alive,
        watches: true,
    };
    let port = PortName {
        initiator: name::normalize(&outcome.initiator),
        isid: outcome.isid,
        target: outcome.target.as_deref().map(name::normalize).unwrap_or_default(),
        group,
    };
    // The initiator may be disconnected at any time since the login's first request.
    let refused = || {
        let names = (port.initiator.clone(), port.target.clone());
        shared.refusals.covers(&names, runtime::now())
    };
    if refused() {
        return Err(LoginStatus::ServiceUnavailable);
    }
    if outcome.tsih != 0 {
        let session = shared.registry.find(outcome.tsih).filter(|session| session.port == port);
        let session = session.ok_or(LoginStatus::SessionDoesNotExist)?;
        if session.nexus.principal != principal {
            let user = principal.as_ref().map(|principal| principal.user.as_str());
            tracing::warn!(
                initiator = port.initiator,
                target = port.target,
                tsih = outcome.tsih,
                user,
                "refused: the session belongs to another user"
            );
            return Err(LoginStatus::AuthorizationFailure);
        }
        // The session has this CID already: the old connection is replaced, and at level 2 removed
        // for recovery. Below that all its tasks end without notice (§6.3.4).
        let old = session.connections().into_iter().filter(|other| other.cid == outcome.cid);
        let old: Vec<Member> = old.collect();
        let mut replacing = None;
        if session.recovers_connections() {
            // The last lost connection may end now, if it has no task left; the session continues
            // with this one.
            let begun =
                Replacing::begin(&session, &shared.registry).ok_or(LoginStatus::SessionDoesNotExist)?;
            replacing = Some(begun);
        } else if !old.is_empty() {
            let begun =
                Replacing::begin(&session, &shared.registry).ok_or(LoginStatus::TooManyConnections)?;
            replacing = Some(begun);
        }
        for old in &old {
            match session.recovers_connections() {
                true => old.remote.remove().await,
                false => old.remote.close().await,
            }
        }
        let window = match session.window.clone() {
            Some(common) => Window::Shared(common),
            // Its only connection had the window.
            None if replacing.is_some() => {
                Window::Own(Box::new(CommandWindow::new(session.exp_cmd_sn(), session.queue_depth)))
            }
            None => return Err(LoginStatus::TooManyConnections),
        };
        let mut joined = session.join(member.clone());
        for _ in 0..EVICTIONS {
            let Joined::After(gone) = &joined else { break };
            // Its place is free when its tasks have ended.
            gone.close().await;
            joined = session.join(member.clone());
        }
        if !matches!(joined, Joined::Member) {
            return Err(LoginStatus::TooManyConnections);
        }
        drop(replacing);
        let placement = placement(session.tsih, &window);
        let seat = Seat::new(session, id, shared.registry.clone(), core.clone());
        if refused() {
            return Err(LoginStatus::ServiceUnavailable);
        }
        return Ok((seat, window, placement));
    }
    for _ in 0..REINSTATEMENTS {
        let model = shared.model();
        let nexus = Arc::new(Nexus {
            id: shared.registry.nexus_id(),
            initiator: port.initiator.clone(),
            principal: principal.clone(),
            transport_id: transport_id(&port.initiator, outcome.isid),
            target_port: group,
            target: port.target.clone(),
            ports: outcome.target.as_deref().and_then(|name| Some(model.target(name)?.ports.clone())),
        });
        let view = model
            .first_view(model.generation, outcome.target.as_deref(), &outcome.initiator, &nexus)
            .ok_or(LoginStatus::AuthorizationFailure)?;
        for entry in view.luns.iter() {
            model.check_owner(&nexus, entry.unit.owner(&nexus).as_ref())?;
        }
        if let Some(old) = shared.registry.of_port(&port) {
            model.check_owner(&nexus, old.nexus.principal.as_ref())?;
            shared.registry.end(&old).await;
        }
        if shared.hub.is_closed() {
            return Err(LoginStatus::ServiceUnavailable);
        }
        let tsih = shared.registry.free_tsih(model.limits.sessions).ok_or(LoginStatus::OutOfResources)?;
        let acl = view.target.as_ref().and_then(|target| target.acl(&outcome.initiator)).flatten();
        let limits = acl.map(|acl| acl.limits).unwrap_or_default();
        let limiter = shared.initiators.limiter(&nexus, limits);
        let depth = model.limits.queue_depth;
        let several = outcome.params.max_connections > 1 || outcome.params.error_recovery_level > 1;
        let (own, common) = match several {
            false => (Window::Own(Box::new(CommandWindow::new(outcome.cmd_sn, depth))), None),
            true => {
                let common = Arc::new(SharedWindow::new(outcome.cmd_sn, depth));
                (Window::Shared(common.clone()), Some(common))
            }
        };
        let new = NewSession {
            port: port.clone(),
            nexus,
            view,
            limiter,
            window: common,
            queue_depth: depth,
            params: outcome.params.clone(),
        };
        if let Some(session) = shared.registry.add(tsih, new, member.clone()) {
            let seat = Seat::new(session.clone(), id, shared.registry.clone(), core.clone());
            // The thread that pauses the server sets the flag before it looks for sessions: one of
            // the two sees the other.
            if shared.hub.is_closed() || refused() {
                return Err(LoginStatus::ServiceUnavailable);
            }
            // Apply a change that came after `model` was read and did not find this session yet.
            let now = shared.model();
            if now.generation != model.generation {
                renewal::renew(shared, &session, &now);
            }
            let placement = placement(tsih, &own);
            return Ok((seat, own, placement));
        }
        // The old session's connection has just logged in and cannot be reached yet, or it is
        // ending.
        runtime::sleep(REINSTATEMENT_PAUSE).await;
    }
    // Another login as the same port wins again and again.
    Err(LoginStatus::ServiceUnavailable)
}

/// The initiator port's TransportID (SPC-4 §7.6.4.6); the name has been checked, so it fits.
fn transport_id(initiator: &str, isid: Isid) -> Vec<u8> {
    let mut number = [0; 8];
    number[2..].copy_from_slice(&isid.0);
    TransportId::iscsi_port(initiator, u64::from_be_bytes(number))
        .map(|id| id.bytes().to_vec())
        .unwrap_or_default()
}

fn placement(tsih: u16, window: &Window) -> Placement {
    let (exp_cmd_sn, max_cmd_sn) = window.numbers();
    Placement { tsih, exp_cmd_sn, max_cmd_sn }
}

/// The connection that a login ends in, and the start of its full-feature phase.
pub(crate) fn full_feature(
    logged_in: LoggedIn,
    wire: Wire,
    shared: &Arc<Shared>,
    core: &Rc<Core>,
) -> std::io::Result<(Rc<Connection>, Seat, Start)> {
    let local = wire.local_addr()?;
    let LoggedIn { seat, outcome, stat_sn, window } = logged_in;
    let params = &outcome.params;
    let model = shared.model();
    let limits = &model.limits;
    let discovery = outcome.session_type == SessionType::Discovery;
    let Digests { header: header_digest, data: data_digest } = params.digests();
    let peer_max_data_segment = match (&wire, discovery) {
        (Wire::Tcp(..), _) => params.peer_max_recv_data_segment_length,
        (Wire::Iser(..), true) => {
            params.peer_max_recv_data_segment_length.min(iser::UNTIL_FULL_FEATURE_DATA as u32)
        }
        (Wire::Iser(..), false) => params.peer_max_recv_data_segment_length.min(setup::SMALLEST_PEER),
    };
    // A connection that joins has room for as many commands as its session's window.
    let queue_depth = seat.session.queue_depth;
    let recovery =
        recovery(params, limits, queue_depth).filter(|_| !discovery && matches!(wire, Wire::Tcp(..)));
    let config = iscsi::target::Config {
        cid: outcome.cid,
        window,
        stat_sn,
        queue_depth,
        write: write_limits(params),
        peer_max_data_segment,
        header_digest,
        data_digest,
        discovery,
        rdma: matches!(wire, Wire::Iser(..)),
        nop_interval: limits.nop_interval,
        nop_timeout: limits.nop_timeout,
        recovery,
    };
    let mut state = iscsi::target::Connection::new(config, runtime::now());
    let retain = if params.error_recovery_level == 2 { params.default_time2retain_s } else { 0 };
    state.set_logout_times(params.default_time2wait_s, retain);
    let (link, start) = match wire {
        Wire::Tcp(stream, mut early) => {
            let accepts = stream::Limits { resync: recovery.is_some(), ..stream::Limits::of_target(params) };
            // Data that may have to be sent again is sent from memory that does not change.
            let lend = model.zero_copy && recovery.is_none();
            let outbox = Outbox { lend, holds: lend && !data_digest, ..Outbox::default() };
            let transport = Transport::Tcp(Tcp::new(stream));
            (Link { transport, outbox }, Start::Tcp(accepts, early.take_rest()))
        }
        Wire::Iser(pair, remote_invalidation) => {
            let outgoing = Outgoing::new(pair.clone(), remote_invalidation, model.zero_copy);
            let outbox = Outbox { iser: Some(Box::new(outgoing)), ..Outbox::default() };
            let start = Start::Iser { hello: params.iser_hello_required };
            (Link { transport: Transport::Iser(Iser::new(pair)), outbox }, start)
        }
    };
    let negotiated = text::Negotiated::new(outcome.params.clone(), local);
    let session = seat.session.clone();
    let connection =
        Connection::new(seat.id, outcome.cid, shared.clone(), (core, session), link, state, negotiated);
    Ok((connection, seat, start))
}
