//! Login (RFC 7143 §6.3), from TCP to the full feature phase, for one connection: the target's and
//! the initiator's side, without I/O. The caller decides about access and sessions.

pub mod initiator;
pub mod target;

#[cfg(test)]
mod tests;

/// The type of a session (RFC 7143 §13.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SessionType {
    /// For SCSI commands.
    #[default]
    Normal,
    /// For discovery: SendTargets and logout only.
    Discovery,
}

impl SessionType {
    /// Its name as the value of the key.
    pub fn name(self) -> &'static str {
        match self {
            SessionType::Normal => "Normal",
            SessionType::Discovery => "Discovery",
        }
    }
}

/// The maximum number of requests, or responses, of one login: far above any real dialog.
pub(crate) const MAX_LOGIN_PDUS: u32 = 64;
/// The maximum text from an initiator before its login text is complete, bytes; the answer may be
/// twice as long. The text is unauthenticated. Names, two CHAP values of 1 KiB and all keys take a
/// third of the limit.
pub(crate) const MAX_REQUEST_TEXT: usize = 16 * 1024;
/// The maximum text from a target before its login text is complete, bytes.
pub(crate) const MAX_RESPONSE_TEXT: usize = 64 * 1024;
