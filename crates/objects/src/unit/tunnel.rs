//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION: commands of SPC and task management, sent inside an OSD command,
//! under its capability.
//!
//! A tunnelled command is one that this unit runs by itself, and never an OSD command: its CDB has 16 bytes, and an operation
//! code of variable-length CDBs is refused, so that no tunnel leads into another. Its Data-Out stands where a
//! command's data does, its Data-In ends where retrieved attributes begin. What it ends with, the OSD command ends with.
//!
//! Tasks are known to the server, and by their nexus: functions on all tasks of one or of every nexus are done through it.
//! Tags and what is outstanding are the transport's own, and there is no auto contingent allegiance: functions on one task, on a nexus and
//! on ACA, and those that ask, are rejected.

use std::time::Duration;

use device::{Cdb, Command, DataMover, Outcome, ResetKind};
use osd::Id;
use osd::data::{TmfResponse, tmf_response};
use osd::sense::function;
use scsi::Status;

use super::failure::Failure;
use super::spc::MAX_PARAMETER_LIST;
use super::task::{Task, regions};
use crate::store::Change;

/// Where the tunnelled CDB begins.
const CDB_FIELD: u16 = 32;
/// The task management function's code.
const FUNCTION_FIELD: u16 = 39;

/// How long tasks that are aborted may take to end; two that abort each other wait in vain for that long.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// Codes of task management functions.
mod tmf {
    pub const ABORT_TASK: u8 = 0x01;
    pub const ABORT_TASK_SET: u8 = 0x02;
    pub const CLEAR_TASK_SET: u8 = 0x04;
    pub const LOGICAL_UNIT_RESET: u8 = 0x08;
    pub const I_T_NEXUS_RESET: u8 = 0x10;
    pub const CLEAR_ACA: u8 = 0x40;
    pub const QUERY_TASK: u8 = 0x80;
    pub const QUERY_TASK_SET: u8 = 0x81;
    pub const QUERY_UNIT_ATTENTION: u8 = 0x82;
}

/// Bytes of a CDB with operation code `opcode`; `None` where the code does not say.
const fn cdb_len(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}

/// PERFORM SCSI COMMAND.
pub(super) async fn perform_scsi(task: &mut Task<'_>, cdb: &[u8; 16]) -> Result<(), Failure> {
    let inner = cdb_len(cdb[0]).and_then(|len| Cdb::new(&cdb[..len]));
    let inner = inner.ok_or_else(|| Failure::cdb(CDB_FIELD))?;
    let decoded = scsi::cdb::decode(inner.bytes())?;
    let out_end = regions(&task.cdb.attributes).iter().map(|(region, _)| region.offset).min();
    let retrieved = task.cdb.attributes.retrieved().map(|region| region.offset);
    let in_end = retrieved.or(task.transfer.sealed_at()).unwrap_or(u64::MAX);
    let command = Command {
        cdb: inner,
        attribute: task.command.attribute,
        nexus: task.command.nexus.clone(),
        data_out_len: out_end.unwrap_or(u64::MAX).min(task.transfer.out_len()).saturating_sub(task.data_at()),
        data_in_len: in_end.min(task.transfer.room()),
    };
    // All that the initiator sends is there, verified and permitted, before anything is done.
    let wanted = match decoded {
        scsi::cdb::Command::PersistentReserveOut(cdb) => u64::from(cdb.parameter_len),
        scsi::cdb::Command::SetTargetPortGroups { parameter_len } => u64::from(parameter_len),
        _ => 0,
    };
    // What cannot be is refused by the command itself.
    let possible = wanted <= MAX_PARAMETER_LIST && wanted <= command.data_out_len;
    let data = task.take_data(0, if possible { wanted } else { 0 }).await?;
    task.take_parameters().await?;
    task.progress.begin(function::COMMAND);
    let unit = task.unit;
    let outcome = match unit.answer_at_once(&command, &decoded) {
        Some(Ok((mut data, allocation))) => {
            let len = usize::try_from(allocation.min(command.data_in_len)).unwrap_or(usize::MAX);
            data.truncate(len);
            task.transfer.put(data.into());
            Outcome::GOOD
        }
        Some(Err(outcome)) => outcome,
        None => {
            let mut inner = task.transfer.inner(data);
            let mover: &mut dyn DataMover = &mut inner;
            unit.run_spc(&command, mover, decoded).await.unwrap_or_else(|outcome| outcome)
        }
    };
    let taken = task.data_at().saturating_add(outcome.wanted_out);
    task.transfer.wanted_out = task.transfer.wanted_out.max(taken);
    match (outcome.status, outcome.sense) {
        (Status::Good, _) => {}
        (_, Some(sense)) => return Err(Failure::Sense(sense)),
        (status, None) => return Err(Failure::Status(status)),
    }
    task.progress.done(function::COMMAND);
    task.set_and_get(Id::ROOT, Change::new()).await
}

/// PERFORM TASK MANAGEMENT FUNCTION.
pub(super) async fn perform_tmf(
    task: &mut Task<'_>,
    allocation: u16,
    function_code: u8,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.progress.begin(function::COMMAND);
    let code = match function_code {
        tmf::ABORT_TASK_SET => abort(task, false).await,
        tmf::CLEAR_TASK_SET => abort(task, true).await,
        tmf::LOGICAL_UNIT_RESET => {
            let code = abort(task, true).await;
            task.unit.nexuses.reset(ResetKind::LogicalUnit);
            code
        }
        tmf::ABORT_TASK
        | tmf::I_T_NEXUS_RESET
        | tmf::CLEAR_ACA
        | tmf::QUERY_TASK
        | tmf::QUERY_TASK_SET
        | tmf::QUERY_UNIT_ATTENTION => TmfResponse::Rejected,
        _ => return Err(Failure::cdb(FUNCTION_FIELD)),
    };
    let mut reply = tmf_response(code).to_vec();
    reply.truncate(usize::from(allocation));
    task.transfer.put(reply.into());
    task.progress.done(function::COMMAND);
    task.set_and_get(Id::ROOT, Change::new()).await
}

/// Aborts all tasks of the command's nexus, or of every one, but the command itself. Rejected if nobody is there who could, or if
/// they do not end.
async fn abort(task: &Task<'_>, every: bool) -> TmfResponse {
    let nexuses = &task.unit.nexuses;
    let concerned = match every {
        true => nexuses.attached(),
        false => vec![task.command.nexus.shared().clone()],
    };
    let all = async {
        for nexus in concerned {
            if !nexuses.abort_tasks(nexus, task.command).await {
                return TmfResponse::Rejected;
            }
        }
        TmfResponse::Complete
    };
    match ring::is_running() {
        true => ring::timeout(ABORT_TIME, all).await.unwrap_or(TmfResponse::Rejected),
        false => all.await,
    }
}
