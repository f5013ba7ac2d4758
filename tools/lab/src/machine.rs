//! The facts on which figures depend: the processor and its caches, kernel, memory, the binary and
//! the installed peers. Reads /proc and /sys, and runs programs for their versions; changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::context::Pinning;

/// The time that a program has to print its version.
const PATIENCE: Duration = Duration::from_secs(5);

/// Debian packages whose versions affect figures.
const PACKAGES: &[&str] = &[
    "tgt",
    "istgt",
    "libiscsi-bin",
    "fio",
    "qemu-utils",
    "open-iscsi",
    "nfs-ganesha",
    "libnfs-utils",
    "nbdkit",
    "targetcli-fb",
    "rdma-core",
    "libibverbs1",
];

/// The machine and the programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Logical processors that this process may use.
    pub processors: Vec<usize>,
    /// The sets of processors that share a core, where a core has several.
    pub siblings: Vec<Vec<usize>>,
    /// The sets of processors that share their last-level cache.
    pub share_cache: Vec<Vec<usize>>,
    /// The hypervisor's name, if there is one and it identifies itself.
    pub hypervisor: String,
    /// The frequency governor, if the machine has one.
    pub governor: String,
    /// MHz from /proc/cpuinfo when the experiment began.
    pub mhz: f64,
    /// The revision of the processor's microcode.
    #[serde(default)]
    pub microcode: String,
    /// Memory, bytes.
    pub memory: u64,
    /// The kernel's release and version.
    pub kernel: String,
    /// The kernel's command line, without what is for the first program only.
    #[serde(default)]
    pub kernel_options: String,
    /// The file system of the results, on which units in files lie: its type, what it is mounted
    /// from, its options.
    #[serde(default)]
    pub store: String,
    pub system: String,
    /// The processor's vulnerability mitigations whose state is not "Not affected".
    pub mitigations: BTreeMap<String, String>,
    /// Kernel settings that TCP depends on.
    pub sysctl: BTreeMap<String, String>,
    /// The output of `stag --version`.
    pub stag: String,
    /// The commit that the binary says it was built from, or that of the source tree that contains
    /// it, if any; with a trailing `+` if the tree has changes.
    pub commit: String,
    /// SHA-256 of the binary, hexadecimal.
    pub binary: String,
    /// Versions of the installed peers.
    pub peers: BTreeMap<String, String>,
}

impl Machine {
    /// Looks at this machine, the binary `stag`, and the file system of the folder `store`, which
    /// may not be there yet.
    pub fn look(stag: &Path, store: &Path) -> Self {
        let cpuinfo = line_of("/proc/cpuinfo");
        let field = |name: &str| -> String {
            let value = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name));
            value
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let cpu = field("model name");
        let version = said(Command::new(stag).arg("--version"));
        let processors = processors();
        Self {
            cpu: if cpu.is_empty() { std::env::consts::ARCH.to_owned() } else { cpu },
            siblings: groups(&processors, |n| {
                format!("/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list")
            }),
            share_cache: groups(&processors, last_cache),
            hypervisor: hypervisor(&field("flags")),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mhz: field("cpu MHz").parse().unwrap_or(0.0),
            microcode: field("microcode"),
            memory: memory(),
            kernel: format!(
                "{} {}",
                line_of("/proc/sys/kernel/osrelease"),
                line_of("/proc/sys/kernel/version")
            ),
            kernel_options: kernel_options(&line_of("/proc/cmdline")),
            store: file_system(&line_of("/proc/self/mountinfo"), store),
            system: system(),
            mitigations: mitigations(),
            sysctl: sysctl(),
            commit: told_commit(&version).unwrap_or_else(|| commit(stag)),
            stag: version.split(" (commit ").next().unwrap_or_default().to_owned(),
            binary: sha256(stag),
            peers: peers(),
            processors,
        }
    }

    /// The first fact that differs, of those that must be equal for figures to belong to one set of
    /// results.
    pub fn differs(&self, other: &Self) -> Option<&'static str> {
        [
            ("the processor", self.cpu != other.cpu || self.processors != other.processors),
            ("the kernel", self.kernel != other.kernel),
            ("the stag binary", self.binary != other.binary),
        ]
        .into_iter()
        .find_map(|(what, differs)| differs.then_some(what))
    }

    /// The facts in one line.
    pub fn line(&self) -> String {
        let virtual_machine = if self.hypervisor.is_empty() { "" } else { ", virtual" };
        let commit = if self.commit.is_empty() { String::new() } else { format!(" ({})", self.commit) };
        let kernel = self.kernel.split(' ').next().unwrap_or_default();
        format!(
            "{}, {} processors{virtual_machine}, Linux {kernel}, {}{commit}",
            self.cpu,
            self.processors.len(),
            self.stag
        )
    }

    /// One processor for the target and one for the client: of different cores, and of one
    /// last-level cache if possible. Empty on a machine of one processor.
    pub fn pinning(&self) -> Pinning {
        let core = |n: &usize| {
            self.siblings.iter().position(|group| group.contains(n)).map_or(1 << 20 | *n, |at| at)
        };
        let cache = |n: &usize| self.share_cache.iter().position(|group| group.contains(n));
        let Some(first) = self.processors.first() else { return Pinning::default() };
        let others = self.processors.iter().filter(|n| core(n) != core(first));
        let mut others: Vec<&usize> = others.collect();
        others.sort_by_key(|n| (cache(n) != cache(first), **n));
        // Two hardware threads of one core are better than one processor for both.
        let second = others.first().copied().or_else(|| self.processors.get(1));
        second.map_or_else(Pinning::default, |second| Pinning { target: vec![*first], client: vec![*second] })
    }
}

