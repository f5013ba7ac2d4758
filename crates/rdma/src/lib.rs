//! Queue pairs: connect, send, receive, RDMA Write and Read, over software iWARP or rdma-core verbs.
//!
//! A [`QueuePair`] is one connection and lives on the core that made it. Posting never waits: [`QueuePair::post_send`],
//! [`QueuePair::post_write`] and [`QueuePair::post_read`] only queue, and everything that is queued in one turn of a task leaves
//! in one vectored send. [`QueuePair::next`] receives and gives completions; nothing is received while nobody asks for one,
//! which is how an upper layer holds a peer back that does not read what it asked for. Of two peers only one may do that: if each
//! waits for the other to read, both wait for ever. Memory that the peer may reach is exposed under an [`Stag`] and lent to the queue pair
//! meanwhile: [`QueuePair::withdraw`] gives it back.
//!
//! [`connect`] and [`accept`] set a connection up. A portal that serves iSCSI over TCP as well looks at a connection's first
//! bytes with [`sniff`].
//!
//! Through RDMA devices, [`VerbsListener`] listens, and [`connect`] does what [`Options::provider`] says.
//!
//! Operations own their buffers. Dropping a queue pair at any point ends its connection and leaves nothing behind.
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

/// What an atomic operation does: RFC 7306's three.
pub use iwarp::rdmap::Atomic;

pub use counters::{Counters, counters};
pub use error::{Error, Side, Terminated};
pub use hardware::{VerbsListener, VerbsRequest, verbs_available};
pub use options::{Crc, Options, Provider};
pub use pair::QueuePair;
pub use setup::{Incoming, Listener, Protocol, accept, connect, connect_with, sniff};
pub use sink::{DataSink, Fill, Next};
pub use types::{Buffers, Completion, Flags, Remote, Rights, Stag, Withdrawn};
