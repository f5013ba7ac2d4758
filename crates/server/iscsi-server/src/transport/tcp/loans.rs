//! Memory that a connection has lent to the network: read data sent by reference, and the headers
//! around it.
//!
//! A unit's memory may change while it is in flight, as it may during a READ; headers must not. The
//! initiator reports when it has them: its ExpStatSN confirms every PDU up to that status (RFC 7143
//! §4.2.2.2). Then their memory, which is in the processor's cache, is reused. This file keeps the
//! account. It never waits and never looks into the data sent.

use std::collections::VecDeque;
use std::io;

use iscsi::sn;
use runtime::{Gather, Lender, Lent, TcpStream};

/// Most sends whose headers may be unconfirmed: the headers for an initiator that confirms nothing
/// use new memory.
const MOST: usize = 1024;

/// One connection's loans.
#[derive(Default)]
pub(crate) struct Loans {
    lender: Lender,
    /// StatSNs, and the lender's mark before a PDU took that StatSN; both grow.
    pending: VecDeque<(u32, u64)>,
}

impl Loans {
    /// Sends what the socket takes of `gather`. All of its PDUs have StatSNs before `next_stat_sn`;
    /// the initiator expects `exp_stat_sn` next.
    pub(crate) fn send(
        &mut self,
        stream: &TcpStream,
        gather: &mut Gather,
        next_stat_sn: u32,
        exp_stat_sn: u32,
    ) -> io::Result<Lent> {
        self.confirm(next_stat_sn, exp_stat_sn);
        let before = self.lender.mark();
        let result = stream.try_lend(&mut self.lender, gather);
        let mark = self.lender.mark();
        if mark != before {
            match self.pending.back_mut() {
                Some((stat_sn, last)) if *stat_sn == next_stat_sn => *last = mark,
                _ => {
                    if self.pending.len() == MOST {
                        self.pending.pop_front();
                    }
                    self.pending.push_back((next_stat_sn, mark));
                }
            }
        }
        result
    }

    fn confirm(&mut self, next_stat_sn: u32, exp_stat_sn: u32) {
        // A StatSN that was never sent confirms nothing.
        if sn::lt(next_stat_sn, exp_stat_sn) {
            return;
        }
        while let Some((stat_sn, mark)) = self.pending.front()
            // The PDUs lent may end with some that take no StatSN: only the status after them
            // confirms their arrival.
            && sn::lt(*stat_sn, exp_stat_sn)
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

    /// As much as is lent and not copied.
    const BLOCK: usize = 12 << 10;

    /// Lends so many gathers of eight blocks, each ending in a status; `exp_stat_sn` tells what the
    /// initiator confirms when a number is next. Returns how many sends are unconfirmed in the end.
    fn unconfirmed(rounds: u32, exp_stat_sn: impl Fn(u32) -> u32) -> usize {
        let runtime = Runtime::new(Config::default()).unwrap();
        runtime.block_on(async {
            let mut listener =
                TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address, Duration::from_secs(5)).await.unwrap();
            let peer = listener.accept().await.unwrap();
            let region = Region::new(1 << 20).unwrap();
            let mut loans = Loans::default();
            for round in 0..rounds {
                let mut gather = Gather::new();
                for block in 0..8 {
                    gather.push_copy(&[block as u8; 48]);
                    gather.push_lent(region.slice(block * BLOCK, BLOCK).unwrap());
                }
                let mut left = gather.len();
                let next = u32::MAX.wrapping_add(round);
                match loans.send(&stream, &mut gather, next, exp_stat_sn(next)).unwrap() {
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
    fn headers_are_lent_again_as_the_initiator_confirms_their_statuses() {
        assert_eq!(unconfirmed(400, |next| next), 1);
        assert_eq!(unconfirmed(400, |next| next.wrapping_sub(8)), 9);
    }

    #[test]
    fn data_is_lent_to_an_initiator_that_confirms_nothing() {
        assert_eq!(unconfirmed(1500, |_| u32::MAX), MOST);
    }

    #[test]
    fn a_status_that_was_never_sent_confirms_nothing() {
        assert_eq!(unconfirmed(1500, |next| next.wrapping_add(5000)), MOST);
    }
}
