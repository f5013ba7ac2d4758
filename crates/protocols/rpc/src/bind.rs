//! The portmapper, version 2, and rpcbind, versions 3 and 4 (RFC 1833): which address serves a
//! program. Requests and answers in both directions, and universal addresses.

use std::net::{IpAddr, SocketAddr};

use crate::xdr::{Chain, Malformed, Opaque, Reader, Writer, Xdr};
use crate::{rpc_program, xdr_struct};

/// The program number of all three versions.
pub const PROGRAM: u32 = 100_000;
/// The well-known port, TCP and UDP.
pub const PORT: u16 = 111;
/// [`Mapping::protocol`] of TCP.
pub const TCP: u32 = 6;
/// [`Mapping::protocol`] of UDP.
pub const UDP: u32 = 17;
/// The longest network ID, universal address or owner, bytes. RFC 1833 gives no limit.
pub const MAX_STRING: usize = 255;
/// The longest arguments or results of an indirect call, bytes (RFC 1833 gives `RPCBUFSIZE`).
pub const MAX_INDIRECT: usize = 9000;

/// A string of rpcbind.
pub type Text<'a> = Opaque<'a, MAX_STRING>;
/// Arguments or results of an indirect call.
pub type Indirect<'a> = Opaque<'a, MAX_INDIRECT>;

xdr_struct! {
    /// `mapping` (RFC 1833 §3.1).
    #[derive(Copy, Hash)]
    pub struct Mapping {
        /// Program number.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// [`TCP`] or [`UDP`].
        pub protocol: u32,
        /// The port; ignored in GETPORT and UNSET.
        pub port: u32,
    }

    /// `call_args` (RFC 1833 §3.1) and `rpcb_rmtcallargs` (§2.1): a call to be made for the client.
    pub struct CallArgs<'a> {
        /// Program number.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Procedure number.
        pub procedure: u32,
        /// Its arguments.
        pub args: Indirect<'a>,
    }

    /// `call_result` (RFC 1833 §3.1).
    pub struct CallResult<'a> {
        /// The port of the program.
        pub port: u32,
        /// The results of the call.
        pub results: Indirect<'a>,
    }

    /// `rpcb` (RFC 1833 §2.1).
    pub struct Binding<'a> {
        /// Program number.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Network ID, such as `tcp` or `udp6`.
        pub netid: Text<'a>,
        /// Universal address; see [`universal_address`].
        pub address: Text<'a>,
        /// Owner of the registration.
        pub owner: Text<'a>,
    }

    /// `rpcb_rmtcallres` (RFC 1833 §2.1).
    pub struct RemoteResult<'a> {
        /// Universal address of the program.
        pub address: Text<'a>,
        /// The results of the call.
        pub results: Indirect<'a>,
    }

    /// `netbuf` (RFC 1833 §2.1): an address in the transport's own form.
    pub struct NetBuf<'a> {
        /// Room for the address, bytes.
        pub max_length: u32,
        /// The address.
        pub bytes: Text<'a>,
    }

    /// `rpcb_entry` (RFC 1833 §2.1).
    pub struct Entry<'a> {
        /// Universal address.
        pub address: Text<'a>,
        /// Network ID.
        pub netid: Text<'a>,
        /// Semantics: 1 connectionless, 2 connection-oriented, 3 with orderly release.
        pub semantics: u32,
        /// Protocol family, such as `inet`.
        pub family: Text<'a>,
        /// Protocol, such as `tcp`.
        pub protocol: Text<'a>,
    }

    /// `rpcbs_addrlist` (RFC 1833 §2.1): how often an address was asked for.
    pub struct AddressStat<'a> {
        /// Program number.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Answers with an address.
        pub success: u32,
        /// Answers without.
        pub failure: u32,
        /// Network ID.
        pub netid: Text<'a>,
    }

    /// `rpcbs_rmtcalllist` (RFC 1833 §2.1): how often a call was made for clients.
    pub struct RemoteStat<'a> {
        /// Program number.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Procedure number.
        pub procedure: u32,
        /// Calls that succeeded.
        pub success: u32,
        /// Calls that failed.
        pub failure: u32,
        /// Calls by INDIRECT.
        pub indirect: u32,
        /// Network ID.
        pub netid: Text<'a>,
    }

    /// `rpcb_stat` (RFC 1833 §2.1): statistics of one version.
    pub struct VersionStat<'a> {
        /// Calls of each procedure.
        pub procedures: Counts,
        /// Registrations.
        pub set: u32,
        /// Registrations removed.
        pub unset: u32,
        /// Addresses asked for.
        pub addresses: Chain<'a, AddressStat<'a>>,
        /// Calls made for clients.
        pub remote: Chain<'a, RemoteStat<'a>>,
    }

    /// `rpcb_stat_byvers` (RFC 1833 §2.1).
    pub struct Statistics<'a> {
        /// Statistics of version 2.
        pub v2: VersionStat<'a>,
        /// Statistics of version 3.
        pub v3: VersionStat<'a>,
        /// Statistics of version 4.
        pub v4: VersionStat<'a>,
    }
}

