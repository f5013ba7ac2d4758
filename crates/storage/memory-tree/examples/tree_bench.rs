//! Measures a tree in memory without a network: µs of one core for each operation.
//!
//! ```text
//! cargo run --release -p memory-tree --example tree_bench -- [OPERATION]
//! ```
//! With an operation's name, that one alone, for 10 s: for a profiler.

use std::future::Future;
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memory_tree::{Limits, MemoryTree, Root};
use runtime::{Buf, Chain, Config, Runtime, pool};
use tree::{
    Answer, Caller, DirRoom, New, NewFile, NodeId, RemovedKind, SetAttributes, Stability, Tree, TreeError,
};

/// Bytes of the large file.
const SIZE: u64 = 2 << 30;
/// Entries of the large directory.
const ENTRIES: u64 = 10_000;

fn now<T: Unpin>(answer: Answer<T>) -> Result<T, TreeError> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => Err(TreeError::Delay),
    }
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Bench {
    tree: MemoryTree,
    caller: Caller,
    file: NodeId,
    directory: NodeId,
    random: Random,
    small: Buf,
    large: Buf,
    created: u64,
}

fn buffer(len: usize) -> io::Result<Buf> {
    let mut buf = pool::alloc(len).ok_or(io::ErrorKind::OutOfMemory)?;
    buf.fill(0x5a);
    Ok(buf.freeze())
}

impl Bench {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let limits = Limits { bytes: SIZE + (1 << 30), files: 1 << 20 };
        let tree = MemoryTree::new(limits, Root { mode: 0o755, uid: 1000, gid: 1000 })?;
        let caller = Caller { uid: 1000, gid: 1000, groups: [4, 24, 27, 30].into() };
        let root = tree.root();
        let file = now(tree.create(&caller, &root, b"file", empty_file()))?.node;
        let directory =
            now(tree.create(&caller, &root, b"directory", New::Directory(SetAttributes::default())))?.node;
        for i in 0..ENTRIES {
            now(tree.create(&caller, &directory, format!("entry{i:06}").as_bytes(), empty_file()))?;
        }
        let (small, large) = (buffer(4096)?, buffer(1 << 20)?);
        for at in (0..SIZE).step_by(1 << 20) {
            now(tree.write(&caller, &file, at, large.clone().into(), Stability::Unstable))?;
        }
        Ok(Self { tree, caller, file, directory, random: Random(4711), small, large, created: 0 })
    }

    /// Does it once, and returns the number of bytes or entries.
    fn operate(&mut self, operation: &str) -> Result<u64, TreeError> {
        let Self { tree, caller, file, directory, random, .. } = self;
        Ok(match operation {
            "attributes" => {
                black_box(now(tree.attributes(file))?);
                0
            }
            "access" => {
                black_box(now(tree.access(caller, file, tree::Permissions::ALL))?);
                0
            }
            "lookup" => {
                let mut name = *b"entry000000";
                let mut number = random.below(ENTRIES);
                for digit in name[5..].iter_mut().rev() {
                    *digit += (number % 10) as u8;
                    number /= 10;
                }
                black_box(now(tree.lookup(caller, directory, &name))?);
                0
            }
            "read-4k" => {
                let at = random.below(SIZE / 4096) * 4096;
                now(tree.read(caller, file, at, 4096))?.data.len() as u64
            }
            "read-1m" => {
                let at = random.below(SIZE >> 20) << 20;
                now(tree.read(caller, file, at, 1 << 20))?.data.len() as u64
            }
            "write-4k" => {
                let at = random.below(SIZE / 4096) * 4096;
                write(tree, caller, file, at, &self.small)?
            }
            "write-1m" => {
                let at = random.below(SIZE >> 20) << 20;
                write(tree, caller, file, at, &self.large)?
            }
            "append-1m-and-cut" => {
                if self.created % 256 == 0 {
                    let set = SetAttributes { size: Some(SIZE), ..SetAttributes::default() };
                    now(tree.set_attributes(caller, file, &set, None))?;
                }
                let at = SIZE + ((self.created % 256) << 20);
                self.created += 1;
                write(tree, caller, file, at, &self.large)?
            }
            "create-and-remove" => {
                now(tree.create(caller, directory, b"new", empty_file()))?;
                now(tree.remove(caller, directory, b"new", RemovedKind::File))?;
                0
            }
            "create-write-4k-remove" => {
                let node = now(tree.create(caller, directory, b"new", empty_file()))?.node;
                let len = write(tree, caller, &node, 0, &self.small)?;
                now(tree.remove(caller, directory, b"new", RemovedKind::File))?;
                len
            }
            "create-write-read-4k-remove" => {
                let node = now(tree.create(caller, directory, b"new", empty_file()))?.node;
                let len = write(tree, caller, &node, 0, &self.small)?;
                black_box(now(tree.read(caller, &node, 0, 4096))?.data.len());
                now(tree.remove(caller, directory, b"new", RemovedKind::File))?;
                len
            }
            "list-32k" | "list-32k-with-attributes" => {
                let nodes = operation != "list-32k";
                let room =
                    DirRoom { bytes: 32 << 10, each: if nodes { 150 } else { 24 }, names: 32 << 10, nodes };
                let cookie = random.below(ENTRIES * 9 / 10);
                now(tree.read_dir(caller, directory, cookie, room))?.entries.len() as u64
            }
            _ => return Err(TreeError::Unsupported),
        })
    }
}

fn write(tree: &MemoryTree, caller: &Caller, file: &NodeId, at: u64, data: &Buf) -> Result<u64, TreeError> {
    let data = Chain::from(data.clone());
    Ok(now(tree.write(caller, file, at, data, Stability::Unstable))?.len as u64)
}

/// Time that this thread has had of a processor.
fn processor_time() -> io::Result<Duration> {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = times.split_whitespace().next().and_then(|time| time.parse().ok());
    first.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn empty_file() -> New<'static> {
    New::File(NewFile::Guarded(SetAttributes { mode: Some(0o644), ..SetAttributes::default() }))
}

const OPERATIONS: [&str; 13] = [
    "attributes",
    "access",
    "lookup",
    "read-4k",
    "read-1m",
    "write-4k",
    "write-1m",
    "append-1m-and-cut",
    "create-and-remove",
    "create-write-4k-remove",
    "create-write-read-4k-remove",
    "list-32k",
    "list-32k-with-attributes",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let time = Duration::from_secs(if only.is_some() { 10 } else { 1 });
    Runtime::new(Config { core: Some(1), ..Config::default() })?.block_on(async {
        let mut bench = Bench::new()?;
        for operation in OPERATIONS.iter().filter(|name| only.as_deref().is_none_or(|only| only == **name)) {
            let (start, mut done, mut amount) = (Instant::now(), 0u64, 0u64);
            let before = processor_time()?;
            while start.elapsed() < time {
                for _ in 0..16 {
                    amount += bench.operate(operation)?;
                    done += 1;
                }
            }
            let each = (processor_time()? - before).as_secs_f64() / done as f64;
            let part = amount as f64 / done as f64;
            print!("{operation:28} {:9.3} µs", each * 1e6);
            match operation.starts_with("list") {
                true => println!(", {:.0} entries, {:.3} µs each", part, each * 1e6 / part),
                false if part > 0.0 => println!(", {:.1} GB/s", part / each / 1e9),
                false => println!(),
            }
        }
        Ok(())
    })
}
