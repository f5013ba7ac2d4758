//! Whole messages: a function and its payload, in one PDU or several (RFC 4171 §5.1).

use crate::attribute::{Attribute, Attributes, Tag, Writer};
use crate::header::{Function, HEADER_LEN, Header, RESPONSE, Status, flags};
use crate::{MAX_MESSAGE, Malformed};

/// The longest payload of one sent PDU, bytes.
const PART: usize = 65_532;

/// A whole message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The function; a response has [`RESPONSE`] set.
    pub function: u16,
    /// [`flags`] of its first PDU, without those for its position in the message.
    pub flags: u16,
    /// Matches a response to its request.
    pub transaction: u16,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Allocates the transaction IDs of requests.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    last: u16,
}

impl Numbers {
    /// The next ID, never 0.
    pub fn next_id(&mut self) -> u16 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }
}

impl Message {
    /// A client's request.
    pub fn request(function: Function, transaction: u16, payload: &Writer) -> Self {
        let payload = payload.bytes().to_vec();
        Message { function: function.code(), flags: flags::CLIENT, transaction, payload }
    }

    /// A client's answer to a request of the server (ESI, SCN): the status, and the request's
    /// attributes (RFC 4171 §5.7.5.13).
    pub fn answer(asked: &Message, status: Status) -> Self {
        let mut payload = status.code().to_be_bytes().to_vec();
        payload.extend_from_slice(&asked.payload);
        let function = asked.function | RESPONSE;
        Message { function, flags: flags::CLIENT, transaction: asked.transaction, payload }
    }

    /// The function, of a request or of the request that this response answers.
    pub fn function(&self) -> Option<Function> {
        Function::from_code(self.function & !RESPONSE)
    }

    /// Whether it is a response.
    pub fn is_response(&self) -> bool {
        self.function & RESPONSE != 0
    }

    /// A response's status code, and its attributes.
    ///
    /// # Errors
    /// [`Malformed::Missing`] if the message has no status code.
    pub fn response(&self) -> Result<(u32, Attributes<'_>), Malformed> {
        let (status, rest) = self.payload.split_first_chunk::<4>().ok_or(Malformed::Missing("the status"))?;
        Ok((u32::from_be_bytes(*status), Attributes::new(rest)))
    }

    /// A request's attributes.
    pub fn attributes(&self) -> Attributes<'_> {
        Attributes::new(&self.payload)
    }

    /// A response's operating attributes: those after the delimiter.
    ///
    /// # Errors
    /// [`Malformed`] if an attribute is malformed.
    pub fn operating(&self) -> Result<Vec<Attribute<'_>>, Malformed> {
        let (_, attributes) = self.response()?;
        let all: Vec<Attribute<'_>> = attributes.collect::<Result<_, _>>()?;
        let from = all.iter().position(|one| one.tag == Tag::DELIMITER).map_or(all.len(), |at| at + 1);
        Ok(all[from..].to_vec())
    }

    /// The message's bytes, in as many PDUs as necessary.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.payload.len() + HEADER_LEN);
        let mut parts: Vec<&[u8]> = self.payload.chunks(PART).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let last = parts.len() - 1;
        for (at, part) in parts.into_iter().enumerate() {
            let first_flag = if at == 0 { flags::FIRST } else { 0 };
            let last_flag = if at == last { flags::LAST } else { 0 };
            let header = Header {
                function: self.function,
                length: part.len() as u16,
                flags: self.flags | first_flag | last_flag,
                transaction: self.transaction,
                sequence: at as u16,
            };
            header.put(&mut out);
            out.extend_from_slice(part);
        }
        out
    }
}

/// Splits a stream into PDUs, and reassembles messages.
#[derive(Debug, Default)]
pub struct Joiner {
    input: Vec<u8>,
    begun: Option<(Message, u16)>,
}

impl Joiner {
    /// Nothing received yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds received bytes. Call [`Self::next_message`] until it returns `None` before adding more.
    ///
    /// # Errors
    /// [`Malformed::TooLong`] if more bytes wait than any message needs.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.input.len() + bytes.len() > MAX_MESSAGE {
            return Err(Malformed::TooLong);
        }
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole message.
    ///
    /// # Errors
    /// [`Malformed`]: the stream cannot be read any further.
    pub fn next_message(&mut self) -> Result<Option<Message>, Malformed> {
        loop {
            let Some(header) = Header::parse(&self.input)? else { return Ok(None) };
            let len = HEADER_LEN + usize::from(header.length);
            // An authentication block (§5.5) follows the payload; its second word is its size. This
            // client never requests one.
            if header.flags & flags::AUTHENTICATION != 0 {
                return Err(Malformed::Length);
            }
            let Some(payload) = self.input.get(HEADER_LEN..len) else { return Ok(None) };
            let message = match self.begun.take() {
                None if header.sequence != 0 => return Err(Malformed::Sequence),
                None => Message {
                    function: header.function,
                    flags: header.flags & !(flags::FIRST | flags::LAST),
                    transaction: header.transaction,
                    payload: payload.to_vec(),
                },
                Some((mut message, expected)) => {
                    let fits = header.sequence == expected
                        && header.function == message.function
                        && header.transaction == message.transaction;
                    if !fits {
                        return Err(Malformed::Sequence);
                    }
                    if message.payload.len() + payload.len() > MAX_MESSAGE {
                        return Err(Malformed::TooLong);
                    }
                    message.payload.extend_from_slice(payload);
                    message
                }
            };
            self.input.drain(..len);
            if header.flags & flags::LAST != 0 {
                return Ok(Some(message));
            }
            self.begun = Some((message, header.sequence.checked_add(1).ok_or(Malformed::TooLong)?));
        }
    }
}
