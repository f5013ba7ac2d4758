//! The connection manager: event channels, communication identifiers, and events. Every call
//! returns at once; an event later reports the result of a slow operation. Owns the library's
//! objects and destroys them in the right order; decides nothing.

use std::ffi::c_void;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::abi::{self, CmId, ConnParam, Context};
use crate::error::Error;
use crate::library::{Library, library};

/// Timeout of the connection manager for resolving an address or a route, in milliseconds.
const RESOLVE_MS: i32 = 4000;
/// Retries after a lost packet, and after the peer had no receive posted (7: unlimited). iWARP has
/// neither.
const RETRIES: u8 = 7;

/// A channel for the events of identifiers. Closed with the last identifier on it.
pub(crate) struct Channel {
    library: &'static Library,
    raw: NonNull<abi::EventChannel>,
}

// SAFETY: librdmacm is thread-safe, and a channel is bound to no thread.
unsafe impl Send for Channel {}
// SAFETY: librdmacm is thread-safe, and a channel is bound to no thread.
unsafe impl Sync for Channel {}

impl Channel {
    /// A channel that never blocks.
    pub(crate) fn open() -> Result<Arc<Self>, Error> {
        let library = library()?;
        // SAFETY: the function has no parameters.
        let raw = unsafe { (library.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| Error::NoDevice(io::Error::last_os_error()))?;
        let channel = Self { library, raw };
        set_nonblocking(channel.fd().try_clone_to_owned().as_ref().map_err(copy_error)?)?;
        Ok(Arc::new(channel))
    }

    /// Readable when an event is pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self` exists, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next pending event, as a copy. The event itself is already acknowledged.
    pub(crate) fn next(self: &Arc<Self>) -> Result<Option<Event>, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open; the library sets the pointer when it returns 0.
        let rc = unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) };
        if rc != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::Call { call: "rdma_get_cm_event", source: error }),
            };
        }
        // SAFETY: the event is valid until it is acknowledged; its private data has that many
        // bytes.
        let (copy, new_id) = unsafe {
            let event = &*event;
            let conn = &event.conn;
            // The union's other members belong to datagram services, which this crate does not use.
            let private_data = if conn.private_data.is_null() || !has_parameters(event.event) {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
                    .to_vec()
            };
            let copy = Event {
                kind: event.event,
                status: event.status,
                private_data,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                request: None,
            };
            (copy, (event.event == abi::event::CONNECT_REQUEST).then_some(event.id))
        };
        // SAFETY: the event was obtained above, and is acknowledged once.
        unsafe { (self.library.rdma_ack_cm_event)(event) };
        let request = new_id.and_then(NonNull::new).map(|raw| Id {
            library: self.library,
            raw,
            channel: Arc::clone(self),
        });
        Ok(Some(Event { request, ..copy }))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel, so none is left on it; all events were
        // acknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Whether an event of this kind has a connection's parameters.
fn has_parameters(kind: i32) -> bool {
    matches!(kind, abi::event::CONNECT_REQUEST | abi::event::ESTABLISHED | abi::event::REJECTED)
}

pub(crate) struct Event {
    /// One of the constants in [`abi::event`].
    pub(crate) kind: i32,
    pub(crate) status: i32,
    pub(crate) private_data: Vec<u8>,
    /// In a request: RDMA Reads that the peer wants to have outstanding.
    pub(crate) responder_resources: u8,
    /// In a request: maximum outstanding RDMA Reads of this side.
    pub(crate) initiator_depth: u8,
    /// In a request: the new connection.
    pub(crate) request: Option<Id>,
}

impl Event {
    /// The error of a connection for an unexpected event.
    pub(crate) fn into_error(self) -> Error {
        let status = self.status;
        match self.kind {
            abi::event::ADDR_ERROR | abi::event::ROUTE_ERROR => Error::NoRoute { status },
            abi::event::REJECTED => Error::Rejected { reason: status, private_data: self.private_data },
            abi::event::UNREACHABLE | abi::event::CONNECT_ERROR => Error::Unreachable { status },
            abi::event::DEVICE_REMOVAL => Error::DeviceRemoved,
            _ => Error::Disconnected,
        }
    }
}

