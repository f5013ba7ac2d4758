//! The side that accepts connections: reads the request and builds the reply (RFC 5044 §7.1, RFC
//! 6581 §8 and §9).

use super::frame::{Collector, Flags, Frame, REPLY_KEY, REQUEST_KEY};
use super::{
    Agreed, CrcPolicy, DEPTH_ASSUMED, DEPTH_UNSAID, ENHANCED_LEN, Enhanced, Error, FrameError, MAX_DEPTH,
    MAX_PRIVATE_DATA, Options, Role, Rtr,
};

/// A connection that waits for its request.
#[derive(Debug)]
pub struct Responder {
    request: Collector,
}

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl Responder {
    /// A responder that has received nothing yet.
    pub fn new() -> Self {
        Self { request: Collector::new(REQUEST_KEY) }
    }

    /// Takes the request's bytes off `input` and returns the request once it is whole. A requester
    /// must not send more before it has the reply, so bytes after the request are [`Error::Early`].
    ///
    /// On [`Error::Revision`] send [`Self::refusal`] to the peer; on any other error just close the
    /// connection.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Request>, Error> {
        let Some(frame) = self.request.receive(input)? else { return Ok(None) };
        if !input.is_empty() {
            return Err(Error::Early);
        }
        let Frame { flags, revision, mut private_data } = frame;
        if !matches!(revision, 1 | 2) {
            return Err(Error::Revision(revision));
        }
        let enhanced = match (flags.enhanced && revision == 2, private_data.first_chunk::<ENHANCED_LEN>()) {
            (false, _) => None,
            (true, Some(bytes)) => Some(Enhanced::parse(*bytes)),
            (true, None) => return Err(FrameError::NoDepths.into()),
        };
        if enhanced.is_some() {
            private_data.drain(..ENHANCED_LEN);
        }
        Ok(Some(Request { flags, revision, enhanced, private_data }))
    }

    /// The reply to a request in an unsupported revision: rejected, with the highest supported
    /// revision.
    pub fn refusal() -> Vec<u8> {
        let flags = Flags { reject: true, enhanced: true, ..Flags::default() };
        Frame { flags, revision: 2, private_data: Enhanced::with_rtr(0, 0, None).emit().to_vec() }
            .emit(REPLY_KEY)
    }
}

/// A peer's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    flags: Flags,
    revision: u8,
    enhanced: Option<Enhanced>,
    private_data: Vec<u8>,
}

impl Request {
    /// The peer's Private Data for the upper layer, without IRD and ORD.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The MPA revision, 1 or 2.
    pub fn revision(&self) -> u8 {
        self.revision
    }

    /// Whether the peer asks for CRCs.
    pub fn wants_crc(&self) -> bool {
        self.flags.crc
    }

    /// Whether the peer wants markers in what it receives.
    pub fn wants_markers(&self) -> bool {
        self.flags.markers
    }

    /// Maximum RDMA Reads that the peer answers at a time, if it states it: the upper bound of our
    /// ORD, in place of [`DEPTH_ASSUMED`].
    pub fn ird(&self) -> Option<u16> {
        self.enhanced.map(|e| e.ird).filter(|&n| n != DEPTH_UNSAID)
    }

    /// RDMA Reads that the peer wants to have outstanding, if it states it.
    pub fn ord(&self) -> Option<u16> {
        self.enhanced.map(|e| e.ord).filter(|&n| n != DEPTH_UNSAID)
    }

    /// The RTR message that the requester will start with, if it asks for the peer-to-peer model.
    /// If it marks none, this side proposes an RDMA Write.
    pub fn rtr(&self) -> Option<Rtr> {
        let enhanced = self.enhanced.filter(|e| e.peer_to_peer)?;
        Some(enhanced.rtr().unwrap_or(Rtr::Write))
    }

    /// The accepting reply, and the settings that it commits to. Send no FPDU before the
    /// requester's first one has arrived.
    pub fn accept(&self, options: &Options, private_data: &[u8]) -> Result<(Vec<u8>, Agreed), Error> {
        let rtr = self.rtr();
        let wanted = self.ord().unwrap_or(MAX_DEPTH).max(1);
        let ird = options.ird.clamp(1, MAX_DEPTH).min(wanted);
        let ord = options.ord.min(self.ird().unwrap_or(DEPTH_ASSUMED));
        let crc_bit = self.flags.crc || options.crc == CrcPolicy::Require;
        let reply = self.reply(
            Flags {
                markers: options.markers,
                crc: crc_bit,
                reject: false,
                enhanced: self.enhanced.is_some(),
            },
            Enhanced::with_rtr(ird, ord, rtr),
            private_data,
        )?;
        let agreed = Agreed {
            role: Role::Responder,
            revision: self.revision,
            crc: crc_bit,
            send_markers: self.flags.markers,
            receive_markers: options.markers,
            ird,
            ord,
            rtr,
        };
        Ok((reply, agreed))
    }

    /// The rejecting reply. Close the connection after sending it.
    pub fn reject(&self, private_data: &[u8]) -> Result<Vec<u8>, Error> {
        let flags =
            Flags { reject: true, enhanced: self.enhanced.is_some(), crc: self.flags.crc, markers: false };
        self.reply(flags, Enhanced::with_rtr(0, 0, None), private_data)
    }

    fn reply(&self, flags: Flags, enhanced: Enhanced, private_data: &[u8]) -> Result<Vec<u8>, Error> {
        let mut all = Vec::with_capacity(ENHANCED_LEN + private_data.len());
        if flags.enhanced {
            all.extend_from_slice(&enhanced.emit());
        }
        all.extend_from_slice(private_data);
        if all.len() > MAX_PRIVATE_DATA {
            return Err(Error::PrivateData(private_data.len()));
        }
        Ok(Frame { flags, revision: self.revision, private_data: all }.emit(REPLY_KEY))
    }
}
