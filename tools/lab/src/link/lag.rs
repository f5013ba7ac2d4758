//! How long it takes on this machine until a thread that waits runs after another thread gave it a
//! reason: the part of a short link's delay that the emulator itself is. Measured once, before a
//! link carries packets.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// How often a thread is woken, and after which pause: long enough that it sleeps.
const WAKES: usize = 100;
const PAUSE: Duration = Duration::from_micros(250);
/// One wake of so many is quicker than what counts, and its packet comes out early by the
/// difference.
const PART: usize = 10;
/// No more than this counts, ns: a machine that is busy for a moment is not always so.
const MOST_NS: u64 = 30_000;

/// The lag of a wake, ns; 0 if it cannot be measured.
pub(crate) fn of_a_wake() -> u64 {
    measure().unwrap_or(0)
}

fn measure() -> io::Result<u64> {
    let (read, write) = io::pipe()?;
    let clock = Instant::now();
    let sleeper = thread::Builder::new().name("lag".to_owned()).spawn(move || {
        runtime::be_urgent();
        sleep(&read, clock)
    })?;
    let waker = thread::Builder::new().name("lag-wakes".to_owned()).spawn(move || {
        runtime::be_urgent();
        for _ in 0..WAKES {
            thread::sleep(PAUSE);
            let now = clock.elapsed().as_nanos() as u64;
            rustix::io::write(&write, &now.to_ne_bytes())?;
        }
        io::Result::Ok(())
    })?;
    let failed = |_| io::Error::other("a thread panicked");
    waker.join().map_err(failed)??;
    let lags = sleeper.join().map_err(failed)??;
    Ok(quick(lags))
}

/// Waits as a line's thread does; returns how long each wake took, ns, until the other end closes.
fn sleep(read: &io::PipeReader, clock: Instant) -> io::Result<Vec<u64>> {
    let mut lags = Vec::with_capacity(WAKES);
    loop {
        poll(&mut [PollFd::new(read, PollFlags::IN)], None)?;
        let woke = clock.elapsed().as_nanos() as u64;
        let mut written = [0; 8];
        if rustix::io::read(read, &mut written)? < written.len() {
            return Ok(lags);
        }
        lags.push(woke.saturating_sub(u64::from_ne_bytes(written)));
    }
}

/// What counts of the lags of wakes.
fn quick(mut lags: Vec<u64>) -> u64 {
    lags.sort_unstable();
    lags.get(lags.len() / PART).copied().unwrap_or(0).min(MOST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_wakes_take_longer_than_what_counts() {
        assert_eq!(quick((0..100).rev().map(|us| us * 100).collect()), 1000);
        assert_eq!(quick(vec![1_000_000; 100]), MOST_NS);
        assert_eq!(quick(Vec::new()), 0);
        assert!(of_a_wake() > 0, "a wake takes time");
    }
}
