//! Turns operations into FPDUs: message numbers, and the reads and atomics that wait for room or
//! for their response. Sends nothing by itself: every byte goes to the sink of the call.

use std::collections::VecDeque;

use thiserror::Error;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

use crate::ddp::{Tagged, Untagged, queue};
use crate::mpa::Rtr;
use crate::rdmap::{Atomic, AtomicResponse, Opcode, ReadRequest};
use crate::stag::{Refusal, Rights, Stag};

use super::inbound::Request;
use super::payload;
use super::{Event, Payload, Stream};

/// An address in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The STag that the peer advertised.
    pub stag: Stag,
    /// The tagged offset, in bytes.
    pub to: u64,
}

/// Options of a Send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// The peer's STag to invalidate when the message has arrived.
    pub invalidate: Option<Stag>,
    /// Requests an event at the peer (Solicited Event).
    pub solicited: bool,
}

/// The destination of an RDMA Read's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// No registered memory: the data is returned as [`Place::Read`](super::Place::Read). No STag
    /// of the stream's table stands for it.
    Given,
    /// Registered memory with [`Rights::LOCAL_WRITE`], at this tagged offset.
    Registered {
        /// Our STag.
        stag: Stag,
        /// Tagged offset in that memory, in bytes.
        to: u64,
    },
}

/// Why an operation was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The stream has ended.
    #[error("the stream has ended")]
    Over,
    /// A message of 2^32 bytes or more.
    #[error("a message may have 2^32 - 1 bytes at most")]
    TooLong,
    /// The remote offset plus the length passes 2^64.
    #[error("tagged offset wraps")]
    Wraps,
    /// The peer takes no RDMA Reads or Atomics: its IRD is 0.
    #[error("the peer takes no RDMA Reads")]
    NoReads,
    /// The maximum number of reads and atomics already waits.
    #[error("the queue of waiting RDMA Reads and Atomics is full")]
    Queue,
    /// The oldest request to answer is not of this kind.
    #[error("the peer's oldest request is of another kind, or there is none")]
    NoRequest,
    /// An answer's length differs from that of its request.
    #[error("the peer asked for {asked} bytes, not {given}")]
    Length {
        /// Bytes requested.
        asked: u32,
        /// Bytes given.
        given: usize,
    },
    /// The registered memory cannot receive the data.
    #[error(transparent)]
    Landing(#[from] Refusal),
}

/// The destination of an outstanding read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sink {
    Given,
    Registered { index: u32, offset: u64 },
    Rtr,
}

/// An RDMA Read of this side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) id: u64,
    pub(super) sink: Sink,
    pub(super) sink_stag: Stag,
    pub(super) sink_to: u64,
    pub(super) len: u32,
    /// Bytes received.
    pub(super) had: u32,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Read(Read),
    Atomic { id: u64, request: u32, operation: Atomic },
}

#[derive(Debug, Clone, Copy)]
struct Ours {
    what: What,
    remote: Remote,
}

/// The send state of a stream.
#[derive(Debug)]
pub(super) struct Outbound {
    ord: usize,
    max_queued: usize,
    /// Requests of this side: the first `in_flight` are sent, the others wait.
    ours: VecDeque<Ours>,
    in_flight: usize,
    /// The next message's number, by queue.
    msn: [u32; queue::COUNT],
    /// The sink STag of reads without registered memory; no registration has it.
    sink: Stag,
    /// The next tagged offset under it.
    sink_to: u64,
    atomic: u32,
}

impl Outbound {
    pub(super) fn new(ord: u16, max_queued: usize, sink: Stag) -> Self {
        Self {
            ord: usize::from(ord),
            max_queued,
            ours: VecDeque::new(),
            in_flight: 0,
            msn: [1; queue::COUNT],
            sink,
            sink_to: 0,
            atomic: 0,
        }
    }

