//! The target's side of a connection in full-feature phase, without I/O.
//!
//! The driver takes PDUs from a [`Stream`](crate::Stream) and passes them to [`Connection::handle`]. [`Connection`]
//! returns the requests in them ([`Event`]), and writes its own PDUs, in order, to a [`Sink`]. It
//! composes what has state of its own: the order of requests (`order`, over the [`window`] of
//! CmdSNs, which the session's connections may share), the tasks with the data of each ([`inbound`],
//! `tasks`), what it sends (`output`), pings (`keepalive`), a text exchange (`text`), and PDUs
//! retained for retransmission ([`recovery`]). It runs no commands and knows no logical units.
//!
//! Over iSER ([`Config::rdma`]) data moves by RDMA, outside of PDUs. The driver transfers it, and
//! this module tracks it ([`Connection::put`], [`Connection::next_read`],
//! [`Connection::read_done`]).

mod connection;
mod events;
pub mod inbound;
mod keepalive;
mod order;
mod output;
pub mod payload;
pub mod recovery;
mod respond;
mod shared_window;
mod tasks;
mod text;
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
