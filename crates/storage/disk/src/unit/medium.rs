//! The state of the medium: capacity, cache, ejecting and preventing it. START STOP UNIT, PREVENT
//! ALLOW MEDIUM REMOVAL, SYNCHRONIZE CACHE, PRE-FETCH, and capacity changes while the unit runs.

use std::sync::atomic::Ordering;

use device::{Command, Outcome};
use scsi::cdb::{CacheRange, StartStopUnit};
use scsi::{AdditionalSense, Sense, UnitAttention};

use super::gate::flag;
use super::{DiskUnit, Range};

impl DiskUnit {
    /// Blocks of the medium, as the store last saw it.
    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        self.store.size() >> self.block_shift
    }

    /// Reads the medium's size, and establishes a unit attention for every nexus if it changed.
    pub(super) fn check_capacity(&self) -> u64 {
        let blocks = self.store.refresh() >> self.block_shift;
        if self.told_blocks.swap(blocks, Ordering::AcqRel) != blocks {
            self.nexuses.establish(UnitAttention::CapacityDataHasChanged, None);
        }
        blocks
    }

    /// `blocks` blocks from `lba` on, if the medium has them. An empty range may start right after
    /// the last block.
    #[inline]
    pub(super) fn range(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.capacity()) {
            return Err(self.out_of_range());
        }
        Ok(Range { lba, at: lba << self.block_shift, bytes: blocks << self.block_shift })
    }

    /// [`Self::range`] for a command that transfers its blocks, limited by MAXIMUM TRANSFER LENGTH.
    #[inline]
    pub(super) fn transfer_range(&self, lba: u64, blocks: u32) -> Result<Range, Sense> {
        let range = self.range(lba, u64::from(blocks))?;
        if range.bytes > super::limits::MAX_TRANSFER_BYTES {
            // TRANSFER LENGTH: its position depends on the form of the command.
            return Err(Sense::illegal_request(AdditionalSense::INVALID_FIELD_IN_CDB));
        }
        Ok(range)
    }

    #[cold]
    fn out_of_range(&self) -> Sense {
        // The medium may have grown; the next command sees the new size.
        self.check_capacity();
        Sense::lba_out_of_range()
    }

    /// A range whose length 0 means "to the end".
    fn cache_range(&self, cdb: CacheRange) -> Result<Range, Sense> {
        let range = self.range(cdb.lba, u64::from(cdb.blocks))?;
        match cdb.blocks {
            0 => self.range(cdb.lba, self.capacity().saturating_sub(cdb.lba)),
            _ => Ok(range),
        }
    }

    /// SYNCHRONIZE CACHE. Synchronises the whole cache for any range, which promises no less. IMMED
    /// is ignored: status follows the work, which looks to an initiator like fast work.
    pub(super) async fn synchronize_cache(&self, cdb: CacheRange) -> Result<Outcome, Outcome> {
        let range = self.cache_range(cdb)?;
        self.flush(range.lba).await?;
        Ok(Outcome::GOOD)
    }

    /// PRE-FETCH. Only checks the range: the store's cache decides for itself.
    pub(super) fn pre_fetch(&self, cdb: CacheRange) -> Result<Outcome, Outcome> {
        self.cache_range(cdb)?;
        Ok(Outcome::GOOD)
    }

    /// Flushes everything to the medium.
    pub(super) async fn flush(&self, lba: u64) -> Result<(), Outcome> {
        self.store.sync().await.map_err(|error| self.write_failed(error, lba).into())
    }

    /// START STOP UNIT. Power conditions and stopping have no visible effect on a disk without a
    /// motor. The cache is flushed first unless NO_FLUSH is set. With LOEJ a removable medium is
    /// ejected or loaded.
    pub(super) async fn start_stop(&self, command: &Command, cdb: StartStopUnit) -> Result<Outcome, Outcome> {
        if cdb.power_condition != 0 {
            return Ok(Outcome::GOOD);
        }
        if cdb.load_eject {
            if !self.options.removable {
                return Err(Sense::invalid_field_in_cdb(4, Some(1)).into());
            }
            // SBC-3 §5.25: neither eject nor load while any nexus prevents it.
            if !self.state().prevents.is_empty() {
                return Err(Sense::medium_removal_prevented().into());
            }
        }
        if !cdb.start && !cdb.no_flush && self.flags() & (flag::NO_MEDIUM | flag::READ_ONLY) == 0 {
            self.flush(0).await?;
        }
        if cdb.load_eject {
            // Check again: a PREVENT may have arrived during the flush.
            let state = self.state();
            if !state.prevents.is_empty() {
                return Err(Sense::medium_removal_prevented().into());
            }
            if cdb.start && self.flags() & flag::NO_MEDIUM != 0 {
                let own = command.nexus.nexus.id;
                self.nexuses.establish(UnitAttention::MediumMayHaveChanged, Some(own));
            }
            self.set_flag(flag::NO_MEDIUM, !cdb.start);
            drop(state);
            // The next medium may be another one.
            self.touch(Range { lba: 0, at: 0, bytes: self.capacity() << self.block_shift });
        }
        Ok(Outcome::GOOD)
    }

    /// PREVENT ALLOW MEDIUM REMOVAL, separately for each nexus (SPC-4 §6.14).
    pub(super) fn prevent_allow(&self, command: &Command, prevent: u8) -> Result<Outcome, Outcome> {
        let id = command.nexus.nexus.id;
        let mut state = self.state();
        state.prevents.retain(|holder| *holder != id);
        if prevent & 1 != 0 {
            state.prevents.push(id);
        }
        Ok(Outcome::GOOD)
    }
}
