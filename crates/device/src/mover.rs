//! The datamover (RFC 5047) as one command sees it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use ring::{Buf, Chain};

use crate::landing::Landing;

/// Why data cannot move any more: the task was aborted, or its connection is gone. A unit that sees this stops what it
/// is doing and returns whatever outcome it likes; nobody will read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted or its connection was lost")]
pub struct Lost;

/// Moves one command's data. Below it stands a transport: TCP makes Data-In and R2T of it, RDMA makes Write and Read.
pub trait DataMover {
    /// Put_Data: the next bytes of data-in, in order. Bytes beyond the command's expected length are dropped here (the
    /// residual comes from [`crate::Outcome::wanted_in`]). Never waits: the transport queues, and `data` stays alive
    /// until it has left.
    fn put_data(&mut self, data: Buf);

    /// Waits until fewer than the connection's send high-water mark of bytes are queued. A unit that puts more than
    /// one buffer calls it between them, so that a slow reader bounds memory.
    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>>;

    /// Get_Data: the next `len` bytes of data-out, in order. Resolves to exactly `len` bytes, or fewer when the
    /// initiator's expected length ends first. Called again with the same `len` until it is ready. A unit has done with what
    /// it got before when it asks for more. One that keeps others waiting between two calls asks for no more in the second than
    /// it did in the first: for more it may have to wait until those others end.
    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>>;

    /// All of the command's data-out will be written as it is, to where `landing` says, and nothing has to be done before: what is
    /// still to come may be received there already. A unit says so when it has let the command in for good, and no later than when it
    /// waits for data. Transports that cannot do it do nothing.
    fn lands(&mut self, _landing: Landing) {}

    /// Ready when data cannot move any more: what a unit that waits for anything else than its initiator asks besides, so that
    /// its wait ends with its task. Of the wakers that the functions of this trait leave the latest counts.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost>;
}

/// Async forms of the trait's poll functions.
pub trait GetData: DataMover {
    /// [`DataMover::poll_get_data`] as a future.
    fn get_data(&mut self, len: usize) -> impl Future<Output = Result<Chain, Lost>> {
        poll_fn(move |cx| self.poll_get_data(cx, len))
    }

    /// [`DataMover::poll_put_ready`] as a future.
    fn put_ready(&mut self) -> impl Future<Output = Result<(), Lost>> {
        poll_fn(|cx| self.poll_put_ready(cx))
    }

    /// What `future` gives, unless data cannot move any more before.
    fn unless_lost<F: Future>(&mut self, future: F) -> impl Future<Output = Result<F::Output, Lost>> {
        async move {
            let mut future = pin!(future);
            poll_fn(|cx| match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Ok(output)),
                Poll::Pending => self.poll_lost(cx).map(Err),
            })
            .await
        }
    }
}

impl<T: DataMover + ?Sized> GetData for T {}
