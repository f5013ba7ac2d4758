//! The datamover of a command that came over TCP: Put_Data becomes Data-In PDUs, Get_Data becomes R2Ts and Data-Outs.

use std::rc::Rc;
use std::task::{Context, Poll};

use device::{DataMover, Lost};
use iscsi::target::TaskKey;
use ring::{Buf, Chain};

use crate::connection::Connection;
use crate::grants;
use crate::wire::Segment;

/// One task's way to its initiator.
pub struct TcpMover {
    connection: Rc<Connection>,
    task: TaskKey,
    /// Bytes that the unit may have asked for and not given up.
    granted: usize,
    /// The unit has got what was granted.
    given: bool,
}

impl TcpMover {
    pub(crate) fn new(connection: Rc<Connection>, task: TaskKey) -> Self {
        Self { connection, task, granted: 0, given: false }
    }
}

impl TcpMover {
    fn give_back(&mut self) {
        grants::give_back(&self.connection, std::mem::take(&mut self.granted));
        self.given = false;
    }
}

impl Drop for TcpMover {
    fn drop(&mut self) {
        self.give_back();
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
        if self.connection.is_lost() {
            return Poll::Ready(Err(Lost));
        }
        if self.given {
            self.give_back();
        }
        if self.granted == 0 && self.connection.with(|state, _| state.is_short_of_data(self.task, len)) {
            if grants::poll_take(&self.connection, len, cx).is_pending() {
                // It may be aborted meanwhile, or the data come unasked.
                self.connection.wait_for_data(self.task, cx.waker());
                return Poll::Pending;
            }
            self.granted = len;
        }
        let connection = &*self.connection;
        let ready = connection.with(|state, outbox| {
            let len = state.want_data(self.task, len, outbox).ok_or(Lost)?;
            Ok((state.data_available(self.task) >= len).then(|| {
                let mut chain = Chain::new();
                state.take_data(self.task, len, |segment| chain.push(segment.0));
                chain
            }))
        });
        if let Some(ready) = ready.transpose() {
            self.given = true;
            return Poll::Ready(ready);
        }
        connection.wait_for_data(self.task, cx.waker());
        Poll::Pending
    }
}
