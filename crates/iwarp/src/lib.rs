//! iWARP without I/O: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306) over a byte stream.
//!
//! A connection is set up by [`mpa`]'s request and reply; after that a [`stream::Stream`] turns the bytes of the TCP
//! connection into pieces of payload with the place that each belongs to, and events; and operations into bytes. It owns no
//! payload memory, does no I/O, knows no time and never names a byte outside what was registered ([`stag`]) or posted.
//!
//! A peer that breaks a rule gets the [`rdmap::Terminate`] that the RFCs name for it, and its stream is over.
#![forbid(unsafe_code)]

pub mod crc;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod stag;
pub mod stream;
