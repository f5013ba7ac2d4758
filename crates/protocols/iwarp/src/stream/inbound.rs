//! Checks what arrives, segment by segment: DDP's rules (RFC 5041 §5 and §7), RDMAP's (RFC 5040 §5
//! and §7, RFC 7306), and their state. It checks before it names a place. It changes nothing until
//! a segment is complete.

use std::collections::VecDeque;

use zerocopy::FromBytes;

use crate::ddp::{self, Tagged, Untagged, queue};
use crate::mpa::{Agreed, Role, Rtr};
use crate::rdmap::Culprit;
use crate::rdmap::{
    self, ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, Atomic, AtomicRequest, AtomicResponse, IMMEDIATE_LEN,
    Opcode, READ_REQUEST_LEN, ReadRequest, TERMINATE_MAX_LEN, Terminate, Terminated,
};
use crate::stag::{Refusal, Rights, Stag};

use super::outbound::Sink as ReadSink;
use super::{Event, Invalidated, Place, Stream};

/// Bytes of the longest RDMAP header that follows DDP's.
pub(super) const CONTROL_MAX_LEN: usize = 64;

/// The kind of a segment's payload.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    /// Data for the driver to place.
    Place {
        /// Destination of the data.
        place: Place,
        /// Bytes from the place's start.
        offset: u64,
    },
    /// An RDMAP header.
    Control,
}

/// The segment that is being received.
#[derive(Debug, Clone, Copy)]
struct Segment {
    header: [u8; ddp::UNTAGGED_LEN],
    header_len: usize,
    payload_len: usize,
    opcode: Opcode,
    last: bool,
    /// For a tagged segment with payload: the STag whose memory receives it.
    stag: Option<Stag>,
    /// For a tagged segment: the STag in its header, and the tagged offset.
    named: Stag,
    to: u64,
    /// The STag to invalidate, if the opcode invalidates one.
    invalidate: Stag,
    /// The segment is the RTR message, a Send of no bytes.
    rtr: bool,
}

/// A Send in several segments.
#[derive(Debug, Clone, Copy)]
struct Sending {
    opcode: Opcode,
    invalidate: Stag,
}

/// A request of the peer that waits for our response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// An RDMA Read.
    Read { sink_stag: Stag, sink_to: u64, len: u32 },
    /// An Atomic.
    Atomic { request: u32 },
}

/// The receive state of a stream.
#[derive(Debug)]
pub(super) struct Inbound {
    ird: usize,
    receive_size: u32,
    receives: u32,
    /// The next message's number, by queue.
    msn: [u32; queue::COUNT],
    /// Bytes received of the Send in progress.
    mo: u32,
    sending: Option<Sending>,
    /// The RDMA Write in progress: its STag and the next tagged offset.
    writing: Option<(Stag, u64)>,
    requests: VecDeque<Request>,
    segment: Segment,
    /// A Send of no bytes is expected as RTR.
    rtr_send: bool,
    heard: bool,
    culprit: Option<Culprit>,
}

impl Inbound {
    pub(super) fn new(ird: u16, receive_size: u32, agreed: &Agreed) -> Self {
        let segment = Segment {
            header: [0; ddp::UNTAGGED_LEN],
            header_len: 0,
            payload_len: 0,
            opcode: Opcode::Write,
            last: false,
            stag: None,
            named: Stag(0),
            to: 0,
            invalidate: Stag(0),
            rtr: false,
        };
        Self {
            ird: usize::from(ird),
            receive_size,
            receives: 0,
            msn: [1; queue::COUNT],
            mo: 0,
            sending: None,
            writing: None,
            requests: VecDeque::new(),
            segment,
            rtr_send: agreed.role == Role::Responder && agreed.rtr == Some(Rtr::Send),
            heard: false,
            culprit: None,
        }
    }

    pub(super) fn heard(&self) -> bool {
        self.heard
    }

    pub(super) fn set_receive_size(&mut self, size: u32) {
        self.receive_size = size;
    }

    pub(super) fn post(&mut self, n: u32) {
        self.receives = self.receives.saturating_add(n);
    }

    pub(super) fn receives(&self) -> u32 {
        self.receives
    }

    pub(super) fn is_last(&self) -> bool {
        self.segment.last
    }

