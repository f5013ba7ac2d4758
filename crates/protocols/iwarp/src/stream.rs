//! One RDMAP stream in operation: received bytes become payload and events, operations become
//! FPDUs. [`mpa`](crate::mpa) sets it up first. Owns no payload memory and reads no clock.
//!
//! # Receiving
//! Call [`Stream::step`] with the received bytes until it returns [`Step::More`]. For each
//! [`Step::Payload`] take the bytes by reference, copy them to their place, or receive straight
//! into that place. Then report them with [`Stream::took`].
//! ```
//! # extern crate iwarp as iwarp;
//! # use iwarp::stream::{Event, Place, Step, Stream};
//! # fn place(_: Place, _: u64, _: &[u8]) {}
//! # fn event(_: Event) {}
//! fn receive(stream: &mut Stream, mut input: &[u8]) -> Result<(), iwarp::rdmap::Terminate> {
//!     loop {
//!         match stream.step(&mut input)? {
//!             Step::More => return Ok(()),
//!             Step::Payload { here: 0, .. } => return Ok(()), // or receive into the place
//!             Step::Payload { place: at, offset, here, .. } => {
//!                 let (bytes, rest) = input.split_at(here);
//!                 place(at, offset, bytes);
//!                 stream.took(bytes);
//!                 input = rest;
//!             }
//!             Step::Event(e) => event(e), // then `stream.flush(sink)` if `stream.wants_flush()`
//!         }
//!     }
//! }
//! ```
//! An error is final: [`Stream::terminate`] informs the peer; then close the connection.
//!
//! # Checks before a place is named
//! The stream checks versions, opcodes, queues, message numbers and offsets, posted receives and
//! their size. It checks the bounds, rights and protection domain of STags. A [`Step`] never names
//! a byte outside posted or registered memory. If an FPDU is whole in the input, its CRC is checked
//! first as well. The payload of a longer FPDU is placed as it arrives, within the same bounds. Its
//! CRC is checked before any event reports the data.
//!
//! # Sending
//! Operations append to a [`Sink`]: headers copied, payload by reference, in the order of the
//! calls. A responder must hold back the contents of the sink until [`Stream::may_send`] (RFC 5044
//! §7.1.2).

mod framing;
mod inbound;
mod outbound;
mod payload;
mod writer;

pub use outbound::{Landing, PostError, Remote, SendFlags};
pub use payload::{Payload, Sink};

use crate::mpa::{Agreed, Role, Rtr};
use crate::rdmap::{Atomic, Terminate, Terminated};
use crate::stag::{Domain, RegisterError, Registration, Stag, Table};

use self::framing::Framing;
use self::inbound::Inbound;
use self::outbound::Outbound;
use self::writer::Writer;

/// A stream's settings beyond those that MPA negotiates.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum bytes of an FPDU to send, with header and trailer: 64 KiB ([`Options::MAX_FPDU`]) to
    /// software peers, an MSS to RNICs. At least [`Options::MIN_FPDU`].
    pub max_fpdu: usize,
    /// Bytes of each posted receive: the longest message that the peer may send. Less than 2^32.
    pub receive_size: u32,
    /// Maximum number of registrations.
    pub max_stags: usize,
    /// Maximum RDMA Reads and Atomics that wait for room under the ORD.
    pub max_queued: usize,
    /// The stream's protection domain.
    pub domain: Domain,
    /// Seed for the STags: unpredictable, used for no other stream.
    pub seed: [u8; 16],
}

impl Options {
    /// The longest FPDU, bytes: its ULPDU length has 16 bits.
    pub const MAX_FPDU: usize = 65536;
    /// The shortest useful FPDU, bytes: RFC 5044 §5.1 requires room for a ULPDU of 128 bytes.
    pub const MIN_FPDU: usize = 160;

    /// Defaults: the longest FPDUs, receives of 8 KiB, 4096 STags, as many waiting reads.
    pub fn new(seed: [u8; 16]) -> Self {
        Self {
            max_fpdu: Self::MAX_FPDU,
            receive_size: 8192,
            max_stags: 4096,
            max_queued: 4096,
            domain: Domain::default(),
            seed,
        }
    }
}

