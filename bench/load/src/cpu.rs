//! Processor time of this process and of the target, from /proc.

use std::fs;
use std::time::Duration;

/// The processor time that all threads of process `pid` have used, the ended ones included, in nanoseconds.
///
/// `/proc/PID/task/*/schedstat` counts nanoseconds but forgets threads that ended; `/proc/PID/stat` counts ticks of 10 ms
/// and forgets nothing. The finer one is taken where the kernel has it. `None` if there is no such process.
pub fn used(pid: u32) -> Option<Duration> {
    by_schedstat(pid).or_else(|| by_stat(pid))
}

fn by_schedstat(pid: u32) -> Option<Duration> {
    let mut total = 0u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        total += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
    }
    (total > 0).then(|| Duration::from_nanos(total))
}

fn by_stat(pid: u32) -> Option<Duration> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// utime + stime of a `/proc/PID/stat` line (fields 14 and 15), in ticks of USER_HZ, which Linux fixes at 100 for all
/// architectures that it shows to user space. The command name, in parentheses, may itself hold blanks and parentheses.
fn parse_stat(line: &str) -> Option<Duration> {
    let fields: Vec<&str> = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_a_nasty_command_name() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0";
        assert_eq!(parse_stat(line), Some(Duration::from_millis(1750)));
        assert_eq!(parse_stat("7 (x"), None);
    }

    #[test]
    fn this_process_has_used_some() {
        assert!(used(std::process::id()).is_some());
        assert_eq!(used(u32::MAX), None);
    }
}
