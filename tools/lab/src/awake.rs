//! Keeps the measured processors out of idle states. One thread per processor spins under the
//! policy SCHED_IDLE, which yields to every other runnable thread at once (sched(7)).
//!
//! The hypervisor halts an idle virtual processor, and waking it takes tens to hundreds of
//! microseconds. With few requests in flight, that wake-up time dominates the measurement and
//! varies with the host's load. The processor time of each program is still counted correctly.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use crate::context::Pinning;

/// The number of SCHED_IDLE in /proc/TID/stat.
const IDLE: &str = "5";
/// The maximum number of processors kept awake.
const MOST: usize = 64;

/// Keeps the processors of target and client awake until it is dropped.
#[derive(Debug)]
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Keeps the processors of both ends awake. `None` if no processors are pinned, or if the
    /// system refuses the policy. Requires `chrt`, as pinning requires `taskset`.
    pub fn keep(pinning: &Pinning) -> Option<Self> {
        let processors: BTreeSet<usize> = pinning.target.iter().chain(&pinning.client).copied().collect();
        if processors.is_empty() || processors.len() > MOST {
            return None;
        }
        let mut awake = Self { stop: Arc::default(), threads: Vec::new() };
        for processor in processors {
            awake.watch(processor)?;
        }
        Some(awake)
    }

    fn watch(&mut self, processor: usize) -> Option<()> {
        let (tell, told) = channel();
        let (allow, allowed) = channel();
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || watcher(processor, &tell, &allowed, &stop)));
        let thread: i32 = told.recv().ok()?;
        // A thread without the policy must not spin: it would take processor time from the
        // measurement.
        let set = Command::new("chrt")
            .args(["--idle", "--pid", "0", &thread.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !set.is_ok_and(|status| status.success()) || !is_idle(thread) {
            return None;
        }
        allow.send(()).ok()
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread cannot panic, and nothing depends on its result.
            let _ = thread.join();
        }
    }
}

fn watcher(processor: usize, tell: &Sender<i32>, allowed: &Receiver<()>, stop: &AtomicBool) {
    let mut set = CpuSet::new();
    set.set(processor);
    if sched_setaffinity(None, &set).is_err() || tell.send(gettid().as_raw_nonzero().get()).is_err() {
        return;
    }
    // The starter hangs up if the policy could not be set.
    if allowed.recv().is_err() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..256 {
            std::hint::spin_loop();
        }
    }
}

/// Whether a thread of this process has the policy SCHED_IDLE: field 41 of its stat (proc(5)).
fn is_idle(thread: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    rest.split_whitespace().nth(38) == Some(IDLE)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn processors_are_kept_awake_at_idle_priority_until_drop() {
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let processor = (0..CpuSet::MAX_CPU).find(|at| here.is_set(*at)).unwrap();
        let pinning = Pinning { target: vec![processor], client: vec![processor] };
        let Some(awake) = Awake::keep(&pinning) else {
            assert!(
                Command::new("chrt").arg("--version").output().is_err(),
                "there is chrt, and it does not do"
            );
            return;
        };
        assert_eq!(awake.threads.len(), 1, "one for a processor, whose ever it is");
        let began = Instant::now();
        drop(awake);
        assert!(began.elapsed() < Duration::from_secs(20), "it ends when it should");
    }

    #[test]
    fn where_no_processor_is_told_none_is_kept_awake() {
        assert!(Awake::keep(&Pinning::default()).is_none());
        let nowhere = Pinning { target: vec![CpuSet::MAX_CPU - 1], client: Vec::new() };
        assert!(Awake::keep(&nowhere).is_none(), "a processor that is not there");
    }
}
