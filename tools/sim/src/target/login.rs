//! The target's side of login: who may, and which session the connection belongs to.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use device::{ItlNexus, Nexus};
use iscsi::chap::{ChapError, Credential, Secret};
use iscsi::frame::{Cutter, padding_len};
use iscsi::keys::{Digest, Offer};
use iscsi::login::target::{
    Auth, Claim, Directory, Grant, Outcome, Placement, Refusal, Reply, Step, TargetLogin,
};
use iscsi::pdu::{Bhs, LoginStatus};
use iscsi::target::inbound::WriteLimits;
use iscsi::target::{CommandWindow, SharedWindow, Window};
use scsi::reservation::TransportId;

use super::connection::Connection;
use super::session::Session;
use super::{Broken, NAME, Phase, Port, TARGET_SECRET, Target};
use crate::trace::note;

impl Directory for Target {
    fn admit(&self, claim: &Claim<'_>) -> Result<Grant, Refusal> {
        if claim.target != Some(NAME) {
            return Err(Refusal::Status(LoginStatus::NotFound));
        }
        let settings = &self.settings;
        let auth = match settings.chap {
            None => Auth::None,
            Some(_) => {
                let mutual = Credential { name: "target".to_owned(), secret: Secret::new(TARGET_SECRET) };
                Auth::Chap { hashes: Vec::new(), mutual: Some(mutual), required: true }
            }
        };
        let session = match claim.tsih {
            0 => None,
            tsih => {
                let session = self.session(tsih);
                let session = session.filter(|s| s.initiator == claim.initiator && s.isid == claim.isid);
                let Some(session) = session else {
                    return Err(Refusal::Status(LoginStatus::SessionDoesNotExist));
                };
                Some(session.params.clone())
            }
        };
        let offer = Offer {
            header_digest: settings.header_digest,
            data_digest: settings.data_digest,
            max_recv_data_segment_length: settings.max_recv_data_segment,
            max_connections: settings.connections,
            max_burst_length: settings.max_burst,
            first_burst_length: settings.first_burst,
            max_outstanding_r2t: settings.max_r2t,
            initial_r2t: settings.initial_r2t,
            immediate_data: settings.immediate_data,
            target_recv_data_segment_length: crate::iser::SEGMENT,
            initiator_recv_data_segment_length: crate::iser::SEGMENT,
            error_recovery_level: settings.level,
            default_time2wait_s: settings.time2wait,
            default_time2retain_s: settings.time2retain,
            ..Offer::default()
        };
        let offer = if settings.iser.is_some() { offer.over_rdma() } else { offer };
        Ok(Grant { auth, offer, portal_group_tag: 1, alias: None, session, then: None })
    }

    fn secret(&self, _: &Claim<'_>, user: &str) -> Option<Secret> {
        let (name, secret) = self.settings.chap.as_ref()?;
        (name == user).then(|| Secret::new(secret.as_bytes()))
    }

    fn random(&self, buf: &mut [u8]) -> Result<(), ChapError> {
        let mut rng = self.rng.borrow_mut();
        buf.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        Ok(())
    }
}

fn queue(port: &Port, reply: Reply) {
    let bhs: Bhs = reply.header.into();
    let pdu = [bhs.bytes(), &reply.data[..], &[0; 3][..padding_len(reply.data.len())]].concat();
    port.output.borrow_mut().pdu(&pdu);
}

/// Handles a Login Request.
pub(super) fn request(target: &Rc<Target>, port: &Rc<Port>, bhs: &Bhs, data: &[u8]) -> Result<(), Broken> {
    let step = match &mut *port.phase.borrow_mut() {
        Phase::Login(login) => login.handle(bhs.as_login_request(), data, &**target),
        _ => return Ok(()),
    };
    match step {
        Step::Reply(reply) => queue(port, reply),
        Step::Close(reply, error) => {
            queue(port, reply);
            *port.phase.borrow_mut() = Phase::Closing;
            return Err(Broken::Refused(error));
        }
        Step::Place(outcome) => {
            let Phase::Login(login) = port.phase.replace(Phase::Placing) else { return Ok(()) };
            target.executor.spawn(place(target.clone(), port.clone(), login, outcome));
        }
    }
    Ok(())
}

