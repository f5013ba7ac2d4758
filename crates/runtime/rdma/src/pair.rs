//! [`QueuePair`]: one interface for every provider. Knows no protocol.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use runtime::{BufMut, Chain, Keepalive};

#[cfg(feature = "verbs")]
use crate::hardware;
use crate::software;
use crate::{Atomic, Completion, Counters, DataSink, Error, Flags, Remote, Rights, Stag, Withdrawn};

/// One connection, on the core that created it. Clones are the same queue pair; dropping the last
/// one ends it.
///
/// Posts never fail. If the connection has ended, [`Self::next`] returns a [`Completion::Flushed`]
/// for each post with an outstanding completion, and then an error. Posts are sent in the order of
/// their calls, except that later posts overtake RDMA Reads that wait under the ORD. So no later
/// message may invalidate the memory of a read before the read completes.
#[derive(Clone)]
pub struct QueuePair {
    provider: Provider,
}

/// The implementation that transfers the bytes.
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

    /// Posts a Send of `head` followed by `data`. `head` is copied; `data` is sent by reference.
    /// With an `id` there will be a [`Completion::Sent`]. The peer must have posted a receive for
    /// it.
    pub fn post_send(&self, head: &[u8], data: Chain, flags: Flags, id: Option<u64>) {
        match &self.provider {
            Provider::Software(pair) => pair.post_send(head, data, flags, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_send(head, data, flags, id),
        }
    }

    /// Posts eight bytes of Immediate Data (RFC 7306 §6), which consume one of the peer's posted
    /// receives.
    pub fn post_immediate(&self, data: [u8; 8], solicited: bool) {
        match &self.provider {
            Provider::Software(pair) => pair.post_immediate(data, solicited),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_immediate(data, solicited),
        }
    }

    /// Posts an RDMA Write of `data` to the peer's memory, by reference. With an `id` there will be
    /// a [`Completion::Written`].
    pub fn post_write(&self, to: Remote, data: Chain, id: Option<u64>) {
        match &self.provider {
            Provider::Software(pair) => pair.post_write(to, data, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_write(to, data, id),
        }
    }

    /// Posts an RDMA Read of `len` bytes of the peer's memory; [`Completion::Read`] returns them.
    /// Beyond the negotiated [`Self::ord`], reads wait in order.
    pub fn post_read(&self, from: Remote, len: usize, id: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.post_read(from, len, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_read(from, len, id),
        }
    }

    /// Sets the sink in which the data of later RDMA Reads may be placed. Once `sink` is dropped,
    /// data is returned in buffers again. Adapters do not use it.
    pub fn set_data_sink(&self, sink: Weak<dyn DataSink>) {
        match &self.provider {
            Provider::Software(pair) => pair.set_data_sink(sink),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => drop(sink),
        }
    }

    /// Posts an atomic operation (RFC 7306 §5) on eight bytes of the peer's memory, at a multiple
    /// of 8, exposed with [`Rights::All`]. No other operation of this connection runs between its
    /// read and its write. [`Completion::Atomic`] returns the value before. It waits under
    /// [`Self::ord`] with the RDMA Reads, in order. Software iWARP only: over verbs it ends the
    /// connection with [`Error::Unsupported`].
    pub fn post_atomic(&self, to: Remote, operation: Atomic, id: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.post_atomic(to, operation, id),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_atomic(to, operation, id),
        }
    }

    /// Sets the maximum length of received Sends from now on, in bytes. An adapter's receives keep
    /// their original length.
    pub fn set_receive_size(&self, size: u32) {
        match &self.provider {
            Provider::Software(pair) => pair.set_receive_size(size),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// Posts `count` more receives for the peer's Sends.
    pub fn post_receives(&self, count: u32) {
        match &self.provider {
            Provider::Software(pair) => pair.post_receives(count),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.post_receives(count),
        }
    }

    /// Exposes buffers to the peer as one run of bytes from [`Self::origin`] on; empty ones are
    /// allowed. The queue pair owns them until [`Self::withdraw`], even if the peer has invalidated
    /// them or the connection is lost, and drops them with itself.
    ///
    /// # Errors
    /// [`Error::TooManyStags`]; then the buffers are dropped. [`Error::Unsupported`] for
    /// [`Rights::All`] over verbs.
    pub fn expose(&self, buffers: impl IntoIterator<Item = BufMut>, rights: Rights) -> Result<Stag, Error> {
        match &self.provider {
            Provider::Software(pair) => pair.expose(buffers.into_iter().collect(), rights),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.expose(buffers.into_iter().collect(), rights),
        }
    }

    /// Exposes bytes for the peer to read, from [`Self::origin`] on; they are sent by reference.
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

    /// Exposes `len` bytes for the peer to write, without memory. The data is dropped on arrival,
    /// by the kernel if it is long.
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

    /// The tagged offset of the first exposed byte: tell it to the peer with the STag. 0 in
    /// software; over verbs a virtual address.
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

    /// Whether the peer may invalidate exposed memory. False for devices without memory windows:
    /// tell the peer.
    pub fn takes_invalidation(&self) -> bool {
        match &self.provider {
            Provider::Software(_) => true,
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.takes_invalidation(),
        }
    }

    /// Withdraws exposed memory: from now on the peer cannot access it. `None` if it is not exposed
    /// here. Reads of a source that the peer has already requested are still sent. An RDMA Write in
    /// flight is dropped if its receive has begun; otherwise it ends the connection. An unanswered
    /// read of buffers ends it too. So withdraw memory only when the peer no longer uses it, or
    /// accept the loss.
    pub fn withdraw(&self, stag: Stag) -> Option<Withdrawn> {
        match &self.provider {
            Provider::Software(pair) => pair.withdraw(stag),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.withdraw(stag),
        }
    }

    /// Receives if necessary, and returns the next completion. Cancel safe: dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// Why the connection has ended, once; after that [`Error::Closed`].
    pub async fn next(&self) -> Result<Completion, Error> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Whether [`Self::next`] must receive first, and messages are short, so that one receive
    /// brings many. Then the caller should send the results so far before the core copies more.
    /// False while pieces are long, where each arrives alone and a send should collect several.
    /// False over verbs, where the adapter receives.
    pub fn receives_many(&self) -> bool {
        match &self.provider {
            Provider::Software(pair) => pair.receives_many(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => false,
        }
    }

    /// Bytes of messages that have arrived and that the caller does not have: those that the peer
    /// has not finished, and those that wait for [`Self::next`]. 0 over verbs, where messages lie
    /// in the receives that were posted.
    pub fn held(&self) -> usize {
        match &self.provider {
            Provider::Software(pair) => pair.held(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => 0,
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

    /// Passes queued data to the network now, with its own system call, instead of at the end of
    /// the turn. Does nothing while a send is in flight.
    pub fn flush(&self) {
        match &self.provider {
            Provider::Software(pair) => pair.flush(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.flush(),
        }
    }

    /// Bytes posted but not yet taken by the network.
    pub fn queued(&self) -> usize {
        match &self.provider {
            Provider::Software(pair) => pair.queued(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.queued(),
        }
    }

    /// A mark after everything posted so far, for [`Self::confirm`].
    pub fn posted(&self) -> u64 {
        match &self.provider {
            Provider::Software(pair) => pair.posted(),
            // An adapter reports when it no longer uses memory, so nothing needs confirmation.
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => 0,
        }
    }

    /// Confirms that the peer has received everything posted before the mark, as its later messages
    /// show. The memory of headers around data that was sent by reference
    /// ([`crate::Options::lend`]) is used again then, instead of new memory. A mark in the future
    /// is ignored.
    pub fn confirm(&self, mark: u64) {
        match &self.provider {
            Provider::Software(pair) => pair.confirm(mark),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// Waits until fewer than `bytes` bytes are queued, or the connection has ended.
    pub async fn drained_below(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.drained_below(bytes).await,
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.drained_below(bytes).await,
        }
    }

    /// Like [`Self::drained_below`], without the answers to the peer's RDMA Reads. Those may always
    /// reach [`crate::Options::send_high_water`], and must not block posts.
    pub async fn posts_drained_below(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.posts_drained_below(bytes).await,
            // Here the adapter sends the answers.
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.drained_below(bytes).await,
        }
    }

    /// Closes the connection: queued data is still sent, and further posts are not allowed.
    /// [`Self::next`] still returns completions until the peer has closed too, at most for 5 s, and
    /// then [`Error::Closed`].
    pub fn disconnect(&self) {
        match &self.provider {
            Provider::Software(pair) => pair.disconnect(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.disconnect(),
        }
    }

    /// Negotiated maximum of outstanding RDMA Reads of this side.
    pub fn ord(&self) -> u16 {
        match &self.provider {
            Provider::Software(pair) => pair.ord(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.ord(),
        }
    }

    /// Negotiated maximum of outstanding RDMA Reads of the peer.
    pub fn ird(&self) -> u16 {
        match &self.provider {
            Provider::Software(pair) => pair.ird(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(pair) => pair.ird(),
        }
    }

    /// Whether a CRC or an equivalent above TCP's checksum protects received data.
    pub fn has_crc(&self) -> bool {
        match &self.provider {
            Provider::Software(pair) => pair.crc(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => true,
        }
    }

    /// Whether the provider is software iWARP.
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

    /// The kernel's statistics of the path to the peer. A system call: use it rarely. `None`
    /// without a socket of this process: over verbs, and after the socket was closed.
    pub fn tcp_info(&self) -> Option<runtime::TcpInfo> {
        match &self.provider {
            Provider::Software(pair) => pair.tcp_info(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => None,
        }
    }

    /// Sets the socket's send buffer in bytes (the kernel doubles it), if there is a socket.
    pub fn set_send_buffer(&self, bytes: usize) {
        match &self.provider {
            Provider::Software(pair) => pair.set_send_buffer(bytes),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// Sets TCP keepalive of the socket, if there is one: a device notices by itself that its peer
    /// is gone.
    pub fn set_keepalive(&self, keepalive: Keepalive) {
        match &self.provider {
            Provider::Software(pair) => pair.set_keepalive(keepalive),
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => {}
        }
    }

    /// Counts of transferred data so far. Zeros from providers that do not count.
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
