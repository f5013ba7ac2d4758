//! One request: what has come of its reply, and who waits for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use backing::Extent;
use nbd::Failure;
use runtime::{Buf, Chain, ZEROS};
use smallvec::SmallVec;

/// A request of a connection.
pub(crate) struct Entry {
    pub place: Rc<Place>,
    /// Of a read or write.
    pub bytes: u64,
    pub effect: Effect,
    /// Its waiter has gone.
    pub is_overdue: bool,
}

/// What a success says of the server's cache.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    None,
    /// The change may be there only.
    Cached,
    /// So many changes are no longer there only.
    Flush(u64),
}

/// The end of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(Result<(), Failure>),
    Lost(Lost),
}

/// What is known of the requests of a connection that has ended without their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The server has closed its end: none of them is carried out any more.
    Over,
    /// Any of them may still be carried out.
    Unknown,
}

/// A reply without an error.
pub(crate) struct Reply {
    pub data: Chain,
    pub extent: Option<Extent>,
}

/// Where a reply is put together. Its waiter and its connection hold it, on one core.
#[derive(Default)]
pub(crate) struct Place {
    parts: RefCell<SmallVec<[(u64, Buf); 2]>>,
    extent: Cell<Option<Extent>>,
    answer: RefCell<Option<Answer>>,
    waker: RefCell<Option<Waker>>,
}

impl Place {
    /// Data of a read, from `at` on. The buffer is what was received: no copy is made.
    pub(crate) fn put(&self, at: u64, buf: Buf) {
        self.parts.borrow_mut().push((at, buf));
    }

    /// Zeros of a read.
    pub(crate) fn put_zeros(&self, at: u64, len: u32) {
        let (mut at, mut left) = (at, len as usize);
        while left > 0 {
            let piece = left.min(ZEROS);
            self.put(at, Buf::zeros(piece));
            at += piece as u64;
            left -= piece;
        }
    }

    /// An extent of a block status: it continues the last one, or is not wanted.
    pub(crate) fn put_extent(&self, extent: Extent) {
        match self.extent.get() {
            None => self.extent.set(Some(extent)),
            Some(first) if first.mapped == extent.mapped && first.at + first.len == extent.at => {
                self.extent.set(Some(Extent { len: first.len + extent.len, ..first }));
            }
            Some(_) => {}
        }
    }

    pub(crate) fn end(&self, answer: Answer) {
        *self.answer.borrow_mut() = Some(answer);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Answer {
        poll_fn(|cx| match self.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// The data of a read: its parts cover it once, in some order.
    fn data(&self) -> Chain {
        let mut parts = self.parts.take();
        parts.sort_unstable_by_key(|(at, _)| *at);
        let mut chain = Chain::new();
        parts.into_iter().for_each(|(_, buf)| chain.push_joined(buf));
        chain
    }

    /// What has come, of a request that has succeeded. Another request may use the place then.
    pub(crate) fn take(&self) -> Reply {
        Reply { data: self.data(), extent: self.extent.take() }
    }
}

/// Zeros to write.
pub(crate) fn zeros(len: u32) -> Chain {
    let place = Place::default();
    place.put_zeros(0, len);
    place.data()
}
