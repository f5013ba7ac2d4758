//! The end of a task management function (RFC 7143 §11.5), and of the tasks that it ends: the
//! target does not answer an aborted task.

use crate::pdu::TaskManagementResult;
use crate::sn;
use crate::target::Payload;

use super::event::Event;
use super::exchange::Exchange;
use super::ids::{ConnectionId, TaskKey};
use super::recovery::Recovery;
use super::tasks::{Kind, Scope};

/// Ends a function, and the tasks that it aborted. Tasks that have not been sent, or were sent
/// again after it, are not affected (RFC 7143 §4.2.3.2).
pub(super) fn managed<P: Payload, T>(
    exchange: &mut Exchange<P, T>,
    recovery: &mut Recovery,
    (on, key): (ConnectionId, TaskKey),
    result: Option<TaskManagementResult>,
) -> Option<Event<T>> {
    let function = exchange.tasks.get(key)?;
    let (Kind::TaskManagement(scope), cmd_sn) = (&function.kind, function.cmd_sn) else { return None };
    let scope = if result == Some(TaskManagementResult::FunctionComplete) { *scope } else { Scope::Nothing };
    let affected = exchange.tasks.iter().filter(|(key, task)| {
        let Kind::Scsi(scsi) = &task.kind else { return false };
        let is_meant = match scope {
            Scope::Nothing => false,
            Scope::Task(meant) => *key == meant,
            Scope::Unit(lun) => scsi.lun == lun,
            Scope::Target => true,
        };
        is_meant && (task.connection.is_some() || task.orphan.is_some()) && sn::lt(task.cmd_sn, cmd_sn)
    });
    let affected: Vec<_> = affected.map(|(key, task)| (key, task.connection)).collect();
    let mut ended = Vec::with_capacity(affected.len());
    for (key, connection) in affected {
        if connection != Some(on) {
            exchange.aborted.add(key);
        }
        ended.extend(recovery.take_task(exchange, key).map(|(token, _)| (key, token)));
    }
    recovery.take_task(exchange, key).map(|(token, _)| Event::TaskManagement(key, token, result, ended))
}
