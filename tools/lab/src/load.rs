//! The machine's other activity during a point: processor time of other programs, and time stolen
//! by the hypervisor. Also the present distance of the two cores, for hypervisors that move them.
//! It reads /proc.
//!
//! The time of other programs is the kernel's count for each of them. It is not the time of all
//! processors less the lab's. The former is sampled and excludes interrupts and stolen time, the
//! latter is exact and includes them. Kernel threads are counted as neither: most of their work
//! here is for the lab.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use load::machine::Machine;

use crate::context::Pinning;
use crate::record::{DISTURBED_PERCENT, Load, Work};

/// /proc counts hundredths of a second: shorter intervals are too coarse.
const SHORTEST: Duration = Duration::from_millis(200);
/// Ticks a second of /proc on every supported architecture (USER_HZ).
const TICKS: f64 = 100.0;

/// A snapshot of the machine, to be compared with a later one.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    average: f64,
    machine: Machine,
    programs: Programs,
}

impl Look {
    /// A snapshot of the machine now.
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            average: average(),
            machine: Machine::now().unwrap_or_default(),
            programs: Programs::of(&processes(), std::process::id()),
        }
    }

    /// The load between the snapshot and now.
    pub fn since(&self) -> Load {
        self.until(&Self::now())
    }

    fn until(&self, now: &Self) -> Load {
        let took = now.at - self.at;
        let percent = |ticks: f64| (100.0 * ticks / TICKS / took.as_secs_f64()).max(0.0);
        // Programs in other containers are invisible. They used at least the processors' time minus
        // that of all visible programs.
        let machine = now.machine.since(&self.machine);
        let programs = machine.programs().as_secs_f64() * TICKS;
        let unseen = programs - (now.programs.all - self.programs.all);
        let others = percent(now.programs.others_since(&self.programs).max(unseen));
        let stolen = percent(machine.stolen.as_secs_f64() * TICKS);
        let (others, stolen) = if took >= SHORTEST { (round(others), round(stolen)) } else { (0.0, 0.0) };
        Load {
            average: self.average,
            others_percent: others,
            stolen_percent: stolen,
            disturbed: others > DISTURBED_PERCENT || stolen > DISTURBED_PERCENT,
            machine: (took >= SHORTEST).then(|| work(&machine, took)),
            link_behind: None,
            awake: false,
            cache_line_ns: None,
        }
    }
}

fn round(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

fn average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// The machine's work in `took`.
fn work(machine: &Machine, took: Duration) -> Work {
    let each = |count: f64| round(count / took.as_secs_f64());
    let percent = |used: Duration| each(used.as_secs_f64() * 100.0);
    Work {
        user_percent: percent(machine.user),
        system_percent: percent(machine.system),
        irq_percent: percent(machine.irq),
        softirq_percent: percent(machine.softirq),
        interrupts_s: each(machine.interrupts as f64),
        switches_s: each(machine.switches as f64),
    }
}

/// The times of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    parent: u32,
    /// Its process group.
    group: u32,
    /// Ticks of the process itself.
    own: f64,
    /// Ticks of its ended and awaited children, and of theirs.
    children: f64,
}

fn processes() -> BTreeMap<u32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between the two calls.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        all.extend(stat(&text).map(|found| (pid, found)));
    }
    all
}

/// Processor time of the processes of a group, of its leader's descendants (a guest machine has a
/// session of its own), and of their ended children, seconds.
pub(crate) fn group_seconds(group: u32) -> f64 {
    let all = processes();
    let of = all.iter().filter(|(pid, process)| process.group == group || descends(&all, **pid, group));
    of.map(|(_, process)| process.own + process.children).sum::<f64>() / TICKS
}

/// The parent, the process group, utime + stime and cutime + cstime of /proc/PID/stat (proc(5)).
fn stat(text: &str) -> Option<Process> {
    // The name may contain blanks and brackets.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (parent, group) = (words.get(1)?.parse().ok()?, words.get(2)?.parse().ok()?);
    let ticks: Vec<f64> = words.get(11..15)?.iter().filter_map(|word| word.parse::<f64>().ok()).collect();
    let [utime, stime, cutime, cstime] = ticks[..] else { return None };
    Some(Process { parent, group, own: utime + stime, children: cutime + cstime })
}

