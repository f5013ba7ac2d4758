//! The SCSI disk: a [`DiskUnit`] runs the commands of SPC-4 and SBC-3 over a store.
//!
//! This file owns the unit itself: its state, the dispatch of commands, and the attachment of
//! nexuses. Each kind of command has its own file. A READ or WRITE that the store completes at once
//! needs no future, no allocation and no lock. Other commands may take time, but never block their
//! core.

mod access;
mod compare;
mod copy;
mod error;
mod gate;
mod inquiry;
mod landing;
pub mod limits;
mod maintenance;
mod medium;
mod mode;
mod options;
mod persist;
mod provisioning;
mod range;
mod read_write;
mod registry;
mod reserve;
mod sanitize;
mod stripes;
mod sync;
#[cfg(test)]
mod tests;
mod thresholds;
mod token;

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use device::{
    Command, DataMover, Execution, ItlNexus, KeptError, LogicalUnit, Lost, NexusId, Nexuses, Outcome,
    ResetKind,
};
use runtime::Pooled;
use scsi::Sense;
use scsi::cdb;
use scsi::copy::{CopyRecords, Operations, Tokens};

use backing::BlockStore;
use gate::flag;
use range::Range;
use sanitize::Sanitizing;
use stripes::Stripes;

pub use device::AbortTasks;
pub use options::{DiskOptions, OptionError, Thresholds};
pub use persist::{FilePersist, Persist};
pub use registry::Registry;

/// State that all cores share behind one mutex, taken only on the slow path and never across an
/// await.
struct State {
    /// Nexuses that prevent the removal of the medium.
    prevents: Vec<NexusId>,
    copies: CopyRecords,
    /// Copies with 32-bit list identifiers.
    operations: Operations,
    /// The tokens that the unit has created.
    tokens: Tokens,
    sanitizing: Sanitizing,
    modes: scsi::mode::Pages,
    watch: thresholds::Watch,
}

/// A disk, on cache lines of its own, which cores read for each command.
#[repr(align(128))]
pub struct DiskUnit {
    store: Arc<dyn BlockStore>,
    options: DiskOptions,
    /// Binary logarithm of the block size.
    block_shift: u32,
    /// Bits of [`gate::flag`].
    flags: AtomicU32,
    /// Capacity in blocks that the nexuses last saw.
    told_blocks: AtomicU64,
    /// Progress of the sanitize, in 65536ths.
    sanitize_done: AtomicU32,
    /// Keeps concurrent commands on the same blocks whole, those of a unit before it on the store
    /// too.
    stripes: Arc<Stripes>,
    /// Whether memory that the store lends is sent under `stripes`.
    guarded: bool,
    /// The attached nexuses and their reservations.
    nexuses: Nexuses,
    state: Mutex<State>,
    registry: Registry,
}

/// Reason why a disk cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// An option is invalid.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The medium is smaller than one block.
    #[error("the medium is smaller than one block")]
    TooSmall,
    /// The unit's block size is not a multiple of the medium's.
    #[error("the medium works in blocks of {medium} bytes, the unit in blocks of {unit}")]
    BlockSize {
        /// The store's [`backing::Geometry::block`].
        medium: u32,
        /// The unit's block size.
        unit: u32,
    },
    /// The stored reservations cannot be restored.
    #[error(transparent)]
    Reservations(#[from] KeptError),
    /// The record of a sanitize cannot be read.
    #[error("the record of a sanitize cannot be read: {0}")]
    Sanitize(io::Error),
}

impl DiskUnit {
    /// Creates a disk on `store`, with the reservations stored for APTPL, and with the failure of a
    /// sanitize. Blocks to read small files if there are any. Units that share `registry` can copy
    /// between each other.
    ///
    /// # Errors
    /// A [`DiskError`].
    pub fn new(
        store: Arc<dyn BlockStore>,
        options: DiskOptions,
        registry: &Registry,
    ) -> Result<Arc<Self>, DiskError> {
        Self::over(store, options, registry, None)
    }

    /// Creates a disk on the store of this one, to be served in its place. The last commands of
    /// this one may still run then: both take turns on the same blocks. A sanitize that has failed
    /// stays failed.
    ///
    /// # Errors
    /// A [`DiskError`].
    pub fn successor(&self, options: DiskOptions, registry: &Registry) -> Result<Arc<Self>, DiskError> {
        Self::over(self.store.clone(), options, registry, Some(self))
    }

