//! Reading and writing of fields, and what a peer can do wrong. All numbers are big-endian.

/// A peer has broken the protocol. The connection ends; no command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A MAC is wrong: the frame was not sent by the peer of the handshake, or was changed, lost,
    /// repeated or moved on its way.
    #[error("a frame's MAC is wrong: it was changed on its way, or another sender made it")]
    Mac,
    /// The checksum of data is wrong.
    #[error("the checksum of data is wrong: it was changed on its way")]
    Checksum,
    /// A length is out of its bounds.
    #[error("{what} has {len} bytes, of {most} at most")]
    Length {
        /// Of what.
        what: &'static str,
        /// The length that the peer has sent, bytes.
        len: u32,
        /// The longest that is allowed, bytes.
        most: u32,
    },
    /// A message ends too soon, or a field has a value that it cannot have.
    #[error("a message of kind {kind} is malformed: {what}")]
    Malformed {
        /// The message.
        kind: u8,
        /// The field.
        what: &'static str,
    },
    /// A message that this version does not have, and that its sender does not let it skip.
    #[error("a message of unknown kind {0}, which must not be skipped")]
    Unknown(u8),
    /// A message that only the other end sends.
    #[error("a message of kind {0}, which only the other end sends")]
    WrongWay(u8),
    /// A message that does not fit what came before.
    #[error("{0}")]
    State(&'static str),
    /// Nothing came for too long.
    #[error("nothing came from the peer in time")]
    Silent,
    /// The bytes are of a connection that another one has replaced.
    #[error("a newer connection of the same peer has replaced this one")]
    Replaced,
    /// The owner has no memory of commands that it may have begun.
    #[error("the owner has forgotten this gateway, though its commands may have begun there")]
    Forgotten,
}

/// Reads the fields of one message.
pub(crate) struct Reader<'a> {
    pub kind: u8,
    pub bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn malformed<T>(&self, what: &'static str) -> Result<T, Violation> {
        Err(Violation::Malformed { kind: self.kind, what })
    }

    pub fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], Violation> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else { return self.malformed(what) };
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Violation> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, Violation> {
        self.array(what).map(u8::from_be_bytes)
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16, Violation> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, Violation> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, Violation> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// Bytes behind their length (2 bytes), at most `most`.
    pub fn counted(&mut self, most: usize, what: &'static str) -> Result<&'a [u8], Violation> {
        let len = usize::from(self.u16(what)?);
        if len > most {
            return self.malformed(what);
        }
        self.take(len, what)
    }

    pub fn text(&mut self, most: usize, what: &'static str) -> Result<String, Violation> {
        let bytes = self.counted(most, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => self.malformed(what),
        }
    }
}

/// Appends bytes behind their length (2 bytes). Whoever made the value has checked its length.
pub(crate) fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend(len.to_be_bytes());
    out.extend(&bytes[..usize::from(len)]);
}
