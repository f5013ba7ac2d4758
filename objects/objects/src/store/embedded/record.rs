//! Encoding of metadata: keys, and one record for each object.
//!
//! Keys are 25 bytes: a kind and three numbers, big-endian, so that they sort as lists do. A record
//! holds an object's times, sums, first extents and short attributes. Every value begins with a
//! CRC32C of its key and of its other bytes: a mismatch is damage, and is never guessed at.

use smallvec::SmallVec;

use crate::store::{BLOCK, Duplicate, Error, Id, Origin, Times, Value};

pub(super) type Key = [u8; 25];

/// The store itself: version, name, end of the last checkpoint.
pub(super) const META: u8 = 1;
pub(super) const ROOT: u8 = 2;
/// A partition's record: its id.
pub(super) const PARTITION: u8 = 3;
/// A user object's record: home, id.
pub(super) const USER: u8 = 4;
/// A collection's record: home, id.
pub(super) const COLLECTION: u8 = 5;
/// An attribute too long for its record: home, id, page and number.
pub(super) const ATTRIBUTE: u8 = 6;
/// Extents that its record has no room for: home, id, chunk.
pub(super) const CHUNK: u8 = 7;
/// A member: home, collection, user object.
pub(super) const MEMBER: u8 = 8;
/// The same from the other side: home, user object, collection.
pub(super) const MEMBERSHIP: u8 = 9;

/// Number of a collection's members: home, collection.
pub(super) const COUNT: u8 = 10;
/// A page of the database of which something was lost: its number.
pub(super) const LOST: u8 = 11;

/// All kinds of keys.
pub(super) const KINDS: std::ops::RangeInclusive<u8> = META..=LOST;

/// The kinds of keys that begin with a home: a partition's contents.
pub(super) const CONTENT: [u8; 7] = [USER, COLLECTION, ATTRIBUTE, CHUNK, MEMBER, MEMBERSHIP, COUNT];

/// Blocks of an object that one record of extents is about.
pub(super) const CHUNK_BLOCKS: u64 = 1024;
/// Extents that an object's own record holds.
pub(super) const INLINE_EXTENTS: usize = 16;
/// Longest value that a record holds, and all of its values together, in bytes.
pub(super) const INLINE_VALUE: usize = 512;
pub(super) const INLINE_VALUES: usize = 2048;

/// The key of a kind and three numbers.
pub(super) fn key(kind: u8, a: u64, b: u64, c: u64) -> Key {
    let mut key = [kind; 25];
    key[1..9].copy_from_slice(&a.to_be_bytes());
    key[9..17].copy_from_slice(&b.to_be_bytes());
    key[17..].copy_from_slice(&c.to_be_bytes());
    key
}

pub(super) fn numbers(key: &Key) -> [u64; 3] {
    let number = |at: usize| key[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    [number(1), number(9), number(17)]
}

/// The third number of an attribute's key.
pub(super) fn page_number(page: u32, number: u32) -> u64 {
    u64::from(page) << 32 | u64::from(number)
}

/// Blocks that an object has in the arena: at most one chunk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub block: u64,
    pub arena: u64,
    pub len: u64,
}

impl Run {
    pub fn end(&self) -> u64 {
        self.block + self.len
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub page: u32,
    pub number: u32,
    pub value: Value,
}

/// Contents of a record. The meaning of the numbers depends on the object's kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub times: Times,
    /// A user object's logical length in bytes; a collection's members; a partition's home.
    pub a: u64,
    /// A user object's blocks; a collection's type; a partition's source.
    pub b: u64,
    /// A user object's collections; a partition's kind: see [`Record::origin`].
    pub c: u64,
    /// When a partition was duplicated.
    pub d: u64,
    /// Attributes that have keys of their own.
    pub spilled: u32,
    pub chunked: bool,
    pub runs: SmallVec<[Run; 4]>,
    pub held: Vec<Held>,
}

const HEADER: usize = 88;
const RUN: usize = 20;
const CHUNKED: u8 = 1;

impl Record {
    /// Number of the partition among those that have had its id; 0 if it was made before this was
    /// kept.
    ///
    /// A partition has no extents. The fields of its one run hold its generation and its source's.
    pub fn generation(&self) -> u64 {
        self.runs.first().map_or(0, |lineage| lineage.block)
    }

    pub(crate) fn set_generation(&mut self, generation: u64) {
        let arena = self.runs.first().map_or(0, |lineage| lineage.arena);
        self.runs = SmallVec::from_slice(&[Run { block: generation, arena, len: 0 }]);
    }

