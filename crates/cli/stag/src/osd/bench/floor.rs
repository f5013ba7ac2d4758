//! What the file system takes for one small durable write: the floor of every durable command.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::tally::{Cpu, Tally};
use crate::args::osd_bench::OsdBench;
use crate::osd::error::OsdError;

const BLOCK: usize = 4096;

/// Overwrites 4 KiB of a file that is there already, and fdatasyncs, one after the other.
pub fn run(args: &OsdBench, path: &Path) -> Result<Value, OsdError> {
    let failed = |error| OsdError::io(path)(error);
    let seconds = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1));
    let (warm, measure) = (seconds(args.warmup), seconds(args.time));
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    let data = [0x5A; BLOCK];
    for block in 0..256 {
        file.write_all_at(&data, block * BLOCK as u64).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let mut tally = Tally::new();
    let (mut begin, mut counting) = (Instant::now(), warm == Duration::ZERO);
    let mut block = 0u64;
    loop {
        let before = Instant::now();
        if counting && before - begin >= measure {
            break;
        }
        if !counting && before - begin >= warm {
            (begin, counting) = (before, true);
        }
        block = (block + 1) % 256;
        file.write_all_at(&data, block * BLOCK as u64).map_err(failed)?;
        rustix::fs::fdatasync(&file).map_err(|error| failed(error.into()))?;
        if counting {
            tally.count(before.elapsed());
        }
    }
    Ok(tally.report("floor", begin.elapsed().as_secs_f64(), BLOCK as u32, Cpu::default()))
}