/// The limits of RDMA Reads that both sides of a connection exchange, and their private data.
pub(crate) struct Parameters<'a> {
    pub(crate) private_data: &'a [u8],
    /// Maximum outstanding RDMA Reads of the peer.
    pub(crate) responder_resources: u8,
    /// Maximum outstanding RDMA Reads of this side.
    pub(crate) initiator_depth: u8,
}

impl Parameters<'_> {
    fn raw(&self) -> ConnParam {
        ConnParam {
            private_data: if self.private_data.is_empty() {
                ptr::null()
            } else {
                self.private_data.as_ptr().cast::<c_void>()
            },
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// A communication identifier: a connection, a future connection, or a listener.
pub(crate) struct Id {
    library: &'static Library,
    raw: NonNull<CmId>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm is thread-safe, and an identifier is bound to no thread.
unsafe impl Send for Id {}

impl Id {
    /// A new identifier for reliable connections, with its events on `channel`.
    pub(crate) fn new(channel: &Arc<Channel>) -> Result<Self, Error> {
        let library = channel.library;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open; the library sets the pointer when it returns 0.
        let rc = unsafe {
            (library.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), abi::PS_TCP)
        };
        match NonNull::new(raw) {
            Some(raw) if rc == 0 => Ok(Self { library, raw, channel: Arc::clone(channel) }),
            _ => Err(Error::call("rdma_create_id")),
        }
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) fn raw(&self) -> *mut CmId {
        self.raw.as_ptr()
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// The device's context, once an address is resolved or a request has arrived through it.
    pub(crate) fn context(&self) -> Result<NonNull<Context>, Error> {
        // SAFETY: the identifier is valid as long as `self` exists.
        NonNull::new(unsafe { self.raw.as_ref().verbs })
            .ok_or_else(|| Error::NoDevice(io::Error::from(io::ErrorKind::NotFound)))
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        let mut raw = to_raw(address);
        // SAFETY: the address outlives the call.
        let rc = unsafe { (self.library.rdma_bind_addr)(self.raw(), (&raw mut raw).cast()) };
        check("rdma_bind_addr", rc)
    }

    pub(crate) fn listen(&self, backlog: u16) -> Result<(), Error> {
        // SAFETY: the identifier is valid.
        check("rdma_listen", unsafe { (self.library.rdma_listen)(self.raw(), backlog.into()) })
    }

    pub(crate) fn resolve_address(&self, address: SocketAddr) -> Result<(), Error> {
        let mut raw = to_raw(address);
        // SAFETY: the address outlives the call; the source address may be null.
        let rc = unsafe {
            (self.library.rdma_resolve_addr)(self.raw(), ptr::null_mut(), (&raw mut raw).cast(), RESOLVE_MS)
        };
        check("rdma_resolve_addr", rc)
    }

    pub(crate) fn resolve_route(&self) -> Result<(), Error> {
        // SAFETY: the identifier is valid.
        check("rdma_resolve_route", unsafe { (self.library.rdma_resolve_route)(self.raw(), RESOLVE_MS) })
    }

    pub(crate) fn connect(&self, parameters: &Parameters<'_>) -> Result<(), Error> {
        let mut raw = parameters.raw();
        // SAFETY: the parameters and their private data outlive the call.
        check("rdma_connect", unsafe { (self.library.rdma_connect)(self.raw(), &raw mut raw) })
    }

    pub(crate) fn accept(&self, parameters: &Parameters<'_>) -> Result<(), Error> {
        let mut raw = parameters.raw();
        // SAFETY: the parameters and their private data outlive the call.
        check("rdma_accept", unsafe { (self.library.rdma_accept)(self.raw(), &raw mut raw) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        // SAFETY: the private data outlives the call; the caller limits its length.
        let rc = unsafe {
            (self.library.rdma_reject)(self.raw(), private_data.as_ptr().cast(), private_data.len() as u8)
        };
        check("rdma_reject", rc)
    }

    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: the identifier is valid.
        check("rdma_disconnect", unsafe { (self.library.rdma_disconnect)(self.raw()) })
    }

    /// Moves it to a channel of its own, with its pending events.
    pub(crate) fn migrate(&mut self) -> Result<(), Error> {
        let channel = Channel::open()?;
        // SAFETY: both channels are open, the old one until `self` releases it below. All of its
        // events were acknowledged when they were taken, so the library waits for none.
        check("rdma_migrate_id", unsafe {
            (self.library.rdma_migrate_id)(self.raw(), channel.raw.as_ptr())
        })?;
        self.channel = channel;
        Ok(())
    }

    /// The address on this side.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid, and the library wrote its addresses before it returned
        // it.
        from_raw(unsafe { &self.raw.as_ref().src_addr })
    }

    /// The address on the other side.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as in `local`: the identifier is valid, and its addresses are written.
        from_raw(unsafe { &self.raw.as_ref().dst_addr })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the identifier is valid until here. Its queue pair is already destroyed, and all
        // events were acknowledged when they were taken.
        unsafe { (self.library.rdma_destroy_id)(self.raw()) };
    }
}

/// The result of a call that returns 0 or -1.
pub(crate) fn check(call: &'static str, rc: i32) -> Result<(), Error> {
    if rc == 0 { Ok(()) } else { Err(Error::call(call)) }
}

fn copy_error(error: &io::Error) -> Error {
    Error::Call { call: "fcntl", source: io::Error::from(error.kind()) }
}

/// Makes calls of the library on this open file return instead of wait. `fd` may be any descriptor
/// of the file.
pub(crate) fn set_nonblocking(fd: &std::os::fd::OwnedFd) -> Result<(), Error> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open; the calls only read and write the flags of its open file.
    let rc = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if rc < 0 { Err(Error::call("fcntl")) } else { Ok(()) }
}

/// An address in the C library's format.
fn to_raw(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: the structure has only integers, for which zeros are valid.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a `sockaddr_storage` has at least the size and alignment of any address.
            unsafe { ptr::write((&raw mut raw).cast(), sin) };
        }
        SocketAddr::V6(v6) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a `sockaddr_storage` has at least the size and alignment of any address.
            unsafe { ptr::write((&raw mut raw).cast(), sin6) };
        }
    }
    raw
}

