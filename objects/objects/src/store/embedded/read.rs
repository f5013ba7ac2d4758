//! Queries: objects, their attributes and their bytes.

use backing::BlockStore;
use runtime::Chain;
use smallvec::SmallVec;

use super::Inner;
use super::directory::reserve;
use super::extents::pieces;
use super::reclaim::Reading;
use super::record::{
    CHUNK, CHUNK_BLOCKS, COLLECTION, COUNT, Key, MEMBER, MEMBERSHIP, Run, USER, decode_chunk, key, numbers,
    unsealed,
};
use super::txn::{Of, count_of};
use crate::store::{
    BLOCK, CollectionType, Difference, Error, Extent, Id, Io, Kind, List, Membership, ObjectInfo, Times,
};

#[derive(Clone, Copy, Debug)]
struct Piece {
    len: usize,
    /// Offset in the arena, bytes; `None` for a hole.
    at: Option<u64>,
}

impl Piece {
    /// Reads the sectors that it lies in, and says which of their bytes are its own.
    fn read(&self, arena: &dyn BlockStore, to_send: bool) -> (Cut, backing::Io<Chain>) {
        let Some(at) = self.at else {
            let zeros = super::data::zeros(self.len as u64);
            return (Cut { skip: 0, len: self.len }, backing::Io::Ready(Some(Ok(zeros))));
        };
        let sector = u64::from(arena.geometry().block);
        let (from, to) = (at / sector * sector, (at + self.len as u64).next_multiple_of(sector));
        let len = (to - from) as usize;
        let io = if to_send { arena.read_to_send(from, len) } else { arena.read(from, len) };
        (Cut { skip: (at - from) as usize, len: self.len }, io)
    }
}

type Pieces = SmallVec<[Piece; 8]>;

impl Inner {
    pub(super) fn times(&self, id: Id) -> Result<Times, Error> {
        let mut times = self.described(id, |_, _, view| view.times())?;
        self.touched(id, &mut times);
        Ok(times)
    }

    pub(super) fn object(&self, id: Id) -> Result<ObjectInfo, Error> {
        if id.object == 0 {
            return Err(Error::NotFound(id));
        }
        let (home, mut info) = self.described(id, |home, of, view| {
            let kind = match of {
                Of::User => Kind::User,
                _ => Kind::Collection(CollectionType(view.b() as u8)),
            };
            let user = kind == Kind::User;
            let info = ObjectInfo {
                kind,
                length: if user { view.a() } else { 0 },
                used: if user { view.used() } else { 0 },
                members: 0,
                collections: if user { u32::try_from(view.c()).unwrap_or(u32::MAX) } else { 0 },
                times: view.times(),
            };
            (home, info)
        })?;
        match info.kind {
            Kind::User if info.collections > 0 => {
                // Collections that went have left it there: it is counted again.
                let (from, to) =
                    (key(MEMBERSHIP, home, id.object, 0), key(MEMBERSHIP, home, id.object, u64::MAX));
                info.collections = 0;
                let mut next = Some(from);
                while let Some(from) = next {
                    next = self.layers.scan(from, to, super::recover::SCANNED, |_, _| {
                        info.collections = info.collections.saturating_add(1);
                        true
                    })?;
                }
            }
            Kind::User => {}
            Kind::Collection(_) => {
                let at = key(COUNT, home, id.object, 0);
                let count = self.layers.get(&at, |bytes| count_of(&at, bytes))?;
                info.members = count.map_or(Ok(0), |count| count.ok_or(Error::Damaged(id)))?;
            }
        }
        self.touched(id, &mut info.times);
        Ok(info)
    }

    pub(super) fn list(
        &self,
        list: List,
        from: u64,
        limit: usize,
        into: &mut Vec<u64>,
    ) -> Result<bool, Error> {
        let (kind, home, first) = match list {
            List::Partitions => {
                let directory = self.directory();
                let mut found = directory.partitions.range(from..).map(|(id, _)| *id);
                into.extend(found.by_ref().take(limit));
                return Ok(found.next().is_some());
            }
            List::Collections(id) => (COLLECTION, self.directory().partition(id)?.home, None),
            List::Users(id) => (USER, self.directory().partition(id)?.home, None),
            List::Members(id) => {
                let (home, of) = self.described(id, |home, of, _| (home, of))?;
                if of != Of::Collection {
                    return Err(Error::NotFound(id));
                }
                (MEMBER, home, Some(id.object))
            }
        };
        let at = |n| match first {
            Some(first) => key(kind, home, first, n),
            None => key(kind, home, n, if n == u64::MAX { n } else { 0 }),
        };
        let number = |found: &_| numbers(found)[if first.is_some() { 2 } else { 1 }];
        let next = self.layers.scan(at(from), at(u64::MAX), limit, |found, _| {
            into.push(number(found));
            true
        })?;
        if self.layers.is_untidy() {
            self.ask_for_checkpoint();
        }
        Ok(next.is_some())
    }

