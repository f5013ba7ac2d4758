//! One OSD command at work: its CDB, its buffers, its locks, and the steps that all commands share.
//! [`super::frame`] defines the order of a command's steps. Owns no command's meaning.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use device::{Command, DataMover, Outcome};
use osd::attributes::numbers::{collections, partition_quotas, user_information};
use osd::cdb::{AttributeParameters, Cdb, Effect, Isolation, ObjectRange, Timestamps};
use osd::continuation::{Continuation, ContinuationError, Descriptor, HEADER_LEN};
use osd::sense::function;
use osd::{Command as Osd, Id, ObjectType, Version};
use runtime::Chain;
use scsi::{Sense, SenseKey, Status};
use smallvec::SmallVec;

use super::attributes::{Parameters, Setting};
use super::{Needs, OsdUnit, Turn};
use osd::sense::code;

use super::failure::{Failure, additional};
use super::limits::MAX_CONTINUATION;
use super::locks::{Guard, Key, Mode, Part};
use super::progress::Progress;
use super::security::Proof;
use super::transfer::Transfer;
use crate::store::{Applied, Change, Commit, Error, Scope, Step, Stop, TimesUpdate};

/// Values of the Current Command page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Current {
    /// OBJECT TYPE; 0 where there is none.
    pub object_type: u8,
    /// The object that the command was about, or the last that it created.
    pub id: Id,
    /// STARTING BYTE ADDRESS OF APPEND.
    pub appended_at: u64,
    /// CHANGE IN USED CAPACITY in bytes.
    pub used_change: i64,
    /// RESPONSE INTEGRITY CHECK VALUE of a command that ends well; zeros without a security method
    /// that has it.
    pub response_icv: [u8; 32],
    /// Bytes of RESPONSE INTEGRITY CHECK VALUE.
    pub icv_len: usize,
}

/// The access of a command to an object, for its isolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read { start: u64, end: u64 },
    Write { start: u64, end: u64 },
    None,
}

impl Touch {
    pub(crate) const READ_ALL: Self = Self::Read { start: 0, end: u64::MAX };
    pub(crate) const WRITE_ALL: Self = Self::Write { start: 0, end: u64::MAX };
}

pub(super) struct Task<'a> {
    pub unit: &'a Arc<OsdUnit>,
    #[allow(dead_code, reason = "for security, which looks at the CDB as it came")]
    pub command: &'a Command,
    pub cdb: &'a Cdb,
    pub transfer: Transfer<'a>,
    pub descriptors: Vec<Descriptor>,
    /// The CDB continuation as it came, header and all; empty if there is none.
    pub continuation: Vec<u8>,
    /// Attributes to get and to set, once [`Self::take_parameters`] has run.
    pub parameters: Parameters,
    pub current: Current,
    /// The time of the command, in milliseconds since 1970.
    pub now: u64,
    pub progress: Progress,
    /// The proof of the initiator; `None` without a security method.
    pub proof: Option<Proof>,
    /// Bytes that a READ moved before the object's end: it ends with RECOVERED ERROR.
    pub read_past_end: Option<u64>,
    /// The command has created the object that it is about.
    pub created: bool,
    /// The time of creation of what it creates, in milliseconds since 1970; [`Self::now`] until
    /// [`Self::begin_creation`].
    pub created_at: u64,
    /// The last change was refused because there is an object that it was to create.
    exists: bool,
    /// It has given up its partitions while its initiator takes the data put, and waits for them
    /// again.
    paused: bool,
    // In the order in which they are waited for: the command's isolation, its partitions, a quota.
    // A command that waits for one holds none of the later ones, so that no deadlock arises.
    guards: SmallVec<[Guard<'a>; 3]>,
    tail: Option<Guard<'a>>,
    turn: Option<Turn<'a>>,
    quota: Option<Guard<'a>>,
}

