//! What the machine does beside a point: processor time that other programs use while it is taken, what the hypervisor keeps, and how
//! far the two cores are apart just now, for the hypervisors that move them. It reads /proc and runs two threads for a moment.
//!
//! Time of other programs is theirs as the kernel counts it for each. It is not the difference between what all processors did and
//! what the lab used: the first is sampled, leaves interrupts out and is without what the hypervisor kept, the second is neither. Threads of the
//! kernel are nobody's: most of what they do here they do for the lab.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::context::Pinning;
use crate::record::{DISTURBED_PERCENT, Load};

/// /proc counts hundredths of a second: what is shorter says nothing.
const SHORTEST: Duration = Duration::from_millis(200);
/// Ticks a second of /proc on every architecture that Stag runs on (USER_HZ).
const TICKS: f64 = 100.0;

/// A look at the machine, to be compared with a later one.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    average: f64,
    machine: Machine,
    programs: Programs,
}

impl Look {
    /// Now.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            at: Instant::now(),
            average: average(),
            machine: Machine::read(&text),
            programs: Programs::of(&processes(), std::process::id()),
        }
    }

    /// What happened since.
    pub fn since(&self) -> Load {
        self.until(&Self::now())
    }

    fn until(&self, now: &Self) -> Load {
        let took = now.at - self.at;
        let percent = |ticks: f64| (100.0 * ticks / TICKS / took.as_secs_f64()).max(0.0);
        // What is used where nobody can look, in other containers, is at least what the processors did and no program that is seen here.
        let unseen = (now.machine.busy - self.machine.busy) - (now.programs.all - self.programs.all);
        let others = percent(now.programs.others_since(&self.programs).max(unseen));
        let stolen = percent(now.machine.stolen - self.machine.stolen);
        let (others, stolen) = if took >= SHORTEST { (round(others), round(stolen)) } else { (0.0, 0.0) };
        Load {
            average: self.average,
            others_percent: others,
            stolen_percent: stolen,
            disturbed: others > DISTURBED_PERCENT || stolen > DISTURBED_PERCENT,
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

/// Ticks since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Machine {
    /// That programs and the kernel for them have used. Interrupts are left out: they work for whoever waits for them.
    busy: f64,
    /// That the hypervisor kept.
    stolen: f64,
}

impl Machine {
    /// Of /proc/stat: user, nice and system; steal.
    fn read(text: &str) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let of = |at: usize| ticks.get(at).copied().unwrap_or(0.0);
        Self { busy: of(0) + of(1) + of(2), stolen: of(7) }
    }
}

/// Of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    parent: u32,
    /// Ticks that it has used.
    own: f64,
    /// Ticks that its children had used that have ended, theirs included.
    children: f64,
}

/// All processes that can be seen.
fn processes() -> BTreeMap<u32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end meanwhile.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        all.extend(stat(&text).map(|found| (pid, found)));
    }
    all
}

/// The parent, and utime + stime, cutime + cstime, of /proc/PID/stat (proc(5)).
fn stat(text: &str) -> Option<Process> {
    // The name may have blanks and brackets in it.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let parent = words.get(1)?.parse().ok()?;
    let ticks: Vec<f64> = words.get(11..15)?.iter().filter_map(|word| word.parse::<f64>().ok()).collect();
    let [utime, stime, cutime, cstime] = ticks[..] else { return None };
    Some(Process { parent, own: utime + stime, children: cutime + cstime })
}

/// Who used how much.
#[derive(Clone, Debug, Default)]
struct Programs {
    /// Ticks of all processes that are seen, threads of the kernel too, with those of children that ended.
    all: f64,
    /// Ticks of other programs, with those of children that ended.
    others: f64,
    /// Other programs, each with its own ticks.
    each: BTreeMap<u32, f64>,
}

/// The process that is the parent of all threads of the kernel.
const KTHREADD: u32 = 2;

impl Programs {
    /// `ours` and all that descend from it are the lab.
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

    /// What other programs used since. A child that ends leaves its ticks to its parent, so that their sum stays; but if nobody waits for
    /// it they are lost, and what those that are there yet have used is no less.
    fn others_since(&self, before: &Self) -> f64 {
        let used = |(pid, own): (&u32, &f64)| before.each.get(pid).map_or(*own, |then| (own - then).max(0.0));
        (self.others - before.others).max(self.each.iter().map(used).sum())
    }
}

