//! Owns the byte-range locks: the ranges of each lock owner and file, and the owners that wait for
//! one (RFC 8881 §9.1 to §9.6, §18.10).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use invariant::{broken, invariant};
use rpc::xdr::{Malformed, Reader, Writer};

use super::files::FileNo;
use super::ranges::{Range, Ranges};
use super::saved::{Saved, saved};
use super::stateid::{StateNo, bumped};
use crate::v4::{ClientId, LockType};

/// Owners that wait for locks of one file. An unlock looks at each.
const MOST_WAITING: usize = 256;

/// The lock in the way of another, as LOCK and LOCKT report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// First byte of the lock that is held.
    pub offset: u64,
    /// Its length, bytes. All ones is to the end of the file.
    pub length: u64,
    /// READ or WRITE.
    pub kind: LockType,
    /// The client that holds it.
    pub client: ClientId,
    /// The client's lock owner.
    pub owner: Box<[u8]>,
}

/// The locks of one owner and file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) client: ClientId,
    pub(super) file: FileNo,
    pub(super) owner: Box<[u8]>,
    /// The open that the locks were made with.
    pub(super) open: StateNo,
    pub(super) seqid: u32,
    pub(super) ranges: Ranges,
}

impl Held {
    fn key(&self) -> Key {
        Key { file: self.file, client: self.client, owner: self.owner.clone() }
    }
}

/// A lock that was denied, and whose owner waits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    range: Range,
    writes: bool,
    since: Duration,
    /// Nothing is in the way any more: call the client.
    ready: bool,
}

/// A lock that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) client: ClientId,
    pub(super) file: FileNo,
    pub(super) owner: &'a [u8],
    pub(super) range: Range,
    pub(super) writes: bool,
}

/// A lock owner and a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    file: FileNo,
    client: ClientId,
    owner: Box<[u8]>,
}

/// All locks. Fields after the second are derived from the first two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Locks {
    held: BTreeMap<StateNo, Held>,
    waiting: BTreeMap<Key, Waiting>,
    by_owner: BTreeMap<Key, StateNo>,
    by_file: BTreeMap<FileNo, BTreeSet<StateNo>>,
    by_open: BTreeSet<(StateNo, StateNo)>,
    /// Owners, ranges and waiting locks of each client.
    counts: BTreeMap<ClientId, usize>,
    total: usize,
    /// Owners to call, by client.
    ready: BTreeMap<ClientId, BTreeSet<Key>>,
    /// Clients with owners that became ready since the last look.
    woken: BTreeSet<ClientId>,
}

saved! {
    Key { file, client, owner }
    Held { client, file, owner, open, seqid, ranges }
    Waiting { range, writes, since, ready }
}

impl Saved for Locks {
    fn save(&self, to: &mut Writer<'_>) {
        self.held.save(to);
        self.waiting.save(to);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut all = Locks::default();
        for (number, held) in BTreeMap::<StateNo, Held>::load(from)? {
            all.insert(number, held);
        }
        for (key, waiting) in BTreeMap::<Key, Waiting>::load(from)? {
            if waiting.ready {
                all.ready.entry(key.client).or_default().insert(key.clone());
            }
            all.count_up(key.client, 1);
            all.waiting.insert(key, waiting);
        }
        Ok(all)
    }
}

