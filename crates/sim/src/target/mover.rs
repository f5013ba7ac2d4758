//! The datamover of one command: Put_Data becomes Data-In PDUs, Get_Data becomes R2Ts and Data-Outs.

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
        self.connection.with(|state, out| state.put_data(self.task, Segment(data), out));
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
        let ready = self.connection.with(|state, out| {
            let len = state.want_data(self.task, len, out).ok_or(Lost)?;
            Ok((state.data_available(self.task) >= len).then(|| {
                let mut chain = Chain::new();
                state.take_data(self.task, len, |segment| chain.push(segment.0));
                chain
            }))
        });
        if let Some(ready) = ready.transpose() {
            return Poll::Ready(ready);
        }
        self.connection.wait_for_data(self.task, cx.waker());
        Poll::Pending
    }
}