/// Whether `pid` is `root`, or has it above itself.
fn descends(all: &BTreeMap<u32, Process>, pid: u32, root: u32) -> bool {
    let mut at = pid;
    // As deep as a tree of processes is; a pid that was used again makes no endless circle.
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

/// In a container number 2 is a program like others: that of the kernel has no parent.
fn is_kernels(all: &BTreeMap<u32, Process>, pid: u32) -> bool {
    all.get(&KTHREADD).is_some_and(|root| root.parent == 0) && descends(all, pid, KTHREADD)
}

/// Nanoseconds that a cache line takes from the target's processor to the client's, if both are told: the least of several
/// goes. Two cores of one cache need 15 to 80; a virtual machine whose cores were moved apart needs several times as much, and its
/// figures are of another machine.
pub fn cache_line_ns(pinning: &Pinning) -> Option<u32> {
    const TURNS: u32 = 2000;
    const BATCHES: u32 = 5;
    let (first, second) = (*pinning.target.first()?, *pinning.client.first()?);
    if first == second {
        return None;
    }
    let ball = Arc::new(AtomicU32::new(0));
    let until = Instant::now() + Duration::from_millis(100);
    let play = move |ball: &AtomicU32, processor: usize, mine: u32| -> Option<Duration> {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set).ok()?;
        let mut best: Option<Duration> = None;
        for batch in 0..BATCHES {
            let began = Instant::now();
            for turn in 0..TURNS {
                let wanted = 2 * (batch * TURNS + turn) + mine;
                let mut looked = 0_u32;
                while ball.load(Ordering::Acquire) != wanted {
                    looked += 1;
                    if looked % 1024 == 0 && Instant::now() >= until {
                        return best;
                    }
                    std::hint::spin_loop();
                }
                ball.store(wanted + 1, Ordering::Release);
            }
            // The first batch has waited for the other thread to begin.
            if batch > 0 {
                let took = began.elapsed();
                best = Some(best.map_or(took, |best| best.min(took)));
            }
        }
        best
    };
    let best = thread::scope(|scope| {
        let other = scope.spawn(|| play(&ball, second, 1));
        let mine = scope.spawn(|| play(&ball, first, 0)).join().ok().flatten();
        // Both end by themselves.
        let _ = other.join();
        mine
    })?;
    u32::try_from(best.as_nanos() / u128::from(2 * TURNS)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, own: f64, children: f64) -> Process {
        Process { parent, own, children }
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
        // A program that begins, and one that its parent has waited for.
        after.insert(51, process(50, 3.0, 0.0));
        after.insert(50, process(1, 9.0, 4.0));
        assert_eq!(used(&after), 9.0);
        // One that nobody waited for takes its ticks with it.
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
        assert_eq!(began.machine, Machine { busy: 160.0, stolen: 20.0 });
        let later = |text: &str, all: f64| Look {
            at: began.at + Duration::from_secs(2),
            machine: Machine::read(text),
            programs: Programs { all, ..Programs::default() },
            ..began.clone()
        };
        let load = began.until(&later("cpu  200 10 150 900 3 7 90 80 0 0", 400.0));
        assert!(load.disturbed && load.by_hypervisor() && !load.by_others(), "{load:?}");
        assert_eq!((load.others_percent, load.stolen_percent), (0.0, 30.0));
        // The processors did more than all programs that can be seen.
        let load = began.until(&later("cpu  200 10 150 900 3 7 90 20 0 0", 260.0));
        assert!(load.disturbed && load.by_others() && !load.by_hypervisor(), "{load:?}");
        assert_eq!((load.others_percent, load.stolen_percent), (50.0, 0.0));
        let short =
            Look { at: began.at + Duration::from_millis(100), ..later("cpu 9999 0 0 0 0 0 0 999", 0.0) };
        assert!(!began.until(&short).disturbed, "too short to tell");
    }

    #[test]
    fn our_own_work_is_not_that_of_others() {
        let ours = || {
            let all = processes();
            let mine = all.iter().filter(|(pid, _)| descends(&all, **pid, std::process::id()));
            mine.map(|(_, process)| process.own + process.children).sum::<f64>()
        };
        let before = (ours(), Programs::of(&processes(), std::process::id()));
        // On a busy machine a fifth of a second of work takes longer than that.
        let until = Instant::now() + Duration::from_secs(20);
        while ours() - before.0 < 20.0 && Instant::now() < until {
            for _ in 0..100_000 {
                std::hint::spin_loop();
            }
        }
        let after = Programs::of(&processes(), std::process::id());
        assert!(ours() - before.0 >= 20.0, "20 ticks are counted as ours");
        assert!(!after.each.contains_key(&std::process::id()), "and not as those of others");
        assert!(after.all - before.1.all >= 19.0);
    }
}
