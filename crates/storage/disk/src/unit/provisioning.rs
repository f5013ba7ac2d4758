//! Allocation and deallocation of blocks: UNMAP, WRITE SAME, GET LBA STATUS.

use device::{Command, DataMover, Outcome, Pace};
use runtime::Chain;
use scsi::Sense;
use scsi::cdb::{GetLbaStatus, Unmap, WriteSame, opcode};
use scsi::data::lba_status::{self, LbaStatus, Provisioning};
use scsi::data::unmap::{self, UnmapRange};

use super::error::not_the_data;
use super::limits::{
    CHUNK_BYTES, MAX_LBA_STATUS, MAX_UNMAP_BLOCKS, MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME_BYTES,
};
use super::{DiskUnit, Range};

/// Bytes per step of a long deallocation. Commands on these blocks wait for one step at most. So do
/// some on other blocks, which share words of the unit's table with them.
const STEP_BYTES: u64 = 4 << 20;

impl DiskUnit {
    /// UNMAP (SBC-3 §5.28). All descriptors are checked before any block changes.
    pub(super) async fn unmap(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Unmap,
    ) -> Result<Outcome, Outcome> {
        if !self.options.thin {
            return Err(Sense::invalid_opcode().into());
        }
        // ANC_SUP is zero.
        if cdb.anchor {
            return Err(Sense::invalid_field_in_cdb(1, Some(0)).into());
        }
        let wanted = u64::from(cdb.parameter_len);
        if wanted == 0 {
            return Ok(Outcome::GOOD);
        }
        let list = self.parameter_list(command, mover, wanted).await?;
        let limits = unmap::Limits {
            capacity: self.capacity(),
            max_blocks: MAX_UNMAP_BLOCKS,
            max_ranges: MAX_UNMAP_DESCRIPTORS,
        };
        let ranges = unmap::parse(&list, &limits)?;
        for range in joined(ranges) {
            let range = self.range(range.lba, u64::from(range.blocks))?;
            self.deallocate(mover, range).await?;
        }
        self.settle().await?;
        Ok(Outcome::wrote(wanted))
    }

    /// Deallocates `range`; zeroes parts that cannot be deallocated.
    pub(super) async fn deallocate(&self, mover: &mut dyn DataMover, range: Range) -> Result<(), Outcome> {
        for step in range.steps(self.block_shift, STEP_BYTES) {
            self.pause(mover).await?;
            let _guard = self.begin_write(step).await?;
            let done = self.store.discard(step.at, step.bytes).await;
            done.map_err(|error| self.write_failed(error, step.lba))?;
        }
        Ok(())
    }

    /// In write-through mode, makes deallocations and zeros durable before GOOD.
    pub(super) async fn settle(&self) -> Result<(), Outcome> {
        if !self.write_through() {
            return Ok(());
        }
        self.store.sync().await.map_err(|error| self.write_failed(error, 0).into())
    }

    /// WRITE SAME (10, 16) (SBC-3 §5.44).
    pub(super) async fn write_same(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: WriteSame,
    ) -> Result<Outcome, Outcome> {
        if cdb.unmap && !self.options.thin {
            return Err(Sense::invalid_field_in_cdb(1, Some(3)).into());
        }
        // ANC_SUP is zero.
        if cdb.anchor {
            return Err(Sense::invalid_field_in_cdb(1, Some(4)).into());
        }
        let first = self.range(cdb.lba, u64::from(cdb.blocks.max(1)))?;
        // WSNZ is zero: no blocks means all to the end of the medium.
        let blocks = match cdb.blocks {
            0 => self.capacity() - first.lba,
            blocks => u64::from(blocks),
        };
        let count_at = if command.cdb.opcode() == opcode::WRITE_SAME_10 { 7 } else { 10 };
        if blocks > MAX_WRITE_SAME_BYTES >> self.block_shift {
            return Err(
                Sense::invalid_field_in_cdb(if command.cdb.opcode() == 0x41 { 7 } else { 10 }, None).into()
            );
        }
        let range = self.range(cdb.lba, blocks)?;
        let wanted = if cdb.no_data_out { 0 } else { u64::from(self.options.block_size) };
        if command.data_out_len != wanted {
            return Err(not_the_data(wanted, count_at));
        }
        let block = self.get(mover, wanted).await?.to_vec();
        if block.iter().all(|&byte| byte == 0) {
            self.write_zeros(mover, range, cdb.unmap).await?;
        } else {
            // A pattern other than zeros cannot be deallocated: UNMAP is then only a hint.
            let pace = cdb.unmap.then(|| Pace::new(self.nexuses(), command.nexus.shared(), true));
            self.write_pattern(mover, range, &block, pace).await?;
        }
        Ok(Outcome::wrote(wanted))
    }

