//! The two buffers of a command: Data-Out is taken and Data-In is put in the order of their
//! offsets. Owns the command's position in them and the number of bytes it called for; knows
//! nothing of their contents.
//!
//! Offsets come from the initiator, so gaps are bounded by what it really sends and has room for.

use std::future::Future;
use std::task::{Context, Poll};

use device::{DataMover, GetData, Lost, Outcome};
use osd::security::Sealer;
use runtime::{Buf, Chain};

use super::failure::Failure;
use super::limits::CHUNK_BYTES;

/// Bytes that fill gaps in Data-In.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// A command's mover with its place in both buffers.
pub(super) struct Transfer<'a> {
    mover: &'a mut dyn DataMover,
    out_at: u64,
    out_len: u64,
    in_at: u64,
    in_room: u64,
    /// Bytes of Data-Out that the CDB calls for.
    pub wanted_out: u64,
    /// Data-Out that has been taken and verified already.
    verified: Option<Chain>,
    seal: Option<Box<Seal>>,
}

/// Data-In's integrity information in the making.
struct Seal {
    sealer: Sealer,
    /// Offset of the integrity information.
    at: u64,
    /// Offset of the retrieved attributes.
    retrieved: Option<u64>,
}

impl<'a> Transfer<'a> {
    pub fn new(mover: &'a mut dyn DataMover, out_len: u64, in_room: u64) -> Self {
        Self { mover, out_at: 0, out_len, in_at: 0, in_room, wanted_out: 0, verified: None, seal: None }
    }

    pub(crate) fn out_len(&self) -> u64 {
        self.out_len
    }

    /// Bytes of Data-In that the initiator still has room for.
    pub fn room(&self) -> u64 {
        self.in_room.saturating_sub(self.in_at)
    }

    /// Bytes of Data-In put so far, and so where the next one goes.
    pub(crate) fn in_at(&self) -> u64 {
        self.in_at
    }

    /// `len` bytes of Data-Out from offset `at`, which is not before the end of the bytes taken;
    /// bytes between are dropped.
    pub async fn take(&mut self, at: u64, len: u64) -> Result<Chain, Failure> {
        if at < self.out_at || at.saturating_add(len) > self.out_len {
            return Err(Failure::short_data());
        }
        while self.out_at < at {
            let step = (at - self.out_at).min(CHUNK_BYTES);
            self.next(step).await?;
        }
        self.next(len).await
    }

    async fn next(&mut self, len: u64) -> Result<Chain, Failure> {
        if len == 0 {
            return Ok(Chain::new());
        }
        let wanted = usize::try_from(len).map_err(|_| Failure::short_data())?;
        if let Some(verified) = &mut self.verified {
            if verified.len() < wanted {
                return Err(Failure::short_data());
            }
            self.out_at += len;
            return Ok(verified.split_to(wanted));
        }
        let data = self.mover.get_data(wanted).await?;
        self.out_at += len;
        if data.len() == wanted { Ok(data) } else { Err(Failure::short_data()) }
    }

    pub fn put(&mut self, data: Buf) {
        if data.is_empty() {
            return;
        }
        let room = self.room();
        self.in_at += data.len() as u64;
        if let Some(seal) = &mut self.seal {
            data.for_each_slice(|slice| seal.sealer.update(slice));
        }
        if room > 0 {
            self.mover.put_data(data);
        }
    }

    /// Counts `len` bytes of Data-In that there is no room for.
    pub fn skip(&mut self, len: u64) {
        self.in_at = self.in_at.saturating_add(len);
    }

    /// Puts zeros until offset `at`, [`CHUNK_BYTES`] of them at most. Whether more are to follow.
    pub(crate) fn pad_to(&mut self, at: u64) -> bool {
        let gap = at.saturating_sub(self.in_at).min(self.room());
        let mut left = gap.min(CHUNK_BYTES);
        while left > 0 {
            let zeros = &ZEROS[..left.min(ZEROS.len() as u64) as usize]; // at most 16 KiB
            left -= zeros.len() as u64;
            self.put(Buf::from_static(zeros));
        }
        if gap > CHUNK_BYTES {
            return true;
        }
        self.in_at = self.in_at.max(at);
        false
    }

