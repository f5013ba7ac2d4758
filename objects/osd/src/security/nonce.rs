//! Request nonces: which are new. A nonce is a time of 6 bytes (milliseconds since 1970) and 6
//! random bytes.
//!
//! Owns the rule, with bounded memory: when it is full the oldest nonces are forgotten, and from
//! then on every nonce of their age is refused. So a nonce is never accepted twice, however many
//! there are. Each partition has a memory of its own: its nonces cause no refusals in other
//! partitions.

use std::collections::{BTreeMap, BTreeSet};

use crate::bytes::Fields;

/// Why a nonce is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NonceError {
    /// NONCE TIMESTAMP OUT OF RANGE.
    #[error("the nonce's time is out of the window")]
    OutOfRange,
    /// NONCE NOT UNIQUE.
    #[error("the nonce was used before")]
    NotUnique,
}

/// Permitted age and lead of a nonce, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// OLDEST VALID NONCE LIMIT: longest time in the past.
    pub oldest: u64,
    /// NEWEST VALID NONCE LIMIT: longest time in the future.
    pub newest: u64,
}

/// The largest limit of a [`Window`], in milliseconds: an hour.
pub const MAX_LIMIT: u64 = 3_600_000;

/// Partitions whose nonce memories may be full at once.
const FULL: usize = 16;

impl Default for Window {
    /// A minute back, 10 s ahead: clocks of one site.
    fn default() -> Self {
        Self { oldest: 60_000, newest: 10_000 }
    }
}

/// The nonces that were taken.
#[derive(Debug)]
pub struct Nonces {
    sets: BTreeMap<u64, Set>,
    /// Nonces of all sets.
    remembered: usize,
    depth: usize,
    /// Times up to here are refused in every partition: before the unit started nothing is known.
    floor: u64,
}

/// The nonces of a partition.
#[derive(Debug, Default)]
struct Set {
    seen: BTreeSet<[u8; 12]>,
    /// Times up to here are refused: they may have been forgotten.
    floor: u64,
}

impl Set {
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.seen.pop_first();
        if let Some(oldest) = &oldest {
            self.floor = self.floor.max(Fields(oldest).u48(0));
        }
        oldest.is_some()
    }
}

impl Nonces {
    /// Starts at `start` (milliseconds since 1970), without knowledge of earlier nonces. Remembers
    /// up to `depth` nonces (at least 1) of each partition, and sixteen times as many of all.
    pub fn new(start: u64, depth: usize) -> Self {
        Self { sets: BTreeMap::new(), remembered: 0, depth: depth.max(1), floor: start }
    }

    /// Takes a nonce of `partition` at time `now`, or refuses it. Limits of `window` above
    /// [`MAX_LIMIT`] count as that. To be called once the request's integrity is proved: strangers
    /// must not fill the memory.
    ///
    /// # Errors
    /// [`NonceError`].
    pub fn take(
        &mut self,
        partition: u64,
        nonce: [u8; 12],
        now: u64,
        window: Window,
    ) -> Result<(), NonceError> {
        let time = Fields(&nonce).u48(0);
        let floor = self.sets.get(&partition).map_or(0, |set| set.floor).max(self.floor);
        if time <= floor
            || time.saturating_add(window.oldest.min(MAX_LIMIT)) < now
            || time > now.saturating_add(window.newest.min(MAX_LIMIT))
        {
            return Err(NonceError::OutOfRange);
        }
        if self.sets.get(&partition).is_some_and(|set| set.seen.contains(&nonce)) {
            return Err(NonceError::NotUnique);
        }
        if self.remembered >= self.depth.saturating_mul(FULL) {
            self.make_room(now);
        }
        let set = self.sets.entry(partition).or_default();
        // The window may become wider later, so the floor moves with the forgotten nonces.
        while set.seen.len() >= self.depth && set.forget_oldest() {
            self.remembered -= 1;
        }
        // The floor may have passed this one.
        if time <= set.floor.max(self.floor) {
            return Err(NonceError::OutOfRange);
        }
        set.seen.insert(nonce);
        self.remembered += 1;
        Ok(())
    }

    /// Forgets what no window reaches any more, and half of the largest memory if that is not
    /// enough.
    fn make_room(&mut self, now: u64) {
        let beyond = now.saturating_sub(MAX_LIMIT).saturating_sub(1);
        self.floor = self.floor.max(beyond);
        let floor = self.floor;
        for set in self.sets.values_mut() {
            while set.seen.first().is_some_and(|oldest| Fields(oldest).u48(0) <= floor) {
                set.seen.pop_first();
                self.remembered -= 1;
            }
        }
        self.sets.retain(|_, set| !set.seen.is_empty() || set.floor > floor);
        if self.remembered < self.depth.saturating_mul(FULL) {
            return;
        }
        if let Some(largest) = self.sets.values_mut().max_by_key(|set| set.seen.len()) {
            for _ in 0..largest.seen.len().div_ceil(2) {
                largest.forget_oldest();
                self.remembered -= 1;
            }
        }
    }

    /// Nonces remembered.
    pub fn remembered(&self) -> usize {
        self.remembered
    }
}

/// A nonce of a time (milliseconds since 1970) and random bytes.
pub fn nonce(time: u64, random: [u8; 6]) -> [u8; 12] {
    let mut out = [0; 12];
    out[..6].copy_from_slice(&crate::bytes::six(time));
    out[6..].copy_from_slice(&random);
    out
}
