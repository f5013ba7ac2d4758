//! Keeps processors from being halted while something is measured: on each runs a thread that does nothing, of the policy SCHED_IDLE,
//! which runs only while nobody else wants to and gives way at once to who does (sched(7)).
//!
//! A virtual machine halts a processor that has nothing to do, and the hypervisor takes tens to hundreds of microseconds to wake it. With few
//! requests under way that is most of what would be measured, and it changes by the second with what else the host does. What programs use of a
//! processor is counted for each as before.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use crate::context::Pinning;

/// SCHED_IDLE in /proc/TID/stat.
const IDLE: &str = "5";
/// On no more processors than this.
const MOST: usize = 64;

/// As long as this is there, the processors of target and client stay awake.
#[derive(Debug)]
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Keeps the processors of both ends awake; `None` if they are not told apart from others, or the system does not allow it (there
    /// has to be `chrt`, as there has to be `taskset`).
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
        // A thread that may not be of that policy must not spin: it would take the processor from what is measured.
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
            // It has nothing to panic about, and nothing would depend on it.
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
    // Whoever does not allow it hangs up.
    if allowed.recv().is_err() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..256 {
            std::hint::spin_loop();
        }
    }
}

/// Whether a thread of this process is of that policy: field 41 of its stat (proc(5)).
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
    fn a_processor_is_kept_awake_by_who_gives_way_until_it_is_no_longer_wanted() {
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
