//! The commands' side of the control socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::protocol::{Answer, Fault, Kind, Request, read_answer, write_line};
use super::socket::usual_path;
use crate::exit::Exit;

/// Why a daemon did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody is there.
    #[error("no daemon answers on {path}: {source}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It went away.
    #[error("the daemon went away: {0}")]
    Lost(#[from] io::Error),
    /// It says no.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl CallError {
    /// What a command ends with.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Lost(_) => Exit::Failed,
            Self::Fault(fault) => match fault.kind {
                Kind::Request => Exit::Usage,
                Kind::Config => Exit::Config,
                Kind::Refused | Kind::Failed => Exit::Failed,
            },
        }
    }

    /// Tells the user, and what the command ends with.
    pub fn show(&self) -> Exit {
        eprintln!("stag: {self}");
        if let Self::Unreachable { source, .. } = self {
            eprintln!(
                "      {}",
                match source.kind() {
                    io::ErrorKind::PermissionDenied =>
                        "a daemon is managed by its own user and root: try sudo",
                    _ =>
                        "is `stag serve` running? Another socket than the usual one is named with --control PATH",
                }
            );
        }
        self.exit()
    }
}

/// A connection to a daemon.
pub struct Client {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the daemon at `path`, or at the usual place.
    ///
    /// # Errors
    /// When nobody is there.
    pub fn connect(path: Option<&Path>) -> Result<Self, CallError> {
        let path = path.map_or_else(usual_path, Path::to_owned);
        let connect = || {
            let stream = UnixStream::connect(&path)?;
            let lines = BufReader::new(stream.try_clone()?);
            Ok(Self { stream, lines })
        };
        connect().map_err(|source| CallError::Unreachable { path: path.clone(), source })
    }

    /// Has the daemon do `verb`; `progress` hears what it says meanwhile.
    ///
    /// # Errors
    /// When it says no, or went away.
    pub fn call(
        &mut self,
        verb: &str,
        arguments: Map<String, Value>,
        mut progress: impl FnMut(Value),
    ) -> Result<Value, CallError> {
        write_line(&mut self.stream, &Request::new(verb, arguments))?;
        loop {
            match read_answer(&mut self.lines)? {
                Some(Answer::Progress(step)) => progress(step),
                Some(Answer::Ok(value)) => return Ok(value),
                Some(Answer::Error(fault)) => return Err(fault.into()),
                None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        }
    }

    /// [`Self::call`] without arguments and progress, for an answer of a known shape.
    ///
    /// # Errors
    /// When it says no, went away, or answers something else.
    pub fn ask<T: serde::de::DeserializeOwned>(&mut self, verb: &str) -> Result<T, CallError> {
        let value = self.call(verb, Map::new(), |_| ())?;
        serde_json::from_value(value).map_err(|error| CallError::Lost(error.into()))
    }
}
