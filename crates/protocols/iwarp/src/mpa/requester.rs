//! The side that connects: sends the request and evaluates the reply (RFC 5044 §7.1, RFC 6581 §8
//! and §9).

use crate::stream::lone_terminate;

use super::frame::{Collector, Flags, Frame, REPLY_KEY, REQUEST_KEY};
use super::{
    Agreed, CrcPolicy, DEPTH_ASSUMED, DEPTH_UNSAID, ENHANCED_LEN, Enhanced, Error, FrameError, MAX_DEPTH,
    MAX_PRIVATE_DATA, Options, Role, Rtr,
};

/// The peer's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The peer accepts: the connection is established.
    Accepted {
        /// The settings of the connection.
        agreed: Agreed,
        /// The peer's Private Data for the upper layer, without IRD and ORD.
        private_data: Vec<u8>,
    },
    /// The peer rejects the connection.
    Rejected {
        /// The peer's Private Data for the upper layer.
        private_data: Vec<u8>,
    },
}

/// A request that is being negotiated.
#[derive(Debug)]
pub struct Requester {
    options: Options,
    request: Vec<u8>,
    reply: Collector,
    /// From an accepting reply: whether CRCs are on, whether the peer wants markers.
    accepted: Option<(bool, bool)>,
}

impl Requester {
    /// Builds a request with the upper layer's Private Data. Linux's siw accepts at most 256 bytes
    /// of Private Data, IRD and ORD included.
    pub fn new(options: Options, private_data: &[u8]) -> Result<Self, Error> {
        if !matches!(options.revision, 1 | 2) {
            return Err(Error::Revision(options.revision));
        }
        let enhanced = options.revision == 2;
        let mut all = Vec::with_capacity(ENHANCED_LEN + private_data.len());
        if enhanced {
            all.extend_from_slice(&Enhanced::with_rtr(options.ird, options.ord, options.rtr).emit());
        }
        all.extend_from_slice(private_data);
        if all.len() > MAX_PRIVATE_DATA {
            return Err(Error::PrivateData(private_data.len()));
        }
        let flags =
            Flags { markers: options.markers, crc: options.crc != CrcPolicy::Never, reject: false, enhanced };
        let request = Frame { flags, revision: options.revision, private_data: all }.emit(REQUEST_KEY);
        Ok(Self { options, request, reply: Collector::new(REPLY_KEY), accepted: None })
    }

    /// The bytes to send before anything else.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes the reply's bytes off `input` and returns the reply once it is whole. Bytes after it
    /// stay in `input`: they belong to the stream. After an error send [`Self::farewell`], if it
    /// returns bytes, before closing.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Error> {
        let Some(frame) = self.reply.receive(input)? else { return Ok(None) };
        let Frame { flags, revision, mut private_data } = frame;
        let enhanced = match (flags.enhanced && revision == 2, private_data.first_chunk::<ENHANCED_LEN>()) {
            (false, _) => None,
            (true, Some(bytes)) => Some(Enhanced::parse(*bytes)),
            (true, None) if flags.reject => None,
            (true, None) => return Err(FrameError::NoDepths.into()),
        };
        if enhanced.is_some() {
            private_data.drain(..ENHANCED_LEN);
        }
        if flags.reject {
            return Ok(Some(Reply::Rejected { private_data }));
        }
        if revision != self.options.revision {
            return Err(Error::Revision(revision));
        }
        self.accepted = Some((flags.crc || self.options.crc != CrcPolicy::Never, flags.markers));
        let agreed = self.agree(flags, enhanced)?;
        Ok(Some(Reply::Accepted { agreed, private_data }))
    }

    /// The bytes to send before closing, if [`Self::receive`] failed on an accepting reply: the
    /// Terminate that names the error (RFC 6581 §10). `None` if the peer has not accepted the
    /// connection: just close it.
    pub fn farewell(&self, error: &Error) -> Option<Vec<u8>> {
        let (crc, markers) = self.accepted?;
        Some(lone_terminate(error.terminate(), crc, markers))
    }

    fn agree(&self, flags: Flags, enhanced: Option<Enhanced>) -> Result<Agreed, Error> {
        let said = enhanced.map(|theirs| theirs.ird).filter(|&ird| ird != DEPTH_UNSAID);
        let ird = self.options.ird.min(MAX_DEPTH);
        let ord = self.options.ord.min(said.unwrap_or(DEPTH_ASSUMED));
        let mut rtr = None;
        if let Some(theirs) = enhanced {
            if theirs.ord != DEPTH_UNSAID && theirs.ord > ird {
                return Err(Error::InsufficientIrd { theirs: theirs.ord, ours: ird });
            }
            rtr = match self.options.rtr {
                Some(wanted) if !theirs.agrees(wanted) => return Err(Error::NoMatchingRtr),
                wanted => wanted,
            };
        } else if self.options.rtr.is_some() && self.options.revision == 2 {
            return Err(Error::NoMatchingRtr);
        }
        Ok(Agreed {
            role: Role::Requester,
            revision: self.options.revision,
            crc: flags.crc || self.options.crc != CrcPolicy::Never,
            send_markers: flags.markers,
            receive_markers: self.options.markers,
            ird,
            ord,
            rtr,
        })
    }
}

impl Enhanced {
    fn agrees(&self, rtr: Rtr) -> bool {
        self.peer_to_peer
            && match rtr {
                Rtr::Send => self.rtr_send,
                Rtr::Write => self.rtr_write,
                Rtr::Read => self.rtr_read,
            }
    }
}