impl<'a> Task<'a> {
    pub fn new(
        unit: &'a Arc<OsdUnit>,
        command: &'a Command,
        cdb: &'a Cdb,
        mover: &'a mut dyn DataMover,
    ) -> Self {
        let mut wanted = function::VALIDATION | function::COMMAND_CAPABILITY | function::COMMAND;
        if cdb.attributes.sets() {
            wanted |= function::SET_CAPABILITY | function::SET_ATTRIBUTES;
        }
        if cdb.attributes.gets() {
            wanted |= function::GET_CAPABILITY | function::GET_ATTRIBUTES;
        }
        let now = unit.now();
        Self {
            unit,
            command,
            cdb,
            transfer: Transfer::new(mover, command.data_out_len, command.data_in_len),
            descriptors: Vec::new(),
            continuation: Vec::new(),
            parameters: Parameters::default(),
            current: Current {
                object_type: cdb.command.object_type().map_or(0, ObjectType::code),
                id: cdb.command.id(),
                icv_len: cdb.form.icv_len(),
                ..Current::default()
            },
            now,
            progress: Progress::of(wanted),
            proof: None,
            read_past_end: None,
            created: false,
            created_at: now,
            exists: false,
            paused: false,
            guards: SmallVec::new(),
            tail: None,
            turn: None,
            quota: None,
        }
    }

    pub fn version(&self) -> Version {
        self.cdb.form.version()
    }

    pub(crate) fn length_field(&self) -> u16 {
        match self.version() {
            Version::Osd1 => 36,
            Version::Osd2 => 32,
        }
    }

    /// Byte of STARTING BYTE ADDRESS in the CDB.
    pub(crate) fn start_field(&self) -> u16 {
        match self.version() {
            Version::Osd1 => 44,
            Version::Osd2 => 40,
        }
    }

    /// Offset of the command's own data in Data-Out.
    pub fn data_at(&self) -> u64 {
        u64::from(self.cdb.continuation)
    }

    /// Checks that Data-Out holds the data that the CDB describes, takes the CDB continuation, and
    /// checks the initiator's permission.
    pub async fn begin(&mut self) -> Result<(), Failure> {
        self.progress.begin(function::VALIDATION);
        let data_end = self.data_at().checked_add(self.cdb.command.data_out_len());
        let data_end = data_end.ok_or_else(|| Failure::cdb(self.length_field()))?;
        let regions = regions(&self.cdb.attributes);
        let lists_end = regions.iter().map(|(region, _)| region.end()).max().unwrap_or(0);
        self.transfer.wanted_out = data_end.max(lists_end);
        if self.cdb.continuation > MAX_CONTINUATION
            || u64::from(self.cdb.continuation) > self.transfer.out_len()
        {
            return Err(Failure::cdb(48));
        }
        if data_end > self.transfer.out_len() {
            return Err(Failure::cdb(self.length_field()));
        }
        let mut end = data_end;
        for (region, field) in &regions {
            // Behind the data, apart from each other, and there.
            if region.offset < end || region.end() > self.transfer.out_len() {
                return Err(Failure::cdb(*field));
            }
            end = region.end();
        }
        if let Some(retrieved) = self.cdb.retrieved() {
            if retrieved.offset < self.cdb.command.data_in_len() {
                return Err(Failure::cdb(retrieved_field(&self.cdb.attributes)));
            }
        }
        if self.cdb.continuation > 0 {
            let len = u64::from(self.cdb.continuation);
            self.continuation = self.transfer.take(0, len).await?.to_vec();
            let action = self.cdb.command.action();
            let continuation =
                Continuation::parse(&self.continuation, action).map_err(refuse_continuation)?;
            self.descriptors = continuation.descriptors;
            self.check_descriptors()?;
        }
        self.progress.done(function::VALIDATION);
        self.unit.authorize(self).await?;
        Ok(())
    }

