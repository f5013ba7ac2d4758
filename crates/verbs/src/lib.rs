//! rdma-core verbs and its connection manager, loaded at run time, behind a safe interface. Beside `ring` the one crate with `unsafe`.
//!
//! libibverbs.so.1 and librdmacm.so.1 are opened when they are first needed: a program that uses this crate builds and runs
//! without them, and says what to install when somebody asks for RDMA. Their ABI is declared here ([`mod@abi`](self)), since
//! bindings that are generated from headers need those headers, or libclang, where Stag is built.
//!
//! - [`devices`]: what there is.
//! - [`connect`], [`Listener`], [`Incoming`]: connections with private data, over InfiniBand, RoCE and iWARP.
//! - [`QueuePair`]: Sends, RDMA Writes and Reads from and to buffers of the core's pool, and memory that the peer may reach.
//!
//! What a peer can reach is never more than what was exposed to it: see `domain`. Nothing blocks: whatever takes time is waited
//! for on descriptors, through the ring. Nothing is registered or allocated for an operation once the pool's chunks and the
//! windows have been used once.

mod abi;
mod cm;
mod connect;
mod device;
mod domain;
mod drive;
mod endpoint;
mod error;
mod exposure;
mod library;
mod options;
mod queue;
mod work;

pub use connect::{
    Incoming, Listener, MAX_ACCEPT_DATA, MAX_CONNECT_DATA, MAX_REJECT_DATA, connect, connect_with,
};
pub use device::{Device, devices};
pub use error::{Error, LoadError};
pub use exposure::{Buffers, Remote, Rights, Withdrawn};
pub use options::Options;
pub use queue::{Completion, QueuePair};
pub use work::MAX_HEAD;

/// Whether rdma-core is installed.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<(), LoadError> {
    library::library().map(|_| ())
}