/// The processor time of programs.
#[derive(Clone, Debug, Default)]
struct Programs {
    /// Ticks of all visible processes, including kernel threads and ended children.
    all: f64,
    /// Ticks of other programs, including ended children.
    others: f64,
    /// The ticks of each other program.
    each: BTreeMap<u32, f64>,
}

/// The process id of kthreadd, the parent of all kernel threads.
const KTHREADD: u32 = 2;

impl Programs {
    /// Sorts processes: `ours` and its descendants are the lab.
    fn of(all: &BTreeMap<u32, Process>, ours: u32) -> Self {
        let mut programs = Self::default();
        for (pid, process) in all {
            programs.all += process.own + process.children;
            if !descends(all, *pid, ours) && !is_kernels(all, *pid) {
                programs.others += process.own + process.children;
                programs.each.insert(*pid, process.own);
            }
        }
        programs
    }

    /// The ticks of other programs since `before`. A child that ends adds its ticks to its parent,
    /// so the sum stays. If no parent waits for it, its ticks are lost; the ticks of the remaining
    /// programs are then a lower bound.
    fn others_since(&self, before: &Self) -> f64 {
        let used = |(pid, own): (&u32, &f64)| before.each.get(pid).map_or(*own, |then| (own - then).max(0.0));
        (self.others - before.others).max(self.each.iter().map(used).sum())
    }
}

/// Whether `pid` is `root` or a descendant of it.
fn descends(all: &BTreeMap<u32, Process>, pid: u32, root: u32) -> bool {
    let mut at = pid;
    // Bounded: a reused pid could otherwise make an endless cycle.
    for _ in 0..64 {
        if at == root {
            return true;
        }
        match all.get(&at) {
            Some(process) if process.parent != 0 => at = process.parent,
            _ => return false,
        }
    }
    false
}

/// Whether `pid` is a kernel thread. In a container process 2 is an ordinary program; the kernel's
/// has no parent.
fn is_kernels(all: &BTreeMap<u32, Process>, pid: u32) -> bool {
    all.get(&KTHREADD).is_some_and(|root| root.parent == 0) && descends(all, pid, KTHREADD)
}

/// A cache line takes at least this long between two cores that do not share a cache, nanoseconds.
const APART_NS: u32 = 100;

/// Whether the two cores do not share a cache, where that is known.
pub(crate) fn are_apart(cache_line_ns: Option<u32>) -> bool {
    cache_line_ns.is_some_and(|ns| ns >= APART_NS)
}

