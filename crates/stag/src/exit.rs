//! What the process ends with.

use std::process::ExitCode;

/// Exit statuses, the same for every subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
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
    /// A signal ended it before its time; what was found until then was told.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
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
  130  a signal ended it before its time; what was found until then was told";
