//! seccomp: the system calls that the daemon may still make.
//!
//! A call that is not listed fails with ENOSYS, as on an older kernel, so libraries fall back to
//! one that is. Arguments are checked if a call can do more than serving needs. System call numbers
//! are the machine's own; the list names what its kernel has.
//!
//! Rings that are there stay, with their limits. No further one can be made: a ring without limits
//! would open sockets of other families and send commands to open devices (IORING_OP_URING_CMD),
//! which the filter would not see. Runtimes of later threads have epoll ([`filter`]).

use std::collections::BTreeMap;

use libc::*;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The reason why calls are not filtered.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The filter cannot be made.
    #[error(transparent)]
    Filter(#[from] seccompiler::BackendError),
    /// The kernel refuses it.
    #[error(transparent)]
    Kernel(#[from] seccompiler::Error),
    /// There is no filter for this machine's architecture.
    #[error("there is no filter for {}", std::env::consts::ARCH)]
    Machine,
}

/// Calls that may be made with any arguments.
#[rustfmt::skip]
const ANY: &[c_long] = &[
    // Memory.
    SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mincore, SYS_msync, SYS_mlock, SYS_munlock,
    SYS_membarrier,
    // Threads and time.
    SYS_futex, SYS_set_robust_list, SYS_rseq, SYS_sched_yield, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_getcpu, SYS_gettid, SYS_getpid, SYS_exit, SYS_exit_group,
    SYS_sigaltstack, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_restart_syscall,
    SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday,
    SYS_times, SYS_getrusage, SYS_sysinfo, SYS_uname, SYS_getrandom, SYS_getuid, SYS_geteuid,
    SYS_getgid, SYS_getegid, SYS_getgroups, SYS_umask,
    // Rings, and what else is waited for.
    SYS_io_uring_enter, SYS_io_uring_register, SYS_ppoll, SYS_epoll_create1,
    SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2, SYS_signalfd4, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
    // Open files.
    SYS_openat, SYS_close, SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64,
    SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_fstat, SYS_newfstatat,
    SYS_statx, SYS_statfs, SYS_fstatfs, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_fsync,
    SYS_fdatasync, SYS_sync_file_range, SYS_syncfs, SYS_copy_file_range, SYS_splice, SYS_vmsplice,
    SYS_tee, SYS_sendfile, SYS_pipe2, SYS_dup, SYS_dup3, SYS_fcntl, SYS_flock, SYS_memfd_create,
    // Names of files.
    SYS_getdents64, SYS_getcwd, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_mkdirat,
    SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_fchmod, SYS_fchmodat,
    SYS_fchown, SYS_utimensat, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_setxattr,
    SYS_fsetxattr, SYS_listxattr, SYS_flistxattr, SYS_removexattr, SYS_fremovexattr,
    // Exported directories: files by their handles, each call as its caller.
    SYS_openat2, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_mknodat, SYS_fchownat,
    SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset,
    // Sockets that are there.
    SYS_bind, SYS_listen, SYS_accept4, SYS_connect, SYS_getsockname, SYS_getpeername,
    SYS_setsockopt, SYS_getsockopt, SYS_sendto, SYS_sendmsg, SYS_sendmmsg, SYS_recvfrom,
    SYS_recvmsg, SYS_recvmmsg, SYS_shutdown, SYS_socketpair,
];

/// The older forms of the same, which only this machine has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[c_long] = &[
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_epoll_create, SYS_readlink, SYS_mkdir, SYS_rmdir, SYS_unlink,
    SYS_rename, SYS_link, SYS_chmod, SYS_poll, SYS_select, SYS_epoll_wait, SYS_dup2, SYS_time,
    SYS_getdents,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// `ioctl` requests: sockets, terminals, block devices, names of interfaces, RDMA devices.
const IOCTLS: [u64; 10] = [
    0x4020_940D, // FICLONERANGE
    0x5421,      // FIONBIO
    0x541B,      // FIONREAD
    0x5401,      // TCGETS
    0x8933,      // SIOCGIFINDEX
    0x8008_1272, // BLKGETSIZE64
    0x1268,      // BLKSSZGET
    0x127B,      // BLKPBSZGET
    0x1277,      // BLKDISCARD
    0x127F,      // BLKZEROOUT
];
/// `RDMA_VERBS_IOCTL`.
const VERBS: u64 = 0xC018_1B01;

/// `prctl` operations: names of threads and mappings, core dumps, privileges.
const PRCTLS: [u64; 6] = [
    PR_SET_NAME as u64,
    PR_GET_NAME as u64,
    PR_GET_DUMPABLE as u64,
    PR_SET_NO_NEW_PRIVS as u64,
    PR_GET_NO_NEW_PRIVS as u64,
    0x5356_4D41, // PR_SET_VMA
];

const FAMILIES: [c_int; 4] = [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn only(
    argument: u8,
    len: SeccompCmpArgLen,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, len, op, value)?])
}