    fn over(
        store: Arc<dyn BlockStore>,
        mut options: DiskOptions,
        registry: &Registry,
        before: Option<&Self>,
    ) -> Result<Arc<Self>, DiskError> {
        options.check()?;
        let geometry = store.geometry();
        if options.block_size % geometry.block.max(1) != 0 {
            return Err(DiskError::BlockSize { medium: geometry.block, unit: options.block_size });
        }
        options.thin &= store.thin();
        options.read_only |= !store.writable();
        let block_shift = options.block_size.trailing_zeros();
        let blocks = store.size() >> block_shift;
        if blocks == 0 {
            return Err(DiskError::TooSmall);
        }
        let nexuses = Nexuses::new(options.persist.clone())?;
        let (sanitizing, failed) = match before {
            Some(before) => (before.state().sanitizing.kept(), before.flags() & flag::SANITIZE_FAILED != 0),
            None => Sanitizing::load(options.sanitize_record.as_deref()).map_err(DiskError::Sanitize)?,
        };
        let state = State {
            prevents: Vec::new(),
            copies: CopyRecords::new(),
            operations: Operations::default(),
            tokens: Tokens::default(),
            sanitizing,
            modes: mode::pages(&options),
            watch: thresholds::Watch::default(),
        };
        let mut flags = if options.read_only { flag::READ_ONLY } else { 0 };
        if failed {
            let serial = options.identity.serial.as_str();
            tracing::error!(
                serial,
                "a sanitize has failed, or did not end: the unit serves nothing until another has"
            );
            flags |= flag::SANITIZE_FAILED;
        }
        let (stripes, guarded) = match before {
            Some(before) => (before.stripes.clone(), before.guarded),
            None => {
                let stripes = Arc::new(Stripes::new());
                let guarded = store.set_guard(stripes.clone());
                (stripes, guarded)
            }
        };
        let unit = Arc::new(Self {
            store,
            options,
            block_shift,
            flags: AtomicU32::new(flags),
            told_blocks: AtomicU64::new(blocks),
            sanitize_done: AtomicU32::new(0),
            stripes,
            guarded,
            nexuses,
            state: Mutex::new(state),
            registry: registry.clone(),
        });
        unit.apply_modes();
        registry.add(&unit);
        Ok(unit)
    }

    /// The options of the disk; `thin` and `read_only` reflect the store.
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// The store that holds the disk's bytes.
    pub fn store(&self) -> &Arc<dyn BlockStore> {
        &self.store
    }

    /// Size of the medium in blocks.
    pub fn blocks(&self) -> u64 {
        self.capacity()
    }

    /// D_SENSE of the Control mode page: the unit sends sense data in descriptor format.
    pub fn descriptor_sense(&self) -> bool {
        self.flags() & flag::DESCRIPTOR_SENSE != 0
    }

    /// The attached nexuses and their reservations.
    pub fn nexuses(&self) -> &Nexuses {
        &self.nexuses
    }

    /// Checks the size of the medium, and establishes a unit attention if it changed.
    pub fn revalidate(&self) {
        self.check_capacity();
    }

    /// Shows no more than `bytes` bytes of the medium from now on ([`BlockStore::limit`]). Once
    /// this resolves, no command changes anything behind them.
    pub async fn limit(&self, bytes: u64) {
        self.store.limit(Some(bytes));
        // A command that is at work may have been let in before.
        drop(self.stripes.claim(0, u64::MAX).await);
        self.check_capacity();
    }

    /// [`LogicalUnit::reset`]. If it turns the write cache off, all acknowledged writes are on the
    /// medium afterwards.
    ///
    /// # Errors
    /// The outcome of the flush that failed; the unit is reset.
    pub async fn reset_durably(&self, kind: ResetKind, by: Option<NexusId>) -> Result<(), Outcome> {
        let was_off = self.is_cache_off();
        self.reset(kind, by);
        self.settle_cache(was_off).await
    }

    /// Makes way for a successor whose write cache is off. From now on a write is on the medium
    /// before its status, whatever WCE says. So are all earlier ones when this resolves.
    /// [`Self::stay`] undoes it.
    ///
    /// # Errors
    /// The outcome of the flush that failed.
    pub async fn leave(&self) -> Result<(), Outcome> {
        self.set_flag(flag::LEAVING, true);
        if self.flags() & flag::CACHED == 0 { Ok(()) } else { self.flush_all().await }
    }

