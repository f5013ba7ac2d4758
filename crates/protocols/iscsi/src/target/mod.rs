//! The target's side of a connection in full-feature phase, without I/O.
//!
//! The driver cuts PDUs from the stream and passes them to [`Connection::handle`]. [`Connection`]
//! returns the requests in them ([`Event`]), and writes its own PDUs, in order, to a [`Sink`]. It
//! owns StatSN, the task table and the sequencing of data in both directions. The [`window`] of
//! CmdSNs may be shared with the session's other connections. It runs no commands and knows no
//! logical units.
//!
//! Over iSER ([`Config::rdma`]) data moves by RDMA, outside of PDUs. The driver transfers it, and
//! this module tracks it ([`Connection::put`], [`Connection::next_read`],
//! [`Connection::read_done`]).

mod connection;
mod events;
pub mod inbound;
pub mod payload;
pub mod recovery;
mod respond;
mod shared_window;
mod tasks;
pub mod window;

pub use connection::Connection;
pub use events::{
    Abort, Completion, Config, Event, Fatal, LogoutRequest, ScsiCommand, TaskManagement, TextExchange,
};
pub use inbound::Read;
pub use payload::{Data, Payload, Sink};
pub use shared_window::SharedWindow;
pub use tasks::{Task, TaskKey};
pub use window::{Admission, Cid, CommandWindow, Window};
