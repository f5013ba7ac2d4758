//! The logical unit of type 11h: T10 OSD commands above any [`crate::store::ObjectStore`].
//!
//! Here is the unit itself: its parts, the dispatch of a command to its code, and the checks before
//! every command. Each kind of command has a file of its own; the code that all of them share is in
//! [`frame`] and [`task`]. The unit calls the store through its trait only: it never touches a
//! file.

mod attributes;
mod check;
mod collections;
mod copy;
mod create;
mod failure;
mod flush;
mod frame;
mod limits;
mod list;
mod locks;
mod map;
mod members;
mod options;
mod policy;
mod progress;
mod query;
mod read;
mod reply;
mod scan;
mod security;
mod segments;
mod snapshots;
mod spc;
mod subject;
mod task;
#[cfg(test)]
mod tests;
mod tracking;
mod transfer;
mod tunnel;
mod write;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::exclusion::{Exclusion, Queued, WriteGuard};
use device::{
    Command, DataMover, Execution, ItlNexus, KeptError, LogicalUnit, NexusId, Nexuses, Outcome, ResetKind,
};
use osd::cdb::{Cdb, Effect, Sharing};
use osd::{Command as Osd, ObjectType};
use runtime::Pooled;
use scsi::Sense;
use scsi::cdb::opcode;
use scsi::reservation::{Access, access};
use smallvec::SmallVec;

use crate::store::{Applied, Change, Commit, Duplicate, Error, ObjectStore};
use create::CreationTimes;
use failure::Failure;
use limits::CHUNK_BYTES;
use list::Lists;
use locks::Locks;
use policy::Policies;
use query::Searches;
use task::Task;

pub use options::{Clock, OptionError, OsdOptions, SystemClock};

/// An object-based storage device, shared by all cores.
#[repr(align(128))]
pub struct OsdUnit {
    store: Arc<dyn ObjectStore>,
    options: OsdOptions,
    /// The nexuses that reach it, and their reservations.
    nexuses: Nexuses,
    /// Keeps what needs a partition for itself apart from all other commands; in partition ids.
    exclusion: Exclusion,
    locks: Locks,
    policies: Policies,
    creation_times: CreationTimes,
    security: security::Security,
    lists: Lists,
    /// Queries that go on when their commands have ended.
    searches: Searches,
    modes: scsi::mode::Pages,
}

#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Kept reservations cannot be put into force.
    #[error(transparent)]
    Reservations(#[from] KeptError),
}

impl OsdUnit {
    /// Makes a unit of `store`, with the reservations that APTPL kept. Blocks for a small file if
    /// there is such a place.
    ///
    /// # Errors
    /// An [`OsdError`].
    pub fn new(store: Arc<dyn ObjectStore>, options: OsdOptions) -> Result<Arc<Self>, OsdError> {
        options.check()?;
        let nexuses = Nexuses::new(options.persist.clone())?;
        let lists = Lists::new(options.clock.now_ms());
        let security = security::Security::new(&*store, options.clock.now_ms());
        Ok(Arc::new(Self {
            store,
            options,
            nexuses,
            exclusion: Exclusion::new(),
            locks: Locks::new(),
            policies: Policies::default(),
            creation_times: CreationTimes::default(),
            security,
            lists,
            searches: Searches::default(),
            modes: scsi::mode::Pages::objects(),
        }))
    }

    pub fn options(&self) -> &OsdOptions {
        &self.options
    }

    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Sense data goes out in descriptor format, always.
    pub fn descriptor_sense(&self) -> bool {
        true
    }

    /// The nexuses that reach the unit, and their reservations.
    pub fn nexuses(&self) -> &Nexuses {
        &self.nexuses
    }

    /// The time, in milliseconds since 1970.
    fn now(&self) -> u64 {
        self.options.clock.now_ms()
    }

    /// Applies `change`, and has lists that are being read know of it.
    async fn apply(&self, change: Change, commit: Commit) -> Result<Applied, Error> {
        let listed = Lists::touched(&change);
        let applied = self.store.apply(change, commit).await?;
        self.lists.note(&listed);
        Ok(applied)
    }

    /// Checks before any command: unit attentions, the port's state, reservations.
    fn gate(&self, command: &Command) -> Result<(), Outcome> {
        if command.nexus.verdict().clear() {
            return Ok(());
        }
        let bytes = command.cdb.bytes();
        let exempt =
            matches!(bytes.first(), Some(&(opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE)));
        self.nexuses.gate(command, exempt, || match bytes.first() {
            Some(&osd::cdb::OPCODE) => osd_access(bytes),
            _ => access(bytes),
        })
    }

    /// Whether what a command wants to change may be changed at all.
    fn check_writable(&self, command: &Command, cdb: &Cdb) -> Result<(), Failure> {
        if (self.options.read_only || command.nexus.read_only) && changes(cdb) {
            return Err(Sense::write_protected().into());
        }
        Ok(())
    }

