//! Sessions of browsers: who has logged in with which token, and for how long. They are kept in
//! memory, by the hash of their id, and end with the daemon.
//!
//! A session remembers the hash of its token and no role: each request looks the token up, so that
//! a token that is removed ends its sessions.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::state::hex;
use crate::tokens::{Hash, hash, is_equal};

/// Time without use after which a session ends.
pub const IDLE: Duration = Duration::from_secs(30 * 60);
/// Time after which it ends in any case.
pub const LONGEST: Duration = Duration::from_secs(12 * 3600);
/// Sessions of one token at once. One more ends the one that was used least lately.
const OF_ONE: usize = 16;
/// Sessions at once.
const MOST: usize = 1024;

/// All sessions of a daemon.
#[derive(Default)]
pub struct Sessions {
    all: Mutex<Vec<Session>>,
}

struct Session {
    id: Hash,
    token: Hash,
    made: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE || now.duration_since(self.made) >= LONGEST
    }
}

impl Sessions {
    /// The sessions that have not ended.
    fn living(&self, now: Instant) -> MutexGuard<'_, Vec<Session>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|session| !session.is_over(now));
        all
    }

    /// Begins a session of the token with this hash, and returns its id: 256 random bits.
    ///
    /// # Errors
    /// The system has no random bits.
    pub fn begin(&self, token: Hash, now: Instant) -> Result<String, String> {
        let mut random = [0; 32];
        runtime::random(&mut random).map_err(|error| format!("there are no random bits: {error}"))?;
        let id = hex(&random);
        let mut all = self.living(now);
        while all.iter().filter(|session| session.token == token).count() >= OF_ONE {
            end_idlest(&mut all, |session| session.token == token);
        }
        while all.len() >= MOST {
            end_idlest(&mut all, |_| true);
        }
        all.push(Session { id: hash(&id), token, made: now, used: now });
        Ok(id)
    }

    /// The hash of the token whose session this is. `is_use` says whether somebody uses it now;
    /// what a page asks for by itself must not keep it alive.
    pub fn find(&self, id: &str, now: Instant, is_use: bool) -> Option<Hash> {
        let wanted = hash(id);
        let mut all = self.living(now);
        let found = all.iter_mut().find(|session| is_equal(&session.id, &wanted))?;
        if is_use {
            found.used = now;
        }
        Some(found.token)
    }

    /// Ends a session.
    pub fn end(&self, id: &str, now: Instant) {
        let wanted = hash(id);
        self.living(now).retain(|session| session.id != wanted);
    }
}

fn end_idlest(all: &mut Vec<Session>, which: impl Fn(&Session) -> bool) {
    let found = all.iter().enumerate().filter(|(_, session)| which(session));
    if let Some((at, _)) = found.min_by_key(|(_, session)| session.used) {
        all.remove(at);
    }
}

/// What the forms of a session carry, so that no other page can make a browser send them. Nobody
/// computes it without the id, and the id not from it.
pub fn proof(id: &str) -> String {
    hex(&hash(&format!("a form of the session {id}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Hash = [1; 32];

    #[test]
    fn a_session_ends_when_idle_and_after_half_a_day() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let id = sessions.begin(TOKEN, start).unwrap();
        assert_eq!(id.len(), 64);
        let step = IDLE - Duration::from_secs(1);
        let mut now = start;
        while now + step < start + LONGEST {
            now += step;
            assert_eq!(sessions.find(&id, now, true), Some(TOKEN));
        }
        assert_eq!(sessions.find(&id, start + LONGEST, true), None, "used all the time");
        let id = sessions.begin(TOKEN, start).unwrap();
        assert_eq!(sessions.find(&id, start + step, false), Some(TOKEN));
        assert_eq!(sessions.find(&id, start + IDLE, true), None, "what a page asks for is no use");
    }

    #[test]
    fn only_an_id_opens_a_session_and_it_can_be_ended() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let [one, two] = [(); 2].map(|()| sessions.begin(TOKEN, now).unwrap());
        for none in ["", &one[1..], &hex(&hash(&one)), &proof(&one)] {
            assert_eq!(sessions.find(none, now, true), None);
        }
        sessions.end(&one, now);
        assert_eq!((sessions.find(&one, now, true), sessions.find(&two, now, true)), (None, Some(TOKEN)));
        assert_ne!(proof(&one), proof(&two));
    }

    #[test]
    fn one_token_cannot_end_the_sessions_of_others() {
        let (sessions, mut now) = (Sessions::default(), Instant::now());
        let other = sessions.begin([2; 32], now).unwrap();
        let first = sessions.begin(TOKEN, now).unwrap();
        for _ in 0..OF_ONE {
            now += Duration::from_secs(1);
            sessions.begin(TOKEN, now).unwrap();
        }
        assert_eq!(sessions.find(&first, now, true), None, "its own oldest made room");
        assert_eq!(sessions.find(&other, now, true), Some([2; 32]));
        for token in 0..MOST + 5 {
            let mut hash = [3; 32];
            hash[..8].copy_from_slice(&token.to_le_bytes());
            sessions.begin(hash, now).unwrap();
        }
        assert_eq!(sessions.all.lock().unwrap().len(), MOST);
    }
}
