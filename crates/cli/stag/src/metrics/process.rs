//! The daemon's process as Linux sees it, under the names that Prometheus's own clients use.

/// Linux shows clock ticks to programs in units of 1/100 s (USER_HZ).
const TICKS: f64 = 100.0;

/// A process. `None` where the system does not tell.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Processor time, user's and system's, seconds.
    pub cpu_s: Option<f64>,
    /// Memory that is mapped, bytes.
    pub virtual_bytes: Option<u64>,
    /// Memory that is resident, bytes.
    pub resident_bytes: Option<u64>,
    /// Descriptors that are open.
    pub open_fds: Option<u64>,
    /// Descriptors that may be.
    pub max_fds: Option<u64>,
    /// When it started, seconds since 1970.
    pub start_unix_s: Option<f64>,
}

impl Process {
    /// This one.
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // PID (NAME) STATE …: a name may have spaces.
        let fields: Vec<u64> = match stat.rsplit_once(')') {
            Some((_, rest)) => rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect(),
            None => Vec::new(),
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = |name| {
            let kib = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib << 10)
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            // proc_pid_stat(5): fields 14, 15 and 22; the third is the first here.
            cpu_s: fields.get(11).zip(fields.get(12)).map(|(user, system)| (user + system) as f64 / TICKS),
            virtual_bytes: memory("VmSize:"),
            resident_bytes: memory("VmRSS:"),
            open_fds: open_fds(),
            max_fds: limit.current,
            start_unix_s: booted_unix_s()
                .zip(fields.get(19))
                .map(|(boot, ticks)| boot as f64 + *ticks as f64 / TICKS),
        }
    }
}

/// Boot time, seconds since 1970. Constant, so that the start times of processes are constant too.
fn booted_unix_s() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok())
}

/// Open descriptors. Linux 6.2 and later report their number as the size of the directory.
fn open_fds() -> Option<u64> {
    const DIRECTORY: &str = "/proc/self/fd";
    match std::fs::metadata(DIRECTORY).ok()?.len() {
        // Without the descriptor of the directory itself.
        0 => Some((std::fs::read_dir(DIRECTORY).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_has_memory_and_descriptors() {
        let held: Vec<_> = (0..100).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let process = Process::now();
        assert!(
            process.open_fds > Some(held.len() as u64) && process.open_fds <= process.max_fds,
            "{process:?}"
        );
        assert!(process.resident_bytes > Some(1 << 20), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        // The kernel rounds its boot time.
        let age = now - process.start_unix_s.unwrap();
        assert!((-1.0..3600.0 * 24.0).contains(&age), "{process:?}");
        assert_eq!(process.start_unix_s, Process::now().start_unix_s);
        assert!(process.cpu_s.is_some());
    }
}
