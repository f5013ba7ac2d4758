//! Frames: one message each, its MAC, and the data that follows it.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | kind of the message |
//! | 3 | zeros; a receiver ignores them |
//! | 4 | bytes of the body, at most 4096 |
//! | 4 | bytes of data, at most the receiver's `piece` |
//! | 4 | CRC-32C of the data, or 0 |
//! | … | the body |
//! | 16 | MAC: the first half of HMAC-SHA-256 over the frame's number (8 bytes) and all before |
//! | … | the data |
//!
//! The number of a frame counts from 0 on each connection and direction, and is never sent. So a
//! frame that was changed, lost, repeated, moved or reflected has a wrong MAC. The MAC covers the
//! data's checksum, but nothing covers data against somebody on the way who can also make a
//! CRC-32C: data is no safer than on the initiator's own connection.
//!
//! A receiver skips a message of an unknown kind from [`OPTIONAL`] on, with its data. Any other
//! unknown kind ends the connection. It ignores what follows the fields that it knows in a body. A
//! newer release uses both for what an older one may miss, and a new version for all else.

use hmac::Mac as _;

use crate::message::Message;
use crate::secret::Mac;
use crate::wire::Violation;

/// Bytes before the body.
pub const HEAD: usize = 16;
/// The most bytes of a body.
pub const MOST_BODY: u32 = 4096;
/// Bytes of a frame's MAC.
pub const TAG: usize = 16;
/// Messages of this kind and above may be skipped.
pub const OPTIONAL: u8 = 128;

/// The keys of one connection, as one of its ends has them.
pub struct Keys {
    pub(crate) sends: Mac,
    pub(crate) receives: Mac,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(…)")
    }
}

/// Makes frames.
pub(crate) struct Sealer {
    mac: Mac,
    number: u64,
}

impl Sealer {
    pub fn new(mac: Mac) -> Self {
        Self { mac, number: 0 }
    }

    /// Appends a message without data.
    pub fn seal(&mut self, message: &Message, out: &mut Vec<u8>) {
        self.seal_with(message, &[], out);
    }

    /// Appends a message. The caller sends `parts` behind it.
    pub fn seal_with(&mut self, message: &Message, parts: &[&[u8]], out: &mut Vec<u8>) {
        self.seal_raw(message.kind(), parts, out, |out| message.encode(out));
    }

    /// A frame of any kind and body.
    pub fn seal_raw(
        &mut self,
        kind: u8,
        parts: &[&[u8]],
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut sum = Sum::new();
        let mut data = 0;
        for part in parts {
            sum.update(part);
            data += part.len();
        }
        let sum = if data == 0 { 0 } else { sum.value() };
        let start = out.len();
        out.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        out.extend((data as u32).to_be_bytes());
        out.extend(sum.to_be_bytes());
        body(out);
        let len = (out.len() - start - HEAD) as u32;
        out[start + 4..start + 8].copy_from_slice(&len.to_be_bytes());
        let tag = tag(&self.mac, self.number, &out[start..]);
        out.extend(&tag.finalize().into_bytes()[..TAG]);
        self.number += 1;
    }
}

/// Makes frames of any kind and body: for tests and fuzz targets whose peer breaks the rules.
#[doc(hidden)]
pub struct Forger(Sealer);

impl Forger {
    /// With the key by which this end's peer checks.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self(Sealer::new(keys.sends))
    }

    /// Appends a frame and its data.
    pub fn forge(&mut self, kind: u8, body: &[u8], data: &[u8], out: &mut Vec<u8>) {
        self.0.seal_raw(kind, &[data], out, |out| out.extend(body));
        out.extend(data);
    }
}

fn tag(mac: &Mac, number: u64, bytes: &[u8]) -> Mac {
    let mut mac = mac.clone();
    mac.update(&number.to_be_bytes());
    mac.update(bytes);
    mac
}

/// CRC-32C of data in parts.
struct Sum(crc_fast::Digest);

impl Sum {
    fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn value(&self) -> u32 {
        // A CRC of 32 bits.
        self.0.finalize() as u32
    }
}

/// Takes frames apart, cut anywhere.
pub(crate) struct Opener {
    mac: Mac,
    number: u64,
    piece: u32,
    /// The frame so far, up to its MAC.
    frame: Vec<u8>,
    data: Option<Data>,
}

struct Data {
    left: usize,
    sum: Sum,
    expected: u32,
    skipped: bool,
}

/// A part of the stream that has been received.
#[derive(Debug)]
pub(crate) enum Got<'a> {
    /// A message, and how many bytes of data follow it.
    Message(Message, u32),
    /// The next bytes of the last message's data. `last`: all of it has come, and its checksum is
    /// right.
    Data { bytes: &'a [u8], last: bool },
}

impl Opener {
    pub fn new(mac: Mac, piece: u32) -> Self {
        Self { mac, number: 0, piece, frame: Vec::new(), data: None }
    }

    /// The next thing in `input`; `None` if all of it is used.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Got<'a>>, Violation> {
        loop {
            if let Some(data) = &mut self.data {
                let (bytes, rest) = input.split_at(input.len().min(data.left));
                if bytes.is_empty() {
                    return Ok(None);
                }
                *input = rest;
                data.left -= bytes.len();
                data.sum.update(bytes);
                let (last, skipped) = (data.left == 0, data.skipped);
                if last {
                    let right = data.sum.value() == data.expected;
                    self.data = None;
                    if !right {
                        return Err(Violation::Checksum);
                    }
                }
                if skipped {
                    continue;
                }
                return Ok(Some(Got::Data { bytes, last }));
            }
            let need = match self.frame.get(..HEAD) {
                None => HEAD,
                Some(head) => HEAD + self.lengths(head)?.0 as usize + TAG,
            };
            if self.frame.len() < need {
                let (bytes, rest) = input.split_at(input.len().min(need - self.frame.len()));
                if bytes.is_empty() {
                    return Ok(None);
                }
                self.frame.extend_from_slice(bytes);
                *input = rest;
                continue;
            }
            if let Some(got) = self.open()? {
                return Ok(Some(got));
            }
        }
    }

    /// Lengths of body and data, within their bounds.
    fn lengths(&self, head: &[u8]) -> Result<(u32, u32), Violation> {
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (body, data) = (number(4), number(8));
        if body > MOST_BODY {
            return Err(Violation::Length { what: "a message", len: body, most: MOST_BODY });
        }
        if data > self.piece {
            return Err(Violation::Length { what: "data", len: data, most: self.piece });
        }
        Ok((body, data))
    }

    /// The whole frame has come. `None` if it is to be skipped.
    fn open(&mut self) -> Result<Option<Got<'static>>, Violation> {
        let (signed, mac) = self.frame.split_at(self.frame.len() - TAG);
        if tag(&self.mac, self.number, signed).verify_truncated_left(mac).is_err() {
            return Err(Violation::Mac);
        }
        self.number += 1;
        let (_, data) = self.lengths(signed)?;
        let expected = u32::from_be_bytes([signed[12], signed[13], signed[14], signed[15]]);
        let kind = signed[0];
        let message = Message::decode(kind, &signed[HEAD..])?;
        self.frame.clear();
        let skipped = message.is_none();
        if skipped && kind < OPTIONAL {
            return Err(Violation::Unknown(kind));
        }
        if data > 0 {
            if message.as_ref().is_some_and(|message| !message.has_data()) {
                return Err(Violation::Malformed { kind, what: "data" });
            }
            self.data = Some(Data { left: data as usize, sum: Sum::new(), expected, skipped });
        }
        Ok(message.map(|message| Got::Message(message, data)))
    }
}
