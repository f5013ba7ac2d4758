//! Copies with 32-bit list identifiers: by token (POPULATE TOKEN, WRITE USING TOKEN), EXTENDED
//! COPY(LID4), and the commands that report on them. The unit that created a token keeps it. A
//! session that presents a token finds the unit by the token's creator. It needs access to that
//! unit, as for EXTENDED COPY: a token grants no right to read.
//!
//! Every token is a point in time copy that a change invalidates. A write of any of its blocks
//! revokes it before the write is done (see [`DiskUnit::touch`]). So a copy by token has the data
//! of the time when the token was created.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Command, DataMover, Outcome};
use invariant::broken;
use runtime::Pooled;
use scsi::cdb::{ReceiveCopyResults, TokenCopy, opcode};
use scsi::copy::rod::{self, BlockRange, PopulateList, Presented, TOKEN_LEN, TokenFields, WriteList};
use scsi::copy::{CopyList, CopyProgress, Ending, ListIdUsage, Originator, RecordError, ResultsAction};
use scsi::{AdditionalSense, Sense};

use super::copy::{Side, aborted, lost};
use super::gate::flag;
use super::limits::CHUNK_BYTES;
use super::{DiskUnit, Range};

/// Interval at which COPY OPERATION ABORT checks for the end of the aborted copy.
const LOOK: Duration = Duration::from_millis(2);

/// A copy by token, with everything decided before it begins.
struct TokenWrite {
    /// This unit, and the nexus whose rights apply.
    here: Side,
    /// The source of the data; `None` for zeros.
    source: Option<Source>,
    to: Vec<Range>,
    /// Total bytes to write: whole blocks, limited to the available data.
    bytes: u64,
    /// Bytes of the token's data that are used.
    used: u64,
    /// Whether more data was requested.
    partial: bool,
    delete: bool,
}

struct Source {
    /// The unit that created the token, and the nexus whose rights apply there.
    side: Side,
    token: Box<[u8; TOKEN_LEN]>,
    /// The ranges of the token from the offset on.
    from: Vec<Range>,
}

fn now_ms() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn refused(error: RecordError) -> Sense {
    match error {
        RecordError::InProgress => Sense::illegal_request(AdditionalSense::OPERATION_IN_PROGRESS),
        RecordError::TooMany => Sense::insufficient_resources(),
    }
}

impl DiskUnit {
    /// Revokes tokens that represent any of `range`, which is about to be written. A writer with a
    /// claim calls it if the unit's flags show tokens.
    pub(super) fn touch(&self, range: Range) {
        let mut state = self.state();
        state.tokens.written(range.lba, range.bytes >> self.block_shift);
        let any = state.tokens.any(now_ms());
        self.set_flag(flag::TOKENS, any);
    }

    pub(super) async fn populate_token(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: TokenCopy,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        if wanted == 0 {
            return Ok(Outcome::GOOD);
        }
        if cdb.parameter_len > rod::MAX_LIST_LEN {
            return Err(Sense::parameter_list_length_error().into());
        }
        let list = self.parameter_list(command, mover, wanted).await?;
        let with_data = |sense: Sense| Outcome { wanted_out: wanted, ..sense.into() };
        let list = PopulateList::parse(&list, self.options.block_size).map_err(with_data)?;
        let ranges = self.ranges(&list.ranges).map_err(with_data)?;
        let session = command.nexus.nexus.id.0;
        let ticket = {
            let mut state = self.state();
            if !state.tokens.room(session, now_ms()) {
                return Err(with_data(Sense::insufficient_resources()));
            }
            let begun =
                state.operations.start(session, cdb.list_id, Originator::PopulateToken, list.immediate);
            begun.map_err(|error| with_data(refused(error)))?
        };
        let made = self.make_token(command, &list, &ranges).await;
        let mut state = self.state();
        match made {
            Ok(token) => {
                let blocks = list.ranges.iter().map(|range| u64::from(range.blocks)).sum();
                state.operations.advance(ticket, blocks, list.ranges.len() as u16);
                state.operations.finish(ticket, Ending::Done, Some(token));
                Ok(Outcome::wrote(wanted))
            }
            Err(sense) => {
                let ending = Ending::Failed(sense.emit(self.descriptor_sense()));
                state.operations.finish(ticket, ending, None);
                Err(with_data(sense))
            }
        }
    }