/// Calls of each procedure, by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts(pub [u32; 13]);

impl<'a> Xdr<'a> for Counts {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut counts = Counts::default();
        for count in &mut counts.0 {
            *count = from.u32()?;
        }
        Ok(counts)
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.0.iter().for_each(|count| to.u32(*count));
    }
}

/// Version 2, the portmapper (RFC 1833 §3).
pub mod v2 {
    use super::*;

    /// The version's number.
    pub const VERSION: u32 = 2;

    rpc_program! {
        /// Procedures.
        pub enum Procedure;
        /// Arguments.
        pub enum Arguments<'a>;
        /// Results.
        pub enum Results<'a>;
        /// Does nothing.
        0 Null(()) -> ();
        /// Registers a mapping; the result is whether it did.
        1 Set(Mapping) -> bool;
        /// Removes a program's mappings of all protocols; the result is whether it did.
        2 Unset(Mapping) -> bool;
        /// The port of a program; 0 if there is none.
        3 GetPort(Mapping) -> u32;
        /// All mappings.
        4 Dump(()) -> Chain<'a, Mapping>;
        /// Calls a procedure for the client; no reply if that fails.
        5 CallIt(CallArgs<'a>) -> CallResult<'a>;
    }
}

/// Version 3 of rpcbind (RFC 1833 §2.2).
pub mod v3 {
    use super::*;

    /// The version's number.
    pub const VERSION: u32 = 3;

    rpc_program! {
        /// Procedures.
        pub enum Procedure;
        /// Arguments.
        pub enum Arguments<'a>;
        /// Results.
        pub enum Results<'a>;
        /// Does nothing.
        0 Null(()) -> ();
        /// Registers a binding; the result is whether it did.
        1 Set(Binding<'a>) -> bool;
        /// Removes a binding; the result is whether it did.
        2 Unset(Binding<'a>) -> bool;
        /// The universal address of a program; empty if there is none.
        3 GetAddr(Binding<'a>) -> Text<'a>;
        /// All bindings.
        4 Dump(()) -> Chain<'a, Binding<'a>>;
        /// Calls a procedure for the client; no reply if that fails.
        5 CallIt(CallArgs<'a>) -> RemoteResult<'a>;
        /// The server's time, seconds since 1970.
        6 GetTime(()) -> u32;
        /// A universal address in the transport's form.
        7 UniversalToTransport(Text<'a>) -> NetBuf<'a>;
        /// An address of the transport's form as a universal address.
        8 TransportToUniversal(NetBuf<'a>) -> Text<'a>;
    }
}

/// Version 4 of rpcbind (RFC 1833 §2.2).
pub mod v4 {
    use super::*;

    /// The version's number.
    pub const VERSION: u32 = 4;

    rpc_program! {
        /// Procedures.
        pub enum Procedure;
        /// Arguments.
        pub enum Arguments<'a>;
        /// Results.
        pub enum Results<'a>;
        /// Does nothing.
        0 Null(()) -> ();
        /// Registers a binding; the result is whether it did.
        1 Set(Binding<'a>) -> bool;
        /// Removes a binding; the result is whether it did.
        2 Unset(Binding<'a>) -> bool;
        /// The universal address of a program of any version; empty if there is none.
        3 GetAddr(Binding<'a>) -> Text<'a>;
        /// All bindings.
        4 Dump(()) -> Chain<'a, Binding<'a>>;
        /// Calls a procedure for the client; no reply if that fails.
        5 Broadcast(CallArgs<'a>) -> RemoteResult<'a>;
        /// The server's time, seconds since 1970.
        6 GetTime(()) -> u32;
        /// A universal address in the transport's form.
        7 UniversalToTransport(Text<'a>) -> NetBuf<'a>;
        /// An address of the transport's form as a universal address.
        8 TransportToUniversal(NetBuf<'a>) -> Text<'a>;
        /// The universal address of a program of exactly this version.
        9 GetVersAddr(Binding<'a>) -> Text<'a>;
        /// Calls a procedure for the client; the reply reports a failure.
        10 Indirect(CallArgs<'a>) -> RemoteResult<'a>;
        /// All addresses of a program.
        11 GetAddrList(Binding<'a>) -> Chain<'a, Entry<'a>>;
        /// Statistics of all versions.
        12 GetStat(()) -> Statistics<'a>;
    }
}

/// The universal address of an IP address and port (RFC 1833 §2.3, RFC 5665 §5.2.3): the address,
/// and the port's two bytes as decimals.
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The IP address and port of a universal address. `None` if it is none of IP.
pub fn socket_address(universal: &str) -> Option<SocketAddr> {
    let (rest, low) = universal.rsplit_once('.')?;
    let (address, high) = rest.rsplit_once('.')?;
    let address: IpAddr = address.parse().ok()?;
    let byte = |digits: &str| {
        let plain = digits.bytes().all(|one| one.is_ascii_digit());
        digits.parse::<u8>().ok().filter(|_| plain)
    };
    Some(SocketAddr::new(address, u16::from_be_bytes([byte(high)?, byte(low)?])))
}
