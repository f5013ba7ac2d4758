//! Latency of a cache line between two cores. It determines the cost of loopback, and on a virtual
//! machine it changes with the host's placement of the cores: tens of nanoseconds within one L3
//! cache, hundreds between two.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Exchanges of one batch, and batches: the fastest batch is one without an interruption.
const EXCHANGES: u32 = 2000;
const BATCHES: u32 = 50;
/// A cache line of its own, so that no other access moves it.
#[repr(align(128))]
struct Line(AtomicU32);

/// One way from core `first` to core `second`, nanoseconds, measured for at most `patience`.
///
/// # Errors
/// If this process may not run on one of them, or they never had time for each other.
pub fn one_way_ns(first: usize, second: usize, patience: Duration) -> io::Result<f64> {
    let line = &Line(AtomicU32::new(0));
    // Not a number of the line: the other side may be about to answer, and would overwrite it.
    let over = &AtomicBool::new(false);
    let until = Instant::now() + patience;
    let fastest = thread::scope(|scope| {
        // Threads of their own: the caller's stays where it may run.
        let asking = scope.spawn(move || {
            // Pinned before the other side starts, which waits until it is told to end.
            pin(first)?;
            let (ready, started) = mpsc::channel();
            scope.spawn(move || {
                let pinned = pin(second);
                let go_on = pinned.is_ok();
                // The other side waits for this word, and then for answers.
                if ready.send(pinned).is_ok() && go_on {
                    echo(line, over);
                }
            });
            started.recv().map_err(|_| io::Error::other("the other thread has ended"))??;
            let fastest = (0..BATCHES).map_while(|_| batch(line, until)).min();
            over.store(true, Ordering::Release);
            Ok(fastest)
        });
        asking.join().unwrap_or_else(|_| Err(io::Error::other("the first thread has ended")))
    })?;
    let fastest = fastest.ok_or_else(|| io::Error::other("the cores are too busy to be measured"))?;
    Ok(fastest.as_nanos() as f64 / f64::from(2 * EXCHANGES))
}

fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("there is no core {core}")));
    }
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Answers every odd number with the even one after it, until it is `over`.
fn echo(line: &Line, over: &AtomicBool) {
    let mut spins = 0u32;
    loop {
        match line.0.load(Ordering::Acquire) {
            odd if odd % 2 == 1 => line.0.store(odd + 1, Ordering::Release),
            _ => {
                spins = spins.wrapping_add(1);
                if spins % 1024 == 0 && over.load(Ordering::Acquire) {
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }
}

/// The time of one batch of exchanges; `None` if it was not over by `until`.
fn batch(line: &Line, until: Instant) -> Option<Duration> {
    let start = Instant::now();
    for exchange in 0..EXCHANGES {
        let odd = 2 * exchange + 1;
        line.0.store(odd, Ordering::Release);
        let mut spins = 0u32;
        while line.0.load(Ordering::Acquire) != odd + 1 {
            spins = spins.wrapping_add(1);
            if spins % 1024 == 0 && Instant::now() >= until {
                return None;
            }
            std::hint::spin_loop();
        }
    }
    Some(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side may be interrupted between a question and its answer.
    #[test]
    fn a_measurement_that_runs_out_of_time_ends() {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        for _ in 0..if cores > 1 { 20 } else { 0 } {
            let _ = one_way_ns(0, 1, Duration::ZERO);
        }
    }

    #[test]
    fn two_cores_answer_each_other_and_a_core_that_is_not_there_is_an_error() {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        if cores > 1 {
            let ns = one_way_ns(0, 1, Duration::from_secs(20)).unwrap();
            assert!((1.0..1e6).contains(&ns), "{ns}");
        }
        assert!(one_way_ns(0, 1_000_000, Duration::from_secs(1)).is_err());
        assert!(one_way_ns(1023, 0, Duration::from_secs(1)).is_err());
    }
}
