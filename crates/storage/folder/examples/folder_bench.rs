//! Measures a folder without a network: µs for each operation, of the clock and of the processors.
//! The best of several rounds counts.
//!
//! ```text
//! cargo run --release -p folder --example folder_bench -- DIRECTORY [as-itself] [asynchronous]
//! ```
//! It makes a new directory in DIRECTORY and removes it again.

use std::error::Error;
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;

use folder::{Folder, Options};
use runtime::{Buf, Config, Runtime, spawn};
use rustix::time::ClockId;
use tree::{
    Caller, DirRoom, New, NewFile, Permissions, RemovedKind, SetAttributes, Stability, Tree, TreeError,
};

const ROUNDS: u32 = 5;
const ENTRIES: u32 = 10_000;
const SIZE: u64 = 64 << 20;

type Outcome = Result<(), TreeError>;

fn file() -> New<'static> {
    New::File(NewFile::Guarded(SetAttributes { mode: Some(0o644), ..SetAttributes::default() }))
}

/// Times of the clock and of the process's processors, in µs for each of so many operations.
struct Best {
    count: u32,
    clock: f64,
    cpu: f64,
}

impl Best {
    fn of(count: u32) -> Self {
        Self { count, clock: f64::INFINITY, cpu: f64::INFINITY }
    }

    fn cpu_s() -> f64 {
        let now = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    }

    async fn round(&mut self, round: impl Future<Output = Outcome>) -> Outcome {
        let (begin, cpu) = (Instant::now(), Self::cpu_s());
        round.await?;
        let each = |seconds: f64| seconds * 1e6 / f64::from(self.count);
        self.clock = self.clock.min(each(begin.elapsed().as_secs_f64()));
        self.cpu = self.cpu.min(each(Self::cpu_s() - cpu));
        Ok(())
    }

    fn print(&self, name: &str) {
        println!("{name:<44} {:>9.2} us {:>9.2} us cpu", self.clock, self.cpu);
    }
}

async fn measure<F: Future<Output = Outcome>>(
    name: &str,
    count: u32,
    mut round: impl FnMut(u32) -> F,
) -> Outcome {
    let mut best = Best::of(count);
    for number in 0..ROUNDS {
        best.round(round(number)).await?;
    }
    best.print(name);
    Ok(())
}

/// Creates files, `depth` at a time.
async fn create(folder: &Rc<Folder>, caller: &Caller, depth: u32, count: u32, durable: &str) -> Outcome {
    let (mut best, root) = (Best::of(count), folder.root());
    for _ in 0..ROUNDS {
        let tasks = async {
            let tasks: Vec<_> = (0..depth)
                .map(|task| {
                    let (folder, caller) = (Rc::clone(folder), caller.clone());
                    spawn(async move {
                        for n in (task..count).step_by(depth as usize) {
                            folder.create(&caller, &root, format!("new {n}").as_bytes(), file()).await?;
                        }
                        Ok::<(), TreeError>(())
                    })
                })
                .collect();
            for task in tasks {
                task.await.map_err(|_| TreeError::Delay)??;
            }
            Ok(())
        };
        best.round(tasks).await?;
        for n in 0..count {
            std::fs::remove_file(format!("new {n}"))?;
        }
    }
    best.print(&format!("create, {durable}, {depth} at a time"));
    Ok(())
}

