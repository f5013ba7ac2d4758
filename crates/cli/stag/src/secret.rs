//! CHAP secrets from a file, the environment or the terminal. Never from arguments, which all users
//! can see in the list of processes. Keeps the memory of processes with secrets out of core dumps.

use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use iscsi::chap::Secret;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use zeroize::Zeroizing;

use crate::terminal;

/// The longest file that is read, bytes.
const MAX_FILE: u64 = 4096;

/// Secrets that were asked for at the terminal, by the question. A command asks each once.
static ASKED: Mutex<Vec<(String, Secret)>> = Mutex::new(Vec::new());

/// Owner of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The user's, that is, of the initiator.
    User,
    /// The target's, which authenticates to the initiator (mutual CHAP).
    Target,
}

impl Whose {
    fn variable(self) -> &'static str {
        match self {
            Self::User => "STAG_SECRET",
            Self::Target => "STAG_MUTUAL_SECRET",
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::User => "--secret-file",
            Self::Target => "--mutual-secret-file",
        }
    }
}

/// The secret of `name`: from `file` if given, else from the environment, else from the terminal.
///
/// # Errors
/// There is none; with advice.
pub fn of(whose: Whose, name: &str, file: Option<&Path>) -> Result<Secret, String> {
    forbid_core_dumps();
    let secret = match (file, std::env::var_os(whose.variable())) {
        (Some(file), _) => {
            let read = read(file);
            read.map_err(|error| format!("the secret cannot be read: {}: {error}", file.display()))?.1
        }
        (None, Some(value)) => Secret::new(std::os::unix::ffi::OsStringExt::into_vec(value)),
        (None, None) => asked(whose, name)?,
    };
    match secret.is_empty() {
        true => Err(format!("the secret of {name} is empty")),
        false => Ok(secret),
    }
}

fn asked(whose: Whose, name: &str) -> Result<Secret, String> {
    let question = match whose {
        Whose::User => format!("CHAP secret of {name}: "),
        Whose::Target => format!("CHAP secret of the target {name}: "),
    };
    // Held while the user is asked, so that two threads do not ask at once.
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, secret)) = asked.iter().find(|(before, _)| *before == question) {
        return Ok(secret.clone());
    }
    let secret = terminal::ask(&question).map_err(|error| {
        let (option, variable) = (whose.option(), whose.variable());
        format!("the secret of {name} is missing ({error}): give it with {option} FILE or in {variable}")
    })?;
    asked.push((question, secret.clone()));
    Ok(secret)
}

/// The secret that a file holds, without the newline at its end, and the file's mode.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is too long.
pub fn read(path: &Path) -> io::Result<(u32, Secret)> {
    let (mode, mut bytes) = read_bytes(path)?;
    Ok((mode, Secret::new(std::mem::take(&mut *bytes))))
}

/// Warns if others than its owner may read the file of a secret.
pub fn warn_of_readers(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "others may read this secret: chmod 600 it");
    }
}

/// The bytes of [`read`], zeroed when they are dropped.
///
/// # Errors
/// Those of [`read`].
pub fn read_bytes(path: &Path) -> io::Result<(u32, Zeroizing<Vec<u8>>)> {
    // Opening a FIFO without a writer would block otherwise.
    let file = std::fs::File::options().read(true).custom_flags(nonblocking()).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_FILE {
        return Err(io::Error::other("not a small file"));
    }
    // Room from the beginning: a Vec that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    Ok((about.permissions().mode(), bytes))
}

fn nonblocking() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default()
}

/// Keeps this process's memory out of core dumps, and out of reach of the user's other processes
/// (ptrace(2)). Call it before the process holds its first secret.
pub fn forbid_core_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "secrets may show in core dumps");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_file_is_small_and_loses_its_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "correct horse battery\r\n").unwrap();
        assert_eq!(read(&path).unwrap().1, Secret::new(*b"correct horse battery"));
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert!(read(&path).is_err());
        assert!(read(dir.path()).is_err());
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&fifo).is_err());
    }
}
