//! Streams and queues of software iWARP against each other and against hostile peers.

mod endings;
mod hostile;
mod operations;
mod placing;
mod placing_peers;
#[path = "../support/mod.rs"]
mod support;