    /// Refuses the first descriptor of the CDB continuation that the command has no use for.
    fn check_descriptors(&self) -> Result<(), Failure> {
        let mut at = HEADER_LEN;
        for descriptor in &self.descriptors {
            let used = match (descriptor, &self.cdb.command) {
                (
                    Descriptor::ScatterGather(_),
                    Osd::Read(..) | Osd::Write(..) | Osd::CreateAndWrite { .. },
                ) => true,
                (Descriptor::ScatterGather(_), _) => false,
                (Descriptor::Query(_), command) => matches!(command, Osd::Query { .. }),
                (Descriptor::CopySource(_), command) => matches!(command, Osd::CopyUserObjects { .. }),
                // To leave objects out that the initiator names would be to do something else than
                // it asks for.
                (Descriptor::UserObjects(_), _) => false,
                (Descriptor::ExtensionCapabilities(_), _) => true,
            };
            if !used {
                return Err(Failure::parameter(at as u64));
            }
            // It was parsed before, so its header is there.
            let pad = usize::from(self.continuation.get(at + 3).copied().unwrap_or(0) & 7);
            let len = self.continuation.get(at + 4..at + 8).and_then(|len| len.try_into().ok());
            at += 8 + u32::from_be_bytes(len.unwrap_or_default()) as usize + pad;
        }
        Ok(())
    }

    /// The scatter/gather list of the CDB continuation.
    pub(crate) fn scatter_gather(&self) -> Result<Option<&[ObjectRange]>, Failure> {
        let mut lists = self.descriptors.iter().filter_map(|descriptor| match descriptor {
            Descriptor::ScatterGather(ranges) => Some(ranges.as_slice()),
            _ => None,
        });
        let list = lists.next();
        // The standard does not say which of two lists counts.
        if lists.next().is_some() { Err(Failure::parameter(0)) } else { Ok(list) }
    }

    /// The next `len` bytes of the command's data, which are `offset` bytes from its start.
    pub async fn take_data(&mut self, offset: u64, len: u64) -> Result<Chain, Failure> {
        let data = self.transfer.take(self.data_at() + offset, len).await?;
        self.unit.still_permitted(self)?;
        Ok(data)
    }

    /// Takes the attribute lists out of Data-Out. To be called once, when the command's data has
    /// been taken.
    pub async fn take_parameters(&mut self) -> Result<(), Failure> {
        self.parameters = Parameters::take(self.cdb, &mut self.transfer).await?;
        self.unit.still_permitted(self)?;
        self.unit.check_attributes(self)
    }

    pub fn isolation(&self) -> Result<Isolation, Failure> {
        match self.cdb.options.isolation {
            Isolation::Default => Ok(self.unit.options.isolation),
            // There is none of this vendor's.
            Isolation::Vendor => Err(Failure::cdb_bit(10, 2)),
            isolation => Ok(isolation),
        }
    }

    /// Waits for the locks that isolate what the command does to the object at `id`, and then for
    /// its partitions. The locks are held until the command ends; with functional isolation until
    /// [`Self::function_done`]. A command that touches several objects calls this in ascending
    /// order of their ids. To be called before anything is done, and when everything that the
    /// initiator sends is there: a slow one must not keep others waiting.
    pub async fn isolate(&mut self, id: Id, touch: Touch) -> Result<(), Failure> {
        self.lock(id, touch).await?;
        self.take_turn().await
    }

    /// Waits for the command's partitions, for the first time or after [`Self::yield_turn`].
    pub(crate) async fn take_turn(&mut self) -> Result<(), Failure> {
        let (unit, cdb) = (self.unit, self.cdb);
        let needs = Needs { strict: self.isolation()? == Isolation::Strict, quotas: self.sets_quotas() };
        self.turn = Some(self.transfer.unless_lost(unit.turn(&cdb.command, needs)).await??);
        self.unit.still_permitted(self)
    }