/// The destination of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The oldest posted receive without a complete message; the offset is within the message.
    Receive,
    /// The memory registered under this index ([`Registration::index`]); the offset is within the
    /// registration.
    Tagged(u32),
    /// Data of our RDMA Read with this id, in order; the offset is within the read.
    Read(u64),
}

/// The meaning of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed; the input is used up.
    More,
    /// Payload: its first `here` bytes are at the start of the input. They stay there until the
    /// driver takes them, in pieces of any length ([`Stream::took`]).
    Payload {
        /// Destination of the payload.
        place: Place,
        /// Bytes from the place's start.
        offset: u64,
        /// Payload bytes at the start of the input; 0 only if the input is empty.
        here: usize,
        /// Payload bytes that follow directly, in the stream and in the place. The driver may
        /// receive them straight into the place.
        rest: usize,
    },
    /// A message or an operation is complete.
    Event(Event),
}

/// An STag that the peer invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalidated {
    /// The STag.
    pub stag: Stag,
    /// [`Registration::index`] of its registration.
    pub index: u32,
}

/// A message or an operation is complete: all its payload was taken, and its CRC is correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The oldest posted receive holds a message.
    Received {
        /// Its bytes.
        len: u32,
        /// The sender requests an event at once (Solicited Event).
        solicited: bool,
        /// The STag that the sender invalidated with the message.
        invalidated: Option<Invalidated>,
    },
    /// Immediate Data; it consumed a posted receive (RFC 7306 §6).
    Immediate {
        /// The data.
        data: [u8; 8],
        /// The sender requests an event at once (Solicited Event).
        solicited: bool,
    },
    /// The peer requests a read: answer with [`Stream::read_response`], in the order of the
    /// requests.
    ReadRequest {
        /// [`Registration::index`] of the memory to read.
        index: u32,
        /// Bytes from its start.
        offset: u64,
        /// Bytes; at least 1.
        len: u32,
    },
    /// The peer requests an atomic operation: execute it and answer with
    /// [`Stream::atomic_response`], in the order of the requests.
    AtomicRequest {
        /// [`Registration::index`] of the memory.
        index: u32,
        /// Bytes from its start to the value's eight bytes. The upper layer chooses the value's
        /// byte order.
        offset: u64,
        /// The operation to execute.
        operation: Atomic,
    },
    /// All data of our RDMA Read has arrived.
    ReadDone {
        /// The id given with the request.
        id: u64,
    },
    /// Our atomic operation is done.
    AtomicDone {
        /// The id given with the request.
        id: u64,
        /// The value before the operation.
        original: u64,
    },
    /// The peer ends the stream with an error: no event follows, and this side must send nothing.
    Terminated(Terminated),
}

/// The only FPDU of a stream that failed to start: a Terminate to a peer that considers the
/// connection established (RFC 6581 §10).
pub(crate) fn lone_terminate(error: Terminate, crc: bool, markers: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(crc, markers, Options::MAX_FPDU).terminate::<&[u8]>(error, None, &mut bytes);
    bytes
}

/// How a stream ended.
#[derive(Debug, Clone, Copy)]
enum Over {
    /// This side found an error.
    Failed(Terminate),
    /// A Terminate was sent or received.
    Closed,
}

/// One RDMAP stream.
#[derive(Debug)]
pub struct Stream {
    role: Role,
    /// The RTR message that is still to be sent.
    rtr: Option<Rtr>,
    framing: Framing,
    inbound: Inbound,
    outbound: Outbound,
    writer: Writer,
    stags: Table,
    domain: Domain,
    over: Option<Over>,
}

impl Stream {
    /// A stream just after the startup.
    pub fn new(agreed: &Agreed, options: &Options) -> Self {
        let mut stags = Table::new(options.seed, options.max_stags);
        let sink = stags.unnamed();
        // The RTR Read needs room even if IRD is 0.
        let ird = if agreed.rtr == Some(Rtr::Read) { agreed.ird.max(1) } else { agreed.ird };
        Self {
            role: agreed.role,
            rtr: agreed.rtr.filter(|_| agreed.role == Role::Requester),
            framing: Framing::new(agreed.crc, agreed.receive_markers),
            inbound: Inbound::new(ird, options.receive_size, agreed),
            outbound: Outbound::new(agreed.ord, options.max_queued, sink),
            writer: Writer::new(agreed.crc, agreed.send_markers, options.max_fpdu),
            stags,
            domain: options.domain,
            over: None,
        }
    }