    /// From now on Data-Out from offset `at` is `data`, which was taken and verified.
    pub fn serve(&mut self, at: u64, data: Chain) {
        self.out_at = at;
        self.verified = Some(data);
    }

    /// Has Data-In sealed, with the integrity information at offset `at`, which is behind
    /// everything else. Retrieved attributes are counted from offset `retrieved` on. To be called
    /// before anything is put; there has to be room for it all.
    pub fn seal(&mut self, sealer: Sealer, at: u64, retrieved: Option<u64>) {
        self.seal = Some(Box::new(Seal { sealer, at, retrieved }));
    }

    /// Whether Data-In is sealed: it must be sent as it was when it was put.
    pub(crate) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Puts the integrity information, if there is to be one. Zeros have been put until its offset;
    /// before them there were `put` bytes of Data-In.
    pub(crate) fn finish_seal(&mut self, put: u64) {
        let Some(seal) = self.seal.take() else { return };
        let own = put.min(seal.retrieved.unwrap_or(u64::MAX));
        let information = seal.sealer.finish([own, put - own, 0]);
        self.put(information.into());
    }

    pub async fn is_ready(&mut self) -> Result<bool, Failure> {
        let ready = std::future::poll_fn(|cx| Poll::Ready(self.mover.poll_put_ready(cx)));
        match ready.await {
            Poll::Ready(ready) => Ok(ready.map(|()| true)?),
            Poll::Pending => Ok(false),
        }
    }

    pub async fn ready(&mut self) -> Result<(), Failure> {
        Ok(self.mover.put_ready().await?)
    }

    /// Waits for what others have, and ends the command if it is aborted meanwhile.
    pub async fn unless_lost<F: Future>(&mut self, others: F) -> Result<F::Output, Failure> {
        Ok(self.mover.unless_lost(others).await?)
    }

    /// See [`DataMover::poll_lost`].
    pub fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        self.mover.poll_lost(cx)
    }

    /// The outcome of a command that has moved all its data.
    pub fn outcome(&self) -> Outcome {
        Outcome { wanted_in: self.in_at, wanted_out: self.wanted_out, ..Outcome::GOOD }
    }

    /// Gives the core's other tasks a turn in a long command, and ends the command if it was
    /// aborted.
    pub async fn pause(&mut self) -> Result<(), Failure> {
        if runtime::is_running() {
            runtime::yield_now().await;
        }
        let lost = std::future::poll_fn(|cx| {
            Poll::Ready(matches!(self.mover.poll_put_ready(cx), Poll::Ready(Err(_))))
        });
        if lost.await { Err(Failure::Lost) } else { Ok(()) }
    }

    /// Offset of Data-In's integrity information, if it is sealed: behind everything else.
    pub fn sealed_at(&self) -> Option<u64> {
        self.seal.as_ref().map(|seal| seal.at)
    }

    /// The mover of a command inside this one, which gets `data` and whose Data-In is this one's.
    pub fn inner(&mut self, data: Chain) -> Inner<'_, 'a> {
        Inner { transfer: self, data }
    }
}

/// See [`Transfer::inner`].
pub(super) struct Inner<'t, 'a> {
    transfer: &'t mut Transfer<'a>,
    data: Chain,
}

impl DataMover for Inner<'_, '_> {
    fn put_data(&mut self, data: Buf) {
        self.transfer.put(data);
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        self.transfer.mover.poll_put_ready(cx)
    }

    fn poll_get_data(&mut self, _: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let len = len.min(self.data.len());
        Poll::Ready(Ok(self.data.split_to(len)))
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        self.transfer.mover.poll_lost(cx)
    }
}