    fn next_msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msn[qn as usize];
        std::mem::replace(msn, msn.wrapping_add(1))
    }

    /// The oldest request in flight, if it is a read.
    #[inline]
    pub(super) fn oldest_read(&self) -> Option<&Read> {
        match self.ours.front() {
            Some(Ours { what: What::Read(read), .. }) if self.in_flight > 0 => Some(read),
            _ => None,
        }
    }

    /// Accounts for a complete segment of the oldest read's response.
    #[inline]
    pub(super) fn responded(&mut self, len: u32, last: bool) -> Option<Event> {
        let Some(Ours { what: What::Read(read), .. }) = self.ours.front_mut() else { return None };
        read.had += len;
        if !last {
            return None;
        }
        let (id, sink) = (read.id, read.sink);
        self.pop();
        if matches!(sink, Sink::Rtr) { None } else { Some(Event::ReadDone { id }) }
    }

    /// Completes the oldest request in flight if it is an atomic with this identifier, and returns
    /// its id.
    pub(super) fn atomic_done(&mut self, identifier: u32) -> Option<u64> {
        match self.ours.front() {
            Some(&Ours { what: What::Atomic { id, request, .. }, .. })
                if self.in_flight > 0 && request == identifier =>
            {
                self.pop();
                Some(id)
            }
            _ => None,
        }
    }

    fn pop(&mut self) {
        self.ours.pop_front();
        self.in_flight -= 1;
    }
}

impl Stream {
    fn open(&self) -> Result<(), PostError> {
        if self.over.is_some() { Err(PostError::Over) } else { Ok(()) }
    }

    /// Sends a message (RFC 5040 §5.1); it consumes one of the peer's posted receives.
    pub fn send<P: Payload>(
        &mut self,
        data: P,
        flags: SendFlags,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        let len = u32::try_from(data.len()).map_err(|_| PostError::TooLong)?;
        let opcode = match (flags.invalidate, flags.solicited) {
            (None, false) => Opcode::Send,
            (Some(_), false) => Opcode::SendInvalidate,
            (None, true) => Opcode::SendSolicited,
            (Some(_), true) => Opcode::SendSolicitedInvalidate,
        };
        let msn = self.outbound.next_msn(queue::SEND);
        let (mut data, mut mo, most) = (data, 0, self.writer.untagged_max());
        while (len - mo) as usize > most {
            let header = Untagged::new(opcode, false, flags.invalidate, queue::SEND, msn, mo);
            self.writer.fpdu(header.as_bytes(), data.split_to(most), sink);
            mo += most as u32;
        }
        let header = Untagged::new(opcode, true, flags.invalidate, queue::SEND, msn, mo);
        self.writer.fpdu(header.as_bytes(), data, sink);
        Ok(())
    }

    /// Sends eight bytes that need no buffer but consume one of the peer's posted receives (RFC
    /// 7306 §6).
    pub fn immediate<P: Payload>(
        &mut self,
        data: [u8; 8],
        solicited: bool,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let msn = self.outbound.next_msn(queue::SEND);
        let header = Untagged::new(opcode, true, None, queue::SEND, msn, 0);
        self.writer.message(&header, &data, sink);
        Ok(())
    }

    /// Writes into the peer's memory (RFC 5040 §5.2.2). Messages sent later arrive after the data.
    pub fn write<P: Payload>(
        &mut self,
        remote: Remote,
        data: P,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        if !data.is_empty() && remote.to.checked_add(data.len() as u64 - 1).is_none() {
            return Err(PostError::Wraps);
        }
        self.tagged_message(Opcode::Write, remote, data, sink);
        Ok(())
    }

    fn tagged_message<P: Payload>(
        &mut self,
        opcode: Opcode,
        to: Remote,
        mut data: P,
        sink: &mut impl payload::Sink<P>,
    ) {
        let (mut at, mut now) = (to.to, self.writer.tagged_first(opcode, data.len()));
        while now < data.len() {
            let header = Tagged::new(opcode, false, to.stag, at);
            self.writer.fpdu(header.as_bytes(), data.split_to(now), sink);
            at = at.wrapping_add(now as u64);
            now = self.writer.tagged_max(opcode).min(data.len());
        }
        let header = Tagged::new(opcode, true, to.stag, at);
        self.writer.fpdu(header.as_bytes(), data, sink);
    }

