//! A command's memory that an iSER target may access (RFC 7145 §7).

use iscsi::initiator::ConnectionId;
use rdma::{QueuePair, Stag};

use crate::payload::Destination;

/// The memory of a command that the target may access, and the connection for it.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// The connection that the memory is exposed on.
    pub on: Option<ConnectionId>,
    /// Memory that the target writes: a read's data.
    pub read: Option<Stag>,
    /// Memory that the target reads: a write's data.
    pub write: Option<Stag>,
}

impl Reach {
    pub fn owns(&self, stag: Stag) -> bool {
        self.read == Some(stag) || self.write == Some(stag)
    }

    /// Withdraws all of it. Returns the end of the target's writes, if known. [`Destination::Lent`]
    /// stays if the network is writing to it at this moment.
    pub fn withdraw(&mut self, pair: &QueuePair, destination: &mut Destination) -> Option<u64> {
        self.on = None;
        if let Some(stag) = self.write.take() {
            pair.withdraw(stag);
        }
        let withdrawn = pair.withdraw(self.read.take()?)?;
        if matches!(destination, Destination::Lent(_)) && !withdrawn.busy {
            *destination = Destination::of_buffers(withdrawn.buffers);
        }
        withdrawn.placed
    }
}
