//! This daemon as a gateway of a group: several daemons serve the same RBD images, and initiators
//! cannot tell. The crate `gateway` has the rest.
//!
//! - `shared`: the group's units as they are configured here.
//! - `secret`: the lines of the group's secret file.

pub mod secret;
mod shared;

pub use shared::{Shared, SharedUnit, named};