    pub(super) fn culprit(&self) -> Option<&Culprit> {
        self.culprit.as_ref()
    }

    pub(super) fn requests(&mut self) -> &mut VecDeque<Request> {
        &mut self.requests
    }

    pub(super) fn unanswered(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn oldest_request(&self) -> Option<Request> {
        self.requests.front().copied()
    }

    /// Checks that a segment of a Send or of Immediate Data fits a posted receive.
    fn fits(&self, mo: u32, payload_len: usize) -> Result<(), Terminate> {
        if self.receives == 0 {
            return Err(Terminate::NoBuffer);
        }
        if payload_len > (self.receive_size - mo.min(self.receive_size)) as usize {
            return Err(Terminate::TooLong);
        }
        Ok(())
    }
}

/// The Terminate for a refused RDMA Write (RFC 5041 §7.1; rights are RDMAP's, RFC 5040 §7.1).
fn tagged_refusal(refusal: Refusal) -> Terminate {
    match refusal {
        Refusal::Unknown => Terminate::TaggedInvalidStag,
        Refusal::Domain => Terminate::TaggedNotAssociated,
        Refusal::Rights => Terminate::AccessRights,
        Refusal::Wrap => Terminate::TaggedToWrap,
        Refusal::Bounds => Terminate::TaggedBaseOrBounds,
    }
}

/// The Terminate for a refused RDMA Read or Atomic (RFC 5040 §7.1).
fn source_refusal(refusal: Refusal) -> Terminate {
    match refusal {
        Refusal::Unknown => Terminate::InvalidStag,
        Refusal::Domain => Terminate::NotAssociated,
        Refusal::Rights => Terminate::AccessRights,
        Refusal::Wrap => Terminate::ToWrap,
        Refusal::Bounds => Terminate::BaseOrBounds,
    }
}

impl Stream {
    /// Takes the header of a segment and the length of its payload. Returns the kind of payload, if
    /// the segment is allowed now. `header` has the length that its control byte implies.
    #[inline]
    pub(super) fn segment(&mut self, header: &[u8], payload_len: usize) -> Result<Body, Terminate> {
        let checked = match (Tagged::ref_from_bytes(header), Untagged::ref_from_bytes(header)) {
            (Ok(tagged), _) => self.tagged(tagged, payload_len),
            (_, Ok(untagged)) => self.untagged(untagged, payload_len),
            _ => Err(Terminate::Malformed),
        };
        let segment = &mut self.inbound.segment;
        let n = header.len().min(ddp::UNTAGGED_LEN);
        segment.header[..n].copy_from_slice(&header[..n]);
        (segment.header_len, segment.payload_len) = (n, payload_len);
        checked.inspect_err(|_| self.blame(None))
    }

    /// Records the current segment as the faulty one.
    #[cold]
    fn blame(&mut self, read: Option<[u8; READ_REQUEST_LEN]>) {
        let segment = &self.inbound.segment;
        let header = &segment.header[..segment.header_len];
        let culprit = Culprit::new(header, segment.header_len + segment.payload_len);
        self.inbound.culprit = Some(match read {
            Some(read) => culprit.with_read(read),
            None => culprit,
        });
    }

    #[inline]
    fn tagged(&mut self, header: &Tagged, payload_len: usize) -> Result<Body, Terminate> {
        if header.control & ddp::VERSION_MASK != ddp::VERSION {
            return Err(Terminate::TaggedVersion);
        }
        if header.rdmap & rdmap::VERSION_MASK != rdmap::VERSION {
            return Err(Terminate::RdmapVersion);
        }
        let (stag, to) = (Stag(header.stag.get()), header.to.get());
        let last = header.control & ddp::LAST != 0;
        let opcode = Opcode::from_bits(header.rdmap).ok_or(Terminate::UnexpectedOpcode)?;
        let (place, offset, placed) = match opcode {
            Opcode::Write => self.write_segment(stag, to, payload_len)?,
            Opcode::ReadResponse => self.response_segment(stag, to, payload_len, last)?,
            _ => return Err(Terminate::UnexpectedOpcode),
        };
        let segment = &mut self.inbound.segment;
        (segment.opcode, segment.last) = (opcode, last);
        (segment.named, segment.to, segment.stag) = (stag, to, placed);
        Ok(Body::Place { place, offset })
    }

