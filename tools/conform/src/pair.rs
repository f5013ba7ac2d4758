//! A queue pair that ends every wait in time.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use rdma::{Completion, Options, QueuePair, Stag};
use runtime::Runtime;

use crate::lost::Lost;

pub(crate) struct Pair {
    runtime: Rc<Runtime>,
    /// `None` only while it is dropped.
    pair: Option<QueuePair>,
}

impl Pair {
    /// Connects. Returns the peer's private data as well.
    pub fn connect(
        runtime: Rc<Runtime>,
        address: SocketAddr,
        private_data: &[u8],
        options: &Options,
    ) -> Result<(Self, Vec<u8>), Lost> {
        let connected = runtime.block_on(rdma::connect(address, private_data, options));
        let (pair, says) = connected.map_err(|error| Lost::NotConnected(error.to_string()))?;
        Ok((Self { runtime, pair: Some(pair) }, says))
    }

    /// Does some work on the ring of the queue pair.
    pub fn run<T>(&self, work: impl AsyncFnOnce(&QueuePair) -> T) -> Result<T, Lost> {
        let pair = self.pair.as_ref().ok_or(Lost::Closed)?;
        Ok(self.runtime.block_on(work(pair)))
    }

    /// The next message, until `until`, and the STag that it invalidated.
    pub fn receive(&self, until: Instant) -> Result<(Vec<u8>, Option<Stag>), Lost> {
        loop {
            let left = until.saturating_duration_since(runtime::clock());
            if left.is_zero() {
                return Err(Lost::Silent);
            }
            let next = self.run(async |pair| {
                let next = runtime::timeout(left, pair.next()).await;
                pair.post_receives(u32::from(matches!(next, Ok(Ok(Completion::Received { .. })))));
                next
            })?;
            match next {
                Err(_) => return Err(Lost::Silent),
                Ok(Err(error @ rdma::Error::Terminated { side: rdma::Side::Local, .. })) => {
                    return Err(Lost::Garbled(error.to_string()));
                }
                Ok(Err(_)) => return Err(Lost::Closed),
                Ok(Ok(Completion::Received { message, invalidated, .. })) => {
                    return Ok((message.to_vec(), invalidated));
                }
                Ok(Ok(_)) => {}
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            // Let the ring run until the queue pair's operations have ended.
            self.runtime.block_on(async {
                pair.disconnect();
                drop(pair);
            });
        }
    }
}
