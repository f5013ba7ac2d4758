//! The interface between servers and logical units.
//!
//! This crate owns the types that both sides share. A server passes a [`Command`] with its CDB and
//! its I_T_L nexus, and a [`DataMover`] that transfers its data; a [`LogicalUnit`] runs it. The
//! crate also owns the parts common to units of every kind: their [`Identity`], their [`Nexuses`]
//! with reservations, and the [`exclusion`] of commands that must be atomic. It never decodes a CDB
//! and never touches a socket or a file.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "only this workspace uses it: a name that says all needs no comment")]

mod command;
pub mod exclusion;
mod identity;
mod landing;
mod mover;
mod nexus;
mod nexuses;
mod owners;
mod pace;
mod persist;
mod ports;
mod sync;
mod unit;

pub use command::{Cdb, Command, Outcome, TaskAttribute};
pub use identity::{Identity, IdentityError, Names};
pub use landing::{Fill, LEAST as LEAST_LANDING, Land, Landing, Step as LandingStep};
pub use mover::{DataMover, GetData, Lost};
pub use nexus::{ItlNexus, Nexus, NexusId, Principal, Verdict};
pub use nexuses::{AbortTasks, Deed, HandedOver, KeptError, Nexuses, Tasks};
pub use pace::{Charge, Charged, Pace};
pub use persist::{Persist, Reload};
pub use ports::{AccessError, PortGroups};
pub use unit::{Execution, LogicalUnit, ResetKind};
