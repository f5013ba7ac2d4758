//! A store's operations as commands to the far unit.

use std::rc::Rc;
use std::sync::Arc;

use backing::{Extent, StoreError};
use runtime::{Buf, Chain, ZEROS};
use scsi::cdb::build::{self, Flags};
use scsi::data::lba_status::{self, Provisioning};
use scsi::data::unmap::{self, UnmapRange};

use crate::common::Share;
use crate::link::{ATTEMPTS, Effect, Link, Serving};

/// The most bytes of one command that writes zeros: a unit that writes them has to end in time.
const ZEROS_AT_ONCE: u64 = 64 << 20;
/// Parameter data of GET LBA STATUS: descriptors of 16 bytes behind a header of 8.
const STATUS_LEN: u32 = 8 + 16 * 64;

impl Link {
    pub(crate) async fn read(self: Rc<Self>, at: u64, len: usize) -> Result<Chain, StoreError> {
        let serving = self.serving().await?;
        let block = serving.far.block();
        let mut chain = Chain::new();
        while chain.len() < len {
            let left = (len - chain.len()) as u64 / block;
            let blocks = left.min(serving.far.max_transfer.into()) as u32;
            let cdb = build::read((at + chain.len() as u64) / block, blocks, Flags::default());
            let wanted = u64::from(blocks) * block;
            let response = self.ask(serving.command(&cdb).reading(wanted as u32), Effect::None).await?;
            if blocks == 0 || response.data.len() as u64 != wanted {
                return Err(StoreError::Io(libc::EIO));
            }
            chain.append(response.data);
        }
        Ok(chain)
    }