/// The commit of `stag 0.1.0 (commit 0123456789ab)`.
fn told_commit(version: &str) -> Option<String> {
    let (_, behind) = version.split_once("(commit ")?;
    Some(behind.split_once(')')?.0.to_owned())
}

/// The file system of `path` by the text of mountinfo (proc_pid_mountinfo(5)): its type, source and
/// options.
fn file_system(mounts: &str, path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    // Of a folder that is to be made, the one that it will be in.
    let there = here.join(path);
    let Some(path) = there.ancestors().find_map(|folder| folder.canonicalize().ok()) else {
        return String::new();
    };
    let mut found: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let Some((mount, behind)) = line.split_once(" - ") else { continue };
        let mut mount = mount.split(' ');
        let (Some(place), Some(options)) = (mount.nth(4), mount.next()) else { continue };
        let place = place.replace("\\040", " ");
        let mut behind = behind.split(' ');
        let (Some(kind), Some(source)) = (behind.next(), behind.next()) else { continue };
        // The longest place counts, and the last of those that lie on each other.
        if path.starts_with(&place) && found.as_ref().is_none_or(|(length, _)| *length <= place.len()) {
            found = Some((place.len(), format!("{kind} on {source} ({options})")));
        }
    }
    found.map(|(_, words)| words).unwrap_or_default()
}

fn line_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn processors() -> Vec<usize> {
    let status = line_of("/proc/self/status");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list(allowed.unwrap_or_default())
}

/// `0-2,5` as 0, 1, 2, 5.
fn list(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            all.extend((first..=last).take(4096));
        }
    }
    all
}

/// The distinct sets that the files list, without sets of one.
fn groups(processors: &[usize], path: impl Fn(usize) -> String) -> Vec<Vec<usize>> {
    let sets: BTreeSet<Vec<usize>> = processors.iter().map(|n| list(&line_of(&path(*n)))).collect();
    sets.into_iter().filter(|set| set.len() > 1).collect()
}

fn last_cache(processor: usize) -> String {
    let cache =
        |index: usize| format!("/sys/devices/system/cpu/cpu{processor}/cache/index{index}/shared_cpu_list");
    (0..8).rev().map(cache).find(|path| Path::new(path).exists()).unwrap_or_default()
}

/// Of the kernel's command `line`, what the kernel itself heeds: neither the name of the first
/// program nor its arguments, which follow ` -- `.
fn kernel_options(line: &str) -> String {
    let first_program = |word: &&str| word.starts_with("init=") || word.starts_with("rdinit=");
    let words = line.split_whitespace().take_while(|word| *word != "--");
    words.filter(|word| !first_program(word)).collect::<Vec<_>>().join(" ")
}

fn hypervisor(flags: &str) -> String {
    let product = line_of("/sys/class/dmi/id/product_name");
    match flags.split(' ').any(|flag| flag == "hypervisor") {
        true if product.is_empty() => "yes".to_owned(),
        true => product,
        false => String::new(),
    }
}

fn memory() -> u64 {
    let info = line_of("/proc/meminfo");
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|words| words.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn system() -> String {
    let text = line_of("/etc/os-release");
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map(|name| name.trim_matches('"').to_owned()).unwrap_or_default()
}

fn mitigations() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else { return BTreeMap::new() };
    entries
        .flatten()
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), line_of(&entry.path().to_string_lossy()))
        })
        .filter(|(_, state)| state != "Not affected" && !state.is_empty())
        .collect()
}

fn sysctl() -> BTreeMap<String, String> {
    let names = [
        "net/ipv4/tcp_congestion_control",
        "net/ipv4/tcp_rmem",
        "net/ipv4/tcp_wmem",
        "net/core/rmem_max",
        "net/core/wmem_max",
        "kernel/unprivileged_userns_clone",
    ];
    let value =
        |name: &&str| (name.replace('/', "."), line_of(&format!("/proc/sys/{name}")).replace('\t', " "));
    names.iter().map(value).filter(|(_, value)| !value.is_empty()).collect()
}

