//! All output of the program: results to stdout, messages to stderr. Must never panic, even if
//! stdout or stderr is a closed pipe or a full disk. (`print!` and `eprint!` panic then; clippy
//! forbids them in this crate.)

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;

/// Prints a line to stderr like `eprintln!`, without the panic.
macro_rules! say {
    ($($what:tt)*) => {
        $crate::out::to_stderr(format_args!("{}\n", format_args!($($what)*)))
    };
}

/// stdout is closed or full.
#[derive(Debug, thiserror::Error)]
#[error("stdout: {0}")]
pub struct OutError(#[from] io::Error);

impl OutError {
    /// Shows the error, and returns the exit status. Silent if the reader closed the pipe, like
    /// other Unix tools, which SIGPIPE ends.
    pub fn show(&self) -> Exit {
        if self.0.kind() == io::ErrorKind::BrokenPipe {
            return Exit::Closed;
        }
        say!("stag: {self}");
        Exit::Failed
    }
}

/// Writes `bytes` to stdout, all and at once.
pub fn write(bytes: &[u8]) -> Result<(), OutError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(OutError)
}

/// [`write`] for the last output of a command. Returns the exit status.
pub fn print(text: &str) -> Exit {
    match write(text.as_bytes()) {
        Ok(()) => Exit::Done,
        Err(error) => error.show(),
    }
}

/// Whether stderr is read by systemd's journal, which wants the priority of each line.
static FOR_JOURNAL: AtomicBool = AtomicBool::new(false);

/// Lines on stderr begin with their priority from now on (sd-daemon(3)), or do not any more.
pub fn for_journal(yes: bool) {
    FOR_JOURNAL.store(yes, Ordering::Relaxed);
}

/// Prints as [`say!`] does. Errors of stderr cannot be reported, and are ignored.
pub fn to_stderr(what: fmt::Arguments<'_>) {
    with_priority(3, what);
}

/// [`say!`] with the priority of a warning.
pub fn warn(what: fmt::Arguments<'_>) {
    with_priority(4, format_args!("{what}\n"));
}

fn with_priority(priority: u8, what: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let _ = match FOR_JOURNAL.load(Ordering::Relaxed) {
        false => stderr.write_fmt(what),
        true => what.to_string().lines().try_for_each(|line| writeln!(stderr, "<{priority}>{line}")),
    };
}
