//! ONC RPC version 2 (RFC 5531): its data format, its messages on a byte stream, and the program
//! that maps programs to ports.
//!
//! Sans-IO: no I/O, no clock, no thread. Decoded values borrow from the record and allocate
//! nothing. A peer makes nothing grow but a record that arrives in pieces, up to
//! [`record::Limits`].
//!
//! - [`xdr`]: the data format (RFC 4506), and macros that declare a type once for both directions.
//! - [`record`]: record marking, which cuts a stream into messages.
//! - [`message`]: calls and replies.
//! - [`auth`]: credentials and verifiers; AUTH_NONE and AUTH_SYS.
//! - [`bind`]: the portmapper and rpcbind.
#![forbid(unsafe_code)]

pub mod auth;
pub mod bind;
pub mod message;
pub mod record;
pub mod xdr;

#[cfg(test)]
mod tests;
