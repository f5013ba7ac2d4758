//! The connections of a session: their output, and which one takes the next command.

use std::collections::VecDeque;

use invariant::invariant;

use crate::frame::Digests;
use crate::pdu::{Bhs, Lun, SnackType};

use super::emit::Room;
use super::ids::{ConnectionId, TaskKey};
use super::trouble::Status;

/// Distribution of commands over several connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// To the connection with the fewest outstanding tasks.
    #[default]
    LeastOutstanding,
    /// To each connection in turn.
    RoundRobin,
}

/// Queued output.
#[derive(Debug)]
pub(super) enum Out<P> {
    /// A SCSI command, with its immediate and unsolicited data.
    Command(TaskKey),
    /// Data that an R2T requested.
    Solicited { key: TaskKey, ttt: u32, offset: u32, len: u32 },
    /// A PDU with a complete header except for its numbers.
    Ready { header: Box<Bhs>, data: Option<P> },
}

/// A queued SNACK; `lun` is for DataACK only.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snack {
    pub kind: SnackType,
    pub itt: u32,
    pub tag: u32,
    pub from: u32,
    pub lun: Lun,
}

#[derive(Debug)]
pub(super) struct Connection<P> {
    pub cid: u16,
    pub digests: Digests,
    pub room: Room,
    /// Data moves by RDMA: no Data-In and no R2T (RFC 7145 §7.3).
    pub rdma: bool,
    pub exp_stat_sn: u32,
    /// The state of missing statuses.
    pub status: Status,
    /// Counts changes of our MaxRecvDataSegmentLength.
    pub segment_epoch: u16,
    /// Queued SNACKs. They are sent first, because tasks wait for the missing PDUs.
    pub snacks: VecDeque<Snack>,
    pub out: VecDeque<Out<P>>,
    /// The number of [`Out::Ready`] in `out`.
    pub ready: usize,
    /// The number of tasks sent on this connection that have not ended.
    pub outstanding: usize,
}

impl<P> Connection<P> {
    /// Queues a PDU with a complete header except for its numbers.
    pub fn put(&mut self, header: Bhs, data: Option<P>) {
        self.ready += 1;
        self.out.push_back(Out::Ready { header: Box::new(header), data });
    }

    /// A task that was sent on it has ended, or moves to another one.
    pub fn task_ended(&mut self) {
        if invariant!(self.outstanding > 0, "more tasks ended than were sent on a connection") {
            self.outstanding -= 1;
        }
    }

    /// Whether it has output.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty() || !self.snacks.is_empty()
    }
}

/// The connections of a session.
#[derive(Debug)]
pub(super) struct Links<P> {
    all: Vec<Option<Connection<P>>>,
    spread: Spread,
    /// The index at which the search for the next connection begins with [`Spread::RoundRobin`].
    next: usize,
}

impl<P> Links<P> {
    /// No connections.
    pub fn new() -> Self {
        Self { all: Vec::new(), spread: Spread::default(), next: 0 }
    }

    /// Sets how commands are spread.
    pub fn set_spread(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// Adds a connection.
    pub fn add(&mut self, connection: Connection<P>) -> ConnectionId {
        let index = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        if index == self.all.len() {
            self.all.push(None);
        }
        self.all[index] = Some(connection);
        ConnectionId(index)
    }

    /// A connection that exists.
    #[inline]
    pub fn get(&self, on: ConnectionId) -> Option<&Connection<P>> {
        self.all.get(on.0)?.as_ref()
    }

    /// A connection that exists.
    #[inline]
    pub fn get_mut(&mut self, on: ConnectionId) -> Option<&mut Connection<P>> {
        self.all.get_mut(on.0)?.as_mut()
    }

    /// Removes a connection.
    pub fn take(&mut self, on: ConnectionId) -> Option<Connection<P>> {
        self.all.get_mut(on.0)?.take()
    }

    /// Removes all connections.
    pub fn clear(&mut self) {
        self.all.clear();
    }

    /// The places of connections, taken or free.
    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + use<P> {
        (0..self.all.len()).map(ConnectionId)
    }

    /// All connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection<P>> {
        self.all.iter_mut().flatten()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    /// The number of tasks sent to the target that have not ended.
    pub fn outstanding(&self) -> usize {
        self.all.iter().flatten().map(|connection| connection.outstanding).sum()
    }

    /// Chooses the connection of the next command.
    pub fn choose(&mut self) -> Option<ConnectionId> {
        let open = self.all.iter().enumerate();
        let index = match self.spread {
            Spread::LeastOutstanding => open.filter_map(|(i, c)| Some((c.as_ref()?.outstanding, i))).min()?.1,
            Spread::RoundRobin => {
                let (next, count) = (self.next, self.all.len());
                let all = (0..count).map(|n| (next + n) % count);
                let index = { all }.find(|i| self.all.get(*i).is_some_and(Option::is_some))?;
                self.next = index + 1;
                index
            }
        };
        Some(ConnectionId(index))
    }
}
