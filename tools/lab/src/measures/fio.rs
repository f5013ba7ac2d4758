//! fio on a file, by io_uring, without any server or network: what there is to serve. It runs on
//! the target's processors, and its processor time stands where a target's would.

use serde_json::Value;

use super::scratch::Scratch;
use super::servers::need;
use super::words;
use crate::context::{Context, Role};
use crate::measure::Error;
use crate::point::Point;
use crate::sample::Sample;

/// Runs fio once. It reads the settings `unit` ("file", "tmpfs"), `unit-size`, `unit-options` (of
/// which `cache=direct` counts), `pattern`, `block`, `depth`, `seconds` and `warmup`.
///
/// # Errors
/// [`Error::Missing`] if fio is not installed, or the file system does no O_DIRECT.
pub fn run(point: &Point, context: &Context) -> Result<Sample, Error> {
    let fio = need("fio", "fio")?;
    let in_memory = point.text("unit")?.as_deref() != Some("file");
    let file = Scratch::file(context, in_memory, point.whole("unit-size")?.unwrap_or(64 << 20))?;
    let direct = words::is_direct(point)?;
    if direct {
        file.settle()?;
    }
    let pattern = point.text("pattern")?.unwrap_or_else(|| "randread".to_owned());
    let (seconds, warmup) = words::times(point)?;
    let mut command = context.command(Role::Target, fio);
    command.args(["--name=local", "--ioengine=io_uring", "--time_based", "--norandommap"]);
    command.args(["--allow_file_create=0", "--invalidate=0", "--output-format=json"]);
    command.arg(format!("--filename={}", file.path().display().to_string().replace(':', "\\:")));
    command.arg(format!("--direct={}", u8::from(direct))).arg(format!("--rw={pattern}"));
    command.arg(format!("--bs={}", point.whole("block")?.unwrap_or(4096)));
    command.arg(format!("--iodepth={}", point.whole("depth")?.unwrap_or(32)));
    command
        .arg(format!("--ramp_time={:.0}ms", warmup * 1e3))
        .arg(format!("--runtime={:.0}ms", seconds * 1e3));
    let printed = context.output(command, "fio")?;
    // Warnings may come first.
    let text = printed.find('{').and_then(|at| printed.get(at..)).unwrap_or_default();
    let mut found = words::json("fio", text)?;
    read(&found["jobs"][0].take(), pattern.ends_with("read"))
}

/// Reads the figures of fio's job.
///
/// # Errors
/// If I/Os failed, or none ended.
pub(super) fn read(job: &Value, reads: bool) -> Result<Sample, Error> {
    let side = &job[if reads { "read" } else { "write" }];
    if job["error"].as_i64() != Some(0) {
        return Err(Error::Failed(format!("fio's I/Os failed: error {}", job["error"])));
    }
    let iops = words::number(side, "iops")?;
    if iops <= 0.0 {
        return Err(Error::Failed("no I/O ended".to_owned()));
    }
    let busy = words::number(job, "usr_cpu")? + words::number(job, "sys_cpu")?;
    let mut sample = Sample::new();
    sample.rate("iops", iops, "IOPS");
    sample.rate("mb_s", words::number(side, "bw_bytes")? / 1e6, "MB/s");
    for (name, part) in [("p50_us", "50.000000"), ("p99_us", "99.000000"), ("p999_us", "99.900000")] {
        if let Some(ns) = side["clat_ns"]["percentile"][part].as_f64() {
            sample.cost(name, ns / 1e3, "µs");
        }
    }
    if let Some(ns) = side["clat_ns"]["max"].as_f64() {
        sample.cost("max_us", ns / 1e3, "µs");
    }
    sample.cost("target_us", busy * 1e4 / iops, "µs");
    sample.fact("target_percent", busy, "%");
    sample.raw = job.clone();
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_fio_prints_is_a_sample_like_others() {
        let side = json!({ "iops": 40_000.0, "bw_bytes": 163_840_000, "clat_ns": { "max": 9_000_000, "percentile": { "50.000000": 700_000, "99.000000": 2_000_000, "99.900000": 3_000_000 } } });
        let job =
            json!({ "error": 0, "usr_cpu": 10.0, "sys_cpu": 30.0, "write": side, "read": { "iops": 0.0 } });
        let found = read(&job, false).unwrap();
        let of = |name: &str| found.values[name].value;
        assert_eq!((of("iops"), of("mb_s")), (40_000.0, 163.84));
        assert_eq!(
            (of("p50_us"), of("p99_us"), of("p999_us"), of("max_us")),
            (700.0, 2000.0, 3000.0, 9000.0)
        );
        assert!((of("target_us") - 10.0).abs() < 1e-9 && of("target_percent") == 40.0);
        assert!(read(&job, true).is_err(), "no read ended");
        assert!(read(&json!({ "error": 5 }), false).is_err());
    }
}
