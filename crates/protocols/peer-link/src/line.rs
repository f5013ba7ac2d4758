//! The connection that a machine has now.

use crate::frame::{Got, Keys, Opener, Sealer};
use crate::limits::SILENT;
use crate::number::Number;
use crate::wire::Violation;
use crate::{Connection, Time};

pub(crate) struct Line {
    pub connection: Connection,
    pub sealer: Sealer,
    opener: Opener,
    heard: Time,
    /// Whose data comes now, and how much of it this message brings.
    pub data: Option<(Number, u32)>,
}

impl Line {
    pub fn new(connection: Connection, keys: Keys, piece: u32, now: Time) -> Self {
        let Keys { sends, receives } = keys;
        let (sealer, opener) = (Sealer::new(sends), Opener::new(receives, piece));
        Self { connection, sealer, opener, heard: now, data: None }
    }

    /// The next message or data that has come whole.
    pub fn next<'a>(&mut self, now: Time, input: &mut &'a [u8]) -> Result<Option<Got<'a>>, Violation> {
        let got = self.opener.next(input)?;
        if got.is_some() {
            self.heard = self.heard.max(now);
        }
        Ok(got)
    }

    /// When the peer has been silent for too long.
    pub fn ends(&self) -> Time {
        self.heard + SILENT
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({:?})", self.connection)
    }
}