    pub(super) fn membership(&self, collection: Id, object: u64) -> Result<Option<u32>, Error> {
        let Ok(home) = self.directory().partition(collection.partition).map(|p| p.home) else {
            return Ok(None);
        };
        let at = key(MEMBER, home, collection.object, object);
        let found = self.layers.get(&at, |bytes| number_of(&at, bytes))?;
        found.map(|number| number.ok_or(Error::Damaged(collection))).transpose()
    }

    pub(super) fn memberships(
        &self,
        object: Id,
        from: u64,
        limit: usize,
        into: &mut Vec<Membership>,
    ) -> Result<bool, Error> {
        let (home, of) = self.described(object, |home, of, _| (home, of))?;
        if of != Of::User {
            return Err(Error::NotFound(object));
        }
        let (first, last) =
            (key(MEMBERSHIP, home, object.object, from), key(MEMBERSHIP, home, object.object, u64::MAX));
        let mut damaged = false;
        let next = self.layers.scan(first, last, limit, |found, value| {
            let number = number_of(found, value);
            damaged |= number.is_none();
            into.push(Membership { collection: numbers(found)[2], number: number.unwrap_or(0) });
            true
        })?;
        if damaged { Err(Error::Damaged(object)) } else { Ok(next.is_some()) }
    }

    pub(super) fn reserve_ids(&self, partition: u64, count: u32) -> Result<u64, Error> {
        let mut directory = self.directory_mut();
        if partition == 0 {
            return directory.reserve(count);
        }
        let missing = Error::NotFound(Id::partition(partition));
        let found = directory.partitions.get_mut(&partition).ok_or(missing)?;
        let home = found.home;
        let has = |kind, id| self.layers.get(&key(kind, home, id, 0), |_| ());
        reserve(
            &mut found.next_id,
            count,
            |id| Ok(has(USER, id)?.is_some() || has(COLLECTION, id)?.is_some()),
        )
    }

    /// A user object's length, and its extents between two blocks.
    fn runs(&self, id: Id, from: u64, to: u64) -> Result<(u64, SmallVec<[Run; 4]>), Error> {
        let clip = |run: Run| {
            let (start, end) = (run.block.max(from), run.end().min(to));
            (start < end).then(|| Run {
                block: start,
                arena: run.arena + (start - run.block),
                len: end - start,
            })
        };
        let (home, of, length, chunked, mut runs) = self.described(id, |home, of, view| {
            let runs: SmallVec<[Run; 4]> = view.runs().filter_map(clip).collect();
            (home, of, view.a(), view.chunked(), runs)
        })?;
        if of != Of::User {
            return Err(Error::NotFound(id));
        }
        let to = to.min(length.div_ceil(BLOCK));
        if chunked && from < to {
            let at = |block: u64| key(CHUNK, home, id.object, block / CHUNK_BLOCKS);
            let mut next = Some(at(from));
            let mut damaged = false;
            while let Some(first) = next {
                next =
                    self.layers.scan(first, at(to - 1), 64, |at, value| match decode_chunk(at, value) {
                        Some(found) => {
                            runs.extend(found.into_iter().filter_map(clip));
                            true
                        }
                        None => {
                            damaged = true;
                            false
                        }
                    })?;
            }
            if damaged {
                return Err(Error::Damaged(id));
            }
        }
        Ok((length, runs))
    }