    /// A durable write to a unit that knows no FUA ends with a flush, and begins anew if the cache
    /// may have been lost between the two.
    pub(crate) async fn write(self: Rc<Self>, at: u64, data: Chain, durable: bool) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            let serving = self.serving().await?;
            let resets = self.resets();
            if !self.send(&serving, at, data.clone(), durable).await? {
                return Ok(());
            }
            self.clone().flush().await?;
            if self.resets() == resets {
                return Ok(());
            }
        }
        Err(StoreError::Unknown)
    }

    /// Returns whether a durable write is in the cache only.
    async fn send(
        &self,
        serving: &Rc<Serving>,
        at: u64,
        mut data: Chain,
        durable: bool,
    ) -> Result<bool, StoreError> {
        let block = serving.far.block();
        let effect = if durable { Effect::Durable } else { Effect::Cached };
        let (mut lba, mut is_cached) = (at / block, false);
        while !data.is_empty() {
            let blocks = (data.len() as u64 / block).min(serving.far.max_transfer.into());
            let piece = data.split_to((blocks * block) as usize);
            if piece.is_empty() {
                return Err(StoreError::Io(libc::EINVAL));
            }
            let write = |by: &Serving| {
                let fua = durable && by.far.write_cache && by.far.fua;
                let flags = if fua { Flags::FUA } else { Flags::default() };
                by.command(&build::write(lba, blocks as u32, flags)).writing(piece.clone())
            };
            let (_, by) = self.ask_by(write, effect).await?;
            is_cached |= durable && by.far.write_cache && !by.far.fua;
            lba += blocks;
        }
        Ok(is_cached)
    }

    /// Flushes the far cache, and vouches for the changes of this link.
    pub(crate) async fn flush(self: Rc<Self>) -> Result<(), StoreError> {
        let serving = self.serving().await?;
        let refused = || self.common.remote.health().flush_refusal().map_or(Ok(()), Err);
        refused()?;
        let has_changes = self.share.changes.is_any();
        if (serving.far.write_cache || has_changes) && !serving.flushes_nothing.get() {
            let command = serving.command(&build::synchronize_cache10());
            match self.ask(command, Effect::Flush).await {
                // A unit that cannot flush has no cache that an initiator could lose.
                Err(StoreError::Unsupported) => {
                    serving.flushes_nothing.set(true);
                    self.share.changes.has_flushed(self.share.changes.to_flush());
                }
                other => drop(other?),
            }
        }
        // The far unit may have been powered on meanwhile.
        refused()
    }

    /// [`Self::flush`] by all links that have unflushed changes, and by this one in any case: an
    /// earlier daemon may have left some.
    pub(crate) async fn sync(self: Rc<Self>) -> Result<(), StoreError> {
        let common = &self.common;
        let ask = |share: Arc<Share>| {
            let common = common.clone();
            // A link that has gone vouches for nothing.
            let flush = async move || Link::known(&common).ok_or(StoreError::Unknown)?.flush().await;
            share.core.call(flush)
        };
        // They begin at once.
        let asked: Vec<_> = common.unflushed(&self.share).into_iter().map(ask).collect();
        let own = self.clone().flush().await;
        for flushed in asked {
            flushed.await.unwrap_or(Err(StoreError::Unknown))?;
        }
        own
    }

    /// Not UNMAP alone even where holes are allowed: afterwards blocks may hold what they held
    /// (SBC-3 §4.7.3.4.2). WRITE SAME with UNMAP leaves zeros in any case (SBC-3 §5.44).
    pub(crate) async fn write_zeros(
        self: Rc<Self>,
        at: u64,
        len: u64,
        deallocate: bool,
    ) -> Result<(), StoreError> {
        let serving = self.serving().await?;
        let (block, far) = (serving.far.block(), &serving.far);
        let effect = Effect::Cached;
        let unmap = deallocate && far.zeros_may_be_holes();
        let said = far.limits.map_or(0, |limits| limits.max_write_same);
        let most = (ZEROS_AT_ONCE / block).min(if said == 0 { u64::MAX } else { said });
        let (mut lba, end) = (at / block, (at + len) / block);
        while lba < end && !serving.writes_no_same.get() {
            let blocks = (end - lba).min(most);
            let cdb = build::write_same16(lba, blocks as u32, unmap, false);
            let zeros = Buf::zeros(block as usize);
            match self.ask(serving.command(&cdb).writing(zeros), effect).await {
                Ok(_) => lba += blocks,
                Err(StoreError::Unsupported) => serving.writes_no_same.set(true),
                Err(error) => return Err(error),
            }
        }
        while lba < end {
            let blocks = (end - lba).min(ZEROS as u64 / block).min(far.max_transfer.into());
            let zeros = Buf::zeros((blocks * block) as usize);
            let cdb = build::write(lba, blocks as u32, Flags::default());
            self.ask(serving.command(&cdb).writing(zeros), effect).await?;
            lba += blocks;
        }
        if deallocate && far.unmaps() && (!unmap || serving.writes_no_same.get()) {
            self.unmap(&serving, at / block, end - at / block, effect).await?;
        }
        Ok(())
    }

    /// Deallocates blocks of zeros, as far as the unit does so.
    async fn unmap(
        &self,
        serving: &Rc<Serving>,
        lba: u64,
        blocks: u64,
        effect: Effect,
    ) -> Result<(), StoreError> {
        let said = serving.far.limits.map_or(0, |limits| limits.max_unmap);
        let most = u64::from(if said == 0 { u32::MAX } else { said });
        let mut done = 0;
        while done < blocks {
            let piece = (blocks - done).min(most);
            let list = unmap::emit(&[UnmapRange { lba: lba + done, blocks: piece as u32 }]);
            let cdb = build::unmap(list.len() as u16);
            match self.ask(serving.command(&cdb).writing(Buf::from(list)), effect).await {
                Ok(_) => done += piece,
                // The blocks are zeros already.
                Err(StoreError::Unsupported) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) async fn extent(self: Rc<Self>, at: u64, len: u64) -> Result<Extent, StoreError> {
        let all = Extent { at, len, mapped: true };
        let serving = self.serving().await?;
        // Blocks that may hold anything count as mapped.
        if !serving.far.deallocates_to_zeros() {
            return Ok(all);
        }
        let block = serving.far.block();
        let cdb = build::get_lba_status(at / block, STATUS_LEN);
        let asked = self.ask(serving.command(&cdb).reading(STATUS_LEN), Effect::None).await;
        let data = match asked {
            Ok(response) => response.data.to_vec(),
            Err(StoreError::Unsupported) => return Ok(all),
            Err(error) => return Err(error),
        };
        let mut found: Option<Extent> = None;
        for status in lba_status::parse(&data).unwrap_or_default() {
            let begin = status.lba.saturating_mul(block);
            let end = begin.saturating_add(u64::from(status.blocks) * block);
            let mapped = status.provisioning != Provisioning::Deallocated;
            match &mut found {
                None if (begin..end).contains(&at) => found = Some(Extent { at, len: end - at, mapped }),
                Some(first) if first.mapped == mapped && first.at + first.len == begin => {
                    first.len = end - first.at;
                }
                None => {}
                Some(_) => break,
            }
        }
        Ok(found.map_or(all, |found| Extent { len: found.len.min(len), ..found }))
    }
}