fn rules() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = ANY.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    let of = |values: &mut dyn Iterator<Item = u64>, argument| {
        values.map(|value| only(argument, Dword, Eq, value)).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(SYS_socket, of(&mut FAMILIES.iter().map(|family| *family as u64), 0)?);
    rules.insert(SYS_ioctl, of(&mut IOCTLS.into_iter().chain([VERBS]), 1)?);
    rules.insert(SYS_prctl, of(&mut PRCTLS.into_iter(), 0)?);
    // Threads, but no processes. libc falls back from clone3, whose flags a filter cannot see.
    let thread = CLONE_THREAD as u64;
    rules.insert(SYS_clone, vec![only(0, Dword, MaskedEq(thread), thread)?]);
    // Memory is writable or executable, never both.
    let both = (PROT_WRITE | PROT_EXEC) as u64;
    for call in [SYS_mmap, SYS_mprotect] {
        let one = [0, PROT_WRITE as u64, PROT_EXEC as u64];
        let one = one.into_iter().map(|rights| only(2, Dword, MaskedEq(both), rights));
        rules.insert(call, one.collect::<Result<_, _>>()?);
    }
    // Limits are read, of this process and others, and not set.
    rules.insert(SYS_prlimit64, vec![only(2, SeccompCmpArgLen::Qword, Eq, 0)?]);
    // Signals reach this process alone: a panic that aborts, a daemon that has been replaced.
    let own = u64::from(std::process::id());
    rules.insert(SYS_kill, vec![only(0, Dword, Eq, own)?]);
    rules.insert(SYS_tgkill, of(&mut [own].into_iter(), 0)?);
    Ok(rules)
}

/// The filter, as the kernel takes it.
fn program() -> Result<BpfProgram, CallsError> {
    let machine = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| CallsError::Machine)?;
    let otherwise = SeccompAction::Errno(ENOSYS as u32);
    Ok(SeccompFilter::new(rules()?, otherwise, SeccompAction::Allow, machine)?.try_into()?)
}

/// Filters the system calls of all threads from now on. There is no way back. Runtimes that are
/// made later have epoll. None of them is on a data path: they wait for signals, make the first
/// connection to an NBD server, and write the checkpoints of stores of objects that are added.
///
/// # Errors
/// They are not filtered.
pub fn filter() -> Result<(), CallsError> {
    let program = program()?;
    seccompiler::apply_filter_all_threads(&program)?;
    runtime::Backend::Epoll.prefer();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::process::Command;

    use super::*;

    /// Runs `work` on a thread that is filtered alone.
    fn filtered<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let filtered = move || {
            seccompiler::apply_filter(&program().unwrap()).unwrap();
            work()
        };
        std::thread::spawn(filtered).join().unwrap()
    }

    #[test]
    fn a_filtered_thread_runs_no_program() {
        let error = filtered(|| Command::new("/bin/true").spawn().map(drop).unwrap_err());
        assert_eq!(error.raw_os_error(), Some(ENOSYS), "{error}");
    }

    #[test]
    fn a_filtered_thread_makes_no_ring() {
        let config = runtime::Config { backend: runtime::Backend::IoUring, ..runtime::Config::default() };
        runtime::Runtime::new(config.clone()).expect("an unfiltered thread makes one");
        let error = filtered(move || runtime::Runtime::new(config).map(drop).unwrap_err());
        assert!(runtime::NoRing::is(&error) && error.kind() == io::ErrorKind::Unsupported, "{error}");
    }

    #[test]
    fn a_filtered_thread_has_files_sockets_threads_and_runtimes() {
        filtered(|| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("file"), "text")?;
            std::fs::rename(dir.path().join("file"), dir.path().join("other"))?;
            assert_eq!(std::fs::read(dir.path().join("other"))?, b"text");
            std::net::TcpListener::bind("127.0.0.1:0")?;
            std::os::unix::net::UnixDatagram::unbound()?;
            std::thread::Builder::new().spawn(|| ())?.join().unwrap();
            runtime::Runtime::new(runtime::Config::default())?.block_on(async {
                runtime::sleep(std::time::Duration::from_millis(1)).await;
            });
            Ok::<_, io::Error>(())
        })
        .unwrap();
    }

    #[test]
    fn a_filtered_thread_gets_no_other_kinds_of_sockets() {
        use rustix::net::{AddressFamily, SocketType, socket};
        let error = filtered(|| socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop).unwrap_err());
        assert_eq!(error, rustix::io::Errno::NOSYS);
    }
}
