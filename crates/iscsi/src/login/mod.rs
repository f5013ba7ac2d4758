//! Login (RFC 7143 §6.3): the target's and the initiator's side of one connection's way from TCP to the full feature
//! phase, without I/O. Who may log in, and what happens to sessions, is decided outside.

pub mod initiator;
pub mod target;

#[cfg(test)]
mod tests;

/// What a session is for (RFC 7143 §13.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SessionType {
    /// SCSI commands.
    #[default]
    Normal,
    /// Finding targets; SendTargets and logout only.
    Discovery,
}

impl SessionType {
    /// Its name as the key's value.
    pub fn name(self) -> &'static str {
        match self {
            SessionType::Normal => "Normal",
            SessionType::Discovery => "Discovery",
        }
    }
}

/// Requests, or responses, that one login may take: far above any real dialog.
pub const MAX_LOGIN_PDUS: u32 = 64;
/// Text that a peer may send before a login text is whole, bytes.
pub const MAX_LOGIN_TEXT: usize = 64 * 1024;
