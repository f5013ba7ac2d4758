//! MPA's startup (RFC 5044 §7, RFC 6581): which side sends which frame, and how both agree on their
//! settings. The FPDUs that follow the startup belong to `stream`.
//!
//! The requester sends [`Requester::request`] and feeds [`Requester::receive`] until it has the
//! reply. The responder feeds [`Responder::receive`] until it has the [`Request`], and accepts or
//! rejects it. Both end with [`Agreed`].

mod frame;
mod requester;
mod responder;

pub use frame::{FrameError, MAX_FRAME_LEN, REQUEST_KEY};
pub use requester::{Reply, Requester};
pub use responder::{Request, Responder};

use thiserror::Error;

use crate::rdmap::Terminate;

/// Bytes of the longest Private Data (RFC 5044 §7.1).
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes at the start of the Private Data that revision 2 uses for IRD and ORD (RFC 6581).
pub const ENHANCED_LEN: usize = 4;
/// The highest IRD or ORD that can be negotiated; the value above it means "not negotiated" (RFC
/// 6581 §9.1).
pub const MAX_DEPTH: u16 = 0x3ffe;
/// "Not negotiated": its sender leaves IRD and ORD to the upper layer (RFC 6581 §9.1).
pub const DEPTH_UNSAID: u16 = 0x3fff;
/// RDMA Reads that a peer is sent at a time if it states no IRD, as in revision 1: more may end the
/// connection. RNICs of that time answer so many (Chelsio's T3).
pub const DEPTH_ASSUMED: u16 = 8;

/// Whether FPDUs carry a CRC. It is on as soon as either side requests it (RFC 5044 §7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrcPolicy {
    /// Does not request the CRC; uses it only if the peer requests it.
    Never,
    /// A requester requests it; a responder echoes the request's bit.
    #[default]
    Prefer,
    /// Always requests it, so it is always on.
    Require,
}

/// The message with which a requester says "ready to receive" in the peer-to-peer model: the first
/// one after the startup (RFC 6581 §8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtr {
    /// A Send of no bytes, which consumes no posted receive.
    Send,
    /// An RDMA Write of no bytes.
    Write,
    /// An RDMA Read of no bytes.
    Read,
}

/// The settings that one side requests or accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A requester's revision: 1 (RFC 5044) or 2 (RFC 6581). A responder answers in the revision of
    /// the request.
    pub revision: u8,
    /// Policy for the CRC.
    pub crc: CrcPolicy,
    /// Ask the peer to put markers into what it sends.
    pub markers: bool,
    /// Maximum outstanding inbound RDMA Reads and Atomics, up to [`MAX_DEPTH`].
    pub ird: u16,
    /// Maximum outstanding outbound RDMA Reads and Atomics, up to [`MAX_DEPTH`].
    pub ord: u16,
    /// A requester asks for the peer-to-peer model with this RTR message. A responder agrees if
    /// asked.
    pub rtr: Option<Rtr>,
}

impl Default for Options {
    fn default() -> Self {
        Self { revision: 2, crc: CrcPolicy::default(), markers: false, ird: 128, ord: 128, rtr: None }
    }
}

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sent the request; sends the first FPDU.
    Requester,
    /// Sent the reply; sends no FPDU before it has received one (RFC 5044 §7.1.2).
    Responder,
}

/// The settings that both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Requester or responder.
    pub role: Role,
    /// 1 or 2.
    pub revision: u8,
    /// FPDUs carry a CRC, both ways.
    pub crc: bool,
    /// This side puts markers into what it sends.
    pub send_markers: bool,
    /// The peer puts markers into what it sends.
    pub receive_markers: bool,
    /// Maximum outstanding inbound RDMA Reads and Atomics.
    pub ird: u16,
    /// Maximum outstanding outbound RDMA Reads and Atomics.
    pub ord: u16,
    /// The RTR message that the requester starts with.
    pub rtr: Option<Rtr>,
}

