//! EXTENDED COPY (LID1) as its copy manager: finds the units of the descriptors, checks the
//! initiator's own rights to them, and copies one segment after the other. RECEIVE COPY RESULTS
//! reports the result.
//!
//! It must never access a unit for an initiator that only claims the name of an authorized one:
//! `device::Nexuses::reached_by` decides.

use std::sync::Arc;

use backing::StoreError;
use device::{Command, DataMover, ItlNexus, Lost, Outcome, Pace};
use runtime::Chain;
use scsi::cdb::{ReceiveCopyResults, opcode};
use scsi::copy::{
    CopyList, CopyProgress, CopyState, Cscd, ListIdUsage, MAX_SEGMENT_BYTES, RecordError, ResultsAction,
    Segment, SegmentLength, operating_parameters,
};
use scsi::{AdditionalSense, KeySpecific, Sense, SenseKey, Status};

use super::gate::flag;
use super::limits::CHUNK_BYTES;
use super::read_write::CHUNK_PIECES;
use super::{DiskUnit, Range};

/// Maximum attempts of a copy by the system while other commands change the source.
const COPIES: usize = 4;

/// One side of a segment: a unit, the nexus whose rights apply there, and the bytes.
pub(super) struct Side {
    pub unit: Arc<DiskUnit>,
    pub nexus: Arc<ItlNexus>,
    pub at: u64,
    /// The limits of service there.
    pub pace: Pace,
}

/// The sense data for a segment that cannot be copied: COPY ABORTED.
pub(super) fn aborted(additional: AdditionalSense) -> Sense {
    Sense::new(SenseKey::CopyAborted, additional)
}

/// Adds a pointer to the faulty byte of the segment descriptor.
fn in_segment(sense: Sense, byte: u16) -> Sense {
    sense.with_key_specific(KeySpecific::Segment { in_segment: true, byte, bit: None })
}

impl DiskUnit {
    /// EXTENDED COPY (LID1).
    pub(super) async fn extended_copy(
        self: &Arc<Self>,
        command: &Command,
        mover: &mut dyn DataMover,
        parameter_len: u32,
    ) -> Result<Outcome, Outcome> {
        if parameter_len == 0 {
            return Ok(Outcome::GOOD);
        }
        if parameter_len > CopyList::MAX_LEN {
            return Err(Sense::parameter_list_length_error().into());
        }
        let list = self.parameter_list(command, mover, u64::from(parameter_len)).await?;
        let list = CopyList::parse(&list).map_err(Sense::from)?;
        let id = (list.usage != ListIdUsage::None).then_some(list.list_id as u8);
        let ticket =
            self.state().copies.start(command.nexus.nexus.id.0, id).map_err(|error| match error {
                RecordError::InProgress => Sense::illegal_request(AdditionalSense::OPERATION_IN_PROGRESS),
                RecordError::TooMany => aborted(AdditionalSense::INSUFFICIENT_RESOURCES),
            })?;
        let mut report = |progress| {
            self.state().copies.advance(ticket, progress);
            true
        };
        let ended = self.copy_segments(command, Some(mover), &list, &mut report).await;
        let state = match &ended {
            Ok(()) => CopyState::Done,
            Err(sense) => CopyState::Failed(Status::CheckCondition, sense.emit(self.descriptor_sense())),
        };
        self.state().copies.finish(ticket, state, list.usage == ListIdUsage::Hold);
        ended.map_err(|sense| Outcome { wanted_out: u64::from(parameter_len), ..sense.into() })?;
        Ok(Outcome::wrote(u64::from(parameter_len)))
    }

