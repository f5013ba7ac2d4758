//! Steering tags (RFC 5041 §3.1, RFC 5042 §6): the memory that the peer may name, and its rights.
//! One table per stream, dropped with it. It holds numbers only: the owner knows which memory a
//! registration stands for.
//!
//! An STag is the image of a counter under a permutation of 32 bits (index and key alike), keyed
//! with the stream's seed. So a peer cannot guess an STag that it was not given. An invalidated
//! STag does not return for 2^32 registrations.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use thiserror::Error;

/// A steering tag: 24 bits of index and 8 bits of key on the wire (RFC 5040 §2.1), opaque here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The operations that a registration allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// No operation is allowed.
    pub const NONE: Self = Self(0);
    /// The owner may place the data of its own RDMA Reads here.
    pub const LOCAL_WRITE: Self = Self(2);
    /// The peer may read it (RDMA Read).
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may write it (RDMA Write).
    pub const REMOTE_WRITE: Self = Self(8);
    /// The peer may do atomic operations on it.
    pub const REMOTE_ATOMIC: Self = Self(16);
    /// The peer may invalidate the STag by a Send with Invalidate.
    pub const REMOTE_INVALIDATE: Self = Self(32);

    /// Whether all of `rights` are among these.
    #[inline]
    pub const fn contain(self, rights: Self) -> bool {
        self.0 & rights.0 == rights.0
    }
}

impl BitOr for Rights {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A protection domain: a stream uses registrations of its own domain only (RFC 5042 §2.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Domain(pub u32);

/// The memory that an STag stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The owner's name for the memory.
    pub index: u32,
    /// The tagged offset of its first byte: 0 for zero-based, anything for virtual addresses.
    pub base: u64,
    /// Bytes. `base + len` is at most 2^64.
    pub len: u64,
    /// The operations that it allows.
    pub rights: Rights,
    /// The protection domain that it belongs to.
    pub domain: Domain,
}

/// Why memory was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The stream has its maximum of live registrations.
    #[error("the stream has reached its maximum number of registrations")]
    Full,
    /// `base + len` passes 2^64.
    #[error("a registration's offsets wrap")]
    Wraps,
}

/// Why an access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such STag.
    #[error("no such STag")]
    Unknown,
    /// The STag belongs to another protection domain.
    #[error("STag of another protection domain")]
    Domain,
    /// The registration's rights do not include the operation.
    #[error("the STag's rights do not allow it")]
    Rights,
    /// Offset plus length passes 2^64.
    #[error("tagged offset wraps")]
    Wrap,
    /// Outside the registered range.
    #[error("outside the registered range")]
    Bounds,
}

/// A slot of the table.
#[derive(Debug, Clone, Copy)]
struct Slot {
    stag: Stag,
    registration: Registration,
}

/// The STags of one stream.
pub struct Table {
    permutation: Permutation,
    /// STags generated so far, the skipped ones included; wraps.
    counter: u32,
    /// The STags for the counter rounded down to a multiple of [`DRAWN`], and for the values after
    /// it.
    drawn: [u32; DRAWN],
    /// A hash table with open addressing by the STag's low bits, which are as good as random. Its
    /// size is a power of two, at least half of it empty.
    slots: Vec<Option<Slot>>,
    live: usize,
    limit: usize,
}

impl fmt::Debug for Table {
    /// Omits the seed, which must stay secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("live", &self.live).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// STags computed at a time. Each step of one permutation waits for the step before; several in
/// parallel take little longer.
const DRAWN: usize = 4;
/// Initial number of slots.
const SLOTS: usize = 64;

impl Table {
    /// An empty table that holds at most `limit` registrations (at most 2^24). `seed` must be
    /// unpredictable and used for no other stream.
    pub fn new(seed: [u8; 16], limit: usize) -> Self {
        Self {
            permutation: Permutation::new(seed),
            counter: 0,
            drawn: [0; DRAWN],
            slots: vec![None; SLOTS],
            live: 0,
            limit: limit.min(1 << 24),
        }
    }

