//! The datamover of one command: Put_Data becomes Data-In PDUs, or RDMA Writes; Get_Data becomes R2Ts and Data-Outs,
//! or RDMA Reads.

use std::rc::Rc;
use std::task::{Context, Poll};

use device::{DataMover, Lost};
use iscsi::target::TaskKey;
use ring::{Buf, Chain};

use super::connection::Connection;
use super::payload::Segment;

/// One task's way to its initiator.
pub(super) struct Mover {
    pub connection: Rc<Connection>,
    pub task: TaskKey,
}

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        self.connection.put(self.task, Segment(data));
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        if self.connection.is_lost() || self.connection.is_aborted(self.task) {
            return Poll::Ready(Err(Lost));
        }
        if self.connection.has_room() {
            return Poll::Ready(Ok(()));
        }
        self.connection.room.register(cx.waker());
        Poll::Pending
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if self.connection.is_lost() {
            return Poll::Ready(Err(Lost));
        }
        let Some(len) = self.connection.want(self.task, len) else { return Poll::Ready(Err(Lost)) };
        let ready = self.connection.with(|state, _| {
            (state.data_available(self.task) >= len).then(|| {
                let mut chain = Chain::new();
                state.take_data(self.task, len, |segment| chain.push(segment.0));
                chain
            })
        });
        if let Some(chain) = ready {
            return Poll::Ready(Ok(chain));
        }
        self.connection.wait_for_data(self.task, cx.waker());
        Poll::Pending
    }
}
