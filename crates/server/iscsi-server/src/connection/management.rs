//! Task management functions (RFC 7143 §11.5, SAM-5 §7) and logout (§11.14), across connections,
//! sessions and cores.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::ResetKind;
use invariant::broken;
use iscsi::pdu::{LogoutReason, LogoutResult, Lun, TaskManagementFunction, TaskManagementResult};
use iscsi::sn;
use iscsi::target::{LogoutRequest, TaskManagement};
use scsi::UnitAttention;

use super::Connection;
use crate::Unit;
use crate::end::End;
use crate::preemptor::abort_in;
use crate::remote::Victims;
use crate::session::{Session, close_all};
use crate::transport::Transport;

/// How long a function waits for commands that were sent before it. Initiators wait for its answer
/// for 15 s or longer.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How long it waits for acknowledgements after that. A connection that gives none is then dropped.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(4);
/// The first and the longest pause between two looks whether they have come: no event reports that.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(1);
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(32);

/// Does what `request` asks. Returns its result when it has been done; `None` if it gets no
/// response, since its session has ended.
pub(crate) async fn run(
    connection: &Rc<Connection>,
    request: &TaskManagement,
) -> Option<TaskManagementResult> {
    use TaskManagementFunction as Function;
    let Some(function) = Function::from_code(request.function) else {
        return Some(TaskManagementResult::FunctionRejected);
    };
    let result = match function {
        Function::AbortTask => abort_task(connection, request).await,
        // It is not done here but by `reassign`.
        Function::TaskReassign => TaskManagementResult::ReassignmentNotSupported,
        // There is no auto contingent allegiance to clear: NormACA is 0.
        Function::ClearAca => TaskManagementResult::NotSupported,
        Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => {
            let Some(unit) = unit_of(connection, request.lun) else {
                return Some(TaskManagementResult::LunDoesNotExist);
            };
            if !all_before_have_come(connection, request).await? {
                return Some(TaskManagementResult::FunctionRejected);
            }
            if !unit_of(connection, request.lun).is_some_and(|now| now.is(&unit)) {
                // Its tasks ended with it.
                return Some(TaskManagementResult::LunDoesNotExist);
            }
            let own = &connection.session;
            match function {
                Function::AbortTaskSet => {
                    abort_in(own, &Victims::Earlier(request.cmd_sn, Some(unit))).await;
                }
                Function::ClearTaskSet => {
                    if !clear_task_set(connection, request, &unit).await {
                        return Some(TaskManagementResult::FunctionRejected);
                    }
                }
                _ => {
                    for session in connection.shared.registry.of_unit(&unit) {
                        abort_in(&session, &affected(&session, connection, request, &unit)).await;
                    }
                    if !unit.reset(ResetKind::LogicalUnit, own.nexus.id).await {
                        return Some(TaskManagementResult::FunctionRejected);
                    }
                }
            }
            others_have_acknowledged(connection).await?;
            TaskManagementResult::FunctionComplete
        }
        Function::TargetWarmReset => reset_target(connection, request, ResetKind::TargetWarm).await?,
        Function::TargetColdReset => reset_target(connection, request, ResetKind::TargetCold).await?,
        // RFC 7144's functions come with iSCSIProtocolLevel 2, which this target does not claim.
        Function::QueryTask
        | Function::QueryTaskSet
        | Function::ItNexusReset
        | Function::QueryAsynchronousEvent => TaskManagementResult::NotSupported,
    };
    Some(result)
}

/// Whether the sessions of the target end after this function: a cold reset is as a power cycle
/// (RFC 7143 §11.5.1).
pub(crate) fn ends_sessions(request: &TaskManagement) -> bool {
    request.function == TaskManagementFunction::TargetColdReset.code()
}

fn unit_of(connection: &Rc<Connection>, lun: Lun) -> Option<Unit> {
    connection.view().luns().get(lun).map(|entry| entry.unit.clone())
}

/// All sessions with the connection's target.
fn sessions(connection: &Connection) -> Vec<Arc<Session>> {
    match connection.session.target_name() {
        Some(target) => connection.shared.registry.of_target(target),
        None => Vec::new(),
    }
}