    /// Reads `len` bytes of the peer's memory (RFC 5040 §5.2.1); [`Event::ReadDone`] returns `id`
    /// when all data has arrived.
    ///
    /// At most ORD reads and atomics are outstanding. Further ones wait inside the stream, and
    /// later messages overtake them. [`Self::flush`] sends a waiting one once an older one
    /// completes. So invalidate its STag only after it completes.
    pub fn read<P: Payload>(
        &mut self,
        remote: Remote,
        len: u32,
        landing: Landing,
        id: u64,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        if len > 0 && remote.to.checked_add(u64::from(len) - 1).is_none() {
            return Err(PostError::Wraps);
        }
        let (to, sink_stag, sink_to) = match landing {
            Landing::Given => {
                let mut at = self.outbound.sink_to;
                if at.checked_add(u64::from(len)).is_none() {
                    at = 0;
                }
                self.outbound.sink_to = at + u64::from(len);
                (Sink::Given, self.outbound.sink, at)
            }
            Landing::Registered { stag, to } => {
                let located = self.stags.locate(stag, to, u64::from(len), Rights::LOCAL_WRITE, self.domain);
                let (index, offset) = located?;
                (Sink::Registered { index, offset }, stag, to)
            }
        };
        let read = Read { id, sink: to, sink_stag, sink_to, len, had: 0 };
        self.request(Ours { what: What::Read(read), remote }, sink)
    }

    /// Executes an atomic operation on eight bytes of the peer's memory, at a multiple of 8 (RFC
    /// 7306 §5). [`Event::AtomicDone`] returns `id` and the value before. Waits under the ORD as
    /// [`Self::read`] does.
    pub fn atomic<P: Payload>(
        &mut self,
        remote: Remote,
        operation: Atomic,
        id: u64,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        let request = self.outbound.atomic;
        self.outbound.atomic = request.wrapping_add(1);
        self.request(Ours { what: What::Atomic { id, request, operation }, remote }, sink)
    }

    fn request<P: Payload>(&mut self, ours: Ours, sink: &mut impl payload::Sink<P>) -> Result<(), PostError> {
        if self.outbound.ord == 0 {
            return Err(PostError::NoReads);
        }
        if self.outbound.ours.len() - self.outbound.in_flight >= self.outbound.max_queued
            && self.outbound.in_flight >= self.outbound.ord
        {
            return Err(PostError::Queue);
        }
        self.outbound.ours.push_back(ours);
        self.send_requests(sink);
        Ok(())
    }

    /// Sends the requests that have room under the ORD.
    fn send_requests<P: Payload>(&mut self, sink: &mut impl payload::Sink<P>) {
        while self.outbound.in_flight < self.outbound.ord.min(self.outbound.ours.len()) {
            let Ours { what, remote } = self.outbound.ours[self.outbound.in_flight];
            self.outbound.in_flight += 1;
            let msn = self.outbound.next_msn(queue::REQUEST);
            match what {
                What::Read(read) => {
                    let header = Untagged::new(Opcode::ReadRequest, true, None, queue::REQUEST, msn, 0);
                    let body = ReadRequest {
                        sink_stag: U32::new(read.sink_stag.0),
                        sink_to: U64::new(read.sink_to),
                        len: U32::new(read.len),
                        source_stag: U32::new(remote.stag.0),
                        source_to: U64::new(remote.to),
                    };
                    self.writer.message(&header, body.as_bytes(), sink);
                }
                What::Atomic { request, operation, .. } => {
                    let header = Untagged::new(Opcode::AtomicRequest, true, None, queue::REQUEST, msn, 0);
                    let body = operation.request(request, remote.stag.0, remote.to);
                    self.writer.message(&header, body.as_bytes(), sink);
                }
            }
        }
    }

    /// Answers the oldest [`Event::ReadRequest`] with the requested data.
    pub fn read_response<P: Payload>(
        &mut self,
        data: P,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        while self.answer_empty(sink) {}
        let Some(Request::Read { sink_stag, sink_to, len }) = self.inbound.oldest_request() else {
            return Err(PostError::NoRequest);
        };
        if data.len() != len as usize {
            return Err(PostError::Length { asked: len, given: data.len() });
        }
        self.inbound.requests().pop_front();
        self.tagged_message(Opcode::ReadResponse, Remote { stag: sink_stag, to: sink_to }, data, sink);
        Ok(())
    }