    fn execute_spc<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mut mover: M) -> Execution<M> {
        let decoded = match scsi::cdb::decode(command.cdb.bytes()) {
            Ok(decoded) => decoded,
            Err(sense) => return Execution::Done(mover, sense.into()),
        };
        match self.answer_at_once(&command, &decoded) {
            Some(Ok((mut data, allocation))) => {
                data.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
                let outcome = Outcome::read(data.len() as u64);
                if !data.is_empty() {
                    mover.put_data(data.into());
                }
                Execution::Done(mover, outcome)
            }
            Some(Err(outcome)) => Execution::Done(mover, outcome),
            None => {
                let unit = self.clone();
                Execution::Running(Pooled::new(async move {
                    let result = unit.run_spc(&command, &mut mover, decoded).await;
                    (mover, result.unwrap_or_else(|outcome| outcome))
                }))
            }
        }
    }

    /// An OSD command from its beginning to its end.
    async fn execute_osd(
        self: &Arc<Self>,
        command: &Command,
        cdb: &Cdb,
        mover: &mut dyn DataMover,
    ) -> Outcome {
        let mut task = Task::new(self, command, cdb, mover);
        let result = match self.check_writable(command, cdb) {
            Ok(()) => task.begin().await,
            refused => refused,
        };
        let result = match result {
            Ok(()) => run(&mut task).await,
            refused => refused,
        };
        let result = match result {
            Ok(()) => task.finish_seal().await,
            failed => failed,
        };
        task.end(result)
    }

    /// Waits until the command may touch the partitions that it is about: most share them, some
    /// need them for themselves.
    async fn turn(&self, command: &Osd, needs: Needs) -> Result<Turn<'_>, Failure> {
        let partition = command.id().partition;
        let sharing = match command.sharing() {
            Sharing::Many if needs.strict && command.object_type() == Some(ObjectType::Root) => {
                Sharing::Everything
            }
            Sharing::Many if needs.strict => Sharing::Alone,
            Sharing::Many | Sharing::Shared if needs.quotas => Sharing::Alone,
            sharing => sharing,
        };
        let mut turn = Turn::default();
        match sharing {
            // It may wait for commands that wait for this one's partition.
            Sharing::Nothing => {}
            Sharing::Shared | Sharing::Many => {
                turn._shared = Some(self.exclusion.write(partition, partition.saturating_add(1)).await);
            }
            Sharing::Alone => {
                let mut ids: SmallVec<[u64; 2]> =
                    std::iter::once(partition).chain(command.source()).collect();
                if let Osd::RefreshSnapshotOrClone { partition } = *command {
                    ids.extend(self.store.partition(partition)?.origin.map(|origin| origin.source));
                }
                // In ascending order, so that no two wait for each other.
                ids.sort_unstable();
                ids.dedup();
                for id in ids {
                    turn._alone.push(self.exclusion.atomic(id, id.saturating_add(1)).await);
                }
            }
            Sharing::Everything => turn._alone.push(self.exclusion.atomic(0, u64::MAX).await),
        }
        Ok(turn)
    }
}

/// Reasons for which a command needs its partitions for itself.
#[derive(Clone, Copy)]
struct Needs {
    /// Its objects must not change from the first to the last.
    strict: bool,
    /// It changes a partition's quotas: commands that have checked the old ones must be done
    /// before.
    quotas: bool,
}

#[derive(Default)]
struct Turn<'a> {
    _shared: Option<WriteGuard<'a>>,
    _alone: SmallVec<[Queued<'a>; 2]>,
}

