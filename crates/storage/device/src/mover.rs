//! The datamover (RFC 5047) of one command.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use runtime::{Buf, Chain};

use crate::landing::Landing;

/// Data can no longer be transferred: the task was aborted, or its connection was lost. A unit then
/// stops and returns any outcome; the server ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted or its connection was lost")]
pub struct Lost;

/// Transfers one command's data. The transport maps it to Data-In and R2T over TCP, or to RDMA
/// Write and RDMA Read.
pub trait DataMover {
    /// Put_Data: the next bytes of data-in, in order. The mover drops bytes beyond the command's
    /// expected length; the residual comes from [`crate::Outcome::wanted_in`]. Never waits: the
    /// transport queues the data and keeps `data` alive until it is sent.
    fn put_data(&mut self, data: Buf);

    /// Whether `len` bytes of a guarded region ([`runtime::Guard`]), put as one buffer, reach the
    /// initiator as they were at one moment.
    fn holds(&self, _len: usize) -> bool {
        false
    }

    /// Waits until the connection has fewer bytes queued than its send high-water mark. A unit that
    /// puts more than one buffer calls it between them, so that a slow reader cannot use unbounded
    /// memory.
    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>>;

    /// Get_Data: the next `len` bytes of data-out, in order. Resolves to exactly `len` bytes, or
    /// fewer if the initiator's expected length ends first. Call it again with the same `len` until
    /// it is ready. A request for more means that the unit no longer uses the earlier data.
    ///
    /// Deadlock rule: a unit that holds a lock across two calls must not request more data in the
    /// second call than in the first. A larger request may wait for grants held by commands that
    /// wait for that lock.
    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>>;

    /// Declares that the unit will write all of the command's data-out unchanged to `landing`. The
    /// transport may then receive the rest directly into that place. Call it after the command has
    /// passed all checks, and before waiting for data. A transport without direct placement ignores
    /// it.
    fn lands(&mut self, _landing: Landing) {}

    /// Whether the initiator was there not longer than `most` ago: it has answered what was sent
    /// then. If not, it is being asked; look again.
    fn is_fresh(&mut self, _most: Duration) -> bool {
        true
    }

    /// Ready once data can no longer be transferred. A unit that waits for something else than its
    /// initiator polls this too, so that its wait ends with its task. All methods share one waker
    /// slot; only the last registered waker is woken.
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

    /// The output of `future`, or [`Lost`] if the task ends first.
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