    /// Copies all segments. `report` receives the progress, and returns whether to continue.
    /// Without a mover no command waits for the copy.
    pub(super) async fn copy_segments(
        self: &Arc<Self>,
        command: &Command,
        mut mover: Option<&mut dyn DataMover>,
        list: &CopyList,
        report: &mut dyn FnMut(CopyProgress) -> bool,
    ) -> Result<(), Sense> {
        let mut progress = CopyProgress::default();
        for (n, segment) in list.segments.iter().enumerate() {
            // The segment being processed counts (SPC-4 §6.24).
            progress.segments += 1;
            if !report(progress) {
                return Err(aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION));
            }
            let copied = self.copy_segment(command, &mut mover, list, segment, report, &mut progress).await;
            // SPC-4 §6.4.6.1: the number of the failed segment.
            copied.map_err(|sense| sense.with_command_specific(n as u64))?;
        }
        Ok(())
    }

    /// A pause between two steps of a copy: [`DiskUnit::pause`] if a command waits for it.
    pub(super) async fn pause_copy(&self, mover: &mut Option<&mut dyn DataMover>) -> Result<(), Sense> {
        match mover {
            Some(mover) => {
                let alive = self.pause(*mover).await;
                alive.map_err(|_| aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION))?;
            }
            None if runtime::is_running() => runtime::yield_now().await,
            None => {}
        }
        Ok(())
    }

    async fn copy_segment(
        self: &Arc<Self>,
        command: &Command,
        mover: &mut Option<&mut dyn DataMover>,
        list: &CopyList,
        segment: &Segment,
        report: &mut dyn FnMut(CopyProgress) -> bool,
        progress: &mut CopyProgress,
    ) -> Result<(), Sense> {
        let mut source = self.side(command, list, segment.source, opcode::READ_16)?;
        let mut destination = self.side(command, list, segment.destination, opcode::WRITE_16)?;
        let (from_block, to_block) = (source.block(), destination.block());
        let bytes = match segment.length {
            SegmentLength::Blocks { count, of_destination } => {
                let bytes = u64::from(count) * if of_destination { to_block } else { from_block };
                // Without PAD and CAT a partly filled last block is an error (SPC-4 table 144).
                if bytes % from_block != 0 || bytes % to_block != 0 {
                    return Err(in_segment(aborted(AdditionalSense::UNEXPECTED_INEXACT_SEGMENT), 10));
                }
                bytes
            }
            SegmentLength::Bytes { count, source_offset, destination_offset } => {
                source.at = u64::from(source_offset);
                destination.at = u64::from(destination_offset);
                u64::from(count)
            }
        };
        if bytes > u64::from(MAX_SEGMENT_BYTES) {
            return Err(in_segment(aborted(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST), 8));
        }
        source.locate(segment.source_lba, bytes).ok_or(in_segment(no_room(), 12))?;
        destination.locate(segment.destination_lba, bytes).ok_or(in_segment(no_room(), 20))?;
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(CHUNK_BYTES as u64);
            let so_far = *progress;
            for side in [&source, &destination] {
                let admitted = side.pace.admit(len, mover.as_deref_mut(), &mut || report(so_far)).await;
                admitted.map_err(lost)?;
            }
            // Check for each chunk: an initiator fenced out meanwhile loses its copy too.
            source.check(opcode::READ_16)?;
            destination.check(opcode::WRITE_16)?;
            self.pause_copy(mover).await?;
            let to = destination.unit.around(destination.at + done, len);
            let whole = (to.at, to.bytes) == (destination.at + done, len);
            let copied = match whole {
                true => destination.unit.copy_within_system(&source.unit, source.at + done, to).await,
                false => None,
            };
            match copied {
                Some(copied) => {
                    let failed = |_| in_segment(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE), 6);
                    copied.map_err(failed)?;
                }
                None => {
                    let data = source.unit.read_bytes(source.at + done, len).await?;
                    destination.unit.write_bytes(destination.at + done, data).await?;
                }
            }
            done += len;
            progress.bytes += len;
            if !report(*progress) {
                return Err(aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION));
            }
        }
        Ok(())
    }

    /// The unit of a CSCD descriptor, if the initiator has access to it, for `operation`.
    fn side(
        self: &Arc<Self>,
        command: &Command,
        list: &CopyList,
        index: u16,
        operation: u8,
    ) -> Result<Side, Sense> {
        let byte = Side::byte(operation);
        let Some(cscd) = list.cscds.get(usize::from(index)) else {
            return Err(in_segment(aborted(AdditionalSense::new(0x08, 0x04)), byte));
        };
        let unreachable = || in_segment(aborted(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE), byte);
        let unit = self.unit_of(cscd).ok_or_else(unreachable)?;
        if cscd.device_type != 0 {
            return Err(in_segment(aborted(AdditionalSense::INCORRECT_COPY_TARGET_DEVICE_TYPE), byte));
        }
        if cscd.block_length != 0 && cscd.block_length != unit.options.block_size {
            return Err(Sense::invalid_field_in_parameter_list(16 + 32 * index + 29, None));
        }
        // Report a unit without access for the initiator as missing.
        let nexus = self.reaches(command, &unit).ok_or_else(unreachable)?;
        Ok(Side::new(unit, nexus, operation))
    }

    fn unit_of(self: &Arc<Self>, cscd: &Cscd) -> Option<Arc<Self>> {
        // An NAA designator of the unit, in binary.
        if cscd.designator_type != 3 || cscd.association != 0 || cscd.code_set != 1 {
            return None;
        }
        let naa = cscd.designator.as_slice();
        if naa == self.options.identity.naa { Some(self.clone()) } else { self.registry.find(naa) }
    }

    /// The nexus that gives a copy by `command` to this unit access to `unit`.
    pub(super) fn reaches(self: &Arc<Self>, command: &Command, unit: &Arc<Self>) -> Option<Arc<ItlNexus>> {
        match Arc::ptr_eq(unit, self) {
            true => Some(command.nexus.shared().clone()),
            false => unit.nexuses.reached_by(&command.nexus),
        }
    }

    /// Copies whole blocks of `from` to `to` by the system, if both stores' files support it.
    /// `None`: they do not, or other commands keep changing the source.
    pub(super) async fn copy_within_system(
        &self,
        from: &Self,
        from_at: u64,
        to: Range,
    ) -> Option<Result<(), Sense>> {
        if !runtime::is_running() || (from_at | to.at | to.bytes) % u64::from(self.options.block_size) != 0 {
            return None;
        }
        let file = from.store.file()?;
        let claim = match self.begin_write(to).await {
            Ok(claim) => claim,
            Err(sense) => return Some(Err(sense)),
        };
        let own = Arc::ptr_eq(&self.stripes, &from.stripes).then_some(&claim);
        for _ in 0..COPIES {
            let seen = from.stripes.look::<CHUNK_PIECES>(from_at, to.bytes);
            let copied = match self.store.copy_from(file.another(), from_at, to.at, to.bytes).await {
                Err(StoreError::Unsupported) => return None,
                Ok(()) if !from.stripes.is_whole_beside(&seen, own) => continue,
                Ok(()) if self.durable(false) => self.store.sync().await,
                other => other,
            };
            return Some(copied.map_err(|error| self.write_failed(error, to.lba)));
        }
        None
    }

    /// Reads bytes at any offset, not only whole blocks.
    pub(super) async fn read_bytes(&self, at: u64, len: u64) -> Result<Chain, Sense> {
        let range = self.around(at, len);
        let mut chain = self.read_whole(range).await.map_err(|error| {
            self.read_failed(error, range.lba);
            in_segment(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE), 4)
        })?;
        chain.advance((at - range.at) as usize);
        chain.truncate(len as usize);
        Ok(chain)
    }

    /// Writes bytes at any offset. Partly covered blocks are read first, with other writers
    /// excluded.
    async fn write_bytes(&self, at: u64, data: Chain) -> Result<(), Sense> {
        let len = data.len() as u64;
        let range = self.around(at, len);
        let failed = |_| in_segment(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE), 6);
        if range.at == at && range.bytes == len {
            return self.write_chain(range, data, false).await.map_err(failed);
        }
        let _alone = self.begin_write(range).await?;
        let mut blocks = self.read_claimed(range).await.map_err(|_| failed(Sense::no_sense()))?.to_vec();
        let start = (at - range.at) as usize;
        data.copy_to_slice(&mut blocks[start..start + data.len()]);
        let written = self.store.write(range.at, blocks.into(), self.durable(false)).await;
        written.map_err(|error| failed(self.write_failed(error, range.lba)))
    }

    /// The whole blocks that contain `len` bytes at `at`.
    fn around(&self, at: u64, len: u64) -> Range {
        let block = u64::from(self.options.block_size);
        let start = at - at % block;
        Range { lba: start >> self.block_shift, at: start, bytes: (at + len).next_multiple_of(block) - start }
    }

    pub(super) fn receive_copy_results(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ReceiveCopyResults,
    ) -> Result<Outcome, Outcome> {
        let session = command.nexus.nexus.id.0;
        let list_id = cdb.list_id as u8;
        let data = match cdb.action {
            ResultsAction::CopyStatusLid4 | ResultsAction::RodTokenInformation => {
                return self.receive_lid4(command, mover, cdb);
            }
            ResultsAction::OperatingParameters => Some(operating_parameters(self.options.block_size)),
            ResultsAction::CopyStatus => {
                self.state().copies.status(session, list_id).map(|data| data.to_vec())
            }
            ResultsAction::FailedSegmentDetails => self.state().copies.failure_details(session, list_id),
        };
        let data = data.ok_or(Sense::invalid_field_in_cdb(2, None))?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }
}

