//! Socket addresses in the kernel's format.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `sockaddr` of either family, and its length.
pub(crate) struct RawAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddr {
    /// Room for any address.
    pub(super) fn empty() -> Self {
        // SAFETY: plain numbers, for which zeros are valid.
        let storage = unsafe { std::mem::zeroed::<libc::sockaddr_storage>() };
        Self { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(crate) fn new(addr: SocketAddr) -> Self {
        let mut raw = Self::empty();
        match addr {
            SocketAddr::V4(addr) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a `sockaddr_storage` is large and aligned enough for every kind of
                // address.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(v4) };
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(addr) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(v6) };
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    /// The address that a caller passed.
    ///
    /// # Safety
    /// `addr` may be read for `len` bytes.
    #[cfg(feature = "sim")]
    pub(crate) unsafe fn from_raw(addr: *const libc::sockaddr, len: libc::socklen_t) -> Self {
        let mut raw = Self::empty();
        raw.len = len.min(raw.len);
        // SAFETY: the caller's; no more than the storage has room for.
        unsafe {
            std::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut raw.storage).cast(), raw.len as usize);
        }
        raw
    }

    pub(super) fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.len
    }

    pub(super) fn parts_mut(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// The address that the kernel wrote.
    pub(crate) fn parse(&self) -> io::Result<SocketAddr> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the family determines the type of this address; the storage is large and
                // aligned enough.
                let v4 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id)
                    .into())
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not an IP socket")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive_the_way_to_the_kernel_and_back() {
        for addr in ["127.0.0.1:3260", "[2001:db8::1]:860", "[fe80::1%7]:1", "0.0.0.0:0"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(RawAddr::new(addr).parse().unwrap(), addr);
        }
        assert!(RawAddr::empty().parse().is_err());
    }
}