async fn bench(folder: Rc<Folder>, asynchronous: bool) -> Outcome {
    let root = folder.root();
    let me = Caller::root();
    let user = Caller { uid: 1000, gid: 1000, groups: [4, 24, 27].into() };
    let node = folder.create(&me, &root, b"data", file()).await?.node;
    let mode = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    folder.set_attributes(&me, &node, &mode, None).await?;
    for at in (0..SIZE).step_by(1 << 20) {
        folder.write(&me, &node, at, Buf::from(vec![7; 1 << 20]).into(), Stability::Unstable).await?;
    }
    folder.commit(&me, &node, 0, 0).await?;
    let many = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    let many = folder.create(&me, &root, b"many", New::Directory(many)).await?.node;
    for n in 0..ENTRIES {
        std::fs::write(format!("many/entry {n:06}"), b"")?;
    }
    let names: Vec<String> = (0..ENTRIES).map(|n| format!("entry {n:06}")).collect();

    let (folder_, node_) = (&folder, &node);
    measure("attributes", 100_000, async |_| {
        for _ in 0..100_000 {
            folder_.attributes(node_).await?;
        }
        Ok(())
    })
    .await?;
    measure("access, by an ordinary user", 100_000, async |_| {
        for _ in 0..100_000 {
            folder_.access(&user, node_, Permissions::ALL).await?;
        }
        Ok(())
    })
    .await?;
    for (name, among) in [("lookup, of 1000 files that are open", 1000), ("lookup, of 10,000 files", ENTRIES)]
    {
        measure(name, among, async |_| {
            for name in &names[..among as usize] {
                folder_.lookup(&user, &many, name.as_bytes()).await?;
            }
            Ok(())
        })
        .await?;
    }
    for (who, caller) in [("super-user", &me), ("ordinary user", &user)] {
        measure(&format!("read of 4 KiB, cached, {who}"), 50_000, async |_| {
            for n in 0..50_000u64 {
                folder_.read(caller, node_, (n * 7919 % (SIZE >> 12)) << 12, 4096).await?;
            }
            Ok(())
        })
        .await?;
        let data: Buf = vec![1; 4096].into();
        measure(&format!("write of 4 KiB, unstable, {who}"), 20_000, async |_| {
            for n in 0..20_000u64 {
                let at = (n * 7919 % (SIZE >> 12)) << 12;
                folder_.write(caller, node_, at, data.clone().into(), Stability::Unstable).await?;
            }
            Ok(())
        })
        .await?;
    }
    measure("read of 1 MiB, cached", 200, async |_| {
        for n in 0..200u64 {
            folder_.read(&user, node_, (n % 64) << 20, 1 << 20).await?;
        }
        Ok(())
    })
    .await?;
    folder.commit(&me, &node, 0, 0).await?;
    for nodes in [false, true] {
        let name = if nodes { "read_dir, with attributes, an entry" } else { "read_dir, an entry" };
        measure(name, ENTRIES, async |_| {
            let (mut cookie, mut eof) = (0, false);
            while !eof {
                let room = DirRoom { bytes: 128 << 10, each: 200, names: 32 << 10, nodes };
                let part = folder_.read_dir(&user, &many, cookie, room).await?;
                (cookie, eof) = (part.entries.last().map_or(cookie, |entry| entry.cookie), part.eof);
            }
            Ok(())
        })
        .await?;
    }
    let durable = if asynchronous { "asynchronous" } else { "durable" };
    for (depth, count) in [(1, 200), (32, 3200)] {
        create(&folder, &me, depth, count, durable).await?;
    }
    let one = folder.create(&me, &root, b"one", file()).await?.node;
    measure("write of 4 KiB, durable", 100, async |_| {
        for _ in 0..100 {
            folder_.write(&me, &one, 0, Buf::from(vec![1; 4096]).into(), Stability::File).await?;
        }
        Ok(())
    })
    .await?;
    folder.remove(&me, &root, b"one", RemovedKind::File).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("say in which directory")?;
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let ground = tempfile::tempdir_in(directory)?;
    let tree = ground.path().join("tree");
    std::fs::create_dir(&tree)?;
    std::env::set_current_dir(&tree)?;
    let options = Options {
        as_itself: has("as-itself"),
        asynchronous: has("asynchronous"),
        ..Options::new(ground.path().join("state"))
    };
    let folder = Rc::new(Folder::open(&tree, &options)?);
    Runtime::new(Config::default())?.block_on(bench(folder, options.asynchronous))?;
    Ok(())
}
