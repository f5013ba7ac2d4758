//! What the file system takes for one small durable write: the floor of every durable command.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::LoadError;
use crate::args::Args;
use crate::tally::{Cpu, Tally};

const BLOCK: usize = 4096;

/// Overwrites 4 KiB of a file that is there already, and fdatasyncs, one after the other.
pub fn run(args: &Args, path: &Path) -> Result<Value, LoadError> {
    let failed = |error| LoadError::System("the file of the floor", error);
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    let data = [0x5A; BLOCK];
    for block in 0..256 {
        file.write_all_at(&data, block * BLOCK as u64).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let mut tally = Tally::new();
    let (mut begin, mut counting) = (Instant::now(), args.warm() == Duration::ZERO);
    let mut block = 0u64;
    loop {
        let before = Instant::now();
        if counting && before - begin >= args.measure() {
            break;
        }
        if !counting && before - begin >= args.warm() {
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
