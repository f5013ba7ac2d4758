//! Credentials of a Unix socket's peer that rustix does not provide.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// `SO_PEERGROUPS` of Linux 4.13 (include/uapi/asm-generic/socket.h).
const SO_PEERGROUPS: i32 = 59;
/// Most groups of a process (NGROUPS_MAX).
const MOST: usize = 65_536;

/// The supplementary groups of the process at the other end of the Unix socket `fd`, as they were
/// when it connected.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_groups(fd: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, which `groups` has, and puts into `len`
        // what there are; both outlive the call.
        let rc = unsafe {
            let (value, len) = (groups.as_mut_ptr().cast(), &raw mut len);
            libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, value, len)
        };
        match check(rc) {
            Ok(_) => {
                groups.truncate(len as usize / size_of::<u32>());
                return Ok(groups);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < MOST => {
                groups.resize(MOST, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let own: Vec<u32> = own.split_whitespace().map(|group| group.parse().unwrap()).collect();
        assert_eq!(peer_groups(one.as_fd()).unwrap(), own);
    }
}
