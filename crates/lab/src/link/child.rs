//! Programs that end with their starter, also if that is ended by SIGKILL: this program, started anew, asks the kernel for it and becomes
//! them. (Those on a link end with the link.)

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::HELPER;

/// A command that runs `program`, by `helper`, whose `main` calls [`super::helper`]. The thread that starts it must not end before it.
pub(crate) fn command(helper: &Path, program: &OsStr) -> Command {
    let mut command = Command::new(helper);
    command.args([HELPER, "child", &std::process::id().to_string()]).arg(program);
    command
}

/// Becomes the program that `arguments` name after the starter's process id. Returns only if that fails.
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let starter = arguments.next().and_then(|text| text.to_str()?.parse::<i32>().ok());
    let (Some(starter), Some(program)) = (starter, arguments.next()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // It may have ended before that was asked for.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(starter) {
        return io::Error::other("who started it has ended");
    }
    // Whoever starts it may keep signals from itself, and a program inherits that.
    let _ = SigSet::empty().thread_set_mask();
    Command::new(program).args(arguments).exec()
}
