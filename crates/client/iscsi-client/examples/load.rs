//! Random reads or writes of one size at a queue depth: `cargo run --release -p iscsi-client
//! --example load -- iscsi://HOST/IQN/LUN read|write [BYTES [DEPTH [SECONDS]]]`. Writing destroys
//! the data on the unit.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi_client::{Disk, Error, Options, Session, Url};
use runtime::{Chain, pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: load iscsi://HOST/IQN/LUN read|write [BYTES [DEPTH [SECONDS]]]";
    let args: Vec<String> = std::env::args().skip(1).collect();
    let url: Url = args.first().ok_or(usage)?.parse()?;
    let write = match args.get(1).map(String::as_str) {
        Some("read") => false,
        Some("write") => true,
        _ => return Err(usage.into()),
    };
    let number = |i: usize, default: u64| args.get(i).map_or(Ok(default), |a| a.parse());
    let (bytes, depth, seconds) = (number(2, 4096)?, number(3, 32)?, number(4, 5)?);
    let runtime = runtime::Runtime::new(runtime::Config::default())?;
    let (done, took) = runtime.block_on(load(&url, write, bytes, depth, Duration::from_secs(seconds)))?;
    let rate = done as f64 / took.as_secs_f64();
    println!(
        "{rate:.0} IOPS, {:.1} MiB/s, {:.2} µs",
        rate * bytes as f64 / 1048576.0,
        1e6 * depth as f64 / rate
    );
    Ok(())
}

async fn load(
    url: &Url,
    write: bool,
    bytes: u64,
    depth: u64,
    time: Duration,
) -> Result<(u64, Duration), Error> {
    let options = Options { queue_depth: depth as usize, ..Options::default() };
    let session = Session::connect(url, options).await?;
    let disk = Disk::open(&session, url.lun.unwrap_or(0)).await?;
    let blocks =
        u32::try_from(bytes / u64::from(disk.block_len())).map_err(|_| Error::Argument("too long"))?;
    let places = disk.blocks() / u64::from(blocks.max(1));
    if blocks == 0 || places == 0 {
        return Err(Error::Argument("the size is no whole number of blocks of the disk"));
    }
    let data: Chain = pool::alloc_many(bytes as usize)
        .map(|bufs| bufs.into_iter().map(runtime::BufMut::freeze).collect())
        .ok_or(Error::Argument("not enough memory"))?;
    let (done, begun) = (Rc::new(Cell::new(0u64)), Instant::now());
    let workers: Vec<_> = (0..depth)
        .map(|n| {
            let (disk, data, done) = (disk.clone(), data.clone(), done.clone());
            runtime::spawn(async move {
                let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                while begun.elapsed() < time {
                    // xorshift64
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let lba = state % places * u64::from(blocks);
                    if write {
                        disk.write(lba, data.clone()).await?;
                    } else {
                        disk.read(lba, blocks).await?;
                    }
                    done.set(done.get() + 1);
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for worker in workers {
        worker.await.map_err(|_| Error::Closed)??;
    }
    let result = (done.get(), begun.elapsed());
    session.close().await?;
    Ok(result)
}
