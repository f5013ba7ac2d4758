//! The provider over rdma-core verbs: InfiniBand, RoCE, and iWARP by a card or by the kernel.
//! Translates between `verbs` and this crate's provider interface; owns no protocol. Without the
//! feature `verbs` the same types exist, but cannot be constructed.

use std::net::SocketAddr;

use crate::{Error, Options};

#[cfg(feature = "verbs")]
pub(crate) use with::{Handle, connect, nowhere};

/// Listens for connections through RDMA devices.
#[derive(Debug)]
pub struct VerbsListener {
    #[cfg(feature = "verbs")]
    listener: ::verbs::Listener,
    #[cfg(not(feature = "verbs"))]
    never: std::convert::Infallible,
}

/// A connection request through an RDMA device; any core may accept it: [`crate::Incoming::from`].
/// Dropping it rejects it.
#[derive(Debug)]
pub struct VerbsRequest {
    #[cfg(feature = "verbs")]
    pub(crate) request: ::verbs::Incoming,
    #[cfg(not(feature = "verbs"))]
    never: std::convert::Infallible,
}

/// Whether rdma-core is available for [`crate::Provider::Verbs`].
///
/// # Errors
/// The missing part, with what to install.
pub fn verbs_available() -> Result<(), Error> {
    #[cfg(feature = "verbs")]
    return ::verbs::available().map_err(|error| Error::Verbs(error.to_string()));
    #[cfg(not(feature = "verbs"))]
    return Err(unsupported());
}

#[cfg(not(feature = "verbs"))]
fn unsupported() -> Error {
    Error::Unsupported("this program was built without the feature `verbs`")
}

#[cfg(not(feature = "verbs"))]
impl VerbsListener {
    /// Always fails: see the module.
    ///
    /// # Errors
    /// Always.
    pub fn bind(_address: SocketAddr) -> Result<Self, Error> {
        Err(unsupported())
    }

    /// The listening address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.never {}
    }

    /// Never returns a connection.
    ///
    /// # Errors
    /// None.
    pub async fn accept(&mut self) -> Result<VerbsRequest, Error> {
        match self.never {}
    }
}

#[cfg(not(feature = "verbs"))]
impl VerbsRequest {
    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self.never {}
    }
}

#[cfg(not(feature = "verbs"))]
pub(crate) async fn connect(
    _address: SocketAddr,
    _private_data: impl FnOnce(bool) -> Vec<u8>,
    _options: &Options,
) -> Result<(crate::QueuePair, Vec<u8>), Error> {
    Err(unsupported())
}

#[cfg(feature = "verbs")]
mod with {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::io;
    use std::net::{IpAddr, Ipv4Addr};
    use std::task::{Context, Poll};

    use runtime::Chain;

    use super::*;
    use crate::{Buffers, Completion, Flags, QueuePair, Remote, Rights, Stag, Withdrawn};

    /// Maximum number of connections that wait to be accepted.
    const BACKLOG: u16 = 256;

    impl VerbsListener {
        /// Listens at `address`, on all devices that own it.
        ///
        /// # Errors
        /// [`Error::Verbs`] if rdma-core or a device is missing, or the address is in use.
        pub fn bind(address: SocketAddr) -> Result<Self, Error> {
            let listener =
                ::verbs::Listener::bind(address, BACKLOG).map_err(|error| translate(error, address))?;
            Ok(Self { listener })
        }

        /// The listening address.
        pub fn local_addr(&self) -> Option<SocketAddr> {
            self.listener.local()
        }

        /// The next connection request. Cancel safe: dropping the future loses nothing.
        ///
        /// # Errors
        /// The device was removed.
        pub async fn accept(&mut self) -> Result<VerbsRequest, Error> {
            let request = self.listener.accept().await.map_err(|error| translate(error, nowhere()))?;
            Ok(VerbsRequest { request })
        }
    }

    impl VerbsRequest {
        /// The peer's address.
        pub fn peer_addr(&self) -> Option<SocketAddr> {
            self.request.peer()
        }

        pub(crate) async fn accept(self, private_data: &[u8], options: &Options) -> Result<QueuePair, Error> {
            let peer = self.request.peer().unwrap_or_else(nowhere);
            let pair = self.request.accept(private_data, &verbs_options(options)).await;
            Ok(QueuePair::hardware(Handle::new(pair.map_err(|error| translate(error, peer))?, options)))
        }

        pub(crate) fn reject(self, private_data: &[u8]) -> Result<(), Error> {
            let peer = self.request.peer().unwrap_or_else(nowhere);
            self.request.reject(private_data).map_err(|error| translate(error, peer))
        }
    }

