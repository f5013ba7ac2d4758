//! How long a cache line takes from one core to another. It decides what loopback costs, and on a virtual machine it changes
//! with where the host puts the cores: tens of nanoseconds within one L3 cache, hundreds between two.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::LoadError;

/// Exchanges of one batch, and batches: the fastest batch is one that nobody interrupted.
const EXCHANGES: u32 = 2000;
const BATCHES: u32 = 50;
/// After this long a batch is given up: the other core has other things to do.
const PATIENCE: Duration = Duration::from_millis(500);

/// A line of its own, so that nothing else moves it.
#[repr(align(128))]
struct Line(AtomicU32);

/// One way from core `first` to core `second`, nanoseconds.
///
/// # Errors
/// If this process may not run on one of them, or they never have time for each other.
pub fn one_way_ns(first: usize, second: usize) -> Result<f64, LoadError> {
    let line = Line(AtomicU32::new(0));
    // Before there is another side, which waits until it is told to end.
    pin(first)?;
    let fastest = thread::scope(|scope| {
        let (ready, started) = mpsc::channel();
        let line = &line;
        scope.spawn(move || {
            let pinned = pin(second);
            let go_on = pinned.is_ok();
            // The other side waits for this word, and then for answers.
            if ready.send(pinned).is_ok() && go_on {
                echo(line);
            }
        });
        started.recv().map_err(|_| LoadError::Usage("the other thread has ended".into()))??;
        let fastest = (0..BATCHES).filter_map(|_| batch(line)).min();
        line.0.store(u32::MAX, Ordering::Release);
        Ok::<_, LoadError>(fastest)
    })?;
    let fastest = fastest.ok_or_else(|| LoadError::Usage("the cores are too busy to be measured".into()))?;
    Ok(fastest.as_nanos() as f64 / f64::from(2 * EXCHANGES))
}

fn pin(core: usize) -> Result<(), LoadError> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(LoadError::Usage(format!("there is no core {core}")));
    }
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|errno| LoadError::Io("running on the core asked for", errno.into()))
}

/// Answers every odd number with the even one after it, until the last number there is.
fn echo(line: &Line) {
    loop {
        match line.0.load(Ordering::Acquire) {
            u32::MAX => return,
            odd if odd % 2 == 1 => line.0.store(odd + 1, Ordering::Release),
            _ => std::hint::spin_loop(),
        }
    }
}

/// The time of one batch of exchanges; `None` if it was given up.
fn batch(line: &Line) -> Option<Duration> {
    let start = Instant::now();
    for exchange in 0..EXCHANGES {
        let odd = 2 * exchange + 1;
        line.0.store(odd, Ordering::Release);
        let mut spins = 0u32;
        while line.0.load(Ordering::Acquire) != odd + 1 {
            spins = spins.wrapping_add(1);
            if spins % 4096 == 0 && start.elapsed() > PATIENCE {
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

    #[test]
    fn two_cores_answer_each_other_and_a_core_that_is_not_there_is_an_error() {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        if cores > 1 {
            let ns = one_way_ns(0, 1).unwrap();
            assert!((1.0..1e6).contains(&ns), "{ns}");
        }
        assert!(one_way_ns(0, 1_000_000).is_err());
        assert!(one_way_ns(1023, 0).is_err());
    }
}