    pub fn origin(&self) -> Option<Origin> {
        let kind = match self.c {
            1 => Duplicate::Clone,
            2 => Duplicate::Snapshot,
            _ => return None,
        };
        let generation = self.runs.first().map_or(0, |lineage| lineage.arena);
        Some(Origin { source: self.b, generation, kind, made_ms: self.d })
    }

    pub(crate) fn set_origin(&mut self, origin: Option<Origin>) {
        let block = self.generation();
        let arena = origin.map_or(0, |origin| origin.generation);
        self.runs = SmallVec::from_slice(&[Run { block, arena, len: 0 }]);
        (self.b, self.c, self.d) = match origin {
            None => (0, 0, 0),
            Some(Origin { source, kind: Duplicate::Clone, made_ms, .. }) => (source, 1, made_ms),
            Some(Origin { source, kind: Duplicate::Snapshot, made_ms, .. }) => (source, 2, made_ms),
        };
    }

    /// As it is kept under `key`.
    pub fn encode(&self, key: &Key) -> Vec<u8> {
        let values: usize = self.held.iter().map(|h| 10 + h.value.len()).sum();
        let mut out = Vec::with_capacity(HEADER + self.runs.len() * RUN + values);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[1, if self.chunked { CHUNKED } else { 0 }]);
        out.extend_from_slice(&(self.held.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.spilled.to_le_bytes());
        let t = &self.times;
        let times =
            [t.created, t.attributes_accessed, t.attributes_modified, t.data_accessed, t.data_modified];
        for number in times.into_iter().chain([self.a, self.b, self.c, self.d]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        encode_runs(&self.runs, &mut out);
        for held in &self.held {
            out.extend_from_slice(&held.page.to_le_bytes());
            out.extend_from_slice(&held.number.to_le_bytes());
            out.extend_from_slice(&(held.value.len() as u16).to_le_bytes());
            out.extend_from_slice(&held.value);
        }
        seal(key, &mut out);
        out
    }
}

fn encode_runs(runs: &[Run], out: &mut Vec<u8>) {
    for run in runs {
        out.extend_from_slice(&run.block.to_le_bytes());
        out.extend_from_slice(&run.arena.to_le_bytes());
        out.extend_from_slice(&(run.len as u32).to_le_bytes());
    }
}

fn checksum(key: &[u8], rest: &[u8]) -> [u8; 4] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(rest);
    (digest.finalize() as u32).to_le_bytes() // a CRC of 32 bits
}

/// Puts the checksum of the key and of all that follows into the first four bytes.
fn seal(key: &[u8], bytes: &mut [u8]) {
    let sum = checksum(key, &bytes[4..]);
    bytes[..4].copy_from_slice(&sum);
}

/// The bytes that a checksum covers beside the key, if it matches. `key` is empty for a checksum
/// that covers no key.
pub(super) fn unsealed<'a>(key: &[u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, rest) = bytes.split_first_chunk::<4>()?;
    (*sum == checksum(key, rest)).then_some(rest)
}

/// A value with its checksum before it.
pub(super) fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + value.len());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(value);
    seal(key, &mut out);
    out
}

/// Moves the record at `from` to `to`. A damaged one stays damaged.
pub(super) fn moved(from: &[u8], to: &[u8], bytes: &[u8]) -> Vec<u8> {
    match unsealed(from, bytes) {
        Some(value) => sealed(to, value),
        None => bytes.to_vec(),
    }
}

/// The extents of a chunk, as its record has them.
pub(super) fn encode_chunk(key: &Key, runs: &[Run]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + runs.len() * RUN);
    out.extend_from_slice(&[0; 4]);
    encode_runs(runs, &mut out);
    seal(key, &mut out);
    out
}

/// The extents of a chunk's record. `None` if it is damaged.
pub(super) fn decode_chunk(key: &Key, bytes: &[u8]) -> Option<Vec<Run>> {
    let rest = unsealed(key, bytes)?;
    (rest.len() % RUN == 0).then(|| rest.chunks_exact(RUN).map(run).collect())
}