    /// Answers the oldest [`Event::AtomicRequest`] with the value before the operation.
    pub fn atomic_response<P: Payload>(
        &mut self,
        original: u64,
        sink: &mut impl payload::Sink<P>,
    ) -> Result<(), PostError> {
        self.open()?;
        while self.answer_empty(sink) {}
        let Some(Request::Atomic { request }) = self.inbound.oldest_request() else {
            return Err(PostError::NoRequest);
        };
        self.inbound.requests().pop_front();
        let msn = self.outbound.next_msn(queue::ATOMIC_RESPONSE);
        let header = Untagged::new(Opcode::AtomicResponse, true, None, queue::ATOMIC_RESPONSE, msn, 0);
        let body = AtomicResponse { request: U32::new(request), original: U64::new(original) };
        self.writer.message(&header, body.as_bytes(), sink);
        Ok(())
    }

    /// Whether [`Self::flush`] has something to send: a read with room under the ORD, or an answer
    /// to a read of no bytes.
    #[inline]
    pub fn wants_flush(&self) -> bool {
        self.over.is_none()
            && (self.outbound.in_flight < self.outbound.ord.min(self.outbound.ours.len())
                || matches!(self.inbound.oldest_request(), Some(Request::Read { len: 0, .. })))
    }

    /// Calls [`Self::answer_empty`] until it returns false, then [`Self::send_due`].
    #[inline]
    pub fn flush<P: Payload>(&mut self, sink: &mut impl payload::Sink<P>) {
        if self.wants_flush() {
            while self.answer_empty(sink) {}
            self.send_due(sink);
        }
    }

    /// Sends this side's reads and atomics that have room under the ORD.
    #[inline]
    pub fn send_due<P: Payload>(&mut self, sink: &mut impl payload::Sink<P>) {
        if self.over.is_none() {
            self.send_requests(sink);
        }
    }

    /// Reads and atomics of this side that are not complete.
    pub fn outstanding(&self) -> usize {
        self.outbound.ours.len()
    }

    /// Requests of the peer that wait for [`Self::read_response`] or [`Self::atomic_response`].
    pub fn unanswered(&self) -> usize {
        self.inbound.unanswered()
    }

    /// Answers the oldest request if it reads no bytes; otherwise returns false. A peer may send
    /// such requests without end and read no answers. A caller that queues answers must therefore
    /// call this only while it has room. Waiting requests count against the IRD like all others.
    #[inline]
    pub fn answer_empty<P: Payload>(&mut self, sink: &mut impl payload::Sink<P>) -> bool {
        let oldest = self.inbound.oldest_request();
        let Some(Request::Read { sink_stag, sink_to, len: 0 }) = oldest.filter(|_| self.over.is_none())
        else {
            return false;
        };
        self.inbound.requests().pop_front();
        let header = Tagged::new(Opcode::ReadResponse, true, sink_stag, sink_to);
        self.writer.empty(header.as_bytes(), sink);
        true
    }

    pub(super) fn send_rtr<P: Payload>(&mut self, rtr: Rtr, sink: &mut impl payload::Sink<P>) {
        match rtr {
            Rtr::Send => {
                let msn = self.outbound.next_msn(queue::SEND);
                let header = Untagged::new(Opcode::Send, true, None, queue::SEND, msn, 0);
                self.writer.empty(header.as_bytes(), sink);
            }
            Rtr::Write => {
                let header = Tagged::new(Opcode::Write, true, self.outbound.sink, 0);
                self.writer.empty(header.as_bytes(), sink);
            }
            Rtr::Read => {
                let read = Read {
                    id: 0,
                    sink: Sink::Rtr,
                    sink_stag: self.outbound.sink,
                    sink_to: 0,
                    len: 0,
                    had: 0,
                };
                let remote = Remote { stag: self.outbound.sink, to: 0 };
                self.outbound.ours.push_back(Ours { what: What::Read(read), remote });
                self.outbound.ord = self.outbound.ord.max(1);
                self.send_requests(sink);
            }
        }
    }
}