/// The address, if it is an IP address.
fn from_raw(raw: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family identifies the type of the address; a `sockaddr_storage` has
            // sufficient size and alignment.
            let sin: libc::sockaddr_in = unsafe { ptr::read(ptr::from_ref(raw).cast()) };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(sin.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family identifies the type of the address; a `sockaddr_storage` has
            // sufficient size and alignment.
            let sin6: libc::sockaddr_in6 = unsafe { ptr::read(ptr::from_ref(raw).cast()) };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let port = u16::from_be(sin6.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_to_the_c_library_and_back_unchanged() {
        for address in ["192.0.2.7:3260", "[2001:db8::7]:20049", "[fe80::1%3]:5", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(from_raw(&to_raw(address)), Some(address));
        }
        // SAFETY: the structure has only integers, for which zeros are valid.
        assert_eq!(from_raw(&unsafe { std::mem::zeroed() }), None, "no address at all");
    }

    #[test]
    fn a_channel_without_a_device_says_what_is_missing() {
        match Channel::open() {
            Ok(channel) => assert!(channel.next().unwrap().is_none(), "nothing has happened on it"),
            Err(error @ (Error::Load(_) | Error::NoDevice(_))) => {
                let said = error.to_string();
                assert!(said.contains("rdma"), "{said}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
