//! The duplicate request cache: replies to calls that must not be executed twice (RFC 1813 §4.3).
//!
//! A client whose connection broke sends its calls again, with the same XIDs, over another one. A
//! REMOVE that was executed already would then fail with NOENT. A call is known again by its
//! client's address, XID, program, procedure and the hash of its first bytes: XIDs begin anew when
//! a client restarts.
//!
//! It is bounded: the oldest replies go first.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invariant::invariant;

use crate::checksum;

/// Parts of the cache, each with a lock of its own.
const SHARDS: usize = 16;
/// Longer replies are not kept: those that are have attributes and a handle.
const MOST_KEPT: usize = 1024;

/// Key of a call in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub client: IpAddr,
    pub xid: u32,
    pub procedure: u32,
    pub checksum: u64,
}

/// State of a call in the cache.
pub(crate) enum Known {
    /// Nothing: it is executed now.
    New,
    /// It is being executed.
    Running,
    /// It was executed, with this reply.
    Done(Vec<u8>),
}

impl Key {
    /// The key of a call of `len` bytes. `call` begins with its XID, and is all of it, or at least
    /// the bytes that a checksum is made of.
    pub(crate) fn of(client: IpAddr, xid: u32, procedure: u32, call: &[u8], len: usize) -> Self {
        Self { client: client.to_canonical(), xid, procedure, checksum: checksum::of(call, len) }
    }
}

/// The cache.
#[derive(Default)]
pub(crate) struct Replies {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    /// Calls, and their replies once they have one.
    calls: HashMap<Key, Option<Vec<u8>>>,
    /// Those with a reply, the oldest first.
    done: VecDeque<Key>,
}

impl Replies {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        let at = key.checksum as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All replies; of each part the oldest first.
    pub(crate) fn all(&self) -> Vec<(Key, Vec<u8>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |key: &Key| Some((*key, shard.calls.get(key)?.clone()?));
            all.extend(shard.done.iter().filter_map(of));
        }
        all
    }

    /// Looks a call up, and notes that it is being executed if it is new.
    pub(crate) fn begin(&self, key: Key) -> Known {
        let mut shard = self.shard(&key);
        match shard.calls.get(&key) {
            Some(Some(reply)) => Known::Done(reply.clone()),
            Some(None) => Known::Running,
            None => {
                shard.calls.insert(key, None);
                Known::New
            }
        }
    }

    /// A call has been executed. Its reply is kept, unless it may as well be executed again; at
    /// most `most` replies are.
    pub(crate) fn end(&self, key: Key, reply: Option<&[u8]>, most: usize) {
        let mut shard = self.shard(&key);
        match reply.filter(|reply| reply.len() <= MOST_KEPT) {
            Some(reply) => {
                shard.calls.insert(key, Some(reply.to_vec()));
                shard.done.push_back(key);
            }
            None => drop(shard.calls.remove(&key)),
        }
        while shard.done.len() > (most / SHARDS).max(1) {
            if let Some(oldest) = shard.done.pop_front() {
                let forgotten = shard.calls.remove(&oldest).flatten();
                invariant!(forgotten.is_some(), "a reply that is kept and has gone");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn key_of(client: IpAddr, xid: u32, procedure: u32, call: &[u8]) -> Key {
        Key::of(client, xid, procedure, call, call.len())
    }

    /// The first piece of a long WRITE is as long as what came at once.
    #[test]
    fn a_call_is_known_again_however_many_of_its_bytes_lie_together() {
        let call: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
        let of = |together: usize, len| Key::of(CLIENT, 1, 7, &call[..together], len);
        assert_eq!(of(1024, 5000), of(3000, 5000));
        assert_eq!(of(1024, 5000), of(5000, 5000));
        assert_ne!(of(1024, 5000), of(1024, 4996), "another call");
    }

    #[test]
    fn a_call_that_comes_again_gets_the_reply_that_it_had() {
        let replies = Replies::default();
        let key = key_of(CLIENT, 1, 12, b"remove a");
        assert!(matches!(replies.begin(key), Known::New));
        assert!(matches!(replies.begin(key), Known::Running));
        replies.end(key, Some(b"done"), 1000);
        assert!(matches!(replies.begin(key), Known::Done(reply) if reply == b"done"));
        let other = key_of(CLIENT, 1, 12, b"remove b");
        assert!(matches!(replies.begin(other), Known::New), "the same XID after a restart");
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert!(matches!(replies.begin(key_of(mapped, 1, 12, b"remove a")), Known::Done(_)));
    }

    #[test]
    fn what_may_be_executed_again_is_forgotten_and_the_rest_is_bounded() {
        let replies = Replies::default();
        let key = key_of(CLIENT, 1, 7, b"write");
        replies.begin(key);
        replies.end(key, None, 1000);
        assert!(matches!(replies.begin(key), Known::New));
        for xid in 0..10_000u32 {
            let key = key_of(CLIENT, xid, 12, &xid.to_be_bytes());
            replies.begin(key);
            replies.end(key, Some(b"reply"), 160);
        }
        let kept = |shard: &Mutex<Shard>| shard.lock().unwrap().calls.len();
        assert!(replies.shards.iter().map(kept).sum::<usize>() <= 161);
    }
}
