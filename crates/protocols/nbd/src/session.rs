//! The transmission phase (NBD "Transmission"): outstanding requests, and the stream of replies,
//! simple and structured. Owns cookies. Holds at most an incomplete header, and an error's message.
//!
//! A reply is believed only where it fits its request. After a [`Violation`] the stream cannot be
//! read any further: the caller drops the connection.

use crate::cover::{Bad, Cover};
use crate::export::Export;
use crate::failure::{ErrorCode, Failure};
use crate::request::{Command, HEADER_LEN, Refused};
use crate::wire::{MAX_STRING, SIMPLE_REPLY, STRUCTURED_REPLY, chunk, shown, u16_at, u32_at, u64_at};

/// The most descriptors of a block status reply (NBD "Structured reply types").
const MAX_DESCRIPTORS: u32 = 1 << 20;
/// Bytes behind the message of an error that are skipped: fields of unknown errors.
const MAX_UNKNOWN: u32 = 4096;

/// Names an outstanding request; a later one has another cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(u64);

impl Cookie {
    fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    /// Its place among the outstanding requests, less than the session's depth.
    pub fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// As it is on the wire.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// What `base:allocation` says of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// NBD_STATE_HOLE: it is not allocated.
    pub hole: bool,
    /// NBD_STATE_ZERO: it reads as zeros.
    pub zero: bool,
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// Bytes of a read, where they were received; never empty.
    Data {
        /// Of which request.
        cookie: Cookie,
        /// Offset in the export, bytes.
        at: u64,
        /// The bytes.
        bytes: &'b [u8],
    },
    /// A range of a read that holds zeros.
    Hole {
        /// Of which request.
        cookie: Cookie,
        /// Offset in the export, bytes.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// The next extent of a block status. The last one may end behind the request's range, and
    /// behind the export.
    Extent {
        /// Of which request.
        cookie: Cookie,
        /// Offset in the export, bytes.
        at: u64,
        /// Bytes.
        len: u32,
        /// Its state.
        state: State,
    },
    /// The request has ended, and its cookie with it. What came before counts only if it succeeded.
    Done {
        /// Which request.
        cookie: Cookie,
        /// Its outcome.
        outcome: Result<(), Failure>,
    },
}

/// What a server may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Neither a simple nor a structured reply.
    #[error("a reply begins with {0:#010x}, which is no reply's magic")]
    Magic(u32),
    /// No request with this cookie is outstanding.
    #[error("a reply to a request that is not outstanding (cookie {0:#x})")]
    Cookie(u64),
    /// A structured reply that was not negotiated.
    #[error("a structured reply, which was not negotiated")]
    Structured,
    /// A simple reply to a read or block status after structured ones were negotiated.
    #[error("a simple reply where only a structured one may be")]
    Simple,
    /// A type of chunk that is unknown, or does not belong to the request.
    #[error("a chunk of type {0}, which the request does not have")]
    Type(u16),
    /// A length that the type of chunk does not have.
    #[error("a chunk of type {kind} and {len} bytes")]
    Length {
        /// Type of the chunk.
        kind: u16,
        /// Bytes of its payload.
        len: u32,
    },
    /// More chunks than a reply needs.
    #[error("more than {0} chunks in a reply")]
    Chunks(u32),
    /// Data, a hole or an error outside the range of its request.
    #[error("{len} bytes at {at} are outside the request")]
    Range {
        /// Offset in the export.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Data that came before.
    #[error("bytes at {0} came twice")]
    Overlap(u64),
    /// Data in too many separate pieces.
    #[error("the data of a read comes in too many separate pieces")]
    Scattered,
    /// A read or block status that succeeds without all of its content.
    #[error("a reply without error that lacks content")]
    Incomplete,
    /// A block status of a context that was not selected, or one that comes twice.
    #[error("a block status of context {0}")]
    Context(u32),
    /// An extent without length, or one too many.
    #[error("block status descriptors of {0} bytes, which the request does not have")]
    Descriptor(u32),
    /// An error's message that is longer than its chunk, or than a string may be.
    #[error("an error chunk with a message of {0} bytes")]
    Message(u32),
    /// An error of value 0.
    #[error("an error chunk without an error")]
    NoError,
}

/// The outstanding requests of a connection, and the state of its stream.
#[derive(Debug)]
pub struct Session {
    export: Export,
    slots: Vec<Slot>,
    free: Vec<u32>,
    step: Step,
    /// A header that has not arrived whole.
    partial: [u8; 16],
    partial_len: usize,
    /// The message of the error that is being received.
    message: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    request: Option<Request>,
}

/// An outstanding request.
#[derive(Debug)]
struct Request {
    command: Command,
    /// Chunks so far.
    chunks: u32,
    /// What has come of a read.
    cover: Cover,
    /// Whether the block status has come.
    has_status: bool,
    failure: Option<Box<Failure>>,
}

/// The reply that is being received.
#[derive(Clone, Copy, Debug)]
struct Reply {
    cookie: Cookie,
    command: Command,
    /// Whether the request ends with this chunk.
    last: bool,
}

/// What comes next in the stream.
#[derive(Clone, Copy, Debug)]
enum Step {
    Magic,
    /// The rest of a simple reply's header.
    Simple,
    /// The rest of a chunk's header.
    Chunk,
    /// The offset of `len` bytes of data.
    Offset {
        reply: Reply,
        len: u32,
    },
    Data {
        reply: Reply,
        at: u64,
        left: u32,
    },
    Hole(Reply),
    /// A metadata context, and so many descriptors.
    Context {
        reply: Reply,
        count: u32,
    },
    Descriptors {
        reply: Reply,
        at: u64,
        left: u32,
    },
    /// An error; `rest` bytes follow its value and its message's length.
    Error {
        reply: Reply,
        with_offset: bool,
        rest: u32,
    },
    Message {
        reply: Reply,
        with_offset: bool,
        code: ErrorCode,
        left: u32,
        rest: u32,
    },
    ErrorOffset {
        reply: Reply,
        code: ErrorCode,
        rest: u32,
    },
    Skip {
        reply: Reply,
        left: u32,
    },
    /// The chunk is over.
    Over(Reply),
}

impl Session {
    /// At the start of the transmission phase, for at most `depth` outstanding requests.
    pub fn new(export: Export, depth: usize) -> Self {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Self {
            export,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            step: Step::Magic,
            partial: [0; 16],
            partial_len: 0,
            message: Vec::new(),
        }
    }

