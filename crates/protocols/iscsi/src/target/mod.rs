//! The target's side of a connection in full-feature phase, without I/O.
//!
//! The driver takes PDUs from a [`Stream`](crate::Stream) and passes them to
//! [`Connection::handle`]. [`Connection`] returns the requests in them ([`Event`]), and writes its
//! own PDUs, in order, to a [`Sink`]. It composes what has state of its own. `numbering` has the
//! order of requests (`order`, over the [`window`] of CmdSNs, which the session's connections may
//! share), what is sent (`output`), pings (`keepalive`), and statuses retained for retransmission.
//! `transfers` has the tasks with the data of each ([`inbound`], `tasks`), and `requests`
//! understands what arrives, such as text (`text`). [`recovery`] has what both need from
//! ErrorRecoveryLevel 1 on. It runs no commands and knows no logical units.
//!
//! Over iSER ([`Config::rdma`]) data moves by RDMA, outside of PDUs. The driver transfers it, and
//! this module tracks it ([`Connection::put`], [`Connection::next_read`],
//! [`Connection::read_done`]).

/// Writes the numbers of a target's PDU into its fields.
macro_rules! number {
    ($header:ident, $numbers:expr $(, $stat_sn:expr)?) => {
        let (exp_cmd_sn, max_cmd_sn) = $numbers;
        $header.exp_cmd_sn.set(exp_cmd_sn);
        $header.max_cmd_sn.set(max_cmd_sn);
        $($header.stat_sn.set($stat_sn);)?
    };
}

mod connection;
mod early;
mod events;
pub mod inbound;
mod keepalive;
mod numbering;
mod order;
mod output;
pub mod payload;
mod queue;
pub mod recovery;
mod requests;
mod respond;
mod shared_window;
mod tasks;
mod text;
mod transfers;
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
