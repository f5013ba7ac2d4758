//! READ and WRITE: the data path. A command that the store finishes at once takes no future, no allocation and no lock.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::exclusion::{Queued, WriteGuard};
use device::{Command, DataMover, Execution, GetData, Lost, Outcome};
use ring::{Chain, Pooled, Use};
use scsi::Sense;
use scsi::cdb::{Transfer, WriteAndVerify};

use super::error::{read_error, short_data, write_error};
use super::gate::flag;
use super::limits::CHUNK_BYTES;
use super::{DiskUnit, Range};
use backing::{Io, StoreError};

/// A plain write's place in the unit's exclusion, for as long as its operation runs.
struct Counted {
    unit: Use<DiskUnit>,
    slot: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.unit.exclusion.leave_slot(self.slot);
    }
}

impl DiskUnit {
    /// READ.
    #[inline]
    pub(super) fn read<M: DataMover + 'static>(
        self: &Arc<Self>,
        command: &Command,
        mut mover: M,
        transfer: Transfer,
    ) -> Execution<M> {
        let range = match self.transfer_range(transfer.lba, transfer.blocks) {
            Ok(range) => range,
            Err(sense) => return Execution::Done(mover, sense.into()),
        };
        // What the initiator has no room for is not even read.
        let len = range.bytes.min(command.data_in_len).next_multiple_of(u64::from(self.options.block_size));
        let outcome = Outcome::read(range.bytes);
        if len == 0 {
            return Execution::Done(mover, outcome);
        }
        if transfer.fua && !self.write_through() {
            return self.read_medium(mover, Range { bytes: len, ..range }, outcome);
        }
        if len > CHUNK_BYTES as u64 {
            return self.read_in_chunks(mover, Range { bytes: len, ..range }, outcome);
        }
        if let Some(buf) = self.store.lend(range.at, len as usize) {
            mover.put_data(buf);
            return Execution::Done(mover, outcome);
        }
        match self.store.read_to_send(range.at, len as usize) {
            Io::Ready(Some(Ok(chain))) => {
                chain.into_iter().for_each(|buf| mover.put_data(buf));
                Execution::Done(mover, outcome)
            }
            Io::Ready(Some(Err(error))) => Execution::Done(mover, self.read_failed(error, range.lba)),
            io => {
                let lba = range.lba;
                let unit = Use::of(self);
                Execution::Running(Pooled::new(async move {
                    match io.await {
                        Ok(chain) => {
                            chain.into_iter().for_each(|buf| mover.put_data(buf));
                            (mover, outcome)
                        }
                        Err(error) => (mover, unit.read_failed(error, lba)),
                    }
                }))
            }
        }
    }

    /// With FUA: what a volatile cache has of these blocks goes to the medium first (SBC-3 §5.15), so that what is read here
    /// is there after a power loss. A store with nothing to write does nothing.
    fn read_medium<M: DataMover + 'static>(
        self: &Arc<Self>,
        mut mover: M,
        range: Range,
        outcome: Outcome,
    ) -> Execution<M> {
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let result = match unit.flush(range.lba).await {
                Ok(()) => unit.put_range(&mut mover, range).await,
                failed => failed,
            };
            (mover, result.err().unwrap_or(outcome))
        }))
    }

    fn read_in_chunks<M: DataMover + 'static>(
        self: &Arc<Self>,
        mut mover: M,
        range: Range,
        outcome: Outcome,
    ) -> Execution<M> {
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let result = unit.put_range(&mut mover, range).await;
            (mover, result.err().unwrap_or(outcome))
        }))
    }

    /// Reads `range` and puts it, chunk by chunk, no faster than the connection takes it.
    async fn put_range<M: DataMover>(&self, mover: &mut M, range: Range) -> Result<(), Outcome> {
        let mut done = 0;
        while done < range.bytes {
            mover.put_ready().await.map_err(|Lost| Outcome::GOOD)?;
            let len = (range.bytes - done).min(CHUNK_BYTES as u64);
            let chain = self
                .store
                .read_to_send(range.at + done, len as usize)
                .await
                .map_err(|error| self.read_failed(error, range.lba + (done >> self.block_shift)))?;
            chain.into_iter().for_each(|buf| mover.put_data(buf));
            done += len;
        }
        Ok(())
    }

    /// WRITE.
    #[inline]
    pub(super) fn write<M: DataMover + 'static>(
        self: &Arc<Self>,
        command: &Command,
        mut mover: M,
        transfer: Transfer,
    ) -> Execution<M> {
        let range = match self.transfer_range(transfer.lba, transfer.blocks) {
            Ok(range) => range,
            Err(sense) => return Execution::Done(mover, sense.into()),
        };
        if range.bytes == 0 {
            return Execution::Done(mover, Outcome::GOOD);
        }
        let durable = transfer.fua || self.write_through();
        if command.data_out_len < range.bytes {
            return self.write_short(mover, range, command.data_out_len, durable);
        }
        if range.bytes <= CHUNK_BYTES as u64 {
            // Immediate data is there already: try without a waker, and wait with one only if it is not.
            let got = mover.poll_get_data(&mut Context::from_waker(Waker::noop()), range.bytes as usize);
            if let Poll::Ready(data) = got {
                let Ok(data) = data else { return Execution::Done(mover, Outcome::GOOD) };
                return self.write_data(mover, range, data, durable);
            }
        }
        if let Some(landing) = self.landing(command, range) {
            mover.lands(landing);
        }
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let result = unit.get_range(&mut mover, range, durable).await;
            (mover, result.err().unwrap_or(Outcome::wrote(range.bytes)))
        }))
    }

    /// A WRITE whose initiator sends less than it calls for: what comes is written, and not a byte more (FCP-4 §9.4.2's
    /// first way; the residual tells the initiator).
    #[cold]
    fn write_short<M: DataMover + 'static>(
        self: &Arc<Self>,
        mut mover: M,
        range: Range,
        bytes: u64,
        durable: bool,
    ) -> Execution<M> {
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let mut written = Outcome::wrote(range.bytes);
            if let Err(outcome) = unit.get_short(&mut mover, range, bytes, durable).await {
                written = outcome;
            }
            (mover, written)
        }))
    }

    async fn get_short(
        &self,
        mover: &mut dyn DataMover,
        range: Range,
        bytes: u64,
        durable: bool,
    ) -> Result<(), Outcome> {
        let tail = bytes % u64::from(self.options.block_size);
        let whole = Range { bytes: bytes - tail, ..range };
        for chunk in whole.chunks(self.block_shift) {
            let data = self.get(mover, chunk.bytes).await?;
            self.write_chain(chunk, data, durable).await?;
        }
        if tail > 0 {
            let last = Range {
                lba: whole.end(self.block_shift),
                at: whole.at + whole.bytes,
                bytes: u64::from(self.options.block_size),
            };
            let data = self.get(mover, tail).await?;
            let _alone = self.begin_atomic(last).await?;
            let mut block = self.read_chain(last).await?.to_vec();
            data.copy_to_slice(&mut block[..data.len()]);
            let written = self.store.write(last.at, block.into(), durable).await;
            written.map_err(|error| self.write_failed(error, last.lba))?;
        }
        Ok(())
    }

    /// Writes one chunk whose data is there.
    #[inline]
    fn write_data<M: DataMover + 'static>(
        self: &Arc<Self>,
        mover: M,
        range: Range,
        data: Chain,
        durable: bool,
    ) -> Execution<M> {
        if data.len() as u64 != range.bytes {
            return Execution::Done(mover, short_data());
        }
        let outcome = Outcome::wrote(range.bytes);
        let guard = self.exclusion.try_write();
        let guard = guard.filter(|_| self.flags() & (flag::SANITIZING | flag::TOKENS) == 0);
        let Some(guard) = guard else {
            let unit = Use::of(self);
            return Execution::Running(Pooled::new(async move {
                let result = unit.write_chain(range, data, durable).await;
                (mover, result.err().map_or(outcome, Outcome::from))
            }));
        };
        match self.store.write(range.at, data, durable) {
            Io::Ready(Some(Ok(()))) => Execution::Done(mover, outcome),
            Io::Ready(Some(Err(error))) => Execution::Done(mover, self.write_failed(error, range.lba).into()),
            io => {
                let counted = Counted { unit: Use::of(self), slot: guard.into_slot() };
                Execution::Running(Pooled::new(async move {
                    let outcome = match io.await {
                        Ok(()) => outcome,
                        Err(error) => counted.unit.write_failed(error, range.lba).into(),
                    };
                    (mover, outcome)
                }))
            }
        }
    }

    /// Gets the data of `range` and writes it, chunk by chunk.
    async fn get_range<M: DataMover>(
        &self,
        mover: &mut M,
        range: Range,
        durable: bool,
    ) -> Result<(), Outcome> {
        for chunk in range.chunks(self.block_shift) {
            let data = mover.get_data(chunk.bytes as usize).await.map_err(|Lost| Outcome::GOOD)?;
            if data.len() as u64 != chunk.bytes {
                return Err(short_data());
            }
            self.write_chain(chunk, data, durable).await?;
        }
        Ok(())
    }

    /// Waits for a write's turn. A sanitize that began after the command was let in ends it here: nothing may be written
    /// behind its back.
    pub(super) async fn begin_write(&self, range: Range) -> Result<WriteGuard<'_>, Sense> {
        let guard = self.exclusion.write(range.lba, range.end(self.block_shift)).await;
        if self.flags() & flag::SANITIZING != 0 {
            return Err(Sense::sanitize_in_progress(self.sanitize_progress()));
        }
        if self.flags() & flag::TOKENS != 0 {
            self.touch(range);
        }
        Ok(guard)
    }

    /// Writes `data` to `range` in its turn.
    pub(super) async fn write_chain(&self, range: Range, data: Chain, durable: bool) -> Result<(), Sense> {
        let _guard = self.begin_write(range).await?;
        self.store.write(range.at, data, durable).await.map_err(|e| self.write_failed(e, range.lba))
    }

    /// WRITE AND VERIFY: each chunk is written through to the medium, read back, and compared if that is asked for.
    pub(super) async fn write_and_verify(
        &self,
        command: &Command,
        mover: &mut dyn DataMover,
        cdb: WriteAndVerify,
    ) -> Result<Outcome, Outcome> {
        let range = self.transfer_range(cdb.lba, cdb.blocks)?;
        if command.data_out_len < range.bytes {
            self.get_short(mover, range, command.data_out_len, true).await?;
            for chunk in range.chunks(self.block_shift) {
                self.read_chain(chunk).await?;
            }
            return Ok(Outcome::wrote(range.bytes));
        }
        for chunk in range.chunks(self.block_shift) {
            let data = self.get(mover, chunk.bytes).await?;
            self.write_chain(chunk, data.clone(), true).await?;
            let back = self.read_chain(chunk).await?;
            if cdb.compare && super::compare::mismatch(&back, &data).is_some() {
                return Err(super::compare::miscompare().into());
            }
        }
        Ok(Outcome::wrote(range.bytes))
    }

    /// The next `bytes` of data-out, exactly.
    pub(super) async fn get(&self, mover: &mut dyn DataMover, bytes: u64) -> Result<Chain, Outcome> {
        let len = usize::try_from(bytes).map_err(|_| short_data())?;
        let data = mover.get_data(len).await.map_err(|Lost| Outcome::GOOD)?;
        if data.len() == len { Ok(data) } else { Err(short_data()) }
    }

    /// Waits until `range` may be read and written with nobody else writing in between.
    pub(super) async fn begin_atomic(&self, range: Range) -> Result<Queued<'_>, Sense> {
        let guard = self.exclusion.atomic(range.lba, range.end(self.block_shift)).await;
        if self.flags() & flag::SANITIZING != 0 {
            return Err(Sense::sanitize_in_progress(self.sanitize_progress()));
        }
        if self.flags() & flag::TOKENS != 0 {
            self.touch(range);
        }
        Ok(guard)
    }

    /// Reads `range`, which is no longer than a chunk.
    pub(super) async fn read_chain(&self, range: Range) -> Result<Chain, Outcome> {
        self.store
            .read(range.at, range.bytes as usize)
            .await
            .map_err(|error| self.read_failed(error, range.lba))
    }

    #[cold]
    pub(super) fn read_failed(&self, error: StoreError, lba: u64) -> Outcome {
        if error == StoreError::OutOfRange {
            self.check_capacity();
        }
        read_error(error, lba).into()
    }

    #[cold]
    pub(super) fn write_failed(&self, error: StoreError, lba: u64) -> Sense {
        if error == StoreError::OutOfRange {
            self.check_capacity();
        }
        write_error(error, lba)
    }
}