    /// Registrations that are live.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether no registration is live.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Assigns an STag to memory.
    pub fn register(&mut self, registration: Registration) -> Result<Stag, RegisterError> {
        if self.live >= self.limit {
            return Err(RegisterError::Full);
        }
        if registration.len > 0 && registration.base.checked_add(registration.len - 1).is_none() {
            return Err(RegisterError::Wraps);
        }
        if (self.live + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let stag = self.next_stag();
        self.insert(Slot { stag, registration });
        self.live += 1;
        Ok(stag)
    }

    /// Reserves an STag without a registration, for data that the peer must not be able to address.
    /// It is not assigned again within the next 2^32 STags.
    pub(crate) fn unnamed(&mut self) -> Stag {
        self.next_stag()
    }

    fn next_stag(&mut self) -> Stag {
        loop {
            let at = self.counter as usize % DRAWN;
            if at == 0 {
                self.drawn = self.permutation.images(self.counter);
            }
            let stag = Stag(self.drawn[at]);
            self.counter = self.counter.wrapping_add(1);
            // Some peers read 0 as "no STag". A live STag can come up again only after 2^32 others.
            if stag.0 != 0 && self.get(stag).is_none() {
                return stag;
            }
        }
    }

    #[inline]
    fn find(&self, stag: Stag) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = stag.0 as usize & mask;
        loop {
            match &self.slots[at] {
                None => return Err(at),
                Some(slot) if slot.stag == stag => return Ok(at),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn insert(&mut self, slot: Slot) {
        let (Ok(at) | Err(at)) = self.find(slot.stag);
        self.slots[at] = Some(slot);
    }

    fn grow(&mut self) {
        let larger = vec![None; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, larger).into_iter().flatten() {
            self.insert(slot);
        }
    }

    /// The registration of this STag.
    #[inline]
    pub fn get(&self, stag: Stag) -> Option<&Registration> {
        let at = self.find(stag).ok()?;
        self.slots[at].as_ref().map(|slot| &slot.registration)
    }

    /// Invalidates the STag and returns its registration.
    pub fn remove(&mut self, stag: Stag) -> Option<Registration> {
        let mask = self.slots.len() - 1;
        let mut hole = self.find(stag).ok()?;
        let removed = self.slots[hole].take()?;
        self.live -= 1;
        // Entries that were displaced by the removed one move up.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(slot) = &self.slots[at] else { break };
            let home = slot.stag.0 as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at].take();
                hole = at;
            }
        }
        Some(removed.registration)
    }

    /// The only access check for all memory: finds the registration and the offset of `len` bytes
    /// at tagged offset `to`. `domain` must have all of `rights`. The returned offset and `len` are
    /// within the registration.
    #[inline]
    pub fn locate(
        &self,
        stag: Stag,
        to: u64,
        len: u64,
        rights: Rights,
        domain: Domain,
    ) -> Result<(u32, u64), Refusal> {
        let registration = self.get(stag).ok_or(Refusal::Unknown)?;
        if registration.domain != domain {
            return Err(Refusal::Domain);
        }
        if !registration.rights.contain(rights) {
            return Err(Refusal::Rights);
        }
        if len > 0 && to.checked_add(len - 1).is_none() {
            return Err(Refusal::Wrap);
        }
        let offset = to.checked_sub(registration.base).ok_or(Refusal::Bounds)?;
        if offset > registration.len || len > registration.len - offset {
            return Err(Refusal::Bounds);
        }
        Ok((registration.index, offset))
    }
}

/// A permutation of 32 bits: a Feistel network. Its round function is a keyed PRF: SipHash's
/// permutation over the round, the half and 128 bits of key.
struct Permutation {
    key: [u64; 2],
}

impl Permutation {
    const ROUNDS: u64 = 7;

    fn new(seed: [u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| seed[at + i]));
        Self { key: [word(0), word(8)] }
    }