    /// Creates a token of `ranges`, with their data after the writes now in flight.
    async fn make_token(
        &self,
        command: &Command,
        list: &PopulateList,
        ranges: &[Range],
    ) -> Result<Box<[u8; TOKEN_LEN]>, Sense> {
        let mut random = [0; 40];
        if runtime::random(&mut random).is_err() {
            return Err(Sense::insufficient_resources());
        }
        let (id, secret) = random.split_at(8);
        let token = TokenFields {
            rod_type: list.rod_type,
            id: id.try_into().map_err(|_| Sense::internal_target_failure())?,
            creator: &self.options.identity.naa,
            bytes: ranges.iter().map(|range| range.bytes).sum(),
            block_len: self.options.block_size,
            physical_exponent: self.options.physical_block_exponent,
            target: &command.nexus.nexus.target,
            secret: secret.try_into().map_err(|_| Sense::internal_target_failure())?,
        }
        .emit();
        // From here on every write checks for tokens. Wait for earlier writes; then the token is
        // valid.
        let session = command.nexus.nexus.id.0;
        {
            let mut state = self.state();
            state.tokens.add(session, token.clone(), list.ranges.clone(), list.inactivity_s, now_ms());
            self.set_flag(flag::TOKENS, true);
        }
        for range in ranges.iter().filter(|range| range.bytes > 0) {
            drop(self.stripes.claim(range.at, range.bytes).await);
        }
        Ok(token)
    }

    fn ranges(&self, of: &[BlockRange]) -> Result<Vec<Range>, Sense> {
        of.iter().map(|range| self.range(range.lba, u64::from(range.blocks))).collect()
    }

    pub(super) async fn write_using_token(
        self: &Arc<Self>,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: TokenCopy,
    ) -> Result<Outcome, Outcome> {
        let wanted = u64::from(cdb.parameter_len);
        if wanted == 0 {
            return Ok(Outcome::GOOD);
        }
        if cdb.parameter_len > rod::MAX_LIST_LEN {
            return Err(Sense::parameter_list_length_error().into());
        }
        let list = self.parameter_list(command, mover, wanted).await?;
        let with_data = |sense: Sense| Outcome { wanted_out: wanted, ..sense.into() };
        let list = WriteList::parse(&list, self.options.block_size).map_err(with_data)?;
        let work = self.settle_token_write(command, &list).map_err(with_data)?;
        let session = command.nexus.nexus.id.0;
        let by = Originator::WriteUsingToken;
        let ticket = self.state().operations.start(session, cdb.list_id, by, list.immediate);
        let ticket = ticket.map_err(|error| with_data(refused(error)))?;
        let unit = self.clone();
        if list.immediate && runtime::is_running() {
            drop(runtime::spawn(Pooled::new(
                async move { drop(unit.run_token_write(work, ticket, None).await) },
            )));
            return Ok(Outcome::wrote(wanted));
        }
        let ended = self.run_token_write(work, ticket, Some(mover)).await;
        if list.immediate {
            Ok(Outcome::wrote(wanted))
        } else {
            ended.map_err(with_data).map(|()| Outcome::wrote(wanted))
        }
    }

