//! Steps on an object's data.
//!
//! Data is written to new blocks, or in place where the blocks are the object's alone. New blocks
//! are zeros, so that only sectors with new data are written. Bytes beyond an object's end in its
//! last block are always zeros.

use runtime::{Buf, Chain};
use smallvec::SmallVec;

use super::apply::LOGGED;
use super::extents::{blocks, cut, insert, pieces};
use super::journal;
use super::record::{CHUNK_BLOCKS, Run};
use super::space::Blocks;
use super::txn::{Txn, Work};
use crate::store::{BLOCK, Error, Id, MAX_LENGTH};

/// Bytes that are moved at once where data has to be copied.
const PIECE: u64 = 256 << 10;
/// Extents that are moved at once where they keep their blocks.
const RUNS: usize = 4096;
/// Bytes of data that a change may bring into the journal, with what surrounds them: the smallest
/// segment holds them.
const MOST_LOGGED: usize = LOGGED + (32 << 10);

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The bytes around new ones in their blocks.
#[derive(Clone, Copy)]
enum Around {
    /// The old ones: the new bytes are written in place.
    InPlace,
    Zeros,
    /// The bytes of another block, at this offset in the arena.
    Copy(u64),
}

pub(super) fn zeros(len: u64) -> Chain {
    let mut chain = Chain::new();
    while (chain.len() as u64) < len {
        let n = BLOCK.min(len - chain.len() as u64) as usize;
        chain.push(Buf::from_static(&ZEROS[..n]));
    }
    chain
}

impl Txn {
    /// An object's extents between two blocks, cut to them.
    fn mapped(&self, work: &mut Work, id: Id, from: u64, to: u64) -> Result<Vec<Run>, Error> {
        self.load_chunks(work, id, from, to)?;
        let mut found = Vec::new();
        let mut add = |runs: &[Run]| {
            pieces(runs, from, to, |block, len, arena| {
                found.extend(arena.map(|arena| Run { block, arena, len }));
            });
        };
        if work.record.chunked {
            if from < to {
                work.chunks
                    .range(from / CHUNK_BLOCKS..=(to - 1) / CHUNK_BLOCKS)
                    .for_each(|(_, c)| add(&c.runs));
            }
        } else {
            add(&work.record.runs);
        }
        Ok(found)
    }

    /// Takes the blocks between two out of an object.
    fn unmap(&self, work: &mut Work, id: Id, from: u64, to: u64) -> Result<Vec<Run>, Error> {
        self.load_chunks(work, id, from, to)?;
        let mut removed = Vec::new();
        if from < to && work.record.chunked {
            for chunk in work.chunks.range_mut(from / CHUNK_BLOCKS..=(to - 1) / CHUNK_BLOCKS).map(|(_, c)| c)
            {
                let before = removed.len();
                cut(&mut chunk.runs, from, to, &mut removed);
                chunk.dirty |= removed.len() > before;
            }
        } else if from < to {
            cut(&mut work.record.runs, from, to, &mut removed);
        }
        work.record.b = work.record.b.saturating_sub(removed.iter().map(|run| run.len).sum());
        work.dirty |= !removed.is_empty();
        Ok(removed)
    }

    /// Gives an object blocks where it has none.
    fn map(&self, work: &mut Work, id: Id, run: Run) -> Result<(), Error> {
        let mut rest = run;
        while rest.len > 0 {
            let chunk = rest.block / CHUNK_BLOCKS;
            let len = rest.len.min((chunk + 1) * CHUNK_BLOCKS - rest.block);
            let part = Run { len, ..rest };
            if work.record.chunked {
                self.load_chunks(work, id, part.block, part.end())?;
                let chunk = work.chunks.entry(chunk).or_default();
                insert(&mut chunk.runs, part);
                chunk.dirty = true;
            } else {
                insert(&mut work.record.runs, part);
            }
            rest = Run { block: rest.block + len, arena: rest.arena + len, len: rest.len - len };
        }
        work.record.b += run.len;
        work.dirty = true;
        Ok(())
    }

    fn give_up(&mut self, runs: &[Run]) {
        self.freed.extend(runs.iter().map(blocks));
    }

