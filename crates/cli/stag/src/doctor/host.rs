//! `stag doctor` checks the machine itself: kernel, io_uring, processors, memory, open files, the
//! sandbox, the state directory, and the file systems of units.

use std::path::Path;

use backing::size::Size;
use runtime::Backend;
use rustix::process::{Resource, getrlimit};

use super::{Files, Finding};
use crate::config::{Config, Transports};
use crate::export::Shown;
use crate::state;

/// The oldest kernel that Stag runs on, and the oldest with all operations that it uses.
const OLDEST: (u32, u32) = (5, 19);
const BEST: (u32, u32) = (6, 1);
/// Open files that a server of some hundred connections, units and files may need.
const DESCRIPTORS: u64 = 4096;
/// Memory that RDMA devices need to pin for their buffers, bytes.
const LOCKED: u64 = 64 << 20;

/// `own`: the runtime of this process, if it is the daemon itself.
pub(super) fn look(files: &Files, config: &Config, own: Option<Backend>) -> Vec<Finding> {
    let allowed = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    let cores = match config.daemon.cores {
        0 => u64::from(allowed),
        cores => cores.into(),
    };
    let mut findings = vec![
        kernel(files),
        // A daemon's filter of system calls lets it make no second one.
        own.map_or_else(|| backend(config.daemon.runtime), |own| running(own, config.daemon.runtime)),
        processors(files, cores),
        memory(files, cores, config),
    ];
    findings.push(descriptors(getrlimit(Resource::Nofile).maximum));
    if config.portals.iter().any(|portal| portal.transports == Transports::Verbs)
        || !config.nfs.verbs.is_empty()
    {
        findings.push(locked(getrlimit(Resource::Memlock).maximum));
    }
    if config.daemon.sandbox {
        findings.extend(landlock(files));
    }
    findings.push(state_directory(state::directory().as_deref()));
    findings.extend(governor(files));
    findings.extend(media(config));
    findings
}

fn kernel(files: &Files) -> Finding {
    let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>());
    let version = (numbers.next(), numbers.next());
    let (Some(Ok(major)), Some(Ok(minor))) = version else {
        return Finding::warning(
            "kernel",
            format!("`{release}` is no known version"),
            "Linux 5.19 or later is needed",
        );
    };
    let what = format!("Linux {release}");
    if (major, minor) < OLDEST {
        Finding::critical("kernel", what, "boot Linux 5.19 or later; 6.1 or later is faster")
    } else if (major, minor) < BEST {
        Finding::warning("kernel", what, "Linux 6.1 or later has faster operations of io_uring")
    } else {
        Finding::ok("kernel", what)
    }
}

/// Makes a runtime as a core of the daemon has it.
fn backend(wanted: Backend) -> Finding {
    let runtime = |backend| {
        let config =
            runtime::Config { backend, pool_bytes: 1 << 20, recv_buffers: 2, ..runtime::Config::default() };
        runtime::Runtime::new(config).map(|runtime| runtime.backend())
    };
    match runtime(wanted) {
        Ok(Backend::Epoll) if wanted == Backend::Epoll => Finding::ok("runtime", "epoll, as configured"),
        Ok(Backend::Epoll) => {
            let why = runtime(Backend::IoUring).err().map_or(String::new(), |error| format!(": {error}"));
            Finding::warning(
                "runtime",
                format!("the daemon would run on epoll, where files cost more processor time{why}"),
                "allow io_uring",
            )
        }
        Ok(_) => Finding::ok("runtime", "io_uring may be used"),
        // The message of `NoRing` says what to do.
        Err(error) if runtime::NoRing::is(&error) => {
            Finding { remedy: None, ..Finding::critical("runtime", error.to_string(), "") }
        }
        Err(error) => Finding::critical("runtime", error.to_string(), "stag serve will fail in the same way"),
    }
}

/// The runtime that a daemon has.
fn running(own: Backend, wanted: Backend) -> Finding {
    match own {
        Backend::Epoll if wanted != Backend::Epoll => Finding::warning(
            "runtime",
            "the daemon runs on epoll, where files cost more processor time: its log says why",
            "allow io_uring, and restart it",
        ),
        _ => Finding::ok("runtime", format!("the daemon runs on {}", own.name())),
    }
}

