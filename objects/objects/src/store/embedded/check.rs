//! Verifies that all records agree with one another, with the sums and with the arena's blocks; and
//! repairs.
//!
//! All changes wait meanwhile; nothing else does, since another thread than the cores' reads the
//! records. Memory holds one small entry for each object. A repair deletes unreadable records and
//! those that belong to nothing, and recomputes counts: it never guesses at data.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layers::Val;
use super::logged::Ranges;
use super::partitions::entry_len;
use super::read::number_of;
use super::record::{
    self, ATTRIBUTE, CHUNK, COLLECTION, COUNT, Key, LOST, MEMBER, MEMBERSHIP, PARTITION, Record, Run, USER,
    View, decode_chunk, key, numbers, sealed, unsealed,
};
use super::recover::{SCANNED, count, scan};
use super::space::{Blocks, Space};
use super::txn::count_of;
use super::{Inner, unpoisoned};
use crate::store::{BLOCK, CheckReport, Error, Id};

/// Facts about an object, while the rest is read.
#[derive(Default)]
struct Seen {
    user: bool,
    chunked: bool,
    /// Blocks that its record says, less those that were found.
    blocks: i64,
    /// Attributes that its record says have keys of their own, less those that were found.
    spilled: i64,
    collections: u64,
    memberships: u64,
    length: u64,
    members: u64,
    last_block: u64,
}

struct Check<'a> {
    inner: &'a Inner,
    report: CheckReport,
    puts: BTreeMap<Key, Val>,
    /// By home and id. Partitions and the root are in home 0.
    seen: HashMap<(u64, u64), Seen>,
    /// Findings that nothing is put right for.
    open: u64,
    /// The only home that is looked at.
    home: Option<u64>,
    /// Homes of removed partitions, which are being emptied: parts of them are gone already.
    dying: BTreeSet<u64>,
}

