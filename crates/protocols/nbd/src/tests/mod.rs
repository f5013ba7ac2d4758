//! Handshakes, requests and replies: bytes worked out by hand from the document, servers that lie,
//! and streams that arrive in any pieces.

mod handshake;
mod replies;
mod requests;
mod uris;

use proptest::prelude::*;

use crate::export::{BlockSizes, Export, Flags};
use crate::failure::{ErrorCode, Failure};
use crate::handshake::{Handshake, HandshakeError, MAX_REPLY};
use crate::request::{Command, DISCONNECT, Refused};
use crate::session::{Cookie, Event, Session, State, Violation};
use crate::uri::{Address, Uri, UriError, is_uri};

/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES, CAN_MULTI_CONN, SEND_FAST_ZERO.
const FLAGS: u16 = 0x096d;

fn be16(number: u16) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn be32(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn be64(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}