    /// Whether the arena's blocks may be written where they are.
    fn is_own(&self, taken: Blocks, in_place: bool) -> bool {
        let fresh = |b: &Blocks| b.at <= taken.at && taken.at + taken.len <= b.at + b.len;
        if self.added[self.fresh_from..].iter().rev().take(8).any(fresh) {
            return true;
        }
        in_place && self.shared.is_empty() && !self.inner.space().is_shared(taken)
    }

    /// Writes at `at`. With `in_place`, overwrites blocks that only this object uses.
    pub async fn write(
        &mut self,
        work: &mut Work,
        id: Id,
        at: u64,
        data: &Chain,
        in_place: bool,
    ) -> Result<(), Error> {
        end_of(at, data.len() as u64)?;
        if !data.is_empty() {
            self.grow(work, id, at, in_place).await?;
        }
        self.overwrite(work, id, at, data, in_place).await
    }

    /// Before an object grows: zeros the bytes between its end and `to` that a failed or
    /// interrupted write has left in its last block.
    async fn grow(&mut self, work: &mut Work, id: Id, to: u64, in_place: bool) -> Result<(), Error> {
        let (end, block) = (work.record.a, work.record.a / BLOCK);
        let until = to.min((block + 1) * BLOCK);
        if end % BLOCK == 0 || end >= until {
            return Ok(());
        }
        let Some(run) = self.mapped(work, id, block, block + 1)?.first().copied() else { return Ok(()) };
        let found = self.part(Some(run.arena * BLOCK), end % BLOCK, until - block * BLOCK).await?;
        if found.to_vec().iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.overwrite(work, id, end, &zeros(until - end), in_place).await
    }

