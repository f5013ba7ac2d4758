//! Programs that end with their parent, even if it is ended by SIGKILL. This program, started anew,
//! requests that from the kernel and then executes them. (Programs on a link end with the link.)

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::HELPER;

/// A command that runs `program` through `helper`, whose `main` calls [`super::helper`]. The thread
/// that starts it must outlive it.
pub(crate) fn command(helper: &Path, program: &OsStr) -> Command {
    let mut command = Command::new(helper);
    command.args([HELPER, "child", &std::process::id().to_string()]).arg(program);
    command
}

/// Executes the program that `arguments` name after the parent's process id. Returns only on
/// failure.
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let starter = arguments.next().and_then(|text| text.to_str()?.parse::<i32>().ok());
    let (Some(starter), Some(program)) = (starter, arguments.next()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have ended before the request.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(starter) {
        return io::Error::other("who started it has ended");
    }
    // The parent may block signals, and programs inherit the mask.
    let _ = SigSet::empty().thread_set_mask();
    Command::new(program).args(arguments).exec()
}
