//! Gateways that act as one: several daemons serve the same units, and initiators cannot tell.
//!
//! Sans-IO: no I/O, no clock, no thread. A [`Gateway`] is one daemon's part in the group. Its
//! driver hands in the time and what happened ([`Event`]), and carries out what the machine asks
//! for ([`Effect`]). The model of RADOS in this crate's tests drives the same machine.
//!
//! - [`id`]: names of gateways, instances, units, map epochs and commands.
//! - [`record`]: what the group has agreed on, one object that is changed by compare-and-set.
//! - [`codec`]: its bytes.
//! - [`timers`]: the durations, and how they have to relate.
//! - [`lease`]: whether this gateway may execute, by its own clock.
//! - [`silence`]: which other gateway has stopped, by the observer's own clock.
//! - [`fencing`]: taking an instance out: who blocklists it, and when.
//! - [`ownership`]: the steps by which one gateway takes a unit, serves it and hands it over.
//! - [`gateway`]: the machine that joins these.
//! - [`view`]: what `stag gateways` shows.
//!
//! Every guarantee rests on three facts of Ceph. An object changes by compare-and-set. An OSD
//! refuses a blocklisted instance from the map epoch of its entry on. An OSD that receives an
//! operation of a newer epoch first gets that map. Leases and timeouts only decide when to act.
//! `docs/src/design/gateways.md` has the argument.
#![forbid(unsafe_code)]

pub mod codec;
pub mod effect;
pub mod fencing;
pub mod gateway;
pub mod id;
pub mod lease;
#[cfg(test)]
mod mistake;
pub mod ownership;
pub mod record;
pub mod silence;
#[cfg(test)]
mod tests;
pub mod timers;
pub mod view;

pub use effect::{Effect, Event, Locked, Request, Snapshot, Stop};
pub use gateway::Gateway;
pub use id::{Epoch, GatewayId, InstanceId, Time, UnitId, Version};
pub use record::{Member, Place, Record, Refusal};
pub use timers::Timers;
pub use view::View;
