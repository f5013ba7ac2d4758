//! [`QueuePair`]: one interface, whichever provider moves the bytes. Nothing here knows a protocol.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use ring::{BufMut, Chain};

#[cfg(feature = "verbs")]
use crate::hardware;
use crate::software;
use crate::{Atomic, Completion, Counters, DataSink, Error, Flags, Remote, Rights, Stag, Withdrawn};

/// One connection, on the core that made it. Clones are the same queue pair; with the last of them it ends.
///
/// Posts never fail: what cannot be sent any more is told by [`Self::next`], as [`Completion::Flushed`] for each post that
/// would have given a completion, and then an error. Posts leave in the order of their calls, but RDMA Reads that wait for their turn
/// are overtaken: nothing that is sent may take back, before a read is over, the memory that it reads.
#[derive(Clone)]
pub struct QueuePair {
    provider: Provider,
}

/// Who moves the bytes.
#[derive(Clone)]
enum Provider {
    Software(Rc<software::Handle>),
    #[cfg(feature = "verbs")]
    Verbs(Rc<hardware::Handle>),
}

impl QueuePair {
    pub(crate) fn software(handle: software::Handle) -> Self {
        Self { provider: Provider::Software(Rc::new(handle)) }
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn hardware(handle: hardware::Handle) -> Self {
        Self { provider: Provider::Verbs(Rc::new(handle)) }
    }

    /// Posts a Send of `head` and after it `data`. `head` is copied; `data` is sent by reference. With an `id` there will be a
    /// [`Completion::Sent`]. The peer must have posted a receive for it.
    pub fn post_send(&self, head: &[u8], data: Chain, flags: Flags, id: Option<u64>) {
        match &self.provider {
            Provider::Software(pair) => pair.post_send(head, data, flags, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_send(head, data, flags, id),
        }
    }

    /// Posts eight bytes of Immediate Data (RFC 7306 §6), which use up one of the receives that the peer has posted.
    pub fn post_immediate(&self, data: [u8; 8], solicited: bool) {
        match &self.provider {
            Provider::Software(pair) => pair.post_immediate(data, solicited),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_immediate(data, solicited),
        }
    }

    /// Posts an RDMA Write of `data` to the peer's memory, by reference. With an `id` there will be a [`Completion::Written`].
    pub fn post_write(&self, to: Remote, data: Chain, id: Option<u64>) {
        match &self.provider {
            Provider::Software(pair) => pair.post_write(to, data, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_write(to, data, id),
        }
    }

    /// Posts an RDMA Read of `len` bytes of the peer's memory; they come with [`Completion::Read`]. More than the negotiated
    /// [`Self::ord`] wait for their turn, in order.
    pub fn post_read(&self, from: Remote, len: usize, id: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.post_read(from, len, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_read(from, len, id),
        }
    }

    /// Says where what RDMA Reads bring from now on may be placed; when `sink` is gone it comes in buffers again. Adapters do not ask.
    pub fn set_data_sink(&self, sink: Weak<dyn DataSink>) {
        match &self.provider {
            Provider::Software(pair) => pair.set_data_sink(sink),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => drop(sink),
        }
    }

    /// Posts an atomic operation (RFC 7306 §5) on eight bytes of the peer's memory, at a multiple of 8, that the peer has exposed with
    /// [`Rights::All`]: nothing else of this connection comes between its look at them and what it leaves. [`Completion::Atomic`] says
    /// what they were. It waits its turn under [`Self::ord`] with the RDMA Reads, in order. Software iWARP only: over verbs it ends the
    /// connection with [`Error::Unsupported`].
    pub fn post_atomic(&self, to: Remote, operation: Atomic, id: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.post_atomic(to, operation, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_atomic(to, operation, id),
        }
    }

    /// Lets the peer send `count` more Sends.
    pub fn post_receives(&self, count: u32) {
        match &self.provider {
            Provider::Software(pair) => pair.post_receives(count),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_receives(count),
        }
    }

    /// Exposes buffers to the peer as one run of bytes from [`Self::origin`] on; empty ones are allowed. They stay with the queue pair
    /// until [`Self::withdraw`], also when the peer has invalidated them or the connection is lost, and are dropped with it.
    ///
    /// # Errors
    /// [`Error::TooManyStags`]; then the buffers are dropped. [`Error::Unsupported`] for [`Rights::All`] over verbs.
    pub fn expose(&self, buffers: impl IntoIterator<Item = BufMut>, rights: Rights) -> Result<Stag, Error> {
        match &self.provider {
            Provider::Software(pair) => pair.expose(buffers.into_iter().collect(), rights),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.expose(buffers.into_iter().collect(), rights),
        }
    }

    /// Exposes bytes that the peer may read, from [`Self::origin`] on; they are sent by reference.
    ///
    /// # Errors
    /// [`Error::TooManyStags`]
    pub fn expose_source(&self, data: Chain) -> Result<Stag, Error> {
        match &self.provider {
            Provider::Software(pair) => pair.expose_source(data),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.expose_source(data),
        }
    }

    /// Exposes `len` bytes that the peer may write to and that nobody will look at: they are dropped when they come, by the
    /// kernel if they are many.
    ///
    /// # Errors
    /// [`Error::TooManyStags`]
    pub fn expose_sink(&self, len: u64) -> Result<Stag, Error> {
        match &self.provider {
            Provider::Software(pair) => pair.expose_sink(len),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.expose_sink(len),
        }
    }

    /// The tagged offset that exposed memory begins at: what the peer has to be told with the STag. 0 in software; over verbs a
    /// virtual address.
    pub fn origin(&self, stag: Stag) -> u64 {
        match &self.provider {
            Provider::Software(_) => {
                let _ = stag;
                0
            }
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.origin(stag),
        }
    }

    /// Whether the peer may invalidate what is exposed to it. Not so over devices that have no memory windows: say so to the
    /// peer.
    pub fn takes_invalidation(&self) -> bool {
        match &self.provider {
            Provider::Software(_) => true,
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.takes_invalidation(),
        }
    }

    /// Takes exposed memory back; the peer cannot reach it from now on. `None` if it is not exposed here. What the peer has
    /// asked to read of a source and the network has not taken yet is still sent. An RDMA Write under way is dropped, as far as it
    /// is being received already, or ends the connection, as does a read of buffers that is not answered yet: whoever withdraws
    /// memory that the peer has not done with must reckon with that.
    pub fn withdraw(&self, stag: Stag) -> Option<Withdrawn> {
        match &self.provider {
            Provider::Software(pair) => pair.withdraw(stag),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.withdraw(stag),
        }
    }

    /// Receives if need be, and gives the next completion. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Why the connection has ended, once; after that [`Error::Closed`].
    pub async fn next(&self) -> Result<Completion, Error> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Whether [`Self::next`] has to receive before it can tell anything, and what comes is short, many pieces a receive: what these led
    /// to is better sent before the core copies more. Not so while pieces are long, where each comes by itself and sends do better to
    /// wait for several, nor over verbs, where the adapter receives.
    pub fn receives_many(&self) -> bool {
        match &self.provider {
            Provider::Software(pair) => pair.receives_many(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => false,
        }
    }

    /// As [`Self::next`], for one waiter at a time.
    ///
    /// # Errors
    /// See [`Self::next`].
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
        match &self.provider {
            Provider::Software(pair) => pair.poll_next(cx),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.poll_next(cx),
        }
    }

    /// Hands what is queued to the network now if nothing is on its way, with a system call of its own, instead of at the end
    /// of the turn.
    pub fn flush(&self) {
        match &self.provider {
            Provider::Software(pair) => pair.flush(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.flush(),
        }
    }

    /// Bytes that were posted and have not been taken by the network.
    pub fn queued(&self) -> usize {
        match &self.provider {
            Provider::Software(pair) => pair.queued(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.queued(),
        }
    }

    /// A mark behind everything that was posted so far, for [`Self::confirm`].
    pub fn posted(&self) -> u64 {
        match &self.provider {
            Provider::Software(pair) => pair.posted(),
            // An adapter tells when it has done with memory: nothing is lent beyond that.
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => 0,
        }
    }

    /// Says that the peer has taken in everything that was posted before the mark was made, as can be told from what it has
    /// sent since. Data is only sent by reference ([`crate::Options::lend`]) while this side hears that: the headers around it
    /// are kept until then, and there is room for 64 KiB of them. A mark that lies ahead is ignored.
    pub fn confirm(&self, mark: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.confirm(mark),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// Waits until fewer than `bytes` are queued, or the connection has ended.
    pub async fn drained_below(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.drained_below(bytes).await,
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.drained_below(bytes).await,
        }
    }

    /// As [`Self::drained_below`], of what was posted here alone: answers to the peer's RDMA Reads, which may always be as many as
    /// [`crate::Options::send_high_water`] lets in, are no reason to post nothing.
    pub async fn posts_drained_below(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.posts_drained_below(bytes).await,
            // There answers are the adapter's.
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.drained_below(bytes).await,
        }
    }

    /// Closes the connection: what is queued is still sent, and nothing may be posted any more. [`Self::next`] goes on
    /// to give completions until the peer has closed too, or has taken 5 s over it, and then [`Error::Closed`].
    pub fn disconnect(&self) {
        match &self.provider {
            Provider::Software(pair) => pair.disconnect(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.disconnect(),
        }
    }

    /// RDMA Reads that are sent at once, as negotiated.
    pub fn ord(&self) -> u16 {
        match &self.provider {
            Provider::Software(pair) => pair.ord(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.ord(),
        }
    }

    /// RDMA Reads that the peer may have outstanding, as negotiated.
    pub fn ird(&self) -> u16 {
        match &self.provider {
            Provider::Software(pair) => pair.ird(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.ird(),
        }
    }

    /// Whether what is received is protected by a CRC or an equal of it above TCP's checksum.
    pub fn has_crc(&self) -> bool {
        match &self.provider {
            Provider::Software(pair) => pair.crc(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => true,
        }
    }

    /// Whether it is software iWARP's.
    pub fn is_software(&self) -> bool {
        matches!(self.provider, Provider::Software(_))
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.provider {
            Provider::Software(pair) => pair.peer_addr(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.peer_addr(),
        }
    }

    /// Address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.provider {
            Provider::Software(pair) => pair.local_addr(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.local_addr(),
        }
    }

    /// What the kernel knows of the path to the peer: a system call, for once in a while. `None` where no socket of ours is
    /// between: over verbs, and when the socket has gone.
    pub fn tcp_info(&self) -> Option<ring::TcpInfo> {
        match &self.provider {
            Provider::Software(pair) => pair.tcp_info(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => None,
        }
    }

    /// Sets the socket's send buffer, bytes, which the kernel doubles; nothing where there is none.
    pub fn set_send_buffer(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.set_send_buffer(bytes),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// What it has moved so far, and how. Zeros from providers that do not count.
    pub fn counters(&self) -> Counters {
        match &self.provider {
            Provider::Software(pair) => pair.counters(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => Counters::default(),
        }
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueuePair({})", self.peer_addr())
    }
}