/// Waits until the commands that were sent before `request` have come, on whatever connection (RFC
/// 7143 §4.2.3.3): what comes after the answer must be nothing that the function affects. False if
/// some do not come; nothing is promised then. `None` if this connection or its session ends.
async fn all_before_have_come(connection: &Rc<Connection>, request: &TaskManagement) -> Option<bool> {
    let deadline = runtime::now() + ARRIVAL;
    let mut pause = FIRST_LOOK;
    while sn::lt(connection.with(|state, _| state.exp_cmd_sn()), request.cmd_sn) {
        if connection.is_cut() || connection.is_closing() || connection.session.is_ending() {
            return None;
        }
        if runtime::now() >= deadline {
            tracing::info!(
                initiator = connection.session.port.initiator,
                tsih = connection.session.tsih,
                function = request.function,
                "rejected: commands sent before it have not come"
            );
            return Some(false);
        }
        runtime::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_LOOK);
    }
    Some(true)
}

/// Waits until the initiator has acknowledged the statuses that were sent over the session's other
/// connections (RFC 7143 §4.2.3.3): the answer concludes those tasks, and the initiator may use
/// their tags again. On this connection the answer comes after the statuses. `None` if the session
/// has ended, perhaps since a connection did not acknowledge.
///
/// It does not wait for other initiators' sessions: initiators often ask for a reset because
/// another initiator is dead.
async fn others_have_acknowledged(connection: &Rc<Connection>) -> Option<()> {
    if connection.session.window.is_none() {
        // This is the session's only connection.
        return Some(());
    }
    let members = connection.session.connections();
    let others = members.iter().filter(|member| member.remote.id != connection.id);
    // All at once: each notes what it has sent so far.
    let waits: Vec<_> = others
        .map(|member| {
            let remote = member.remote.clone();
            runtime::spawn(async move { remote.acknowledged().await })
        })
        .collect();
    for wait in waits {
        // A core that has stopped has no connection any more.
        let _ = wait.await;
    }
    (!connection.session.is_ending()).then_some(())
}

/// Waits until the initiator has acknowledged what this connection has sent so far, for which a
/// NOP-In asks, or the connection is gone. Drops a connection on which the initiator does not.
pub(super) async fn acknowledged(connection: &Rc<Connection>) {
    let is_gone = || connection.is_cut() || connection.is_closing();
    let last = connection.with(|state, _| state.stat_sn());
    let is_acknowledged = || connection.with(|state, _| state.is_acknowledged(last));
    if is_gone() || is_acknowledged() {
        return;
    }
    connection.with(|state, outbox| state.ping_at_once(outbox));
    let deadline = runtime::now() + ACKNOWLEDGEMENT;
    let mut pause = FIRST_LOOK;
    while !is_gone() && !is_acknowledged() {
        if runtime::now() >= deadline {
            return connection.lose(End::Unacknowledged);
        }
        runtime::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_LOOK);
    }
}

async fn abort_task(connection: &Rc<Connection>, request: &TaskManagement) -> TaskManagementResult {
    let victim = Victims::Tag(request.referenced);
    for _ in 0..2 {
        let exp = connection.with(|state, _| state.exp_cmd_sn());
        let is_missing = !sn::lt(request.ref_cmd_sn, exp) && sn::lt(request.ref_cmd_sn, request.cmd_sn);
        // Its own connection is the usual place, and needs no message.
        if connection.abort(&victim).await > 0 || abort_in(&connection.session, &victim).await > 0 {
            return TaskManagementResult::FunctionComplete;
        }
        if !is_missing {
            break;
        }
        // A command that has not come yet, though it was sent before this request: it counts as
        // received (§11.5.1).
        if connection.with(|state, _| state.skip(request.ref_cmd_sn)) {
            connection.deliver_held_or_lose();
            return TaskManagementResult::FunctionComplete;
        }
        // It has come meanwhile, on another connection.
    }
    TaskManagementResult::TaskDoesNotExist
}

/// Which tasks of `session` for `unit` are affected by a function that `connection` asks for.
fn affected(
    session: &Arc<Session>,
    connection: &Connection,
    request: &TaskManagement,
    unit: &Unit,
) -> Victims {
    match Arc::ptr_eq(session, &connection.session) {
        true => Victims::Earlier(request.cmd_sn, Some(unit.clone())),
        false => Victims::Unit(unit.clone()),
    }
}