    async fn write_zeros(
        &self,
        mover: &mut dyn DataMover,
        range: Range,
        deallocate: bool,
    ) -> Result<(), Outcome> {
        for step in range.steps(self.block_shift, STEP_BYTES) {
            self.pause(mover).await?;
            let _guard = self.begin_write(step).await?;
            let done = self.store.write_zeros(step.at, step.bytes, deallocate).await;
            done.map_err(|error| self.write_failed(error, step.lba))?;
        }
        self.settle().await
    }

    /// Fills `range` with copies of `block`, which is one block long. `pace`: the server has not
    /// charged it, since it was to deallocate.
    async fn write_pattern(
        &self,
        mover: &mut dyn DataMover,
        range: Range,
        block: &[u8],
        pace: Option<Pace>,
    ) -> Result<(), Outcome> {
        let copies = range.bytes.min(CHUNK_BYTES as u64) as usize / block.len().max(1);
        let pattern = Chain::from(block.repeat(copies));
        for chunk in range.chunks(self.block_shift) {
            if let Some(pace) = &pace {
                let admitted = pace.admit(chunk.bytes, Some(&mut *mover), &mut || true).await;
                admitted.map_err(|_| Outcome::GOOD)?;
            }
            self.pause(mover).await?;
            let mut data = pattern.clone();
            data.truncate(chunk.bytes as usize);
            self.write_chain(chunk, data, false).await?;
        }
        Ok(())
    }

    /// GET LBA STATUS (SBC-3 §5.4): runs of blocks in the same state, as many as fit the allocation
    /// length. A store may tell of a long run in many short pieces, so the last run may end early.
    pub(super) async fn get_lba_status(
        &self,
        mover: &mut dyn DataMover,
        cdb: GetLbaStatus,
    ) -> Result<Outcome, Outcome> {
        let capacity = self.capacity();
        let mut next = self.range(cdb.lba, 1)?.lba;
        let room = lba_status::fit(cdb.allocation).min(MAX_LBA_STATUS);
        let mut runs: Vec<LbaStatus> = Vec::new();
        for _ in 0..MAX_LBA_STATUS {
            if next >= capacity {
                break;
            }
            self.pause(mover).await?;
            let (blocks, mapped) = self.extent(next, capacity - next).await?;
            let provisioning = if mapped { Provisioning::Mapped } else { Provisioning::Deallocated };
            let full = runs.len() == room;
            match runs.last_mut() {
                Some(last)
                    if last.provisioning == provisioning && last.blocks.checked_add(blocks).is_some() =>
                {
                    last.blocks += blocks;
                }
                _ if full => break,
                _ => runs.push(LbaStatus { lba: next, blocks, provisioning }),
            }
            next += u64::from(blocks);
        }
        Ok(self.answer(mover, lba_status::emit(&runs), u64::from(cdb.allocation)))
    }

    /// The number of blocks from `lba` on in the same state, and whether they are mapped.
    async fn extent(&self, lba: u64, most: u64) -> Result<(u32, bool), Outcome> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        if !self.options.thin {
            return Ok((most, true));
        }
        let extent = self
            .store
            .extent(lba << self.block_shift, u64::from(most) << self.block_shift)
            .await
            .map_err(|error| self.read_failed(error, lba))?;
        let blocks = |bytes: u64| u32::try_from(bytes >> self.block_shift).unwrap_or(u32::MAX).min(most);
        // A partly deallocated block counts as mapped.
        Ok(match (extent.mapped, blocks(extent.len)) {
            (false, 0) => (1, true),
            (false, whole) => (whole, false),
            (true, _) => (blocks(extent.len.next_multiple_of(1 << self.block_shift)).max(1), true),
        })
    }
}

/// Ranges of which each continues the one before it, as one: a store may need as long for a block
/// as for many.
fn joined(ranges: Vec<UnmapRange>) -> Vec<UnmapRange> {
    let mut joined: Vec<UnmapRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.lba + u64::from(last.blocks) == range.lba => last.blocks += range.blocks,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_an_unmap_that_continue_each_other_are_one() {
        let ranges = |of: &[(u64, u32)]| of.iter().map(|&(lba, blocks)| UnmapRange { lba, blocks }).collect();
        assert_eq!(joined(ranges(&[(5, 1), (6, 1), (7, 3)])), ranges(&[(5, 5)]));
        assert_eq!(joined(ranges(&[(5, 1), (7, 1), (6, 1)])), ranges(&[(5, 1), (7, 1), (6, 1)]));
        assert_eq!(joined(ranges(&[(5, 2), (6, 2)])), ranges(&[(5, 2), (6, 2)]));
        assert_eq!(joined(ranges(&[(5, 1), (6, 0), (6, 1)])), ranges(&[(5, 2)]));
        assert_eq!(joined(ranges(&[])), ranges(&[]));
    }
}
