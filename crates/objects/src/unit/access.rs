//! GET ATTRIBUTES and SET ATTRIBUTES, and the two steps on attributes that end most commands.

use osd::Id;
use osd::sense::function;

use super::attributes::Request;
use super::failure::Failure;
use super::task::{Task, Touch};
use crate::store::Change;

/// GET ATTRIBUTES: get, then set.
pub(super) async fn get_attributes(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, Touch::None).await?;
    task.progress.begin(function::COMMAND);
    let subject = task.unit.subject(id)?;
    task.current.object_type = subject.object_type().code();
    task.progress.done(function::COMMAND);
    task.retrieve(&subject).await?;
    if !task.parameters.set.is_empty() {
        task.quota_turn(id.partition).await?;
        task.apply_with_attributes(id, subject.object_type(), Change::new()).await?;
    }
    Ok(())
}

/// SET ATTRIBUTES: set, then get.
pub(super) async fn set_attributes(task: &mut Task<'_>, id: Id) -> Result<(), Failure> {
    task.take_parameters().await?;
    task.isolate(id, Touch::None).await?;
    task.progress.begin(function::COMMAND);
    let subject = task.unit.subject(id)?;
    task.current.object_type = subject.object_type().code();
    task.progress.done(function::COMMAND);
    task.set_and_get(id, Change::new()).await
}

impl Task<'_> {
    /// Applies `change` with what the command sets of the object at `id`, which is there already; then gets its attributes.
    pub(super) async fn set_and_get(&mut self, id: Id, change: Change) -> Result<(), Failure> {
        if !change.is_empty() || !self.parameters.set.is_empty() {
            self.isolate_setting(id).await?;
            let of_type = self.unit.subject(id)?.object_type();
            // Quotas are looked at when the length is set.
            self.quota_turn(id.partition).await?;
            self.apply_with_attributes(id, of_type, change).await?;
        }
        self.get(id).await
    }

    /// Gets attributes of the object at `id`, as the command has left it.
    pub(super) async fn get(&mut self, id: Id) -> Result<(), Failure> {
        if self.parameters.get == Request::Nothing {
            return Ok(());
        }
        self.isolate_getting(id).await?;
        let subject = self.unit.subject(id)?;
        self.retrieve(&subject).await
    }
}
