//! Cost of the runtime's parts by themselves, in nanoseconds: `ring_costs [ROUNDS=1000000]`.

use std::future::Future;
use std::time::{Duration, Instant};

use runtime::{
    Buf, Config, File, Gather, OpenOptions, Pooled, Region, Runtime, pool, sleep, spawn, yield_now,
};

fn report(what: &str, rounds: usize, start: Instant) {
    println!("{what:<50} {:8.1} ns", start.elapsed().as_nanos() as f64 / rounds as f64);
}

fn measure(what: &str, rounds: usize, mut f: impl FnMut(usize)) {
    (0..rounds / 10).for_each(&mut f);
    let start = Instant::now();
    (0..rounds).for_each(&mut f);
    report(what, rounds, start);
}

async fn measure_async<F: Future>(what: &str, rounds: usize, mut f: impl FnMut(usize) -> F) {
    for i in 0..rounds / 10 {
        f(i).await;
    }
    let start = Instant::now();
    for i in 0..rounds {
        f(i).await;
    }
    report(what, rounds, start);
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    let region = Region::new(64 << 20).expect("map");
    region.fill(0, 64 << 20, 1).expect("within");
    let block = pool::alloc(4096).expect("a buffer").freeze();
    measure("pool: take and give back 4 KiB", rounds, |_| drop(std::hint::black_box(pool::alloc(4096))));
    measure("buf: clone and drop", rounds, |_| drop(std::hint::black_box(block.clone())));
    measure("region: slice and drop", rounds, |i| {
        drop(std::hint::black_box(region.slice(i % 1000 * 4096, 4096)))
    });
    let mut bytes = [0u8; 4096];
    measure("region: read 4 KiB, the same", rounds, |_| region.read_into(8192, &mut bytes).expect("within"));
    measure("region: write 4 KiB, the same", rounds, |_| region.write_from(8192, &bytes).expect("within"));
    measure("pooled: a future of 200 bytes", rounds, |i| {
        drop(std::hint::black_box(Pooled::new(async move {
            let held = [i as u8; 200];
            yield_now().await;
            held[3]
        })))
    });
    let mut gather = Gather::new();
    measure("gather: header and 4 KiB, cleared every 32", rounds, |i| {
        gather.push_copy(&[1; 48]);
        gather.push(block.clone());
        if i % 32 == 31 {
            gather.clear();
        }
    });
    measure("buf: from a vector of 100 bytes", rounds, |_| {
        drop(std::hint::black_box(Buf::from(vec![0u8; 100])))
    });

    let runtime = Runtime::new(Config { core: Some(0), spin_us: 0, ..Config::default() }).expect("a ring");
    runtime.block_on(async {
        measure_async("yield of the main future", rounds, |_| yield_now()).await;
        measure("sleep: start and drop", rounds, |_| {
            let mut s = sleep(Duration::from_secs(10));
            let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(std::pin::Pin::new(&mut s).poll(cx).is_pending());
        });
        let start = Instant::now();
        for _ in 0..rounds / 32 {
            let handles: [_; 32] = std::array::from_fn(|i| spawn(async move { i }));
            for handle in handles {
                handle.await.expect("it ends");
            }
        }
        report("spawn and join, 32 at a time", rounds, start);
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                spawn(async move {
                    for _ in 0..rounds / 32 {
                        yield_now().await;
                    }
                })
            })
            .collect();
        let start = Instant::now();
        for task in tasks {
            task.await.expect("it ends");
        }
        report("wake and poll, 32 tasks yielding", rounds, start);
        let dir = tempfile::tempdir().expect("a directory");
        let options = OpenOptions { create: true, size: Some(1 << 20), ..OpenOptions::default() };
        let file = std::rc::Rc::new(File::open(dir.path().join("f"), options).expect("a file"));
        file.write_at(Buf::from(vec![1; 1 << 20]), 0, false).await.expect("written");
        for depth in [1, 32] {
            let rounds = rounds / 10;
            let start = Instant::now();
            let tasks: Vec<_> = (0..depth)
                .map(|_| {
                    let file = file.clone();
                    spawn(async move {
                        for i in 0..rounds / depth {
                            let buf = pool::alloc(512).expect("a buffer");
                            let (result, _) = file.read_at(buf, (i % 100 * 4096) as u64).await;
                            assert_eq!(result.expect("read"), 512);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("it ends");
            }
            report(&format!("file: read 512 bytes, {depth} at a time"), rounds, start);
            let start = Instant::now();
            let tasks: Vec<_> = (0..depth)
                .map(|_| {
                    let file = file.clone();
                    spawn(async move {
                        for i in 0..rounds / depth {
                            let buf = pool::alloc(4096).expect("a buffer").freeze();
                            file.write_at(buf, (i % 100 * 4096) as u64, false).await.expect("written");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("it ends");
            }
            report(&format!("file: write 4 KiB, {depth} at a time"), rounds, start);
        }
        use std::os::unix::fs::FileExt;
        let plain =
            std::fs::File::options().read(true).write(true).open(dir.path().join("f")).expect("a file");
        measure("file: write 4 KiB by pwrite", rounds / 10, |i| {
            plain.write_all_at(&bytes, (i % 100 * 4096) as u64).expect("written");
        });
        measure("file: read 512 bytes by pread", rounds / 10, |i| {
            assert_eq!(plain.read_at(&mut bytes[..512], (i % 100 * 4096) as u64).expect("read"), 512);
        });
    });
}