/// SAM-5 §7.4: all tasks of all nexuses; with TAS=0 the others learn of it by a unit attention.
async fn clear_task_set(connection: &Rc<Connection>, request: &TaskManagement, unit: &Unit) -> bool {
    for session in connection.shared.registry.of_unit(unit) {
        let aborted = abort_in(&session, &affected(&session, connection, request, unit)).await;
        if aborted > 0 && !Arc::ptr_eq(&session, &connection.session) {
            for entry in session.view().luns.iter().filter(|entry| entry.unit.is(unit)) {
                entry.nexus.establish(UnitAttention::CommandsClearedByAnotherInitiator);
            }
        }
    }
    unit.clear_task_set(connection.session.nexus.id).await
}

async fn reset_target(
    connection: &Rc<Connection>,
    request: &TaskManagement,
    kind: ResetKind,
) -> Option<TaskManagementResult> {
    let Some(target) = connection.session.target() else {
        broken!("task management in a discovery session");
        return Some(TaskManagementResult::FunctionRejected);
    };
    // What was sent before it and has not come counts as received, and is never run (RFC 7143
    // §4.2.3.3).
    connection.with(|state, _| state.skip_before(request.cmd_sn));
    for session in sessions(connection) {
        let victims = match Arc::ptr_eq(&session, &connection.session) {
            true => Victims::Earlier(request.cmd_sn, None),
            false => Victims::All,
        };
        abort_in(&session, &victims).await;
    }
    connection.deliver_held_or_lose();
    // One that cannot be reset keeps no other from it.
    let mut all = true;
    for lun in &target.config.units {
        all &= lun.unit.reset(kind, connection.session.nexus.id).await;
    }
    others_have_acknowledged(connection).await?;
    if kind == ResetKind::TargetCold {
        for session in sessions(connection) {
            if !Arc::ptr_eq(&session, &connection.session) {
                connection.shared.registry.end(&session).await;
            }
        }
    }
    let result =
        if all { TaskManagementResult::FunctionComplete } else { TaskManagementResult::FunctionRejected };
    Some(result)
}

/// Answers a logout and closes what it asked to be closed.
pub(crate) async fn logout(connection: Rc<Connection>, request: LogoutRequest) {
    let own = request.cid == connection.cid;
    let reason = LogoutReason::from_code(request.reason);
    let mut others = match reason {
        // Nobody joins it any more.
        Some(LogoutReason::CloseSession) => connection.session.end(),
        _ => connection.session.connections(),
    };
    others.retain(|member| member.remote.id != connection.id);
    let result = match reason {
        Some(LogoutReason::CloseSession) => {
            close_all(&others).await;
            LogoutResult::Success
        }
        Some(LogoutReason::CloseConnection) => {
            // At level 2 there may be several with this CID, of which one is there at most.
            others.retain(|member| member.cid == request.cid);
            match own {
                true => LogoutResult::Success,
                false if others.is_empty() => LogoutResult::CidNotFound,
                false => {
                    close_all(&others).await;
                    LogoutResult::Success
                }
            }
        }
        // ErrorRecoveryLevel 0 and 1 have no connection recovery.
        Some(LogoutReason::RemoveForRecovery) if !connection.session.recovers_connections() => {
            LogoutResult::RecoveryNotSupported
        }
        Some(LogoutReason::RemoveForRecovery) => {
            others.retain(|member| member.cid == request.cid);
            for member in &others {
                member.remote.remove().await;
            }
            match own || !others.is_empty() {
                true => LogoutResult::Success,
                false => LogoutResult::CidNotFound,
            }
        }
        None => LogoutResult::CleanupFailed,
    };
    if own && reason == Some(LogoutReason::RemoveForRecovery) && result == LogoutResult::Success {
        connection.with(|state, outbox| state.logout_response(&request, result, outbox));
        return connection.remove_itself();
    }
    let ends = matches!(reason, Some(LogoutReason::CloseSession)) || own && result == LogoutResult::Success;
    if ends {
        // Commands that came before it are over before it is answered (§11.14).
        connection.clear().await;
    }
    connection.with(|state, outbox| state.logout_response(&request, result, outbox));
    if ends {
        if let Transport::Iser(iser) = &connection.transport {
            iser.logged_out.set(true);
        }
        connection.shut();
    }
}
