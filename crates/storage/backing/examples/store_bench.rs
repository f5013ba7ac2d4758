//! Measures a store without a network: random I/O at a queue depth, on one core.
//!
//! ```text
//! cargo run --release -p backing --example store_bench -- \
//!     disk.img,size=1G,cache=direct randread 4k 32 3
//! fio --name=x --filename=disk.img --size=1G --ioengine=io_uring --direct=1 --rw=randread \
//!     --bs=4k --iodepth=32 --cpus_allowed=1 --runtime=3 --time_based
//! ```
//! Arguments: STORE OPERATION [BYTES [DEPTH [SECONDS [CORE]]]]. OPERATION is randread, randwrite,
//! randwrite-fua, randwrite-sync (each write followed by a sync), read or write (sequential).

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backing::model::Random;
use backing::size::parse_size;
use backing::spec::StoreSpec;
use backing::{BlockStore, StoreError};
use runtime::{Buf, Config, Runtime, pool};

type Failure = Box<dyn std::error::Error>;

/// The parameters of one run.
struct Job {
    store: Arc<dyn BlockStore>,
    operation: String,
    bytes: usize,
    until: Instant,
    random: RefCell<Random>,
    next: Cell<u64>,
    done: Cell<u64>,
}

impl Job {
    fn offset(&self) -> u64 {
        let blocks = self.store.size() / self.bytes as u64;
        let block = match self.operation.starts_with("rand") {
            true => self.random.borrow_mut().below(blocks),
            false => self.next.replace(self.next.get() + 1) % blocks,
        };
        block * self.bytes as u64
    }

    async fn work(&self, data: Buf) -> Result<(), StoreError> {
        while Instant::now() < self.until {
            let at = self.offset();
            match self.operation.as_str() {
                "read" | "randread" => drop(self.store.read(at, self.bytes).await?),
                "randwrite-fua" => self.store.write(at, data.clone().into(), true).await?,
                "randwrite-sync" => {
                    self.store.write(at, data.clone().into(), false).await?;
                    self.store.sync().await?;
                }
                _ => self.store.write(at, data.clone().into(), false).await?,
            }
            self.done.set(self.done.get() + 1);
        }
        Ok(())
    }
}

/// Processor time of all of this process's threads, including the kernel's workers for it.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |at: usize, default: &str| args.get(at).cloned().unwrap_or_else(|| default.to_owned());
    let [store, operation] = [arg(0, ""), arg(1, "randread")];
    let bytes = parse_size(&arg(2, "4k"))? as usize;
    let (depth, seconds, core): (usize, u64, usize) =
        (arg(3, "32").parse()?, arg(4, "3").parse()?, arg(5, "1").parse()?);

    let mut parts = store.split(',');
    let mut spec = StoreSpec::parse(parts.next().unwrap_or(""))?;
    for part in parts {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        if !spec.set(key, value)? {
            return Err(format!("no option `{key}`").into());
        }
    }
    let opened = spec.open()?;
    let runtime = Runtime::new(Config { core: Some(core), ..Config::default() })?;
    let (elapsed, done, cpu) = runtime.block_on(async {
        let mut data = pool::alloc(bytes).ok_or("no buffer of that size")?;
        data.fill(0x5a);
        let data = data.freeze();
        if opened.store.writable() && !operation.contains("write") {
            // Fill the file first: reads of a sparse file would measure nothing.
            let piece = pool::MAX_ALLOC as u64;
            let mut fill = pool::alloc(pool::MAX_ALLOC).ok_or("no buffer")?;
            fill.fill(0xa5);
            let fill = fill.freeze();
            let mut at = 0;
            while at < opened.store.size() {
                let n = piece.min(opened.store.size() - at) as usize;
                opened.store.write(at, fill.slice(..n).into(), false).await?;
                at += n as u64;
            }
            opened.store.sync().await?;
        }
        let (start, cpu) = (Instant::now(), cpu_time());
        let job = Rc::new(Job {
            store: opened.store.clone(),
            operation: operation.clone(),
            bytes,
            until: start + Duration::from_secs(seconds),
            random: RefCell::new(Random::new(1)),
            next: Cell::new(0),
            done: Cell::new(0),
        });
        let workers: Vec<_> = (0..depth)
            .map(|_| {
                let (job, data) = (job.clone(), data.clone());
                runtime::spawn(async move { job.work(data).await })
            })
            .collect();
        for worker in workers {
            worker.await.map_err(|_| "a worker was lost")??;
        }
        Ok::<_, Failure>((start.elapsed(), job.done.get(), cpu_time() - cpu))
    })?;
    let rate = done as f64 / elapsed.as_secs_f64();
    println!(
        "{store} {operation} {bytes} bytes, depth {depth}: {rate:.0} IOPS, {:.1} MB/s, {:.2} µs of processor each",
        rate * bytes as f64 / 1e6,
        cpu.as_secs_f64() * 1e6 / done.max(1) as f64,
    );
    Ok(())
}
