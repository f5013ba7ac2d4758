//! The datamover of a forwarded command: Put_Data becomes Data-In as far as the forwarder has room,
//! and Get_Data asks for Data-Out.

use std::rc::Rc;
use std::task::{Context, Poll};

use device::{DataMover, Lost};
use runtime::{Buf, Chain};

use super::peer::{Job, Peer};
use crate::line::stable;

pub(super) struct Mover {
    peer: Rc<Peer>,
    job: Rc<Job>,
}

impl Mover {
    pub fn new(peer: Rc<Peer>, job: Rc<Job>) -> Self {
        Self { peer, job }
    }
}

impl DataMover for Mover {
    fn put_data(&mut self, mut data: Buf) {
        {
            let mut flow = self.job.flow.borrow_mut();
            let left = usize::try_from(self.job.data_in - flow.put).unwrap_or(usize::MAX);
            data.truncate(left.min(data.len()));
            flow.put += data.len() as u64;
            flow.waiting.push(stable(data));
        }
        self.peer.pump(&self.job);
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        if !self.peer.moves(&self.job) {
            return Poll::Ready(Err(Lost));
        }
        self.job.wait(cx.waker());
        if self.peer.has_room(&self.job, cx.waker()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if !self.peer.moves(&self.job) {
            return Poll::Ready(Err(Lost));
        }
        let end = {
            let mut flow = self.job.flow.borrow_mut();
            let want = (self.job.data_out - flow.taken).min(len as u64);
            if flow.got.len() as u64 >= want {
                flow.taken += want;
                return Poll::Ready(Ok(flow.got.split_to(want as usize)));
            }
            flow.taken + want
        };
        self.job.wait(cx.waker());
        self.peer.ask(&self.job, end);
        Poll::Pending
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        if !self.peer.moves(&self.job) {
            return Poll::Ready(Lost);
        }
        self.job.wait(cx.waker());
        Poll::Pending
    }
}
