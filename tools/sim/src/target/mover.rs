//! The datamover of one command: Put_Data becomes Data-In PDUs, or RDMA Writes; Get_Data becomes R2Ts and Data-Outs,
//! or RDMA Reads.

use std::rc::Rc;
use std::task::{Context, Poll};

use device::{DataMover, Landing, Lost};
use runtime::{Buf, Chain};

use super::payload::Segment;
use super::reassign::Place;

/// One task's way to its initiator.
pub(super) struct Mover(pub Rc<Place>);

impl DataMover for Mover {
    fn put_data(&mut self, data: Buf) {
        let (connection, task) = self.0.at();
        if !self.0.is_given_up() {
            connection.put(task, Segment(data));
        }
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let (connection, task) = self.0.at();
        if self.0.is_given_up() || connection.is_lost() || connection.is_aborted(task) {
            return Poll::Ready(Err(Lost));
        }
        if connection.has_room() {
            return Poll::Ready(Ok(()));
        }
        connection.room.register(cx.waker());
        Poll::Pending
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let (connection, task) = self.0.at();
        if self.0.is_refused() || connection.is_lost() || connection.is_aborted(task) {
            return Poll::Ready(Err(Lost));
        }
        let early = self.0.arrived().min(len);
        let Some(rest) = connection.want(task, len - early) else { return Poll::Ready(Err(Lost)) };
        let ready = connection.with(|state, _| {
            (state.data_available(task) >= rest).then(|| {
                let mut chain = Chain::new();
                self.0.take_arrived(early, |segment| chain.push(segment.0));
                state.take_data(task, rest, |segment| chain.push(segment.0));
                chain
            })
        });
        if let Some(chain) = ready {
            return Poll::Ready(Ok(chain));
        }
        connection.wait_for_data(task, cx.waker());
        Poll::Pending
    }

    fn lands(&mut self, landing: Landing) {
        let (connection, task) = self.0.at();
        connection.lands(task, landing);
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        let (connection, task) = self.0.at();
        if self.0.is_given_up() || self.0.is_refused() || connection.is_lost() || connection.is_aborted(task)
        {
            return Poll::Ready(Lost);
        }
        connection.wait_for_data(task, cx.waker());
        Poll::Pending
    }
}