fn run(bytes: &[u8]) -> Run {
    Run { block: u64_at(bytes, 0), arena: u64_at(bytes, 8), len: u64::from(u32_at(bytes, 16)) }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// The record kept under `key`, which belongs to object `id`; the error names it.
    pub fn new(key: &Key, bytes: &'a [u8], id: Id) -> Result<Self, Error> {
        let view = Self(bytes);
        let whole = unsealed(key, bytes).is_some()
            && bytes.len() >= HEADER
            && bytes[4] == 1
            && view.run_count().checked_mul(RUN).is_some_and(|n| n <= bytes.len() - HEADER);
        if whole { Ok(view) } else { Err(Error::Damaged(id)) }
    }

    fn run_count(self) -> usize {
        u32_at(self.0, 8) as usize
    }
    pub fn spilled(self) -> u32 {
        u32_at(self.0, 12)
    }
    pub(crate) fn chunked(self) -> bool {
        self.0[5] & CHUNKED != 0
    }
    pub fn times(self) -> Times {
        let time = |n: usize| u64_at(self.0, 16 + 8 * n);
        Times {
            created: time(0),
            attributes_accessed: time(1),
            attributes_modified: time(2),
            data_accessed: time(3),
            data_modified: time(4),
        }
    }
    pub fn a(self) -> u64 {
        u64_at(self.0, 56)
    }
    pub fn b(self) -> u64 {
        u64_at(self.0, 64)
    }
    pub fn c(self) -> u64 {
        u64_at(self.0, 72)
    }
    pub fn used(self) -> u64 {
        self.b().saturating_mul(BLOCK)
    }

    pub fn runs(self) -> impl Iterator<Item = Run> + 'a {
        self.0[HEADER..HEADER + self.run_count() * RUN].chunks_exact(RUN).map(run)
    }

    /// The attributes in it, by page and number.
    pub fn held(self) -> impl Iterator<Item = (u32, u32, &'a [u8])> {
        let mut rest = &self.0[HEADER + self.run_count() * RUN..];
        (0..u16_at(self.0, 6)).map_while(move |_| {
            let len = usize::from(u16_at(rest, 8));
            let value = rest.get(10..10 + len)?;
            let found = (u32_at(rest, 0), u32_at(rest, 4), value);
            rest = &rest[10 + len..];
            Some(found)
        })
    }

    pub(crate) fn to_record(self) -> Record {
        let held = self
            .held()
            .map(|(page, number, value)| Held { page, number, value: Value::from_slice(value) })
            .collect();
        Record {
            times: self.times(),
            a: self.a(),
            b: self.b(),
            c: self.c(),
            d: u64_at(self.0, 80),
            spilled: self.spilled(),
            chunked: self.chunked(),
            runs: self.runs().collect(),
            held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let held = Held { page: 7, number: 9, value: Value::from_slice(b"value") };
        let runs = [Run { block: 3, arena: 1 << 40, len: 5 }].into_iter().collect();
        let times = Times { created: 1, data_modified: 5, ..Times::default() };
        Record { times, a: 10, b: 11, c: 2, d: 13, spilled: 3, chunked: true, runs, held: vec![held] }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let at = key(USER, 1, 2, 0);
        let bytes = record().encode(&at);
        assert_eq!(View::new(&at, &bytes, Id::ROOT).unwrap().to_record(), record());
    }

    #[test]
    fn a_partition_that_was_made_before_generations_were_kept_has_none_and_keeps_what_it_gets() {
        let at = key(PARTITION, 1, 0, 0);
        let origin = Origin { source: 7, generation: 0, kind: Duplicate::Snapshot, made_ms: 9 };
        let mut old = Record { a: 10, b: 7, c: 2, d: 9, ..Record::default() };
        assert_eq!((old.generation(), old.origin()), (0, Some(origin)));
        let newer = Origin { generation: 5, ..origin };
        for _ in 0..2 {
            old.set_generation(3);
            old.set_origin(Some(newer));
            old = View::new(&at, &old.encode(&at), Id::ROOT).unwrap().to_record();
            assert_eq!((old.generation(), old.origin()), (3, Some(newer)));
        }
        old.set_origin(None);
        assert_eq!((old.generation(), old.origin()), (3, None));
    }

    #[test]
    fn a_record_is_good_under_its_own_key_only() {
        let at = key(USER, 1, 2, 0);
        let bytes = record().encode(&at);
        for bit in 0..8 * at.len() {
            let mut other = at;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(View::new(&other, &bytes, Id::ROOT).is_err(), "bit {bit} of the key");
            let moved = moved(&at, &other, &bytes);
            assert_eq!(View::new(&other, &moved, Id::ROOT).unwrap().to_record(), record());
            assert!(View::new(&at, &moved, Id::ROOT).is_err());
        }
    }

    #[test]
    fn a_record_with_any_bit_flipped_or_byte_missing_is_damaged() {
        let own = key(USER, 1, 2, 0);
        let bytes = record().encode(&own);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert!(View::new(&own, &wrong, Id::ROOT).is_err(), "byte {at}");
            assert!(View::new(&own, &bytes[..at], Id::ROOT).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn keys_sort_as_their_numbers_do() {
        assert!(key(USER, 1, 2, 3) < key(USER, 1, 3, 0));
        assert!(key(USER, u64::MAX, 0, 0) < key(COLLECTION, 0, 0, 0));
        assert_eq!(numbers(&key(CHUNK, 1, u64::MAX, 3)), [1, u64::MAX, 3]);
    }
}