    pub(super) fn read(&self, id: Id, at: u64, len: usize, to_send: bool) -> Io<Chain> {
        // Before the extents are looked up: their blocks stay as they are until this is dropped.
        let reading = self.holds.enter();
        let plan = || {
            let wanted = at.saturating_add(len as u64);
            let (length, runs) = self.runs(id, at / BLOCK, wanted.div_ceil(BLOCK))?;
            let end = wanted.min(length);
            let mut parts = Pieces::new();
            if at < end {
                pieces(&runs, at / BLOCK, end.div_ceil(BLOCK), |block, count, arena| {
                    let (from, to) = ((block * BLOCK).max(at), ((block + count) * BLOCK).min(end));
                    let at = arena.map(|arena| arena * BLOCK + (from - block * BLOCK));
                    parts.push(Piece { len: (to - from) as usize, at });
                });
            }
            Ok(parts)
        };
        let parts = match plan() {
            Ok(parts) => parts,
            Err(error) => return Io::err(error),
        };
        let mut chain = Chain::new();
        for (index, part) in parts.iter().enumerate() {
            let (cut, io) = part.read(&*self.arena, to_send);
            match io {
                backing::Io::Ready(Some(Ok(found))) => chain.append(cut.of(found)),
                backing::Io::Ready(Some(Err(error))) => return Io::err(error.into()),
                io => {
                    let rest: Pieces = parts[index + 1..].into();
                    let arena = self.arena.clone();
                    return Io::run(async move {
                        let _reading: Reading = reading;
                        chain.append(cut.of(io.await?));
                        for part in rest {
                            let (cut, io) = part.read(&*arena, to_send);
                            chain.append(cut.of(io.await?));
                        }
                        Ok(chain)
                    });
                }
            }
        }
        Io::ok(chain)
    }

    pub(super) fn extents(
        &self,
        id: Id,
        at: u64,
        len: u64,
        limit: usize,
        into: &mut Vec<Extent>,
    ) -> Result<bool, Error> {
        let wanted = at.saturating_add(len);
        let (length, runs) = self.runs(id, at / BLOCK, wanted.div_ceil(BLOCK))?;
        let end = wanted.min(length);
        if at >= end {
            return Ok(false);
        }
        let (start, mut more) = (into.len(), false);
        pieces(&runs, at / BLOCK, end.div_ceil(BLOCK), |block, count, arena| {
            let (from, to) = ((block * BLOCK).max(at), ((block + count) * BLOCK).min(end));
            let data = arena.is_some();
            if let Some(last) = into[start..].last_mut().filter(|last| last.data == data && !more) {
                last.len += to - from;
            } else if into.len() - start < limit {
                into.push(Extent { at: from, len: to - from, data });
            } else {
                more = true;
            }
        });
        Ok(more)
    }

    pub(super) fn differences(
        &self,
        ids: [Id; 2],
        at: u64,
        len: u64,
        limit: usize,
        into: &mut Vec<Difference>,
    ) -> Result<bool, Error> {
        let wanted = at.saturating_add(len);
        let (first, last) = (at / BLOCK, wanted.div_ceil(BLOCK));
        let (one_length, one) = self.runs(ids[0], first, last)?;
        let (other_length, other) = self.runs(ids[1], first, last)?;
        let end = wanted.min(one_length.max(other_length));
        let both = one_length.min(other_length);
        if at >= end {
            return Ok(false);
        }
        let (start, mut more) = (into.len(), false);
        let mut tell = |from: u64, to: u64| {
            let (from, to) = (from.max(at), to.min(end));
            if from >= to || more {
                return;
            }
            if let Some(before) = into[start..].last_mut().filter(|d| d.at + d.len >= from) {
                before.len = before.len.max(to - before.at);
            } else if into.len() - start < limit {
                into.push(Difference { at: from, len: to - from });
            } else {
                more = true;
            }
        };
        pieces(&one, first, end.div_ceil(BLOCK), |block, count, arena| {
            pieces(&other, block, block + count, |piece, n, there| {
                let here = arena.map(|arena| arena + (piece - block));
                if here != there {
                    tell(piece * BLOCK, (piece + n) * BLOCK);
                }
                // Bytes beyond the end of the shorter one differ in any case.
                tell((piece * BLOCK).max(both), (piece + n) * BLOCK);
            });
        });
        Ok(more)
    }
}

/// The bytes that were asked for, of the sectors that were read.
struct Cut {
    skip: usize,
    len: usize,
}

impl Cut {
    fn of(&self, mut chain: Chain) -> Chain {
        if self.skip > 0 {
            chain.advance(self.skip.min(chain.len()));
        }
        chain.truncate(self.len);
        chain
    }
}

pub(super) fn number_of(key: &Key, bytes: &[u8]) -> Option<u32> {
    unsealed(key, bytes)?.try_into().ok().map(u32::from_le_bytes)
}
