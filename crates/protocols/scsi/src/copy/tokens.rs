//! The ROD tokens that a unit has created: the valid ones, the blocks they represent, and why
//! others are no longer valid. The caller passes the time, in milliseconds of any clock.

use std::collections::VecDeque;

use super::rod::{BlockRange, MAX_LIFETIME_S, TOKEN_LEN, invalid_token};
use crate::{AdditionalSense, Sense};

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Good,
    /// A write changed a block that it represents.
    Revoked,
    Expired,
    Deleted,
}

struct Made {
    token: Box<[u8; TOKEN_LEN]>,
    session: u64,
    ranges: Vec<BlockRange>,
    born_ms: u64,
    inactivity_ms: u64,
    used_ms: u64,
    standing: Standing,
}

impl Made {
    fn id(&self) -> &[u8] {
        &self.token[8..16]
    }
}

/// The tokens of one unit.
#[derive(Default)]
pub struct Tokens {
    made: VecDeque<Made>,
}

impl Tokens {
    /// Maximum number of valid tokens of one unit.
    pub const MAX: usize = 256;
    /// Maximum number of valid tokens of one unit for one I_T nexus.
    pub const MAX_OF_NEXUS: usize = 64;
    /// Maximum number of invalid tokens kept, so that errors can report the reason.
    const MAX_GONE: usize = 256;

    /// Whether a token is valid at `now_ms`; then writes must be reported to [`Self::written`].
    pub fn any(&mut self, now_ms: u64) -> bool {
        self.expire(now_ms);
        self.made.iter().any(|made| made.standing == Standing::Good)
    }

    fn expire(&mut self, now_ms: u64) {
        for made in self.made.iter_mut().filter(|made| made.standing == Standing::Good) {
            let idle = now_ms.saturating_sub(made.used_ms) > made.inactivity_ms;
            let old = now_ms.saturating_sub(made.born_ms) > u64::from(MAX_LIFETIME_S) * 1000;
            if idle || old {
                made.standing = Standing::Expired;
            }
        }
        let gone = self.made.iter().filter(|made| made.standing != Standing::Good).count();
        for _ in Self::MAX_GONE..gone {
            let oldest = self.made.iter().position(|made| made.standing != Standing::Good);
            oldest.and_then(|at| self.made.remove(at));
        }
    }

    /// Whether `session` may create one more token at `now_ms`.
    pub fn room(&mut self, session: u64, now_ms: u64) -> bool {
        self.expire(now_ms);
        let good = || self.made.iter().filter(|made| made.standing == Standing::Good);
        good().count() < Self::MAX
            && good().filter(|made| made.session == session).count() < Self::MAX_OF_NEXUS
    }

    /// Adds a token that `session` created for `ranges`.
    pub fn add(
        &mut self,
        session: u64,
        token: Box<[u8; TOKEN_LEN]>,
        ranges: Vec<BlockRange>,
        inactivity_s: u32,
        now_ms: u64,
    ) {
        let (born_ms, inactivity_ms) = (now_ms, u64::from(inactivity_s) * 1000);
        let standing = Standing::Good;
        self.made.push_back(Made {
            token,
            session,
            ranges,
            born_ms,
            inactivity_ms,
            used_ms: now_ms,
            standing,
        });
    }

    /// The blocks that `token` represents. Counts as a use of the token.
    ///
    /// # Errors
    /// INVALID TOKEN OPERATION with the reason.
    pub fn find(&mut self, token: &[u8; TOKEN_LEN], now_ms: u64) -> Result<Vec<BlockRange>, Sense> {
        self.expire(now_ms);
        let made = self.made.iter_mut().find(|made| made.id() == &token[8..16]);
        let made = made.ok_or(invalid_token(AdditionalSense::TOKEN_UNKNOWN))?;
        // Constant time: the duration does not show how much of a guess was right.
        let differs = made.token.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 {
            return Err(invalid_token(AdditionalSense::TOKEN_CORRUPT));
        }
        let additional = match made.standing {
            Standing::Good => {
                made.used_ms = now_ms;
                return Ok(made.ranges.clone());
            }
            Standing::Revoked => AdditionalSense::TOKEN_REVOKED,
            Standing::Expired => AdditionalSense::TOKEN_EXPIRED,
            Standing::Deleted => AdditionalSense::TOKEN_DELETED,
        };
        Err(invalid_token(additional))
    }