fn sha256(path: &Path) -> String {
    use std::io::Read as _;
    let Ok(mut file) = fs::File::open(path) else { return String::new() };
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hash.update(buffer.get(..count).unwrap_or_default()),
            Err(_) => return String::new(),
        }
    }
    hex(&hash.finalize())
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The commit of the tree that the binary was built in, if the binary still lies there.
fn commit(stag: &Path) -> String {
    let Some(tree) =
        stag.ancestors().find(|folder| folder.join(".git").exists() && folder.join("Cargo.toml").exists())
    else {
        return String::new();
    };
    let git = |args: &[&str]| said(Command::new("git").arg("-C").arg(tree).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = !commit.is_empty() && !git(&["status", "--porcelain", "--untracked-files=no"]).is_empty();
    if changed { commit + "+" } else { commit }
}

fn peers() -> BTreeMap<String, String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n"]).args(PACKAGES);
    let text = said(&mut query);
    let installed = text.lines().filter_map(|line| line.strip_prefix("ii "));
    let named = installed.filter_map(|line| line.trim_start_matches('|').split_once('|'));
    let mut peers: BTreeMap<String, String> =
        named.map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
    if peers.is_empty() {
        for program in ["fio", "qemu-img", "tgtd"] {
            let version = said(Command::new(program).arg("--version"));
            if let Some(line) = version.lines().next() {
                peers.insert(program.to_owned(), line.to_owned());
            }
        }
    }
    peers
}

/// The stdout of a program that ends in time with status 0; else empty.
fn said(command: &mut Command) -> String {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else { return String::new() };
    let until = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            // It has ended, or its output is abandoned.
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(2));
    }
    child
        .wait_with_output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(processors: &[usize], siblings: &[&[usize]], share_cache: &[&[usize]]) -> Machine {
        let sets = |sets: &[&[usize]]| sets.iter().map(|set| set.to_vec()).collect();
        Machine {
            processors: processors.to_vec(),
            siblings: sets(siblings),
            share_cache: sets(share_cache),
            ..Machine::default()
        }
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(list("7"), [7]);
        assert_eq!(list(""), [] as [usize; 0]);
        assert_eq!(list("x-3,4"), [4]);
    }

    #[test]
    fn target_and_client_get_cores_of_their_own_that_share_a_cache() {
        let smt = machine(&[0, 1, 2, 3], &[&[0, 1], &[2, 3]], &[&[0, 1, 2, 3]]);
        assert_eq!(smt.pinning(), Pinning { target: vec![0], client: vec![2] });
        let far = machine(&[0, 1, 2, 3], &[], &[&[0, 3], &[1, 2]]);
        assert_eq!(far.pinning(), Pinning { target: vec![0], client: vec![3] });
        let pair = machine(&[0, 1], &[&[0, 1]], &[]);
        assert_eq!(pair.pinning(), Pinning { target: vec![0], client: vec![1] });
        assert_eq!(machine(&[0], &[], &[]).pinning(), Pinning::default());
    }

    #[test]
    fn the_file_system_is_that_of_the_longest_mount_that_lies_above() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 22 0:30 / /tmp rw - tmpfs tmp rw\n\
                      31 22 0:31 / /tmp rw,noatime master:2 shared:9 - xfs /dev/sdb rw\n\
                      32 22 0:32 / /tm rw - btrfs /dev/sdc rw\n\
                      broken line\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/no-such-folder/x")), "xfs on /dev/sdb (rw,noatime)");
        assert_eq!(file_system(mounts, Path::new("/")), "ext4 on /dev/sda1 (rw,relatime)");
        assert_eq!(file_system("", Path::new("/")), "");
    }

    #[test]
    fn of_the_kernels_command_line_the_first_programs_part_is_left_out() {
        let line = "quiet rdinit=/first mitigations=auto init=/sbin/second -- --port 5 quiet";
        assert_eq!(kernel_options(line), "quiet mitigations=auto");
        assert_eq!(kernel_options(""), "");
    }

    #[test]
    fn a_commit_is_read_where_the_binary_tells_it() {
        assert_eq!(told_commit("stag 0.1.0 (commit 0123456789ab+)").as_deref(), Some("0123456789ab+"));
        assert_eq!(told_commit("stag 0.1.0"), None);
    }

    #[test]
    fn this_machine_is_known_and_does_not_differ_from_itself() {
        let me = Machine::look(&std::env::current_exe().unwrap(), Path::new("not/made/yet"));
        assert!(me.store.contains(" on ") && me.store.ends_with(')'), "{}", me.store);
        assert!(!me.cpu.is_empty() && !me.processors.is_empty() && me.memory > 1 << 20, "{me:?}");
        assert_eq!(me.binary.len(), 64);
        assert_eq!(me.differs(&me), None);
        let other = Machine { kernel: "another".into(), ..me.clone() };
        assert_eq!(me.differs(&other), Some("the kernel"));
    }
}