impl Check<'_> {
    fn skips(&self, home: u64) -> bool {
        self.home.is_some_and(|only| only != home) || self.dying.contains(&home)
    }

    fn wrong(&mut self, what: impl FnOnce() -> String, put: impl IntoIterator<Item = (Key, Val)>) {
        self.report.found(what);
        let mut puts = put.into_iter().peekable();
        self.open += u64::from(puts.peek().is_none());
        self.puts.extend(puts);
    }

    fn runs(&mut self, id: (u64, u64), runs: &[Run]) {
        let total = self.inner.capacity_blocks;
        let Some(seen) = self.seen.get_mut(&id) else { return };
        self.report.extents += runs.len() as u64;
        let mut bad = false;
        for run in runs {
            bad |= run.block < seen.last_block || run.len == 0;
            bad |= run.arena.checked_add(run.len).is_none_or(|end| end > total);
            bad |= run.block.saturating_add(run.len) > seen.length.div_ceil(BLOCK);
            seen.last_block = run.block.saturating_add(run.len);
            seen.blocks -= run.len.cast_signed();
        }
        if bad {
            self.wrong(|| format!("object {:#x}: its extents overlap or lie outside", id.1), None);
        }
    }

    fn look(&mut self) -> Result<(), Error> {
        let layers = &self.inner.layers;
        if self.home.is_none() {
            scan(layers, LOST, |at, [page, _, _], _| {
                let what = || format!("page {page:#x} of the metadata was damaged: objects may be missing");
                self.wrong(what, [(*at, None)]);
            })?;
        }
        scan(layers, PARTITION, |at, [id, _, _], value| {
            let view = View::new(at, value, Id::partition(id));
            if self.home.is_none_or(|home| view.is_ok_and(|v| v.a() == home)) {
                self.report.partitions += 1;
                match view {
                    Ok(v) => {
                        let seen = Seen { spilled: i64::from(v.spilled()), ..Seen::default() };
                        self.seen.insert((0, id), seen);
                    }
                    Err(_) => self.wrong(|| format!("partition {id:#x}: its record cannot be read"), None),
                }
            }
        })?;
        if self.home.is_none() {
            let at = key(record::ROOT, 0, 0, 0);
            let root = layers.get(&at, |v| View::new(&at, v, Id::ROOT).map(View::spilled))?;
            if let Some(Err(_)) = root {
                let new = Some(Arc::from(Record::default().encode(&at)));
                self.wrong(|| "the root's record cannot be read".to_owned(), [(at, new)]);
            }
            let spilled = root.and_then(Result::ok).unwrap_or(0);
            self.seen.insert((0, 0), Seen { spilled: i64::from(spilled), ..Seen::default() });
        }
        scan(layers, USER, |at, [home, id, _], value| {
            if self.skips(home) {
                return;
            }
            self.report.objects += 1;
            let Ok(view) = View::new(at, value, Id::new(home, id)) else {
                return self.wrong(|| format!("object {id:#x}: its record cannot be read"), [(*at, None)]);
            };
            let seen = Seen {
                user: true,
                chunked: view.chunked(),
                blocks: view.b().cast_signed(),
                spilled: i64::from(view.spilled()),
                collections: view.c(),
                length: view.a(),
                ..Seen::default()
            };
            self.seen.insert((home, id), seen);
            let runs: Vec<Run> = view.runs().collect();
            self.runs((home, id), &runs);
        })?;
        scan(layers, COLLECTION, |at, [home, id, _], value| {
            if self.skips(home) {
                return;
            }
            self.report.objects += 1;
            let gone = (*at, None);
            match View::new(at, value, Id::new(home, id)) {
                Err(_) => self.wrong(|| format!("collection {id:#x}: its record cannot be read"), [gone]),
                Ok(_) if self.seen.contains_key(&(home, id)) => {
                    self.wrong(|| format!("{id:#x} is an object and a collection at once"), [gone]);
                }
                Ok(view) => {
                    let seen = Seen { spilled: i64::from(view.spilled()), ..Seen::default() };
                    self.seen.insert((home, id), seen);
                }
            }
        })?;
        scan(layers, CHUNK, |at, [home, id, _], value| {
            if self.skips(home) {
                return;
            }
            let gone = (*at, None);
            let known = self.seen.get(&(home, id)).is_some_and(|seen| seen.chunked);
            match decode_chunk(at, value) {
                _ if !known => self.wrong(|| format!("extents of {id:#x}, which has none"), [gone]),
                Some(runs) => self.runs((home, id), &runs),
                None => self.wrong(|| format!("object {id:#x}: some of its extents cannot be read"), [gone]),
            }
        })?;
        scan(layers, ATTRIBUTE, |at, [home, id, number], value| {
            if self.skips(home) && home > 0 || (home == 0 && self.home.is_some()) {
                return;
            }
            let gone = (*at, None);
            let readable = unsealed(at, value).is_some();
            match self.seen.get_mut(&(home, id)) {
                Some(seen) if readable => seen.spilled -= 1,
                Some(_) => {
                    self.wrong(|| format!("object {id:#x}: attribute {number:#x} cannot be read"), [gone])
                }
                None => self.wrong(|| format!("an attribute of {id:#x}, which does not exist"), [gone]),
            }
        })?;
        self.look_at_members()
    }

    fn look_at_members(&mut self) -> Result<(), Error> {
        let inner = self.inner;
        for (kind, other) in [(MEMBER, MEMBERSHIP), (MEMBERSHIP, MEMBER)] {
            let mut next = Some(key(kind, 0, 0, 0));
            while let Some(from) = next {
                let mut asked = Vec::new();
                let to = key(kind, u64::MAX, u64::MAX, u64::MAX);
                next = inner.layers.scan(from, to, SCANNED, |at, value| {
                    let [home, a, b] = numbers(at);
                    if !self.skips(home) {
                        asked.push((home, a, b, number_of(at, value)));
                    }
                    true
                })?;
                for (home, a, b, number) in asked {
                    let mirror = key(other, home, b, a);
                    let mirrored = inner.layers.get(&mirror, |v| number_of(&mirror, v))?.flatten();
                    self.member(kind, [home, a, b], number.filter(|_| mirrored == number));
                }
            }
        }
        let mut wrong_counts = Vec::new();
        scan(&inner.layers, COUNT, |at, [home, id, _], value| {
            if !self.skips(home) {
                let seen = self.seen.get(&(home, id)).filter(|seen| !seen.user);
                if seen.is_none() || count_of(at, value) != seen.map(|seen| seen.members) {
                    wrong_counts.push((*at, id, seen.map(|seen| seen.members)));
                }
            }
        })?;
        for (at, id, members) in wrong_counts {
            let value = members.map(|count| Arc::from(sealed(&at, &count.to_le_bytes())));
            self.wrong(|| format!("collection {id:#x}: its members are counted wrongly"), [(at, value)]);
        }
        Ok(())
    }

    /// One side of a membership, whose number is that of the other side too; `None` if it is not.
    fn member(&mut self, kind: u8, [home, a, b]: [u64; 3], number: Option<u32>) {
        let (collection, object) = if kind == MEMBER { (a, b) } else { (b, a) };
        let is = |id, user| self.seen.get(&(home, id)).is_some_and(|seen: &Seen| seen.user == user);
        if number.is_none() || !is(collection, false) || !is(object, true) {
            let half =
                || format!("a membership of {object:#x} in {collection:#x} of which only a half is there");
            self.wrong(half, [(key(kind, home, a, b), None)]);
        } else if kind == MEMBER {
            self.seen.entry((home, collection)).or_default().members += 1;
        } else {
            self.seen.entry((home, object)).or_default().memberships += 1;
        }
    }

    /// Claims of records that the rest contradicts.
    fn conclude(&mut self) -> Result<(), Error> {
        let off: Vec<((u64, u64), i64, i64, bool)> = self
            .seen
            .iter()
            .filter(|(_, s)| s.blocks != 0 || s.spilled != 0 || s.memberships > s.collections)
            .map(|(id, s)| (*id, s.blocks, s.spilled, s.user))
            .collect();
        for ((home, id), blocks, spilled, user) in off {
            let own = match (home, id) {
                (0, 0) => key(record::ROOT, 0, 0, 0),
                (0, id) => key(PARTITION, id, 0, 0),
                _ if user => key(USER, home, id, 0),
                _ => key(COLLECTION, home, id, 0),
            };
            let name = Id::new(home, id);
            let found = self.inner.layers.get(&own, |v| View::new(&own, v, name).map(View::to_record))?;
            let mut record = match found {
                Some(Ok(record)) => record,
                // Its times and short attributes are lost.
                _ if (home, id) == (0, 0) => Record::default(),
                _ => continue,
            };
            record.b = if user { record.b.saturating_add_signed(-blocks) } else { record.b };
            record.spilled = u32::try_from(i64::from(record.spilled) - spilled).unwrap_or(0);
            if user {
                record.c = record.c.max(self.seen.get(&(home, id)).map_or(0, |s| s.memberships));
            }
            let value = Some(Arc::from(record.encode(&own)));
            self.wrong(
                || format!("object {id:#x}: its blocks, attributes or collections are counted wrongly"),
                [(own, value)],
            );
        }
        Ok(())
    }
}