    /// Deletes a token (DEL_TKN).
    pub fn delete(&mut self, token: &[u8; TOKEN_LEN]) {
        let found = self.made.iter_mut().find(|made| *made.token == *token);
        if let Some(made) = found.filter(|made| made.standing == Standing::Good) {
            made.standing = Standing::Deleted;
        }
    }

    /// Revokes tokens that represent any of the `blocks` blocks from `lba` on, which are about to
    /// be written.
    pub fn written(&mut self, lba: u64, blocks: u64) {
        let end = lba.saturating_add(blocks);
        let touches =
            |range: &BlockRange| range.lba < end && lba < range.lba.saturating_add(u64::from(range.blocks));
        for made in self.made.iter_mut().filter(|made| made.standing == Standing::Good) {
            if made.ranges.iter().any(touches) {
                made.standing = Standing::Revoked;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u8) -> Box<[u8; TOKEN_LEN]> {
        Box::new([n; TOKEN_LEN])
    }

    fn one(now_ms: u64) -> Tokens {
        let mut tokens = Tokens::default();
        tokens.add(1, token(1), vec![BlockRange { lba: 10, blocks: 10 }], 60, now_ms);
        tokens
    }

    fn why(tokens: &mut Tokens, token: &[u8; TOKEN_LEN], now_ms: u64) -> AdditionalSense {
        tokens.find(token, now_ms).unwrap_err().additional
    }

    #[test]
    fn a_write_within_what_it_represents_revokes_a_token_and_no_other() {
        let mut tokens = one(0);
        tokens.written(0, 10);
        tokens.written(20, u64::MAX);
        assert_eq!(tokens.find(&token(1), 0).unwrap(), [BlockRange { lba: 10, blocks: 10 }]);
        tokens.written(19, 1);
        assert_eq!(why(&mut tokens, &token(1), 0), AdditionalSense::TOKEN_REVOKED);
        assert!(!tokens.any(0));
    }

    #[test]
    fn an_unused_token_expires_and_a_used_one_at_its_maximum_lifetime() {
        let mut tokens = one(1000);
        assert!(tokens.find(&token(1), 61_000).is_ok());
        assert!(tokens.find(&token(1), 121_000).is_ok());
        assert_eq!(why(&mut tokens, &token(1), 181_001), AdditionalSense::TOKEN_EXPIRED);
        let mut tokens = one(0);
        for now_ms in (0..=3_600_000).step_by(50_000) {
            assert!(tokens.find(&token(1), now_ms).is_ok());
        }
        assert_eq!(why(&mut tokens, &token(1), 3_600_001), AdditionalSense::TOKEN_EXPIRED);
    }

    #[test]
    fn guesses_are_unknown_or_corrupt() {
        let mut tokens = one(0);
        assert_eq!(why(&mut tokens, &token(2), 0), AdditionalSense::TOKEN_UNKNOWN);
        let mut near = token(1);
        near[511] ^= 1;
        assert_eq!(why(&mut tokens, &near, 0), AdditionalSense::TOKEN_CORRUPT);
        tokens.delete(&near);
        assert!(tokens.find(&token(1), 0).is_ok());
        tokens.delete(&token(1));
        assert_eq!(why(&mut tokens, &token(1), 0), AdditionalSense::TOKEN_DELETED);
    }

    /// The records of invalid tokens are bounded too.
    #[test]
    fn tokens_are_bounded_per_nexus_and_in_total() {
        let mut tokens = Tokens::default();
        for n in 0..Tokens::MAX {
            let session = (n / Tokens::MAX_OF_NEXUS) as u64;
            assert!(tokens.room(session, 0), "{n}");
            tokens.add(session, token(0), Vec::new(), 1, 0);
            assert_eq!(tokens.room(session, 0), (n + 1) % Tokens::MAX_OF_NEXUS != 0);
        }
        assert!(!tokens.room(99, 0));
        assert!(tokens.room(99, 1001));
        for _ in 0..400 {
            tokens.add(1, token(0), Vec::new(), 1, 0);
        }
        assert!(!tokens.any(1001));
        assert!(tokens.made.len() <= Tokens::MAX_GONE);
    }
}
