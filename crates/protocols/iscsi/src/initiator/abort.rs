//! Task management functions (RFC 7143 §11.5), and the tasks that they end. The target does not
//! answer an aborted task: the function's response ends it.

use crate::pdu::{Bhs, Lun, TaskManagementFunction, TaskManagementRequest, TaskManagementResult};
use crate::sn;
use crate::target::Payload;

use super::event::Event;
use super::ids::{ConnectionId, TaskKey};
use super::session::Session;
use super::tasks::{Kind, Scope};

impl<P: Payload, T> Session<P, T> {
    /// Sends a task management function at once (immediate delivery). `task` is the task of ABORT
    /// TASK. [`Event::TaskManagement`] follows, with the tasks that the function has ended.
    ///
    /// # Errors
    /// Returns the token if the connection is gone or there are too many tasks.
    pub fn task_management(
        &mut self,
        on: ConnectionId,
        function: TaskManagementFunction,
        lun: Lun,
        task: Option<TaskKey>,
        token: T,
    ) -> Result<TaskKey, T> {
        let referenced = task.and_then(|key| Some((key, self.tasks.get(key)?.cmd_sn)));
        let key = self.begin(on, Kind::TaskManagement(Scope::of(function, lun, task)), token)?;
        let mut pdu = TaskManagementRequest::new(key.0, function, lun);
        pdu.cmd_sn.set(self.window.cmd_sn());
        if let Some((task, cmd_sn)) = referenced {
            pdu.referenced_task_tag.set(task.0);
            pdu.ref_cmd_sn.set(cmd_sn);
        }
        self.request(on, key, pdu.into(), None);
        Ok(key)
    }

    /// Ends a function, and the tasks that it aborted. Tasks that have not been sent, or were sent
    /// again after it, are not affected (RFC 7143 §4.2.3.2).
    pub(super) fn managed(
        &mut self,
        on: ConnectionId,
        key: TaskKey,
        result: Option<TaskManagementResult>,
    ) -> Option<Event<T>> {
        let function = self.tasks.get(key)?;
        let (Kind::TaskManagement(scope), cmd_sn) = (&function.kind, function.cmd_sn) else { return None };
        let scope =
            if result == Some(TaskManagementResult::FunctionComplete) { *scope } else { Scope::Nothing };
        let affected = self.tasks.iter().filter(|(key, task)| {
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
                self.aborted.add(key);
            }
            ended.extend(self.take_task(key).map(|(token, _)| (key, token)));
        }
        self.take_task(key).map(|(token, _)| Event::TaskManagement(key, token, result, ended))
    }

    /// Whether a PDU of an unknown task is to be dropped: the task was aborted, or error recovery
    /// made the target send the PDU twice.
    pub(super) fn is_stray(&self, bhs: &Bhs) -> bool {
        self.recovers() || self.aborted.has(TaskKey(bhs.itt()))
    }
}