    /// Decides the source and destination of a WRITE USING TOKEN.
    fn settle_token_write(
        self: &Arc<Self>,
        command: &Command,
        list: &WriteList,
    ) -> Result<TokenWrite, Sense> {
        let to = self.ranges(&list.ranges)?;
        let asked: u64 = to.iter().map(|range| range.bytes).sum();
        let block = u64::from(self.options.block_size);
        let here = Side::new(self.clone(), command.nexus.shared().clone(), opcode::WRITE_16);
        let creator = match rod::present(&list.token)? {
            Presented::Zero => {
                return Ok(TokenWrite {
                    here,
                    source: None,
                    to,
                    bytes: asked,
                    used: asked,
                    partial: false,
                    delete: false,
                });
            }
            Presented::Made { creator, .. } => creator,
        };
        // Report a unit without access for the initiator as missing.
        let source = self.registry.find(creator).and_then(|unit| Some((self.reaches(command, &unit)?, unit)));
        let (nexus, unit) = source.ok_or(rod::invalid_token(AdditionalSense::TOKEN_UNKNOWN))?;
        let ranges = unit.state().tokens.find(&list.token, now_ms())?;
        let mut from = unit.ranges(&ranges)?;
        let there: u64 = from.iter().map(|range| range.bytes).sum();
        let past = || Sense::invalid_field_in_parameter_list(8, None);
        let offset =
            list.offset_blocks.checked_mul(block).filter(|offset| *offset < there).ok_or_else(past)?;
        let mut skip = offset;
        for range in &mut from {
            let step = skip.min(range.bytes);
            // In bytes: the block sizes of the two units may differ.
            (range.at, range.bytes, skip) = (range.at + step, range.bytes - step, skip - step);
        }
        let used = asked.min(there - offset);
        Ok(TokenWrite {
            here,
            source: Some(Source {
                side: Side::new(unit, nexus, opcode::READ_16),
                token: list.token.clone(),
                from,
            }),
            to,
            bytes: used.next_multiple_of(block),
            used,
            partial: used < asked,
            delete: list.delete,
        })
    }

    async fn run_token_write(
        self: &Arc<Self>,
        work: TokenWrite,
        ticket: u64,
        mut mover: Option<&mut dyn DataMover>,
    ) -> Result<(), Sense> {
        let mut done = 0;
        let ended = self.copy_by_token(&work, ticket, &mut done, &mut mover).await;
        let ending = match &ended {
            Ok(()) if work.partial => Ending::Partial,
            Ok(()) => Ending::Done,
            Err(sense) => Ending::Failed(sense.emit(self.descriptor_sense())),
        };
        if let Some(source) = work.source.as_ref().filter(|_| work.delete && ended.is_ok()) {
            source.side.unit.state().tokens.delete(&source.token);
        }
        self.state().operations.finish(ticket, ending, None);
        ended
    }

