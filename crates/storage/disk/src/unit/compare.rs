//! The commands that compare or combine: VERIFY, COMPARE AND WRITE, ORWRITE, and WRITE ATOMIC,
//! which uses the same claims on blocks.

use device::{Command, DataMover, Outcome};
use runtime::Chain;
use scsi::cdb::{ByteCheck, Transfer, Verify, WriteAtomic};
use scsi::{AdditionalSense, Sense, SenseKey};

use super::error::{not_the_data, wrong_data_length};
use super::limits::{MAX_ATOMIC_BYTES, MAX_COMPARE_BLOCKS};
use super::{DiskUnit, Range};

/// The first byte at which two chains of the same length differ.
pub(super) fn mismatch(a: &Chain, b: &Chain) -> Option<usize> {
    // Copies: directly placed data is a memory store's own bytes, which others may be writing.
    let (a, b) = (a.to_vec(), b.to_vec());
    if a == b {
        return None;
    }
    a.iter().zip(&b).position(|(a, b)| a != b).or(Some(a.len().min(b.len())))
}

pub(super) fn miscompare() -> Sense {
    Sense::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE_DURING_VERIFY_OPERATION)
}

impl DiskUnit {
    /// VERIFY: reads the medium. With BYTCHK compares it with as many blocks of data-out, or
    /// repeatedly with one block.
    pub(super) async fn verify(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Verify,
    ) -> Result<Outcome, Outcome> {
        let range = self.transfer_range(cdb.lba, cdb.blocks)?;
        let wanted = u64::from(cdb.blocks_out()) << self.block_shift;
        if command.data_out_len < wanted {
            return Err(wrong_data_length(wanted));
        }
        let one = match cdb.check {
            ByteCheck::OneBlock if wanted > 0 => self.get(mover, wanted).await?.to_vec(),
            _ => Vec::new(),
        };
        for chunk in range.chunks(self.block_shift) {
            match cdb.check {
                ByteCheck::Medium => {
                    self.pause(mover).await?;
                    drop(self.read_chain(chunk).await?);
                }
                ByteCheck::Blocks => {
                    let data = self.get(mover, chunk.bytes).await?;
                    let medium = self.read_chain(chunk).await?;
                    if mismatch(&medium, &data).is_some() {
                        return Err(Outcome { wanted_out: wanted, ..miscompare().into() });
                    }
                }
                ByteCheck::OneBlock => {
                    self.pause(mover).await?;
                    let medium = self.read_chain(chunk).await?.to_vec();
                    if medium.chunks(one.len().max(1)).any(|block| block != one) {
                        return Err(Outcome { wanted_out: wanted, ..miscompare().into() });
                    }
                }
            }
        }
        Ok(Outcome::wrote(wanted))
    }

    /// COMPARE AND WRITE (SBC-3 §5.2): no other read or write runs between the comparison and the
    /// write.
    pub(super) async fn compare_and_write(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Transfer,
    ) -> Result<Outcome, Outcome> {
        if cdb.blocks > MAX_COMPARE_BLOCKS {
            return Err(Sense::invalid_field_in_cdb(13, None).into());
        }
        let range = self.transfer_range(cdb.lba, cdb.blocks)?;
        let wanted = range.bytes * 2;
        if command.data_out_len != wanted {
            return Err(not_the_data(wanted, 13));
        }
        if range.bytes == 0 {
            return Ok(Outcome::GOOD);
        }
        let verify = self.get(mover, range.bytes).await?;
        let write = self.get(mover, range.bytes).await?;
        let _alone = self.begin_write(range).await?;
        let medium = self.read_claimed(range).await?;
        if let Some(offset) = mismatch(&medium, &verify) {
            return Err(Outcome { wanted_out: wanted, ..Sense::miscompare(offset as u64).into() });
        }
        self.write_alone(range, write, cdb.fua).await?;
        Ok(Outcome::wrote(wanted))
    }

    /// ORWRITE (16) (SBC-3 §5.14): sets the bits of data-out on the medium. It needs all of its
    /// data before it begins, so it has the limits of WRITE ATOMIC.
    pub(super) async fn or_write(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: Transfer,
    ) -> Result<Outcome, Outcome> {
        let range = self.transfer_range(cdb.lba, cdb.blocks)?;
        if range.bytes > MAX_ATOMIC_BYTES {
            return Err(Sense::invalid_field_in_cdb(10, None).into());
        }
        if command.data_out_len < range.bytes {
            return Err(wrong_data_length(range.bytes));
        }
        if range.bytes == 0 {
            return Ok(Outcome::GOOD);
        }
        // Fetch all data before excluding others: the initiator determines how fast it arrives.
        let mut data = self.get(mover, range.bytes).await?;
        let _alone = self.begin_write(range).await?;
        for chunk in range.chunks(self.block_shift) {
            let mut bytes = self.read_claimed(chunk).await?.to_vec();
            let bits = data.split_to(bytes.len()).to_vec();
            bytes.iter_mut().zip(bits).for_each(|(byte, bits)| *byte |= bits);
            self.write_alone(chunk, bytes.into(), cdb.fua).await?;
        }
        Ok(Outcome::wrote(range.bytes))
    }

    /// WRITE ATOMIC (16) (SBC-4 §5.48): one atomic write. An ATOMIC BOUNDARY is not supported.
    pub(super) async fn write_atomic(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: WriteAtomic,
    ) -> Result<Outcome, Outcome> {
        // MAXIMUM ATOMIC BOUNDARY SIZE is zero: boundaries are not supported.
        if cdb.boundary != 0 {
            return Err(Sense::invalid_field_in_cdb(10, None).into());
        }
        let range = self.transfer_range(cdb.transfer.lba, cdb.transfer.blocks)?;
        // ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY: physical blocks, since a medium
        // can only write those at once.
        let within = (1u64 << self.options.physical_block_exponent) - 1;
        if cdb.transfer.lba & within != 0 {
            return Err(Sense::invalid_field_in_cdb(2, None).into());
        }
        if range.bytes > MAX_ATOMIC_BYTES || range.bytes >> self.block_shift & within != 0 {
            return Err(Sense::invalid_field_in_cdb(12, None).into());
        }
        if command.data_out_len < range.bytes {
            return Err(wrong_data_length(range.bytes));
        }
        if range.bytes == 0 {
            return Ok(Outcome::GOOD);
        }
        let data = self.get(mover, range.bytes).await?;
        let _alone = self.begin_write(range).await?;
        self.write_alone(range, data, cdb.transfer.fua).await?;
        Ok(Outcome::wrote(range.bytes))
    }

    /// Writes within a range that the caller has claimed.
    async fn write_alone(&self, range: Range, data: Chain, fua: bool) -> Result<(), Outcome> {
        let written = self.store.write(range.at, data, self.durable(fua)).await;
        written.map_err(|error| self.write_failed(error, range.lba).into())
    }
}
