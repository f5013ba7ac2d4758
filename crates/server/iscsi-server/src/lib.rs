//! The iSCSI target: portals, logins, sessions on many cores, task routing.
//!
//! [`Server::start`] takes a [`config::ServerConfig`] and serves until [`Server::stop`]. A connection lives on one core:
//! `server` accepts it, `login` brings it to full-feature phase, `connection` runs it, `mover` carries the data of its
//! commands, `transport` is what TCP and iSER do differently, and `management` reaches across cores for task management and logout.
#![forbid(unsafe_code)]

mod admission;
mod ahead;
pub mod audit;
mod backlog;
pub mod config;
mod connection;
mod door;
mod drain;
mod grants;
mod handle;
mod login;
mod lun_map;
mod management;
mod model;
mod mover;
mod node;
mod notices;
mod order;
mod pings;
mod portals;
mod principal;
mod qos;
mod reassign;
mod redirect;
mod retention;
mod router;
mod server;
mod session;
mod tally;
mod text;
mod transport;
mod unit;
mod wire;

pub use iscsi::target::recovery::Recovered;

pub use drain::{DrainError, DrainOptions, DrainScope, DrainState, DrainStatus};
pub use handle::{
    Activity, ConnectionStatus, CoreStatus, Flow, Handle, SessionStatus, SetAccessError, TargetStatus,
};
pub use model::Applied;
pub use pings::PER_SECOND as PINGS_PER_SECOND;
pub use server::{BoundPortal, Server};
pub use tally::{BUCKETS, Counts};
pub use transport::tcp::landing::TcpCounters;
pub use unit::Unit;