    /// The destination of a Write's segment. A segment of no bytes is accepted whatever it names
    /// (RFC 5040 §5.2.2).
    #[inline]
    fn write_segment(
        &self,
        stag: Stag,
        to: u64,
        payload_len: usize,
    ) -> Result<(Place, u64, Option<Stag>), Terminate> {
        if let Some((expected, next)) = self.inbound.writing {
            if stag != expected {
                return Err(Terminate::TaggedInvalidStag);
            }
            if to != next {
                return Err(Terminate::TaggedBaseOrBounds);
            }
        }
        if payload_len == 0 {
            return Ok((Place::Receive, 0, None));
        }
        let located = self.stags.locate(stag, to, payload_len as u64, Rights::REMOTE_WRITE, self.domain);
        let (index, offset) = located.map_err(tagged_refusal)?;
        Ok((Place::Tagged(index), offset, Some(stag)))
    }

    /// The destination of a Read Response's segment: it must continue the oldest outstanding read,
    /// and end with it.
    #[inline]
    fn response_segment(
        &self,
        stag: Stag,
        to: u64,
        payload_len: usize,
        last: bool,
    ) -> Result<(Place, u64, Option<Stag>), Terminate> {
        let read = self.outbound.oldest_read().ok_or(Terminate::UnexpectedOpcode)?;
        let left = u64::from(read.len - read.had);
        if read.len > 0 {
            if stag != read.sink_stag {
                return Err(Terminate::TaggedInvalidStag);
            }
            if to != read.sink_to.wrapping_add(u64::from(read.had)) {
                return Err(Terminate::TaggedBaseOrBounds);
            }
        }
        if payload_len as u64 > left || last != (payload_len as u64 == left) {
            return Err(Terminate::TaggedBaseOrBounds);
        }
        let had = u64::from(read.had);
        match read.sink {
            ReadSink::Given => Ok((Place::Read(read.id), had, None)),
            ReadSink::Registered { index, offset } if payload_len > 0 => {
                if self.stags.get(stag).is_none() {
                    return Err(Terminate::TaggedInvalidStag);
                }
                Ok((Place::Tagged(index), offset + had, Some(stag)))
            }
            ReadSink::Registered { .. } | ReadSink::Rtr => Ok((Place::Receive, 0, None)),
        }
    }

    #[inline]
    fn untagged(&mut self, header: &Untagged, payload_len: usize) -> Result<Body, Terminate> {
        if header.control & ddp::VERSION_MASK != ddp::VERSION {
            return Err(Terminate::UntaggedVersion);
        }
        if header.rdmap & rdmap::VERSION_MASK != rdmap::VERSION {
            return Err(Terminate::RdmapVersion);
        }
        let (qn, msn, mo) = (header.qn.get(), header.msn.get(), header.mo.get());
        let last = header.control & ddp::LAST != 0;
        let opcode = Opcode::from_bits(header.rdmap).ok_or(Terminate::UnexpectedOpcode)?;
        let expected = match opcode {
            Opcode::Write | Opcode::ReadResponse => return Err(Terminate::UnexpectedOpcode),
            Opcode::ReadRequest | Opcode::AtomicRequest => queue::REQUEST,
            Opcode::Terminate => queue::TERMINATE,
            Opcode::AtomicResponse => queue::ATOMIC_RESPONSE,
            _ => queue::SEND,
        };
        if qn != expected {
            return Err(Terminate::InvalidQn);
        }
        if msn != self.inbound.msn[expected as usize] {
            return Err(Terminate::InvalidMsn);
        }
        let goes_on = if expected == queue::SEND { self.inbound.mo } else { 0 };
        if mo != goes_on {
            return Err(Terminate::InvalidMo);
        }
        let invalidate = Stag(header.invalidate.get());
        let mut rtr = false;
        let body = match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => {
                rtr = self.inbound.rtr_send && !self.inbound.heard && payload_len == 0 && last;
                if !rtr {
                    self.send_segment(opcode, invalidate, mo, payload_len)?;
                }
                Body::Place { place: Place::Receive, offset: u64::from(mo) }
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                if self.inbound.sending.is_some() {
                    return Err(Terminate::UnexpectedOpcode);
                }
                self.inbound.fits(0, payload_len)?;
                Self::whole_header(payload_len == IMMEDIATE_LEN, last)?
            }
            Opcode::ReadRequest | Opcode::AtomicRequest => {
                if self.inbound.requests.len() >= self.inbound.ird {
                    return Err(Terminate::NoBuffer);
                }
                let len = if opcode == Opcode::ReadRequest { READ_REQUEST_LEN } else { ATOMIC_REQUEST_LEN };
                Self::whole_header(payload_len == len, last)?
            }
            Opcode::AtomicResponse => Self::whole_header(payload_len == ATOMIC_RESPONSE_LEN, last)?,
            _ => Self::whole_header((4..=TERMINATE_MAX_LEN).contains(&payload_len), last)?,
        };
        let segment = &mut self.inbound.segment;
        (segment.opcode, segment.last, segment.invalidate, segment.rtr) = (opcode, last, invalidate, rtr);
        segment.stag = None;
        Ok(body)
    }

