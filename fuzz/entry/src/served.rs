//! A logical unit served without a ring: nexuses, a mover whose waits the input decides, and one
//! command from its beginning to its end. Checks the properties that hold for commands of every
//! unit.

use device::{
    Cdb, Command, DataMover, Execution, ItlNexus, LogicalUnit, Lost, Nexus, NexusId, Outcome, TaskAttribute,
};
use runtime::{Buf, Chain};
use scsi::Status;
use scsi::reservation::TransportId;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Data-out that a command may bring, bytes.
pub const MAX_OUT: usize = 1 << 16;
/// Polls after which a command counts as hanging.
const MAX_POLLS: usize = 100_000;

/// A command's way to its initiator.
#[derive(Debug, Default)]
pub struct Mover {
    /// Data that the initiator still has to send.
    pub data_out: Vec<u8>,
    /// Data sent to the initiator, without the part beyond its room.
    pub data_in: Vec<u8>,
    /// Bytes of data-in that there is room for.
    pub room: usize,
    /// Bytes that were put.
    pub put: u64,
    /// Times that the next wait is one.
    pub pending: u8,
    /// The connection is lost.
    pub lost: bool,
}

impl Mover {
    fn wait(&mut self, cx: &Context<'_>) -> bool {
        self.pending = self.pending.saturating_sub(1);
        if self.pending != 0 {
            cx.waker().wake_by_ref();
        }
        self.pending != 0
    }
}

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        self.put += data.len() as u64;
        let (room, data_in) = (self.room, &mut self.data_in);
        data.for_each_slice(|slice| {
            let left = room.saturating_sub(data_in.len());
            data_in.extend_from_slice(&slice[..slice.len().min(left)]);
        });
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        match self.wait(cx) {
            true => Poll::Pending,
            false => Poll::Ready(if self.lost { Err(Lost) } else { Ok(()) }),
        }
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if self.wait(cx) {
            return Poll::Pending;
        }
        if self.lost {
            return Poll::Ready(Err(Lost));
        }
        let rest = self.data_out.split_off(len.min(self.data_out.len()));
        Poll::Ready(Ok(std::mem::replace(&mut self.data_out, rest).into()))
    }

    fn poll_lost(&mut self, _: &mut Context<'_>) -> Poll<Lost> {
        match self.lost {
            true => Poll::Ready(Lost),
            false => Poll::Pending,
        }
    }
}

/// Runs a future that no other task wakes.
///
/// # Panics
/// When it does not end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..MAX_POLLS {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
    panic!("a command never ends");
}

/// The nexus of the initiator with this number.
pub fn nexus(id: u64, read_only: bool) -> Arc<ItlNexus> {
    let initiator = format!("iqn.2026-01.org.stag:host{id}");
    let transport_id = TransportId::iscsi_port(&initiator, id).expect("a short name").bytes().to_vec();
    let nexus = Nexus {
        id: NexusId(id),
        principal: None,
        initiator,
        transport_id,
        target_port: 1,
        target: "iqn.2026-01.org.stag:disk".to_owned(),
        ports: None,
    };
    Arc::new(ItlNexus::new(Arc::new(nexus), read_only))
}

/// Runs one command. Returns its outcome as its server sees it, and the data that its initiator
/// got. `None` if its connection was lost, since no one sees the outcome then.
pub fn execute<U: LogicalUnit>(
    unit: &Arc<U>,
    nexus: &Arc<ItlNexus>,
    cdb: Cdb,
    mover: Mover,
) -> Option<(Outcome, Vec<u8>)> {
    let (lost, out, room) = (mover.lost, mover.data_out.len() as u64, mover.room as u64);
    let command = Command {
        cdb: cdb.clone(),
        attribute: TaskAttribute::Simple,
        nexus: nexus.clone().into(),
        tag: 0,
        data_out_len: out,
        data_in_len: room,
    };
    let (mover, outcome) = match unit.execute(command, mover) {
        Execution::Done(mover, outcome) => (mover, outcome),
        Execution::Running(future) => block_on(future),
    };
    if lost {
        return None;
    }
    let shown = || format!("{:02x?}: {outcome:?}, {} put", cdb.bytes(), mover.put);
    assert_eq!(outcome.status == Status::CheckCondition, outcome.sense.is_some(), "{}", shown());
    if let Some(sense) = &outcome.sense {
        assert!(!sense.emit(false).is_empty() && !sense.emit(true).is_empty());
    }
    if outcome.status == Status::Good {
        // A server drops data beyond the room; the residual reports short data.
        assert!(mover.put <= outcome.wanted_in && mover.put >= outcome.wanted_in.min(room), "{}", shown());
    }
    Some((outcome, mover.data_in))
}
