//! A connection's way from accept to full-feature phase: the login dialog, and the session's place among the others.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::Nexus;
use iscsi::chap::Secret;
use iscsi::frame::{Cut, Cutter, padding_len};
use iscsi::keys::{Digest, DigestChoice, Offer, Params};
use iscsi::login::SessionType;
use iscsi::login::target::{
    Auth as AuthDemand, Claim, Directory, Grant, LoginError, Outcome, Placement, Refusal, Reply, Step,
    TargetLogin,
};
use iscsi::name;
use iscsi::pdu::{Bhs, Isid, LoginStatus, Opcode};
use iscsi::target::{CommandWindow, SharedWindow, Window, inbound::WriteLimits};
use iscsi::text::LOGIN_SEGMENT_LEN;
use ring::{Gather, Handle, TcpStream};
use scsi::reservation::TransportId;

use crate::config::{Auth, Limits};
use crate::connection::{Connection, Remote};
use crate::lun_map::LunMap;
use crate::node::Target;
use crate::server::Shared;
use crate::session::{Member, NewSession, PortName, Seat};
use crate::text;

/// Why a connection did not get through login.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginFailure {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("not an iSCSI login: {0}")]
    Frame(#[from] iscsi::frame::FrameError),
    #[error("opcode {0:#04x} instead of a login request")]
    Opcode(u8),
    #[error(transparent)]
    Refused(#[from] LoginError),
    #[error("the session could not be placed: {0}")]
    Placement(LoginStatus),
    #[error("it took too long")]
    TimedOut,
}

/// How often a login ends the session that it reinstates, before it gives up.
const REINSTATEMENTS: usize = 200;
/// The time between two of those.
const REINSTATEMENT_PAUSE: Duration = Duration::from_millis(10);

/// A connection that is through.
pub(crate) struct LoggedIn {
    pub seat: Seat,
    pub outcome: Box<Outcome>,
    pub stat_sn: u32,
    pub window: Window,
    /// Bytes that came after the last login request.
    pub early: Vec<u8>,
}

/// What this portal lets in: the answers to a login's questions.
struct Door<'a> {
    shared: &'a Shared,
    /// The portal group that the connection came through.
    group: u16,
}

impl Door<'_> {
    fn target(&self, claim: &Claim<'_>) -> Option<&Arc<Target>> {
        self.shared.target(claim.target?)
    }

    /// What this initiator has to prove.
    fn auth(&self, claim: &Claim<'_>) -> Option<&Auth> {
        match claim.session_type {
            SessionType::Discovery => Some(&self.shared.discovery_auth),
            SessionType::Normal => {
                let target = self.target(claim)?;
                let acl = target.acl(claim.initiator)?;
                Some(acl.and_then(|acl| acl.auth.as_ref()).unwrap_or(&target.config.auth))
            }
        }
    }
}

impl Directory for Door<'_> {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if self.shared.is_stopping() {
            return Err(Refusal::Status(LoginStatus::ServiceUnavailable));
        }
        let mut grant = Grant {
            auth: AuthDemand::None,
            offer: offer(&self.shared.limits, claim.session_type),
            portal_group_tag: self.group,
            alias: None,
            session: None,
        };
        if let Some(name) = claim.target {
            let Some(target) = self.shared.target(name).filter(|target| target.serves(self.group)) else {
                return Err(Refusal::Status(LoginStatus::NotFound));
            };
            if target.acl(claim.initiator).is_none() {
                return Err(Refusal::Status(LoginStatus::AuthorizationFailure));
            }
            grant.alias = Some(target.config.alias.clone()).filter(|alias| !alias.is_empty());
        }
        if let Some(Auth::Chap(chap)) = self.auth(claim) {
            grant.auth =
                AuthDemand::Chap { hashes: chap.hashes.clone(), mutual: chap.mutual.clone(), required: true };
        }
        if claim.tsih != 0 {
            let session = self.shared.registry.find(claim.tsih);
            let port = port_name(claim, self.group);
            let Some(session) = session.filter(|session| session.port == port) else {
                return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
            };
            if session.params.max_connections == 1 {
                return Err(Refusal::Status(LoginStatus::TooManyConnections));
            }
            grant.session = Some(session.params.clone());
        }
        Ok(grant)
    }

    fn secret(&self, claim: &Claim<'_>, user: &str) -> Option<Secret> {
        let Some(Auth::Chap(chap)) = self.auth(claim) else { return None };
        chap.users.iter().find(|credential| credential.name == user).map(|c| c.secret.clone())
    }
}

