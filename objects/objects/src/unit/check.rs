//! OBJECT STRUCTURE CHECK: the store goes through a partition or everything, and repairs what it
//! can unless the unit is read-only. Remaining faults are reported with MEDIUM ERROR, and in the
//! log.

use osd::Id;
use osd::cdb::StructureScope;
use scsi::{AdditionalSense, Sense, SenseKey};

use super::failure::Failure;
use super::task::{Task, Touch};
use crate::store::Scope;

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
    task.inspect(id, Touch::READ_ALL, async |task| {
        let repair = !unit.options.read_only && !task.command.nexus.read_only;
        let report = unit.store.check(partition, repair).await?;
        for finding in &report.findings {
            tracing::warn!(%id, "structure check: {finding}");
        }
        if report.repaired > 0 {
            task.sync(Scope::All).await?;
        }
        match report.wrong.saturating_sub(report.repaired) {
            0 => Ok(()),
            left => {
                let sense = Sense::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR);
                Err(sense.with_information(left).into())
            }
        }
    })
    .await
}