    /// There will be no successor: WCE counts again.
    pub fn stay(&self) {
        self.set_flag(flag::LEAVING, false);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    fn set_flag(&self, bit: u32, on: bool) {
        if on {
            self.flags.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.flags.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Updates [`gate::flag::SHARED`] after nexuses were attached or detached. Call it with the
    /// state's mutex held.
    fn look_for_rivals(&self) {
        self.set_flag(flag::SHARED, !self.options.read_only && self.nexuses.has_rivals());
    }

    /// Whether WCE is zero.
    fn is_cache_off(&self) -> bool {
        self.flags() & flag::WRITE_THROUGH != 0
    }

    /// Whether writes are on the medium before their status.
    #[inline]
    fn write_through(&self) -> bool {
        self.flags() & (flag::WRITE_THROUGH | flag::LEAVING) != 0
    }

    /// Sends `data`, truncated to the allocation length, as the command's whole data-in.
    fn answer(&self, mover: &mut dyn DataMover, mut data: Vec<u8>, allocation: u64) -> Outcome {
        data.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
        let outcome = Outcome::read(data.len() as u64);
        if !data.is_empty() {
            mover.put_data(data.into());
        }
        outcome
    }

    /// A pause between steps of a long command: lets the core's other tasks run, and ends the
    /// command if it was aborted.
    async fn pause(&self, mover: &mut dyn DataMover) -> Result<(), Outcome> {
        if runtime::is_running() {
            runtime::yield_now().await;
        }
        // Ignore whether the connection can take more; only check whether it is lost.
        let lost =
            poll_fn(|cx| Poll::Ready(matches!(mover.poll_put_ready(cx), Poll::Ready(Err(Lost))))).await;
        if lost { Err(Outcome::GOOD) } else { Ok(()) }
    }

    /// Fetches a parameter list of `wanted` bytes. The initiator must send exactly that, up to
    /// [`limits::MAX_PARAMETER_LIST`].
    async fn parameter_list(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        wanted: u64,
    ) -> Result<Vec<u8>, Outcome> {
        if wanted > limits::MAX_PARAMETER_LIST as u64 || command.data_out_len < wanted {
            return Err(Outcome { wanted_out: wanted, ..Sense::parameter_list_length_error().into() });
        }
        if wanted == 0 {
            return Ok(Vec::new());
        }
        Ok(self.get(mover, wanted).await?.to_vec())
    }

    /// Executes every command except READ and WRITE.
    #[inline(never)]
    fn execute_other<M: DataMover + 'static>(
        self: &Arc<Self>,
        command: Command,
        decoded: cdb::Command,
        mut mover: M,
    ) -> Execution<M> {
        self.watch_thresholds();
        if let Some(result) = self.answer_at_once(&command, &mut mover, &decoded) {
            return Execution::Done(mover, result.unwrap_or_else(|outcome| outcome));
        }
        let unit = self.clone();
        Execution::Running(Pooled::new(async move {
            let result = unit.run(&command, &mut mover, decoded).await;
            (mover, result.unwrap_or_else(|outcome| outcome))
        }))
    }

    /// Executes a command that never waits; `None` for the others.
    fn answer_at_once(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        decoded: &cdb::Command,
    ) -> Option<Result<Outcome, Outcome>> {
        use cdb::Command as C;
        Some(match *decoded {
            C::TestUnitReady => {
                self.check_capacity();
                Ok(Outcome::GOOD)
            }
            C::RequestSense { descriptor, allocation } => {
                self.request_sense(command, mover, descriptor, allocation)
            }
            C::Inquiry(cdb) => self.inquiry(command, mover, cdb),
            C::ModeSense(cdb) => self.mode_sense(command, mover, cdb),
            C::ReadCapacity10 => self.read_capacity_10(mover),
            C::ReadCapacity16 { allocation } => self.read_capacity_16(mover, allocation),
            C::ReadDefectData(cdb) => self.read_defect_data(mover, cdb),
            C::PreFetch(cdb) => self.pre_fetch(cdb),
            C::PreventAllowMediumRemoval { prevent } => self.prevent_allow(command, prevent),
            C::Reserve => self.nexuses.reserve_legacy(&command.nexus, false),
            C::Release => self.nexuses.reserve_legacy(&command.nexus, true),
            C::PersistentReserveIn(cdb) => self.persistent_in(command, mover, cdb),
            C::ReceiveCopyResults(cdb) => self.receive_copy_results(command, mover, cdb),
            C::ReportTargetPortGroups(cdb) => self.report_target_port_groups(command, mover, cdb),
            C::ReportSupportedOpcodes(cdb) => self.report_supported_opcodes(command, mover, cdb),
            C::ReportSupportedTmfs(cdb) => self.report_supported_tmfs(mover, cdb),
            C::ReportTimestamp { .. } | C::ReportLuns(_) => Err(Sense::invalid_opcode().into()),
            _ => return None,
        })
    }

    /// Executes a command that may wait for data, the store or other commands.
    async fn run(
        self: &Arc<Self>,
        command: &Command,
        mover: &mut dyn DataMover,
        decoded: cdb::Command,
    ) -> Result<Outcome, Outcome> {
        use cdb::Command as C;
        match decoded {
            C::WriteAndVerify(cdb) => self.write_and_verify(command, mover, cdb).await,
            C::Verify(cdb) => self.verify(command, mover, cdb).await,
            C::CompareAndWrite(cdb) => self.compare_and_write(command, mover, cdb).await,
            C::OrWrite(cdb) => self.or_write(command, mover, cdb).await,
            C::WriteAtomic(cdb) => self.write_atomic(command, mover, cdb).await,
            C::WriteSame(cdb) => self.write_same(command, mover, cdb).await,
            C::Unmap(cdb) => self.unmap(command, mover, cdb).await,
            C::GetLbaStatus(cdb) => self.get_lba_status(mover, cdb).await,
            C::LogSense(cdb) => self.log_sense(mover, cdb).await,
            C::SynchronizeCache(cdb) => self.synchronize_cache(cdb).await,
            C::StartStopUnit(cdb) => self.start_stop(command, cdb).await,
            C::ModeSelect(cdb) => self.mode_select(command, mover, cdb).await,
            C::PersistentReserveOut(cdb) => self.persistent_out(command, mover, cdb).await,
            C::SetTargetPortGroups { parameter_len } => {
                self.set_target_port_groups(command, mover, parameter_len).await
            }
            C::ExtendedCopy { parameter_len } => self.extended_copy(command, mover, parameter_len).await,
            C::ExtendedCopyLid4 { parameter_len } => {
                self.extended_copy_lid4(command, mover, parameter_len).await
            }
            C::PopulateToken(cdb) => self.populate_token(command, mover, cdb).await,
            C::WriteUsingToken(cdb) => self.write_using_token(command, mover, cdb).await,
            C::CopyOperationAbort { list_id } => self.copy_operation_abort(command, mover, list_id).await,
            C::Sanitize(cdb) => self.sanitize(command, mover, cdb).await,
            C::SendDiagnostic(cdb) => self.send_diagnostic(cdb),
            C::FormatUnit(cdb) => self.format_unit(command, mover, cdb).await,
            _ => Err(Sense::invalid_opcode().into()),
        }
    }
}

impl LogicalUnit for DiskUnit {
    #[inline]
    fn execute<M: DataMover + 'static>(self: &Arc<Self>, command: Command, mover: M) -> Execution<M> {
        if let Err(outcome) = self.gate_nexus(&command) {
            return Execution::Done(mover, outcome);
        }
        let decoded = match cdb::decode(command.cdb.bytes()) {
            Ok(decoded) => decoded,
            Err(sense) => return Execution::Done(mover, sense.into()),
        };
        match decoded {
            cdb::Command::Read(transfer) if self.flags() & flag::STOPS_READ == 0 => {
                self.read(&command, mover, transfer)
            }
            cdb::Command::Write(transfer)
                if self.flags() & flag::STOPS_WRITE == 0 && !command.nexus.read_only =>
            {
                self.write(&command, mover, transfer)
            }
            decoded => match self.gate_state(&command, &decoded) {
                Err(outcome) => Execution::Done(mover, outcome),
                Ok(()) => match decoded {
                    // A flag was cleared in between.
                    cdb::Command::Read(transfer) => self.read(&command, mover, transfer),
                    cdb::Command::Write(transfer) => self.write(&command, mover, transfer),
                    decoded => self.execute_other(command, decoded, mover),
                },
            },
        }
    }

    fn device_type(&self) -> u8 {
        0x00
    }

    fn attach(&self, nexus: &Arc<ItlNexus>) {
        // Hold the mutex, so that the later of two concurrent calls sees the earlier.
        let _state = self.state();
        self.nexuses.attach(nexus);
        self.look_for_rivals();
    }

    fn detach(&self, nexus: NexusId) {
        let mut state = self.state();
        self.nexuses.detach(nexus);
        self.look_for_rivals();
        state.prevents.retain(|holder| *holder != nexus);
        state.copies.nexus_lost(nexus.0);
        state.operations.nexus_lost(nexus.0);
    }

    fn reset(&self, kind: ResetKind, _by: Option<NexusId>) {
        let mut state = self.state();
        state.prevents.clear();
        state.copies.reset();
        state.operations.reset();
        state.modes.reset();
        drop(state);
        self.apply_modes();
        self.nexuses.reset(kind);
    }
}
