//! The ways through a command, and the order of their steps. A command supplies what differs: which
//! objects it touches, which quota it needs, its checks and steps, and how its creation is undone.
//!
//! ```text
//! mutate    parameters · isolation · quota · steps and set attributes as one change · get attributes · or undo
//! stream    data · isolation · quota · a change for each piece, the last with parameters and set attributes
//! inspect   parameters · isolation · look · set attributes · get attributes
//! remove    parameters · isolation · set attributes · get attributes · removal
//! ```
//!
//! Commands that work on many objects use the steps that these ways consist
//! of.

use osd::cdb::Effect;
use osd::sense::function;
use osd::{Id, ObjectType};
use runtime::Chain;
use smallvec::{SmallVec, smallvec};

use super::attributes::Request;
use super::failure::{Failure, undoes};
use super::limits::CHUNK_BYTES;
use super::subject::Subject;
use super::task::{Task, Touch};
use crate::store::{Change, Commit, Error, MAX_STEPS, Scope, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quota {
    None,
    /// Those of the partition that its object is in.
    Partition,
    /// The root's, of partitions.
    Partitions,
}

#[derive(Debug)]
pub(super) struct Plan {
    /// The object that is changed or created, whose attributes the command sets and gets.
    pub id: Id,
    of_type: ObjectType,
    touches: SmallVec<[(Id, Touch); 2]>,
    quota: Quota,
    undo: Option<Removal>,
}

/// The step that removes what a command has created at an id.
pub(super) type Removal = fn(Id) -> Step;

impl Plan {
    pub fn of(id: Id, of_type: ObjectType, touch: Touch) -> Self {
        Self { id, of_type, touches: smallvec![(id, touch)], quota: Quota::None, undo: None }
    }

    pub fn growing(self) -> Self {
        Self { quota: Quota::Partition, ..self }
    }

    pub fn partitions(self) -> Self {
        Self { quota: Quota::Partitions, ..self }
    }

    /// It also reads the object at `id`.
    pub fn reading(mut self, id: Id) -> Self {
        self.touches.push((id, Touch::READ_ALL));
        self
    }

    /// `removal` undoes the creation, if the command fails later.
    pub fn undo(self, removal: Removal) -> Self {
        Self { undo: Some(removal), ..self }
    }
}

pub(super) struct Piece {
    pub offset: u64,
    pub len: u64,
    pub data: Chain,
    pub is_last: bool,
}

impl<'a> Task<'a> {
    /// A command that changes or creates something, whole or not at all. `plan` has the parameters;
    /// `steps` runs isolated and within the quota, checks, and makes the change.
    pub async fn mutate(
        &mut self,
        plan: impl FnOnce(&mut Self) -> Result<Plan, Failure>,
        steps: impl FnMut(&mut Self, &mut Change) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let plan = self.change(plan, steps).await?;
        self.finish(plan, Ok(())).await
    }

    /// [`Self::mutate`] up to the change. If others have created an object with the id that the
    /// unit chose, the command gets another id, and `steps` runs again.
    pub async fn change(
        &mut self,
        plan: impl FnOnce(&mut Self) -> Result<Plan, Failure>,
        mut steps: impl FnMut(&mut Self, &mut Change) -> Result<(), Failure>,
    ) -> Result<Plan, Failure> {
        let mut plan = self.enter(plan).await?;
        let creates = self.cdb.command.effect() == Effect::Creates;
        let applied = loop {
            if creates {
                self.begin_creation(plan.id.partition, plan.id.object..=plan.id.object);
            }
            let mut change = Change::new();
            steps(self, &mut change)?;
            let applied = self.apply_with_attributes(plan.id, plan.of_type, change).await;
            if applied.is_ok() || !self.has_lost_id() {
                break applied;
            }
            let id = match plan.of_type {
                ObjectType::Partition => Id::partition(self.unit.store.reserve_ids(0, 1)?),
                _ => self.unit.new_id(plan.id.partition, 0)?,
            };
            self.move_to(&mut plan, id).await?;
        };
        self.created |= creates && applied.is_ok();
        if matches!(plan.of_type, ObjectType::Root | ObjectType::Partition) {
            // Quotas came or went with the content.
            self.unit.policies.forget();
        }
        applied.map(|_| plan)
    }

    /// [`Self::mutate`] up to the steps.
    pub async fn enter(
        &mut self,
        plan: impl FnOnce(&mut Self) -> Result<Plan, Failure>,
    ) -> Result<Plan, Failure> {
        self.take_parameters().await?;
        let mut plan = plan(self)?;
        self.take_place(&mut plan).await?;
        self.progress.begin(function::COMMAND);
        Ok(plan)
    }

    /// Has the command create the object at `id` in place of the one that it was to create.
    pub async fn move_to(&mut self, plan: &mut Plan, id: Id) -> Result<(), Failure> {
        let before = std::mem::replace(&mut plan.id, id);
        for (touched, _) in plan.touches.iter_mut().filter(|(touched, _)| *touched == before) {
            *touched = id;
        }
        self.release();
        self.take_place(plan).await
    }

    async fn take_place(&mut self, plan: &mut Plan) -> Result<(), Failure> {
        self.current.id = plan.id;
        self.isolate_all(&mut plan.touches).await?;
        match plan.quota {
            Quota::None => Ok(()),
            Quota::Partition => self.quota_turn(plan.id.partition).await,
            Quota::Partitions => self.partition_turn().await,
        }
    }

    /// [`Self::mutate`] from the change on, which ended with `result`: a creation that fails leaves
    /// nothing.
    pub async fn finish(&mut self, plan: Plan, mut result: Result<(), Failure>) -> Result<(), Failure> {
        let mut undone = result.is_err();
        if result.is_ok() {
            self.complete();
            result = self.get(plan.id).await;
            undone = undoes(&result);
        }
        if undone && let Some(removal) = plan.undo {
            self.undo(&[plan.id], removal).await;
        }
        result
    }

    /// A command that takes `total` bytes of data, in pieces of [`CHUNK_BYTES`] at most: the last
    /// piece and the attributes that it sets are one change. `isolate` runs when the first piece is
    /// there; `steps` says what each piece changes. All pieces go to one object, `current.id`:
    /// while the initiator is waited for, another may get its id. If others have created an object
    /// with the id that the unit chose, the command gets another id, and both run again.
    pub async fn stream(
        &mut self,
        total: u64,
        isolate: impl AsyncFn(&mut Self) -> Result<(), Failure>,
        mut steps: impl FnMut(&mut Self, Piece, &mut Change) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let creates = self.cdb.command.effect() == Effect::Creates;
        let mut created = None;
        let mut offset = 0;
        loop {
            let len = (total - offset).min(CHUNK_BYTES);
            let is_last = offset + len == total;
            let mut data = self.take_data(offset, len).await?;
            if is_last {
                self.take_parameters().await?;
            }
            if offset == 0 {
                isolate(self).await?;
                self.progress.begin(function::COMMAND);
            } else {
                self.take_turn().await?;
            }
            self.quota_turn(self.current.id.partition).await?;
            if offset == 0 && !is_last && !creates {
                created = Some(self.unit.user_object(self.current.id)?.times.created);
            }
            let applied = loop {
                let id = self.current.id;
                if offset == 0 && creates {
                    self.begin_creation(id.partition, id.object..=id.object);
                }
                let again = (offset == 0 && self.chooses_id()).then(|| data.clone());
                let mut change = Change::new();
                if let Some(created) = created {
                    change.push(Step::Expect { id, created });
                }
                steps(self, Piece { offset, len, data, is_last }, &mut change)?;
                let applied = match is_last {
                    true => self.apply_with_attributes(id, ObjectType::User, change).await,
                    false => self.apply_as(change, Commit::Relaxed).await,
                };
                match again {
                    Some(again) if applied.is_err() && self.has_lost_id() => data = again,
                    _ => break applied?,
                }
                self.current.id = self.unit.new_id(id.partition, 0)?;
                self.release();
                isolate(self).await?;
                self.quota_turn(id.partition).await?;
            };
            offset += len;
            if let Some(at) = applied.appended.first() {
                self.current.appended_at = *at;
            }
            if creates {
                self.created = true;
                created = Some(self.created_at);
            }
            if is_last {
                break;
            }
            self.yield_turn();
        }
        if self.cdb.options.fua && total > CHUNK_BYTES {
            self.sync(Scope::Object(self.current.id)).await?;
        }
        self.complete();
        Ok(())
    }

    /// Whether the object at `id` is the one that this command has created. While the initiator was
    /// waited for it may have been removed, and another one have got its id.
    pub fn has_made(&self, id: Id) -> bool {
        self.unit.store.times(id).is_ok_and(|times| times.created == self.created_at)
    }

    /// Removes what a command that failed has created, and nothing of others that got the ids
    /// meanwhile. If even that fails, the medium does, and the command's own failure is the better
    /// one to report.
    pub async fn undo(&mut self, made: &[Id], removal: Removal) {
        for ids in made.chunks(MAX_STEPS / 2) {
            match self.remove_made(ids, removal).await {
                // Some are gone: one by one, and without them.
                Err(Error::NotFound(_)) if ids.len() > 1 => {
                    for id in ids {
                        self.note_undone(self.remove_made(&[*id], removal).await);
                        // It goes on whether the command is aborted or not.
                        let _ = self.transfer.pause().await;
                    }
                }
                result => self.note_undone(result),
            }
        }
    }

    async fn remove_made(&self, ids: &[Id], removal: Removal) -> Result<(), Error> {
        let created = self.created_at;
        let steps = ids.iter().flat_map(|&id| [Step::Expect { id, created }, removal(id)]);
        self.unit.apply(steps.collect(), Commit::Relaxed).await.map(drop)
    }

    fn note_undone(&self, result: Result<(), Error>) {
        match result {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => {
                let id = self.current.id;
                tracing::warn!(%error, %id, "what a failed command created could not be removed");
            }
        }
    }

    /// A command that only looks at the object at `id`, attributes that it sets left out.
    pub async fn inspect(
        &mut self,
        id: Id,
        touch: Touch,
        look: impl AsyncFnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.take_parameters().await?;
        self.isolate(id, touch).await?;
        self.observe(id, look).await
    }

    /// [`Self::inspect`] from the look on.
    pub async fn observe(
        &mut self,
        id: Id,
        look: impl AsyncFnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.progress.begin(function::COMMAND);
        look(self).await?;
        self.complete();
        self.set_and_get(id).await
    }

    /// A command that removes the object at `id`, or its contents: its attributes are set and got
    /// before.
    pub async fn remove(
        &mut self,
        id: Id,
        check: impl FnOnce(&mut Self) -> Result<(), Failure>,
        removal: impl AsyncFnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.take_parameters().await?;
        self.isolate(id, Touch::WRITE_ALL).await?;
        check(self)?;
        self.set_and_get(id).await?;
        self.isolate_next(id, Touch::WRITE_ALL).await?;
        self.progress.begin(function::COMMAND);
        removal(self).await?;
        self.progress.done(function::COMMAND);
        Ok(())
    }

    /// Isolates all of `touches`, in ascending order of ids, so that no two commands wait for each
    /// other.
    pub(crate) async fn isolate_all(
        &mut self,
        touches: &mut SmallVec<[(Id, Touch); 2]>,
    ) -> Result<(), Failure> {
        touches.sort_unstable_by_key(|(id, _)| *id);
        touches.dedup_by_key(|(id, _)| *id);
        for (id, touch) in touches {
            self.isolate(*id, *touch).await?;
        }
        Ok(())
    }

    /// The command's own function is done: with functional isolation its locks end.
    pub fn complete(&mut self) {
        self.progress.done(function::COMMAND);
        self.function_done();
    }

    /// Sets what the command sets of the object at `id`, which is there already; then gets its
    /// attributes.
    pub(crate) async fn set_and_get(&mut self, id: Id) -> Result<(), Failure> {
        if !self.parameters.set.is_empty() {
            self.resume().await?;
            self.isolate_setting(id).await?;
            let of_type = self.unit.subject(id)?.object_type();
            // Quotas are looked at when the length is set.
            self.quota_turn(id.partition).await?;
            self.apply_with_attributes(id, of_type, Change::new()).await?;
        }
        self.get(id).await
    }

    /// Gets attributes of the object at `id`, as the command has left it.
    pub async fn get(&mut self, id: Id) -> Result<(), Failure> {
        if self.parameters.get == Request::Nothing {
            return Ok(());
        }
        self.isolate_getting(id).await?;
        let subject = self.unit.subject(id)?;
        self.retrieve(&subject).await?;
        // Removals come behind it.
        self.resume().await
    }

    /// GET ATTRIBUTES: get, then set.
    pub async fn get_attributes(&mut self, id: Id) -> Result<(), Failure> {
        let subject = self.describe(id).await?;
        self.retrieve(&subject).await?;
        self.resume().await?;
        if !self.parameters.set.is_empty() {
            self.quota_turn(id.partition).await?;
            self.apply_with_attributes(id, subject.object_type(), Change::new()).await?;
        }
        Ok(())
    }

    /// SET ATTRIBUTES: set, then get.
    pub async fn set_attributes(&mut self, id: Id) -> Result<(), Failure> {
        self.describe(id).await?;
        self.set_and_get(id).await
    }

    /// The function of both: the object is there.
    async fn describe(&mut self, id: Id) -> Result<Subject, Failure> {
        self.take_parameters().await?;
        self.isolate(id, Touch::None).await?;
        self.progress.begin(function::COMMAND);
        let subject = self.unit.subject(id)?;
        self.current.object_type = subject.object_type().code();
        self.progress.done(function::COMMAND);
        Ok(subject)
    }
}
