//! Steering tags (RFC 5041 §3.1, RFC 5042 §6): which memory the peer may name, and how. One table a stream, gone with it.
//! Holds numbers only: which memory a registration stands for is the owner's business.
//!
//! An STag is the image of a counter under a permutation of 32 bits keyed with the stream's seed (index and key alike), so
//! that a peer can't guess one it was not told, and one that was taken back is not seen again for 2^32 registrations.

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

/// What may be done with a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The owner may send from it.
    pub const LOCAL_READ: Self = Self(1);
    /// The owner may have data read from the peer put here.
    pub const LOCAL_WRITE: Self = Self(2);
    /// The peer may read it (RDMA Read).
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may write it (RDMA Write).
    pub const REMOTE_WRITE: Self = Self(8);
    /// The peer may do atomic operations on it.
    pub const REMOTE_ATOMIC: Self = Self(16);
    /// The peer may take it back by a Send with Invalidate.
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

/// What an STag stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The owner's name for the memory.
    pub index: u32,
    /// The tagged offset of its first byte: 0 for zero-based, anything for virtual addresses.
    pub base: u64,
    /// Bytes. `base + len` is at most 2^64.
    pub len: u64,
    /// What may be done with it.
    pub rights: Rights,
    /// The protection domain that it belongs to.
    pub domain: Domain,
}

/// Why memory wasn't registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// As many registrations are live as the stream may have.
    #[error("the stream has all the registrations that it may have")]
    Full,
    /// `base + len` passes 2^64.
    #[error("a registration's offsets wrap")]
    Wraps,
}

/// Why an access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No such STag.
    #[error("no such STag")]
    Unknown,
    /// Of another protection domain.
    #[error("STag of another protection domain")]
    Domain,
    /// Not allowed by the registration's rights.
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
    /// How many STags were drawn and taken.
    counter: u32,
    /// The STags of the counter's multiple of [`DRAWN`] and of those behind it.
    drawn: [u32; DRAWN],
    /// Open addressing by the STag's low bits, which are as good as random; a power of two, at least half empty.
    slots: Vec<Option<Slot>>,
    live: usize,
    limit: usize,
}

impl fmt::Debug for Table {
    /// Without the seed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("live", &self.live).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// STags that are drawn together: one waits for each step of the one before, several side by side take little longer.
const DRAWN: usize = 4;
/// Slots at first.
const SLOTS: usize = 64;

impl Table {
    /// An empty table that holds at most `limit` registrations (at most 2^24). `seed` must be unpredictable and used for no other
    /// stream.
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

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Gives memory an STag.
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

    /// An STag that stands for nothing, and for nothing else before 2^32 more are given: for data that the peer must not be
    /// able to name.
    pub fn unnamed(&mut self) -> Stag {
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
            // 0 means "no STag" to some; a live one comes round only after 2^32 others.
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

    /// What the STag stands for.
    #[inline]
    pub fn get(&self, stag: Stag) -> Option<&Registration> {
        let at = self.find(stag).ok()?;
        self.slots[at].as_ref().map(|slot| &slot.registration)
    }

    /// Takes the STag back: from now on it stands for nothing.
    pub fn remove(&mut self, stag: Stag) -> Option<Registration> {
        let mask = self.slots.len() - 1;
        let mut hole = self.find(stag).ok()?;
        let removed = self.slots[hole].take()?;
        self.live -= 1;
        // Whoever was put behind because of the one removed moves up.
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

    /// The one gate in front of all memory: where in which registration `len` bytes at tagged offset `to` lie, if all of
    /// `rights` are given to `domain`. The offset returned and `len` are within the registration.
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

/// A permutation of 32 bits: a Feistel network whose round function is a keyed PRF (SipHash's permutation over the round, the
/// half and 128 bits of key).
struct Permutation {
    key: [u64; 2],
}

impl Permutation {
    const ROUNDS: u64 = 7;

    fn new(seed: [u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| seed[at + i]));
        Self { key: [word(0), word(8)] }
    }

    /// The images of `first` and of those behind it.
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

/// One round for each lane.
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