    async fn guard(&mut self, key: Key, mode: Mode) -> Result<Guard<'a>, Failure> {
        let unit = self.unit;
        self.transfer.unless_lost(unit.locks.lock(key, mode)).await
    }

    async fn lock(&mut self, id: Id, touch: Touch) -> Result<(), Failure> {
        self.yield_turn();
        let isolation = self.isolation()?;
        let data = Key { id, part: Part::Data };
        let attributes = Key { id, part: Part::Attributes };
        let (gets, sets) = (self.cdb.attributes.gets(), self.cdb.attributes.sets());
        // A command that sets the length changes data, wherever the object ended.
        let touch = if self.may_set_length() { Touch::WRITE_ALL } else { touch };
        let writes = matches!(touch, Touch::Write { .. });
        let mode = |exclusive| if exclusive { Mode::EXCLUSIVE } else { Mode::SHARED };
        match isolation {
            Isolation::None | Isolation::Default | Isolation::Vendor => {}
            Isolation::Strict => {
                let guard = self.guard(data, mode(writes || sets)).await?;
                self.guards.push(guard);
            }
            Isolation::Range | Isolation::Functional => {
                let by_range = isolation == Isolation::Range;
                let wanted = match touch {
                    Touch::Read { start, end } => Some((start, end, false)),
                    Touch::Write { start, end } => Some((start, end, true)),
                    Touch::None => None,
                };
                if let Some((start, end, exclusive)) = wanted {
                    let mode = if by_range { Mode { start, end, exclusive } } else { mode(exclusive) };
                    let guard = self.guard(data, mode).await?;
                    self.guards.push(guard);
                }
                if sets || gets && by_range {
                    let guard = self.guard(attributes, mode(sets)).await?;
                    self.guards.push(guard);
                }
            }
        }
        Ok(())
    }

    /// Whether the command sets a logical length, or may: the list may still be on its way.
    fn may_set_length(&self) -> bool {
        let known = !self.parameters.set.is_empty() || !self.cdb.attributes.sets();
        !known
            || self.parameters.set.iter().any(|setting| setting.attribute == user_information::LOGICAL_LENGTH)
    }

    /// Like [`Self::isolate`], for what takes turns at the end of the object at `id` whatever its
    /// isolation.
    pub(crate) async fn isolate_at_end(&mut self, id: Id, touch: Touch) -> Result<(), Failure> {
        self.lock(id, touch).await?;
        self.tail = Some(self.guard(Key { id, part: Part::Tail }, Mode::EXCLUSIVE).await?);
        self.take_turn().await
    }

    /// The command goes on waiting for its initiator: commands that need its partitions for
    /// themselves need not wait for it. From here on, it may find them changed.
    pub fn yield_turn(&mut self) {
        self.quota = None;
        self.turn = None;
    }

    /// Gives up all that isolates the command. From here on, it may find its objects changed.
    pub fn release(&mut self) {
        self.yield_turn();
        self.guards.clear();
        self.tail = None;
    }

    /// Whether the last change was refused because others have created an object with an id that
    /// the unit had chosen for the command: it has to choose another one.
    pub(crate) fn has_lost_id(&mut self) -> bool {
        std::mem::take(&mut self.exists) && self.chooses_id()
    }

    /// Whether the unit chooses the ids of what the command creates.
    pub(crate) fn chooses_id(&self) -> bool {
        let (command, id) = (&self.cdb.command, self.cdb.command.id());
        let requested =
            if command.object_type() == Some(ObjectType::Partition) { id.partition } else { id.object };
        command.effect() == Effect::Creates && requested == 0
    }

    /// Waits until the initiator has taken enough of the data put for more to follow. Meanwhile the
    /// command keeps no other from its partitions; afterwards it checks again whether it is still
    /// permitted.
    pub async fn keep_pace(&mut self) -> Result<(), Failure> {
        if self.transfer.in_at() == 0 || self.transfer.is_ready().await? { Ok(()) } else { self.wait().await }
    }

    /// [`Self::keep_pace`] where more does not follow at once.
    pub async fn wait(&mut self) -> Result<(), Failure> {
        self.paused |= self.turn.is_some();
        self.yield_turn();
        self.transfer.ready().await?;
        self.unit.still_permitted(self)
    }

    /// The rest of the command touches its partitions: waits for them again if it has given them up
    /// for its initiator.
    pub async fn resume(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.paused) && self.turn.is_none() { self.take_turn().await } else { Ok(()) }
    }

    /// Keeps others from growing `partition` meanwhile, where it has a quota: to be waited for
    /// before the quota is checked. It is held until [`Self::yield_turn`], or the end of the
    /// command.
    pub async fn quota_turn(&mut self, partition: u64) -> Result<(), Failure> {
        let unit = self.unit;
        let joins = self.joins();
        // The holder does not wait for itself.
        self.quota = None;
        self.quota = self.transfer.unless_lost(unit.quota_turn(partition, joins)).await??;
        Ok(())
    }

    /// Whether the command has objects name collections.
    pub fn joins(&self) -> bool {
        let joins =
            |setting: &Setting| setting.attribute.page == collections::PAGE && !setting.value.is_empty();
        self.parameters.set.iter().any(joins)
    }

    /// Whether the command sets quotas of a partition.
    fn sets_quotas(&self) -> bool {
        self.parameters.set.iter().any(|setting| setting.attribute.page == partition_quotas::PAGE)
    }

    /// Keeps others from creating partitions meanwhile; held as [`Self::quota_turn`]'s.
    pub(crate) async fn partition_turn(&mut self) -> Result<(), Failure> {
        self.quota = Some(self.guard(Key { id: Id::ROOT, part: Part::Quota }, Mode::EXCLUSIVE).await?);
        Ok(())
    }

    /// Isolates the command's setting of attributes of the object at `id`, if each function of the
    /// command is isolated for itself and the one before it is done.
    pub(crate) async fn isolate_setting(&mut self, id: Id) -> Result<(), Failure> {
        if self.guards.is_empty() { self.isolate_next(id, Touch::None).await } else { Ok(()) }
    }

    /// The command's next function on the object at `id`, where each is isolated for itself.
    pub(crate) async fn isolate_next(&mut self, id: Id, touch: Touch) -> Result<(), Failure> {
        if self.isolation()? == Isolation::Functional {
            self.release();
            self.isolate(id, touch).await?;
        }
        Ok(())
    }

    /// Isolates the attributes of the object at `id` from commands that set them, if each function
    /// of the command is isolated for itself.
    pub(crate) async fn isolate_getting(&mut self, id: Id) -> Result<(), Failure> {
        if self.isolation()? == Isolation::Functional {
            self.release();
            let key = Key { id, part: Part::Attributes };
            let guard = self.guard(key, Mode::SHARED).await?;
            self.guards.push(guard);
        }
        Ok(())
    }

    /// Whether data must be put as it is now: others may change it as soon as the command's locks
    /// are gone.
    pub fn isolated(&self) -> bool {
        !self.guards.is_empty() || self.transfer.is_sealed()
    }

    /// A function of the command is done: with functional isolation its locks end.
    pub fn function_done(&mut self) {
        if self.isolation().is_ok_and(|isolation| isolation == Isolation::Functional) {
            self.guards.clear();
        }
    }

    /// With FUA changes are on the medium when the command ends; keys are always.
    pub fn commit(&self) -> Commit {
        if self.cdb.options.fua || self.cdb.command.sets_keys() { Commit::Durable } else { Commit::Relaxed }
    }

    /// Whether the command leaves the timestamps of `partition` and its contents alone.
    pub fn bypass(&self, partition: u64) -> Result<bool, Failure> {
        Ok(self.cdb.timestamps == Timestamps::Bypass || self.unit.policy(partition)?.bypass)
    }

    /// Notes times of `id` without waiting for the medium: the times of data's reads and writes.
    pub fn touch(&self, id: Id, times: TimesUpdate) -> Result<(), Failure> {
        if !self.bypass(id.partition)? {
            self.unit.store.touch(id, times);
        }
        Ok(())
    }

    pub fn set_times(&self, id: Id, times: TimesUpdate, change: &mut Change) -> Result<(), Failure> {
        if !self.bypass(id.partition)? {
            change.push(Step::SetTimes { id, times });
        }
        Ok(())
    }

    /// Applies `change` as durably as the command asks for, and notes its effects for the Current
    /// Command page.
    pub async fn apply(&mut self, change: Change) -> Result<Applied, Failure> {
        if change.is_empty() {
            return Ok(Applied::default());
        }
        self.apply_as(change, self.commit()).await
    }

    /// [`Self::apply`], as durably as `commit` says.
    pub(crate) async fn apply_as(&mut self, change: Change, commit: Commit) -> Result<Applied, Failure> {
        let applied = match change.may_take_long() {
            true => self.apply_long(change, commit).await,
            false => self.unit.apply(change, commit).await,
        };
        self.exists = matches!(applied, Err(Error::Exists(_)));
        let applied = applied?;
        self.current.used_change = self.current.used_change.saturating_add(applied.used_change);
        Ok(applied)
    }

    /// Applies a change that may take long: it is stopped when the command is aborted.
    async fn apply_long(&mut self, mut change: Change, commit: Commit) -> Result<Applied, Error> {
        let stop = Stop::default();
        change.stop = Some(stop.clone());
        let mut applying = pin!(self.unit.apply(change, commit));
        let transfer = &mut self.transfer;
        poll_fn(|cx| {
            let applied = applying.as_mut().poll(cx);
            if applied.is_pending() && transfer.poll_lost(cx).is_ready() {
                stop.ask();
            }
            applied
        })
        .await
    }

    /// Everything that concerns `scope` is on the medium.
    pub async fn sync(&self, scope: Scope) -> Result<(), Failure> {
        Ok(self.unit.store.sync(scope).await?)
    }

    /// Puts the integrity information of Data-In, if there is to be one, with zeros before it.
    pub(crate) async fn finish_seal(&mut self) -> Result<(), Failure> {
        let put = self.transfer.in_at();
        if let Some(at) = self.transfer.sealed_at() {
            self.pad_to(at).await?;
        }
        self.transfer.finish_seal(put);
        Ok(())
    }

    pub(crate) async fn pad_to(&mut self, at: u64) -> Result<(), Failure> {
        while self.transfer.pad_to(at) {
            self.keep_pace().await?;
        }
        Ok(())
    }

    pub fn end(self, result: Result<(), Failure>) -> Outcome {
        let moved = self.transfer.outcome();
        let sense = match result {
            Ok(()) => match self.read_past_end {
                None => return moved,
                Some(bytes) => Box::new(
                    Sense::new(SenseKey::RecoveredError, additional(code::READ_PAST_END))
                        .with_command_specific(bytes),
                ),
            },
            Err(Failure::Sense(sense)) => sense,
            Err(Failure::Status(status)) => return Outcome { status, ..moved },
            Err(Failure::Lost) => return Outcome::GOOD,
        };
        let mut sense = sense;
        let mut descriptors = self.progress.descriptor(self.current.id);
        descriptors.append(&mut sense.descriptors);
        sense.descriptors = descriptors;
        if let Some(proof) = &self.proof {
            proof.seal_sense(Status::CheckCondition, &mut sense);
        }
        Outcome { status: Status::CheckCondition, sense: Some(sense), ..moved }
    }
}

