//! Block access to a unit: reads and writes of any length, split to the unit's limits and run
//! concurrently.

use std::ops::Deref;

use runtime::{Chain, pool};
use scsi::SenseKey;
use scsi::cdb::build::{self, Flags};
use scsi::data::capacity::{ReadCapacity10, ReadCapacity16};
use scsi::data::lba_status::{self, LbaStatus};
use scsi::data::unmap::{self, UnmapRange};
use scsi::data::vpd::{BlockLimits, LogicalBlockProvisioning};
use smallvec::SmallVec;

use crate::error::Error;
use crate::session::{Command, Patience, Session, Ticket};
use crate::unit::Unit;

/// Maximum bytes per command: one buffer of the pool.
const MAX_COMMAND: u32 = pool::MAX_ALLOC as u32;
/// Maximum blocks per WRITE SAME if the unit names no limit.
const DEFAULT_WRITE_SAME: u64 = 0x10_0000;

/// A disk: a unit of logical blocks. It derefs to its [`Unit`].
#[derive(Debug, Clone)]
pub struct Disk {
    unit: Unit,
    capacity: ReadCapacity16,
    limits: Option<BlockLimits>,
    provisioning: Option<LogicalBlockProvisioning>,
    /// Maximum blocks per READ or WRITE.
    max_transfer: u32,
}

impl Deref for Disk {
    type Target = Unit;

    fn deref(&self) -> &Unit {
        &self.unit
    }
}

impl Disk {
    /// Opens a unit: waits until it is ready and reads its capacity and limits.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::Data`] if the unit's capacity is invalid.
    pub async fn open(session: &Session, number: u16) -> Result<Self, Error> {
        Self::of(Unit::new(session, number)?).await
    }

