//! Queue pairs: connect, send, receive, RDMA Write and Read, over software iWARP or rdma-core
//! verbs.
//!
//! A [`QueuePair`] is one connection and lives on the core that created it. Posting never waits:
//! [`QueuePair::post_send`], [`QueuePair::post_write`] and [`QueuePair::post_read`] only queue.
//! Everything queued in one turn of a task is sent with one vectored send. [`QueuePair::next`]
//! receives and returns completions; nothing is received unless it is called. An upper layer uses
//! this as backpressure against a peer that does not read its answers. Only one of two peers may do
//! so: if both wait for the other to read, they deadlock. Memory that the peer may access is
//! exposed under an [`Stag`] and owned by the queue pair meanwhile; [`QueuePair::withdraw`] returns
//! it.
//!
//! [`connect`] and [`accept`] set a connection up. A portal that also serves iSCSI over TCP reads a
//! connection's first bytes with [`sniff`].
//!
//! For RDMA devices, [`VerbsListener`] listens, and [`connect`] uses the [`Options::provider`].
//!
//! Operations own their buffers. Dropping a queue pair at any point ends its connection and frees
//! everything.
#![forbid(unsafe_code)]

mod counters;
mod error;
mod hardware;
mod options;
mod pair;
mod setup;
mod sink;
mod software;
mod types;

/// RFC 7306's three atomic operations.
pub use iwarp::rdmap::Atomic;

pub use counters::{Counters, counters};
pub use error::{Error, Side, Terminated};
pub use hardware::{VerbsListener, VerbsRequest, verbs_available};
pub use options::{Crc, Options, Provider};
pub use pair::QueuePair;
pub use setup::{Incoming, Listener, Protocol, accept, connect, connect_with, sniff};
pub use sink::{DataSink, Fill, Next};
pub use types::{Buffers, Completion, Flags, Remote, Rights, Stag, Withdrawn};