struct Examined {
    report: CheckReport,
    puts: BTreeMap<Key, Val>,
    /// Findings that nothing is put right for.
    open: u64,
}

impl Inner {
    pub(super) async fn check(self: &Arc<Self>, partition: u64, repair: bool) -> Result<CheckReport, Error> {
        let held = self.lock_all().await;
        let home = match partition {
            0 => None,
            id => Some(self.directory().partition(id)?.home),
        };
        let Examined { mut report, mut puts, mut open } =
            self.aside(move |inner| inner.examine(home)).await?;
        if repair && report.wrong > 0 {
            if home.is_none() {
                let linked = self.aside(Self::relink).await?;
                open = open.saturating_sub(linked.len() as u64);
                puts.extend(linked);
            }
            let (mut some, mut bytes) = (BTreeMap::new(), 0);
            for (key, value) in puts {
                bytes += entry_len(&value);
                some.insert(key, value);
                if bytes >= self.part_bytes() {
                    self.commit_puts(std::mem::take(&mut some)).await?;
                    bytes = 0;
                }
            }
            self.commit_puts(some).await?;
            self.recount().await?;
            report.repaired = report.wrong.saturating_sub(open);
        }
        drop(held);
        Ok(report)
    }

    /// Does what takes long without waiting for anything on another thread, so that this core goes
    /// on serving.
    async fn aside<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let inner = self.clone();
        match self.has_thread {
            true => runtime::blocking(move || work(&inner)).await,
            false => work(&inner),
        }
    }

    /// Examines everything, or the contents of one home.
    fn examine(&self, home: Option<u64>) -> Result<Examined, Error> {
        let mut check = Check {
            inner: self,
            report: CheckReport::default(),
            puts: BTreeMap::new(),
            seen: HashMap::new(),
            open: 0,
            home,
            dying: unpoisoned(self.dying.lock()).iter().copied().collect(),
        };
        check.look()?;
        check.conclude()?;
        let Check { mut report, puts, open, .. } = check;
        if home.is_none() {
            self.check_sums(&mut report)?;
        }
        Ok(Examined { report, puts, open })
    }

    /// Shows the arena's blocks as they are counted, and as they are if `used` is all that objects
    /// use. The latter includes blocks that no object uses and that are not free yet. No block
    /// changes between the two.
    fn with_space<R>(&self, used: Vec<Blocks>, f: impl FnOnce(&mut Space, Space) -> R) -> R {
        // All changes need the log: the slow work comes before.
        let mut found = Space::new(self.capacity_blocks, used);
        let log = self.log();
        let limbo = self.limbo();
        let mut space = self.space();
        let frozen = log.frozen.iter().flat_map(|frozen| frozen.freed.iter());
        for blocks in log.freed.iter().chain(frozen).chain(&limbo.blocks) {
            found.occupy(*blocks);
        }
        f(&mut space, found)
    }

    fn check_sums(&self, report: &mut CheckReport) -> Result<(), Error> {
        let counted = count(&self.layers)?;
        let dying: BTreeSet<u64> = unpoisoned(self.dying.lock()).iter().copied().collect();
        {
            let directory = self.directory();
            for (id, found) in &counted.directory.partitions {
                let kept = directory.partitions.get(id);
                let sums =
                    |p: &super::directory::Partition| (p.home, p.objects, p.collections, p.blocks, p.length);
                if kept.map(sums) != Some(sums(found)) {
                    report.found(|| format!("partition {id:#x}: its sums are wrong"));
                }
            }
            for home in &counted.homes {
                let known = counted.directory.partitions.values().any(|p| p.home == *home);
                if !known && !dying.contains(home) {
                    report.found(|| format!("objects of a partition that is not known ({home})"));
                }
            }
        }
        if counted.damaged == 0 && !self.damaged.load(Ordering::Relaxed) {
            if !self.with_space(counted.used, |space, found| space.is_like(&found)) {
                report.found(|| "blocks of the arena are counted wrongly".to_owned());
            }
        }
        Ok(())
    }

    /// A partition whose record cannot be read, and content that no partition names, belong
    /// together if there is one of each.
    fn relink(&self) -> Result<Vec<(Key, Val)>, Error> {
        let counted = count(&self.layers)?;
        let mut lost = Vec::new();
        scan(&self.layers, PARTITION, |at, [id, _, _], value| {
            if View::new(at, value, Id::partition(id)).is_err() {
                lost.push(*at);
            }
        })?;
        let dying = unpoisoned(self.dying.lock()).clone();
        let known = |home: &u64| counted.directory.partitions.values().any(|p| p.home == *home);
        let homes: Vec<u64> =
            counted.homes.iter().copied().filter(|home| !known(home) && !dying.contains(home)).collect();
        let record = |at: Key, home| {
            let record = Record { a: home, ..Record::default() };
            (at, Some(Arc::from(record.encode(&at))))
        };
        Ok(match (&lost[..], &homes[..]) {
            ([one], [home]) => vec![record(*one, *home)],
            (lost, []) => {
                // Empty ones.
                let home = counted.directory.next_home.max(self.directory().next_home);
                self.directory_mut().next_home = home + lost.len() as u64;
                lost.iter().zip(home..).map(|(at, home)| record(*at, home)).collect()
            }
            _ => Vec::new(),
        })
    }

    async fn recount(self: &Arc<Self>) -> Result<(), Error> {
        let mut counted = self.aside(|inner| count(&inner.layers)).await?;
        let damaged = counted.damaged > 0;
        {
            let mut directory = self.directory_mut();
            for (id, partition) in &mut counted.directory.partitions {
                let (next, highest) = directory.partitions.get(id).map_or((0, 0), |p| (p.next_id, p.highest));
                partition.next_id = partition.next_id.max(next);
                partition.highest = partition.highest.max(highest);
            }
            let next = (directory.next_partition, directory.next_home);
            *directory = counted.directory;
            directory.next_partition = directory.next_partition.max(next.0);
            directory.next_home = directory.next_home.max(next.1);
        }
        if self.damaged.load(Ordering::Relaxed) && !damaged {
            let used = counted.used.clone();
            let free: Vec<Blocks> =
                self.aside(|inner| inner.with_space(used, |_, found| found.free().collect())).await;
            for free in free {
                self.arena.discard(free.at * BLOCK, free.len * BLOCK).await?;
            }
            self.arena.sync().await?;
        }
        let used = counted.used;
        self.aside(move |inner| {
            if !inner.damaged.load(Ordering::Relaxed) && !damaged {
                // Space of deleted objects is freed like any other: not zeros yet, and perhaps
                // being read.
                let given_up: Vec<Blocks> = inner.with_space(used.clone(), |space, found| {
                    let mut before = Ranges::default();
                    space.free().for_each(|free| before.add(free.at, free.at + free.len));
                    let pieces = found.free().flat_map(|free| before.without(free.at, free.at + free.len));
                    pieces.map(|(at, end)| Blocks { at, len: end - at }).collect()
                });
                inner.log().freed.extend(given_up);
            }
            inner.with_space(used, |space, found| *space = found);
            inner.damaged.store(damaged, Ordering::Relaxed);
        })
        .await;
        Ok(())
    }
}