    pub(crate) async fn connect(
        address: SocketAddr,
        private_data: impl FnOnce(bool) -> Vec<u8>,
        options: &Options,
    ) -> Result<(QueuePair, Vec<u8>), Error> {
        let (pair, private_data) = ::verbs::connect_with(address, private_data, &verbs_options(options))
            .await
            .map_err(|error| translate(error, address))?;
        Ok((QueuePair::hardware(Handle::new(pair, options)), private_data))
    }

    /// The address if the device reported none.
    pub(crate) fn nowhere() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)
    }

    fn verbs_options(options: &Options) -> ::verbs::Options {
        let depth = |n: u16| u8::try_from(n.clamp(1, 128)).unwrap_or(128);
        ::verbs::Options {
            ird: depth(options.ird),
            ord: depth(options.ord),
            receives: options.receives,
            first_receives: options.first_receives.min(options.receives),
            receive_size: options.receive_size as usize,
            stags: options.stags as usize,
            setup_timeout: options.setup_timeout,
            unsound_windows: options.unsound_windows,
            ..::verbs::Options::default()
        }
    }

    fn translate(error: ::verbs::Error, address: SocketAddr) -> Error {
        use ::verbs::Error as Of;
        let unreachable = |kind: io::ErrorKind| Error::Connect { address, source: io::Error::from(kind) };
        match error {
            Of::Disconnected => Error::Closed,
            Of::Rejected { private_data, .. } if private_data.iter().any(|&byte| byte != 0) => {
                Error::Rejected(private_data)
            }
            // No listener at the address.
            Of::Rejected { .. } => unreachable(io::ErrorKind::ConnectionRefused),
            Of::NoRoute { .. } => unreachable(io::ErrorKind::NetworkUnreachable),
            Of::Unreachable { .. } => unreachable(io::ErrorKind::TimedOut),
            Of::Call { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Error::Connect { address, source }
            }
            Of::NoMemory(_) => Error::NoBuffers,
            other => Error::Verbs(other.to_string()),
        }
    }

    /// One connection.
    pub(crate) struct Handle {
        pair: ::verbs::QueuePair,
        send_high_water: usize,
        /// The error was already returned.
        told: Cell<bool>,
        /// An operation was requested that this provider does not support.
        refused: Cell<Option<&'static str>>,
        /// Posts without completion, which will not execute.
        flushed: RefCell<VecDeque<u64>>,
    }

    impl Handle {
        fn new(pair: ::verbs::QueuePair, options: &Options) -> Self {
            let send_high_water = options.send_high_water.max(1);
            Self {
                pair,
                send_high_water,
                told: Cell::new(false),
                refused: Cell::new(None),
                flushed: RefCell::default(),
            }
        }

        pub(crate) fn post_send(&self, head: &[u8], data: Chain, flags: Flags, id: Option<u64>) {
            let invalidate = flags.invalidate.map(|stag| stag.0);
            let posted = if head.len() <= ::verbs::MAX_HEAD {
                self.pair.post_send(head, data, invalidate, flags.solicited, id)
            } else {
                let mut all = Chain::from(head.to_vec());
                all.append(data);
                self.pair.post_send(&[], all, invalidate, flags.solicited, id)
            };
            if posted.is_err() {
                self.refuse("a header of that length");
            }
        }

        pub(crate) fn post_immediate(&self, _data: [u8; 8], _solicited: bool) {
            self.refuse("Immediate Data of RFC 7306 is software iWARP's alone");
        }

        pub(crate) fn post_atomic(&self, _to: Remote, _operation: crate::Atomic, id: u64) {
            self.flushed.borrow_mut().push_back(id);
            self.refuse("atomic operations are software iWARP's alone");
        }

        fn refuse(&self, what: &'static str) {
            self.refused.set(Some(what));
            self.pair.disconnect();
        }

        pub(crate) fn post_write(&self, to: Remote, data: Chain, id: Option<u64>) {
            self.pair.post_write(remote(to), data, id);
        }

        pub(crate) fn post_read(&self, from: Remote, len: usize, id: u64) {
            self.pair.post_read(remote(from), len, id);
        }

        pub(crate) fn post_receives(&self, count: u32) {
            self.pair.post_receives(count);
        }

        pub(crate) fn expose(&self, buffers: Buffers, rights: Rights) -> Result<Stag, Error> {
            let rights = match rights {
                Rights::Write => ::verbs::Rights::Write,
                Rights::ReadWrite => ::verbs::Rights::ReadWrite,
                Rights::All => {
                    return Err(Error::Unsupported("atomic operations are software iWARP's alone"));
                }
            };
            exposed(self.pair.expose(buffers, rights))
        }

        pub(crate) fn expose_source(&self, data: Chain) -> Result<Stag, Error> {
            exposed(self.pair.expose_source(data))
        }

        pub(crate) fn expose_sink(&self, len: u64) -> Result<Stag, Error> {
            let len = usize::try_from(len).map_err(|_| Error::NoBuffers)?;
            exposed(self.pair.expose_sink(len))
        }

        pub(crate) fn origin(&self, stag: Stag) -> u64 {
            self.pair.origin(stag.0).unwrap_or(0)
        }

        pub(crate) fn withdraw(&self, stag: Stag) -> Option<Withdrawn> {
            let ::verbs::Withdrawn { buffers, invalidated, busy } = self.pair.withdraw(stag.0).ok()?;
            Some(Withdrawn { buffers, placed: None, invalidated, busy })
        }

        pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Completion, Error>> {
            if let Some(id) = self.flushed.borrow_mut().pop_front() {
                return Poll::Ready(Ok(Completion::Flushed { id }));
            }
            // Backpressure: do not receive from a peer that does not read its data.
            if self.pair.poll_drained(self.send_high_water, cx).is_pending() {
                return Poll::Pending;
            }
            self.pair.poll_next(cx).map(|completion| match completion {
                Ok(completion) => Ok(tell(completion)),
                Err(_) if self.told.replace(true) => Err(Error::Closed),
                Err(error) => Err(match self.refused.take() {
                    Some(what) => Error::Unsupported(what),
                    None => translate(error, self.peer_addr()),
                }),
            })
        }

        pub(crate) fn flush(&self) {
            self.pair.flush();
        }

        pub(crate) fn queued(&self) -> usize {
            self.pair.queued()
        }

        pub(crate) async fn drained_below(&self, bytes: usize) {
            self.pair.drained_below(bytes).await;
        }

        pub(crate) fn disconnect(&self) {
            self.pair.disconnect();
        }

        pub(crate) fn ord(&self) -> u16 {
            self.pair.ord().into()
        }

        pub(crate) fn ird(&self) -> u16 {
            self.pair.ird().into()
        }

        pub(crate) fn takes_invalidation(&self) -> bool {
            self.pair.takes_invalidation()
        }

        pub(crate) fn peer_addr(&self) -> SocketAddr {
            self.pair.peer().unwrap_or_else(nowhere)
        }

        pub(crate) fn local_addr(&self) -> SocketAddr {
            self.pair.local().unwrap_or_else(nowhere)
        }
    }

    fn remote(remote: Remote) -> ::verbs::Remote {
        ::verbs::Remote { stag: remote.stag.0, offset: remote.offset }
    }

    fn exposed(result: Result<::verbs::Remote, ::verbs::Error>) -> Result<Stag, Error> {
        match result {
            Ok(remote) => Ok(Stag(remote.stag)),
            Err(::verbs::Error::TooMuch { .. }) => Err(Error::TooManyStags),
            Err(::verbs::Error::NoMemory(_)) => Err(Error::NoBuffers),
            Err(error) => Err(Error::Verbs(error.to_string())),
        }
    }

    fn tell(completion: ::verbs::Completion) -> Completion {
        use ::verbs::Completion as Of;
        match completion {
            // Verbs does not report whether the peer requested an event.
            Of::Received { message, invalidated } => {
                Completion::Received { message, invalidated: invalidated.map(Stag), solicited: false }
            }
            Of::Sent { id } => Completion::Sent { id },
            Of::Written { id } => Completion::Written { id },
            Of::Read { id, data } => Completion::Read { id, data },
            Of::Flushed { id } => Completion::Flushed { id },
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// One with private data returns it.
        #[test]
        fn a_rejection_without_private_data_means_connection_refused() {
            let silent = ::verbs::Error::Rejected { reason: 8, private_data: vec![0; 148] };
            assert!(matches!(translate(silent, nowhere()), Error::Connect { source, .. }
                if source.kind() == io::ErrorKind::ConnectionRefused));
            let worded = ::verbs::Error::Rejected { reason: 28, private_data: b"no".to_vec() };
            assert!(matches!(translate(worded, nowhere()), Error::Rejected(data) if data == b"no"));
            assert!(matches!(translate(::verbs::Error::Disconnected, nowhere()), Error::Closed));
        }

        #[test]
        fn options_beyond_what_verbs_can_carry_are_cut_to_that() {
            let options = verbs_options(&Options { ird: 16_000, ord: 0, ..Options::default() });
            assert_eq!((options.ird, options.ord), (128, 1));
        }
    }
}
