//! Exit statuses of the process.

use std::process::ExitCode;

/// Exit statuses, the same for every subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// The work was begun and failed: an I/O error, a SCSI error, data that does not compare.
    Failed = 1,
    /// The command line makes no sense. (clap ends the process with this by itself.)
    Usage = 2,
    /// The configuration file has mistakes or cannot be read.
    Config = 3,
    /// The server could not start: a port in use, a unit that cannot be opened.
    Startup = 4,
    /// The target could not be reached, or refused the login.
    Unreachable = 5,
    /// `status --check`: a problem to look at. Status 1, as of monitoring plugins.
    CheckWarning,
    /// `status --check`: a problem to act on. Status 2.
    CheckCritical,
    /// `status --check`: no daemon answers: 3.
    CheckUnknown,
    /// A signal ended it early, after it printed its results so far.
    Interrupted = 130,
    /// The reader of stdout closed it before all was printed. 141 is the status that shells show
    /// for a process ended by SIGPIPE.
    Closed = 141,
}

impl Exit {
    /// This status, or `next` if this one is [`Exit::Done`].
    pub fn or(self, next: Self) -> Self {
        if self == Self::Done { next } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::CheckWarning => 1,
            Exit::CheckCritical => 2,
            Exit::CheckUnknown => 3,
            exit => exit as u8,
        })
    }
}

/// The same in words, for help and man pages.
pub const HELP: &str = "\
Exit status:
  0  all went well
  1  the work was begun and failed: an I/O error, a SCSI error, data that does not compare
  2  the command line makes no sense
  3  the configuration file has mistakes or cannot be read
  4  the server could not start: a port in use, a unit that cannot be opened
  5  the target could not be reached, or refused the login
  with `stag status --check`: 0 no problems, 1 warning, 2 critical, 3 no daemon answers
  130  a signal ended it before its time; what was found until then was told
  141  the reader of stdout closed it before all was printed";
