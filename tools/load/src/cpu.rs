//! Processor time of this process, and of another one and the whole machine from /proc.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::machine::Machine;

/// Processor times at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    at: Instant,
    own: Duration,
    target: Option<Duration>,
    machine: Option<Machine>,
}

/// Processor time between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// The time between them.
    pub time: Duration,
    pub own: Duration,
    /// CPU time of the target process, if it was named and still exists.
    pub target: Option<Duration>,
    /// What all processors did, for this process and all others.
    pub machine: Option<Machine>,
}

impl Sample {
    /// Now, with the process `target` if it is named.
    pub fn take(target: Option<u32>) -> Self {
        let target = target.and_then(used);
        Self { at: Instant::now(), own: own(), target, machine: Machine::now() }
    }

    /// CPU time used since `before`.
    pub fn since(&self, before: &Self) -> Spent {
        let target = self.target.zip(before.target).map(|(now, before)| now.saturating_sub(before));
        Spent {
            time: self.at.saturating_duration_since(before.at),
            own: self.own.saturating_sub(before.own),
            target,
            machine: self.machine.zip(before.machine).map(|(now, before)| now.since(&before)),
        }
    }
}

impl Spent {
    /// `used` in percent of one processor.
    pub fn percent(&self, used: Duration) -> f64 {
        100.0 * used.as_secs_f64() / self.time.as_secs_f64().max(1e-9)
    }

    /// `used` for each command of a load that had `rate` of them a second, µs; 0 if it had none.
    pub fn each_us(&self, used: Duration, rate: f64) -> f64 {
        if rate > 0.0 { self.percent(used) * 1e4 / rate } else { 0.0 }
    }
}

/// The processor time that this process has used.
pub fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, ns) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), ns.unwrap_or_default())
}

/// The processor time that the threads of process `pid` have used. `None` if there is no such
/// process.
///
/// `/proc/PID/task/*/schedstat` counts nanoseconds; where the kernel has no such file, the ticks of
/// `/proc/PID/stat` have to do.
pub fn used(pid: u32) -> Option<Duration> {
    by_schedstat(pid).or_else(|| parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
}

fn by_schedstat(pid: u32) -> Option<Duration> {
    let mut total = 0u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread may end between the two.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        total = total.saturating_add(text.split_ascii_whitespace().next()?.parse().ok()?);
    }
    (total > 0).then(|| Duration::from_nanos(total))
}

/// utime and stime of a `/proc/PID/stat` line (fields 14 and 15), in ticks of a hundredth second.
/// The command's name, in parentheses, may itself hold blanks and parentheses.
fn parse_stat(line: &str) -> Option<Duration> {
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(ticks()?.saturating_add(ticks()?).saturating_mul(10)))
}

/// The one process whose name is `name`.
///
/// # Errors
/// If there is none or more than one, in a sentence.
pub fn find(name: &str) -> Result<u32, String> {
    let processes = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    let mut found = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        // The kernel keeps 15 bytes of a name.
        if comm.trim_end() == name.get(..15).unwrap_or(name) && pid != std::process::id() {
            found.push(pid);
        }
    }
    match found[..] {
        [pid] => Ok(pid),
        [] => Err(format!("no process is called {name}")),
        _ => Err(format!("{} processes are called {name}: name one with --target-pid", found.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_a_nasty_command_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0";
        assert_eq!(parse_stat(line), Some(Duration::from_millis(1750)));
        assert_eq!(parse_stat("7 (x"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_busy_process_is_seen_to_be_busy() {
        let before = Sample::take(Some(std::process::id()));
        let start = Instant::now();
        let mut spent = Sample::take(Some(std::process::id())).since(&before);
        // Another process's time is counted in ticks, and only while this one gets a processor.
        while spent.target.is_none_or(|target| target.is_zero()) && start.elapsed() < Duration::from_secs(60)
        {
            spent = Sample::take(Some(std::process::id())).since(&before);
        }
        assert!(spent.percent(spent.own) > 0.0, "{spent:?}");
        assert!(spent.target.is_some_and(|target| spent.percent(target) > 0.0), "{spent:?}");
        assert!(spent.each_us(spent.own, 1.0) > 0.0 && spent.each_us(spent.own, 0.0) == 0.0);
        assert_eq!(Sample::take(Some(u32::MAX)).since(&before).target, None);
    }

    #[test]
    fn a_process_is_found_by_its_name_and_others_are_not() {
        assert!(find("no such name").is_err());
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = find("sleep");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // Another sleep may run on this machine.
        assert!(found == Ok(sleeper.id()) || found.unwrap_err().contains("--target-pid"));
    }
}
