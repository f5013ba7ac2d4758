//! Reasons why there is no io_uring, with instructions: forbidden here, or a kernel that is too
//! old.

use std::io;

/// There is no io_uring for this process. `Display` gives the reason, and a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRing(String);

impl std::fmt::Display for NoRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoRing {}

impl NoRing {
    /// Whether `error` is one.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// System settings that can deny io_uring.
struct Facts {
    /// `kernel.io_uring_disabled`: 1 denies io_uring to unprivileged processes, 2 to all.
    disabled: u8,
    /// System calls of this process are filtered (seccomp(2)).
    filtered: bool,
}

impl Facts {
    fn read() -> Self {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            disabled: disabled.trim().parse().unwrap_or(0),
            filtered: seccomp.is_some_and(|mode| mode.trim() == "2"),
        }
    }
}

/// `error` of setting up a ring, explained if it is one of those that the administrator can do
/// something about.
pub(crate) fn explained(error: io::Error) -> io::Error {
    explain(error, Facts::read)
}

fn explain(error: io::Error, facts: impl FnOnce() -> Facts) -> io::Error {
    let old = |what: &str| io::Error::new(io::ErrorKind::Unsupported, NoRing(what.to_owned()));
    let forbidden = |what: String| io::Error::new(io::ErrorKind::PermissionDenied, NoRing(what));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => forbidden(match facts() {
            Facts { disabled: n @ 1.., .. } => format!(
                "io_uring is forbidden here: kernel.io_uring_disabled is {n}. To allow it: sysctl kernel.io_uring_disabled=0"
            ),
            Facts { filtered: true, .. } => "io_uring is forbidden here by a seccomp filter, as containers have one by default. \
                Allow io_uring_setup, io_uring_enter and io_uring_register in its profile (docker run --security-opt \
                seccomp=PROFILE)"
                .into(),
            Facts { .. } => {
                "io_uring is forbidden here (EPERM), perhaps by a security module: SELinux, AppArmor".into()
            }
        }),
        Some(libc::ENOSYS) => match facts().filtered {
            true => old("there is no io_uring here: the kernel has none, or a seccomp filter hides it (ENOSYS)"),
            false => old("this kernel has no io_uring: Linux 5.19 or later is needed"),
        },
        Some(libc::EINVAL) => old("this kernel's io_uring is too old: Linux 5.19 or later is needed"),
        _ if error.kind() == io::ErrorKind::Unsupported => {
            old("this kernel's io_uring is too old: Linux 5.19 or later is needed")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, disabled: u8, filtered: bool) -> io::Error {
        explain(io::Error::from_raw_os_error(errno), || Facts { disabled, filtered })
    }

    #[test]
    fn a_forbidden_ring_is_told_from_an_old_kernel() {
        for (disabled, filtered, word) in [
            (2, false, "io_uring_disabled is 2"),
            (1, true, "io_uring_disabled is 1"),
            (0, true, "seccomp"),
            (0, false, "SELinux"),
        ] {
            let error = said(libc::EPERM, disabled, filtered);
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(NoRing::is(&error) && error.to_string().contains(word), "{error}");
        }
        for (errno, filtered, word) in
            [(libc::ENOSYS, true, "hides it"), (libc::ENOSYS, false, "5.19"), (libc::EINVAL, true, "too old")]
        {
            let error = said(errno, 0, filtered);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(NoRing::is(&error) && error.to_string().contains(word), "{error}");
        }
        let other = said(libc::EMFILE, 0, true);
        assert_eq!((other.raw_os_error(), NoRing::is(&other)), (Some(libc::EMFILE), false));
    }
}
