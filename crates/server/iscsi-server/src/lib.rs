//! The iSCSI target: portals, logins, sessions on many cores, task routing.
//!
//! [`Server::start`] takes a [`config::ServerConfig`] and serves until [`Server::stop`]. `service`
//! is the front end of [`server_core`]. A connection lives on one core: `login` brings it to
//! full-feature phase, and `connection` runs it with its tasks. The modules form layers; none
//! imports one above it:
//!
//! 1. `config`, `unit`, `node`, `lun_map`: what is served; `account`,
//!    `stages`, `slow`: what is counted; `end`, `wire`, `transport`: sockets and
//!    queue pairs, which know no connection;
//! 2. `remote`, `ferry`: a connection as others reach it; `session`, `model`, `shared`: what all
//!    cores share; `drain`, `renewal`, `notices`, `preemptor`: what they do to sessions;
//! 3. `connection`: one connection, its commands, task management and recovery; `offer`, `door`,
//!    `login`: how it comes about;
//! 4. `service`, `apply`, `handle`, `server`: the whole.
#![forbid(unsafe_code)]

mod account;
mod apply;
pub mod audit;
pub mod config;
mod connection;
mod door;
mod drain;
mod end;
mod ferry;
mod handle;
mod login;
mod lun_map;
mod model;
mod node;
mod notices;
mod offer;
mod preemptor;
mod principal;
mod qos;
mod redirect;
mod remote;
mod renewal;
mod router;
mod server;
mod service;
mod session;
mod shared;
mod slow;
mod stages;
mod transport;
mod unit;
mod wire;

pub use iscsi::target::recovery::Recovered;

pub use account::{OUTCOMES, TargetCounts};
pub use drain::Leaving;
pub use handle::{
    Activity, ConnectionStatus, Disconnected, Flow, Handle, SessionStatus, SetAccessError, TargetStatus,
};
pub use principal::recognize_principals_by;
pub use server::{Server, begin, prepare};
pub use server_core::drain::{Error as DrainError, Scope as DrainScope, State as DrainState};
pub use server_core::pings::PER_SECOND as PINGS_PER_SECOND;
pub use server_core::tally::{BUCKETS, Counts};
pub use server_core::{Applied, CoreStatus, CoresConfig, TcpCounters};
pub use shared::BoundPortal;
pub use slow::{Progress, SlowCommand};
pub use stages::{STAGE_BUCKETS, Stages, Times};
pub use unit::Unit;

/// Options of a drain.
pub type DrainOptions = server_core::drain::Options<config::Redirect>;
/// A drain as it is now.
pub type DrainStatus = server_core::drain::Status<config::Redirect>;
