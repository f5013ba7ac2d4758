//! [`act_as`]: system calls in the name of another user, on the calling thread alone.
//!
//! Owns the file system identity of threads (setfsuid(2), setfsgid(2), and supplementary groups).
//! Dropping the guard restores the thread's own identity, so later code on it is not affected.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const CAP_SYS_RESOURCE: u32 = 24;

thread_local! {
    /// The supplementary groups set last on this thread. They stay set: they have no effect on a
    /// thread with the capabilities of the super-user.
    static GROUPS: RefCell<Option<Vec<u32>>> = const { RefCell::new(None) };
    /// The user and group as whom a guard has this thread act.
    static ACTING: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
    static OBEYS_QUOTAS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread acts as another user until this is dropped.
#[derive(Debug)]
pub struct ActingAs {
    uid: u32,
    gid: u32,
    before: Option<(u32, u32)>,
    _this_thread: PhantomData<*const ()>,
}

/// Makes the calling thread act as this user towards file systems. It obeys quotas from then on,
/// which CAP_SYS_RESOURCE would override. User 0 keeps its capabilities. A thread that is started
/// meanwhile acts as this user for ever.
///
/// # Errors
/// `PermissionDenied` without CAP_SETUID and CAP_SETGID, or for the numbers 2³²−1, which no user
/// has.
pub fn act_as(uid: u32, gid: u32, groups: &[u32]) -> io::Result<ActingAs> {
    obey_quotas()?;
    if uid != 0 {
        set_groups(groups)?;
    }
    let before = ActingAs {
        uid: fsuid(u32::MAX),
        gid: fsgid(u32::MAX),
        before: ACTING.get(),
        _this_thread: PhantomData,
    };
    fsgid(gid);
    fsuid(uid);
    // The calls report no failure. The guard undoes the changes made.
    if fsuid(u32::MAX) != uid || fsgid(u32::MAX) != gid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    ACTING.set(Some((uid, gid)));
    Ok(before)
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        fsuid(self.uid);
        fsgid(self.gid);
        ACTING.set(self.before);
    }
}

/// The user as whom a thread acts, for a call that another thread makes for it.
pub(crate) struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Identity {
    /// The one as whom a guard has this thread act; `None` without a guard.
    pub(crate) fn present() -> Option<Self> {
        let (uid, gid) = ACTING.get()?;
        Some(Self { uid, gid, groups: GROUPS.with_borrow(|groups| groups.clone().unwrap_or_default()) })
    }

    /// [`act_as`] this user.
    pub(crate) fn act(&self) -> io::Result<ActingAs> {
        act_as(self.uid, self.gid, &self.groups)
    }
}

/// Whether the user as whom the calling thread acts has these permissions for an open file: bits of
/// access(2).
///
/// # Errors
/// Those of faccessat2(2), other than that it may not.
pub fn may_access(file: BorrowedFd<'_>, wanted: u32) -> io::Result<bool> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the name is an empty C string that lives for ever.
    let rc = unsafe { libc::syscall(libc::SYS_faccessat2, file.as_raw_fd(), c"".as_ptr(), wanted, flags) };
    if rc == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => Ok(false),
        _ => Err(error),
    }
}

/// Sets the user, unless it is 2³²−1. Returns the one before.
fn fsuid(uid: u32) -> u32 {
    // SAFETY: takes a number only; it changes the calling thread alone.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

/// Sets the group, unless it is 2³²−1. Returns the one before.
fn fsgid(gid: u32) -> u32 {
    // SAFETY: takes a number only; it changes the calling thread alone.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    GROUPS.with_borrow_mut(|last| {
        if last.as_deref() == Some(groups) {
            return Ok(());
        }
        // SAFETY: the slice may be read for its length. The raw call changes the calling thread
        // alone.
        if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
            *last = None;
            return Err(io::Error::last_os_error());
        }
        let kept = last.get_or_insert_default();
        kept.clear();
        kept.extend_from_slice(groups);
        Ok(())
    })
}

/// Removes CAP_SYS_RESOURCE from this thread's effective capabilities, once a thread.
fn obey_quotas() -> io::Result<()> {
    if OBEYS_QUOTAS.get() {
        return Ok(());
    }
    // The header, and two sets of effective, permitted and inheritable capabilities.
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the kernel reads eight bytes of the header, and writes 24 to the sets, which both
    // have.
    if unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    sets[0] &= !(1 << CAP_SYS_RESOURCE);
    // SAFETY: the kernel reads eight and 24 bytes. It changes the calling thread alone.
    if unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    OBEYS_QUOTAS.set(true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_thread_acts_as_another_user_until_the_guard_goes() {
        if fsuid(u32::MAX) != 0 {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let make = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, b"").unwrap();
            let about = fs::metadata(path).unwrap();
            (about.uid(), about.gid())
        };
        let secret = directory.path().join("secret");
        fs::write(&secret, b"").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o604)).unwrap();
        let secret = fs::File::open(secret).unwrap();
        assert!(may_access(secret.as_fd(), 6).unwrap());
        let acting = act_as(1234, 2345, &[7, 8]).unwrap();
        assert!(may_access(secret.as_fd(), 4).unwrap() && !may_access(secret.as_fd(), 2).unwrap());
        assert_eq!(make("as the other"), (1234, 2345));
        let present = Identity::present().expect("a guard is there");
        assert_eq!((present.uid, present.gid, &present.groups[..]), (1234, 2345, &[7, 8][..]));
        let elsewhere = std::thread::scope(|threads| threads.spawn(|| fsuid(u32::MAX)).join().unwrap());
        assert_eq!(elsewhere, 1234, "a new thread inherits it");
        drop(acting);
        assert!(Identity::present().is_none());
        assert_eq!(make("as itself"), (0, 0));
        assert!(act_as(u32::MAX, 0, &[]).is_err(), "there is no such user");
        assert_eq!(fsuid(u32::MAX), 0);
    }
}
