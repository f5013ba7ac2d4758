//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION: commands of SPC and task management,
//! sent inside an OSD command, under its capability.
//!
//! A tunnelled command is one that this unit runs by itself, and never an OSD command: its CDB has
//! 16 bytes, and an operation code of variable-length CDBs is refused, so that no tunnel leads into
//! another. Its Data-Out stands where a command's data does, its Data-In ends where retrieved
//! attributes begin. The OSD command ends with the same status.
//!
//! Tasks are known to the server: functions on them are done through it. A tag is what the
//! transport calls a task of the command's own nexus (over iSCSI the Initiator Task Tag), and all
//! that a function does it does to this unit alone. The command that asks is no task that a
//! function is about. There is no auto contingent allegiance that could be cleared.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use device::{Cdb, Command, DataMover, ItlNexus, Outcome, ResetKind, Tasks};
use osd::Id;
use osd::data::{PendingAttention, TmfResponse, tmf_response};
use scsi::{Sense, Status, UnitAttention};

use super::failure::Failure;
use super::spc::MAX_PARAMETER_LIST;
use super::task::{Task, regions};

const CDB_FIELD: u16 = 32;
const FUNCTION_FIELD: u16 = 39;

/// Time that aborted tasks have to end; two that abort each other wait in vain for that long.
const ABORT_TIME: Duration = Duration::from_secs(5);

mod tmf {
    pub const ABORT_TASK: u8 = 0x01;
    pub const ABORT_TASK_SET: u8 = 0x02;
    pub const CLEAR_TASK_SET: u8 = 0x04;
    pub(crate) const LOGICAL_UNIT_RESET: u8 = 0x08;
    pub const I_T_NEXUS_RESET: u8 = 0x10;
    pub(crate) const CLEAR_ACA: u8 = 0x40;
    pub const QUERY_TASK: u8 = 0x80;
    pub const QUERY_TASK_SET: u8 = 0x81;
    pub(crate) const QUERY_ASYNCHRONOUS_EVENT: u8 = 0x82;
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

pub(super) async fn perform_scsi(task: &mut Task<'_>, cdb: &[u8; 16]) -> Result<(), Failure> {
    let inner = cdb_len(cdb[0]).and_then(|len| Cdb::new(&cdb[..len]));
    let inner = inner.ok_or_else(|| Failure::cdb(CDB_FIELD))?;
    let decoded = scsi::cdb::decode(inner.bytes())?;
    let out_end = regions(&task.cdb.attributes).iter().map(|(region, _)| region.offset).min();
    let retrieved = task.cdb.retrieved().map(|region| region.offset);
    let in_end = retrieved.or(task.transfer.sealed_at()).unwrap_or(u64::MAX);
    let command = Command {
        cdb: inner,
        attribute: task.command.attribute,
        nexus: task.command.nexus.clone(),
        tag: task.command.tag,
        data_out_len: out_end.unwrap_or(u64::MAX).min(task.transfer.out_len()).saturating_sub(task.data_at()),
        data_in_len: in_end.min(task.transfer.room()),
    };
    // All that the initiator sends is there, verified and permitted, before anything is done.
    let wanted = match decoded {
        scsi::cdb::Command::PersistentReserveOut(cdb) => u64::from(cdb.parameter_len),
        scsi::cdb::Command::SetTargetPortGroups { parameter_len } => u64::from(parameter_len),
        _ => 0,
    };
    // The command itself refuses impossible requests.
    let possible = wanted <= MAX_PARAMETER_LIST && wanted <= command.data_out_len;
    let data = task.take_data(0, if possible { wanted } else { 0 }).await?;
    task.take_parameters().await?;
    task.observe(Id::ROOT, async |task| {
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
            (Status::Good, _) => Ok(()),
            (_, Some(sense)) => Err(Failure::Sense(sense)),
            (status, None) => Err(Failure::Status(status)),
        }
    })
    .await
}

