//! The figures of the store of objects: `objects-figures DIRECTORY [OBJECTS]` prints what creating,
//! looking up and listing cost at 10^3 objects and more, with one and with 16 writers, durable and
//! relaxed, beside one 4 KiB overwrite with fdatasync.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use objects::store::embedded::{EmbeddedStore, Options};
use objects::store::{Change, Commit, FIRST_ID, List, ObjectStore, Step, TimesUpdate};
use osd::Id;

const P: u64 = FIRST_ID;

fn create(id: Id) -> Change {
    let mut change = Change::of(Step::CreateUser(id));
    let times = TimesUpdate { created: Some(1), attributes_modified: Some(1), ..TimesUpdate::default() };
    change.push(Step::SetTimes { id, times });
    change
}

/// Microseconds an operation for about `life`, by `tasks` tasks of one core.
async fn each<F: Future<Output = ()> + 'static>(
    tasks: usize,
    life: Duration,
    work: impl Fn(u64) -> F + 'static,
) -> f64 {
    let (work, count, start) = (Rc::new(work), Rc::new(std::cell::Cell::new(0u64)), Instant::now());
    let workers: Vec<_> = (0..tasks)
        .map(|_| {
            let (work, count) = (work.clone(), count.clone());
            runtime::spawn(async move {
                while start.elapsed() < life {
                    count.set(count.get() + 1);
                    work(count.get()).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("it ran");
    }
    start.elapsed().as_secs_f64() * 1e6 / count.get() as f64
}

async fn overwrite(directory: &Path) -> f64 {
    let path = directory.join("raw");
    std::fs::write(&path, vec![1; 1 << 20]).expect("written");
    let file = Rc::new(runtime::File::open(&path, runtime::OpenOptions::default()).expect("opened"));
    file.sync_all().await.expect("flushed");
    let us = each(1, Duration::from_secs(1), move |n| {
        let file = file.clone();
        async move {
            file.write_at(vec![n as u8; 4096], n % 256 * 4096, false).await.expect("written");
            file.sync_data().await.expect("flushed");
        }
    });
    let us = us.await;
    let _ = std::fs::remove_file(path);
    us
}

async fn figures(directory: &Path, most: u64) {
    let options = Options { capacity: Some(8 << 30), create: true, ..Options::default() };
    let objects = directory.join("objects");
    let store = Rc::new(EmbeddedStore::open(&objects, &options).expect("opened"));
    store.apply(Step::CreatePartition(P).into(), Commit::Durable).await.expect("created");
    let second = Duration::from_secs(1);
    let (mut count, mut at) = (0, 1000);
    println!("objects   create  lookup  getattr  list 100 (microseconds; relaxed)");
    while at <= most {
        let start = Instant::now();
        let first = count;
        while count < at {
            let id = Id::new(P, store.reserve_ids(P, 1).expect("an id"));
            store.apply(create(id), Commit::Relaxed).await.expect("created");
            count += 1;
        }
        let creating = start.elapsed().as_secs_f64() * 1e6 / (count - first) as f64;
        let random = move |n: u64| FIRST_ID + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % at;
        let life = Duration::from_millis(300);
        let s = store.clone();
        let lookup = each(1, life, move |n| {
            s.object(Id::new(P, random(n))).expect("it is there");
            std::future::ready(())
        });
        let lookup = lookup.await;
        let s = store.clone();
        let getattr = each(1, life, move |n| {
            let _ = s.attribute(Id::new(P, random(n)), 1, 1, &mut Vec::new()).expect("it is there");
            std::future::ready(())
        });
        let getattr = getattr.await;
        let s = store.clone();
        let list = each(1, life, move |n| {
            s.list(List::Users(P), random(n), 100, &mut Vec::new()).expect("a list");
            std::future::ready(())
        });
        println!("{at:8} {creating:7.2} {lookup:7.2} {getattr:8.2} {:9.2}", list.await);
        at *= 10;
    }
    let before = overwrite(directory).await;
    for tasks in [1, 16] {
        let s = store.clone();
        let us = each(tasks, second, move |_| {
            let s = s.clone();
            async move {
                let id = Id::new(P, s.reserve_ids(P, 1).expect("an id"));
                s.apply(create(id), Commit::Durable).await.expect("created");
            }
        });
        println!("durable create, {tasks:2} writers: {:8.2} us an object", us.await);
    }
    for (len, tasks) in [(4096, 1), (4096, 16), (65536, 1), (1 << 20, 1)] {
        let s = store.clone();
        let us = each(tasks, second, move |_| {
            let s = s.clone();
            async move {
                let id = Id::new(P, s.reserve_ids(P, 1).expect("an id"));
                let mut change = create(id);
                change.push(Step::Write { id, at: 0, data: vec![1; len].into() });
                s.apply(change, Commit::Durable).await.expect("created");
            }
        });
        println!("durable create and write of {len} bytes, {tasks:2} writers: {:8.2} us an object", us.await);
    }
    let after = overwrite(directory).await;
    println!("4 KiB overwrite + fdatasync, before and after: {before:.2} and {after:.2} us");
    drop(store);
    let start = Instant::now();
    let store = EmbeddedStore::open(&objects, &options).expect("opened");
    println!("opened again after a close in {:?}, {} objects", start.elapsed(), store.root().objects);
    let start = Instant::now();
    let step =
        Step::Duplicate { source: P, id: P + 1, kind: objects::store::Duplicate::Snapshot, made_ms: 1 };
    store.apply(step.into(), Commit::Durable).await.expect("a snapshot");
    println!("snapshot of the partition in {:?}", start.elapsed());
    let start = Instant::now();
    let report = store.check(0, false).await.expect("a check");
    println!("check in {:?}: {} objects, {} wrong", start.elapsed(), report.objects, report.wrong);
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory on a disk");
    let most = arguments.next().map_or(100_000, |n| n.parse().expect("a number"));
    std::fs::create_dir_all(&directory).expect("a directory");
    let runtime = runtime::Runtime::new(runtime::Config::default()).expect("a ring");
    runtime.block_on(figures(Path::new(&directory), most));
}