fn port_name(claim: &Claim<'_>, group: u16) -> PortName {
    PortName {
        initiator: name::normalize(claim.initiator),
        isid: claim.isid,
        target: claim.target.map(name::normalize).unwrap_or_default(),
        group,
    }
}

/// What the target brings to negotiation.
pub(crate) fn offer(limits: &Limits, session_type: SessionType) -> Offer {
    match session_type {
        SessionType::Discovery => Offer::discovery(),
        SessionType::Normal => Offer {
            header_digest: DigestChoice::Allow,
            data_digest: DigestChoice::Allow,
            max_recv_data_segment_length: limits.max_recv_data_segment,
            max_connections: limits.connections_per_session,
            max_burst_length: limits.max_burst,
            first_burst_length: limits.first_burst,
            max_outstanding_r2t: limits.max_outstanding_r2t,
            initial_r2t: false,
            immediate_data: true,
            // Data in order is what `iscsi::target::inbound` relies on.
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            ..Offer::default()
        },
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

/// Runs the login dialog on a new connection.
pub(crate) async fn run(
    stream: &TcpStream,
    peer: SocketAddr,
    group: u16,
    shared: &Arc<Shared>,
    core: Handle,
) -> Result<LoggedIn, LoginFailure> {
    let cutter = Cutter {
        header_digest: false,
        data_digest: false,
        max_data_segment: LOGIN_SEGMENT_LEN as u32,
        max_ahs: 0,
    };
    let door = Door { shared, group };
    let mut login = TargetLogin::new(1);
    let mut input: Vec<u8> = Vec::new();
    loop {
        let (bhs, data, consumed) = match cutter.cut(&input)? {
            Cut::Pdu { bhs, data, consumed, .. } => (*bhs, input[data].to_vec(), consumed),
            _ => {
                let received = stream.recv_some(LOGIN_SEGMENT_LEN).await?;
                if received.is_empty() {
                    return Err(LoginFailure::Closed);
                }
                input.extend_from_slice(&received);
                continue;
            }
        };
        if bhs.opcode() != Some(Opcode::LoginRequest) {
            // RFC 7143 §6.3: nothing else may come before the full-feature phase.
            return Err(LoginFailure::Opcode(bhs.opcode_code()));
        }
        input.drain(..consumed);
        match login.handle(bhs.as_login_request(), &data, &door) {
            Step::Reply(reply) => send(stream, reply).await?,
            Step::Close(reply, error) => {
                send(stream, reply).await?;
                return Err(error.into());
            }
            Step::Place(outcome) => {
                let placed = place(&outcome, group, shared, core).await;
                let (seat, window, placement) = match placed {
                    Ok(placed) => placed,
                    Err(status) => {
                        send(stream, login.refuse(status)).await?;
                        return Err(LoginFailure::Placement(status));
                    }
                };
                send(stream, login.accept(placement)).await?;
                tracing::info!(%peer, initiator = outcome.initiator, tsih = seat.session.tsih, cid = outcome.cid,
                    target = outcome.target.as_deref().unwrap_or("(discovery)"), "logged in");
                let stat_sn = login.next_stat_sn();
                return Ok(LoggedIn { seat, outcome, stat_sn, window, early: input });
            }
        }
    }
}

async fn send(stream: &TcpStream, reply: Reply) -> std::io::Result<()> {
    let mut gather = Gather::new();
    let bhs: Bhs = reply.header.into();
    gather.push_copy(bhs.bytes());
    gather.push_copy(&reply.data);
    gather.push_copy(&[0; 3][..padding_len(reply.data.len())]);
    stream.send(gather).await.0
}

/// Finds the session its place: a new one, a reinstated one, or one more connection of an old one (RFC 7143 §6.3.5).
async fn place(
    outcome: &Outcome,
    group: u16,
    shared: &Arc<Shared>,
    core: Handle,
) -> Result<(Seat, Window, Placement), LoginStatus> {
    let id = shared.connection_id();
    let member = Member { cid: outcome.cid, remote: Remote { id, core } };
    let port = PortName {
        initiator: name::normalize(&outcome.initiator),
        isid: outcome.isid,
        target: outcome.target.as_deref().map(name::normalize).unwrap_or_default(),
        group,
    };
    if outcome.tsih != 0 {
        let session = shared.registry.find(outcome.tsih).filter(|session| session.port == port);
        let session = session.ok_or(LoginStatus::SessionDoesNotExist)?;
        // A CID that the session has already: the old connection is replaced (§6.3.4).
        let old = session.connections().into_iter().find(|other| other.cid == outcome.cid);
        if let Some(old) = old {
            old.remote.close().await;
        }
        let window = session.window.clone().ok_or(LoginStatus::TooManyConnections)?;
        if !session.join(member) {
            return Err(LoginStatus::TooManyConnections);
        }
        let window = Window::Shared(window);
        let placement = placement(session.tsih, &window);
        return Ok((Seat::new(session, id, shared.clone()), window, placement));
    }
    let target = outcome.target.as_deref().and_then(|name| shared.target(name)).cloned();
    for _ in 0..REINSTATEMENTS {
        if let Some(old) = shared.registry.of_port(&port) {
            shared.registry.end(&old).await;
        }
        let tsih = shared.registry.free_tsih(shared.limits.sessions).ok_or(LoginStatus::OutOfResources)?;
        let nexus = Arc::new(Nexus {
            id: shared.registry.nexus_id(),
            initiator: port.initiator.clone(),
            transport_id: transport_id(&port.initiator, outcome.isid),
            target_port: group,
            target: port.target.clone(),
        });
        let luns = match &target {
            Some(target) => {
                let acl = target.acl(&outcome.initiator).ok_or(LoginStatus::AuthorizationFailure)?;
                LunMap::new(&target.config, acl, &nexus)
            }
            None => LunMap::default(),
        };
        let depth = shared.limits.queue_depth;
        let (own, common) = match outcome.params.max_connections {
            0 | 1 => (Window::Own(Box::new(CommandWindow::new(outcome.cmd_sn, depth))), None),
            _ => {
                let common = Arc::new(SharedWindow::new(outcome.cmd_sn, depth));
                (Window::Shared(common.clone()), Some(common))
            }
        };
        let new = NewSession {
            port: port.clone(),
            nexus,
            target: target.clone(),
            luns,
            window: common,
            params: outcome.params.clone(),
        };
        if let Some(session) = shared.registry.add(tsih, new, member.clone()) {
            let placement = placement(tsih, &own);
            return Ok((Seat::new(session, id, shared.clone()), own, placement));
        }
        // The old session's connection has just logged in and is not reached yet, or it is on its way out.
        ring::sleep(REINSTATEMENT_PAUSE).await;
    }
    // Somebody else logs in as the same port again and again.
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

/// The state machine that a login ends in.
pub(crate) fn full_feature(
    logged_in: LoggedIn,
    stream: TcpStream,
    shared: &Arc<Shared>,
) -> std::io::Result<(Rc<Connection>, Seat, Cutter, Vec<u8>)> {
    let local = stream.local_addr()?;
    let LoggedIn { seat, outcome, stat_sn, window, early } = logged_in;
    let params = &outcome.params;
    let limits = &shared.limits;
    let discovery = outcome.session_type == SessionType::Discovery;
    let (header_digest, data_digest) =
        (params.header_digest == Digest::Crc32c, params.data_digest == Digest::Crc32c);
    let config = iscsi::target::Config {
        cid: outcome.cid,
        window,
        stat_sn,
        queue_depth: limits.queue_depth,
        write: write_limits(params),
        peer_max_data_segment: params.peer_max_recv_data_segment_length,
        header_digest,
        data_digest,
        discovery,
        rdma: false,
        nop_interval: limits.nop_interval,
        nop_timeout: limits.nop_timeout,
    };
    let state = iscsi::target::Connection::new(config, ring::now());
    let cutter = Cutter {
        header_digest,
        data_digest,
        max_data_segment: params.max_recv_data_segment_length,
        max_ahs: iscsi::pdu::ahs::MAX_LEN,
    };
    let negotiated = text::Negotiated { params: outcome.params.clone(), local };
    let session = seat.session.clone();
    let connection =
        Connection::new(seat.id, outcome.cid, shared.clone(), session, stream, state, negotiated);
    Ok((connection, seat, cutter, early))
}
