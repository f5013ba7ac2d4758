//! A seeded simulator of a whole SAN in one thread.
//!
//! A seed stands for a plan: a network, a disk, a target, initiators, and what goes wrong when. The run of a plan
//! drives the code that is shipped: the initiator's and the target's state machines of `iscsi` (login, CHAP, digests,
//! negotiation, sessions of several connections), the disk unit of `disk` with its decoder in `scsi`, over a model of a
//! medium that loses what was not synced. Time is a number, chance comes from the seed, so a run can be repeated byte for
//! byte; a digest of its record proves it.
//!
//! - [`plan`] turns a seed into a plan, [`world`] runs it in one loop;
//! - [`network`] carries bytes, [`target`] and [`initiator`] drive the state machines on its two sides;
//! - [`rdma`] makes a queue pair of a link with the streams of `iwarp`, [`iser`] has the messages that it carries;
//! - [`wan`] is another world: one initiator on a path with a rate, and what its session reaches of it by tuning itself;
//! - [`workload`] makes commands and judges their answers, [`oracle`] knows what each sector may hold.
//!
//! It does not run `ring`, nor the drivers in `target` and `initiator` that stand on it: it has small ones of its own.
//! Functions that end many tasks come only from initiators with one connection: which responses of other connections may
//! still follow theirs is a matter of those drivers. `docs/simulator.md` tells how to run it, what it checks, and what else
//! it leaves out.
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
pub mod target;
pub mod trace;
pub mod wan;
pub mod workload;
pub mod world;

pub use world::{Failure, Report, Sabotage, run, run_sabotaged, run_with_cuts};
