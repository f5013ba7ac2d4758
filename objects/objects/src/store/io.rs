//! [`Io`]: an operation that ended at once or is in progress; [`Hold`]: keeps freed space from
//! being reused.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use runtime::Pooled;

use super::Error;

/// An operation on a store: finished at once, or in progress. Nothing is allocated for it once the
/// core is warm.
pub enum Io<T> {
    /// Finished. Taken by the first poll.
    Ready(Option<Result<T, Error>>),
    /// On its way in the backing store.
    Backing(backing::Io<T>),
    /// On its way on this core's ring.
    Running(Pooled<Result<T, Error>>),
}

impl<T> Io<T> {
    pub fn ok(value: T) -> Self {
        Self::Ready(Some(Ok(value)))
    }
    pub fn err(error: Error) -> Self {
        Self::Ready(Some(Err(error)))
    }
    pub fn run(future: impl Future<Output = Result<T, Error>> + 'static) -> Self {
        Self::Running(Pooled::new(future))
    }
}

impl<T: Unpin> Future for Io<T> {
    type Output = Result<T, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            Self::Backing(io) => Pin::new(io).poll(cx).map_err(Error::from),
            Self::Running(future) => Pin::new(future).poll(cx),
        }
    }
}

impl<T> fmt::Debug for Io<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Backing(_) | Self::Running(_) => "Running",
        })
    }
}

/// While it lives, no space that objects have given up is used again: see
/// [`super::ObjectStore::hold`].
pub struct Hold(Option<Rc<dyn Any>>);

impl Hold {
    /// Of a store that needs none.
    pub const fn none() -> Self {
        Self(None)
    }
    /// Keeps `what` until it is dropped.
    pub fn keep(what: Rc<dyn Any>) -> Self {
        Self(Some(what))
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({})", self.0.is_some())
    }
}
