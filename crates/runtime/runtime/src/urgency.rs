//! [`be_urgent`]: for a thread that has to run on time. [`be_patient`]: for one that need not.

use std::io;

/// Scheduling of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Before every ordinary thread of the machine (SCHED_FIFO).
    RealTime,
    /// Before ordinary threads in most cases: it requested short time slices (EEVDF, Linux 6.12).
    ShortTurns,
    /// As any other.
    Ordinary,
}

/// Makes the calling thread run as soon after it becomes ready as the system allows this process:
/// for threads that wait most of their time and must not be late. Threads that it starts later do
/// not inherit this where the system can ensure that.
pub fn be_urgent() -> Urgency {
    // SAFETY: a plain structure of numbers, for which zeros are valid, and which outlives the call.
    let real_time = unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = 60;
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    };
    if real_time == 0 {
        return Urgency::RealTime;
    }
    if ask_for_short_turns(100_000).is_ok() { Urgency::ShortTurns } else { Urgency::Ordinary }
}

/// Makes the calling thread, and those that it starts, run when others leave a processor free
/// rather than in their place (SCHED_BATCH): for work beside cores.
///
/// # Errors
/// The system's.
pub fn be_patient() -> io::Result<()> {
    // SAFETY: a plain structure of numbers, for which zeros are valid, and which outlives the call.
    let set = unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests time slices of `ns` for the calling thread. Older kernels report success and do
/// nothing, so the value is read back.
fn ask_for_short_turns(ns: u64) -> io::Result<()> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: a plain structure of numbers, for which zeros are valid; the kernel reads and writes
    // `size` bytes of it at most, and it outlives the calls.
    let got = unsafe {
        let mut wanted: libc::sched_attr = std::mem::zeroed();
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut wanted, size as libc::c_uint, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        wanted.size = size as u32;
        wanted.sched_runtime = ns;
        if libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut got: libc::sched_attr = std::mem::zeroed();
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut got, size as libc::c_uint, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        got.sched_runtime
    };
    if got == ns { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_ask_and_is_told_what_it_got() {
        std::thread::spawn(|| {
            let first = be_urgent();
            assert_eq!(be_urgent(), first);
        })
        .join()
        .expect("asking harms nothing");
    }

    #[test]
    fn a_patient_thread_is_a_batch_job_for_the_kernel() {
        // SAFETY: the call reads nothing of this process.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let (before, after) = std::thread::spawn(move || {
            let before = policy();
            be_patient().expect("anybody may be patient");
            (before, policy())
        })
        .join()
        .expect("it ends");
        assert_eq!((before, after), (libc::SCHED_OTHER, libc::SCHED_BATCH));
    }
}