/// The function of each command. Those that are one line each are the whole of what other files add
/// here.
async fn run(task: &mut Task<'_>) -> Result<(), Failure> {
    match task.cdb.command {
        Osd::Read(id, range) => read::read(task, id, range).await,
        Osd::Write(id, range) => write::write(task, id, range).await,
        Osd::Append { id, len } => write::append(task, id, len).await,
        Osd::Clear(id, range) => write::clear(task, id, range).await,
        Osd::Punch(id, range) => write::punch(task, id, range).await,
        Osd::CreateAndWrite { partition, requested, range } => {
            write::create_and_write(task, partition, requested, range).await
        }
        Osd::Create { partition, requested, count } => {
            create::create(task, partition, requested, count).await
        }
        Osd::CreatePartition { requested } => create::create_partition(task, requested).await,
        Osd::Format { capacity } => create::format(task, capacity).await,
        Osd::Remove(id) => create::remove(task, id).await,
        Osd::RemovePartition { partition, scope } => create::remove_partition(task, partition, scope).await,
        Osd::GetAttributes(id) => task.get_attributes(id).await,
        Osd::SetAttributes(id) => task.set_attributes(id).await,
        Osd::Flush { id, scope, .. } => flush::object(task, id, scope).await,
        Osd::FlushCollection { id, scope } => flush::collection(task, id, scope).await,
        Osd::FlushPartition { partition, scope } => flush::partition(task, partition, scope).await,
        Osd::FlushOsd { scope } => flush::osd(task, scope).await,
        Osd::List(list) => list::list(task, &list).await,
        Osd::ListCollection(list) => list::list_collection(task, &list).await,
        Osd::CreateCollection { partition, requested } => {
            collections::create_collection(task, partition, requested).await
        }
        Osd::CreateUserTrackingCollection { partition, requested, source } => {
            collections::create_tracking_collection(task, partition, requested, source).await
        }
        Osd::RemoveCollection { id, force } => collections::remove_collection(task, id, force).await,
        Osd::Query { id, immediate, allocation, matches } => {
            query::query(task, id, immediate, allocation, matches).await
        }
        Osd::RemoveMemberObjects(id) => members::remove_members(task, id).await,
        Osd::GetMemberAttributes(id) => members::get_member_attributes(task, id).await,
        Osd::SetMemberAttributes(id) => members::set_member_attributes(task, id).await,
        Osd::CreateClone { requested, source, method } => {
            snapshots::duplicate(task, requested, source, method, Duplicate::Clone).await
        }
        Osd::CreateSnapshot { requested, source, method } => {
            snapshots::duplicate(task, requested, source, method, Duplicate::Snapshot).await
        }
        Osd::DetachClone { partition } => snapshots::detach(task, partition).await,
        Osd::RefreshSnapshotOrClone { partition } => snapshots::refresh(task, partition).await,
        Osd::RestorePartition { partition, snapshot } => snapshots::restore(task, partition, snapshot).await,
        Osd::ReadMap { id, allocation, start, map_type } => {
            map::read_map(task, id, allocation, start, map_type).await
        }
        Osd::ReadMapsAndCompare { id, allocation, other, map_type } => {
            map::compare(task, id, allocation, other, map_type).await
        }
        Osd::CopyUserObjects { partition, requested, method } => {
            copy::copy(task, partition, requested, method).await
        }
        Osd::ObjectStructureCheck(scope) => check::check(task, scope).await,
        Osd::PerformScsiCommand { cdb } => tunnel::perform_scsi(task, &cdb).await,
        Osd::PerformTmf { allocation, function, tag } => {
            tunnel::perform_tmf(task, allocation, function, tag).await
        }
        Osd::SetKey(set) => security::set_key(task, set).await,
        Osd::SetMasterKey(set) => security::set_master_key(task, set).await,
    }
}

fn changes(cdb: &Cdb) -> bool {
    !matches!(cdb.command.effect(), Effect::Looks | Effect::Keeps) || cdb.attributes.sets()
}

/// Access of an OSD command under another nexus's reservation: a command that only looks is allowed
/// if others may read.
fn osd_access(cdb: &[u8]) -> Access {
    let looks = |cdb: Cdb| cdb.command.effect() == Effect::Looks && !cdb.attributes.sets();
    if Cdb::decode(cdb).is_ok_and(looks) { Access::Read } else { Access::Write }
}

impl LogicalUnit for OsdUnit {
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mut mover: M) -> Execution<M> {
        if let Err(outcome) = self.gate(&command) {
            return Execution::Done(mover, outcome);
        }
        if command.cdb.opcode() != osd::cdb::OPCODE {
            return self.execute_spc(command, mover);
        }
        let cdb = match Cdb::decode(command.cdb.bytes()) {
            Ok(cdb) => cdb,
            Err(error) => {
                let outcome = match Failure::from(error) {
                    Failure::Sense(sense) => Outcome::check(*sense),
                    Failure::Status(status) => Outcome::status(status),
                    Failure::Lost => Outcome::GOOD,
                };
                return Execution::Done(mover, outcome);
            }
        };
        let unit = self.clone();
        let is_short_read = matches!(cdb.command, Osd::Read(..))
            && command.data_out_len == 0
            && command.data_in_len <= CHUNK_BYTES;
        let mut running = Pooled::new(async move {
            let outcome = unit.execute_osd(&command, &cdb, &mut mover).await;
            (mover, outcome)
        });
        // Mostly it waits for nothing, and then needs no task of its own. If it does wait, its task
        // asks again at once.
        if is_short_read
            && let Poll::Ready((mover, outcome)) =
                Pin::new(&mut running).poll(&mut Context::from_waker(Waker::noop()))
        {
            return Execution::Done(mover, outcome);
        }
        Execution::Running(running)
    }

    fn device_type(&self) -> u8 {
        osd::data::DEVICE_TYPE
    }

    fn attach(&self, nexus: &Arc<ItlNexus>) {
        self.nexuses.attach(nexus);
    }

    fn detach(&self, nexus: NexusId) {
        self.nexuses.detach(nexus);
    }

    fn reset(&self, kind: ResetKind, _by: Option<NexusId>) {
        self.nexuses.reset(kind);
    }
}
