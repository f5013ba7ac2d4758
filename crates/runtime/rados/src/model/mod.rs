//! A model of a Ceph cluster, in a simulated world: what `cluster`'s guarantees rest on, and how it
//! fails.
//!
//! - [`Cluster`]: monitors and OSDs, on a thread of the world, and the faults of a run.
//! - [`Client`], [`Object`], [`Watch`], [`Image`]: what `either` calls, as Ceph's libraries offer
//!   it.
//!
//! An OSD has a map epoch of its own. It refuses a blocklisted client from the entry's epoch on,
//! and gets a newer map at the latest with an operation of a client that has it. An operation that
//! was sent is carried out later, whatever became of its client meanwhile.
//!
//! Left out: OSDs that lose data, snapshots, resizes, locks that librbd breaks by itself, and what
//! only [`crate::Image::open`] offers.

mod calls;
mod cluster;

pub use calls::{Client, Image, Object, Watch};
pub use cluster::{Cluster, Landing, OSDS};
