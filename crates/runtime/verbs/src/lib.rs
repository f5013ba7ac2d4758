//! rdma-core verbs and its connection manager, loaded at run time, behind a safe interface.
//!
//! libibverbs.so.1 and librdmacm.so.1 are opened at their first use. A program with this crate
//! builds and runs without them, and reports what to install when RDMA is requested. Their ABI is
//! declared here ([`mod@abi`](self)): bindings generated from headers would require those headers,
//! or libclang, for every build of Stag.
//!
//! - [`devices`]: the RDMA devices of the machine.
//! - [`connect`], [`Listener`], [`Incoming`]: connections with private data, over InfiniBand, RoCE
//!   and iWARP.
//! - [`QueuePair`]: Sends, RDMA Writes and Reads from and to buffers of the core's pool, and
//!   exposed memory.
//!
//! A peer can never access more than the memory exposed to it: see `domain`. Nothing blocks: slow
//! operations wait on descriptors, through the ring. After the first use of the pool's chunks and
//! the windows, no operation registers or allocates anything.
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

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
/// The missing library or function.
pub fn available() -> Result<(), LoadError> {
    library::library().map(|_| ())
}
