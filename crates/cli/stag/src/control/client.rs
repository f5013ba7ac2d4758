//! The commands' side of the control socket.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::peer;
use super::place::{self, PlaceError, REMEDY};
use super::protocol::{Answer, Fault, Kind, Request, read_answer, write_line};
use crate::exit::Exit;

/// The reason why a daemon did not execute a request.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("no daemon answers on {path}: {source}")]
    Unreachable { path: PathBuf, source: io::Error },
    /// The usual directory cannot be trusted.
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("nothing was asked: {0}")]
    Stranger(String),
    /// The daemon's end of the connection is closed. Nothing else shows that a daemon has ended.
    #[error("the daemon went away: {0}")]
    Lost(io::Error),
    /// The daemon is silent for too long, or its answer cannot be used.
    #[error("the daemon does not answer as it should: {0}")]
    Answer(io::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            UnexpectedEof | BrokenPipe | ConnectionReset | ConnectionAborted => Self::Lost(error),
            io::ErrorKind::WouldBlock => {
                Self::Answer(io::Error::new(io::ErrorKind::TimedOut, "it is silent"))
            }
            _ => Self::Answer(error),
        }
    }
}

/// JSON that is not what was asked for.
impl From<serde_json::Error> for CallError {
    fn from(error: serde_json::Error) -> Self {
        Self::Answer(io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl CallError {
    /// The exit status for this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::Place(_) | Self::Stranger(_) | Self::Lost(_) | Self::Answer(_) => Exit::Failed,
            Self::Fault(fault) => match fault.kind {
                Kind::Request => Exit::Usage,
                Kind::Config => Exit::Config,
                Kind::Refused | Kind::Missing | Kind::Conflict | Kind::Failed => Exit::Failed,
            },
        }
    }

    /// Shows the error, and returns the exit status.
    pub fn show(&self) -> Exit {
        say!("stag: {self}");
        if let Self::Unreachable { source, .. } = self {
            say!(
                "      {}",
                match source.kind() {
                    io::ErrorKind::PermissionDenied =>
                        "a daemon is managed by its own user, root and members of the group stag: try sudo",
                    _ =>
                        "is `stag serve` running? Another socket than the usual one is named with --control PATH",
                }
            );
        }
        if let Self::Place(PlaceError::Untrusted { .. }) = self {
            say!("      {REMEDY}");
        }
        self.exit()
    }
}

/// Connects to the daemon at `path`, or at the usual place, and checks whether it can be trusted.
///
/// # Errors
/// No daemon answers, or one that cannot be trusted.
pub fn connect(path: Option<&Path>) -> Result<(UnixStream, PathBuf), CallError> {
    let path = path.map_or_else(place::for_client, |path| Ok(path.to_owned()))?;
    let stream = UnixStream::connect(&path);
    let stream = stream.map_err(|source| CallError::Unreachable { path: path.clone(), source })?;
    peer::believe(&stream, &path).map_err(CallError::Stranger)?;
    Ok((stream, path))
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
    /// No daemon answers.
    pub fn connect(path: Option<&Path>) -> Result<Self, CallError> {
        let (stream, _) = connect(path)?;
        let lines = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, lines })
    }

    /// Waits for each part of an answer for `patience` at most, instead of for ever.
    ///
    /// # Errors
    /// The system refuses.
    pub fn patient_for(self, patience: Duration) -> Result<Self, CallError> {
        self.stream.set_read_timeout(Some(patience))?;
        Ok(self)
    }

    /// Has the daemon execute `verb`, and passes its progress messages to `progress`.
    ///
    /// # Errors
    /// The daemon refuses, fails, or closes the connection.
    pub fn call(
        &mut self,
        verb: &str,
        arguments: Map<String, Value>,
        progress: impl FnMut(Value),
    ) -> Result<Value, CallError> {
        self.call_with(verb, arguments, &[], progress)
    }

    /// [`Self::call`] with `body` behind the request.
    ///
    /// # Errors
    /// The daemon refuses, fails, or closes the connection.
    pub fn call_with(
        &mut self,
        verb: &str,
        arguments: Map<String, Value>,
        body: &[u8],
        mut progress: impl FnMut(Value),
    ) -> Result<Value, CallError> {
        let request = Request { body: body.len() as u64, ..Request::new(verb, arguments) };
        // A daemon that refuses before it has read everything sends its reason.
        let sent = write_line(&mut self.stream, &request).and_then(|()| self.stream.write_all(body));
        match sent {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            Err(error) => return Err(error.into()),
        }
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
    /// The daemon refuses, fails, closes the connection, or answers in another form.
    pub fn ask<T: serde::de::DeserializeOwned>(&mut self, verb: &str) -> Result<T, CallError> {
        let value = self.call(verb, Map::new(), |_| ())?;
        Ok(serde_json::from_value(value)?)
    }
}
