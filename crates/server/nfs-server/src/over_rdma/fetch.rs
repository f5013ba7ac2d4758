//! [`Fetches`]: the RDMA Reads of one connection, and the calls that are assembled from their data.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use invariant::broken;
use rpcrdma::Piece;
use rpcrdma::call::Pieces;
use runtime::{Buf, Chain, Notify};

use super::{OverRdma, Phase, remote};
use crate::records::{MOST_DATA, PATIENCE, Record};

/// The longest RDMA Read, in bytes: the data of the longest WRITE, in one buffer of the pool. Those
/// of one call go side by side.
const LONGEST_READ: u32 = MOST_DATA;
/// Data shorter than this, in bytes, may lie in receive buffers that are far longer.
const SHORT: usize = 64 << 10;

/// The RDMA Reads of one connection.
#[derive(Default)]
pub(super) struct Fetches {
    /// By the number of each: the call that it is for, and which of its parts it brings.
    reads: RefCell<HashMap<u64, (Rc<Fetch>, usize)>>,
    last: Cell<u64>,
}

/// The parts of one call.
struct Fetch {
    /// `None`: it has not come yet.
    parts: RefCell<Vec<Option<Chain>>>,
    missing: Cell<usize>,
    /// They will not come.
    lost: Cell<bool>,
    news: Notify,
}

impl Fetches {
    /// Puts a call together. It holds its part of the core's pool before anything is read. `None`:
    /// the connection is over.
    pub(super) async fn fetch(&self, pieces: Pieces, sent: Buf, by: &OverRdma) -> Option<Record> {
        let bytes = |piece: &Piece| match piece {
            Piece::Read(segment) => segment.length as usize,
            _ => 0,
        };
        let held = by.long_calls.clone().take(pieces.iter().map(bytes).sum()).await;
        let fetch = Rc::new(Fetch {
            parts: RefCell::default(),
            missing: Cell::new(0),
            lost: Cell::new(false),
            news: Notify::default(),
        });
        let begins_sent = matches!(pieces.first(), Some(Piece::Sent(_)));
        self.post(&fetch, pieces, &sent, by)?;
        let come = fetch.news.until(|| match (fetch.lost.get(), fetch.missing.get()) {
            (true, _) => Some(false),
            (false, 0) => Some(true),
            (false, _) => None,
        });
        match runtime::timeout(PATIENCE, come).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => {
                by.phase.set(Phase::Slow);
                by.changed.notify();
                return None;
            }
        }
        let mut all = Chain::new();
        fetch.parts.take().into_iter().flatten().for_each(|part| all.append(part));
        Some(Record { held: Some(held), ..Record::gathered(all, begins_sent) })
    }

    /// Posts the RDMA Reads of a call. `None`: the connection is over.
    fn post(&self, fetch: &Rc<Fetch>, pieces: Pieces, sent: &Buf, by: &OverRdma) -> Option<()> {
        let pair = by.pair()?;
        let mut parts = fetch.parts.borrow_mut();
        for piece in pieces {
            let mut segment = match piece {
                Piece::Sent(range) => {
                    parts.push(Some(chain(sent.slice(range))));
                    continue;
                }
                Piece::Padding(bytes) => {
                    parts.push(Some(chain(vec![0; bytes])));
                    continue;
                }
                Piece::Read(segment) => segment,
            };
            while segment.length > 0 {
                let length = segment.length.min(LONGEST_READ);
                let id = self.last.get() + 1;
                self.last.set(id);
                self.reads.borrow_mut().insert(id, (fetch.clone(), parts.len()));
                parts.push(None);
                fetch.missing.set(fetch.missing.get() + 1);
                pair.post_read(remote(&segment), length as usize, id);
                segment.length -= length;
                segment.offset += u64::from(length);
            }
        }
        Some(())
    }

    /// An RDMA Read is complete.
    pub(super) fn fetched(&self, id: u64, data: Chain) {
        let Some((fetch, part)) = self.reads.borrow_mut().remove(&id) else {
            broken!("RDMA Read {id} is complete and was not posted");
            return;
        };
        fetch.missing.set(fetch.missing.get() - 1);
        let waits = fetch.missing.get() > 0;
        // A part that waits for others, perhaps for long, keeps no receive buffer meanwhile.
        let data = if waits && data.len() < SHORT { chain(data.to_vec()) } else { data };
        fetch.parts.borrow_mut()[part] = Some(data);
        if !waits {
            fetch.news.notify();
        }
    }

    /// Nothing more will come.
    pub(super) fn lose_all(&self) {
        for (_, (fetch, _)) in self.reads.take() {
            fetch.lost.set(true);
            fetch.news.notify();
        }
    }
}

fn chain(part: impl Into<Buf>) -> Chain {
    let mut chain = Chain::new();
    chain.push(part);
    chain
}

#[cfg(test)]
mod tests {
    use runtime::pool;

    use super::*;

    /// A client could hold the core's pool by the first parts of calls, a few bytes each.
    #[test]
    fn a_part_that_waits_for_others_keeps_no_receive_buffer() {
        const BUFFER: usize = 64 << 10;
        let fetches = Fetches::default();
        let fetch = Rc::new(Fetch {
            parts: RefCell::new(vec![None, None]),
            missing: Cell::new(2),
            lost: Cell::new(false),
            news: Notify::default(),
        });
        let before = pool::stats().in_use;
        for (part, held) in [0, BUFFER].into_iter().enumerate() {
            fetches.reads.borrow_mut().insert(part as u64, (fetch.clone(), part));
            let mut received = pool::alloc(BUFFER).unwrap();
            received.fill(part as u8);
            fetches.fetched(part as u64, chain(received.freeze().slice(100..110)));
            assert_eq!(pool::stats().in_use - before, held);
        }
        let parts: Vec<_> = fetch.parts.take().into_iter().flatten().map(|part| part.to_vec()).collect();
        assert_eq!(parts, [[0u8; 10], [1; 10]]);
    }
}