    /// The export.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// How many requests are outstanding.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a request. The caller sends the header, and the data of a write behind it.
    ///
    /// # Errors
    /// The export does not take it, or the depth is reached.
    pub fn submit(&mut self, command: Command) -> Result<(Cookie, [u8; HEADER_LEN]), Refused> {
        command.check(&self.export)?;
        let too_many = Refused::TooMany(self.slots.len());
        let slot = self.free.pop().ok_or(too_many)?;
        let place = self.slots.get_mut(slot as usize).ok_or(too_many)?;
        let cookie = Cookie::new(slot, place.generation);
        let cover = Cover::default();
        place.request = Some(Request { command, chunks: 0, cover, has_status: false, failure: None });
        Ok((cookie, command.header(cookie.value())))
    }

    /// Takes the next part of a reply from the front of `input`. `None` once all input is taken.
    /// The bytes of [`Event::Data`] are the last that were taken.
    ///
    /// # Errors
    /// [`Violation`]: drop the connection.
    pub fn next<'b>(&mut self, input: &mut &'b [u8]) -> Result<Option<Event<'b>>, Violation> {
        loop {
            match self.step {
                Step::Magic => {
                    let Some(magic) = self.take::<4>(input) else { return Ok(None) };
                    self.step = match u32::from_be_bytes(magic) {
                        SIMPLE_REPLY => Step::Simple,
                        STRUCTURED_REPLY if self.export.structured => Step::Chunk,
                        STRUCTURED_REPLY => return Err(Violation::Structured),
                        other => return Err(Violation::Magic(other)),
                    };
                }
                Step::Simple => {
                    let Some(header) = self.take::<12>(input) else { return Ok(None) };
                    self.step = self.simple(&header)?;
                }
                Step::Chunk => {
                    let Some(header) = self.take::<16>(input) else { return Ok(None) };
                    self.step = self.chunk(&header)?;
                }
                Step::Offset { reply, len } => {
                    let Some(at) = self.take::<8>(input) else { return Ok(None) };
                    let at = u64::from_be_bytes(at);
                    self.content(reply, at, len)?;
                    self.step = Step::Data { reply, at, left: len };
                }
                Step::Data { reply, at, left } => {
                    let len = input.len().min(left as usize);
                    if len == 0 {
                        return Ok(None);
                    }
                    let (bytes, rest) = input.split_at(len);
                    *input = rest;
                    self.received(len);
                    return Ok(Some(Event::Data { cookie: reply.cookie, at, bytes }));
                }
                Step::Hole(reply) => {
                    let Some(hole) = self.take::<12>(input) else { return Ok(None) };
                    let (at, len) = (u64_at(&hole, 0), u32_at(&hole, 8));
                    self.content(reply, at, len)?;
                    self.step = Step::Over(reply);
                    return Ok(Some(Event::Hole { cookie: reply.cookie, at, len }));
                }
                Step::Context { reply, count } => {
                    let Some(id) = self.take::<4>(input) else { return Ok(None) };
                    let (id, at) = (u32::from_be_bytes(id), reply.command.range().unwrap_or_default().0);
                    let expected = self.export.allocation;
                    let request = self.request(reply.cookie)?;
                    if expected != Some(id) || std::mem::replace(&mut request.has_status, true) {
                        return Err(Violation::Context(id));
                    }
                    self.step = Step::Descriptors { reply, at, left: count };
                }
                Step::Descriptors { reply, left: 0, .. } => self.step = Step::Over(reply),
                Step::Descriptors { reply, at, left } => {
                    let Some(descriptor) = self.take::<8>(input) else { return Ok(None) };
                    let (len, flags) = (u32_at(&descriptor, 0), u32_at(&descriptor, 4));
                    check_descriptor(&reply.command, at, len, left)?;
                    // The check keeps all but the last within the export.
                    self.step =
                        Step::Descriptors { reply, at: at.saturating_add(len.into()), left: left - 1 };
                    let state = State { hole: flags & 1 != 0, zero: flags & 2 != 0 };
                    return Ok(Some(Event::Extent { cookie: reply.cookie, at, len, state }));
                }
                Step::Error { reply, with_offset, rest } => {
                    let Some(head) = self.take::<6>(input) else { return Ok(None) };
                    let (value, len) = (u32_at(&head, 0), u32::from(u16_at(&head, 4)));
                    if value == 0 {
                        return Err(Violation::NoError);
                    }
                    let fixed = if with_offset { 8 } else { 0 };
                    let rest = rest.checked_sub(fixed + len).filter(|_| len as usize <= MAX_STRING);
                    let rest = rest.ok_or(Violation::Message(len))?;
                    self.message.clear();
                    let code = ErrorCode::from_value(value);
                    self.step = Step::Message { reply, with_offset, code, left: len, rest };
                }
                Step::Message { reply, with_offset, code, left, rest } if left > 0 => {
                    let len = input.len().min(left as usize);
                    if len == 0 {
                        return Ok(None);
                    }
                    let (bytes, behind) = input.split_at(len);
                    *input = behind;
                    self.message.extend_from_slice(bytes);
                    self.step = Step::Message { reply, with_offset, code, left: left - len as u32, rest };
                }
                Step::Message { reply, with_offset: true, code, rest, .. } => {
                    self.step = Step::ErrorOffset { reply, code, rest };
                }
                Step::Message { reply, code, rest, .. } => self.fail(reply, code, None, rest)?,
                Step::ErrorOffset { reply, code, rest } => {
                    let Some(at) = self.take::<8>(input) else { return Ok(None) };
                    let at = u64::from_be_bytes(at);
                    within(&reply.command, at, 1)?;
                    self.fail(reply, code, Some(at), rest)?;
                }
                Step::Skip { reply, left } => {
                    let len = input.len().min(left as usize);
                    *input = &input[len..];
                    if len < left as usize {
                        self.step = Step::Skip { reply, left: left - len as u32 };
                        return Ok(None);
                    }
                    self.step = Step::Over(reply);
                }
                Step::Over(reply) => {
                    self.step = Step::Magic;
                    if reply.last {
                        let outcome = self.end(reply.cookie)?;
                        return Ok(Some(Event::Done { cookie: reply.cookie, outcome }));
                    }
                }
            }
        }
    }

    /// The data that comes next in the stream, if any: of which request, its offset in the export,
    /// and how many bytes of it. The caller may receive it straight into its destination, and tell
    /// [`Self::received`].
    pub fn direct(&self) -> Option<(Cookie, u64, usize)> {
        match self.step {
            Step::Data { reply, at, left } => Some((reply.cookie, at, left as usize)),
            _ => None,
        }
    }

    /// `len` bytes of [`Self::direct`], no more than it said, are where they belong.
    pub fn received(&mut self, len: usize) {
        if let Step::Data { reply, at, left } = self.step {
            let len = left.min(u32::try_from(len).unwrap_or(u32::MAX));
            self.step = match left - len {
                0 => Step::Over(reply),
                left => Step::Data { reply, at: at + u64::from(len), left },
            };
        }
    }

    /// Whether the stream is within a reply: if it ends there, the server has cut it off.
    pub fn is_midway(&self) -> bool {
        self.partial_len > 0 || !matches!(self.step, Step::Magic | Step::Over(_))
    }

    /// The command of an outstanding request.
    pub fn command(&self, cookie: Cookie) -> Option<&Command> {
        self.find(cookie).map(|request| &request.command)
    }

    fn find(&self, cookie: Cookie) -> Option<&Request> {
        let slot = self.slots.get(cookie.slot()).filter(|slot| slot.generation == cookie.generation())?;
        slot.request.as_ref()
    }

    fn request(&mut self, cookie: Cookie) -> Result<&mut Request, Violation> {
        let slot = self.slots.get_mut(cookie.slot()).filter(|slot| slot.generation == cookie.generation());
        slot.and_then(|slot| slot.request.as_mut()).ok_or(Violation::Cookie(cookie.value()))
    }

    /// A simple reply: `error | cookie`.
    fn simple(&mut self, header: &[u8; 12]) -> Result<Step, Violation> {
        let (error, cookie) = (u32_at(header, 0), Cookie(u64_at(header, 4)));
        let structured = self.export.structured;
        let request = self.request(cookie)?;
        let reply = Reply { cookie, command: request.command, last: true };
        let is_read = matches!(request.command, Command::Read { .. });
        let is_status = matches!(request.command, Command::BlockStatus { .. });
        match (request.command, error) {
            _ if structured && is_read => Err(Violation::Simple),
            (_, 0) if is_status => Err(Violation::Simple),
            (Command::Read { at, len }, 0) => {
                self.content(reply, at, len)?;
                Ok(Step::Data { reply, at, left: len })
            }
            (_, 0) => Ok(Step::Over(reply)),
            (_, error) => {
                request.failure = Some(Box::new(Failure::new(ErrorCode::from_value(error))));
                Ok(Step::Over(reply))
            }
        }
    }

    /// The header of a chunk: `flags | type | cookie | length`.
    fn chunk(&mut self, header: &[u8; 16]) -> Result<Step, Violation> {
        let (flags, kind) = (u16_at(header, 0), u16_at(header, 2));
        let (cookie, len) = (Cookie(u64_at(header, 4)), u32_at(header, 12));
        let request = self.request(cookie)?;
        let command = request.command;
        let most = most_chunks(&command);
        request.chunks += 1;
        if request.chunks > most {
            return Err(Violation::Chunks(most));
        }
        let last = flags & chunk::DONE != 0;
        let reply = Reply { cookie, command, last };
        let wrong = Err(Violation::Length { kind, len });
        match (kind, command) {
            (chunk::NONE, _) if len == 0 && last => Ok(Step::Over(reply)),
            (chunk::NONE, _) => wrong,
            (chunk::OFFSET_DATA, Command::Read { .. }) => match len.checked_sub(8) {
                None | Some(0) => wrong,
                Some(len) => Ok(Step::Offset { reply, len }),
            },
            (chunk::OFFSET_HOLE, Command::Read { .. }) if len == 12 => Ok(Step::Hole(reply)),
            (chunk::OFFSET_HOLE, Command::Read { .. }) => wrong,
            (chunk::BLOCK_STATUS, Command::BlockStatus { one, .. }) => {
                let count = len.checked_sub(4).filter(|len| len % 8 == 0).map_or(0, |len| len / 8);
                let most = if one { 1 } else { MAX_DESCRIPTORS };
                if (1..=most).contains(&count) { Ok(Step::Context { reply, count }) } else { wrong }
            }
            (kind, _) if kind & chunk::ERROR != 0 => {
                let with_offset = kind == chunk::ERROR_OFFSET && command.range().is_some();
                let fixed = if with_offset { 14 } else { 6 };
                // The message's length is checked when it has come.
                let most = fixed + MAX_STRING as u32 + MAX_UNKNOWN;
                if (fixed..=most).contains(&len) {
                    Ok(Step::Error { reply, with_offset, rest: len - 6 })
                } else {
                    wrong
                }
            }
            (kind, _) => Err(Violation::Type(kind)),
        }
    }

    /// Notes that `len` bytes at `at` come, which must be a part of the read that has not.
    fn content(&mut self, reply: Reply, at: u64, len: u32) -> Result<(), Violation> {
        let start = within(&reply.command, at, len)?;
        match self.request(reply.cookie)?.cover.add(start, start + len) {
            Ok(()) => Ok(()),
            Err(Bad::Overlap) => Err(Violation::Overlap(at)),
            Err(Bad::Scattered) => Err(Violation::Scattered),
        }
    }

    /// Notes an error, unless there was one; `rest` unknown bytes follow it.
    fn fail(&mut self, reply: Reply, code: ErrorCode, at: Option<u64>, rest: u32) -> Result<(), Violation> {
        let message = shown(&self.message);
        let request = self.request(reply.cookie)?;
        request.failure.get_or_insert_with(|| Box::new(Failure { code, at, message }));
        self.step = Step::Skip { reply, left: rest };
        Ok(())
    }

    /// Ends a request.
    fn end(&mut self, cookie: Cookie) -> Result<Result<(), Failure>, Violation> {
        let Request { command, cover, has_status, failure, .. } = self.request(cookie)?;
        if let Some(failure) = failure.take() {
            self.release(cookie);
            return Ok(Err(*failure));
        }
        let is_whole = match command {
            Command::Read { len, .. } => cover.is_whole(*len),
            Command::BlockStatus { .. } => *has_status,
            _ => true,
        };
        if !is_whole {
            return Err(Violation::Incomplete);
        }
        self.release(cookie);
        Ok(Ok(()))
    }

    fn release(&mut self, cookie: Cookie) {
        if let Some(slot) = self.slots.get_mut(cookie.slot()) {
            slot.request = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(cookie.slot() as u32);
        }
    }

    /// The next `N` bytes, once they have arrived.
    fn take<const N: usize>(&mut self, input: &mut &[u8]) -> Option<[u8; N]> {
        let room = self.partial.get_mut(self.partial_len..N)?;
        let len = room.len().min(input.len());
        let (bytes, rest) = input.split_at(len);
        room[..len].copy_from_slice(bytes);
        *input = rest;
        self.partial_len += len;
        if self.partial_len < N {
            return None;
        }
        self.partial_len = 0;
        self.partial.first_chunk().copied()
    }
}

