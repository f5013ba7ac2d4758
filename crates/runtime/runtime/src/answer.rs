//! [`Answer`]: the result of an operation, or the operation in flight. A result of a medium in
//! memory needs no future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Pooled;

/// An operation that is complete, or in flight on this core.
pub enum Answer<T> {
    /// Complete. The first poll takes the result.
    Ready(Option<T>),
    /// In flight.
    Running(Pooled<T>),
}

impl<T> Answer<T> {
    /// A complete operation.
    pub fn ready(value: T) -> Self {
        Self::Ready(Some(value))
    }

    /// An operation that this future carries out.
    pub fn running(future: impl Future<Output = T> + 'static) -> Self {
        Self::Running(Pooled::new(future))
    }
}

impl<T, E> Answer<Result<T, E>> {
    /// A successful operation.
    pub fn ok(value: T) -> Self {
        Self::ready(Ok(value))
    }

    /// A failed operation.
    pub fn err(error: E) -> Self {
        Self::ready(Err(error))
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = T;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            Self::Running(future) => Pin::new(future).poll(cx),
        }
    }
}
