//! The two network namespaces of a link: making them (in a user namespace of our own, unless the
//! process may make them without), entering them, and emptying them. Explains to users why a system
//! refuses them. Changes nothing outside of them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::spec::Side;

/// Both namespaces, held open.
pub(crate) struct Namespaces {
    a: File,
    b: File,
    /// Whether they belong to a user namespace of our own.
    pub(crate) of_own_user: bool,
}

/// Why there are none, and possible remedies.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}{hint}")]
pub(crate) struct Refusal {
    what: &'static str,
    error: io::Error,
    hint: String,
}

impl Refusal {
    /// A failed step. Adds the system's settings that explain it.
    pub(crate) fn new(what: &'static str, error: io::Error) -> Self {
        let hints = hints();
        let hint = if hints.is_empty() { String::new() } else { format!(" ({})", hints.join("; ")) };
        Self { what, error, hint }
    }
}

/// Settings of this system that prevent namespaces, with remedies.
fn hints() -> Vec<&'static str> {
    let says =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|content| content.trim() == value);
    let mut hints = Vec::new();
    if says("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        hints.push("allow user namespaces: sysctl kernel.unprivileged_userns_clone=1");
    }
    if says("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        hints.push(
            "AppArmor takes all capabilities in user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, a profile \
             for stag that has `userns,`, or run it as root",
        );
    }
    if says("/proc/sys/user/max_user_namespaces", "0") || says("/proc/sys/user/max_net_namespaces", "0") {
        hints.push(
            "allow namespaces: sysctl user.max_user_namespaces=1000000 and user.max_net_namespaces=1000000",
        );
    }
    if !Path::new("/dev/net/tun").exists() {
        hints.push("there is no /dev/net/tun: modprobe tun; in a container, --device /dev/net/tun");
    } else if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        if error.kind() == io::ErrorKind::PermissionDenied {
            hints.push("/dev/net/tun may not be opened: chmod 666 /dev/net/tun, as udev would");
        }
    }
    if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        hints.push("a container may make namespaces with --cap-add SYS_ADMIN --cap-add NET_ADMIN, or with --security-opt seccomp=unconfined");
    }
    hints
}

impl Namespaces {
    /// Makes both. The process must have a single thread; that thread is in one of the namespaces
    /// afterwards.
    pub(crate) fn make() -> Result<Self, Refusal> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let of_own_user = unshare(CloneFlags::CLONE_NEWNET).is_err();
        if of_own_user {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
                .map_err(|error| Refusal::new("cannot make a user namespace", error.into()))?;
            // user_namespaces(7): setgroups must be denied before groups can be mapped without
            // privilege.
            let maps = [
                ("/proc/self/setgroups", "deny".to_owned()),
                ("/proc/self/uid_map", format!("0 {uid} 1")),
                ("/proc/self/gid_map", format!("0 {gid} 1")),
            ];
            for (path, map) in maps {
                fs::write(path, map)
                    .map_err(|error| Refusal::new("cannot map users into a user namespace", error))?;
            }
        }
        let here = || File::open("/proc/thread-self/ns/net");
        let open = |error| Refusal::new("cannot hold a network namespace", error);
        let a = here().map_err(open)?;
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|error| Refusal::new("cannot make a second network namespace", error.into()))?;
        let b = here().map_err(open)?;
        Ok(Self { a, b, of_own_user })
    }

    pub(crate) fn of(&self, side: Side) -> &File {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// Moves the calling thread into one side's namespace.
    pub(crate) fn enter(&self, side: Side) -> io::Result<()> {
        enter(self.of(side))
    }

    /// The way for another process to find one side's namespace.
    pub(crate) fn door(&self, side: Side) -> io::Result<Door> {
        let file = self.of(side);
        let holder = std::process::id();
        let net = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Door {
            holder,
            descriptor: file.as_raw_fd(),
            net: net.to_string_lossy().into_owned(),
            of_own_user: self.of_own_user,
        })
    }
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Reference by which another process opens a namespace: an open descriptor of its holder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Door {
    holder: u32,
    descriptor: i32,
    /// The expected target of the descriptor: `net:[4026531840]`.
    net: String,
    of_own_user: bool,
}

impl Door {
    /// The arguments from which `Door::exec` finds the namespace again.
    pub(crate) fn arguments(&self) -> [String; 4] {
        let user = if self.of_own_user { "user" } else { "-" };
        [self.holder.to_string(), self.descriptor.to_string(), self.net.clone(), user.to_owned()]
    }

    /// Executes the program that `arguments` name after the door's own arguments, in the namespace
    /// behind the door. Returns only on failure.
    pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
        let mut next = || arguments.next().and_then(|text| text.into_string().ok());
        let (Some(holder), Some(descriptor), Some(net), Some(user)) = (next(), next(), next(), next()) else {
            return io::ErrorKind::InvalidInput.into();
        };
        let Some(program) = arguments.next() else { return io::ErrorKind::InvalidInput.into() };
        let entered = || -> io::Result<()> {
            let path = format!("/proc/{holder}/fd/{descriptor}");
            if fs::read_link(&path)?.to_string_lossy() != net {
                return Err(io::Error::other("the link is gone"));
            }
            let namespace = File::open(&path)?;
            if user == "user" {
                let of_user = File::open(format!("/proc/{holder}/ns/user"))?;
                move_into_link_name_space(of_user.as_fd(), Some(LinkNameSpaceType::User))?;
            }
            enter(&namespace)
        };
        // The parent may block signals, and programs inherit the mask.
        let _ = SigSet::empty().thread_set_mask();
        match entered() {
            Ok(()) => Command::new(program).args(arguments).exec(),
            Err(error) => error,
        }
    }

    /// Ends every process in the namespace but the calling one. Returns true if there was none.
    fn sweep_once(&self) -> bool {
        let mut none = true;
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        for process in processes.flatten() {
            let name = process.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if pid as u32 == std::process::id() || pid as u32 == self.holder {
                continue;
            }
            let theirs = fs::read_link(process.path().join("ns/net"));
            if theirs.is_ok_and(|net| net.to_string_lossy() == self.net) {
                none = false;
                if let Some(pid) = Pid::from_raw(pid) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
        none
    }
}

/// Ends every process in these namespaces, including processes that start meanwhile. Gives up after
/// two seconds.
pub(crate) fn sweep(doors: &[Door]) {
    for _ in 0..200 {
        let left = doors.iter().filter(|door| !door.sweep_once()).count();
        if left == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
