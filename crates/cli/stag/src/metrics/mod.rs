//! Metrics and health over HTTP: the contents of `status` as families of numbers. `table` defines
//! each metric once; the HTTP pages and the reference page follow it. Nothing here queries a core:
//! `status` does, once a second at most.

#[cfg(not(feature = "http"))]
mod absent;
#[cfg(feature = "http")]
mod picture;
#[cfg(feature = "http")]
mod process;
#[cfg(feature = "http")]
mod server;
#[cfg(feature = "http")]
mod sums;
#[cfg(feature = "http")]
mod table;

#[cfg(not(feature = "http"))]
pub use absent::Listener;
#[cfg(feature = "http")]
pub use server::Listener;
