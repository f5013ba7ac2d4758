//! Data that a queue pair sends by reference, and the headers around it. Headers must not change
//! before the peer has them; only the upper layer knows when, and their memory is used again then.
//! This file records them. It never waits and never reads the data.

use std::collections::VecDeque;
use std::io;

use runtime::{Gather, Lender, Lent, TcpStream};

/// Sends that may be unconfirmed, at most: without confirmations headers lie in new memory.
const MOST: usize = 1024;

/// The unconfirmed sends by reference of one queue pair.
#[derive(Default)]
pub(super) struct Loans {
    lender: Lender,
    /// Per send: total bytes posted up to its end, and the mark of its headers; both increase.
    pending: VecDeque<(u64, u64)>,
}

impl Loans {
    /// Sends as much of `gather` as the socket takes. `end` is the number of bytes ever posted up
    /// to its end.
    pub(super) fn send(&mut self, socket: &TcpStream, gather: &mut Gather, end: u64) -> io::Result<Lent> {
        let before = self.lender.mark();
        let result = socket.try_lend(&mut self.lender, gather);
        let mark = self.lender.mark();
        if mark != before {
            match self.pending.back_mut() {
                Some((last, at)) if *last == end => *at = mark,
                _ => {
                    if self.pending.len() == MOST {
                        self.pending.pop_front();
                    }
                    self.pending.push_back((end, mark));
                }
            }
        }
        result
    }

    /// Records that the peer has everything posted up to byte `end`.
    pub(super) fn confirm(&mut self, end: u64) {
        while let Some((posted, mark)) = self.pending.front()
            && *posted <= end
        {
            self.lender.confirm(*mark);
            self.pending.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::{Config, ListenOptions, Region, Runtime, TcpListener};

    use super::*;

    /// The shortest block that is sent by reference.
    const BLOCK: usize = 12 << 10;

    /// Sends so many gathers of eight blocks by reference, and returns how many sends are
    /// unconfirmed in the end. `confirmed` maps the posted bytes to those that the peer has.
    fn unconfirmed(rounds: u32, confirmed: impl Fn(u64) -> u64) -> usize {
        let runtime = Runtime::new(Config::default()).unwrap();
        runtime.block_on(async {
            let mut listener =
                TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address, Duration::from_secs(5)).await.unwrap();
            let peer = listener.accept().await.unwrap();
            let region = Region::new(1 << 20).unwrap();
            let (mut loans, mut end) = (Loans::default(), 0);
            for round in 0..rounds {
                loans.confirm(confirmed(end));
                let mut gather = Gather::new();
                for block in 0..8 {
                    gather.push_copy(&[block as u8; 116]);
                    gather.push_lent(region.slice(block * BLOCK, BLOCK).unwrap());
                }
                let mut left = gather.len();
                end += left as u64;
                match loans.send(&stream, &mut gather, end).unwrap() {
                    Lent::All => {}
                    other => panic!("{other:?} in round {round}: the peer has read everything"),
                }
                while left > 0 {
                    left -= peer.recv_some(left).await.unwrap().len();
                }
            }
            loans.pending.len()
        })
    }

    #[test]
    fn headers_are_lent_again_as_the_peer_is_known_to_have_them() {
        assert_eq!(unconfirmed(200, |posted| posted), 1);
        // A gather has 99,232 bytes: the last two before the confirmation, and the one after it.
        assert_eq!(unconfirmed(200, |posted| posted.saturating_sub(100_000)), 3);
    }

    #[test]
    fn data_is_lent_without_confirmations() {
        assert_eq!(unconfirmed(1500, |_| 0), MOST);
    }
}
