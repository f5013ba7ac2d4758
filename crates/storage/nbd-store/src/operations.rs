//! A store's operations as requests to the server.

use std::rc::Rc;
use std::sync::Arc;

use backing::{Extent, StoreError};
use nbd::Command;
use runtime::Chain;

use crate::common::Share;
use crate::link::Link;
use crate::request::zeros;

/// The most bytes of one request for zeros: a server that writes them has to end in time.
const ZEROS_AT_ONCE: u32 = 64 << 20;

impl Link {
    pub(crate) async fn read(self: Rc<Self>, at: u64, len: usize) -> Result<Chain, StoreError> {
        let most = self.offer().await?.payload as usize;
        let mut chain = Chain::new();
        while chain.len() < len {
            let piece = (len - chain.len()).min(most) as u32;
            let command = Command::Read { at: at + chain.len() as u64, len: piece };
            chain.append(self.ask(command, Chain::new()).await?.data);
        }
        Ok(chain)
    }

    pub(crate) async fn write(
        self: Rc<Self>,
        at: u64,
        mut data: Chain,
        durable: bool,
    ) -> Result<(), StoreError> {
        let offer = self.offer().await?;
        let fua = durable && offer.flags.fua();
        let mut at = at;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(offer.payload as usize));
            let len = piece.len() as u32;
            self.ask(Command::Write { at, len, fua }, piece).await?;
            at += u64::from(len);
        }
        if durable && !fua && offer.flags.flush() { self.flush().await } else { Ok(()) }
    }

    /// Flushes the server's cache, and vouches for the changes of this link.
    async fn flush(self: Rc<Self>) -> Result<(), StoreError> {
        let offer = self.offer().await?;
        let refused = || self.common.remote.health().flush_refusal().map_or(Ok(()), Err);
        refused()?;
        if offer.flags.flush() {
            self.ask(Command::Flush, Chain::new()).await?;
        }
        // The server may have been started anew meanwhile.
        refused()
    }

    /// [`Self::flush`] by all links that have unflushed changes, and by this one in any case: an
    /// earlier daemon may have left some.
    pub(crate) async fn sync(self: Rc<Self>) -> Result<(), StoreError> {
        let common = &self.common;
        let ask = |share: Arc<Share>| {
            let common = common.clone();
            // A link that has gone vouches for nothing.
            let flush = async move || Link::of(&common).ok_or(StoreError::Unknown)?.flush().await;
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

    /// Not NBD_CMD_TRIM even where holes are allowed: afterwards the range may hold anything. And
    /// not fast zeros: the alternative would be to send the zeros.
    pub(crate) async fn write_zeros(
        self: Rc<Self>,
        at: u64,
        len: u64,
        deallocate: bool,
    ) -> Result<(), StoreError> {
        let offer = self.offer().await?;
        let payload = offer.payload;
        let mut most = if offer.flags.write_zeroes() { ZEROS_AT_ONCE.max(payload) } else { 0 };
        let mut done = 0;
        while done < len {
            if most == 0 {
                return self.send_zeros(payload, at + done, len - done).await;
            }
            let piece = (len - done).min(most.into()) as u32;
            let command =
                Command::WriteZeroes { at: at + done, len: piece, fua: false, hole: deallocate, fast: false };
            match self.ask(command, Chain::new()).await {
                Ok(_) => done += u64::from(piece),
                // A server may refuse more than it accepts as data, or all.
                Err(StoreError::Unsupported) => most = if piece > payload { payload } else { 0 },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn send_zeros(self: Rc<Self>, payload: u32, at: u64, len: u64) -> Result<(), StoreError> {
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(payload.into()) as u32;
            self.clone().write(at + done, zeros(piece), false).await?;
            done += u64::from(piece);
        }
        Ok(())
    }

    pub(crate) async fn extent(self: Rc<Self>, at: u64, len: u64) -> Result<Extent, StoreError> {
        let all = Extent { at, len, mapped: true };
        if !self.offer().await?.has_status {
            return Ok(all);
        }
        let block = self.common.geometry.block;
        let asked = len.min((u32::MAX - (block - 1)).into()) as u32;
        let asked = asked - asked % block;
        if asked == 0 {
            return Ok(all);
        }
        let reply = self.ask(Command::BlockStatus { at, len: asked, one: true }, Chain::new()).await?;
        let found = reply.extent.unwrap_or(all);
        // Blocks that are allocated in part are.
        let whole = found.len.min(asked.into()) / u64::from(block) * u64::from(block);
        Ok(match whole {
            0 => Extent { at, len: block.into(), mapped: true },
            len => Extent { at, len, mapped: found.mapped },
        })
    }
}
