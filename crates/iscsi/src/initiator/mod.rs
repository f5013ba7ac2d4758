//! The initiator's side of a session in full-feature phase, without I/O: one session, one to many connections.
//!
//! [`Session`] numbers commands within the target's window, spreads them over its connections, answers R2Ts, checks and
//! places Data-In, and says how each task ended ([`Event`]). The driver owns sockets and time: it feeds each received PDU to
//! [`Session::handle`], and after every batch asks [`Session::transmit`] for what each connection has to send. A task
//! carries a [`Place`], which takes a read's data as it arrives.
//!
//! Over iSER (RFC 7145) there is neither Data-In nor R2T: [`Session::transmit_messages`] hands each command to a
//! [`Datamover`], which brings the command's buffers within the target's reach first, and the response alone tells how
//! much was read.
//!
//! Error recovery level 0: a fault ends the session. [`Session::disconnect`] then keeps the tasks that may be repeated
//! for the next login, and gives the others back. At level 1 what is missing is asked for again and what was not
//! acknowledged is sent again ([`Session::tick`]), at level 2 tasks outlive their connection ([`Session::lose_connection`]).

mod arrival;
mod emit;
mod inbound;
mod recovery;
mod session;
mod tasks;

pub use emit::{Buffers, Datamover};
pub use inbound::{Completion, Event, ProtocolError, Segment};
pub use recovery::{GivenUp, Recoveries};
pub use session::{Command, ConnectionId, Session, SessionConfig, Spread};
pub use tasks::TaskKey;

/// The longest answer to a Text Request that is gathered, bytes: SendTargets of some ten thousand targets.
pub const MAX_TEXT_RESPONSE: usize = 8 << 20;

/// What a task does with a read's data.
pub trait Place<D> {
    /// Takes `data`, which belongs at `offset` (bytes) of what the command reads. The session has checked that it lies
    /// within the length that the command expects, and that pieces come in order.
    fn place(&mut self, offset: usize, data: D);
}

/// For commands that read nothing.
impl<D> Place<D> for () {
    fn place(&mut self, _: usize, _: D) {}
}

/// Gathers what is read.
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