    /// Copies piece by piece. `done`: bytes of whole pieces written.
    async fn copy_by_token(
        self: &Arc<Self>,
        work: &TokenWrite,
        ticket: u64,
        done: &mut u64,
        mover: &mut Option<&mut dyn DataMover>,
    ) -> Result<(), Sense> {
        let mut read = Cursor::default();
        for (n, to) in work.to.iter().enumerate() {
            for chunk in to.chunks(self.block_shift) {
                let left = work.bytes - *done;
                if left == 0 {
                    break;
                }
                let chunk = Range { bytes: chunk.bytes.min(left), ..chunk };
                let blocks = *done >> self.block_shift;
                let mut goes_on = || self.state().operations.advance(ticket, blocks, n as u16);
                for side in work.source.iter().map(|source| &source.side).chain([&work.here]) {
                    let admitted = side.pace.admit(chunk.bytes, mover.as_deref_mut(), &mut goes_on).await;
                    admitted.map_err(lost)?;
                }
                if !goes_on() {
                    return Err(aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION));
                }
                // Check for each piece: an initiator fenced out meanwhile loses its copy too.
                work.here.check(opcode::WRITE_16)?;
                self.pause_copy(mover).await?;
                match &work.source {
                    None => self.write_zeros_by_token(chunk).await?,
                    Some(source) => {
                        let data = (work.used - *done).min(chunk.bytes);
                        self.copy_chunk(source, &mut read, chunk, data).await?;
                    }
                }
                *done += chunk.bytes;
            }
        }
        // Zeros are never written durably, those of a token's holes neither.
        if self.write_through() {
            self.store.sync().await.map_err(|error| self.write_failed(error, 0))?;
        }
        let blocks = *done >> self.block_shift;
        self.state().operations.advance(ticket, blocks, work.to.len() as u16);
        Ok(())
    }

    async fn write_zeros_by_token(&self, chunk: Range) -> Result<(), Sense> {
        let _guard = self.begin_write(chunk).await?;
        let written = self.store.write_zeros(chunk.at, chunk.bytes, self.options.thin).await;
        written.map_err(|error| self.write_failed(error, chunk.lba))
    }

    /// Copies the next `data` bytes of the token to `chunk` and zeroes the rest of it.
    async fn copy_chunk(
        self: &Arc<Self>,
        source: &Source,
        read: &mut Cursor,
        chunk: Range,
        data: u64,
    ) -> Result<(), Sense> {
        source.side.check(opcode::READ_16)?;
        let unit = &source.side.unit;
        // Such a write revokes the token before it changes a block: read first, as below.
        let own = Arc::ptr_eq(self, unit) && self.would_revoke(&source.token, chunk)?;
        let next = read.peek(&source.from).filter(|(_, len)| !own && data == chunk.bytes && *len >= data);
        if let Some((at, _)) = next {
            if !unit.is_hole(at, data).await {
                if let Some(copied) = self.copy_within_system(unit, at, chunk).await {
                    read.offset += data;
                    // The copied data is that of the token only if the token is still valid.
                    unit.state().tokens.find(&source.token, now_ms())?;
                    return copied;
                }
            }
        }
        let mut bytes = Vec::new();
        let mut holes = true;
        while (bytes.len() as u64) < data {
            let piece = read.next(&source.from, (data - bytes.len() as u64).min(CHUNK_BYTES as u64));
            let Some((at, len)) = piece else {
                broken!("a token of fewer bytes than are copied: {} of {data}", bytes.len());
                return Err(aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION));
            };
            let hole = unit.is_hole(at, len).await;
            holes &= hole;
            if hole {
                bytes.resize(bytes.len() + len as usize, 0);
            } else {
                bytes.extend(unit.read_bytes(at, len).await?.to_vec());
            }
        }
        // The data read is that of the token only if the token is still valid.
        unit.state().tokens.find(&source.token, now_ms())?;
        if holes && self.options.thin {
            return self.write_zeros_by_token(chunk).await;
        }
        bytes.resize(chunk.bytes as usize, 0);
        self.write_chain(chunk, bytes.into(), false).await
    }

    /// Whether `token`, which this unit has created, represents any block of `chunk`.
    fn would_revoke(&self, token: &[u8; TOKEN_LEN], chunk: Range) -> Result<bool, Sense> {
        let ranges = self.state().tokens.find(token, now_ms())?;
        let end = chunk.end(self.block_shift);
        Ok(ranges.iter().any(|own| own.lba < end && chunk.lba < own.lba + u64::from(own.blocks)))
    }

    /// Whether the medium has no storage for these bytes, so that they read as zeros.
    async fn is_hole(&self, at: u64, len: u64) -> bool {
        if !self.options.thin {
            return false;
        }
        self.store.extent(at, len).await.is_ok_and(|extent| !extent.mapped && extent.len >= len)
    }

    /// EXTENDED COPY(LID4).
    pub(super) async fn extended_copy_lid4(
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
        let wanted = u64::from(parameter_len);
        let list = self.parameter_list(command, mover, wanted).await?;
        let with_data = |sense: Sense| Outcome { wanted_out: wanted, ..sense.into() };
        let list = CopyList::parse_lid4(&list).map_err(|error| with_data(error.into()))?;
        let session = command.nexus.nexus.id.0;
        let ticket = if list.usage == ListIdUsage::None {
            None
        } else {
            let by = Originator::ExtendedCopy;
            let begun = self.state().operations.start(session, list.list_id, by, list.immediate);
            Some(begun.map_err(|error| with_data(refused(error)))?)
        };
        if list.immediate && runtime::is_running() {
            let (unit, command) = (self.clone(), command.clone());
            let copy = async move { drop(unit.run_copy_lid4(&command, None, &list, ticket).await) };
            drop(runtime::spawn(Pooled::new(copy)));
            return Ok(Outcome::wrote(wanted));
        }
        let ended = self.run_copy_lid4(command, Some(mover), &list, ticket).await;
        if !list.immediate {
            ended.map_err(with_data)?;
        }
        Ok(Outcome::wrote(wanted))
    }

    async fn run_copy_lid4(
        self: &Arc<Self>,
        command: &Command,
        mover: Option<&mut dyn DataMover>,
        list: &CopyList,
        ticket: Option<u64>,
    ) -> Result<(), Sense> {
        let mut report = |progress: CopyProgress| {
            let advance = |ticket| self.state().operations.advance(ticket, progress.bytes, progress.segments);
            ticket.is_none_or(advance)
        };
        let ended = self.copy_segments(command, mover, list, &mut report).await;
        let ending = match &ended {
            Ok(()) => Ending::Done,
            Err(sense) => Ending::Failed(sense.emit(self.descriptor_sense())),
        };
        if let Some(ticket) = ticket {
            self.state().operations.finish(ticket, ending, None);
        }
        ended
    }

    /// COPY OPERATION ABORT: GOOD once the copy has ended.
    pub(super) async fn copy_operation_abort(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        list_id: u32,
    ) -> Result<Outcome, Outcome> {
        let ticket = self.state().operations.abort(command.nexus.nexus.id.0, list_id);
        let ticket = ticket.ok_or(Sense::invalid_field_in_cdb(2, None))?;
        while self.state().operations.runs(ticket) {
            self.pause(mover).await?;
            if runtime::is_running() {
                runtime::sleep(LOOK).await;
            }
        }
        Ok(Outcome::GOOD)
    }

    /// RECEIVE COPY STATUS(LID4) and RECEIVE ROD TOKEN INFORMATION.
    pub(super) fn receive_lid4(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: ReceiveCopyResults,
    ) -> Result<Outcome, Outcome> {
        let tokens = cdb.action == ResultsAction::RodTokenInformation;
        let data = self.state().operations.status(command.nexus.nexus.id.0, cdb.list_id, tokens);
        let data = data.ok_or(Sense::invalid_field_in_cdb(2, None))?;
        Ok(self.answer(mover, data, u64::from(cdb.allocation)))
    }
}

/// A position in the ranges of a token.
#[derive(Default)]
struct Cursor {
    range: usize,
    offset: u64,
}

impl Cursor {
    /// The next bytes: all that remain of one range.
    fn peek(&mut self, of: &[Range]) -> Option<(u64, u64)> {
        while self.offset == of.get(self.range)?.bytes {
            (self.range, self.offset) = (self.range + 1, 0);
        }
        let range = of.get(self.range)?;
        Some((range.at + self.offset, range.bytes - self.offset))
    }

    /// The next bytes, at most `most` and within one range: position and length. `None` at the end.
    fn next(&mut self, of: &[Range], most: u64) -> Option<(u64, u64)> {
        while self.offset == of.get(self.range)?.bytes {
            (self.range, self.offset) = (self.range + 1, 0);
        }
        let range = of.get(self.range)?;
        let (at, len) = (range.at + self.offset, (range.bytes - self.offset).min(most));
        self.offset += len;
        Some((at, len))
    }
}