    /// The images of `first` and of the values after it.
    fn images(&self, first: u32) -> [u32; DRAWN] {
        let values: [u32; DRAWN] = std::array::from_fn(|i| first.wrapping_add(i as u32));
        let (mut left, mut right) = (values.map(|value| value >> 16), values.map(|value| value & 0xffff));
        for round in 0..Self::ROUNDS {
            let random = self.prf(right.map(|right| round << 16 | u64::from(right)));
            let mixed = std::array::from_fn(|i| left[i] ^ random[i]);
            (left, right) = (right, mixed);
        }
        std::array::from_fn(|i| left[i] << 16 | right[i])
    }

    /// 16 bits of SipHash-1-3 of each word.
    #[inline]
    fn prf(&self, words: [u64; DRAWN]) -> [u32; DRAWN] {
        let mut v = [
            [self.key[0] ^ 0x736f_6d65_7073_6575; DRAWN],
            [self.key[1] ^ 0x646f_7261_6e64_6f6d; DRAWN],
            [self.key[0] ^ 0x6c79_6765_6e65_7261; DRAWN],
            words.map(|word| self.key[1] ^ 0x7465_6462_7974_6573 ^ word),
        ];
        sip_round(&mut v);
        for (i, word) in words.into_iter().enumerate() {
            v[0][i] ^= word;
            v[2][i] ^= 0xff;
        }
        for _ in 0..3 {
            sip_round(&mut v);
        }
        std::array::from_fn(|i| ((v[0][i] ^ v[1][i] ^ v[2][i] ^ v[3][i]) & 0xffff) as u32)
    }
}

