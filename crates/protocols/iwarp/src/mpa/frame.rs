//! The request and the reply frame (RFC 5044 §7.1): key, flags, revision, Private Data. Layout
//! only.

use thiserror::Error;

use super::MAX_PRIVATE_DATA;

/// Bytes of the key that a frame starts with.
pub(crate) const KEY_LEN: usize = 16;
/// Bytes before the Private Data.
pub(crate) const HEADER_LEN: usize = KEY_LEN + 4;
/// Bytes of the longest frame.
pub const MAX_FRAME_LEN: usize = HEADER_LEN + MAX_PRIVATE_DATA;
/// The key at the start of a request.
pub const REQUEST_KEY: &[u8; KEY_LEN] = b"MPA ID Req Frame";
/// The key at the start of a reply.
pub(crate) const REPLY_KEY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";

/// The flags of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: the sender asks for CRCs.
    pub crc: bool,
    /// R, in a reply: the connection is rejected.
    pub reject: bool,
    /// S: IRD and ORD start the Private Data (RFC 6581 §6).
    pub enhanced: bool,
}

impl Flags {
    const MARKERS: u8 = 0x80;
    const CRC: u8 = 0x40;
    const REJECT: u8 = 0x20;
    const ENHANCED: u8 = 0x10;

    fn parse(byte: u8) -> Self {
        Self {
            markers: byte & Self::MARKERS != 0,
            crc: byte & Self::CRC != 0,
            reject: byte & Self::REJECT != 0,
            enhanced: byte & Self::ENHANCED != 0,
        }
    }

    fn byte(self) -> u8 {
        [
            (self.markers, Self::MARKERS),
            (self.crc, Self::CRC),
            (self.reject, Self::REJECT),
            (self.enhanced, Self::ENHANCED),
        ]
        .into_iter()
        .fold(0, |byte, (set, bit)| byte | if set { bit } else { 0 })
    }
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes start with another key.
    #[error("not an MPA frame of the kind expected")]
    Key,
    /// More than 512 bytes of Private Data (RFC 5044 §7.1.1).
    #[error("private data of {0} bytes is longer than an MPA frame may carry")]
    TooLong(usize),
    /// The S flag announces IRD and ORD, but the Private Data is too short for them.
    #[error("an enhanced frame without IRD and ORD")]
    NoDepths,
}

/// A whole request or reply frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The flags M, C, R and S.
    pub flags: Flags,
    /// 1 or 2.
    pub revision: u8,
    /// At most [`MAX_PRIVATE_DATA`] bytes.
    pub private_data: Vec<u8>,
}

impl Frame {
    /// The frame's bytes.
    pub(super) fn emit(&self, key: &[u8; KEY_LEN]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.private_data.len());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&[self.flags.byte(), self.revision]);
        bytes.extend_from_slice(&(self.private_data.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&self.private_data);
        bytes
    }
}

/// Collects a frame from a byte stream. Takes no byte beyond the frame and holds at most
/// [`MAX_FRAME_LEN`] bytes.
#[derive(Debug)]
pub(super) struct Collector {
    key: &'static [u8; KEY_LEN],
    bytes: Vec<u8>,
}

impl Collector {
    pub(super) fn new(key: &'static [u8; KEY_LEN]) -> Self {
        Self { key, bytes: Vec::new() }
    }

    fn fill(&mut self, len: usize, input: &mut &[u8]) -> bool {
        let n = len.saturating_sub(self.bytes.len()).min(input.len());
        let (head, rest) = input.split_at(n);
        self.bytes.extend_from_slice(head);
        *input = rest;
        self.bytes.len() >= len
    }

    /// Takes the frame's bytes off `input` and returns the frame once it is whole. A wrong key is
    /// an error at its first wrong byte.
    pub(super) fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        let whole = self.fill(HEADER_LEN, input);
        let n = self.bytes.len().min(KEY_LEN);
        if self.bytes[..n] != self.key[..n] {
            return Err(FrameError::Key);
        }
        if !whole {
            return Ok(None);
        }
        let [flags, revision, high, low] = std::array::from_fn(|i| self.bytes[KEY_LEN + i]);
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > MAX_PRIVATE_DATA {
            return Err(FrameError::TooLong(len));
        }
        if !self.fill(HEADER_LEN + len, input) {
            return Ok(None);
        }
        let private_data = self.bytes.split_off(HEADER_LEN);
        self.bytes.clear();
        Ok(Some(Frame { flags: Flags::parse(flags), revision, private_data }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn siws_request_is_read() {
        let mut bytes = b"MPA ID Req Frame\x10\x02\x00\x08\x00\x80\x00\x01\x80\x00\x00\x00".to_vec();
        bytes.extend_from_slice(b"behind");
        let mut input = &bytes[..];
        let frame = Collector::new(REQUEST_KEY).receive(&mut input).unwrap().unwrap();
        assert_eq!(frame.flags, Flags { enhanced: true, ..Flags::default() });
        assert_eq!(frame.revision, 2);
        assert_eq!(frame.private_data, [0, 0x80, 0, 1, 0x80, 0, 0, 0]);
        assert_eq!(input, b"behind");
    }

    #[test]
    fn a_wrong_key_is_noticed_at_once() {
        assert_eq!(Collector::new(REQUEST_KEY).receive(&mut &b"\x43"[..]), Err(FrameError::Key));
        assert_eq!(Collector::new(REQUEST_KEY).receive(&mut &b"MPA ID Rep"[..]), Err(FrameError::Key));
    }

    #[test]
    fn private_data_above_512_bytes_is_refused_before_it_is_taken() {
        let bytes = b"MPA ID Rep Frame\x00\x01\x02\x01";
        assert_eq!(Collector::new(REPLY_KEY).receive(&mut &bytes[..]), Err(FrameError::TooLong(513)));
    }

    proptest! {
        #[test]
        fn a_frame_survives_any_split(
            flags: u8,
            revision: u8,
            private_data in proptest::collection::vec(any::<u8>(), 0..=512),
            step in 1usize..100,
        ) {
            let frame = Frame { flags: Flags::parse(flags), revision, private_data };
            let bytes = frame.emit(REPLY_KEY);
            let mut collector = Collector::new(REPLY_KEY);
            let mut seen = None;
            for piece in bytes.chunks(step) {
                prop_assert!(seen.is_none());
                seen = collector.receive(&mut &piece[..]).unwrap();
            }
            prop_assert_eq!(seen, Some(frame));
        }
    }
}
