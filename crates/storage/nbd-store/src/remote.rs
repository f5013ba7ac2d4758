//! Operations of a core without a connection, which another core carries out. Their data is copied
//! from one core's memory to the other's.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use backing::{Extent, StoreError};
use runtime::Chain;

use crate::common::Queue;
use crate::link::Link;

/// An operation.
pub(crate) enum Work {
    Read { at: u64, len: usize },
    Write { at: u64, data: Vec<u8>, durable: bool },
    Sync,
    Zeros { at: u64, len: u64, deallocate: bool },
    Extent { at: u64, len: u64 },
}

/// Its result.
pub(crate) enum Given {
    Nothing,
    Bytes(Vec<u8>),
    Extent(Extent),
}

type Outcome = Result<Given, StoreError>;

/// An operation on its way to the owner of a connection. Dropped, it ends with an unknown outcome.
pub(crate) struct Job {
    work: Option<Work>,
    answer: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Job {
    fn end(&self, outcome: Outcome) {
        let waker = {
            let mut waiting = lock(&self.answer);
            if waiting.outcome.is_none() {
                waiting.outcome = Some(outcome);
            }
            waiting.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// The owner has gone before it began.
    pub(crate) fn refuse(self) {
        self.end(Err(StoreError::Unknown));
    }

    /// Carries it out, on the owner's core.
    async fn carry_out(mut self, link: Rc<Link>) {
        let Some(work) = self.work.take() else { return };
        let outcome = match work {
            Work::Read { at, len } => link.read(at, len).await.map(|chain| Given::Bytes(chain.to_vec())),
            Work::Write { at, data, durable } => {
                let mut chain = Chain::new();
                chain.push(data);
                link.write(at, chain, durable).await.map(|()| Given::Nothing)
            }
            Work::Sync => link.sync().await.map(|()| Given::Nothing),
            Work::Zeros { at, len, deallocate } => {
                link.write_zeros(at, len, deallocate).await.map(|()| Given::Nothing)
            }
            Work::Extent { at, len } => link.extent(at, len).await.map(Given::Extent),
        };
        self.end(outcome);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(Err(StoreError::Unknown));
    }
}

/// Has the owner of `queue` carry out an operation.
pub(crate) async fn carry_out(queue: Arc<Queue>, work: Work) -> Outcome {
    let answer = Arc::<Mutex<Waiting>>::default();
    queue.push(Job { work: Some(work), answer: answer.clone() });
    poll_fn(|cx| {
        let mut waiting = lock(&answer);
        match waiting.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

/// Takes the operations of other cores, for as long as the link serves.
pub(crate) async fn take_all(link: Rc<Link>, queue: Arc<Queue>) {
    while let Some(job) = poll_fn(|cx| queue.poll_pop(cx)).await {
        runtime::spawn(job.carry_out(link.clone()));
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
