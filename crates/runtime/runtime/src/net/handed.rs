//! Sockets that a service manager opened for this process (`sd_listen_fds(3)`).

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them; they follow each other.
const FIRST: i32 = 3;
/// Highest number of such descriptors that are accepted.
const MOST: i32 = 4096;

/// The sockets that the service manager has passed to this process, with the names that it gave
/// them: those of LISTEN_FDS, if LISTEN_PID is this process. Only the first call gets them.
pub fn handed_sockets() -> Vec<(OwnedFd, String)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let own = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    if !own || TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, MOST);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    (FIRST..FIRST + count)
        // SAFETY: takes a number, and looks whether it is open.
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0)
        .map(|fd| {
            let name = names.next().unwrap_or_default().to_owned();
            // SAFETY: it is open, was given to this process at its start to own, and is taken once.
            (unsafe { OwnedFd::from_raw_fd(fd) }, name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn without_a_service_manager_there_are_none() {
        assert!(super::handed_sockets().is_empty());
    }
}