/// The sense data for a segment beyond a medium's end.
fn no_room() -> Sense {
    aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION)
}

/// The sense data of a copy whose command has ended: nobody sees it.
pub(super) fn lost(_: Lost) -> Sense {
    aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION)
}

impl Side {
    /// A side for `operation`: READ (16) or WRITE (16).
    pub(super) fn new(unit: Arc<DiskUnit>, nexus: Arc<ItlNexus>, operation: u8) -> Self {
        let pace = Pace::new(unit.nexuses(), &nexus, operation == opcode::WRITE_16);
        Self { unit, nexus, at: 0, pace }
    }

    /// The byte of a segment descriptor that names the unit for `operation`.
    fn byte(operation: u8) -> u16 {
        if operation == opcode::WRITE_16 { 6 } else { 4 }
    }

    fn block(&self) -> u64 {
        u64::from(self.unit.options.block_size)
    }

    /// Adds the position of `lba` to the offset. `None` if the following `bytes` are not all within
    /// the medium.
    fn locate(&mut self, lba: u64, bytes: u64) -> Option<()> {
        let start = lba.checked_mul(self.block())?.checked_add(self.at)?;
        let end = start.checked_add(bytes)?;
        self.at = start;
        (end <= self.unit.capacity() << self.unit.block_shift).then_some(())
    }

    /// Checks for the errors that would reject a READ or WRITE of the initiator itself.
    pub(super) fn check(&self, operation: u8) -> Result<(), Sense> {
        let byte = Self::byte(operation);
        let refused = |additional| in_segment(aborted(additional), byte);
        // A session that has ended, or no longer sees the unit, has no rights.
        if !self.unit.nexuses.is_attached(&self.nexus) {
            return Err(refused(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE));
        }
        if self.unit.flags() & flag::STOPS_READ != 0 {
            return Err(refused(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE));
        }
        if operation == opcode::WRITE_16 {
            self.unit.check_writable(&self.nexus).map_err(|sense| refused(sense.additional))?;
        }
        if self.nexus.verdict().inactive() {
            let allowed = self.nexus.check_access(&[operation, 0, 0, 0, 0, 0]);
            allowed.map_err(|_| refused(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE))?;
        }
        if self.nexus.verdict().reserved() {
            let allowed = self.unit.check_reservation(&self.nexus, &[operation, 0, 0, 0, 0, 0]);
            allowed.map_err(|_| refused(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE))?;
        }
        Ok(())
    }
}