    async fn overwrite(
        &mut self,
        work: &mut Work,
        id: Id,
        at: u64,
        data: &Chain,
        in_place: bool,
    ) -> Result<(), Error> {
        let end = end_of(at, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        let (first, last) = (at / BLOCK, end.div_ceil(BLOCK));
        let mapped = self.mapped(work, id, first, last)?;
        let mut parts: SmallVec<[(u64, u64, Option<u64>); 4]> = SmallVec::new();
        pieces(&mapped, first, last, |block, len, arena| parts.push((block, len, arena)));
        // The block before the data in the object: the new blocks best follow it.
        let mut hint = match first.checked_sub(1) {
            Some(before) if parts.first().is_some_and(|p| p.2.is_none()) => {
                self.mapped(work, id, before, first)?.first().map(|run| run.arena + run.len)
            }
            _ => None,
        };
        let mut data = data.clone();
        for (block, len, arena) in parts {
            let own = arena.filter(|arena| self.is_own(Blocks { at: *arena, len }, in_place));
            if let Some(arena) = own {
                let part = data.split_to(overlap(at, end, block, len));
                self.write_blocks(arena, at.max(block * BLOCK) - block * BLOCK, part, Around::InPlace)
                    .await?;
                hint = Some(arena + len);
                continue;
            }
            let taken = self.inner.space().allocate(len, hint).ok_or(Error::NoSpace)?;
            self.added.extend(taken.iter().copied());
            if arena.is_some() {
                let old = self.unmap(work, id, block, block + len)?;
                self.give_up(&old);
            }
            let mut block = block;
            for Blocks { at: to, len } in taken {
                let part = data.split_to(overlap(at, end, block, len));
                let around = match arena {
                    Some(_) => {
                        let old = mapped.iter().find(|run| run.block <= block && block < run.end());
                        let old = old.ok_or(Error::Damaged(id))?;
                        Around::Copy((old.arena + (block - old.block)) * BLOCK)
                    }
                    None => Around::Zeros,
                };
                self.write_blocks(to, at.max(block * BLOCK) - block * BLOCK, part, around).await?;
                self.map(work, id, Run { block, arena: to, len })?;
                hint = Some(to + len);
                block += len;
            }
        }
        work.record.a = work.record.a.max(end);
        work.dirty = true;
        Ok(())
    }

    /// Writes `data` to the arena, `skip` bytes after the start of block `to`, with whole sectors
    /// around it.
    async fn write_blocks(&mut self, to: u64, skip: u64, data: Chain, around: Around) -> Result<(), Error> {
        let unit = match around {
            // All of a block that is copied has to get there.
            Around::Copy(_) => BLOCK,
            Around::InPlace | Around::Zeros => self.inner.journal.sector as u64,
        };
        let unit = unit.max(u64::from(self.inner.arena.geometry().block));
        let end = skip + data.len() as u64;
        let (from, until) = (skip / unit * unit, end.next_multiple_of(unit));
        let base = match around {
            Around::InPlace => Some(to * BLOCK),
            Around::Zeros => None,
            Around::Copy(old) => Some(old),
        };
        let mut whole = self.part(base, from, skip).await?;
        whole.append(data);
        let tail = self.part(base, end, until).await?;
        whole.append(tail);
        // Units at either end which have bytes that are not of this write.
        let head = if base.is_some() && from < skip { unit } else { 0 };
        let tail = if base.is_some() && end < until && from + head < until { unit } else { 0 };
        self.put_bytes(to * BLOCK + from, whole, head as usize, tail as usize).await
    }

    /// Bytes `from..to` after `base` in the arena, or zeros.
    async fn part(&self, base: Option<u64>, from: u64, to: u64) -> Result<Chain, Error> {
        let Some(base) = base.filter(|_| from < to) else { return Ok(zeros(to - from)) };
        let sector = u64::from(self.inner.arena.geometry().block);
        let (start, end) = ((base + from) / sector * sector, (base + to).next_multiple_of(sector));
        let mut chain = self.inner.arena.read(start, (end - start) as usize).await?;
        chain.advance((base + from - start) as usize);
        chain.truncate((to - from) as usize);
        // It is written to the store that it was read from, which may send its own pages without a
        // copy.
        Ok(chain.to_vec().into())
    }

    /// Writes to the arena, and to the journal where needed. Among the first `head` and the last
    /// `tail` bytes are older ones, which may be durable and must not get lost whatever this change
    /// promises.
    async fn put_bytes(&mut self, at: u64, bytes: Chain, head: usize, tail: usize) -> Result<(), Error> {
        let mut rest = bytes.clone();
        let middle = bytes.len() - head - tail;
        let mut next = at;
        let mut logged: SmallVec<[(u64, u64); 3]> = SmallVec::new();
        for (len, keeps) in [(head, true), (middle, false), (tail, true)] {
            if len > 0 {
                let (from, end) = (next, next + len as u64);
                let part = rest.split_to(len);
                if self.note(from, &part, keeps) {
                    logged.push((from, end));
                }
                next = end;
            }
        }
        self.inner.arena.write(at, bytes, false).await?;
        for (from, end) in logged {
            self.inner.logged.add(from, end);
        }
        Ok(())
    }

    /// Tells the journal of bytes on their way to the arena. Whether it has them.
    fn note(&mut self, at: u64, bytes: &Chain, keeps: bool) -> bool {
        let len = bytes.len();
        // The journal has the overwritten bytes: before they are marked out of date, they have to
        // be on the arena's medium.
        let meets = !self.logs_data && !keeps && self.inner.logged.meets(at, at + len as u64);
        let wanted = self.logs_data || keeps || meets;
        if wanted && self.logged + len <= MOST_LOGGED {
            journal::data(&mut self.payload, at, bytes);
            self.logged += len;
            return true;
        }
        journal::overwritten(&mut self.payload, at, len as u64);
        self.unlogged = true;
        self.must_sync |= wanted;
        false
    }

    /// Makes `at..end` zeros, with holes where it can.
    pub async fn clear(
        &mut self,
        work: &mut Work,
        id: Id,
        at: u64,
        end: u64,
        in_place: bool,
    ) -> Result<(), Error> {
        if at == end {
            return Ok(());
        }
        self.grow(work, id, at, in_place).await?;
        let hole_end = if end >= work.record.a { end.next_multiple_of(BLOCK) } else { end };
        work.record.a = work.record.a.max(end);
        work.dirty = true;
        let length = work.record.a;
        let (whole, until) = (at.div_ceil(BLOCK), hole_end / BLOCK);
        if at % BLOCK > 0 {
            self.zero_part(work, id, at, hole_end.min(whole * BLOCK), in_place).await?;
        }
        if whole < until {
            let removed = self.unmap(work, id, whole, until)?;
            self.give_up(&removed);
        }
        if hole_end % BLOCK > 0 && until >= whole {
            self.zero_part(work, id, until * BLOCK, hole_end, in_place).await?;
        }
        // Zeros in a block's unused rest are not a part of the object.
        work.record.a = length;
        Ok(())
    }

    /// Zeros within one block, if there is one.
    async fn zero_part(
        &mut self,
        work: &mut Work,
        id: Id,
        at: u64,
        end: u64,
        in_place: bool,
    ) -> Result<(), Error> {
        if self.mapped(work, id, at / BLOCK, at / BLOCK + 1)?.is_empty() {
            return Ok(());
        }
        self.overwrite(work, id, at, &zeros(end - at), in_place).await
    }

    pub async fn set_length(
        &mut self,
        work: &mut Work,
        id: Id,
        length: u64,
        in_place: bool,
    ) -> Result<(), Error> {
        end_of(length, 0)?;
        if length < work.record.a {
            self.clear(work, id, length, work.record.a, in_place).await?;
        }
        self.grow(work, id, length, in_place).await?;
        work.record.a = length;
        work.dirty = true;
        Ok(())
    }

    /// Deletes a range, and moves what follows to its place.
    pub async fn punch(&mut self, work: &mut Work, id: Id, at: u64, len: u64) -> Result<(), Error> {
        let length = work.record.a;
        if at > length {
            return Err(Error::OutOfRange);
        }
        let from = at.saturating_add(len).min(length);
        let after = at + (length - from);
        if from == at {
            return Ok(());
        }
        if at % BLOCK == 0 && from % BLOCK == 0 && from < length {
            let (to, by) = (at / BLOCK, (from - at) / BLOCK);
            let removed = self.unmap(work, id, to, from / BLOCK)?;
            self.give_up(&removed);
            let tail = self.unmap(work, id, from / BLOCK, length.div_ceil(BLOCK))?;
            for (n, run) in tail.into_iter().enumerate() {
                if n % RUNS == RUNS - 1 {
                    self.pause().await?;
                }
                self.map(work, id, Run { block: run.block - by, ..run })?;
            }
        } else {
            // Moved data keeps its old blocks until it has been copied.
            let tail = self.mapped(work, id, from / BLOCK, length.div_ceil(BLOCK))?;
            // It may be durable where it was.
            let logs_data = std::mem::replace(&mut self.logs_data, true);
            let fresh_from = std::mem::replace(&mut self.fresh_from, self.added.len());
            self.set_length(work, id, at, false).await?;
            let mut moved = 0;
            for run in tail {
                let (mut next, end) = ((run.block * BLOCK).max(from), (run.end() * BLOCK).min(length));
                while next < end {
                    if moved >= PIECE {
                        self.pause().await?;
                        moved = 0;
                    }
                    let n = PIECE.min(end - next);
                    let base = Some(run.arena * BLOCK);
                    let skip = next - run.block * BLOCK;
                    let bytes = self.part(base, skip, skip + n).await?;
                    // All that is mapped there is of this change.
                    self.write(work, id, at + (next - from), &bytes, false).await?;
                    next += n;
                    moved += n;
                }
            }
            (self.logs_data, self.fresh_from) = (logs_data, fresh_from);
        }
        work.record.a = after;
        work.dirty = true;
        Ok(())
    }

    pub(crate) fn drop_data(&mut self, work: &mut Work, id: Id) -> Result<(), Error> {
        let removed = self.unmap(work, id, 0, MAX_LENGTH / BLOCK)?;
        self.give_up(&removed);
        Ok(())
    }

    /// Lets `to` have the blocks of `from` too.
    pub(crate) fn share_data(
        &mut self,
        from: &mut Work,
        from_id: Id,
        to: &mut Work,
        to_id: Id,
    ) -> Result<(), Error> {
        for run in self.mapped(from, from_id, 0, MAX_LENGTH / BLOCK)? {
            self.shared.push(blocks(&run));
            self.map(to, to_id, run)?;
        }
        to.record.a = from.record.a;
        self.fresh_from = self.added.len();
        Ok(())
    }
}

/// End of a range, which must not exceed [`MAX_LENGTH`].
pub(super) fn end_of(at: u64, len: u64) -> Result<u64, Error> {
    at.checked_add(len).filter(|end| *end <= MAX_LENGTH).ok_or(Error::OutOfRange)
}

/// Bytes of `at..end` in the `len` blocks from `block` on.
fn overlap(at: u64, end: u64, block: u64, len: u64) -> usize {
    (end.min((block + len) * BLOCK) - at.max(block * BLOCK)) as usize
}
