//! A seeded simulator of whole storage networks.
//!
//! A seed gives a plan: a network, a disk, a server, initiators, and the faults of the run. There are two kinds of
//! world that run a plan. Both judge every answer with the [`oracle`], which knows what each sector may hold.
//!
//! - [`shipped`] runs `iscsi-server` and `iscsi-client` unchanged, in a world of `runtime::sim`: several cores, MC/S,
//!   ERL 2, iSER, kills, power cuts, live changes and takeovers.
//! - [`world`] runs the state machines of `iscsi`, `iwarp` and `disk` in one thread, with drivers of its own
//!   ([`target`], [`initiator`], [`network`], [`rdma`], [`iser`]). It checks each PDU.
//! - [`wan`] is a third one: an initiator on a path with a rate, and the throughput that its session reaches by
//!   tuning itself.
//!
//! [`plan`] makes plans of seeds, [`workload`] makes commands and judges their answers. What each kind of world
//! checks and leaves out is in `docs/src/design/simulator.md`.
#![forbid(unsafe_code)]

pub mod clock;
pub mod executor;
pub mod initiator;
pub mod iser;
pub mod network;
pub mod oracle;
pub mod plan;
pub mod random;
pub mod rdma;
pub mod shipped;
pub mod target;
pub mod trace;
pub mod wan;
pub mod workload;
pub mod world;

pub use world::{Failure, Report, Sabotage, run, run_sabotaged, run_with_cuts};
