//! Request nonces: which are new. A nonce is a time of 6 bytes (milliseconds since 1970) and 6 random bytes.
//!
//! Owns the rule, with memory that is bounded whatever arrives: when it is full the oldest nonces are forgotten, and from
//! then on everything as old as they were is refused. So a nonce is never taken twice, however many there are.

use std::collections::BTreeSet;

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

/// How old and how new a nonce may be, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// OLDEST VALID NONCE LIMIT: how far in the past.
    pub oldest: u64,
    /// NEWEST VALID NONCE LIMIT: how far in the future.
    pub newest: u64,
}

impl Default for Window {
    /// A minute back, 10 s ahead: clocks of one site.
    fn default() -> Self {
        Self { oldest: 60_000, newest: 10_000 }
    }
}

/// The nonces that were taken.
#[derive(Debug)]
pub struct Nonces {
    seen: BTreeSet<[u8; 12]>,
    depth: usize,
    /// Times up to here are refused: before the unit started nothing is known, and neither is what was forgotten.
    floor: u64,
}

impl Nonces {
    /// Knows nothing of what was before `start` (milliseconds since 1970), and remembers up to `depth` nonces (at least 1).
    pub fn new(start: u64, depth: usize) -> Self {
        Self { seen: BTreeSet::new(), depth: depth.max(1), floor: start }
    }

    /// Takes a nonce at time `now`, or refuses it. To be called once the request's integrity is proved: strangers must not
    /// fill the memory.
    ///
    /// # Errors
    /// [`NonceError`].
    pub fn take(&mut self, nonce: [u8; 12], now: u64, window: Window) -> Result<(), NonceError> {
        let time = Fields(&nonce).u48(0);
        if time <= self.floor
            || time.saturating_add(window.oldest) < now
            || time > now.saturating_add(window.newest)
        {
            return Err(NonceError::OutOfRange);
        }
        if self.seen.contains(&nonce) {
            return Err(NonceError::NotUnique);
        }
        // What is out of the window anyway need not be remembered. The window may become wider later, so the floor moves
        // with what is forgotten.
        while let Some(oldest) = self.seen.first() {
            let time = Fields(oldest).u48(0);
            if self.seen.len() < self.depth && time.saturating_add(window.oldest) >= now {
                break;
            }
            self.floor = self.floor.max(time);
            self.seen.pop_first();
        }
        // The floor may have passed this one.
        if time <= self.floor {
            return Err(NonceError::OutOfRange);
        }
        self.seen.insert(nonce);
        Ok(())
    }

    /// Nonces remembered.
    pub fn remembered(&self) -> usize {
        self.seen.len()
    }
}

/// A nonce of a time (milliseconds since 1970) and random bytes.
pub fn nonce(time: u64, random: [u8; 6]) -> [u8; 12] {
    let mut out = [0; 12];
    out[..6].copy_from_slice(&crate::bytes::six(time));
    out[6..].copy_from_slice(&random);
    out
}