/// The most chunks of a reply. A server should cut a read at multiples of 512 bytes, and may add an
/// error to each chunk of data, and an end.
fn most_chunks(command: &Command) -> u32 {
    match command {
        Command::Read { len, .. } => 2 * (len / 512) + 16,
        _ => 8,
    }
}

/// Where `at` lies in the range of a command, bytes from its start, if `len` bytes from there are
/// within it and not empty.
fn within(command: &Command, at: u64, len: u32) -> Result<u32, Violation> {
    let (start, room) = command.range().unwrap_or_default();
    let outside = Violation::Range { at, len: len.into() };
    let from = at.checked_sub(start).and_then(|from| u32::try_from(from).ok()).ok_or(outside)?;
    match from.checked_add(len) {
        Some(end) if end <= room && len > 0 => Ok(from),
        _ => Err(outside),
    }
}

/// Checks a block status descriptor of `len` bytes at `at`, one of the last `left` ones.
fn check_descriptor(command: &Command, at: u64, len: u32, left: u32) -> Result<(), Violation> {
    let (start, asked) = command.range().unwrap_or_default();
    let end = start + u64::from(asked);
    let one = matches!(command, Command::BlockStatus { one: true, .. });
    // All but the last lie within the request; the only one of a request for one does too.
    let may_exceed = left == 1 && !one;
    let is_valid = len > 0
        && at < end
        && match at.checked_add(len.into()) {
            None => false,
            Some(to) if left > 1 => to < end,
            Some(to) => may_exceed || to <= end,
        };
    if is_valid { Ok(()) } else { Err(Violation::Descriptor(len)) }
}
