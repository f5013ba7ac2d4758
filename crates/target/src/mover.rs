//! The datamover of a command that came over TCP: Put_Data becomes Data-In PDUs, Get_Data becomes R2Ts and Data-Outs.

use std::rc::Rc;
use std::task::{Context, Poll};

use device::{DataMover, Lost};
use iscsi::target::TaskKey;
use ring::{Buf, Chain};

use crate::connection::Connection;
use crate::wire::Segment;

/// One task's way to its initiator.
pub struct TcpMover {
    connection: Rc<Connection>,
    task: TaskKey,
}

impl TcpMover {
    pub(crate) fn new(connection: Rc<Connection>, task: TaskKey) -> Self {
        Self { connection, task }
    }
}

impl DataMover for TcpMover {
    fn put_data(&mut self, data: Buf) {
        self.connection.with(|state, outbox| state.put_data(self.task, Segment(data), outbox));
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let connection = &*self.connection;
        if connection.is_lost() || connection.is_aborted(self.task) {
            return Poll::Ready(Err(Lost));
        }
        if connection.has_room() {
            return Poll::Ready(Ok(()));
        }
        connection.room.register(cx.waker());
        Poll::Pending
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let connection = &*self.connection;
        if connection.is_lost() {
            return Poll::Ready(Err(Lost));
        }
        let ready = connection.with(|state, outbox| {
            let len = state.want_data(self.task, len, outbox).ok_or(Lost)?;
            Ok((state.data_available(self.task) >= len).then(|| {
                let mut chain = Chain::new();
                state.take_data(self.task, len, |segment| chain.push(segment.0));
                chain
            }))
        });
        if let Some(ready) = ready.transpose() {
            return Poll::Ready(ready);
        }
        connection.wait_for_data(self.task, cx.waker());
        Poll::Pending
    }
}
