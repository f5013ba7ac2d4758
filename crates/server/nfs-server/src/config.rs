//! Configuration of the NFS server: exports, the rules of their clients, and limits.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tree::Tree;

pub use nfs::PORT;
pub use nfs::mount::PROGRAM as MOUNT_PROGRAM;
pub use nfs::v3::PROGRAM;
pub use rpcrdma::NFS_PORT as RDMA_PORT;
pub use server_core::qos::QosLimits;

/// The longest name of an export, bytes (RFC 1813 §5.1.2).
pub const LONGEST_NAME: usize = nfs::mount::MAX_PATH;

/// Configuration of an NFS server.
#[derive(Clone)]
pub struct NfsConfig {
    /// Addresses to listen on. Every address serves NFS, MOUNT and the portmapper.
    pub portals: Vec<NfsPortal>,
    /// The exports.
    pub exports: Vec<Export>,
    /// Bounds.
    pub limits: NfsLimits,
    /// Proves that this server made a file handle. Kept over restarts, since handles are.
    pub key: [u8; 16],
    /// Looks up the groups of a user, which replace those that clients claim (`manage-gids` of
    /// other servers). Blocks. `None`: the server uses the claimed groups.
    pub groups: Option<GroupLookup>,
    /// The file that keeps which clients of NFSv4 may reclaim their opens and locks after a
    /// restart. `None`: none may. Looked at once, when serving begins.
    pub clients: Option<PathBuf>,
}

/// The groups of a user; `None` if there is no such user.
pub type GroupLookup = Arc<dyn Fn(u32) -> Option<Vec<u32>> + Send + Sync>;

/// A listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsPortal {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The RDMA devices that have the address take connections there, by rdma-core. Otherwise the
    /// host's network does, for TCP and for software iWARP.
    pub verbs: bool,
}

impl std::fmt::Display for NfsPortal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.verbs { " by its RDMA devices" } else { "" };
        write!(f, "{}{how}", self.listen)
    }
}

impl server_core::portals::Asked for NfsPortal {
    fn address(&self) -> SocketAddr {
        self.listen
    }

    fn by_device(&self) -> bool {
        self.verbs
    }
}

/// A tree under the name by which clients mount it.
#[derive(Clone)]
pub struct Export {
    /// Its path, such as `/data`: begins with `/`, without `.`, `..` and doubled slashes.
    pub name: String,
    /// The tree of files that it exports.
    pub tree: Arc<dyn Tree>,
    /// Only the clients of this export change the tree. Else they get no delegations: another
    /// change would not recall one, and its client would read old data for as long as it has it.
    pub exclusive: bool,
    /// Rules of the clients that may mount it; the rule with the longest matching prefix counts.
    /// Empty: every client may, under [`ClientRule::default`].
    pub clients: Vec<ClientRule>,
}

/// The rights and limits of clients in one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// The network.
    pub network: Network,
    /// Whether they may only read.
    pub read_only: bool,
    /// Users whose identity is replaced.
    pub squash: Squash,
    /// The user and group in its place.
    pub anonymous: (u32, u32),
    /// Limits of each address in the network on this export, over all its connections: READs,
    /// WRITEs and COPYs per second, and their bytes. Calls beyond them wait. `None`: no limit.
    pub limits: Option<Arc<QosLimits>>,
}

/// User and group ID of `nobody` and `nogroup` on most systems.
pub const NOBODY: u32 = 65534;

impl Default for ClientRule {
    fn default() -> Self {
        Self {
            network: Network::ALL,
            read_only: false,
            squash: Squash::Root,
            anonymous: (NOBODY, NOBODY),
            limits: None,
        }
    }
}

/// Users whose identity the server replaces by the anonymous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// The super-user's, wherever a 0 is.
    #[default]
    Root,
    /// Every user's.
    All,
    /// No identity is replaced.
    None,
}

/// An IP network, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Text that names no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: write an address, an address with a prefix (192.0.2.0/24), or *")]
pub struct NoNetwork(pub String);

impl Network {
    /// All addresses of both families.
    pub const ALL: Self = Self { address: IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), prefix: 0 };

    /// Whether `address` is in it. An IPv4 address is the same in its IPv6 form.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
            IpAddr::V6(v6) => (v6.to_bits(), false),
        };
        let ((own, own_v4), (other, other_v4)) = (bits(self.address), bits(address));
        if self.prefix == 0 && *self == Self::ALL {
            return true;
        }
        let shift = 128 - u32::from(self.prefix);
        own_v4 == other_v4 && (shift == 128 || own >> shift == other >> shift)
    }

    /// Bits of the prefix: the longer one names fewer clients.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

impl std::str::FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let wrong = || NoNetwork(text.to_owned());
        if text == "*" {
            return Ok(Self::ALL);
        }
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.map_or(Ok(most), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix > most {
            return Err(wrong());
        }
        // An IPv4 network in its IPv6 form has 96 bits more.
        Ok(match (address.to_canonical(), prefix.checked_sub(96)) {
            (address @ IpAddr::V4(_), Some(prefix)) => Self { address, prefix },
            _ => Self { address, prefix },
        })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self == Self::ALL {
            true => f.write_str("*"),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

/// Bounds on what clients may cost. A connection holds at most `calls` calls of up to 1 MiB each
/// that are in progress, and `send_high_water` bytes of replies and one more reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections of one address at once.
    pub connections_per_address: usize,
    /// Calls of one connection that are in progress at once. More wait in its socket.
    pub calls: usize,
    /// Bytes of replies that wait for one client. Above it no more of its calls are read.
    pub send_high_water: usize,
    /// Time from accept to the first call.
    pub setup_time: Duration,
    /// Replies that are kept for calls that may come again, over all clients.
    pub replies: usize,
    /// A client of version 4 that sends nothing for this long may lose its state. Also the length
    /// of the grace period. Looked at once, when serving begins; a successor's is not shorter than
    /// its predecessor's.
    pub lease: Duration,
}

impl Default for NfsLimits {
    fn default() -> Self {
        Self {
            connections: 65536,
            connections_per_address: usize::MAX,
            calls: 128,
            send_high_water: 4 << 20,
            setup_time: Duration::from_secs(15),
            replies: 16384,
            lease: Duration::from_secs(90),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn networks_contain_their_addresses_in_either_form() {
        assert!(is_in("192.0.2.0/24", "192.0.2.77") && !is_in("192.0.2.0/24", "192.0.3.1"));
        assert!(is_in("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(is_in("::ffff:192.0.2.0/120", "192.0.2.77") && !is_in("::ffff:192.0.2.0/120", "192.0.3.1"));
        assert!(is_in("0.0.0.0/0", "10.0.0.1") && !is_in("0.0.0.0/0", "2001:db8::1"));
        assert!(is_in("2001:db8::/32", "2001:db8::5") && !is_in("2001:db8::/32", "2001:db9::5"));
        assert!(is_in("*", "10.0.0.1") && is_in("*", "2001:db8::1"));
    }

    #[test]
    fn what_names_no_network_is_refused() {
        for text in ["", "host", "192.0.2.0/33", "192.0.2.0/x", "2001:db8::/129", "192.0.2.0/-1"] {
            assert_eq!(text.parse::<Network>(), Err(NoNetwork(text.into())));
        }
    }
}
