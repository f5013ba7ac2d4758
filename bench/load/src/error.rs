//! Errors of a run.

use std::io;

/// Why a run ended without a result.
#[derive(Debug)]
pub enum LoadError {
    /// An error of the socket.
    Io(&'static str, io::Error),
    /// The target refused the login with this status class and detail (RFC 7143 §11.13.5).
    Refused(u8, u8),
    /// The target sent a message that the RFC does not allow, or that this client does not support.
    Protocol(String),
    /// A command line that makes no sense.
    Usage(String),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Refused(class, detail) => {
                write!(f, "the target refused the login (status class {class:#04x}, detail {detail:#04x})")
            }
            Self::Protocol(what) => write!(f, "protocol error: {what}"),
            Self::Usage(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for LoadError {}