/// Why the startup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an MPA frame, or a malformed one.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer answered in a revision that was not offered, or requests an unsupported one (RFC
    /// 5044 §7.1.1).
    #[error("MPA revision {0} is not supported")]
    Revision(u8),
    /// FPDUs arrived before the reply to the request was sent (RFC 5044 §7.1.2).
    #[error("the peer sent bytes after its request, before the reply")]
    Early,
    /// The Private Data to send is too long: [`MAX_PRIVATE_DATA`], less [`ENHANCED_LEN`] in
    /// revision 2.
    #[error("private data of {0} bytes is too long")]
    PrivateData(usize),
    /// The peer wants more RDMA Reads from us than our IRD (RFC 6581 §9.1).
    #[error("the peer's ORD {theirs} is above our IRD {ours}")]
    InsufficientIrd {
        /// The reply's ORD.
        theirs: u16,
        /// Our IRD.
        ours: u16,
    },
    /// The peer agreed to none of the RTR messages offered (RFC 6581 §9.2).
    #[error("no RTR message in common")]
    NoMatchingRtr,
}

impl Error {
    /// The Terminate that RFC 5044 §8 and RFC 6581 §10 name for this error. Only a requester can
    /// still send it, after it has the reply.
    pub const fn terminate(&self) -> Terminate {
        match self {
            Self::InsufficientIrd { .. } => Terminate::InsufficientIrd,
            Self::NoMatchingRtr => Terminate::NoMatchingRtr,
            Self::PrivateData(_) => Terminate::MpaCatastrophic,
            Self::Frame(_) | Self::Revision(_) | Self::Early => Terminate::StartupFrame,
        }
    }
}

/// IRD, ORD and the bits beside them (RFC 6581 §9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enhanced {
    /// 14 bits.
    pub(crate) ird: u16,
    /// 14 bits.
    pub(crate) ord: u16,
    /// A: the peer-to-peer model.
    pub(crate) peer_to_peer: bool,
    /// B: RTR may be a Send of no bytes.
    pub(crate) rtr_send: bool,
    /// C: RTR may be an RDMA Write of no bytes.
    pub(crate) rtr_write: bool,
    /// D: RTR may be an RDMA Read of no bytes.
    pub(crate) rtr_read: bool,
}

impl Enhanced {
    const HIGH: u16 = 0x8000;
    const SECOND: u16 = 0x4000;
    const DEPTH: u16 = 0x3fff;

    pub(crate) fn parse(bytes: [u8; ENHANCED_LEN]) -> Self {
        let ird = u16::from_be_bytes([bytes[0], bytes[1]]);
        let ord = u16::from_be_bytes([bytes[2], bytes[3]]);
        Self {
            ird: ird & Self::DEPTH,
            ord: ord & Self::DEPTH,
            peer_to_peer: ird & Self::HIGH != 0,
            rtr_send: ird & Self::SECOND != 0,
            rtr_write: ord & Self::HIGH != 0,
            rtr_read: ord & Self::SECOND != 0,
        }
    }

    pub(crate) fn emit(&self) -> [u8; ENHANCED_LEN] {
        let bits = |high, second, depth| {
            depth & Self::DEPTH | if high { Self::HIGH } else { 0 } | if second { Self::SECOND } else { 0 }
        };
        let ird = bits(self.peer_to_peer, self.rtr_send, self.ird).to_be_bytes();
        let ord = bits(self.rtr_write, self.rtr_read, self.ord).to_be_bytes();
        [ird[0], ird[1], ord[0], ord[1]]
    }

    pub(crate) fn with_rtr(ird: u16, ord: u16, rtr: Option<Rtr>) -> Self {
        Self {
            ird: ird.min(MAX_DEPTH),
            ord: ord.min(MAX_DEPTH),
            peer_to_peer: rtr.is_some(),
            rtr_send: rtr == Some(Rtr::Send),
            rtr_write: rtr == Some(Rtr::Write),
            rtr_read: rtr == Some(Rtr::Read),
        }
    }

    /// The RTR message to use, of those that the peer marks: a Write costs the receiver least, a
    /// Read next.
    pub(crate) fn rtr(&self) -> Option<Rtr> {
        match (self.peer_to_peer, self.rtr_write, self.rtr_read, self.rtr_send) {
            (false, ..) => None,
            (_, true, ..) => Some(Rtr::Write),
            (_, _, true, _) => Some(Rtr::Read),
            (_, _, _, true) => Some(Rtr::Send),
            _ => None,
        }
    }
}
