//! One RDMAP stream in operation: bytes in, pieces of payload and events out; operations in, FPDUs out. Set up by
//! [`mpa`](crate::mpa) before. Owns no payload memory and never looks at time.
//!
//! # Receiving
//! Call [`Stream::step`] with the bytes that have come until it says [`Step::More`]. For each [`Step::Payload`] take the bytes
//! (by reference, by a copy to their place, or by receiving straight into their place) and say so with [`Stream::took`].
//! ```
//! # extern crate stag_iwarp as iwarp;
//! # use iwarp::stream::{Event, Place, Step, Stream};
//! # fn place(_: Place, _: u64, _: &[u8]) {}
//! # fn event(_: Event) {}
//! fn receive(stream: &mut Stream, mut input: &[u8]) -> Result<(), iwarp::rdmap::Terminate> {
//!     loop {
//!         match stream.step(&mut input)? {
//!             Step::More => return Ok(()),
//!             Step::Payload { here: 0, .. } => return Ok(()), // or receive up to `rest` bytes into the place
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
//! An error is final: [`Stream::terminate`] tells the peer, then the connection is closed.
//!
//! # What is checked before a place is named
//! Versions, opcodes, queues, message numbers and offsets, posted receives and their size, STags with their bounds, rights and
//! protection domain: a [`Step`] never names a byte outside what was posted or registered. An FPDU that lies whole in the input
//! also has its CRC checked first; a longer one has its payload placed as it comes, within the same bounds, and its CRC
//! checked before any event says that the data is there.
//!
//! # Sending
//! Operations append to a [`Sink`]: headers copied, payload by reference, in the order of the calls. A responder must hold
//! what is in the sink back until [`Stream::may_send`] (RFC 5044 §7.1.2).

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

/// How a stream is run, beside what MPA agreed upon.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of an FPDU sent at most, all included: 64 KiB ([`Options::MAX_FPDU`]) to software peers, an MSS to RNICs. At least
    /// [`Options::MIN_FPDU`].
    pub max_fpdu: usize,
    /// Bytes of each posted receive: the longest message that the peer may send. Less than 2^32.
    pub receive_size: u32,
    /// Registrations at most.
    pub max_stags: usize,
    /// RDMA Reads and Atomics that may wait for their turn under the ORD.
    pub max_queued: usize,
    /// The stream's protection domain.
    pub domain: Domain,
    /// What STags are derived from: unpredictable, used for no other stream.
    pub seed: [u8; 16],
}

impl Options {
    /// The longest FPDU: its ULPDU's length has 16 bits.
    pub const MAX_FPDU: usize = 65536;
    /// The shortest that is useful: RFC 5044 §5.1 has a ULPDU be at least 128 bytes.
    pub const MIN_FPDU: usize = 160;

    /// The longest FPDUs, receives of 8 KiB, 4096 STags, as many waiting reads.
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

/// Where payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Into the oldest posted receive that has no message yet; the offset is within the message.
    Receive,
    /// Into the memory registered under this index ([`Registration::index`]); the offset is within the registration.
    Tagged(u32),
    /// Data of our RDMA Read with this id, which is given in order; the offset is within the read.
    Read(u64),
}

/// What the next bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed; the input is used up.
    More,
    /// Payload: its first `here` bytes are at the start of the input. They stay there until they are taken, any number of them at
    /// a time ([`Stream::took`]).
    Payload {
        /// Where it belongs.
        place: Place,
        /// Bytes from the place's start.
        offset: u64,
        /// Bytes of it at the start of the input; 0 only if the input is empty.
        here: usize,
        /// Bytes that come right behind these and belong right behind them: may be received straight into the place.
        rest: usize,
    },
    /// Something is complete.
    Event(Event),
}

/// An STag that the peer took back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalidated {
    /// The STag.
    pub stag: Stag,
    /// [`Registration::index`] of what it stood for.
    pub index: u32,
}

/// Something complete: all its payload was taken, and its CRC was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message is in the oldest posted receive.
    Received {
        /// Its bytes.
        len: u32,
        /// The sender asks for it to be noticed at once.
        solicited: bool,
        /// What the sender invalidated with it.
        invalidated: Option<Invalidated>,
    },
    /// Immediate Data; used a posted receive up (RFC 7306 §6).
    Immediate {
        /// The data.
        data: [u8; 8],
        /// The sender asks for it to be noticed at once.
        solicited: bool,
    },
    /// The peer reads: answer with [`Stream::read_response`], in the order of the requests.
    ReadRequest {
        /// [`Registration::index`] of what is read.
        index: u32,
        /// Bytes from its start.
        offset: u64,
        /// Bytes; at least 1.
        len: u32,
    },
    /// The peer asks for an atomic operation: do it and answer with [`Stream::atomic_response`], in the order of the requests.
    AtomicRequest {
        /// [`Registration::index`] of the memory.
        index: u32,
        /// Bytes from its start to the value's eight bytes, big-endian or not as the upper layer has it.
        offset: u64,
        /// What to do.
        operation: Atomic,
    },
    /// All data of our RDMA Read has come.
    ReadDone {
        /// The id it was asked for with.
        id: u64,
    },
    /// Our atomic operation is done.
    AtomicDone {
        /// The id it was asked for with.
        id: u64,
        /// The value before the operation.
        original: u64,
    },
    /// The peer ends the stream with an error; nothing follows, nothing may be sent.
    Terminated(Terminated),
}