/// The files `name` of this process's control group (version 2) and of those above it.
fn group_files(files: &Files, name: &str) -> Vec<String> {
    let groups = files.text("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    Path::new(path)
        .ancestors()
        .filter_map(|group| files.text(&format!("/sys/fs/cgroup{}/{name}", group.display())))
        .collect()
}

fn processors(files: &Files, cores: u64) -> Finding {
    // `MICROSECONDS PERIOD`, or `max PERIOD`.
    let quota = |text: String| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    let granted = group_files(files, "cpu.max").into_iter().filter_map(quota).fold(f64::INFINITY, f64::min);
    if granted < cores as f64 {
        return Finding::warning(
            "processors",
            format!("the daemon would use {cores} cores, and its control group grants {granted:.2}"),
            format!(
                "set cores = {:.0}, or raise the quota (systemd: CPUQuota=; Kubernetes: limits.cpu): \
                 the kernel stops all cores when the quota of a period is used up",
                granted.floor().max(1.0)
            ),
        );
    }
    Finding::ok("processors", format!("{cores} for the daemon's cores"))
}

fn memory(files: &Files, cores: u64, config: &Config) -> Finding {
    let limits = group_files(files, "memory.max").into_iter().filter_map(|text| text.parse::<u64>().ok());
    let pools = config.daemon.pool_bytes.saturating_mul(cores);
    match limits.min() {
        Some(limit) if limit < pools => Finding::warning(
            "memory",
            format!(
                "the control group grants {}, and the cores' buffers may take {}",
                Size(limit),
                Size(pools)
            ),
            format!(
                "set pool = \"{}\" or less, or raise the limit",
                Size((limit / 2 / cores.max(1)) >> 20 << 20)
            ),
        ),
        limit => Finding::ok(
            "memory",
            format!(
                "the cores' buffers may take {}, and {}",
                Size(pools),
                limit.map_or("no control group limits it".to_owned(), |limit| format!(
                    "{} are granted",
                    Size(limit)
                ))
            ),
        ),
    }
}

fn descriptors(most: Option<u64>) -> Finding {
    match most {
        Some(most) if most < DESCRIPTORS => Finding::warning(
            "open files",
            format!("{most} at most, and each connection and unit needs one or more"),
            "raise the limit: LimitNOFILE=65536 in the unit of systemd, or ulimit -Hn 65536",
        ),
        Some(most) => Finding::ok("open files", format!("{most} at most")),
        None => Finding::ok("open files", "no limit"),
    }
}

fn locked(most: Option<u64>) -> Finding {
    match most {
        Some(most) if most < LOCKED && !rustix::process::geteuid().is_root() => Finding::warning(
            "locked memory",
            format!("{} at most, and RDMA devices pin their buffers", Size(most)),
            "raise the limit: LimitMEMLOCK=infinity in the unit of systemd, or ulimit -Hl unlimited",
        ),
        _ => Finding::ok("locked memory", "enough for RDMA devices"),
    }
}

/// Nothing is found where the kernel does not say which security modules it has.
fn landlock(files: &Files) -> Option<Finding> {
    let modules = files.text("/sys/kernel/security/lsm")?;
    Some(match modules.split(',').any(|module| module == "landlock") {
        true => Finding::ok("sandbox", "Landlock can confine the daemon to its directories"),
        false => Finding::warning(
            "sandbox",
            "the kernel runs without Landlock: the daemon is not confined to its directories",
            format!("boot with lsm=landlock,{modules} on the kernel's command line"),
        ),
    })
}

fn state_directory(directory: Option<&Path>) -> Finding {
    let Some(directory) = directory else {
        return Finding::critical("state", "there is no state directory", "set STATE_DIRECTORY to one");
    };
    // It is made at the first start.
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let needed = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    match rustix::fs::access(existing, needed) {
        Ok(()) => Finding::ok("state", format!("{} can be written", directory.display())),
        Err(error) => Finding::critical(
            "state",
            format!("{} cannot be written: {error}", existing.display()),
            "run as another user, or set STATE_DIRECTORY to a directory of this one",
        ),
    }
}

/// A frequency that never rises makes each command slower. intel_pstate and amd-pstate raise it in
/// `powersave` too.
fn governor(files: &Files) -> Option<Finding> {
    let of = |name: &str| files.text(&format!("/sys/devices/system/cpu/cpu0/cpufreq/{name}"));
    let (governor, driver) = (of("scaling_governor")?, of("scaling_driver")?);
    Some(match governor == "powersave" && !driver.contains("pstate") {
        true => Finding::warning(
            "frequency",
            "the governor powersave keeps the processors at their lowest frequency",
            "cpupower frequency-set -g schedutil",
        ),
        false => Finding::ok("frequency", format!("governor {governor} of {driver}")),
    })
}

/// Units and exports on file systems that lose or share what is written.
fn media(config: &Config) -> Vec<Finding> {
    let units = config.targets.iter().flat_map(|target| &target.units);
    let units = units.filter_map(|unit| unit.spec.backing.path());
    let exports = config.exports.iter().filter_map(|export| match &export.shown {
        Shown::Directory(path) => Some(path.as_path()),
        Shown::Memory(_) => None,
    });
    units.chain(exports).filter_map(medium).collect()
}

fn medium(path: &Path) -> Option<Finding> {
    let existing = path.ancestors().find(|path| path.exists())?;
    let kind = rustix::fs::statfs(existing).ok()?.f_type;
    // The numbers are those of statfs(2).
    let (what, remedy) = match kind as u64 & 0xffff_ffff {
        0x794c_7630 => ("the layer of a container, and goes with it", "mount a volume there"),
        0x0102_1994 | 0x8584_58f6 => {
            ("memory, and is lost when the machine stops", "choose a directory on a disk")
        }
        0x6969 => (
            "an NFS mount: a lost server stops the unit, and another host may write to the file",
            "serve it on the machine that has the disk",
        ),
        _ => return None,
    };
    Some(Finding::warning("medium", format!("{} is on {what}", path.display()), remedy))
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;
    use crate::health::space::Level;

    fn level_of(release: &str) -> Level {
        let (_dir, files) = machine(&[("/proc/sys/kernel/osrelease", release)]);
        kernel(&files).level
    }

    #[test]
    fn kernels_are_told_by_their_numbers() {
        assert_eq!(level_of("5.18.19-generic"), Level::Critical);
        assert_eq!(level_of("5.19.0"), Level::Warning);
        assert_eq!(level_of("6.1.0-13-amd64"), Level::Ok);
        assert_eq!(level_of("10.0"), Level::Ok);
        assert_eq!(level_of("x"), Level::Warning);
    }

    #[test]
    fn a_quota_below_the_cores_is_found_in_any_group_above() {
        let group = ("/proc/self/cgroup", "0::/pod/stag\n");
        let (_dir, files) = machine(&[
            group,
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/pod/stag/cpu.max", "max 100000\n"),
        ]);
        let found = processors(&files, 2);
        assert!(found.level == Level::Warning && found.what.contains("grants 1.50"), "{found:?}");
        assert!(found.remedy.unwrap().contains("cores = 1,"));
        assert_eq!(processors(&files, 1).level, Level::Ok);
        let (_dir, files) = machine(&[]);
        assert_eq!(processors(&files, 64).level, Level::Ok);
    }

    #[test]
    fn a_limit_of_memory_below_the_pools_is_found() {
        let limited =
            |limit| machine(&[("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", limit)]);
        let config = Config::default();
        let (_dir, files) = limited("268435456\n");
        let found = memory(&files, 2, &config);
        assert!(found.what.contains("256M") && found.what.contains("512M"), "{found:?}");
        assert!(found.remedy.unwrap().contains("pool = \"64M\""));
        let (_dir, files) = limited("max\n");
        assert_eq!(memory(&files, 2, &config).level, Level::Ok);
    }

    #[test]
    fn a_kernel_without_landlock_and_a_slow_governor_are_found() {
        let (_dir, files) = machine(&[("/sys/kernel/security/lsm", "capability,apparmor")]);
        assert!(landlock(&files).unwrap().remedy.unwrap().contains("lsm=landlock,capability,apparmor"));
        let (_dir, files) = machine(&[("/sys/kernel/security/lsm", "capability,landlock")]);
        assert_eq!(landlock(&files).unwrap().level, Level::Ok);
        for (driver, level) in [("acpi-cpufreq", Level::Warning), ("intel_pstate", Level::Ok)] {
            let of = "/sys/devices/system/cpu/cpu0/cpufreq";
            let (_dir, files) = machine(&[
                (&format!("{of}/scaling_governor"), "powersave\n"),
                (&format!("{of}/scaling_driver"), driver),
            ]);
            assert_eq!(governor(&files).unwrap().level, level);
        }
    }

    #[test]
    fn few_open_files_and_a_state_directory_that_cannot_be_written_are_found() {
        assert_eq!(descriptors(Some(1024)).level, Level::Warning);
        assert_eq!(descriptors(Some(1 << 20)).level, Level::Ok);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(state_directory(Some(&dir.path().join("a/b"))).level, Level::Ok);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(state_directory(Some(&dir.path().join("file/a"))).level, Level::Critical);
        assert_eq!(state_directory(None).level, Level::Critical);
    }

    #[test]
    fn a_unit_in_memory_that_should_be_a_disk_is_found() {
        if rustix::fs::statfs("/dev/shm").is_ok_and(|about| about.f_type == 0x0102_1994) {
            assert!(medium(Path::new("/dev/shm/none/disk.img")).unwrap().what.contains("lost"));
        }
        assert!(medium(Path::new("/proc/none")).is_none());
    }
}
