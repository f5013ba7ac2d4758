//! Credits: the limit on outstanding calls (RFC 8166 §3.3.1). A responder has a receive posted for
//! each credit; a requester never has more calls outstanding than the last grant allows.

/// A requester's account of one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credits {
    granted: u32,
    outstanding: u32,
}

impl Credits {
    /// Before the first reply, when one call may be outstanding (RFC 8166 §3.3.3).
    pub fn new() -> Self {
        Credits { granted: 1, outstanding: 0 }
    }

    /// Calls that may be sent now.
    pub fn available(&self) -> u32 {
        self.granted.saturating_sub(self.outstanding)
    }

    /// A call was sent.
    pub fn called(&mut self) {
        self.outstanding += 1;
    }

    /// A reply came, or an error, whose header grants so many. 0 counts as 1, since a requester
    /// could never call again.
    pub fn replied(&mut self, granted: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.granted = granted.max(1);
    }
}

impl Default for Credits {
    fn default() -> Self {
        Self::new()
    }
}