/// The only FPDU of a stream that never was: a Terminate, for a peer that believes in the connection (RFC 6581 §10).
pub(crate) fn lone_terminate(error: Terminate, crc: bool, markers: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    Writer::new(crc, markers, Options::MAX_FPDU).terminate::<&[u8]>(error, None, &mut bytes);
    bytes
}

/// How a stream ended.
#[derive(Debug, Clone, Copy)]
enum Over {
    /// By an error found here.
    Failed(Terminate),
    /// By a Terminate, sent or received.
    Closed,
}

/// One RDMAP stream.
#[derive(Debug)]
pub struct Stream {
    role: Role,
    /// The RTR message still to be sent.
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
    /// A stream at the start of its operation.
    pub fn new(agreed: &Agreed, options: &Options) -> Self {
        let mut stags = Table::new(options.seed, options.max_stags);
        let sink = stags.unnamed();
        // The RTR Read must find room whatever IRD says.
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

    /// What a requester sends first: its RTR message, where one was agreed upon (RFC 6581 §8). Call it once, before
    /// anything else is sent; a responder, or a stream without RTR, sends nothing.
    pub fn start<P: Payload>(&mut self, sink: &mut impl Sink<P>) {
        if let Some(rtr) = self.rtr.take() {
            self.send_rtr(rtr, sink);
        }
    }

    /// Whether FPDUs may leave: always for a requester, for a responder once one has come, good or bad.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.role == Role::Requester || self.inbound.heard() || self.over.is_some()
    }

    /// Posts `n` more receives of [`Options::receive_size`] bytes each.
    #[inline]
    pub fn post_receives(&mut self, n: u32) {
        self.inbound.post(n);
    }

    /// Receives posted and not yet used up.
    #[inline]
    pub fn receives(&self) -> u32 {
        self.inbound.receives()
    }

    /// Lets the peer, or reads from the peer, name memory.
    pub fn register(&mut self, registration: Registration) -> Result<Stag, RegisterError> {
        self.stags.register(registration)
    }

    /// Takes an STag back. No step names its memory afterwards: should payload for it be on its way, the next step ends the
    /// stream. Nor is a read request that was reported before answered from it, unless the owner does.
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

    /// Whether a Terminate ended the stream, or an error that asks for one.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// The driver has taken `bytes`, the next of the payload that [`Self::step`] named (no more than `here + rest`).
    #[inline]
    pub fn took(&mut self, bytes: &[u8]) {
        self.framing.took(bytes);
    }

    /// The driver has taken the next `n` bytes of the payload that [`Self::step`] named, and put them where they are not to be looked at.
    /// Only without a CRC, which is of all bytes.
    #[inline]
    pub fn took_unseen(&mut self, n: usize) {
        self.framing.took_unseen(n);
    }

    /// Whether the next byte begins an FPDU of which nothing has come.
    pub fn is_between(&self) -> bool {
        self.framing.is_between()
    }

    /// Whether the CRC that the payload named by [`Self::step`] is under has been found right already: it lay whole in the input.
    pub fn is_checked(&self) -> bool {
        self.framing.is_checked()
    }

    /// How many bytes at the start of `bytes`, where an FPDU begins, are whole FPDUs.
    pub fn whole_fpdus(bytes: &[u8]) -> usize {
        framing::whole_fpdus(bytes)
    }

    /// Bytes from the end of the payload that [`Self::step`] named to the end of its FPDU: padding and CRC.
    pub fn to_end(&self) -> usize {
        self.framing.to_end()
    }

    /// Bytes from the end of the payload that [`Self::step`] named to the next payload, if a tagged segment follows: padding, CRC and
    /// headers.
    pub fn to_next_tagged(&self) -> usize {
        self.framing.to_next_tagged()
    }

    /// Ends the stream and tells the peer why. After an error of [`Self::step`], with that error: the headers of the segment at
    /// fault go along. The connection is closed when the sink's bytes are sent.
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
