//! What a connection has lent to the network: read data sent by reference, and the headers around it.
//!
//! A unit's memory may change while it is on its way, as it may while a READ is at work; headers must not, and the initiator
//! itself says when it has them: its ExpStatSN confirms every PDU up to that status (RFC 7143 §4.2.2.2). This file keeps the
//! account. It never waits and never looks into what is sent.

use std::collections::VecDeque;
use std::io;

use iscsi::sn;
use runtime::{Gather, Lender, Lent, TcpStream};

/// One connection's loans.
#[derive(Default)]
pub(crate) struct Loans {
    lender: Lender,
    /// StatSNs and how far headers were lent before a PDU took that number; both grow.
    pending: VecDeque<(u32, u64)>,
}

impl Loans {
    /// Sends what the socket takes of `gather`. All of its PDUs have StatSNs before `next_stat_sn`; the initiator expects
    /// `exp_stat_sn` next.
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
                _ => self.pending.push_back((next_stat_sn, mark)),
            }
        }
        result
    }

    fn confirm(&mut self, next_stat_sn: u32, exp_stat_sn: u32) {
        // A number that was never given confirms nothing.
        if sn::lt(next_stat_sn, exp_stat_sn) {
            return;
        }
        while let Some((stat_sn, mark)) = self.pending.front()
            // The PDUs lent may end with some that take no number: only the status after them tells that they have come.
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

    /// Lends gathers of eight blocks, each ending in a status, and says how many until one has to be copied; `exp_stat_sn`
    /// tells what the initiator confirms when a number is next.
    fn lent(most: u32, exp_stat_sn: impl Fn(u32) -> u32) -> u32 {
        let runtime = Runtime::new(Config::default()).unwrap();
        runtime.block_on(async {
            let mut listener =
                TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address, Duration::from_secs(5)).await.unwrap();
            let peer = listener.accept().await.unwrap();
            let region = Region::new(1 << 20).unwrap();
            let mut loans = Loans::default();
            for round in 0..most {
                let mut gather = Gather::new();
                for block in 0..8 {
                    gather.push_copy(&[block as u8; 48]);
                    gather.push_lent(region.slice(block * BLOCK, BLOCK).unwrap());
                }
                let mut left = gather.len();
                let next = u32::MAX.wrapping_add(round);
                match loans.send(&stream, &mut gather, next, exp_stat_sn(next)).unwrap() {
                    Lent::Rest => return round,
                    Lent::All => {}
                    Lent::Full => panic!("the peer has read everything"),
                }
                while left > 0 {
                    left -= peer.recv_some(left).await.unwrap().len();
                }
            }
            most
        })
    }

    /// Whether headers' 64 KiB are used up after so many rounds of eight headers: of each page three quarters are used, at least.
    fn used_up(rounds: u32) -> bool {
        (128..=170).contains(&rounds)
    }

    #[test]
    fn headers_are_lent_again_as_the_initiator_confirms_their_statuses() {
        assert_eq!(lent(400, |next| next), 400);
        assert_eq!(lent(400, |next| next.wrapping_sub(8)), 400);
    }

    #[test]
    fn an_initiator_that_confirms_nothing_gets_copies() {
        assert!(used_up(lent(1000, |_| u32::MAX)));
    }

    #[test]
    fn a_status_that_was_never_sent_confirms_nothing() {
        assert!(used_up(lent(1000, |next| next.wrapping_add(5000))));
    }
}