/// Finds the session its place (RFC 7143 §6.3.5) and turns the connection to the full-feature phase.
async fn place(target: Rc<Target>, port: Rc<Port>, mut login: Box<TargetLogin>, outcome: Box<Outcome>) {
    let placed = find(&target, &outcome).await;
    if matches!(*port.phase.borrow(), Phase::Over) {
        // It took too long: the link was given up meanwhile.
        if let Ok((session, _)) = placed {
            target.never_came(&session, outcome.cid);
        }
        return;
    }
    let (session, window) = match placed {
        Ok(placed) => placed,
        Err(status) => {
            note!(target.trace, "target: link {} refused: {status}", port.link.0);
            queue(&port, login.refuse(status));
            *port.phase.borrow_mut() = Phase::Closing;
            return;
        }
    };
    let (exp_cmd_sn, max_cmd_sn) = window.numbers();
    let placement = Placement { tsih: session.tsih, exp_cmd_sn, max_cmd_sn };
    queue(&port, login.accept(placement));
    let params = &outcome.params;
    let (header_digest, data_digest) =
        (params.header_digest == Digest::Crc32c, params.data_digest == Digest::Crc32c);
    let config = iscsi::target::Config {
        cid: outcome.cid,
        window,
        stat_sn: login.next_stat_sn(),
        queue_depth: target.settings.queue_depth,
        write: WriteLimits {
            max_burst: params.max_burst_length,
            first_burst: params.first_burst_length,
            max_r2t: params.max_outstanding_r2t,
            initial_r2t: params.initial_r2t,
            immediate: params.immediate_data,
        },
        peer_max_data_segment: params.peer_max_recv_data_segment_length,
        header_digest,
        data_digest,
        discovery: false,
        rdma: params.rdma_extensions,
        nop_interval: target.settings.nop_interval,
        nop_timeout: target.settings.nop_timeout,
        recovery: (params.error_recovery_level > 0).then_some(iscsi::target::recovery::Limits {
            level: params.error_recovery_level,
            keep_bytes: 64 << 20,
            keep_statuses: 1000,
            data_timeout: target.settings.data_timeout,
        }),
    };
    let mut state = iscsi::target::Connection::new(config, target.clock.instant());
    let retain = if session.recovers_connections() { params.default_time2retain_s } else { 0 };
    state.set_logout_times(params.default_time2wait_s, retain);
    let cutter = Cutter {
        header_digest,
        data_digest,
        max_data_segment: params.max_recv_data_segment_length,
        max_ahs: iscsi::pdu::ahs::MAX_LEN,
    };
    note!(target.trace, "target {}.{}: logged in on link {}", session.tsih, outcome.cid, port.link.0);
    let connection =
        Connection::new(&target, session.clone(), outcome.cid, port.link, port.output.clone(), state);
    session.join(connection.clone());
    *port.phase.borrow_mut() = Phase::Full(connection.clone(), cutter);
    if session.ending.get() {
        connection.end(true);
    }
}

async fn find(target: &Rc<Target>, outcome: &Outcome) -> Result<(Rc<Session>, Window), LoginStatus> {
    if outcome.tsih != 0 {
        let session = target.session(outcome.tsih);
        let session = session.filter(|s| s.initiator == outcome.initiator && s.isid == outcome.isid);
        let session = session.ok_or(LoginStatus::SessionDoesNotExist)?;
        // A CID that the session has already: the old connection is replaced (§6.3.4).
        // At level 2 it is removed for recovery instead.
        for old in session.connections().into_iter().filter(|other| other.cid == outcome.cid) {
            match session.recovers_connections() {
                true => old.remove(),
                false => {
                    old.end(true);
                    old.ended().await;
                }
            }
        }
        let window = session.window.clone().ok_or(LoginStatus::TooManyConnections)?;
        if !session.admit(outcome.cid) {
            return Err(LoginStatus::TooManyConnections);
        }
        return Ok((session, Window::Shared(window)));
    }
    while let Some(old) = target.session_of(&outcome.initiator, outcome.isid) {
        note!(target.trace, "target: session {} is reinstated", old.tsih);
        target.end_session(&old).await;
    }
    let mut number = [0; 8];
    number[2..].copy_from_slice(&outcome.isid.0);
    let transport_id = TransportId::iscsi_port(&outcome.initiator, u64::from_be_bytes(number))
        .map(|id| id.bytes().to_vec())
        .unwrap_or_default();
    let nexus = Arc::new(Nexus {
        id: target.nexus_id(),
        principal: None,
        initiator: outcome.initiator.clone(),
        transport_id,
        target_port: 1,
        target: NAME.to_owned(),
        ports: None,
    });
    let depth = target.settings.queue_depth;
    let several = outcome.params.max_connections > 1 || outcome.params.error_recovery_level > 1;
    let (own, common) = match several {
        false => (Window::Own(Box::new(CommandWindow::new(outcome.cmd_sn, depth))), None),
        true => {
            let common = Arc::new(SharedWindow::new(outcome.cmd_sn, depth));
            (Window::Shared(common.clone()), Some(common))
        }
    };
    let session = Rc::new(Session {
        tsih: target.free_tsih(),
        initiator: outcome.initiator.clone(),
        isid: outcome.isid,
        nexus: Arc::new(ItlNexus::new(nexus, false)),
        unit: target.unit().ok_or(LoginStatus::ServiceUnavailable)?,
        window: common,
        params: outcome.params.clone(),
        members: Default::default(),
        coming: vec![outcome.cid].into(),
        ending: Cell::new(false),
    });
    target.enter(session.clone());
    Ok((session, own))
}
