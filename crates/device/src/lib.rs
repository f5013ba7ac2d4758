//! The seam between servers and logical units.
//!
//! This crate owns the words that both sides speak: a [`Command`] with its CDB and its I_T_L nexus, the [`DataMover`]
//! that carries its data, and the [`LogicalUnit`] that runs it; and what units of every kind have in common: their
//! [`Identity`], their [`Nexuses`] with their reservations, and [`exclusion`] of commands that must be atomic. It never decodes a CDB and never
//! touches a socket or a file.
#![forbid(unsafe_code)]

mod command;
pub mod exclusion;
mod identity;
mod landing;
mod mover;
mod nexus;
mod nexuses;
mod persist;
mod ports;
mod unit;

pub use command::{Cdb, Command, Outcome, TaskAttribute};
pub use identity::{Identity, IdentityError};
pub use landing::{Fill, LEAST as LEAST_LANDING, Land, Landing, Step as LandingStep};
pub use mover::{DataMover, GetData, Lost};
pub use nexus::{ItlNexus, Nexus, NexusId, Verdict};
pub use nexuses::{AbortTasks, KeptError, Nexuses, Tasks};
pub use persist::Persist;
pub use ports::{AccessError, PortGroups};
pub use unit::{Execution, LogicalUnit, ResetKind};
