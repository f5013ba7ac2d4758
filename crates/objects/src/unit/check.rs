//! OBJECT STRUCTURE CHECK: the store goes through a partition or everything, and puts right what can be put right unless the unit
//! is read-only. What stays wrong is told with MEDIUM ERROR, and in the log.

use osd::Id;
use osd::cdb::StructureScope;
use osd::sense::function;
use scsi::{AdditionalSense, Sense, SenseKey};

use super::failure::Failure;
use super::task::{Task, Touch};
use crate::store::{Change, Scope};

/// OBJECT STRUCTURE CHECK.
pub(super) async fn check(task: &mut Task<'_>, scope: StructureScope) -> Result<(), Failure> {
    let unit = task.unit;
    let partition = match scope {
        StructureScope::Root => 0,
        StructureScope::Partition(partition) => {
            unit.store.partition(partition)?;
            partition
        }
    };
    let id = Id::partition(partition);
    task.take_parameters().await?;
    task.isolate(id, Touch::Read { start: 0, end: u64::MAX }).await?;
    task.progress.begin(function::COMMAND);
    let repair = !unit.options.read_only && !task.command.nexus.read_only;
    let report = unit.store.check(partition, repair).await?;
    for finding in &report.findings {
        tracing::warn!(%id, "structure check: {finding}");
    }
    if report.repaired > 0 {
        task.sync(Scope::All).await?;
    }
    let left = report.wrong.saturating_sub(report.repaired);
    if left > 0 {
        let sense = Sense::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR);
        return Err(sense.with_information(left).into());
    }
    task.progress.done(function::COMMAND);
    task.function_done();
    task.set_and_get(id, Change::new()).await
}
