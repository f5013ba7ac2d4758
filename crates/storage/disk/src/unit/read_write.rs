//! READ and WRITE: the data path. A command that the store completes at once needs no future, no
//! allocation and no lock, unless another one is changing the same blocks.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::{Command, DataMover, Execution, GetData, Lost, Outcome};
use runtime::{Chain, Pooled, Use};
use scsi::Sense;
use scsi::cdb::{Transfer, WriteAndVerify, opcode};

use super::error::{read_error, short_data, write_error};
use super::gate::flag;
use super::limits::CHUNK_BYTES;
use super::stripes::{Claim, PIECE, Places, Seen};
use super::{DiskUnit, Range};
use backing::{Io, StoreError};

/// Maximum number of 4 KiB blocks that a read of one chunk touches, if its first byte is within
/// one.
pub(super) const CHUNK_PIECES: usize = CHUNK_BYTES / PIECE + 2;

/// A write's claim while its operation runs.
struct Claimed {
    unit: Use<DiskUnit>,
    places: Places,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.unit.stripes.release(self.places);
    }
}

impl DiskUnit {
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
        // Do not read data beyond the expected length.
        let len = range.bytes.min(command.data_in_len).next_multiple_of(u64::from(self.options.block_size));
        let outcome = Outcome::read(range.bytes);
        if len == 0 {
            return Execution::Done(mover, outcome);
        }
        if transfer.fua && !self.write_through() {
            return self.read_medium(mover, Range { bytes: len, ..range }, outcome);
        }
        if len <= PIECE as u64 {
            return self.read_short(mover, Range { bytes: len, ..range }, outcome);
        }
        if len > CHUNK_BYTES as u64 || self.flags() & flag::SHARED != 0 {
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

    /// Prepares for a command with this CDB that will be executed soon: has the blocks of a
    /// READ(10) or READ(16) of up to 4 KiB brought into the processor's cache. The unit copies them
    /// ([`Self::read_short`]), and waiting for memory would take most of the time.
    #[inline]
    pub fn prefetch(&self, cdb: &[u8; 16]) {
        let (lba, blocks) = match cdb[0] {
            opcode::READ_10 => (
                u32::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5]]).into(),
                u16::from_be_bytes([cdb[7], cdb[8]]).into(),
            ),
            opcode::READ_16 => (
                u64::from_be_bytes([cdb[2], cdb[3], cdb[4], cdb[5], cdb[6], cdb[7], cdb[8], cdb[9]]),
                u32::from_be_bytes([cdb[10], cdb[11], cdb[12], cdb[13]]),
            ),
            _ => return,
        };
        let bytes = u64::from(blocks) << self.block_shift;
        if bytes <= PIECE as u64
            && let Some(at) = lba.checked_mul(1 << self.block_shift)
        {
            self.store.prefetch(at, bytes as usize);
        }
    }

    /// A READ of up to 4 KiB: copied while no command changes its blocks, so the initiator sees it
    /// whole. The socket makes that copy if it can, unless several initiators read at the same
    /// time: such readers write nothing that they share.
    #[inline]
    fn read_short<M: DataMover + 'static>(
        self: &Arc<Self>,
        mut mover: M,
        range: Range,
        outcome: Outcome,
    ) -> Execution<M> {
        if self.guarded
            && self.flags() & flag::SHARED == 0
            && mover.holds(range.bytes as usize)
            && let Some(buf) = self.store.lend(range.at, range.bytes as usize)
        {
            mover.put_data(buf);
            return Execution::Done(mover, outcome);
        }
        let seen = self.stripes.look::<2>(range.at, range.bytes);
        if let Some(buf) = self.store.read_now(range.at, range.bytes as usize)
            && self.stripes.is_whole(&seen)
        {
            mover.put_data(buf);
            return Execution::Done(mover, outcome);
        }
        match self.store.read(range.at, range.bytes as usize) {
            Io::Ready(Some(Ok(chain))) if self.stripes.is_whole(&seen) => {
                chain.into_iter().for_each(|buf| mover.put_data(buf));
                Execution::Done(mover, outcome)
            }
            Io::Ready(Some(Err(error))) => Execution::Done(mover, self.read_failed(error, range.lba)),
            io => {
                let unit = Use::of(self);
                Execution::Running(Pooled::new(async move {
                    let read = match io {
                        // Another command changed the blocks meanwhile.
                        Io::Ready(_) => None,
                        io => Some(io.await),
                    };
                    let read = match read {
                        Some(Ok(chain)) if unit.stripes.is_whole(&seen) => Ok(chain),
                        Some(Err(error)) => Err(error),
                        _ => unit.read_alone(range.at, range.bytes).await,
                    };
                    match read {
                        Ok(chain) => {
                            chain.into_iter().for_each(|buf| mover.put_data(buf));
                            (mover, outcome)
                        }
                        Err(error) => (mover, unit.read_failed(error, range.lba)),
                    }
                }))
            }
        }
    }

    /// With FUA: first flushes a volatile cache to the medium (SBC-3 §5.15), so that the data read
    /// here survives a power loss. A store without dirty data has nothing to do.
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

    /// Reads `range` and sends it chunk by chunk, as fast as the connection takes it. Long data is
    /// sent by reference if only its own initiator can change it before it is sent.
    async fn put_range<M: DataMover>(&self, mover: &mut M, range: Range) -> Result<(), Outcome> {
        for chunk in range.chunks(self.block_shift) {
            mover.put_ready().await.map_err(|Lost| Outcome::GOOD)?;
            let read = match range.bytes <= PIECE as u64 || self.flags() & flag::SHARED != 0 {
                true => self.read_whole(chunk).await,
                false => self.store.read_to_send(chunk.at, chunk.bytes as usize).await,
            };
            let chain = read.map_err(|error| self.read_failed(error, chunk.lba))?;
            chain.into_iter().for_each(|buf| mover.put_data(buf));
        }
        Ok(())
    }

    /// Reads a range of up to one chunk, each 4 KiB block of it whole. A range of up to 4 KiB is
    /// whole as one.
    pub(super) async fn read_whole(&self, range: Range) -> Result<Chain, StoreError> {
        if range.bytes <= PIECE as u64 {
            let seen = self.stripes.look::<2>(range.at, range.bytes);
            let chain = self.store.read(range.at, range.bytes as usize).await?;
            return match self.stripes.is_whole(&seen) {
                true => Ok(chain),
                false => self.read_alone(range.at, range.bytes).await,
            };
        }
        let seen = self.stripes.look::<CHUNK_PIECES>(range.at, range.bytes);
        let chain = self.store.read(range.at, range.bytes as usize).await?;
        if self.stripes.is_whole(&seen) {
            return Ok(chain);
        }
        self.mend(range.at, chain, &seen).await
    }

    /// Reads those 4 KiB blocks again that another command changed meanwhile. `chain` is the data
    /// read at `at`.
    #[cold]
    async fn mend<const N: usize>(
        &self,
        mut at: u64,
        mut chain: Chain,
        seen: &Seen<N>,
    ) -> Result<Chain, StoreError> {
        let (mut whole, mut n) = (Chain::new(), 0);
        while !chain.is_empty() {
            let len = (PIECE - at as usize % PIECE).min(chain.len());
            let piece = chain.split_to(len);
            match self.stripes.is_block_whole(seen, n) {
                true => whole.append(piece),
                false => whole.append(self.read_alone(at, len as u64).await?),
            }
            at += len as u64;
            n += 1;
        }
        Ok(whole)
    }

    /// Reads `bytes` bytes under a claim, so that no command changes them.
    #[cold]
    async fn read_alone(&self, at: u64, bytes: u64) -> Result<Chain, StoreError> {
        let _claim = self.stripes.claim(at, bytes).await;
        self.store.read(at, bytes as usize).await
    }

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
        if command.data_out_len < range.bytes {
            return self.write_short(mover, range, command.data_out_len, transfer.fua);
        }
        if range.bytes <= CHUNK_BYTES as u64 {
            // Immediate data is already there: try without a waker first.
            let got = mover.poll_get_data(&mut Context::from_waker(Waker::noop()), range.bytes as usize);
            if let Poll::Ready(data) = got {
                let Ok(data) = data else { return Execution::Done(mover, Outcome::GOOD) };
                return self.write_data(mover, range, data, transfer.fua);
            }
        }
        if let Some(landing) = self.landing(command, range) {
            mover.lands(landing);
        }
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let result = unit.get_range(&mut mover, range, transfer.fua).await;
            (mover, result.err().unwrap_or(Outcome::wrote(range.bytes)))
        }))
    }

    /// A WRITE whose initiator sends less than the CDB requests: writes exactly the received bytes.
    /// This is the first way of FCP-4 §9.4.2; the residual informs the initiator.
    #[cold]
    fn write_short<M: DataMover + 'static>(
        self: &Arc<Self>,
        mut mover: M,
        range: Range,
        bytes: u64,
        fua: bool,
    ) -> Execution<M> {
        let unit = Use::of(self);
        Execution::Running(Pooled::new(async move {
            let mut written = Outcome::wrote(range.bytes);
            if let Err(outcome) = unit.get_short(&mut mover, range, bytes, fua).await {
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
        fua: bool,
    ) -> Result<(), Outcome> {
        let tail = bytes % u64::from(self.options.block_size);
        let whole = Range { bytes: bytes - tail, ..range };
        for chunk in whole.chunks(self.block_shift) {
            let data = self.get(mover, chunk.bytes).await?;
            self.write_chain(chunk, data, fua).await?;
        }
        if tail > 0 {
            let last = Range {
                lba: whole.end(self.block_shift),
                at: whole.at + whole.bytes,
                bytes: u64::from(self.options.block_size),
            };
            let data = self.get(mover, tail).await?;
            let _alone = self.begin_write(last).await?;
            let mut block = self.read_claimed(last).await?.to_vec();
            data.copy_to_slice(&mut block[..data.len()]);
            let written = self.store.write(last.at, block.into(), self.durable(fua)).await;
            written.map_err(|error| self.write_failed(error, last.lba))?;
        }
        Ok(())
    }

    /// Writes one chunk of received data.
    #[inline]
    fn write_data<M: DataMover + 'static>(
        self: &Arc<Self>,
        mover: M,
        range: Range,
        data: Chain,
        fua: bool,
    ) -> Execution<M> {
        if data.len() as u64 != range.bytes {
            return Execution::Done(mover, short_data());
        }
        let outcome = Outcome::wrote(range.bytes);
        let claim = self.stripes.try_claim(range.at, range.bytes);
        let claim = claim.filter(|_| self.flags() & (flag::SANITIZING | flag::TOKENS) == 0);
        let Some(claim) = claim else {
            let unit = Use::of(self);
            return Execution::Running(Pooled::new(async move {
                let result = unit.write_chain(range, data, fua).await;
                (mover, result.err().map_or(outcome, Outcome::from))
            }));
        };
        match self.store.write(range.at, data, self.durable(fua)) {
            Io::Ready(Some(Ok(()))) => Execution::Done(mover, outcome),
            Io::Ready(Some(Err(error))) => Execution::Done(mover, self.write_failed(error, range.lba).into()),
            io => {
                let claimed = Claimed { unit: Use::of(self), places: claim.into_places() };
                Execution::Running(Pooled::new(async move {
                    let outcome = match io.await {
                        Ok(()) => outcome,
                        Err(error) => claimed.unit.write_failed(error, range.lba).into(),
                    };
                    (mover, outcome)
                }))
            }
        }
    }

    /// Fetches the data of `range` and writes it, chunk by chunk.
    async fn get_range<M: DataMover>(&self, mover: &mut M, range: Range, fua: bool) -> Result<(), Outcome> {
        for chunk in range.chunks(self.block_shift) {
            let data = mover.get_data(chunk.bytes as usize).await.map_err(|Lost| Outcome::GOOD)?;
            if data.len() as u64 != chunk.bytes {
                return Err(short_data());
            }
            self.write_chain(chunk, data, fua).await?;
        }
        Ok(())
    }

    /// Claims `range`: waits until no other command changes it, and excludes all others. A sanitize
    /// that began after the command's checks ends it here, so that it cannot write unnoticed.
    pub(super) async fn begin_write(&self, range: Range) -> Result<Claim<'_>, Sense> {
        let claim = self.stripes.claim(range.at, range.bytes).await;
        if self.flags() & flag::SANITIZING != 0 {
            return Err(Sense::sanitize_in_progress(self.sanitize_progress()));
        }
        if self.flags() & flag::TOKENS != 0 {
            self.touch(range);
        }
        Ok(claim)
    }

    /// Whether a write has to be on the medium before its status. A writer asks under its claim:
    /// the MODE SELECT that turns the cache off flushes after all claims from before.
    #[inline]
    pub(super) fn durable(&self, fua: bool) -> bool {
        fua || self.write_through()
    }

    /// Claims `range` and writes `data` to it.
    pub(super) async fn write_chain(&self, range: Range, data: Chain, fua: bool) -> Result<(), Sense> {
        let _claim = self.begin_write(range).await?;
        let written = self.store.write(range.at, data, self.durable(fua)).await;
        written.map_err(|error| self.write_failed(error, range.lba))
    }

    /// WRITE AND VERIFY: each chunk is written through to the medium, read back, and compared on
    /// request, before another command may write it.
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
            let back = {
                let _alone = self.begin_write(chunk).await?;
                let written = self.store.write(chunk.at, data.clone(), true).await;
                written.map_err(|error| self.write_failed(error, chunk.lba))?;
                self.read_claimed(chunk).await?
            };
            if cdb.compare && super::compare::mismatch(&back, &data).is_some() {
                return Err(super::compare::miscompare().into());
            }
        }
        Ok(Outcome::wrote(range.bytes))
    }

    /// Fetches exactly the next `bytes` of data-out.
    pub(super) async fn get(&self, mover: &mut dyn DataMover, bytes: u64) -> Result<Chain, Outcome> {
        let len = usize::try_from(bytes).map_err(|_| short_data())?;
        let data = mover.get_data(len).await.map_err(|Lost| Outcome::GOOD)?;
        if data.len() == len { Ok(data) } else { Err(short_data()) }
    }

    /// [`Self::read_whole`] with its error as the command's outcome.
    pub(super) async fn read_chain(&self, range: Range) -> Result<Chain, Outcome> {
        self.read_whole(range).await.map_err(|error| self.read_failed(error, range.lba))
    }

    /// Reads `range`, which the caller has claimed.
    pub(super) async fn read_claimed(&self, range: Range) -> Result<Chain, Outcome> {
        let read = self.store.read(range.at, range.bytes as usize).await;
        read.map_err(|error| self.read_failed(error, range.lba))
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
