//! What the machine does beside a point: processor time that others use while it is taken, and how far the two cores are apart
//! just now, for the hypervisors that move them. It reads /proc and runs two threads for a moment.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::context::Pinning;
use crate::record::Load;

/// From so many percent of one processor on, others have disturbed a point.
const DISTURBED_PERCENT: f64 = 10.0;
/// /proc counts hundredths of a second: what is shorter says nothing.
const SHORTEST: Duration = Duration::from_millis(200);
/// Ticks a second of /proc on every architecture that Stag runs on (USER_HZ).
const TICKS: f64 = 100.0;

/// A look at the machine, to be compared with a later one.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    average: f64,
    busy: f64,
    stolen: f64,
    ours: f64,
}

impl Look {
    /// Now.
    pub fn now() -> Self {
        let (busy, stolen) = machine();
        Self { at: Instant::now(), average: average(), busy, stolen, ours: family(std::process::id()) }
    }

    /// What happened since.
    pub fn since(&self) -> Load {
        let now = Self::now();
        let seconds = (now.at - self.at).as_secs_f64();
        let percent = |ticks: f64| (100.0 * ticks / TICKS / seconds).max(0.0);
        let others = percent((now.busy - self.busy) - (now.ours - self.ours));
        let stolen = percent(now.stolen - self.stolen);
        let told = now.at - self.at >= SHORTEST;
        Load {
            average: self.average,
            others_percent: if told { round(others) } else { 0.0 },
            stolen_percent: if told { round(stolen) } else { 0.0 },
            disturbed: told && (others > DISTURBED_PERCENT || stolen > DISTURBED_PERCENT),
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

/// Ticks that programs have used, and that the hypervisor kept, since the machine began. Interrupts are left out: they work
/// for whoever waits for them.
fn machine() -> (f64, f64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let of = |at: usize| ticks.get(at).copied().unwrap_or(0.0);
    (of(0) + of(1) + of(2), of(7))
}

/// Ticks of a process and all that descend from it, those included that have ended.
fn family(root: u32) -> f64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0.0 };
    let mut all: BTreeMap<u32, (u32, f64)> = BTreeMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end meanwhile.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(found) = stat(&text) {
            all.insert(pid, found);
        }
    }
    let ours = |pid: &u32| {
        let mut at = *pid;
        // As deep as a tree of processes is; a pid that was used again makes no endless circle.
        for _ in 0..64 {
            if at == root {
                return true;
            }
            match all.get(&at) {
                Some((parent, _)) if *parent != 0 => at = *parent,
                _ => return false,
            }
        }
        false
    };
    all.iter().filter(|(pid, _)| ours(pid)).map(|(_, (_, ticks))| ticks).sum()
}

/// The parent, and utime + stime + cutime + cstime, of /proc/PID/stat (proc(5)).
fn stat(text: &str) -> Option<(u32, f64)> {
    // The name may have blanks and brackets in it.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let parent = words.get(1)?.parse().ok()?;
    let ticks = words.get(11..15)?.iter().filter_map(|word| word.parse::<f64>().ok()).sum();
    Some((parent, ticks))
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

    #[test]
    fn a_process_with_brackets_in_its_name_is_read() {
        let text = "12 (a) b (c) S 7 12 12 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 5 6 7";
        assert_eq!(stat(text), Some((7, 260.0)));
        assert_eq!(stat("12 (a"), None);
        assert_eq!(stat("12 (a) S 7 1 2"), None);
    }

    #[test]
    fn our_own_work_is_not_that_of_others() {
        let before = Look::now();
        let ours = || family(std::process::id()) - before.ours;
        // On a busy machine a fifth of a second of work takes longer than that.
        let until = Instant::now() + Duration::from_secs(20);
        while ours() < 20.0 && Instant::now() < until {
            for _ in 0..100_000 {
                std::hint::spin_loop();
            }
        }
        let (ours, busy) = (ours(), machine().0 - before.busy);
        assert!(ours >= 20.0, "{ours} ticks of 20 are counted as ours");
        // A tick may be of us and not yet of the machine.
        assert!(busy >= ours - 4.0, "{busy} of the machine, {ours} of us");
    }
}
