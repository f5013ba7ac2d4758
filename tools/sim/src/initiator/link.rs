//! One connection of an initiator: its login, and cutting what arrives into PDUs.

use iscsi::digest::Crc32c;
use iscsi::frame::{Cut, Cutter, FrameError, verify_trailer};
use iscsi::initiator::{ConnectionId, Event, ProtocolError, Segment, Session, TaskKey};
use iscsi::keys::{Digest, Params};
use iscsi::login::initiator::InitiatorLogin;
use iscsi::pdu::{Bhs, Opcode, RESERVED_TAG};

use super::payload::Slice;
use super::{ANSWER_TIME, PING_TIME, Token};
use crate::clock::Micros;
use crate::network::LinkId;
use crate::random::Rng;
use crate::rdma::Pair;

pub(super) type Protocol = Session<Slice, Token>;

/// A PDU's header, and what it meant unless it was lost on the way or came damaged.
pub(super) enum Handled {
    Taken(Bhs, Option<Event<Token>>),
    Dropped(Bhs),
}

/// Where a link stands.
pub(super) enum Phase {
    Login(Box<InitiatorLogin>),
    Full(ConnectionId, Reader),
}

/// A link as its initiator sees it.
pub(super) struct Link {
    pub id: LinkId,
    pub cid: u16,
    pub phase: Phase,
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    /// The queue pair, of iSER.
    pub pair: Option<Pair>,
    pub last_heard: Micros,
    /// When the ping that has no answer yet was sent.
    pub pinged: Option<Micros>,
}

impl Link {
    /// Silence after a ping that ends the session.
    pub fn patience(&self) -> Micros {
        if self.pair.is_some() { ANSWER_TIME } else { PING_TIME }
    }
}

/// Why what arrived cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Frame(FrameError),
    Protocol(ProtocolError),
}

impl From<FrameError> for Unreadable {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<ProtocolError> for Unreadable {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// Data-In whose data come in pieces.
struct Pieces {
    bhs: Bhs,
    key: Option<TaskKey>,
    at: usize,
    left: usize,
    trailer: usize,
    crc: Crc32c,
}

/// Cuts a connection's bytes in full-feature phase.
pub(super) struct Reader {
    cutter: Cutter,
    piecewise: bool,
    pieces: Option<Pieces>,
    /// With error recovery, of a thousand PDUs so many vanish.
    losses: Option<(Rng, u64)>,
}

impl Reader {
    pub fn new(params: &Params, piecewise: bool, losses: Option<(Rng, u64)>) -> Self {
        let cutter = Cutter {
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            max_data_segment: params.max_recv_data_segment_length,
            max_ahs: 0,
        };
        Self { cutter, piecewise, pieces: None, losses }
    }

    /// Handles the next whole PDU in `input`, or more of a Data-In. Answers the PDU's header and what it meant, or nothing
    /// when more has to come first.
    pub fn next(
        &mut self,
        protocol: &mut Protocol,
        on: ConnectionId,
        input: &mut Vec<u8>,
    ) -> Result<Option<Handled>, Unreadable> {
        if self.pieces.is_some() {
            return self.more(protocol, on, input);
        }
        let cut = match self.cutter.cut(input) {
            Err(FrameError::DataDigest { bhs, consumed, .. }) => {
                protocol.bad_data_digest(on, &bhs)?;
                input.drain(..consumed);
                return Ok(Some(Handled::Dropped(bhs)));
            }
            cut => cut?,
        };
        let (bhs, data, consumed) = match cut {
            Cut::NeedMore { .. } => return Ok(None),
            Cut::Pdu { bhs, data, consumed, .. } => (*bhs, data, consumed),
            Cut::Partial { bhs, data_offset, data_len, trailer, .. } => {
                if self.piecewise && bhs.opcode() == Some(Opcode::DataIn) {
                    let bhs = *bhs;
                    let place = protocol.expect_data(on, &bhs)?;
                    let (key, at) = place.map_or((None, 0), |(key, at)| (Some(key), at));
                    let (at, left, crc) = (at as usize, data_len, Crc32c::new());
                    self.pieces = Some(Pieces { bhs, key, at, left, trailer, crc });
                    input.drain(..data_offset);
                    return self.more(protocol, on, input);
                }
                return Ok(None);
            }
        };
        if self.loses(&bhs) {
            input.drain(..consumed);
            return Ok(Some(Handled::Dropped(bhs)));
        }
        let event = protocol.handle(on, &bhs, Segment::Here(&input[data]))?;
        input.drain(..consumed);
        Ok(Some(Handled::Taken(bhs, event)))
    }

    fn more(
        &mut self,
        protocol: &mut Protocol,
        on: ConnectionId,
        input: &mut Vec<u8>,
    ) -> Result<Option<Handled>, Unreadable> {
        let Some(pieces) = &mut self.pieces else { return Ok(None) };
        let n = pieces.left.min(input.len());
        if let Some(key) = pieces.key {
            protocol.place(key, pieces.at, &input[..n]);
        }
        pieces.crc.update(&input[..n]);
        pieces.at += n;
        pieces.left -= n;
        input.drain(..n);
        if pieces.left > 0 || input.len() < pieces.trailer {
            return Ok(None);
        }
        let whole = !self.cutter.data_digest || verify_trailer(pieces.crc, &input[..pieces.trailer]);
        input.drain(..pieces.trailer);
        let bhs = pieces.bhs;
        self.pieces = None;
        if !whole {
            protocol.bad_data_digest(on, &bhs)?;
            return Ok(Some(Handled::Dropped(bhs)));
        }
        let event = protocol.handle(on, &bhs, Segment::Placed::<&[u8]>)?;
        Ok(Some(Handled::Taken(bhs, event)))
    }

    /// Whether a PDU vanishes before it arrives: one with a number that shows it, or that is asked for again.
    fn loses(&mut self, bhs: &Bhs) -> bool {
        use Opcode::{DataIn, NopIn, ReadyToTransfer, ScsiResponse, TaskManagementResponse, TextResponse};
        let suits = match bhs.opcode() {
            Some(DataIn | ScsiResponse | ReadyToTransfer | TaskManagementResponse | TextResponse) => true,
            Some(NopIn) => bhs.itt() != RESERVED_TAG,
            _ => false,
        };
        suits && self.losses.as_mut().is_some_and(|(rng, per_mille)| rng.chance(*per_mille))
    }
}