/// The time that a cache line takes from the target's processor to the client's, nanoseconds, if
/// both are pinned: the minimum of several batches. Two cores that share a cache need 15 to 80. A
/// virtual machine whose cores were moved apart needs several times as much, and its figures are
/// not comparable.
pub(crate) fn cache_line_ns(pinning: &Pinning) -> Option<u32> {
    let (first, second) = (*pinning.target.first()?, *pinning.client.first()?);
    if first == second {
        return None;
    }
    let ns = load::between::one_way_ns(first, second, Duration::from_millis(100)).ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "nanoseconds, some hundreds")]
    Some(ns as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, own: f64, children: f64) -> Process {
        Process { parent, group: 12, own, children }
    }

    #[test]
    fn a_process_with_brackets_in_its_name_is_read() {
        let text = "12 (a) b (c) S 7 12 12 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 5 6 7";
        assert_eq!(stat(text), Some(process(7, 110.0, 150.0)));
        assert_eq!(stat("12 (a"), None);
        assert_eq!(stat("12 (a) S 7 1 2"), None);
    }

    #[test]
    fn what_the_kernel_and_the_lab_use_is_not_that_of_others() {
        let before = BTreeMap::from([
            (1, process(0, 5.0, 0.0)),
            (2, process(0, 0.0, 0.0)),
            (30, process(2, 100.0, 0.0)),
            (40, process(1, 10.0, 0.0)),
            (41, process(40, 20.0, 0.0)),
            (50, process(1, 7.0, 0.0)),
        ]);
        let mut after = before.clone();
        after.insert(30, process(2, 150.0, 0.0));
        after.insert(41, process(40, 90.0, 0.0));
        after.insert(42, process(41, 60.0, 0.0));
        let used =
            |after: &BTreeMap<u32, Process>| Programs::of(after, 40).others_since(&Programs::of(&before, 40));
        assert_eq!(used(&after), 0.0);
        after.insert(50, process(1, 9.0, 0.0));
        assert_eq!(used(&after), 2.0);
        // A new program, and one that its parent has waited for.
        after.insert(51, process(50, 3.0, 0.0));
        after.insert(50, process(1, 9.0, 4.0));
        assert_eq!(used(&after), 9.0);
        // The ticks of a child that no parent waited for are lost.
        after.remove(&1);
        assert_eq!(used(&after), 5.0);
        after.remove(&51);
        after.insert(50, process(1, 9.0, 0.0));
        assert_eq!(used(&after), 2.0);
    }

    #[test]
    fn in_a_container_number_two_is_a_program_like_others() {
        let all =
            BTreeMap::from([(1, process(0, 5.0, 0.0)), (2, process(1, 3.0, 0.0)), (3, process(2, 1.0, 0.0))]);
        let programs = Programs::of(&all, 1000);
        assert_eq!((programs.others, programs.all), (9.0, 9.0));
    }

    #[test]
    fn what_the_hypervisor_keeps_is_told_apart_from_what_others_use() {
        let began = Look {
            at: Instant::now(),
            average: 0.5,
            machine: Machine::read("cpu  100 10 50 900 3 7 40 20 0 0\ncpu0 1 2 3"),
            programs: Programs { all: 160.0, ..Programs::default() },
        };
        let later = |text: &str, all: f64| Look {
            at: began.at + Duration::from_secs(2),
            machine: Machine::read(text),
            programs: Programs { all, ..Programs::default() },
            ..began.clone()
        };
        let load =
            began.until(&later("cpu  200 10 150 900 3 17 90 80 0 0\nintr 5000 1 2\nctxt 800\n", 400.0));
        let work = Work {
            user_percent: 50.0,
            system_percent: 50.0,
            irq_percent: 5.0,
            softirq_percent: 25.0,
            interrupts_s: 2500.0,
            switches_s: 400.0,
        };
        assert_eq!(load.machine, Some(work));
        assert!(load.disturbed && load.by_hypervisor() && !load.by_others(), "{load:?}");
        assert_eq!((load.others_percent, load.stolen_percent), (0.0, 30.0));
        // The processors' time exceeds that of all visible programs.
        let load = began.until(&later("cpu  200 10 150 900 3 7 90 20 0 0", 260.0));
        assert!(load.disturbed && load.by_others() && !load.by_hypervisor(), "{load:?}");
        assert_eq!((load.others_percent, load.stolen_percent), (50.0, 0.0));
        let short =
            Look { at: began.at + Duration::from_millis(100), ..later("cpu 9999 0 0 0 0 0 0 999", 0.0) };
        let load = began.until(&short);
        assert!(!load.disturbed && load.machine.is_none(), "too short to tell");
    }

    #[test]
    fn our_own_work_is_not_that_of_others() {
        let us = std::process::id();
        let ours = |all: &BTreeMap<u32, Process>| {
            let mine = all.iter().filter(|(pid, _)| descends(all, **pid, us));
            mine.map(|(_, process)| process.own + process.children).sum::<f64>()
        };
        let before = ours(&processes());
        // On a busy machine a fifth of a second of processor time takes longer than that.
        let until = Instant::now() + Duration::from_secs(20);
        let mut all = processes();
        while ours(&all) - before < 20.0 && Instant::now() < until {
            for _ in 0..100_000 {
                std::hint::spin_loop();
            }
            all = processes();
        }
        let programs = Programs::of(&all, us);
        assert!(ours(&all) - before >= 20.0, "20 ticks are counted as ours");
        assert!(!programs.each.contains_key(&us), "and not as those of others");
        assert!(programs.all >= programs.others + ours(&all), "but as those of all");
    }
}
