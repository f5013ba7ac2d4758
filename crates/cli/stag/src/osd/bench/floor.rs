//! The time of one small durable write to the file system: the floor of every durable command.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use load::Window;
use serde_json::Value;

use super::tally::Tally;
use crate::args::osd_bench::OsdBench;
use crate::osd::error::OsdError;

const BLOCK: usize = 4096;

/// Overwrites 4 KiB of a file that is there already, and fdatasyncs, one after the other.
pub fn run(args: &OsdBench, path: &Path) -> Result<Value, OsdError> {
    let failed = |error| OsdError::io(path)(error);
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
    let data = [0x5A; BLOCK];
    for block in 0..256 {
        file.write_all_at(&data, block * BLOCK as u64).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let mut tally = Tally::default();
    let window = Window::new(Instant::now(), args.warmup, Some(args.time));
    let (mut block, mut begin) = (0u64, None);
    loop {
        let before = Instant::now();
        if window.is_over(before) {
            break;
        }
        block = (block + 1) % 256;
        file.write_all_at(&data, block * BLOCK as u64).map_err(failed)?;
        rustix::fs::fdatasync(&file).map_err(|error| failed(error.into()))?;
        if window.counts(before) {
            begin.get_or_insert(before);
            tally.latency.record_time(before.elapsed());
        }
    }
    let seconds = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
    Ok(tally.report("floor", seconds, BLOCK as u32, None))
}