fn refuse_continuation(error: ContinuationError) -> Failure {
    match error {
        ContinuationError::Length(_) => Failure::cdb(48),
        ContinuationError::Field(byte) => Failure::parameter(u64::from(byte)),
        ContinuationError::TooMany => Failure::parameter_length(),
    }
}

/// Place of a list or a value in Data-Out, and the field of the CDB that gives it.
type Placed = (osd::cdb::Region, u16);

/// The parts of Data-Out that attribute parameters take, in ascending order.
pub(super) fn regions(parameters: &AttributeParameters) -> SmallVec<[Placed; 2]> {
    let mut out: SmallVec<[Placed; 2]> = SmallVec::new();
    match parameters {
        AttributeParameters::SetOne(_) => {}
        AttributeParameters::Page { set, .. } => {
            out.extend(set.and_then(|set| set.value).map(|region| (region, 76)));
        }
        AttributeParameters::List { get, set, .. } => {
            out.extend(get.map(|region| (region, 56)));
            out.extend(set.map(|region| (region, 72)));
        }
    }
    out.sort_by_key(|(region, _)| region.offset);
    out
}

/// The field that says where retrieved attributes go.
const fn retrieved_field(parameters: &AttributeParameters) -> u16 {
    match parameters {
        AttributeParameters::Page { .. } => 60,
        _ => 64,
    }
}