pub(super) async fn perform_tmf(
    task: &mut Task<'_>,
    allocation: u16,
    function_code: u8,
    tag: u64,
) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.observe(Id::ROOT, async |task| {
        let own = task.command.nexus.shared().clone();
        let mut pending = None;
        let code = match function_code {
            // A task cannot abort itself: this is its answer.
            tmf::ABORT_TASK if tag == task.command.tag => TmfResponse::Rejected,
            tmf::ABORT_TASK => abort(task, own, Tasks::Tagged(tag)).await,
            tmf::ABORT_TASK_SET => abort(task, own, Tasks::All).await,
            tmf::CLEAR_TASK_SET => clear(task, true).await,
            tmf::LOGICAL_UNIT_RESET => {
                let code = clear(task, false).await;
                task.unit.nexuses.reset(ResetKind::LogicalUnit);
                code
            }
            tmf::I_T_NEXUS_RESET => {
                let code = abort(task, own, Tasks::All).await;
                task.unit.nexuses.lose(&task.command.nexus);
                code
            }
            tmf::QUERY_TASK if tag == task.command.tag => TmfResponse::Succeeded,
            tmf::QUERY_TASK => query(task, own, Tasks::Tagged(tag)).await,
            tmf::QUERY_TASK_SET => query(task, own, Tasks::All).await,
            tmf::QUERY_ASYNCHRONOUS_EVENT => {
                pending = own.pending_attention().map(|(attention, more)| {
                    let sense = Sense::from(attention);
                    let code = [sense.additional.asc, sense.additional.ascq];
                    PendingAttention { more, key: sense.key as u8, code }
                });
                if pending.is_some() { TmfResponse::Succeeded } else { TmfResponse::Complete }
            }
            tmf::CLEAR_ACA => TmfResponse::Rejected,
            _ => return Err(Failure::cdb(FUNCTION_FIELD)),
        };
        let mut reply = tmf_response(code, pending).to_vec();
        reply.truncate(usize::from(allocation));
        task.transfer.put(reply.into());
        Ok(())
    })
    .await
}

/// Aborts tasks of a nexus, but the command itself. Rejected if no server can do it, or if the
/// tasks do not end in time.
async fn abort(task: &Task<'_>, nexus: Arc<ItlNexus>, which: Tasks) -> TmfResponse {
    match in_time(task.unit.nexuses.abort_tasks(nexus, which, Some(task.command))).await {
        Some(_) => TmfResponse::Complete,
        None => TmfResponse::Rejected,
    }
}

/// Aborts all tasks of all nexuses, but the command itself; with `tell`, other nexuses learn that
/// theirs are gone.
async fn clear(task: &Task<'_>, tell: bool) -> TmfResponse {
    let nexuses = &task.unit.nexuses;
    let all = async {
        for nexus in nexuses.attached() {
            let others = !Arc::ptr_eq(&nexus, task.command.nexus.shared());
            let aborted = nexuses.abort_tasks(nexus.clone(), Tasks::All, Some(task.command)).await?;
            if tell && others && aborted > 0 {
                nexus.establish(UnitAttention::CommandsClearedByAnotherInitiator);
            }
        }
        Some(())
    };
    match in_time(all).await {
        Some(()) => TmfResponse::Complete,
        None => TmfResponse::Rejected,
    }
}

/// Whether there are such tasks. Rejected if no server knows.
async fn query(task: &Task<'_>, nexus: Arc<ItlNexus>, which: Tasks) -> TmfResponse {
    match in_time(task.unit.nexuses.count_tasks(nexus, which, Some(task.command))).await {
        Some(0) => TmfResponse::Complete,
        Some(_) => TmfResponse::Succeeded,
        None => TmfResponse::Rejected,
    }
}

/// The server's answer, unless it takes too long.
async fn in_time<T>(answer: impl Future<Output = Option<T>>) -> Option<T> {
    match runtime::is_running() {
        true => runtime::timeout(ABORT_TIME, answer).await.ok().flatten(),
        false => answer.await,
    }
}
