//! fjall against redb, with records of the size that the object store keeps: which of them should hold its metadata.
//!
//! `stag-bench-metadata DIRECTORY [RECORDS]` prints microseconds an operation for each: load in batches, get, scan, one put
//! that is synced (1 and 16 writers), one put that is not, and a batch of 1000 with one sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What both can do.
trait Store: Send + Sync + 'static {
    fn put(&self, records: &[(u64, [u8; 200])], sync: bool);
    fn get(&self, key: u64) -> usize;
    fn scan(&self, from: u64, count: usize) -> usize;
}

/// Keys as the object store's: a kind, a partition, an object.
fn key(object: u64) -> [u8; 17] {
    let mut key = [b'o'; 17];
    key[1..9].copy_from_slice(&0x10000u64.to_be_bytes());
    key[9..].copy_from_slice(&object.to_be_bytes());
    key
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Store for Fjall {
    fn put(&self, records: &[(u64, [u8; 200])], sync: bool) {
        let mut batch = self.0.batch();
        for (at, value) in records {
            batch.insert(&self.1, key(*at), value);
        }
        batch.commit().unwrap();
        self.0.persist(if sync { fjall::PersistMode::SyncData } else { fjall::PersistMode::Buffer }).unwrap();
    }
    fn get(&self, at: u64) -> usize {
        self.1.get(key(at)).unwrap().map_or(0, |v| v.len())
    }
    fn scan(&self, from: u64, count: usize) -> usize {
        self.1.range(key(from)..).take(count).map(|kv| kv.into_inner().unwrap().0.len()).sum()
    }
}

struct Redb(redb::Database);

const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("t");

impl Store for Redb {
    fn put(&self, records: &[(u64, [u8; 200])], sync: bool) {
        let mut transaction = self.0.begin_write().unwrap();
        transaction.set_durability(if sync { redb::Durability::Immediate } else { redb::Durability::None }).unwrap();
        {
            let mut table = transaction.open_table(TABLE).unwrap();
            for (at, value) in records {
                table.insert(key(*at).as_slice(), value.as_slice()).unwrap();
            }
        }
        transaction.commit().unwrap();
    }
    fn get(&self, at: u64) -> usize {
        use redb::ReadableDatabase;
        let table = self.0.begin_read().unwrap().open_table(TABLE).unwrap();
        table.get(key(at).as_slice()).unwrap().map_or(0, |v| v.value().len())
    }
    fn scan(&self, from: u64, count: usize) -> usize {
        use redb::ReadableDatabase;
        let table = self.0.begin_read().unwrap().open_table(TABLE).unwrap();
        table.range(key(from).as_slice()..).unwrap().take(count).map(|kv| kv.unwrap().0.value().len()).sum()
    }
}

fn value(seed: u64) -> [u8; 200] {
    let mut value = [0; 200];
    for (at, word) in value.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64).to_le_bytes()[..word.len()]);
    }
    value
}

/// Microseconds an operation for `life`, by so many threads.
fn each(threads: usize, life: Duration, work: impl Fn(u64) + Send + Sync + 'static) -> f64 {
    let (work, count) = (Arc::new(work), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (work, count) = (work.clone(), count.clone());
            std::thread::spawn(move || {
                while start.elapsed() < life {
                    work(count.fetch_add(1, Ordering::Relaxed));
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    start.elapsed().as_secs_f64() * 1e6 / count.load(Ordering::Relaxed) as f64
}

fn measure(name: &str, store: impl Store, records: u64) {
    let store = Arc::new(store);
    let start = Instant::now();
    for first in (0..records).step_by(1000) {
        let batch: Vec<_> = (first..(first + 1000).min(records)).map(|at| (at, value(at))).collect();
        store.put(&batch, false);
    }
    store.put(&[(0, value(0))], true);
    println!("{name:6} load         {:8.2} us a record", start.elapsed().as_secs_f64() * 1e6 / records as f64);
    let life = Duration::from_millis(1000);
    let random = move |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % records;
    let say = |what: &str, us: f64| println!("{name:6} {what:12} {us:8.2} us");
    let s = store.clone();
    say("get", each(1, life, move |n| assert_eq!(s.get(random(n)), 200)));
    let s = store.clone();
    say("scan 100", each(1, life, move |n| assert!(s.scan(random(n) / 2, 100) > 0)));
    let s = store.clone();
    say("put", each(1, life, move |n| s.put(&[(random(n), value(n))], false)));
    let s = store.clone();
    say("put sync x1", each(1, life, move |n| s.put(&[(random(n), value(n))], true)));
    let s = store.clone();
    say("put sync x16", each(16, life, move |n| s.put(&[(random(n), value(n))], true)));
    let s = store.clone();
    say("1000 + sync", each(1, life, move |n| {
        let batch: Vec<_> = (0..1000).map(|at| (random(n * 1000 + at), value(n))).collect();
        s.put(&batch, true);
    }));
}

fn overwrite(directory: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(directory.join("raw")).unwrap();
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let us = each(1, Duration::from_millis(1000), move |n| {
        file.write_all_at(&[n as u8; 4096], (n % 256) * 4096).unwrap();
        file.sync_data().unwrap();
    });
    println!("raw    overwrite    {us:8.2} us (4 KiB + fdatasync)");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory");
    let records = arguments.next().map_or(1_000_000, |n| n.parse().expect("a number"));
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory).unwrap();
    overwrite(directory);
    let database = redb::Builder::new().set_cache_size(64 << 20).create(directory.join("redb")).unwrap();
    measure("redb", Redb(database), records);
    let database = fjall::Database::builder(directory.join("fjall")).cache_size(64 << 20).open().unwrap();
    let keyspace = database.keyspace("t", fjall::KeyspaceCreateOptions::default).unwrap();
    measure("fjall", Fjall(database, keyspace), records);
    overwrite(directory);
}
