//! The initiator's side of a session in full-feature phase, without I/O: one session with one or
//! more connections.
//!
//! [`Session`] numbers commands within the target's window and spreads them over its connections.
//! It answers R2Ts, checks and places Data-In, and reports the end of each task ([`Event`]). The
//! driver owns sockets and time. It passes each received PDU to [`Session::handle`], and after
//! every batch calls [`Session::transmit`] for the output of each connection. A task carries a
//! [`Place`], which receives a read's data as it arrives.
//!
//! Over iSER (RFC 7145) there is neither Data-In nor R2T. [`Session::transmit_messages`] passes
//! each command to a [`Datamover`], which first makes the command's buffers accessible to the
//! target. The response alone tells the number of bytes read.
//!
//! The session composes what has state of its own. `exchange` has the window of CmdSNs (`window`),
//! the connections with their output (`links`), and the tasks (`tasks`). `recovery` looks after
//! what is lost, and `gaps` requests missing PDUs. `inbound` handles the target's PDUs upon both.
//!
//! At error recovery level 0 a fault ends the session. [`Session::disconnect`] then keeps
//! repeatable tasks for the next login, and returns the others. At level 1 missing PDUs are
//! requested again, and unacknowledged requests are sent again ([`Session::tick`]). At level 2
//! tasks survive their connection ([`Session::lose_connection`]).

mod abort;
mod emit;
mod event;
mod exchange;
mod gaps;
mod ids;
mod inbound;
mod links;
mod recovery;
mod session;
mod tasks;
mod trouble;
mod window;

pub use emit::{Buffers, Datamover};
pub use event::{Completion, Event, ProtocolError};
pub use ids::{ConnectionId, TaskKey};
pub use inbound::Segment;
pub use links::Spread;
pub use recovery::GivenUp;
pub use session::{Command, Session, SessionConfig};
pub use trouble::Recoveries;

/// The maximum length of a response to a Text Request, bytes: enough for SendTargets with about ten
/// thousand targets.
pub const MAX_TEXT_RESPONSE: usize = 8 << 20;

/// Receives a read's data for a task.
pub trait Place<D> {
    /// Receives `data`, which belongs at `offset` (bytes) of the command's read. The session has
    /// checked that it lies within the command's expected length, and that pieces are in order.
    fn place(&mut self, offset: usize, data: D);
}

/// For commands without a read.
impl<D> Place<D> for () {
    fn place(&mut self, _: usize, _: D) {}
}

/// Collects the data.
impl Place<&[u8]> for Vec<u8> {
    fn place(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.len() < end {
            self.resize(end, 0);
        }
        self[offset..end].copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
