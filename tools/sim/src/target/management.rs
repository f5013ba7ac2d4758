//! Task management functions (RFC 7143 §11.5) and logout (§11.14), as a server does them.

use std::rc::Rc;

use device::{LogicalUnit, ResetKind};
use iscsi::pdu::{LogoutReason, LogoutResult, Lun, TaskManagementFunction, TaskManagementResult};
use iscsi::sn;
use iscsi::target::{LogoutRequest, TaskManagement};
use scsi::UnitAttention;

use super::Target;
use super::connection::{Connection, Victims};
use super::session::Session;

/// Does what `request` asks; returns when it has been done.
pub(super) async fn run(
    target: &Rc<Target>,
    connection: &Rc<Connection>,
    request: &TaskManagement,
) -> TaskManagementResult {
    use TaskManagementFunction as Function;
    let Some(function) = Function::from_code(request.function) else {
        return TaskManagementResult::FunctionRejected;
    };
    match function {
        Function::AbortTask => return abort_task(connection, request).await,
        Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => {
            if request.lun != Lun::ZERO {
                return TaskManagementResult::LunDoesNotExist;
            }
        }
        Function::TargetWarmReset => {}
        _ => return TaskManagementResult::NotSupported,
    }
    let own = &connection.session;
    // Commands that were sent after the function have nothing to do with it, though they may arrive while it is done.
    let earlier = Victims::Before(request.cmd_sn);
    if function == Function::AbortTaskSet {
        abort_in(own, earlier).await;
        return TaskManagementResult::FunctionComplete;
    }
    for session in target.all_sessions() {
        let victims = if Rc::ptr_eq(&session, own) { earlier } else { Victims::All };
        let aborted = abort_in(&session, victims).await;
        if aborted > 0 && !Rc::ptr_eq(&session, own) && function == Function::ClearTaskSet {
            session.nexus.establish(UnitAttention::CommandsClearedByAnotherInitiator);
        }
    }
    match function {
        Function::LogicalUnitReset => own.unit.reset(ResetKind::LogicalUnit, Some(own.nexus_id())),
        Function::TargetWarmReset => own.unit.reset(ResetKind::TargetWarm, Some(own.nexus_id())),
        _ => {}
    }
    TaskManagementResult::FunctionComplete
}

/// Aborts tasks of a session; says how many there were.
async fn abort_in(session: &Session, victims: Victims) -> usize {
    let mut count = 0;
    for member in session.connections() {
        count += member.abort(victims).await;
    }
    count
}

async fn abort_task(connection: &Rc<Connection>, request: &TaskManagement) -> TaskManagementResult {
    let victim = Victims::Tag(request.referenced);
    if connection.abort(victim).await > 0 {
        return TaskManagementResult::FunctionComplete;
    }
    for member in connection.session.connections() {
        if member.abort(victim).await > 0 {
            return TaskManagementResult::FunctionComplete;
        }
    }
    // A command that has not come yet, though it was sent before this request: it is aborted in advance (§11.5.1).
    let exp = connection.exp_cmd_sn();
    let coming = !sn::lt(request.ref_cmd_sn, exp)
        && sn::lt(request.ref_cmd_sn, request.cmd_sn)
        && connection.with(|state, _| state.skip(request.ref_cmd_sn));
    match coming {
        true => TaskManagementResult::FunctionComplete,
        false => TaskManagementResult::TaskDoesNotExist,
    }
}

/// Answers a logout and closes what it asked to be closed.
pub(super) async fn logout(connection: Rc<Connection>, request: LogoutRequest) {
    let members = connection.session.connections();
    let others: Vec<_> = members.into_iter().filter(|member| !Rc::ptr_eq(member, &connection)).collect();
    let own = request.cid == connection.cid;
    let reason = LogoutReason::from_code(request.reason);
    let result = match reason {
        Some(LogoutReason::CloseSession) => {
            if connection.session.recovers_connections() {
                // Nobody joins it any more, and none of its connections is kept.
                connection.session.ending.set(true);
            }
            for member in &others {
                member.end(true);
                member.ended().await;
            }
            LogoutResult::Success
        }
        Some(LogoutReason::CloseConnection) => match others.iter().find(|m| m.cid == request.cid) {
            _ if own => LogoutResult::Success,
            Some(member) => {
                member.end(true);
                member.ended().await;
                LogoutResult::Success
            }
            None => LogoutResult::CidNotFound,
        },
        Some(LogoutReason::RemoveForRecovery) if !connection.session.recovers_connections() => {
            LogoutResult::RecoveryNotSupported
        }
        Some(LogoutReason::RemoveForRecovery) => {
            let named = others.iter().filter(|member| member.cid == request.cid);
            match named.map(|member| member.remove()).count() {
                0 => LogoutResult::CidNotFound,
                _ => LogoutResult::Success,
            }
        }
        None => LogoutResult::CleanupFailed,
    };
    let ends = reason == Some(LogoutReason::CloseSession) || own && result == LogoutResult::Success;
    if ends {
        connection.abort(Victims::All).await;
    }
    connection.with(|state, out| state.logout_response(&request, result, out));
    if ends {
        connection.end(true);
    }
}