impl Locks {
    /// Owners with locks, and waiting locks.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.held.len(), self.waiting.len())
    }

    pub(super) fn get(&self, number: StateNo) -> Option<&Held> {
        self.held.get(&number)
    }

    /// Owners, ranges and waiting locks of a client.
    pub(super) fn count(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Owners, ranges and waiting locks of all clients.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn has_file(&self, file: FileNo) -> bool {
        self.by_file.contains_key(&file) || self.waiters(file).next().is_some()
    }

    pub(super) fn find(&self, client: ClientId, file: FileNo, owner: &[u8]) -> Option<StateNo> {
        self.by_owner.get(&Key { file, client, owner: owner.into() }).copied()
    }

    /// The locks made with an open.
    pub(super) fn of_open(&self, open: StateNo) -> Vec<StateNo> {
        self.by_open.range((open, 0)..=(open, StateNo::MAX)).map(|(_, number)| *number).collect()
    }

    /// A lock of another owner in the way.
    pub(super) fn conflict(&self, wanted: &Wanted<'_>) -> Option<Denied> {
        let held = self.by_file.get(&wanted.file)?.iter().filter_map(|it| {
            let held = self.held.get(it);
            invariant!(held.is_some(), "locks {it} of file {} have gone", wanted.file);
            held
        });
        let mut others = held.filter(|it| (it.client, &*it.owner) != (wanted.client, wanted.owner));
        others.find_map(|it| {
            let (range, writes) = it.ranges.conflict(wanted.range, wanted.writes)?;
            Some(Denied {
                offset: range.first,
                length: range.length(),
                kind: if writes { LockType::Write } else { LockType::Read },
                client: it.client,
                owner: it.owner.clone(),
            })
        })
    }

    /// Locks without a conflict, as number `number` unless the owner has locks of the file. Returns
    /// its number and seqid.
    pub(super) fn lock(&mut self, number: StateNo, open: StateNo, wanted: &Wanted<'_>) -> (StateNo, u32) {
        let Wanted { client, file, owner, range, writes } = *wanted;
        self.stop_waiting(&Key { file, client, owner: owner.into() });
        let (number, mut held) =
            self.find(client, file, owner).and_then(|it| self.take(it)).unwrap_or_else(|| {
                (
                    number,
                    Held { client, file, owner: owner.into(), open, seqid: 0, ranges: Ranges::default() },
                )
            });
        held.seqid = bumped(held.seqid);
        held.ranges.lock(range, writes);
        let seqid = held.seqid;
        self.insert(number, held);
        self.wake(file);
        (number, seqid)
    }

    /// An unlock of `range` would leave a range on both of its sides.
    pub(super) fn splits(&self, number: StateNo, range: Range) -> bool {
        self.held.get(&number).is_some_and(|it| it.ranges.splits(range))
    }

    /// Unlocks. Returns the seqid.
    pub(super) fn unlock(&mut self, number: StateNo, range: Range) -> Option<u32> {
        let (number, mut held) = self.take(number)?;
        held.seqid = bumped(held.seqid);
        held.ranges.unlock(range);
        let (seqid, file) = (held.seqid, held.file);
        self.insert(number, held);
        self.wake(file);
        Some(seqid)
    }

    /// Removes an owner's locks of a file.
    pub(super) fn remove(&mut self, number: StateNo) {
        if let Some((_, held)) = self.take(number) {
            self.wake(held.file);
        }
    }

    fn insert(&mut self, number: StateNo, held: Held) {
        self.by_owner.insert(held.key(), number);
        self.by_file.entry(held.file).or_default().insert(number);
        self.by_open.insert((held.open, number));
        self.count_up(held.client, 1 + held.ranges.len());
        self.held.insert(number, held);
    }

    fn take(&mut self, number: StateNo) -> Option<(StateNo, Held)> {
        let held = self.held.remove(&number)?;
        self.by_owner.remove(&held.key());
        match self.by_file.get_mut(&held.file) {
            Some(numbers) => {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.by_file.remove(&held.file);
                }
            }
            None => broken!("locks {number} are not those of file {}", held.file),
        }
        self.by_open.remove(&(held.open, number));
        self.uncount(held.client, 1 + held.ranges.len());
        Some((number, held))
    }

    fn count_up(&mut self, client: ClientId, by: usize) {
        self.total += by;
        *self.counts.entry(client).or_default() += by;
    }

    fn uncount(&mut self, client: ClientId, by: usize) {
        let of_client = self.count(client);
        invariant!(
            by <= of_client && of_client <= self.total,
            "{by} locks of {of_client}, of {}",
            self.total
        );
        self.total = self.total.saturating_sub(by);
        match of_client.saturating_sub(by) {
            0 => self.counts.remove(&client),
            left => self.counts.insert(client, left),
        };
    }

    fn waiters(&self, file: FileNo) -> impl Iterator<Item = (&Key, &Waiting)> {
        let from = Key { file, client: ClientId(0), owner: Box::default() };
        self.waiting.range(from..).take_while(move |(key, _)| key.file == file)
    }

    /// Remembers that the owner waits, for one lock of a file at most, and unless too many wait:
    /// its client asks again in any case.
    pub(super) fn wait(&mut self, now: Duration, wanted: &Wanted<'_>) {
        let key = Key { file: wanted.file, client: wanted.client, owner: wanted.owner.into() };
        self.stop_waiting(&key);
        if self.waiters(wanted.file).count() >= MOST_WAITING {
            return;
        }
        let waiting = Waiting { range: wanted.range, writes: wanted.writes, since: now, ready: false };
        self.count_up(wanted.client, 1);
        self.waiting.insert(key, waiting);
    }

    fn stop_waiting(&mut self, key: &Key) {
        if self.waiting.remove(key).is_some() {
            if let Some(keys) = self.ready.get_mut(&key.client) {
                keys.remove(key);
                if keys.is_empty() {
                    self.ready.remove(&key.client);
                }
            }
            self.uncount(key.client, 1);
        }
    }

    /// Finds the owners that could lock now.
    fn wake(&mut self, file: FileNo) {
        let free = self.waiters(file).filter(|(key, it)| {
            let Key { file, client, owner } = key;
            let wanted = Wanted { client: *client, file: *file, owner, range: it.range, writes: it.writes };
            !it.ready && self.conflict(&wanted).is_none()
        });
        let free: Vec<_> = free.map(|(key, _)| key.clone()).collect();
        for key in free {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.ready = true;
                self.woken.insert(key.client);
                self.ready.entry(key.client).or_default().insert(key);
            }
        }
    }

    /// The clients with owners that became ready since the last call of this.
    pub(super) fn take_woken(&mut self) -> BTreeSet<ClientId> {
        std::mem::take(&mut self.woken)
    }

    /// The clients that have owners to call.
    pub(super) fn callable(&self) -> impl Iterator<Item = ClientId> {
        self.ready.keys().copied()
    }

    /// An owner of the client to call, and the file.
    pub(super) fn ready(&self, client: ClientId) -> Option<(FileNo, &[u8])> {
        self.ready.get(&client)?.first().map(|it| (it.file, &*it.owner))
    }

    /// The owner was called: it asks again, or it does not want the lock any more.
    pub(super) fn called(&mut self, file: FileNo, client: ClientId, owner: &[u8]) {
        self.stop_waiting(&Key { file, client, owner: owner.into() });
    }

    /// Forgets the owners for which `forget` holds, given the client and since when the owner
    /// waits. Returns the files.
    pub(super) fn forget_waiting(&mut self, forget: impl Fn(ClientId, Duration) -> bool) -> Vec<FileNo> {
        let old = self.waiting.iter().filter(|(key, it)| forget(key.client, it.since));
        let old: Vec<_> = old.map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|it| self.stop_waiting(it));
        old.into_iter().map(|it| it.file).collect()
    }
}