    /// Sends the requester's RTR message, if one was agreed on (RFC 6581 §8). Call it once, before
    /// any other operation. A responder, or a stream without RTR, sends nothing.
    pub fn start<P: Payload>(&mut self, sink: &mut impl Sink<P>) {
        if let Some(rtr) = self.rtr.take() {
            self.send_rtr(rtr, sink);
        }
    }

    /// Whether FPDUs may be sent. A requester always may; a responder may once an FPDU has arrived,
    /// valid or not.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.role == Role::Requester || self.inbound.heard() || self.over.is_some()
    }

    /// Posts `n` more receives of [`Options::receive_size`] bytes each.
    #[inline]
    pub fn post_receives(&mut self, n: u32) {
        self.inbound.post(n);
    }

    /// Sets the maximum length of a received Send from now on, in bytes.
    pub fn set_receive_size(&mut self, size: u32) {
        self.inbound.set_receive_size(size);
    }

    /// Posted receives that are not yet consumed.
    #[inline]
    pub fn receives(&self) -> u32 {
        self.inbound.receives()
    }

    /// Assigns an STag to memory, for the peer or for our reads from the peer.
    pub fn register(&mut self, registration: Registration) -> Result<Stag, RegisterError> {
        self.stags.register(registration)
    }

    /// Invalidates an STag: no later step names its memory. If payload for it arrives, the next
    /// step ends the stream. The owner must not answer a read request from it that was reported
    /// before.
    pub fn invalidate(&mut self, stag: Stag) -> Option<Registration> {
        self.stags.remove(stag)
    }

    /// The STags that are live.
    pub fn stags(&self) -> &Table {
        &self.stags
    }

    /// The stream's protection domain.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Whether the stream ended, by a Terminate or by an error that requires one.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Reports that the driver took `bytes`, the next bytes of the payload that [`Self::step`]
    /// named. At most `here + rest`.
    #[inline]
    pub fn took(&mut self, bytes: &[u8]) {
        self.framing.took(bytes);
    }

    /// Reports that the driver took the next `n` bytes of the payload that [`Self::step`] named,
    /// without showing them to the stream. Only without a CRC, which covers all bytes.
    #[inline]
    pub fn took_unseen(&mut self, n: usize) {
        self.framing.took_unseen(n);
    }

    /// Whether the stream is between two FPDUs: nothing of the next one has arrived.
    pub fn is_between(&self) -> bool {
        self.framing.is_between()
    }

    /// Whether the CRC over the payload that [`Self::step`] named was already checked and correct:
    /// the FPDU was whole in the input.
    pub fn is_checked(&self) -> bool {
        self.framing.is_checked()
    }

    /// Whether the payload that [`Self::step`] named is in the last segment of its message.
    pub fn is_last(&self) -> bool {
        self.inbound.is_last()
    }

    /// Length in bytes of the whole FPDUs at the start of `bytes`, which begins with an FPDU.
    pub fn whole_fpdus(bytes: &[u8]) -> usize {
        framing::whole_fpdus(bytes)
    }

    /// Bytes from the end of the payload that [`Self::step`] named to the end of its FPDU: padding
    /// and CRC.
    pub fn to_end(&self) -> usize {
        self.framing.to_end()
    }

    /// Bytes from the end of the payload that [`Self::step`] named to the next payload, if a tagged
    /// segment follows: padding, CRC and headers.
    pub fn to_next_tagged(&self) -> usize {
        self.framing.to_next_tagged()
    }

    /// Ends the stream and sends the peer a Terminate. After an error of [`Self::step`], pass that
    /// error: the headers of the faulty segment are included. Close the connection once the sink's
    /// bytes are sent.
    pub fn terminate<P: Payload>(&mut self, error: Terminate, sink: &mut impl Sink<P>) {
        if !matches!(self.over, Some(Over::Closed)) {
            let culprit = match self.over {
                Some(Over::Failed(found)) if found == error => self.inbound.culprit(),
                _ => None,
            };
            self.writer.terminate(error, culprit, sink);
            self.over = Some(Over::Closed);
        }
    }
}
