//! Errors between an initiator and a unit.

use std::fmt;
use std::io;

use iscsi::initiator::ProtocolError;
use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::RejectReason;
use scsi::{Sense, SenseKey, Status};

/// Any error of this crate. Cheap to clone: one lost session may end many commands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host name has no address.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's error.
        reason: String,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {portal}: {reason}")]
    Connect {
        /// Host and port.
        portal: String,
        /// The system's error.
        reason: String,
    },
    /// The portal accepts connections, but not iSER.
    #[error(
        "{portal} takes connections, but none for iSER ({reason}): log in with iscsi://, or turn iSER on there"
    )]
    NoIser {
        /// Host and port.
        portal: String,
        /// Reason of the failure.
        reason: String,
    },
    /// The login failed.
    #[error("cannot log in: {0}")]
    Login(#[from] InitiatorLoginError),
    /// Too many redirections, or a loop.
    #[error("the target redirects again and again")]
    Redirects,
    /// A timeout passed; names the awaited event.
    #[error("no answer from the target: {0}")]
    TimedOut(&'static str),
    /// The connection was lost, and the commands in flight with it.
    #[error("the connection to the target was lost: {0}")]
    Lost(String),
    /// The target violated the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The session was closed by its owner.
    #[error("the session is closed")]
    Closed,
    /// The target rejected the PDU.
    #[error("the target rejected the request: {}", show_reject(.0))]
    Rejected(Option<RejectReason>),
    /// The target could not run the command at all (RFC 7143 §11.4.3, Target Failure).
    #[error("the target could not run the command")]
    TargetFailure,
    /// A task management function of this session ended the command. Whether it ran, or how much of
    /// it, is unknown; it does not run any more.
    #[error("the command was aborted")]
    Aborted,
    /// The command ended with a status other than GOOD.
    #[error("{0}")]
    Scsi(Box<ScsiError>),
    /// The unit answered with invalid data.
    #[error("the unit's {0} data make no sense")]
    Data(&'static str),
    /// The caller's request is impossible.
    #[error("{0}")]
    Argument(&'static str),
    /// A disk's thread could not be started ([`crate::SharedDisk`]).
    #[error("cannot start a thread for the disk: {0}")]
    Thread(String),
}

fn show_reject(reason: &Option<RejectReason>) -> &'static str {
    reason.map_or("reason unknown", RejectReason::name)
}

impl Error {
    pub(crate) fn lost(error: &io::Error) -> Self {
        Error::Lost(error.to_string())
    }

    /// The error of a queue pair.
    pub(crate) fn of_pair(error: &rdma::Error) -> Self {
        Error::Lost(match error {
            rdma::Error::Closed => "the target closed the connection".to_owned(),
            other => other.to_string(),
        })
    }

    /// The sense data, if the unit sent any.
    pub fn sense(&self) -> Option<&Sense> {
        match self {
            Error::Scsi(e) => e.sense.as_ref(),
            _ => None,
        }
    }

    /// The sense key, if the unit sent one.
    pub fn sense_key(&self) -> Option<SenseKey> {
        self.sense().map(|s| s.key)
    }

    /// Whether the unit does not support the command, or a field of it: another command may work.
    pub fn is_unsupported(&self) -> bool {
        self.sense_key() == Some(SenseKey::IllegalRequest)
    }

    /// Whether the target was not reached or refused the login: no command ran.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Error::Resolve { .. }
                | Error::Connect { .. }
                | Error::NoIser { .. }
                | Error::Login(_)
                | Error::Redirects
        )
    }
}

/// A status other than GOOD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScsiError {
    /// The status byte.
    pub status: u8,
    /// The unit's sense data.
    pub sense: Option<Sense>,
}

impl fmt::Display for ScsiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Status::from_code(self.status) {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "SCSI status {:#04x}", self.status)?,
        }
        match &self.sense {
            Some(sense) => write!(f, ": {sense}"),
            None => Ok(()),
        }
    }
}
