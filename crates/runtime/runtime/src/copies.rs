//! Counts the bytes that a core moved between memory and its sockets, by who copied them: user
//! space, the kernel, or nobody. A count is one addition to a number of this thread. This file
//! copies nothing itself.
//!
//! Buffers and regions count their own copies. Code that copies payload between plain slices says
//! so by [`count_copy`].

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

/// Bytes since the thread began. Those of sockets include headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Copied in user space.
    pub user: u64,
    /// Sent: the kernel copied them into the socket.
    pub sent: u64,
    /// Sent by reference: the kernel copied nothing.
    pub lent: u64,
    /// Received: the kernel copied them out of the socket.
    pub received: u64,
    /// Received and thrown away in the kernel, which copied nothing.
    pub dropped: u64,
}

impl Copies {
    /// Bytes that the kernel copied.
    pub fn kernel(&self) -> u64 {
        self.sent + self.received
    }

    /// Bytes that crossed a socket, in either direction.
    pub fn crossed(&self) -> u64 {
        self.kernel() + self.lent + self.dropped
    }
}

impl AddAssign for Copies {
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.sent += other.sent;
        self.lent += other.lent;
        self.received += other.received;
        self.dropped += other.dropped;
    }
}

impl Sub for Copies {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            user: self.user - other.user,
            sent: self.sent - other.sent,
            lent: self.lent - other.lent,
            received: self.received - other.received,
            dropped: self.dropped - other.dropped,
        }
    }
}

type Count = Cell<u64>;

thread_local! {
    static USER: Count = const { Cell::new(0) };
    static SENT: Count = const { Cell::new(0) };
    static LENT: Count = const { Cell::new(0) };
    static RECEIVED: Count = const { Cell::new(0) };
    static DROPPED: Count = const { Cell::new(0) };
}

/// The counts of this thread so far.
pub fn copies() -> Copies {
    Copies {
        user: USER.get(),
        sent: SENT.get(),
        lent: LENT.get(),
        received: RECEIVED.get(),
        dropped: DROPPED.get(),
    }
}

/// Counts `bytes` of payload that the caller copied in user space, between plain slices.
#[inline]
pub fn count_copy(bytes: usize) {
    USER.set(USER.get() + bytes as u64);
}

#[inline]
pub(crate) fn count_sent(bytes: usize) {
    SENT.set(SENT.get() + bytes as u64);
}

#[inline]
pub(crate) fn count_lent(bytes: usize) {
    LENT.set(LENT.get() + bytes as u64);
}

#[inline]
pub(crate) fn count_received(bytes: usize) {
    RECEIVED.set(RECEIVED.get() + bytes as u64);
}

#[inline]
pub(crate) fn count_dropped(bytes: usize) {
    DROPPED.set(DROPPED.get() + bytes as u64);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Config, Gather, Lender, Lent, ListenOptions, Region, Runtime, TcpListener, TcpStream};

    const BLOCK: usize = 12 << 10;

    #[test]
    fn each_byte_is_counted_by_who_copied_it() {
        let runtime = Runtime::new(Config::default()).unwrap();
        runtime.block_on(async {
            let mut listener =
                TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address, Duration::from_secs(5)).await.unwrap();
            let peer = listener.accept().await.unwrap();
            let region = Region::new(1 << 20).unwrap();
            let block = || region.slice(0, BLOCK).unwrap();
            let n = BLOCK as u64;

            let before = copies();
            for _ in 0..2 {
                let mut gather = Gather::new();
                gather.push(block());
                stream.send(gather).await.0.unwrap();
            }
            let mut left = BLOCK;
            while left > 0 {
                left -= peer.recv_some(left).await.unwrap().len();
            }
            left = BLOCK;
            while left > 0 {
                left -= peer.discard(left).await.unwrap();
            }
            let plain = copies() - before;
            assert_eq!(plain, Copies { user: 0, sent: 2 * n, lent: 0, received: n, dropped: n });
            assert_eq!((plain.kernel(), plain.crossed()), (3 * n, 4 * n));

            let before = copies();
            let mut gather = Gather::new();
            (0..4).for_each(|_| gather.push_lent(block()));
            assert_eq!(stream.try_lend(&mut Lender::new(), &mut gather).unwrap(), Lent::All);
            assert_eq!(copies() - before, Copies { lent: 4 * n, ..Copies::default() });

            let before = copies();
            block().stable().unwrap();
            region.write_from(0, &[1; 50]).unwrap();
            region.read_into(0, &mut [0; 7]).unwrap();
            region.write_buf(100, &block()).unwrap();
            count_copy(3);
            assert_eq!(copies() - before, Copies { user: 2 * n + 60, ..Copies::default() });
        });
    }
}
