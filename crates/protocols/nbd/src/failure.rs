//! Errors of a server in the transmission phase (NBD "Error values").

use std::fmt;

/// An error value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// NBD_EPERM: the export cannot be written.
    NotPermitted,
    /// NBD_EIO.
    Io,
    /// NBD_ENOMEM.
    NoMemory,
    /// NBD_EINVAL.
    Invalid,
    /// NBD_ENOSPC.
    NoSpace,
    /// NBD_EOVERFLOW: the request is too long for the server.
    TooLong,
    /// NBD_ENOTSUP: zeros would not be faster than a write.
    NotSupported,
    /// NBD_ESHUTDOWN: the client must end the session.
    ShuttingDown,
    /// A value that the document does not define: as NBD_EINVAL.
    Undefined(u32),
}

const VALUES: [(u32, ErrorCode); 8] = [
    (1, ErrorCode::NotPermitted),
    (5, ErrorCode::Io),
    (12, ErrorCode::NoMemory),
    (22, ErrorCode::Invalid),
    (28, ErrorCode::NoSpace),
    (75, ErrorCode::TooLong),
    (95, ErrorCode::NotSupported),
    (108, ErrorCode::ShuttingDown),
];

impl ErrorCode {
    /// The error with this value, which is not 0.
    pub fn from_value(value: u32) -> Self {
        let defined = VALUES.iter().find(|(of, _)| *of == value);
        defined.map_or(Self::Undefined(value), |(_, code)| *code)
    }

    /// Its value. That of an undefined error is NBD_EINVAL, as which it has to be treated.
    pub fn value(self) -> u32 {
        VALUES.iter().find(|(_, code)| *code == self).map_or(22, |(value, _)| *value)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "operation not permitted",
            Self::Io => "input/output error",
            Self::NoMemory => "cannot allocate memory",
            Self::Invalid => "invalid argument",
            Self::NoSpace => "no space left on device",
            Self::TooLong => "value too large",
            Self::NotSupported => "operation not supported",
            Self::ShuttingDown => "the server is shutting down",
            Self::Undefined(value) => return write!(f, "undefined error {value}"),
        })
    }
}

/// Why a request failed: the first error of its reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}{}", self.details())]
pub struct Failure {
    /// The error.
    pub code: ErrorCode,
    /// Where it occurred: an offset in the export, bytes, within the request's range.
    pub at: Option<u64>,
    /// The server's words, fit to show; often empty. At most [`crate::MAX_STRING`] bytes were sent.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode) -> Self {
        Self { code, at: None, message: String::new() }
    }

    fn details(&self) -> String {
        let at = self.at.map_or(String::new(), |at| format!(" at byte {at}"));
        match self.message.is_empty() {
            true => at,
            false => format!("{at}: {}", self.message),
        }
    }
}
