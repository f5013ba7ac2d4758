//! The seam between servers and logical units.
//!
//! This crate owns the words that both sides speak: a [`Command`] with its CDB and its I_T_L nexus, the [`DataMover`]
//! that carries its data, and the [`LogicalUnit`] that runs it. It holds no policy: it never decodes a CDB and never
//! touches a socket or a file.
#![forbid(unsafe_code)]

mod command;
mod mover;
mod nexus;
mod persist;
mod ports;
mod unit;

pub use command::{Cdb, Command, Outcome, TaskAttribute};
pub use mover::{DataMover, GetData, Lost};
pub use nexus::{ItlNexus, Nexus, NexusId, Verdict};
pub use persist::Persist;
pub use ports::{AccessError, PortGroups};
pub use unit::{Execution, LogicalUnit, ResetKind};