    /// As [`Disk::open`], for any unit.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub async fn of(unit: Unit) -> Result<Self, Error> {
        unit.test_unit_ready().await?;
        let capacity = capacity(&unit).await?;
        if !(1..=MAX_COMMAND).contains(&capacity.block_len) {
            return Err(Error::Data("capacity"));
        }
        let pages = unit.vpd_pages().await.unwrap_or_default();
        let limits = if pages.contains(&0xb0) { BlockLimits::parse(&unit.vpd(0xb0).await?) } else { None };
        let provisioning = if pages.contains(&0xb2) {
            LogicalBlockProvisioning::parse(&unit.vpd(0xb2).await?)
        } else {
            None
        };
        let most = MAX_COMMAND / capacity.block_len;
        let max_transfer = match &limits {
            Some(l) if l.max_transfer != 0 => most.min(l.max_transfer),
            _ => most,
        };
        Ok(Disk { unit, capacity, limits, provisioning, max_transfer })
    }

    /// The unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Bytes of a logical block.
    pub fn block_len(&self) -> u32 {
        self.capacity.block_len
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.capacity.last_lba.saturating_add(1)
    }

    /// Capacity in bytes.
    pub fn len(&self) -> u64 {
        self.blocks().saturating_mul(self.block_len().into())
    }

    /// Whether it has no blocks: never, since READ CAPACITY cannot report that.
    pub fn is_empty(&self) -> bool {
        self.blocks() == 0
    }

    /// The READ CAPACITY data from opening the disk.
    pub fn capacity(&self) -> &ReadCapacity16 {
        &self.capacity
    }

    /// VPD page B0, if the unit has it.
    pub fn limits(&self) -> Option<&BlockLimits> {
        self.limits.as_ref()
    }

    /// VPD page B2, if the unit has it.
    pub fn provisioning(&self) -> Option<&LogicalBlockProvisioning> {
        self.provisioning.as_ref()
    }

    /// Whether [`Disk::unmap`] is supported.
    pub fn can_unmap(&self) -> bool {
        self.provisioning.as_ref().is_some_and(|p| p.unmap)
    }

    /// Maximum blocks per READ or WRITE. Longer ones are split.
    pub fn max_transfer(&self) -> u32 {
        self.max_transfer
    }

    /// Reads `blocks` blocks from `lba` on. Long reads run as several concurrent commands. The data
    /// is in buffers of this thread's pool; a read that waits for memory continues once other data
    /// is dropped.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::Data`] if the unit sends less than it reports. [`Error::Argument`]
    /// for a read longer than half of the pool ([`pool::stats`]), which could wait for its own
    /// memory.
    pub async fn read(&self, lba: u64, blocks: u32) -> Result<Chain, Error> {
        if u64::from(blocks) * u64::from(self.block_len()) > pool::stats().limit as u64 / 2 {
            return Err(Error::Argument("the read is longer than half of the buffer pool"));
        }
        let mut parts = SmallVec::<[(Command, Ticket); 4]>::new();
        for (lba, blocks) in pieces(lba, blocks.into(), self.max_transfer) {
            let len = blocks * self.block_len();
            let cdb = build::read(lba, blocks, Flags::default());
            let command = self.command(&cdb).reading(len);
            parts.push((command.clone(), self.session().start(command).await?));
        }
        let mut data = Chain::new();
        for (command, ticket) in parts {
            let len = command.read_len.unwrap_or(0) as usize;
            let part = self.finish(command, ticket).await?;
            if part.len() != len {
                return Err(Error::Data("READ"));
            }
            data.append(part);
        }
        Ok(data)
    }

    /// Writes whole blocks from `lba` on. They may stay in the unit's cache until [`Disk::sync`].
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::Argument`] if the data is not a whole number of blocks.
    pub async fn write(&self, lba: u64, data: impl Into<Chain>) -> Result<(), Error> {
        self.write_with(lba, data.into(), Flags::default()).await
    }

    /// Like [`Disk::write`], and the data is on the medium when it completes (FUA).
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub async fn write_durably(&self, lba: u64, data: impl Into<Chain>) -> Result<(), Error> {
        self.write_with(lba, data.into(), Flags::FUA).await
    }

    async fn write_with(&self, lba: u64, mut data: Chain, flags: Flags) -> Result<(), Error> {
        let block = self.block_len() as usize;
        if data.len() % block != 0 {
            return Err(Error::Argument("the data is no whole number of blocks"));
        }
        let mut parts = SmallVec::<[(Command, Ticket); 4]>::new();
        let mut ended: Result<(), Error> = Ok(());
        for (lba, blocks) in pieces(lba, (data.len() / block) as u64, self.write_piece()) {
            let part = data.split_to(blocks as usize * block);
            let command = self.command(&build::write(lba, blocks, flags)).writing(part);
            match self.session().start(command.clone()).await {
                Ok(ticket) => parts.push((command, ticket)),
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        // All of them, even if one fails: none may change the blocks once this has ended.
        for (command, ticket) in parts {
            let part = self.finish(command, ticket).await;
            ended = ended.and(part.map(drop));
        }
        ended
    }

    /// Maximum blocks per write. To a distant target, as many as may be sent unsolicited: several
    /// such pieces together are a round trip faster than one that needs R2Ts.
    fn write_piece(&self) -> u32 {
        match self.session().tuning().and_then(|tuning| tuning.write_piece) {
            Some(bytes) => (bytes / self.block_len()).clamp(1, self.max_transfer),
            None => self.max_transfer,
        }
    }

    /// Waits for a command, and repeats it while its error is temporary.
    async fn finish(&self, command: Command, ticket: Ticket) -> Result<Chain, Error> {
        match ticket.await?.ok() {
            Ok(response) => Ok(response.data),
            Err(error) => {
                Patience::default().wait(error).await?;
                Ok(self.session().execute_patiently(command).await?.data)
            }
        }
    }

    async fn run(&self, command: Command) -> Result<Chain, Error> {
        Ok(self.session().execute_patiently(command).await?.data)
    }

    /// Waits until all earlier writes are on the medium (SYNCHRONIZE CACHE).
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn sync(&self) -> Result<(), Error> {
        self.run(self.command(&build::synchronize_cache10())).await.map(drop)
    }

    /// Unmaps ranges whose content is no longer needed (UNMAP), in as many commands as the unit's
    /// limits require.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::is_unsupported`] if the unit does not support it.
    pub async fn unmap(&self, ranges: &[UnmapRange]) -> Result<(), Error> {
        let unlimited = |n: u32| if n == 0 { u32::MAX } else { n };
        let limits = self.limits.as_ref();
        let max_blocks = unlimited(limits.map_or(0, |l| l.max_unmap));
        let max_ranges = unlimited(limits.map_or(0, |l| l.max_unmap_ranges)).min(256) as usize;
        let mut list: Vec<UnmapRange> = Vec::new();
        let mut room = max_blocks;
        for range in ranges {
            for (lba, blocks) in pieces(range.lba, range.blocks.into(), max_blocks) {
                if list.len() == max_ranges || blocks > room {
                    self.unmap_list(&list).await?;
                    list.clear();
                    room = max_blocks;
                }
                list.push(UnmapRange { lba, blocks });
                room -= blocks;
            }
        }
        if list.is_empty() { Ok(()) } else { self.unmap_list(&list).await }
    }

    async fn unmap_list(&self, list: &[UnmapRange]) -> Result<(), Error> {
        let data = unmap::emit(list);
        let len = u16::try_from(data.len()).map_err(|_| Error::Argument("too many ranges"))?;
        self.run(self.command(&build::unmap(len)).writing(runtime::Buf::from(data))).await.map(drop)
    }

    /// Fills blocks with copies of one block (WRITE SAME).
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::Argument`] if `block` is not one block.
    pub async fn write_same(&self, lba: u64, blocks: u64, block: impl Into<Chain>) -> Result<(), Error> {
        self.fill(lba, blocks, block.into(), false).await
    }

    /// Fills blocks with zeros. The unit may unmap them instead, if unmapped blocks read as zeros.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn write_zeros(&self, lba: u64, blocks: u64) -> Result<(), Error> {
        let zeros: Chain = runtime::Buf::from(vec![0; self.block_len() as usize]).into();
        let thin = self.provisioning.as_ref().is_some_and(|p| p.write_same16);
        self.fill(lba, blocks, zeros, thin).await
    }

    async fn fill(&self, lba: u64, blocks: u64, block: Chain, unmap: bool) -> Result<(), Error> {
        if block.len() != self.block_len() as usize {
            return Err(Error::Argument("WRITE SAME takes exactly one block"));
        }
        let most = match &self.limits {
            Some(l) if l.max_write_same != 0 => l.max_write_same,
            _ => DEFAULT_WRITE_SAME,
        };
        for (lba, blocks) in pieces(lba, blocks, u32::try_from(most).unwrap_or(u32::MAX)) {
            let cdb = build::write_same16(lba, blocks, unmap, false);
            self.run(self.command(&cdb).writing(block.clone())).await?;
        }
        Ok(())
    }

    /// Writes `new` if the blocks hold `expected` (COMPARE AND WRITE). Returns whether they did. It
    /// is never repeated automatically: after [`Error::Lost`] it may or may not have run.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::Argument`] if the lengths differ or are not 1 to 255 blocks.
    pub async fn compare_and_write(
        &self,
        lba: u64,
        expected: impl Into<Chain>,
        new: impl Into<Chain>,
    ) -> Result<bool, Error> {
        let (mut data, new) = (expected.into(), new.into());
        let block = self.block_len() as usize;
        let blocks = u8::try_from(data.len() / block).ok().filter(|b| *b > 0);
        let (Some(blocks), true) = (blocks, data.len() == new.len() && data.len() % block == 0) else {
            return Err(Error::Argument("COMPARE AND WRITE takes twice the same 1 to 255 blocks"));
        };
        data.append(new);
        let command =
            self.command(&build::compare_and_write(lba, blocks, Flags::default())).writing(data).once();
        let mut patience = Patience::default();
        loop {
            // After a unit attention or a busy status the command did not run, so a retry is safe.
            match self.session().execute(command.clone()).await?.ok() {
                Ok(_) => return Ok(true),
                Err(error) if error.sense_key() == Some(SenseKey::Miscompare) => return Ok(false),
                Err(error) => patience.wait(error).await?,
            }
        }
    }

    /// The mapping of the blocks from `lba` on, as far as one answer of the unit reports it (GET
    /// LBA STATUS).
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::is_unsupported`] if the unit does not support it.
    pub async fn lba_status(&self, lba: u64) -> Result<Vec<LbaStatus>, Error> {
        let len = 8 + 16 * 1024;
        let data = self.read_data(&build::get_lba_status(lba, len), len).await?;
        lba_status::parse(&data).ok_or(Error::Data("GET LBA STATUS"))
    }

    /// As [`Unit::session`].
    pub fn session(&self) -> &Session {
        self.unit.session()
    }
}

async fn capacity(unit: &Unit) -> Result<ReadCapacity16, Error> {
    match unit.read_data(&build::read_capacity16(32), 32).await {
        Ok(data) => ReadCapacity16::parse(&data).ok_or(Error::Data("READ CAPACITY")),
        Err(error) if error.is_unsupported() => {
            let data = unit.read_data(&build::read_capacity10(), 8).await?;
            let ten = ReadCapacity10::parse(&data).ok_or(Error::Data("READ CAPACITY"))?;
            Ok(ReadCapacity16 {
                last_lba: ten.last_lba.ok_or(error)?.into(),
                block_len: ten.block_len,
                physical_exponent: 0,
                lowest_aligned: 0,
                provisioning: false,
                deallocated_is_zero: false,
            })
        }
        Err(error) => Err(error),
    }
}

/// Splits `blocks` blocks from `lba` on into pieces of at most `most` blocks.
fn pieces(lba: u64, blocks: u64, most: u32) -> impl Iterator<Item = (u64, u32)> {
    let most = u64::from(most.max(1));
    let (mut at, mut left) = (lba, blocks);
    std::iter::from_fn(move || {
        let n = left.min(most);
        if n == 0 {
            return None;
        }
        let piece = (at, n as u32);
        at = at.saturating_add(n);
        left -= n;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_without_gap() {
        assert_eq!(pieces(5, 10, 4).collect::<Vec<_>>(), [(5, 4), (9, 4), (13, 2)]);
        assert_eq!(pieces(5, 0, 4).count(), 0);
        assert_eq!(pieces(0, u64::from(u32::MAX) + 1, u32::MAX).count(), 2);
    }
}