/// One loop per lane.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "each step goes through two of the four words of the same lane"
)]
fn sip_round(v: &mut [[u64; DRAWN]; 4]) {
    for i in 0..DRAWN {
        v[0][i] = v[0][i].wrapping_add(v[1][i]);
        v[1][i] = v[1][i].rotate_left(13) ^ v[0][i];
        v[0][i] = v[0][i].rotate_left(32);
        v[2][i] = v[2][i].wrapping_add(v[3][i]);
        v[3][i] = v[3][i].rotate_left(16) ^ v[2][i];
        v[0][i] = v[0][i].wrapping_add(v[3][i]);
        v[3][i] = v[3][i].rotate_left(21) ^ v[0][i];
        v[2][i] = v[2][i].wrapping_add(v[1][i]);
        v[1][i] = v[1][i].rotate_left(17) ^ v[2][i];
        v[2][i] = v[2][i].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn of(index: u32) -> Registration {
        Registration { index, base: 0, len: 4096, rights: Rights::REMOTE_WRITE, domain: Domain(1) }
    }

    #[test]
    fn the_permutation_is_one() {
        let permutation = Permutation::new([3; 16]);
        let images: HashSet<u32> = (0..50_000).flat_map(|i| permutation.images(i * 4)).collect();
        assert_eq!(images.len(), 200_000);
    }

    #[test]
    fn another_seed_gives_other_stags() {
        let stags = |seed| {
            let mut table = Table::new(seed, 100);
            (0..100).map(|i| table.register(of(i)).unwrap()).collect::<HashSet<_>>()
        };
        assert!(stags([1; 16]).is_disjoint(&stags([2; 16])));
    }

    #[test]
    fn stags_are_spread_over_all_32_bits() {
        let mut table = Table::new(*b"0123456789abcdef", 4096);
        let mut ones = [0u32; 32];
        for i in 0..4096 {
            let stag = table.register(of(i)).unwrap();
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += stag.0 >> bit & 1;
            }
        }
        assert!(ones.iter().all(|&n| (1850..2250).contains(&n)), "{ones:?}");
    }

    #[test]
    fn an_stag_taken_back_is_not_seen_again_soon() {
        let mut table = Table::new([9; 16], 4);
        let first = table.register(of(0)).unwrap();
        table.remove(first).unwrap();
        for i in 0..100_000 {
            let stag = table.register(of(i)).unwrap();
            assert_ne!(stag, first);
            table.remove(stag).unwrap();
        }
        assert_eq!(table.get(first), None);
    }

    #[test]
    fn a_full_table_registers_no_more_until_one_goes() {
        let mut table = Table::new([9; 16], 3);
        let stags: Vec<_> = (0..3).map(|i| table.register(of(i)).unwrap()).collect();
        assert_eq!(table.register(of(3)), Err(RegisterError::Full));
        assert_eq!(table.remove(stags[1]), Some(of(1)));
        assert!(table.register(of(3)).is_ok());
    }

    #[test]
    fn offsets_that_wrap_are_not_registered() {
        let mut table = Table::new([9; 16], 3);
        let to_the_end = Registration { base: u64::MAX - 9, len: 10, ..of(0) };
        assert!(table.register(to_the_end).is_ok());
        assert_eq!(table.register(Registration { len: 11, ..to_the_end }), Err(RegisterError::Wraps));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let mut table = Table::new([9; 16], 3);
        let stag = table.register(Registration { base: 100, len: 10, ..of(7) }).unwrap();
        let locate = |stag, to, len, rights, domain| table.locate(stag, to, len, rights, Domain(domain));
        let write = Rights::REMOTE_WRITE;
        assert_eq!(locate(stag, 100, 10, write, 1), Ok((7, 0)));
        assert_eq!(locate(stag, 110, 0, write, 1), Ok((7, 10)));
        assert_eq!(locate(Stag(stag.0 ^ 1), 100, 1, write, 1), Err(Refusal::Unknown));
        assert_eq!(locate(stag, 100, 1, write, 2), Err(Refusal::Domain));
        assert_eq!(locate(stag, 100, 1, Rights::REMOTE_READ, 1), Err(Refusal::Rights));
        assert_eq!(locate(stag, u64::MAX, 2, write, 1), Err(Refusal::Wrap));
        assert_eq!(locate(stag, 99, 1, write, 1), Err(Refusal::Bounds));
        assert_eq!(locate(stag, 110, 1, write, 1), Err(Refusal::Bounds));
        assert_eq!(locate(stag, 101, 10, write, 1), Err(Refusal::Bounds));
        assert_eq!(locate(stag, 100, u64::MAX - 100, write, 1), Err(Refusal::Bounds));
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(seed: [u8; 16], operations in proptest::collection::vec(any::<(bool, u16)>(), 0..600)) {
            let mut table = Table::new(seed, 150);
            let mut model: HashMap<Stag, Registration> = HashMap::new();
            for (n, (add, which)) in operations.into_iter().enumerate() {
                if add {
                    match table.register(of(n as u32)) {
                        Ok(stag) => prop_assert!(model.insert(stag, of(n as u32)).is_none()),
                        Err(error) => prop_assert_eq!((error, model.len()), (RegisterError::Full, 150)),
                    }
                } else if !model.is_empty() {
                    let mut stags: Vec<_> = model.keys().copied().collect();
                    stags.sort_unstable();
                    let stag = stags[usize::from(which) % stags.len()];
                    prop_assert_eq!(table.remove(stag), model.remove(&stag));
                    prop_assert_eq!(table.remove(stag), None);
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for (stag, registration) in &model {
                prop_assert_eq!(table.get(*stag), Some(registration));
            }
        }

        #[test]
        fn what_is_located_lies_within(base: u64, len: u64, to: u64, n: u64, near: bool) {
            let len = len.min(u64::MAX - base);
            let (to, n) = if near { (base.wrapping_add(to % 8192), n % 8192) } else { (to, n) };
            let mut table = Table::new([1; 16], 1);
            let stag = table.register(Registration { base, len, ..of(0) }).unwrap();
            if let Ok((_, offset)) = table.locate(stag, to, n, Rights::NONE, Domain(1)) {
                prop_assert_eq!(base.checked_add(offset), Some(to));
                prop_assert!(offset.checked_add(n).is_some_and(|end| end <= len));
            }
        }
    }
}
