//! The side that is connected to: what it is asked, and its reply (RFC 5044 §7.1, RFC 6581 §8 and §9).

use super::frame::{Collector, Flags, Frame, REPLY_KEY, REQUEST_KEY};
use super::{
    Agreed, CrcPolicy, DEPTH_UNSAID, ENHANCED_LEN, Enhanced, Error, FrameError, MAX_DEPTH, MAX_PRIVATE_DATA,
    Options, Role, Rtr,
};

/// A connection whose request is awaited.
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
    /// Nothing is received yet.
    pub fn new() -> Self {
        Self { request: Collector::new(REQUEST_KEY) }
    }

    /// Takes the request's bytes off `input`; the request, once it is whole. A requester sends nothing more before it has the
    /// reply: bytes behind the request are [`Error::Early`].
    ///
    /// On [`Error::Revision`] the peer is told with [`Self::refusal`]; on any other the connection is just closed.
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

    /// The reply to a request in a revision that is not spoken here: rejected, with the highest one that is.
    pub fn refusal() -> Vec<u8> {
        let flags = Flags { reject: true, enhanced: true, ..Flags::default() };
        Frame { flags, revision: 2, private_data: Enhanced::with_rtr(0, 0, None).emit().to_vec() }
            .emit(REPLY_KEY)
    }
}

/// What a peer asks for.
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

    /// RDMA Reads that the peer takes at a time, if it says so: the most that our ORD can be.
    pub fn ird(&self) -> Option<u16> {
        self.enhanced.map(|e| e.ird).filter(|&n| n != DEPTH_UNSAID)
    }

    /// RDMA Reads that the peer would like to have outstanding, if it says so.
    pub fn ord(&self) -> Option<u16> {
        self.enhanced.map(|e| e.ord).filter(|&n| n != DEPTH_UNSAID)
    }

    /// The RTR message that the requester will start with, if it asks for the peer-to-peer model. If it marks none, an RDMA
    /// Write is proposed.
    pub fn rtr(&self) -> Option<Rtr> {
        let enhanced = self.enhanced.filter(|e| e.peer_to_peer)?;
        Some(enhanced.rtr().unwrap_or(Rtr::Write))
    }

    /// The reply that accepts, and what it commits to. No FPDU may be sent before the requester's first one has come.
    pub fn accept(&self, options: &Options, private_data: &[u8]) -> Result<(Vec<u8>, Agreed), Error> {
        let rtr = self.rtr();
        let wanted = self.ord().unwrap_or(MAX_DEPTH).max(1);
        let ird = options.ird.clamp(1, MAX_DEPTH).min(wanted);
        let ord = options.ord.min(MAX_DEPTH).min(self.ird().unwrap_or(MAX_DEPTH));
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

    /// The reply that rejects. The connection is closed after it.
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