    /// An RDMAP header occupies exactly one segment (RFC 5040 §4.4, §4.8, RFC 7306 §5 and §6).
    fn whole_header(len_right: bool, last: bool) -> Result<Body, Terminate> {
        if len_right && last { Ok(Body::Control) } else { Err(Terminate::Malformed) }
    }

    #[inline]
    fn send_segment(
        &self,
        opcode: Opcode,
        invalidate: Stag,
        mo: u32,
        payload_len: usize,
    ) -> Result<(), Terminate> {
        if let Some(sending) = self.inbound.sending {
            let same =
                sending.opcode == opcode && (!opcode.invalidates() || sending.invalidate == invalidate);
            if !same {
                return Err(Terminate::UnexpectedOpcode);
            }
        }
        self.inbound.fits(mo, payload_len)
    }

    /// Checks that the destination of the payload in progress is still registered.
    #[inline]
    pub(super) fn still_placeable(&mut self) -> Result<(), Terminate> {
        match self.inbound.segment.stag {
            Some(stag) if self.stags.get(stag).is_none() => {
                self.blame(None);
                Err(Terminate::TaggedInvalidStag)
            }
            _ => Ok(()),
        }
    }

    /// Handles a complete segment with a correct CRC. `control` is its payload if that is an RDMAP
    /// header.
    #[inline(always)]
    pub(super) fn finish(&mut self, control: &[u8]) -> Result<Option<Event>, Terminate> {
        let done = self.complete(control);
        self.inbound.heard = true;
        done.inspect_err(|_| {
            let read = match self.inbound.segment.opcode {
                Opcode::ReadRequest => control.first_chunk().copied(),
                _ => None,
            };
            self.blame(read);
        })
    }

    #[inline(always)]
    fn complete(&mut self, control: &[u8]) -> Result<Option<Event>, Terminate> {
        let segment = &self.inbound.segment;
        match segment.opcode {
            Opcode::Write => {
                let next = segment.to.wrapping_add(segment.payload_len as u64);
                self.inbound.writing = if segment.last { None } else { Some((segment.named, next)) };
                Ok(None)
            }
            Opcode::ReadResponse => Ok(self.outbound.responded(segment.payload_len as u32, segment.last)),
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.sent_segment(),
            Opcode::ReadRequest => {
                self.inbound.msn[queue::REQUEST as usize] =
                    self.inbound.msn[queue::REQUEST as usize].wrapping_add(1);
                self.read_request(control)
            }
            Opcode::AtomicRequest => {
                self.inbound.msn[queue::REQUEST as usize] =
                    self.inbound.msn[queue::REQUEST as usize].wrapping_add(1);
                self.atomic_request(control)
            }
            Opcode::AtomicResponse => {
                let msn = &mut self.inbound.msn[queue::ATOMIC_RESPONSE as usize];
                *msn = msn.wrapping_add(1);
                let header = AtomicResponse::read_from_bytes(control).map_err(|_| Terminate::Malformed)?;
                let done =
                    self.outbound.atomic_done(header.request.get()).ok_or(Terminate::UnexpectedOpcode)?;
                Ok(Some(Event::AtomicDone { id: done, original: header.original.get() }))
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                let solicited = segment.opcode.solicited();
                self.used_receive();
                let data = *control.first_chunk().ok_or(Terminate::Malformed)?;
                Ok(Some(Event::Immediate { data, solicited }))
            }
            Opcode::Terminate => {
                let terminated = Terminated::parse(control).ok_or(Terminate::Malformed)?;
                self.over = Some(super::Over::Closed);
                Ok(Some(Event::Terminated(terminated)))
            }
        }
    }

