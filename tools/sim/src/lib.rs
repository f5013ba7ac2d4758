//! A seeded simulator of whole storage networks.
//!
//! The servers and the clients run in a world of `runtime::sim` as they ship: several cores, MC/S,
//! error recovery, iSER, kills, power cuts, live changes and takeovers. A seed decides everything.
//! Each kind of world is a module:
//!
//! - [`world`]: reads and writes, whatever breaks. [`plan`] makes a plan of a seed, [`workload`]
//!   makes commands and judges their answers, the [`oracle`] knows what each sector may hold,
//!   `wire` loses PDUs and checks their numbers.
//! - [`aborts`], [`replacement`], [`reservations`], [`copies`]: one rule each, on a small world of
//!   its own.
//! - [`nfs_state`]: opens, locks and delegations of NFSv4 clients, over restarts and takeovers of
//!   the file server.
//! - [`gateways`]: several gateways serve a modelled Ceph cluster as one.
//! - [`conformance`]: `stag conform` judges the servers.
//! - [`wan`]: the throughput that a session reaches by tuning itself, on a path with a rate.
//!
//! `docs/src/design/simulator.md` lists what is checked and what is left out.
#![forbid(unsafe_code)]

pub mod aborts;
mod books;
mod client;
pub mod conformance;
pub mod copies;
mod daemon;
mod executions;
pub mod gateways;
mod host;
mod medium;
pub mod nfs_state;
pub mod oracle;
pub mod plan;
pub mod random;
pub mod replacement;
pub mod reservations;
mod run;
pub mod tasks;
mod verdict;
pub mod wan;
mod wire;
pub mod workload;
pub mod world;

pub use run::{Failure, Report};
