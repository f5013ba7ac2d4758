//! TCP: listeners, streams, and their buffers for sending and receiving.

mod addr;
mod gather;
mod handed;
mod lend;
mod listener;
mod options;
mod path;
mod peer;
mod scatter;
mod stream;

pub(crate) use addr::RawAddr;
pub use gather::Gather;
pub use handed::handed_sockets;
pub use lend::{Lender, Lent};
pub use listener::{ListenOptions, TcpListener};
pub use options::Keepalive;
pub(crate) use options::{check, set_nonblocking};
pub use path::{PathOptions, SystemLimits, TcpInfo};
pub use peer::peer_groups;
pub use scatter::{Destinations, Scatter};
pub use stream::TcpStream;