    #[inline]
    fn used_receive(&mut self) {
        let inbound = &mut self.inbound;
        inbound.receives = inbound.receives.saturating_sub(1);
        inbound.msn[queue::SEND as usize] = inbound.msn[queue::SEND as usize].wrapping_add(1);
    }

    #[inline(always)]
    fn sent_segment(&mut self) -> Result<Option<Event>, Terminate> {
        let inbound = &mut self.inbound;
        let Segment { opcode, invalidate, last, payload_len, rtr, .. } = inbound.segment;
        if rtr {
            inbound.msn[queue::SEND as usize] = inbound.msn[queue::SEND as usize].wrapping_add(1);
            return Ok(None);
        }
        // `len` is at most the size of a receive.
        let len = inbound.mo + payload_len as u32;
        if !last {
            inbound.mo = len;
            inbound.sending = Some(Sending { opcode, invalidate });
            return Ok(None);
        }
        inbound.mo = 0;
        inbound.sending = None;
        self.used_receive();
        let invalidated = if opcode.invalidates() { Some(self.remote_invalidate(invalidate)?) } else { None };
        Ok(Some(Event::Received { len, solicited: opcode.solicited(), invalidated }))
    }

    /// Executes a Send with Invalidate, if the STag's rights allow it (RFC 5040 §5.3).
    fn remote_invalidate(&mut self, stag: Stag) -> Result<Invalidated, Terminate> {
        let registration = self.stags.get(stag).ok_or(Terminate::InvalidateUnknown)?;
        if registration.domain != self.domain || !registration.rights.contain(Rights::REMOTE_INVALIDATE) {
            return Err(Terminate::CannotInvalidate);
        }
        let index = registration.index;
        self.stags.remove(stag);
        Ok(Invalidated { stag, index })
    }

    fn read_request(&mut self, control: &[u8]) -> Result<Option<Event>, Terminate> {
        let header = ReadRequest::read_from_bytes(control).map_err(|_| Terminate::Malformed)?;
        let (sink_stag, sink_to, len) =
            (Stag(header.sink_stag.get()), header.sink_to.get(), header.len.get());
        let request = Request::Read { sink_stag, sink_to, len };
        // A read of no bytes may name anything (RFC 5040 §5.2.1); `flush` answers it.
        if len == 0 {
            self.inbound.requests.push_back(request);
            return Ok(None);
        }
        if sink_to.checked_add(u64::from(len) - 1).is_none() {
            return Err(Terminate::ToWrap);
        }
        let source = Stag(header.source_stag.get());
        let to = header.source_to.get();
        let located = self.stags.locate(source, to, u64::from(len), Rights::REMOTE_READ, self.domain);
        let (index, offset) = located.map_err(source_refusal)?;
        self.inbound.requests.push_back(request);
        Ok(Some(Event::ReadRequest { index, offset, len }))
    }

    fn atomic_request(&mut self, control: &[u8]) -> Result<Option<Event>, Terminate> {
        let header = AtomicRequest::read_from_bytes(control).map_err(|_| Terminate::Malformed)?;
        let operation = Atomic::of(&header).ok_or(Terminate::UnexpectedOpcode)?;
        let (stag, to) = (Stag(header.stag.get()), header.to.get());
        let located = self.stags.locate(stag, to, 8, Rights::REMOTE_ATOMIC, self.domain);
        let (index, offset) = located.map_err(source_refusal)?;
        // RFC 7306 §5.1: the value must be aligned.
        if to % 8 != 0 {
            return Err(Terminate::StreamCatastrophic);
        }
        self.inbound.requests.push_back(Request::Atomic { request: header.request.get() });
        Ok(Some(Event::AtomicRequest { index, offset, operation }))
    }
}
