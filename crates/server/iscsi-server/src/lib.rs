//! The iSCSI target: portals, logins, sessions on many cores, task routing.
//!
//! [`Server::start`] takes a [`config::ServerConfig`] and serves until [`Server::stop`]. A connection lives on one core:
//! `server` accepts it, `login` brings it to full-feature phase, `connection` runs it, `mover` carries the data of its
//! commands, `transport` is what TCP and iSER do differently, and `management` reaches across cores for task management and logout.
#![forbid(unsafe_code)]

pub mod audit;
pub mod config;
mod connection;
mod door;
mod drain;
mod handle;
mod login;
mod lun_map;
mod management;
mod model;
mod mover;
mod node;
mod notices;
mod order;
mod principal;
mod qos;
mod reassign;
mod redirect;
mod router;
mod server;
mod session;
mod shared;
mod text;
mod transport;
mod unit;
mod wire;

pub use iscsi::target::recovery::Recovered;

pub use handle::{Activity, ConnectionStatus, Flow, Handle, SessionStatus, SetAccessError, TargetStatus};
pub use model::Applied;
pub use server::Server;
pub use server_core::drain::{Error as DrainError, Scope as DrainScope, State as DrainState};
pub use server_core::pings::PER_SECOND as PINGS_PER_SECOND;
pub use server_core::tally::{BUCKETS, Counts};
pub use server_core::{CoreStatus, TcpCounters};
pub use shared::BoundPortal;
pub use unit::Unit;

/// How something is drained.
pub type DrainOptions = server_core::drain::Options<config::Redirect>;
/// A drain as it is now.
pub type DrainStatus = server_core::drain::Status<config::Redirect>;
